"""Options that several commands share, with their help texts."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from ibinn.config import Device

FOLDER = "Folder written by ibinn train or IBINNClassifier.save."
INPUT = "An image, or FILE:ROW for one row of an .npz or a table, counted from 0."
DATA_DIR = (
    "Folder to search first for known data sets, before $IBINN_DATA and the cache, ~/.cache/ibinn on Linux."
)
DEVICE = "Device to compute on; auto is cuda if there is one, else mps, else cpu."

RunFolder = Annotated[Positional[Path], arg(metavar="RUN", help=FOLDER)]
OneInput = Annotated[Positional[str], arg(help=INPUT)]
DataDir = Annotated[Path | None, arg(help=DATA_DIR)]
MovedData = Annotated[str | None, arg(help="Name or path of the data, if it has moved since training.")]
Target = Annotated[str | None, arg(help="For a table: the column that holds the classes.")]
BatchSize = Annotated[int, arg(help="Inputs per batch; smaller batches need less memory.")]
ComputeDevice = Annotated[Device, arg(help=DEVICE)]
