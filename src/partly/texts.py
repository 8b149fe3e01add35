"""Millions of short texts in two flat arrays.

What enters: image ids or paths, as a list, a NumPy array or a pyarrow column. What leaves: `Texts`,
which looks like a list of `str` and like a NumPy array of them, but holds only UTF-8 bytes and
offsets. Two flat arrays can be memory-mapped, and processes that share them copy nothing: a Python
list of strings is copied page by page as soon as somebody counts a reference to it.
"""

import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, overload

import numpy as np

from partly.errors import DataError

TextsLike = Any  # a sequence of texts: list, NumPy array, pyarrow column or `Texts`


class Texts:
    """N texts: `data`, their UTF-8 bytes one after another, and `offsets` [N+1] into them.

    >>> names = Texts.of(["cat.jpg", "dog.jpg"])
    >>> names[1], len(names), (names == "cat.jpg").tolist(), names[[1, 0]].tolist()
    ('dog.jpg', 2, [True, False], ['dog.jpg', 'cat.jpg'])
    """

    __slots__ = ("data", "offsets")
    __hash__ = None  # type: ignore[assignment]  # compared element by element, as an array is

    def __init__(self, data: np.ndarray, offsets: np.ndarray) -> None:
        self.data, self.offsets = data, offsets

    @classmethod
    def of(cls, texts: TextsLike) -> "Texts":
        """From any sequence of texts, or a pyarrow column of them; numbers become their text."""
        import pyarrow as arrow

        if isinstance(texts, Texts):
            return texts
        try:
            if isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts):
                texts = arrow.array(texts, arrow.large_string())
            if not isinstance(texts, arrow.Array | arrow.ChunkedArray):
                array = np.asarray(texts)
                texts = arrow.array(
                    array.astype(str).tolist() if array.size else [], arrow.string()
                )
        except UnicodeEncodeError as error:
            raise DataError(f"the name {error.object!r} is not UTF-8: rename the file") from None
        column = texts.cast(arrow.large_string())
        if isinstance(column, arrow.ChunkedArray):
            column = column.combine_chunks()
        if column.null_count:
            column = column.fill_null("")
        if not len(column):
            return cls(np.zeros(0, np.uint8), np.zeros(1, np.int64))
        _, offsets, data = column.buffers()
        first = column.offset
        starts = np.frombuffer(offsets, np.int64)[first : first + len(column) + 1]
        raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        return cls(raw[starts[0] : starts[-1]], starts - starts[0])

    def arrow(self) -> Any:
        """The same memory as a pyarrow array, for its joins and counts."""
        import pyarrow as arrow

        buffers = [
            arrow.py_buffer(np.ascontiguousarray(part)) for part in (self.offsets, self.data)
        ]
        return arrow.LargeStringArray.from_buffers(len(self), *buffers)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: Any) -> "Texts": ...

    def __getitem__(self, row: Any) -> "str | Texts":
        if isinstance(row, int | np.integer):
            place = range(len(self))[row]
            return self.data[self.offsets[place] : self.offsets[place + 1]].tobytes().decode()
        if isinstance(row, slice) and row.indices(len(self))[2] == 1:
            first, end, _ = row.indices(len(self))
            starts = self.offsets[first : max(first, end) + 1]
            return Texts(self.data[starts[0] : starts[-1]], starts - starts[0])
        return Texts.of(self.arrow().take(np.arange(len(self))[row]))

    def __iter__(self) -> Iterator[str]:
        for block in self.blocks():  # few objects at once
            yield from block.tolist()

    def blocks(self, size: int = 65536) -> Iterator["Texts"]:
        """The same texts, at most `size` at a time."""
        for first in range(0, len(self), size):
            yield self[first : first + size]

    def __eq__(self, other: Any) -> Any:
        return np.asarray(self) == np.asarray(other)

    def __ne__(self, other: Any) -> Any:
        return np.asarray(self) != np.asarray(other)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.tolist(), dtype=str if dtype is None else dtype)

    def __repr__(self) -> str:
        shown = [repr(self[row]) for row in range(min(3, len(self)))]
        return f"Texts({', '.join(shown)}{', …' if len(self) > 3 else ''}: {len(self):,})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Texts, (np.array(self.data), np.array(self.offsets))

    def tolist(self) -> list[str]:
        return self.arrow().to_pylist()

    def keys(self) -> np.ndarray:
        """int64 [N]: a number that depends on the text alone, for draws that follow an image."""
        if not len(self):
            return np.zeros(0, dtype=np.int64)
        return np.concatenate([block._keys() for block in self.blocks()])

    def _keys(self) -> np.ndarray:
        """`keys` of a block: a weighted sum of the bytes of each text."""
        lengths = np.diff(self.offsets)
        data = self.data.astype(np.int64) + 1
        places = np.arange(lengths.max())
        weights = _POWERS[places % len(_POWERS)] * (places + 1)
        if lengths.min() == lengths.max():  # ids often are: no need to look up each byte's place
            return data.reshape(len(self), -1) @ weights
        parts = data * weights[np.arange(len(data)) - np.repeat(self.offsets[:-1], lengths)]
        keys, filled = np.zeros(len(self), dtype=np.int64), lengths > 0
        keys[filled] = np.add.reduceat(parts, self.offsets[:-1][filled])
        return keys

    def repeated(self) -> "Texts":
        """The texts that occur more than once, each of them once."""
        from pyarrow import compute

        keys = self.keys()
        in_order = np.sort(keys)  # equal texts have equal keys, and numbers take little memory
        again = in_order[1:][in_order[1:] == in_order[:-1]]
        if not len(again):
            return self[:0]
        counts = self[np.isin(keys, again)].arrow().value_counts()
        return Texts.of(counts.field(0).filter(compute.greater(counts.field(1), 1)))

    def joined(self, before: str, after: str = "") -> "Texts":
        """Each text between two others, such as a folder and a suffix."""
        import pyarrow as arrow
        from pyarrow import compute

        texts = [arrow.scalar(text, arrow.large_string()) for text in (before, after, "")]
        return Texts.of(compute.binary_join_element_wise(texts[0], self.arrow(), *texts[1:]))

    def mapped(self) -> "Texts":
        """The same texts in a memory-mapped file."""
        return Texts(mapped(self.data), mapped(self.offsets))


_POWERS = np.cumprod(np.full(64, 0x9E3779B97F4A7C15 - 2**64, dtype=np.int64))


def concatenated(parts: Iterable[Texts]) -> Texts:
    """Several `Texts`, one below the other."""
    import pyarrow as arrow

    return Texts.of(arrow.chunked_array([part.arrow() for part in parts], arrow.large_string()))


def mapped(array: np.ndarray) -> np.ndarray:
    """The array in a temporary file that has no name any more: gone with its last reader.

    The pages belong to the file, so that they can leave the memory and come back, and all processes
    forked from this one read the same.
    """
    if not array.size:
        return array
    with tempfile.TemporaryFile() as file:
        np.ascontiguousarray(array).tofile(file)
        file.flush()
        return np.asarray(np.memmap(file, array.dtype, "r", shape=array.shape))
