"""The time of augmentation: random images of CIFAR's size, in batches, with the paper's settings.

    python benchmarks/augment.py

Prints the milliseconds per batch, best and median, for each part alone and for all together. Takes a few
seconds.
"""

import argparse
from statistics import median
from time import perf_counter

import torch

from ibinn.data.augment import PAPER_AUGMENTATION, Augmentation, augment

PARTS = {
    "flip": Augmentation(flip=PAPER_AUGMENTATION.flip),
    "jitter": Augmentation(jitter=PAPER_AUGMENTATION.jitter),
    "crop": Augmentation(crop=PAPER_AUGMENTATION.crop),
    "rotation": Augmentation(rotation=PAPER_AUGMENTATION.rotation),
    "all, as in the paper": PAPER_AUGMENTATION,
}


def measure(name: str, settings: Augmentation, batch: int, side: int, repeats: int) -> None:
    """Print one row; the first three batches are warm-up."""
    x = torch.rand(batch, 3, side, side)
    generator, times = torch.Generator().manual_seed(0), []
    for _ in range(repeats + 3):
        start = perf_counter()
        augment(x, generator, settings, high=255 / 256, step=1 / 256)
        times.append(1e3 * (perf_counter() - start))
    times = times[3:]
    print(f"{name:>20}: best {min(times):6.2f} ms, median {median(times):6.2f} ms per batch of {batch}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name, settings in PARTS.items():
        measure(name, settings, options.batch, options.side, options.repeats)


if __name__ == "__main__":
    main()
