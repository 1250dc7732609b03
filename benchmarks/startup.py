"""Import and start-up times in new interpreters, measured in turns, the best of several.

python benchmarks/startup.py
"""

import math
import subprocess
import sys
import time

from turns import save

ROUNDS = 7
COMMANDS = {
    "import torch": ["-c", "import torch"],
    "import ibinn": ["-c", "import ibinn"],
    "the model of ibinn": ["-c", "from ibinn import GenerativeClassifier"],
    "import FrEIA": ["-c", "import FrEIA.framework, FrEIA.modules"],
    "import normflows": ["-c", "import normflows"],
    "import zuko": ["-c", "import zuko"],
    "ibinn --help": ["-m", "ibinn.cli", "--help"],
    "nothing": ["-c", ""],
}


def main() -> None:
    best = dict.fromkeys(COMMANDS, math.inf)
    for _ in range(ROUNDS):
        for name, arguments in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-W", "ignore", *arguments], check=True, capture_output=True)
            best[name] = min(best[name], time.perf_counter() - start)
    rows = [
        {"name": name, "seconds": seconds, "ratio": seconds / best["import torch"]}
        for name, seconds in best.items()
    ]
    for row in rows:
        print(f"{row['name']:17} {row['seconds']:6.2f} s  {row['ratio']:5.2f} x import torch")
    save("startup", rows, rounds=ROUNDS)


if __name__ == "__main__":
    main()
