"""Readers: one file a format. A path enters, a `LabelTable` leaves; no image is opened.

A reader is a module with `recognises(path)` and `read(path, **options)`. The keyword arguments of
its `read` are the options of the format. The first line of its docstring says in a few words what
lies on the disk, the rest how it is read: `partly formats` shows it.
"""

import inspect
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from partly.errors import ConfigError, DataError, LabelError
from partly.images import SUFFIXES
from partly.labels import LabelTable
from partly.readers import (
    arrays,
    chexpert,
    coco,
    cub,
    food172,
    huggingface,
    lists,
    lvis,
    manifest,
    npy,
    nuswide,
    openimages,
    packed,
    vaw,
    vg200,
    vispr,
    voc,
    webdataset,
)

LARGE = 2**26  # bytes; a larger table is moved into memory-mapped files

# In the order in which they are tried: what can be told with certainty comes first.
FORMATS: dict[str, ModuleType] = {
    "npz": arrays,
    "packed": packed,
    "huggingface": huggingface,
    "coco": coco,
    "lvis": lvis,
    "voc": voc,
    "vaw": vaw,
    "cub": cub,
    "nuswide": nuswide,
    "openimages": openimages,
    "chexpert": chexpert,
    "vispr": vispr,
    "vg200": vg200,
    "food172": food172,
    "webdataset": webdataset,
    "npy": npy,
    "lists": lists,
    "manifest": manifest,
}

# Not a data set of a name, and so no doubt beside one: the first three win, the others give way.
OF_ANY_DATA = ("npz", "packed", "huggingface", "webdataset", "lists", "manifest")


def read(path: str | Path, format: str | None = None, **options: Any) -> LabelTable:
    """Any supported data set -> `LabelTable`.

    format: one of `FORMATS`, to force it; otherwise the layout is recognised. options: of the
    format, such as `convention="signed"` for arrays or `empty="keep"` for COCO.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     data = Path(folder) / "data.csv"
    ...     _ = data.write_text("path,cat,dog\\na.jpg,1,\\nb.jpg,0,1\\n")
    ...     table = read(data)
    >>> table.names, table.dense().tolist()
    (('cat', 'dog'), [[1, -1], [0, 1]])
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
        table: LabelTable = FORMATS[name].read(path, **_as_meant(name, options))
    except (DataError, LabelError) as error:  # every problem names the file
        problems = [p if str(path) in p else f"{path}: {p}" for p in error.problems]
        raise type(error)(problems) from None
    return table.mapped() if table.size > LARGE else table


def recognise(path: Path) -> str:
    """The name of the format that lies here."""
    for name, reader in FORMATS.items():
        if reader.recognises(path):
            return name if name in OF_ANY_DATA else _only(name, path)
    if _holds_images(path):
        raise DataError(
            f"{path} holds images but no labels that are known here: `partly predict` takes it as "
            "it is; to train, give a manifest (`partly formats manifest`)"
        )
    raise DataError(
        f"{path} is in no known format; there are {', '.join(FORMATS)}: `partly formats` says how "
        "each of them lies on the disk, and --format forces one"
    )


def _holds_images(path: Path) -> bool:
    """Is there an image among the first few entries of a folder, or is this a tar?"""
    if path.suffix.lower() == ".tar":
        return True
    entries = islice(path.iterdir(), 50) if path.is_dir() else []
    return any(entry.suffix.lower() in SUFFIXES for entry in entries)


def _only(found: str, path: Path) -> str:
    """This data set, unless the folder holds another too: then nobody can tell which is meant."""
    if not path.is_dir():
        return found
    released = [name for name in FORMATS if name not in OF_ANY_DATA]
    later = released[released.index(found) + 1 :]
    others = [name for name in later if FORMATS[name].recognises(path)]
    if others:
        raise ConfigError(f"{path} holds {' and '.join([found, *others])}: choose with --format")
    return found


def _as_meant(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options with text where text is meant: a command line cannot tell a folder named 2017
    from a number."""
    parameters = inspect.signature(FORMATS[name].read).parameters
    given = {}
    for option, value in options.items():
        kinds = get_args(parameters[option].annotation) or (parameters[option].annotation,)
        text = isinstance(value, int | float) and str in kinds and type(value) not in kinds
        given[option] = str(value) if text else value
    return given


def summary(name: str) -> str:
    """What a format is, in one line."""
    return (FORMATS[name].__doc__ or "").partition("\n")[0].rstrip(".")


def options_of(name: str) -> dict[str, Any]:
    """The options of a format with their defaults."""
    parameters = list(inspect.signature(FORMATS[name].read).parameters.values())[1:]
    return {parameter.name: parameter.default for parameter in parameters}


def describe(name: str) -> str:
    """All about a format."""
    if name not in FORMATS:
        raise ConfigError(f"unknown format '{name}'; choose one of {', '.join(FORMATS)}")
    text = (FORMATS[name].__doc__ or "").strip()
    defaults = defaults_of(name, ", ")
    return f"{text}\n\nDefaults: {defaults}" if defaults else text


def defaults_of(name: str, between: str = "  ") -> str:
    """`year=  empty=drop`: the options of a format, those without a default bare."""
    shown = ((option, "" if value is None else value) for option, value in options_of(name).items())
    return between.join(f"{option}={value}" for option, value in shown)


def to_markdown() -> str:
    """The page docs/formats.md: every format as its reader describes it."""
    lines = [
        "# Formats",
        "",
        "What `partly.read` and every command understand, written by `partly formats --markdown`.",
        "The layout is recognised; `--format` forces one, `--read name=value` sets an option.",
        "",
        "```python",
        'table = partly.read("data.csv")        # a LabelTable; partly.read(path, year=2014)',
        'train = table.part("train")            # None where there is no such part',
        "labels = train.dense(slice(0, 64))     # int8 [64, L]: 1, 0, -1 unknown",
        "train.ids, train.paths, train.names, train.counts_by_label(), table.notes",
        "```",
    ]
    for name in FORMATS:
        lines += ["", f"## {name}", "", describe(name)]
    return "\n".join(lines) + "\n"
