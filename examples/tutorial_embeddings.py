"""Embeddings: classify the vectors of a pretrained network, and detect those that are not to be trusted.

    python examples/tutorial_embeddings.py --out runs/tutorial_embeddings
    python examples/tutorial_embeddings.py --embeddings mine.npz --out runs/mine

mine.npz holds arrays x (N, D), y (N,), and x_ood with embeddings of something else. Without it, a random
network turns digits into 64 numbers, and x_ood are digits with noise. Use --epochs 2 for a quick run.
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from ibinn import IBINNClassifier
from ibinn.report.style import STYLE, save_figure


def digit_embeddings(n_features: int = 64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, y and x_ood: digits and noisy digits after one random layer."""
    pixels, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(64, n_features)) / 8
    noisy = np.clip(pixels + rng.normal(scale=8, size=pixels.shape), 0, 16)
    return np.tanh(pixels / 8 @ weights), y, np.tanh(noisy / 8 @ weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--embeddings", type=Path, default=None, help="an .npz with x, y and x_ood")
    parser.add_argument("--out", type=Path, default=Path("runs/tutorial_embeddings"))
    parser.add_argument("--epochs", type=int, default=None)
    options = parser.parse_args()

    if options.embeddings is None:
        x, y, x_ood = digit_embeddings()
    else:
        with np.load(options.embeddings, allow_pickle=False) as arrays:
            x, y, x_ood = arrays["x"], arrays["y"], arrays["x_ood"]
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.3, random_state=0, stratify=y)

    # A gamma above 1 favours the class probabilities. The model scales the inputs itself.
    model = IBINNClassifier(gamma=4.0, epochs=options.epochs, random_state=0).fit(x_train, y_train)
    print(
        f"{100 * model.score(x_test, y_test):.1f} % of {len(y_test)} new embeddings are classified correctly"
    )

    p_test, p_ood = model.p_values(x_test), model.p_values(x_ood)
    print(f"atypical at p <= 0.05: {100 * np.mean(p_test <= 0.05):.1f} % of the new embeddings, ", end="")
    print(f"{100 * np.mean(p_ood <= 0.05):.1f} % of the OoD embeddings")

    confidence = model.predict_proba(x_test).max(1)
    is_correct = model.predict(x_test) == y_test
    order = np.argsort(-np.minimum(confidence, p_test))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
        bins = np.linspace(0, 1, 21)
        axes[0].hist(
            [p_test, p_ood],
            bins,
            density=True,
            label=["new embeddings", "OoD embeddings"],
            color=["C0", "0.4"],
        )
        axes[0].set(title="Is it typical of the training data?", xlabel="p-value", ylabel="density")
        axes[0].legend()
        share = np.arange(1, len(order) + 1) / len(order)
        axes[1].plot(100 * share, 100 * (1 - np.cumsum(is_correct[order]) / np.arange(1, len(order) + 1)))
        axes[1].set(
            title="Classifying only trusted inputs",
            xlabel="inputs classified (%)",
            ylabel="error among them (%)",
        )
        options.out.mkdir(parents=True, exist_ok=True)
        save_figure(figure, options.out / "embeddings")
    model.save(options.out / "model")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
