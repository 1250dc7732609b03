"""Batches of row numbers: shuffled by seed and epoch, sharded by rank, resumable at a position."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Batches:
    """The batches of an epoch over given rows, as this rank sees them.

    batch_size is the global one; each of n_ranks processes takes every n_ranks-th row of a batch, so that
    their union is the same whatever their number. The last, short batch is kept unless drop_last; in it
    some ranks may come away empty.
    """

    rows: NDArray[np.int64]
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

    def epoch(self, epoch: int, start: int = 0) -> Iterator[NDArray[np.int64]]:
        """Row numbers of each batch from number `start` on; the same for the same seed and epoch."""
        rows = self.rows
        if self.shuffle:
            rows = rows[np.random.default_rng([self.seed, epoch]).permutation(len(rows))]
        for number in range(start, len(self)):
            batch = rows[number * self.batch_size : (number + 1) * self.batch_size]
            yield batch[self.rank :: self.n_ranks]
