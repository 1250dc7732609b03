"""The cache of decoded images: read the second time, never half-written, and not held in memory."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.files import colours, png, write_folder

from ibinn.data import images as image_module
from ibinn.data.dataset import DataError
from ibinn.data.known import load

pytestmark = pytest.mark.usefixtures("own_places")


def test_a_decoded_folder_is_read_from_the_cache_and_made_again_when_it_changes(tmp_path):
    write_folder(tmp_path / "f", colours(6), [0, 1] * 3)
    calls = []
    load(tmp_path / "f", progress=lambda done, total: calls.append(done))
    assert calls == [1, 2, 3, 4, 5, 6] * 2  # sizes, then pixels
    again = load(tmp_path / "f", progress=lambda done, total: calls.append(done))
    assert len(calls) == 12
    assert isinstance(again.train.x, np.memmap)
    time.sleep(0.01)
    (tmp_path / "f" / "cat" / "new.png").write_bytes(png(colours(1)[0]))
    assert len(load(tmp_path / "f").train) == 7


def test_a_full_disk_leaves_no_half_written_cache(tmp_path, monkeypatch):
    write_folder(tmp_path / "f", colours(6), [0, 1] * 3)
    real = os.fsync

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(image_module.os, "fsync", full)
    with pytest.raises(DataError, match="No space left"):
        load(tmp_path / "f")
    assert list((tmp_path / "cache").iterdir()) == []
    monkeypatch.setattr(image_module.os, "fsync", real)
    assert len(load(tmp_path / "f").train) == 6


def test_a_damaged_entry_is_made_again(tmp_path):
    write_folder(tmp_path / "f", colours(4), [0, 1] * 2)
    before = np.array(load(tmp_path / "f").train.x)
    (entry,) = (tmp_path / "cache").iterdir()
    (entry / "y.npy").write_bytes(b"")
    assert np.array_equal(load(tmp_path / "f").train.x, before)


def test_leftovers_of_killed_processes_are_swept_after_a_day(tmp_path):
    for name, age in (("old", 90_000), ("new", 10)):
        (tmp_path / "cache" / f".part.{name}").mkdir(parents=True)
        os.utime(tmp_path / "cache" / f".part.{name}", (time.time() - age,) * 2)
    write_folder(tmp_path / "f", colours(4), [0, 1] * 2)
    load(tmp_path / "f")
    assert {p.name for p in (tmp_path / "cache").glob(".part.*")} == {".part.new"}


def test_an_empty_cache_variable_is_none_and_there_may_be_no_home(monkeypatch):
    monkeypatch.setenv("IBINN_CACHE", "")
    assert image_module.cache_folder().parts[-3:] == (".cache", "ibinn", "decoded")

    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert image_module.cache_folder() == Path("/elsewhere/ibinn/decoded")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without a home
    assert image_module.cache_folder().is_absolute()


def test_a_broken_image_leaves_no_half_written_cache(tmp_path):
    write_folder(tmp_path / "f", colours(6), [0, 1] * 3)
    (tmp_path / "f" / "dog" / "0001.png").write_bytes(png(colours(1)[0])[:60])
    with pytest.raises(DataError, match=r"0001\.png cannot be read as an image"):
        load(tmp_path / "f")
    assert not (tmp_path / "cache").exists() or list((tmp_path / "cache").iterdir()) == []


MEMORY = """
import sys, threading, time
import numpy as np
from ibinn.data.batches import Batches
from ibinn.data.preprocess import ImagePreprocess
from ibinn.data.splits import groups_of_duplicates

def private():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024

def watch():
    global peak
    while True:
        peak = max(peak, private())
        time.sleep(0.002)

images = np.load(sys.argv[1], mmap_mode="r")
preprocess = ImagePreprocess.fit(images[:300], 256)
before = peak = private()
threading.Thread(target=watch, daemon=True).start()
for epoch in range(1):
    ImagePreprocess.fit(images, 256)
    groups_of_duplicates(images)
    for rows in Batches(np.arange(len(images)), 128).epoch(epoch):
        preprocess(preprocess.add_noise(preprocess.to_units(images[np.sort(rows)])))
print(peak - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads Linux's accounts of memory")
@pytest.mark.slow
def test_memory_over_a_memory_mapped_set_does_not_grow_with_it(tmp_path):
    """Private memory: the pages of the file itself belong to the system, which takes them back at need."""
    peaks = []
    for n in (10_000, 40_000):  # 31 MB and 123 MB
        shape = (n, 32, 32, 3)
        array = np.lib.format.open_memmap(tmp_path / f"{n}.npy", mode="w+", dtype=np.uint8, shape=shape)
        array[::7] = 200
        array.flush()
        command = [sys.executable, "-c", MEMORY, str(tmp_path / f"{n}.npy")]
        peaks.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert peaks[1] < peaks[0] + 30
