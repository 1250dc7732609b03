"""Several processes train as one does: same weights, one writer, no hanging, and any number can go on."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.together import CASES, STEPS, UNLIKE, run_case
from helpers.trainings import few_digits, two_moons
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.testing import assert_close

from ibinn.cli import main
from ibinn.data.augment import Augmentation, augment
from ibinn.data.batches import Shard
from ibinn.data.preprocess import ImagePreprocess
from ibinn.data.splits import split
from ibinn.run.folder import load_run
from ibinn.training.options import TrainingOptions
from ibinn.training.trainer import train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_places")]
SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "soak"
HERE = Path(__file__).parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name != "HYPOTHESIS_PROFILE"}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::UserWarning"} | more


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The folder in which two processes have worked off tests/helpers/together.py."""
    folder = tmp_path_factory.mktemp("together")
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "-m", "helpers.together", str(folder)]
    done = subprocess.run(command, cwd=HERE, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def parameters(folder):
    tensors = load_file(folder / "model.safetensors")
    return {k: v for k, v in tensors.items() if k.startswith("pipeline.") and v.is_floating_point()}


def errors_by_class(run, part):
    wrong = run.pipeline.compute_output(part.x).log_q_y.argmax(1) != part.y
    return {k: int(wrong[part.y == k].sum()) for k in np.unique(part.y).tolist()}


@pytest.mark.parametrize("name", CASES)
def test_two_processes_train_what_one_does(name, together, tmp_path):
    alone = run_case(name, tmp_path)
    (dataset, config), _ = CASES[name]
    n_steps = config.recipe.epochs * (len(split(dataset, 0).train) // config.recipe.batch_size)
    assert n_steps == STEPS
    tolerance = 1e-8 if name == "table" else 1e-5
    theirs, mine = parameters(together / name), parameters(tmp_path / name)
    assert theirs.keys() == mine.keys()
    for key, value in mine.items():
        assert_close(
            theirs[key], value, atol=tolerance, rtol=tolerance, msg=lambda m, key=key: f"{key}: {m}"
        )
    lines = [json.loads(line) for line in (together / name / "history.jsonl").read_text().splitlines()]
    again = [json.loads(line) for line in (tmp_path / name / "history.jsonl").read_text().splitlines()]
    assert len(lines) == len(again) == config.recipe.epochs
    for line, other in zip(lines, again, strict=True):
        assert line["loss_y"] == pytest.approx(other["loss_y"], rel=1e-4)
        assert line["validation"]["loss"] == pytest.approx(other["validation"]["loss"], rel=1e-4)
    test = (few_digits(2000) if dataset.is_images else two_moons(2000, seed=1)).train
    assert errors_by_class(load_run(together / name), test) == errors_by_class(alone, test)


@pytest.mark.parametrize("name", UNLIKE)
def test_what_draws_for_itself_still_trains(name, together):
    """Dropout, a code's draws, unshared statistics and coarse rounding differ from one process's."""
    run = load_run(together / name)
    validation = dataclasses.asdict(run.facts.validation)
    assert all(value is None or np.isfinite(value) for value in validation.values())
    assert run.facts.n_skipped == 0


def test_one_process_writes(together):
    seen = [json.loads((together / f"{rank}.json").read_text()) for rank in range(2)]
    assert [{*saw["wrote"].values()} for saw in seen] == [{True}, {False}]
    for name in CASES | UNLIKE:
        there = {path.name for path in (together / name).iterdir()}
        assert there == {"README.md", "config.toml", "history.jsonl", "model.safetensors"}


def test_batch_norms_share_their_statistics(together):
    for rank in range(2):
        assert json.loads((together / f"{rank}.json").read_text())["norms"] < 1e-12


def test_what_the_writer_says_is_heard_by_all(together):
    first, second = (json.loads((together / f"{rank}.json").read_text()) for rank in range(2))
    assert first["refused"]["folder"].startswith("RunError: ")
    assert (
        second["refused"]["folder"]
        == f"WriterFailed: {first['refused']['folder'].removeprefix('RunError: ')}"
    )
    assert "--resume" in first["refused"]["folder"]
    assert "data" not in first["refused"]
    assert "not the same in process 1 as in process 0" in second["refused"]["data"]
    assert (
        first["tensors"]
        == second["tensors"]
        == {"a": ["torch.int64", [0, 1, 2]], "b": ["torch.float32", 2.5]}
    )


@given(
    n=st.integers(1, 9),
    n_parts=st.integers(1, 4),
    noise=st.sampled_from(["uniform", "gaussian", "both"]),
    seed=st.integers(0, 99),
)
def test_an_example_gets_the_same_noise_whoever_holds_it(n, n_parts, noise, seed):
    levels = np.random.default_rng(seed).integers(0, 256, (n, 6, 6, 3), dtype=np.uint8)
    mean, std = torch.zeros(3), torch.ones(3)
    preprocess = ImagePreprocess((6, 6, 3), 256, mean, std, noise, 0.0 if noise == "uniform" else 0.1)
    generator = torch.Generator()

    def varied(mine):
        generator.manual_seed(seed)
        shard = Shard(generator, n, mine)
        x = preprocess.to_units(levels[mine])
        x = augment(x, shard, Augmentation(True, 1, 10.0, (0.1, 0.1, 0.1)))
        return preprocess.add_noise(x, shard)

    whole = varied(slice(None))
    assert len(whole.flatten(1).unique(dim=0)) == n
    for number in range(n_parts):
        mine = slice(number, None, n_parts)
        if len(levels[mine]):
            assert_close(varied(mine), whole[mine])


@pytest.mark.parametrize("name", ["table", "ibinn"])
@pytest.mark.parametrize("constant_memory", [False, True])
def test_parts_of_a_batch_add_up(name, constant_memory, tmp_path):
    """Without batch-norm, that is; with it, each part has its own statistics."""
    dataset, config = CASES["table" if name == "table" else "ibinn"][0]
    for accumulate in (1, 4):
        options = TrainingOptions(
            tmp_path / f"{accumulate}", accumulate=accumulate, constant_memory=constant_memory
        )
        train(config, dataset, split(dataset, 0), options)
    whole, parts = (parameters(tmp_path / f"{accumulate}") for accumulate in (1, 4))
    tolerance = 1e-8 if name == "table" else 1e-5
    for key, value in whole.items():
        assert_close(parts[key], value, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("options", "message"), [
    (["--accumulate", "0"], "accumulate is 0 but must be 1 or more"),
    (["--accumulate", "9", "--set", "recipe.batch_size=8"], "a batch of 8 cannot be split into 9 parts"),
])  # fmt: skip
def test_too_many_parts_are_refused(options, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["train", "digits", "--device", "cpu", "--out", str(tmp_path / "run"), *options])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


class Training:
    """ibinn train on a table, under torchrun, as a person starts it."""

    def __init__(self, folder):
        self.folder, self.data = folder / "run", folder / "moons.npz"
        self.state = self.folder / "checkpoint" / "state.safetensors"
        self.started = []
        moons = two_moons()
        np.savez(self.data, x=moons.train.x, y=moons.train.y)
        self.options = ["--epochs", "150", "--device", "cpu", "--save-every", "0.2"]
        self.options += ["--set", "recipe.batch_size=16", "recipe.patience=0", "network.dense_blocks=2"]

    def command(self, out):
        return ["-m", "ibinn.cli", "train", str(self.data), "--out", str(out), "--resume", *self.options]

    def start(self, n_processes):
        launcher = [*TORCHRUN, "--standalone", "--nproc-per-node", str(n_processes)]
        return self.popen([*launcher, *self.command(self.folder)], environment())

    def popen(self, command, env):
        self.started.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
        return self.started[-1]

    def wait_for_checkpoint(self, process, later_than=0):
        while not (self.state.exists() and self.state.stat().st_mtime_ns > later_than):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)

    def finish_alone(self, out):
        subprocess.run(
            [sys.executable, *self.command(out)], env=environment(), capture_output=True, check=True
        )


@pytest.fixture
def training(tmp_path):
    training = Training(tmp_path)
    yield training
    for process in training.started:
        process.kill()
        process.communicate()


def worker(process, rank):
    """The process number of a rank below torchrun."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_child = int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == process.pid
            if is_child and f"\0RANK={rank}\0" in (folder / "environ").read_text():
                return int(folder.name)
        except (OSError, ValueError):
            continue
    raise AssertionError(f"no process of rank {rank}")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes through /proc")
def test_a_killed_process_ends_the_run_and_another_number_goes_on(training, tmp_path):
    first = training.start(2)
    training.wait_for_checkpoint(first)
    first.send_signal(signal.SIGTERM)  # to torchrun, which hands it on
    message = first.communicate(timeout=60)[1]
    assert message.count("ibinn: stopped by SIGTERM; saved in") == 1
    assert not (training.folder / "model.safetensors").exists()

    saved = training.state.stat().st_mtime_ns
    second = training.start(2)
    training.wait_for_checkpoint(second, later_than=saved)
    os.kill(worker(second, rank=1), signal.SIGKILL)
    message = second.communicate(timeout=60)[1]
    assert second.returncode != 0
    assert "note: resuming in epoch" in message
    assert "ibinn: another process of this training has ended or does not respond" in message
    assert not (training.folder / "model.safetensors").exists()

    training.finish_alone(training.folder)
    training.finish_alone(tmp_path / "never stopped")
    gone_on, whole = parameters(training.folder), parameters(tmp_path / "never stopped")
    for key, value in whole.items():
        assert_close(gone_on[key], value, atol=1e-4, rtol=1e-4)


def test_a_mistake_is_told_once_and_nothing_but_training_is_shared(tmp_path):
    launcher = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "-m", "ibinn.cli"]
    for arguments, message in (
        (["train", "digits", "--device", "cpu", "--out", str(HERE)], f"ibinn: {HERE} is not a run folder"),
        (["evaluate", str(tmp_path)], "only ibinn train"),
    ):
        done = subprocess.run(
            [*launcher, *arguments], env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        assert message in done.stderr
        assert done.stderr.count("run folder") <= 1


@pytest.fixture
def two_hosts():
    """Names and addresses of two network namespaces that see nothing but each other."""
    if not SOAK:
        pytest.skip("two network namespaces as two hosts: only under make soak")
    names = [f"ibinn-{os.getpid()}-{i}" for i in (1, 2)]
    addresses = ["10.213.0.1", "10.213.0.2"]
    commands = [f"ip netns add {name}" for name in names]
    commands.append(f"ip link add eth0 netns {names[0]} type veth peer name eth0 netns {names[1]}")
    for name, address in zip(names, addresses, strict=True):
        commands += [f"ip -n {name} addr add {address}/24 dev eth0"]
        commands += [f"ip -n {name} link set {device} up" for device in ("eth0", "lo")]
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no network namespaces can be made here: {command}: {done.stderr.strip()}")
        yield dict(zip(names, addresses, strict=True))
    except FileNotFoundError:
        pytest.skip("no network namespaces can be made here: there is no ip")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def test_two_hosts_train_together(two_hosts, training, tmp_path):
    """Rendezvous, training, a host that is lost, and resume; each host has a disk of its own."""
    first = next(iter(two_hosts))

    def start():
        started = []
        for number, host in enumerate(two_hosts):
            launcher = [*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(number)]
            launcher += ["--master-addr", two_hosts[first], "--master-port", "29400"]
            out = training.folder if host == first else tmp_path / "other disk"
            command = ["ip", "netns", "exec", host, *launcher, *training.command(out)]
            started.append(training.popen(command, environment(GLOO_SOCKET_IFNAME="eth0")))
        return started

    both = start()
    training.wait_for_checkpoint(both[0])
    both[1].kill()  # torchrun of the second host; its worker is an orphan, and goes with the next line
    subprocess.run(["pkill", "-KILL", "-f", str(tmp_path / "other disk")], check=False)
    message = [process.communicate(timeout=60)[1] for process in both]
    assert both[0].returncode != 0
    assert "another process of this training has ended or does not respond" in message[0]

    both = start()
    message = [process.communicate(timeout=300)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], message
    assert "note: resuming in epoch" in message[0]
    assert not (tmp_path / "other disk").exists()
    training.finish_alone(tmp_path / "alone")
    for key, value in parameters(tmp_path / "alone").items():
        assert_close(parameters(training.folder)[key], value, atol=1e-4, rtol=1e-4)
