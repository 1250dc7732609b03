"""The figure of one decision."""

import copy
import dataclasses
import math

import numpy as np
import pytest
from helpers.examples import BENT, DIGITS
from numpy.testing import assert_allclose

from ibinn.inference.attribution import EvidenceMap, evidence_map
from ibinn.inference.explain import explain
from ibinn.report.decision import explanation_figure
from ibinn.report.style import plain, save_figure


@pytest.fixture
def digits(example_run):
    return example_run("digits")


@pytest.fixture
def bent(example_run):
    return example_run("bent")


@pytest.fixture
def resnet(example_run):
    return example_run("resnet")


def texts(figure):
    figure.draw_without_rendering()
    found = [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
    return [text for text in found if text]


def test_the_figure_of_an_image(digits, tmp_path):
    raw = DIGITS.train.x[0]
    explanation, evidence = explain(digits, raw), evidence_map(digits, raw, 0, 7)
    figure = explanation_figure(explanation, raw, evidence)
    save_figure(figure, tmp_path / "image")
    assert {"the input", "which class is it?", "how typical is it?", "nats for 0 against 7"} <= {
        *texts(figure)
    }
    picture, shown = (
        next(a for a in figure.axes if a.get_title() == t).images[0]
        for t in ("the input", "evidence by pixel")
    )
    assert_allclose(picture.get_array()[..., 0], raw[..., 0] / 16)
    assert_allclose(shown.get_array(), evidence.values[..., 0])
    assert shown.norm.vmin == -shown.norm.vmax
    bars = next(a for a in figure.axes if a.get_title() == "which class is it?").patches
    assert_allclose(
        [bar.get_width() for bar in bars],
        sorted((100 * p for p in explanation.posterior.values()), reverse=True),
    )
    axis = next(a for a in figure.axes if a.get_title() == "how typical is it?")
    assert axis.lines[0].get_xdata()[0] == explanation.rank.value


def test_the_figure_of_a_row(bent, tmp_path):
    raw = BENT.train.x[0]
    explanation, evidence = explain(bent, raw), evidence_map(bent, raw, 0, 1)
    figure = explanation_figure(explanation, raw, evidence)
    save_figure(figure, tmp_path / "row")
    assert f"w = {raw[2]:.4g}" in texts(figure)
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert_allclose(widths, sorted(evidence.values, key=lambda value: -abs(value)))
    nameless = dataclasses.replace(evidence, columns=None)
    assert f"column 3 = {raw[2]:.4g}" in texts(explanation_figure(explanation, raw, nameless))
    assert len(explanation_figure(explanation, raw).axes) == 2


def test_a_figure_marks_inputs_far_beyond(digits):
    raw = DIGITS.train.x[0]
    explanation = explain(digits, raw)
    for value in (1e9, math.inf, -1e9):
        far = dataclasses.replace(explanation, rank=dataclasses.replace(explanation.rank, value=value))
        arrows = [text for text in texts(explanation_figure(far, raw)) if text.startswith("this input →")]
        assert len(arrows) == (value > 0)
    names = {"a $very$ long name of a class of things": 0.9, "b": 0.1}
    evidence = EvidenceMap(*names, np.zeros((8, 8, 1)), 0.0, 0.0, 64)
    odd = dataclasses.replace(
        explanation, posterior=names, text="“a $very$ long name of a class of things”"
    )
    long = plain(next(iter(names)), 14)
    assert f"nats for {long}\nagainst b" in texts(explanation_figure(odd, raw, evidence))


def test_the_figure_of_a_model_without_a_density_and_of_one_that_overflows(digits, resnet, tmp_path):
    raw, broken = DIGITS.train.x[0], copy.deepcopy(digits)
    broken.pipeline.model.mixture.mu.data[0] = math.inf
    for name, run in {"resnet": resnet, "broken": broken}.items():
        figure = explanation_figure(explain(run, raw), raw, evidence_map(run, raw, 0, 1))
        save_figure(figure, tmp_path / name)
        assert "which class is it?" in texts(figure)
