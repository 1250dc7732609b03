"""Freed memory stays with the process, so that the next tensor finds its pages at hand."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from ibinn import keep_freed_memory

def pages_of(n_bytes):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(n_bytes, dtype=np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

told = keep_freed_memory() if sys.argv[1] == "keep" else None
pages_of(300_000_000)
print(told, pages_of(300_000_000))
"""


def second_time(how):
    ran = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    told, pages = ran.stdout.split()
    return told, int(pages)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_a_second_large_array_costs_no_new_pages():
    assert second_time("leave")[1] > 100  # otherwise there is nothing to see here; huge pages are fewer
    told, pages = second_time("keep")
    assert told == "True"
    assert pages < 20
