"""Muon against the singular value decomposition and against AdamW."""

import copy

import pytest
import torch
from torch import nn

from ibinn.config import Recipe
from ibinn.flows.subnets import residual_features
from ibinn.training.muon import COEFFICIENTS, RMS, Muon, orthogonalised
from ibinn.training.recipes import ORTHOGONAL_RATE, RECIPES, make_optimizer


def by_svd(matrix):
    """The same polynomials, of the singular values alone."""
    a, b, c = COEFFICIENTS
    u, s, v = torch.linalg.svd(matrix / matrix.norm(), full_matrices=False)
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    return u * s @ v, s


@pytest.mark.parametrize("shape", [(6, 27), (27, 6), (8, 8), (1, 9)])
def test_the_singular_vectors_stay_and_the_values_come_close_to_one(shape):
    matrix = torch.randn(shape)
    expected, values = by_svd(matrix)
    torch.testing.assert_close(orthogonalised(matrix), expected)
    assert ((values > 0.3) & (values < 1.3)).all()
    assert orthogonalised(torch.zeros(shape)).abs().max() == 0


def test_a_step_is_orthogonal_for_some_weights_and_that_of_adamw_for_the_others():
    conv, other = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.Parameter(torch.randn(5))
    mirror, before = copy.deepcopy(other), conv.detach().clone()
    muon = Muon(
        [
            {"params": [conv], "weight_decay": 0.1, "orthogonal": True},
            {"params": [other], "weight_decay": 0.2, "orthogonal": False},
        ],
        lr=0.01,
    )
    adamw = torch.optim.AdamW([mirror], lr=0.01, weight_decay=0.2)
    gradients = [torch.randn_like(conv) for _ in range(2)]
    average = torch.zeros_like(conv)
    for gradient in gradients:
        conv.grad, other.grad = gradient.clone(), torch.randn_like(other)
        mirror.grad = other.grad.clone()
        average = 0.95 * average + 0.05 * gradient
        ahead = 0.05 * gradient + 0.95 * average
        update, _ = by_svd(ahead.reshape(4, 27))
        before = before * (1 - 0.01 * 0.1) - 0.01 * RMS * 27**0.5 * update.reshape(conv.shape)
        muon.step()
        adamw.step()
    torch.testing.assert_close(conv.detach(), before)
    torch.testing.assert_close(other, mirror)


def test_convolutions_in_front_of_a_batch_norm_take_orthogonal_updates():
    model = nn.Sequential(residual_features(1, (4, 6), (0, 1)), nn.Conv2d(6, 2, 1))
    recipe = Recipe(**{**vars(RECIPES["tiny"]), "optimizer": "muon"})
    groups = make_optimizer(model, recipe, "float32").param_groups
    (orthogonal,) = [group for group in groups if group["orthogonal"]]
    assert [tuple(p.shape) for p in orthogonal["params"]] == [
        (4, 1, 3, 3),
        (6, 4, 3, 3),
        (6, 6, 3, 3),
        (6, 6, 3, 3),
    ]
    assert orthogonal["rate"] == ORTHOGONAL_RATE
    assert sum(len(group["params"]) for group in groups) == len([*model.parameters()])
    plain = make_optimizer(model, RECIPES["tiny"], "float32").param_groups
    assert not any(group["orthogonal"] for group in plain)
