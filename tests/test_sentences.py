"""The sentences about one input: every case holds its facts."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibinn.config import ALPHA
from ibinn.inference.judge import CalibrationRank
from ibinn.inference.sentences import NO_DENSITY, decision_sentence, rank_phrase, round_inverse


def sentence(posterior, n_stranger, n=199, uses_density=True):
    rank = CalibrationRank("combined", 1.0, n, n_stranger, (0.0, 1.0), (n,))
    return decision_sentence(posterior, rank, (1 + n_stranger) / (1 + n), uses_density).replace(
        "\u00a0", " "
    )


SURE, TORN = {"3": 0.93, "5": 0.05, "8": 0.02}, {"3": 0.46, "5": 0.52, "8": 0.02}
LOST = {"3": 0.4, "5": 0.25, "8": 0.35}
SURE_FACTS, TORN_FACTS = ["Looks like “3” (93 %)"], ["“5” (52 %) or “3” (46 %)"]
LOST_FACTS = ["“3” (40 %), “8” (35 %) or another class"]
TRUST, LOOK = ["do not trust it"], ["look again"]
CASES = {  # posterior, number of stranger calibration inputs -> facts in the text
    "typical": (SURE, 81, [*SURE_FACTS, " typical", "(p = 0.41)", "199", "81 are as strange"]),
    "atypical": (SURE, 1, [*SURE_FACTS, " atypical", "(p = 0.01)", *TRUST, "1 is as strange"]),
    "most atypical": (SURE, 0, [" atypical", "p = 0.005, the smallest possible", *TRUST, "none is"]),
    "torn": (TORN, 139, [*TORN_FACTS, " typical", "(p = 0.7)", *LOOK, "139 are"]),
    "torn and atypical": (TORN, 9, [*TORN_FACTS, " atypical", "(p = 0.05)", *TRUST, "9 are"]),
    "lost": (LOST, 10, [*LOST_FACTS, " typical", "(p = 0.055)", *LOOK, "10 are"]),
}
WITHOUT_DENSITY = {
    "decided": (SURE, 81, [*SURE_FACTS, "no less decided", "(p = 0.41)"]),
    "torn": (TORN, 81, [*TORN_FACTS, "no less decided", "(p = 0.41)", *LOOK]),
    "less decided": (SURE, 3, [*SURE_FACTS, "but less decided", "(p = 0.02)", *LOOK]),
    "least decided": (TORN, 0, [*TORN_FACTS, ", less decided", "p = 0.005, the smallest possible", *TRUST]),
}


def check_facts(text, facts):
    for fact in facts:
        assert fact in text
    for caution in (*TRUST, *LOOK):
        assert (caution in text) == (caution in facts)


@pytest.mark.parametrize(("posterior", "n_stranger", "facts"), CASES.values(), ids=CASES)
def test_sentences_with_a_density(posterior, n_stranger, facts):
    check_facts(sentence(posterior, n_stranger), facts)


@pytest.mark.parametrize(
    ("posterior", "n_stranger", "facts"), WITHOUT_DENSITY.values(), ids=WITHOUT_DENSITY
)
def test_sentences_without_a_density(posterior, n_stranger, facts):
    text = sentence(posterior, n_stranger, uses_density=False)
    check_facts(text, facts)
    assert text.endswith(NO_DENSITY)
    assert "typical" not in text.removesuffix(NO_DENSITY)


def test_a_coarse_calibration_gives_no_verdict():
    for posterior, n_stranger, facts in (
        (SURE, 0, SURE_FACTS),
        (TORN, 9, [*TORN_FACTS, "hard to tell apart"]),
    ):
        text = sentence(posterior, n_stranger, n=18)
        check_facts(text, [*facts, "only 18 inputs", "below 0.053", f"p = {(1 + n_stranger) / 19:.2g}"])
        assert "typical of" not in text
    assert " atypical of the training data (p = 0.05, the smallest possible)" in sentence(SURE, 0, n=19)


@pytest.mark.parametrize("uses_density", [True, False])
@pytest.mark.parametrize("posterior", [SURE, TORN, LOST])
def test_sentences_are_one_or_two(posterior, uses_density):
    for n in (5, 40, 1000, 30_000):
        for n_stranger in (0, 1, n // 2, n):
            text = sentence(posterior, n_stranger, n=n, uses_density=uses_density)
            assert 1 <= text.count(". ") + 1 <= 2
            assert text.endswith(".")
            assert "p = 0.000" not in text.replace("p = 0.0001", "")


@given(st.integers(20, 100_000), st.data())
def test_ranks_in_words_are_near_the_p_value(n, data):
    rank = data.draw(st.integers(1, n))
    p = (1 + rank) / (n + 1)
    found = re.match(r"([\d,]+) in ([\d,]+) held-out images", rank_phrase(p, n, "images", True))
    a, b = (int(text.replace(",", "")) for text in found.groups())
    assert a / b == pytest.approx(p, rel=0.16)
    assert (a / b <= ALPHA) == (p <= ALPHA)


def test_ranks_in_words():
    assert rank_phrase(0.002, 10_000, "images", True).startswith("1 in 500 held-out images")
    assert rank_phrase(0.41, 999, "rows", True).startswith("41 in 100 held-out rows")
    assert rank_phrase(0.001, 999, "images", True).startswith("none of 999 held-out images")
    assert rank_phrase(0.05, 999, "images", False).startswith("1 in 20 held-out images")
    assert "hard to decide" in rank_phrase(0.05, 999, "images", False)
    assert rank_phrase(0.5, 9, "rows", True).startswith("4 of 9 held-out rows")
    assert [round_inverse(1 / v) for v in (1.0, 497.0, 99.0, 12_345.0)] == [1, 500, 100, 12_000]
    assert [round_inverse(p) for p in (0.05, 0.0501, 0.0556)] == [20, 18, 18]
