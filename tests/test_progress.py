"""Progress of a training: a line per epoch, a live line in a terminal, numbers for TensorBoard."""

import io
import re
import sys

import pytest
from helpers.trainings import few_digits, small_config

from ibinn.data.splits import split
from ibinn.formats import clock
from ibinn.training.options import TrainingOptions
from ibinn.training.progress import ConsoleObserver, TensorBoardWriter, WarningObserver
from ibinn.training.trainer import train


class Terminal(io.StringIO):
    def isatty(self):
        return True


def trained_lines(folder, stream, method="ibinn", tensorboard=None):
    dataset = few_digits()
    config = small_config(dataset, method=method, epochs=3)
    observer = ConsoleObserver(tensorboard, stream)
    train(config, dataset, split(dataset, 0), TrainingOptions(folder), observer)
    assert [line.epoch for line in observer.history] == [1, 2, 3]
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


def test_a_terminal_shows_a_live_line_and_a_lasting_one_per_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr("ibinn.training.progress.LIVE_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    text = trained_lines(tmp_path / "run", Terminal())
    assert len(re.findall(r"epoch \d/3  batch \d+/\d+ .*?ETA \d:\d\d", text)) > 10
    assert len(re.findall(r"epoch \d/3 .*validation.*\n", text)) == 3
    assert text.endswith("\x1b[2K")  # the live line is gone at the end
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # and the cursor is back


def test_warnings_are_shown_without_progress_and_notes_are_not():
    observer = WarningObserver()
    observer.note("all is well")
    with pytest.warns(UserWarning, match="half the learning rate"):
        observer.warn("back, with half the learning rate")


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

    trained_lines(tmp_path / "run", io.StringIO(), tensorboard=TensorBoardWriter(tmp_path / "run"))
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    names = set(found.Tags()["scalars"])
    assert {"train/loss_x", "train/loss_y", "validation/error", "validation/bits_per_dim"} <= names
    assert [event.step for event in found.Scalars("validation/error")] == [1, 2, 3]


def test_tensorboard_that_is_not_installed_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match="pip install tensorboard"):
        TensorBoardWriter(tmp_path)
