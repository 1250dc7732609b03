"""A trained model as one ONNX file, for places without PyTorch: inputs in; probabilities, log q(x), p-value out.

Preprocessing and calibration are part of the graph. Input forms, code lengths, scores and ranks, which NumPy
computes elsewhere, are written here in torch's operations; the tests hold both against each other.
"""

import contextlib
import copy
import dataclasses
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ibinn import __version__
from ibinn._system import write_atomically
from ibinn._types import Floats
from ibinn.data.inputs import InputForm
from ibinn.data.preprocess import MARGIN, ImagePreprocess, TablePreprocess
from ibinn.models.classifier import GenerativeClassifier
from ibinn.models.output import TENSORS, Output
from ibinn.models.pipeline import Pipeline, Preprocess
from ibinn.ood.complexity import STEPS
from ibinn.ood.scores import ROUNDING, TIE, Reference
from ibinn.run.folder import form_of
from ibinn.run.trained import Run


def export_onnx(run: Run, path: Path, form: InputForm | None = None) -> None:
    """Write x -> probabilities (N, K), log_q_x (N,), p_value (N,) as an ONNX file.

    x are inputs of the given form; without one, levels (N, H, W, C) in uint8, or rows (N, D) in float64. log_q_x
    is in the units of x, and left out where the model has no density. p_value is the conformal one of the run's
    headline score; since a graph cannot raise errors, images out of range have the smallest, and are clipped. The
    file's metadata hold class_names and input as JSON, score, n_calibration, ibinn_version.
    """
    check_path(path)
    form = form or form_of(run)
    outputs = ["probabilities", "log_q_x", "p_value"]
    if not run.pipeline.model.has_density:
        outputs.remove("log_q_x")
    about = {
        "input": json.dumps(meaning(run, form)),
        "score": run.reference.headline,
        "n_calibration": str(len(run.reference.calibration_class)),
    }
    # Two inputs: from a single one the exporter would make a graph for single ones.
    x = torch.from_numpy(np.zeros((2, *form.shape), form.dtype))
    write_graph(path, Judge(run, form), {"x": x}, outputs, general(run) | about)


def export_sampler_onnx(run: Run, path: Path, form: InputForm | None = None) -> None:
    """Write y (N,) int64, noise (N, D) -> x, the input whose z is mu[y] + noise, as an ONNX file.

    x is what export_onnx takes. For samples, noise is a temperature times standard normal numbers, in float32 for
    images, float64 for tables. The metadata hold class_names, class_weights and output as JSON, ibinn_version.
    """
    check_path(path)
    form = form or form_of(run)
    model = run.pipeline.model
    if not isinstance(model, GenerativeClassifier):
        raise ValueError(
            f"a {run.config.method} model has no class means in z to sample around; export the sampler of an "
            f"ibinn, class-nll or class-nll-fixed model"
        )
    about = {
        "output": json.dumps(meaning(run, form)),
        "class_weights": json.dumps(model.mixture.log_w.detach().double().exp().tolist()),
    }
    noise = torch.zeros(2, run.pipeline.preprocess.n_dims, dtype=run.pipeline.dtype)
    inputs = {"y": torch.zeros(2, dtype=torch.int64), "noise": noise}
    write_graph(path, Sampler(run.pipeline, form), inputs, ["x"], general(run) | about)


def check_path(path: Path) -> None:
    if path.suffix != ".onnx":
        raise ValueError(f"{path} does not end in .onnx; write {path.with_suffix('.onnx')}")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} for {path.name}; make it first")


def general(run: Run) -> dict[str, str]:
    return {"class_names": json.dumps(run.class_names), "ibinn_version": __version__}


def meaning(run: Run, form: InputForm) -> dict[str, Any]:
    """What the numbers of an input are: kind, layout, shape, dtype, and what is known of pixels or columns."""
    known = {k: v for k, v in dataclasses.asdict(form).items() if v is not None}
    names = {} if run.feature_names is None else {"feature_names": run.feature_names}
    return {"kind": "images" if form.is_images else "table"} | known | names


def write_graph(
    path: Path, module: nn.Module, inputs: dict[str, Tensor], outputs: list[str], about: dict[str, str]
) -> None:
    """Write module, over any number N >= 1 of inputs, with its weights and the metadata."""
    check_extra()
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            module,
            tuple(inputs.values()),
            input_names=[*inputs],
            output_names=outputs,
            dynamic_shapes=tuple({0: "N"} for _ in inputs),
            custom_translation_table=TRANSLATIONS,
            verbose=False,
        )
    assert program is not None
    # What the exporter knows of each node, such as the places of source files, is nobody's business.
    import_module("onnx_ir.passes.common").ClearMetadataAndDocStringPass()(program.model)
    program.model.metadata_props.update(about)
    write_atomically(path, program.model_proto.SerializeToString())


def check_extra() -> None:
    try:
        for name in ("onnx", "onnxscript"):
            import_module(name)
    except ImportError as error:
        raise ValueError(
            "exporting needs more packages; pip install onnx onnxscript onnxruntime"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what the exporter says about itself; its errors are exceptions."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def exact_scalar(s: float, dtype: int = 1) -> Any:
    """torch.scalar_tensor in ONNX; the exporter's own rounds s to float32, whatever the dtype."""
    ir, op = import_module("onnx_ir"), import_module("onnxscript").opset18
    return op.Constant(value=ir.tensor(s, dtype=ir.DataType(dtype)))


def bisected(x: Any, boundaries: Any, out_int32: bool = False, right: bool = False) -> Any:
    """torch.bucketize in ONNX: the number of boundaries below x; the exporter's own is three times as long."""
    ir, op = import_module("onnx_ir"), import_module("onnxscript").opset18
    count = op.ConstantOfShape(op.Shape(x), value=ir.tensor([0]))
    left = boundaries.shape[0]
    while left:
        half = (left + 1) // 2
        middle = op.Gather(boundaries, op.Add(count, half - 1))
        below = op.LessOrEqual(middle, x) if right else op.Less(middle, x)
        count, left = op.Where(below, op.Add(count, half), count), left - half
    return count


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.scalar_tensor.default: exact_scalar,
    torch.ops.aten.bucketize.Tensor: bisected,
}


def for_a_graph(pipeline: Pipeline) -> Pipeline:
    """A copy on the CPU, in evaluation mode, of operations that ONNX has."""
    pipeline = copy.deepcopy(pipeline).cpu().eval()
    preprocess = pipeline.preprocess
    if isinstance(preprocess, TablePreprocess) and preprocess.whiten is not None:
        pipeline.preprocess = Whitened(preprocess, preprocess.whiten)
    return pipeline


class Whitened(TablePreprocess):
    """A table's preprocessing with determinant and inverse of its matrix computed beforehand."""

    matrix: Tensor
    back: Tensor
    log_det: Tensor

    def __init__(self, preprocess: TablePreprocess, matrix: Tensor) -> None:
        super().__init__(preprocess.mean, preprocess.std)
        self.register_buffer("matrix", matrix)
        self.register_buffer("back", torch.linalg.inv(matrix))
        self.register_buffer("log_det", preprocess(preprocess.mean[None])[1])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x)[0] @ self.matrix.T, self.log_det.expand(x.shape[0])

    def inverse(self, v: Tensor) -> Tensor:
        return super().inverse(v.to(self.back) @ self.back.T)


class Judge(nn.Module):
    """x (N, ...) of a form -> probabilities, log q(x) where there is one, p-value."""

    noise: Tensor

    def __init__(self, run: Run, form: InputForm) -> None:
        super().__init__()
        self.pipeline, self.form = for_a_graph(run.pipeline), form
        preprocess, reference = self.pipeline.preprocess, run.reference
        self.register_buffer("noise", preprocess.fixed_noise(0).to(preprocess.mean))
        self.score = Combined(reference, preprocess) if reference.headline == "combined" else Entropy()
        self.p_value = Ranked(reference.calibration[reference.headline])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        raw = as_raw(x, self.form)
        output = self.output(raw)
        score = torch.where(fits(x, self.form), self.score(in_double(output), raw), torch.inf)
        probabilities, p_value = output.log_q_y.exp(), self.p_value(score)
        if output.log_q_x is None:
            return probabilities, p_value
        return probabilities, output.log_q_x + self.form.log_scale, p_value

    def output(self, raw: Tensor) -> Output[Tensor]:
        """Pipeline.forward, with its noise drawn beforehand."""
        preprocess = self.pipeline.preprocess
        v, log_det = self.pipeline.normalised(preprocess.to_units(raw) + self.noise)
        output: Output[Tensor] = self.pipeline.model.output(v)
        if output.log_q_x is None:
            return output
        return dataclasses.replace(output, log_q_x=output.log_q_x + log_det + preprocess.log_scale)


def in_double(output: Output[Tensor]) -> Output[Tensor]:
    """In float64, as the scores are computed outside of a graph."""
    values = {name: getattr(output, name) for name in TENSORS}
    return Output(**{name: value.double() for name, value in values.items() if value is not None})


class Entropy(nn.Module):
    """metrics.ood.entropy_score."""

    def forward(self, output: Output[Tensor], raw: Tensor) -> Tensor:
        q = output.log_q_y.exp()
        return (q * torch.where(q > 0, output.log_q_y, 0.0)).sum(1).abs()


class Combined(nn.Module):
    """metrics.ood.combined_score."""

    def __init__(self, reference: Reference, preprocess: Preprocess) -> None:
        super().__init__()
        self.n_dims, self.h, self.shell = reference.n_dims, reference.h, reference.shell
        self.ranked = nn.ModuleDict({name: Ranked(values) for name, values in reference.parts.items()})
        self.code_length: CodeLength | None = None
        if isinstance(preprocess, ImagePreprocess):
            self.code_length = CodeLength(preprocess.image_shape, preprocess.levels)

    def forward(self, output: Output[Tensor], raw: Tensor) -> Tensor:
        parts, fisher, far = self.parts(output, raw), [], []
        for name, ranked in self.ranked.items():
            assert isinstance(ranked, Ranked)
            fisher.append(-2 * ranked(parts[name]).log())
            far.append(ranked.beyond(parts[name]))
        return torch.stack(fisher).sum(0) + TIE * torch.stack(far).mean(0)

    def parts(self, output: Output[Tensor], raw: Tensor) -> dict[str, Tensor]:
        """typicality, class_typicality and complexity, as far as there is a reference for them."""
        found = {}
        if self.h is not None and output.log_q_x is not None:
            nll = -output.log_q_x / self.n_dims
            found["typicality"] = (nll - self.h).abs()
            if self.code_length is not None:
                found["complexity"] = nll - self.code_length(raw) / self.n_dims
        if self.shell is not None and output.sq_distance is not None:
            found["class_typicality"] = (output.sq_distance / self.n_dims - self.shell).abs()
        return found


class Ranked(nn.Module):
    """Scores (N,) in float64 -> p-values as metrics.ood gives them, of ranks among held-out scores."""

    ascending: Tensor

    def __init__(self, held_out: Floats) -> None:
        super().__init__()
        ascending = np.sort(held_out)
        self.register_buffer("ascending", torch.from_numpy(ascending))
        self.highest = float(ascending[-1])
        self.scale = float(ascending[-1] - ascending[len(ascending) // 2]) or 1.0

    def forward(self, scores: Tensor) -> Tensor:
        s = strangest_if_nan(scores)
        s = torch.where(s.isfinite(), s - ROUNDING * s.abs().clamp_min(1), s)
        n_smaller, n = torch.bucketize(s, self.ascending), len(self.ascending)
        return (1 + n - n_smaller).double() / (n + 1)

    def beyond(self, scores: Tensor) -> Tensor:
        """metrics.ood.beyond."""
        excess = (strangest_if_nan(scores) - self.highest).clamp_min(0) / self.scale
        return 1 - 1 / (1 + excess)


def strangest_if_nan(scores: Tensor) -> Tensor:
    return torch.where(scores.isnan(), torch.inf, scores)


class CodeLength(nn.Module):
    """data.code_length.code_lengths: images (N, H, W, C) -> nats (N,), in float64."""

    edges: Tensor
    log_gamma: Tensor
    log_factorial: Tensor

    def __init__(self, shape: Sequence[int], levels: int) -> None:
        super().__init__()
        self.levels, self.n_contexts = levels, len(STEPS) + 1
        share, counts = 1 / levels, range(shape[0] * shape[1] + 1)
        edges = np.ceil(np.append(1, np.maximum(1, STEPS[1:] * levels)))
        log_factorial = [math.lgamma(n + 1) for n in counts]
        log_gamma = [math.lgamma(k + share) - math.lgamma(share) for k in counts]
        self.register_buffer("edges", torch.from_numpy(edges.astype(np.int64)))
        self.register_buffer("log_gamma", torch.tensor(log_gamma, dtype=torch.float64))
        self.register_buffer("log_factorial", torch.tensor(log_factorial, dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        w = images.long()
        if w.shape[3] == 3:
            red, green, blue = w.unbind(3)
            w = torch.stack([green, (red - green) % self.levels, (blue - green) % self.levels], 3)
        counts = self.counts(*self.residuals(w))
        return (self.log_factorial[counts.sum(2)] - self.log_gamma[counts].sum(2)).sum(1)

    def residuals(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """What the prediction leaves, modulo levels, and the context, both like w (N, H, W, C)."""
        frame = F.pad(w, (0, 0, 1, 0, 1, 0))
        left, above, corner = frame[:, 1:, :-1], frame[:, :-1, 1:], frame[:, :-1, :-1]
        low, high = torch.minimum(left, above), torch.maximum(left, above)
        between = torch.where(corner <= low, high, left + above - corner)
        predicted = torch.where(corner >= high, low, between)
        change = (left - corner).abs() + (above - corner).abs()
        context = (change[..., None] >= self.edges).sum(4)
        return (w - predicted) % self.levels, context + self.n_contexts * torch.arange(w.shape[3])

    def counts(self, residual: Tensor, context: Tensor) -> Tensor:
        """How often each residual occurs in each context, (N, contexts of all channels, levels)."""
        n_contexts = self.n_contexts * residual.shape[3]
        cell = (context * self.levels + residual).flatten(1)
        nothing = cell.new_zeros(cell.shape[0], n_contexts * self.levels)
        return nothing.scatter_add(1, cell, torch.ones_like(cell)).reshape(-1, n_contexts, self.levels)


class Sampler(nn.Module):
    """y (N,), noise (N, D) -> x of a form for z = mu[y] + noise."""

    def __init__(self, pipeline: Pipeline, form: InputForm) -> None:
        super().__init__()
        self.pipeline, self.form = for_a_graph(pipeline), form

    def forward(self, y: Tensor, noise: Tensor) -> Tensor:
        model, preprocess = self.pipeline.model, self.pipeline.preprocess
        assert isinstance(model, GenerativeClassifier)
        x = preprocess.inverse(model.decode(model.mixture.mu[y] + noise))
        if isinstance(preprocess, ImagePreprocess):
            return in_form(levels_of(x, preprocess), self.form)
        return x


def levels_of(x: Tensor, preprocess: ImagePreprocess) -> Tensor:
    """preprocess.to_raw, but a tensor; what is no number is black."""
    left, right, top, bottom = preprocess._padding
    x = x[:, :, top : x.shape[2] - bottom, left : x.shape[3] - right]
    half = 0.5 if preprocess.noise == "gaussian" else MARGIN / 2
    w = (torch.where(x.isnan(), 0.0, x) * preprocess.levels + half).floor()
    return w.clamp(0, preprocess.levels - 1).to(torch.uint8).permute(0, 2, 3, 1)


def as_raw(x: Tensor, form: InputForm) -> Tensor:
    """form.raw: levels (N, H, W, C) in uint8, or rows; pixels out of range are clipped, no numbers are black."""
    if form.levels is None or form.pixel_max is None:
        return x
    x = torch.where(x.isnan(), 0.0, x) if x.is_floating_point() else x.double()
    w = (x * ((form.levels - 1) / form.pixel_max)).round().clamp(0, form.levels - 1).to(torch.uint8)
    if form.layout == "HW":
        return w[..., None]
    return w.movedim(1, 3) if form.layout == "CHW" else w


def fits(x: Tensor, form: InputForm) -> Tensor:
    """Whether form.raw would take an input, (N,)."""
    if form.pixel_max is None:
        return x.new_ones(x.shape[0], dtype=torch.bool)
    share = x.double() / form.pixel_max
    return ((share >= -0.1) & (share <= 1.1)).flatten(1).all(1)


def in_form(w: Tensor, form: InputForm) -> Tensor:
    """form.back of levels (N, H, W, C)."""
    assert form.levels is not None
    assert form.pixel_max is not None
    x = w.double() * (form.pixel_max / (form.levels - 1))
    kind = torch.from_numpy(np.zeros(0, form.dtype)).dtype
    x = (x if kind.is_floating_point else x.round()).to(kind)
    if form.layout == "HW":
        return x[..., 0]
    return x.movedim(3, 1) if form.layout == "CHW" else x
