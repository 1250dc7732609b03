"""Fills the tables of benchmarks/results into the pages that have a place for them.

python docs/benchmark_tables.py
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fill import DOCS, markdown, put

RESULTS = DOCS.parent / "benchmarks" / "results"
NETWORKS = {
    "paper": "the paper's network, 128 CIFAR images",
    "small": "`small`, 128 images of 28 x 28",
    "dense": "8 dense blocks, 512 vectors of 30 features",
}
FLOPS, SECONDS_A_CALL = 5e12, 10e-6  # of a GPU: assumed, not measured
RUNS = {"`cifar10-table`": 10, "`gamma-sweep`": 50, "`sigma-sweep`": 25}
WORK = {"train": "training", "evaluate": "evaluation", "invert": "inverse", "latency": "one input"}


def rivals(result: dict[str, Any]) -> str:
    parts = []
    for network, title in NETWORKS.items():
        rows = [r for r in result["rows"] if r["network"] == network]
        names = list(dict.fromkeys(r["name"] for r in rows))
        table = [["work", "threads", *names]]
        for work, label in WORK.items():
            for threads in (2, 1):
                found = {r["name"]: r for r in rows if r["work"] == work and r["threads"] == threads}
                cells = [cell(found.get(name), work) for name in names]
                table.append([label, str(threads), *cells])
        parts.append(f"{title[0].upper()}{title[1:]}:\n\n{markdown(table)}")
    return "\n\n".join(parts)


def cell(row: dict[str, Any] | None, work: str) -> str:
    if row is None:
        return ""
    speed = f"{1e3 * row['seconds']:.1f} ms" if work == "latency" else f"{row['per_s']:,.0f}/s"
    return f"{speed} ({row['ratio']:.2f})"


def memory(result: dict[str, Any]) -> str:
    table = [["blocks", "mode", "MB above the built model", "seconds a step"]]
    for row in result["rows"]:
        table.append([str(row["blocks"]), row["kind"], f"{row['peak_mb']:,.0f}", f"{row['seconds']:.2f}"])
    return markdown(table)


def startup(result: dict[str, Any]) -> str:
    table = [["", "seconds", "times `import torch`"]]
    table += [[r["name"], f"{r['seconds']:.2f}", f"{r['ratio']:.2f}"] for r in result["rows"]]
    return markdown(table)


def growth(result: dict[str, Any]) -> str:
    table = [["over", "from", "to", "training", "evaluation"]]
    for name in dict.fromkeys(r["over"] for r in result["rows"]):
        found = {r["work"]: r for r in result["rows"] if r["over"] == name}
        sizes = found["training"]["sizes"]
        slopes = [f"{found[work]['slope']:.2f}" for work in ("training", "evaluation")]
        table.append([name, f"{sizes[0]:,}", f"{sizes[-1]:,}", *slopes])
    return markdown(table)


def step_profile(result: dict[str, Any]) -> str:
    table = [["", "ibinn, ms", "subnets alone, ms"]]
    table += [[r["kind"], f"{r['ibinn_ms']:.0f}", f"{r['subnets_ms']:.0f}"] for r in result["rows"]]
    sums = [sum(r[key] for r in result["rows"]) for key in ("ibinn_ms", "subnets_ms")]
    return markdown([*table, ["sum", *[f"{s:.0f}" for s in sums]]])


def classifiers(result: dict[str, Any]) -> str:
    parts = []
    for data in dict.fromkeys(r["data"] for r in result["rows"]):
        table = [[data, "error, %", "log-loss", "ECE (floor), %", "slowest fit, s"]]
        for r in result["rows"]:
            if r["data"] == data:
                loss = f"{r['log_loss']:.3f} ± {r['standard_error']:.3f}"
                ece = f"{r['ece']:.2f} ({r['ece_floor']:.2f})"
                table.append([r["name"], f"{r['error']:.2f}", loss, ece, f"{r['fit_seconds']:.2f}"])
                if "raw_log_loss" in r:
                    gain = f"{r['raw_log_loss'] - r['log_loss']:.3f} ± {r['gain_standard_error']:.3f}"
                    raw = f"{r['raw_log_loss']:.3f} (higher by {gain})"
                    table.append(["the same, raw posterior", "", raw, "", ""])
        parts.append(markdown(table))
    left = result["left_out_class"]
    heads = ["wine, one class left out of training", "AUROC, %", "p ≤ 0.05 in that class, %"]
    numbers = [f"{left['auroc']:.1f}", f"{left['detected']:.0f}", f"{left['false_alarms']:.1f}"]
    parts.append(markdown([[*heads, "p ≤ 0.05 in the others, %"], ["mean over the fits", *numbers]]))
    return "\n\n".join(parts)


def left_out_wines(result: dict[str, Any]) -> str:
    """Within a sentence: the share of the class that no training row had with p <= 0.05, in percent."""
    return f"{result['left_out_class']['detected']:.0f}"


def predicting(result: dict[str, Any]) -> str:
    table = [["", "images/s", "share of time outside the network, %"]]
    table += [[r["name"], f"{r['per_s']:,.0f}", f"{r['outside']:.1f}"] for r in result["rows"]]
    models = [["pretrained model", "MB", "load, ms", "judge one image, ms", "of it latent reference, ms"]]
    for name, m in result["models"].items():
        numbers = (m["megabytes"], m["load"], m["judge"], m["reference"])
        models.append([f"`{name}`", *(f"{number:.1f}" for number in numbers)])
    return f"{markdown(table)}\n\n{markdown(models)}"


def processes(result: dict[str, Any]) -> str:
    names = list(dict.fromkeys(r["name"] for r in reversed(result["rows"])))[::-1]
    table = [["network", *names]]
    for network in dict.fromkeys(r["network"] for r in result["rows"]):
        found = {r["name"]: r for r in result["rows"] if r["network"] == network}
        cells = [
            f"{result['batch'] / found[n]['seconds']:.0f}/s ({found[n]['ratio']:.2f})" if n in found else ""
            for n in names
        ]
        table.append([f"`{network}`", *cells])
    return markdown(table)


def arithmetic(result: dict[str, Any]) -> str:
    heads = ["parameters", "GFLOP forward", "GFLOP training", "calls", "MB kept", "MB constant memory"]
    table = [["network", "images", "classes", *heads]]
    for r in result["rows"]:
        numbers = [f"{r['forward_gflop']:.2f}", f"{r['training_gflop']:.2f}", f"{r['calls']:,}"]
        numbers += [f"{r['kept_mb']:.1f}", f"{r['constant_mb']:.1f}"]
        about = [f"`{r['network']}`", " x ".join(map(str, r["shape"])), f"{r['classes']:,}"]
        table.append([*about, f"{r['parameters'] / 1e6:.1f} M", *numbers])
    return markdown(table)


def hours(result: dict[str, Any]) -> str:
    """Of the paper's runs on CIFAR, from the work of a step and the assumed speed of a GPU."""
    row = next(r for r in result["rows"] if r["network"] == "paper")
    rivals = json.loads((RESULTS / "rivals.json").read_text())["rows"]
    wanted = {"network": "paper", "name": "ibinn", "work": "train", "threads": 2}
    speed = next(r["per_s"] for r in rivals if wanted.items() <= r.items())
    n_images, n_steps = 450 * 40_000, 450 * (40_000 // 128)
    by_cores = n_images / speed / 3600
    by_arithmetic = n_images * row["training_gflop"] / FLOPS * 1e9 / 3600
    by_calls = n_steps * row["calls"] * SECONDS_A_CALL / 3600
    estimates = {
        f"two cores, at the {speed:.0f} images a second of [performance.md](performance.md)": by_cores,
        f"a GPU's arithmetic, taken to reach {FLOPS / 1e12:g} TFLOP/s": by_arithmetic,
        f"a GPU's calls, taken to need {1e6 * SECONDS_A_CALL:g} µs each": by_calls,
        "eight GPUs, each with runs of its own": max(by_arithmetic, by_calls) / 8,
    }
    table = [["hours", "one run", *(f"{name}, {n} runs" for name, n in RUNS.items())]]
    for what, each in estimates.items():
        one = "" if what.startswith("eight") else f"{each:.1f}"
        table.append([what, one, *(f"{each * n:.0f}" for n in RUNS.values())])
    return markdown(table)


def imagenet(result: dict[str, Any]) -> str:
    """Speed and memory of one of eight GPUs."""
    n_images, batch, epochs, n = 1_281_167, 128, 90, 8
    table = [["", *(f"{r['shape'][1]} x {r['shape'][2]} pixels" for r in large(result))]]
    rows: dict[str, list[str]] = {}
    for r in large(result):
        per_s = FLOPS / (1e9 * r["training_gflop"])
        gradient, values = 4 * r["parameters"] / 1e6, r["shape"][0] * r["shape"][1] * r["shape"][2]
        sent = 2 * (n - 1) / n * gradient
        for what, number in {
            f"images a second and GPU, at {FLOPS / 1e12:g} TFLOP/s": f"{per_s:,.0f}",
            f"hours for {epochs} epochs on {n} GPUs": f"{epochs * n_images / per_s / n / 3600:.1f}",
            f"activations of {batch} images, kept": f"{batch * r['kept_mb'] / 1e3:.1f} GB",
            f"activations of {batch} images, constant memory": f"{batch * r['constant_mb'] / 1e3:.1f} GB",
            "weights, gradient, momentum, average, float32": f"{4 * gradient / 1e3:.1f} GB",
            "input, a second and GPU": f"{values * per_s / 1e6:.0f} MB",
            "gradient that each GPU sends, a step": f"{sent:,.0f} MB",
            f"the same a second, {batch} images a GPU and step": f"{sent * per_s / batch / 1e3:.1f} GB",
        }.items():
            rows.setdefault(what, []).append(number)
    return markdown([*table, *([what, *numbers] for what, numbers in rows.items())])


def large(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [r for r in result["rows"] if r["classes"] == 1000]


def explorer(result: dict[str, Any]) -> str:
    rows = result["rows"]
    table = [["", *(f"`{r['name']}`" for r in rows)]]
    table.append(["start to first picture", *(f"{r['first_picture_s']:.1f} s" for r in rows)])
    table += [[what, *(f"{r['ms'][what]:.0f} ms" for r in rows)] for what in rows[0]["ms"]]
    frames = [f"{r['frame_ms']:.1f} ms, of 100 frames 95 within {r['frame_p95_ms']:.1f}" for r in rows]
    points = " and ".join(f"{r['n_points']:,}" for r in rows)
    return markdown([*table, [f"a frame of the map, {points} points", *frames]])


PAGES: dict[str, tuple[Callable[[dict[str, Any]], str], ...]] = {
    "../README.md": (left_out_wines,),
    "performance.md": (rivals, memory, startup, growth, step_profile),
    "estimator.md": (classifiers, predicting),
    "explorer.md": (explorer,),
    "scale.md": (processes, arithmetic, hours, imagenet),
}
SOURCES = {
    "left_out_wines": "classifiers",
    "hours": "arithmetic",
    "imagenet": "arithmetic",
}  # where it is not the table's name


def filled(page: Path, tables: Iterable[Callable[[dict[str, Any]], str]]) -> str:
    text = page.read_text()
    for table in tables:
        path = RESULTS / f"{SOURCES.get(table.__name__, table.__name__)}.json"
        content = table(json.loads(path.read_text())) if path.exists() else "Not measured yet."
        text = put(text, table.__name__, content)
    return text


def main() -> None:
    for name, tables in PAGES.items():
        (DOCS / name).write_text(filled(DOCS / name, tables))


if __name__ == "__main__":
    main()
