"""A file of predictions, written piece by piece.

What enters: a `Predictor`, a table of images, the name of a file. What leaves: that file, as CSV,
JSON Lines or Parquet by its ending, whole or not there. Until it is whole its pieces lie in a
folder beside it, NAME.parts, from which a prediction that was stopped goes on: each piece is a file
that is written once, and which images are in it follows from its number alone. So it makes no
difference to the end when, or how often, it was stopped; and memory holds one piece at a time.
"""

import csv
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from partly import checkpoint, runs, tars
from partly.errors import ConfigError, RunError, raise_if
from partly.labels import LabelTable
from partly.progress import Progress
from partly.runs import Predictor
from partly.texts import Texts

PLAN = "plan.json"
BETWEEN = ";"  # decided labels of an image in a CSV
IMAGES, ENTRIES = 512, 2**20  # of a piece, at most: what is lost when it is stopped
FEWEST = 256  # images of a piece, however many labels there are


@dataclass(frozen=True)
class Form:
    """What is written of each image: all scores, or those of the `top` likeliest labels, a line
    each; and, in a CSV only where `labels` asks for them, which labels are decided."""

    suffix: str
    names: tuple[str, ...]
    thresholds: np.ndarray
    top: int | None = None
    labels: bool = False


@dataclass(frozen=True)
class Piece:
    """Some images: the columns of the labels that are told [n, k], their probabilities, and which
    of them are decided [n, k]."""

    ids: list[str]
    columns: np.ndarray
    probabilities: np.ndarray
    decided: np.ndarray


def form_of(predictor: Predictor, out: Path, top: int | None = None, labels: bool = False) -> Form:
    """The form that a file's ending asks for, or an error with all that is wrong with it."""
    suffix, names = out.suffix.lower(), predictor.names
    problems = []
    if suffix not in WRITERS:
        problems.append(f"cannot write {out.name}: its ending is one of {', '.join(WRITERS)}")
    taken = [name for name in ("id", "labels") if name in names]
    wide_columns = top is None and (suffix == ".parquet" or (suffix == ".csv" and labels))
    if wide_columns and taken:
        problems.append(f"a label is called '{taken[0]}', as a column of {out.name}: write .jsonl")
    joined = [name for name in names if BETWEEN in name]
    if suffix == ".csv" and labels and top is None and joined:
        problems.append(
            f"label '{joined[0]}' has a {BETWEEN} in it, which stands between labels in a CSV: "
            "write .jsonl or .parquet"
        )
    raise_if(problems, ConfigError)
    return Form(suffix, names, predictor.limits, top, labels)


# --- one piece -----------------------------------------------------------------------------------


def _write_csv(place: Path, piece: Piece, form: Form, first: bool) -> None:
    with place.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(_lines(piece, form, first))


def _lines(piece: Piece, form: Form, first: bool) -> Iterator[list[Any]]:
    """A line an image, or a line for each of its likeliest labels."""
    if first and form.top is None:
        yield ["id", *form.names, *(["labels"] * form.labels)]
    elif first:
        yield ["id", "label", "probability", *(["decided"] * form.labels)]
    for name, columns, scores, decided in _rows(piece):
        if form.top is None:
            found = BETWEEN.join(_decided_names(form, columns, scores, decided))
            yield [name, *(f"{score:.6g}" for score in scores), *([found] * form.labels)]
            continue
        for column, score, yes in zip(columns, scores, decided, strict=True):
            told = [name, form.names[column], f"{score:.6g}"]
            yield [*told, int(yes)] if form.labels else told


def _write_jsonl(place: Path, piece: Piece, form: Form, first: bool) -> None:
    with place.open("w", encoding="utf-8") as file:
        for name, columns, scores, decided in _rows(piece):
            pairs = zip(columns, scores, strict=True)
            record = {
                "id": name,
                "labels": _decided_names(form, columns, scores, decided),
                "scores": {form.names[column]: float(f"{score:.6g}") for column, score in pairs},
            }
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _write_parquet(place: Path, piece: Piece, form: Form, first: bool) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    if form.top is None:
        found = [_decided_names(form, *row[1:]) for row in _rows(piece)]
        content = {"id": arrow.array(piece.ids, arrow.string())}
        content["labels"] = arrow.array(found, arrow.list_(arrow.string()))
        scores = piece.probabilities.T.astype(np.float32)
        content |= {name: arrow.array(s) for name, s in zip(form.names, scores, strict=True)}
    else:
        labels = [form.names[column] for column in piece.columns.ravel()]
        each = piece.columns.shape[1]  # fewer than asked for, where there are fewer labels
        content = {
            "id": arrow.array(np.repeat(np.array(piece.ids, object), each), arrow.string()),
            "label": arrow.array(labels, arrow.string()),
            "probability": arrow.array(piece.probabilities.ravel().astype(np.float32)),
            "decided": arrow.array(piece.decided.ravel()),
        }
    parquet.write_table(arrow.table(content), place)


def _rows(piece: Piece) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    return zip(piece.ids, piece.columns, piece.probabilities, piece.decided, strict=True)


def _decided_names(
    form: Form, columns: np.ndarray, scores: np.ndarray, decided: np.ndarray
) -> list[str]:
    """The decided labels of one image, the likeliest first."""
    places = np.flatnonzero(decided)
    order = places[np.argsort(-scores[places], kind="stable")]
    return [form.names[column] for column in columns[order]]


def _join_texts(parts: Sequence[Path], place: Path) -> None:
    with place.open("wb") as file:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, file)


def _join_parquet(parts: Sequence[Path], place: Path) -> None:
    from pyarrow import parquet

    with parquet.ParquetWriter(place, parquet.read_schema(parts[0])) as writer:
        for part in parts:
            writer.write_table(parquet.read_table(part))


WRITERS: Mapping[str, Callable[..., None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}


# --- all of them ---------------------------------------------------------------------------------


def size_of_piece(table: LabelTable, form: Form) -> int:
    """How many images are written together."""
    width = len(form.names) if form.top is None else form.top
    most = IMAGES if table.features is None else ENTRIES
    return max(FEWEST, min(most, ENTRIES // max(1, width)))


def describe(run: Path, table: LabelTable, form: Form) -> dict[str, Any]:
    """All that a piece depends on: one that was written with anything else is of no use."""
    images, model = hashlib.sha256(), hashlib.sha256()
    for texts in (table.ids, table.paths):
        if texts is not None:
            images.update(texts.offsets.tobytes() + texts.data.tobytes())
    if table.paths is not None:
        images.update(_states(table.paths).tobytes())
    for name in (runs.CONFIG, runs.WEIGHTS, runs.EYE, runs.DECISIONS, runs.THRESHOLDS):
        if (run / name).is_file():
            model.update(name.encode() + (run / name).read_bytes())
    return {
        "images": len(table),
        "inputs": table.inputs_hash if table.paths is None else images.hexdigest(),
        "model": model.hexdigest(),
        "top": form.top,
        "labels": form.labels,
        "rows": size_of_piece(table, form),
    }


def _states(paths: Texts) -> np.ndarray:
    """Size and time of the last change of each image's file [N, 2], or of the one it lies in: what
    is replaced under the same name shows in them. -1 where there is no file."""

    @lru_cache  # many images lie in one tar
    def state(file: str) -> tuple[int, int]:
        try:
            found = os.stat(file)
        except OSError:
            return -1, -1
        return found.st_size, found.st_mtime_ns

    return np.array([state(tars.file_of(path)) for path in paths], np.int64).reshape(-1, 2)


WHAT_CHANGED = {
    "images": "the images",
    "inputs": "the images",
    "model": "the run",
    "top": "--top",
    "labels": "--labels",
    "rows": "the size of its pieces",
}


def parts_of(out: Path) -> Path:
    """The folder of the pieces of a file that is not whole yet."""
    return out.with_name(f"{out.name}.parts")


def begun(out: Path) -> dict[str, Any] | None:
    """The plan of a prediction that was stopped; None where there is none."""
    path = parts_of(out) / PLAN
    return checkpoint.read_json(path) if path.is_file() else None


def begin(out: Path, plan: Mapping[str, Any], *, resume: bool) -> None:
    """A folder for the pieces: a new one, or that of a prediction with the same plan."""
    stored, folder = begun(out) if resume else None, parts_of(out)
    if stored is None:
        shutil.rmtree(folder, ignore_errors=True)
        checkpoint.make_folder(folder)
        checkpoint.write_json(folder / PLAN, plan)
        return
    changed = {WHAT_CHANGED[name] for name in WHAT_CHANGED if stored.get(name) != plan[name]}
    raise_if(
        (
            f"cannot go on with {out}: {what} changed since it was begun; without --resume it "
            "begins anew"
            for what in sorted(changed)
        ),
        RunError,
    )


def write(predictor: Predictor, table: LabelTable, out: Path, form: Form, quiet: bool) -> None:
    """Write the pieces that are not there yet, then the file, and remove the pieces."""
    folder, rows = parts_of(out), size_of_piece(table, form)
    starts = range(0, len(table), rows)
    parts = [folder / f"{number:08d}{form.suffix}" for number in range(len(starts))]
    missing = [number for number, part in enumerate(parts) if not part.exists()]
    done = len(parts) - len(missing)
    with Progress(len(parts), done, quiet=quiet) as progress:
        if done:
            progress.say(f"{done * rows:,} of {len(table):,} images are there already")
        chunks = [np.arange(starts[n], min(starts[n] + rows, len(table))) for n in missing]
        for number, piece in zip(missing, _pieces(predictor, table, chunks, form), strict=True):
            fill = partial(WRITERS[form.suffix], piece=piece, form=form, first=number == 0)
            checkpoint.write_atomically(parts[number], fill)
            progress.step()
    join = _join_parquet if form.suffix == ".parquet" else _join_texts
    checkpoint.write_atomically(out, lambda place: join(parts, place))
    shutil.rmtree(folder, ignore_errors=True)


def _pieces(
    predictor: Predictor, table: LabelTable, chunks: list[np.ndarray], form: Form
) -> Iterator[Piece]:
    """What is predicted of each chunk of images."""
    for chunk, seen in zip(chunks, predictor.see_each(table, chunks), strict=True):
        if form.top is None:
            probabilities = predictor.probabilities_of(seen)
            columns = np.broadcast_to(np.arange(len(form.names)), probabilities.shape)
        else:
            columns, probabilities = predictor.top_of(seen, form.top)
        decided = probabilities >= form.thresholds[columns]
        yield Piece(table.ids[chunk].tolist(), columns, probabilities, decided)
