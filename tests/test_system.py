"""The allocator keeps freed memory, locks are exclusive or shared, and a device is chosen by name."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from ibinn._system import choose_device, lock

PROGRAM = """
import resource, sys
import numpy as np
from ibinn import keep_freed_memory

def pages_of(n_bytes):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(n_bytes, dtype=np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

took_effect = keep_freed_memory() if sys.argv[1] == "keep" else None
pages_of(300_000_000)
print(took_effect, pages_of(300_000_000))
"""


def second_time(how):
    ran = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    took_effect, pages = ran.stdout.split()
    return took_effect, int(pages)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_a_second_large_array_costs_no_new_pages():
    assert second_time("leave")[1] > 100  # otherwise there is nothing to see here; huge pages are fewer
    took_effect, pages = second_time("keep")
    assert took_effect == "True"
    assert pages < 20


@pytest.mark.skipif(sys.platform == "win32", reason="needs file locks")
def test_a_lock_is_exclusive_or_shared_and_ends_with_its_file(tmp_path):
    path = tmp_path / "lock"
    with open(path, "ab") as mine, open(path, "ab") as yours:
        assert lock(mine, is_shared=True)
        assert lock(yours, is_shared=True)
        assert not lock(yours)
        mine.close()
        assert lock(yours)
        with open(path, "ab") as other:
            assert not lock(other, is_shared=True)
    descriptors = [os.open(tmp_path, os.O_RDONLY) for _ in range(2)]  # of a folder
    assert lock(descriptors[0])
    assert not lock(descriptors[1])
    os.close(descriptors[0])
    assert lock(descriptors[1])
    os.close(descriptors[1])
    with pytest.raises(OSError, match="cannot lock"):
        lock(descriptors[1])


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    for cuda, mps in ((False, False), (False, True), (True, True)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=cuda: there)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda there=mps: there)
        expected = "cuda" if cuda else "mps" if mps else "cpu"
        assert choose_device("auto", is_images=True) == expected
        assert choose_device("auto", is_images=False) == ("cpu" if expected == "mps" else expected)
        assert choose_device("cpu", is_images=True) == "cpu"
        if not cuda:
            with pytest.raises(ValueError, match="no cuda"):
                choose_device("cuda", is_images=True)
    with pytest.raises(ValueError, match="float64"):
        choose_device("mps", is_images=False)
