"""The files of a run folder, and how they are written: whole or not at all. Imports nothing of ours."""

import os
from pathlib import Path
from typing import BinaryIO

CONFIG, MODEL, HISTORY, RESULTS = "config.toml", "model.safetensors", "history.jsonl", "results.json"


def write_whole(path: Path, content: bytes | str) -> None:
    """Replace path by content: a temporary name beside it, fsync, rename. After an error path is as it was."""
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.parent)
    except OSError as error:  # a failed write does not say of which file
        part.unlink(missing_ok=True)
        raise OSError(error.errno, f"cannot write it: {error.strerror}", str(path)) from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power cut, where the system can do that."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(file: BinaryIO, is_shared: bool = False) -> bool:
    """Lock a file, opened for writing, till it is closed here and wherever it was handed on; False if another has.

    ImportError where the system has no such locks.
    """
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # a file system without locks
        raise OSError(error.errno, f"cannot lock it: {error.strerror}", file.name) from error
    return True
