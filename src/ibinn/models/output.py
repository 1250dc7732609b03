"""What a model returns for a batch: one type from the network to the page."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from ibinn._types import Floats

ArrayT = TypeVar("ArrayT", Tensor, Floats)


@dataclasses.dataclass(frozen=True)
class Output(Generic[ArrayT]):
    """A model's output for N inputs, as tensors inside the network and as arrays outside of it.

    Attributes
    ----------
    log_q_y : (N, K)
        log q(y|x), in nats: the posterior of the trained model.
    energy : (N,)
        -logsumexp of the logits.
    log_q_x : (N,), optional
        log q(x), in nats. None without a density.
    sq_distance : (N,), optional
        |z - mu|^2 to the mean of the most probable class. None without a density.
    log_p_y : (N, K), optional
        The same after temperature scaling: the probabilities that a user sees. log_q_y by default.
    class_information, class_distance, span_distance : (N,), optional
        The latent code compared with where the classes lie; see `LatentReference`. None without a reference.
    z : (N, D), optional
        The latent code. None without a density, and as arrays unless requested.
    code_length : (N,), optional
        Length of a lossless code of the image, in nats. None for rows, and inside the network.
    scores, p_values : dict of (N,)
        OoD scores (higher = stranger) and their conformal p-values, by score; filled in by `judge`.

    Examples
    --------
    >>> import numpy as np
    >>> from ibinn.models.output import Output, concatenated
    >>> batch = Output(log_q_y=np.log([[0.9, 0.1]]), energy=np.array([-2.0]))
    >>> output = concatenated([batch, batch])
    >>> output.predicted.tolist(), output.log_q_x
    ([0, 0], None)
    """

    log_q_y: ArrayT
    energy: ArrayT
    log_q_x: ArrayT | None = None
    sq_distance: ArrayT | None = None
    z: ArrayT | None = None
    log_p_y: ArrayT = None  # type: ignore[assignment]  # filled in below
    class_information: ArrayT | None = None
    class_distance: ArrayT | None = None
    span_distance: ArrayT | None = None
    code_length: ArrayT | None = None
    scores: Mapping[str, ArrayT] = dataclasses.field(default_factory=dict)
    p_values: Mapping[str, ArrayT] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.log_p_y is None:
            object.__setattr__(self, "log_p_y", self.log_q_y)

    @property
    def predicted(self) -> Any:
        """The number of the most probable class, (N,); ties go to the first class."""
        return self.log_p_y.argmax(1)


TENSORS = tuple(
    field.name for field in dataclasses.fields(Output) if field.name not in ("scores", "p_values")
)


def apply(function: Callable[..., Any], *outputs: Output[Any]) -> Output[Any]:
    """function of each field, but for those that are None in the first of the outputs."""
    names = [name for name in TENSORS if getattr(outputs[0], name) is not None]
    return Output(**{name: function(*(getattr(output, name) for output in outputs)) for name in names})


def to_arrays(output: Output[Tensor], with_z: bool = False) -> Output[Floats]:
    """The tensors of an output as float64 arrays; z, which is large, only with `with_z`."""
    kept = output if with_z else dataclasses.replace(output, z=None)
    return apply(lambda tensor: tensor.cpu().double().numpy(), kept)


def to_tensors(output: Output[Floats]) -> Output[Tensor]:
    """The arrays of an output as tensors on the CPU."""
    return apply(torch.from_numpy, output)


def concatenated(parts: Sequence[Output[Floats]]) -> Output[Floats]:
    """The outputs of batches as one output."""
    return apply(lambda *arrays: np.concatenate(arrays), *parts)
