"""Batches of row numbers (shuffled, sharded by rank, resumable) and the random numbers of a batch's shard."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ibinn._types import Rows


@dataclass(frozen=True)
class Batches:
    """The batches of an epoch over given rows, as one process sees them.

    batch_size is the global size. Each of n_ranks processes takes every n_ranks-th row of a batch, so the union
    over all processes does not depend on their number. The last, short batch is included unless drop_last is
    set; some processes may get no rows of it.
    """

    rows: Rows
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    rank: int = 0
    n_ranks: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < self.n_ranks or not 0 <= self.rank < self.n_ranks:
            raise ValueError(
                f"batches of {self.batch_size} cannot be shared by {self.n_ranks} processes (this is number "
                f"{self.rank}); every process needs at least one example of a batch"
            )

    def __len__(self) -> int:
        whole, rest = divmod(len(self.rows), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Rows]:
        """Row numbers of each batch, beginning with batch number `start`. Deterministic in seed and epoch."""
        rows = self.rows
        if self.shuffle:
            rows = rows[np.random.default_rng([self.seed, epoch]).permutation(len(rows))]
        for number in range(start, len(self)):
            batch = rows[number * self.batch_size : (number + 1) * self.batch_size]
            yield batch[self.rank :: self.n_ranks]


class Shard(NamedTuple):
    """The examples [mine] of a batch of n, and the generator that all shards of the batch share.

    Numbers are drawn for the whole batch, so an example gets the same ones in whichever process it is.
    """

    generator: torch.Generator
    n: int
    mine: slice


Source = torch.Generator | Shard


def draw(kind: Callable[..., Tensor], shape: tuple[int, ...], source: Source | None, **how: Any) -> Tensor:
    """kind(shape, ...), such as torch.rand, where the first dimension runs over the examples of the source."""
    if not isinstance(source, Shard):
        return kind(shape, generator=source, **how)
    return kind((source.n, *shape[1:]), generator=source.generator, **how)[source.mine]
