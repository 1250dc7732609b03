"""ibinn evaluate."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from ibinn._system import choose_device
from ibinn.cli.files import read_data
from ibinn.cli.options import BatchSize, ComputeDevice, DataDir, MovedData
from ibinn.cli.terminal import error_text, print_note, progress
from ibinn.config import at_least

if TYPE_CHECKING:
    from ibinn._types import Array
    from ibinn.data.dataset import Dataset
    from ibinn.run.results import Results
    from ibinn.run.trained import Run

OOD = (
    "OoD sets: noise, rotation, inverted, flipped, jpeg, rgb_rotation, quickdraw, quickdraw_white, imagenet, for "
    "tables permuted, or any data by name or path. By default those of the paper that fit the data."
)


@dataclass(frozen=True)
class Evaluate:
    """Compute every metric on the test set and on OoD sets; write results.json, figures/ and report.html."""

    run_folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder written by ibinn train."""

    ood: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[NAME ...]", help=OOD)] = None

    data: MovedData = None

    data_dir: DataDir = None

    batch_size: BatchSize = 500

    device: ComputeDevice = "auto"

    def run(self) -> None:
        from ibinn.data.known import KNOWN
        from ibinn.evaluation import evaluate, read_test
        from ibinn.inference.latent import latent_arrays
        from ibinn.report.runs import write_run
        from ibinn.run.folder import load_run

        at_least("--batch-size", self.batch_size, 1)
        run = load_run(self.run_folder)
        if run.is_estimator:
            raise ValueError(
                f"{self.run_folder} holds a saved IBINNClassifier, whose test data is unknown; ibinn evaluate "
                f"takes runs of ibinn train"
            )
        data = self.data or run.config.data
        if data not in KNOWN and not Path(data).exists():
            raise ValueError(
                f"the run was trained on {data}, which does not exist; give its place with --data"
            )
        dataset = read_data(data, self.data_dir, run.config.target)
        run.pipeline.to(choose_device(self.device, dataset.is_images))
        test = read_test(run, dataset)
        sets, left_out = self.ood_sets(run, dataset, test.x)
        with progress("evaluating") as on_progress:
            results, arrays = evaluate(run, dataset, sets, self.batch_size, on_progress)
        results = replace(results, ood_left_out=left_out)
        arrays |= latent_arrays(run, test, self.batch_size)
        with progress("drawing", unit="figures") as on_progress:
            write_run(self.run_folder, results, arrays, on_progress)
        print_results(results)
        print(f"written to {self.run_folder}: results.json, figures, report.html")

    def ood_sets(
        self, run: "Run", dataset: "Dataset", test: "Array"
    ) -> "tuple[dict[str, Array], dict[str, str]]":
        """The OoD sets, and for each one that is not available the reason."""
        from ibinn.ood.sets import ood_rows, ood_set, usual_sets

        sets, left_out = {}, {}
        for name in usual_sets(run.config.data, dataset.shape) if self.ood is None else self.ood:
            try:
                if dataset.levels is None:
                    columns, target = dataset.feature_names, run.config.target
                    sets[name] = ood_rows(name, test, columns, data_dir=self.data_dir, target=target)
                else:
                    sets[name] = ood_set(name, test, dataset.levels, data_dir=self.data_dir, n=len(test))
            except (ValueError, OSError) as error:
                left_out[name] = error_text(error)
                print_note(f"{name} is left out: {left_out[name]}")
        return sets, left_out


def print_results(results: "Results") -> None:
    """The headline numbers."""
    calibration, score = results.scaled.calibration, results.score
    bits = "" if results.bits_per_dim is None else f", {results.bits_per_dim:.3f} bits/dim"
    print(f"test: error {results.error:.2f} % of {results.n_test}{bits}")
    if calibration.ece is not None:
        print(
            f"calibration: ECE {calibration.ece:.2f} % (perfect: {calibration.floor['ece'].mean:.2f} %), "
            f"MCE {calibration.mce:.2f} %, ICE {calibration.ice:.2f} %"
        )
    print(f"atypical (score {score}, alpha {results.alpha:g}):")
    print(f"  {'test set':14} {results.false_alarm_rate[score]:5.1f} %")
    for name, ood in results.ood.items():
        print(f"  {name:14} {ood.detected_at_alpha[score]:5.1f} %, AUROC {ood.auroc[score]:5.1f} %")
