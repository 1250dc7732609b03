"""The cosine transform against SciPy's."""

import numpy as np
import scipy.fft
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from ibinn.flows.dct import DCTPool, dct_matrix

sides = st.integers(1, 40)


@given(height=sides, width=sides, channels=st.integers(1, 4))
def test_agrees_with_scipy_for_any_sides(height, width, channels):
    x = torch.randn(2, channels, height, width)
    z, log_det = DCTPool((channels, height, width))(x)
    expected = scipy.fft.dctn(x.numpy(), type=2, norm="ortho", axes=(2, 3)).reshape(2, -1)
    np.testing.assert_allclose(z.numpy(), expected, atol=1e-10)
    assert torch.equal(log_det, torch.zeros(2))


@given(n=st.integers(1, 128))
def test_is_orthonormal(n):
    assert_close(dct_matrix(n) @ dct_matrix(n).T, torch.eye(n), atol=1e-12, rtol=0)


def test_first_coefficient_is_the_mean():
    x = torch.randn(3, 2, 4, 6)
    z = DCTPool((2, 4, 6))(x)[0].view(3, 2, 4, 6)
    assert_close(z[:, :, 0, 0], x.mean((2, 3)) * 24**0.5)
