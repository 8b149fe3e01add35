"""What a model is asked about: images in whatever form -> a table without labels.

What enters: a path or `Source` (an image, a folder, a tar, a data set), a list of paths, PIL
pictures, rows of features, or a table. What leaves: a `LabelTable` of images in which every label
is unknown.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from partly import tars
from partly.errors import DataError
from partly.images import SUFFIXES, ImageProblem, find_problems, upright
from partly.labels import LabelTable
from partly.readers import FORMATS, arrays, manifest
from partly.source import Source


@contextmanager
def asked(
    images: Any, names: Sequence[str], left_out: dict[str, str] | None = None
) -> Iterator[LabelTable]:
    """The table of these images, which holds as long as the context: pictures lie on disk so long.

    names: of the labels that the model knows. left_out: takes in the ids of images that cannot be
    read, which are left out, and what is wrong with each; None: they are not looked for.
    """
    with _as_given(images, names, left_out) as table:
        if left_out is None or table.paths is None or not len(table):
            yield table
            return
        bad = find_problems(table.paths)
        left_out |= {table.ids[row]: what for row, what in bad.items()}
        yield table.take(np.delete(np.arange(len(table)), [*bad]))


@contextmanager
def _as_given(
    images: Any, names: Sequence[str], left_out: dict[str, str] | None
) -> Iterator[LabelTable]:
    if isinstance(images, str | Path | Source):
        yield of_source(Source.of(images), names)
    elif isinstance(images, LabelTable):
        ids, paths, features = images.ids, images.paths, images.features
        yield LabelTable.without_labels(names, ids=ids, paths=paths, features=features)
    elif _are(images, str | Path):
        files = [str(path) for path in images]
        yield LabelTable.without_labels(names, ids=files, paths=np.array(files))
    elif isinstance(images, Image.Image) or _are(images, Image.Image):
        pictures = [images] if isinstance(images, Image.Image) else images
        with tempfile.TemporaryDirectory(prefix="partly-") as folder:
            yield _of_pictures(pictures, Path(folder), names, left_out)
    else:
        yield _of_features(images, names)


def _are(images: Any, kind: Any) -> bool:
    return (
        isinstance(images, Sequence)
        and len(images) > 0
        and all(isinstance(image, kind) for image in images)
    )


def _of_pictures(
    pictures: Sequence[Image.Image],
    folder: Path,
    names: Sequence[str],
    left_out: dict[str, str] | None,
) -> LabelTable:
    """Written without loss, so that they take the way of all images. Their ids are their places."""
    files = {}
    for number, picture in enumerate(pictures):
        file = folder / f"{number}.png"
        try:
            upright(picture).save(file, compress_level=1)
        except ImageProblem as problem:
            if left_out is None:
                raise DataError(f"cannot read picture {number}: {problem}") from None
            left_out[str(number)] = str(problem)
        else:
            files[str(number)] = str(file)
    if not files:
        return _nothing(names)
    return LabelTable.without_labels(names, ids=[*files], paths=[*files.values()])


def _nothing(names: Sequence[str]) -> LabelTable:
    """No images: no table that is read may be empty, but a part of one may."""
    return LabelTable.without_labels(names, ids=["none"]).take(np.arange(0))


def _of_features(rows: Any, names: Sequence[str]) -> LabelTable:
    """Rows of numbers [N, F]: an array, a tensor or a DataFrame."""
    values = np.asarray(rows.detach().cpu() if hasattr(rows, "detach") else rows)
    if values.ndim and not len(values):
        return _nothing(names)
    if values.ndim != 2 or values.dtype.kind not in "biuf":
        raise DataError(
            "predict takes a path, a list of paths, PIL pictures or an array of features [N, F]; "
            f"this is {type(rows).__name__} of shape {values.shape} and type {values.dtype}"
        )
    return LabelTable.without_labels(names, ids=np.arange(len(values)), features=values)


def of_source(source: Source, names: Sequence[str]) -> LabelTable:
    """Every image of a data set, labelled or not, of a folder or tar, or one image."""
    path = Path(source.path)
    if not path.exists():
        raise DataError(f"no data at {path}")
    if path.suffix.lower() in SUFFIXES and path.is_file():
        return _of_files([path], path.parent, names)
    format = source.format or next((n for n, r in FORMATS.items() if r.recognises(path)), None)
    if format == "npz":
        ids, features = arrays.read_features(path)
        return LabelTable.without_labels(names, ids=ids, features=features)
    if format == "manifest":
        images, paths = manifest.read_paths(path)
        return LabelTable.without_labels(names, ids=images, paths=paths)
    if format is not None:
        table = source.read()
        return LabelTable.without_labels(names, ids=table.ids, paths=table.paths)
    if path.suffix.lower() == ".tar":
        members, starts, sizes = tars.index(path)
        chosen = [row for row, name in enumerate(members) if name.lower().endswith(SUFFIXES)]
        if chosen:
            spans = tars.span_paths(path, starts[chosen], sizes[chosen])
            return LabelTable.without_labels(names, ids=members[chosen], paths=spans)
    found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
    if not found:
        raise DataError(f"no images in {path} (looked for {', '.join(SUFFIXES)})")
    return _of_files(found, path, names)


def _of_files(files: list[Path], root: Path, names: Sequence[str]) -> LabelTable:
    return LabelTable.without_labels(
        names,
        ids=[file.relative_to(root).as_posix() for file in files],
        paths=np.array([str(file) for file in files]),
    )
