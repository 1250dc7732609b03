"""Lengths of the lossless code: they are those of a code, and of a coder that counts."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from ibinn.ood.complexity import code_lengths


def test_code_lengths_are_those_of_a_code():
    """Kraft: exp(-length) sums to 1 over all images, since every one can be decoded."""
    for shape, levels in (((2, 2, 1), 3), ((1, 3, 1), 4), ((1, 1, 3), 3), ((2, 1, 3), 2)):
        values = np.array([*itertools.product(range(levels), repeat=math.prod(shape))], dtype=np.uint8)
        assert np.exp(-code_lengths(values.reshape(-1, *shape), levels)).sum() == pytest.approx(1)


def test_code_lengths_by_a_coder_that_counts():
    """One pixel after the other, with the counts so far in its context, as a decoder would."""
    rng = np.random.default_rng(0)
    for image in rng.integers(17, size=(4, 6, 5, 1), dtype=np.uint8):
        counts, length = {}, 0.0
        w = np.pad(image[:, :, 0].astype(int), ((1, 0), (1, 0)))
        for i in range(1, 7):
            for j in range(1, 6):
                a, b, c = w[i, j - 1], w[i - 1, j], w[i - 1, j - 1]
                guess = min(a, b) if c >= max(a, b) else max(a, b) if c <= min(a, b) else a + b - c
                change = abs(a - c) + abs(b - c)
                context = sum(change >= edge for edge in (1, 1, 17 / 16, 17 / 4))
                seen = counts.setdefault(context, [])
                symbol = (w[i, j] - guess) % 17
                length -= math.log((seen.count(symbol) + 1 / 17) / (len(seen) + 1))
                seen.append(symbol)
        assert code_lengths(image[None], 17)[0] == pytest.approx(length)


def test_plain_images_have_short_codes():
    rng = np.random.default_rng(0)
    noise = rng.integers(256, size=(3, 28, 28, 3), dtype=np.uint8)
    ramp = np.broadcast_to(np.arange(0, 56, 2, dtype=np.uint8)[:, None], (1, 28, 28, 3))
    plain = code_lengths(np.concatenate([np.zeros_like(ramp), ramp]), 256)
    assert plain.max() < code_lengths(noise, 256).min() / 10
    assert code_lengths(noise[:0], 256).shape == (0,)
    big = np.random.default_rng(1).integers(256, size=(450, 4, 4, 1), dtype=np.uint8)
    assert_allclose(
        code_lengths(big, 256),
        np.concatenate([code_lengths(big[i : i + 7], 256) for i in range(0, 450, 7)]),
    )


def test_views_have_the_code_lengths_of_their_copies():
    images = np.random.default_rng(0).integers(17, size=(3, 8, 8, 1)).astype(np.uint8)
    turned = np.rot90(images, axes=(1, 2))  # with a negative stride
    assert_array_equal(code_lengths(turned, 17), code_lengths(turned.copy(), 17))
