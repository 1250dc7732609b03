"""What a person sees of a training: a line per epoch, a live one in a terminal, numbers for TensorBoard."""

import io
import re
import sys

import pytest
from helpers.trainings import few_digits, small_config

from ibinn.data.splits import split
from ibinn.formats import clock
from ibinn.training.progress import Board, Lines
from ibinn.training.trainer import train


class Terminal(io.StringIO):
    def isatty(self):
        return True


def trained_lines(folder, stream, method="ibinn", board=None):
    dataset = few_digits()
    config = small_config(dataset, method=method, epochs=3)
    lines = Lines(config.recipe.epochs, config.recipe.batch_size, board, stream)
    train(config, dataset, split(dataset, 0), folder, lines)
    return stream.getvalue()


def test_without_a_terminal_there_is_a_plain_line_per_epoch(tmp_path):
    text = trained_lines(tmp_path / "run", io.StringIO())
    assert "\r" not in text
    assert "\x1b" not in text
    number = r"-?\d+\.\d+"
    pattern = (
        rf"epoch (\d)/3  loss_x {number}  loss_y {number}  validation: error {number} %, {number} bits/dim"
    )
    found = re.findall(pattern + r"  \d+/s  ETA \d:\d\d\n", text)
    assert found == ["1", "2", "3"]


def test_a_terminal_sees_a_line_that_lives_and_keeps_one_per_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr("ibinn.training.progress.LIVE_SECONDS", 0.0)
    text = trained_lines(tmp_path / "run", Terminal())
    assert len(re.findall(r"\r\x1b\[Kepoch \d/3  batch \d+/\d+ ", text)) > 10
    assert len(re.findall(r"epoch \d/3 .*validation.*\n", text)) == 3


def test_a_method_without_density_shows_no_bits_per_dim(tmp_path):
    text = trained_lines(tmp_path / "run", io.StringIO(), method="resnet")
    assert "bits/dim" not in text
    assert "loss_x" not in text
    assert "loss_y" in text


def test_a_clock_reads_as_one():
    assert [clock(s) for s in (0, 59.6, 61, 3600)] == ["0:00", "1:00", "1:01", "1:00:00"]


@pytest.mark.filterwarnings("default")
def test_tensorboard_gets_the_epochs_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained_lines(tmp_path / "run", io.StringIO(), board=Board(tmp_path / "run"))
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    names = set(found.Tags()["scalars"])
    assert {"train/loss_x", "train/loss_y", "validation/error", "validation/bits_per_dim"} <= names
    assert [event.step for event in found.Scalars("validation/error")] == [1, 2, 3]


def test_tensorboard_that_is_not_installed_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match="pip install tensorboard"):
        Board(tmp_path)
