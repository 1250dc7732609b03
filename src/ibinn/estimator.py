"""The scikit-learn estimators: arrays in; classes, probabilities, densities, p-values and samples out."""

import operator
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, OutlierMixin, clone
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from ibinn._system import choose_device
from ibinn._types import Array, Floats
from ibinn.config import ALPHA, Device, Latent, Precision, Size, convert
from ibinn.data.dataset import Dataset, Part, checked
from ibinn.data.inputs import InputForm
from ibinn.data.splits import Splits, split_rows
from ibinn.inference.attribution import EvidenceMap, evidence_map
from ibinn.inference.explain import Explanation, explain
from ibinn.inference.judge import judge
from ibinn.inference.latent import decode, encode, interpolate, sample
from ibinn.mixture import log_priors
from ibinn.models.classifier import GenerativeClassifier
from ibinn.models.output import Output
from ibinn.ood.conformal import prediction_sets, warn_if_coarse
from ibinn.ood.scores import class_p_values
from ibinn.run import RunError
from ibinn.run.folder import check_free, load_run, save_run
from ibinn.run.trained import Run
from ibinn.training.loop import Stopped
from ibinn.training.options import TrainingOptions
from ibinn.training.progress import ConsoleObserver, WarningObserver
from ibinn.training.recipes import configure, default_size, override
from ibinn.training.trainer import train

MANY_IMAGES = 20_000  # colour ones, from which on the larger network pays


class IBINNClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that also models the density of its inputs and detects atypical ones.

    An invertible network maps each input to a latent vector, where every class is a Gaussian. It is trained with
    the information bottleneck loss, which weighs the density of the inputs against the accuracy of the classes.

    `fit` takes rows (N, D), or images (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels. Rows are
    computed in float64, images in float32. A tenth of the examples, or more if there are few, is held out to
    select the best epoch, and as many to calibrate the p-values.

    Parameters
    ----------
    gamma : float, default=1.0
        Weight of the classes against the density: 0 learns the density alone, inf the classes alone.
    size : {"tiny", "small", "base", "paper"} or None, default=None
        Size of the network. None chooses by the data.
    epochs : int or None, default=None
        Number of passes over the training set. None takes the recipe's.
    batch_size : int or None, default=None
        Examples per step. None takes the recipe's.
    priors : "uniform", sequence of K floats or None, default=None
        Class weights p(y): equal ones, or one per class in the order of `classes_`. None takes the frequencies in
        the data.
    levels : int, default=256
        Number of values that a pixel can have. Ignored for rows.
    pixel_max : float or None, default=None
        The largest pixel value; the smallest is 0. None infers it from X, with a warning if it is not certain.
        Ignored for rows.
    settings : sequence of str, default=()
        Other settings of the network and the recipe, such as "recipe.learning_rate=0.001" or
        "network.dense_blocks=4".
    device : {"auto", "cpu", "cuda", "mps"}, default="auto"
        Where to compute. "auto" takes a GPU if there is one.
    precision : {"float32", "bf16"}, default="float32"
        Number format of the network's layers during training.
    constant_memory : bool, default=False
        Recompute activations during training instead of storing them. Slower, with less memory.
    random_state : int, RandomState instance or None, default=None
        Seed of the splits, the initial weights, the training and of `sample`.
    verbose : int, default=0
        1 prints the progress of the training.

    Attributes
    ----------
    classes_ : array of shape (K,)
        The labels, sorted.
    run_ : Run
        The trained model with its settings and calibration scores.
    form_ : InputForm
        Layout, shape and pixel range of the inputs.
    history_ : list of dict
        One dict per epoch with the keys epoch, loss_x, loss_y, validation, learning_rate, skipped and seconds.
        validation is a dict with loss, loss_x, loss_y, error in percent, and bits_per_dim. Empty for a loaded
        model.
    n_features_in_ : int
        Number of values per input.
    feature_names_in_ : array of shape (n_features_in_,)
        Column names of X, if it had any.

    See Also
    --------
    IBINNOutlierDetector : The same model as a scikit-learn outlier detector.
    load_pretrained : Classifiers that come with the package.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from ibinn import IBINNClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = IBINNClassifier(epochs=2, random_state=0).fit(X, y)
    >>> clf.predict(X[::60])
    array([0, 1, 2])
    >>> bool(clf.score(X, y) > 0.9)
    True
    >>> clf.is_typical(X[:1] + 50)  # an iris half a metre large
    array([False])
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
        run, self.history_ = self._train(dataset, seed)
        self.run_ = replace(run, form=form, classes=classes)
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
            device=choose_device(self.device, dataset.is_images), constant_memory=self.constant_memory
        )
        observer = ConsoleObserver() if self.verbose else WarningObserver()
        try:
            run = train(config, dataset, splits, options, observer)
        except Stopped as stop:
            raise KeyboardInterrupt(str(stop)) from None
        assert run is not None
        if not run.facts.converged:
            warnings.warn(
                "the model is hardly better than guessing the most frequent class; more epochs, a larger gamma "
                "or more data may help",
                stacklevel=3,
            )
        warn_if_coarse(len(splits.calibration), ALPHA)
        return run, [asdict(line) for line in observer.history]

    def _check_choices(self) -> None:
        """ValueError for a precision, size or device that does not exist."""
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
        """Predict the class of each input.

        Parameters
        ----------
        X : array of shape (N, ...)
            Inputs of the form that `fit` had.

        Returns
        -------
        array of shape (N,)
            The class with the largest probability. Ties go to the first class.

        Examples
        --------
        >>> import ibinn
        >>> from sklearn.datasets import load_digits
        >>> ibinn.load_pretrained("digits").predict(load_digits().images[5:8])
        array(['5', '6', '7'], dtype='<U1')
        """
        predicted = self._output(X).predicted
        return np.asarray(self.classes_[predicted])

    def predict_proba(
        self,
        X: Any,
        priors: Literal["uniform"] | Sequence[float] | None = None,
        calibrated: bool = True,
    ) -> Floats:
        """Class probabilities p(y) q(x|y)^(1/T), normalised.

        The temperature T (`run_.pipeline.temperature`) is fitted on the validation split. It is 1 if no other
        value lowers the log-loss there beyond its standard error. It grows with the distance of inputs that lie
        farther from all classes than any validation input, so that far from the data the class weights remain.

        Parameters
        ----------
        X : array of shape (N, ...)
            Inputs of the form that `fit` had.
        priors : "uniform", sequence of K floats or None, default=None
            Class weights p(y) to use instead of those of the training, by Bayes' rule.
        calibrated : bool, default=True
            False returns the posterior q(y|x) of the trained model, with T = 1 everywhere.

        Returns
        -------
        array of shape (N, K)
            Probabilities in the order of `classes_`.

        Examples
        --------
        >>> import ibinn
        >>> from sklearn.datasets import load_digits
        >>> clf = ibinn.load_pretrained("digits")
        >>> clf.predict_proba(load_digits().images[:2])[:, :2].round(1)
        array([[1., 0.],
               [0., 1.]])
        """
        output = self._output(X)
        log_p_y = output.log_p_y if calibrated else output.log_q_y
        check_priors(priors)
        if priors is not None:
            mixture = self._flow().mixture
            new = log_priors(mixture.n_classes, None if isinstance(priors, str) else priors).log_softmax(0)
            log_p_y = log_p_y + (new.to(mixture.phi) - mixture.log_w).detach().cpu().numpy()
        return np.asarray(softmax(log_p_y, axis=1))

    def predict_log_proba(self, X: Any) -> Floats:
        """Logarithms of the class probabilities.

        Parameters
        ----------
        X : array of shape (N, ...)
            Inputs of the form that `fit` had.

        Returns
        -------
        array of shape (N, K)
            Logarithms of `predict_proba`, in the order of `classes_`.

        Examples
        --------
        >>> import ibinn
        >>> from sklearn.datasets import load_digits
        >>> ibinn.load_pretrained("digits").predict_log_proba(load_digits().images[:2]).shape
        (2, 10)
        """
        return self._output(X).log_p_y

    def predict_set(self, X: Any, alpha: float = 0.1) -> NDArray[np.bool_]:
        """Prediction sets that contain the true class with probability 1 - alpha or more.

        The guarantee holds on average over new data like the training data. A set can be empty.

        Parameters
        ----------
        X : array of shape (N, ...)
            Inputs of the form that `fit` had.
        alpha : float, default=0.1
            The share of inputs whose set may miss the true class.

        Returns
        -------
        bool array of shape (N, K)
            True for the classes in the set, in the order of `classes_`.

        Examples
        --------
        >>> import ibinn
        >>> from sklearn.datasets import load_digits
        >>> clf = ibinn.load_pretrained("digits")
        >>> clf.predict_set(load_digits().images[:3]).sum(1)
        array([1, 1, 1])
        """
        log_p_y, scores = self._output(X).log_p_y, self.run_.reference.label_scores
        warn_if_coarse(len(scores), alpha)
        return prediction_sets(log_p_y, scores, alpha)

    def _output(self, X: Any) -> Output[Floats]:
        raw = self._raw(X)
        return self.run_.pipeline.compute_output(raw)

    # Densities and p-values

    def score_samples(self, X: Any) -> Floats:
        """Log-density of each input.

        Parameters
        ----------
        X : array of shape (N, ...)
            Inputs of the form that `fit` had.

        Returns
        -------
        array of shape (N,)
            log q(x) in nats, in the units of X. For images that the network pads, the density of the padded image.

        Examples
        --------
        >>> import ibinn
        >>> from sklearn.datasets import load_digits
        >>> X = load_digits().images[:2]
        >>> ibinn.load_pretrained("digits").score_samples(X).round()
        array([-86., -97.])
        """
        log_q_x = self._output(X).log_q_x
        assert log_q_x is not None
        return log_q_x + self.form_.log_scale

    def ood_scores(self, X: Any) -> dict[str, Floats]:
        """Out-of-distribution scores of each input.

        Parameters
        ----------
        X : array of shape (N, ...)
            Inputs of the form that `fit` had.

        Returns
        -------
        dict of str to array of shape (N,)
            Scores by name, higher for stranger inputs. `p_values` uses the score `run_.reference.headline`.

        Examples
        --------
        >>> import ibinn
        >>> from sklearn.datasets import load_digits
        >>> X = load_digits().images[:1]
        >>> clf = ibinn.load_pretrained("digits")
        >>> scores, inverted = clf.ood_scores(X), clf.ood_scores(16 - X)
        >>> sorted(scores)[:4]
        ['class_distance', 'class_information', 'class_typicality', 'combined']
        >>> inverted["combined"] > scores["combined"]
        array([ True])
        """
        raw = self._raw(X)
        return dict(judge(self.run_, raw).scores)

    def p_values(self, X: Any, per_class: bool = False) -> Floats:
        """Conformal p-value of each input, small for inputs unlike the training data.

        On average at most a share alpha of new data like the training data has p <= alpha.

        Parameters
        ----------
        X : array of shape (N, ...)
            Inputs of the form that `fit` had.
        per_class : bool, default=False
            Compare each input with the calibration inputs of the same predicted class only. The guarantee then
            holds within each class, but the p-values are coarser. p is 1 for a class without calibration inputs.

        Returns
        -------
        array of shape (N,)
            p-values in (0, 1].

        Examples
        --------
        >>> import ibinn
        >>> from sklearn.datasets import load_digits
        >>> X = load_digits().images[:1]
        >>> clf = ibinn.load_pretrained("digits")
        >>> clf.p_values(X).round(2), clf.p_values(16 - X).round(2)
        (array([0.91]), array([0.01]))
        """
        raw = self._raw(X)
        output, reference = judge(self.run_, raw), self.run_.reference
        return class_p_values(output, reference) if per_class else output.p_values[reference.headline]

    def is_typical(self, X: Any, alpha: float = 0.05) -> NDArray[np.bool_]:
        """Whether each input is typical of the training data.

        Parameters
        ----------
        X : array of shape (N, ...)
            Inputs of the form that `fit` had.
        alpha : float, default=0.05
            The largest share of false alarms on new data like the training data.

        Returns
        -------
        bool array of shape (N,)
            True for typical inputs (p > alpha), False for atypical ones.

        Examples
        --------
        >>> import ibinn
        >>> from sklearn.datasets import load_digits
        >>> X = load_digits().images[:3]
        >>> clf = ibinn.load_pretrained("digits")
        >>> clf.is_typical(X), clf.is_typical(16 - X)
        (array([ True,  True,  True]), array([False, False, False]))
        """
        p = self.p_values(X)
        warn_if_coarse(len(self.run_.reference.calibration_class), alpha)
        return p > alpha

    # The latent space

    def encode(self, X: Any) -> Floats:
        """Latent vector of each input.

        Parameters
        ----------
        X : array of shape (N, ...)
            Inputs of the form that `fit` had.

        Returns
        -------
        array of shape (N, D)
            The latent vectors z.

        Examples
        --------
        >>> import ibinn
        >>> from sklearn.datasets import load_digits
        >>> ibinn.load_pretrained("digits").encode(load_digits().images[:2]).shape
        (2, 64)
        """
        raw = self._raw(X)
        return encode(self.run_.pipeline, raw).cpu().double().numpy()

    def decode(self, Z: ArrayLike) -> Array:
        """Inputs of latent vectors, the inverse of `encode`.

        Parameters
        ----------
        Z : array of shape (N, D)
            Latent vectors.

        Returns
        -------
        array of shape (N, ...)
            Inputs of the form that `fit` had.

        Examples
        --------
        >>> import ibinn
        >>> from sklearn.datasets import load_digits
        >>> X = load_digits().images[:2, ..., None]
        >>> clf = ibinn.load_pretrained("digits")
        >>> bool((clf.decode(clf.encode(X)) == X).all())
        True
        """
        check_is_fitted(self)
        z = torch.as_tensor(np.asarray(Z), dtype=self.run_.pipeline.dtype).to(self.run_.pipeline.device)
        return self.form_.back(decode(self.run_.pipeline, z))

    def sample(
        self,
        n_samples: int = 1,
        y: Any = None,
        temperature: float = 1.0,
        random_state: Any = None,
        latent: Latent = "fitted",
    ) -> tuple[Array, Array]:
        """Draw new inputs from the model.

        By default, latent vectors are drawn from where those of the training set lie: a Gaussian for each class,
        fitted after training.

        Parameters
        ----------
        n_samples : int, default=1
            Number of samples.
        y : label, sequence of n_samples labels or None, default=None
            Class of all samples, or of each. None draws the classes with their weights.
        temperature : float, default=1.0
            Factor of the deviation from the centre of the class in latent space. 0 gives the centre.
        random_state : int, RandomState instance or None, default=None
            Seed. None takes the classifier's `random_state`.
        latent : {"fitted", "mixture"}, default="fitted"
            "mixture" draws from the Gaussians of unit variance that the model was trained for, as in the paper.

        Returns
        -------
        X : array of shape (n_samples, ...)
            Samples of the form that `fit` had.
        y : array of shape (n_samples,)
            Their classes.

        Examples
        --------
        >>> import ibinn
        >>> X, y = ibinn.load_pretrained("digits").sample(2, "3", random_state=0)
        >>> X.shape, X.dtype, y
        ((2, 8, 8, 1), dtype('uint8'), array(['3', '3'], dtype='<U1'))
        """
        mixture = self._flow().mixture
        state = check_random_state(self.random_state if random_state is None else random_state)
        generator = torch.Generator(mixture.mu.device).manual_seed(int(state.randint(2**31 - 1)))
        if n_samples < 1:
            raise ValueError(f"n_samples is {n_samples} but must be 1 or more")
        numbers = None
        if y is not None:
            if np.shape(y) not in ((), (n_samples,)):
                raise ValueError(f"y has shape {np.shape(y)} but must be one class or {n_samples} classes")
            numbers = torch.from_numpy(self._numbers(np.broadcast_to(np.asarray(y), (n_samples,))))
        convert(Latent, latent, "latent")
        samples = sample(self.run_.pipeline, int(n_samples), generator, numbers, temperature, latent)
        n_out = int(samples.is_out_of_range.sum()) if self.form_.is_images else 0
        if n_out > n_samples / 2:
            warnings.warn(
                f"{n_out} of {n_samples} samples are far outside the range of pixels and are clipped: far "
                f"from the data the inverse of this network is unbounded; use a temperature below {temperature:g}",
                stacklevel=2,
            )
        return self.form_.back(samples.raw), np.asarray(self.classes_[samples.y])

    def interpolate(self, a: Any, b: Any, steps: int = 9) -> Array:
        """Inputs on the straight line in latent space between two inputs.

        Parameters
        ----------
        a, b : arrays of one input each
            The first and the last input of the line.
        steps : int, default=9
            Number of inputs, with both ends.

        Returns
        -------
        array of shape (steps, ...)
            Inputs of the form that `fit` had.

        Examples
        --------
        >>> import ibinn
        >>> from sklearn.datasets import load_digits
        >>> X = load_digits().images
        >>> ibinn.load_pretrained("digits").interpolate(X[0], X[1], steps=5).shape
        (5, 8, 8, 1)
        """
        if steps < 2:
            raise ValueError(f"steps is {steps} but must be 2 or more, to hold both ends")
        first, last = self._one(a), self._one(b)
        return self.form_.back(interpolate(self.run_.pipeline, first, last, steps))

    def _flow(self) -> GenerativeClassifier:
        check_is_fitted(self)
        return self.run_.pipeline.generative

    def _numbers(self, labels: Array) -> NDArray[np.int64]:
        """The index of each label in classes_. A label may also be given as text."""
        known = self.classes_.tolist()
        index: dict[Any, int] = {str(label): k for k, label in enumerate(known)}
        index |= {label: k for k, label in enumerate(known)}
        for label in labels.tolist():
            if label not in index:
                raise ValueError(f"there is no class {label!r}; the classes are {known}")
        return np.array([index[label] for label in labels.tolist()], dtype=np.int64)

    # Explanations

    def explain(self, x: Any) -> Explanation:
        """Explain the class and the p-value of one input.

        Parameters
        ----------
        x : array of one input
            An input of the form that `fit` had, alone or in a batch of one.

        Returns
        -------
        Explanation
            Probabilities, log-likelihoods, p-value and nearest classes, and a summary in `.text`.

        Examples
        --------
        >>> import ibinn
        >>> from sklearn.datasets import load_digits
        >>> explanation = ibinn.load_pretrained("digits").explain(load_digits().images[0])
        >>> max(explanation.posterior, key=explanation.posterior.get), round(explanation.p_value, 2)
        ('0', 0.91)
        """
        raw = self._one(x)
        return explain(self.run_, raw).in_units(self.form_.log_scale)

    def evidence(self, x: Any, a: Any, b: Any) -> EvidenceMap:
        """Contribution of each value of one input to class a against class b.

        Parameters
        ----------
        x : array of one input
            An input of the form that `fit` had, alone or in a batch of one.
        a, b : labels
            Two classes.

        Returns
        -------
        EvidenceMap
            Integrated gradients of log q(a|x) - log q(b|x) in nats, from the mean of the training data to x:
            (H, W, C) for images, (D,) for rows.

        Examples
        --------
        >>> import ibinn
        >>> from sklearn.datasets import load_digits
        >>> evidence = ibinn.load_pretrained("digits").evidence(load_digits().images[0], "0", "8")
        >>> evidence.values.shape, round(float(evidence.values.sum()), 1), round(evidence.difference, 1)
        ((8, 8, 1), 7.1, 7.1)
        """
        raw = self._one(x)
        first, second = (int(self._numbers(np.array([label], dtype=object))[0]) for label in (a, b))
        return evidence_map(self.run_, raw, first, second)

    def _one(self, x: Any) -> Array:
        """Levels or row of one input, alone or in a batch of one."""
        check_is_fitted(self)
        x = np.asarray(x)
        x = x[None] if x.ndim == len(self.form_.shape) or self.form_.fits(x.shape) else x
        if len(x) != 1:
            raise ValueError(f"this takes one input, but there are {len(x)}; pass X[:1]")
        raw = self.form_.raw(x)
        one: Array = np.asarray(raw if self.form_.is_images else check_array(raw))[0]
        return one

    # Files

    def save(self, path: str | Path) -> None:
        """Save the model to a folder, without pickle.

        The folder holds the tensors, the settings and a model card. `load` and commands such as `ibinn predict`
        read it. The same model gives the same bytes.

        Parameters
        ----------
        path : str or Path
            A new or empty folder, or one where a model was saved before.

        Examples
        --------
        >>> import tempfile, ibinn
        >>> from pathlib import Path
        >>> from ibinn import IBINNClassifier
        >>> clf = ibinn.load_pretrained("digits")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     clf.save(folder)
        ...     files = sorted(file.name for file in Path(folder).iterdir())
        ...     again = IBINNClassifier.load(folder)
        >>> files, again.gamma
        (['README.md', 'config.toml', 'model.safetensors'], 1.0)
        """
        check_is_fitted(self)
        folder = Path(path)
        check_free(folder)
        run = replace(
            self.run_,
            # Without the seconds: the same data and seed give the same bytes.
            facts=replace(self.run_.facts, train_seconds=None),
            has_named_columns=hasattr(self, "feature_names_in_"),
            parameters=self.get_params(),
        )
        save_run(folder, run)

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Self:
        """Load a model that `save` or `ibinn train` wrote.

        Parameters
        ----------
        path : str or Path
            The folder of the model.
        device : {"auto", "cpu", "cuda", "mps"}, default="auto"
            Where to compute. "auto" takes a GPU if there is one.

        Returns
        -------
        IBINNClassifier
            The fitted model. The classes of a run of `ibinn train` are texts.

        Examples
        --------
        >>> from ibinn import IBINNClassifier
        >>> from ibinn.pretrained import pretrained_folder
        >>> IBINNClassifier.load(pretrained_folder("digits")).classes_[:3]
        array(['0', '1', '2'], dtype='<U1')
        """
        return cls.from_run(load_run(Path(path), device), str(path))

    @classmethod
    def from_run(cls, run: Run, source: str) -> Self:
        """The estimator of a run; `source` names it in errors."""
        if not run.pipeline.model.has_density:
            raise RunError(f"{source} holds a {run.config.method} model, which IBINNClassifier cannot use")
        try:
            model = cls(**run.parameters or {"gamma": run.config.gamma})
        except TypeError as error:
            raise RunError(
                f"{source} has parameters of another version of ibinn; save the model again"
            ) from error
        model.run_, model.form_, model.classes_, model.history_ = run, run.form, run.classes, []
        model.n_features_in_ = run.form.n_values
        if run.has_named_columns:
            model.feature_names_in_ = np.array(run.feature_names, dtype=object)
        return model

    def to_onnx(self, path: str | Path) -> None:
        """Export the model to an ONNX file: X in; probabilities, log q(x) and p-values out.

        Parameters
        ----------
        path : str or Path
            The file, ending in .onnx. Preprocessing and calibration are part of the graph.
        """
        from ibinn.export import export_onnx

        check_is_fitted(self)
        export_onnx(self.run_, Path(path))

    def _raw(self, X: Any) -> Array:
        """Levels or rows of X, checked against what `fit` had."""
        check_is_fitted(self)
        if self.form_.is_images:
            return self.form_.raw(np.asarray(X))
        return np.asarray(validate_data(self, X, dtype=np.float64, reset=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


class IBINNOutlierDetector(MetaEstimatorMixin, OutlierMixin, BaseEstimator):  # type: ignore[misc]
    """An IBINNClassifier as a scikit-learn outlier detector: 1 for inliers, -1 for outliers.

    Unlike other detectors it needs labels: the classes of the inliers.

    Parameters
    ----------
    classifier : IBINNClassifier or None, default=None
        The classifier to fit a clone of. None takes the defaults.
    alpha : float, default=0.05
        The largest share of inliers that are flagged.

    Attributes
    ----------
    classifier_ : IBINNClassifier
        The fitted classifier.
    offset_ : float
        The p-value that separates outliers from inliers: alpha.
    n_features_in_ : int
        Number of values per input.
    feature_names_in_ : array of shape (n_features_in_,)
        Column names of X, if it had any.

    See Also
    --------
    IBINNClassifier : Its `p_values` and `is_typical` give the same verdicts.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from ibinn import IBINNClassifier, IBINNOutlierDetector
    >>> X, y = load_iris(return_X_y=True)
    >>> detector = IBINNOutlierDetector(IBINNClassifier(epochs=2, random_state=0)).fit(X, y)
    >>> detector.predict(X[:1] + 50)
    array([-1])
    """

    def __init__(self, classifier: IBINNClassifier | None = None, alpha: float = 0.05) -> None:
        self.classifier = classifier
        self.alpha = alpha

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the classifier.

        Parameters
        ----------
        X : array of shape (N, ...)
            Rows or images, as for `IBINNClassifier`.
        y : array of shape (N,)
            Classes of the inliers.

        Returns
        -------
        IBINNOutlierDetector
            The fitted detector.
        """
        if y is None:
            raise ValueError(
                "requires y to be passed, but the target y is None; pass the classes of the inliers"
            )
        classifier = IBINNClassifier() if self.classifier is None else clone(self.classifier)
        self.classifier_ = classifier.fit(X, y)
        self.n_features_in_, self.offset_ = self.classifier_.n_features_in_, self.alpha
        if hasattr(self.classifier_, "feature_names_in_"):
            self.feature_names_in_ = self.classifier_.feature_names_in_
        return self

    def score_samples(self, X: Any) -> Floats:
        """p-value of each input, lower for outliers.

        Parameters
        ----------
        X : array of shape (N, ...)
            Inputs of the form that `fit` had.

        Returns
        -------
        array of shape (N,)
            p-values in (0, 1].
        """
        check_is_fitted(self)
        return self.classifier_.p_values(X)

    def decision_function(self, X: Any) -> Floats:
        """p-value minus alpha.

        Parameters
        ----------
        X : array of shape (N, ...)
            Inputs of the form that `fit` had.

        Returns
        -------
        array of shape (N,)
            Positive for inliers.
        """
        return self.score_samples(X) - self.offset_

    def fit_predict(self, X: Any, y: Any = None) -> NDArray[np.int64]:
        """Fit the classifier and predict X. Like `fit`, it needs labels.

        Parameters
        ----------
        X : array of shape (N, ...)
            Rows or images, as for `IBINNClassifier`.
        y : array of shape (N,)
            Classes of the inliers.

        Returns
        -------
        array of shape (N,)
            1 for inliers, -1 for outliers.
        """
        return self.fit(X, y).predict(X)

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Predict whether each input is an inlier.

        Parameters
        ----------
        X : array of shape (N, ...)
            Inputs of the form that `fit` had.

        Returns
        -------
        array of shape (N,)
            1 where p > alpha, else -1.
        """
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
    """ValueError for a word other than "uniform"; numbers are checked where they become weights."""
    if isinstance(priors, str) and priors != "uniform":
        raise ValueError(f"priors is {priors!r} but must be None, 'uniform' or one number per class")
