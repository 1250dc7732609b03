"""Writers of small data files in every layout, for the tests of what reads them."""

import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

rng = np.random.default_rng(0)


def colours(n, height=6, width=5):
    return rng.integers(256, size=(n, height, width, 3), dtype=np.uint8)


def png(array):
    file = io.BytesIO()
    Image.fromarray(array.squeeze()).save(file, format="PNG")
    return file.getvalue()


def write_folder(root, images, y, names=("cat", "dog")):
    for i, (image, label) in enumerate(zip(images, y, strict=True)):
        folder = root / names[label]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:04}.png").write_bytes(png(image))


def write_parquet(path, images, y, image="img", label="label", names=None):
    rows = [{"bytes": png(i), "path": f"{n}.png"} for n, i in enumerate(images)]
    table = pa.table({image: rows, label: pa.array(y, pa.int64())})
    if names:
        features = {"info": {"features": {label: {"names": list(names), "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def write_tar(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def written(tmp_path, name, content):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
    return path


def same(part, images, y):
    """Whether a part holds these images and labels, in any order."""

    def by_content(x, labels):
        order = sorted(range(len(labels)), key=lambda i: x[i].tobytes())
        return np.asarray(x)[order], np.asarray(labels)[order]

    pairs = zip(by_content(part.x, part.y), by_content(images, y), strict=True)
    return all(np.array_equal(ours, theirs) for ours, theirs in pairs)
