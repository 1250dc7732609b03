"""Short runs on Fashion-MNIST that each change one setting of the `small` recipe; docs/recipes.md shows the table.

    python benchmarks/recipes.py DATA_DIR [--epochs 1] [--only NAME ...]

Gamma has its final value from the first step on. The table shows validation metrics; the test set is not read.
Runs are made one at a time, each in its own folder below --out. Finished runs are not repeated.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from ibinn.run.facts import read_history

ROWS: dict[str, list[str]] = {
    "as it is": [],
    "standardised, not equalised": ["recipe.normalise=standard"],
    "the paper's clamp": ["network.clamp=0.7", "network.slope=0.1"],
    "the paper's subnets": ["network.subnet=paper"],
    "twice the learning rate": ["recipe.learning_rate=4e-3"],
    "batches of 64": ["recipe.batch_size=64"],
    "clip at 8": ["recipe.clip=8.0"],
    "deeper, narrower": ["network.blocks=[12,12]", "network.widths=[32,64]"],
    "shallower, wider": ["network.blocks=[6,6]", "network.widths=[64,128]"],
    "four dense blocks": ["network.dense_blocks=4"],
    "means ten times as fast": ["recipe.mu_rate=10"],
}
GAMMAS = {f"gamma {gamma}": gamma for gamma in (0.2, 1, 4, 16, 64)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs", "recipes"))
    parser.add_argument("--only", nargs="*", default=[*ROWS, *GAMMAS])
    options = parser.parse_args()
    print(f"| {'change':28} | error (%) | bits/dim | minutes |\n|---|---|---|---|")
    for name in options.only:
        folder = options.out / f"{name.replace(' ', '-')}-{options.epochs}"
        train(folder, name, options.epochs, options.data_dir)
        last = read_history(folder)[-1]
        found = last.validation
        print(
            f"| {name:28} | {found.error:.2f} | {found.bits_per_dim:.3f} | {last.seconds / 60:.1f} |",
            flush=True,
        )


def train(folder: Path, name: str, epochs: int, data_dir: Path) -> None:
    command = [sys.executable, "-m", "ibinn.cli", "train", "fashion_mnist", "--size", "small", "--resume"]
    command += ["--precision", "bf16", "--epochs", str(epochs), "--gamma", str(GAMMAS.get(name, 1))]
    command += ["--data-dir", str(data_dir), "--out", str(folder)]
    command += ["--set", "recipe.gamma_ramp=0", *ROWS.get(name, [])]
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main()
