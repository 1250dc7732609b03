"""Figures of made-up runs: they show the numbers they are given, and survive what is missing."""

import math
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from helpers.results import calibration, ood_result, results
from matplotlib.container import ErrorbarContainer
from matplotlib.text import Text
from numpy.testing import assert_allclose
from PIL import Image

from ibinn.report.figures import (
    draw_calibration,
    draw_roc,
    draw_score_histograms,
    draw_training,
    score_range,
)
from ibinn.report.pictures import draw_interpolations, draw_sample_sets, draw_samples, draw_trajectory
from ibinn.report.style import class_look, save_figure
from ibinn.report.sweeps import draw_front, draw_gamma_full, draw_gamma_panels, draw_latents, draw_sigma
from ibinn.run.facts import EpochLine, Validation
from ibinn.run.results import Averaged, Bin, Calibration, Floor, Information, Rescaled

EDGES = np.array([0, 1, 2, 3, 4, 5, *range(15, 96, 10), 96, 97, 98, 99, 100]) / 100
NAMES = ["rgb_rotation", "noise", "quickdraw", "imagenet", "inverted", "flipped", "jpeg", "mnist"]


def made_bins(over=False):
    """Bins of a model that is somewhat overconfident (or very); one of them too small."""
    rng = np.random.default_rng(0)
    bins = []
    for i, (low, high) in enumerate(pairwise(EDGES)):
        n = 12 if i == 9 else int(90_000 / (1 + 40 * min(i, 18 - i) ** 1.3)) + 25
        centre = (low + high) / 2
        share = centre + (0.8 if over else 0.15) * centre * (1 - centre) * (0.5 - centre) * 2
        spread = 2 * np.sqrt(share * (1 - share) / n)
        share = float(np.clip(share + 0.4 * spread * rng.standard_normal(), 0, 1))
        ends = np.clip([share - spread, share + spread, centre - spread, centre + spread], 0, 1)
        bins.append(Bin(float(low), float(high), n, *([share, *ends] if n > 20 else [None] * 5)))
    return tuple(bins)


def made_results(method="ibinn", gamma=1.0, seed=0, sets=3, over=False, **changes):
    """Results of a run with numbers that move with gamma and sigma."""
    rng = np.random.default_rng([seed, int(1000 * (0 if gamma == math.inf else gamma)), method == "vib"])
    log = {0.0: -6.0, math.inf: 6.0}[gamma] if gamma in (0.0, math.inf) else float(np.log(gamma))
    rise, sigma = 1 / (1 + np.exp(-0.6 * log)), changes.get("sigma")
    density = method == "ibinn"
    noise = lambda scale: float(scale * rng.standard_normal())  # noqa: E731
    error = (8 if density else 7) + 14 * (1 - rise) ** 2 + noise(0.3)
    level = -3 + (0 if sigma is None else 2 * max(0, np.log10(sigma) + 2.5) ** 2 / 3)
    errors = {
        "ece": 0.5 + 0.4 * rise,
        "mce": 4 + 6 * rise,
        "ice": 1 + 2 * rise,
        "geo_mean": 1.3 + 2.4 * rise,
    }
    errors = {key: value + noise(0.1) for key, value in errors.items()}
    floor = {key: Floor(0.3 * value, 0.5 * value) for key, value in errors.items()}
    ood = {}
    for i, name in enumerate(NAMES[:sets]):
        auroc = {"typicality": 92 - 6 * i - 10 * rise + noise(1)} if density else {}
        increase = 0.1 + 0.08 * i + 0.2 * rise * (1 if i % 2 else -0.4) + noise(0.02)
        ood[name] = ood_result(entropy_increase=increase, auroc=auroc | {"entropy": 60.0 + i})
    values = {
        "error": error,
        "nll_y": error / 30,
        "loss_x": level + 0.5 * rise if density else None,
        "bits_per_dim": 8 + (level + 0.5 * rise) / np.log(2) + noise(0.02) if density else None,
        "n_dims": 784,
        "calibration": calibration(**errors, floor=floor, bins=made_bins(over), n_left_out=1),
        "ood": ood,
        "information": Information(
            ci_xz=None if sigma is None else 784 * (level + 3 - np.log(sigma) - 1.4), ci_yz=2.0
        ),
    }
    return results(method=method, gamma=gamma, seed=seed, **(values | changes))


def without_numbers(run):
    """The same run without any number that may be missing."""
    bins = tuple(Bin(b.low, b.high, b.n, *[None] * 5) for b in run.calibration.bins)
    missing = ("nll_y", "brier", "entropy", "loss_x", "bits_per_dim", "bits_per_dim_paper_convention")
    return replace(
        run,
        **dict.fromkeys(missing),
        calibration=Calibration(bins=bins),
        scaled=Rescaled(temperature=1.0, calibration=Calibration(bins=bins)),
        ood={name: ood_result(entropy_increase=None, auroc={}) for name in run.ood},
        information=Information(),
    )


def made_arrays(sets=3, n=4000):
    """Scores of the test images and of sets that lie ever nearer to them."""
    rng = np.random.default_rng(0)
    scores = {"scores/typicality": np.abs(rng.normal(0, 0.2, n))}
    for i, name in enumerate(NAMES[:sets]):
        scores[f"scores/{name}/typicality"] = np.abs(rng.normal(3 / (1 + i**1.5), 0.3, n // 2))
    return scores


def made_latent(k, distance):
    """Points around k means at this distance."""
    rng = np.random.default_rng(k)
    mu = distance * rng.standard_normal((k, 2))
    y = rng.integers(0, k, 1500)
    return {"latent/mu": mu, "latent/y": y, "latent/points": mu[y] + rng.standard_normal((1500, 2))}


def made_trajectory(steps, images):
    """A path that leaves slowly and then faster."""
    t = np.linspace(0, 1, steps)
    return {
        "trajectory/images": images,
        "trajectory/points": np.stack([2 + 14 * t**2, 1 + 6 * t**1.5], axis=1),
        "trajectory/amount": t * 100,
        "trajectory/p": 0.6 * np.exp(-8 * t),
        "trajectory/y": np.array(1),
    }


# --- how they look -----------------------------------------------------------------------------------

GAMMAS = [0.0, 0.02, 0.1, 1.0, 4.0, 50.0, math.inf]
FASHION = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
]
HOSTILE = ["$a$ $b", "_hidden", "two\nlines", "a very long name of a class, " * 3, "x^2_i\\frac", ""]
HISTORY = [
    EpochLine(
        epoch=epoch,
        loss_x=-3 + 1 / epoch,
        loss_y=1 / epoch,
        validation=Validation(
            loss=-3 + 2 / epoch,
            loss_x=-3 + 1 / epoch,
            loss_y=0.9 / epoch,
            error=20 / epoch,
            bits_per_dim=3.0,
        ),
        learning_rate=0.001,
        skipped=0,
        seconds=float(epoch),
    )
    for epoch in range(1, 13)
]
ERROR_ALONE = Validation(loss=None, loss_x=None, loss_y=None, error=3.0, bits_per_dim=None)
CLASSIFIER_HISTORY = [replace(line, loss_x=None, validation=ERROR_ALONE) for line in HISTORY]


def sweep(sets=4, seeds=2):
    return [
        made_results(method, gamma, seed, sets)
        for method in ("ibinn", "vib")
        for gamma in GAMMAS
        for seed in range(seeds)
    ]


def noisy_images(*shape, levels=256):
    return np.random.default_rng(0).integers(0, levels, shape).astype(np.uint8)


def trajectory(k, steps, channels=1):
    return made_latent(k, 5) | made_trajectory(steps, noisy_images(steps, 8, 8, channels))


FIGURES = {
    "calibration": lambda: draw_calibration(made_results()),
    "calibration, far off": lambda: draw_calibration(made_results(over=True)),
    "calibration, no numbers": lambda: draw_calibration(without_numbers(made_results())),
    "calibration, no bins": lambda: draw_calibration(results(scaled=Rescaled(temperature=1.0))),
    "training": lambda: draw_training(HISTORY),
    "training, one epoch": lambda: draw_training(HISTORY[:1]),
    "training, classifier": lambda: draw_training(CLASSIFIER_HISTORY),
    "gamma": lambda: draw_gamma_panels(sweep()),
    "gamma, one": lambda: draw_gamma_panels([made_results()]),
    "gamma, ends": lambda: draw_gamma_panels([made_results(gamma=gamma) for gamma in (0.0, math.inf)]),
    "gamma, no numbers": lambda: draw_gamma_panels([without_numbers(made_results())]),
    "gamma, no sets": lambda: draw_gamma_panels(sweep(sets=0)),
    "gamma, eight sets": lambda: draw_gamma_panels(
        [*sweep(sets=8), made_results("vib", 0.3, converged=False)]
    ),
    "gamma, a spike": lambda: draw_gamma_panels([*sweep(), made_results(gamma=math.inf, bits_per_dim=1e4)]),
    "gamma, other methods": lambda: draw_gamma_panels(
        [*sweep(), replace(made_results("resnet"), gamma=None)]
    ),
    "all of gamma": lambda: draw_gamma_full(sweep(sets=5, seeds=1)),
    "all of gamma, eight sets": lambda: draw_gamma_full(sweep(sets=8, seeds=1)),
    "all of gamma, no sets": lambda: draw_gamma_full(sweep(sets=0)),
    "front": lambda: draw_front(sweep(seeds=2)),
    "front, one gamma": lambda: draw_front([made_results(averaged=Averaged(8, 9.0, 0.3))]),
    "sigma": lambda: draw_sigma([made_results(sigma=s) for s in (1e-3, 1e-2, 1e-1)]),
    "sigma, one": lambda: draw_sigma([made_results(sigma=0.01)]),
    "sigma, none": lambda: draw_sigma([made_results(), without_numbers(made_results(sigma=0.1))]),
    "samples": lambda: draw_samples(noisy_images(10, 8, 28, 28, 1), FASHION, 256),
    "samples of 2 classes": lambda: draw_samples(noisy_images(2, 1, 8, 8, 1, levels=17), ["a", "b"], 17),
    "samples of 100 classes": lambda: draw_samples(
        noisy_images(100, 8, 32, 32, 3), [f"thing {i}" for i in range(100)], 256
    ),
    "sample sets": lambda: draw_sample_sets(
        dict.fromkeys(["class-NLL", "γ = 0.1", "γ = 1"], noisy_images(10, 8, 28, 28, 1)), FASHION, 256
    ),
    "sample sets of 100 classes": lambda: draw_sample_sets(
        {"a": noisy_images(100, 2, 8, 8, 3)}, [f"thing {i}" for i in range(100)], 256
    ),
    "interpolations": lambda: draw_interpolations(
        [(f"γ = {g}", noisy_images(10, 32, 32, 3)) for g in GAMMAS], 256
    ),
    "interpolations, no labels": lambda: draw_interpolations([("", noisy_images(4, 8, 8, 1))] * 3, 256),
    "trajectory": lambda: draw_trajectory(trajectory(10, 8, channels=3), FASHION, 256),
    "trajectory, 100 classes": lambda: draw_trajectory(
        trajectory(100, 30), [f"thing {i}" for i in range(100)], 256
    ),
    "trajectory alone": lambda: draw_trajectory(made_trajectory(2, noisy_images(2, 8, 8, 1)), FASHION, 256),
    "trajectory that stands still": lambda: draw_trajectory(
        trajectory(2, 3) | {"trajectory/points": np.ones((3, 2))}, ["a", "b"], 256
    ),
}
FIGURES |= {
    f"histograms, {n}": lambda n=n: draw_score_histograms(
        made_results(sets=n), made_arrays(sets=n), "typicality"
    )
    for n in (0, 1, 5, 8)
}
FIGURES |= {
    f"roc, {n}": lambda n=n: draw_roc(made_results(sets=n), made_arrays(sets=n), "typicality")
    for n in (0, 1, 8)
}
FIGURES |= {
    f"{draw.__name__} without scores": lambda draw=draw: draw(made_results(), {}, "energy")
    for draw in (draw_score_histograms, draw_roc)
}
FIGURES |= {
    f"latents, {k} classes": lambda k=k: draw_latents(
        {f"γ = {g}": made_latent(k, g) for g in (1, 9)}, [f"thing {i}" for i in range(k)]
    )
    for k in (2, 10, 20, 21, 100)
}
FIGURES |= {
    "hostile class names": lambda: draw_latents({"$": made_latent(6, 3)}, HOSTILE),
    "hostile rows": lambda: draw_samples(noisy_images(6, 2, 8, 8, 1), HOSTILE, 256),
    "hostile path": lambda: draw_trajectory(trajectory(6, 5), HOSTILE, 256),
    "hostile sets": lambda: draw_gamma_panels(renamed_sets()),
    "hostile sets, all of gamma": lambda: draw_gamma_full(renamed_sets()),
    "hostile sets, roc": lambda: draw_roc(renamed_sets()[0], renamed_scores(), "typicality"),
    "hostile sets, histograms": lambda: draw_score_histograms(
        renamed_sets()[0], renamed_scores(), "typicality"
    ),
}


def renamed_sets():
    return [replace(run, ood=dict(zip(HOSTILE, run.ood.values(), strict=True))) for run in sweep(sets=6)]


def renamed_scores():
    new = dict(zip(NAMES, HOSTILE, strict=False))
    return {
        "/".join(new.get(part, part) for part in key.split("/")): v
        for key, v in made_arrays(sets=6).items()
    }


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
@pytest.mark.slow
def test_figures_are_legible(draw, monkeypatch):
    """All that is written lies within the figure and upon no other text; no warning is an error here."""
    figure, written = draw(), []
    write = Text.draw

    def watched(text, renderer):
        if text.get_visible() and text.get_text().strip():
            written.append((text.get_text(), Text.get_window_extent(text, renderer)))
        write(text, renderer)

    monkeypatch.setattr(Text, "draw", watched)
    figure.draw_without_rendering()
    width, height = figure.bbox.size
    assert figure.get_figwidth() <= 7.3
    for text, box in written:
        assert min(box.x0, box.y0) >= 0, text
        assert box.x1 <= width, text
        assert box.y1 <= height, text
    for (text, box), (other, place) in combinations(written, 2):
        across = min(box.x1, place.x1) - max(box.x0, place.x0)
        along = min(box.y1, place.y1) - max(box.y0, place.y0)
        assert min(across, along) <= 1.5, f"{text!r} on {other!r}"


# --- what they show ----------------------------------------------------------------------------------


def curves(axis):
    """(x, y, style) of each curve with error bars."""
    lines = [
        container.lines[0] for container in axis.containers if isinstance(container, ErrorbarContainer)
    ]
    return [
        (np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), line.get_linestyle()) for line in lines
    ]


def texts(figure):
    return " ".join(text.get_text() for text in figure.findobj(Text))


def test_calibration_shows_the_bins_that_count():
    bins = [*made_bins()]
    bins[3] = replace(bins[3], n=20)  # as few as are left out, though there is a share
    run = made_results()
    shown = replace(run.calibration, bins=tuple(bins))
    figure = draw_calibration(
        replace(run, calibration=Calibration(), scaled=Rescaled(1.0, calibration=shown))
    )
    curve, counts = figure.axes[:2]
    full = [b for b in bins if b.n > 20]
    ((x, y, _),) = curves(curve)
    assert_allclose(x, [50 * (b.low + b.high) for b in full])
    assert_allclose(y, [100 * b.share for b in full])
    bars = curve.containers[-1].lines[2][0].get_segments()
    assert_allclose([bar[:, 1] for bar in bars], [[100 * b.share_low, 100 * b.share_high] for b in full])
    floors = [(patch.get_y(), patch.get_y() + patch.get_height()) for patch in curve.patches]
    assert_allclose(floors, [(100 * b.floor_low, 100 * b.floor_high) for b in full])
    assert counts.get_yscale() == "log"
    assert [patch.get_height() for patch in counts.patches] == [b.n for b in bins]
    for name in ("ece", "mce", "ice", "geo_mean"):
        assert f"{getattr(shown, name):.2f}" in texts(figure)
        assert f"{shown.floor[name].mean:.2f}" in texts(figure)


def test_histograms_hold_every_score():
    arrays = made_arrays(sets=2) | {
        "scores/noise/typicality": np.array([np.inf, 1e9, -np.inf, 0.1, np.nan])
    }
    figure = draw_score_histograms(made_results(sets=2), arrays, "typicality")
    assert len(figure.axes) == 2
    for axis, (name, numbers) in zip(figure.axes, made_results(sets=2).ood.items(), strict=True):
        assert axis.get_title() == f"{name}\nAUROC {numbers.auroc['typicality']:.1f} %"
        stairs = [patch.get_data() for patch in axis.patches]
        assert_allclose([s.values.sum() for s in stairs], 100)
        for s in stairs:
            assert_allclose(s.edges, stairs[0].edges)
    assert stairs[2].values[-1] == 50  # of the four that are numbers, two lie far beyond
    assert "nats per dimension" in figure.get_supxlabel()


@pytest.mark.parametrize("scores", [[], [1.0], [0.0, 0.0], [np.inf, np.inf], [-1e300, 1e300]])
def test_score_ranges_are_finite_and_wide(scores):
    for other in ([], [2.0, 3.0], [np.inf]):
        low, high = score_range(np.array(scores), np.array(other))
        assert -np.inf < low < high < np.inf


def test_roc_is_the_curve_of_the_scores():
    run, arrays = made_results(sets=3), made_arrays(sets=3)
    axis = draw_roc(run, arrays, "typicality").axes[0]
    for line, (name, numbers) in zip(axis.lines[:3], run.ood.items(), strict=True):
        test, other = arrays["scores/typicality"], arrays[f"scores/{name}/typicality"]
        wins = (other[:, None] > test).mean() + (other[:, None] == test).mean() / 2
        assert_allclose(np.trapezoid(line.get_ydata(), line.get_xdata()), 1e4 * wins)
        assert f"{numbers.auroc['typicality']:.1f} %" in line.get_label()
    assert axis.lines[3].get_label().startswith("chance")
    assert axis.lines[3].get_slope() == 1


def test_training_shows_what_was_recorded():
    axes = draw_training(HISTORY).axes
    assert len(axes) == 4
    training, validation = axes[1].lines
    assert_allclose(training.get_ydata(), [line.loss_y for line in HISTORY])
    assert_allclose(validation.get_ydata(), [line.validation.loss_y for line in HISTORY])
    assert_allclose(axes[2].lines[0].get_ydata(), [line.validation.error for line in HISTORY])
    assert len(draw_training(CLASSIFIER_HISTORY).axes) == 2


def test_a_spike_leaves_the_panel_of_the_training():
    history = [*HISTORY[:6], replace(HISTORY[6], loss_x=2394.5), *HISTORY[7:]]
    axis = draw_training(history).axes[0]
    assert "2394" in axis.get_title()
    assert axis.get_ylim()[1] < 0


def test_gamma_panels_show_means_over_seeds():
    runs = sweep(sets=3, seeds=3)
    figure = draw_gamma_panels(runs)
    panels = figure.axes[:5]
    assert all(axis.get_xscale() == "log" for axis in panels)
    inner = GAMMAS[1:-1]
    for method, (x, y, style) in zip(("ibinn", "vib"), curves(panels[0])[::2], strict=True):
        errors = np.array([[r.error for r in runs if r.method == method and r.gamma == g] for g in inner])
        assert_allclose(x, inner)
        assert_allclose(y, errors.mean(1))
        assert style == {"ibinn": "-", "vib": ":"}[method]
    bars = panels[0].containers[2].lines[2][0].get_segments()
    assert_allclose([bar[1, 1] - bar[0, 1] for bar in bars], 2 * errors.std(1, ddof=1) / np.sqrt(3))
    assert {style for _, _, style in curves(panels[1])} == {"-", "None"}  # a VIB has no bits/dim
    assert len(curves(panels[3])) == 2 * 3
    assert len(curves(panels[4])) == 4 * 3
    assert any(set(line.get_ydata()) == {50} for line in panels[3].lines)
    for axis, arrow in zip(panels, "↓↓↓↑↑", strict=True):
        assert axis.get_title().endswith(arrow)


def test_gamma_0_and_infinity_stand_beyond_the_ends():
    axis = draw_gamma_panels(sweep()).axes[0]
    labels = {text.get_text(): x for x, text in zip(axis.get_xticks(), axis.get_xticklabels(), strict=True)}
    assert labels.keys() == {"0.1", "1", "10", "0", "∞"}
    assert labels["0"] < 0.02
    assert labels["∞"] > 50
    (x, y, style) = curves(axis)[1]
    assert_allclose(x, [labels["0"], labels["∞"]])
    assert style == "None"  # no line across the gap
    assert_allclose(y[0], np.mean([r.error for r in sweep() if r.method == "ibinn" and r.gamma == 0]))


def test_a_run_that_did_not_converge_is_hollow_and_a_spike_leaves_the_panel():
    figure = draw_gamma_panels([*sweep(), made_results("vib", 0.3, converged=False)])
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white"]
    assert_allclose(hollow[0].get_xdata(), 0.3)
    assert "not converged" in texts(figure)
    assert "off the scale" not in texts(figure)
    figure = draw_gamma_panels(
        [replace(run, bits_per_dim=1e4) if run.gamma == math.inf else run for run in sweep()[:14]]
    )
    assert figure.axes[1].get_ylim()[1] < 10
    assert "off the scale" in texts(figure)


def test_the_full_version_has_a_panel_for_every_number():
    for sets in (0, 5):
        figure = draw_gamma_full(sweep(sets, seeds=1))
        axes = [axis for axis in figure.axes if axis.axison]
        assert len(axes) == 7 + 2 * sets
        chances = [axis for axis in axes if any(set(line.get_ydata()) == {50} for line in axis.lines)]
        assert len(chances) == sets


def test_the_front_shows_the_papers_points_with_exact_bits():
    runs = [
        made_results(
            gamma=gamma,
            dataset="cifar10",
            error=20 - gamma,
            bits_per_dim=4 + gamma,
            bits_per_dim_paper_convention=4 + gamma - 0.65,
            averaged=Averaged(8, 19 - gamma, 0.3),
        )
        for gamma in (2.0, 1.0)
    ]
    (axis,) = draw_front([*runs, replace(made_results("resnet"), gamma=None)]).axes
    mine, averaged, paper = sorted(axis.lines, key=lambda line: line.get_ydata()[0], reverse=True)
    assert_allclose(np.transpose(mine.get_data()), [(5, 19), (6, 18)])
    assert_allclose(np.transpose(averaged.get_data()), [(5, 18), (6, 17)])
    assert_allclose(np.transpose(paper.get_data()), [(5.25 + 0.65, 10.27), (17.27 + 0.65, 8.72)])
    with pytest.raises(ValueError, match="gamma above 0"):
        draw_front([made_results(gamma=0.0)])


def test_sigma_shows_the_known_slope():
    runs = [made_results(sigma=s, seed=seed) for s in (0.1, 1e-3, 1e-2) for seed in (0, 1)]
    axes = draw_sigma([*runs, made_results()]).axes
    assert len(axes) == 5
    assert all(axis.get_xscale() == "log" for axis in axes)
    ((x, y, _),) = curves(axes[-1])
    assert_allclose(x, [1e-3, 1e-2, 0.1])
    assert_allclose(y, [np.mean([r.information.ci_xz for r in runs if r.sigma == s]) for s in x])
    (slope,) = [line for line in axes[-1].lines if line.get_linestyle() == "--"]
    assert_allclose(slope.get_ydata(), y[0] - 784 * np.log(x / 1e-3))


def test_latents_have_one_legend_and_named_means():
    figure = draw_latents({f"γ = {d}": made_latent(10, d) for d in (30, 60)} | {"resnet": {}}, FASHION)
    assert [axis.get_title() for axis in figure.axes] == ["γ = 30", "γ = 60"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == FASHION
    for axis in figure.axes:
        assert {text.get_text() for text in axis.texts} <= set(FASHION)
        assert len(axis.texts) > 5
        assert axis.get_aspect() == 1
    many = draw_latents({"γ = 1": made_latent(100, 3)}, [str(i) for i in range(100)])
    assert not many.legends
    assert len(many.axes) == 2  # a colour bar instead


def test_looks_of_twenty_classes_are_distinct():
    assert len({class_look(label, 20) for label in range(20)}) == 20
    assert len({class_look(label, 10)[0] for label in range(10)}) == 10
    assert len({class_look(label, 100)[0] for label in range(100)}) == 100


@pytest.mark.parametrize("shape", [(8, 8, 1), (12, 8, 3), (28, 28, 1), (32, 32, 3)])
def test_samples_stand_in_rows_by_class(shape, tmp_path):
    """The PNG's own pixels."""
    samples = noisy_images(3, 4, *shape, levels=17)
    figure = draw_samples(samples, FASHION[:3], 17)
    save_figure(figure, tmp_path / "samples")
    picture = np.asarray(Image.open(tmp_path / "samples.png").convert("RGB")).astype(int)
    (axis,) = figure.axes
    zoom, place = round(96 / shape[1]), axis.get_position()
    left, top = round(place.x0 * picture.shape[1]), round((1 - place.y1) * picture.shape[0])
    for k, row in enumerate(samples):
        for i, image in enumerate(row):
            y, x = top + k * (zoom * shape[0] + 6) + 1, left + i * (zoom * shape[1] + 6) + 1
            shown = picture[y : y + zoom * shape[0] : zoom, x : x + zoom * shape[1] : zoom]
            assert np.abs(shown - image * (255 / 16)).max() <= 1
    assert [text.get_text() for text in axis.texts] == FASHION[:3]
    heights = [text.get_position()[1] for text in axis.texts]
    assert_allclose(np.diff(heights), zoom * shape[0] + 6)


def test_sample_sets_leave_out_models_that_cannot_sample():
    sets = {"class-NLL": noisy_images(2, 5, 8, 8, 1), "resnet": None, "γ = 1": noisy_images(2, 3, 8, 8, 1)}
    figure = draw_sample_sets(sets, ["a", "b"], 256)
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["class-NLL", "γ = 1"]
    assert [len(axis.texts) for axis in figure.axes] == [2, 0]
    first, second = (axis.images[0].get_array() for axis in figure.axes)
    assert first.shape == second.shape


def test_interpolations_have_a_row_for_each_label():
    figure = draw_interpolations(
        [("γ = 1", noisy_images(6, 8, 8, 1)), ("γ = 2", noisy_images(6, 8, 8, 1))], 256
    )
    (axis,) = figure.axes
    assert [text.get_text() for text in axis.texts] == ["γ = 1", "γ = 2"]
    assert axis.images[0].get_array().shape == (2 * 98 + 4, 6 * 98 + 5 * 4, 3)


def test_trajectory_shows_path_images_and_p_values():
    arrays = trajectory(10, 8, channels=3)
    figure = draw_trajectory(arrays, FASHION, 256)
    axis, *pictures = figure.axes
    assert_allclose(axis.lines[0].get_xydata(), arrays["trajectory/points"])
    assert len(pictures) == 8
    for i, picture in enumerate(pictures):
        amount, p = arrays["trajectory/amount"][i], arrays["trajectory/p"][i]
        assert picture.get_title() == f"{i + 1}"
        assert picture.texts[0].get_text() == f"{amount:.0f}\n{p:.2g}"
    assert "class Trouser" in axis.get_title()
    assert {f"{i + 1}" for i in range(8)} <= {text.get_text() for text in axis.texts}


MISTAKES = {
    "no gammas": (lambda: draw_gamma_panels([made_results("resnet")]), "give runs of ibinn or vib"),
    "no gammas at all": (lambda: draw_gamma_full([]), "give runs of ibinn or vib"),
    "no history": (lambda: draw_training([]), "history holds no losses"),
    "no latent points": (lambda: draw_latents({"a": {}}, ["x"]), "no latent/points"),
    "no samples": (lambda: draw_sample_sets({"a": None}, ["x"], 256), "no samples"),
    "wrong samples": (lambda: draw_samples(noisy_images(2, 1, 8, 8, 1), ["x"], 256), r"\(2, 1, 8, 8, 1\)"),
    "no interpolations": (lambda: draw_interpolations([], 256), "one shape"),
    "unequal steps": (
        lambda: draw_interpolations([("", noisy_images(n, 8, 8, 1)) for n in (2, 3)], 256),
        "one shape",
    ),
    "no trajectory": (lambda: draw_trajectory({}, ["x"], 256), "trajectory/images"),
}


@pytest.mark.parametrize(("act", "sentence"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_one_clear_sentence(act, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        act()
    assert "\n" not in str(error.value)
