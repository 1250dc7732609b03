"""Memory and time of training against depth: activations stored, recomputed (constant memory), and FrEIA.

    python benchmarks/memory.py

Each measurement runs in its own process. It builds a network of coupling blocks on 16 x 16 images of 12
channels, with its optimiser, and makes training steps. Reported are the peak memory above that of the built
model, and the best time of a step. Takes about five minutes.
"""

import argparse
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from turns import save

SHAPE, WIDTH = (12, 16, 16), 32
KINDS = ("activations kept", "constant memory", "FrEIA")


def measure(kind: str, blocks: int, batch: int, steps: int) -> dict[str, float]:
    """In this process: peak memory above the built model in MB, and seconds of a step."""
    import torch
    from torch import nn

    from ibinn._system import keep_freed_memory
    from ibinn.flows.base import Chain
    from ibinn.flows.coupling import AffineCoupling
    from ibinn.flows.subnets import conv_subnet
    from ibinn.models.architectures import block

    keep_freed_memory()  # as `ibinn train` does
    torch.manual_seed(0)
    subnet = partial(conv_subnet, width=WIDTH)
    if kind == "FrEIA":
        import FrEIA.framework as ff
        import FrEIA.modules as fm

        flow = ff.SequenceINN(*SHAPE)
        for _ in range(blocks):
            flow.append(fm.AllInOneBlock, subnet_constructor=subnet, affine_clamping=0.7, permute_soft=True)
    else:
        layers = [
            layer for i in range(blocks) for layer in block(AffineCoupling(12, subnet), 12, i, scale=0.95)
        ]
        flow = Chain(*layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        flow.constant_memory = kind == "constant memory"
    optimizer = torch.optim.SGD(flow.parameters(), lr=1e-4, momentum=0.9, fused=True)
    for p in flow.parameters():  # count momentum and gradients as part of the built model
        p.grad = torch.zeros_like(p)
    optimizer.step()
    x = torch.randn(batch, *SHAPE)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak after importing and building
    before, times = memory("VmRSS"), []
    for _ in range(steps):
        start = time.perf_counter()
        z, log_det = flow(x)
        optimizer.zero_grad(set_to_none=False)
        (0.5 * z.flatten(1).square().sum(1) - log_det).mean().backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
        optimizer.step()
        times.append(time.perf_counter() - start)
    return {"peak_mb": memory("VmHWM") - before, "seconds": min(times)}


def memory(name: str) -> float:
    """Memory of this process in MB, now (VmRSS) or at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--blocks", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--child", nargs=2, metavar=("KIND", "BLOCKS"))
    options = parser.parse_args()
    if options.child:
        kind, blocks = options.child
        print(json.dumps(measure(kind, int(blocks), options.batch, options.steps)))
        return
    rows = []
    settings = ["--batch", str(options.batch), "--steps", str(options.steps)]
    for blocks in options.blocks:
        for kind in KINDS:
            command = [sys.executable, __file__, *settings, "--child", kind, str(blocks)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            rows.append({"kind": kind, "blocks": blocks, **found})
            print(
                f"{blocks:4} blocks  {kind:17} {found['peak_mb']:7.0f} MB  {found['seconds']:6.2f} s",
                flush=True,
            )
    save("memory", rows, batch=options.batch, shape=SHAPE)


if __name__ == "__main__":
    main()
