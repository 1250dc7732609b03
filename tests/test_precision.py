"""Under autocast the subnets run in half precision; the way of x, log-dets and mixture do not."""

import pytest
import torch
from helpers.cases import conv, dense, flow_of, perturbed
from torch.testing import assert_close

from ibinn import GaussianMixture, GenerativeClassifier, dense_flow
from ibinn.flows.coupling import AffineCoupling
from ibinn.flows.dct import DCTPool
from ibinn.flows.mixing import AffineMix
from ibinn.flows.precision import full_precision

half = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])


def models():
    flow = flow_of((3, 8, 8), blocks=(2, 2), widths=(8, 8), dropouts=(0.0, 0.0), dense_width=16)
    yield GenerativeClassifier(perturbed(flow), GaussianMixture(3, 192)).float(), (3, 8, 8)
    yield GenerativeClassifier(perturbed(dense_flow(6, blocks=4)), GaussianMixture(3, 6)).float(), (6,)


@half
def test_densities_come_out_in_float32_and_near_those_without_autocast(dtype):
    for model, shape in models():
        x = torch.randn(16, *shape, dtype=torch.float32)
        expected = model(x)
        with torch.autocast("cpu", dtype=dtype):
            z, log_det = model.encode(x)
            answers = model(x)
            back = model.decode(z)
        assert {t.dtype for t in (z, log_det, back, *answers)} == {torch.float32}
        assert_close(answers[1], expected[1], rtol=0.01, atol=0.05)
        assert_close(back, x, atol=0.05, rtol=0)
        assert not torch.equal(answers[1], expected[1]), "the subnets did not run in half precision"


@half
@pytest.mark.parametrize("shape", [(6, 5, 5), (6,)], ids=["image", "vector"])
def test_a_coupling_sums_its_log_det_in_float32(shape, dtype):
    subnet = conv if len(shape) == 3 else dense
    coupling = perturbed(AffineCoupling(6, subnet), amount=0.5).float()
    x = torch.randn(4, *shape, dtype=torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        z, log_det = coupling(x)
        raw = coupling.subnet(x[:, :3]).chunk(2, dim=1)[0]
    assert raw.dtype == dtype
    assert (z.dtype, log_det.dtype) == (torch.float32, torch.float32)
    expected = (0.7 * torch.tanh(0.1 * raw.double())).flatten(1).sum(1)
    assert_close(log_det.double(), expected, rtol=1e-5, atol=1e-5)


@half
@pytest.mark.parametrize("method", ["log_q_z", "log_q_y_given_z", "log_q_z_given_y", "scores"])
def test_the_mixture_is_the_same_with_and_without_autocast(method, dtype):
    mixture = GaussianMixture(3, 50).float()
    z = 30 * torch.randn(8, 50, dtype=torch.float32)
    expected = getattr(mixture, method)(z)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(getattr(mixture, method)(z), expected)
        assert torch.equal(
            getattr(mixture, method)(z.bfloat16()), getattr(mixture, method)(z.bfloat16().float())
        )


@half
@pytest.mark.parametrize(
    "layer", [AffineMix(6, learned=False), DCTPool((6, 5, 7))], ids=["rotation", "cosine transform"]
)
def test_orthogonal_layers_are_exact_under_autocast(layer, dtype):
    layer, x = layer.float(), torch.randn(3, 6, 5, 7, dtype=torch.float32)
    expected = layer(x)[0]
    with torch.autocast("cpu", dtype=dtype):
        z = layer(x)[0]
        assert torch.equal(z, expected)
        assert_close(layer.inverse(z), x)


def test_float64_is_kept():
    x = torch.randn(2)
    assert full_precision(x) is x
    assert full_precision(x.half()).dtype == torch.float32
