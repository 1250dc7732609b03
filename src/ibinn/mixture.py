"""The Gaussian mixture in latent space, with a mean per class and unit covariance: q(z|y), q(z), q(y|z)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibinn.flows.precision import as_default, autocast_off, full_precision


class GaussianMixture(nn.Module):
    """A mixture with one Gaussian per class: q(z|y) = N(z; mu_y, I), q(z) = sum_y w_y q(z|y).

    Parameters
    ----------
    n_classes : int
        Number of classes, K.
    n_dims : int
        Dimensions of z, D.
    distance : float
        Initial distance of the means, which lie on a sphere if K <= D, else on a grid.
    learn_mu : bool
        Whether the means are parameters. The paper's regularised class-NLL has distance=10 and learn_mu=False.
    priors : sequence of float or Tensor, optional
        Class weights, K positive numbers. By default all are equal.
    learn_phi : bool
        Whether the class weights are parameters. Only `loss_x` should send them gradients.

    Attributes
    ----------
    mu : Tensor
        Class means, shape (K, D).
    phi : Tensor
        Free parameters of the class weights, shape (K,); ``log_w = log_softmax(phi)``.

    Examples
    --------
    >>> import torch
    >>> from ibinn import GaussianMixture
    >>> mixture = GaussianMixture(n_classes=3, n_dims=5, distance=4.0)
    >>> z = mixture.sample(torch.tensor([0, 1, 2]), temperature=0.0)  # the means
    >>> mixture.log_q_z(z).shape, mixture.log_q_y_given_z(z).argmax(1).tolist()
    (torch.Size([3]), [0, 1, 2])
    """

    mu: Tensor
    phi: Tensor

    def __init__(
        self,
        n_classes: int,
        n_dims: int,
        distance: float = 5.0,
        learn_mu: bool = True,
        priors: Sequence[float] | Tensor | None = None,
        learn_phi: bool = False,
    ) -> None:
        super().__init__()
        if n_classes < 2:
            raise ValueError(f"n_classes is {n_classes} but a classifier needs at least 2 classes")
        if n_dims < 1:
            raise ValueError(f"n_dims is {n_dims} but z needs at least 1 dimension")
        if not 0 <= distance < math.inf:
            raise ValueError(f"distance is {distance} but must be 0 or more, and finite")
        self._store("mu", separated_means(n_classes, n_dims, distance), learn_mu)
        self._store("phi", log_priors(n_classes, priors), learn_phi)

    def _store(self, name: str, value: Tensor, learned: bool) -> None:
        if learned:
            self.register_parameter(name, nn.Parameter(value))
        else:
            self.register_buffer(name, value)

    @property
    def n_classes(self) -> int:
        """Number of classes, K."""
        return self.mu.shape[0]

    @property
    def n_dims(self) -> int:
        """Dimensions of z, D."""
        return self.mu.shape[1]

    @property
    def log_w(self) -> Tensor:
        """Log class weights, log_softmax(phi), (K,)."""
        return F.log_softmax(full_precision(self.phi), dim=0)

    def scores(self, z: Tensor) -> Tensor:
        """z . mu_y - |mu_y|^2 / 2, (B, K): log q(z|y) up to a term that is the same for all classes.

        This form needs no (B, K, D) tensor, and is accurate for z far from every mean.
        """
        self._check(z)
        with autocast_off(z):
            mu = full_precision(self.mu)
            return F.linear(full_precision(z), mu, -0.5 * squared_norm(mu))

    def logits(self, z: Tensor) -> Tensor:
        """scores + log_w, (B, K): class log-probabilities before normalisation."""
        return self.scores(z) + self.log_w

    def log_q_origin(self, z: Tensor) -> Tensor:
        """log N(z; 0, I), (B,): the term that is the same for all classes."""
        return -0.5 * squared_norm(full_precision(z)) - 0.5 * self.n_dims * math.log(2 * math.pi)

    def log_q_z_given_y(self, z: Tensor) -> Tensor:
        """log N(z; mu_y, I) for every class, (B, K), in nats."""
        return self.scores(z) + self.log_q_origin(z)[:, None]

    def log_q_z(self, z: Tensor) -> Tensor:
        """log q(z) = logsumexp_y(log q(z|y) + log_w_y), (B,), in nats."""
        return torch.logsumexp(self.logits(z), dim=1) + self.log_q_origin(z)

    def log_q_y_given_z(self, z: Tensor) -> Tensor:
        """Bayes' rule: log-softmax_y(z . mu_y - |mu_y|^2 / 2 + log_w_y), (B, K)."""
        return F.log_softmax(self.logits(z), dim=1)

    def sample(
        self, y: Tensor, temperature: float = 1.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw z ~ N(mu_y, temperature^2 I) for each label.

        Parameters
        ----------
        y : Tensor
            Integer labels, shape (N,).
        temperature : float
            Factor on the standard deviation; 0 gives the means.
        generator : torch.Generator, optional
            Source of randomness.

        Returns
        -------
        Tensor
            Samples, shape (N, D).
        """
        check_labels(y, self.n_classes)
        check_temperature(temperature)
        mu = self.mu[y]
        noise = torch.randn(mu.shape, generator=generator, device=mu.device, dtype=mu.dtype)
        return mu + temperature * noise

    def sample_labels(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw n labels from the class weights, (n,)."""
        if n == 0:
            return torch.empty(0, dtype=torch.int64, device=self.phi.device)
        return torch.multinomial(self.log_w.exp(), n, replacement=True, generator=generator)

    def extra_repr(self) -> str:
        return f"n_classes={self.n_classes}, n_dims={self.n_dims}"

    def _check(self, z: Tensor) -> None:
        if z.dtype not in (self.mu.dtype, torch.float16, torch.bfloat16):
            raise ValueError(
                f"z has dtype {z.dtype} but this mixture works in {self.mu.dtype}; "
                f"convert it with z.to({self.mu.dtype})"
            )
        if z.ndim != 2 or z.shape[1] != self.n_dims:
            raise ValueError(
                f"z has shape {tuple(z.shape)} but this mixture needs (B, {self.n_dims}); a flow for images must "
                f"end in DCTPool, and n_dims must be the number of values in one input"
            )


def separated_means(n_classes: int, n_dims: int, distance: float) -> Tensor:
    """K means in D dimensions, (K, D).

    D >= K: mean k is constant in the k-th block of dimensions and 0 elsewhere, so any two are `distance` apart
    and all lie on one sphere. D < K: points of a cubic grid about 0, with neighbours `distance` apart.
    """
    if n_dims >= n_classes:
        width = n_dims // n_classes
        blocks = torch.eye(n_classes).repeat_interleave(width, dim=1) / math.sqrt(width)
        return F.pad(blocks * (distance / math.sqrt(2)), (0, n_dims - blocks.shape[1]))
    side = next(s for s in range(2, n_classes + 1) if s**n_dims >= n_classes)
    index = torch.arange(n_classes)
    n_digits = next(d for d in range(1, n_dims + 1) if side**d >= n_classes)
    grid = torch.stack([index // side**d % side for d in range(n_digits)], dim=1)
    grid = grid.to(torch.get_default_dtype())
    return F.pad((grid - grid.mean(0)) * distance, (0, n_dims - n_digits))


def log_priors(n_classes: int, priors: Sequence[float] | Tensor | None) -> Tensor:
    """phi for given class weights, (K,): zeros for None, else the logarithms of the normalised weights."""
    if priors is None:
        return torch.zeros(n_classes)
    weights = torch.as_tensor(priors, device="cpu").detach().double()
    if weights.shape != (n_classes,) or not bool((weights > 0).all() and weights.isfinite().all()):
        raise ValueError(
            f"priors must be {n_classes} positive finite numbers, one per class, not {weights.tolist()}"
        )
    return as_default((weights / weights.sum()).log())


def check_labels(y: Tensor, n_classes: int) -> None:
    if y.ndim != 1 or y.dtype.is_floating_point or y.dtype in (torch.bool, torch.uint8):
        raise ValueError(f"y must be integer labels (N,), such as int64, not {y.dtype} {tuple(y.shape)}")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < n_classes:
        raise ValueError(
            f"y holds labels from {int(y.min())} to {int(y.max())} but this mixture has "
            f"classes 0 to {n_classes - 1}"
        )


def check_temperature(temperature: float) -> None:
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature is {temperature} but must be 0 or more, and finite")


def squared_norm(v: Tensor) -> Tensor:
    """|v|^2 over the last dimension."""
    return v.square().sum(-1)
