"""The command line. Here, and only here, a person's mistake becomes one line and exit code 2.

Heavy modules are imported by the commands that need them: `ibinn --help` should not wait for torch.
"""

import contextlib
import io
import os
import re
import sys
import warnings
from collections.abc import Callable

import tyro

from ibinn._system import keep_freed_memory
from ibinn.cli.data import Data
from ibinn.cli.demo import Demo
from ibinn.cli.evaluate import Evaluate
from ibinn.cli.explain import Explain
from ibinn.cli.explore import Explore
from ibinn.cli.export import Export
from ibinn.cli.interpolate import Interpolate
from ibinn.cli.predict import Predict
from ibinn.cli.report import Report
from ibinn.cli.sample import Sample
from ibinn.cli.sweep import Sweep
from ibinn.cli.terminal import one_line, show_notice
from ibinn.cli.train import Train

Command = (
    Data
    | Train
    | Evaluate
    | Report
    | Demo
    | Predict
    | Explain
    | Sample
    | Interpolate
    | Export
    | Sweep
    | Explore
)
COMMANDS: dict[str, Callable[..., Command]] = {
    "demo": Demo,
    "train": Train,
    "evaluate": Evaluate,
    "explore": Explore,
    "predict": Predict,
    "explain": Explain,
    "sample": Sample,
    "interpolate": Interpolate,
    "export": Export,
    "sweep": Sweep,
    "report": Report,
    "data": Data,
}


def main(arguments: list[str] | None = None) -> None:
    """Run a command; exit with 2 and one line on a person's mistake, with 130 on Ctrl-C."""
    warnings.showwarning = show_notice
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a class called "ä" on an ASCII terminal
    try:
        command = parse(arguments)
        check_alone(command)
        keep_freed_memory()
        command.run()
        sys.stdout.flush()  # here, where a reader that is gone is no error
    except BrokenPipeError:  # the reader, say `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush would fail again
        raise SystemExit(141) from None
    except (ValueError, OSError) as error:
        rank = os.environ.get("RANK", "0")
        who = "ibinn" if rank == "0" else f"ibinn, process {rank}"
        print(f"{who}: {one_line(error)}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("ibinn: stopped", file=sys.stderr)
        raise SystemExit(130) from None


def check_alone(command: Command) -> None:
    """ValueError where torchrun starts what runs in one process only."""
    started = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    if started and not isinstance(command, Train):
        raise ValueError("only ibinn train shares its work among processes; start this without torchrun")


def parse(arguments: list[str] | None) -> Command:
    """The command with its options; what tyro says about a mistake, in a box, becomes one sentence."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            command: Command = tyro.extras.subcommand_cli_from_dict(
                COMMANDS,
                prog="ibinn",
                args=arguments,
                description="Classifiers that know what they do not know.",
            )
        return command
    except SystemExit as exit:
        if not exit.code:
            raise
        raise ValueError(unboxed(box.getvalue())) from None


def unboxed(text: str) -> str:
    """The first paragraph of tyro's box, drawn in Unicode or ASCII; the nearest option where it names one."""
    paragraphs = [""]
    for row in re.sub(r"\x1b\[[\d;]*m", "", text).splitlines():
        inside = re.sub(r"^[│|]|[│|]$", "", row.strip()).strip()
        if re.match(r"[╭╰+─]|---|$", inside):
            paragraphs.append("")
        else:
            paragraphs[-1] += f" {inside}"
    sentences = [" ".join(paragraph.split()).rstrip(".") for paragraph in paragraphs if paragraph.strip()]
    if "╭" not in text:  # in ASCII the title stands in the box, not in its frame
        sentences = sentences[1:]
    near = re.match(r"Perhaps you meant: (--[\w-]+)", sentences[1]) if len(sentences) > 1 else None
    return sentences[0] + (f"; did you mean {near[1]}?" if near else "; see ibinn --help")
