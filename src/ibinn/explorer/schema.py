"""The JSON of the explorer: requests of the page and replies of the server."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from ibinn.inference.verdicts import Verdict
from ibinn.report.text import Finding
from ibinn.run.results import Bin

MAX_REPLY_POINTS = 500  # of the map, in one reply
MAX_SAMPLES = 64
MAX_STEPS = 33

Number = Annotated[int, Field(ge=0, lt=2**53)]
Point = Annotated[list[float], Field(min_length=2, max_length=2)]


class Problem(BaseModel):
    """What is wrong with a request, in a sentence."""

    detail: str


# --- requests ----------------------------------------------------------------------------------------


class Input(BaseModel):
    """One input: its number on the map, an image in base64 as /api/upload returns it, or a row of numbers."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"minProperties": 1, "maxProperties": 1})

    index: Number | None = None
    png: str | None = None
    row: list[FiniteFloat] | None = None

    @model_validator(mode="after")
    def only_one(self) -> "Input":
        if sum(value is not None for value in (self.index, self.png, self.row)) != 1:
            raise ValueError("an input is either index, png or row: give one of them")
        return self


class JsonRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DecisionRequest(JsonRequest):
    input: Input


class EvidenceRequest(JsonRequest):
    """Evidence for class a against class b, by their numbers."""

    input: Input
    a: Number
    b: Number


class InterpolationRequest(JsonRequest):
    start: Input
    end: Input
    steps: Annotated[int, Field(ge=3, le=MAX_STEPS)] = 9


class DriftRequest(JsonRequest):
    input: Input
    kind: Annotated[str, Field(max_length=40)]
    steps: Annotated[int, Field(ge=2, le=MAX_STEPS)] = 21


# --- replies -----------------------------------------------------------------------------------------


class Feature(BaseModel):
    """A column of a table: its name, its mean, and its usual range."""

    name: str
    mean: float
    low: float
    high: float


class DriftKind(BaseModel):
    name: str
    most: float
    unit: str


class AboutReply(BaseModel):
    """The run. map_of: whether the points are "test" inputs or "samples" of the model; None without a map.

    uses_density: whether the verdicts do. can_flag: False if there are too few calibration inputs for any
    p <= alpha, so that every verdict is typical.
    """

    name: str
    method: str
    gamma: str | None
    data: str | None
    classes: list[str]
    kind: Literal["images", "rows"]
    shape: list[int]
    levels: int | None
    features: list[Feature]
    n_train: int | None
    n_calibration: int
    alpha: float
    uses_density: bool
    can_flag: bool
    map_of: Literal["test", "samples"] | None
    n_inputs: int
    means: list[Point | None]
    drifts: list[DriftKind]
    notes: list[str]


class MapReply(BaseModel):
    """Inputs start, start + 1, ... of the map. A point or a predicted class is null where the model overflows."""

    start: int
    total: int
    points: list[Point | None]
    y: list[int]
    predicted: list[int | None]
    p_values: list[float]


class UploadReply(BaseModel):
    """An image in the size and the colours of the model, and how it was changed."""

    png: str
    notes: list[str]


class InputView(BaseModel):
    """One input with the output of the model in short: png of an image, row of a table.

    rank_text is the p-value in words.
    """

    png: str | None
    row: list[float] | None
    point: Point | None
    label: str
    probability: float | None
    p_value: float
    rank_text: str


class RankReply(BaseModel):
    """A `CalibrationRank`. The value is null where the model overflows."""

    score: str
    value: float | None
    n: int
    n_stranger: int
    edges: list[float]
    counts: list[int]


class MeanReply(BaseModel):
    """The mean of a class, and the distance of the input from it."""

    label: str
    distance: float | None


class ExplanationReply(BaseModel):
    """An `Explanation`, as `ibinn explain --json` prints it. Numbers are null where the model overflows."""

    text: str
    posterior: dict[str, float | None]
    log_likelihoods: dict[str, float | None] | None
    log_q_x: float | None
    p_value: float
    p_values: dict[str, float]
    smallest_p: float
    rank: RankReply
    nearest: list[MeanReply] | None
    typical_distance: float | None
    levels: int | None


class DecisionReply(BaseModel):
    """The decision on one input; `explanation` is what `ibinn explain --json` prints."""

    view: InputView
    verdict: Verdict
    explanation: ExplanationReply
    true_class: str | None


class EvidenceReply(BaseModel):
    """Evidence for a against b, in nats: values by column, or a transparent png over the image, blue for a."""

    a: str
    b: str
    png: str | None
    values: list[float] | None
    difference: float
    strongest: float
    missing: float


class SeriesReply(BaseModel):
    """Inputs in order: samples, an interpolation, or a drift with its amounts."""

    inputs: list[InputView]
    amounts: list[float] | None = None
    unit: str | None = None


class SetHistogram(BaseModel):
    """The scores of the test set or of an OoD set as shares of its inputs, in percent."""

    name: str
    title: str
    n: int
    shares: list[float]
    flagged: float | None
    auroc: float | None


class QualityReply(BaseModel):
    """The results of ibinn evaluate; without them, only `missing`, which says how to get them."""

    missing: str | None
    headline: str | None = None
    findings: list[Finding] = []
    bins: list[Bin] = []
    score: str | None = None
    edges: list[float] = []
    threshold: float | None = None
    sets: list[SetHistogram] = []
