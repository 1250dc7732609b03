"""ibinn predict, explain, sample, interpolate and export: what a trained model is for."""

import csv
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from ibinn.cli.terminal import progress
from ibinn.config import Device

if TYPE_CHECKING:
    from ibinn.data.dataset import Array
    from ibinn.estimator import IBINNClassifier
    from ibinn.saving import Saved

SOME_ATYPICAL = 3  # exit code


@dataclass(frozen=True)
class Predict:
    """A row per input: class, probability, p-value, and whether it is like the training data."""

    run_folder: tyro.conf.Positional[Path]
    """What ibinn train or IBINNClassifier.save wrote."""

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Images, folders of images, .npz with x; for a table .csv, .parquet or .npz."""

    format: Literal["table", "csv", "jsonl"] = "table"
    """For eyes, for spreadsheets, or a JSON object per line."""

    out: Path | None = None
    """Write to this file instead of the terminal."""

    alpha: float = 0.05
    """Atypical is what has p <= alpha: so many false alarms on data like that of training."""

    fdr: float | None = None
    """Instead: flag within the whole batch so that at most this share of the flagged are false alarms."""

    fail: bool = False
    """Exit with 3 where some input is atypical."""

    batch_size: int = 500
    """Inputs at a time: less needs less memory."""

    device: Device = "auto"
    """Where to compute."""

    def run(self) -> None:
        from ibinn.files import write_whole
        from ibinn.prediction import as_text, predict

        if self.batch_size < 1:
            raise ValueError(f"--batch-size is {self.batch_size} but must be 1 or more")
        saved = loaded(self.run_folder, self.device)
        names, raw = read_all(self.files, saved)
        with progress("predicting") as on_progress:
            how = (self.alpha, self.fdr, self.batch_size, on_progress, saved.form.log_scale)
            rows = predict(saved.run, names, raw, *how)
        text = as_text(rows, self.format)
        if self.out is None:
            print(text, end="")
        else:
            write_whole(self.out, text)
        n_atypical = sum(row.verdict == "atypical" for row in rows)
        print(f"{n_atypical} of {len(rows)} inputs are atypical", file=sys.stderr)
        if self.fail and n_atypical:
            raise SystemExit(SOME_ATYPICAL)


@dataclass(frozen=True)
class Explain:
    """One decision in words and numbers, with a figure if asked."""

    run_folder: tyro.conf.Positional[Path]
    """What ibinn train or IBINNClassifier.save wrote."""

    file: tyro.conf.Positional[str]
    """An image, or FILE:ROW of an .npz or a table."""

    figure: Path | None = None
    """Draw posterior, place among the calibration scores and the evidence to this .png or .pdf."""

    json: bool = False
    """Print the numbers as JSON."""

    def run(self) -> None:
        from ibinn.explanation import evidence_map, explain

        saved = loaded(self.run_folder, "cpu")
        raw = read_one(self.file, saved)
        told = explain(saved.run, raw).in_units(saved.form.log_scale)
        print(json.dumps(told.to_dict(), indent=1, ensure_ascii=False) if self.json else told)
        if self.figure is not None:
            from ibinn.report.explained import explanation_figure

            best = sorted(range(len(told.posterior)), key=lambda k: -list(told.posterior.values())[k])
            evidence = evidence_map(saved.run, raw, best[0], best[1])
            write_figure(self.figure, lambda: explanation_figure(told, raw, evidence))


@dataclass(frozen=True)
class Sample:
    """New inputs of each class: a picture, an .npz, or for a table a .csv."""

    run_folder: tyro.conf.Positional[Path]
    """What ibinn train or IBINNClassifier.save wrote."""

    out: Path | None = None
    """.png or .pdf (images), .npz with x and y, or .csv (tables); by default samples.png or samples.csv."""

    n: int = 10
    """So many of each class."""

    classes: tuple[str, ...] = ()
    """Only these classes, by name."""

    temperature: float = 1.0
    """Deviation in latent space: below 1 more typical, 0 the centre of each class."""

    seed: int = 0
    """Other samples for another number."""

    def run(self) -> None:
        import numpy as np

        saved = loaded(self.run_folder, "cpu")
        model = estimator_of(saved, self.run_folder)
        wanted = chosen_classes(self.classes, saved.run.class_names)
        if self.n < 1:
            raise ValueError(f"--n is {self.n} but must be 1 or more")
        y = np.repeat(saved.classes[wanted], self.n)
        x, y = model.sample(len(y), y, self.temperature, self.seed)
        out = self.out or Path("samples.png" if saved.form.is_images else "samples.csv")
        write_samples(out, x, y, saved, [saved.run.class_names[k] for k in wanted])
        print(f"written to {out}")


@dataclass(frozen=True)
class Interpolate:
    """The way in latent space from one input to another."""

    run_folder: tyro.conf.Positional[Path]
    """What ibinn train or IBINNClassifier.save wrote."""

    a: tyro.conf.Positional[str]
    """An image, or FILE:ROW of an .npz or a table."""

    b: tyro.conf.Positional[str]
    """Another."""

    steps: int = 9
    """Inputs on the way, both ends included."""

    out: Path | None = None
    """.png or .pdf (images), .npz, or .csv (tables); by default interpolation.png or interpolation.csv."""

    def run(self) -> None:
        saved = loaded(self.run_folder, "cpu")
        model = estimator_of(saved, self.run_folder)
        a, b = (saved.form.back(read_one(name, saved)[None])[0] for name in (self.a, self.b))
        x = model.interpolate(a, b, self.steps)
        out = self.out or Path("interpolation.png" if saved.form.is_images else "interpolation.csv")
        write_way(out, x, saved)
        print(f"written to {out}")


@dataclass(frozen=True)
class Export:
    """One ONNX graph: inputs in; probabilities, log q(x) and p-value out."""

    run_folder: tyro.conf.Positional[Path]
    """What ibinn train or IBINNClassifier.save wrote."""

    file: tyro.conf.Positional[Path]
    """The .onnx file to write."""

    sampler: Path | None = None
    """Write a second graph here, from class and noise to a new input."""

    def run(self) -> None:
        from ibinn.export import export_onnx, export_sampler_onnx

        saved = loaded(self.run_folder, "cpu")
        export_onnx(saved.run, self.file, saved.form)
        print(f"written to {self.file}")
        if self.sampler is not None:
            export_sampler_onnx(saved.run, self.sampler, saved.form)
            print(f"written to {self.sampler}")


def loaded(folder: Path, device: str) -> "Saved":
    from ibinn.precision import chosen_device
    from ibinn.saving import load_model

    saved = load_model(folder)
    saved.run.pipeline.to(chosen_device(device, saved.form.is_images))
    return saved


def estimator_of(saved: "Saved", folder: Path) -> "IBINNClassifier":
    from ibinn.estimator import IBINNClassifier

    return IBINNClassifier.of(saved, str(folder))


def read_all(files: tuple[Path, ...], saved: "Saved") -> "tuple[list[str], Array]":
    """Of several files, one after the other."""
    import numpy as np

    from ibinn.data.unlabelled import read_inputs

    if not files:
        raise ValueError("no files to predict; give images, folders, .npz, .csv or .parquet")
    parts = [read_inputs(file, saved.form, saved.run.feature_names) for file in files]
    return [name for names, _ in parts for name in names], np.concatenate([raw for _, raw in parts])


def read_one(name: str, saved: "Saved") -> "Array":
    """One input: a file that holds just one, or FILE:ROW."""
    from ibinn.data.unlabelled import read_inputs

    path, row = Path(name), 0
    stem, colon, number = name.rpartition(":")
    if not path.exists() and colon and number.isdigit():
        path, row = Path(stem), int(number)
    _, raw = read_inputs(path, saved.form, saved.run.feature_names)
    if row >= len(raw):
        raise ValueError(f"{path} has {len(raw)} inputs, so the last row is {path}:{len(raw) - 1}")
    if len(raw) > 1 and not (colon and number.isdigit()):
        raise ValueError(f"{path} has {len(raw)} inputs; say which one, as in {path}:0")
    one: Array = raw[row]
    return one


def chosen_classes(names: tuple[str, ...], known: tuple[str, ...]) -> list[int]:
    for name in names:
        if name not in known:
            raise ValueError(f"there is no class {name}; the classes are {', '.join(known)}")
    return [known.index(name) for name in names] or list(range(len(known)))


def write_samples(out: Path, x: "Array", y: "Array", saved: "Saved", names: list[str]) -> None:
    from ibinn.report.pictures import draw_samples

    if is_picture(out, saved):
        levels = saved.form.levels or 256
        images = saved.form.raw(x)
        grid = images.reshape(len(names), -1, *images.shape[1:])
        write_figure(out, lambda: draw_samples(grid, names, levels))
    else:
        write_arrays(out, x, saved, y)


def write_way(out: Path, x: "Array", saved: "Saved") -> None:
    from ibinn.report.pictures import draw_interpolations

    if is_picture(out, saved):
        images = saved.form.raw(x)
        write_figure(out, lambda: draw_interpolations([("", images)], saved.form.levels or 256))
    else:
        write_arrays(out, x, saved, None)


def is_picture(out: Path, saved: "Saved") -> bool:
    """Whether a file is to be a picture; ValueError for a kind that does not fit the data."""
    kinds = (".png", ".pdf", ".npz") if saved.form.is_images else (".csv", ".npz")
    if out.suffix.lower() not in kinds:
        raise ValueError(f"{out} is of no kind that fits the data; use {', '.join(kinds)}")
    return out.suffix.lower() in (".png", ".pdf")


def write_arrays(out: Path, x: "Array", saved: "Saved", y: "Array | None") -> None:
    """.npz, or .csv with the columns' names."""
    from ibinn.files import write_whole

    if out.suffix.lower() == ".npz":
        write_whole(out, npz(x, y))
        return
    names = [*(saved.run.feature_names or [f"x{i}" for i in range(x.shape[1])])]
    rows = [[repr(float(v)) for v in row] for row in x]
    if y is not None:
        names, rows = [*names, "class"], [[*row, str(label)] for row, label in zip(rows, y, strict=True)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([names, *rows])
    write_whole(out, text.getvalue())


def npz(x: "Array", y: "Array | None") -> bytes:
    import numpy as np

    arrays: dict[str, Any] = {"x": x}
    if y is not None:
        arrays["y"] = y.astype(str) if y.dtype.kind == "O" else y
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def write_figure(out: Path, draw: Callable[[], Any]) -> None:
    from ibinn.files import write_whole
    from ibinn.report.runs import rendered

    suffix = out.suffix.lower()
    if suffix not in (".png", ".pdf"):
        raise ValueError(f"{out} must end in .png or .pdf")
    write_whole(out, rendered("figure", draw)[f"figure{suffix}"])
