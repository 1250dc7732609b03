"""The time of a training step of the paper's network and of its subnets alone, by kind of operation.

python benchmarks/step_profile.py
"""

import torch
from rivals import NETWORKS, Bench
from torch.profiler import ProfilerActivity, profile
from turns import save

STEPS = 5
KINDS = {
    "convolutions, backward": ("aten::convolution_backward",),
    "convolutions, forward": ("aten::mkldnn_convolution",),
    "batch-norm": ("aten::native_batch_norm", "aten::native_batch_norm_backward"),
    "ReLU": ("aten::threshold_backward", "aten::clamp_min", "aten::clamp_min_"),
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm"),
    "joining halves": ("aten::cat",),
    "scale and shift": (
        "aten::mul",
        "aten::add",
        "aten::addcmul",
        "aten::sigmoid_",
        "aten::exp_",
        "aten::exp",
        "aten::sum",
    ),
}


def milliseconds(name: str) -> dict[str, float]:
    """Milliseconds of one step by kind: the best of several for each operation, as other work only adds time."""
    bench = Bench(name, NETWORKS["paper"], 128)
    bench.train()
    bench.train()
    best: dict[str, float] = {}
    for _ in range(STEPS):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            bench.train()
        for event in profiler.key_averages():
            best[event.key] = min(best.get(event.key, 1e9), event.self_cpu_time_total / 1e3)
    kinds = {kind: sum(best.get(key, 0.0) for key in keys) for kind, keys in KINDS.items()}
    return kinds | {"all the rest": sum(best.values()) - sum(kinds.values())}


def main() -> None:
    torch.set_num_threads(2)
    ours, limit = milliseconds("ibinn"), milliseconds("subnets alone, channels-last")
    rows = [{"kind": kind, "ibinn_ms": ours[kind], "subnets_ms": limit[kind]} for kind in ours]
    for row in rows:
        print(f"{row['kind']:24} {row['ibinn_ms']:7.1f} ms  subnets alone {row['subnets_ms']:7.1f} ms")
    save("step_profile", rows, steps=STEPS)


if __name__ == "__main__":
    main()
