"""A trained model as one ONNX file, for places without PyTorch.

The graph holds preprocessing, model, OoD score and calibration: inputs in; probabilities, log q(x) and p-value
out. Only the conversion of input forms is written again here, since `InputForm` works on NumPy arrays and raises
errors; the tests compare the two.
"""

import contextlib
import copy
import dataclasses
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ibinn import __version__
from ibinn._system import write_atomically
from ibinn.data.inputs import InputForm
from ibinn.data.preprocess import TablePreprocess
from ibinn.models.latent_reference import LatentReference
from ibinn.models.output import apply
from ibinn.models.pipeline import Pipeline
from ibinn.ood.complexity import code_length
from ibinn.ood.scores import headline_p_value
from ibinn.run.trained import Run


def export_onnx(run: Run, path: Path) -> None:
    """Write a graph from inputs to probabilities, log q(x) and p-values.

    The graph maps x (N, ...) to probabilities (N, K), log_q_x (N,) and p_value (N,). log_q_x is in the units of x;
    a model without a density has no such output. p_value is the conformal p-value of the run's headline score. A
    graph cannot raise errors: images out of range are clipped and get the smallest p-value.

    The metadata of the file hold class_names and input as JSON, score, n_calibration and ibinn_version.

    Parameters
    ----------
    run : Run
        The trained model. x has the form `run.form`.
    path : Path
        Ends in .onnx.
    """
    check_path(path)
    form = run.form
    outputs = ["probabilities", "log_q_x", "p_value"]
    if not run.pipeline.model.has_density:
        outputs.remove("log_q_x")
    metadata = {
        "input": json.dumps(form_metadata(run, form)),
        "score": run.reference.headline,
        "n_calibration": str(len(run.reference.calibration_class)),
    }
    # Two inputs: from a single one the exporter would make a graph for single inputs.
    x = torch.from_numpy(np.zeros((2, *form.shape), form.dtype))
    write_graph(path, Predictor(run, form), {"x": x}, outputs, common_metadata(run) | metadata)


def export_sampler_onnx(run: Run, path: Path) -> None:
    """Write a graph from classes and noise to inputs: y (N,) int64, noise (N, D) -> x.

    For samples, noise is a temperature times standard normal numbers, in float32 for images and float64 for
    tables. The graph turns it into z ~ N(m_y, temperature^2 Sigma), as `IBINNClassifier.sample` does, but does not
    draw again. x is what the graph of `export_onnx` takes. The metadata hold class_names, class_weights and output
    as JSON, and ibinn_version.

    Parameters
    ----------
    run : Run
        A trained model with a density. x has the form `run.form`.
    path : Path
        Ends in .onnx.
    """
    check_path(path)
    pipeline, form = run.pipeline, run.form
    metadata = {
        "output": json.dumps(form_metadata(run, form)),
        "class_weights": json.dumps(pipeline.generative.mixture.log_w.detach().double().exp().tolist()),
    }
    noise = torch.zeros(2, pipeline.preprocess.n_dims, dtype=pipeline.dtype)
    inputs = {"y": torch.zeros(2, dtype=torch.int64), "noise": noise}
    write_graph(path, Sampler(pipeline, form), inputs, ["x"], common_metadata(run) | metadata)


def check_path(path: Path) -> None:
    if path.suffix != ".onnx":
        raise ValueError(f"{path} does not end in .onnx; write {path.with_suffix('.onnx')}")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} for {path.name}; make it first")


def common_metadata(run: Run) -> dict[str, str]:
    return {"class_names": json.dumps(run.class_names), "ibinn_version": __version__}


def form_metadata(run: Run, form: InputForm) -> dict[str, Any]:
    """Kind, layout, shape and dtype of an input; range of the pixels, or names of the columns."""
    fields = {"kind": "images" if form.is_images else "table"} | dataclasses.asdict(form)
    return {k: v for k, v in (fields | {"feature_names": run.feature_names}).items() if v is not None}


def write_graph(
    path: Path, module: nn.Module, inputs: dict[str, Tensor], outputs: list[str], metadata: dict[str, str]
) -> None:
    """Write module, for any number N >= 1 of inputs, with its weights and the metadata."""
    check_packages()
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
    # The exporter notes the paths of source files at each node, which do not belong into the file.
    import_module("onnx_ir.passes.common").ClearMetadataAndDocStringPass()(program.model)
    program.model.metadata_props.update(metadata)
    write_atomically(path, program.model_proto.SerializeToString())


def check_packages() -> None:
    try:
        for name in ("onnx", "onnxscript"):
            import_module(name)
    except ImportError as error:
        raise ValueError(
            "exporting needs more packages: pip install onnx onnxscript onnxruntime"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's warnings; its errors are exceptions."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def exact_scalar(s: float, dtype: int = 1) -> Any:
    """torch.scalar_tensor in ONNX; the exporter's own translation rounds s to float32 for every dtype."""
    ir, op = import_module("onnx_ir"), import_module("onnxscript").opset18
    return op.Constant(value=ir.tensor(s, dtype=ir.DataType(dtype)))


def bisection(x: Any, boundaries: Any, out_int32: bool = False, right: bool = False) -> Any:
    """torch.bucketize in ONNX: the number of boundaries below x. The exporter's own takes three times as long."""
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
    torch.ops.aten.bucketize.Tensor: bisection,
}


def exportable(pipeline: Pipeline) -> Pipeline:
    """A copy on the CPU, in evaluation mode, with operations that ONNX has and nothing left to derive."""
    pipeline = copy.deepcopy(pipeline).cpu().eval()
    for reference in pipeline.references.values():
        assert isinstance(reference, LatentReference)
        reference.prepare()
        reference.from_noise(torch.zeros(1, dtype=torch.int64), torch.zeros_like(reference.means[:1]))
    preprocess = pipeline.preprocess
    if isinstance(preprocess, TablePreprocess) and preprocess.whiten is not None:
        pipeline.preprocess = Whitened(preprocess, preprocess.whiten)
    return pipeline


class Whitened(TablePreprocess):
    """A table's preprocessing with its matrix inverted beforehand: ONNX has neither slogdet nor solve."""

    matrix: Tensor
    matrix_inverse: Tensor
    log_det: Tensor

    def __init__(self, preprocess: TablePreprocess, matrix: Tensor) -> None:
        super().__init__(preprocess.mean, preprocess.std)
        self.register_buffer("matrix", matrix)
        self.register_buffer("matrix_inverse", torch.linalg.inv(matrix))
        self.register_buffer("log_det", preprocess(preprocess.mean[None])[1])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x)[0] @ self.matrix.T, self.log_det.expand(x.shape[0])

    def inverse(self, v: Tensor) -> Tensor:
        return super().inverse(v.to(self.matrix_inverse) @ self.matrix_inverse.T)


class Predictor(nn.Module):
    """x (N, ...) of a form -> probabilities, log q(x) if the model has a density, p-value."""

    noise: Tensor

    def __init__(self, run: Run, form: InputForm) -> None:
        super().__init__()
        self.pipeline, self.form, self.reference = exportable(run.pipeline), form, run.reference
        # Drawn beforehand: a graph has no generator.
        self.register_buffer(
            "noise", run.pipeline.preprocess.fixed_noise(0).to(self.pipeline.preprocess.mean)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        raw, preprocess = as_raw(x, self.form), self.pipeline.preprocess
        output = self.pipeline.output(*self.pipeline.normalised(preprocess.to_units(raw) + self.noise))
        output = self.pipeline.with_evidence(output)
        evidence = apply(Tensor.double, output)  # the scores are computed in float64, as outside of a graph
        if preprocess.levels is not None:
            evidence = dataclasses.replace(evidence, code_length=code_length(raw, preprocess.levels))
        p_value = headline_p_value(evidence, is_in_range(x, self.form), self.reference)
        if output.log_q_x is None:
            return output.log_p_y.exp(), p_value
        return output.log_p_y.exp(), output.log_q_x + self.form.log_scale, p_value


class Sampler(nn.Module):
    """y (N,), noise (N, D) -> x of a form, for z = m_y + Sigma^(1/2) noise."""

    def __init__(self, pipeline: Pipeline, form: InputForm) -> None:
        super().__init__()
        self.pipeline, self.form = exportable(pipeline), form
        model, self.reference = self.pipeline.generative, self.pipeline.reference("drawn")
        self.flow = model.flow if self.reference is None else model.local_flow

    def forward(self, y: Tensor, noise: Tensor) -> Tensor:
        mu, preprocess = self.pipeline.generative.mixture.mu, self.pipeline.preprocess
        z = mu[y] + noise if self.reference is None else self.reference.from_noise(y, noise)
        return in_form(preprocess.to_levels(preprocess.inverse(self.flow.inverse(z))), self.form)


def as_raw(x: Tensor, form: InputForm) -> Tensor:
    """form.raw(x): levels (N, H, W, C) in uint8, or rows. Pixels out of range are clipped, NaN becomes 0."""
    if form.levels is None or form.pixel_max is None:
        return x
    x = torch.where(x.isnan(), 0.0, x) if x.is_floating_point() else x.double()
    w = (x * ((form.levels - 1) / form.pixel_max)).round().clamp(0, form.levels - 1).to(torch.uint8)
    if form.layout == "HW":
        return w[..., None]
    return w.movedim(1, 3) if form.layout == "CHW" else w


def is_in_range(x: Tensor, form: InputForm) -> Tensor:
    """Whether form.raw would accept each input, (N,)."""
    if form.pixel_max is None:
        return x.new_ones(x.shape[0], dtype=torch.bool)
    share = x.double() / form.pixel_max
    return ((share >= -0.1) & (share <= 1.1)).flatten(1).all(1)


def in_form(raw: Tensor, form: InputForm) -> Tensor:
    """form.back(raw) of levels (N, H, W, C) or rows."""
    if form.levels is None or form.pixel_max is None:
        return raw
    x = raw.double() * (form.pixel_max / (form.levels - 1))
    dtype = torch.from_numpy(np.zeros(0, form.dtype)).dtype
    x = (x if dtype.is_floating_point else x.round()).to(dtype)
    if form.layout == "HW":
        return x[..., 0]
    return x.movedim(3, 1) if form.layout == "CHW" else x
