"""What depends on the operating system: the allocator, atomic writes, file locks, the choice of a device."""

import ctypes
import os
from pathlib import Path
from typing import BinaryIO

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next tensor; whether it was told.

    By default it returns large blocks to the system, and the next pass over a network pays for every page of its
    activations again. The process then stays as large as it was at its largest. Other C libraries are left as
    they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return False
    largest = mallopt(M_MMAP_THRESHOLD, 1 << 30) or mallopt(M_MMAP_THRESHOLD, 1 << 25)  # before glibc 2.36
    return bool(largest and mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1))


def write_atomically(path: Path, content: bytes | str) -> None:
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


def choose_device(name: str, is_images: bool) -> str:
    """auto: cuda, else mps, else cpu. Tables are computed in float64, which mps does not have."""
    import torch  # here: `ibinn --help` should not wait for it

    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = "cuda" if there["cuda"] else "mps" if there["mps"] and is_images else "cpu"
    if not there[name]:
        raise ValueError(f"there is no {name} here; use device auto or cpu")
    if name == "mps" and not is_images:
        raise ValueError("tables are computed in float64, which mps does not have; use device cpu")
    return name
