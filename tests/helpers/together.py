"""What two processes do together, for tests/test_distributed.py: torchrun starts this twice.

Writes a run folder for each of CASES and, of each process, what it saw as PROCESS.json.
"""

import dataclasses
import json
import math
import sys
from pathlib import Path

import torch
from torch import distributed as dist

from helpers.trainings import FEW_BLOCKS, few_digits, small_config, two_moons
from ibinn.data.splits import split
from ibinn.flows.fast.batch_norm import BatchNorm
from ibinn.training.distributed import WriterFailed, join_team
from ibinn.training.options import TrainingOptions
from ibinn.training.trainer import train

NO_DROPOUT = FEW_BLOCKS | {"dropouts": (0.0, 0.0)}
PAPER = NO_DROPOUT | {"subnet": "paper"}
PAPER_RECIPE = {
    "optimizer": "sgd",
    "learning_rate": 0.07,
    "noise": "gaussian",
    "sigma": 1e-3,
    "normalise": "standard",
}
STEPS = 20


def digits_config(network=NO_DROPOUT, method="ibinn", batch_size=23, gamma=1.0, priors="data", **recipe):
    """20 steps on some digits, in batches that two processes cannot halve."""
    dataset = few_digits()
    epochs = STEPS // (len(split(dataset, 0).train) // batch_size)
    recipe = {"patience": 0, "ema": 0.5, "crop": 1} | recipe
    recipe |= {"batch_size": batch_size, "epochs": epochs}
    return dataset, small_config(dataset, method, gamma, network=network, priors=priors, **recipe)


def moons_config(**recipe):
    dataset = two_moons()
    recipe = {"batch_size": 35, "epochs": 4, "patience": 0} | recipe
    return dataset, small_config(dataset, **recipe)


def with_bf16(prepared):
    dataset, config = prepared
    return dataset, dataclasses.replace(config, precision="bf16")


CASES = {
    **{method: (digits_config(method=method), {}) for method in ("ibinn", "class-nll", "class-nll-fixed")},
    **{method: (digits_config(method=method), {}) for method in ("resnet", "irevnet")},
    "paper": (
        digits_config(
            PAPER, optimizer="sgd", learning_rate=0.07, noise="gaussian", sigma=1e-3, normalise="standard"
        ),
        {},
    ),
    "paper-resnet": (digits_config(PAPER, method="resnet"), {}),
    "constant-memory": (digits_config(PAPER), {"constant_memory": True}),
    "accumulate": (digits_config(), {"accumulate": 3}),
    "table": (moons_config(), {}),
    "only-y": (digits_config(gamma=math.inf, priors="learned"), {}),  # which leaves the class weights out
}
# What two processes may do otherwise than one: statistics, draws and rounding of their own.
UNLIKE = {
    "own-statistics": (digits_config(PAPER), {"sync_batch_norm": False}),
    "vib": (digits_config(method="vib"), {}),
    "vib-0": (digits_config(method="vib", gamma=0.0), {}),  # which leaves the read-out out
    "dropout": (digits_config(FEW_BLOCKS), {}),
    "bf16": (with_bf16(digits_config(PAPER)), {"constant_memory": True}),
}


def run_case(name, folder, **how):
    (dataset, config), settings = (CASES | UNLIKE)[name]
    options = TrainingOptions(folder / name, **settings, **how)
    return train(config, dataset, split(dataset, config.seed), options)


def batch_norms_differ_by(team):
    """How far outputs, gradients and statistics are from those of one process with the whole batch."""
    generator = torch.Generator().manual_seed(0)
    x = 5 + torch.randn(7, 3, 4, 5, generator=generator, dtype=torch.float64)
    weights = torch.randn(7, 3, 4, 5, generator=generator, dtype=torch.float64)
    mine = slice(team.rank, None, team.n)

    def found(part, group):
        norm = BatchNorm(3, dtype=torch.float64)
        norm.weight.data = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
        norm.group = group
        inputs = x[part].clone().requires_grad_()
        y = norm(inputs)
        (weights[part] * y.square()).sum().backward()
        gradients = torch.stack([norm.weight.grad, norm.bias.grad])
        return y.detach(), inputs.grad, gradients, torch.stack([norm.running_mean, norm.running_var])

    y, grad, gradients, statistics = found(slice(None), None)
    expected = y[mine], grad[mine], gradients, statistics
    shared = found(mine, team.group)
    dist.all_reduce(shared[2])
    return max(float((a - b).abs().max()) for a, b in zip(expected, shared, strict=True))


def refusals(team, folder):
    """The sentences of what must be refused: in the writer's words, and where the processes differ."""
    errors = {}
    try:
        run_case("table", folder, team=team)
    except (WriterFailed, ValueError) as error:
        errors["folder"] = f"{type(error).__name__}: {error}"
    try:
        team.check_same(f"of process {team.rank}", "the data is")
    except ValueError as error:
        errors["data"] = str(error)
    return errors


def main(folder):
    torch.set_num_threads(1)
    with join_team("cpu") as team:
        saw = {"norms": batch_norms_differ_by(team), "wrote": {}}
        for name in CASES | UNLIKE:
            saw["wrote"][name] = run_case(name, folder, team=team) is not None
        saw["refused"] = refusals(team, folder)
        saw["tensors"] = {
            name: (str(value.dtype), value.tolist())
            for name, value in team.named_tensors(
                {"a": torch.arange(3), "b": torch.tensor(2.5)} if team.is_writer else {}
            ).items()
        }
    (folder / f"{team.rank}.json").write_text(json.dumps(saw))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
