"""The reply to each request of the page, about one loaded run. No HTTP here."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ibinn._types import Array, Floats
from ibinn.config import ALPHA, GAMMA_METHODS
from ibinn.data.dataset import Part
from ibinn.explorer import schema
from ibinn.explorer.codec import InputCodec, as_base64, png_file
from ibinn.explorer.quality import quality_of
from ibinn.formats import gamma_text, to_json_types
from ibinn.inference.attribution import EvidenceMap, evidence_map
from ibinn.inference.explain import explain
from ibinn.inference.judge import judge
from ibinn.inference.latent import (
    Axes,
    encode,
    interpolate,
    latent_axes,
    on_axes,
    sample,
)
from ibinn.inference.sentences import rank_phrase
from ibinn.inference.verdicts import verdict_text
from ibinn.models.classifier import GenerativeClassifier
from ibinn.models.output import Output
from ibinn.ood.conformal import smallest_p_value
from ibinn.ood.drift import DRIFTS, drifted, usual_drifts
from ibinn.report.text import METHOD_NAMES
from ibinn.run.trained import Run

MAX_INPUTS = 10_000  # on the map
N_FOR_AXES = 500  # of them, to choose the axes by
STEPS, ENOUGH = 24, 0.05  # of an evidence map: the error of a pixel is about 1 % of the strongest
BLUE, ORANGE = (0, 114, 178), (213, 94, 0)

Points = list[schema.Point | None]


class NotFound(ValueError):
    """The request names something that does not exist: one sentence."""


@dataclass(frozen=True)
class Inputs:
    """The inputs of the map with their classes: test data, or samples of the model."""

    part: Part
    source: Literal["test", "samples"]


class Explorer:
    """One run with the inputs of its map, which are empty for a model without a density."""

    def __init__(self, run: Run, folder: Path, inputs: Inputs, notes: tuple[str, ...] = ()) -> None:
        self.run, self.form = with_plain_names(run), run.form
        self.folder, self.inputs, self.notes = folder, inputs, notes
        self.codec, self.pipeline = InputCodec(run.form), run.pipeline
        self.has_density, self.uses_density = self.pipeline.model.has_density, run.reference.uses_density
        self.n_calibration = len(run.reference.calibration_class)
        self.is_estimator = run.is_estimator
        self.axes = self.choose_axes() if self.has_density else None
        self.about = self.make_about()

    @property
    def model(self) -> GenerativeClassifier:
        """The model; NotFound where it has no latent space."""
        if not self.has_density:
            name = METHOD_NAMES[self.run.config.method]
            raise NotFound(
                f"{name} has no latent space, so there is no map, no sample and no interpolation"
            )
        return self.pipeline.generative

    def choose_axes(self) -> Axes:
        some = self.inputs.part.x[: N_FOR_AXES if len(self.run.class_names) == 2 else 1]
        return latent_axes(self.model.mixture, encode(self.pipeline, np.asarray(some)))

    # --- the run and its map -------------------------------------------------------------------------

    def make_about(self) -> schema.AboutReply:
        run, form = self.run, self.form
        return schema.AboutReply(
            name=plain_text(self.folder.resolve().name),
            method=METHOD_NAMES[run.config.method],
            gamma=gamma_text(run.config.gamma) if run.config.method in GAMMA_METHODS else None,
            data=None if self.is_estimator else plain_text(Path(run.config.data).name),
            classes=list(run.class_names),
            kind="images" if form.is_images else "rows",
            shape=[*(form.image_shape if form.is_images else form.shape)],
            levels=form.levels,
            features=self.features(),
            n_train=run.facts.n_train,
            n_calibration=self.n_calibration,
            alpha=ALPHA,
            uses_density=self.uses_density,
            can_flag=smallest_p_value(self.n_calibration) <= ALPHA,
            map_of=self.inputs.source if self.has_density else None,
            n_inputs=len(self.inputs.part),
            means=[]
            if self.axes is None
            else finite_points(on_axes(self.model.mixture.mu.detach(), self.axes)),
            drifts=self.drifts(),
            notes=list(self.notes),
        )

    def features(self) -> list[schema.Feature]:
        """The columns of a table: their training means, and the range of 95 % of the inputs on the map."""
        if self.form.is_images:
            return []
        mean, rows = self.pipeline.preprocess.mean.cpu().numpy(), self.inputs.part.x
        names = self.run.feature_names or tuple(f"x{i}" for i in range(len(mean)))
        low, high = np.quantile(rows, (0.025, 0.975), axis=0) if len(rows) else (mean, mean)
        columns = zip(names, mean.tolist(), low.tolist(), high.tolist(), strict=True)
        return [schema.Feature(name=n, mean=m, low=a, high=b) for n, m, a, b in columns]

    def drifts(self) -> list[schema.DriftKind]:
        if not self.form.is_images:
            return []
        names = usual_drifts(self.form.image_shape[2])
        return [schema.DriftKind(name=n, most=DRIFTS[n].most, unit=DRIFTS[n].unit) for n in names]

    def map_part(self, start: int, count: int) -> schema.MapReply:
        _, part = self.model, self.inputs.part
        if start >= len(part):
            raise NotFound(f"the map has {len(part)} inputs, so there is none from {start} on")
        rows = slice(start, start + count)
        output, points = self.judge(np.asarray(part.x[rows]))
        return schema.MapReply(
            start=start,
            total=len(part),
            points=points,
            y=part.y[rows].tolist(),
            predicted=[None if np.isnan(q).any() else int(q.argmax()) for q in output.log_p_y],
            p_values=output.p_values[self.run.reference.headline].tolist(),
        )

    def picture(self, index: int) -> bytes:
        """The PNG of an input on the map."""
        if not self.form.is_images:
            raise NotFound("this model takes rows of a table, not images")
        return self.codec.encode_png(self.raw(schema.Input(index=index)))

    def quality(self) -> schema.QualityReply:
        if self.is_estimator:
            return schema.QualityReply(
                missing="A saved estimator has no evaluation; ibinn evaluate takes runs of ibinn train."
            )
        return quality_of(self.folder, self.run.reference)

    # --- inputs --------------------------------------------------------------------------------------

    def raw(self, given: schema.Input) -> Array:
        """Levels (H, W, C) or a row (D,); ValueError where it does not fit the model."""
        if given.row is not None:
            return self.codec.decode_row(given.row)
        if given.png is not None:
            return self.codec.decode_png(given.png)
        assert given.index is not None
        n = len(self.inputs.part)
        if given.index >= n:
            raise NotFound(
                f"there is no input {given.index}; " + (f"the last is {n - 1}" if n else "there are none")
            )
        return np.asarray(self.inputs.part.x[given.index])

    def judge(self, raw: Array) -> tuple[Output[Floats], Points]:
        """The output for a batch, and its points on the map."""
        output = judge(self.run, raw, with_z=self.has_density)
        if self.axes is None or output.z is None:
            return output, [None] * len(raw)
        return output, finite_points(on_axes(torch.from_numpy(output.z).to(self.axes[0]), self.axes))

    def views(self, raw: Array, output: Output[Floats], points: Points) -> list[schema.InputView]:
        """A batch (N, ...) for the page."""
        p, is_images = output.p_values[self.run.reference.headline], self.form.is_images
        things = "images" if is_images else "rows"
        return [
            schema.InputView(
                png=as_base64(self.codec.encode_png(values)) if is_images else None,
                row=None if is_images else to_json_types(values.tolist()),
                point=points[i],
                label=self.label(log_p_y),
                probability=to_json_types(float(np.exp(log_p_y.max()))),
                p_value=float(p[i]),
                rank_text=rank_phrase(float(p[i]), self.n_calibration, things, self.uses_density),
            )
            for i, (values, log_p_y) in enumerate(zip(raw, output.log_p_y, strict=True))
        ]

    def label(self, log_p_y: Floats) -> str:
        return "no class" if np.isnan(log_p_y).any() else self.run.class_names[int(log_p_y.argmax())]

    # --- requests about inputs -----------------------------------------------------------------------

    def decision(self, given: schema.Input) -> schema.DecisionReply:
        raw = self.raw(given)
        output, points = self.judge(raw[None])
        explanation = explain(self.run, raw, output).in_units(self.form.log_scale)
        (view,) = self.views(raw[None], output, points)
        has_truth = given.index is not None and self.inputs.source == "test"
        return schema.DecisionReply(
            view=view,
            verdict=verdict_text(explanation.p_value <= ALPHA),
            explanation=schema.ExplanationReply(**explanation.to_dict()),
            true_class=self.run.class_names[int(self.inputs.part.y[given.index])] if has_truth else None,
        )

    def evidence(self, given: schema.Input, a: int, b: int) -> schema.EvidenceReply:
        found = evidence_map(self.run, self.raw(given), a, b, STEPS, ENOUGH)
        if not np.isfinite([*found.values.flat, found.difference]).all():
            raise ValueError("the numbers of this model overflow on this input, so there is no evidence")
        is_images = self.form.is_images
        return schema.EvidenceReply(
            a=found.a,
            b=found.b,
            png=as_base64(png_file(overlay(found))) if is_images else None,
            values=None if is_images else found.values.tolist(),
            difference=found.difference,
            strongest=float(np.abs(found.values.sum(-1) if is_images else found.values).max()),
            missing=found.missing,
        )

    def drift(self, given: schema.Input, kind: str, steps: int) -> schema.SeriesReply:
        known = [drift.name for drift in self.drifts()]
        if kind not in known:
            raise ValueError(f"there is no drift {kind!r}; known drifts are {', '.join(known) or 'none'}")
        assert self.form.levels is not None
        raw = drifted(self.raw(given), self.form.levels, kind, steps)
        amounts = np.linspace(0, DRIFTS[kind].most, steps).tolist()
        return schema.SeriesReply(
            inputs=self.views(raw, *self.judge(raw)), amounts=amounts, unit=DRIFTS[kind].unit
        )

    def interpolation(self, start: schema.Input, end: schema.Input, steps: int) -> schema.SeriesReply:
        _, a, b = self.model, self.raw(start), self.raw(end)
        return self.series(interpolate(self.pipeline, a, b, steps))

    def samples(self, label: int, n: int, temperature: float, seed: int) -> schema.SeriesReply:
        """Of one class, by its number."""
        if label >= len(self.run.class_names):
            raise NotFound(f"there is no class {label}; the last is {len(self.run.class_names) - 1}")
        _, generator = self.model, torch.Generator(self.pipeline.device).manual_seed(seed)
        return self.series(sample(self.pipeline, n, generator, label, temperature).raw)

    def series(self, raw: Array) -> schema.SeriesReply:
        """Inputs that the model generated; ValueError where they overflow."""
        if not np.isfinite(raw).all():
            raise ValueError(
                "the numbers of this model overflow here; use other inputs or a lower temperature"
            )
        return schema.SeriesReply(inputs=self.views(raw, *self.judge(raw)))


def with_plain_names(run: Run) -> Run:
    """Names that JSON can hold."""
    columns = run.feature_names and tuple(map(plain_text, run.feature_names))
    classes = np.array([plain_text(name) for name in run.class_names])
    return dataclasses.replace(run, classes=classes, feature_names=columns)


def plain_text(name: str) -> str:
    """With bytes of file names that are not UTF-8 escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def own_samples(run: Run, n: int = 1000, seed: int = 0) -> Inputs:
    """Samples of the model for a map without data; none without a density.

    Images far outside the range of pixels are left out.
    """
    pipeline = run.pipeline
    if not pipeline.model.has_density:
        return Inputs(Part(np.zeros((0, 1)), np.zeros(0, np.int64)), "samples")
    generator = torch.Generator(pipeline.device).manual_seed(seed)
    samples = sample(pipeline, n, generator, batch_size=100)
    is_fine = ~samples.is_out_of_range
    return Inputs(Part(samples.raw[is_fine], samples.y[is_fine]), "samples")


def finite_points(points: NDArray[np.float64]) -> Points:
    """None for points that are not finite."""
    return [point if math.isfinite(sum(point)) else None for point in points.tolist()]


def overlay(evidence: EvidenceMap) -> NDArray[np.uint8]:
    """(H, W, 4): blue pixels are evidence for a, orange ones for b; stronger evidence is more opaque."""
    values = evidence.values.sum(-1)
    strength = np.abs(values) / max(float(np.abs(values).max()), 1e-12)
    colours = np.where(values[..., None] > 0, np.array(BLUE), np.array(ORANGE))
    return np.concatenate([colours, np.round(255 * strength[..., None])], axis=-1).astype(np.uint8)
