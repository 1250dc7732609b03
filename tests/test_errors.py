"""What a person can get wrong in the PyTorch surface: one clear ValueError each."""

import math

import pytest
import torch
from helpers.cases import flow_of

from ibinn import (
    Chain,
    GaussianMixture,
    GenerativeClassifier,
    class_nll,
    dense_flow,
    ib_loss,
    image_flow,
    loss_x,
    loss_y,
    paper_flow,
)
from ibinn.flows.coupling import AffineCoupling
from ibinn.flows.dct import DCTPool
from ibinn.flows.downsample import DownsampleCoupling, Squeeze
from ibinn.flows.mixing import ActNorm, AffineMix, Permute
from ibinn.flows.subnets import conv_subnet, dense_subnet
from ibinn.objectives import ci_xz, ci_y, ci_yz, smooth_labels


def subnet(n_in, n_out):
    return dense_subnet(n_in, n_out, width=4)


def conv(n_in, n_out):
    return conv_subnet(n_in, n_out, width=4)


def small_image_flow(shape=(3, 8, 8)):
    return flow_of(shape, blocks=(1, 1), widths=(4, 4), dropouts=(0.0, 0.0))


def vector_model():
    return GenerativeClassifier(dense_flow(3, blocks=2), GaussianMixture(2, 3)).eval()


def image_model():
    return GenerativeClassifier(small_image_flow(), GaussianMixture(2, 192)).eval()


def with_value(value):
    x = torch.zeros(4, 3)
    x[2, 1] = value
    return x


labels = torch.tensor([0, 1])
scores = torch.zeros(2, 3)
log_w = torch.zeros(3)

# what is wrong: (what to do, what the sentence must name)
MISTAKES = {
    "unknown subnet": (lambda: flow_of((3, 8, 8), subnet="heavy"), "one of paper, light"),
    "summary at one resolution": (
        lambda: flow_of((3, 8, 8), (1,), summary=(4, 4)),
        "a second resolution",
    ),
    "summary of small images": (
        lambda: flow_of((3, 8, 8), summary=(4,) * 5),
        "too many for images of 8 x 8",
    ),
    "summary without room": (
        lambda: flow_of((3, 8, 8), summary=(4, 4), n_summary=17),
        "at most 16",
    ),
    "one class": (lambda: GaussianMixture(1, 3), "n_classes is 1"),
    "no class": (lambda: GaussianMixture(0, 3), "at least 2 classes"),
    "no dimension": (lambda: GaussianMixture(2, 0), "n_dims is 0"),
    "negative distance": (lambda: GaussianMixture(2, 3, distance=-1.0), "distance is -1.0"),
    "too few priors": (lambda: GaussianMixture(3, 3, priors=[0.5, 0.5]), "3 positive finite numbers"),
    "zero prior": (lambda: GaussianMixture(2, 3, priors=[1.0, 0.0]), "positive"),
    "NaN prior": (lambda: GaussianMixture(2, 3, priors=[1.0, math.nan]), "positive finite"),
    "z of another size": (lambda: GaussianMixture(2, 3).log_q_z(torch.zeros(4, 5)), r"\(4, 5\)"),
    "z still an image": (lambda: GaussianMixture(2, 3).log_q_z(torch.zeros(4, 3, 2, 2)), "DCTPool"),
    "label out of range": (lambda: GaussianMixture(2, 3).sample(torch.tensor([0, 2])), "0 to 1"),
    "negative label": (lambda: GaussianMixture(2, 3).sample(torch.tensor([-1])), "from -1"),
    "float labels": (lambda: GaussianMixture(2, 3).sample(torch.zeros(2)), "integer labels"),
    "negative temperature": (
        lambda: GaussianMixture(2, 3).sample(labels, temperature=-1.0),
        "temperature is -1",
    ),
    "NaN temperature": (
        lambda: GaussianMixture(2, 3).sample(labels, temperature=math.nan),
        "temperature is nan",
    ),
    "negative gamma": (lambda: ib_loss(torch.zeros(2), torch.zeros(2), -0.1), "gamma is -0.1"),
    "NaN gamma": (lambda: ib_loss(torch.zeros(2), torch.zeros(2), math.nan), "gamma is nan"),
    "sigma of 0": (lambda: ci_xz(torch.zeros(2), 0.0, 3), "sigma is 0.0"),
    "smoothing above 1": (lambda: smooth_labels(labels, 3, 1.5), "smoothing is 1.5"),
    "labels of another length": (lambda: loss_y(scores, log_w, torch.tensor([0])), r"shape \(2,\)"),
    "labels of another type": (lambda: loss_y(scores, log_w, labels.double()), "y.long()"),
    "ci_y with float labels": (lambda: ci_y(scores, log_w, labels.double()), "int64"),
    "class_nll with short labels": (
        lambda: class_nll(scores, torch.zeros(2), labels[:1], 3),
        "2 labels, int64",
    ),
    "vectors too long": (lambda: vector_model().log_q_x(torch.zeros(4, 5)), "are 5 .* built for 3"),
    "images for a vector model": (lambda: vector_model().log_q_x(torch.zeros(4, 3, 8, 8)), "takes vectors"),
    "one vector without a batch": (lambda: vector_model().log_q_x(torch.zeros(3)), r"x\[None\]"),
    "images with channels last": (
        lambda: image_model().log_q_x(torch.zeros(4, 8, 8, 3)),
        "order of the dim",
    ),
    "images of another size": (
        lambda: image_model().log_q_x(torch.zeros(4, 3, 16, 8)),
        "2 times the height and 1 times",
    ),
    "images of odd size": (lambda: image_model().log_q_x(torch.zeros(4, 3, 7, 8)), "even H and W"),
    "grey images for a colour model": (
        lambda: image_model().log_q_x(torch.zeros(4, 1, 8, 8)),
        "are 1 .* built for 3",
    ),
    "bytes": (lambda: vector_model().log_q_x(torch.zeros(4, 3, dtype=torch.uint8)), "torch.uint8"),
    "float32 for a float64 model": (
        lambda: vector_model().log_q_x(torch.zeros(4, 3).float()),
        "torch.float64",
    ),
    "NaN": (lambda: vector_model().log_q_x(with_value(math.nan)), "1 of 4 inputs"),
    "infinity": (lambda: vector_model().log_q_y_given_x(with_value(math.inf)), "1 of 4 inputs"),
    "flow and mixture disagree": (
        lambda: GenerativeClassifier(dense_flow(3), GaussianMixture(2, 4)).log_q_x(torch.zeros(1, 3)),
        r"\(B, 4\)",
    ),
    "sample of an unknown class": (lambda: vector_model().sample(3, y=2), "classes 0 to 1"),
    "number and labels disagree": (lambda: vector_model().sample(3, y=labels), "3 labels"),
    "fewer than 0 samples": (lambda: vector_model().sample(-1), "-1"),
    "three dimensions": (lambda: vector_model().log_q_x(torch.zeros(4, 3, 2)), r"\(4, 3, 2\)"),
    "vectors for an image model": (lambda: image_model().log_q_x(torch.zeros(4, 3)), "takes images"),
    "bytes to decode": (lambda: vector_model().decode(torch.zeros(4, 3, dtype=torch.uint8)), "z has dtype"),
    "float32 to decode": (lambda: vector_model().decode(torch.zeros(4, 3).float()), "z.to"),
    "float32 z": (
        lambda: GaussianMixture(2, 3).log_q_z(torch.zeros(4, 3).float()),
        "z has dtype torch.float32",
    ),
    "a model in half precision": (
        lambda: vector_model().half().log_q_x(torch.zeros(4, 3)),
        "torch.autocast",
    ),
    "float32 for a float64 rotation": (
        lambda: AffineMix(3, learned=False)(torch.zeros(4, 3).float()),
        "torch.float64",
    ),
    "float32 for the inverse of a scale": (
        lambda: ActNorm(3).inverse(torch.zeros(4, 3).float()),
        "torch.float64",
    ),
    "float32 for a float64 scale": (lambda: ActNorm(3)(torch.zeros(4, 3).float()), "torch.float64"),
    "float32 for a float64 DCT": (
        lambda: DCTPool((1, 2, 2))(torch.zeros(4, 1, 2, 2).float()),
        "torch.float64",
    ),
    "labels as a column": (lambda: loss_y(scores, log_w, labels[:, None]), r"y.flatten\(\)"),
    "label beyond the classes": (lambda: loss_y(scores, log_w, labels + 2), "from 2 to 3"),
    "ci_yz with a negative label": (lambda: ci_yz(torch.zeros(2), log_w, labels - 1), "from -1 to 0"),
    "log_det as a column": (lambda: loss_x(torch.zeros(2), torch.zeros(2, 1), 3), r"both must be \(B,\)"),
    "infinite distance": (lambda: GaussianMixture(2, 3, distance=math.inf), "distance is inf"),
    "a chain of a list": (lambda: Chain([ActNorm(2)]), "is a list"),
    "negative blocks": (lambda: flow_of((3, 8, 8), blocks=(1, -1)), "0 or more"),
    "decode of another size": (lambda: vector_model().decode(torch.zeros(2, 4)), "are 4 .* built for 3"),
    "coupling of no channels": (lambda: AffineCoupling(0, subnet), "n_channels is 0"),
    "conv coupling of one channel": (lambda: AffineCoupling(1, conv), "squeeze"),
    "clamp of 0": (lambda: AffineCoupling(2, subnet, clamp=0.0), "clamp"),
    "coupling, wrong channels": (lambda: AffineCoupling(4, subnet)(torch.zeros(2, 3)), "built for 4"),
    "coupling, integers": (lambda: AffineCoupling(4, subnet)(torch.zeros(2, 4).long()), "torch.int64"),
    "coupling inverse, wrong channels": (
        lambda: AffineCoupling(4, subnet).inverse(torch.zeros(2, 3)),
        "for 4",
    ),
    "squeeze of odd sides": (lambda: Squeeze()(torch.zeros(2, 3, 5, 4)), "even H and W"),
    "squeeze of vectors": (lambda: Squeeze()(torch.zeros(2, 3)), "images"),
    "unsqueeze of 3 channels": (lambda: Squeeze().inverse(torch.zeros(2, 3, 2, 2)), "4C"),
    "downsampling of odd sides": (
        lambda: DownsampleCoupling(2, conv)(torch.zeros(2, 2, 3, 4)),
        "even H and W",
    ),
    "scale of 0": (lambda: ActNorm(3, scale=0.0), "scale > 0"),
    "fixed scale from data": (lambda: ActNorm(3, learned=False, data_init=True), "learned=True"),
    "scale, wrong channels": (lambda: ActNorm(3)(torch.zeros(2, 4)), "built for 3"),
    "rotation, wrong channels": (lambda: AffineMix(3, learned=False)(torch.zeros(2, 4)), "built for 3"),
    "permutation, wrong channels": (lambda: Permute(3).inverse(torch.zeros(2, 4)), "built for 3"),
    "rotation of nothing": (lambda: AffineMix(0, learned=False), "n_channels is 0"),
    "permutation of nothing": (lambda: Permute(0), "n_channels is 0"),
    "DCT of another size": (lambda: DCTPool((3, 4, 4))(torch.zeros(2, 3, 4, 5)), r"\(3, 4, 5\)"),
    "DCT of an empty image": (lambda: DCTPool((3, 0, 4)), "at least 1"),
    "DCT inverse of another size": (lambda: DCTPool((3, 4, 4)).inverse(torch.zeros(2, 7)), "built for 48"),
    "a chain of modules": (lambda: Chain(torch.nn.ReLU()), "not a Bijection"),
    "no features": (lambda: dense_flow(0), "at least 1 feature"),
    "paper flow for 30 x 30": (lambda: paper_flow((3, 30, 30)), "multiples of 4"),
    "grey image of odd side": (lambda: image_flow((1, 7, 8)), "even numbers"),
    "shape without channels": (lambda: image_flow((32, 32)), "channels, height, width"),
    "no resolution": (lambda: flow_of((3, 8, 8), blocks=()), "at least one resolution"),
    "lists that do not match": (
        lambda: flow_of((3, 8, 8), blocks=(1, 1), widths=(4,)),
        "one entry per resolution",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_sentence(mistake):
    act, pattern = MISTAKES[mistake]
    with pytest.raises(ValueError, match=pattern) as caught:
        act()
    assert "\n" not in str(caught.value)


def test_scores_of_nan_inputs_are_refused_in_training_mode_too():
    with pytest.raises(ValueError, match="NaN"):
        vector_model().train().encode(with_value(math.nan))
