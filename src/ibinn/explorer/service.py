"""What the page asks, answered by a loaded run. No web here, and one question to the model at a time."""

import base64
import dataclasses
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ibinn._types import Array, Floats
from ibinn.config import ALPHA
from ibinn.data.dataset import Part
from ibinn.data.images import image_header, open_image
from ibinn.data.preprocess import ImagePreprocess, TablePreprocess
from ibinn.data.unlabelled import fitted, image_shape
from ibinn.explorer import schema
from ibinn.explorer.quality import quality
from ibinn.formats import plain_types
from ibinn.inference.attribution import EvidenceMap, evidence_map
from ibinn.inference.explain import explain
from ibinn.inference.judge import judge
from ibinn.inference.latent import (
    Axes,
    calm_temperature,
    clipped,
    decoded,
    encoded,
    interpolation,
    latent_axes,
    on_axes,
    strays,
    unclipped,
)
from ibinn.inference.sentences import chance, verdict
from ibinn.models.classifier import GenerativeClassifier
from ibinn.models.output import Output
from ibinn.ood.drift import DRIFTS, drifted, usual_drifts
from ibinn.report.text import METHOD_NAMES
from ibinn.run.folder import Saved
from ibinn.run.trained import Run

MOST_INPUTS = 10_000  # on the map


FIRST = 500  # of them, that the axes may be chosen by


MOST_PIXELS = 25_000_000  # of an upload


MOST_SCANS = 100  # of a JPEG: its decoder goes over the whole image once for each


STEPS, ENOUGH = 24, 0.05  # of an evidence map: each pixel is right to about 1 % of the strongest


FOR, AGAINST = (0, 114, 178), (213, 94, 0)  # blue, orange

Points = list[schema.Point | None]


class Unknown(ValueError):
    """What was asked for is not there: one sentence."""


@dataclass(frozen=True)
class Inputs:
    """What the map shows: inputs with their classes, of the test split or drawn from the model."""

    part: Part
    source: Literal["test", "samples"]


class Explorer:
    """Answers about one run; `inputs` are those of the map, empty for a model without a density."""

    def __init__(self, saved: Saved, folder: Path, inputs: Inputs, notes: tuple[str, ...] = ()) -> None:
        self.saved, self.run, self.form = saved, with_plain_names(saved.run), saved.form
        self.folder, self.inputs, self.notes = folder, inputs, notes
        self.pipeline = saved.run.pipeline
        self.has_density = saved.run.reference.headline != "entropy"
        self.n_calibration = len(saved.run.reference.calibration_class)
        self.is_estimator = bool(saved.run.facts.get("estimator"))
        self.things = "images" if saved.form.is_images else "rows"
        self.axes = self.choose_axes()
        self.temperature = None if self.axes is None else calm_temperature(self.pipeline)
        self.about = self.tell_about()

    @property
    def model(self) -> GenerativeClassifier:
        """The model, where it has a latent space."""
        if not isinstance(self.pipeline.model, GenerativeClassifier):
            raise Unknown(
                f"a {METHOD_NAMES[self.run.config.method]} has no latent space, so no map, samples or ways through it"
            )
        return self.pipeline.model

    def choose_axes(self) -> Axes | None:
        if not isinstance(self.pipeline.model, GenerativeClassifier):
            return None
        some = self.inputs.part.x[: FIRST if len(self.run.class_names) == 2 else 1]
        return latent_axes(self.model.mixture, encoded(self.pipeline, np.asarray(some)))

    # --- the run and its map -------------------------------------------------------------------------

    def tell_about(self) -> schema.About:
        run, facts = self.run, self.run.facts
        return schema.About(
            name=plain_text(self.folder.resolve().name),
            method=METHOD_NAMES[run.config.method],
            gamma=f"{run.config.gamma:g}" if run.config.method in ("ibinn", "vib") else None,
            data=None if self.is_estimator else plain_text(Path(run.config.data).name),
            classes=list(run.class_names),
            kind="images" if self.form.is_images else "rows",
            shape=[*(image_shape(self.form) if self.form.is_images else self.form.shape)],
            levels=self.form.levels,
            features=self.features(),
            n_train=facts.get("n_train"),
            n_calibration=self.n_calibration,
            alpha=ALPHA,
            has_density=self.has_density,
            map_of=None if self.axes is None else self.inputs.source,
            n_inputs=len(self.inputs.part),
            temperature=self.temperature,
            means=[]
            if self.axes is None
            else told_points(on_axes(self.model.mixture.mu.detach(), self.axes)),
            drifts=self.drifts(),
            notes=list(self.notes),
        )

    def features(self) -> list[schema.Feature]:
        """The columns of a table: the mean of the training data, and where 95 % of the inputs on the map lie."""
        preprocess = self.pipeline.preprocess
        if not isinstance(preprocess, TablePreprocess):
            return []
        mean, rows = preprocess.mean.cpu().numpy(), self.inputs.part.x
        names = self.run.feature_names or tuple(f"x{i}" for i in range(len(mean)))
        low, high = np.quantile(rows, (0.025, 0.975), axis=0) if len(rows) else (mean, mean)
        columns = zip(names, mean.tolist(), low.tolist(), high.tolist(), strict=True)
        return [schema.Feature(name=n, middle=m, low=a, high=b) for n, m, a, b in columns]

    def drifts(self) -> list[schema.DriftKind]:
        if not self.form.is_images:
            return []
        names = usual_drifts(image_shape(self.form)[2])
        return [schema.DriftKind(name=n, most=DRIFTS[n].most, unit=DRIFTS[n].unit) for n in names]

    def map_part(self, start: int, count: int) -> schema.MapPart:
        _, part = self.model, self.inputs.part
        if start >= len(part):
            raise Unknown(f"the map has {len(part)} inputs, so there is none from {start} on")
        rows = slice(start, start + count)
        raw = np.asarray(part.x[rows])
        seen, points = self.placed(raw)
        return schema.MapPart(
            start=start,
            total=len(part),
            points=points,
            y=part.y[rows].tolist(),
            called=[None if np.isnan(q).any() else int(q.argmax()) for q in seen.log_q_y],
            p=seen.p_values[self.run.reference.headline].tolist(),
        )

    def picture(self, index: int) -> bytes:
        """The PNG of an input of the map."""
        if not self.form.is_images:
            raise Unknown("this model knows rows of a table, not images")
        return self.png(self.raw(schema.Input(index=index)))

    # --- inputs --------------------------------------------------------------------------------------

    def raw(self, one: schema.Input) -> Array:
        """Levels (H, W, C) or a row (D,); ValueError where it does not fit the model."""
        if one.index is not None:
            if one.index >= len(self.inputs.part):
                there = (
                    f"the last is {len(self.inputs.part) - 1}"
                    if len(self.inputs.part)
                    else "there are none"
                )
                raise Unknown(f"there is no input {one.index}; {there}")
            return np.asarray(self.inputs.part.x[one.index])
        if one.row is not None:
            return self.checked_row(one.row)
        if not self.form.is_images:
            raise ValueError("this model knows rows of a table, not images; give a row")
        assert one.png is not None
        return self.from_png(one.png)

    def checked_row(self, row: list[float]) -> Array:
        if self.form.is_images:
            raise ValueError("this model knows images, not rows of a table; give an image")
        if len(row) != self.form.n_values:
            raise ValueError(
                f"the row has {len(row)} numbers but the model was trained on {self.form.n_values}"
            )
        return np.array(row, dtype=np.float64)

    def from_png(self, text: str) -> Array:
        """Levels of an image that has the size and the colours of the model already."""
        try:
            content = base64.b64decode(text, validate=True)
        except ValueError as error:
            raise ValueError("png is no base64; send the image through /api/upload first") from error
        image = opened_image(content, "the image")
        height, width, n_channels = image_shape(self.form)
        if (image.width, image.height, len(image.getbands())) != (width, height, n_channels):
            raise ValueError(
                f"the image is {image.width} x {image.height} with {len(image.getbands())} channel(s) but the "
                f"model knows {width} x {height} with {n_channels}; send it through /api/upload first"
            )
        return fitted(image, self.form)

    def upload(self, content: bytes) -> schema.Upload:
        """Any picture in the size, the colours and the levels of the model."""
        if not self.form.is_images:
            raise ValueError("this model knows rows of a table, not images; type in a row")
        height, width, n_channels = image_shape(self.form)
        image = opened_image(content, "the file")
        notes = []
        if len(image.getbands()) != n_channels:
            notes.append("turned into colour" if n_channels == 3 else "turned into grey")
        if image.size != (width, height):
            notes.append(f"cropped to the middle and resized to {width} × {height} pixels")
        return schema.Upload(png=as_base64(self.png(fitted(image, self.form))), notes=notes)

    def png(self, raw: Array) -> bytes:
        """Of levels (H, W, C)."""
        levels = self.form.levels
        assert levels is not None
        return encoded_png(np.round(raw.astype(np.float64) * (255 / (levels - 1))).astype(np.uint8))

    # --- questions about inputs ----------------------------------------------------------------------

    def decision(self, one: schema.Input) -> schema.Decision:
        raw = self.raw(one)
        seen, points = self.placed(raw[None])
        told = explain(self.run, raw, seen).in_units(self.form.log_scale)
        (shown,) = self.shown(raw[None], seen, points)
        is_known = one.index is not None and self.inputs.source == "test"
        true = self.run.class_names[int(self.inputs.part.y[one.index])] if is_known else None
        return schema.Decision(
            shown=shown,
            verdict=verdict(told.p_value, told.place.n, ALPHA),
            explanation=told.to_dict(),
            true_class=true,
        )

    def shown(self, raw: Array, seen: Output[Floats], points: Points) -> list[schema.Shown]:
        """A batch (N, ...) for the page."""
        p, log_q_y, n = seen.p_values[self.run.reference.headline], seen.log_q_y, self.n_calibration
        return [
            schema.Shown(
                png=as_base64(self.png(one)) if self.form.is_images else None,
                row=None if self.form.is_images else plain_types(one.tolist()),
                point=points[i],
                label=self.called(log_q_y[i]),
                probability=plain_types(float(np.exp(log_q_y[i].max()))),
                p=float(p[i]),
                chance=chance(float(p[i]), n, ALPHA, self.things, self.has_density),
            )
            for i, one in enumerate(raw)
        ]

    def called(self, log_q_y: NDArray[np.float64]) -> str:
        return "no class" if np.isnan(log_q_y).any() else self.run.class_names[int(log_q_y.argmax())]

    def placed(self, raw: Array) -> tuple[Output[Floats], Points]:
        """What the run says of a batch, and where its inputs lie on the map, from one pass."""
        seen = judge(self.run, raw, with_z=self.axes is not None)
        if self.axes is None or seen.z is None:
            return seen, [None] * len(raw)
        z = torch.from_numpy(seen.z).to(self.axes[0])
        return seen, told_points(on_axes(z, self.axes))

    def evidence(self, one: schema.Input, a: int, b: int) -> schema.Evidence:
        raw = self.raw(one)
        found = evidence_map(self.run, raw, a, b, STEPS, ENOUGH)
        if not np.isfinite([*found.values.flat, found.difference]).all():
            raise ValueError(
                "the numbers of this model overflow on this input, so nothing speaks for a class"
            )
        is_images = self.form.is_images
        return schema.Evidence(
            a=found.a,
            b=found.b,
            png=as_base64(encoded_png(overlay(found))) if is_images else None,
            values=None if is_images else found.values.tolist(),
            difference=found.difference,
            strongest=float(np.abs(found.values.sum(-1) if is_images else found.values).max()),
            missing=found.missing,
        )

    def interpolation(self, start: schema.Input, end: schema.Input, steps: int) -> schema.Way:
        _, a, b = self.model, self.raw(start), self.raw(end)
        between = interpolation(self.pipeline, a, b, steps)
        return schema.Way(inputs=self.judged(between))

    def judged(self, raw: Array) -> list[schema.Shown]:
        """What the model makes of inputs that it made up; of rows that overflow nothing can be said."""
        if not np.isfinite(raw).all():
            raise ValueError(
                "the numbers of this model overflow here; take other inputs, or a lower temperature"
            )
        return self.shown(raw, *self.placed(raw))

    def drift(self, one: schema.Input, kind: str, steps: int) -> schema.Way:
        known = [drift.name for drift in self.drifts()]
        if kind not in known:
            raise ValueError(
                f"there is no drift {kind!r} here" + (f"; there is {', '.join(known)}" * bool(known))
            )
        preprocess = self.pipeline.preprocess
        assert isinstance(preprocess, ImagePreprocess)
        raw = drifted(self.raw(one), preprocess.levels, kind, steps)
        amounts = np.linspace(0, DRIFTS[kind].most, steps).tolist()
        return schema.Way(
            inputs=self.shown(raw, *self.placed(raw)), amounts=amounts, unit=DRIFTS[kind].unit
        )

    def samples(self, k: int, n: int, temperature: float, seed: int) -> schema.Way:
        """Of class k."""
        if k >= len(self.run.class_names):
            raise Unknown(f"there is no class {k}; the last is {len(self.run.class_names) - 1}")
        y = torch.full((n,), k, device=self.pipeline.device)
        generator = torch.Generator(self.pipeline.device).manual_seed(seed)
        raw = decoded(self.pipeline, self.model.mixture.sample(y, temperature, generator))
        return schema.Way(inputs=self.judged(raw))

    def quality(self) -> schema.Quality:
        if self.is_estimator:
            return schema.Quality(
                missing="A saved estimator comes without an evaluation; ibinn evaluate takes runs of ibinn train."
            )
        return quality(self.folder, self.run.reference)


def opened_image(content: bytes, name: str) -> Image.Image:
    """An upload, if decoding it takes neither too much room nor too much time."""
    with image_header(content, name) as header:
        if header.width * header.height > MOST_PIXELS:
            raise ValueError(f"{name} has more than {MOST_PIXELS:,} pixels; make it smaller")
        if header.format in ("JPEG", "MPO") and content.count(b"\xff\xda") > MOST_SCANS:
            raise ValueError(f"{name} is coded in more than {MOST_SCANS} scans; save it again")
    return open_image(content, name)


def with_plain_names(run: Run) -> Run:
    """Names as JSON can hold them."""
    columns = run.feature_names and tuple(map(plain_text, run.feature_names))
    return dataclasses.replace(
        run, class_names=tuple(map(plain_text, run.class_names)), feature_names=columns
    )


def plain_text(name: str) -> str:
    """Without the bytes that some file names have and no encoding knows."""
    return name.encode("utf-8", "backslashreplace").decode()


def own_samples(saved: Saved, n: int = 1000, seed: int = 0) -> Inputs:
    """Inputs drawn from the model, for a map where the data is not at hand; none without a density.

    At the temperature that most images bear; those far outside of the range of pixels are left out.
    """
    model, pipeline = saved.run.pipeline.model, saved.run.pipeline
    if not isinstance(model, GenerativeClassifier):
        return Inputs(Part(np.zeros((0, 1)), np.zeros(0, np.int64)), "samples")
    generator = torch.Generator(pipeline.device).manual_seed(seed)
    y = model.mixture.sample_labels(n, generator)
    z = model.mixture.sample(y, calm_temperature(pipeline), generator)
    x = torch.cat([unclipped(pipeline, part) for part in torch.split(z, 100)])
    fine = ~strays(x) if saved.form.is_images else x.isfinite().all(1)
    return Inputs(Part(clipped(pipeline, x[fine]), y[fine].cpu().numpy()), "samples")


def told_points(points: NDArray[np.float64]) -> Points:
    return [point if math.isfinite(sum(point)) else None for point in points.tolist()]


def overlay(evidence: EvidenceMap) -> NDArray[np.uint8]:
    """(H, W, 4): blue where pixels speak for a, orange where for b, the more opaque the more they say."""
    values = evidence.values.sum(-1)
    strength = np.abs(values) / max(float(np.abs(values).max()), 1e-12)
    colours = np.where(values[..., None] > 0, np.array(FOR), np.array(AGAINST))
    return np.concatenate([colours, np.round(255 * strength[..., None])], axis=-1).astype(np.uint8)


def encoded_png(pixels: NDArray[np.uint8]) -> bytes:
    """Of (H, W, C) with C = 1, 3 or 4."""
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file, "PNG")
    return file.getvalue()


def as_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
