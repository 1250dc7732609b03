"""Preprocessing and model in one: levels or rows in; probabilities and the log-density in those units out."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibinn._types import Array, Floats, Progress
from ibinn.data.preprocess import Preprocess
from ibinn.metrics.likelihood import bits_per_dim, bits_per_dim_plugin
from ibinn.metrics.temperature import LOWEST
from ibinn.models.classifier import GenerativeClassifier, evaluation_mode
from ibinn.models.latent_reference import LatentNoise, LatentReference
from ibinn.models.methods import Classifier
from ibinn.models.output import Output, concatenated, to_arrays


class Pipeline(nn.Module):
    """A preprocessing, the model behind it, and what is fitted after training.

    Noise is part of the model's inputs. To make outputs reproducible, all inputs get the same draw of uniform
    noise, number `draw` = 0, 1, ..., and no Gaussian noise.

    Parameters
    ----------
    preprocess : ImagePreprocess or TablePreprocess
    model : GenerativeClassifier or SoftmaxClassifier

    Attributes
    ----------
    temperature : float
        T of the calibrated probabilities; see `calibrated`. 1 before it is fitted.
    farthest : float
        The largest |z - mu|^2 of the validation split, beyond which probabilities become softer; see `calibrated`.
        inf before it is known, and without a density.
    references : ModuleDict of LatentReference
        Where the latent codes lie, by the noise of the inputs: "bank" for scores and "drawn" for samples; the
        latter are local, see `codes`. Without noise, "bank" serves both. Empty before they are fitted, and without
        a density.

    Examples
    --------
    >>> import numpy as np
    >>> from ibinn import Chain, GaussianMixture, GenerativeClassifier
    >>> from ibinn.data.preprocess import TablePreprocess
    >>> from ibinn.models.pipeline import Pipeline
    >>> mixture = GaussianMixture(n_classes=2, n_dims=2)
    >>> pipeline = Pipeline(TablePreprocess([0, 0], [1, 1]), GenerativeClassifier(Chain(), mixture))
    >>> output = pipeline.compute_output(np.zeros((3, 2)))
    >>> output.log_q_y.round(3).tolist()[0]
    [-0.693, -0.693]
    >>> output.log_q_x.shape
    (3,)
    """

    def __init__(self, preprocess: Preprocess, model: Classifier) -> None:
        super().__init__()
        self.preprocess, self.model = preprocess, model
        self.temperature, self.farthest = 1.0, math.inf
        self.references = nn.ModuleDict()

    def reference(self, noise: LatentNoise) -> LatentReference | None:
        """The latent reference for inputs with this noise; None if there is none."""
        name = "bank" if self.preprocess.noise is None else noise
        if name not in self.references:
            return None
        found = self.references[name]
        assert isinstance(found, LatentReference)
        return found

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return self.preprocess.mean.device

    @property
    def generative(self) -> GenerativeClassifier:
        """The model as a generative classifier; ValueError where model.has_density is False."""
        if not isinstance(self.model, GenerativeClassifier):
            raise ValueError(
                f"a {type(self.model).__name__} has no density and no class means in latent space; use an ibinn, "
                f"class-nll or class-nll-fixed model"
            )
        return self.model

    def normalised(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x in pixel units -> v for the model, and log|det dv/dx| (B,)."""
        v, log_det = self.preprocess(x)
        return v.to(self.dtype), log_det.to(self.dtype)

    def prepared(self, raw: Array | Tensor, draw: int = 0) -> tuple[Tensor, Tensor]:
        """raw (B, ...) -> v and log|det dv/dx|, with fixed noise."""
        x = self.preprocess.to_units(raw)
        return self.normalised(x + self.preprocess.fixed_noise(draw).to(x))

    def noisy(self, raw: Array | Tensor, generator: torch.Generator) -> Tensor:
        """raw (B, ...) -> v, with separate noise for each input, as in training."""
        return self.normalised(self.preprocess.add_noise(self.preprocess.to_units(raw), generator))[0]

    def codes(
        self, raw: Array | Tensor, noise: torch.Generator | None = None, is_local: bool = False
    ) -> Tensor:
        """z (B, D) of raw (B, ...): with separate noise for each input, or with the bank's.

        is_local: from the flow without its summaries, for samples and interpolations; see `local_flow`.
        """
        v = self.prepared(raw)[0] if noise is None else self.noisy(raw, noise)
        return self.generative.local_flow(v)[0] if is_local else self.generative.encode(v)[0]

    def forward(self, raw: Array | Tensor, draw: int = 0) -> Output[Tensor]:
        """The model's output for raw (B, ...), log q(x) in raw units; at draw 0 with the latent evidence."""
        output = self.output(*self.prepared(raw, draw))
        return self.with_evidence(output) if draw == 0 else output

    def output(self, v: Tensor, log_det: Tensor) -> Output[Tensor]:
        """The model's output for v (B, ...), with log q(x) in raw units; log_det is that of the preprocessing."""
        output: Output[Tensor] = self.model.output(v)
        output = replace(output, log_p_y=self.calibrated(output.log_q_y, output.sq_distance))
        if output.log_q_x is None:
            return output
        return replace(output, log_q_x=output.log_q_x + log_det + self.preprocess.log_scale)

    def calibrated(self, log_q_y: Tensor, sq_distance: Tensor | None) -> Tensor:
        """log p(y)^(1 - 1/T) q(y|x)^(1/T), normalised, (B, K).

        With a density this is p(y) q(x|y)^(1/T): the class weights are not tempered. A plain classifier has none.
        Farther from the nearest mean than any input of the validation split, T grows with |z - mu|^2 / farthest.
        The logits grow only with |z - mu|, so that far from all data the class weights alone remain.
        """
        temperature = torch.full_like(log_q_y[:, :1], self.temperature)
        if sq_distance is not None:
            temperature = temperature * (sq_distance / self.farthest).clamp_min(1)[:, None]
        log_w = 0.0 if self.log_w is None else self.log_w
        log_q_x_given_y = log_q_y.clamp_min(torch.finfo(log_q_y.dtype).min) - log_w  # up to a constant
        tempered = F.log_softmax(log_w + (log_q_x_given_y / temperature).clamp_min(LOWEST), dim=1)
        return torch.where(temperature == 1, log_q_y, tempered)

    @property
    def log_w(self) -> Tensor | None:
        """Log class weights, (K,); None for a plain classifier."""
        return None if self.model.mixture is None else self.model.mixture.log_w.detach()

    def with_evidence(self, output: Output[Tensor]) -> Output[Tensor]:
        """The output of inputs with the bank's noise, compared with the latent reference if there is one."""
        reference = self.reference("bank")
        if reference is None or output.z is None:
            return output
        return replace(output, **reference(output.z)._asdict())

    @torch.no_grad()
    def compute_output(
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
        """log q(x + E) (N,) in raw units, with Gaussian noise per input that does not depend on batch_size."""
        values, rng = [], np.random.default_rng(seed)
        with evaluation_mode(self):
            for _, chunk in chunks(raw, batch_size):
                x = self.preprocess.to_units(chunk)
                eps = torch.from_numpy(rng.standard_normal(tuple(x.shape)))
                output = self.output(*self.normalised(x + self.preprocess.sigma * eps.to(x)))
                assert output.log_q_x is not None
                values.append(output.log_q_x.cpu().double().numpy())
        return np.concatenate(values)

    def bits_per_dim(self, log_q_x: Floats) -> Floats | None:
        """Bits per dimension of images, (N,); None for tables.

        An upper bound with uniform noise, the plug-in value with Gaussian noise.
        """
        preprocess = self.preprocess
        if preprocess.levels is None:
            return None
        if preprocess.noise == "gaussian":
            return bits_per_dim_plugin(log_q_x, preprocess.n_dims, preprocess.sigma * preprocess.levels)
        return bits_per_dim(log_q_x, preprocess.n_dims)


def chunks(raw: Array, size: int) -> Iterator[tuple[int, Array]]:
    """Slices of raw of at most `size` inputs, each with its start."""
    for start in range(0, len(raw), size):
        yield start, raw[start : start + size]
