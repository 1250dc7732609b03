"""The command line: one module per command, and here the frame around them.

Errors that a user can cause end in one line on stderr and exit code 2, without a traceback. Heavy modules are
imported by the commands that need them, so that `ibinn --help` does not wait for torch.
"""

import io
import os
import sys
import warnings
from collections.abc import Callable
from typing import Protocol

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
from ibinn.cli.terminal import error_text, show_warning
from ibinn.cli.train import Train


class Command(Protocol):
    """A dataclass whose fields are the options."""

    def run(self) -> None: ...


CLASSES = (
    *(Demo, Train, Evaluate, Explore, Predict, Explain),
    *(Sample, Interpolate, Export, Sweep, Report, Data),
)
COMMANDS: dict[str, Callable[..., Command]] = {cls.__name__.lower(): cls for cls in CLASSES}


def main(arguments: list[str] | None = None) -> None:
    """Run a command. Exit with 2 after an error that the user can fix, with 130 after Ctrl-C."""
    warnings.showwarning = show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a class called "ä" on an ASCII terminal
    try:
        command = parse(arguments)
        check_torchrun(command)
        keep_freed_memory()
        command.run()
        sys.stdout.flush()  # here, where a closed pipe is no error
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush would fail again
        raise SystemExit(141) from None
    except (ValueError, OSError) as error:
        rank = os.environ.get("RANK", "0")
        name = "ibinn" if rank == "0" else f"ibinn, process {rank}"
        print(f"{name}: {error_text(error)}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("ibinn: stopped", file=sys.stderr)
        raise SystemExit(130) from None


def parse(arguments: list[str] | None) -> Command:
    """The command with its options. tyro prints usage errors and exits with 2."""
    command: Command = tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        prog="ibinn",
        args=arguments,
        description="Classifiers that know what they do not know.",
        config=(tyro.conf.PositionalMetavarFromFieldName, tyro.conf.DisallowNone),
    )
    return command


def check_torchrun(command: Command) -> None:
    """ValueError if torchrun starts several processes of a command that runs in one."""
    is_started = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    if is_started and not isinstance(command, Train):
        raise ValueError("only ibinn train runs in several processes; start this command without torchrun")
