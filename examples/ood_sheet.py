"""A contact sheet: images of a data set and of every OoD set that can be made for it.

    python examples/ood_sheet.py digits --out runs/ood_sheet
    python examples/ood_sheet.py cifar10 --data-dir data --sets quickdraw imagenet mnist

Sets made from the inliers are always shown. --sets adds others, by name or path.
"""

import argparse
from pathlib import Path

import numpy as np

from ibinn.data.dataset import DataError
from ibinn.data.known import load
from ibinn.ood.sets import OOD_SETS, ood_set
from ibinn.report.pictures import draw_contact_sheet
from ibinn.report.style import save_figure

N = 16  # images of each set


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", help="the inliers: the name of a known set, or a path")
    parser.add_argument("--sets", nargs="*", default=[], help="further sets, by name or path")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("runs/ood_sheet"))
    options = parser.parse_args()

    data = load(options.data, options.data_dir)
    if data.levels is None:
        raise SystemExit(f"{options.data} is a table; a contact sheet needs images")
    inliers = np.asarray((data.train if data.test is None else data.test).x[:N])
    sheets = {f"{options.data} (inliers)": inliers}
    for name in [*OOD_SETS, *options.sets]:
        try:
            sheets[name] = ood_set(name, inliers, data.levels, data_dir=options.data_dir, n=N)
        except DataError as error:
            print(f"{name} is left out: {error}")
    save_figure(draw_contact_sheet(sheets, levels=data.levels), options.out)
    print(f"{options.out}.png and .pdf")


if __name__ == "__main__":
    main()
