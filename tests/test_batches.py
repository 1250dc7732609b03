"""Batches: the shards of all processes form the batch, and an epoch resumes at any position."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibinn.data.batches import Batches


@given(
    n=st.integers(1, 200), batch_size=st.integers(3, 50), n_ranks=st.integers(1, 3), epoch=st.integers(0, 5)
)
def test_the_union_of_the_shards_is_the_batch_of_one_process(n, batch_size, n_ranks, epoch):
    rows = np.arange(n) + 1000
    whole = list(Batches(rows, batch_size, seed=3).epoch(epoch))
    shards = [
        list(Batches(rows, batch_size, seed=3, rank=r, n_ranks=n_ranks).epoch(epoch))
        for r in range(n_ranks)
    ]
    assert np.array_equal(np.sort(np.concatenate(whole)), rows)
    for number, batch in enumerate(whole):
        union = np.concatenate([shard[number] for shard in shards])
        assert np.array_equal(np.sort(union), np.sort(batch))


@given(
    n=st.integers(1, 200), batch_size=st.integers(1, 50), start=st.integers(0, 10), drop_last=st.booleans()
)
def test_batches_go_on_where_they_stopped(n, batch_size, start, drop_last):
    batches = Batches(np.arange(n), batch_size, drop_last=drop_last)
    assert len(list(batches.epoch(0))) == len(batches)
    rest, whole = list(batches.epoch(0, start)), list(batches.epoch(0))[start:]
    assert len(rest) == len(whole)
    assert all(np.array_equal(a, b) for a, b in zip(rest, whole, strict=True))


def test_epochs_seeds_and_order():
    rows = np.arange(100)
    first = next(Batches(rows, 100, seed=0).epoch(0))
    assert not np.array_equal(first, next(Batches(rows, 100, seed=0).epoch(1)))
    assert not np.array_equal(first, next(Batches(rows, 100, seed=1).epoch(0)))
    assert np.array_equal(next(Batches(rows, 100, shuffle=False).epoch(5)), rows)
    with pytest.raises(ValueError, match="every process needs"):
        Batches(rows, 1, n_ranks=2)
