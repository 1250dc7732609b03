"""Batch-norm refresh: the statistics of the data, nothing else touched."""

import copy

import pytest
import torch
from helpers.cases import flow_of
from torch import nn
from torch.testing import assert_close

from ibinn import GaussianMixture, GenerativeClassifier, refresh_batch_norm


@pytest.mark.parametrize("stale", [100.0, float("nan")])
def test_running_statistics_become_those_of_the_data_whatever_the_batches(stale):
    """Sizes and means differ from batch to batch, so that means over batches would be off."""
    x = 3 * torch.randn(1000, 2, 4, 4) + torch.linspace(-9, 9, 1000)[:, None, None, None]
    norm = nn.BatchNorm2d(2)
    norm.running_mean.fill_(stale)
    norm.running_var.fill_(stale)
    refresh_batch_norm(norm, x.split([600, 398, 2]))
    assert_close(norm.running_mean, x.mean((0, 2, 3)))
    assert_close(norm.running_var, x.var((0, 2, 3)))


def flow():
    return flow_of((2, 8, 8), blocks=(2, 2), widths=(8, 8), dropouts=(0.0, 0.5), dense_blocks=0)


def test_densities_in_evaluation_mode_recover_after_a_change_of_scale():
    """Train-mode and evaluation-mode densities agree after the refresh, not before."""
    model = GenerativeClassifier(flow(), GaussianMixture(2, 128))
    for parameter in model.flow.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    for module in model.modules():
        if isinstance(module, nn.Dropout2d):
            module.p = 0.0
    x = 5 * torch.randn(256, 2, 8, 8)
    with torch.no_grad():
        expected = model.train()(x)[1]
        twin = copy.deepcopy(model)
        for module in twin.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
        stale = (twin.eval().log_q_x(x) - expected).abs().mean()
        refresh_batch_norm(twin, [x])
        fresh = (twin.eval().log_q_x(x) - expected).abs().mean()
    assert fresh < 0.01 * stale


def test_nothing_but_the_statistics_changes():
    model = flow().train()
    model.layers[0].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    before = copy.deepcopy(model.state_dict())
    refresh_batch_norm(model, [torch.randn(16, 2, 8, 8)])
    assert {name: module.training for name, module in model.named_modules()} == modes
    for name, value in model.state_dict().items():
        if "running" not in name and "num_batches" not in name:
            assert torch.equal(value, before[name]), name
    assert all(m.momentum == 0.1 for m in model.modules() if isinstance(m, nn.BatchNorm2d))


def test_dropout_is_off_so_that_two_refreshes_agree():
    model = flow().train()
    batches = [torch.randn(16, 2, 8, 8) for _ in range(2)]
    refresh_batch_norm(model, batches)
    first = copy.deepcopy(model.state_dict())
    refresh_batch_norm(model, batches)
    for name, value in model.state_dict().items():
        if "running" in name:
            assert torch.equal(value, first[name]), name


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "no batches"),
        ([torch.randn(4, 2, 8, 8), torch.randn(0, 2, 8, 8)], "at least one input"),
        ([torch.randn(4, 2, 8, 8), [torch.randn(4, 2, 8, 8), torch.zeros(4)]], "for x, y in loader"),
    ],
    ids=["none", "an empty one", "inputs with labels"],
)
def test_wrong_batches_are_an_error_and_leave_the_model_alone(batches, message):
    model = flow().train()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        refresh_batch_norm(model, batches)
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    model(torch.randn(4, 2, 8, 8))  # tracks again
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())
