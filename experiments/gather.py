"""From the runs of `make results` to results/: numbers, comparisons over runs, figures.

    python experiments/gather.py

May be called at any time. Of each finished run runs/EXPERIMENT/RUN it copies config.toml, history.jsonl and
results.json to results/EXPERIMENT/RUN. Figures of numbers are drawn from what results/ then holds, so that runs
may come from several machines. Comparisons that need the models are made when all of them are in runs/.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ibinn._system import write_atomically
from ibinn.data.known import load
from ibinn.ood.sets import ood_set
from ibinn.report.pictures import draw_contact_sheet
from ibinn.report.runs import rendered, report
from ibinn.run import CONFIG, HISTORY, MODEL, RESULTS
from ibinn.run.results import read_results
from ibinn.sweep.plan import plan, read_experiment

HERE = Path(__file__).parent
RUNS, PUBLISHED = HERE.parent / "runs", HERE.parent / "results"
EXPERIMENTS = ("fashion-table", "fashion-no-ramp", "fashion-gamma", "cifar10-base", "sigma-8x8")
NUMBERS = {"fashion-gamma": ("gamma", "gamma_full"), "sigma-8x8": ("sigma",)}  # figures of `ibinn report`
PICTURES = {"fashion-gamma": ("latent", "samples", "interpolations")}  # if the IB-INNs are in runs/
SETS = ("fashion-table", "cifar10-base")  # with a figure of the OoD sets
OF_A_RUN = {  # figures that `ibinn evaluate` draws
    ("fashion-table", "fashion_mnist-ibinn-gamma1-small-seed0"): (
        "calibration",
        "roc",
        "trajectory",
        "samples",
    ),
    ("fashion-table", "fashion_mnist-resnet-small-seed0"): ("calibration",),
    ("fashion-table", "fashion_mnist-class-nll-small-seed0"): ("samples", "latent"),
    ("cifar10-base", "cifar10-ibinn-gamma1-base-seed0"): (
        *("calibration", "roc", "trajectory", "latent", "samples", "interpolations"),
    ),
    ("cifar10-base", "cifar10-resnet-base-seed0"): ("calibration",),
}


def planned(experiment: str) -> list[Path]:
    """The folders of an experiment's runs, whether they are made or not."""
    return [run.folder for run in plan(read_experiment(HERE / f"{experiment}.toml"), RUNS / experiment)]


def is_finished(run: Path) -> bool:
    return (run / MODEL).is_file() and (run / RESULTS).is_file()


def copy(run: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG, HISTORY, RESULTS):
        shutil.copyfile(run / name, folder / name)


def draw(runs: Sequence[Path], figures: Sequence[str], experiment: str) -> None:
    """Figures over several runs of an experiment."""
    with tempfile.TemporaryDirectory() as drawn:
        list(report(runs, Path(drawn), paper=False, score="typicality", notify=print))
        for name in figures:
            publish(Path(drawn, "figures", f"{name}.png"), experiment)


def draw_sets(experiment: str, run: Path) -> None:
    """Test images beside the OoD sets of a run."""
    results = read_results(run)
    dataset, levels = load(results.dataset), results.levels
    assert dataset.test is not None
    assert levels is not None
    inliers = np.asarray(dataset.test.x[:16])
    sheets = {"test images": inliers}
    sheets |= {name: ood_set(name, inliers, levels, n=len(inliers)) for name in results.ood}
    files = rendered("sets", lambda: draw_contact_sheet(sheets, levels=levels))
    write_atomically(PUBLISHED / "figures" / f"{experiment}-sets.png", files["sets.png"])


def publish(figure: Path, prefix: str) -> None:
    (PUBLISHED / "figures").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(figure, PUBLISHED / "figures" / f"{prefix}-{figure.name}")


def compare() -> None:
    """Compare models, if all of them are in runs/."""
    resnets = [run for run in planned("fashion-table") if "-resnet-" in run.name]
    swept = [run for run in planned("fashion-gamma") if "-ibinn-" in run.name]
    if not all(map(is_finished, resnets)):
        return
    call("ensemble.py", resnets, PUBLISHED / "fashion-ensemble.json")
    if all(map(is_finished, swept)):
        call("generation.py", [resnets[0], *swept], PUBLISHED / "fashion-generation.json")


def call(script: str, runs: Sequence[Path], out: Path) -> None:
    trained = max((run / MODEL).stat().st_mtime for run in runs)
    if not out.is_file() or out.stat().st_mtime < trained:
        subprocess.run([sys.executable, HERE / script, *runs, "--out", out], check=True)


def main() -> None:
    for experiment in EXPERIMENTS:
        runs = planned(experiment)
        for run in filter(is_finished, runs):
            copy(run, PUBLISHED / experiment / run.name)
        copies = [PUBLISHED / experiment / run.name for run in runs]
        if experiment in SETS and (copies[0] / RESULTS).is_file():
            draw_sets(experiment, copies[0])
        if experiment in NUMBERS and all(map(Path.is_dir, copies)):
            draw(copies, NUMBERS[experiment], experiment)
        generative = [run for run in runs if "-ibinn-" in run.name]
        if experiment in PICTURES and all(map(is_finished, generative)):
            draw(generative, PICTURES[experiment], experiment)
    for (experiment, name), figures in OF_A_RUN.items():
        if is_finished(RUNS / experiment / name):
            for figure in figures:
                publish(
                    RUNS / experiment / name / "figures" / f"{figure}.png", f"{experiment}-{short(name)}"
                )
    if is_finished(RUNS / "demo"):
        copy(RUNS / "demo", PUBLISHED / "digits")
    compare()
    machine = subprocess.check_output([sys.executable, HERE.parent / "benchmarks" / "machine.py"])
    (PUBLISHED / "machine.json").write_bytes(machine)


def short(name: str) -> str:
    return name.split("-", 1)[1].removesuffix("-seed0").removesuffix("-small").removesuffix("-base")


if __name__ == "__main__":
    main()
