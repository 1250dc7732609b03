"""Where the latent codes of a trained flow lie: a Gaussian for each class, with one covariance for all.

Training pulls z towards N(mu_y, I), but never reaches it. After training, the class means m_y and the covariance
Sigma within classes are fitted to the latent codes of the training set. OoD scores and samples use them; the
posterior and the density q(x) stay those of the trained mixture.

Latent codes depend on the noise that is added to the inputs, so a reference belongs to one kind of noise:

===== ================================================================================================
bank  a fixed draw that all inputs share (`Pipeline.prepared`); for scores, which must be reproducible
drawn a draw for each input (`Pipeline.noisy`), as in training; for samples
===== ================================================================================================

Codes that share their noise are narrower than those of the training distribution. Their Gaussian is good for
comparing inputs with each other, but it is not a density of the inputs, and bits/dim never use it.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ibinn.mixture import GaussianMixture, check_labels, check_temperature, squared_norm

LatentNoise = Literal["bank", "drawn"]
Codes = Iterable[tuple[Tensor, Tensor]]  # batches of z (B, D) and labels (B,)

MAX_FULL = 1024  # dimensions up to which the whole covariance is kept
MAX_MOMENTS = 4096  # dimensions up to which all products of two dimensions are summed up
MAX_SAMPLE = 50_000_000  # numbers in the sample that replaces these sums
RANKS = (0, 16, 64, 256)  # of the covariance of more than MAX_FULL dimensions
SHRINKAGES = (1e-4, 1e-3, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
LEAST_VARIANCE = 1e-6  # of a dimension, relative to their mean: a constant one must not divide by 0
ROUNDING = 1e-12  # of a variance, relative to the mean square of the codes: what is below is no variance


class FullCovariance(nn.Module):
    """Sigma = L L^T with a lower triangle L, stored row by row. L and its inverse are made when they are needed.

    Parameters
    ----------
    triangle : Tensor of shape (D (D + 1) / 2,)
    """

    triangle: Tensor
    made_factor: Tensor | None
    made_inverse: Tensor | None

    def __init__(self, triangle: Tensor) -> None:
        super().__init__()
        self.n_dims = (math.isqrt(8 * len(triangle) + 1) - 1) // 2
        self.register_buffer("triangle", triangle)
        self.register_buffer("made_factor", None, persistent=False)
        self.register_buffer("made_inverse", None, persistent=False)

    @property
    def factor(self) -> Tensor:
        """L (D, D)."""
        if self.made_factor is None:
            factor = self.triangle.new_zeros(self.n_dims, self.n_dims)
            factor[tuple(torch.tril_indices(self.n_dims, self.n_dims, device=factor.device))] = (
                self.triangle
            )
            self.made_factor = factor
        return self.made_factor

    @property
    def inverse(self) -> Tensor:
        """L^-1 (D, D)."""
        if self.made_inverse is None:
            identity = torch.eye(self.n_dims, dtype=self.factor.dtype, device=self.factor.device)
            self.made_inverse = torch.linalg.solve_triangular(self.factor, identity, upper=False)
        return self.made_inverse

    @classmethod
    def of(cls, matrix: Tensor) -> "FullCovariance":
        """From Sigma (D, D)."""
        factor = torch.linalg.cholesky(matrix)
        return cls(factor[tuple(torch.tril_indices(*factor.shape, device=factor.device))])

    def whiten(self, v: Tensor) -> Tensor:
        """v (B, D) of covariance Sigma -> u (B, D) of covariance I."""
        return v @ self.inverse.T

    def colour(self, u: Tensor) -> Tensor:
        """The inverse of `whiten`."""
        return u @ self.factor.T


class LowRankCovariance(nn.Module):
    """Sigma = S (c I + U (diag(variances) - c I) U^T) S, with S = diag(scale) and U^T U = I.

    The r columns of U are the directions in which the variance, after division by scale, differs most from 1. With
    r = D this is any covariance.

    Parameters
    ----------
    scale : Tensor of shape (D,)
    basis : Tensor of shape (D, r)
        U.
    variances : Tensor of shape (r,)
        Variances along the columns of U, after division by scale.
    rest : Tensor of shape ()
        c, the variance along all other directions.
    """

    scale: Tensor
    basis: Tensor
    variances: Tensor
    rest: Tensor

    def __init__(self, scale: Tensor, basis: Tensor, variances: Tensor, rest: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("basis", basis)
        self.register_buffer("variances", variances)
        self.register_buffer("rest", rest)

    def whiten(self, v: Tensor) -> Tensor:
        """v (B, D) of covariance Sigma -> u (B, D) of covariance I."""
        return self._stretch(v / self.scale, self.rest.rsqrt(), self.variances.rsqrt())

    def colour(self, u: Tensor) -> Tensor:
        """The inverse of `whiten`."""
        return self._stretch(u, self.rest.sqrt(), self.variances.sqrt()) * self.scale

    def _stretch(self, v: Tensor, rest: Tensor, along: Tensor) -> Tensor:
        """v stretched by `along` in the directions of the basis, and by `rest` in all others."""
        return v * rest + (v @ self.basis * (along - rest)) @ self.basis.T


Covariance = FullCovariance | LowRankCovariance


class Evidence(NamedTuple):
    """What the scores need of the latent codes, (B,) each: see `LatentReference`."""

    class_information: Tensor
    class_distance: Tensor
    span_distance: Tensor


class LatentReference(nn.Module):
    """The Gaussians N(m_y, Sigma) of the classes in latent space, and one Gaussian N(m_0, Sigma_0) for all.

    q(z) = sum_y w_y N(z; m_y, Sigma) is the mixture of the classes. q_0(z) = N(z; m_0, Sigma_0) ignores them and
    has the same mean and covariance: m_0 = sum_y w_y m_y and Sigma_0 = Sigma + sum_y w_y (m_y - m_0)(m_y - m_0)^T.

    Parameters
    ----------
    means : Tensor of shape (K, D)
        Class means m_y.
    log_w : Tensor of shape (K,)
        Log class weights.
    covariance : FullCovariance or LowRankCovariance
        Sigma.

    Examples
    --------
    >>> import torch
    >>> from ibinn.models.latent_reference import FullCovariance, LatentReference
    >>> means = torch.tensor([[-2.0, 0.0], [2.0, 0.0]])
    >>> reference = LatentReference(means, torch.tensor([0.5, 0.5]).log(), FullCovariance.of(torch.eye(2)))
    >>> evidence = reference(torch.tensor([[2.0, 0.0], [0.0, 0.0], [2.0, 3.0]]))
    >>> evidence.class_distance.tolist(), evidence.span_distance.tolist()
    ([0.0, 4.0, 9.0], [0.0, 4.0, 0.0])
    >>> bool(evidence.class_information[0] < evidence.class_information[1])  # nothing explains the middle
    True
    """

    means: Tensor
    log_w: Tensor
    origin: Tensor
    span: Tensor
    centres: Tensor
    precision: Tensor
    half_log_det: Tensor

    def __init__(self, means: Tensor, log_w: Tensor, covariance: Covariance) -> None:
        super().__init__()
        self.register_buffer("means", means)
        self.register_buffer("log_w", log_w)
        self.covariance = covariance
        for name in ("origin", "span", "centres", "precision", "half_log_det"):
            self.register_buffer(name, None, persistent=False)

    def prepare(self) -> None:
        """Derive what `forward` needs and files do not hold."""
        w = self.log_w.exp()
        origin = w @ self.means  # m_0
        whitened = self.covariance.whiten(self.means - origin)
        self.span = orthonormal_rows(whitened, len(w) - 1)  # a basis of the whitened class means, (r, D)
        self.centres = whitened @ self.span.T  # class means on it, (K, r)
        between = self.centres.T @ (self.centres * w[:, None])
        blind = torch.eye(len(self.span), dtype=w.dtype, device=w.device) + between
        self.precision = torch.linalg.inv(blind)  # of q_0 on it, (r, r)
        self.half_log_det = torch.linalg.slogdet(blind)[1] / 2
        self.origin = origin  # the last: from now on other threads find everything

    def forward(self, z: Tensor) -> Evidence:
        """Class information and distances of z (B, D).

        class_information
            log q_0(z) - log q(z), in nats: low if a class explains z better than no class does. In whitened
            coordinates u = Sigma^(-1/2) (z - m_0) all Gaussians agree outside the span of the class means, so the
            difference depends on the projection s of u on that span alone.
        class_distance
            min_y (z - m_y)^T Sigma^-1 (z - m_y).
        span_distance
            The part of class_distance that lies in the span of the class means.
        """
        if self.origin is None:
            self.prepare()
        u = self.covariance.whiten(z - self.origin)
        s = u @ self.span.T
        along, squares = s @ self.centres.T, squared_norm(self.centres)
        log_blind = -0.5 * ((s @ self.precision) * s).sum(1) - self.half_log_det
        log_classes = torch.logsumexp(self.log_w + along - 0.5 * squares, 1) - 0.5 * squared_norm(s)
        span_distance = (squared_norm(s) + (squares - 2 * along).amin(1)).clamp_min(0)
        outside = (squared_norm(u) - squared_norm(s)).clamp_min(0)
        return Evidence(log_blind - log_classes, span_distance + outside, span_distance)

    def sample(
        self, y: Tensor, temperature: float = 1.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw z ~ N(m_y, temperature^2 Sigma) for each label of y (N,); (N, D)."""
        check_labels(y, len(self.means))
        check_temperature(temperature)
        means = self.means[y]
        noise = torch.randn(means.shape, generator=generator, device=means.device, dtype=means.dtype)
        return self.from_noise(y, temperature * noise)

    def from_noise(self, y: Tensor, noise: Tensor) -> Tensor:
        """m_y + Sigma^(1/2) noise, (N, D)."""
        z: Tensor = self.means[y] + self.covariance.colour(noise)
        return z

    @classmethod
    def stored(cls, state: Mapping[str, Tensor]) -> "LatentReference":
        """The reference with this state_dict."""
        covariance = {
            name.removeprefix("covariance."): value for name, value in state.items() if "." in name
        }
        kind: Callable[..., Covariance] = FullCovariance if "triangle" in covariance else LowRankCovariance
        return cls(state["means"], state["log_w"], kind(**covariance))


def orthonormal_rows(vectors: Tensor, most: int) -> Tensor:
    """An orthonormal basis (r, D) of the span of vectors (K, D), of at most `most` dimensions."""
    _, singular, rows = torch.linalg.svd(vectors, full_matrices=False)
    clear = singular > singular.max() * math.sqrt(torch.finfo(vectors.dtype).eps)
    kept: Tensor = rows[:most][clear[:most]]
    return kept


# --- fit ---------------------------------------------------------------------------------------------


def fit_latent_reference(
    train: Callable[[], Codes], validation: Callable[[], Codes], mixture: GaussianMixture
) -> LatentReference | None:
    """Fit the reference to latent codes, batch by batch.

    The means and the covariance come from the training codes. How much the covariance is shrunk, its rank and its
    overall scale maximise the likelihood of the validation codes, given their classes.

    Parameters
    ----------
    train, validation : callables
        Return an iterator over batches (z, y), with y on the CPU.
    mixture : GaussianMixture
        Its weights are those of the classes; a class without training codes keeps its mean.

    Returns
    -------
    LatentReference or None
        On the CPU, in the dtype of the mixture. None if some codes are not finite.
    """
    moments = Moments(mixture.mu.detach().cpu().double())
    for z, y in train():
        moments.add(z, y)
    if not bool(moments.squares.isfinite().all()) or not moments.n.any():
        return None
    means, axes = moments.means, moments.principal_axes()
    along, total, n = torch.zeros_like(axes.variances), torch.zeros_like(axes.scale), 0
    for z, y in validation():
        v = (z.cpu().double() - means[y]) / axes.scale
        along += (v @ axes.basis).square().sum(0)
        total, n = total + v.square().sum(0), n + len(z)
    if not n or not bool(total.isfinite().all()):
        return None
    covariance = best_covariance(axes, along / n, float(total.sum()) / n)
    fitted = LatentReference(means, mixture.log_w.detach().cpu().double(), covariance)
    # Rounded first and derived afterwards, as for a model that is loaded from a file.
    return LatentReference.stored(
        {name: value.to(mixture.mu.dtype) for name, value in fitted.state_dict().items()}
    )


class Moments:
    """Sums over latent codes in float64: number and mean by class, and the covariance within classes.

    Codes are taken relative to given centres (K, D), which keeps the digits of a small covariance. For more than
    MAX_MOMENTS dimensions, the products of two dimensions are not summed up but estimated from the first codes.
    """

    def __init__(self, centres: Tensor) -> None:
        n_classes, n_dims = centres.shape
        self.centres, self.n = centres, centres.new_zeros(n_classes)
        self.sums = torch.zeros_like(centres)
        self.is_whole = n_dims <= MAX_MOMENTS
        self.squares = centres.new_zeros((n_dims, n_dims) if self.is_whole else (n_dims,))
        self.sample: list[tuple[Tensor, Tensor]] = []
        self.n_sample_left = MAX_SAMPLE // n_dims

    def add(self, z: Tensor, y: Tensor) -> None:
        """Add a batch: z (B, D), y (B,)."""
        d = z.cpu().double() - self.centres[y]
        self.n += torch.bincount(y, minlength=len(self.n))
        self.sums.index_add_(0, y, d)
        if self.is_whole:
            self.squares += d.T @ d
            return
        self.squares += d.square().sum(0)
        if self.n_sample_left > 0:
            some = slice(self.n_sample_left)
            self.sample.append((d[some].float(), y[some]))
            self.n_sample_left -= len(z)

    @property
    def offsets(self) -> Tensor:
        """Class means relative to the centres, (K, D)."""
        return self.sums / self.n.clamp_min(1)[:, None]

    @property
    def means(self) -> Tensor:
        """Class means, (K, D)."""
        return self.centres + self.offsets

    def principal_axes(self) -> "PrincipalAxes":
        """Of the covariance within classes, after division by the standard deviations."""
        freedom = max(1.0, float(self.n.sum() - self.n.count_nonzero()))
        weighted = self.offsets * self.n[:, None]
        if self.is_whole:
            covariance = (self.squares - self.offsets.T @ weighted) / freedom
            squares, variance = self.squares.diagonal(), covariance.diagonal()
        else:
            squares = self.squares
            variance = (squares - (self.offsets * weighted).sum(0)) / freedom
        least = max(LEAST_VARIANCE * float(variance.mean()), ROUNDING * float(squares.mean())) or 1.0
        scale = variance.clamp_min(least).sqrt()
        if self.is_whole:
            values, basis = torch.linalg.eigh(covariance / scale / scale[:, None])
            return PrincipalAxes(scale, basis, values)
        d, y = (torch.cat(parts) for parts in zip(*self.sample, strict=True))
        v = (d - self.offsets[y].float()) / scale.float()
        _, singular, rows = torch.linalg.svd(v, full_matrices=False)
        return PrincipalAxes(scale, rows.T.double(), singular.double().square() / len(v))


@dataclass(frozen=True)
class PrincipalAxes:
    """Directions (columns of basis, (D, m)) and variances (m,) of codes that are divided by scale (D,)."""

    scale: Tensor
    basis: Tensor
    variances: Tensor


def best_covariance(axes: PrincipalAxes, along: Tensor, total: float) -> Covariance:
    """The covariance under which new codes are the most likely.

    Parameters
    ----------
    axes : PrincipalAxes
        Of the training codes.
    along : Tensor of shape (m,)
        Mean squares of the validation codes along the axes.
    total : float
        Their sum over all D dimensions.
    """
    n_dims, is_full = len(axes.scale), len(axes.scale) <= MAX_FULL
    ranks = (n_dims,) if is_full else RANKS
    choices = [shrunk(axes, along, total, rank, share) for rank in ranks for share in SHRINKAGES]
    best = max(choices, key=lambda choice: choice.log_likelihood)
    if not is_full:
        return LowRankCovariance(axes.scale, axes.basis[:, best.kept], best.variances, best.rest)
    coloured = axes.scale[:, None] * axes.basis[:, best.kept] * best.variances.sqrt()
    return FullCovariance.of(coloured @ coloured.T)


class Shrunk(NamedTuple):
    """One choice of rank and shrinkage: the axes kept, their variances, that of the rest, and what it achieves."""

    log_likelihood: float
    kept: Tensor
    variances: Tensor
    rest: Tensor


def shrunk(axes: PrincipalAxes, along: Tensor, total: float, rank: int, share: float) -> Shrunk:
    """Keep the `rank` axes that matter most, move their variances towards 1 by `share`, and scale all to fit.

    An axis of variance v matters by v - 1 - log v, twice the divergence of Gaussians of the variances v and 1.
    The mean log-likelihood is per dimension, up to a constant.
    """
    n_dims = len(axes.scale)
    v = (1 - share) * axes.variances.clamp_min(0) + share
    kept = (v - 1 - v.log()).topk(min(rank, len(v))).indices
    n_rest = n_dims - len(kept)
    variances = v[kept]
    spare = n_dims - axes.variances[kept].sum()  # the variances of all D axes sum to D
    rest = (spare / max(n_rest, 1)).clamp_min(SHRINKAGES[0])
    spread = (along[kept] / variances).sum() + (total - along[kept].sum()) / rest * bool(n_rest)
    scale = spread / n_dims
    log_det = variances.log().sum() + n_rest * rest.log() + n_dims * scale.log()
    return Shrunk(-float(log_det) / (2 * n_dims), kept, scale * variances, scale * rest)
