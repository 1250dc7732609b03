"""ibinn data: list, show and fetch data sets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from ibinn.cli.files import read_data
from ibinn.cli.options import DataDir, Target
from ibinn.cli.terminal import progress


@dataclass(frozen=True)
class Data:
    """List the known data sets, show the numbers of one, or download official archives."""

    action: tyro.conf.Positional[Literal["list", "show", "fetch"]] = "list"
    """list: the known data sets and where they are. show: numbers of any data. fetch: download known data sets."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """For show: known names, files or folders. For fetch: known names."""

    data_dir: DataDir = None

    target: Target = None

    def run(self) -> None:
        if self.action == "list":
            if self.names:
                raise ValueError(f"ibinn data list takes no names; try: ibinn data show {self.names[0]}")
            list_known(self.data_dir)
        elif not self.names:
            raise ValueError(
                f"ibinn data {self.action} needs a name, as in: ibinn data {self.action} mnist"
            )
        for name in self.names:
            if self.action == "show":
                show_data(name, self.data_dir, self.target)
            else:
                fetch_data(name, self.data_dir)


def list_known(data_dir: Path | None) -> None:
    from ibinn.data.known import KNOWN, find_known, search_folders
    from ibinn.ood.sets import OOD_FILES, find_file

    for name in KNOWN:
        found = "comes with scikit-learn" if name == "digits" else find_known(name, data_dir)
        print(f"{name:14} {found or f'not found; get it with: ibinn data fetch {name}'}")
    for name in OOD_FILES:
        found = find_file(name, data_dir)
        print(f"{name:14} {found or 'not found; an OoD set from a file, see docs/data.md'}")
    print(f"searched: {', '.join(str(folder) for folder in search_folders(data_dir))}")


def show_data(name: str, data_dir: Path | None, target: str | None) -> None:
    """Shapes, class counts, and mean and standard deviation in the units x / (levels - 1) of other papers."""
    import numpy as np

    from ibinn.data.preprocess import channel_statistics
    from ibinn.data.splits import n_test_in_train

    data = read_data(name, data_dir, target)
    print(f"{name}: {'images' if data.is_images else 'rows'} {data.shape}, {len(data.class_names)} classes")
    for title, part in (("train", data.train), ("test", data.test)):
        if part is None:
            print(f"{title}: none, will be split off")
            continue
        print(f"{title}: {len(part)} examples")
        counts = np.bincount(part.y, minlength=len(data.class_names))
        if len(set(counts.tolist())) == 1:
            print(f"  {counts[0]} per class: {', '.join(data.class_names)}")
        else:
            print(f"  {', '.join(f'{n} {c}' for n, c in zip(data.class_names, counts, strict=True))}")
        if data.levels is not None:
            scale = data.levels / (data.levels - 1)
            mean, std = (scale * values for values in channel_statistics(part.x, data.levels))
            print(f"  mean {' '.join(f'{m:.8f}' for m in mean)}, std {' '.join(f'{s:.8f}' for s in std)}")
    if data.test is not None and (n := n_test_in_train(data.train.x, data.test.x)):
        print(f"  {n} test examples equal a training example")


def fetch_data(name: str, data_dir: Path | None) -> None:
    from ibinn.data.fetch import fetch_set
    from ibinn.data.known import search_folders

    if name == "digits":
        raise ValueError("digits come with scikit-learn, so there is nothing to fetch")
    with progress(f"fetching {name}", unit="MB", scale=1e-6) as on_progress:
        paths = fetch_set(name, search_folders(data_dir)[0], on_progress)
    for path in paths:
        print(path)
