"""Sizes and recipes: which network, trained how. Each choice is told of in docs/recipes.md."""

import math
from dataclasses import asdict, fields, replace
from typing import Any

import torch
from torch import nn

from ibinn.config import ConfigError, Network, Recipe, RunConfig, Size, has_ramp, key_hint, parse_value
from ibinn.data.augment import PAPER_AUGMENTATION
from ibinn.data.dataset import Dataset
from ibinn.mixture import GaussianMixture
from ibinn.models.architectures import LARGEST_ROTATION, PAPER
from ibinn.run.folder import FORMAT

SMALL = Network(
    blocks=(8, 8),
    widths=(48, 96),
    dropouts=(0.0, 0.0),
    subnet="light",
    clamp=2.0,
    slope=0.5,
    down_slope=0.5,
    dense_blocks=1,
    dense_width=256,
    dense_dropout=0.0,
)
NETWORKS: dict[Size, Network] = {
    "tiny": replace(SMALL, blocks=(4, 4), widths=(32, 64), dense_blocks=4, dense_width=128),
    "small": SMALL,
    "base": replace(
        SMALL, blocks=(4, 8, 8), widths=(32, 96, 128), dropouts=(0.0, 0.0, 0.0), dense_width=128
    ),
    "paper": PAPER,
}

OURS = Recipe(
    epochs=10,
    batch_size=128,
    optimizer="adamw",
    learning_rate=2e-3,
    mu_rate=3.0,
    weight_decay=1e-4,
    schedule="one-cycle",
    clip=1.0,
    smoothing=0.05,
    ema=0.995,
    patience=10,
    normalise="equalise",
)
RECIPES: dict[Size, Recipe] = {
    "tiny": replace(OURS, epochs=40, batch_size=64, ema=0.98),
    "small": replace(OURS, gamma_ramp=0.8),
    "base": replace(
        OURS, epochs=22, gamma_ramp=0.8, learning_rate=1e-3, normalise="whiten", flip=True, crop=2
    ),
    "paper": Recipe(
        epochs=450,
        batch_size=128,
        optimizer="sgd",
        learning_rate=0.07,
        mu_rate=3.0,
        weight_decay=1e-4,
        schedule="steps",
        clip=8.0,
        smoothing=0.05,
        ema=0.0,
        patience=0,
        noise="gaussian",
        sigma=1e-3,
        **asdict(PAPER_AUGMENTATION),
    ),
}
MIN_STEPS = 1000  # of a run, but for the paper's: few examples get more epochs


def default_size(dataset: Dataset) -> Size:
    """tiny for tables and images up to 16 x 16, small for grey images, base for colour."""
    if not dataset.is_images or max(dataset.shape[:2]) <= 16:
        return "tiny"
    return "small" if dataset.shape[2] == 1 else "base"


def configure(dataset: Dataset, n_train: int, size: Size | None = None, **settings: Any) -> RunConfig:
    """The configuration for a data set: network and recipe of the size, where `settings` do not say otherwise."""
    size = size or default_size(dataset)
    network, recipe = NETWORKS[size], RECIPES[size]
    if not dataset.is_images:
        if size == "paper":
            raise ConfigError(
                "the paper's network is for images; for a table use --size tiny, small or base"
            )
        network = replace(network, blocks=(), widths=(), dropouts=(), dense_blocks=8)
        few = dataset.shape[0] <= LARGEST_ROTATION
        recipe = replace(recipe, flip=False, crop=0, normalise="whiten" if few else "standard")
    if not dataset.is_images or not has_ramp(settings["method"], settings["gamma"]):
        recipe = replace(recipe, gamma_ramp=0.0)
    batch_size = max(2, min(recipe.batch_size, n_train // 8))
    if size != "paper":
        epochs = max(recipe.epochs, math.ceil(MIN_STEPS / max(1, n_train // batch_size)))
        recipe = replace(recipe, epochs=epochs, patience=max(recipe.patience, epochs // 4))
    recipe = replace(recipe, batch_size=batch_size)
    return RunConfig(
        format=FORMAT, data=dataset.name, size=size, network=network, recipe=recipe, **settings
    )


def override(config: RunConfig, settings: tuple[str, ...]) -> RunConfig:
    """config with settings such as "recipe.learning_rate=0.01" or "network.blocks=[4, 4]"; values are TOML."""
    values: dict[str, dict[str, Any]] = {"network": {}, "recipe": {}}
    for setting in settings:
        path, equals, text = setting.partition("=")
        section, _, key = path.strip().partition(".")
        if not equals or section not in values:
            raise ConfigError(
                f"{setting!r} is no setting; write recipe.KEY=VALUE or network.KEY=VALUE, as in "
                f"recipe.learning_rate=0.001"
            )
        part = getattr(config, section)
        known = [field.name for field in fields(part)]
        if key not in known:
            raise ConfigError(f"{section} has no setting {key!r}; {key_hint(key, known)}")
        values[section][key] = parse_value(type(part), key, text)
    # All at once: several that must agree may change together.
    return replace(
        config,
        network=replace(config.network, **values["network"]),
        recipe=replace(config.recipe, **values["recipe"]),
    )


def halvings(network: Network, n_channels: int) -> int:
    """How often the sides of an image are halved on their way through the network."""
    return len(network.blocks) - 1 + (n_channels == 1)


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Groups: weights, which decay; scales, shifts and biases, which do not; the means, with their own rate."""
    mixtures = [module for module in model.modules() if isinstance(module, GaussianMixture)]
    mu = [m.mu for m in mixtures if isinstance(m.mu, nn.Parameter)]
    rest = [p for p in model.parameters() if not any(p is m for m in mu)]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in rest if p.ndim > 1], "weight_decay": recipe.weight_decay, "rate": 1.0},
        {"params": [p for p in rest if p.ndim <= 1], "weight_decay": 0.0, "rate": 1.0},
        {"params": mu, "weight_decay": 0.0, "rate": recipe.mu_rate},
    ]
    groups = [group for group in groups if group["params"]]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.99), fused=True)
    for group in groups:
        group["momentum"] = 0.0 if group["params"] is mu else 0.9
    return torch.optim.SGD(groups, lr=recipe.learning_rate, fused=True)


def rate_factor(schedule: str, done: float) -> float:
    """The learning rate over its peak when a share `done` of the training is over.

    one-cycle: up in a line over the first 15 %, then down along a cosine. steps: the paper's, x 0.1 after
    150, 250 and 350 of 450 epochs.
    """
    if schedule == "steps":
        return float(0.1 ** sum(done >= epoch / 450 for epoch in (150, 250, 350)))
    warm_up = 0.15
    if done < warm_up:
        return max(done / warm_up, 1e-3)
    return max(0.5 * (1 + math.cos(math.pi * (done - warm_up) / (1 - warm_up))), 1e-3)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group["rate"]
