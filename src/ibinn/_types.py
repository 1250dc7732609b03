"""Names for the types of arrays and callbacks that all parts share."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]
Labels = NDArray[np.int64]  # (N,): class numbers
Rows = NDArray[np.int64]  # (N,): which examples
Progress = Callable[[int, int | None], None]  # done, and the total if it is known
