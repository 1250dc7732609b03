"""Bits per dimension, from log-densities in nats.

The density is that of the image in level units, where neighbouring pixel values differ by 1, and includes the
log-det of every preprocessing step. Values are per sample; the caller takes the mean.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray


def bits_per_dim(log_p: ArrayLike, n_dims: int) -> NDArray[np.float64]:
    """Bits per dimension -log2 p / D.

    Evaluated at w + u with u uniform in [0, 1)^D, the mean over u is an upper bound on -log2 P(w) / D, where
    P(w) is the integral of p over the cell of w (Theis et al. 2016).

    Parameters
    ----------
    log_p : array
        Log-density in nats and level units, shape (N,).
    n_dims : int
        Values per sample, D.

    Returns
    -------
    array
        Bits per dimension, shape (N,).

    Examples
    --------
    >>> import math
    >>> bits_per_dim([-64 * math.log(256)], n_dims=64)  # uniform over 256 levels
    array([8.])
    """
    if n_dims < 1:
        raise ValueError(f"n_dims is {n_dims} but must be the number of values per sample, 1 or more")
    return -np.asarray(log_p, dtype=np.float64) / (n_dims * math.log(2))


def bits_per_dim_plugin(log_p: ArrayLike, n_dims: int, sigma_levels: float) -> NDArray[np.float64]:
    """-log2 p(w) / D - 1/2 log2(2 pi sigma^2), (N,), for a density trained with noise N(0, sigma^2).

    log_p (N,) is in nats, at w without noise; sigma is in levels. The value is -log2 of p(w) / r(0) per
    dimension, where r is the density of the noise. It is a plug-in value and no bound, because p(w) / r(0) need
    not sum to one over w.
    """
    if not 0 < sigma_levels < math.inf:
        raise ValueError(
            f"sigma_levels is {sigma_levels} but must be positive and finite; without noise use bits_per_dim"
        )
    return bits_per_dim(log_p, n_dims) - 0.5 * math.log2(2 * math.pi * sigma_levels**2)


def paper_convention_offset(std: ArrayLike) -> float:
    """-log2(2 pi) - mean_c log2(std_c): the difference of the paper's convention from `bits_per_dim`.

    std is that of the normalisation (x - mean) / std in pixel units, one number or one per channel. The exact
    value is -log2 p / D = 8 + mean log2 std + 1/2 log2(2 pi) + (|z|^2 / 2 - log|det J|) / (D ln 2) for z ~ N(0,
    I), where J is the Jacobian of the flow alone, and similarly for a mixture. The authors' code has -1/2
    log2(2 pi) as the third term and lacks the second: -2.6515 + 1.9988 = -0.6527 on CIFAR. Their printed values
    can only include the 8 (log2 of 256) and no term for Gaussian noise, so the offset applies to
    `bits_per_dim`, not to the plug-in value.
    """
    values = np.asarray(std, dtype=np.float64)
    if values.size == 0 or not np.all((values > 0) & np.isfinite(values)):
        raise ValueError(f"std is {values.tolist()} but must be positive and finite, one value per channel")
    return -math.log2(2 * math.pi) - float(np.log2(values).mean())
