"""Preprocessing and model in one: levels or rows in, log q(y|x) and the log-density in those units out."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ibinn.data.dataset import Array
from ibinn.data.preprocess import ImagePreprocess, TablePreprocess
from ibinn.metrics.likelihood import bits_per_dim, bits_per_dim_plugin
from ibinn.models.classifier import evaluation_mode
from ibinn.models.methods import Classifier

Preprocess = ImagePreprocess | TablePreprocess
Floats = NDArray[np.float64]


class Outputs(NamedTuple):
    """log q(y|x) (N, K), and log q(x) (N,) in the units of the raw input, or None without a density; nats."""

    log_q_y: Floats
    log_q_x: Floats | None


class Pipeline(nn.Module):
    """A preprocessing and the model behind it.

    Noise is part of the model's inputs. Where an answer must not change from call to call, every input gets
    the same draw of it, number `draw` = 0, 1, ...; Gaussian noise is left out.
    """

    def __init__(self, preprocess: Preprocess, model: Classifier) -> None:
        super().__init__()
        self.preprocess, self.model = preprocess, model

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return self.preprocess.mean.device

    def normalised(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x in pixel units -> v for the model, and log|det dv/dx| (B,)."""
        v, log_det = self.preprocess(x)
        return v.to(self.dtype), log_det.to(self.dtype)

    def prepared(self, raw: Array | Tensor, draw: int = 0) -> tuple[Tensor, Tensor]:
        """raw (B, ...) -> v and log|det dv/dx|, with fixed noise."""
        x = self.preprocess.to_units(raw)
        return self.normalised(x + self.preprocess.fixed_noise(draw).to(x))

    def forward(self, raw: Array | Tensor, draw: int = 0) -> tuple[Tensor, Tensor | None]:
        """log q(y|x) (B, K) and log q(x) (B,) in raw units, or None."""
        v, log_det = self.prepared(raw, draw)
        log_q_y, log_q_v = self.model(v)
        if log_q_v is None:
            return log_q_y, None
        return log_q_y, log_q_v + log_det + self.preprocess.log_scale

    @torch.no_grad()
    def outputs(
        self,
        raw: Array,
        draw: int = 0,
        batch_size: int = 500,
        progress: Callable[[int, int | None], None] | None = None,
    ) -> Outputs:
        """Of all of raw (N, ...), in evaluation mode."""
        on_y, on_x = [], []
        with evaluation_mode(self):
            for start, chunk in chunks(raw, batch_size):
                log_q_y, log_q_x = self(chunk, draw)
                on_y.append(log_q_y.double().cpu().numpy())
                if log_q_x is not None:
                    on_x.append(log_q_x.double().cpu().numpy())
                if progress:
                    progress(start + len(chunk), len(raw))
        return Outputs(np.concatenate(on_y), np.concatenate(on_x) if on_x else None)

    def bits_per_dim(self, log_q_x: Floats) -> Floats | None:
        """Of images, (N,): a bound with uniform noise, the plug-in value with Gaussian noise. None for tables."""
        if not isinstance(self.preprocess, ImagePreprocess):
            return None
        if self.preprocess.noise == "gaussian":
            sigma = self.preprocess.sigma * self.preprocess.levels
            return bits_per_dim_plugin(log_q_x, self.preprocess.n_dims, sigma)
        return bits_per_dim(log_q_x, self.preprocess.n_dims)


def chunks(raw: Array, size: int) -> Iterator[tuple[int, Array]]:
    for start in range(0, len(raw), size):
        yield start, raw[start : start + size]
