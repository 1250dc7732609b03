"""The Gaussian mixture in latent space, one mean per class, unit covariance: q(z|y), q(z), q(y|z)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibinn.flows.precision import as_default, autocast_off, full_precision


class GaussianMixture(nn.Module):
    """q(z|y) = N(z; mu_y, I) and q(z) = sum_y w_y q(z|y), over z (B, D) and K classes.

    mu (K, D) starts with the means `distance` apart, on a sphere if K <= D (see `separated_means`), and
    is learned unless learn_mu=False (the paper's regularised class-NLL: distance=10, learn_mu=False).
    phi (K,) holds the class weights, log_w = log_softmax(phi): those of `priors`, or equal ones.
    learn_phi=True makes it a parameter; let only loss_x send it gradients.
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
            raise ValueError(f"distance is {distance} but means can only be 0 or more apart, and finite")
        self._store("mu", separated_means(n_classes, n_dims, distance), learn_mu)
        self._store("phi", log_priors(n_classes, priors), learn_phi)

    def _store(self, name: str, value: Tensor, learned: bool) -> None:
        if learned:
            self.register_parameter(name, nn.Parameter(value))
        else:
            self.register_buffer(name, value)

    @property
    def n_classes(self) -> int:
        return self.mu.shape[0]

    @property
    def n_dims(self) -> int:
        return self.mu.shape[1]

    @property
    def log_w(self) -> Tensor:
        """log p(y), (K,)."""
        return F.log_softmax(full_precision(self.phi), dim=0)

    def scores(self, z: Tensor) -> Tensor:
        """z . mu_y - |mu_y|^2 / 2, (B, K): log q(z|y) up to what all classes share.

        No (B, K, D) tensor, and no difference of huge squares for z far from every mean.
        """
        self._check(z)
        with autocast_off(z):
            mu = full_precision(self.mu)
            return F.linear(full_precision(z), mu, -0.5 * squared_norm(mu))

    def logits(self, z: Tensor) -> Tensor:
        """scores + log_w, (B, K): the class log-probabilities before normalisation."""
        return self.scores(z) + self.log_w

    def log_q_origin(self, z: Tensor) -> Tensor:
        """log N(z; 0, I), (B,): what all classes share."""
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
        """z ~ N(mu_y, temperature^2 I) for each label in y (N,); temperature 0 gives the means."""
        self._check_labels(y)
        if not 0 <= temperature < math.inf:
            raise ValueError(f"temperature is {temperature} but must be 0 or more, and finite")
        mu = self.mu[y]
        noise = torch.randn(mu.shape, generator=generator, device=mu.device, dtype=mu.dtype)
        return mu + temperature * noise

    def sample_labels(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n labels drawn with the class weights, (n,)."""
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
                f"z has shape {tuple(z.shape)} but this mixture lives in (B, {self.n_dims}); a flow "
                f"over images must end in DCTPool, and n_dims be the number of values in one input"
            )

    def _check_labels(self, y: Tensor) -> None:
        if y.ndim != 1 or y.dtype.is_floating_point or y.dtype in (torch.bool, torch.uint8):
            raise ValueError(
                f"y must be integer labels (N,), such as int64, not {y.dtype} {tuple(y.shape)}"
            )
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.n_classes:
            raise ValueError(
                f"y holds labels from {int(y.min())} to {int(y.max())} but this mixture has "
                f"classes 0 to {self.n_classes - 1}"
            )


def separated_means(n_classes: int, n_dims: int, distance: float) -> Tensor:
    """K means in D dimensions, (K, D).

    D >= K: block-wise unit vectors, scaled, mean k being non-zero in the k-th block of dimensions only:
    any two are `distance` apart and all lie on one sphere. D < K, where a sphere has no room for that:
    points of a cubic grid about 0, neighbours `distance` apart.
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
    """phi for given class weights, (K,): zeros for None, else their logarithms, normalised."""
    if priors is None:
        return torch.zeros(n_classes)
    weights = torch.as_tensor(priors, device="cpu").detach().double()
    if weights.shape != (n_classes,) or not bool((weights > 0).all() and weights.isfinite().all()):
        raise ValueError(
            f"priors must be {n_classes} positive finite numbers, one per class, not {weights.tolist()}"
        )
    return as_default((weights / weights.sum()).log())


def squared_norm(v: Tensor) -> Tensor:
    """|v|^2 over the last dimension."""
    return v.square().sum(-1)
