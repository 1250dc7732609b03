"""A table: learn two kinds of wine, and detect a third one.

    python examples/tutorial_table.py --out runs/tutorial_table

The data are thirteen chemical measurements of 178 wines of three growers, from scikit-learn. The model learns
the wines of two growers. Their new wines get a class with a probability. Wines of the third grower get a small
p-value: they are atypical of the training data. Use --epochs 2 for a quick run.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split

from ibinn import IBINNClassifier
from ibinn.report.style import STYLE, save_figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/tutorial_table"))
    parser.add_argument("--epochs", type=int, default=None)
    options = parser.parse_args()

    x, y = load_wine(return_X_y=True)
    grower = np.array(["Alba", "Bruno", "Carlo"])[y]  # labels can be strings
    known = np.flatnonzero(grower != "Carlo")
    train, test = train_test_split(known, test_size=0.3, random_state=0, stratify=grower[known])

    model = IBINNClassifier(epochs=options.epochs, random_state=0).fit(x[train], grower[train])
    print(
        f"{100 * model.score(x[test], grower[test]):.0f} % of {len(test)} new wines are classified correctly"
    )

    p_known, p_third = model.p_values(x[test]), model.p_values(x[grower == "Carlo"])
    print(f"atypical at p <= 0.05: {100 * np.mean(p_known <= 0.05):.0f} % of the known growers' new wines,")
    print(f"                       {100 * np.mean(p_third <= 0.05):.0f} % of the third grower's")
    median = np.argsort(p_third)[len(p_third) // 2]
    print("\none of the third grower's wines:", model.explain(x[grower == "Carlo"][median]).text)

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
        z = {name: model.encode(x[rows]) for name, rows in {
            "Alba": test[grower[test] == "Alba"],
            "Bruno": test[grower[test] == "Bruno"],
            "Carlo, not in the training data": np.flatnonzero(grower == "Carlo"),
        }.items()}  # fmt: skip
        axis = np.linalg.svd(np.concatenate([*z.values()]) - model.encode(x[train]).mean(0))[2][:2]
        for (name, points), colour in zip(z.items(), ("C0", "C1", "0.4"), strict=True):
            axes[0].scatter(
                *((points - model.encode(x[train]).mean(0)) @ axis.T).T, s=14, color=colour, label=name
            )
        axes[0].set(title="Latent space, two directions", xlabel="first direction of z", ylabel="second")
        axes[0].legend()
        bins = np.linspace(0, 1, 21)
        axes[1].hist(
            [p_known, p_third], bins, label=["new wines of Alba and Bruno", "Carlo"], color=["C0", "0.4"]
        )
        axes[1].axvline(0.05, color="C3", linewidth=1)
        axes[1].set(title="Is it typical of the training data?", xlabel="p-value", ylabel="wines")
        axes[1].legend()
        options.out.mkdir(parents=True, exist_ok=True)
        save_figure(figure, options.out / "wines")
    print(f"\nwritten to {options.out}")


if __name__ == "__main__":
    main()
