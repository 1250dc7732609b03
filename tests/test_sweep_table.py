"""What a sweep has left to do, by files and locks, and the table that shows it."""

import io
import itertools
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.results import results
from helpers.trainings import few_digits, small_config
from rich.console import Console

from ibinn.run.results import write_results
from ibinn.run.settings import write_config
from ibinn.sweep.local import Stop
from ibinn.sweep.plan import PlannedRun
from ibinn.sweep.progress import RunRow, SweepTable, short_names, time_left, visible_rows
from ibinn.sweep.remaining import (
    Outcome,
    Workspace,
    open_locked,
    outcome_of_done,
    remaining_runs,
    state_of,
)

pytestmark = pytest.mark.usefixtures("own_places")


def a_plan(n, method="ibinn"):
    return [PlannedRun(f"run{i}", Path(f"run{i}"), ("true",), method, ()) for i in range(n)]


def test_a_lock_is_held_once_and_as_long_as_a_process_that_got_it_lives(tmp_path):
    run, workspace = a_plan(1)[0], Workspace(tmp_path, tmp_path)
    assert state_of(run, workspace) == "waiting"
    with open_locked(workspace.lock(run)) as file:
        assert open_locked(workspace.lock(run)) is None
        sleeper = subprocess.Popen(["sleep", "60"], pass_fds=(file.fileno(),))
    assert state_of(run, workspace) == "elsewhere"
    sleeper.kill()
    sleeper.wait()
    assert state_of(run, workspace) == "waiting"
    (tmp_path / "run0").mkdir()
    for name in ("model.safetensors", "results.json"):
        assert state_of(run, workspace) == "waiting"
        assert remaining_runs([run], workspace) == [run]
        (tmp_path / "run0" / name).touch()
    assert state_of(run, workspace) == "done"
    assert remaining_runs([run], workspace) == []


def rows_in(**counts):
    rows, n = [], itertools.count()
    for state, number in counts.items():
        for i in range(number):
            run = PlannedRun(f"run{next(n)}", Path(f"run{next(n)}"), (), "ibinn", ())
            rows.append(RunRow(run, state, at=float(i), seconds=10.0))
    return rows


def test_what_runs_or_failed_comes_first_then_the_latest_done_and_the_next_waiting():
    rows = rows_in(done=20, failed=2, running=1, waiting=30)
    shown, n_more = visible_rows(rows, 11)
    assert [row.state for row in shown] == ["running", *["failed"] * 2, *["done"] * 4, *["waiting"] * 4]
    assert [row.at for row in shown[3:7]] == [19, 18, 17, 16]
    assert shown[7:] == rows[23:27]
    assert n_more == 53 - 11
    assert [row.state for row in visible_rows(rows_in(done=20, waiting=1), 5)[0]] == [
        *["done"] * 4,
        "waiting",
    ]
    assert [row.state for row in visible_rows(rows_in(done=1, waiting=20), 5)[0]] == [
        "done",
        *["waiting"] * 4,
    ]
    assert visible_rows(rows_in(failed=9), 5)[1] == 4
    assert visible_rows(rows, 99) == ([*rows[22:23], *rows[20:22], *rows[19::-1], *rows[23:]], 0)


def test_a_finished_run_counts_only_with_the_planned_settings(tmp_path):
    workspace, folder = Workspace(tmp_path, tmp_path), tmp_path / "run"
    config = small_config(few_digits(), epochs=40)
    write_config(folder, config)
    settings = (("gamma", 1.0), ("recipe.epochs", 40), ("network.blocks", config.network.blocks))
    run = PlannedRun("run", Path("run"), (), "ibinn", settings)
    assert outcome_of_done(run, workspace).state == "done"
    other = outcome_of_done(replace(run, settings=(("network.blocks", (9, 9)),)), workspace)
    assert other.state == "failed"
    assert "network.blocks" in other.why
    (folder / "config.toml").write_text("format = 1\n")
    unreadable = outcome_of_done(run, workspace)
    assert unreadable.state == "failed"
    assert "format 1" in unreadable.why


def test_the_time_left_is_what_the_finished_runs_of_a_method_took():
    rows = rows_in(done=2, waiting=3)
    assert time_left(rows, 1, now=0.0) == 30
    assert time_left(rows, 2, now=0.0) == 15
    assert time_left(rows, 9, now=0.0) == 10, "none is faster than itself"
    running = rows_in(done=1, running=1)
    assert time_left(running, 1, now=4.0) == 6
    assert time_left(running, 1, now=400.0) == 0
    slow = RunRow(PlannedRun("s", Path("s"), (), "resnet", ()), "done", seconds=70.0)
    waiting = RunRow(PlannedRun("w", Path("w"), (), "resnet", ()))
    other = RunRow(PlannedRun("v", Path("v"), (), "vib", ()))
    assert time_left([*rows[:2], slow, waiting], 1, now=0.0) == 70
    assert time_left([*rows[:2], slow, other], 1, now=0.0) == 30, "of any method, where it is the first"
    assert time_left(rows_in(waiting=3), 1, now=0.0) is None
    assert time_left(rows_in(done=3), 1, now=0.0) is None


@pytest.mark.parametrize(("height", "width"), [(24, 80), (10, 60), (60, 200)])
def test_a_live_table_of_fifty_runs_fits_the_terminal(height, width, tmp_path):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, height=height)
    runs = [
        PlannedRun(f"cifar10-ibinn-gamma{i}-paper-seed0-uniform", Path(f"r{i}"), (), "ibinn", ())
        for i in range(50)
    ]
    for run in runs[:9]:
        finish(tmp_path / run.folder, error=6.5, bits_per_dim=5.25, train_seconds=3723.0)
    write_config(tmp_path / "r9", small_config(few_digits(), epochs=40))
    (tmp_path / "r9" / "history.jsonl").write_text("{}\n" * 3)
    with SweepTable(runs, Workspace(tmp_path, tmp_path), 1, console, Stop()) as table:
        table.started(runs[9])
        table.ended(runs[11], Outcome("failed", 3.0, "no such data"))
        table.tick()
        shown = Console(file=io.StringIO(), width=width, height=height)
        shown.print(table.render())
    lines = shown.file.getvalue().splitlines()
    assert len(lines) < height
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    assert lines[0].startswith("cifar10-ibinn-*")
    assert lines[0].split()[1:] == ["error", "bits/dim", "time"]
    assert "running 3/40" in text
    assert "failed" in text
    assert lines[-2] == "gamma11: no such data"
    assert "6.50 %" in text
    assert "5.250" in text
    assert "1:02:03" in text
    assert ("more" in lines[-3]) == (height < 60)
    assert re.findall(r"\d+", lines[-1])[:5] == [
        "9",
        "50",
        "1",
        "1",
        "39",
    ]  # done, of, failed, running, waiting
    assert "ETA 41:22:" in lines[-1]


def test_names_are_shortened_by_what_they_share():
    assert short_names(["a-b-c", "a-d-c"]) == ("a-*-c", {"a-b-c": "b", "a-d-c": "d"})
    assert short_names(["a-b", "a-b-b"]) == ("a-*", {"a-b": "b", "a-b-b": "b-b"})
    assert short_names(["a-b", "c-d"]) == ("run", {"a-b": "a-b", "c-d": "c-d"})
    assert short_names(["a-b"]) == ("run", {"a-b": "a-b"})


def finish(folder, **numbers):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").touch()
    write_results(folder, results(**numbers))


def test_runs_of_earlier_sweeps_count_for_the_time_left(tmp_path):
    runs, out = a_plan(3), io.StringIO()
    finish(tmp_path / "run0", error=6.5, bits_per_dim=None, train_seconds=60.0)
    with SweepTable(runs, Workspace(tmp_path, tmp_path), 1, Console(file=out), Stop()) as table:
        table.ended(runs[0], Outcome("done"))
        table.started(runs[1])
        finish(tmp_path / "run1", error=8.0, bits_per_dim=2.5, train_seconds=60.0)
        table.ended(runs[1], Outcome("done", seconds=120.0))
    first, started, done = out.getvalue().splitlines()
    assert first.split()[0] == "3"
    assert re.findall(r"run\d|[\d:.]+", started) == ["run1", "1", "3", "1", "1", "2:00"]
    assert re.findall(r"run\d|[\d:.]+", done) == [
        "run1",
        ":",
        "8.00",
        "2.500",
        "2:00",
        "2",
        "3",
        "1",
        "1:30",
    ]


def test_results_that_cannot_be_read_are_no_reason_to_stop(tmp_path):
    run, out = a_plan(1)[0], io.StringIO()
    finish(tmp_path / "run0")
    (tmp_path / "run0" / "results.json").write_text("{")
    with SweepTable([run], Workspace(tmp_path, tmp_path), 1, Console(file=out), Stop()) as table:
        assert re.findall(r"\d+", table.counts()) == ["1", "1"]
