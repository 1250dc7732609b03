"""Put a trained run into the package as a pretrained model, and evaluate it there.

    python experiments/ship.py RUN NAME

What is fitted after training is fitted again. If the file would be larger than 10 MB, the weights and the latent
references are stored in half precision. A pretrained model itself can be RUN: its weights stay as they are.
"""

import argparse
import dataclasses
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from ibinn.data.dataset import Dataset
from ibinn.data.known import load
from ibinn.evaluation import splits_of
from ibinn.models.latent_reference import LatentReference
from ibinn.ood.scores import Reference
from ibinn.ood.sets import usual_sets
from ibinn.pretrained import MODELS_FOLDER
from ibinn.run import CARD, CONFIG, MODEL, RESULTS
from ibinn.run.facts import HeldOut
from ibinn.run.folder import load_run, read_tensors, save_run, write_tensors
from ibinn.run.settings import read_config
from ibinn.run.trained import Run
from ibinn.training.finishing import Counter, fit_after_training, fit_latent_references, fit_scores

MOST_BYTES = 10_000_000
FILES = (CONFIG, MODEL, CARD, RESULTS)
LARGE = 10_000  # numbers in a tensor of a latent reference that is worth rounding
MORE_SETS = {"fashion_mnist": ("quickdraw_white",), "cifar10": ("cifar100", "rotation", "inverted")}


def refit(folder: Path, dataset: Dataset) -> None:
    """Fit again what is fitted after training; rounded to half precision if the file is too large otherwise."""
    run = load_run(folder)
    reference, held_out = fit_after_training(run.pipeline, dataset, splits_of(run, dataset))
    write(folder, run, reference, held_out)
    if (folder / MODEL).stat().st_size > MOST_BYTES:
        round_run(folder, dataset)


def write(folder: Path, run: Run, reference: Reference, held_out: HeldOut) -> None:
    facts = dataclasses.replace(run.facts, held_out=held_out)
    save_run(folder, dataclasses.replace(run, reference=reference, facts=facts))


def round_run(folder: Path, dataset: Dataset) -> None:
    """Round the weights of a run and its latent references to half precision, and fit again what depends on them.

    Scales, shifts and rotations stay as they are.
    """
    run = load_run(folder)
    pipeline, splits = run.pipeline, splits_of(run, dataset)
    weights = {f"model.{name}": p for name, p in pipeline.model.named_parameters() if p.ndim > 1}
    changed = [not torch.equal(weight, weight.half().float()) for weight in weights.values()]
    for weight in weights.values():
        weight.data = weight.data.half().float()
    if any(changed):
        fit_latent_references(pipeline, dataset, splits, Counter(None, 0))
    rounded = {*weights}
    for noise, fitted in pipeline.references.items():
        large = {name for name, value in fitted.state_dict().items() if value.numel() > LARGE}
        state = {k: v.half().float() if k in large else v for k, v in fitted.state_dict().items()}
        pipeline.references[noise] = LatentReference.stored(state)
        rounded |= {f"references.{noise}.{name}" for name in large}
    write(folder, run, *fit_scores(pipeline, dataset, splits, Counter(None, 0)))
    tensors, about = read_tensors(folder / MODEL)
    names = {f"pipeline.{name}" for name in rounded}
    write_tensors(folder / MODEL, {k: v.half() if k in names else v for k, v in tensors.items()}, about)


def ship(run: Path, name: str) -> Path:
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary, name)
        copy.mkdir()
        for file in (CONFIG, MODEL):
            shutil.copyfile(run / file, copy / file)
        dataset = load(read_config(copy / CONFIG).data)
        refit(copy, dataset)
        size = (copy / MODEL).stat().st_size
        if size > MOST_BYTES:
            raise SystemExit(f"{run} has {size:,} bytes in half precision, more than {MOST_BYTES:,}")
        sets = (*usual_sets(dataset.name, dataset.shape), *MORE_SETS.get(dataset.name, ()))
        subprocess.run([sys.executable, "-m", "ibinn.cli", "evaluate", copy, "--ood", *sets], check=True)
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
