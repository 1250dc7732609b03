"""Puts a trained and evaluated run into the package as a pretrained model.

    python experiments/ship.py RUN NAME

Weights are kept in half precision where the file would else be over 5 MB; such a model is evaluated again, as it
is shipped.
"""

import argparse
import dataclasses
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ibinn.data.dataset import Dataset
from ibinn.data.known import load
from ibinn.evaluation import splits_of
from ibinn.ood.scores import fit_reference, observe
from ibinn.pretrained import HERE, SUMS
from ibinn.run import CONFIG, MODEL, RESULTS
from ibinn.run.folder import load_run, read_config, read_tensors, save_run, write_tensors
from ibinn.training.trainer import held_out_numbers

MOST_BYTES = 5_000_000


def halved(folder: Path, dataset: Dataset) -> None:
    """The weights in half precision, and the p-values that belong to them; scales and rotations stay."""
    run = load_run(folder)
    model, splits = run.pipeline.model, splits_of(run, dataset)
    weights = {name: p for name, p in model.named_parameters() if p.ndim > 1}
    for weight in weights.values():
        weight.data = weight.data.half().float()
    validation, calibration = (dataset.train.take(rows) for rows in (splits.validation, splits.calibration))
    held_out = observe(run.pipeline, calibration.x)
    reference = fit_reference(
        observe(run.pipeline, validation.x), held_out, run.pipeline.preprocess.n_dims, calibration.y
    )
    facts = run.facts | {"held_out": held_out_numbers(held_out.log_q_y, calibration.y)}
    save_run(folder, dataclasses.replace(run, reference=reference, facts=facts))
    tensors, about = read_tensors(folder / MODEL)
    del about["format"]
    names = {f"pipeline.model.{name}" for name in weights}
    half = {name: value.half() if name in names else value for name, value in tensors.items()}
    write_tensors(folder / MODEL, half, about)


def ship(run: Path, name: str) -> Path:
    with tempfile.TemporaryDirectory() as place:
        here = Path(place, name)
        here.mkdir()
        for file in (CONFIG, MODEL, RESULTS):
            shutil.copyfile(run / file, here / file)
        if (here / MODEL).stat().st_size > MOST_BYTES:
            halved(here, load(read_config(here / CONFIG).data))
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
    files = sorted(file for file in HERE.glob("*/*") if file.name in (CONFIG, MODEL, RESULTS))
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
