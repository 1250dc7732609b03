"""The run folder: config.toml, model.safetensors and README.md (the model card). No pickle.

`ibinn train` and `IBINNClassifier.save` write the same format. model.safetensors holds all tensors of
preprocessing and network and the calibration scores. Its metadata hold everything else, so this file alone is
enough to use the model. A checksum covers the whole file.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ibinn._system import choose_device, write_atomically
from ibinn._types import Array
from ibinn.config import ConfigError, RunConfig, from_dict, from_toml, to_toml
from ibinn.data.inputs import InputForm
from ibinn.data.preprocess import ImagePreprocess, Preprocess, TablePreprocess
from ibinn.formats import finite_or_none, parameter_to_json
from ibinn.models.latent_reference import LatentNoise, LatentReference
from ibinn.models.methods import build_model
from ibinn.models.pipeline import Pipeline
from ibinn.ood.scores import Reference
from ibinn.run import CARD, CONFIG, FORMAT, MODEL, RunError, check_format
from ibinn.run.card import model_card
from ibinn.run.facts import TrainingFacts
from ibinn.run.settings import write_config
from ibinn.run.trained import Run

CHECKSUM_BYTES = 32
NO_CHECKSUM = "0" * 2 * CHECKSUM_BYTES  # stands in the place of the checksum while it is computed


# --- a run -------------------------------------------------------------------------------------------


def save_run(folder: Path, run: Run) -> None:
    """Write a run to a folder. It counts as finished once model.safetensors is there.

    Parameters
    ----------
    folder : Path
        Created if it does not exist.
    run : Run
        Its classes must be numbers or texts.
    """
    check_saveable(run.classes)
    # Training holds a lock on config.toml, which replacing the file would undo.
    if not (folder / CONFIG).is_file() or (folder / CONFIG).read_text(encoding="utf-8") != to_toml(
        run.config
    ):
        write_config(folder, run.config)
    write_atomically(folder / CARD, model_card(run).encode("utf-8", "backslashreplace"))
    reference, preprocess = run.reference, run.pipeline.preprocess
    tensors = {f"pipeline.{name}": value for name, value in run.pipeline.state_dict().items()}
    about = {
        "config": to_toml(run.config),
        "form": dataclasses.asdict(run.form),
        "preprocess": preprocess.settings,
        "classes": run.classes.tolist(),
        "classes_dtype": run.classes.dtype.str,
        "feature_names": run.feature_names,
        "has_named_columns": run.has_named_columns,
        "temperature": run.pipeline.temperature,
        "farthest": finite_or_none(run.pipeline.farthest),
        "h": reference.h,
        "shell": reference.shell,
        "facts": dataclasses.asdict(run.facts),
        "parameters": {name: parameter_to_json(value) for name, value in run.parameters.items()},
    }
    write_tensors(folder / MODEL, tensors | reference_tensors(reference), about)


def load_run(folder: Path, device: str = "cpu") -> Run:
    """Read a trained model from its folder.

    Parameters
    ----------
    folder : Path
        A folder that `ibinn train` or `IBINNClassifier.save` wrote.
    device : {"cpu", "cuda", "mps", "auto"}, default="cpu"
        Where to compute. "auto" takes a GPU if there is one.

    Returns
    -------
    Run
        The model, in evaluation mode.

    Raises
    ------
    RunError
        If the folder holds no finished run, or one that is damaged or of another format.

    Examples
    --------
    >>> from ibinn.pretrained import pretrained_folder
    >>> from ibinn.run.folder import load_run
    >>> run = load_run(pretrained_folder("digits"))
    >>> run.config.method, run.form.shape, run.class_names[:3]
    ('ibinn', (8, 8, 1), ('0', '1', '2'))
    """
    path = folder / MODEL
    if not path.is_file():
        if (folder / CONFIG).is_file():
            raise RunError(
                f"the run in {folder} is not finished; continue it with: ibinn train ... --resume"
            )
        raise RunError(f"{folder} is not a run folder: it has no {MODEL}; ibinn train creates one")
    tensors, about = read_tensors(path)
    try:
        config = from_toml(RunConfig, about["config"], f"the configuration in {path}")
        form = from_dict(InputForm, about["form"], f"the input form in {path}")
        names = about["feature_names"]
        pipeline = rebuild(config, about, with_prefix("pipeline", tensors))
        run = Run(
            config=config,
            pipeline=pipeline,
            form=form,
            classes=np.array(about["classes"], dtype=about["classes_dtype"]),
            reference=stored_reference(tensors, about, pipeline.preprocess.n_dims),
            facts=from_dict(TrainingFacts, about["facts"], f"the training facts in {path}"),
            feature_names=None if names is None else tuple(names),
            has_named_columns=about["has_named_columns"],
            parameters=about["parameters"],
        )
    except ConfigError as error:
        raise RunError(f"{error}; train the model again") from error
    except (KeyError, TypeError, RuntimeError) as error:
        raise RunError(f"{path} does not fit this version of ibinn; train the model again") from error
    run.pipeline.to(choose_device(device, form.is_images))
    return run


def check_free(folder: Path) -> None:
    """RunError unless an estimator can be saved here: in a new or empty folder, or over one saved before."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / MODEL).is_file() or not read_tensors(folder / MODEL)[1]["parameters"]:
        raise RunError(f"{folder} is not empty and holds no saved estimator; use another folder")


def check_saveable(classes: Array) -> None:
    """RunError unless the classes are numbers or texts."""
    texts = classes.dtype.kind == "O" and all(isinstance(label, str) for label in classes)
    if classes.ndim != 1 or not (classes.dtype.kind in "iufbU" or texts):
        raise RunError(f"classes of type {classes.dtype} cannot be saved; use numbers or texts as labels")


# --- its parts ---------------------------------------------------------------------------------------


def reference_tensors(reference: Reference) -> dict[str, Tensor]:
    """The arrays of a reference, by name."""
    arrays: dict[str, Array] = {f"parts.{name}": values for name, values in reference.parts.items()}
    arrays |= {f"calibration.{name}": values for name, values in reference.calibration.items()}
    arrays |= {name: getattr(reference, name) for name in ("calibration_class", "label_scores")}
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


def stored_reference(tensors: Mapping[str, Tensor], about: dict[str, Any], n_dims: int) -> Reference:
    """The reference that `reference_tensors` took apart."""
    arrays = {name: value.numpy() for name, value in tensors.items()}
    return Reference(
        n_dims=n_dims,
        h=about["h"],
        shell=about["shell"],
        parts=with_prefix("parts", arrays),
        calibration=with_prefix("calibration", arrays),
        calibration_class=arrays["calibration_class"],
        label_scores=arrays["label_scores"],
    )


def with_prefix(prefix: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """The entries named PREFIX.NAME, by NAME."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in named.items() if name.startswith(start)}


def rebuild(config: RunConfig, about: dict[str, Any], state: dict[str, Tensor]) -> Pipeline:
    """The pipeline from its settings and tensors, in evaluation mode."""
    is_images = bool(about["preprocess"])
    with default_dtype(torch.float32 if is_images else torch.float64):
        preprocess = make_preprocess(about["preprocess"], with_prefix("preprocess", state))
        pipeline = Pipeline(preprocess, build_model(config, preprocess.shape, len(about["classes"])))
    for noise in get_args(LatentNoise):
        if stored := with_prefix(f"references.{noise}", state):
            whole = {name: value.to(pipeline.dtype) for name, value in stored.items()}
            pipeline.references[noise] = LatentReference.stored(whole)
    pipeline.load_state_dict(state)
    pipeline.temperature = about["temperature"]
    pipeline.farthest = math.inf if about["farthest"] is None else about["farthest"]
    return pipeline.eval()


def make_preprocess(settings: dict[str, Any], buffers: dict[str, Tensor]) -> Preprocess:
    """The preprocessing of images, or that of tables, which has no settings."""
    if not settings:
        return TablePreprocess(**buffers)
    mean, std = buffers["mean"].flatten(), buffers["std"].flatten()
    arguments = {name: value for name, value in settings.items() if name != "shape"}
    return ImagePreprocess(
        tuple(settings["shape"]), **arguments, mean=mean, std=std, rise=buffers.get("rise")
    )


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype within a with-block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


# --- files -------------------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write a safetensors file with `about` as JSON in its metadata, and a checksum of the whole file."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    # A single entry: safetensors writes several in an order that changes, and the same model is the same bytes.
    entry = f"{NO_CHECKSUM} {json.dumps({'format': FORMAT, **about})}"
    content = save(plain, metadata={"ibinn": entry})
    write_atomically(path, content.replace(NO_CHECKSUM.encode(), checksum_of(content), 1))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and metadata of a file; RunError if it is damaged, foreign or of another format."""
    content = path.read_bytes()
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        checksum, _, text = header["__metadata__"]["ibinn"].partition(" ")
        about: dict[str, Any] = json.loads(text)
        found = about.pop("format")
        blank = content.replace(checksum.encode(), NO_CHECKSUM.encode(), 1)
        tensors = load(content)
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path} is damaged or was not written by ibinn; restore it from a copy, or delete it"
        ) from error
    check_format(path, found)
    if checksum_of(blank) != checksum.encode():
        raise RunError(f"{path} is damaged: its checksum is wrong; restore it from a copy, or delete it")
    return tensors, about


def checksum_of(content: bytes) -> bytes:
    """Hexadecimal BLAKE2b of a file whose own checksum is blank."""
    return hashlib.blake2b(content, digest_size=CHECKSUM_BYTES).hexdigest().encode()
