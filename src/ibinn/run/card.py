"""The model card, README.md of a run folder: what a model was trained on, its numbers, and its limits."""

from ibinn.data.inputs import InputForm
from ibinn.formats import decimal, gamma_text
from ibinn.ood.conformal import smallest_p_value
from ibinn.run.trained import Run

MOST_NAMES = 20


def model_card(run: Run) -> str:
    """The card as Markdown. The same model gives the same text."""
    facts, config = run.facts, run.config
    held_out, n, bits = facts.held_out, facts.n_calibration, facts.validation.bits_per_dim
    lines = [
        "# Model card",
        "",
        f"A classifier trained by ibinn: method {config.method}, γ = {gamma_text(config.gamma)}, "
        f"size {config.size}, {facts.n_parameters:,} parameters, seed {config.seed}.",
        "",
        "## Training data",
        "",
        f"- {describe_inputs(run.form)}.",
        f"- {facts.n_train} training examples, {facts.n_validation} validation examples to select the best "
        f"of {facts.epochs} epochs, and {n} calibration examples for the p-values.",
        f"- {len(run.class_names)} classes: {list_names(run.class_names)}.",
        f"- Fingerprint of the data: `{facts.data_digest}`.",
        "",
        "## Numbers",
        "",
        f"On the {n} held-out calibration examples:",
        "",
        "| | |",
        "| --- | --- |",
        f"| error | {decimal(held_out.error, 2)} % |",
        f"| cross-entropy | {decimal(held_out.nll_y, 4)} nats |",
        f"| Brier score | {decimal(held_out.brier, 4)} |",
    ]
    lines += [] if bits is None else [f"| bits/dim (validation examples) | {decimal(bits, 3)} |"]
    return "\n".join([*lines, "", "## Limits", "", *limits(n, run.form)]) + "\n"


def describe_inputs(form: InputForm) -> str:
    shape = " x ".join(str(side) for side in form.shape)
    if not form.is_images:
        return f"Rows of {shape} numbers"
    return f"Images of {shape} ({form.layout}), pixels from 0 to {form.pixel_max:g} in {form.levels} levels"


def list_names(classes: tuple[str, ...]) -> str:
    """The first names, and the number of further ones."""
    text = ", ".join(classes[:MOST_NAMES])
    return text if len(classes) <= MOST_NAMES else f"{text} and {len(classes) - MOST_NAMES} more"


def limits(n: int, form: InputForm) -> list[str]:
    lines = [
        "- The probabilities hold for inputs like the training data. A small p-value marks an atypical input. "
        "A large one does not prove that an input is typical.",
        f"- No p-value is below {smallest_p_value(n):.2g}: each is a rank among {n} held-out examples.",
        "- On average, at most a share α of new data like the training data has p ≤ α. This no longer holds if "
        "the data drifts.",
        f"- The numbers above come from {n} examples and would differ on other data.",
        "- The model knows nothing that the examples do not show, such as a bias in how they were collected.",
    ]
    if form.is_images:
        lines.append("- Images of other sizes must be resized to the size above.")
    return lines
