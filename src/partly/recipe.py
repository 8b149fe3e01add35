"""Recipes: the choices of a study in one TOML file, with room to say why.

What enters: a file such as recipes/coco.toml. What leaves: a `Recipe`, checked. Three tables, each
of them optional:

    [data]      format, options = { … }, on_bad_image, verify        fields of a `Source`
    [training]  epochs, batch_size, learning_rate, backbone, …       fields of a `Config`
    [study]     methods, settings, seeds                             of `partly compare`
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from partly.config import Config
from partly.errors import ConfigError, raise_if
from partly.source import Source

STUDY = ("methods", "settings", "seeds")


@dataclass(frozen=True)
class Recipe:
    """What a recipe chooses; the rest stays at its default."""

    data: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    study: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> "Recipe":
        """The recipe in a file, or an error with all that is wrong in it."""
        content = read_toml(path, "recipe")
        raise_if((f"{path}: {problem}" for problem in _problems(content)), ConfigError)
        return cls(**content)


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """The content of such a file, or one sentence about why there is none."""
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read the {what} {path}: {reason}") from None


def _problems(content: dict[str, Any]) -> Iterator[str]:
    allowed = {
        "data": [f.name for f in fields(Source) if f.name not in ("path", "leave_out")],
        "training": [f.name for f in fields(Config)],
        "study": list(STUDY),
    }
    for table, entries in content.items():
        if table not in allowed or not isinstance(entries, dict):
            yield f"a recipe has the tables {', '.join(allowed)}, not '{table}'"
            continue
        unknown = [name for name in entries if name not in allowed[table]]
        if unknown:
            yield f"[{table}] has no {', '.join(unknown)}; it has {', '.join(allowed[table])}"
    training = content.get("training")
    if isinstance(training, dict) and set(training) <= set(allowed["training"]):
        yield from Config(**training).problems()
    yield from _study_problems(content.get("study"))
    data = content.get("data")
    if isinstance(data, dict) and set(data) <= set(allowed["data"]):
        yield from Source("", **data).problems()


def _study_problems(study: Any) -> Iterator[str]:
    if not isinstance(study, dict):
        return
    for name in ("methods", "settings"):
        value = study.get(name, [])
        if not (isinstance(value, list) and all(isinstance(text, str) for text in value)):
            yield f'{name} is a list of texts, such as ["an", "ign"], not {value!r}'
    seeds = study.get("seeds", 1)
    if isinstance(seeds, bool) or not isinstance(seeds, int):
        yield f"seeds is a whole number, not {seeds!r}"
