"""The cost of a training image as images grow: operations, memory, and the gradient that processes exchange.

    python benchmarks/arithmetic.py

torch counts the operations of forward and backward passes (a multiplication with its addition counts as two),
and the kernel calls of a step, which do not depend on the batch size. Memory is the growth of the peak between
two batch sizes that differ by --images, each in its own process. Takes about five minutes.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from memory import memory
from torch.utils._python_dispatch import TorchDispatchMode
from turns import save

# Network, shape of the images, classes.
SETUPS = (
    ("small", (1, 28, 28), 10),
    ("base", (3, 32, 32), 10),
    ("paper", (3, 32, 32), 10),
    ("paper", (3, 64, 64), 1000),
    ("paper", (3, 128, 128), 1000),
)


def objective_for(network: str, shape: tuple[int, int, int], n_classes: int) -> Any:
    import math

    import torch

    from ibinn.mixture import GaussianMixture
    from ibinn.models.architectures import image_flow
    from ibinn.models.classifier import GenerativeClassifier
    from ibinn.models.methods import Objective
    from ibinn.training.recipes import NETWORKS

    torch.manual_seed(0)
    flow = image_flow(shape, NETWORKS[network])  # type: ignore[index]
    model = GenerativeClassifier(flow, GaussianMixture(n_classes, math.prod(shape)))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Objective(model, "ibinn", 1.0, math.prod(shape), 0.05)


class Calls(TorchDispatchMode):
    """Counts calls that compute something: no views, no allocations."""

    n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_free = func.is_view or "empty" in func.__name__ or "detach" in func.__name__
        self.n += not is_free
        return func(*args, **(kwargs or {}))


def operations(network: str, shape: tuple[int, int, int], n_classes: int) -> dict[str, float]:
    """Parameters, operations per image, and calls per training step."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    objective, n = objective_for(network, shape, n_classes), 2
    batch = torch.randn(n, *shape), torch.zeros(n), torch.arange(n)
    counted = []
    for is_training in (False, True):
        with FlopCounterMode(display=False) as counter:
            loss = objective(*batch).loss.mean()
            if is_training:
                loss.backward()
        counted.append(counter.get_total_flops() / n / 1e9)
    calls = Calls()  # type: ignore[no-untyped-call]
    with calls:
        objective(*batch).loss.mean().backward()
    return {
        "parameters": sum(p.numel() for p in objective.parameters()),
        "forward_gflop": counted[0],
        "training_gflop": counted[1],
        "calls": calls.n,
    }


def peak(network: str, shape: tuple[int, int, int], n_classes: int, n: int, constant_memory: bool) -> float:
    """Peak memory of this process in MB, over three training steps on n images."""
    import torch

    from ibinn.training.trainer import set_constant_memory

    objective = objective_for(network, shape, n_classes)
    set_constant_memory(objective, constant_memory)
    batch = torch.randn(n, *shape), torch.zeros(n), torch.arange(n) % n_classes
    for _ in range(3):
        objective.zero_grad(set_to_none=False)
        objective(*batch).loss.mean().backward()
    return memory("VmHWM")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--child", nargs=3, metavar=("SETUP", "IMAGES", "CONSTANT"))
    options = parser.parse_args()
    if options.child:
        number, n, constant = map(int, options.child)
        print(json.dumps(peak(*SETUPS[number], n, bool(constant))))
        return
    rows = []
    for number, (network, shape, n_classes) in enumerate(SETUPS):
        row: dict[str, Any] = {"network": network, "shape": shape, "classes": n_classes}
        row |= operations(network, shape, n_classes)
        for key, constant in (("kept_mb", 0), ("constant_mb", 1)):
            few, many = (child(number, n, constant) for n in (8, 8 + options.images))
            row[key] = (many - few) / options.images
        rows.append(row)
        print(row, flush=True)
    save("arithmetic", rows, images=options.images)


def child(number: int, n: int, constant: int) -> float:
    command = [sys.executable, str(Path(__file__)), "--child", str(number), str(n), str(constant)]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


if __name__ == "__main__":
    main()
