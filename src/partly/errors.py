"""Every error a user can meet.

What enters: sentences that name what is wrong, where (file, row, column, image) and what to do.
What leaves: one exception that carries all of them, so that nobody mends a file line by line.
"""

from collections.abc import Iterable, Sequence


class PartlyError(ValueError):
    """Something the user can mend. The command line prints it without a traceback."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class LabelError(PartlyError):
    """The label table is not what it should be."""


class DataError(PartlyError):
    """A file, an image or a feature matrix cannot be used."""


class ConfigError(PartlyError):
    """An option or a combination of options makes no sense."""


class RunError(PartlyError):
    """A run's folder cannot be read, written or resumed."""


class ToldElsewhere(PartlyError):
    """The same error is told by another process: one sentence is enough."""


class PartlyWarning(UserWarning):
    """Something the user should know although work goes on."""


def raise_if(problems: Iterable[str], error: type[PartlyError] = PartlyError) -> None:
    """Raise `error` with all `problems`, or do nothing when there are none."""
    found = list(problems)
    if found:
        raise error(found)


def first_few(items: Sequence[object], limit: int = 5) -> str:
    """`a, b, c and 7 more`: enough to find the fault without flooding the screen."""
    shown = ", ".join(str(item) for item in items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"
