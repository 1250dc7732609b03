"""Constant memory: the same gradients as with activations kept, and nothing counted twice."""

import copy
import math

import pytest
import torch
from helpers.cases import LAYERS, flow_of
from helpers.trainings import few_digits, trained
from torch.nn.modules.batchnorm import _BatchNorm
from torch.testing import assert_close

from ibinn.cli import main
from ibinn.flows.base import Bijection, Chain
from ibinn.flows.coupling import AffineCoupling
from ibinn.flows.fast.recompute import NotInvertibleError
from ibinn.flows.mixing import AffineMix
from ibinn.flows.subnets import dense_subnet
from ibinn.models.architectures import dense_flow


def shaken(flow, scale=0.2):
    """Away from the start, where couplings are the identity."""
    with torch.no_grad():
        for p in flow.parameters():
            p.add_(scale * torch.randn_like(p))
    return flow.train()


def results(flow, x, constant_memory):
    """z, log_det, the gradients of x and of all parameters, buffers, and what is drawn next."""
    flow = copy.deepcopy(flow)
    flow.constant_memory = constant_memory
    torch.manual_seed(3)
    x = x.clone().requires_grad_()
    z, log_det = flow(x)
    weights = torch.linspace(1, 2, z[0].numel()).reshape(z[0].shape)
    ((z.sin() * weights).sum() + (log_det**2).sum()).backward()
    gradients = {name: p.grad for name, p in flow.named_parameters()}
    buffers = {name: b.clone() for name, b in flow.named_buffers()}
    return {"z": z, "log_det": log_det, "x": x.grad, "drawn next": torch.rand(3)} | buffers | gradients


def check_same(flow, x):
    kept, again = (results(flow, x, constant_memory) for constant_memory in (False, True))
    for name, value in kept.items():
        if value is None:  # a parameter that nothing depends on
            assert again[name] is None, name
        else:
            assert_close(again[name], value, rtol=1e-8, atol=1e-8, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_gives_the_gradients_of_kept_activations(name):
    case = LAYERS[name]
    flow = case.make(case.example)
    check_same(shaken(Chain(flow)), torch.randn(6, *case.example))


def test_a_deep_network_with_batch_norm_and_dropout():
    flow = flow_of(
        (3, 8, 8), (3, 3, 3), 8, 0.25, dense_blocks=2, dense_width=16, dense_dropout=0.5, scale=0.75
    )
    check_same(shaken(flow, 0.05), torch.randn(8, 3, 8, 8))
    check_same(shaken(dense_flow(6, 8, 16, dropout=0.3), 0.05), torch.randn(8, 6))


def test_running_statistics_are_updated_once():
    flow = shaken(flow_of((3, 8, 8), (2, 2), 8))
    flow.constant_memory = True
    flow(torch.randn(4, 3, 8, 8))[0].sum().backward()
    norms = [m for m in flow.modules() if isinstance(m, _BatchNorm)]
    assert len(norms) > 4
    for norm in norms:
        assert norm.num_batches_tracked == 1
        assert norm.track_running_stats


def test_frozen_parameters_get_no_gradient():
    flow = shaken(flow_of((3, 4, 4), (2,), 8))
    flow.layers[0].requires_grad_(False)
    flow.layers[2].requires_grad_(False)
    check_same(flow, torch.randn(4, 3, 4, 4))


def test_without_gradients_and_in_evaluation_nothing_changes():
    flow = shaken(flow_of((3, 4, 4), (2,), 8)).eval()
    x = torch.randn(4, 3, 4, 4)
    with torch.no_grad():
        z = flow(x)[0]
        flow.constant_memory = True
        assert torch.equal(flow(x)[0], z)
    check_same(flow.eval(), x)


class Rounds(Bijection):
    """Loses the digits of what it is given."""

    def forward(self, x):
        return 1e-3 * x, x.new_zeros(len(x))

    def inverse(self, z):
        return (1e3 * z).round(decimals=2)


def badly_scaled():
    """So that float32 loses its input under the shifts."""
    return shaken(flow_of((3, 8, 8), (16,), 8, scale=1e-3), 0.5).float()


def backward(flow, x):
    flow.constant_memory = True
    z, _ = flow(x.requires_grad_())
    z.sum().backward()


@pytest.mark.parametrize("make", [lambda: Chain(Rounds()), badly_scaled])
def test_a_flow_that_cannot_be_inverted_is_refused(make):
    flow = make()
    dtype = next((p.dtype for p in flow.parameters()), torch.float64)
    with pytest.raises(NotInvertibleError, match="without constant memory"):
        backward(flow, torch.randn(4, 3, 8, 8, dtype=dtype))


def test_one_bad_sample_among_many_is_enough_to_refuse():
    x = torch.randn(64, 3, 8, 8)
    x[5] *= 1e-3  # rounded to two digits, nothing is left of it
    x[6] *= 1e6
    with pytest.raises(NotInvertibleError):
        backward(Chain(Rounds()), x)


def test_values_that_are_not_finite_pass_through():
    """Training skips such a step, as it does with activations kept."""
    flow, x = shaken(flow_of((3, 8, 8), (2, 2), 8)), torch.randn(4, 3, 8, 8)
    x[0, 0, 0, 0] = torch.inf
    backward(flow, x)
    assert not all(p.grad.isfinite().all() for p in flow.parameters() if p.grad is not None)


def test_the_papers_depth_is_recomputed_over_several_steps():
    """Sixty scales of 0.75 leave no digit of x at the far end; the activations kept between do."""
    torch.manual_seed(1)
    flow = flow_of(
        (3, 8, 8), (8, 24, 24), 8, dense_blocks=2, dense_width=16, scale=0.75, slope=0.1, down_slope=0.2
    ).float()
    flow.constant_memory = True
    optimizer = torch.optim.SGD(flow.parameters(), lr=0.07, momentum=0.9)
    for _ in range(8):
        z, log_det = flow(torch.randn(16, 3, 8, 8, dtype=torch.float32))
        optimizer.zero_grad()
        ((0.5 * z.square().sum(1) - log_det).mean() / 192).backward()
        torch.nn.utils.clip_grad_norm_(flow.parameters(), 8.0)
        optimizer.step()


class Wrapped(Bijection):
    """A layer that leaves its way back to the base class."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)

    def inverse(self, z):
        return self.layer.inverse(z)


def test_layers_without_a_way_back_of_their_own_repeat_their_dropout():
    coupling = AffineCoupling(6, lambda i, o: dense_subnet(i, o, 16, dropout=0.5))
    check_same(shaken(Chain(Wrapped(coupling), AffineMix(6))), torch.randn(8, 6))


class Doubled(Chain):
    """Not what its layers say."""

    def forward(self, x):
        z, log_det = super().forward(x)
        return 2 * z, log_det + math.log(2) * x.shape[1]

    def inverse(self, z):
        return super().inverse(z / 2)


def test_a_chain_with_a_forward_of_its_own_is_one_layer():
    check_same(shaken(Chain(Doubled(AffineMix(4)), AffineMix(4, seed=1))), torch.randn(5, 4))


def test_parameters_changed_before_the_backward_pass_are_noticed():
    flow = shaken(dense_flow(4, 2, 8))
    flow.constant_memory = True
    z, _ = flow(torch.randn(5, 4))
    with torch.no_grad():
        next(flow.parameters()).add_(1e-5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_borrowed_parameters_are_refused():
    flow = shaken(dense_flow(4, 2, 8))
    flow.constant_memory = True
    borrowed = {name: p.detach().clone().requires_grad_() for name, p in flow.named_parameters()}
    z, _ = torch.func.functional_call(flow, borrowed, torch.randn(5, 4))
    with pytest.raises(ValueError, match="functional_call"):
        z.sum().backward()


def test_bfloat16_subnets_are_recomputed_in_bfloat16():
    flow = shaken(flow_of((3, 8, 8), (2, 2), 8, subnet="light"), 0.05).float()
    x, found = torch.randn(8, 3, 8, 8, dtype=torch.float32), []
    for flow.constant_memory in (False, True):
        flow.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            z, log_det = flow(x)
        (z.square().sum() - log_det.sum()).backward()
        found.append(torch.cat([p.grad.flatten() for p in flow.parameters()]))
    assert torch.nn.functional.cosine_similarity(*found, dim=0) > 0.999


def test_training_with_constant_memory_ends_at_the_same_model(tmp_path):
    settings = {"epochs": 2, "smoothing": 0.1}
    kept = trained(tmp_path / "a", few_digits(), **settings)
    again = trained(tmp_path / "b", few_digits(), constant_memory=True, **settings)
    for a, b in zip(kept.pipeline.parameters(), again.pipeline.parameters(), strict=True):
        assert_close(b, a, rtol=1e-2, atol=1e-3)
    assert not again.pipeline.model.flow.constant_memory  # it is for training alone


@pytest.mark.usefixtures("own_places")
def test_methods_that_are_no_flow_refuse(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "digits", "--method", "resnet", "--constant-memory", "--out", str(tmp_path / "run")])
    assert stop.value.code == 2
    assert "resnet has no flow" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
