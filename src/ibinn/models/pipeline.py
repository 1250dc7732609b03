"""Preprocessing and model in one: levels or rows in, log q(y|x) and the log-density in those units out."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from ibinn._types import Array, Floats, Progress
from ibinn.data.preprocess import ImagePreprocess, TablePreprocess
from ibinn.metrics.likelihood import bits_per_dim, bits_per_dim_plugin
from ibinn.models.classifier import evaluation_mode
from ibinn.models.methods import Classifier
from ibinn.models.output import Output, concatenated, to_arrays

Preprocess = ImagePreprocess | TablePreprocess


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

    def noisy(self, raw: Array | Tensor, generator: torch.Generator) -> Tensor:
        """raw (B, ...) -> v, each input with a noise of its own, as in training."""
        return self.normalised(self.preprocess.add_noise(self.preprocess.to_units(raw), generator))[0]

    def forward(self, raw: Array | Tensor, draw: int = 0) -> Output[Tensor]:
        """The model's output for raw (B, ...), log q(x) in raw units."""
        v, log_det = self.prepared(raw, draw)
        output: Output[Tensor] = self.model.output(v)
        if output.log_q_x is None:
            return output
        return replace(output, log_q_x=output.log_q_x + log_det + self.preprocess.log_scale)

    @torch.no_grad()
    def predict(
        self,
        raw: Array,
        draw: int = 0,
        batch_size: int = 500,
        progress: Progress | None = None,
        with_z: bool = False,
    ) -> Output[Floats]:
        """The output for all of raw (N, ...), in evaluation mode."""
        parts = []
        with evaluation_mode(self):
            for start, chunk in chunks(raw, batch_size):
                parts.append(to_arrays(self(chunk, draw), with_z))
                if progress:
                    progress(start + len(chunk), len(raw))
        return concatenated(parts)

    @torch.no_grad()
    def noisy_log_q_x(self, raw: Array, batch_size: int = 500, seed: int = 0) -> Floats:
        """log q(x + E) (N,) in raw units, Gaussian noise drawn for each input, whatever the batches."""
        preprocess, values, rng = self.preprocess, [], np.random.default_rng(seed)
        assert isinstance(preprocess, ImagePreprocess)
        with evaluation_mode(self):
            for _, chunk in chunks(raw, batch_size):
                x = preprocess.to_units(chunk)
                eps = torch.from_numpy(rng.standard_normal(tuple(x.shape)))
                v, log_det = self.normalised(x + preprocess.sigma * eps.to(x))
                log_q_v = self.model.output(v).log_q_x
                assert log_q_v is not None
                values.append((log_q_v + log_det + preprocess.log_scale).cpu().double().numpy())
        return np.concatenate(values)

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
