"""The fast paths: values and gradients of the plain formulas, also twice differentiated and under vmap."""

import os
import subprocess
import sys

import pytest
import torch
from helpers.cases import flow_of, perturbed
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F
from torch.testing import assert_close

from ibinn.flows.coupling import AffineCoupling
from ibinn.flows.fast import fused
from ibinn.flows.mixing import AffineMix, mix_channels
from ibinn.flows.subnets import MIN_FOLD_BATCH, Subnet, conv_subnet, dense_subnet
from ibinn.mixture import GaussianMixture
from ibinn.models.classifier import GenerativeClassifier

CLAMP, SLOPE = 0.7, 0.3
SHAPES = [(3, 2), (2, 3, 4, 2)]  # of x2: vectors and images


@pytest.fixture(autouse=True)
def however_small(monkeypatch):
    """Small tensors take the fast paths too."""
    monkeypatch.setattr(fused, "FEW", 0)


@pytest.fixture
def plain(monkeypatch):
    """A function that runs another one with every fast path left out."""

    def run(function, *arguments):
        with monkeypatch.context() as patched:
            patched.setattr(fused, "PLAIN", True)
            return function(*arguments)

    return run


def inputs(shape):
    x2 = torch.randn(shape, requires_grad=True)
    out = (3 * torch.randn(shape[0], 2 * shape[1], *shape[2:])).requires_grad_()
    return x2, out


def textbook(x2, out):
    raw, t = out[:, : x2.shape[1]], out[:, x2.shape[1] :]
    log_s = CLAMP * torch.tanh(SLOPE * raw)
    return x2 * torch.exp(log_s) + t, log_s.flatten(1).sum(1)


@pytest.mark.parametrize("shape", SHAPES, ids=["vectors", "images"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_scale_and_shift_is_the_formula_of_the_coupling(shape, memory_format):
    x2, out = inputs(shape)
    if len(shape) == 4:
        x2, out = (v.to(memory_format=memory_format) for v in (x2, out))
    expected, found = textbook(x2, out), fused.scale_and_shift(x2, out, CLAMP, SLOPE)
    weights = [torch.randn_like(v) for v in expected]
    for a, b in zip(expected, found, strict=True):
        assert_close(b, a)
    for a, b in zip(*(torch.autograd.grad(v, [x2, out], weights) for v in (expected, found)), strict=True):
        assert_close(b, a)


@pytest.mark.skipif(fused.PLAIN, reason="the fast paths are left out")
def test_small_tensors_are_left_to_autograd_and_large_ones_are_not(monkeypatch):
    x2, out = inputs((4, 6))
    for few, name in ((24, "ScaleAndShiftBackward"), (25, "AddBackward0")):
        monkeypatch.setattr(fused, "FEW", few)
        assert fused.scale_and_shift(x2, out, CLAMP, SLOPE)[0].grad_fn.name() == name


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_without_gradients_the_values_are_the_same(memory_format):
    x2, out = (v.to(memory_format=memory_format) for v in inputs((2, 3, 4, 2)))
    layer, expected = perturbed(AffineMix(3)), fused.scale_and_shift(x2, out, CLAMP, SLOPE)
    mixed = layer(x2)
    with torch.no_grad():
        found, again = fused.scale_and_shift(x2, out, CLAMP, SLOPE), layer(x2)
    for a, b in zip((*expected, *mixed), (*found, *again), strict=True):
        assert torch.equal(a, b)
        assert not b.requires_grad


@pytest.mark.parametrize("shape", SHAPES, ids=["vectors", "images"])
def test_scale_and_shift_can_be_differentiated_twice(shape):
    def of_both(x2, out):
        return fused.scale_and_shift(x2, out, CLAMP, SLOPE)

    assert gradcheck(of_both, inputs(shape))
    assert gradgradcheck(of_both, inputs(shape))
    for number in (0, 1):  # where only one of the two outputs is used
        assert gradgradcheck(lambda *v, n=number: of_both(*v)[n], inputs(shape))


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4, 2), (2, 3, 3, 3), (2, 5, 2, 2)])
def test_the_mix_can_be_differentiated_twice(shape):
    channels = shape[1]
    rotation = AffineMix(channels).rotation

    def mixed(x, log_scale, shift):
        return fused.Mix.apply(x, rotation, log_scale, shift, mix_channels)

    values = [torch.randn(s, requires_grad=True) for s in (shape, (channels,), (channels,))]
    assert gradcheck(mixed, values)
    assert gradgradcheck(mixed, values)


def test_the_mix_is_a_scaled_rotation_of_every_pixel():
    layer = perturbed(AffineMix(3, seed=4))
    x = torch.randn(2, 3, 4, 6)
    expected = torch.einsum("ij,bjhw->bihw", layer.rotation, x) * layer.log_scale.exp()[:, None, None]
    assert_close(layer(x)[0], expected + layer.shift[:, None, None])


def test_couplings_and_mixes_work_under_vmap():
    coupling = perturbed(AffineCoupling(4, lambda i, o: dense_subnet(i, o, 6)))
    for layer in (coupling, perturbed(AffineMix(4))):
        x = torch.randn(5, 3, 4)
        for a, b in zip(
            torch.func.vmap(layer)(x),
            [torch.stack(v) for v in zip(*map(layer, x), strict=True)],
            strict=True,
        ):
            assert_close(a, b)
        jacobian = torch.func.jacrev(lambda v, f=layer: f(v[None])[0][0])(x[0, 0])
        assert_close(torch.linalg.slogdet(jacobian)[1], layer(x[0, :1])[1][0])


def used(network):
    """Batch-norms with statistics and weights of their own, as after training; evaluation mode."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return perturbed(network, amount=0.1).eval()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_a_folded_batch_norm_gives_what_an_unfolded_one_gives(stride, bias):
    net = used(conv_subnet(3, 4, 8, stride=stride))
    if bias:
        convs = [m for m in net if isinstance(m, nn.Conv2d)]
        convs[0].bias = nn.Parameter(torch.randn(8))
    x = torch.randn(MIN_FOLD_BATCH, 3, 6, 6)
    expected = nn.Sequential(*net)(x)
    with torch.no_grad():
        assert_close(net(x), expected)
        assert torch.equal(net(x), expected) == fused.PLAIN  # it did go another way
        assert torch.equal(net(x[1:]), expected[1:])
    assert torch.equal(net(x), expected)  # with gradients nothing is folded


def test_batch_norm_in_training_or_without_statistics_is_not_folded():
    x = torch.randn(MIN_FOLD_BATCH, 3, 6, 6)
    for norm in (nn.BatchNorm2d(4).train(), nn.BatchNorm2d(4, track_running_stats=False)):
        conv = nn.Conv2d(3, 4, 3)
        net = Subnet(conv, norm, ndim=4)
        norm.train(norm.track_running_stats)
        with torch.no_grad():
            assert_close(net(x), F.batch_norm(conv(x), None, None, training=True))


UNUSUAL = {
    "padding": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(4)),
    "no weights": (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)),
    "dilation and groups": (nn.Conv2d(3, 6, 3, dilation=2, groups=3), nn.BatchNorm2d(6)),
}


@pytest.mark.parametrize("pair", UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_convolutions_and_batch_norms_keep_their_meaning(pair):
    net, x = used(Subnet(*pair, nn.ReLU(), ndim=4)), torch.randn(MIN_FOLD_BATCH, 3, 6, 6)
    with torch.no_grad():
        assert_close(net(x), nn.Sequential(*net)(x))


def test_hooks_are_called():
    net, seen = used(conv_subnet(3, 4, 8)), []
    norm = next(m for m in net if isinstance(m, nn.BatchNorm2d))
    norm.register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        net(torch.randn(MIN_FOLD_BATCH, 3, 6, 6))
    assert seen == [1]


def test_answers_in_float32_are_those_of_the_plain_formulas(plain):
    """Probabilities to 1e-5, log q(x) to a relative 1e-5, samples to 1e-4."""
    torch.manual_seed(5)
    flow = flow_of((3, 16, 16), (3, 4, 4), 16, dense_blocks=1, dense_width=32, scale=0.9)
    model = GenerativeClassifier(used(flow), GaussianMixture(4, 768)).float().eval()
    x = torch.randn(16, 3, 16, 16, dtype=torch.float32)
    with torch.no_grad():
        fast, slow = model(x), plain(model, x)
        assert torch.equal(fast[1], slow[1]) == fused.PLAIN
        assert_close(fast[0].exp(), slow[0].exp(), rtol=0, atol=1e-5)
        assert_close(fast[1], slow[1], rtol=1e-5, atol=0)
        z = torch.randn(8, 768, dtype=torch.float32)
        assert_close(model.decode(z), plain(model.decode, z), rtol=1e-4, atol=1e-4)


def test_gradients_in_training_are_those_of_the_plain_formulas(plain):
    flow = perturbed(flow_of((3, 8, 8), (2, 2), 8, 0.2, dense_blocks=1, dense_width=16)).train()
    x = torch.randn(6, 3, 8, 8)

    def gradients():
        torch.manual_seed(2)  # of dropout
        z, log_det = flow(x)
        return torch.autograd.grad(
            (z.sin().flatten(1).sum(1) - log_det.square()).sum(), list(flow.parameters())
        )

    for a, b in zip(plain(gradients), gradients(), strict=True):
        assert_close(b, a, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
@pytest.mark.slow
def test_the_environment_leaves_the_fast_paths_out(value, expected):
    program = "from ibinn.flows.fast import fused; print(fused.PLAIN, fused.is_plain())"
    environment = os.environ | {"IBINN_PLAIN": value}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert ran.stdout.split() == [str(expected)] * 2, ran.stderr
