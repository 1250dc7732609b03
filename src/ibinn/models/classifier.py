"""The generative classifier: a flow and a mixture; Bayes' rule does the rest."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ibinn.flows.base import Bijection
from ibinn.flows.precision import full_precision
from ibinn.mixture import GaussianMixture
from ibinn.models.output import Output


class GenerativeClassifier(nn.Module):
    """q(x, y) = w_y N(flow(x); mu_y, I) |det J|. Inputs x are in the flow's own units.

    Densities and inverses are those of evaluation mode: call eval() first, or batch
    statistics and dropout enter them.
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
        """forward's, and what the OoD scores need beside it."""
        z, log_det = self.encode(x)
        logits, mu = self.mixture.logits(z), full_precision(self.mixture.mu)
        log_sum = logits.logsumexp(1)
        sq_distance = (full_precision(z) - mu[logits.argmax(1)]).square().sum(1)
        log_q_x = log_sum + self.mixture.log_q_origin(z) + log_det
        return Output(logits.log_softmax(1), -log_sum, log_q_x, sq_distance, z)

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
        """n samples x and their labels, in evaluation mode.

        y: one class, n labels, or None to draw them with the class weights.
        temperature scales the deviation of z about its mean.
        """
        if n < 0:
            raise ValueError(f"n is {n} but one can draw 0 samples or more")
        if y is None:
            labels = self.mixture.sample_labels(n, generator)
        else:
            labels = torch.as_tensor(y, device=self.mixture.mu.device)
            if labels.shape not in ((), (n,)):
                raise ValueError(f"y has shape {tuple(labels.shape)} but {n} samples need 1 or {n} labels")
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
        # A graph cannot branch on values: an exported model leaves this check to its caller.
        if not torch.compiler.is_compiling() and not bool(x.isfinite().all()):
            bad = int((~x.isfinite().flatten(1).all(1)).sum())
            raise ValueError(
                f"x holds NaN or infinite values in {bad} of {len(x)} inputs; remove or replace them"
            )

    def _check_dtype(self, value: Tensor, name: str) -> None:
        dtype = self.mixture.mu.dtype
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"this model was converted to {dtype} but densities need float32 or better; keep it in "
                f"float32 and run it under torch.autocast"
            )
        if value.dtype != dtype:
            raise ValueError(
                f"{name} has dtype {value.dtype} but this model works in {dtype}; convert it with "
                f"{name}.to({dtype})"
            )


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """eval() for the time of a with-block; then each module goes back to the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
