"""ibinn explore: the page."""

import contextlib
import os
import socket
import sys
import threading
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from ibinn.cli.demo import Demo
from ibinn.cli.models import loaded
from ibinn.cli.terminal import note, one_line, progress
from ibinn.config import Device, Pretrained
from ibinn.run import MODEL

if TYPE_CHECKING:
    from ibinn.data.dataset import Part
    from ibinn.explorer.service import Explorer
    from ibinn.run.folder import Saved

HERE = "127.0.0.1"
MOST_OFFERED = 20


@dataclass(frozen=True)
class Explore:
    """A page to look at what a model knows: its map, decisions, samples, drift and quality. Ctrl-C ends it."""

    run_folder: tyro.conf.Positional[Path | None] = None
    """What ibinn train or IBINNClassifier.save wrote; by default the runs below this folder are offered."""

    pretrained: Pretrained | None = None
    """Instead of a run: a trained model that comes with the package."""

    port: int | None = None
    """By default 8765, or any that is free."""

    host: str = HERE
    """Another address lets other machines in, whoever they are."""

    browser: bool = True
    """Open the page in the browser."""

    data: str | None = None
    """The data, if it is not where it was at training."""

    data_dir: Path | None = None
    """Where known sets are looked for first. Else $IBINN_DATA, then ~/.cache/ibinn."""

    device: Device = "auto"
    """Where to compute."""

    def run(self) -> None:
        try:
            from ibinn.explorer.server import listen, make_app, serve
        except ModuleNotFoundError as error:
            raise ValueError(
                f"the page needs {error.name}, which is not installed; do: pip install fastapi uvicorn"
            ) from None
        if self.run_folder and self.pretrained:
            raise ValueError("give a run folder or --pretrained, not both")
        with listen(self.host, self.port) as sock:  # before anything slow: a mistake shows at once
            folder = self.run_folder or self.chosen()
            app = make_app(opened(folder, self), names_of(self.host))
            address = f"http://{shown(self.host)}:{sock.getsockname()[1]}/"
            if self.host not in (HERE, "localhost", "::1"):
                note(f"anybody who can reach {self.host} can use this page: there is no password")
            print(f"{folder}: look at {address} (Ctrl-C ends)", flush=True)
            if self.browser and has_display():
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
            with contextlib.suppress(KeyboardInterrupt):  # which is how it is meant to end
                serve(app, sock)

    def chosen(self) -> Path:
        """The folder of a model that was not given by its folder."""
        if self.pretrained is None:
            return offered(Path())
        from ibinn.pretrained import pretrained_folder

        return pretrained_folder(self.pretrained)


def opened(folder: Path, command: Explore) -> "Explorer":
    """The run with the inputs for its map: its test data or, where that is not at hand, its own samples."""
    from ibinn.explorer.service import Explorer, Inputs, own_samples

    saved = loaded(folder, command.device)
    try:
        return Explorer(saved, folder, Inputs(test_part(saved, command), "test"))
    except (ValueError, OSError) as error:
        if command.data is not None:
            raise
        reason = one_line(error)
    inputs = own_samples(saved)
    instead = (
        "so the points are drawn from the model itself" if len(inputs.part) else "so there is none to show"
    )
    why = f"The test data is not at hand, {instead} ({reason})."
    note(why)
    return Explorer(saved, folder, inputs, (why,))


def test_part(saved: "Saved", command: Explore) -> "Part":
    from ibinn.data.known import load
    from ibinn.evaluation import read_test
    from ibinn.explorer.service import MAX_INPUTS

    if saved.run.facts.get("estimator"):
        raise ValueError(
            "a saved estimator comes without its data" + "; leave --data out" * bool(command.data)
        )
    data = command.data or saved.run.config.data
    with progress(f"reading {data}") as on_progress:
        dataset = load(data, command.data_dir, saved.run.config.target, on_progress)
    return read_test(saved.run, dataset, MAX_INPUTS)


def offered(folder: Path) -> Path:
    """A run below a folder that a person chooses, the newest first, or the demo."""
    models = {path for depth in ("", "*/", "*/*/", "*/*/*/") for path in folder.glob(depth + MODEL)}
    runs = [path.parent for path in sorted(models, key=lambda path: (-path.stat().st_mtime, path))]
    if not has_person():
        there = ", ".join(map(str, runs[:MOST_OFFERED])) or "none here; ibinn demo makes one"
        raise ValueError(f"say which run to look at, as in ibinn explore RUN; there is {there}")
    if not runs:
        if asked("There is no run below this folder. Train the demo, in under a minute? [Y/n] ") in (
            "",
            "y",
            "yes",
        ):
            Demo().run()
            return Demo().out
        raise ValueError("there is nothing to look at yet; ibinn train makes a run")
    for number, run in enumerate(runs[:MOST_OFFERED], start=1):
        print(f"{number:3}  {run}")
    if len(runs) > MOST_OFFERED:
        print(f"     and {len(runs) - MOST_OFFERED} older ones: ibinn explore RUN")
    choice = asked("Which run? [1] ") or "1"
    if not choice.isdigit() or not 1 <= int(choice) <= len(runs[:MOST_OFFERED]):
        raise ValueError(f"{choice!r} is none of the numbers above")
    return runs[int(choice) - 1]


def has_person() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def asked(question: str) -> str:
    try:
        return input(question).strip().lower()
    except EOFError:
        return "n"


def names_of(host: str) -> frozenset[str]:
    """Under which the page may be asked for, beside localhost and addresses."""
    return frozenset() if host == HERE else frozenset({host.lower(), socket.gethostname().lower()})


def shown(host: str) -> str:
    """A host as a browser on this machine takes it."""
    return {"0.0.0.0": HERE, "::": "[::1]"}.get(host) or (f"[{host}]" if ":" in host else host)


def has_display() -> bool:
    """Whether a browser would be a window, and not text in this terminal."""
    return sys.platform in ("darwin", "win32") or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())
