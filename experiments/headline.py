"""Choose the parts of the score `combined`, on strange inputs made from validation inputs.

    python experiments/headline.py --out results/headline.json [--models FOLDER]

Images: the pretrained models, on their validation splits. Rows: models of scikit-learn's tables, on rows held out
from them. A kind of strangeness is a group of changes that are alike. For each set of up to five scores, Fisher's
combination is judged by its AUROC against unchanged inputs: the mean over changes, then kinds, then models.

No reported OoD set is read, and kinds that are like a reported set have no vote: they are only shown. The vote is
repeated without each of its kinds. It is held for two latent references, fitted with either kind of noise; the
inputs always have the bank's.
"""

import argparse
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.model_selection import train_test_split

from ibinn import IBINNClassifier
from ibinn._system import write_atomically
from ibinn._types import Array, Floats, Labels
from ibinn.config import Pretrained
from ibinn.data.known import load
from ibinn.evaluation import splits_of
from ibinn.metrics.roc import auroc_of, ranks
from ibinn.models.latent_reference import LatentNoise
from ibinn.models.output import Output, to_tensors
from ibinn.ood import sets
from ibinn.ood.scores import Reference, combined_score, observe, ood_scores
from ibinn.pretrained import MODELS_FOLDER
from ibinn.run.folder import load_run
from ibinn.run.trained import Run

N_IMAGES = 1000  # images that are changed, of each model
N_SEEDS = 3  # splits of each table
MOST_PARTS = 5
N_SHOWN = 10
NOISES: tuple[LatentNoise, ...] = ("bank", "drawn")
TABLES: dict[str, Callable[..., Any]] = {
    "iris": load_iris,
    "wine": load_wine,
    "breast cancer": load_breast_cancer,
    "digits as rows": load_digits,
}
CANDIDATES = (
    "typicality",
    "nll",
    "class_typicality",
    "entropy",
    "energy",
    "complexity",
    "class_information",
    "class_distance",
    "span_distance",
)
ALONE = "span_distance"  # a part of class_distance; class_information depends on the same directions
BEFORE = ("typicality", "class_typicality", "complexity")  # the parts in earlier versions
VOTERS = {
    "images": ("mixes", "patches", "smoothing", "warps", "holes", "random phases"),
    "rows": ("mixes", "extrapolations", "noise"),
}

Kinds = dict[str, list[Array]]
Parts = tuple[str, ...]


Terms = dict[str, Floats]  # of Fisher's combination, (N,) by score


class Model(NamedTuple):
    """Terms for unchanged inputs, and for each change of each kind."""

    name: str
    plain: Terms
    strange: dict[str, list[Terms]]


def image_kinds(x: Array, levels: int) -> Kinds:
    """Changed images, by kind. The first six kinds are unlike the reported sets."""
    unit, rng = sets.to_unit(x, levels), np.random.default_rng(1)
    other = rng.permutation(len(x))
    half = x.copy()
    half[:, :, x.shape[2] // 2 :] = x[other][:, :, x.shape[2] // 2 :]
    mean = unit.mean((1, 2, 3), keepdims=True)

    def from_unit(values: sets.Unit) -> Array:
        return sets.from_unit(values, levels, x.dtype)

    kinds = {
        "mixes": [from_unit((unit + unit[other]) / 2), half],
        "patches": [shuffled_patches(x, rng, 4), shuffled_patches(x, rng, 2)],
        "smoothing": [from_unit(gaussian_filter(unit, (0, 1, 1, 0))), from_unit((unit + mean) / 2)],
        "warps": [from_unit(waves(unit)), from_unit(enlarged(unit))],
        "holes": [from_unit(with_hole(unit, rng, value)) for value in (0.0, 0.5)],
        "random phases": [from_unit(random_phases(unit, rng))],
        "noise": [sets.noise(x, levels, 1), from_unit(sets.add_noise(unit, 0.1, rng))],
        "turns": [np.rot90(x, k, axes=(1, 2)).copy() for k in (1, 2)] + [sets.flipped(x, levels, 0)],
        "inversion": [sets.inverted(x, levels, 0)],
        "JPEG": [sets.jpeg(x, levels, 0)],
    }
    if x.shape[3] == 3:
        turned = sets.rotate_colours(unit, sets.random_axis(rng), sets.ANGLE)
        kinds["colours"] = [from_unit(turned), x[..., ::-1].copy()]
    return kinds


def waves(unit: sets.Unit) -> sets.Unit:
    """Each row shifted sideways by up to a tenth of the width, along a sine."""
    height, width = unit.shape[1:3]
    shift = np.rint(width / 10 * np.sin(4 * np.pi * np.arange(height) / height)).astype(int)
    columns = (np.arange(width) - shift[:, None]) % width
    return unit[:, np.arange(height)[:, None], columns]


def enlarged(unit: sets.Unit) -> sets.Unit:
    """The centre, half as wide and half as high, in the original size."""
    height, width = unit.shape[1:3]
    centre = unit[:, height // 4 : height - height // 4, width // 4 : width - width // 4]
    return np.stack([sets.resize(image, height, width) for image in centre])


def with_hole(unit: sets.Unit, rng: np.random.Generator, value: float) -> sets.Unit:
    """A square of a third of each side, somewhere, in one shade."""
    side, changed = max(2, unit.shape[1] // 3), unit.copy()
    corners = rng.integers(0, np.array(unit.shape[1:3]) - side, (len(unit), 2))
    for image, (top, left) in zip(changed, corners, strict=True):
        image[top : top + side, left : left + side] = value
    return changed


def random_phases(unit: sets.Unit, rng: np.random.Generator) -> sets.Unit:
    """Images with the same spectrum but random phases: textures without content."""
    phases = np.angle(np.fft.fft2(rng.random(unit.shape[:3]), axes=(1, 2)))[..., None]
    spectrum = np.abs(np.fft.fft2(unit, axes=(1, 2)))
    return np.fft.ifft2(spectrum * np.exp(1j * phases), axes=(1, 2)).real.astype(unit.dtype)


def shuffled_patches(x: Array, rng: np.random.Generator, n: int) -> Array:
    """Each image cut into n x n patches in a random order."""
    height, width, channels = x.shape[1] // n, x.shape[2] // n, x.shape[3]
    grid = x[:, : n * height, : n * width].reshape(len(x), n, height, n, width, channels)
    patches = grid.swapaxes(2, 3).reshape(len(x), n * n, height, width, channels)
    order = np.argsort(rng.random((len(x), n * n)), axis=1)[:, :, None, None, None]
    shuffled = np.take_along_axis(patches, order, axis=1).reshape(len(x), n, n, height, width, channels)
    changed = x.copy()
    changed[:, : n * height, : n * width] = shuffled.swapaxes(2, 3).reshape(
        len(x), n * height, n * width, channels
    )
    return changed


def row_kinds(x: Array, y: Labels, rng: np.random.Generator) -> Kinds:
    """Changed rows, by kind; a class that was left out of the training is added elsewhere."""
    other = np.array([rng.choice(np.flatnonzero(y != label)) for label in y])
    spread = x.std(0)
    centres = np.stack([x[y == label].mean(0) for label in y])
    return {
        "mixes": [(x + x[other]) / 2],
        "extrapolations": [x + (x - x[other]), centres + 3 * (x - centres)],
        "noise": [x + 0.5 * spread * rng.normal(size=x.shape)],
        "shuffled columns": [sets.permuted(x, int(seed)) for seed in rng.integers(1000, size=3)],
    }


def outputs(run: Run, raw: Array) -> dict[LatentNoise, Output[Floats]]:
    """The output for raw inputs, judged by each latent reference."""
    seen = observe(run.pipeline, raw, with_z=True)
    assert seen.z is not None
    z = torch.from_numpy(seen.z).to(run.pipeline.dtype)
    found: dict[LatentNoise, Output[Floats]] = {}
    for noise in NOISES:
        reference = run.pipeline.reference(noise)
        assert reference is not None
        with torch.no_grad():
            evidence = reference(z)._asdict()
        arrays = {name: value.double().numpy() for name, value in evidence.items()}
        found[noise] = dataclasses.replace(seen, z=None, **arrays)
    return found


def judged(name: str, run: Run, validation: Array, plain: Array, kinds: Kinds) -> dict[LatentNoise, Model]:
    """All candidates of one model on unchanged and on strange inputs, by the noise of the latent reference."""
    ranked: dict[LatentNoise, Reference] = {}
    for noise, output in outputs(run, validation).items():
        scores = ood_scores(output, run.reference)
        parts = {name: np.sort(scores[name]) for name in CANDIDATES if name in scores}
        ranked[noise] = dataclasses.replace(run.reference, parts=parts)

    def terms(raw: Array) -> dict[LatentNoise, Terms]:
        return {noise: fisher_terms(output, ranked[noise]) for noise, output in outputs(run, raw).items()}

    inside = terms(plain)
    outside = {kind: [terms(raw) for raw in changed] for kind, changed in kinds.items()}
    return {
        noise: Model(
            name, inside[noise], {kind: [t[noise] for t in changed] for kind, changed in outside.items()}
        )
        for noise in NOISES
    }


def fisher_terms(output: Output[Floats], reference: Reference) -> Terms:
    """Of each score alone."""
    tensors, terms = to_tensors(output), {}
    for name, values in reference.parts.items():
        term = combined_score(tensors, dataclasses.replace(reference, parts={name: values}))
        assert term is not None
        terms[name] = term.numpy()
    return terms


def image_models(folder: Path) -> Iterator[dict[LatentNoise, Model]]:
    """The pretrained models; the first validation images are changed, and the others are not."""
    for name in get_args(Pretrained):
        run = load_run(folder / name)
        dataset = load(run.config.data)
        x = dataset.train.x[splits_of(run, dataset).validation]
        n = N_IMAGES if len(x) > 2 * N_IMAGES else 0
        assert dataset.levels is not None
        kinds = image_kinds(x[:n] if n else x, dataset.levels)
        yield judged(name, run, x, x[n:], kinds)


def row_models() -> Iterator[dict[LatentNoise, Model]]:
    """Models of each table, with all classes and without one of them."""
    for name, read in TABLES.items():
        x, y = read(return_X_y=True)
        for seed in range(N_SEEDS):
            for left_out in (None, *np.unique(y)[:3]) if len(np.unique(y)) > 2 else (None,):
                yield row_model(name, x, y, seed, left_out)


def row_model(name: str, x: Array, y: Labels, seed: int, left_out: int | None) -> dict[LatentNoise, Model]:
    known = np.ones(len(y), bool) if left_out is None else y != left_out
    x_fit, x_new, y_fit, y_new = train_test_split(
        x[known], y[known], test_size=1 / 3, random_state=seed, stratify=y[known]
    )
    clf = IBINNClassifier(random_state=seed).fit(x_fit, y_fit)
    rng = np.random.default_rng(seed)
    kinds = row_kinds(x_new, y_new, rng) if left_out is None else {"left-out class": [x[~known]]}
    # Ranks among half of the held-out rows, as the estimator does not keep its validation split.
    half = rng.permutation(len(x_new))
    return judged(name, clf.run_, x_new[half[::2]], x_new[half[1::2]], kinds)


class Choice(NamedTuple):
    """Sets of scores with their AUROC by model and kind, in percent, and the kinds that have a vote."""

    by_parts: dict[Parts, dict[str, dict[str, float]]]
    voters: tuple[str, ...]

    def value(self, parts: Parts, voters: tuple[str, ...]) -> float:
        """Mean over models of the mean over kinds."""
        by_model = [[v for kind, v in m.items() if kind in voters] for m in self.by_parts[parts].values()]
        return float(np.mean([np.mean(values) for values in by_model if values]))

    def order(self, voters: tuple[str, ...]) -> list[Parts]:
        return sorted(self.by_parts, key=lambda parts: -self.value(parts, voters))


def choice(models: list[Model], voters: tuple[str, ...]) -> Choice:
    names = [name for name in models[0].plain if name != ALONE]
    subsets = [p for n in range(1, MOST_PARTS + 1) for p in itertools.combinations(names, n)]
    subsets += [(name,) for name in models[0].plain if name == ALONE]
    return Choice({parts: by_kind(models, parts) for parts in subsets}, voters)


def by_kind(models: list[Model], parts: Parts) -> dict[str, dict[str, float]]:
    """AUROC of the combination of these scores: by model, a mean over its fits, and by kind."""
    values: dict[str, dict[str, list[float]]] = {}
    for model in models:
        plain = sum(model.plain[name] for name in parts)
        for kind, changes in model.strange.items():
            aurocs = [
                100 * auroc_of(ranks(plain, sum(terms[name] for name in parts)).counts())
                for terms in changes
            ]
            values.setdefault(model.name, {}).setdefault(kind, []).append(float(np.mean(aurocs)))
    return {name: {k: float(np.mean(v)) for k, v in kinds.items()} for name, kinds in values.items()}


def summary(chosen: Choice) -> dict[str, Any]:
    """The best sets of scores, the earlier one, each score alone, and the vote without each of its kinds."""
    order = chosen.order(chosen.voters)
    before = tuple(name for name in CANDIDATES if name in BEFORE and (name,) in chosen.by_parts)
    shown = list(
        dict.fromkeys(
            [
                *order[:N_SHOWN],
                *([before] if before else ()),
                *(parts for parts in order if len(parts) == 1),
            ]
        )
    )
    without = {}
    for kind in chosen.voters:
        best = chosen.order(tuple(k for k in chosen.voters if k != kind))[0]
        without[kind] = {
            "parts": best,
            "auroc_on_kind": chosen.value(best, (kind,)),
            "auroc_on_kind_of_choice": chosen.value(order[0], (kind,)),
        }
    return {
        "voters": chosen.voters,
        "table": [
            {
                "parts": parts,
                "auroc": chosen.value(parts, chosen.voters),
                "by_model": chosen.by_parts[parts],
            }
            for parts in shown
        ],
        "without": without,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=MODELS_FOLDER)
    parser.add_argument("--only", choices=("images", "rows"))
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}
    for name, models in {"images": lambda: image_models(options.models), "rows": row_models}.items():
        if options.only in (None, name):
            found = list(models())
            results[name] = {
                noise: summary(choice([m[noise] for m in found], VOTERS[name])) for noise in NOISES
            }
            for noise in NOISES:
                best = results[name][noise]["table"][0]
                print(f"{name}, {noise}: {' + '.join(best['parts'])}, {best['auroc']:.1f}")
    write_atomically(options.out, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
