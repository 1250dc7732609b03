"""What a model returns for a batch: one type from the network to the page."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from torch import Tensor

from ibinn._types import Floats

T = TypeVar("T", Tensor, Floats)


@dataclasses.dataclass(frozen=True)
class Output(Generic[T]):
    """A model's output for N inputs, as tensors inside the network and as arrays outside of it.

    Attributes
    ----------
    log_q_y : (N, K)
        log q(y|x), in nats.
    energy : (N,)
        -logsumexp of the logits.
    log_q_x : (N,), optional
        log q(x), in nats. None without a density.
    sq_distance : (N,), optional
        |z - mu|^2 to the mean of the most probable class. None without a density.
    z : (N, D), optional
        The latent code. None without a flow, and where it was not asked for.
    code_length : (N,), optional
        Length of a lossless code of the image, in nats. None for rows, and inside the network.
    scores, p_values : dict of (N,)
        OoD scores (higher = stranger) and their conformal p-values, by score; filled in by `judge`.
    """

    log_q_y: T
    energy: T
    log_q_x: T | None = None
    sq_distance: T | None = None
    z: T | None = None
    code_length: T | None = None
    scores: Mapping[str, T] = dataclasses.field(default_factory=dict)
    p_values: Mapping[str, T] = dataclasses.field(default_factory=dict)


TENSORS = ("log_q_y", "energy", "log_q_x", "sq_distance", "z")


def to_arrays(output: Output[Tensor], with_z: bool = False) -> Output[Floats]:
    """The tensors of an output as float64 arrays; z, which is large, only where it is asked for."""
    names = TENSORS if with_z else TENSORS[:-1]
    values = {name: getattr(output, name) for name in names}
    arrays: dict[str, Any] = {k: v.cpu().double().numpy() for k, v in values.items() if v is not None}
    return Output(**arrays)


def concatenated(parts: Sequence[Output[Floats]]) -> Output[Floats]:
    """Outputs for batches as the output for all of them."""
    joined: dict[str, Any] = {}
    for name in TENSORS:
        values = [getattr(part, name) for part in parts]
        joined[name] = None if values[0] is None else np.concatenate(values)
    return Output(**joined)
