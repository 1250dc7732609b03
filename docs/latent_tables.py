"""Tables on what is fitted after training: the choice of the combined score, and the pretrained models with it."""

import json
from typing import Any, get_args

import published
from fill import markdown
from published import MISSING

from ibinn.config import Pretrained
from ibinn.formats import decimal
from ibinn.ood.sets import usual_sets
from ibinn.pretrained import MODELS_FOLDER
from ibinn.run.results import read_results

NAMES = {"digits": "digits", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
SOURCES = {"mixture": "N(μ_y, I)", "fitted": "N(m_y, Σ)"}
SHARES = ("drawn_again", "out_of_range", "lifelike", "of_their_class")
SHOWN = ("typicality", "class_information", "class_distance", "complexity", "energy", "entropy", "combined")
BEFORE = ({"typicality", "class_typicality", "complexity"}, {"typicality", "class_typicality"})
N_BEST = 3  # of the sets of scores


def read(name: str) -> Any:
    file = published.RESULTS / name
    return json.loads(file.read_text()) if file.is_file() else None


def latent_samples() -> str:
    numbers = read("latents.json")
    if numbers is None:
        return MISSING
    about_range = ("drawn again, %", "far outside the pixel range, %")
    table = [["model", "latent vectors", *about_range, "lifelike, %", "of the asked class, %"]]
    for model in (name for name in NAMES if name in numbers):
        for latent, title in SOURCES.items():
            found = numbers[model][latent]
            table.append([NAMES[model], title, *(decimal(found.get(share), 1) for share in SHARES)])
    return markdown(table)


def votes_on_images() -> str:
    return votes("images")


def votes_on_rows() -> str:
    return votes("rows")


def votes(data: str) -> str:
    """The best sets of scores, the earlier one and each score alone: AUROC by kind, a mean over the models."""
    numbers = read("headline.json")
    if numbers is None:
        return MISSING
    chosen = numbers[data]["bank"]
    rows, voters = chosen["table"], chosen["voters"]
    kinds = list(
        dict.fromkeys(kind for row in rows for model in row["by_model"].values() for kind in model)
    )
    others = [kind for kind in kinds if kind not in voters]
    table = [["scores", "vote", *voters, *(f"({kind})" for kind in others)]]
    shown = [
        *rows[:N_BEST],
        *(row for row in rows[N_BEST:] if {*row["parts"]} in BEFORE or len(row["parts"]) == 1),
    ]
    for row in shown:
        models = row["by_model"].values()
        values = [[model[kind] for model in models if kind in model] for kind in (*voters, *others)]
        means = (decimal(sum(v) / len(v), 1) for v in values)
        table.append([", ".join(row["parts"]), decimal(row["auroc"], 1), *means])
    return markdown(table)


def left_out_of_images() -> str:
    return left_out("images")


def left_out_of_rows() -> str:
    return left_out("rows")


def left_out(data: str) -> str:
    """The vote without each of its kinds."""
    numbers = read("headline.json")
    if numbers is None:
        return MISSING
    table = [[f"{data}, without", "best set", "its AUROC on the kind, %", "AUROC of the chosen set, %"]]
    for kind, found in numbers[data]["bank"]["without"].items():
        values = (found["auroc_on_kind"], found["auroc_on_kind_of_choice"])
        table.append([kind, ", ".join(found["parts"]), *(decimal(value, 1) for value in values)])
    return markdown(table)


def votes_with_drawn_noise() -> str:
    """Within a sentence: the best vote with the other latent reference, for images."""
    numbers = read("headline.json")
    return MISSING if numbers is None else decimal(numbers["images"]["drawn"]["table"][0]["auroc"], 1)


def pretrained_ood() -> str:
    """AUROC of the scores of the pretrained models on every set, and what the headline score flags."""
    table = [["model", "OoD set", *(f"`{score}`" for score in SHOWN), "flagged by `combined`, %"]]
    for name in get_args(Pretrained):
        results = read_results(MODELS_FOLDER / name)
        for ood_name, ood in results.ood.items():
            areas = [decimal(ood.auroc.get(score), 1) for score in SHOWN]
            flagged = decimal(ood.detected_at_alpha.get("combined"), 1)
            table.append([NAMES[name], f"`{ood_name}`", *areas, flagged])
        table.append(
            [
                NAMES[name],
                "test set (false alarms)",
                *["–"] * len(SHOWN),
                decimal(results.false_alarm_rate["combined"], 1),
            ]
        )
    return markdown(table)


def pretrained_mean() -> str:
    """Within a sentence: the mean AUROC of the headline score of the Fashion-MNIST model over the usual sets."""
    results = read_results(MODELS_FOLDER / "fashion_mnist")
    areas = [results.ood[name].auroc[results.score] for name in usual_sets("fashion_mnist", (28, 28, 1))]
    return decimal(sum(areas) / len(areas), 1)


def pretrained_probabilities() -> str:
    """Log-loss and calibration of the pretrained models, raw and calibrated."""
    heads = (
        "model",
        "temperature",
        "log-loss, raw",
        "calibrated",
        "calibration (floor), raw, %",
        "calibrated, %",
    )
    table = [[*heads]]
    for name in get_args(Pretrained):
        results = read_results(MODELS_FOLDER / name)
        errors = []
        for calibration in (results.calibration, results.scaled.calibration):
            errors.append(
                f"{decimal(calibration.geo_mean)} ({decimal(calibration.floor['geo_mean'].mean)})"
            )
        losses = [decimal(loss, 3) for loss in (results.nll_y, results.scaled.nll_y)]
        table.append([NAMES[name], decimal(results.scaled.temperature), *losses, *errors])
    return markdown(table)
