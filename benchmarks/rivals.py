"""Speed compared to other flow libraries: the same couplings, subnets, batch, threads and precision, in turns.

    python benchmarks/rivals.py

Three networks: the paper's for CIFAR, the `small` one for 28 x 28 grey images, and a dense flow over 30
features. Work: training steps (forward, loss, backward, clipping, optimiser), evaluation (posterior and log
q(x)), inverses, and the latency of a single input. Each contender runs in a new process for each kind of work.
They take turns, and the best of several rounds counts. FrEIA has no downsampling coupling, so both use plain
squeezes. normflows has couplings with the same subnets, but learns its 1x1 convolutions; zuko has its own
couplings. "Subnets alone" is the same convolutions, batch-norms and matrix products without couplings: a lower
bound on the time.

ibinn lets the allocator keep freed memory, as its commands do. "FrEIA tuned" does too, and uses channels-last
memory, made contiguous before its Flatten, which needs that. All subnets have the same layers. Those of the
other libraries are in a plain nn.Sequential, which does not fold batch-norm in evaluation. "ONNX Runtime" runs the
exported graph of ibinn's network.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from turns import best_of_turns, save, serve

from ibinn._system import keep_freed_memory
from ibinn.export import write_graph
from ibinn.flows.base import Bijection, Chain
from ibinn.flows.coupling import AffineCoupling
from ibinn.flows.dct import DCTPool
from ibinn.flows.downsample import Squeeze, squeeze
from ibinn.flows.subnets import conv_subnet, dense_subnet, light_subnet
from ibinn.mixture import GaussianMixture
from ibinn.models.architectures import block, dense_coupling, dense_flow
from ibinn.objectives import ib_loss, loss_x, loss_y


class Images(NamedTuple):
    """Couplings over images at several resolutions, a squeeze before each but the first, then dense couplings."""

    shape: tuple[int, int, int]
    blocks: tuple[int, ...]
    widths: tuple[int, ...]
    dropouts: tuple[float, ...]
    subnet: Callable[..., nn.Module]
    dense_blocks: int
    dense_width: int
    dense_dropout: float
    batch: int = 128

    @property
    def levels(self) -> list[tuple[int, int, Callable[[int, int], nn.Module]]]:
        """Channels, blocks and subnet of each resolution."""
        return [
            (self.shape[0] * 4**level, n, partial(self.subnet, width=width, dropout=dropout))
            for level, (n, width, dropout) in enumerate(
                zip(self.blocks, self.widths, self.dropouts, strict=True)
            )
        ]

    @property
    def dense(self) -> Callable[[int, int], nn.Module]:
        return partial(dense_subnet, width=self.dense_width, dropout=self.dense_dropout)


class Vectors(NamedTuple):
    """A dense flow."""

    shape: tuple[int]
    n_blocks: int
    width: int
    batch: int = 512


NETWORKS: dict[str, Images | Vectors] = {
    "paper": Images((3, 32, 32), (8, 25, 25), (16, 32, 64), (0.0, 0.0, 0.25), conv_subnet, 2, 1024, 0.5),
    # of 28 x 28 grey images, squeezed once before
    "small": Images((4, 14, 14), (8, 9), (48, 96), (0.0, 0.0), light_subnet, 1, 256, 0.0),
    "dense": Vectors((30,), 8, 128),
}
CONTENDERS = {
    "paper": (
        "ibinn",
        "FrEIA",
        "FrEIA tuned",
        "normflows",
        "ONNX Runtime",
        "subnets alone",
        "subnets alone, channels-last",
    ),
    "small": ("ibinn", "FrEIA", "FrEIA tuned", "ONNX Runtime", "subnets alone, channels-last"),
    "dense": ("ibinn", "FrEIA", "normflows", "zuko", "ONNX Runtime"),
}


class Contender(NamedTuple):
    """forward(x) -> z, log_det; inverse(z) -> x, or None where only subnets are timed."""

    module: nn.Module
    forward: Callable[[Tensor], tuple[Tensor, Tensor]]
    inverse: Callable[[Tensor], Tensor] | None


def ibinn(network: Images | Vectors) -> Contender:
    if isinstance(network, Vectors):
        flow = dense_flow(network.shape[0], network.n_blocks, network.width)
        return Contender(flow, flow, flow.inverse)
    layers: list[Bijection] = []
    numbers = iter(range(1000))
    for level, (channels, n_blocks, subnet) in enumerate(network.levels):
        layers += [Squeeze()] if level else []
        for number, _ in zip(numbers, range(n_blocks), strict=False):
            layers += block(AffineCoupling(channels, subnet), channels, number, scale=0.75)
    n_dims, sides = math.prod(network.shape), network.shape[1] // 2 ** (len(network.blocks) - 1)
    layers.append(DCTPool((channels, sides, sides)))
    for number, _ in zip(numbers, range(network.dense_blocks), strict=False):
        layers += block(dense_coupling(n_dims, network.dense), n_dims, number, scale=0.75)
    flow = Chain(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Contender(flow, flow, flow.inverse)


def sequential(subnet: Callable[..., nn.Module]) -> Callable[[int, int], nn.Module]:
    """The same layers as a user of another library would write them."""
    return lambda n_in, n_out: nn.Sequential(*subnet(n_in, n_out).children())


def freia(network: Images | Vectors, channels_last: bool = False) -> Contender:
    import FrEIA.framework as ff
    import FrEIA.modules as fm

    class Flatten(fm.Flatten):  # type: ignore[misc]  # FrEIA's own takes no other layout
        def forward(self, x, *arguments, **settings):  # type: ignore[no-untyped-def]
            return super().forward([x[0].contiguous()], *arguments, **settings)

    inn = ff.SequenceINN(*network.shape)
    if isinstance(network, Vectors):
        subnet = sequential(partial(dense_subnet, width=network.width))
        for _ in range(network.n_blocks):
            inn.append(fm.AllInOneBlock, subnet_constructor=subnet, affine_clamping=2.0, permute_soft=True)
    else:
        for level, (_, n_blocks, subnet) in enumerate(network.levels):
            if level:
                inn.append(fm.IRevNetDownsampling)
            for _ in range(n_blocks):
                inn.append(
                    fm.AllInOneBlock,
                    subnet_constructor=sequential(subnet),
                    affine_clamping=0.7,
                    permute_soft=True,
                )
        inn.append(Flatten)
        for _ in range(network.dense_blocks):
            inn.append(
                fm.AffineCouplingOneSided,
                subnet_constructor=sequential(network.dense),
                clamp=2.0,
                clamp_activation="TANH",
            )
            inn.append(fm.PermuteRandom, seed=0)
    if channels_last:
        inn = inn.to(memory_format=torch.channels_last)
    return Contender(inn, inn, lambda z: inn(z, rev=True, jac=False)[0])


class Normflows(nn.Module):
    """In normflows the map from data to latents is the inverse; the flows are listed from the data on."""

    def __init__(self, flows: list[nn.Module], shape: tuple[int, ...]) -> None:
        super().__init__()
        self.flows, self.shape = nn.ModuleList(flows), shape

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.new_zeros(len(x))
        for flow in self.flows:
            x, log_det = flow.inverse(x)  # type: ignore[operator]
            total = total + log_det
        return x.flatten(1), total

    def sample_from(self, z: Tensor) -> Tensor:
        x = z.reshape(-1, *self.shape)
        for flow in reversed(self.flows):
            x, _ = flow.forward(x)
        return x


def normflows(network: Images | Vectors) -> Contender:
    import normflows as nf

    flows: list[nn.Module] = []
    shape: tuple[int, ...] = network.shape
    if isinstance(network, Vectors):
        half = network.shape[0] // 2
        for _ in range(network.n_blocks):
            subnet = sequential(partial(dense_subnet, width=network.width))(half, 2 * half)
            flows += [nf.flows.AffineCouplingBlock(subnet), nf.flows.LULinearPermute(2 * half)]
    else:  # without the dense couplings, which would need a reshaping flow
        for level, (channels, n_blocks, factory) in enumerate(network.levels):
            flows += [nf.flows.Squeeze()] if level else []
            half = channels // 2
            for _ in range(n_blocks):
                net = sequential(factory)(channels - half, 2 * half)  # its first half is the larger one
                flows += [
                    nf.flows.AffineCouplingBlock(net),
                    nf.flows.Invertible1x1Conv(channels),
                    nf.flows.ActNorm((channels, 1, 1)),
                ]
        shape = (channels, *[side // 2 ** (len(network.blocks) - 1) for side in network.shape[1:]])
    net = Normflows(flows, shape)
    return Contender(net, net, net.sample_from)


def zuko(network: Images | Vectors) -> Contender:
    import zuko

    assert isinstance(network, Vectors)
    flow = zuko.flows.NICE(network.shape[0], transforms=network.n_blocks, hidden_features=(network.width,))

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        z, log_det = flow().transform.call_and_ladj(x)
        return z, log_det

    return Contender(flow, forward, lambda z: flow().transform.inv(z))


class Subnets(nn.Module):
    """The subnets of a network on images, its squeezes and its dense products, without couplings between them."""

    def __init__(self, network: Images, memory_format: torch.memory_format) -> None:
        super().__init__()
        self.memory_format = memory_format
        self.levels = nn.ModuleList(
            nn.ModuleList(subnet(channels // 2, 2 * (channels - channels // 2)) for _ in range(n_blocks))
            for channels, n_blocks, subnet in network.levels
        )
        half = math.prod(network.shape) // 2
        self.dense = nn.ModuleList(network.dense(half, 2 * half) for _ in range(network.dense_blocks))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.new_zeros(len(x))
        for level, nets in enumerate(self.levels):
            x = squeeze(x) if level else x
            passive = x[:, : x.shape[1] // 2].contiguous(memory_format=self.memory_format)
            passive.requires_grad_(torch.is_grad_enabled())  # as a coupling's input does
            for net in nets:  # type: ignore[attr-defined]
                total = total + net(passive).flatten(1).sum(1)
        z = x.flatten(1)
        passive = z[:, : z.shape[1] // 2].clone().requires_grad_(torch.is_grad_enabled())
        for net in self.dense:
            total = total + net(passive).sum(1)
        return z, total


def subnets_alone(network: Images, channels_last: bool) -> Contender:
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    net = Subnets(network, memory_format).to(memory_format=memory_format)  # type: ignore[call-overload]
    return Contender(net, net, None)


MAKERS: dict[str, Callable[..., Contender]] = {
    "ibinn": ibinn,
    "FrEIA": freia,
    "FrEIA tuned": partial(freia, channels_last=True),
    "normflows": normflows,
    "zuko": zuko,
    "ONNX Runtime": ibinn,
    "subnets alone": partial(subnets_alone, channels_last=False),
    "subnets alone, channels-last": partial(subnets_alone, channels_last=True),
}


class Bench:
    """A contender with mixture, optimiser and data."""

    def __init__(self, name: str, network: Images | Vectors, batch: int) -> None:
        torch.manual_seed(0)
        self.module, self.forward, self.inverse = MAKERS[name](network)
        self.n_dims = math.prod(network.shape)
        self.mixture = GaussianMixture(10, self.n_dims)
        self.parameters = [*self.module.parameters(), *self.mixture.parameters()]
        self.optimizer = torch.optim.SGD(
            self.parameters, lr=1e-4, momentum=0.9, weight_decay=1e-4, fused=True
        )
        self.x, self.z = torch.randn(batch, *network.shape), torch.randn(batch, self.n_dims)
        self.y = torch.arange(batch) % 10

    def train(self) -> None:
        self.module.train()
        z, log_det = self.forward(self.x)
        on_x = loss_x(self.mixture.log_q_z(z), log_det, self.n_dims)
        on_y = loss_y(self.mixture.scores(z), self.mixture.log_w, self.y, 0.05)
        self.optimizer.zero_grad()
        ib_loss(on_x, on_y, 1.0).mean().backward()
        nn.utils.clip_grad_norm_(self.parameters, 8.0)
        self.optimizer.step()

    @torch.no_grad()
    def evaluate(self) -> None:
        self.module.eval()
        self.posterior_and_density(self.x)

    def posterior_and_density(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, log_det = self.forward(x)
        logits = self.mixture.logits(z)
        return logits.log_softmax(1), logits.logsumexp(1) + self.mixture.log_q_origin(z) + log_det

    @torch.no_grad()
    def invert(self) -> None:
        self.module.eval()
        assert self.inverse is not None
        self.inverse(self.z)


class InOnnxRuntime:
    """The evaluation of a contender as an exported graph."""

    def __init__(self, bench: Bench, threads: int) -> None:
        import onnxruntime

        class Evaluation(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.module, self.mixture = bench.module.eval(), bench.mixture

            def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
                return bench.posterior_and_density(x)

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "evaluation.onnx")
            example = torch.randn(2, *bench.x.shape[1:])  # of any other number: the graph takes them all
            write_graph(path, Evaluation(), {"x": example}, ["log_q_y", "log_q_x"], {})
            self.session = onnxruntime.InferenceSession(path, options)
        self.x = bench.x.numpy()

    def evaluate(self) -> None:
        self.session.run(None, {"x": self.x})


def work_on(name: str, network: str, work: str, batch: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    if name in ("ibinn", "FrEIA tuned") or name.startswith("subnets"):
        keep_freed_memory()
    bench = Bench(name, NETWORKS[network], int(batch))
    call = getattr(InOnnxRuntime(bench, int(threads)) if name == "ONNX Runtime" else bench, work)
    repeats = 1 if network == "paper" and int(batch) > 1 else 10

    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats

    serve(seconds)


def compare(network: str, work: str, threads: int, rounds: int) -> list[dict[str, object]]:
    """One row per contender; ratio is the speed relative to FrEIA."""
    batch = 1 if work == "latency" else NETWORKS[network].batch
    call = "evaluate" if work == "latency" else work
    left_out = {"invert": ("subnets", "ONNX"), "train": ("ONNX",)}.get(call, ())
    names = [n for n in CONTENDERS[network] if not n.startswith(left_out)]
    arguments = {n: (n, network, call, str(batch), str(threads)) for n in names}
    best = best_of_turns(__file__, arguments, rounds)
    rows = []
    for name, seconds in best.items():
        row = {
            "network": network,
            "work": work,
            "threads": threads,
            "name": name,
            "batch": batch,
            "seconds": seconds,
            "per_s": batch / seconds,
            "ratio": best["FrEIA"] / seconds,
        }
        rows.append(row)
        print(
            f"{network:6} {work:9} {threads} threads  {name:29} {1e3 * seconds:9.2f} ms "
            f"{row['per_s']:9.1f}/s {row['ratio']:6.2f} x FrEIA",
            flush=True,
        )
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        work_on(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    options = parser.parse_args()
    rows = []
    for network in options.networks:
        for threads in (2, 1):
            for work in ("train", "evaluate", "invert", "latency"):
                rows += compare(network, work, threads, options.rounds)
    save("rivals", rows, rounds=options.rounds)


if __name__ == "__main__":
    main()
