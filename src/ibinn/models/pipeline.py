"""Preprocessing and model in one: levels or rows in, log q(y|x) and the log-density in those units out."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ibinn.data.code_length import code_lengths
from ibinn.data.dataset import Array
from ibinn.data.preprocess import ImagePreprocess, TablePreprocess
from ibinn.metrics.likelihood import bits_per_dim, bits_per_dim_plugin
from ibinn.metrics.ood import Evidence
from ibinn.models.classifier import Answers, evaluation_mode
from ibinn.models.methods import Classifier

Preprocess = ImagePreprocess | TablePreprocess
Floats = NDArray[np.float64]


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

    def forward(self, raw: Array | Tensor, draw: int = 0) -> Answers:
        """What the model says about raw (B, ...), log q(x) in raw units."""
        v, log_det = self.prepared(raw, draw)
        answers = self.model.answers(v)
        if answers.log_q_x is None:
            return answers
        return answers._replace(log_q_x=answers.log_q_x + log_det + self.preprocess.log_scale)

    @torch.no_grad()
    def outputs(
        self,
        raw: Array,
        draw: int = 0,
        batch_size: int = 500,
        progress: Callable[[int, int | None], None] | None = None,
    ) -> Evidence:
        """Of all of raw (N, ...), in evaluation mode; without the code lengths."""
        batches: list[list[Floats | None]] = []
        with evaluation_mode(self):
            for start, chunk in chunks(raw, batch_size):
                answers = self(chunk, draw)
                batches.append([None if a is None else a.cpu().double().numpy() for a in answers])
                if progress:
                    progress(start + len(chunk), len(raw))
        joined = [None if part[0] is None else np.concatenate(part) for part in zip(*batches, strict=True)]
        return Evidence(*joined)  # type: ignore[arg-type]

    def evidence(
        self, raw: Array, batch_size: int = 500, progress: Callable[[int, int | None], None] | None = None
    ) -> Evidence:
        """All that the OoD scores need of raw (N, ...)."""
        outputs = self.outputs(raw, 0, batch_size, progress)
        if not isinstance(self.preprocess, ImagePreprocess):
            return outputs
        return outputs._replace(code_length=code_lengths(raw, self.preprocess.levels))

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
                log_q_v = self.model.answers(v).log_q_x
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
