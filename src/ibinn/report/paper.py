"""The numbers of the paper's two tables, CIFAR-10 and CIFAR-100, as printed.

Shares are in percent, entropies in nats. The printed bits/dim follow the authors' convention.
"""

from dataclasses import dataclass

IB_INN, GENERATIVE, DISCRIMINATIVE = GROUPS = ("IB-INN", "Standard generative", "Discriminative")
SETS = ("rgb_rotation", "quickdraw", "noise", "imagenet")  # the paper's columns, in its order
ONLY_X, ONLY_Y = "only L_X (γ = 0)", "only L_Y (γ → ∞)"

# A group, then its rows: label | error, bits/dim | calibration: geo. mean, ECE, MCE, ICE | entropy increase |
# AUROC of typicality; the last two as the average, then one number for each of SETS.
# All ten averages of AUROC differ from the mean of their four sets, by 0.7 to 3.2: they are geometric means. The
# averages of the entropy increases are arithmetic, and all else agrees within rounding.
CIFAR10 = """
IB-INN
only L_X (γ = 0)| -- 4.80| --| --| 74.51 70.68 85.74 91.14 55.82
γ = 1| 10.27 5.25| 1.26 0.54 3.25 1.13| 0.38 0.43 0.40 0.10 0.61| 68.76 78.80 67.30 77.19 54.59
only L_Y (γ → ∞)| 8.72 17.27| 3.98 0.81 13.94 5.57| 0.28 0.23 0.40 0.00 0.49| 61.25 57.04 90.29 50.24 54.40
Standard generative
Class-NLL| 61.75 4.81| 12.61 4.17 30.58 15.70| 0.03 0.02 -0.06 0.02 0.12| 73.92 70.65 83.31 90.97 55.76
Class-NLL + regul.| 40.04 4.83| 24.75 7.13 70.63 30.11| 0.01 0.00 -0.01 0.01 0.02| 74.02 69.33 85.13 91.04 55.88
Discriminative
VIB (γ = 1)| 6.83 --| 6.66 0.81 26.56 13.75| 0.17 0.14 0.23 0.00 0.32| --
ResNet| 6.51 --| 6.23 0.76 29.29 10.92| 0.18 0.16 0.20 0.00 0.34| --
i-RevNet| 9.22 --| 4.19 0.79 16.68 5.54| 0.24 0.09 0.38 0.00 0.51| --
"""
# In the row of L_Y the AUROC of noise and of imagenet are printed as the same number.
CIFAR100 = """
IB-INN
only L_X (γ = 0)| -- 4.82| --| --| 70.03 63.35 87.45 85.12 50.99
γ = 0.1| 42.57 4.94| 2.60 0.58 7.04 4.28| 0.50 0.66 0.28 0.35 0.69| 68.31 66.53 78.91 81.70 50.75
only L_Y (γ → ∞)| 33.78 18.44| 4.49 0.62 16.76 8.72| 0.58 0.52 1.04 0.00 0.77| 58.29 47.95 99.37 49.23 49.23
Standard generative
Class-NLL| 97.92 4.82| 16.20 1.02 95.63 43.53| -0.04 -0.14 0.55 -0.53 -0.03| 70.26 64.68 86.54 85.19 51.09
Class-NLL + regul.| 69.28 5.07| 13.94 0.75 89.74 40.15| 0.00 -0.00 -0.01 0.01 0.01| 68.83 64.96 82.19 83.32 50.44
Discriminative
ResNet| 29.27 --| 5.13 0.65 20.57 10.16| 0.60 0.68 0.97 -0.00 0.74| --
i-RevNet| 37.54 --| 5.18 0.63 19.85 11.09| 0.51 0.32 1.00 -0.00 0.75| --
"""


@dataclass(frozen=True)
class PrintedRow:
    """A row of the paper: numbers by the key of their column, without those printed as a dash."""

    group: str
    label: str
    cells: dict[str, float]


def ood_keys(measure: str) -> tuple[str, ...]:
    """Of the average, then of each of SETS."""
    return (f"average.{measure}", *(f"ood.{name}.{measure}" for name in SETS))


COLUMN_KEYS = (
    ("error", "bits_per_dim_paper_convention"),
    ("calibration.geo_mean", "calibration.ece", "calibration.mce", "calibration.ice"),
    ood_keys("entropy_increase"),
    ood_keys("auroc.typicality"),
)


def printed_rows(text: str) -> tuple[PrintedRow, ...]:
    rows, group = [], ""
    for line in text.strip().splitlines():
        label, *blocks = line.split("|")
        if not blocks:
            group = label
            continue
        cells: dict[str, float] = {}
        for keys, block in zip(COLUMN_KEYS, blocks, strict=True):
            numbers = dict(zip(keys, block.split(), strict=block.strip() != "--"))
            cells |= {key: float(number) for key, number in numbers.items() if number != "--"}
        rows.append(PrintedRow(group, label, cells))
    return tuple(rows)


PRINTED = {"cifar10": printed_rows(CIFAR10), "cifar100": printed_rows(CIFAR100)}
