"""Puts the tables of benchmarks/results into docs/performance.md and docs/estimator.md, between their markers.

python benchmarks/tables.py
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from turns import RESULTS

DOCS = Path(__file__).parents[1] / "docs"
NETWORKS = {
    "paper": "the paper's network, 128 CIFAR images",
    "small": "`small`, 128 images of 28 x 28",
    "dense": "8 dense blocks, 512 vectors of 30 features",
}
WORK = {"train": "training", "evaluate": "evaluation", "invert": "inverse", "latency": "one input"}


def rivals(result: dict[str, Any]) -> str:
    parts = []
    for network, title in NETWORKS.items():
        rows = [r for r in result["rows"] if r["network"] == network]
        names = list(dict.fromkeys(r["name"] for r in rows))
        table = [["work", "threads", *names]]
        for work, told in WORK.items():
            for threads in (2, 1):
                found = {r["name"]: r for r in rows if r["work"] == work and r["threads"] == threads}
                cells = [cell(found.get(name), work) for name in names]
                table.append([told, str(threads), *cells])
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
        parts.append(markdown(table))
    left = result["left_out_class"]
    parts.append(
        f"Wine with one class left out of training: AUROC {left['auroc']:.1f} %, p ≤ 0.05 for "
        f"{left['detected']:.0f} % of that class (median p {left['median_p']:.3f}) and "
        f"{left['false_alarms']:.1f} % of the others."
    )
    return "\n\n".join(parts)


def predicting(result: dict[str, Any]) -> str:
    table = [["", "images/s", "share of time outside the network, %"]]
    table += [[r["name"], f"{r['per_s']:,.0f}", f"{r['outside']:.1f}"] for r in result["rows"]]
    return markdown(table)


def markdown(rows: Iterable[list[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


PAGES: dict[str, tuple[Callable[[dict[str, Any]], str], ...]] = {
    "performance.md": (rivals, memory, startup, growth, step_profile),
    "estimator.md": (classifiers, predicting),
}


def filled(page: Path, tables: Iterable[Callable[[dict[str, Any]], str]]) -> str:
    text = page.read_text()
    for table in tables:
        path = RESULTS / f"{table.__name__}.json"
        told = table(json.loads(path.read_text())) if path.exists() else "Not measured yet."
        before, start, rest = text.partition(f"<!-- {table.__name__} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert start, f"{page} has no place for {table.__name__}"
        text = f"{before}{start}{told}\n{end}{after}"
    return text


def main() -> None:
    for name, tables in PAGES.items():
        (DOCS / name).write_text(filled(DOCS / name, tables))


if __name__ == "__main__":
    main()
