"""What depends on the operating system: the allocator, atomic writes, file locks, the choice of a device."""

import ctypes
import os
from pathlib import Path
from typing import BinaryIO

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory for the next tensor.

    By default glibc returns large blocks to the system, and every pass over a network pays for the pages of its
    activations again. With this setting the process stays as large as its peak. The ``ibinn`` command calls this
    function; call it yourself at the start of a script that trains or predicts on the CPU.

    Returns
    -------
    bool
        Whether the setting took effect. False with other C libraries, where nothing changes.

    Examples
    --------
    >>> from ibinn import keep_freed_memory
    >>> keep_freed_memory() in (True, False)  # True on Linux with glibc
    True
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return False
    largest = mallopt(M_MMAP_THRESHOLD, 1 << 30) or mallopt(M_MMAP_THRESHOLD, 1 << 25)  # before glibc 2.36
    return bool(largest and mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1))


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace the file by content: temporary name beside it, fsync, rename. After an error it is unchanged."""
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.parent)
    except OSError as error:  # the error of a failed write names no file
        part.unlink(missing_ok=True)
        raise OSError(error.errno, f"cannot write it: {error.strerror}", str(path)) from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power cut, where the system supports it."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(file: BinaryIO | int, is_shared: bool = False) -> bool:
    """Lock an open file or descriptor without waiting; False if another process holds the lock.

    The lock lasts until the file is closed, here and in child processes that inherited it. ImportError where the
    system has no such locks (Windows), OSError where the file system has none.
    """
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise OSError(
            error.errno, f"cannot lock it: {error.strerror}", getattr(file, "name", None)
        ) from error
    return True


def choose_device(name: str, is_images: bool) -> str:
    """The device for a name; auto is cuda, else mps, else cpu. Tables need float64, which mps does not have."""
    import torch  # here: `ibinn --help` should not wait for it

    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = "cuda" if available["cuda"] else "mps" if available["mps"] and is_images else "cpu"
    if not available[name]:
        raise ValueError(f"there is no {name} here; use device auto or cpu")
    if name == "mps" and not is_images:
        raise ValueError("tables are computed in float64, which mps does not have; use device cpu")
    return name
