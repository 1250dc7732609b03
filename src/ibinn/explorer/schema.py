"""What goes over the wire: the questions of the page and the answers, as JSON."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

MOST_POINTS = 500  # of the map, in one answer
MOST_SAMPLES = 64
MOST_STEPS = 33

Number = Annotated[int, Field(ge=0, lt=2**53)]
Point = Annotated[list[float], Field(min_length=2, max_length=2)]


class Problem(BaseModel):
    """What is wrong with a request, in a sentence."""

    detail: str


class Input(BaseModel):
    """One input: the number of one on the map, an image in base64 as /api/upload gives it, or a row of numbers."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"minProperties": 1, "maxProperties": 1})

    index: Number | None = None
    png: str | None = None
    row: list[FiniteFloat] | None = None

    @model_validator(mode="after")
    def only_one(self) -> "Input":
        if sum(value is not None for value in (self.index, self.png, self.row)) != 1:
            raise ValueError("an input is either index, png or row: give one of them")
        return self


class Question(BaseModel):
    model_config = ConfigDict(extra="forbid")


class AskDecision(Question):
    input: Input


class AskEvidence(Question):
    """Which parts of the input speak for class a against class b, by their numbers."""

    input: Input
    a: Number
    b: Number


class AskInterpolation(Question):
    start: Input
    end: Input
    steps: Annotated[int, Field(ge=3, le=MOST_STEPS)] = 9


class AskDrift(Question):
    input: Input
    kind: Annotated[str, Field(max_length=40)]
    steps: Annotated[int, Field(ge=2, le=MOST_STEPS)] = 21


class Feature(BaseModel):
    """A column of a table: its name, and its usual middle and range."""

    name: str
    middle: float
    low: float
    high: float


class DriftKind(BaseModel):
    name: str
    most: float
    unit: str


class About(BaseModel):
    """The run. map_of: what the points are, "test" inputs or "samples" of the model; None without a map.

    temperature: the highest, up to 1, at which most samples are inputs that could be; samples on the map have it.
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
    has_density: bool
    map_of: Literal["test", "samples"] | None
    n_inputs: int
    temperature: float | None
    means: list[Point | None]
    drifts: list[DriftKind]
    notes: list[str]


class MapPart(BaseModel):
    """Inputs start, start + 1, ... of the map; a point or class is null where the model overflows."""

    start: int
    total: int
    points: list[Point | None]
    y: list[int]
    called: list[int | None]
    p: list[float]


class Upload(BaseModel):
    """An image in the size and the colours of the model, and what was done to it."""

    png: str
    notes: list[str]


class Shown(BaseModel):
    """One input as the page shows it, and what the model says in short; png of an image, row of a table."""

    png: str | None
    row: list[float] | None
    point: Point | None
    label: str
    probability: float | None
    p: float
    chance: str


class Decision(BaseModel):
    """The decision on one input; `explanation` is what `ibinn explain --json` prints."""

    shown: Shown
    verdict: Literal["typical", "atypical", "unknown"]
    explanation: dict[str, Any]
    true_class: str | None


class Evidence(BaseModel):
    """What speaks for a against b, in nats: values by column, or a see-through png over the image, blue for a."""

    a: str
    b: str
    png: str | None
    values: list[float] | None
    difference: float
    strongest: float
    missing: float


class Way(BaseModel):
    """Inputs in a row: samples, the way from one to another, or a drift with its amounts."""

    inputs: list[Shown]
    amounts: list[float] | None = None
    unit: str | None = None


class Bin(BaseModel):
    """Of the calibration curve: classes that got a probability from low to high, n times, were right so often."""

    low: float
    high: float
    n: int
    share: float | None
    share_low: float | None
    share_high: float | None
    floor_low: float | None
    floor_high: float | None


class Bars(BaseModel):
    """A histogram as shares of all inputs of a set, in percent."""

    name: str
    told: str
    n: int
    shares: list[float]
    flagged: float | None
    auroc: float | None


class Note(BaseModel):
    title: str
    text: str


class Quality(BaseModel):
    """What ibinn evaluate found; without it, only `missing` says how to get it."""

    missing: str | None
    headline: str | None = None
    findings: list[Note] = []
    bins: list[Bin] = []
    score: str | None = None
    edges: list[float] = []
    threshold: float | None = None
    sets: list[Bars] = []
