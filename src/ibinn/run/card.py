"""The model card: what a model was trained on, its numbers, and its limits, for whoever finds the folder."""

from ibinn.data.inputs import InputForm
from ibinn.ood.conformal import smallest_p_value
from ibinn.run.trained import Run

MOST_NAMES = 20


def model_card(run: Run, form: InputForm) -> str:
    """Markdown; the same for the same model."""
    facts, config = run.facts, run.config
    held_out = facts["held_out"]
    n = facts["n_calibration"]
    bits = facts["validation"]["bits_per_dim"]
    lines = [
        "# Model card",
        "",
        f"A classifier trained by ibinn: method {config.method}, γ = {config.gamma:g}, size {config.size}, "
        f"{facts['n_parameters']:,} parameters, seed {config.seed}.",
        "",
        "## Trained on",
        "",
        f"- {inputs(form)}.",
        f"- {facts['n_train']} examples; {facts['n_validation']} more chose the best of {facts['epochs']} epochs, "
        f"and {n} the p-values.",
        f"- {len(run.class_names)} classes: {names(run.class_names)}.",
        f"- Fingerprint of the data: `{facts['data_digest']}`.",
        "",
        "## Numbers",
        "",
        f"On the {n} held-out examples that the p-values come from, which training did not see:",
        "",
        "| | |",
        "| --- | --- |",
        f"| error | {number(held_out['error'], 2)} % |",
        f"| cross-entropy | {number(held_out['nll_y'], 4)} nats |",
        f"| Brier score | {number(held_out['brier'], 4)} |",
    ]
    lines += [] if bits is None else [f"| bits/dim (validation examples) | {bits:.3f} |"]
    return "\n".join([*lines, "", "## Limits", "", *limits(n, form)]) + "\n"


def inputs(form: InputForm) -> str:
    shape = " x ".join(str(side) for side in form.shape)
    if not form.is_images:
        return f"Rows of {shape} numbers"
    return f"Images of {shape} ({form.layout}), pixels from 0 to {form.pixel_max:g} in {form.levels} levels"


def number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def names(classes: tuple[str, ...]) -> str:
    shown = ", ".join(classes[:MOST_NAMES])
    return shown if len(classes) <= MOST_NAMES else f"{shown} and {len(classes) - MOST_NAMES} more"


def limits(n: int, form: InputForm) -> list[str]:
    lines = [
        "- Probabilities are to be trusted for inputs like the training data only; a small p-value says that an "
        "input is not. A large one is no proof that it is.",
        f"- No p-value is below {smallest_p_value(n):.2g}, as it is a rank among {n} held-out examples.",
        "- At most a share α of new data like the training data gets p ≤ α, on average over such data. If the "
        "data drifts, so does this.",
        f"- The numbers above are from {n} examples; with other data they would differ.",
        "- What the examples do not show, such as a bias in how they were collected, the model cannot know.",
    ]
    if form.is_images:
        lines.append("- Images of other sizes have to be brought to the one above first.")
    return lines
