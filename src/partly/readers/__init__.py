"""Readers: one file a format. A path enters, a `LabelTable` leaves; no image is opened."""

from collections.abc import Callable
from pathlib import Path

from partly.errors import ConfigError, DataError, LabelError
from partly.labels import CONVENTIONS, LabelTable
from partly.readers import arrays, manifest

# format name -> (does this path look like it?, read it)
FORMATS: dict[str, tuple[Callable[[Path], bool], Callable[[Path, str], LabelTable]]] = {
    "npz": (arrays.recognises, arrays.read),
    "manifest": (manifest.recognises, manifest.read),
}


def read(path: str | Path, format: str | None = None, *, convention: str = "partly") -> LabelTable:
    """Any supported data set -> `LabelTable`.

    format: one of `FORMATS`, to force it. convention: what the file's numbers mean, one of
    `labels.CONVENTIONS`: "partly" (1, 0, -1 unknown), "nan" (NaN is unknown too), "signed"
    (1, -1 negative, 0 unknown).
    """
    if convention not in CONVENTIONS:
        raise ConfigError(
            f"unknown label convention '{convention}'; choose one of {', '.join(CONVENTIONS)}"
        )
    path = Path(path)
    if not path.exists():
        raise DataError(f"no data at {path}")
    if format is not None:
        if format not in FORMATS:
            raise ConfigError(f"unknown format '{format}'; choose one of {', '.join(FORMATS)}")
        return _read(path, FORMATS[format][1], convention)
    for recognises, reader in FORMATS.values():
        if recognises(path):
            return _read(path, reader, convention)
    raise DataError(
        f"{path} is in no known format: expected a .csv or .parquet manifest, "
        "a folder with manifest.csv, or an .npz with X_train and Y_train"
    )


def _read(path: Path, reader: Callable[[Path, str], LabelTable], convention: str) -> LabelTable:
    """What the reader makes of it; every problem names the file."""
    try:
        return reader(path, convention)
    except (DataError, LabelError) as error:
        problems = [p if str(path) in p else f"{path}: {p}" for p in error.problems]
        raise type(error)(problems) from None
