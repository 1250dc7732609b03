"""Confidence intervals of metrics over the choice of the test set: percentile bootstrap over inputs."""

from collections.abc import Callable, Iterator

import numpy as np

from ibinn._types import Floats
from ibinn.metrics.roc import Ranks

RESAMPLES = 500


def resamples(n: int, seed: int, n_resamples: int = RESAMPLES) -> Iterator[Floats]:
    """Number of times that each of n inputs occurs in a resample with replacement, (n,) each."""
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

    With the same seed for both, the i-th outlier is resampled together with the i-th inlier, from which it was
    made.
    """
    inliers = resamples(len(ranks.inlier), seeds[0], n_resamples)
    outliers = resamples(len(ranks.outlier), seeds[1], n_resamples)
    return np.array([of(ranks.counts(*pair)) for pair in zip(inliers, outliers, strict=True)])


def bootstrap_interval(values: Floats, centre: float | None = None) -> tuple[float, float]:
    """The central 95 % of resampled values, without NaN.

    With `centre`, the value on the test set itself, they are shifted so that it is their mean. This is for
    errors that are never negative, such as calibration errors, which grow by resampling.

    Examples
    --------
    >>> import numpy as np
    >>> correct = (np.arange(100) < 80).astype(float)
    >>> means = resampled_sums(correct[:, None], seed=0)[:, 0] / 100
    >>> low, high = bootstrap_interval(means)
    >>> 0.7 < low < 0.8 < high < 0.9
    True
    """
    values = values[~np.isnan(values)]
    if not values.size:
        return np.nan, np.nan
    low, high = np.quantile(values, [0.025, 0.975])
    if centre is None:
        return float(low), float(high)
    return max(0.0, float(low - values.mean() + centre)), float(high - values.mean() + centre)
