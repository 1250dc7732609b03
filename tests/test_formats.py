"""How numbers are written: rounding never moves one across a limit."""

from ibinn.formats import p_equation, probability_text, rounded_p


def test_p_values_are_rounded_honestly():
    for p, text in ((0.4123, "0.41"), (1.0, "1"), (0.9996, "0.9996"), (0.0502, "0.0502"), (0.05, "0.05")):
        assert rounded_p(p) == text
    assert [p_equation(p) for p in (0.00123, 0.00014, 0.00009)] == [
        "p = 0.0012",
        "p = 0.00014",
        "p < 0.0001",
    ]
    for n in range(1, 3000):  # no p-value changes sides
        p = 1 / (n + 1)
        assert (float(rounded_p(p)) <= 0.05) == (p <= 0.05)
        assert float(rounded_p(p)) > 0
        assert float(rounded_p(1 - p)) < 1


def test_shares_are_neither_nothing_nor_all():
    shares = (0.0, 0.004, 0.006, 0.5, 0.994, 0.997, 1.0)
    wanted = ["< 1", "< 1", "1", "50", "99", "> 99", "> 99"]
    assert [probability_text(share) for share in shares] == [f"{text}\u00a0%" for text in wanted]
    fine = [
        probability_text(share, 2).replace("\u00a0", " ") for share in (0.0, 0.00001, 0.5, 0.99999, 1.0)
    ]
    assert fine == ["< 0.01 %", "< 0.01 %", "50.00 %", "> 99.99 %", "> 99.99 %"]
