"""The drawings of `quickdraw` and the photos of `imagenet`, as Parquet files, from where they are published.

    git clone https://github.com/sukumr/Doodle-Classifier data/Doodle-Classifier
    git clone https://github.com/DhanashriPalodkar/imageet32x32 data/imageet32x32
    python experiments/ood_files.py data/Doodle-Classifier/data data/imageet32x32/val/images

Writes quickdraw.parquet and imagenet.parquet to the folder ood of the first place in which ibinn looks for data
($IBINN_DATA, or ~/.cache/ibinn). Of each category of drawings, a file CATEGORY.npy with rows of 28 x 28 pixels, as
Quick, Draw! has them, at most the first 2,000 are taken.
"""

import argparse
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from ibinn._system import write_atomically
from ibinn.data.known import search_folders

MOST = 2000
Named = tuple[str, bytes]  # an image file


def drawings(folder: Path) -> Iterator[Named]:
    for file in sorted(folder.glob("*.npy")):
        for number, pixels in enumerate(np.load(file, mmap_mode="r")[:MOST]):
            png = io.BytesIO()
            Image.fromarray(pixels.reshape(28, 28).astype(np.uint8)).save(png, "PNG")
            yield f"{file.stem}/{number:04}.png", png.getvalue()


def photos(folder: Path) -> Iterator[Named]:
    for file in sorted(folder.glob("*.JPEG")):
        yield file.name, file.read_bytes()


def write(images: Iterator[Named], file: Path) -> None:
    rows = [{"path": name, "bytes": content} for name, content in images]
    if not rows:
        raise SystemExit(f"there are no images for {file.name}; give the folders of the clones")
    content = io.BytesIO()
    pq.write_table(pa.table({"img": rows}), content)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, content.getvalue())
    print(f"written to {file}: {len(rows):,} images")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("quickdraw", type=Path, help="a folder of CATEGORY.npy")
    parser.add_argument("imagenet", type=Path, help="a folder of photos, *.JPEG")
    parser.add_argument("--into", type=Path, default=search_folders()[0] / "ood")
    options = parser.parse_args()
    write(drawings(options.quickdraw), options.into / "quickdraw.parquet")
    write(photos(options.imagenet), options.into / "imagenet.parquet")


if __name__ == "__main__":
    main()
