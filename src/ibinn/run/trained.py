"""A trained model with everything needed to use it."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np

from ibinn._types import Array
from ibinn.config import RunConfig
from ibinn.data.dataset import Dataset
from ibinn.data.inputs import InputForm
from ibinn.models.pipeline import Pipeline
from ibinn.ood.scores import Reference
from ibinn.run.facts import TrainingFacts


@dataclass(frozen=True, eq=False)
class Run:
    """A trained model with everything needed to use it, without its training data.

    `ibinn train` and `IBINNClassifier.save` write it to a folder, and `load_run` reads it from there.

    Attributes
    ----------
    config : RunConfig
        The settings of the training.
    pipeline : Pipeline
        Preprocessing and network.
    form : InputForm
        Layout, shape and range of the inputs as the user has them.
    classes : array of shape (K,)
        The labels as the user knows them. Their texts are `class_names`.
    reference : Reference
        Scores of the validation and calibration splits, which p-values are computed from.
    facts : TrainingFacts
        Facts about the training, such as `n_train` and `epochs`.
    feature_names : tuple of str or None
        Names of a table's columns.
    has_named_columns : bool
        True if the user gave these names, False if they are numbered.
    parameters : dict
        Parameters of the `IBINNClassifier` that was saved. Empty for a run of `ibinn train`.
    """

    config: RunConfig
    pipeline: Pipeline
    form: InputForm
    classes: Array
    reference: Reference
    facts: TrainingFacts
    feature_names: tuple[str, ...] | None = None
    has_named_columns: bool = False
    parameters: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def trained_on(
        cls,
        dataset: Dataset,
        config: RunConfig,
        pipeline: Pipeline,
        reference: Reference,
        facts: TrainingFacts,
    ) -> Self:
        """A run whose inputs have the form of the data set, and whose classes are texts."""
        return cls(
            config=config,
            pipeline=pipeline,
            form=pipeline.preprocess.form,
            classes=np.array(dataset.class_names),
            reference=reference,
            facts=facts,
            feature_names=dataset.feature_names,
            has_named_columns=dataset.feature_names is not None,
        )

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The classes as text, in their order."""
        return tuple(str(label) for label in self.classes.tolist())

    @property
    def is_estimator(self) -> bool:
        """Whether `IBINNClassifier.save` wrote this run, so that its data has no name to load it by."""
        return bool(self.parameters)
