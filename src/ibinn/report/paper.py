"""The numbers of the paper's two tables, CIFAR-10 and CIFAR-100, as printed.

Shares are in %, entropies in nats. The printed bits/dim follow the authors' convention.
"""

from dataclasses import dataclass

IB_INN, GENERATIVE, DISCRIMINATIVE = GROUPS = ("IB-INN", "Standard generative", "Discriminative")
SETS = ("rgb_rotation", "quickdraw", "noise", "imagenet")  # the paper's columns, in its order


@dataclass(frozen=True)
class PrintedRow:
    """A row of the paper; None or empty where it prints a dash.

    calibration: geo. mean, ECE, MCE, ICE. entropy_increase and auroc: the average, then one for each of SETS.
    """

    group: str
    label: str
    error: float | None
    bits: float | None
    calibration: tuple[float, ...] = ()
    entropy_increase: tuple[float, ...] = ()
    auroc: tuple[float, ...] = ()

    @property
    def cells(self) -> dict[str, float]:
        """The numbers by the key of their column."""
        single = {"error": self.error, "bits_per_dim_paper_convention": self.bits}
        cells = {key: value for key, value in single.items() if value is not None}
        for keys, values in (
            ([f"calibration.{name}" for name in ("geo_mean", "ece", "mce", "ice")], self.calibration),
            (ood_keys("entropy_increase"), self.entropy_increase),
            (ood_keys("auroc.typicality"), self.auroc),
        ):
            cells |= dict(zip(keys, values, strict=bool(values)))
        return cells


def ood_keys(measure: str) -> list[str]:
    """Of the average, then of each of SETS."""
    return [f"average.{measure}", *(f"ood.{name}.{measure}" for name in SETS)]


ONLY_X, ONLY_Y = "only L_X (γ = 0)", "only L_Y (γ → ∞)"
NLL, NLL_FIXED = "Class-NLL", "Class-NLL + regul."

# All ten averages of the detection scores differ from the mean of their four sets, by 0.7 to 3.2: they are
# geometric means. The averages of the entropy increases are arithmetic, and all else agrees within rounding.
PRINTED = {
    "cifar10": (
        PrintedRow(IB_INN, ONLY_X, None, 4.80, auroc=(74.51, 70.68, 85.74, 91.14, 55.82)),
        PrintedRow(
            IB_INN,
            "γ = 1",
            10.27,
            5.25,
            (1.26, 0.54, 3.25, 1.13),
            (0.38, 0.43, 0.40, 0.10, 0.61),
            (68.76, 78.80, 67.30, 77.19, 54.59),
        ),
        PrintedRow(
            IB_INN,
            ONLY_Y,
            8.72,
            17.27,
            (3.98, 0.81, 13.94, 5.57),
            (0.28, 0.23, 0.40, 0.00, 0.49),
            (61.25, 57.04, 90.29, 50.24, 54.40),
        ),
        PrintedRow(
            GENERATIVE,
            NLL,
            61.75,
            4.81,
            (12.61, 4.17, 30.58, 15.70),
            (0.03, 0.02, -0.06, 0.02, 0.12),
            (73.92, 70.65, 83.31, 90.97, 55.76),
        ),
        PrintedRow(
            GENERATIVE,
            NLL_FIXED,
            40.04,
            4.83,
            (24.75, 7.13, 70.63, 30.11),
            (0.01, 0.00, -0.01, 0.01, 0.02),
            (74.02, 69.33, 85.13, 91.04, 55.88),
        ),
        PrintedRow(
            DISCRIMINATIVE,
            "VIB (γ = 1)",
            6.83,
            None,
            (6.66, 0.81, 26.56, 13.75),
            (0.17, 0.14, 0.23, 0.00, 0.32),
        ),
        PrintedRow(
            DISCRIMINATIVE,
            "ResNet",
            6.51,
            None,
            (6.23, 0.76, 29.29, 10.92),
            (0.18, 0.16, 0.20, 0.00, 0.34),
        ),
        PrintedRow(
            DISCRIMINATIVE,
            "i-RevNet",
            9.22,
            None,
            (4.19, 0.79, 16.68, 5.54),
            (0.24, 0.09, 0.38, 0.00, 0.51),
        ),
    ),
    "cifar100": (
        PrintedRow(IB_INN, ONLY_X, None, 4.82, auroc=(70.03, 63.35, 87.45, 85.12, 50.99)),
        PrintedRow(
            IB_INN,
            "γ = 0.1",
            42.57,
            4.94,
            (2.60, 0.58, 7.04, 4.28),
            (0.50, 0.66, 0.28, 0.35, 0.69),
            (68.31, 66.53, 78.91, 81.70, 50.75),
        ),
        PrintedRow(
            IB_INN,
            ONLY_Y,
            33.78,
            18.44,
            (4.49, 0.62, 16.76, 8.72),
            (0.58, 0.52, 1.04, 0.00, 0.77),
            (58.29, 47.95, 99.37, 49.23, 49.23),  # noise and imagenet are printed alike
        ),
        PrintedRow(
            GENERATIVE,
            NLL,
            97.92,
            4.82,
            (16.20, 1.02, 95.63, 43.53),
            (-0.04, -0.14, 0.55, -0.53, -0.03),
            (70.26, 64.68, 86.54, 85.19, 51.09),
        ),
        PrintedRow(
            GENERATIVE,
            NLL_FIXED,
            69.28,
            5.07,
            (13.94, 0.75, 89.74, 40.15),
            (0.00, -0.00, -0.01, 0.01, 0.01),
            (68.83, 64.96, 82.19, 83.32, 50.44),
        ),
        PrintedRow(
            DISCRIMINATIVE,
            "ResNet",
            29.27,
            None,
            (5.13, 0.65, 20.57, 10.16),
            (0.60, 0.68, 0.97, -0.00, 0.74),
        ),
        PrintedRow(
            DISCRIMINATIVE,
            "i-RevNet",
            37.54,
            None,
            (5.18, 0.63, 19.85, 11.09),
            (0.51, 0.32, 1.00, -0.00, 0.75),
        ),
    ),
}
