"""Sizes and recipes: the networks, and how each is trained. docs/recipes.md gives the reasons."""

import math
from dataclasses import asdict, fields, replace
from typing import Any

import torch
from torch import nn

from ibinn.config import (
    ConfigError,
    Method,
    Network,
    Precision,
    Priors,
    Recipe,
    RunConfig,
    Size,
    has_ramp,
    key_hint,
    parse_value,
)
from ibinn.data.augment import PAPER_AUGMENTATION
from ibinn.data.dataset import Dataset
from ibinn.mixture import GaussianMixture
from ibinn.models.architectures import LARGEST_ROTATION, PAPER_NETWORK, n_halvings, summary_capacity
from ibinn.run import FORMAT
from ibinn.training.muon import Muon

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
    "small": replace(SMALL, summary=(32, 64, 128)),
    "base": replace(
        SMALL,
        blocks=(2, 4, 4),
        widths=(32, 96, 128),
        dropouts=(0.0, 0.0, 0.0),
        dense_width=128,
        summary=(32, 64, 192, 256),
    ),
    "paper": PAPER_NETWORK,
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
WITH_SUMMARY = replace(OURS, optimizer="muon", mu_rate=0.03, gamma_ramp=0.8)
# gamma_ramp is the share of the training over which gamma rises to its value (Loop.gamma_share).
RECIPES: dict[Size, Recipe] = {
    "tiny": replace(OURS, epochs=40, batch_size=64, ema=0.98),
    "small": WITH_SUMMARY,
    "base": replace(
        WITH_SUMMARY,
        epochs=16,
        learning_rate=1e-3,
        smoothing=0.02,
        normalise="whiten",
        flip=True,
        crop=2,
    ),
    "paper": replace(
        OURS,
        epochs=450,
        optimizer="sgd",
        learning_rate=0.07,
        schedule="steps",
        clip=8.0,
        ema=0.0,
        patience=0,
        normalise="standard",
        noise="gaussian",
        sigma=1e-3,
        **asdict(PAPER_AUGMENTATION),
    ),
}
# Of the method `rival`, in place of the size's: a network and a recipe for classification alone.
RIVAL_NETWORK = replace(
    SMALL, blocks=(0, 1, 1, 1), widths=(64, 128, 256, 512), dropouts=(0.0, 0.0, 0.0, 0.0), dense_blocks=0
)
RIVAL_RECIPE = replace(
    OURS,
    epochs=16,
    optimizer="muon",
    learning_rate=1e-3,
    weight_decay=0.05,
    smoothing=0.1,
    normalise="standard",
    flip=True,
)
ORTHOGONAL_RATE = 4.0  # of Muon's orthogonal updates, relative to the other weights
MIN_STEPS = 1000  # of a run, except the paper's: small data sets get more epochs


def default_size(dataset: Dataset) -> Size:
    """tiny for tables and images up to 16 x 16, small for grey images, base for colour images."""
    if not dataset.is_images or max(dataset.shape[:2]) <= 16:
        return "tiny"
    return "small" if dataset.shape[2] == 1 else "base"


def configure(
    dataset: Dataset,
    n_train: int,
    size: Size | None = None,
    *,
    method: Method,
    gamma: float,
    seed: int,
    priors: Priors | tuple[float, ...],
    precision: Precision,
    target: str | None = None,
) -> RunConfig:
    """Choose the configuration for a data set: the network and recipe of a size, adapted to the data.

    Small data sets get more epochs and smaller batches. Tables get a network of dense blocks. The ramp of gamma
    is kept only for images, and for methods whose gamma can rise.

    Parameters
    ----------
    dataset : Dataset
        The data.
    n_train : int
        Number of training examples.
    size : {"tiny", "small", "base", "paper"}, optional
        Size of the network. By default, ``default_size(dataset)``.
    method : str
        "ibinn", or a method that the paper compares it with.
    gamma : float
        Weight of classification against density.
    seed : int
        Seed of the split, the initial weights and the training.
    priors : {"data", "uniform", "learned"} or tuple of float
        Class weights p(y).
    precision : {"float32", "bf16"}
        Number format of the network's layers during training.
    target : str, optional
        Column of a table that holds the classes.

    Returns
    -------
    RunConfig
        The configuration; change single settings with `override`.

    Examples
    --------
    >>> from ibinn.data.known import load
    >>> from ibinn.training.recipes import configure, override
    >>> digits = load("digits")
    >>> config = configure(digits, 1400, method="ibinn", gamma=1.0, seed=0, priors="data", precision="float32")
    >>> config.size, config.recipe.epochs, config.network.blocks
    ('tiny', 48, (4, 4))
    >>> override(config, ("recipe.epochs=5",)).recipe.epochs
    5
    """
    size = size or default_size(dataset)
    network, recipe = (
        (RIVAL_NETWORK, RIVAL_RECIPE) if method == "rival" else (NETWORKS[size], RECIPES[size])
    )
    if not dataset.is_images:
        if size == "paper":
            raise ConfigError(
                "the network of the paper is for images; for a table use --size tiny, small or base"
            )
        network = replace(network, blocks=(), widths=(), dropouts=(), dense_blocks=8)
        few = dataset.shape[0] <= LARGEST_ROTATION
        recipe = replace(recipe, flip=False, crop=0, normalise="whiten" if few else "standard")
    network = fit_summary(network, dataset)
    if not network.summary and method != "rival" and size != "paper":
        recipe = replace(recipe, optimizer=OURS.optimizer, mu_rate=OURS.mu_rate)
    if dataset.is_images and method == "rival":
        side = min(dataset.shape[:2])
        recipe = replace(recipe, crop=side // 8, cutout=side // 4)
    if not dataset.is_images or not has_ramp(method, gamma):
        recipe = replace(recipe, gamma_ramp=0.0)
    batch_size = max(2, min(recipe.batch_size, n_train // 8))
    if size != "paper":
        epochs = max(recipe.epochs, math.ceil(MIN_STEPS / max(1, n_train // batch_size)))
        recipe = replace(recipe, epochs=epochs, patience=max(recipe.patience, epochs // 4))
    recipe = replace(recipe, batch_size=batch_size)
    return RunConfig(
        format=FORMAT,
        data=dataset.name,
        method=method,
        gamma=gamma,
        size=size,
        seed=seed,
        priors=priors,
        precision=precision,
        network=network,
        recipe=recipe,
        target=target,
    )


def fit_summary(network: Network, dataset: Dataset) -> Network:
    """Let the summary shift as many values as there are classes, as far as the image has room for them.

    Small images get fewer resolutions in its residual network. Tables and the smallest images have no summary.
    """
    if not dataset.is_images or not network.summary:
        return replace(network, summary=())
    height, width, n_channels = dataset.shape
    multiple = 2 ** n_halvings(network, n_channels)
    height, width = (
        math.ceil(side / multiple) * multiple for side in (height, width)
    )  # as they are padded
    n_summary = min(len(dataset.class_names), summary_capacity((n_channels, height, width)))
    n_widths = min(height, width).bit_length() - 1  # the last resolution has at least 2 x 2 pixels
    return replace(network, summary=network.summary[:n_widths], n_summary=n_summary)


def override(config: RunConfig, settings: tuple[str, ...]) -> RunConfig:
    """Change settings of a configuration.

    Parameters
    ----------
    config : RunConfig
        The configuration; it is not modified.
    settings : tuple of str
        Settings such as "recipe.learning_rate=0.01" or "network.blocks=[4, 4]", with values in TOML.

    Returns
    -------
    RunConfig
        The new configuration.
    """
    values: dict[str, dict[str, Any]] = {"network": {}, "recipe": {}}
    for setting in settings:
        path, equals, text = setting.partition("=")
        section, _, key = path.strip().partition(".")
        if not equals or section not in values:
            raise ConfigError(
                f"{setting!r} is not a setting; write recipe.KEY=VALUE or network.KEY=VALUE, as in "
                f"recipe.learning_rate=0.001"
            )
        part = getattr(config, section)
        known = [field.name for field in fields(part)]
        if key not in known:
            raise ConfigError(f"{section} has no setting {key!r}; {key_hint(key, known)}")
        values[section][key] = parse_value(type(part), key, text)
    # All at once: settings that depend on each other may change together.
    return replace(
        config,
        network=replace(config.network, **values["network"]),
        recipe=replace(config.recipe, **values["recipe"]),
    )


def make_optimizer(model: nn.Module, recipe: Recipe, precision: Precision) -> torch.optim.Optimizer:
    """Weights with decay; scales, shifts and biases without; the means with a rate of their own.

    With Muon, convolutions followed by a batch-norm take orthogonal updates: those without bias.
    """
    mixtures = [module for module in model.modules() if isinstance(module, GaussianMixture)]
    mu = [m.mu for m in mixtures if isinstance(m.mu, nn.Parameter)]
    scale_free = [
        m.weight
        for m in model.modules()
        if isinstance(m, nn.Conv2d) and m.bias is None and recipe.optimizer == "muon"
    ]
    apart = {id(p) for p in (*mu, *scale_free)}
    rest = [p for p in model.parameters() if id(p) not in apart]
    decay = recipe.weight_decay
    groups: list[dict[str, Any]] = [
        {"params": [p for p in rest if p.ndim > 1], "weight_decay": decay, "rate": 1.0},
        {"params": [p for p in rest if p.ndim <= 1], "weight_decay": 0.0, "rate": 1.0},
        {"params": mu, "weight_decay": 0.0, "rate": recipe.mu_rate},
    ]
    for group in groups:
        group["orthogonal"] = False
    groups.append(
        {"params": scale_free, "weight_decay": decay, "rate": ORTHOGONAL_RATE, "orthogonal": True}
    )
    groups = [group for group in groups if group["params"]]
    settings: dict[str, Any] = {"lr": recipe.learning_rate, "betas": (0.9, 0.99), "fused": True}
    if recipe.optimizer == "muon":
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        return Muon(groups, dtype=dtype, **settings)
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, **settings)
    for group in groups:
        group["momentum"] = 0.0 if group["params"] is mu else 0.9
    return torch.optim.SGD(groups, lr=recipe.learning_rate, fused=True)


def rate_factor(schedule: str, done: float) -> float:
    """The learning rate relative to its peak when a share `done` of the training is over.

    "one-cycle" rises linearly over the first 15 %, then falls along a cosine. "steps" is the paper's: times 0.1
    after 150, 250 and 350 of 450 epochs.
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
