"""A folder with formatted_{train,val}_{images,labels,labels_obs}.npy.

images: names [N]; labels: the full labels [N, L], 1 or 0; labels_obs: the observed ones, 1
positive, -1 negative, 0 unknown. The part that is called val is what results are reported on: it is
read as test, with its full labels.

Options: which=observed or full, the labels of the training images (full where none are observed);
names=FILE, one label name a line; images=FOLDER, where the images lie, else beside the arrays.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from partly.errors import DataError, LabelError, raise_if
from partly.labels import UNKNOWN, LabelTable, encode
from partly.readers.common import choose, chosen_folder, find, label_names, locate
from partly.texts import Texts, concatenated

PARTS = {"train": "train", "test": "val"}


def recognises(path: Path) -> bool:
    return path.is_dir() and find(path, "formatted_train_images.npy") is not None


def read(
    path: Path, *, which: str = "observed", names: str | None = None, images: str | None = None
) -> LabelTable:
    """The training part, and the test part if it is there."""
    choose(which, "which", ("observed", "full"))
    first = find(path, "formatted_train_images.npy")
    if first is None:
        raise DataError(f"{path} has no formatted_train_images.npy")
    folder = first.parent
    notes, blocks, listed, problems = [], {}, [], []
    for split, word in PARTS.items():
        file = folder / f"formatted_{word}_images.npy"
        if not file.is_file():
            continue
        observed = folder / f"formatted_{word}_labels_obs.npy"
        full = folder / f"formatted_{word}_labels.npy"
        use_observed = split == "train" and which == "observed" and observed.is_file()
        if split == "train" and which == "observed" and not use_observed:
            notes.append(f"no {observed.name}: the training images have their full labels")
        try:
            part = _images(file)
            labels = _labels(observed if use_observed else full, part, use_observed)
            listed.append(part)
            blocks[split] = labels
        except (DataError, LabelError) as error:
            problems += error.problems
    raise_if(problems, DataError)
    raise_if(_width_problems(blocks), DataError)
    if "test" in blocks:
        notes.append("the part called val is read as test, with its full labels")
    ids = concatenated(listed)
    called, more = label_names(names, blocks["train"].shape[1])
    return LabelTable.from_dense(
        np.concatenate(list(blocks.values())),
        ids=ids,
        names=called,
        paths=locate(folder if images is None else chosen_folder(images), ids),
        splits=np.repeat(list(blocks), [len(block) for block in blocks.values()]),
        notes=[*notes, *more],
    )


def _load(file: Path) -> np.ndarray:
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged file fails in many ways, all of them the file's
        hint = ""
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            hint = (
                ". It holds Python objects, which could do anything when they are read; if you "
                "trust it, save it again as an array of texts or numbers (`array.astype(str)`)"
            )
        raise DataError(f"cannot read {file}: {error}{hint}") from None


def _images(file: Path) -> Texts:
    array = _load(file)
    if array.ndim != 1 or array.dtype.kind not in "US":
        raise DataError(f"{file} is {array.dtype} of shape {array.shape}, not a list of names")
    texts = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
    return Texts.of(texts)


def _labels(file: Path, images: Texts, observed: bool) -> np.ndarray:
    """int8 [N, L] in the table's own convention."""
    array = _load(file)
    if array.ndim != 2 or len(array) != len(images):
        raise DataError(
            f"{file} has shape {array.shape}, not one row of labels for each of {len(images):,} "
            "images"
        )
    try:
        labels = encode(array, convention="signed" if observed else "partly", ids=cast(Any, images))
    except LabelError as error:
        raise LabelError([f"{file}: {problem}" for problem in error.problems]) from None
    unknown = np.argwhere(labels == UNKNOWN) if not observed else np.zeros((0, 2), dtype=int)
    if len(unknown):
        row, column = unknown[0]
        raise LabelError(
            f"{file}: full labels are 1 or 0, but {images[int(row)]}, column {column} is -1 "
            f"({len(unknown):,} are)"
        )
    return labels


def _width_problems(blocks: dict[str, np.ndarray]) -> Iterator[str]:
    widths = {split: block.shape[1] for split, block in blocks.items()}
    if len(set(widths.values())) > 1:
        yield f"train has {widths['train']} labels, val has {widths['test']}"
