"""Dtypes, devices and mixed precision: what keeps densities exact."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(x: Tensor) -> Tensor:
    """x in float32 or better: half precisions become float32, float32 and float64 are unchanged."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def as_default(x: Tensor) -> Tensor:
    """x, computed on the CPU, in torch's default dtype, on its default device, contiguous for saving."""
    # In two steps: some devices cannot convert from float64.
    return x.to(torch.get_default_dtype()).to(torch.get_default_device()).contiguous()


def autocast_off(x: Tensor) -> AbstractContextManager[object]:
    """A context in which matrix products on x's device keep the precision of their inputs."""
    # Entered only if autocast is on, to keep it out of exported graphs.
    if torch.is_autocast_enabled(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return nullcontext()
