"""Made-up results of an evaluation: complete, plausible, and changed field by field."""

import dataclasses
from itertools import pairwise

from ibinn.metrics.calibration import EDGES
from ibinn.run.results import (
    Bin,
    Calibration,
    FalseDiscoveries,
    Floor,
    Information,
    Intervals,
    OodIntervals,
    OodResult,
    Rescaled,
    RescaledIntervals,
    Results,
)

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SCORES = (
    *("typicality", "nll", "class_typicality", "entropy"),
    *("max_softmax", "energy", "complexity", "combined"),
)


def calibration_bins(n=100):
    """A bin for each of the paper's, well calibrated."""
    centres = [(float(low + high) / 2, float(low), float(high)) for low, high in pairwise(EDGES)]
    return tuple(
        Bin(
            low=low,
            high=high,
            n=n,
            share=centre,
            share_low=max(0.0, centre - 0.004),
            share_high=min(1.0, centre + 0.004),
            floor_low=max(0.0, centre - 0.006),
            floor_high=min(1.0, centre + 0.006),
        )
        for centre, low, high in centres
    )


def calibration(**changes):
    """Errors of a well calibrated model, each a little above its floor's mean and below its 95th percentile."""
    errors = {"ece": 0.5, "mce": 4.0, "ice": 1.5, "geo_mean": 1.4, "top_label_ece": 1.2}
    values = {
        **errors,
        "floor": {name: Floor(mean=0.9 * error, p95=1.2 * error) for name, error in errors.items()},
        "bins": calibration_bins(),
    }
    return Calibration(**(values | changes))


def ood_result(auroc=80.0, detected=40.0, /, **changes):
    """One OoD set with these numbers for every score, or with these fields changed."""
    values = {
        "n": 360,
        "entropy_increase": 0.5,
        "auroc": dict.fromkeys(SCORES, auroc),
        "fpr95": dict.fromkeys(SCORES, 30.0),
        "detected_at_alpha": dict.fromkeys(SCORES, detected),
        "bh": FalseDiscoveries(fdr=10.0, found=35.0, false=9.2),
    }
    return OodResult(**(values | changes))


def ood_intervals(auroc=80.0, detected=40.0):
    return OodIntervals(
        entropy_increase=(0.45, 0.55),
        auroc=dict.fromkeys(SCORES, (auroc - 1, min(auroc + 1, 100.0))),
        fpr95=dict.fromkeys(SCORES, (28.0, 32.0)),
        detected_at_alpha=dict.fromkeys(SCORES, (detected - 2, min(detected + 2, 100.0))),
    )


def intervals(**changes):
    """Those of `results()`."""
    errors = {
        "ece": (0.4, 0.7),
        "mce": (3.0, 6.0),
        "ice": (1.1, 2.2),
        "geo_mean": (1.1, 2.0),
        "top_label_ece": (0.9, 1.6),
    }
    values = {
        "error": (9.4, 10.6),
        "nll_y": (0.31, 0.35),
        "brier": (0.14, 0.16),
        "entropy": (0.28, 0.32),
        "loss_x": (-2.61, -2.59),
        "bits_per_dim": (4.22, 4.28),
        "bits_per_dim_paper_convention": (3.57, 3.63),
        "information": {"ci_xz": (9000.0, 9100.0), "ci_yz": (1.95, 1.99)},
        "calibration": errors,
        "scaled": RescaledIntervals(nll_y=(0.30, 0.34), brier=(0.14, 0.16), calibration=errors),
        "false_alarm_rate": dict.fromkeys(SCORES, (4.6, 5.5)),
        "false_alarm_rate_by_class": dict.fromkeys(CLASSES, (3.7, 6.4)),
        "ood": {"noise": ood_intervals(71.5, 23.4), "inverted": ood_intervals(99.6, 98.2)},
    }
    return Intervals(**(values | changes))


RESULTS = Results(
    method="ibinn",
    gamma=1.0,
    dataset="cifar10",
    size="base",
    seed=0,
    classes=CLASSES,
    levels=256,
    n_dims=3072,
    n_parameters=1_945_760,
    n_train=40_000,
    n_validation=5000,
    n_calibration=5000,
    n_test=10_000,
    train_seconds=4992.4,
    converged=True,
    noise="uniform",
    sigma=None,
    error=10.0,
    nll_y=0.33,
    brier=0.15,
    entropy=0.30,
    loss_x=-2.6,
    bits_per_dim=4.25,
    bits_per_dim_paper_convention=3.60,
    n_draws=4,
    n_without_answer=0,
    calibration=calibration(),
    scaled=Rescaled(temperature=1.1, nll_y=0.32, brier=0.15, calibration=calibration()),
    score="combined",
    alpha=0.05,
    false_alarm_rate=dict.fromkeys(SCORES, 5.0),
    false_alarm_rate_by_class=dict.fromkeys(CLASSES, 5.0),
    ood={"noise": ood_result(71.5, 23.4), "inverted": ood_result(99.6, 98.2)},
    ood_left_out={},
    information=Information(ci_xz=9050.0, ci_yz=1.97),
    throughput=5123.4,
    intervals=intervals(),
)


def results(**changes):
    """Results of an IB-INN on CIFAR-10 with the OoD sets noise and inverted, with these fields changed."""
    return dataclasses.replace(RESULTS, **changes)
