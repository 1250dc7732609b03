"""How to run a training, beside the settings that make the model."""

from dataclasses import dataclass
from pathlib import Path

from ibinn.config import at_least
from ibinn.training.distributed import SINGLE_PROCESS, Team


@dataclass(frozen=True)
class TrainingOptions:
    """How to run a training. None of these are part of the `RunConfig`: a run may resume with other options.

    Parameters
    ----------
    folder : Path, optional
        Run folder to write. By default, nothing is written.
    resume : bool, default=False
        Continue the run in the folder, if there is one. It must have the same settings.
    device : str, default="cpu"
        Device to train on.
    save_every : float, default=30.0
        Seconds between two checkpoints.
    constant_memory : bool, default=False
        Recompute the activations of a flow from its inverse instead of storing them.
    accumulate : int, default=1
        Split each batch into this many micro-batches and add up their gradients.
    sync_batch_norm : bool, default=True
        Whether the processes of a team share the statistics of batch-norm.
    team : Team, default=SINGLE_PROCESS
        The processes that share each batch. Only one of them, the writer, touches the folder.
    """

    folder: Path | None = None
    resume: bool = False
    device: str = "cpu"
    save_every: float = 30.0
    constant_memory: bool = False
    accumulate: int = 1
    sync_batch_norm: bool = True
    team: Team = SINGLE_PROCESS

    def __post_init__(self) -> None:
        at_least("accumulate", self.accumulate, 1)
