"""Puts a trained and evaluated run into the package as a pretrained model.

    python experiments/ship.py RUN NAME

Weights are kept in half precision where the file would else be over 5 MB; such a model is evaluated again, as it
is shipped.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from ibinn.checkpoint import of_group, read_tensors, write_tensors
from ibinn.files import CONFIG, MODEL, RESULTS
from ibinn.pretrained import HERE, SUMS

MOST_BYTES = 5_000_000


def halved(path: Path) -> None:
    """The weights of the model in half precision; nothing else."""
    tensors, about = read_tensors(path)
    weights = {f"pipeline.{name}" for name in of_group(tensors, "pipeline") if name.startswith("model.")}
    half = {k: v.half() if k in weights and v.dtype == torch.float32 else v for k, v in tensors.items()}
    del about["format"]
    write_tensors(path, half, about)


def ship(run: Path, name: str) -> Path:
    with tempfile.TemporaryDirectory() as place:
        here = Path(place, name)
        here.mkdir()
        for file in (CONFIG, MODEL, RESULTS):
            shutil.copyfile(run / file, here / file)
        if (here / MODEL).stat().st_size > MOST_BYTES:
            halved(here / MODEL)
            subprocess.run([sys.executable, "-m", "ibinn.cli", "evaluate", here], check=True)
        size = (here / MODEL).stat().st_size
        if size > MOST_BYTES:
            raise SystemExit(f"{run} has {size:,} bytes in half precision, more than {MOST_BYTES:,}")
        target = HERE / name
        target.mkdir(exist_ok=True)
        for file in (CONFIG, MODEL, RESULTS):
            shutil.copyfile(here / file, target / file)
    return target


def write_sums() -> None:
    files = sorted(HERE.glob(f"*/{MODEL}"))
    sums = (
        f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.relative_to(HERE).as_posix()}\n" for f in files
    )
    (HERE / SUMS).write_text("".join(sums))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    options = parser.parse_args()
    folder = ship(options.run, options.name)
    write_sums()
    print(f"written to {folder}: {(folder / MODEL).stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
