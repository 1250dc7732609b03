"""IBINNClassifier and scikit-learn's classifiers on the tables that come with scikit-learn.

    python benchmarks/classifiers.py

Five folds, three seeds: error, log-loss, the paper's calibration error with its floor, and seconds of a fit.
For IBINNClassifier also the log-loss of its raw posterior, without the temperature, over the same folds.
Every classifier has its defaults, after a StandardScaler if it needs one. QDA has reg_param=0.01 on breast
cancer and digits, whose covariances do not have full rank. Then the third class of wine, which should be
atypical for a model of the other two. A log-loss is tied with the best if it is within one standard error.
"""

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from turns import save

from ibinn import IBINNClassifier
from ibinn.metrics.calibration import calibration_errors, calibration_floor, pairs_per_bin, true_per_bin

SEEDS = 3
SETS: dict[str, Callable[..., Any]] = {
    "iris": load_iris,
    "wine": load_wine,
    "breast cancer": load_breast_cancer,
    "digits": load_digits,
}
CLASSIFIERS: dict[str, Callable[[int], Any]] = {
    "IBINNClassifier": lambda seed: IBINNClassifier(random_state=seed),
    "GaussianNB": lambda seed: GaussianNB(),
    "QDA": lambda seed: make_pipeline(StandardScaler(), QuadraticDiscriminantAnalysis()),
    "LogisticRegression": lambda seed: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "RandomForest": lambda seed: RandomForestClassifier(random_state=seed),
    "HistGradientBoosting": lambda seed: HistGradientBoostingClassifier(random_state=seed),
}

# QDA fails with its defaults if a class's covariance does not have full rank.
INSTEAD: dict[tuple[str, str], Callable[[int], Any]] = {
    (data, "QDA"): lambda seed: make_pipeline(
        StandardScaler(), QuadraticDiscriminantAnalysis(reg_param=0.01)
    )
    for data in ("breast cancer", "digits")
}


def clipped(probabilities: Any) -> Any:
    """Above 0, for the logarithm."""
    proba = np.clip(probabilities, 1e-15, 1)
    return proba / proba.sum(1, keepdims=True)


def standard_error(values: Any) -> float:
    """Of their mean."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def cross_validated(make: Callable[[int], Any], x: Any, y: Any) -> dict[str, float]:
    """Means over folds and seeds; the standard error of the log-loss is that of the mean over the folds."""
    losses, raw_losses, wrong, seconds, q, labels = [], [], [], [], [], []
    for seed in range(SEEDS):
        for train, test in StratifiedKFold(5, shuffle=True, random_state=seed).split(x, y):
            start = time.perf_counter()
            model = make(seed).fit(x[train], y[train])
            seconds.append(time.perf_counter() - start)
            proba = clipped(model.predict_proba(x[test]))
            losses.append(-np.log(proba[np.arange(len(test)), y[test]]).mean())
            if isinstance(model, IBINNClassifier):
                raw = clipped(model.predict_proba(x[test], calibrated=False))
                raw_losses.append(-np.log(raw[np.arange(len(test)), y[test]]).mean())
            wrong.append((proba.argmax(1) != y[test]).mean())
            q.append(proba)
            labels.append(y[test])
    joined, true = np.concatenate(q), np.concatenate(labels)
    raw_numbers = {}
    if raw_losses:
        raw_numbers["raw_log_loss"] = float(np.mean(raw_losses))
        raw_numbers["gain_standard_error"] = standard_error(np.subtract(raw_losses, losses))
    return {
        "error": 100 * float(np.mean(wrong)),
        "log_loss": float(np.mean(losses)),
        "standard_error": standard_error(losses),
        **raw_numbers,
        "ece": 100
        * float(calibration_errors(pairs_per_bin(joined).sum(0), true_per_bin(joined, true).sum(0)).ece),
        "ece_floor": 100 * float(np.mean(calibration_floor(joined)[0].ece)),
        "fit_seconds": max(seconds),
    }


def left_out_class() -> list[dict[str, float]]:
    """Wine: the model learns two classes, without a fifth of their rows; the third is out of distribution."""
    x, y = load_wine(return_X_y=True)
    known, x_ood = np.flatnonzero(y < 2), x[y == 2]
    rows = []
    for seed in range(SEEDS):
        for train, test in StratifiedKFold(5, shuffle=True, random_state=seed).split(x[known], y[known]):
            model = IBINNClassifier(random_state=seed).fit(x[known[train]], y[known[train]])
            p, p_ood = model.p_values(x[known[test]]), model.p_values(x_ood)
            is_ood = np.repeat([0, 1], [len(p), len(p_ood)])
            rows.append(
                {
                    "auroc": 100 * float(roc_auc_score(is_ood, -np.r_[p, p_ood])),
                    "detected": 100 * float((p_ood <= 0.05).mean()),
                    "false_alarms": 100 * float((p <= 0.05).mean()),
                }
            )
    return rows


def main() -> None:
    warnings.filterwarnings("ignore")
    rows = []
    for data, load in SETS.items():
        x, y = load(return_X_y=True)
        for name, make in CLASSIFIERS.items():
            make = INSTEAD.get((data, name), make)
            row: dict[str, Any] = {
                "data": data,
                "name": name,
                **cross_validated(make, x.astype(np.float64), y),
            }
            rows.append(row)
            raw = ""
            if "raw_log_loss" in row:
                gain = row["raw_log_loss"] - row["log_loss"]
                raw = (
                    f"  raw {row['raw_log_loss']:.4f}, gain {gain:.4f} +- {row['gain_standard_error']:.4f}"
                )
            print(
                f"{data:14} {name:21} error {row['error']:5.2f} %  log-loss {row['log_loss']:.4f} +- "
                f"{row['standard_error']:.4f}  ECE {row['ece']:5.2f} % (floor {row['ece_floor']:.2f})  "
                f"fit {row['fit_seconds']:6.2f} s at most{raw}",
                flush=True,
            )
    flagged = left_out_class()
    means = {name: float(np.mean([row[name] for row in flagged])) for name in flagged[0]}
    print(f"third class of wine: {', '.join(f'{name} {value:.3g}' for name, value in means.items())}")
    save("classifiers", rows, seeds=SEEDS, left_out_class=means)


if __name__ == "__main__":
    main()
