"""`.npz` with X_train, Y_train, X_test, Y_test: a data set of feature rows.

Labels are 1, 0, -1, two-dimensional. Optional: X_validation and Y_validation, names (or
label_names), ids_train and so on. A uint8 label matrix with fewer columns than names is read as
bit-packed (`np.packbits` along the labels).
"""

import zipfile
from pathlib import Path

import numpy as np

from partly.errors import DataError
from partly.labels import SPLITS, LabelTable, encode


def recognises(path: Path) -> bool:
    return path.suffix == ".npz" and path.is_file()


def read(path: Path) -> LabelTable:
    """Every part that is there, one below the other, with its split's name."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"cannot read {path} as .npz: {error}") from None
    parts = [split for split in SPLITS if f"X_{split}" in arrays and f"Y_{split}" in arrays]
    if "train" not in parts and "test" not in parts:
        raise DataError(
            f"{path} has no X_train and Y_train; it has {', '.join(arrays) or 'nothing'}"
        )
    names = next((arrays[key] for key in ("names", "label_names") if key in arrays), None)
    blocks = [_labels(path, split, arrays, names) for split in parts]
    widths = {split: block.shape[1] for split, block in zip(parts, blocks, strict=True)}
    if len(set(widths.values())) > 1:
        raise DataError(f"the parts of {path} have different numbers of labels: {widths}")
    features = [arrays[f"X_{split}"] for split in parts]
    sizes = {split: rows.shape for split, rows in zip(parts, features, strict=True)}
    if any(rows.ndim != 2 for rows in features) or len({rows.shape[1] for rows in features}) > 1:
        raise DataError(f"features must be two-dimensional and equally wide in {path}, got {sizes}")
    return LabelTable.from_dense(
        np.concatenate(blocks),
        ids=np.concatenate([_ids(split, arrays, sizes[split][0]) for split in parts]),
        names=None if names is None else [str(name) for name in names],
        features=np.concatenate(features),
        splits=np.concatenate([np.full(len(b), s) for s, b in zip(parts, blocks, strict=True)]),
    )


def _labels(
    path: Path, split: str, arrays: dict[str, np.ndarray], names: np.ndarray | None
) -> np.ndarray:
    labels = arrays[f"Y_{split}"]
    if names is not None and labels.ndim == 2 and labels.dtype == np.uint8:
        width = labels.shape[1]
        if width != len(names) and width == -(-len(names) // 8):
            labels = np.unpackbits(labels, axis=1)[:, : len(names)]
    count = len(arrays[f"X_{split}"])
    if labels.ndim != 2 or len(labels) != count:
        raise DataError(
            f"Y_{split} in {path} has shape {labels.shape} for {count} rows of X_{split}"
        )
    if names is not None and labels.shape[1] != len(names):
        raise DataError(f"Y_{split} in {path} has {labels.shape[1]} columns for {len(names)} names")
    # Checked here, part by part, so that an error names the row as the file counts it.
    ids = [f"{row} of Y_{split}" for row in range(count)] if labels.dtype.kind == "f" else None
    return encode(labels, ids=ids, names=None if names is None else [str(n) for n in names])


def _ids(split: str, arrays: dict[str, np.ndarray], count: int) -> np.ndarray:
    own = arrays.get(f"ids_{split}")
    if own is not None:
        return own.astype(str)
    return np.array([f"{split}-{row}" for row in range(count)])
