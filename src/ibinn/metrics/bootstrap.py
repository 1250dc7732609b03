"""How far a metric would move with another test set of the same size: percentile bootstrap over inputs."""

from collections.abc import Callable, Iterator

import numpy as np

from ibinn._types import Floats
from ibinn.metrics.roc import Ranks

RESAMPLES = 500


def resamples(n: int, seed: int, n_resamples: int = RESAMPLES) -> Iterator[Floats]:
    """How often each of n inputs occurs in a test set drawn from them with replacement, (n,), from a seed."""
    rng = np.random.default_rng(seed)
    for _ in range(n_resamples):
        yield np.bincount(rng.integers(n, size=n), minlength=n).astype(np.float64)


def resampled_sums(values: Floats, seed: int, n_resamples: int = RESAMPLES) -> Floats:
    """Sums of values (N, M) over the inputs of each resample, (n_resamples, M)."""
    return np.stack([weights @ values for weights in resamples(len(values), seed, n_resamples)])


def resampled_ranks(
    ranks: Ranks, of: Callable[..., float], seeds: tuple[int, int], n_resamples: int = RESAMPLES
) -> Floats:
    """of(counts) over resamples of inliers and of outliers, (n_resamples,).

    With the same seed for both, the i-th outlier goes with the i-th inlier, from which it was made.
    """
    inliers = resamples(len(ranks.inlier), seeds[0], n_resamples)
    outliers = resamples(len(ranks.outlier), seeds[1], n_resamples)
    return np.array([of(ranks.counts(*pair)) for pair in zip(inliers, outliers, strict=True)])


def interval(values: Floats, here: float | None = None) -> tuple[float, float]:
    """The central 95 % of resampled values; NaN values, of resamples that had no such number, are left out.

    With `here`, the value on the test set itself, they are moved so that their mean is there: a figure that can
    only be positive, such as a calibration error, grows by resampling alone.
    """
    kept = values[~np.isnan(values)]
    if not kept.size:
        return np.nan, np.nan
    low, high = np.quantile(kept, [0.025, 0.975])
    if here is None:
        return float(low), float(high)
    return max(0.0, float(low - kept.mean() + here)), float(high - kept.mean() + here)
