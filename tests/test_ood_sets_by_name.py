"""`ood_set`: any out-of-distribution set by name or path."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ibinn.data.dataset import DataError
from ibinn.ood.sets import OOD_SETS, ood_set

rng = np.random.default_rng(0)
INLIERS = rng.integers(256, size=(6, 12, 10, 3), dtype=np.uint8)


pytestmark = pytest.mark.usefixtures("own_places")


def write_drawings(path, n=9):
    rows = []
    for _ in range(n):
        file = io.BytesIO()
        Image.fromarray(rng.integers(256, size=(28, 28), dtype=np.uint8)).save(file, format="PNG")
        rows.append({"bytes": file.getvalue(), "path": ""})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"img": rows, "label": pa.array([0, 1, 2] * (n // 3))}), path)


@pytest.mark.parametrize("name", [name for name in OOD_SETS if name != "rotation"])
def test_sets_made_from_the_inliers(name):
    strange = ood_set(name, INLIERS, 256, seed=1, n=4)
    assert np.array_equal(strange, OOD_SETS[name](INLIERS[:4], 256, 1))
    assert strange.shape == (4, 12, 10, 3)


@pytest.mark.parametrize(
    "place", ["quickdraw.parquet", "ood/quickdraw_bitmaps.parquet", "quickdraw/train.parquet"]
)
def test_sets_from_files_in_the_usual_places(tmp_path, place):
    write_drawings(tmp_path / "data" / place)
    strange = ood_set("quickdraw", INLIERS, 256, data_dir=tmp_path / "data", n=5)
    assert (strange.shape, strange.dtype) == ((5, 12, 10, 3), np.uint8)
    with pytest.raises(DataError, match=r"imagenet\.parquet"):
        ood_set("imagenet", INLIERS, 256, data_dir=tmp_path / "data")


def test_any_data_set_by_name_or_path(tmp_path):
    grey = ood_set("digits", INLIERS[..., :1], 256, n=7)
    assert grey.shape == (7, 12, 10, 1)
    assert grey.max() > 200  # 17 levels become 256
    write_drawings(tmp_path / "others.parquet")
    assert ood_set(str(tmp_path / "others.parquet"), INLIERS, 17, n=3).max() <= 16


def test_the_seed_chooses_the_images():
    draws = [ood_set("digits", INLIERS, 256, seed, n=5) for seed in (0, 0, 1)]
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_a_table_is_no_set_of_images(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.zeros((4, 3)), y=np.arange(4) % 2)
    with pytest.raises(DataError, match="is a table"):
        ood_set(str(tmp_path / "t.npz"), INLIERS, 256)


@pytest.mark.slow
def test_the_example_draws_its_sheet(tmp_path):
    script = Path(__file__).parent.parent / "examples" / "ood_sheet.py"
    command = [sys.executable, str(script), "digits", "--out", str(tmp_path / "sheet")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "rgb_rotation is left out" in done.stdout
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
