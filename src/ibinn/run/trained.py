"""A trained model with what belongs to it."""

import dataclasses
from typing import Any

from ibinn.config import RunConfig
from ibinn.models.pipeline import Pipeline
from ibinn.ood.scores import Reference


class RunError(ValueError):
    """Something is wrong with a run folder: one sentence, with the way out."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A trained model with what belongs to it; feature_names are those of a table's columns.

    facts: what is worth knowing about the training, such as its seconds.
    """

    config: RunConfig
    pipeline: Pipeline
    class_names: tuple[str, ...]
    reference: Reference
    facts: dict[str, Any]
    feature_names: tuple[str, ...] | None = None
