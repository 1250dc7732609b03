"""Trained models that come with the package: run folders with their results."""

from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ibinn.config import Pretrained
from ibinn.run import MODEL, RunError

if TYPE_CHECKING:
    from ibinn.estimator import IBINNClassifier

MODELS_FOLDER = Path(__file__).parent


def load_pretrained(name: str, device: str = "auto") -> "IBINNClassifier":
    """Load a classifier that comes with the package, trained with gamma = 1.

    Parameters
    ----------
    name : {"digits", "fashion_mnist", "cifar10"}
        The data set that it was trained on.
    device : {"auto", "cpu", "cuda", "mps"}, default="auto"
        Where to compute. "auto" takes a GPU if there is one.

    Returns
    -------
    IBINNClassifier
        A fitted classifier. Its classes are texts, such as "3".

    Examples
    --------
    >>> import ibinn
    >>> from sklearn.datasets import load_digits
    >>> clf = ibinn.load_pretrained("digits")
    >>> clf.predict(load_digits().images[:5])
    array(['0', '1', '2', '3', '4'], dtype='<U1')
    """
    from ibinn.estimator import IBINNClassifier

    return IBINNClassifier.load(pretrained_folder(name), device)


def pretrained_folder(name: str) -> Path:
    """The run folder of a model that comes with the package."""
    names = get_args(Pretrained)
    if name not in names:
        raise RunError(f"there is no pretrained model {name!r}; available are {', '.join(names)}")
    folder = MODELS_FOLDER / name
    if not (folder / MODEL).is_file():
        raise RunError(f"{folder / MODEL} is missing; install ibinn again")
    return folder
