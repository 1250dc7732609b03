"""Random numbers for a batch that may be shared out: an example gets the same ones whoever holds it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Shard(NamedTuple):
    """Numbers are drawn for all n examples of the batch; this part of it keeps those of its own, [mine]."""

    generator: torch.Generator
    n: int
    mine: slice


Source = torch.Generator | Shard


def draw(kind: Callable[..., Tensor], shape: tuple[int, ...], source: Source | None, **how: Any) -> Tensor:
    """kind(shape, ...) of torch, such as torch.rand, an entry of the first dimension for each example held."""
    if not isinstance(source, Shard):
        return kind(shape, generator=source, **how)
    return kind((source.n, *shape[1:]), generator=source.generator, **how)[source.mine]
