"""Where pseudo-labels are kept from one visit of an image to the next.

What enters: numbers in [0, 1] for the entries of a batch. What leaves: the same numbers when its
images come again. All stores are asked in the same way, `get` and `update`; each rank keeps those
of its own images. `Config.pseudo_labels` names one of:

    memory      N×L numbers on the device of the training
    disk        N×L numbers in a file of the run's folder, and a journal to go back by
    sparse:k    the k entries of each image that say most; the others are as they started

Letters: N images, L labels, B images of a batch, C columns of it, k slots an image.
"""

import errno
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from partly import distributed
from partly.checkpoint import reason
from partly.distributed import Shard
from partly.errors import ConfigError, RunError, raise_if

SLOTS = 64  # entries of an image that a sparse store keeps
THRESHOLD = 0.02  # an entry that is no farther from what is assumed of it anyway is not kept
BLOCK = 2**22  # bytes that are written at once where a file begins


class PseudoLabels:
    """N×L pseudo-labels in memory, one or two bytes each.

    start: one number (the paper: 0.5) or one a label (class priors).
    dtype: "float16", or "uint8": steps of 1/255.
    """

    def __init__(
        self,
        images: int,
        labels: int,
        *,
        start: float | np.ndarray = 0.5,
        dtype: str = "float16",
        device: torch.device | str = "cpu",
    ) -> None:
        if dtype not in ("float16", "uint8"):
            raise ConfigError(f"pseudo-labels are stored as float16 or uint8, not '{dtype}'")
        first = torch.as_tensor(start, dtype=torch.float32).expand(labels)
        if not ((first >= 0) & (first <= 1)).all():
            raise ConfigError(f"pseudo-labels start in [0, 1], not at {start}")
        self.images, self.labels, self.dtype = images, labels, dtype
        self.scale = 255 if dtype == "uint8" else 1
        self.shard = Shard.of(images)
        self.device = torch.device(device)
        self.start = first.to(self.device)
        self._open()

    def _open(self) -> None:
        kept = len(self.shard) + self.shard.spare
        self.values = self._pack(self.start).expand(kept, self.labels).clone()

    def get(self, rows: Tensor, columns: Tensor | None = None) -> Tensor:
        """ỹ of these images, whichever rank keeps them: float32 [B, L], or [B, C] of the label
        columns [C], which are sorted and unique."""
        found = self.values[self._index(rows, columns)]
        return self.shard.complete(found, rows).float() / self.scale

    def update(
        self,
        rows: Tensor,
        values: Tensor,
        which: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> None:
        """ỹ ← values, where `which` is true (everywhere if None); both are [B, L], or [B, C] of
        the label columns [C].

        A value that is not finite is left out: a diverged step must not spoil the store. One beyond
        0 or 1 is kept as this.
        """
        index, (new, fresh) = self._index(rows, columns), self._checked(values, which)
        self.values[index] = torch.where(fresh, new, self.values[index])

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the rows of this rank."""
        return {"values": self.values[: len(self.shard)]}

    def _index(self, rows: Tensor, columns: Tensor | None) -> Any:
        places = self.shard.places(rows)
        return places if columns is None else (places[:, None], columns)

    def _checked(self, values: Tensor, which: Tensor | None) -> tuple[Tensor, Tensor]:
        """Values as they are stored, and which of them are to be."""
        new = values.detach().float()
        # On a CPU torch takes twenty times as long as NumPy, longer than all else here.
        on_cpu = new.device.type == "cpu"
        fresh = torch.from_numpy(np.isfinite(new.numpy())) if on_cpu else torch.isfinite(new)
        return self._pack(new), fresh if which is None else fresh & which

    def _pack(self, values: Tensor) -> Tensor:
        values = values.clamp(0, 1)
        if self.scale == 1:
            return values.half()
        return (values * self.scale).round().to(torch.uint8)


# --- entries that matter --------------------------------------------------------------------------


class SparsePseudoLabels(PseudoLabels):
    """For label spaces of which N×L cannot exist: k entries of each image, 5 or 6 bytes each.

    Kept are those that are farthest from `start`, which is what is assumed of all others: give the
    class priors. Those within `threshold` of it are not kept even where there is room. Of two that
    are equally far, the larger is kept: a likely label says more than an unlikely one.
    """

    def __init__(
        self,
        images: int,
        labels: int,
        *,
        slots: int = SLOTS,
        threshold: float = THRESHOLD,
        **settings: Any,
    ) -> None:
        self.slots, self.threshold = min(slots, labels), threshold
        super().__init__(images, labels, **settings)

    def _open(self) -> None:
        shape = len(self.shard) + self.shard.spare, self.slots
        self.columns = torch.full(shape, -1, dtype=torch.int32, device=self.device)  # -1: empty
        self.values = torch.zeros(shape, dtype=getattr(torch, self.dtype), device=self.device)

    def get(self, rows: Tensor, columns: Tensor | None = None) -> Tensor:
        """As `PseudoLabels.get`."""
        places = self.shard.places(rows)
        kept = self.shard.complete(self.columns[places], rows)
        values = self.shard.complete(self.values[places], rows).float() / self.scale
        # One column more takes what is kept of labels that nobody asked for.
        found = pad(self._assumed(columns), (0, 1)).repeat(len(rows), 1)
        return found.scatter_(1, self._positions(kept, columns), values)[:, :-1]

    def update(
        self,
        rows: Tensor,
        values: Tensor,
        which: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> None:
        """As `PseudoLabels.update`. Entries kept in other columns than these compete with the new
        ones for the slots."""
        places, (new, fresh) = self.shard.places(rows), self._checked(values, which)
        kept, old = self.columns[places].long(), self.values[places]
        replaced = pad(fresh, (0, 1)).gather(1, self._positions(kept, columns))
        named = kept.clamp(min=0)
        scores = (
            self._worth(old, self.start[named], (kept >= 0) & ~replaced),
            self._worth(new, self._assumed(columns), fresh),
        )
        score, chosen = torch.cat(scores, dim=1).topk(self.slots, dim=1)
        stays, at = chosen < self.slots, (chosen - self.slots).clamp(min=0)
        there = chosen.clamp(max=self.slots - 1)
        labels = at if columns is None else columns[at]
        labels = torch.where(stays, kept.gather(1, there), labels)
        numbers = torch.where(stays, old.gather(1, there), new.gather(1, at))
        self.columns[places] = torch.where(score > 0, labels, -1).int()
        self.values[places] = torch.where(score > 0, numbers, 0)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the rows of this rank."""
        return {
            "columns": self.columns[: len(self.shard)],
            "values": self.values[: len(self.shard)],
        }

    def _assumed(self, columns: Tensor | None) -> Tensor:
        """What is assumed of entries that are not kept."""
        return self.start if columns is None else self.start[columns]

    def _positions(self, kept: Tensor, columns: Tensor | None) -> Tensor:
        """Where kept labels [B, k] are among the columns; one place after the last if nowhere."""
        if columns is None:
            return torch.where(kept < 0, self.labels, kept).long()
        place = torch.searchsorted(columns, kept.long()).clamp(max=len(columns) - 1)
        return torch.where(columns[place] == kept, place, len(columns))

    def _worth(self, values: Tensor, assumed: Tensor, which: Tensor) -> Tensor:
        """How much there is to say for keeping an entry; -1: nothing."""
        numbers = values.float() / self.scale
        gap = (numbers - assumed).abs()
        return torch.where(which & (gap > self.threshold), gap + numbers / 1024, -1.0)


# --- a file --------------------------------------------------------------------------------------


class Waiting(NamedTuple):
    """An update on its way from the GPU."""

    rows: Tensor
    values: Tensor
    fresh: Tensor
    columns: Tensor | None
    arrived: Any  # a torch.cuda.Event; None where there was no way to go


class DiskPseudoLabels(PseudoLabels):
    """N×L pseudo-labels in a file, of which a step reads and writes the rows of its batch.

    Each rank has a plain file of its images' rows in the run's folder. What the system keeps of it
    in memory it takes back when others need it. Before a step overwrites rows, it appends what they
    were to a journal. A checkpoint holds no rows: it begins a new journal (`mark`) and, once it is
    written, drops the older ones (`settle`). Whoever goes on from it lets the journal undo what was
    written since (`return_to`).

    Promised: the process may die at any moment, and the rows are exactly those of the checkpoint.
    After a failure of power or of the system, rows that were overwritten since may be newer than
    the checkpoint: the file is on the disk before it, the journal when the system likes.

    Without a folder, as in a training within a training, it is a temporary file.
    """

    def __init__(
        self,
        images: int,
        labels: int,
        *,
        folder: Path | None = None,
        name: str = "pseudo_labels",
        **settings: Any,
    ) -> None:
        self.folder, self.name = folder, name
        super().__init__(images, labels, **settings)

    def _open(self) -> None:
        # The file is made when it is first used: until then a checkpoint may be returned to.
        self.file: mmap.mmap | None = None
        self.journal: Journal | None = None  # there is none before the first checkpoint
        self.waiting: Waiting | None = None

    def get(self, rows: Tensor, columns: Tensor | None = None) -> Tensor:
        """As `PseudoLabels.get`."""
        self._write_waiting()
        own, places = self._places(rows.cpu())
        size = len(rows), self.labels if columns is None else len(columns)
        pinned = self.device.type == "cuda"
        found = torch.zeros(size, dtype=getattr(torch, self.dtype), pin_memory=pinned)
        index = places if columns is None else np.ix_(places, columns.cpu().numpy())
        found.numpy()[own] = self._table()[index]
        sent = found.to(self.device, non_blocking=True)
        return self.shard.complete(sent, rows).float() / self.scale

    def update(
        self,
        rows: Tensor,
        values: Tensor,
        which: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> None:
        """As `PseudoLabels.update`. From a GPU the values come while it works on; they are written
        when the store is next used."""
        self._write_waiting()
        on_gpu = values.device.type == "cuda"

        def fetch(tensor: Tensor) -> Tensor:
            return tensor.to("cpu", non_blocking=on_gpu)  # into pinned memory, then

        new, fresh = self._checked(values, which)
        self.waiting = Waiting(
            fetch(rows),
            fetch(new),
            fetch(fresh),
            None if columns is None else fetch(columns),
            torch.cuda.current_stream(values.device).record_event() if on_gpu else None,
        )
        if not on_gpu:
            self._write_waiting()

    def _write_waiting(self) -> None:
        update, self.waiting = self.waiting, None
        if update is None:
            return
        if update.arrived is not None:
            update.arrived.synchronize()
        own, places = self._places(update.rows)
        if not len(places):
            return
        table = self._table()
        old, fresh = table[places], update.fresh.numpy()[own]
        new, part = old.copy(), update.values.numpy()[own]
        if update.columns is None:
            np.copyto(new, part, where=fresh)
        else:
            columns = update.columns.numpy()
            new[:, columns] = np.where(fresh, part, old[:, columns])
        if self.journal is not None:
            self.journal.append(places, old)
        table[places] = new

    def _places(self, rows: Tensor) -> tuple[Any, np.ndarray]:
        """Which rows of a batch this rank keeps, and where they lie in its file."""
        numbers = rows.numpy()
        if distributed.world() == 1:
            return slice(None), numbers
        own = np.flatnonzero(self.shard.mine(rows).numpy())
        return own, numbers[own] - self.shard.first

    def state_dict(self) -> dict[str, Any]:
        """Nothing: a checkpoint knows by `mark` where the rows are."""
        return {}

    def mark(self, step: int) -> dict[str, Any]:
        """Before the checkpoint of a step is written: what it has to hold, for `return_to`."""
        assert self.folder is not None  # what is temporary has no checkpoint
        self._write_waiting()
        self._table()
        assert self.file is not None
        try:
            self.file.flush()
        except OSError as error:
            raise RunError(f"cannot write {self._own_path}: {reason(error)}") from None
        if self.journal is not None:
            self.journal.close()
        self.journal = Journal(self._own_path, step)
        return self._facts() | {"ranks": distributed.world(), "step": step}

    def settle(self) -> None:
        """When that checkpoint is written: delete what only older ones needed."""
        assert self.journal is not None
        old = [path for path in journals_of(self._own_path) if path != self.journal.path]
        if distributed.is_first():
            mine, folder = f"-of-{distributed.world()}", self._own_path.parent
            files = [*folder.glob(f"{self.name}-*-of-*.rows")]
            files = [file for file in files if not file.stem.endswith(mine)]
            old += [path for file in files for path in (*journals_of(file), file)]
        for path in old:
            with suppress(OSError):  # the next checkpoint tries again
                path.unlink()

    def return_to(self, record: dict[str, Any] | None) -> None:
        """The rows as they were when `mark` gave this record, on however many ranks."""
        facts = self._facts()
        if record is None or {name: record.get(name) for name in facts} != facts:
            there = "not on disk" if record is None else f"of {record}"
            raise RunError(
                f"the checkpoint in {self.folder} does not fit this run: its {self.name} are "
                f"{there}, not of {facts}"
            )
        ranks, step = record["ranks"], record["step"]
        for rank in range(distributed.rank(), ranks, distributed.world()):
            file = self._map(rank, ranks)
            go_back(self._path(rank, ranks), self._view(file), step, file.flush)
        distributed.wait()  # until every file is as it was
        if ranks == distributed.world():
            self.file = self._map(distributed.rank(), ranks)
        else:  # the old files go when the next checkpoint is there
            self._create(self._rows_of(ranks))
        self.journal = Journal(self._own_path, step)

    def _rows_of(self, ranks: int) -> Iterator[np.ndarray]:
        """This rank's rows, from the files of another number of ranks."""
        for rank in range(ranks):
            first, stop = _edges(self.images, rank, ranks)
            begin, end = max(self.shard.first, first), min(self.shard.stop, stop)
            if begin < end:
                yield self._old_table(rank, ranks)[begin - first : end - first]

    def _facts(self) -> dict[str, Any]:
        return {"images": self.images, "labels": self.labels, "dtype": self.dtype}

    @property
    def _own_path(self) -> Path:
        return self._path(distributed.rank(), distributed.world())

    def _path(self, rank: int, ranks: int) -> Path:
        place = self.folder or Path(tempfile.gettempdir())
        return place / f"{self.name}-{rank}-of-{ranks}.rows"

    @property
    def _row_size(self) -> int:
        return self.labels * np.dtype(self.dtype).itemsize

    def _view(self, file: mmap.mmap) -> np.ndarray:
        return np.frombuffer(file, dtype=self.dtype).reshape(-1, self.labels)

    def _table(self) -> np.ndarray:
        """The rows of this rank; a new file where there is none."""
        if self.file is None:
            self._create(self._first_rows())
        assert self.file is not None
        return self._view(self.file)

    def _old_table(self, rank: int, ranks: int) -> np.ndarray:
        return self._view(self._map(rank, ranks))

    def _map(self, rank: int, ranks: int) -> mmap.mmap:
        """A file that is there already."""
        path, (first, stop) = self._path(rank, ranks), _edges(self.images, rank, ranks)
        wanted = max(stop - first, 1) * self._row_size
        try:
            with path.open("r+b") as file:
                found = os.fstat(file.fileno()).st_size
                if found != wanted:
                    raise RunError(f"{path} is damaged: it has {found:,} bytes, not {wanted:,}")
                return _map(file.fileno())
        except OSError as error:
            raise RunError(f"cannot read {path}: {reason(error)}") from None

    def _first_rows(self) -> Iterator[np.ndarray]:
        row = self._pack(self.start).cpu().numpy()
        several = max(1, BLOCK // row.nbytes)
        block = np.tile(row, (several, 1))
        for begin in range(0, len(self.shard), several):
            yield block[: len(self.shard) - begin]

    def _create(self, blocks: Iterable[np.ndarray]) -> None:
        """A new file of these rows. All of it is written, so that a full disk is noticed now."""
        path = self._own_path
        try:
            with self._new_file(path) as file:
                for block in blocks:
                    file.write(block.data)
                if not len(self.shard):  # what has no length cannot be mapped
                    file.write(bytes(self._row_size))
                file.flush()
                self.file = _map(file.fileno())
        except OSError as error:
            if self.folder is not None:
                with suppress(OSError):
                    path.unlink()
            size = len(self.shard) * self._row_size / 1e9
            raise RunError(
                f"cannot write {path}: {reason(error)}; pseudo-labels on disk take {size:.3g} GB "
                "here, and up to as much again between two checkpoints"
            ) from None

    def _new_file(self, path: Path) -> IO[bytes]:
        if self.folder is None:
            return tempfile.TemporaryFile(dir=path.parent)  # without a name: it ends with us
        for journal in journals_of(path):
            journal.unlink()
        return path.open("w+b")


def _edges(images: int, rank: int, ranks: int) -> tuple[int, int]:
    """The first row of a rank and the first that is no longer its own, as `Shard.of` has them."""
    return images * rank // ranks, images * (rank + 1) // ranks


def _map(file: int) -> mmap.mmap:
    mapped = mmap.mmap(file, 0)
    if hasattr(mmap, "MADV_RANDOM"):  # rows come in any order: their neighbours are not wanted
        mapped.madvise(mmap.MADV_RANDOM)
    return mapped


class Journal:
    """What the rows of a file were before they were overwritten, since the checkpoint of a step.

    A record: how many rows, which, and what was in them. It is begun by the first of them.
    """

    def __init__(self, rows: Path, step: int) -> None:
        self.path = rows.with_name(f"{rows.stem}-{step}.undo")
        self.file: IO[bytes] | None = None

    def append(self, places: np.ndarray, old: np.ndarray) -> None:
        """One record in one write: all of it is there before the first row is overwritten."""
        head = np.concatenate([[len(places)], places]).astype(np.int64)
        size = None
        try:
            if self.file is None:
                self.file = self.path.open("ab", buffering=0)
            number = self.file.fileno()
            size = os.fstat(number).st_size
            if os.writev(number, [head.data, old.data]) < head.nbytes + old.nbytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if self.file is not None and size is not None:
                os.ftruncate(self.file.fileno(), size)  # nothing may follow half a record
            raise RunError(f"cannot write {self.path}: {reason(error)}") from None

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def journals_of(rows: Path) -> list[Path]:
    """The journals of a file, the newest first."""
    return sorted(rows.parent.glob(f"{rows.stem}-*.undo"), key=_step_of, reverse=True)


def _step_of(journal: Path) -> int:
    return int(journal.stem.rpartition("-")[2])


def go_back(rows: Path, table: np.ndarray, step: int, flush: Callable[[], Any]) -> None:
    """Undo everything that was written to the table, a file's rows, since a checkpoint.

    flush: to the disk. Another machine may read it next, and the journals are gone then.
    """
    journals = journals_of(rows)
    try:
        for journal in journals:
            if _step_of(journal) >= step:
                undo(journal, table)
        flush()
        for journal in journals:  # the newest first: those that a crash leaves can be undone again
            journal.unlink()
    except OSError as error:
        raise RunError(f"cannot undo {rows}: {reason(error)}") from None


def undo(journal: Path, table: np.ndarray) -> None:
    """Give rows back what they held when the journal began.

    A last record that is cut off is left out: its rows had not been overwritten yet.
    """
    if not journal.stat().st_size:
        return
    held = np.memmap(journal, np.uint8, "r").view(np.ndarray)
    begin, width, records = 0, table.itemsize * table.shape[1], []
    while begin + 8 <= len(held):
        count = int(held[begin : begin + 8].view(np.int64)[0])
        middle = begin + 8 * (count + 1)
        end = middle + count * width
        if count < 1 or end > len(held):
            break
        places = held[begin + 8 : middle].view(np.int64)
        if places.min() < 0 or places.max() >= len(table):
            raise RunError(f"{journal} is damaged: it names rows that its file does not have")
        records.append((places, held[middle:end]))
        begin = end
    for places, old in reversed(records):
        table[places] = old.view(table.dtype).reshape(len(places), -1)


# --- which one -----------------------------------------------------------------------------------


def problems(kind: str) -> Iterator[str]:
    """Why there is no such store."""
    name, _, slots = kind.partition(":")
    if name == "sparse" and (kind == name or (slots.isascii() and slots.isdigit() and int(slots))):
        return
    if kind not in ("memory", "disk"):
        yield (
            "pseudo_labels are kept in memory, on disk or, some entries of each image, sparse "
            f"({SLOTS} of them) or sparse:16 (as many as you say), not '{kind}'"
        )


def is_sparse(kind: str) -> bool:
    """Whether most entries are not kept."""
    return kind.startswith("sparse")


def open_store(
    kind: str, images: int, labels: int, *, folder: Path | None, name: str, **settings: Any
) -> PseudoLabels:
    """A store of this kind; folder and name: of a file, where it has one."""
    raise_if(problems(kind), ConfigError)
    if kind == "disk":
        return DiskPseudoLabels(images, labels, folder=folder, name=name, **settings)
    if is_sparse(kind):
        slots = int(kind.partition(":")[2] or SLOTS)
        return SparsePseudoLabels(images, labels, slots=slots, **settings)
    return PseudoLabels(images, labels, **settings)
