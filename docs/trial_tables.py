"""Tables of the short trainings that compare recipes, from results/trials.json."""

import json
from functools import cache
from typing import Any

import published
from fill import markdown
from published import MISSING

from ibinn.formats import decimal, gamma_text

HEAD = [
    *("trial", "what is tried", "γ", "seed", "epochs", "minutes", "error, %", "bits/dim"),
    *("−log q(y\\|x), nats", "the same in training"),
]


@cache
def trials() -> list[dict[str, Any]]:
    file = published.RESULTS / "trials.json"
    return json.loads(file.read_text())["trials"] if file.is_file() else []


def trials_on(data: str) -> str:
    """A row per trial, in the order in which they were run."""
    table = [HEAD]
    for row in (row for row in trials() if row["data"] == data):
        has_gamma = row["method"] == "ibinn"
        numbers = [decimal(row["error"], 2), decimal(row["bits_per_dim"], 2)]
        numbers += [decimal(row["loss_y"], 3), decimal(row["train_loss_y"], 3)]
        about = [row["seed"], row["epochs"], decimal(row["minutes"], 1)]
        gamma = gamma_text(float(row["gamma"])) if has_gamma else "–"
        table.append([f"`{row['name']}`", row["question"], gamma, *map(str, about), *numbers])
    return markdown(table) if len(table) > 1 else MISSING


def trials_on_cifar10() -> str:
    return trials_on("cifar10")


def trials_on_fashion_mnist() -> str:
    return trials_on("fashion_mnist")
