"""CIFAR-10 at 8 x 8 pixels, each the mean of 4 x 4, as an .npz for experiments/sigma-8x8.toml.

python experiments/cifar10_8x8.py [OUT]
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ibinn.data.known import load


def reduced(x: NDArray[np.uint8], factor: int = 4) -> NDArray[np.uint8]:
    """(N, H, W, C) -> (N, H / factor, W / factor, C): means over squares, rounded."""
    n, height, width, channels = x.shape
    squares = x.reshape(n, height // factor, factor, width // factor, factor, channels)
    means: NDArray[np.float64] = squares.mean(axis=(2, 4))
    return means.round().astype(np.uint8)


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/cifar10-8x8.npz")
    data = load("cifar10")
    assert data.test is not None
    out.parent.mkdir(parents=True, exist_ok=True)
    train, test = data.train, data.test
    np.savez_compressed(out, y=train.y, y_test=test.y, x=reduced(train.x), x_test=reduced(test.x))
    print(f"written to {out}: {len(data.train)} and {len(data.test)} images of 8 x 8")


if __name__ == "__main__":
    main()
