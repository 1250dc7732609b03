"""Couplings, squeeze and orthogonal mix against FrEIA 0.2 on the same weights."""

import FrEIA.modules as fm
import pytest
import torch
from helpers.cases import conv, dense, perturbed
from torch import nn
from torch.testing import assert_close

from ibinn import Chain
from ibinn.flows.coupling import AffineCoupling
from ibinn.flows.downsample import Squeeze
from ibinn.flows.mixing import ActNorm, AffineMix, Permute


class Rescaled(nn.Module):
    """Our subnet for FrEIA, which divides all of its output by 10: shifts are multiplied by 10 first."""

    def __init__(self, subnet):
        super().__init__()
        self.subnet = subnet

    def forward(self, x):
        raw, t = self.subnet(x).chunk(2, dim=1)
        return torch.cat([raw, 10 * t], dim=1)


@pytest.mark.parametrize(
    ("dims", "subnet"),
    [((6, 5, 4), conv), ((2, 3, 3), conv), ((8,), dense)],
    ids=["image", "small", "vector"],
)
@pytest.mark.parametrize("clamp", [0.7, 2.0])
def test_coupling_block(dims, subnet, clamp):
    """FrEIA's block: coupling, then scale and shift, then the orthogonal mix."""
    coupling = AffineCoupling(dims[0], subnet, clamp=clamp)
    ours = perturbed(
        Chain(coupling, ActNorm(dims[0], scale=0.75), AffineMix(dims[0], learned=False)), amount=0.3
    )
    theirs = (
        fm.AllInOneBlock(
            [dims],
            subnet_constructor=lambda n_in, n_out: Rescaled(coupling.subnet),
            affine_clamping=clamp,
            global_affine_type="EXP",
            permute_soft=True,
        )
        .double()
        .eval()
    )
    _, norm, mix = ours.layers
    with torch.no_grad():  # FrEIA's exponential scale is exp(global_scale)
        theirs.global_scale.copy_(norm.log_scale.view_as(theirs.global_scale))
        theirs.global_offset.copy_(norm.shift.view_as(theirs.global_offset))
        theirs.w_perm.copy_(mix.rotation.view_as(theirs.w_perm))
        theirs.w_perm_inv.copy_(mix.rotation.T.reshape(theirs.w_perm_inv.shape))
    x = torch.randn(5, *dims)
    (their_z,), their_log_det = theirs([x])
    our_z, our_log_det = ours(x)
    assert_close(our_z, their_z)
    assert_close(our_log_det, their_log_det)
    assert our_log_det.abs().min() > 1e-3
    assert_close(ours.inverse(their_z), theirs([their_z], rev=True)[0][0])


def test_squeeze():
    x = torch.randn(3, 5, 6, 4)
    (their_z,), their_log_det = fm.IRevNetDownsampling([(5, 6, 4)])([x])
    our_z, our_log_det = Squeeze()(x)
    assert_close(our_z, their_z)
    assert_close(our_log_det, torch.zeros(3) + their_log_det)


def test_orthogonal_mix():
    x, mix = torch.randn(7, 6), AffineMix(6, seed=5, learned=False)
    theirs = fm.FixedLinearTransform([(6,)], M=mix.rotation)
    (their_z,), their_log_det = theirs([x])
    our_z, our_log_det = mix(x)
    assert_close(our_z, their_z)
    assert_close(our_log_det, their_log_det.expand(7))


def test_permutation():
    x, mix = torch.randn(7, 6), Permute(6, seed=5)
    (their_z,), their_log_det = fm.FixedLinearTransform([(6,)], M=torch.eye(6)[mix.order])([x])
    our_z, our_log_det = mix(x)
    assert_close(our_z, their_z)
    assert_close(our_log_det, their_log_det.expand(7))
