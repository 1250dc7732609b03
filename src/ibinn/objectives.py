"""The losses of the paper and its estimates of information: pure functions of tensors, one formula each.

Losses are per sample, (B,); the training loop takes the mean. `scores` are those of `GaussianMixture.scores`,
z . mu_y - |mu_y|^2 / 2.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def loss_x(log_q_z: Tensor, log_det: Tensor, n_dims: int) -> Tensor:
    """Negative log-likelihood -log q(x) / D: the paper's L_X over D.

    Parameters
    ----------
    log_q_z : Tensor
        Log-density of z in nats, shape (B,).
    log_det : Tensor
        log|det dz/dx| in nats, shape (B,).
    n_dims : int
        Dimensions of x, D.

    Returns
    -------
    Tensor
        Nats per dimension, shape (B,).

    Examples
    --------
    >>> import torch
    >>> from ibinn import loss_x
    >>> loss_x(torch.tensor([-6.0, -8.0]), torch.tensor([2.0, 0.0]), n_dims=4)
    tensor([1., 2.])
    """
    if log_q_z.shape != log_det.shape:
        raise ValueError(
            f"log_q_z is {tuple(log_q_z.shape)} but log_det {tuple(log_det.shape)}; both must be (B,)"
        )
    return -(log_q_z + log_det) / n_dims


def loss_y(scores: Tensor, log_w: Tensor, y: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy -log-softmax_y(scores + log_w) at the true class: the paper's -L_Y.

    Parameters
    ----------
    scores : Tensor
        z . mu_y - |mu_y|^2 / 2, shape (B, K).
    log_w : Tensor
        Log class weights, shape (K,). They are detached: only `loss_x` trains them.
    y : Tensor
        Labels, int64, shape (B,).
    smoothing : float
        Label smoothing: the loss is the mean under the smoothed labels.

    Returns
    -------
    Tensor
        Nats, shape (B,).

    Examples
    --------
    >>> import torch
    >>> from ibinn import loss_y
    >>> loss = loss_y(torch.zeros(2, 4), torch.full((4,), 0.25).log(), torch.tensor([0, 3]))
    >>> [round(value, 4) for value in loss.tolist()]  # log 4
    [1.3863, 1.3863]
    """
    check_labels(scores, y)
    log_q_y = F.log_softmax(scores + log_w.detach(), dim=1)
    return -(smooth_labels(y, scores.shape[1], smoothing).to(log_q_y) * log_q_y).sum(1)


def ci_y(scores: Tensor, log_w: Tensor, y: Tensor) -> Tensor:
    """log q(y|z) - log_w_y, (B,), in nats: the paper's other form of L_Y. Its mean is CI(Y, Z).

    Use it to measure, not to train: log_w is not detached, and maximising this over the class weights puts all
    weight on one class, as the paper's appendix warns.
    """
    check_labels(scores, y)
    return at_label(F.log_softmax(scores + log_w, dim=1) - log_w, y)


def ib_loss(loss_x: Tensor, loss_y: Tensor, gamma: float) -> Tensor:
    """The IB loss 2 / (1 + gamma) * (loss_x + gamma * loss_y).

    Parameters
    ----------
    loss_x : Tensor
        Values of `loss_x`, shape (B,).
    loss_y : Tensor
        Values of `loss_y`, shape (B,).
    gamma : float
        Weight of the classification loss, 0 or more. With 0 the loss is 2 loss_x, with inf it is 2 loss_y.

    Returns
    -------
    Tensor
        The loss, shape (B,).

    Examples
    --------
    >>> import torch
    >>> from ibinn import ib_loss
    >>> ib_loss(torch.tensor([1.0]), torch.tensor([3.0]), gamma=1.0)
    tensor([4.])
    """
    if not gamma >= 0:
        raise ValueError(f"gamma is {gamma} but must be 0 or more; use math.inf for loss_y alone")
    if gamma == 0:
        return 2 * loss_x
    if math.isinf(gamma):
        return 2 * loss_y
    return 2 / (1 + gamma) * loss_x + 2 * gamma / (1 + gamma) * loss_y


def class_nll(log_q_z_given_y: Tensor, log_det: Tensor, y: Tensor, n_dims: int) -> Tensor:
    """Negative class-conditional log-likelihood -log q(x|y) / D at the true class.

    Parameters
    ----------
    log_q_z_given_y : Tensor
        Log-density of z for every class in nats, shape (B, K).
    log_det : Tensor
        log|det dz/dx| in nats, shape (B,).
    y : Tensor
        Labels, int64, shape (B,).
    n_dims : int
        Dimensions of x, D.

    Returns
    -------
    Tensor
        Nats per dimension, shape (B,).

    Examples
    --------
    >>> import torch
    >>> from ibinn import class_nll
    >>> class_nll(torch.tensor([[-6.0, -2.0]]), torch.tensor([2.0]), torch.tensor([0]), n_dims=4)
    tensor([1.])
    """
    check_labels(log_q_z_given_y, y)
    return -(at_label(log_q_z_given_y, y) + log_det) / n_dims


def vib_rate(m: Tensor, log_s: Tensor, n_dims: int) -> Tensor:
    """KL(N(m, s^2) || N(0, I)) / D, (B,), in nats per input dimension: the VIB's counterpart of loss_x.

    m and log_s are (B, C). D = n_dims is that of x, so gamma has the same meaning as for the flow.
    """
    return (0.5 * (m.square() + (2 * log_s).exp() - 1) - log_s).sum(1) / n_dims


def ci_xz(loss_x: Tensor, sigma: float, n_dims: int) -> Tensor:
    """CI(X, Z_E) = D loss_x - D log(sigma) - D/2 log(2 pi e), in nats, up to O(sigma).

    loss_x and sigma must have the same (pixel) units: the log-det must include the normalisation.

    Examples
    --------
    >>> import torch
    >>> round(float(ci_xz(torch.tensor([1.0, 3.0]), sigma=0.1, n_dims=2)), 4)
    5.7673
    """
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma is {sigma} but CI(X, Z) is finite only for noise with sigma > 0")
    return n_dims * (loss_x.mean() - math.log(sigma) - 0.5 * math.log(2 * math.pi * math.e))


def ci_yz(loss_y: Tensor, log_w: Tensor, y: Tensor) -> Tensor:
    """CI(Y, Z_E) = mean of -loss_y - log_w_y, in nats, with loss_y without smoothing.

    If the class weights are the shares of the classes in y, this is H(Y) - mean(loss_y), a lower bound on
    I(Y, Z_E). With other weights it is no bound.
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
