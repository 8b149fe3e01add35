"""Columns of millions of cells: each a number into the few texts that differ.

What enters: a CSV or Parquet file. What leaves: pyarrow columns in which equal texts are stored
once and, column by column, `Coded` arrays. A label file repeats every image and every label many
times, so that this is a fraction of its size.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from csv import reader as text_reader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from partly.errors import DataError, first_few
from partly.labels import NEGATIVE, POSITIVE, sorted_cells
from partly.readers.common import counted, filled, read_header
from partly.texts import Texts

FEW = 5  # of each kind of problem are named


class Coded(NamedTuple):
    """A column of cells: codes [R] into texts, which are distinct and in order of appearance.

    firsts: the row in which each text appears first. No text has spaces around it.
    """

    codes: np.ndarray
    texts: Texts
    firsts: np.ndarray


def read_repetitive(file: Path, wanted: Sequence[str] | None = None) -> dict[str, Any]:
    """The columns of a CSV or Parquet file, as pyarrow columns for `code`, by name.

    The cells of a CSV stay text, so that nothing is guessed. wanted: only these; one that is not
    there is an error.
    """
    import pyarrow as arrow
    from pyarrow import csv, parquet

    is_parquet = file.suffix.lower() == ".parquet"
    odd_rows: list[Any] = []
    try:
        header = parquet.read_schema(file).names if is_parquet else read_header(file)
        read = _chosen(file, header, wanted)
        if is_parquet:
            schema = parquet.read_schema(file)
            texts = [name for name in read if _is_text(schema.field(name).type)]
            table = parquet.read_table(file, columns=read, read_dictionary=texts)
        else:
            text = arrow.dictionary(arrow.int32(), arrow.string())
            options = csv.ConvertOptions(
                column_types=dict.fromkeys(header, text), include_columns=read
            )
            table = _read_csv(file, options, odd_rows)
    except (OSError, UnicodeDecodeError, arrow.ArrowException) as error:
        raise DataError(f"cannot read {file}: {error}{_in_utf8(error)}") from None
    if odd_rows:
        raise DataError(_odd_row_sentence(file, odd_rows, len(header)))
    return {name.strip(): table[name] for name in table.column_names}


def _in_utf8(error: Exception) -> str:
    """What to do about a CSV of another encoding, such as Latin-1."""
    return "; save it as CSV in UTF-8" if "UTF8" in str(error) else ""


def _chosen(file: Path, header: list[str], wanted: Sequence[str] | None) -> list[str]:
    """The wanted columns as the file spells them."""
    names = [name.strip() for name in header]
    spelled = dict(zip(names, header, strict=True))
    if len(spelled) < len(names):
        repeated = sorted(name for name, count in Counter(names).items() if count > 1)
        raise DataError(f"{file} has columns of the same name: {first_few(repeated)}")
    missing = [name for name in wanted or () if name not in spelled]
    if missing:
        raise DataError(f"{file} has no column {', '.join(missing)}; it has {first_few(names, 20)}")
    return header if wanted is None else [spelled[name] for name in wanted]


def _is_text(kind: Any) -> bool:
    import pyarrow as arrow

    return arrow.types.is_string(kind) or arrow.types.is_large_string(kind)


def _read_csv(file: Path, options: Any, odd_rows: list[Any]) -> Any:
    """The table of a CSV; only if pyarrow refuses it, row by row, to notice which are odd.

    A function of ours is never given to pyarrow's threads: one of them can still hold it when the
    interpreter ends, and then the process is aborted instead of ending with our exit code.
    """
    import pyarrow as arrow
    from pyarrow import csv

    try:
        return csv.read_csv(file, convert_options=options)
    except arrow.ArrowInvalid:
        return csv.read_csv(
            file,
            csv.ReadOptions(use_threads=False),
            csv.ParseOptions(invalid_row_handler=_notice_in(odd_rows)),
            options,
        )


def _notice_in(odd_rows: list[Any]) -> Any:
    """A handler that passes over lines of spaces and remembers those that are too short or long."""

    def notice(row: Any) -> str:
        if row.text.strip():
            odd_rows.append(row)
        return "skip"

    return notice


def _odd_row_sentence(file: Path, rows: list[Any], width: int) -> str:
    cells_of = {row.text.strip(): row.actual_columns for row in rows}
    places: list[str] = []
    with file.open(encoding="utf-8-sig", errors="replace") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip() in cells_of and len(places) < len(rows):
                cells = counted(cells_of[line.strip()], "cell")
                places.append(f"line {number} has {cells} ({line.strip()[:60]})")
    return f"{file} has {counted(width, 'column')}, but {first_few(places)}"


def code(column: Any) -> Coded:
    """A column of `read_repetitive` as numbers; an empty cell is an empty text."""
    import pyarrow as arrow
    from pyarrow import compute

    if not arrow.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    chunks = column.unify_dictionaries().chunks
    if not len(column):
        return Coded(np.zeros(0, np.int32), Texts.of([]), np.zeros(0, np.int64))
    texts = chunks[0].dictionary.cast(arrow.large_string())
    codes = np.concatenate([_numbers(chunk.indices, len(texts)) for chunk in chunks])
    if column.null_count or texts.null_count:
        texts = arrow.concat_arrays([texts.fill_null(""), arrow.array([""], texts.type)])
    del chunks, column
    trimmed = compute.utf8_trim_whitespace(texts)
    if len(Texts.of(trimmed).data) < len(Texts.of(texts).data) or texts[-1].as_py() == "":
        again = trimmed.dictionary_encode()  # what differed only in spaces is now the same
        codes, trimmed = again.indices.to_numpy()[codes], again.dictionary
    return _by_appearance(codes, Texts.of(trimmed))


def _numbers(indices: Any, missing: int) -> np.ndarray:
    import pyarrow as arrow

    return indices.cast(arrow.int32()).fill_null(missing).to_numpy(zero_copy_only=False)


def _by_appearance(codes: np.ndarray, texts: Texts) -> Coded:
    """The texts that occur, numbered as they come: Parquet may hold others, in another order."""
    firsts = np.full(len(texts), -1, dtype=np.int32)
    firsts[codes[::-1]] = np.arange(len(codes) - 1, -1, -1, dtype=np.int32)
    if len(firsts) and (firsts[0] < 0 or (firsts[1:] < firsts[:-1]).any()):
        order = np.argsort(firsts, kind="stable")[(firsts < 0).sum() :]
        new_codes = np.zeros(len(texts), dtype=np.int32)
        new_codes[order] = np.arange(len(order), dtype=np.int32)
        return Coded(new_codes[codes], texts[order], firsts[order])
    return Coded(codes, texts, firsts)


def contradicted_entries(
    rows: np.ndarray, columns: np.ndarray, values: np.ndarray, labels: int
) -> np.ndarray:
    """The places of all entries whose cell is given as positive and as negative."""
    in_order = sorted_cells(rows, columns, values, labels)
    both = in_order[1:][(in_order[1:] ^ in_order[:-1]) == 1] >> 1
    if not len(both):
        return np.zeros(0, dtype=np.int64)
    del in_order
    cells = rows.astype(np.int64) * labels + columns
    places = np.searchsorted(both, cells)
    np.minimum(places, len(both) - 1, out=places)
    return np.flatnonzero(both[places] == cells)


def opposed(
    places: np.ndarray, rows: np.ndarray, columns: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of `contradicted_entries`: the first positive and the first negative one of each cell."""
    firsts = []
    for value in (POSITIVE, NEGATIVE):
        own = places[values[places] == value]
        cells = np.stack([rows[own], columns[own]])
        firsts.append(own[np.unique(cells, axis=1, return_index=True)[1]])
    return firsts[0], firsts[1]


def contradictions(
    file: Path, pairs: Sequence[tuple[str, str, int, int]], count: int, advice: str
) -> Iterator[str]:
    """A sentence that lists (image, label, a row that says yes, a row that says no)."""
    if not pairs:
        return
    places = places_of(file, [row for *_, yes, no in pairs for row in (yes, no)])
    shown = [
        f"image {image}, label {label}: positive in {places[yes]}, negative in {places[no]}"
        for image, label, yes, no in pairs
    ]
    are = "is" if count == 1 else "are"
    yield (
        f"{file}: {counted(count, 'label')} {are} given as positive and as negative: "
        f"{'; '.join(shown)}{more(count)}; {advice}"
    )


def empty_cells(file: Path, cells: Coded, what: str) -> Iterator[str]:
    """A sentence if a column that must not be has an empty cell."""
    empty = np.flatnonzero(np.diff(cells.texts.offsets) == 0)
    if len(empty):
        rows = np.flatnonzero(cells.codes == empty[0])
        places = ", ".join(places_of(file, rows[:FEW].tolist()).values())
        yield f"no {what} in {file}, {places}{more(len(rows))}"


def more(count: int) -> str:
    """What follows after the first `FEW`."""
    return f" and {count - FEW:,} more" if count > FEW else ""


def places_of(file: Path, rows: Iterable[int]) -> dict[int, str]:
    """Where each row stands: the line of a CSV (blank lines counted), the row of a Parquet file."""
    wanted = sorted(set(map(int, rows)))
    if file.suffix.lower() == ".parquet":
        return {row: f"row {row}" for row in wanted}
    lines = _lines_of_rows(file, wanted)
    return {row: f"line {line}" for row, line in zip(wanted, lines, strict=False)}


def _lines_of_rows(file: Path, wanted: list[int]) -> Iterator[int]:
    """The numbers of the lines on which these rows begin; the header is on a line before row 0."""
    remaining = iter(wanted)
    next_row = next(remaining, None)
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        reader, row, end = text_reader(stream), -2, 0
        for cells in reader:
            begin, end = end + 1, reader.line_num
            row += filled(cells)
            if row == next_row and filled(cells):
                yield begin
                next_row = next(remaining, None)
                if next_row is None:
                    return
