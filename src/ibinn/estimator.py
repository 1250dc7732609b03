"""The scikit-learn estimator: arrays in; classes, probabilities, densities, p-values and samples out."""

import operator
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, OutlierMixin, clone
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from ibinn._system import chosen_device
from ibinn._types import Array, Floats
from ibinn.config import ALPHA, Device, Precision, Size, convert
from ibinn.data.dataset import Dataset, Part, checked
from ibinn.data.inputs import InputForm
from ibinn.data.splits import Splits, split_rows
from ibinn.inference.attribution import EvidenceMap, evidence_map
from ibinn.inference.explain import Explanation, explain
from ibinn.inference.judge import judge
from ibinn.inference.latent import clipped, decoded, encoded, interpolation, strays, unclipped
from ibinn.mixture import log_priors
from ibinn.models.classifier import GenerativeClassifier
from ibinn.models.pipeline import chunks
from ibinn.ood.conformal import mondrian_p_values, prediction_sets, warn_if_coarse
from ibinn.ood.scores import hardly_less
from ibinn.run.folder import Saved, load_model, save_model
from ibinn.run.trained import Run, RunError
from ibinn.training.loop import Stopped
from ibinn.training.options import TrainingOptions
from ibinn.training.progress import ConsoleObserver, WarningObserver
from ibinn.training.recipes import configure, default_size, override
from ibinn.training.trainer import train

MANY_IMAGES = 20_000  # colour ones, from which on the larger network pays


class IBINNClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that also knows the density of its inputs, and says when one is unlike the training data.

    Rows (N, D), or images (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels. Rows are computed in
    float64, images in float32. A tenth of the examples, more where there are few, is kept for choosing the best
    epoch, and as much for the p-values.

    gamma: the knob between density (0) and classes (inf). size: tiny, small, base or paper; by default what suits
    the data. epochs, batch_size: by default the recipe's. priors: class weights p(y) in the order of classes_;
    None takes those of the data, "uniform" equal ones. levels, pixel_max: what the pixels of images mean: so many
    values from 0 to pixel_max, inferred with a notice where it is None. settings: others, as in
    ("recipe.learning_rate=0.001", "network.dense_blocks=4"). verbose=1 prints progress.
    """

    def __init__(
        self,
        gamma: float = 1.0,
        *,
        size: Size | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        priors: Literal["uniform"] | Sequence[float] | None = None,
        levels: int = 256,
        pixel_max: float | None = None,
        settings: Sequence[str] = (),
        device: str = "auto",
        precision: Precision = "float32",
        constant_memory: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.gamma = gamma
        self.size = size
        self.epochs = epochs
        self.batch_size = batch_size
        self.priors = priors
        self.levels = levels
        self.pixel_max = pixel_max
        self.settings = settings
        self.device = device
        self.precision = precision
        self.constant_memory = constant_memory
        self.random_state = random_state
        self.verbose = verbose

    # Learning

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the classifier.

        Parameters
        ----------
        X : array-like of shape (N, D), (N, H, W), (N, H, W, C) or (N, C, H, W)
            Training inputs: rows, or images with 1 or 3 channels.
        y : array-like of shape (N,)
            Class labels, of any type that can be sorted.

        Returns
        -------
        IBINNClassifier
            The fitted classifier itself.
        """
        x, y = self._training_arrays(X, y)
        form = InputForm.of(x, whole_number("levels", self.levels) or 256, self.pixel_max)
        classes, numbers = np.unique(y, return_inverse=True)
        part = Part(form.raw(x), numbers.astype(np.int64))
        names = tuple(str(c) for c in classes.tolist())
        dataset = checked(Dataset("X", part, None, names, form.levels, self._column_names(x)))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.run_, self.history_ = self._train(dataset, seed)
        self.form_, self.classes_ = form, classes
        return self

    def _training_arrays(self, X: Any, y: Any) -> tuple[Array, Array]:
        """X and y as arrays, checked, and what scikit-learn wants to remember of them."""
        if (X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim) in (3, 4):
            x, y = np.asarray(X), column_or_1d(y, warn=True)
            check_consistent_length(x, y)
            self.n_features_in_ = int(np.prod(x.shape[1:]))
            self.__dict__.pop("feature_names_in_", None)
        else:
            x, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        return x, y

    def _column_names(self, x: Array) -> tuple[str, ...] | None:
        if x.ndim != 2:
            return None
        names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(x.shape[1])])
        return tuple(str(name) for name in names)

    def _train(self, dataset: Dataset, seed: int) -> tuple[Run, list[dict[str, Any]]]:
        self._check_choices()
        splits = held_out_splits(dataset.train, seed)
        config = configure(
            dataset,
            len(splits.train),
            self.size or usual_size(dataset),
            method="ibinn",
            gamma=float(self.gamma),
            seed=seed,
            priors=self._configured_priors(len(dataset.class_names)),
            precision=self.precision,
        )
        numbers = {name: whole_number(name, getattr(self, name)) for name in ("epochs", "batch_size")}
        given: Any = {name: value for name, value in numbers.items() if value is not None}
        config = override(replace(config, recipe=replace(config.recipe, **given)), tuple(self.settings))
        options = TrainingOptions(
            device=chosen_device(self.device, dataset.is_images), constant_memory=self.constant_memory
        )
        observer = ConsoleObserver() if self.verbose else WarningObserver()
        try:
            run = train(config, dataset, splits, options, observer)
        except Stopped as stop:
            raise KeyboardInterrupt(str(stop)) from None
        assert run is not None
        if not run.facts["converged"]:
            warnings.warn(
                "the model is hardly better than guessing the most frequent class; more epochs, a larger gamma "
                "or more data may help",
                stacklevel=3,
            )
        warn_if_coarse(len(splits.calibration), ALPHA)
        return run, observer.history

    def _check_choices(self) -> None:
        """ValueError for a word that means nothing."""
        for name, kind in {"precision": Precision, "size": Size, "device": Device}.items():
            if getattr(self, name) is not None:
                convert(kind, getattr(self, name), name)

    def _configured_priors(self, n_classes: int) -> Any:
        check_priors(self.priors)
        if self.priors is None or isinstance(self.priors, str):
            return self.priors or "data"
        return tuple(log_priors(n_classes, self.priors).exp().tolist())

    # Classes

    def predict(self, X: Any) -> Array:
        """The likeliest class of each input, (N,)."""
        best = self._log_q_y(X).argmax(1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any, priors: Literal["uniform"] | Sequence[float] | None = None) -> Floats:
        """q(y|x), (N, K), in the order of classes_; with other class weights than in training if given."""
        log_q_y = self._log_q_y(X)
        check_priors(priors)
        if priors is not None:
            mixture = self._flow().mixture
            new = log_priors(mixture.n_classes, None if isinstance(priors, str) else priors).log_softmax(0)
            log_q_y = log_q_y + (new.to(mixture.phi) - mixture.log_w).detach().cpu().numpy()
        q = np.exp(log_q_y - log_q_y.max(1, keepdims=True))
        return np.asarray(q / q.sum(1, keepdims=True))

    def predict_log_proba(self, X: Any) -> Floats:
        """log q(y|x), (N, K)."""
        return self._log_q_y(X)

    def predict_set(self, X: Any, alpha: float = 0.1) -> NDArray[np.bool_]:
        """Which classes cannot be excluded, (N, K): the true one is among them with probability >= 1 - alpha."""
        log_q_y, scores = self._log_q_y(X), self.run_.reference.label_scores
        warn_if_coarse(len(scores), alpha)
        return prediction_sets(log_q_y, scores, alpha)

    def _log_q_y(self, X: Any) -> Floats:
        raw = self._raw(X)
        return self.run_.pipeline.predict(raw).log_q_y

    # Densities and p-values

    def score_samples(self, X: Any) -> Floats:
        """log q(x), (N,), in nats and in the units of X; of padded images, that of the padded one."""
        raw = self._raw(X)
        log_q_x = self.run_.pipeline.predict(raw).log_q_x
        assert log_q_x is not None
        return log_q_x + self.form_.log_scale

    def typicality(self, X: Any, per_class: bool = False) -> Floats:
        """p-values in (0, 1], (N,): small for inputs unlike the training data.

        Of new data like that, at most a share alpha gets p <= alpha. per_class=True compares each input with
        those of the same predicted class, so that this holds in each class, if with coarser p-values; p is 1
        where no calibration input was taken for that class.
        """
        raw = self._raw(X)
        judged, reference = judge(self.run_, raw), self.run_.reference
        if not per_class:
            return judged.p_values[reference.headline]
        called = judged.log_q_y.argmax(1)
        held = reference.calibration[reference.headline], reference.calibration_class
        return mondrian_p_values(hardly_less(judged.scores[reference.headline]), called, *held)

    def is_typical(self, X: Any, alpha: float = 0.05) -> NDArray[np.bool_]:
        """False, (N,), for inputs to be wary of; the share of false alarms on new data is at most alpha."""
        p = self.typicality(X)
        warn_if_coarse(len(self.run_.reference.calibration_class), alpha)
        return p > alpha

    # The latent space

    def encode(self, X: Any) -> Floats:
        """z, (N, D)."""
        raw, pipeline = self._raw(X), self.run_.pipeline
        parts = [encoded(pipeline, chunk).cpu().double().numpy() for _, chunk in chunks(raw, 500)]
        return np.concatenate(parts)

    def decode(self, Z: ArrayLike) -> Array:
        """The input of each z (N, D), in the form of X."""
        check_is_fitted(self)
        z = torch.as_tensor(np.asarray(Z), dtype=self.run_.pipeline.dtype).to(self.run_.pipeline.device)
        parts = [decoded(self.run_.pipeline, part) for part in torch.split(z, 500)]
        return self.form_.back(np.concatenate(parts))

    def sample(
        self, n_samples: int = 1, y: Any = None, temperature: float = 1.0, random_state: Any = None
    ) -> tuple[Array, Array]:
        """n new inputs in the form of X, and their classes: one class, n of them, or drawn by the class weights.

        temperature scales the deviation in latent space: 0 gives the centre of each class. random_state is the
        model's own where it is None.
        """
        mixture = self._flow().mixture
        state = check_random_state(self.random_state if random_state is None else random_state)
        generator = torch.Generator(mixture.mu.device).manual_seed(int(state.randint(2**31 - 1)))
        if n_samples < 1:
            raise ValueError(f"n_samples is {n_samples} but must be 1 or more")
        if y is None:
            numbers = mixture.sample_labels(n_samples, generator)
        else:
            if np.shape(y) not in ((), (n_samples,)):
                raise ValueError(
                    f"y has shape {np.shape(y)} but {n_samples} samples need one class or as many"
                )
            wanted = np.broadcast_to(np.asarray(y), (n_samples,))
            numbers = torch.from_numpy(self._numbers(wanted)).to(mixture.mu.device)
        z = mixture.sample(numbers, temperature, generator).detach()
        parts = [unclipped(self.run_.pipeline, part) for part in torch.split(z, 500)]
        away = sum(int(strays(part).sum()) for part in parts) if self.form_.is_images else 0
        if away > n_samples / 2:
            warnings.warn(
                f"{away} of {n_samples} samples lie far outside of the range of pixels and are clipped: away from "
                f"the data the inverse of this network grows without bound; a temperature below {temperature:g} "
                "keeps more of them inside",
                stacklevel=2,
            )
        raw = np.concatenate([clipped(self.run_.pipeline, part) for part in parts])
        return self.form_.back(raw), np.asarray(self.classes_[numbers.cpu().numpy()])

    def interpolate(self, a: Any, b: Any, steps: int = 9) -> Array:
        """Inputs on the straight line in latent space from a to b, which are the first and the last."""
        if steps < 2:
            raise ValueError(f"steps is {steps} but must be 2 or more: both ends belong to the way")
        first, last = self._one(a), self._one(b)
        return self.form_.back(interpolation(self.run_.pipeline, first, last, steps))

    def _flow(self) -> GenerativeClassifier:
        check_is_fitted(self)
        assert isinstance(self.run_.pipeline.model, GenerativeClassifier)
        return self.run_.pipeline.model

    def _numbers(self, labels: Array) -> NDArray[np.int64]:
        """The place of each label in classes_; the name of a class will do."""
        known = self.classes_.tolist()
        place: dict[Any, int] = {str(label): k for k, label in enumerate(known)}
        place |= {label: k for k, label in enumerate(known)}
        for label in labels.tolist():
            if label not in place:
                raise ValueError(f"there is no class {label!r}; the classes are {known}")
        return np.array([place[label] for label in labels.tolist()], dtype=np.int64)

    # Decisions explained

    def explain(self, x: Any) -> Explanation:
        """Why one input gets its class, and whether to trust it: numbers, and a sentence in `.text`."""
        raw = self._one(x)
        return explain(self.run_, raw).in_units(self.form_.log_scale)

    def evidence(self, x: Any, a: Any, b: Any) -> EvidenceMap:
        """Which values of one input speak for class a against class b, in nats; of images (H, W, C)."""
        raw = self._one(x)
        first, second = (int(self._numbers(np.array([label], dtype=object))[0]) for label in (a, b))
        return evidence_map(self.run_, raw, first, second)

    def _one(self, x: Any) -> Array:
        """Levels or row of one input, alone or in a batch of one."""
        check_is_fitted(self)
        x = np.asarray(x)
        x = x[None] if x.ndim == len(self.form_.shape) or self.form_.fits(x.shape) else x
        if len(x) != 1:
            raise ValueError(f"one input is needed here, but there are {len(x)}; take X[:1]")
        raw = self.form_.raw(x)
        one: Array = np.asarray(raw if self.form_.is_images else check_array(raw))[0]
        return one

    # Files

    def save(self, path: str | Path) -> None:
        """A folder with tensors, settings and a model card; no pickle. Commands such as ibinn predict take it."""
        check_is_fitted(self)
        named = hasattr(self, "feature_names_in_")
        save_model(Path(path), Saved(self.run_, self.form_, self.classes_, self.get_params(), named))

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Self:
        """What `save` wrote, or the run folder of ibinn train."""
        saved = load_model(Path(path))
        saved.run.pipeline.to(chosen_device(device, saved.form.is_images))
        return cls.of(saved, str(path))

    @classmethod
    def of(cls, saved: Saved, where: str) -> Self:
        """The estimator of a model that was read from `where`."""
        if not isinstance(saved.run.pipeline.model, GenerativeClassifier):
            raise RunError(f"{where} holds a {saved.run.config.method}, which is no IBINNClassifier")
        try:
            model = cls(**saved.parameters)
        except TypeError as error:
            raise RunError(
                f"{where} has parameters of another version of ibinn; save the model again"
            ) from error
        model.run_, model.form_, model.classes_, model.history_ = saved.run, saved.form, saved.classes, []
        model.n_features_in_ = saved.form.n_values
        if saved.named:
            model.feature_names_in_ = np.array(saved.run.feature_names, dtype=object)
        return model

    def to_onnx(self, path: str | Path) -> None:
        """One graph: X in; probabilities, log q(x) and p-value out."""
        from ibinn.export import export_onnx

        check_is_fitted(self)
        export_onnx(self.run_, Path(path), self.form_)

    def _raw(self, X: Any) -> Array:
        """Levels or rows of X, checked against what was learned."""
        check_is_fitted(self)
        if self.form_.is_images:
            return self.form_.raw(np.asarray(X))
        return np.asarray(validate_data(self, X, dtype=np.float64, reset=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


class IBINNOutlierDetector(MetaEstimatorMixin, OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """An IBINNClassifier as a detector of outliers, with scikit-learn's signs: 1 for inliers, -1 for outliers.

    alpha is the share of inliers that are flagged. It learns with labels: those of the inliers' classes.
    """

    def __init__(self, classifier: IBINNClassifier | None = None, alpha: float = 0.05) -> None:
        self.classifier = classifier
        self.alpha = alpha

    def fit(self, X: Any, y: Any = None) -> Self:
        if y is None:
            raise ValueError(
                "requires y to be passed, but the target y is None: the classes of the inliers"
            )
        self.classifier_ = (IBINNClassifier() if self.classifier is None else clone(self.classifier)).fit(
            X, y
        )
        self.n_features_in_, self.offset_ = self.classifier_.n_features_in_, self.alpha
        if hasattr(self.classifier_, "feature_names_in_"):
            self.feature_names_in_ = self.classifier_.feature_names_in_
        return self

    def score_samples(self, X: Any) -> Floats:
        """The p-value of each input, (N,)."""
        check_is_fitted(self)
        return self.classifier_.typicality(X)

    def decision_function(self, X: Any) -> Floats:
        """p - alpha: positive for inliers."""
        return self.score_samples(X) - self.offset_

    def fit_predict(self, X: Any, y: Any = None) -> NDArray[np.int64]:
        """fit, then predict; labels are needed here too."""
        return self.fit(X, y).predict(X)

    def predict(self, X: Any) -> NDArray[np.int64]:
        """1 where p > alpha, else -1."""
        check_is_fitted(self)
        warn_if_coarse(len(self.classifier_.run_.reference.calibration_class), self.alpha)
        return np.where(self.decision_function(X) > 0, 1, -1)


def held_out_splits(part: Part, seed: int) -> Splits:
    """Training, validation and calibration; no test split, which is the caller's.

    Of few examples a larger share is held out: some 20 to choose the epoch by, and 25 for the p-values.
    """
    each = (
        1.05 * len(part) / float(np.median(np.bincount(part.y)))
    )  # so that a usual class reaches all splits
    wanted = {"validation": max(20, each), "calibration": max(25, each)}
    shares = {name: held_out_share(len(part), n) for name, n in wanted.items()}
    rows = split_rows(part, shares, seed)
    return Splits(**rows, test=np.zeros(0, np.int64), has_test_part=False)


def held_out_share(n: int, wanted: float) -> float:
    """A tenth, or as much as gives so many examples, up to a quarter."""
    return min(0.25, max(0.1, wanted / n))


def usual_size(dataset: Dataset) -> Size:
    """As for ibinn train, but small for colour images unless there are many."""
    size = default_size(dataset)
    return "small" if size == "base" and len(dataset.train) < MANY_IMAGES else size


def whole_number(name: str, value: Any) -> int | None:
    """value as a plain integer, NumPy's included; ValueError for anything else."""
    try:
        return None if value is None else operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r} but must be a whole number") from None


def check_priors(priors: Any) -> None:
    """ValueError for a word that means nothing; numbers are checked where they become weights."""
    if isinstance(priors, str) and priors != "uniform":
        raise ValueError(f"priors is {priors!r} but must be None, 'uniform' or one number per class")
