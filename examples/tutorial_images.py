"""A folder of images: from PNG files to a model that explains its decisions.

    python examples/tutorial_images.py --out runs/tutorial_images

The script first writes scikit-learn's handwritten digits as PNG files, in a folder per class. Then it loads
them, fits a model, predicts, explains one decision, shows the evidence, and draws new digits. Use --epochs 2
for a quick run.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from ibinn import IBINNClassifier
from ibinn.data.known import load
from ibinn.report.decision import explanation_figure
from ibinn.report.pictures import draw_samples
from ibinn.report.style import save_figure


def write_folder(folder: Path) -> None:
    """Write folder/3/0017.png and so on: 8 x 8 pixels, enlarged to 16 x 16."""
    for number, (image, label) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
        path = folder / str(label) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.round(image.reshape(8, 8) * 255 / 16).astype(np.uint8)
        Image.fromarray(pixels).resize((16, 16), Image.Resampling.BICUBIC).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/tutorial_images"))
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--n", type=int, default=1500, help="number of training images")
    options = parser.parse_args()

    write_folder(options.out / "digits")
    data = load(options.out / "digits")  # any folder with a sub-folder per class
    order = np.random.default_rng(0).permutation(len(data.train))
    train, test = order[: options.n], order[options.n :]
    x, y = np.asarray(data.train.x), np.array(data.class_names)[data.train.y]

    model = IBINNClassifier(epochs=options.epochs, random_state=0, verbose=1).fit(x[train], y[train])
    print(f"{100 * model.score(x[test], y[test]):.1f} % of {len(test)} new digits are classified correctly")
    sets = model.predict_set(x[test], alpha=0.05)
    true = sets[np.arange(len(test)), np.searchsorted(model.classes_, y[test])]
    n_classes, coverage = sets.sum(1).mean(), 100 * true.mean()
    print(f"sets at alpha = 0.05: {n_classes:.2f} classes each, {coverage:.1f} % contain the true one")

    rotated = np.rot90(x[test], axes=(1, 2))
    for name, images in (("new digits", x[test]), ("the same digits, rotated by 90 degrees", rotated)):
        print(f"{name}: {100 * np.mean(~model.is_typical(images)):.0f} % are atypical")

    hardest = int(np.argsort(model.predict_proba(x[test]).max(1))[0])
    explanation = model.explain(x[test][hardest])
    first, second = sorted(explanation.posterior, key=lambda name: -explanation.posterior[name])[:2]
    print(explanation)
    figure = explanation_figure(
        explanation, x[test][hardest], model.evidence(x[test][hardest], first, second)
    )
    save_figure(figure, options.out / "hardest")

    samples, _ = model.sample(100, np.repeat(model.classes_, 10))
    grid = samples.reshape(len(model.classes_), 10, *samples.shape[1:])
    save_figure(draw_samples(grid, tuple(model.classes_), 256), options.out / "samples")
    model.save(options.out / "model")
    print(
        f"written to {options.out}; try: ibinn predict {options.out / 'model'} {options.out / 'digits' / '3'}"
    )


if __name__ == "__main__":
    main()
