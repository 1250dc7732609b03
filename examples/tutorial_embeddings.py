"""Embeddings: somebody's pretrained network gives vectors; this tells which of them to trust.

    python examples/tutorial_embeddings.py --out runs/tutorial_embeddings
    python examples/tutorial_embeddings.py --embeddings mine.npz --out runs/mine

Any array (N, D) will do: mine.npz holds x, y, and x_strange with embeddings of something else. Without it, a
stand-in: a random network turns digits into 64 numbers, and the strange inputs are the digits with noise.
--epochs 2 is for those in a hurry.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from ibinn import IBINNClassifier
from ibinn.report.style import STYLE, save_figure


def stand_in(n_features: int = 64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, y and x_strange: what a network of one random layer makes of digits, and of noisy ones."""
    pixels, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(64, n_features)) / 8
    noisy = np.clip(pixels + rng.normal(scale=8, size=pixels.shape), 0, 16)
    return np.tanh(pixels / 8 @ weights), y, np.tanh(noisy / 8 @ weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--embeddings", type=Path, default=None, help="an .npz with x, y and x_strange")
    parser.add_argument("--out", type=Path, default=Path("runs/tutorial_embeddings"))
    parser.add_argument("--epochs", type=int, default=None)
    options = parser.parse_args()

    if options.embeddings is None:
        x, y, strange = stand_in()
    else:
        with np.load(options.embeddings, allow_pickle=False) as arrays:
            x, y, strange = arrays["x"], arrays["y"], arrays["x_strange"]
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.3, random_state=0, stratify=y)

    # gamma leans towards the classes, whose probabilities matter most here. Scaling is the model's own business.
    model = IBINNClassifier(gamma=4.0, epochs=options.epochs, random_state=0).fit(x_train, y_train)
    print(f"{100 * model.score(x_test, y_test):.1f} % of {len(y_test)} new embeddings are told right")

    p_test, p_strange = model.p_values(x_test), model.p_values(strange)
    print(f"flagged at p <= 0.05: {100 * np.mean(p_test <= 0.05):.1f} % of new ones like these, ", end="")
    print(f"{100 * np.mean(p_strange <= 0.05):.1f} % of the strange ones")

    sure = model.predict_proba(x_test).max(1)
    right = model.predict(x_test) == y_test
    order = np.argsort(-np.minimum(sure, p_test))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
        bins = np.linspace(0, 1, 21)
        axes[0].hist(
            [p_test, p_strange],
            bins,
            density=True,
            label=["like the training data", "strange"],
            color=["C0", "0.4"],
        )
        axes[0].set(title="Is it like the training data?", xlabel="p-value", ylabel="density")
        axes[0].legend()
        share = np.arange(1, len(order) + 1) / len(order)
        axes[1].plot(100 * share, 100 * (1 - np.cumsum(right[order]) / np.arange(1, len(order) + 1)))
        axes[1].set(
            title="Answering only what it trusts",
            xlabel="inputs answered (%)",
            ylabel="error among them (%)",
        )
        options.out.mkdir(parents=True, exist_ok=True)
        save_figure(figure, options.out / "embeddings")
    model.save(options.out / "model")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
