"""ibinn explore: the page in the browser."""

import contextlib
import os
import socket
import sys
import threading
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from ibinn.cli.demo import Demo
from ibinn.cli.files import read_data
from ibinn.cli.options import ComputeDevice, DataDir, MovedData
from ibinn.cli.terminal import error_text, print_note
from ibinn.config import Pretrained
from ibinn.run import MODEL

if TYPE_CHECKING:
    from ibinn.data.dataset import Part
    from ibinn.explorer.service import Explorer
    from ibinn.run.trained import Run

LOCALHOST = "127.0.0.1"
MOST_LISTED = 20


@dataclass(frozen=True)
class Explore:
    """Open a page that shows a model: its map, decisions, samples, drift and quality. Ctrl-C ends it."""

    run_folder: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="RUN")] = None
    """Folder written by ibinn train or IBINNClassifier.save; by default you choose among the runs here."""

    pretrained: Pretrained | None = None
    """A trained model that comes with the package, instead of a run folder."""

    port: int | None = None
    """Port of the page; by default 8765, or any free port if that is taken."""

    host: str = LOCALHOST
    """Address to listen on. With another address than the default, everyone who can reach it can use the page."""

    browser: bool = True
    """Open the page in the browser."""

    data: MovedData = None

    data_dir: DataDir = None

    device: ComputeDevice = "auto"

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
            folder = self.run_folder or self.choose_folder()
            app = make_app(self.open_explorer(folder), allowed_hosts(self.host))
            address = f"http://{host_in_url(self.host)}:{sock.getsockname()[1]}/"
            if self.host not in (LOCALHOST, "localhost", "::1"):
                print_note(f"everyone who can reach {self.host} can use this page: it has no password")
            print(f"{folder}: open {address} (Ctrl-C ends)", flush=True)
            if self.browser and has_display():
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
            with contextlib.suppress(KeyboardInterrupt):  # the normal way to end it
                serve(app, sock)

    def choose_folder(self) -> Path:
        """The folder of a pretrained model, or of a run that the user chooses."""
        if self.pretrained is None:
            return choose_run(Path())
        from ibinn.pretrained import pretrained_folder

        return pretrained_folder(self.pretrained)

    def open_explorer(self, folder: Path) -> "Explorer":
        """The explorer of a run. Its map shows the test data or, if that is missing, samples of the model."""
        from ibinn.explorer.service import Explorer, Inputs, own_samples
        from ibinn.run.folder import load_run

        run = load_run(folder, self.device)
        try:
            return Explorer(run, folder, Inputs(self.read_test_part(run), "test"))
        except (ValueError, OSError) as error:
            if self.data is not None:
                raise
            reason = error_text(error)
        inputs = own_samples(run)
        instead = (
            "the points are drawn from the model itself" if len(inputs.part) else "there are no points"
        )
        text = f"The test data is not available, so {instead} ({reason})."
        print_note(text)
        return Explorer(run, folder, inputs, (text,))

    def read_test_part(self, run: "Run") -> "Part":
        from ibinn.evaluation import read_test
        from ibinn.explorer.service import MAX_INPUTS

        if run.is_estimator:
            raise ValueError(
                "a saved estimator comes without its data" + "; leave out --data" * bool(self.data)
            )
        dataset = read_data(self.data or run.config.data, self.data_dir, run.config.target)
        return read_test(run, dataset, MAX_INPUTS)


def choose_run(folder: Path) -> Path:
    """A run below the folder that the user chooses, the newest first, or the demo."""
    models = {path for depth in ("", "*/", "*/*/", "*/*/*/") for path in folder.glob(depth + MODEL)}
    runs = [path.parent for path in sorted(models, key=lambda path: (-path.stat().st_mtime, path))]
    listed = runs[:MOST_LISTED]
    if not is_interactive():
        names = ", ".join(map(str, listed)) or "none; ibinn demo makes one"
        raise ValueError(f"name a run, as in: ibinn explore RUN; the runs below this folder are {names}")
    if not runs:
        question = "There is no run below this folder. Train the demo, in under a minute? [Y/n] "
        if ask_user(question) not in ("", "y", "yes"):
            raise ValueError("there is no run to explore; ibinn train makes one")
        Demo().run()
        return Demo().out
    for number, run in enumerate(listed, start=1):
        print(f"{number:3}  {run}")
    if len(runs) > len(listed):
        print(f"     and {len(runs) - len(listed)} older ones: ibinn explore RUN")
    choice = ask_user("Which run? [1] ") or "1"
    if not choice.isdigit() or not 1 <= int(choice) <= len(listed):
        raise ValueError(f"{choice!r} is not one of the numbers above")
    return listed[int(choice) - 1]


def is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask_user(question: str) -> str:
    try:
        return input(question).strip().lower()
    except EOFError:
        return "n"


def allowed_hosts(host: str) -> frozenset[str]:
    """Host names that requests may use, besides localhost and addresses."""
    return frozenset() if host == LOCALHOST else frozenset({host.lower(), socket.gethostname().lower()})


def host_in_url(host: str) -> str:
    """The host for a browser on this machine."""
    return {"0.0.0.0": LOCALHOST, "::": "[::1]"}.get(host) or (f"[{host}]" if ":" in host else host)


def has_display() -> bool:
    """Whether a browser would open a window, and not text in this terminal."""
    return sys.platform in ("darwin", "win32") or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())
