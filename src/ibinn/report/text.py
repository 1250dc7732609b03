"""Results -> plain sentences, for readers who never saw the paper. Nothing is escaped here.

`results` is what results.json holds. What is missing or null in it is left out, or said to be missing.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

Results = Mapping[str, Any]


Range = tuple[float, float]

METHOD_NAMES = {
    "ibinn": "IB-INN",
    "class-nll": "class-NLL",
    "class-nll-fixed": "class-NLL with fixed means",
    "resnet": "ResNet",
    "irevnet": "i-RevNet",
    "vib": "VIB",
}


WITHOUT_DENSITY = ("resnet", "irevnet", "vib")


SCORES = {
    "combined": "typicality, class typicality and, for images, complexity taken together",
    "typicality": "how far the likelihood is from the usual, on either side",
    "class_typicality": "how far it lies from where its class usually lies",
    "complexity": "how unlikely it is for how complex it looks",
    "nll": "how unlikely it is",
    "energy": "how little speaks for any class",
    "entropy": "how undecided the class probabilities are",
    "max_softmax": "how low the highest class probability is",
    "mahalanobis": "how far its features are from those of any class",
    "knn": "how far its features are from those of training inputs",
}


OOD_SETS = {
    "rgb_rotation": "images with turned colours",
    "noise": "images with a little noise added",
    "quickdraw": "drawings by hand",
    "imagenet": "photos of other things",
    "jpeg": "images saved as JPEG",
    "inverted": "images with bright and dark swapped",
    "flipped": "images upside down",
    "rotation": "images turned by 90°",
    "mnist": "handwritten digits",
    "fashion_mnist": "pictures of clothes",
    "permuted": "rows whose columns were shuffled",
}


CONTROLS = ("jpeg",)  # sets in which there is little to notice


NEAR_GUESSING = 60.0  # AUROC, %


FEW_TESTS = FEW_CALIBRATION = 1000


class Note(NamedTuple):
    """A sentence or a few, and what they are about."""

    title: str
    text: str


class Detection(NamedTuple):
    """What the headline score makes of one OoD set, in percent."""

    name: str
    auroc: float
    flagged: float | None


# --- what was found ----------------------------------------------------------------------------------


def headline(results: Results) -> str:
    n, right = results["n_test"], percent(100 - results["error"])
    told = told_range(right_range(results))
    if results["error"] == 0 and n:
        least = percent(
            100 * 0.05 ** (1 / n)
        )  # of right answers: no mistake in n has a chance of 5 % there
        told = f" (of all such {things(results)} at least {least}, with 95\u00a0% confidence)"
    return f"On {n:,} test {things(results, n)} it never saw, it names the right class for {right}{told}."


def findings(results: Results) -> list[Note]:
    """What the numbers say, in the order in which a user asks."""
    notes = [
        Note("Can its probabilities be trusted?", calibration(results)),
        Note("Does it raise false alarms?", false_alarms(results)),
        Note("Does it notice strange inputs?", detection(results)),
        Note("How well does it know its data?", density(results)),
    ]
    return [note for note in notes if note.text]


def calibration(results: Results) -> str:
    return f"{example_of_calibration(results)} {calibration_verdict(results)}".strip()


def example_of_calibration(results: Results) -> str:
    """One bin in words: that of 90 %, or the nearest to it above one half."""
    bins = [b for b in judged_bins(results) if b["low"] + b["high"] > 1]
    if not bins:
        return ""
    b = min(bins, key=lambda b: abs(b["low"] + b["high"] - 1.8))
    low, high = 100 * b["low"], 100 * b["high"]
    ends = as_range([b.get("share_low"), b.get("share_high")])
    told = told_range(ends and (100 * ends[0], 100 * ends[1]))
    return (
        f"When it says {(low + high) / 2:g}\u00a0% (between {low:g} and {high:g}\u00a0%), it is right in "
        f"{percent(100 * b['share'])} of {b['n']:,} cases{told}."
    )


def judged_bins(results: Results) -> list[Mapping[str, Any]]:
    """The bins that hold enough cases."""
    least = look(results, "calibration", "min_count") or 0
    bins = look(results, "calibration", "bins") or []
    return [b for b in bins if b["n"] > least and b.get("share") is not None]


def calibration_verdict(results: Results) -> str:
    """The top-label ECE against its floor, and the ECE of all classes where that says otherwise."""
    top, every = against_floor(results, "top_label_ece"), against_floor(results, "ece")
    if top is None:
        return "" if every is None else verdict(results, "ECE of all class probabilities", *every)
    text = verdict(results, "top-label ECE", *top)
    fine = top[0] <= top[2]
    if every is None or fine == (every[0] <= every[2]):
        return text
    return (
        f"{text} Over the probabilities of all classes {'an error does show' if fine else 'no error shows'}: ECE "
        f"{every[0]:.2f}, if perfect at most {every[2]:.2f} points."
    )


def against_floor(results: Results, name: str) -> tuple[float, float, float] | None:
    """A calibration error, and the mean and 95th percentile of what perfect calibration would show, in percent."""
    value, floor = look(results, "calibration", name), look(results, "calibration", "floor", name)
    mean, p95 = look(floor, "mean"), look(floor, "p95")
    return None if value is None or mean is None or p95 is None else (value, mean, p95)


def verdict(results: Results, name: str, value: float, mean: float, p95: float) -> str:
    text = (
        f"On average its probabilities are off by {value:.1f} percentage points ({name}). Perfect calibration "
        f"would show {mean:.1f} on average, and at most {p95:.1f} in 95 of 100 test sets of this size: "
    )
    if value <= p95:
        return f"{text}this one is indistinguishable from perfect calibration."
    return f"{text}this one is worse, by {value - mean:.1f} points over that average{leaning(results)}."


def leaning(results: Results) -> str:
    """On which side the bins above one half leave what perfect calibration would show."""
    bins = [b for b in judged_bins(results) if b["low"] >= 0.5]
    bins = [b for b in bins if b.get("floor_low") is not None and b.get("floor_high") is not None]
    too_sure = any(b["share"] < b["floor_low"] for b in bins)
    too_cautious = any(b["share"] > b["floor_high"] for b in bins)
    if too_sure == too_cautious:
        return ""
    return "; it is too sure of itself" if too_sure else "; it is too cautious"


def false_alarms(results: Results) -> str:
    score, alpha, rate = results.get("score"), results.get("alpha"), alarm_rate(results)
    if score is None or alpha is None or rate is None:
        return ""
    told = told_range(interval(results, "false_alarm_rate", score))
    return (
        f"Of inputs like its training data it flags {percent(rate)} as strange{told}, where "
        f"{100 * alpha:g}\u00a0% were asked for. It judges by the score “{label(score)}”: "
        f"{SCORES.get(score, 'higher is stranger')}."
    )


def detection(results: Results) -> str:
    """The easiest set and the hardest, and the controls."""
    found = detections(results)
    if not found:
        return "No strange inputs were put to it, so what it would notice is not known."
    tried = [told_detection(d) for d in found if d.name not in CONTROLS]
    controls = [told_detection(d) for d in found if d.name in CONTROLS]
    text = f"It was tried on {tried[0]}. " if len(tried) == 1 else ""
    text = f"Easiest to notice: {tried[0]}. Hardest: {tried[-1]}. " if len(tried) > 1 else text
    text += "".join(f"A control, with little to notice: {told}. " for told in controls)
    what = "AUROC is how often a strange input looks stranger to it than a familiar one"
    return f"{text}{what}; 50\u00a0% is guessing."


def detections(results: Results) -> list[Detection]:
    """By the headline score, the easiest set first; sets without that score are left out."""
    score = results.get("score")
    found = [
        Detection(name, auroc, look(numbers, "detected_at_alpha", score))
        for name, numbers in (results.get("ood") or {}).items()
        if (auroc := look(numbers, "auroc", score)) is not None
    ]
    return sorted(found, key=lambda d: -d.auroc)


def told_detection(found: Detection) -> str:
    flagged = "" if found.flagged is None else f"{percent(found.flagged)} flagged, "
    return f"{told_set(found.name)}, {flagged}AUROC {percent(found.auroc)}"


def density(results: Results) -> str:
    """bits/dim and what they mean, or what a model without a density lacks."""
    if results["method"] in WITHOUT_DENSITY:
        return (
            f"It cannot say: this kind of model, {METHOD_NAMES[results['method']]}, has no density. So there are no "
            f"bits per dimension, no score that asks how likely an input is, and no samples; strange inputs show "
            f"in its class probabilities alone."
        )
    bits, levels, loss = results.get("bits_per_dim"), results.get("levels"), results.get("loss_x")
    if bits is not None and levels is not None:
        gaussian = results.get("noise") == "gaussian"
        kind = (
            "a plug-in value and no bound, because of the Gaussian noise" if gaussian else "an upper bound"
        )
        return (
            f"With its density as a code, a test image takes {bits:.2f} bits per pixel value (bits/dim, {kind}), "
            f"where storing it plainly takes {math.log2(levels):.2f}. The fewer, the better it knows such images."
        )
    if loss is None:
        return "No density was recorded for the test data."
    each = "column" if levels is None else "pixel value"
    return f"It gives test data a log-density of {-loss:.3f} nats per {each}; the more, the better it knows them."


# --- what to beware of -------------------------------------------------------------------------------


def cautions(results: Results) -> list[Note]:
    """What a reader must know before believing the numbers."""
    notes = [
        not_converged(results),
        no_answers(results),
        one_sided_loss(results),
        many_false_alarms(results),
    ]
    notes += [near_guessing(results), few_tests(results), few_calibration(results)]
    left_out = (results.get("ood_left_out") or {}).items()
    notes += [
        Note("Not tested", f"{capital(told_set(name))}: {why.rstrip('.')}.") for name, why in left_out
    ]
    return [note for note in notes if note is not None]


def not_converged(results: Results) -> Note | None:
    if results.get("converged") is not False:
        return None
    text = "It is hardly better than always naming the commonest class. Do not use it or compare with it."
    return Note("The training did not converge", text)


def no_answers(results: Results) -> Note | None:
    if not (n := results.get("n_without_answer")):
        return None
    text = f"To {n:,} of the test {things(results)} it gave no numbers. They count as errors."
    return Note("Some inputs got no answer", text)


def one_sided_loss(results: Results) -> Note | None:
    """gamma = 0 leaves the labels out of the loss, gamma = inf the density."""
    gamma, has_density = results.get("gamma"), results["method"] not in WITHOUT_DENSITY
    if gamma == 0:
        text = "The labels were not part of the loss, so the classes that it names mean little."
        more = " Read it as a density, not as a classifier." if has_density else ""
        return Note("Trained with γ = 0", text + more)
    if gamma == "inf" and has_density:
        text = "The density was not part of the loss: bits/dim, and scores that come from it, mean little."
        return Note("Trained with γ = ∞", text)
    return None


def many_false_alarms(results: Results) -> Note | None:
    """More than three standard deviations above alpha, counting the luck of both splits."""
    alpha, rate = results.get("alpha"), alarm_rate(results)
    n_test, n_calibration = results["n_test"], results.get("n_calibration")
    if not alpha or rate is None or not n_test or not n_calibration:
        return None
    luck = math.sqrt(alpha * (1 - alpha) * (1 / n_test + 1 / n_calibration))
    if rate <= 100 * (alpha + 3 * luck):
        return None
    return Note(
        "More false alarms than asked for",
        f"{percent(rate)} where {100 * alpha:g}\u00a0% were asked for is more than bad luck: the test "
        f"{things(results)} differ from those that the alarm level was set on.",
    )


def near_guessing(results: Results) -> Note | None:
    missed = [d for d in detections(results) if d.auroc < NEAR_GUESSING and d.name not in CONTROLS]
    if not missed:
        return None
    fooled = ", so that they look more familiar to it than its own data"
    each = [told_detection(d) + (fooled if d.auroc < 40 else "") for d in missed]
    return Note(
        "It hardly notices some strange inputs",
        f"{capital('; '.join(each))}. Guessing has an AUROC of 50\u00a0%. Do not rely on it to stop such inputs.",
    )


def few_tests(results: Results) -> Note | None:
    n = results["n_test"]
    if n >= FEW_TESTS:
        return None
    n_wrong = round(n * results["error"] / 100)
    text = f"The error rests on {n_wrong} {'mistake' if n_wrong == 1 else 'mistakes'}: "
    return Note(f"Only {n} test {things(results, n)}", f"{text}trust the intervals, not the last digit.")


def few_calibration(results: Results) -> Note | None:
    """p >= 1 / (n + 1); and the rate of alarms that one calibration split gives has about a Beta's spread."""
    n, alpha = results.get("n_calibration"), results.get("alpha")
    if n is None or alpha is None or n >= FEW_CALIBRATION or alarm_rate(results) is None:
        return None
    among = f"They rank an input among {n} {things(results, n)} set aside for that, so none is below "
    text = f"{among}1/{n + 1} = {1 / (n + 1):.2g}"
    if 1 / (n + 1) > alpha:
        return Note("Coarse p-values", f"{text}, and nothing can be flagged at {100 * alpha:g}\u00a0%.")
    spread = 1.96 * math.sqrt(alpha * (1 - alpha) / (n + 2))
    low, high = 100 * max(0.0, alpha - spread), 100 * (alpha + spread)
    return Note(
        "Coarse p-values",
        f"{text}. The {100 * alpha:g}\u00a0% of false alarms hold on average over such choices; with this one "
        f"the true rate may well be from {low:.0f} to {high:.0f}\u00a0%.",
    )


# --- numbers and names -------------------------------------------------------------------------------


def look(tree: Any, *path: Any) -> Any:
    """tree[path[0]][path[1]]..., None where that leads nowhere."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def alarm_rate(results: Results) -> float | None:
    """Share of the test set that the headline score flags at alpha, in percent."""
    rate: float | None = look(results, "false_alarm_rate", results.get("score"))
    return rate


def interval(results: Results, *path: str) -> Range | None:
    """The 95 % bootstrap interval of results[path[0]][path[1]]..., if there is one."""
    return as_range(look(results, "intervals", ".".join(path)))


def as_range(ends: Any) -> Range | None:
    """None where a limit is missing, and where both are equal: resampling a constant tells nothing."""
    return None if ends is None or None in ends or ends[0] == ends[1] else (ends[0], ends[1])


def right_range(results: Results) -> Range | None:
    """The interval of the error as one of right answers, in percent."""
    ends = interval(results, "error")
    return ends and (100 - ends[1], 100 - ends[0])


def told_range(ends: Range | None) -> str:
    if ends is None:
        return ""
    low, high = (percent(end).removesuffix("\u00a0%") for end in ends)
    return f" (95\u00a0% interval {low} to {high}\u00a0%)"


def percent(share: float) -> str:
    """97.8 %; what is not all or nothing is not rounded to it: 99.97 % stays."""
    share = round(share, 6)
    if share in (0, 100):
        return f"{share:g}\u00a0%"
    digits = next((d for d in (1, 2, 3) if 0 < float(f"{share:.{d}f}") < 100), 6)
    return f"{share:.{digits}f}\u00a0%"


def told_gamma(gamma: float | str | None) -> str:
    if gamma is None:
        return ""
    return "∞" if gamma == "inf" else f"{gamma:.3g}"


def duration(seconds: float) -> str:
    """39 s; 20 min 34 s; 3 h 5 min."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def told_set(name: str) -> str:
    """What is in a known OoD set, with its name; any other by its name."""
    return f"{OOD_SETS[name]} ({name})" if name in OOD_SETS else f"“{name}”"


def things(results: Results, n: int | None = None) -> str:
    """images, or rows of a table; in the singular for n = 1."""
    word = "row" if results.get("levels") is None else "image"
    return word if n == 1 else word + "s"


def label(score: str) -> str:
    return "NLL" if score == "nll" else score.replace("_", " ")


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
