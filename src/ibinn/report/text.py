"""Results in plain sentences, for readers who do not know the paper. Nothing is escaped here."""

import math
from dataclasses import dataclass

from ibinn.formats import percentage
from ibinn.run.results import Bin, Calibration, Floor, Interval, Results

Range = tuple[float, float]

METHOD_NAMES = {
    "ibinn": "IB-INN",
    "class-nll": "class-NLL",
    "class-nll-fixed": "class-NLL with fixed means",
    "resnet": "ResNet",
    "irevnet": "i-RevNet",
    "rival": "rival",
    "vib": "VIB",
}
SCORE_MEANINGS = {
    "combined": "several of the other scores combined",
    "typicality": "how far its likelihood is from the usual, on either side",
    "class_typicality": "how far it lies from where its class usually lies",
    "class_information": "how little the classes explain it",
    "class_distance": "how far it lies from the nearest class, as that class is spread",
    "span_distance": "how far it lies from the nearest class, in directions that differ between classes",
    "complexity": "how unlikely it is for its complexity",
    "nll": "how unlikely it is",
    "energy": "how weak the evidence for every class is",
    "entropy": "how undecided the class probabilities are",
    "max_softmax": "how low the highest class probability is",
    "mahalanobis": "how far its features are from those of every class",
    "knn": "how far its features are from those of the training inputs",
}
OOD_SET_CONTENTS = {
    "rgb_rotation": "images with rotated colours",
    "noise": "images with a little noise added",
    "quickdraw": "drawings by hand",
    "quickdraw_white": "drawings by hand, white on black",
    "imagenet": "photos of other things",
    "jpeg": "images saved as JPEG",
    "inverted": "images with bright and dark swapped",
    "flipped": "images upside down",
    "rotation": "images rotated by 90°",
    "mnist": "handwritten digits",
    "fashion_mnist": "pictures of clothes",
    "permuted": "rows with shuffled columns",
}
CONTROLS = ("jpeg",)  # OoD sets that hardly differ from the test set
NEAR_GUESSING = 60.0  # AUROC, %
FEW_TESTS = FEW_CALIBRATION = 1000


@dataclass(frozen=True)
class Finding:
    """A sentence or a few, under a title."""

    title: str
    text: str


@dataclass(frozen=True)
class Detection:
    """The headline score on one OoD set, in percent."""

    name: str
    auroc: float
    flagged: float | None

    @property
    def text(self) -> str:
        flagged = "" if self.flagged is None else f"{percentage(self.flagged)} flagged, "
        return f"{set_text(self.name)}, {flagged}AUROC {percentage(self.auroc)}"


@dataclass(frozen=True)
class CalibrationError:
    """A calibration error beside the mean and the 95th percentile under perfect calibration, in percent."""

    value: float
    mean: float
    p95: float

    @property
    def is_perfect(self) -> bool:
        """Whether a perfectly calibrated model could have this error."""
        return self.value <= self.p95


# --- findings ----------------------------------------------------------------------------------------


def headline(results: Results) -> str:
    n, confidence = results.n_test, interval_text(right_range(results))
    if results.error == 0 and n:
        # A model with this share of right answers makes no mistake in n with a probability of 5 %.
        least = percentage(100 * 0.05 ** (1 / n))
        confidence = f" (at least {least} of all such {things(results)}, with 95\u00a0% confidence)"
    return (
        f"On {n:,} test {things(results, n)} it never saw, it names the right class for "
        f"{percentage(100 - results.error)}{confidence}."
    )


def findings(results: Results) -> list[Finding]:
    """The findings that a user asks for first."""
    answers = [
        Finding("Can its probabilities be trusted?", calibration_text(results.scaled.calibration)),
        Finding("Does it raise false alarms?", false_alarm_text(results)),
        Finding("Does it detect strange inputs?", detection_text(results)),
        Finding("How well does it know its data?", density_text(results)),
    ]
    return [finding for finding in answers if finding.text]


def calibration_text(calibration: Calibration) -> str:
    return f"{calibration_example(calibration)} {calibration_verdict(calibration)}".strip()


def calibration_example(calibration: Calibration) -> str:
    """One bin in words: the bin of 90 %, or the nearest to it above one half."""
    bins = [(b, share) for b, share in full_bins(calibration) if b.low + b.high > 1]
    if not bins:
        return ""
    b, share = min(bins, key=lambda pair: abs(pair[0].low + pair[0].high - 1.8))
    low, high, ends = 100 * b.low, 100 * b.high, as_range((b.share_low, b.share_high))
    return (
        f"When it says {(low + high) / 2:g}\u00a0% (between {low:g} and {high:g}\u00a0%), it is right in "
        f"{percentage(100 * share)} of {b.n:,} cases{interval_text(ends and (100 * ends[0], 100 * ends[1]))}."
    )


def full_bins(calibration: Calibration) -> list[tuple[Bin, float]]:
    """The bins with enough cases, each with its share of right answers."""
    return [(b, b.share) for b in calibration.bins if b.n > calibration.min_count and b.share is not None]


def calibration_verdict(calibration: Calibration) -> str:
    """The top-label ECE against its floor, and the ECE of all classes where the two disagree."""
    top = against_floor(calibration.top_label_ece, calibration.floor.get("top_label_ece"))
    every = against_floor(calibration.ece, calibration.floor.get("ece"))
    if top is None:
        return (
            ""
            if every is None
            else calibration_sentence(calibration, "ECE of all class probabilities", every)
        )
    text = calibration_sentence(calibration, "top-label ECE", top)
    if every is None or top.is_perfect == every.is_perfect:
        return text
    return (
        f"{text} Over the probabilities of all classes there is {'no' if every.is_perfect else 'an'} error: "
        f"ECE {every.value:.2f}, at most {every.p95:.2f} if perfect."
    )


def against_floor(value: float | None, floor: Floor | None) -> CalibrationError | None:
    if value is None or floor is None or floor.mean is None or floor.p95 is None:
        return None
    return CalibrationError(value, floor.mean, floor.p95)


def calibration_sentence(calibration: Calibration, name: str, error: CalibrationError) -> str:
    text = (
        f"On average its probabilities are off by {error.value:.1f} percentage points ({name}). A perfectly "
        f"calibrated model would show {error.mean:.1f} on average, and at most {error.p95:.1f} in 95 of 100 "
        f"test sets of this size: "
    )
    if error.is_perfect:
        return f"{text}this one is indistinguishable from perfect calibration."
    excess = error.value - error.mean
    return f"{text}this one is worse, by {excess:.1f} points over that average{bias_text(calibration)}."


def bias_text(calibration: Calibration) -> str:
    """On which side the bins above one half lie outside the range of perfect calibration."""
    bins = [(b, share) for b, share in full_bins(calibration) if b.low >= 0.5]
    too_sure = any(b.floor_low is not None and share < b.floor_low for b, share in bins)
    too_cautious = any(b.floor_high is not None and share > b.floor_high for b, share in bins)
    if too_sure == too_cautious:
        return ""
    return "; it is too sure of itself" if too_sure else "; it is too cautious"


def false_alarm_text(results: Results) -> str:
    score, rate = results.score, alarm_rate(results)
    if rate is None:
        return ""
    ends = as_range(results.intervals.false_alarm_rate.get(score))
    return (
        f"It flags {percentage(rate)} of inputs like its training data as atypical{interval_text(ends)}; the "
        f"alarm level is {100 * results.alpha:g}\u00a0%. It judges an input by the score “{score_label(score)}”: "
        f"{SCORE_MEANINGS.get(score, 'higher is stranger')}."
    )


def detection_text(results: Results) -> str:
    """The easiest and the hardest OoD set, and the controls."""
    found = detections(results)
    if not found:
        return "It was not tested on strange inputs, so nothing is known about what it detects."
    tried = [d.text for d in found if d.name not in CONTROLS]
    sentences = [f"Tested on {tried[0]}."] if len(tried) == 1 else []
    if len(tried) > 1:
        sentences = [f"Easiest to detect: {tried[0]}.", f"Hardest: {tried[-1]}."]
    sentences += [f"A control that hardly differs: {d.text}." for d in found if d.name in CONTROLS]
    return (
        f"{' '.join(sentences)} AUROC is the chance that a strange input scores higher than a test input; "
        f"50\u00a0% is guessing."
    )


def detections(results: Results) -> list[Detection]:
    """By the headline score, the easiest OoD set first. Sets without that score are left out."""
    score = results.score
    found = [
        Detection(name, ood.auroc[score], ood.detected_at_alpha.get(score))
        for name, ood in results.ood.items()
        if score in ood.auroc
    ]
    return sorted(found, key=lambda d: -d.auroc)


def density_text(results: Results) -> str:
    """Bits/dim and their meaning, or what a model without a density lacks."""
    if not results.has_density:
        return (
            f"The method, {METHOD_NAMES[results.method]}, has no density. So there are no bits/dim, no scores "
            f"based on the likelihood of an input, and no samples; strange inputs show only in its class "
            f"probabilities."
        )
    bits, levels = results.bits_per_dim, results.levels
    if bits is not None and levels is not None:
        is_bound = results.noise != "gaussian"
        kind = (
            "an upper bound" if is_bound else "a plug-in value and no bound, because of the Gaussian noise"
        )
        return (
            f"Coded with its density, a test image takes {bits:.2f} bits per pixel value (bits/dim, {kind}); "
            f"stored plainly it takes {math.log2(levels):.2f}. Fewer bits mean that it knows such images better."
        )
    if results.loss_x is None:
        return "No density was recorded for the test data."
    each = "column" if levels is None else "pixel value"
    return f"The log-density of test data is {-results.loss_x:.3f} nats per {each}. Higher is better."


# --- cautions ----------------------------------------------------------------------------------------


def cautions(results: Results) -> list[Finding]:
    """What to know before using the numbers."""
    warnings = [
        not_converged(results),
        not_finite(results),
        one_sided_loss(results),
        many_false_alarms(results),
        near_guessing(results),
        few_tests(results),
        few_calibration(results),
    ]
    left_out = [
        Finding("Not tested", f"{capital(set_text(name))}: {reason.rstrip('.')}.")
        for name, reason in results.ood_left_out.items()
    ]
    return [warning for warning in warnings if warning is not None] + left_out


def not_converged(results: Results) -> Finding | None:
    if results.converged:
        return None
    text = (
        "It is hardly better than always naming the most frequent class. Do not use it or compare with it."
    )
    return Finding("The training did not converge", text)


def not_finite(results: Results) -> Finding | None:
    if not (n := results.n_without_answer):
        return None
    text = f"For {n:,} of the test {things(results)} the output is not finite. They count as errors."
    return Finding("Some inputs have no output", text)


def one_sided_loss(results: Results) -> Finding | None:
    """gamma = 0 leaves the labels out of the loss, gamma = inf the density."""
    if results.gamma == 0:
        text = "The labels were not part of the loss, so the classes that it names mean little."
        more = " Read it as a density, not as a classifier." if results.has_density else ""
        return Finding("Trained with γ = 0", text + more)
    if results.gamma == math.inf and results.has_density:
        text = "The density was not part of the loss: bits/dim, and scores based on it, mean little."
        return Finding("Trained with γ = ∞", text)
    return None


def many_false_alarms(results: Results) -> Finding | None:
    """More than three standard deviations above alpha, with the randomness of both splits."""
    alpha, rate = results.alpha, alarm_rate(results)
    if not alpha or rate is None or not results.n_test or not results.n_calibration:
        return None
    deviation = math.sqrt(alpha * (1 - alpha) * (1 / results.n_test + 1 / results.n_calibration))
    if rate <= 100 * (alpha + 3 * deviation):
        return None
    return Finding(
        "Too many false alarms",
        f"{percentage(rate)} at an alarm level of {100 * alpha:g}\u00a0% is more than chance explains: the test "
        f"{things(results)} differ from the calibration {things(results)}.",
    )


def near_guessing(results: Results) -> Finding | None:
    missed = [d for d in detections(results) if d.auroc < NEAR_GUESSING and d.name not in CONTROLS]
    if not missed:
        return None
    inverted = ", so they score lower than its own test data"
    each = "; ".join(d.text + (inverted if d.auroc < 40 else "") for d in missed)
    return Finding(
        "It hardly detects some strange inputs",
        f"{capital(each)}. Guessing has an AUROC of 50\u00a0%. Do not rely on it to stop such inputs.",
    )


def few_tests(results: Results) -> Finding | None:
    n = results.n_test
    if n >= FEW_TESTS:
        return None
    n_wrong = round(n * results.error / 100)
    text = f"The error rests on {n_wrong} {'mistake' if n_wrong == 1 else 'mistakes'}: "
    return Finding(f"Only {n} test {things(results, n)}", f"{text}trust the intervals, not the last digit.")


def few_calibration(results: Results) -> Finding | None:
    """p >= 1 / (n + 1); the false alarm rate of one calibration split has about the spread of a Beta."""
    n, alpha = results.n_calibration, results.alpha
    if n >= FEW_CALIBRATION or alarm_rate(results) is None:
        return None
    text = (
        f"They are ranks among {n} calibration {things(results, n)}, so none is below 1/{n + 1} = "
        f"{1 / (n + 1):.2g}"
    )
    if 1 / (n + 1) > alpha:
        return Finding("Coarse p-values", f"{text}, and nothing can be flagged at {100 * alpha:g}\u00a0%.")
    spread = 1.96 * math.sqrt(alpha * (1 - alpha) / (n + 2))
    low, high = 100 * max(0.0, alpha - spread), 100 * (alpha + spread)
    return Finding(
        "Coarse p-values",
        f"{text}. The {100 * alpha:g}\u00a0% of false alarms hold on average over calibration splits; with this "
        f"one the true rate may be from {low:.0f} to {high:.0f}\u00a0%.",
    )


# --- numbers and names -------------------------------------------------------------------------------


def alarm_rate(results: Results) -> float | None:
    """Share of the test set that the headline score flags at alpha, in percent."""
    return results.false_alarm_rate.get(results.score)


def as_range(ends: Interval | None) -> Range | None:
    """None where a limit is missing, and where both are equal: the bootstrap of a constant has no spread."""
    if ends is None or ends[0] is None or ends[1] is None or ends[0] == ends[1]:
        return None
    return ends[0], ends[1]


def right_range(results: Results) -> Range | None:
    """The interval of the error as one of right answers, in percent."""
    ends = as_range(results.intervals.error)
    return ends and (100 - ends[1], 100 - ends[0])


def interval_text(ends: Range | None) -> str:
    if ends is None:
        return ""
    low, high = (percentage(end).removesuffix("\u00a0%") for end in ends)
    return f" (95\u00a0% interval {low} to {high}\u00a0%)"


def set_text(name: str) -> str:
    """The contents of a known OoD set with its name; the name alone of any other."""
    return f"{OOD_SET_CONTENTS[name]} ({name})" if name in OOD_SET_CONTENTS else f"“{name}”"


def things(results: Results, n: int | None = None) -> str:
    """images, or rows of a table; in the singular for n = 1."""
    word = "row" if results.levels is None else "image"
    return word if n == 1 else word + "s"


def score_label(score: str) -> str:
    return "NLL" if score == "nll" else score.replace("_", " ")


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
