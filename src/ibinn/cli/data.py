"""ibinn data: which sets there are, what is in them, where to get them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from ibinn.cli.terminal import progress


@dataclass(frozen=True)
class Data:
    """List the known data sets, show one in numbers, or fetch official archives."""

    action: tyro.conf.Positional[Literal["list", "show", "fetch"]] = "list"
    """list: the known sets and where they are; show: counts, mean and deviation of any data; fetch: download."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """For show: a known name, file or folder. For fetch: known names."""

    data_dir: Path | None = None
    """Where known sets are looked for first, and fetched to. Else $IBINN_DATA, then ~/.cache/ibinn."""

    target: str | None = None
    """For show, with a table: the column that holds the classes."""

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
            (show_data if self.action == "show" else fetch_data)(self, name)


def list_known(data_dir: Path | None) -> None:
    from ibinn.data.known import KNOWN, find_known, search_folders
    from ibinn.ood.sets import OOD_FILES, find_file

    for name in KNOWN:
        found = "comes with scikit-learn" if name == "digits" else find_known(name, data_dir)
        print(f"{name:14} {found or f'not there; get it with: ibinn data fetch {name}'}")
    for name in OOD_FILES:
        found = find_file(name, data_dir)
        print(f"{name:14} {found or 'not there; strange inputs, from a file that docs/data.md tells of'}")
    print(f"looked in: {', '.join(str(folder) for folder in search_folders(data_dir))}")


def show_data(command: Data, name: str) -> None:
    """Shapes, counts per class, and mean and deviation in the units x / (levels - 1) that other papers print."""
    import numpy as np

    from ibinn.data.known import load
    from ibinn.data.preprocess import channel_statistics
    from ibinn.data.splits import n_twins

    with progress(f"reading {name}") as on_progress:
        data = load(name, command.data_dir, command.target, on_progress)
    print(f"{name}: {'images' if data.is_images else 'rows'} {data.shape}, {len(data.class_names)} classes")
    for title, part in (("train", data.train), ("test", data.test)):
        if part is None:
            print(f"{title}: none of its own, will be split off")
            continue
        print(f"{title}: {len(part)} examples")
        counts = np.bincount(part.y, minlength=len(data.class_names))
        if len(set(counts.tolist())) == 1:
            print(f"  of each class {counts[0]}: {', '.join(data.class_names)}")
        else:
            print(f"  {', '.join(f'{n} {c}' for n, c in zip(data.class_names, counts, strict=True))}")
        if data.levels is not None:
            scale = data.levels / (data.levels - 1)
            mean, std = (scale * values for values in channel_statistics(part.x, data.levels))
            print(f"  mean {' '.join(f'{m:.8f}' for m in mean)}, std {' '.join(f'{s:.8f}' for s in std)}")
    if data.test is not None and (twins := n_twins(data.train.x, data.test.x)):
        print(f"  {twins} test examples equal a training example")


def fetch_data(command: Data, name: str) -> None:
    from ibinn.data.fetch import fetch_set
    from ibinn.data.known import search_folders

    if name == "digits":
        raise ValueError("digits come with scikit-learn: there is nothing to fetch")
    folder = search_folders(command.data_dir)[0]
    with progress(f"fetching {name}", unit="MB", scale=1e-6) as on_progress:
        paths = fetch_set(name, folder, on_progress)
    for path in paths:
        print(path)
