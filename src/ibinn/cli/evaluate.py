"""ibinn evaluate."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from ibinn.cli.terminal import note, one_line, progress
from ibinn.config import Device

if TYPE_CHECKING:
    from ibinn._types import Array
    from ibinn.data.dataset import Dataset
    from ibinn.run.results import Results
    from ibinn.run.trained import Run


@dataclass(frozen=True)
class Evaluate:
    """Every metric on the test set and on strange inputs: writes results.json, figures/ and report.html."""

    run_folder: tyro.conf.Positional[Path]
    """What ibinn train wrote."""

    ood: tuple[str, ...] | None = None
    """Sets of strange inputs: noise, rotation, inverted, flipped, jpeg, rgb_rotation, quickdraw, imagenet, for
    tables permuted, or any data by name or path. By default those of the paper that fit the data."""

    data: str | None = None
    """The data, if it is not where it was at training."""

    data_dir: Path | None = None
    """Where known sets are looked for first. Else $IBINN_DATA, then ~/.cache/ibinn."""

    batch_size: int = 500
    """Inputs at a time: less needs less memory."""

    device: Device = "auto"
    """Where to compute."""

    def run(self) -> None:
        from ibinn._system import chosen_device
        from ibinn.data.known import KNOWN, load
        from ibinn.run.folder import load_run

        if self.batch_size < 1:
            raise ValueError(f"--batch-size is {self.batch_size} but must be 1 or more")
        run = load_run(self.run_folder)
        data = self.data or run.config.data
        if data not in KNOWN and not Path(data).exists():
            raise ValueError(
                f"there is no {data}, which the run was trained on; say where it is with --data"
            )
        with progress(f"reading {data}") as on_progress:
            dataset = load(data, self.data_dir, run.config.target, on_progress)
        run.pipeline.to(chosen_device(self.device, dataset.is_images))
        evaluate_and_tell(run, dataset, self)


def evaluate_and_tell(run: "Run", dataset: "Dataset", command: Evaluate) -> None:
    from ibinn.evaluation import evaluate, read_test
    from ibinn.inference.latent import explore
    from ibinn.report.runs import write_run

    folder = command.run_folder
    test = read_test(run, dataset)
    sets, left_out = strange_sets(run, dataset, test.x, command)
    with progress("evaluating") as on_progress:
        results, arrays = evaluate(run, dataset, sets, command.batch_size, on_progress)
    results = replace(results, ood_left_out=left_out)
    arrays |= explore(run, test, command.batch_size)
    with progress("drawing", unit="figures") as on_progress:
        write_run(folder, results, arrays, on_progress)
    tell(results)
    print(f"written to {folder}: results.json, figures, report.html")


def strange_sets(
    run: "Run", dataset: "Dataset", test: "Array", command: Evaluate
) -> "tuple[dict[str, Array], dict[str, str]]":
    """The sets of strange inputs, and of those that could not be had a sentence why."""
    from ibinn.ood.sets import ood_rows, ood_set, usual_sets

    sets, left_out = {}, {}
    data_dir, target = command.data_dir, run.config.target
    for name in usual_sets(run.config.data, dataset.shape) if command.ood is None else command.ood:
        try:
            if dataset.levels is None:
                sets[name] = ood_rows(name, test, dataset.feature_names, 0, data_dir, target)
            else:
                sets[name] = ood_set(name, test, dataset.levels, 0, data_dir, len(test))
        except (ValueError, OSError) as error:
            left_out[name] = one_line(error)
            note(f"{name} is left out: {left_out[name]}")
    return sets, left_out


def tell(results: "Results") -> None:
    """The headline numbers."""
    calibration, score = results.calibration, results.score
    bits = "" if results.bits_per_dim is None else f", {results.bits_per_dim:.3f} bits/dim"
    print(f"test: error {results.error:.2f} % of {results.n_test}{bits}")
    if calibration.ece is not None:
        print(
            f"calibration: ECE {calibration.ece:.2f} % (perfect: {calibration.floor['ece'].mean:.2f} %), "
            f"MCE {calibration.mce:.2f} %, ICE {calibration.ice:.2f} %"
        )
    rate, sets = results.false_alarm_rate[score], "; of" if results.ood else ""
    print(f"flagged as strange ({score}, alpha {results.alpha:g}): {rate:.1f} % of the test set{sets}")
    for name, strange in results.ood.items():
        print(f"  {name:14} {strange.detected_at_alpha[score]:5.1f} %, AUROC {strange.auroc[score]:5.1f} %")
