"""Put a trained and evaluated run into the package as a pretrained model.

    python experiments/ship.py RUN NAME

If the file would be larger than 5 MB, its weights are stored in half precision, and the model is evaluated again.
"""

import argparse
import dataclasses
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ibinn.data.dataset import Dataset
from ibinn.data.known import load
from ibinn.evaluation import splits_of
from ibinn.ood.scores import fit_reference, observe
from ibinn.pretrained import MODELS_FOLDER
from ibinn.run import CARD, CONFIG, MODEL, RESULTS
from ibinn.run.folder import load_run, read_tensors, save_run, write_tensors
from ibinn.run.settings import read_config
from ibinn.training.trainer import held_out_numbers

MOST_BYTES = 5_000_000
FILES = (CONFIG, MODEL, CARD, RESULTS)


def halved(folder: Path, dataset: Dataset) -> None:
    """Round the weights of a run to half precision and fit its reference again; scales and rotations stay."""
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
    facts = dataclasses.replace(run.facts, held_out=held_out_numbers(held_out.log_q_y, calibration.y))
    save_run(folder, dataclasses.replace(run, reference=reference, facts=facts))
    tensors, about = read_tensors(folder / MODEL)
    names = {f"pipeline.model.{name}" for name in weights}
    half = {name: value.half() if name in names else value for name, value in tensors.items()}
    write_tensors(folder / MODEL, half, about)


def ship(run: Path, name: str) -> Path:
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary, name)
        copy.mkdir()
        for file in FILES:
            shutil.copyfile(run / file, copy / file)
        if (copy / MODEL).stat().st_size > MOST_BYTES:
            halved(copy, load(read_config(copy / CONFIG).data))
            subprocess.run([sys.executable, "-m", "ibinn.cli", "evaluate", copy], check=True)
        size = (copy / MODEL).stat().st_size
        if size > MOST_BYTES:
            raise SystemExit(f"{run} has {size:,} bytes in half precision, more than {MOST_BYTES:,}")
        target = MODELS_FOLDER / name
        target.mkdir(exist_ok=True)
        for file in FILES:
            shutil.copyfile(copy / file, target / file)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    options = parser.parse_args()
    folder = ship(options.run, options.name)
    print(f"written to {folder}: {(folder / MODEL).stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
