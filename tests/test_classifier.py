"""The generative classifier: that its parts are put together right."""

import copy
import pickle

import pytest
import torch
from helpers.cases import flow_of, perturbed
from torch.testing import assert_close

from ibinn import GaussianMixture, GenerativeClassifier, dense_flow, paper_flow
from ibinn.models.classifier import evaluation_mode


def image_model():
    flow = flow_of((3, 8, 8), blocks=(1, 1), widths=(8, 8), dropouts=(0.0, 0.5), dense_width=16)
    return GenerativeClassifier(perturbed(flow), GaussianMixture(4, 192, priors=[1, 2, 3, 4]))


def test_density_and_posterior_are_one_joint_density():
    """q(x) q(y|x) = w_y q(z|y) |det J|."""
    model, x = image_model(), torch.randn(5, 3, 8, 8)
    model.eval()
    z, log_det = model.encode(x)
    joint = model.mixture.log_w + model.mixture.log_q_z_given_y(z) + log_det[:, None]
    assert_close(model.log_q_x(x)[:, None] + model.log_q_y_given_x(x), joint)
    assert torch.equal(model(x)[0], model.log_q_y_given_x(x))


def test_a_linear_flow_gives_the_textbook_density():
    """z = A x with known A: q(x) is a mixture of N(A^-1 mu_y, (A^T A)^-1)."""
    flow = dense_flow(3, blocks=2, width=4)
    with torch.no_grad():
        for layer in flow.layers[::2]:  # couplings: last layer to constants, so that the map is affine
            layer.subnet[-1].weight.zero_()
            layer.subnet[-1].bias.normal_()
        for layer in flow.layers[1::2]:  # scales and shifts
            layer.log_scale.normal_(std=0.3)
            layer.shift.normal_()
    model = GenerativeClassifier(flow, GaussianMixture(2, 3, priors=[0.3, 0.7])).eval()
    offset = flow(torch.zeros(1, 3))[0][0]
    matrix = torch.stack([flow(e[None])[0][0] - offset for e in torch.eye(3)], dim=1)
    means = torch.linalg.solve(matrix, (model.mixture.mu - offset).T).T
    covariance = torch.linalg.inv(matrix.T @ matrix)
    components = torch.distributions.MultivariateNormal(means, covariance)
    expected = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(probs=torch.tensor([0.3, 0.7])), components
    )
    x = torch.randn(6, 3)
    assert_close(model.log_q_x(x), expected.log_prob(x))


def test_log_q_x_and_posterior_are_those_of_the_mixture():
    model, x = image_model().eval(), torch.randn(5, 3, 8, 8)
    z, log_det = model.encode(x)
    assert_close(model.log_q_x(x), model.mixture.log_q_z(z) + log_det)
    assert_close(model.log_q_y_given_x(x), model.mixture.log_q_y_given_z(z))


def test_saving_copying_and_pickling_a_model_give_the_same_answers():
    model, x = image_model().eval(), torch.randn(5, 3, 8, 8)
    loaded = image_model().eval()
    loaded.load_state_dict(model.state_dict())
    for twin in (loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for ours, theirs in zip(model(x), twin(x), strict=True):
            assert torch.equal(ours, theirs)


def test_an_empty_batch_has_empty_answers():
    model = image_model().eval()
    log_q_y_given_x, log_q_x = model(torch.randn(0, 3, 8, 8))
    assert (log_q_y_given_x.shape, log_q_x.shape) == ((0, 4), (0,))
    assert model.decode(torch.randn(0, 192)).shape == (0, 3, 8, 8)
    assert model.check_invertibility(torch.randn(0, 3, 8, 8)) == 0


def test_everything_is_built_on_the_default_device():
    with torch.device("meta"):
        model = GenerativeClassifier(paper_flow(), GaussianMixture(4, 3072, priors=[1, 2, 3, 4]))
    tensors = [*model.parameters(), *model.buffers()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_decode_undoes_encode():
    model, x = image_model().eval(), torch.randn(5, 3, 8, 8)
    assert_close(model.decode(model.encode(x)[0]), x)
    assert model.check_invertibility(x) < 1e-12


def test_check_invertibility_sees_a_broken_inverse():
    model, x = image_model(), torch.randn(5, 3, 8, 8)
    model.flow.layers[0].inverse = lambda z: z + 0.1
    assert model.check_invertibility(x) > 0.01


def test_sample_takes_one_class_many_labels_or_none():
    model = image_model()
    for y, expected in [(2, torch.full((6,), 2)), (torch.arange(4), torch.arange(4))]:
        x, labels = model.sample(len(expected), y)
        assert torch.equal(labels, expected)
        assert x.shape == (len(expected), 3, 8, 8)
    assert model.sample(0)[0].shape == (0, 3, 8, 8)
    assert model.sample(500)[1].bincount().argmax() == 3
    assert not model.sample(2)[0].requires_grad


def test_samples_encode_back_to_their_means_at_temperature_0():
    model = image_model()
    x, y = model.sample(8, temperature=0.0)
    assert_close(model.eval().encode(x)[0], model.mixture.mu[y])


def test_sample_changes_nothing_in_a_training_model():
    """Batch-norm statistics, modes and means: drawing must not train."""
    model = image_model().train()
    model.flow.layers[0].eval()  # a module frozen by its owner stays so
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    first = model.sample(4, generator=torch.Generator().manual_seed(1))
    second = model.sample(4, generator=torch.Generator().manual_seed(1))
    assert torch.equal(first[0], second[0])
    assert [module.training for module in model.modules()] == modes
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_evaluation_mode_is_left_also_after_an_error():
    model = image_model().train()
    with pytest.raises(ZeroDivisionError), evaluation_mode(model):
        _ = 1 / int(model.flow.training)
    assert all(module.training for module in model.modules())
