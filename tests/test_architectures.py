"""The paper's network, layer by layer, and what image_flow and dense_flow make of other inputs."""

import pytest
import torch
from helpers.cases import flow_of, perturbed
from torch import nn
from torch.testing import assert_close

from ibinn import dense_flow, image_flow, paper_flow
from ibinn.flows.coupling import AffineCoupling
from ibinn.flows.dct import DCTPool
from ibinn.flows.downsample import DownsampleCoupling, Squeeze
from ibinn.flows.mixing import ActNorm, AffineMix, Permute
from ibinn.models.architectures import default_network, without_summaries


@pytest.fixture(scope="module")
def paper():
    return paper_flow()


def of_type(flow, kind):
    return [layer for layer in flow.layers if type(layer) is kind]


def test_paper_flow_has_the_papers_blocks_in_order(paper):
    """8, down + 24, down + 24, DCT, 2 dense; each block a coupling, a mix and a scale."""
    kinds = [type(layer) for layer in paper.layers]
    conv, down = [AffineCoupling, AffineMix], [DownsampleCoupling, AffineMix]
    dense = [AffineCoupling, Permute, ActNorm]
    assert kinds == 8 * conv + 2 * (down + 24 * conv) + [DCTPool] + 2 * dense


def test_paper_flow_has_the_authors_settings(paper):
    couplings = of_type(paper, AffineCoupling)
    levels = [couplings[:8], couplings[8:32], couplings[32:56]]
    for blocks, channels, width, dropout in zip(
        levels, (3, 12, 48), (16, 32, 64), (0, 0, 0.25), strict=True
    ):
        for coupling in blocks:
            convs = [m for m in coupling.subnet if isinstance(m, nn.Conv2d)]
            assert [c.kernel_size for c in convs] == [(3, 3), (3, 3), (1, 1)]
            assert [c.in_channels for c in convs] == [channels // 2, width, width]
            assert convs[-1].out_channels == 2 * (channels - channels // 2)
            assert [m.p for m in coupling.subnet if isinstance(m, nn.Dropout2d)] == (
                [dropout] if dropout else []
            )
            assert (coupling.clamp, coupling.slope) == (0.7, 0.1)
    for coupling, channels in zip(of_type(paper, DownsampleCoupling), (3, 12), strict=True):
        convs = [m for m in coupling.subnet if isinstance(m, nn.Conv2d)]
        assert [c.stride for c in convs] == [(1, 1), (2, 2), (1, 1)]
        assert convs[-1].out_channels == 2 * 4 * (channels - channels // 2)
        assert (coupling.clamp, coupling.slope) == (0.7, 0.2)
    for coupling in couplings[56:]:
        assert [type(m) for m in coupling.subnet] == [nn.Linear, nn.ReLU, nn.Dropout, nn.Linear]
        assert (coupling.subnet[0].out_features, coupling.subnet[2].p, coupling.clamp) == (1024, 0.5, 2.0)
    for norm in of_type(paper, ActNorm):
        assert_close(norm.log_scale.exp(), torch.full_like(norm.log_scale, 0.75))


def test_only_the_very_first_block_of_the_paper_has_no_relu_in_front(paper):
    convolutional = [layer for layer in paper.layers if isinstance(layer, AffineCoupling)][:-2]
    fronts = [isinstance(coupling.subnet[0], nn.ReLU) for coupling in convolutional]
    assert fronts == [False] + [True] * 57


def test_paper_flow_starts_from_he_weights(paper):
    weight = of_type(paper, AffineCoupling)[40].subnet[4].weight
    assert_close(weight.std(), torch.tensor(2 / (9 * 64)).sqrt(), rtol=0.05, atol=0)
    weight = of_type(paper, AffineCoupling)[-1].subnet[0].weight
    assert_close(weight.std(), 0.1 * torch.tensor(2 / 1536).sqrt(), rtol=0.05, atol=0)


def test_paper_flow_has_about_as_many_parameters_as_the_authors_network(paper, capsys):
    """They count 11.2 million, with the mixture's means and the fixed rotations."""
    n_parameters = sum(p.numel() for p in paper.parameters())
    with capsys.disabled():
        print(f"\npaper_flow: {n_parameters:,} parameters")
    assert n_parameters == pytest.approx(11.2e6, rel=0.02)


def test_fixed_scales_are_an_option():
    flow = paper_flow(learn_scale=False)
    assert not any(list(norm.parameters()) for norm in of_type(flow, ActNorm))


def test_convolutional_couplings_start_as_the_identity():
    flow, x = (
        flow_of((3, 8, 8), blocks=(2, 2), widths=(8, 8), dropouts=(0.0, 0.0)),
        torch.randn(2, 3, 8, 8),
    )
    coupling = flow.layers[0]
    assert torch.equal(coupling(x)[0], x)


def test_blocks_have_different_mixes_and_seeds_give_different_networks():
    rotations = [
        layer.rotation for layer in dense_flow(5, blocks=3, seed=1).layers if type(layer) is AffineMix
    ]
    rotations += [
        layer.rotation for layer in dense_flow(5, blocks=3, seed=2).layers if type(layer) is AffineMix
    ]
    for i, a in enumerate(rotations):
        for b in rotations[i + 1 :]:
            assert not torch.equal(a, b)


def test_grey_images_are_squeezed_first():
    flow = flow_of((1, 8, 8), blocks=(1, 1), widths=(4, 4), dropouts=(0.0, 0.0))
    assert isinstance(flow.layers[0], Squeeze)
    assert flow.eval()(torch.randn(2, 1, 8, 8))[0].shape == (2, 64)


@pytest.mark.parametrize(
    ("shape", "resolutions"),
    [((1, 28, 28), 2), ((1, 4, 4), 2), ((1, 8, 8), 3), ((3, 32, 32), 3), ((3, 7, 5), 1), ((3, 2, 6), 2)],
    ids=str,
)
def test_image_flow_has_as_many_resolutions_as_the_sides_allow(shape, resolutions):
    flow = image_flow(shape).eval()
    assert 1 + len(of_type(flow, DownsampleCoupling)) == resolutions == len(default_network(shape).blocks)
    x = torch.randn(2, *shape)
    assert_close(flow.inverse(flow(x)[0]), x)


def test_each_resolution_has_its_own_width_and_dropout():
    flow = flow_of((3, 8, 8), blocks=(2, 1), widths=(6, 5), dropouts=(0.5, 0.25))
    subnets = [layer.subnet for layer in flow.layers if isinstance(layer, AffineCoupling)][:-1]
    assert [subnet[-1].in_channels for subnet in subnets] == [6, 6, 5, 5]
    assert [subnet[-2].p for subnet in subnets] == [0.5, 0.5, 0.25, 0.25]


def test_long_vectors_are_permuted_and_short_ones_rotated():
    assert of_type(dense_flow(512, blocks=1), AffineMix)
    assert of_type(dense_flow(513, blocks=1), Permute)


def test_without_its_summary_a_flow_differs_in_the_values_that_it_shifts_alone():
    flow = perturbed(
        flow_of(
            (3, 8, 8), blocks=(1, 1), widths=6, dense_width=8, subnet="light", summary=(4, 6), n_summary=3
        )
    )
    local, x = without_summaries(flow), torch.randn(5, 3, 8, 8)
    z, _ = flow(x)
    z_local, log_det = local(x)
    differs = ((z - z_local).abs() > 1e-9).any(0)
    first = 11 * 16  # of 12 channels of 4 x 4 values, the last one is set aside
    assert differs[first : first + 3].all()
    assert differs.sum() == 3
    torch.testing.assert_close(local.inverse(z_local), x)
    jacobian = torch.func.jacrev(lambda v: local(v[None])[0][0])(x[0]).reshape(192, 192)
    torch.testing.assert_close(log_det[0], torch.linalg.slogdet(jacobian).logabsdet)
    torch.testing.assert_close(flow(x)[0], z)  # and leaves it alone
    assert {*map(id, local.parameters())} < {*map(id, flow.parameters())}
    plain = flow_of((3, 8, 8))
    assert without_summaries(plain) is plain
