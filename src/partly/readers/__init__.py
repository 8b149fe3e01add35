"""Readers: one file a format. A path enters, a `LabelTable` leaves; no image is opened."""

from collections.abc import Callable
from pathlib import Path

from partly.errors import ConfigError, DataError, LabelError
from partly.labels import LabelTable
from partly.readers import arrays, manifest

# format name -> (does this path look like it?, read it)
FORMATS: dict[str, tuple[Callable[[Path], bool], Callable[[Path], LabelTable]]] = {
    "npz": (arrays.recognises, arrays.read),
    "manifest": (manifest.recognises, manifest.read),
}


def read(path: str | Path, format: str | None = None) -> LabelTable:
    """Any supported data set -> `LabelTable`. `format` forces one of `FORMATS`."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"no data at {path}")
    if format is not None:
        if format not in FORMATS:
            raise ConfigError(f"unknown format '{format}'; choose one of {', '.join(FORMATS)}")
        return _read(path, FORMATS[format][1])
    for recognises, reader in FORMATS.values():
        if recognises(path):
            return _read(path, reader)
    raise DataError(
        f"{path} is in no known format: expected a .csv or .parquet manifest, "
        "a folder with manifest.csv, or an .npz with X_train and Y_train"
    )


def _read(path: Path, reader: Callable[[Path], LabelTable]) -> LabelTable:
    """What the reader makes of it; every problem names the file."""
    try:
        return reader(path)
    except (DataError, LabelError) as error:
        problems = [p if str(path) in p else f"{path}: {p}" for p in error.problems]
        raise type(error)(problems) from None
