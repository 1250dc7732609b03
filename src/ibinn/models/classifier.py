"""The generative classifier: a flow, a mixture, and Bayes' rule."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ibinn.flows.base import Bijection
from ibinn.flows.precision import full_precision
from ibinn.mixture import GaussianMixture
from ibinn.models.architectures import without_summaries
from ibinn.models.output import Output


class GenerativeClassifier(nn.Module):
    """The joint density q(x, y) = w_y N(flow(x); mu_y, I) |det J|.

    Inputs x are in the flow's own units. Call eval() before computing densities and inverses: in training mode
    they depend on batch statistics and dropout.

    Parameters
    ----------
    flow : Bijection
        Invertible map from x (B, ...) to z (B, D).
    mixture : GaussianMixture
        Class means and weights in the D dimensions of z.

    Examples
    --------
    >>> import torch
    >>> from ibinn import GaussianMixture, GenerativeClassifier, dense_flow
    >>> model = GenerativeClassifier(dense_flow(3, blocks=2, width=8), GaussianMixture(n_classes=4, n_dims=3))
    >>> model = model.eval()
    >>> x, y = model.sample(5, y=2)
    >>> tuple(x.shape), y.tolist()
    ((5, 3), [2, 2, 2, 2, 2])
    >>> log_q_y, log_q_x = model(x)
    >>> tuple(log_q_y.shape), tuple(log_q_x.shape)
    ((5, 4), (5,))
    >>> z, log_det = model.encode(x)
    >>> torch.allclose(model.decode(z), x, atol=1e-4)
    True
    """

    has_density = True
    can_sample = True

    def __init__(self, flow: Bijection, mixture: GaussianMixture) -> None:
        super().__init__()
        self.flow = flow
        self.mixture = mixture

    if TYPE_CHECKING:  # nn.Module.__call__ is untyped

        def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]: ...

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log q(y|x) (B, K) and log q(x) (B,), from one pass."""
        output = self.output(x)
        assert output.log_q_x is not None
        return output.log_q_y, output.log_q_x

    def output(self, x: Tensor) -> Output[Tensor]:
        """log q(y|x), log q(x) and everything else that the OoD scores need."""
        z, log_det = self.encode(x)
        logits, mu = self.mixture.logits(z), full_precision(self.mixture.mu)
        log_sum = logits.logsumexp(1)
        sq_distance = (full_precision(z) - mu[logits.argmax(1)]).square().sum(1)
        log_q_x = log_sum + self.mixture.log_q_origin(z) + log_det
        return Output(logits.log_softmax(1), -log_sum, log_q_x, sq_distance, z)

    @property
    def local_flow(self) -> Bijection:
        """The flow without its summaries, to decode what is drawn or mixed in latent space.

        A summary is a function of the rest of z. One that is drawn by itself would contradict the rest, and the
        inverse would put the difference, magnified, into a few pixels.
        """
        return without_summaries(self.flow)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, ...) -> z (B, D), log|det dz/dx| (B,)."""
        self._check(x)
        return self.flow(x)

    def decode(self, z: Tensor) -> Tensor:
        """z (B, D) -> x (B, ...): the inverse of encode."""
        self._check_dtype(z, "z")
        return self.flow.inverse(z)

    def log_q_x(self, x: Tensor) -> Tensor:
        """log q(x) = log q(z) + log|det J|, (B,), in nats."""
        return self(x)[1]

    def log_q_y_given_x(self, x: Tensor) -> Tensor:
        """log q(y|x), (B, K); the log-det cancels."""
        return self(x)[0]

    @torch.no_grad()
    def sample(
        self,
        n: int,
        y: int | Tensor | None = None,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Draw samples and their labels, in evaluation mode.

        Parameters
        ----------
        n : int
            Number of samples.
        y : int or Tensor of shape (n,), optional
            One class, or the class of each sample; by default drawn with the class weights.
        temperature : float
            Factor of the deviation of z from the class mean; 0 gives the means.
        generator : torch.Generator, optional

        Returns
        -------
        x : Tensor of shape (n, ...)
        y : Tensor of shape (n,)
        """
        if n < 0:
            raise ValueError(f"n is {n} but must be 0 or more")
        if y is None:
            labels = self.mixture.sample_labels(n, generator)
        else:
            labels = torch.as_tensor(y, device=self.mixture.mu.device)
            if labels.shape not in ((), (n,)):
                raise ValueError(f"y has shape {tuple(labels.shape)} but must be one class or {n} labels")
            labels = labels.expand(n)
        with evaluation_mode(self):
            return self.decode(self.mixture.sample(labels, temperature, generator)), labels

    @torch.no_grad()
    def check_invertibility(self, x: Tensor) -> float:
        """The largest |decode(encode(x)) - x|, relative to the largest |x|, in evaluation mode."""
        with evaluation_mode(self):
            error = (self.decode(self.encode(x)[0]) - x).abs()
        if error.numel() == 0:
            return 0.0
        return float(error.max() / x.abs().max().clamp_min(torch.finfo(x.dtype).tiny))

    def _check(self, x: Tensor) -> None:
        self._check_dtype(x, "x")
        # A graph cannot branch on values: with an exported model this check is up to the caller.
        if not torch.compiler.is_compiling() and not bool(x.isfinite().all()):
            bad = int((~x.isfinite().flatten(1).all(1)).sum())
            raise ValueError(
                f"x holds NaN or infinite values in {bad} of {len(x)} inputs; remove or replace them"
            )

    def _check_dtype(self, value: Tensor, name: str) -> None:
        dtype = self.mixture.mu.dtype
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"this model has dtype {dtype} but densities need float32 or float64; keep it in "
                f"float32 and run it under torch.autocast"
            )
        if value.dtype != dtype:
            raise ValueError(
                f"{name} has dtype {value.dtype} but this model works in {dtype}; convert it with "
                f"{name}.to({dtype})"
            )


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """eval() within a with-block; afterwards each module returns to its previous mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
