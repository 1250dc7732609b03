"""A trained estimator as a folder: the files of a run, what its arrays look like, and a model card. No pickle."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ibinn
from ibinn.card import model_card
from ibinn.checkpoint import FORMAT, Run, RunError, load_run, save_run, write_config
from ibinn.data.dataset import Array
from ibinn.data.inputs import InputForm
from ibinn.data.preprocess import ImagePreprocess
from ibinn.files import MODEL, write_whole

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
    write_whole(folder / CARD, card)
    write_whole(folder / ABOUT, json.dumps(about, indent=1, ensure_ascii=False) + "\n")


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
