"""The losses of the paper and its information estimates: pure functions of tensors, one formula each.

Per-sample quantities are (B,); the training loop takes the mean. `scores` are those of
`GaussianMixture.scores`, z . mu_y - |mu_y|^2 / 2.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def loss_x(log_q_z: Tensor, log_det: Tensor, n_dims: int) -> Tensor:
    """-log q(x) / D, (B,), in nats per dimension: the paper's L_X over D."""
    if log_q_z.shape != log_det.shape:
        raise ValueError(
            f"log_q_z is {tuple(log_q_z.shape)} but log_det {tuple(log_det.shape)}; both must be (B,)"
        )
    return -(log_q_z + log_det) / n_dims


def loss_y(scores: Tensor, log_w: Tensor, y: Tensor, smoothing: float = 0.0) -> Tensor:
    """-L_Y = -log-softmax_y(scores + log_w) at the true class, (B,), in nats: the cross-entropy.

    With label smoothing, its mean under the smoothed labels. log_w is detached: only loss_x may
    teach the class weights.
    """
    check_labels(scores, y)
    log_q_y = F.log_softmax(scores + log_w.detach(), dim=1)
    return -(smooth_labels(y, scores.shape[1], smoothing).to(log_q_y) * log_q_y).sum(1)


def ci_y(scores: Tensor, log_w: Tensor, y: Tensor) -> Tensor:
    """log q(y|z) - log_w_y, (B,), in nats: the paper's other form of L_Y; its mean is CI(Y, Z).

    log_w is not detached: maximised over learned class weights it runs off to a single class (the
    appendix's warning). For reading, not for training them.
    """
    check_labels(scores, y)
    return at_label(F.log_softmax(scores + log_w, dim=1) - log_w, y)


def ib_loss(loss_x: Tensor, loss_y: Tensor, gamma: float) -> Tensor:
    """2 / (1 + gamma) * (loss_x + gamma * loss_y), (B,); gamma = 0 and inf keep one term only."""
    if not gamma >= 0:
        raise ValueError(f"gamma is {gamma} but must be 0 or more; use math.inf for only L_Y")
    if gamma == 0:
        return 2 * loss_x
    if math.isinf(gamma):
        return 2 * loss_y
    return 2 / (1 + gamma) * loss_x + 2 * gamma / (1 + gamma) * loss_y


def class_nll(log_q_z_given_y: Tensor, log_det: Tensor, y: Tensor, n_dims: int) -> Tensor:
    """-log q(x|y) / D at the true class, (B,), in nats per dimension."""
    check_labels(log_q_z_given_y, y)
    return -(at_label(log_q_z_given_y, y) + log_det) / n_dims


def vib_rate(m: Tensor, log_s: Tensor, n_dims: int) -> Tensor:
    """KL(N(m, s^2) || N(0, I)) / D, (B,), in nats per input dimension: what the VIB has in place of loss_x.

    m and log_s are (B, C); D = n_dims is that of x, so that gamma means the same as for the flow.
    """
    return (0.5 * (m.square() + (2 * log_s).exp() - 1) - log_s).sum(1) / n_dims


def ci_xz(loss_x: Tensor, sigma: float, n_dims: int) -> Tensor:
    """CI(X, Z_E) = D loss_x - D log(sigma) - D/2 log(2 pi e), in nats, up to O(sigma).

    loss_x and sigma in the same (pixel) units: its log-det must include the normalisation.
    """
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma is {sigma} but CI(X, Z) is finite only for noise with sigma > 0")
    return n_dims * (loss_x.mean() - math.log(sigma) - 0.5 * math.log(2 * math.pi * math.e))


def ci_yz(loss_y: Tensor, log_w: Tensor, y: Tensor) -> Tensor:
    """CI(Y, Z_E) = mean of -loss_y - log_w_y, in nats, loss_y being without smoothing.

    Where the class weights are the shares of the classes in y, this is H(Y) - mean(loss_y) and at most
    I(Y, Z_E); with other weights it bounds nothing.
    """
    check_labels(log_w.expand(len(loss_y), -1), y)
    return (-loss_y - log_w[y]).mean()


def smooth_labels(y: Tensor, n_classes: int, smoothing: float = 0.0) -> Tensor:
    """y_soft = (1 - smoothing) * onehot(y) + smoothing / K, (B, K)."""
    if not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing is {smoothing} but must be between 0 and 1")
    return (1 - smoothing) * F.one_hot(y, n_classes) + smoothing / n_classes


def at_label(values: Tensor, y: Tensor) -> Tensor:
    """values (B, K) at each sample's label, (B,)."""
    return values.gather(1, y[:, None]).squeeze(1)


def check_labels(values: Tensor, y: Tensor) -> None:
    """Raise ValueError unless y is (B,) int64, from 0 to K - 1, for values (B, K)."""
    n, n_classes = values.shape
    if y.dtype != torch.int64 or y.shape != (n,):
        raise ValueError(
            f"y must be {n} labels, int64 of shape ({n},), not {y.dtype} of shape {tuple(y.shape)}; "
            f"y.long() and y.flatten() may help"
        )
    if torch.compiler.is_compiling() or n == 0:  # a graph cannot branch on values
        return
    low, high = y.aminmax()
    if low < 0 or high >= n_classes:
        raise ValueError(
            f"y holds labels from {int(low)} to {int(high)} but the classes are 0 to {n_classes - 1}"
        )
