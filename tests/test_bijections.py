"""Properties of every layer and network of the tables in cases.py."""

import copy
import io
import math
import pickle

import pytest
import torch
from helpers.cases import LARGE_IMAGES, LAYERS, NETWORKS, flow_of, perturbed, perturbed_weights
from hypothesis import given
from hypothesis import strategies as st
from torch.func import jacrev, vmap
from torch.testing import assert_close

from ibinn import (
    GaussianMixture,
    GenerativeClassifier,
    dense_flow,
    paper_flow,
    refresh_batch_norm,
)

ALL = {**LAYERS, **NETWORKS}
every_case = pytest.mark.parametrize("case", ALL.values(), ids=ALL)
every_network = pytest.mark.parametrize("case", NETWORKS.values(), ids=NETWORKS)


def draw(data, case, batch=2):
    shape = data.draw(case.shapes, label="shape")
    torch.manual_seed(data.draw(st.integers(0, 2**16), label="seed"))
    return perturbed(case.make(shape)), torch.randn(batch, *shape)


@every_case
@given(data=st.data())
def test_inverse_undoes_forward(case, data):
    bijection, x = draw(data, case)
    z, log_det = bijection(x)
    assert z.shape[0] == x.shape[0]
    assert z[0].numel() == x[0].numel()
    assert log_det.shape == (len(x),)
    assert_close(bijection.inverse(z), x, atol=1e-9, rtol=1e-9)


@every_case
@given(data=st.data())
def test_forward_undoes_inverse(case, data):
    bijection, x = draw(data, case)
    z = torch.randn_like(bijection(x)[0])
    assert_close(bijection(bijection.inverse(z))[0], z, atol=1e-9, rtol=1e-9)


@every_case
@given(data=st.data())
def test_log_det_agrees_with_autograd(case, data):
    bijection, x = draw(data, case)
    n = x[0].numel()
    jacobian = vmap(jacrev(lambda v: bijection(v[None])[0].flatten()))(x).reshape(len(x), n, n)
    assert_close(bijection(x)[1], torch.linalg.slogdet(jacobian).logabsdet, atol=1e-7, rtol=0)


@every_case
@given(data=st.data())
def test_a_row_does_not_depend_on_its_company(case, data):
    bijection, x = draw(data, case, batch=5)
    z, log_det = bijection(x)
    assert_close(bijection(x[2:3])[0], z[2:3])
    assert_close(bijection(x[2:3])[1], log_det[2:3])


@every_case
def test_every_parameter_gets_a_gradient(case):
    bijection = perturbed(case.make(case.example), amount=0.3)
    x = torch.randn(64, *case.example, requires_grad=True)
    z, log_det = bijection(x)
    (z * torch.randn_like(z)).sum().add(log_det.sum()).backward()
    for name, parameter in bijection.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@every_case
@given(data=st.data())
def test_state_dict_deepcopy_and_pickle_give_the_same_outputs(case, data):
    bijection, x = draw(data, case)
    torch.manual_seed(99)  # another start, so that loading has something to do
    loaded = case.make(tuple(x.shape[1:])).eval()
    loaded.load_state_dict(bijection.state_dict())
    for twin in (loaded, copy.deepcopy(bijection), pickle.loads(pickle.dumps(bijection))):
        for ours, theirs in zip(bijection(x), twin(x), strict=True):
            assert torch.equal(ours, theirs)
        assert torch.equal(bijection.inverse(bijection(x)[0]), twin.inverse(twin(x)[0]))


def test_random_parts_of_another_seed_are_replaced_on_loading():
    x = torch.randn(3, 6)
    old, new = dense_flow(6, seed=1).eval(), dense_flow(6, seed=2).eval()
    assert not torch.equal(old(x)[0], new(x)[0])
    new.load_state_dict(old.state_dict())
    assert torch.equal(old(x)[0], new(x)[0])
    assert_close(new.inverse(new(x)[0]), x)


def exported_copy(module, example):
    """module as an exported program with a dynamic batch, written and read again."""
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


@every_case
@pytest.mark.slow
def test_an_exported_layer_gives_the_same_outputs_for_any_batch(case):
    bijection = perturbed(case.make(case.example))
    copied = exported_copy(bijection, torch.randn(4, *case.example))
    for n in (1, 2, 7):
        x = torch.randn(n, *case.example)
        for ours, theirs in zip(bijection(x), copied(x), strict=True):
            assert_close(ours, theirs, rtol=1e-12, atol=1e-12)  # a graph holds the plain formulas


@every_network
@pytest.mark.slow
def test_an_exported_classifier_gives_the_same_answers_for_any_batch(case):
    flow, mixture = perturbed(case.make(case.example)), GaussianMixture(3, math.prod(case.example))
    model = GenerativeClassifier(flow, mixture).eval()
    copied = exported_copy(model, torch.randn(4, *case.example))
    for n in (1, 2, 7):
        x = torch.randn(n, *case.example)
        for ours, theirs in zip(model(x), copied(x), strict=True):
            assert_close(ours, theirs, rtol=1e-12, atol=1e-12)  # a graph holds the plain formulas


@pytest.mark.parametrize("shape", LARGE_IMAGES, ids=str)
def test_large_images_round_trip(shape):
    flow = perturbed(flow_of(shape, blocks=(2, 2), widths=(16, 16), dropouts=(0.0, 0.0), dense_width=64))
    x = torch.randn(2, *shape)
    assert_close(flow.inverse(flow(x)[0]), x, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("n_features", [1, 2, 513, 2000])
def test_long_and_short_vectors_round_trip(n_features):
    flow = perturbed(dense_flow(n_features, blocks=3, width=32))
    x = torch.randn(3, n_features)
    assert_close(flow.inverse(flow(x)[0]), x, atol=1e-9, rtol=1e-9)


def relative_error(flow, x):
    with torch.no_grad():
        return float((flow.inverse(flow(x)[0]) - x).abs().max() / x.abs().max())


def test_paper_flow_round_trips_in_float64():
    assert relative_error(perturbed_weights(paper_flow()), torch.randn(4, 3, 32, 32)) < 1e-9


def test_paper_flow_round_trips_in_float32():
    flow = perturbed_weights(paper_flow().float())
    assert relative_error(flow, torch.randn(8, 3, 32, 32, dtype=torch.float32)) < 1e-3


@pytest.mark.slow
def test_paper_flow_round_trips_in_float32_after_training_steps():
    """Scales, shifts and statistics have moved; batch-norm is refreshed, as after any training."""
    images = torch.rand(64, 3, 1, 1) + 0.2 * torch.randn(64, 3, 32, 32)
    x = ((images - images.mean()) / images.std()).float()
    flow = paper_flow().float()
    mixture = GaussianMixture(10, 3072).float()
    optimizer = torch.optim.SGD(flow.parameters(), lr=0.07, momentum=0.9)
    for _ in range(12):
        z, log_det = flow(x[torch.randint(len(x), (16,))])
        loss = -2 * (mixture.log_q_z(z) + log_det).mean() / 3072
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(flow.parameters(), 8.0)
        optimizer.step()
    refresh_batch_norm(flow, x.split(32))
    assert relative_error(flow.eval(), x[:8]) < 1e-3
