"""ibinn demo."""

from dataclasses import dataclass
from pathlib import Path

from ibinn.cli.evaluate import Evaluate
from ibinn.cli.train import Train


@dataclass(frozen=True)
class Demo:
    """Train on the handwritten digits that come with scikit-learn, evaluate, and write a run folder."""

    out: Path = Path("runs", "demo")
    """The run folder."""

    seed: int = 0
    """Drives split and start."""

    def run(self) -> None:
        print("1,797 handwritten digits of 8 x 8 pixels; gamma = 1: class and density in equal parts")
        Train("digits", seed=self.seed, out=self.out, resume=True, device="cpu").run()
        Evaluate(self.out, device="cpu").run()
        print(
            f"next: open {self.out / 'report.html'} in a browser, or look around with: ibinn explore {self.out}"
        )
