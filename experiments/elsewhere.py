"""How much the numbers of `ibinn demo` depend on the processor and its threads: the demo run in several ways.

python experiments/elsewhere.py
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ibinn.run.results import read_results, to_json

OUT = Path(__file__).parent.parent / "results" / "digits-elsewhere.json"
OLDER = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
WAYS: dict[str, tuple[dict[str, str], Sequence[str]]] = {  # environment and options
    "the same again": ({}, ()),
    "one thread": ({"OMP_NUM_THREADS": "1"}, ()),
    "AVX2 only": (OLDER, ()),
    "seed 1": ({}, ("--seed", "1")),
}


def demo(environment: dict[str, str], options: Sequence[str]) -> dict[str, Any]:
    """The results of the demo, without intervals."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "ibinn.cli", "demo", "--out", f"{place}/run", *options]
        subprocess.run(command, check=True, env=os.environ | environment)
        numbers = to_json(read_results(Path(place, "run")))
    return {name: value for name, value in numbers.items() if name != "intervals"}


def main() -> None:
    numbers = {name: demo(*way) for name, way in WAYS.items()}
    OUT.write_text(json.dumps(numbers, indent=1) + "\n")
    print(f"written to {OUT}")


if __name__ == "__main__":
    main()
