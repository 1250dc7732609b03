"""Batch-norm refresh: the statistics of the data, nothing else touched."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from ibinn import GaussianMixture, GenerativeClassifier, image_flow, refresh_batch_norm


def test_running_statistics_become_those_of_the_data_whatever_the_batches():
    """Batch sizes differ, so a mean over batches would be off; momentum would forget the first ones."""
    x = 3 * torch.randn(1000, 2, 4, 4) + 1
    norm = nn.BatchNorm2d(2)
    norm.running_mean.fill_(100.0)
    refresh_batch_norm(norm, x.split([600, 390, 10]))
    assert_close(norm.running_mean, x.mean((0, 2, 3)))
    assert_close(norm.running_var, x.var((0, 2, 3)), rtol=2e-3, atol=0)


def flow():
    return image_flow((2, 8, 8), blocks=(2, 2), widths=(8, 8), dropouts=(0.0, 0.5), dense_blocks=0)


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
        expected = model.train()(x).log_q_x
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


def test_no_batches_is_an_error_and_leaves_the_model_alone():
    model = flow().train()
    with pytest.raises(ValueError, match="no batches"):
        refresh_batch_norm(model, [])
    assert model.training
