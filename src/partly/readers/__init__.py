"""Readers: one file a format. A path enters, a `LabelTable` leaves; no image is opened.

A reader is a module with `recognises(path)` and `read(path, **options)`. The keyword arguments of
its `read` are the options of the format. The first line of its docstring says in a few words what
lies on the disk, the rest how it is read: `partly formats` shows it.
"""

import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from partly.errors import ConfigError, DataError, LabelError
from partly.labels import LabelTable
from partly.readers import arrays, manifest

LARGE = 2**26  # bytes; a larger table is moved into memory-mapped files

# In the order in which they are tried: what can be told with certainty comes first.
FORMATS: dict[str, ModuleType] = {
    "npz": arrays,
    "manifest": manifest,
}


def read(path: str | Path, format: str | None = None, **options: Any) -> LabelTable:
    """Any supported data set -> `LabelTable`.

    format: one of `FORMATS`, to force it; otherwise the layout is recognised. options: of the
    format, such as `convention="signed"` for arrays or `empty="keep"` for COCO.
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"no data at {path}")
    name = format or recognise(path)
    if name not in FORMATS:
        raise ConfigError(f"unknown format '{name}'; choose one of {', '.join(FORMATS)}")
    known = options_of(name)
    strange = [option for option in options if option not in known]
    if strange:
        listed = ", ".join(f"{option}={value}" for option, value in known.items()) or "none"
        raise ConfigError(
            f"{path} is read as '{name}', which has no option {', '.join(strange)}; it has {listed}"
        )
    try:
        table: LabelTable = FORMATS[name].read(path, **options)
    except (DataError, LabelError) as error:  # every problem names the file
        problems = [p if str(path) in p else f"{path}: {p}" for p in error.problems]
        raise type(error)(problems) from None
    return table.mapped() if table.size > LARGE else table


def recognise(path: Path) -> str:
    """The name of the format that lies here."""
    for name, reader in FORMATS.items():
        if reader.recognises(path):
            return name
    raise DataError(
        f"{path} is in no known format; there are {', '.join(FORMATS)}: `partly formats` says how "
        "each of them lies on the disk, and --format forces one"
    )


def summary(name: str) -> str:
    """What a format is, in one line."""
    return (FORMATS[name].__doc__ or "").partition("\n")[0].rstrip(".")


def options_of(name: str) -> dict[str, Any]:
    """The options of a format with their defaults."""
    parameters = list(inspect.signature(FORMATS[name].read).parameters.values())[1:]
    return {parameter.name: parameter.default for parameter in parameters}
