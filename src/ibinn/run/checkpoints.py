"""The checkpoint of an unfinished training: tensors and position, to resume from after an interruption."""

import contextlib
from pathlib import Path
from typing import Any

from torch import Tensor

from ibinn.config import RunConfig, from_toml, to_toml
from ibinn.run import RunError
from ibinn.run.folder import read_tensors, write_tensors

STATE = "checkpoint/state.safetensors"


def save_state(
    folder: Path, config: RunConfig, data_digest: str, tensors: dict[str, Tensor], position: dict[str, Any]
) -> None:
    """Write the checkpoint of a run."""
    path = folder / STATE
    path.parent.mkdir(exist_ok=True)
    about = {"config": to_toml(config), "data_digest": data_digest, "position": position}
    write_tensors(path, tensors, about)


def load_state(
    folder: Path, config: RunConfig, data_digest: str
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and position to resume from, or None without a checkpoint."""
    path = folder / STATE
    if not path.is_file():
        return None
    tensors, about = read_tensors(path)
    if from_toml(RunConfig, about["config"], str(path)) != config:
        raise RunError(
            f"{path} belongs to a run with other settings; delete it to start again, or use another --out"
        )
    if about.get("data_digest") != data_digest:
        raise RunError(
            f"{config.data} has changed since the run in {folder} was started; start again in another --out"
        )
    return tensors, about["position"]


def drop_state(folder: Path) -> None:
    """Remove the checkpoint of a finished run, and nothing else."""
    path = folder / STATE
    for file in (path, path.with_name(f".{path.name}.part")):
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # no such folder, or not empty
        path.parent.rmdir()
