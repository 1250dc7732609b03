"""A trained model on disk: the run folder, its results, its card."""

from pathlib import Path

CONFIG, MODEL, CARD = "config.toml", "model.safetensors", "README.md"
HISTORY, RESULTS = "history.jsonl", "results.json"
FORMAT = 3  # of the run folder


class RunError(ValueError):
    """A run folder cannot be read or written."""


def check_format(path: Path, found: object) -> None:
    """RunError unless a file has the format of this version."""
    if found != FORMAT:
        raise RunError(
            f"{path} has format {found} but this version of ibinn reads format {FORMAT}; train the model again"
        )
