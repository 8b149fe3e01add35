"""What several readers need: files into columns, words into splits, images into places."""

import json
import os
from collections.abc import Iterator, Sequence
from csv import reader as text_reader
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from partly import tars
from partly.errors import ConfigError, DataError, first_few
from partly.texts import Texts

# How data sets call their parts.
SPLIT_WORDS = {
    "train": "train", "training": "train", "trainval": "train",
    "validation": "validation", "val": "validation", "valid": "validation", "dev": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip


def choose(value: Any, option: str, allowed: Sequence[str]) -> str:
    """The value of a reader's option, or an error that lists what it can be."""
    if value in allowed:
        return str(value)
    close = get_close_matches(str(value), allowed, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise ConfigError(f"{option} is one of {', '.join(allowed)}, not '{value}'{hint}")


def counted(count: int, what: str, plural: str | None = None) -> str:
    """`1 image`, `1,200 images`."""
    return f"{count:,} {what if count == 1 else plural or what + 's'}"


def read_json(file: Path) -> Any:
    """The content of a JSON file."""
    try:
        with file.open("rb") as stream:
            return json.load(stream)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DataError(f"cannot read {file}: {error}") from None


def read_lines(file: Path) -> Iterator[tuple[int, str]]:
    """(number, text) of each line that is not blank, whatever ends it."""
    try:
        with file.open(encoding="utf-8-sig") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, line.strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}: {error}") from None


def read_columns(file: Path, wanted: Sequence[str] | None = None) -> dict[str, Any]:
    """The columns of a CSV or Parquet file, as pyarrow columns by name.

    The cells of a CSV stay text, so that nothing is guessed. wanted: only these; one that is not
    there is an error.
    """
    import pyarrow as arrow
    from pyarrow import csv, parquet

    try:
        if file.suffix.lower() == ".parquet":
            header = parquet.read_schema(file).names
        else:
            with file.open(encoding="utf-8-sig", newline="") as stream:
                header = next(text_reader(stream), [])
        names = [name.strip() for name in header]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise DataError(f"{file} has columns of the same name: {first_few(repeated)}")
        missing = [name for name in wanted or () if name not in names]
        if missing:
            raise DataError(
                f"{file} has no column {', '.join(missing)}; it has {first_few(names, 20)}"
            )
        read = [header[names.index(name)] for name in (names if wanted is None else wanted)]
        if file.suffix.lower() == ".parquet":
            table = parquet.read_table(file, columns=read)
        else:
            convert = csv.ConvertOptions(
                column_types=dict.fromkeys(header, arrow.string()), include_columns=read
            )
            table = csv.read_csv(file, convert_options=convert)
    except (OSError, UnicodeDecodeError, arrow.ArrowException) as error:
        raise DataError(f"cannot read {file}: {error}") from None
    return {name.strip(): table[name] for name in table.column_names}


def find(folder: Path, *candidates: str) -> Path | None:
    """The first of these names that lies in the folder, or in its only subfolder."""
    inside = [folder]
    if folder.is_dir():
        subfolders = [entry for entry in folder.iterdir() if entry.is_dir()]
        inside += subfolders if len(subfolders) == 1 else []
    for place in inside:
        for name in candidates:
            if (place / name).exists():
                return place / name
    return None


def locate(folder: Path, names: Texts) -> Texts:
    """The paths of images of a folder; of `folder.tar` where that is what there is.

    No image is opened, and none is looked for: what is missing is found before training.
    """
    tar = folder.with_name(folder.name + ".tar")
    if not folder.is_dir() and tar.is_file():
        return locate_in_tar(tar, names)
    return names.joined(str(folder) + os.sep)


def locate_in_tar(tar: Path, names: Texts) -> Texts:
    """The spans of these members, found by name or by the end of their name."""
    import pyarrow as arrow
    from pyarrow import compute

    members, starts, sizes = tars.index(tar)
    rows = _index_in(names, members)
    if (rows < 0).any():  # a folder within the tar may stand before each name
        short = Texts.of(compute.replace_substring_regex(members.arrow(), r"^.*/", ""))
        wanted = Texts.of(compute.replace_substring_regex(names.arrow(), r"^.*/", ""))
        rows = np.where(rows < 0, _index_in(wanted, short), rows)
    paths = tars.span_paths(tar, starts[rows], sizes[rows]).arrow()
    absent = names.joined(f"{tar}{os.sep}").arrow()
    return Texts.of(compute.if_else(arrow.array(rows >= 0), paths, absent))


def _index_in(names: Texts, among: Texts) -> np.ndarray:
    """The place of each name among others, -1 where it has none."""
    from pyarrow import compute

    places = compute.index_in(names.arrow(), value_set=among.arrow())
    return places.fill_null(-1).to_numpy().astype(np.int64)
