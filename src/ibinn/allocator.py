"""How the process gives memory back. Imports nothing of ours."""

import ctypes

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
