"""ibinn demo."""

from dataclasses import dataclass
from pathlib import Path

from ibinn.cli.evaluate import Evaluate
from ibinn.cli.train import Train


@dataclass(frozen=True)
class Demo:
    """Train on scikit-learn's handwritten digits, evaluate, and write a report, in about a minute."""

    out: Path = Path("runs", "demo")
    """The run folder to write."""

    seed: int = 0
    """Seed of the split, the initial weights and the training."""

    def run(self) -> None:
        print("1,797 handwritten digits of 8 x 8 pixels, gamma = 1")
        Train("digits", seed=self.seed, out=self.out, resume=True, device="cpu").run()
        Evaluate(self.out, device="cpu").run()
        print(f"next: open {self.out / 'report.html'} in a browser, or run: ibinn explore {self.out}")
