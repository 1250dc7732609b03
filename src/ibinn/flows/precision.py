"""What keeps densities exact: dtypes, devices and mixed precision. Imports nothing of ours."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(x: Tensor) -> Tensor:
    """x in float32 or better: half precisions are widened, float32 and float64 stay as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def as_default(x: Tensor) -> Tensor:
    """x, computed on the CPU, in torch's default dtype, on its default device, contiguous as files want it."""
    # One after the other: some devices have no float64 to convert from.
    return x.to(torch.get_default_dtype()).to(torch.get_default_device()).contiguous()


def autocast_off(x: Tensor) -> AbstractContextManager[object]:
    """A context in which matrix products on x's device keep the precision of their inputs."""
    # Entered only where autocast is on: an exported graph then holds no trace of it.
    if torch.is_autocast_enabled(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return nullcontext()
