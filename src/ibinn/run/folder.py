"""The run folder: config.toml, model.safetensors, history.jsonl, checkpoint/. No pickle, nothing half-written.

model.safetensors holds all tensors of preprocessing and model, and the calibration scores; its metadata hold what
else is needed to use the model, so that the file alone, without the training data, is enough.
"""

import contextlib
import dataclasses
import hashlib
import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

import ibinn
from ibinn._system import write_atomically
from ibinn._types import Array
from ibinn.config import RunConfig, from_toml, to_toml
from ibinn.data.inputs import InputForm
from ibinn.data.preprocess import ImagePreprocess, TablePreprocess
from ibinn.models.methods import build_model
from ibinn.models.pipeline import Pipeline, Preprocess
from ibinn.ood.scores import Reference
from ibinn.run import CONFIG, HISTORY, MODEL
from ibinn.run.card import model_card
from ibinn.run.trained import Run, RunError

FORMAT = 1  # of the run folder


STATE = "checkpoint/state.safetensors"


def save_run(folder: Path, run: Run) -> None:
    """Write model.safetensors, which makes the run a finished one."""
    tensors = {f"pipeline.{k}": v for k, v in run.pipeline.state_dict().items()}
    tensors |= reference_tensors(run.reference)
    about = {
        "config": to_toml(run.config),
        "preprocess": preprocess_settings(run.pipeline.preprocess),
        "class_names": run.class_names,
        "feature_names": run.feature_names,
        "h": run.reference.h,
        "shell": run.reference.shell,
        "facts": run.facts,
    }
    write_tensors(folder / MODEL, tensors, about)


def load_run(folder: Path, device: torch.device | str = "cpu") -> Run:
    """The trained model of a run folder, in evaluation mode."""
    path = folder / MODEL
    if not path.is_file():
        if (folder / CONFIG).is_file():
            raise RunError(f"the run in {folder} is not finished; go on with: ibinn train ... --resume")
        raise RunError(f"{folder} is no run folder: it holds no {MODEL}; ibinn train makes one")
    tensors, about = read_tensors(path)
    try:
        config = from_toml(RunConfig, about["config"], f"the configuration in {path}")
        pipeline = rebuild(config, about, of_group(tensors, "pipeline")).to(device)
        reference = Reference(
            pipeline.preprocess.n_dims,
            about["h"],
            about["shell"],
            {name: values.numpy() for name, values in of_group(tensors, "parts").items()},
            {name: values.numpy() for name, values in of_group(tensors, "calibration").items()},
            tensors["calibration_class"].numpy(),
            tensors["label_scores"].numpy(),
        )
        names = about["feature_names"]
        columns = None if names is None else tuple(names)
        return Run(config, pipeline, tuple(about["class_names"]), reference, about["facts"], columns)
    except (KeyError, TypeError, RuntimeError) as error:
        raise RunError(f"{path} does not fit this version of ibinn; train the model again") from error


def reference_tensors(reference: Reference) -> dict[str, Tensor]:
    groups = {"parts": reference.parts, "calibration": reference.calibration}
    tensors = {f"{group}.{k}": torch.from_numpy(v) for group, vs in groups.items() for k, v in vs.items()}
    names = ("calibration_class", "label_scores")
    return tensors | {name: torch.from_numpy(getattr(reference, name)) for name in names}


def of_group(tensors: dict[str, Tensor], group: str) -> dict[str, Tensor]:
    """Those called group.NAME, by NAME."""
    return {
        name.removeprefix(f"{group}."): value
        for name, value in tensors.items()
        if name.startswith(f"{group}.")
    }


def rebuild(config: RunConfig, about: dict[str, Any], state: dict[str, Tensor]) -> Pipeline:
    """The pipeline from its settings and tensors, in evaluation mode."""
    dtype = torch.float64 if about["preprocess"]["kind"] == "table" else torch.float32
    with default_dtype(dtype):
        preprocess = make_preprocess(about["preprocess"], state)
        pipeline = Pipeline(preprocess, build_model(config, preprocess.shape, len(about["class_names"])))
        pipeline.load_state_dict(state)
    return pipeline.eval()


class default_dtype:
    """torch's default dtype for the time of a with-block."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __enter__(self) -> None:
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *error: object) -> None:
        torch.set_default_dtype(self.before)


def preprocess_settings(preprocess: Preprocess) -> dict[str, Any]:
    if isinstance(preprocess, TablePreprocess):
        return {"kind": "table"}
    return {"kind": "images", **preprocess.settings}


def make_preprocess(settings: dict[str, Any], state: dict[str, Tensor]) -> Preprocess:
    """Shapes of the buffers come from the state, and so do their values."""
    settings = dict(settings)
    buffers = of_group(state, "preprocess")
    if settings.pop("kind") == "table":
        return TablePreprocess(**buffers)
    settings["shape"] = tuple(settings["shape"])
    rise = buffers.get("rise")
    return ImagePreprocess(
        **settings, mean=buffers["mean"].flatten(), std=buffers["std"].flatten(), rise=rise
    )


def write_config(folder: Path, config: RunConfig) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / CONFIG, to_toml(config))


def read_config(path: Path) -> RunConfig:
    """A config.toml; one of another format is refused."""
    text = path.read_text(encoding="utf-8")
    config = from_toml(RunConfig, text, str(path))
    if config.format != FORMAT:
        raise RunError(
            f"{path} has format {config.format} but this version of ibinn knows {FORMAT}; "
            f"train again, or use the version that wrote it"
        )
    return config


def write_history(folder: Path, history: list[dict[str, Any]]) -> None:
    write_atomically(folder / HISTORY, "".join(json.dumps(line) + "\n" for line in history))


def save_state(
    folder: Path, config: RunConfig, data_digest: str, tensors: dict[str, Tensor], position: dict[str, Any]
) -> None:
    """The checkpoint of a run that is not finished."""
    path = folder / STATE
    path.parent.mkdir(exist_ok=True)
    about = {"config": to_toml(config), "data_digest": data_digest, "position": position}
    write_tensors(path, tensors, about)


def load_state(
    folder: Path, config: RunConfig, data_digest: str
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and position to go on from; None where there is no checkpoint."""
    path = folder / STATE
    if not path.is_file():
        return None
    tensors, about = read_tensors(path)
    if from_toml(RunConfig, about["config"], str(path)) != config:
        raise RunError(
            f"{path} belongs to another run, with other settings; delete it to start afresh, or use another --out"
        )
    if about.get("data_digest") != data_digest:
        raise RunError(
            f"{config.data} has changed since the run in {folder} was begun; start afresh in another --out"
        )
    return tensors, about["position"]


def drop_state(folder: Path) -> None:
    """Remove the checkpoint of a finished run, and nothing else."""
    path = folder / STATE
    for mine in (path, path.with_name(f".{path.name}.part")):
        mine.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it is not there, or not empty
        path.parent.rmdir()


def write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """A safetensors file; what is said about the tensors is JSON in its metadata, with a checksum over all."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps({"format": FORMAT, **about})
    # A single entry: safetensors writes several in an order that changes, and the same model is the same bytes.
    metadata = {"ibinn": f"{checksum(plain, text)} {text}"}
    write_atomically(path, save(plain, metadata=metadata))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and what was said about them; RunError for a file that is damaged, foreign or of another format."""
    content = path.read_bytes()
    try:
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        sum_there, _, text = header["__metadata__"]["ibinn"].partition(" ")
        about: dict[str, Any] = json.loads(text)
        whole = sum_there == str(checksum(tensors, text))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise RunError(
            f"{path} is damaged, or was not written by ibinn; delete it, or restore it from a copy"
        ) from error
    if about.get("format") != FORMAT:
        raise RunError(
            f"{path} has format {about.get('format')} but this version of ibinn knows {FORMAT}; "
            f"train again, or use the version that wrote it"
        )
    if not whole:
        raise RunError(f"{path} is damaged: its checksum is wrong; delete it, or restore it from a copy")
    return tensors, about


def checksum(tensors: dict[str, Tensor], text: str) -> int:
    """CRC-32 over the text, and over name, kind and bytes of each tensor."""
    total = zlib.crc32(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        total = zlib.crc32(f"{name} {value.dtype} {tuple(value.shape)}".encode(), total)
        total = zlib.crc32(value.numpy().tobytes(), total)
    return total


ABOUT, CARD = "estimator.json", "README.md"


class Saved(NamedTuple):
    """A trained model, the form of its inputs and the labels as a person knows them, and the parameters.

    named: whether the columns of its table have names that a person gave.
    """

    run: Run
    form: InputForm
    classes: Array
    parameters: dict[str, Any]
    named: bool = False


def save_model(folder: Path, saved: Saved) -> None:
    """Write the folder; estimator.json, last, names the checksum of the tensors that it belongs to."""
    check_classes(saved.classes)
    if folder.exists() and not is_own(folder):
        raise RunError(f"{folder} is not empty, and holds no saved model; give another folder")
    # Without the seconds: the same data and seed give the same bytes.
    facts = {k: v for k, v in saved.run.facts.items() if k != "train_seconds"}
    run = dataclasses.replace(saved.run, facts=facts | {"estimator": True})
    card = model_card(run, saved.form)
    write_config(folder, run.config)
    save_run(folder, run)
    about = {
        "format": FORMAT,
        "ibinn": ibinn.__version__,
        "model": digest(folder / MODEL),
        "parameters": {name: plain(value) for name, value in saved.parameters.items()},
        "classes": saved.classes.tolist(),
        "classes_dtype": saved.classes.dtype.str,
        "form": dataclasses.asdict(saved.form),
        "named": saved.named,
    }
    write_atomically(folder / CARD, card)
    write_atomically(folder / ABOUT, json.dumps(about, indent=1, ensure_ascii=False) + "\n")


def load_model(folder: Path, device: str = "cpu") -> Saved:
    """What save_model wrote, or a run folder of ibinn train; RunError for anything damaged or foreign."""
    run = load_run(folder, device)
    path = folder / ABOUT
    if not run.facts.get("estimator"):
        named = run.feature_names is not None
        return Saved(run, form_of(run), np.array(run.class_names), {"gamma": run.config.gamma}, named)
    if not path.is_file():
        raise RunError(f"{folder} lacks {ABOUT}; restore it from a copy, or save the model again")
    try:
        about = json.loads(path.read_bytes())
        if about["format"] != FORMAT:
            raise RunError(
                f"{path} has format {about['format']} but this version of ibinn knows {FORMAT}; use the "
                f"version that wrote it"
            )
        form = InputForm(**about["form"] | {"shape": tuple(about["form"]["shape"])})
        classes = np.array(about["classes"], dtype=np.dtype(about["classes_dtype"]))
        check_classes(classes)
        belongs = about["model"] == digest(folder / MODEL) and len(classes) == len(run.class_names)
        parameters, named = dict(about["parameters"]), bool(about["named"])
    except RunError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged, or was not written by ibinn; restore it from a copy") from error
    if not belongs:
        raise RunError(f"{path} does not belong to the {MODEL} beside it; restore both from a copy")
    return Saved(run, form, classes, parameters, named)


def form_of(run: Run) -> InputForm:
    """How the inputs of ibinn train look: levels (N, H, W, C), or rows."""
    preprocess = run.pipeline.preprocess
    if not isinstance(preprocess, ImagePreprocess):
        return InputForm("rows", preprocess.shape, "float64")
    return InputForm("HWC", preprocess.image_shape, "uint8", preprocess.levels, preprocess.levels - 1.0)


def is_own(folder: Path) -> bool:
    """Whether a folder may be written to: an empty one, or one that a model was saved in before."""
    return folder.is_dir() and ((folder / ABOUT).is_file() or not any(folder.iterdir()))


def check_classes(classes: Array) -> None:
    texts = classes.dtype.kind == "O" and all(isinstance(label, str) for label in classes)
    if classes.ndim != 1 or not (classes.dtype.kind in "iufbU" or texts):
        raise RunError(f"classes of type {classes.dtype} cannot be saved; use numbers or names as labels")


def digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def plain(value: Any) -> Any:
    """A parameter as JSON has it; what it has not, such as a generator of random numbers, becomes null."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value if isinstance(value, str | int | float | bool) else None
