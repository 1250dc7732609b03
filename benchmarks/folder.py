"""The time to load a folder of images, the first time and the second.

    make bench

Writes 10,000 small PNG files in two classes to a temporary folder, loads them twice, starting with an empty
cache, and prints the seconds of both. Takes about a minute on two cores.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from ibinn.data.known import load


def write_images(folder: Path, n: int) -> None:
    rng = np.random.default_rng(0)
    for label in ("a", "b"):
        (folder / label).mkdir(parents=True)
    for i in range(n):
        pixels = rng.integers(256, size=(32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "ab"[i % 2] / f"{i:06}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    n = parser.parse_args().images
    with tempfile.TemporaryDirectory() as root:
        os.environ["IBINN_CACHE"] = f"{root}/cache"
        write_images(Path(root) / "images", n)
        for attempt in ("first", "second"):
            start = time.perf_counter()
            data = load(Path(root) / "images")
            print(
                f"{attempt} time: {len(data.train)} images in {time.perf_counter() - start:.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
