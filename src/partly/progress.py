"""What a person sees while work goes on: a bar on a terminal, plain lines elsewhere.

What enters: the number of steps, then one call a step and one a finished epoch. What leaves: text
on standard error, so that standard output stays free for results.
"""

import sys
import time
from types import TracebackType
from typing import Any


def silent(line: str) -> None:
    """Say nothing."""


def tell(line: str) -> None:
    """A line for a person to read, beside the results."""
    print(line, file=sys.stderr, flush=True)


class Progress:
    """A bar with loss, mAP, rate and time left. `quiet` shows nothing."""

    def __init__(self, total: int, done: int = 0, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.bar: Any = None
        self._shown, self._began, self._steps = 0.0, time.monotonic(), 0
        if not quiet and sys.stderr.isatty():
            self.bar, self.task = _bar(total, done)

    def __enter__(self) -> "Progress":
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar:
            self.bar.stop()

    def step(self, loss: Any = None) -> None:
        """One step done; `loss` is a tensor that is only read when it is shown, twice a second."""
        if not self.bar:
            return
        self.bar.advance(self.task)
        self._steps += 1
        now = time.monotonic()
        if now - self._shown > 0.5:
            self._shown = now
            rate = f"{self._steps / (now - self._began):.1f} steps/s"
            shown = "" if loss is None else f"loss {_shown(float(loss))}"
            self.bar.update(self.task, loss=shown, rate=rate)

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        """One epoch done: a line of what was measured."""
        score = record.get("validation_score")
        parts = [f"epoch {record['epoch']}/{epochs}", f"loss {_shown(record['loss'])}"]
        if score is not None:
            parts.append(f"{record['criterion']} {100 * score:.2f}")
        parts.append(f"{record['images_per_second']:,.0f} images/s")
        self.say("  ".join(parts))
        if self.bar and score is not None:
            self.bar.update(self.task, score=f"{record['criterion']} {100 * score:.2f}")

    def say(self, text: str) -> None:
        """A line that stays."""
        if self.bar:
            self.bar.console.print(text, highlight=False)
        elif not self.quiet:
            tell(text)


def _shown(loss: float) -> str:
    """A mean over very many labels is small: then its first digits."""
    return f"{loss:.4f}" if abs(loss) >= 0.01 or loss == 0 else f"{loss:.3g}"


def _bar(total: int, done: int) -> tuple[Any, Any]:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.fields[loss]}  {task.fields[score]}  {task.fields[rate]}"),
        progress.TimeRemainingColumn(),
    )
    bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)
    return bar, bar.add_task("train", total=total, completed=done, loss="", score="", rate="")
