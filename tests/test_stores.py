"""Stores of pseudo-labels: the same answers from all of them, files that survive a crash."""

import os
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from builders import feature_table, partly_here, write_npz
from partly import checkpoint, distributed, methods, propensity, runs, stores
from partly.config import Config
from partly.errors import ConfigError, RunError
from partly.hiding import hide
from partly.labels import UNKNOWN
from partly.stores import DiskPseudoLabels, PseudoLabels, SparsePseudoLabels
from partly.training import train

# The largest distance between a number in [0, 1] and the nearest one the store can hold.
ROUNDING = {"float16": 2.0**-12, "uint8": 0.5 / 255}
KINDS = ("memory", "disk", "sparse")
EVERY = pytest.mark.parametrize(
    ("kind", "dtype"), [(kind, dtype) for kind in KINDS for dtype in sorted(ROUNDING)]
)
DTYPES = pytest.mark.parametrize("dtype", sorted(ROUNDING))
EXACT = 0.2, 0.25  # a start that uint8, and one that float16 can hold


def make(kind: str, images: int, labels: int, **settings: Any) -> PseudoLabels:
    """A store that keeps everything."""
    if kind == "sparse":
        return SparsePseudoLabels(images, labels, slots=labels, threshold=0.0, **settings)
    return (DiskPseudoLabels if kind == "disk" else PseudoLabels)(images, labels, **settings)


# --- what all of them do -------------------------------------------------------------------------


@EVERY
def test_start_is_one_number_or_one_a_label(kind: str, dtype: str) -> None:
    rows = torch.arange(3)
    assert (make(kind, 3, 4, start=1.0, dtype=dtype).get(rows) == 1).all()
    priors = np.array([0.1, 0.5, 0.25, 0.0])
    started = make(kind, 3, 4, start=priors, dtype=dtype).get(rows)
    assert started.dtype == torch.float32
    assert started.shape == (3, 4)
    assert np.abs(started.numpy() - priors).max() <= ROUNDING[dtype] + 1e-7


@EVERY
@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=8))
def test_rounding(kind: str, dtype: str, numbers: list[float]) -> None:
    store = make(kind, 1, len(numbers), dtype=dtype)
    store.update(torch.tensor([0]), torch.tensor([numbers]))
    error = store.get(torch.tensor([0])) - torch.tensor([numbers])
    assert error.abs().max() <= ROUNDING[dtype] + 1e-7


@EVERY
def test_update_changes_what_it_is_told(kind: str, dtype: str) -> None:
    store = make(kind, 4, 3, start=0.2, dtype=dtype)
    rows = torch.tensor([3, 1])
    values = torch.tensor([[0.9, 0.8, 0.7], [0.0, 0.5, 1.0]])
    which = torch.tensor([[True, False, True], [False, True, True]])
    before = store.get(torch.arange(4))
    store.update(rows, values, which)
    expected = before.clone()
    expected[rows] = torch.where(which, values, 0.2)
    assert (store.get(torch.arange(4)) - expected).abs().max() <= ROUNDING[dtype] + 1e-6
    store.update(rows, values)
    expected[rows] = values
    assert (store.get(torch.arange(4)) - expected).abs().max() <= ROUNDING[dtype] + 1e-6
    assert (store.get(torch.tensor([0, 2])) == before[[0, 2]]).all()


@EVERY
@pytest.mark.parametrize("which", [None, torch.ones(1, 4, dtype=torch.bool)])
def test_a_diverged_step_leaves_the_store_as_it_was(
    kind: str, dtype: str, which: Tensor | None
) -> None:
    store = make(kind, 1, 4, start=0.25, dtype=dtype)
    before = store.get(torch.tensor([0]))
    values = torch.tensor([[torch.nan, torch.inf, -torch.inf, 0.75]])
    store.update(torch.tensor([0]), values, which)
    after = store.get(torch.tensor([0]))
    assert (after[0, :3] == before[0, :3]).all()
    assert after[0, 3] == pytest.approx(0.75, abs=ROUNDING[dtype])


@EVERY
def test_no_gradient_and_no_half_precision_leaks_out(kind: str, dtype: str) -> None:
    store = make(kind, 2, 2, dtype=dtype)
    store.update(torch.arange(2), torch.full((2, 2), 0.25, requires_grad=True).bfloat16())
    believed = store.get(torch.arange(2))
    assert not believed.requires_grad
    assert believed.dtype == torch.float32


@DTYPES
@pytest.mark.parametrize("kind", ["memory", "sparse"])
def test_state_round_trip(kind: str, dtype: str) -> None:
    store, other = (make(kind, 5, 3, dtype=dtype) for _ in range(2))
    store.update(torch.arange(5), torch.rand(5, 3, generator=torch.Generator().manual_seed(0)))
    for name, tensor in other.state_dict().items():
        tensor.copy_(store.state_dict()[name])
    assert other.get(torch.arange(5)).equal(store.get(torch.arange(5)))
    assert not other.get(torch.arange(5)).equal(make(kind, 5, 3, dtype=dtype).get(torch.arange(5)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dtype": "int4"}, "float16 or uint8, not 'int4'"),
        ({"start": 1.5}, r"in \[0, 1\], not at 1.5"),
    ],
)
def test_settings_that_make_no_sense(kind: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make(kind, 1, 1, **settings)


def some_updates(seed: int, images: int, labels: int) -> Iterator[dict[str, Any]]:
    """Updates of some rows, some entries and some columns, or of all."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        rows = torch.randperm(images, generator=generator)[: 1 + images // 3]
        narrow, masked = torch.rand(2, generator=generator).tolist()
        columns = None
        if narrow < 0.6:
            count = 1 + int(torch.randint(labels, (), generator=generator))
            columns = torch.randperm(labels, generator=generator)[:count].sort().values
        shape = len(rows), labels if columns is None else len(columns)
        which = torch.rand(shape, generator=generator) < 0.7 if masked < 0.5 else None
        values = torch.rand(shape, generator=generator)
        yield {"rows": rows, "values": values, "which": which, "columns": columns}


@pytest.mark.parametrize(("dtype", "start"), [("uint8", EXACT[0]), ("float16", EXACT[1])])
@pytest.mark.parametrize("kind", ["disk", "sparse"])
@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_all_stores_agree(kind: str, dtype: str, start: float, device: str, tmp_path: Path) -> None:
    """With as many slots as labels and no threshold, sparse is dense; so is a file."""
    images, labels = 20, 9
    settings = {"start": start, "dtype": dtype, "device": device}
    memory, other = (make(k, images, labels, **settings) for k in ("memory", kind))
    close = partial(torch.testing.assert_close, rtol=0, atol=1e-6 if device == "cuda" else 0)
    if isinstance(other, DiskPseudoLabels):
        other.folder = tmp_path
    for number, made in zip(range(60), some_updates(1, images, labels), strict=False):
        update = {name: part if part is None else part.to(device) for name, part in made.items()}
        memory.update(**update)
        other.update(**update)
        rows = update["rows"].flip(0)
        close(other.get(rows), memory.get(rows))
        columns = update["columns"]
        if columns is not None:
            narrow = other.get(rows, columns)
            close(narrow, memory.get(rows, columns))
            close(narrow, memory.get(rows)[:, columns])
        if number % 20 == 0 and isinstance(other, DiskPseudoLabels):
            other.mark(number)
    everything = torch.arange(images, device=device)
    close(other.get(everything), memory.get(everything))


# --- sparse --------------------------------------------------------------------------------------


def test_what_is_far_from_the_prior_is_kept() -> None:
    store = SparsePseudoLabels(2, 5, slots=2, start=np.full(5, 0.1), threshold=0.02)
    rows = torch.tensor([1])
    assert store.columns.dtype == torch.int32
    store.update(rows, torch.tensor([[0.11, 0.9, 0.0, 0.5, 0.3]]))
    assert store.get(torch.tensor([0, 1])).tolist() == [
        pytest.approx([0.1] * 5),
        pytest.approx([0.1, 0.9, 0.1, 0.5, 0.1], abs=1e-3),
    ]
    # A label that no longer says anything makes room; one in another column stays.
    store.update(rows, torch.tensor([[0.115, 0.3]]), columns=torch.tensor([1, 4]))
    assert store.get(rows)[0].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.5, 0.3], abs=1e-3)
    # Whoever says more takes the slot of who says least.
    store.update(rows, torch.tensor([[0.8]]), columns=torch.tensor([0]))
    assert store.get(rows)[0].tolist() == pytest.approx([0.8, 0.1, 0.1, 0.5, 0.1], abs=1e-3)
    assert store.get(rows, torch.tensor([0, 2]))[0].tolist() == pytest.approx([0.8, 0.1], abs=1e-3)


def test_of_two_that_are_equally_far_the_larger_is_kept() -> None:
    store = SparsePseudoLabels(1, 6, slots=2, start=0.5, dtype="float16")
    store.update(torch.tensor([0]), torch.tensor([[0.0, 1, 0, 0, 1, 0]]))
    assert store.get(torch.tensor([0])).tolist() == [[0.5, 1, 0.5, 0.5, 1, 0.5]]


@DTYPES
@pytest.mark.parametrize("slots", [1, 3, 12])
def test_sparse_against_a_dense_reference(dtype: str, slots: int) -> None:
    """A table that forgets, after each update, what is not among the best of its row."""
    images, labels, threshold = 15, 12, 0.1
    priors = np.linspace(0.01, 0.6, labels)
    store = SparsePseudoLabels(
        images, labels, slots=slots, threshold=threshold, start=priors, dtype=dtype
    )
    assumed = torch.from_numpy(priors).float()
    believed = assumed.repeat(images, 1)
    for _, update in zip(range(40), some_updates(slots, images, labels), strict=False):
        rows, columns = update["rows"], update["columns"]
        store.update(**update)
        dense = make("memory", images, labels, dtype=dtype)
        dense.update(rows, update["values"], columns=columns)
        new = dense.get(rows, columns)
        now = believed[rows]
        part = slice(None) if columns is None else columns
        fresh = (
            torch.ones_like(new, dtype=torch.bool) if update["which"] is None else update["which"]
        )
        now[:, part] = torch.where(fresh, new, now[:, part])
        gap = (now - assumed).abs()
        least = gap.sort(dim=1, descending=True).values[:, slots - 1 : slots]
        believed[rows] = torch.where((gap >= least) & (gap > threshold), now, assumed)
        torch.testing.assert_close(store.get(torch.arange(images)), believed, rtol=0, atol=1e-6)
    assert ((store.columns >= 0).sum(dim=1) > 0).any()


# --- a file --------------------------------------------------------------------------------------


def disk(folder: Path, images: int = 12, labels: int = 5, **settings: Any) -> DiskPseudoLabels:
    return DiskPseudoLabels(images, labels, folder=folder, dtype="uint8", **settings)


def all_rows(store: PseudoLabels) -> Tensor:
    return store.get(torch.arange(store.images))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_file_is_the_table_and_nothing_more(tmp_path: Path) -> None:
    store = disk(tmp_path, images=1000, labels=7)
    assert not names(tmp_path)  # not before it is needed: a checkpoint may come first
    values = torch.rand(1000, 7)
    store.update(torch.arange(1000), values)
    assert names(tmp_path) == {"pseudo_labels-0-of-1.rows"}
    held = np.fromfile(tmp_path / "pseudo_labels-0-of-1.rows", np.uint8).reshape(1000, 7)
    assert np.array_equal(held, (values * 255).round().numpy())


def test_a_file_without_a_folder_has_no_name(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = DiskPseudoLabels(3, 2)
    store.update(torch.arange(3), torch.ones(3, 2))
    assert (all_rows(store) == 1).all()
    assert not names(tmp_path)


def test_a_death_at_any_moment_leads_back_to_the_checkpoint(tmp_path: Path) -> None:
    """After each thing that is done, the folder as a killed process would have left it."""
    run, images, labels = tmp_path / "run", 12, 5
    run.mkdir()
    store, updates = disk(run), some_updates(3, images, labels)
    held: dict[int, Tensor] = {}
    record: dict[str, Any] | None = None  # what the checkpoint holds
    checked = 0

    def dies() -> None:
        nonlocal checked
        if record is None:
            return
        copy = tmp_path / f"copy {checked}"
        shutil.copytree(run, copy)
        again = disk(copy)
        again.return_to(record)
        assert all_rows(again).equal(held[record["step"]])
        assert names(copy) == {"pseudo_labels-0-of-1.rows"}  # there is nothing left to undo
        again.update(**next(updates))  # and it goes on, and dies again
        third = disk(copy)
        third.return_to(record)
        assert all_rows(third).equal(held[record["step"]])
        shutil.rmtree(copy)
        checked += 1

    for step in range(40):
        store.update(**next(updates))
        dies()
        if step % 4 == 2:
            held[step] = all_rows(store).clone()
            marked = store.mark(step)
            dies()  # the checkpoint is not written: the older one holds
            record = marked
            dies()  # it is, and old journals are still there
            store.settle()
            dies()
            assert len(names(run)) == 1
    assert checked > 50


def test_marked_twice_at_the_same_step(tmp_path: Path) -> None:
    """After the last step of an epoch, and after the epoch."""
    store, updates = disk(tmp_path), some_updates(5, 12, 5)
    for step in (7, 8):
        store.update(**next(updates))
        store.mark(step)
        store.settle()
        before = all_rows(store).clone()
        record = store.mark(step)
        store.settle()
        store.update(**next(updates))
        store.update(**next(updates))
        again = disk(tmp_path)
        again.return_to(record)
        assert all_rows(again).equal(before)
        store = again


def test_a_death_while_rows_are_overwritten(tmp_path: Path) -> None:
    """The journal is written before the rows: where it ends too early they are as they were, and
    where it is whole they may be half overwritten."""
    run = tmp_path / "run"
    run.mkdir()
    store, updates = disk(run), some_updates(6, 12, 5)
    store.update(**next(updates))
    record, held = store.mark(1), all_rows(store).clone()
    store.update(**next(updates))
    rows = (run / "pseudo_labels-0-of-1.rows").read_bytes()
    journal = run / "pseudo_labels-0-of-1-1.undo"
    one = journal.stat().st_size
    store.update(**next(updates))
    assert journal.stat().st_size > one
    whole, after = journal.stat().st_size, (run / "pseudo_labels-0-of-1.rows").read_bytes()
    left = [(size, rows) for size in range(one, whole)]
    left += [(whole, after[:cut] + rows[cut:]) for cut in range(len(rows))]
    for number, (size, content) in enumerate(left):
        copy = tmp_path / f"cut {number}"
        shutil.copytree(run, copy)
        (copy / "pseudo_labels-0-of-1.rows").write_bytes(content)
        os.truncate(copy / journal.name, size)
        again = disk(copy)
        again.return_to(record)
        assert all_rows(again).equal(held)


def test_a_new_store_takes_nothing_from_one_that_never_had_a_checkpoint(tmp_path: Path) -> None:
    store, updates = disk(tmp_path), some_updates(7, 12, 5)
    store.update(**next(updates))
    store.mark(9)
    store.update(**next(updates))
    fresh = disk(tmp_path)
    assert all_rows(fresh).equal(all_rows(make("memory", 12, 5, dtype="uint8")))
    record = fresh.mark(3)
    fresh.update(**next(updates))
    again = disk(tmp_path)
    again.return_to(record)
    assert all_rows(again).equal(all_rows(make("memory", 12, 5, dtype="uint8")))


Work = Callable[[int], None]


@contextmanager
def ranks_as_threads(monkeypatch: Any, count: int) -> Iterator[Callable[[Work], None]]:
    """Let each of so many ranks do something, in threads that wait for each other as ranks do."""
    own, barrier = threading.local(), threading.Barrier(count, timeout=30)
    with monkeypatch.context() as patch:
        patch.setattr(distributed, "world", lambda: count)
        patch.setattr(distributed, "rank", lambda: own.rank)
        patch.setattr(distributed, "is_first", lambda: own.rank == 0)
        patch.setattr(distributed, "wait", barrier.wait)

        def run(work: Work) -> None:
            problems: list[BaseException] = []

            def one(rank: int) -> None:
                own.rank = rank
                try:
                    work(rank)
                except BaseException as problem:
                    problems.append(problem)
                    barrier.abort()

            threads = [threading.Thread(target=one, args=(rank,)) for rank in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not problems, problems

        yield run


def test_every_number_of_ranks_finds_every_row(tmp_path: Path, monkeypatch: Any) -> None:
    """2, 4, 3, 15 (some with no image) and 1 ranks, each killed after a checkpoint and a step."""
    images, labels = 13, 5
    updates = some_updates(8, images, labels)
    undo = stores.undo

    def slow_undo(*given: Any) -> None:
        time.sleep(0.02 * (distributed.rank() > 0))
        undo(*given)

    monkeypatch.setattr(stores, "undo", slow_undo)
    memory = make("memory", images, labels, dtype="uint8")  # a store as it should be
    records: list[dict[str, Any] | None] = [None]
    for count in (2, 4, 3, 15, 1):
        first, lost = next(updates), [next(updates) for _ in range(3)]
        marked = {}

        def work(rank: int, first: Any = first, lost: Any = lost, marked: Any = marked) -> None:
            before = disk(tmp_path, images, labels)
            if records[-1] is not None:
                before.return_to(records[-1])
                mine = memory.values[before.shard.first : before.shard.stop].numpy()
                assert np.array_equal(before._table()[: len(mine)], mine)
                distributed.wait()
                before.update(**lost[2])  # and dies before it has a checkpoint
                distributed.wait()
            store = disk(tmp_path, images, labels)
            if records[-1] is not None:
                store.return_to(records[-1])
            store.update(**first)
            marked[rank] = store.mark(len(records))
            distributed.wait()
            store.settle()
            store.update(**lost[0])
            store.update(**lost[1])

        with ranks_as_threads(monkeypatch, count) as run:
            run(work)  # the first rank has to wait for the others before it reads their files
        memory.update(**first)
        assert {str(record) for record in marked.values()} == {str(marked[0])}
        records.append(marked[0])
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path, copy)
        alone = disk(copy, images, labels)
        alone.return_to(records[-1])
        assert all_rows(alone).equal(all_rows(memory))
        shutil.rmtree(copy)
        rows = {name for name in names(tmp_path) if name.endswith(".rows")}
        assert rows == {f"pseudo_labels-{rank}-of-{count}.rows" for rank in range(count)}


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """As near as a test comes to a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("where", ["full", "no folder", "below a file"])
def test_a_file_that_cannot_be_written(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("a file")
    folder = {"full": tmp_path, "no folder": tmp_path / "none", "below a file": tmp_path / "file"}
    store = disk(folder[where], images=1000, labels=500)
    limit = no_file_larger_than(100_000 if where == "full" else 2**30)
    with limit, pytest.raises(RunError, match=r"cannot write .*\.rows: .*; .* take 0.0005 GB"):
        store.get(torch.arange(2))
    assert names(tmp_path) == {"file"}


def test_a_full_disk_while_training_loses_nothing(tmp_path: Path) -> None:
    store = disk(tmp_path, images=50, labels=200)
    rows, values = torch.arange(50), torch.rand(50, 200)
    record = store.mark(1)
    store.update(rows[:20], values[:20])
    size = (tmp_path / "pseudo_labels-0-of-1-1.undo").stat().st_size
    now = all_rows(store).clone()
    with no_file_larger_than(size + 3000), pytest.raises(RunError, match=r"cannot write .*undo"):
        store.update(rows, values)
    assert all_rows(store).equal(now)
    store.update(rows, values)  # there is room again
    again = disk(tmp_path, images=50, labels=200)
    again.return_to(record)
    assert all_rows(again).equal(all_rows(make("memory", 50, 200, dtype="uint8")))


def test_a_checkpoint_that_does_not_fit(tmp_path: Path) -> None:
    store = disk(tmp_path)
    record = store.mark(1)
    with pytest.raises(RunError, match="does not fit this run: its pseudo_labels are not on disk"):
        disk(tmp_path).return_to(None)
    with pytest.raises(RunError, match=r"'labels': 5.*not of .*'labels': 6"):
        disk(tmp_path, labels=6).return_to(record)
    path = tmp_path / "pseudo_labels-0-of-1.rows"
    os.truncate(path, 59)
    with pytest.raises(RunError, match=r"rows is damaged: it has 59 bytes, not 60"):
        disk(tmp_path).return_to(record)
    path.unlink()
    with pytest.raises(RunError, match=r"cannot read .*rows: No such file"):
        disk(tmp_path).return_to(record)


# --- in a training -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["disc", "sparse:", "sparse:0", "sparse:-1", "sparse:x", "disk:3"])
def test_words_that_name_no_store(kind: str) -> None:
    assert [p for p in Config(pseudo_labels=kind).problems() if f"not '{kind}'" in p]


@pytest.mark.parametrize("kind", ["memory", "disk", "sparse", "sparse:16"])
def test_words_that_name_one(kind: str) -> None:
    assert not [*Config(pseudo_labels=kind).problems()]
    store = stores.open_store(kind, 4, 100, folder=None, name="x", start=0.5)
    assert getattr(store, "slots", 0) == {"sparse": 64, "sparse:16": 16}.get(kind, 0)


QUICK = Config(method="paper", epochs=3, batch_size=64, hold_out=0.0)


@pytest.mark.parametrize("method", ["paper", "curriculum", "ll-cp", "partly"])
def test_a_training_ends_alike_with_every_store_and_is_audited(tmp_path: Path, method: str) -> None:
    full = feature_table(300)
    known = hide(full, "pal:0.4")
    ends = {}
    lasting = method in ("curriculum", "ll-cp")
    for kind in ("memory", "disk") if lasting else ("memory", "disk", "sparse"):
        config = replace(QUICK, method=method, pseudo_labels=kind, learning_rate=0.1)
        train(known, config, tmp_path / kind, truth=full, quiet=True)
        audit = runs.read_lines(tmp_path / kind / runs.AUDIT)
        ends[kind] = [(tmp_path / kind / runs.WEIGHTS).read_bytes(), audit]
    assert ends["disk"] == ends["memory"]
    assert bool(ends["memory"][1]) == (method != "ll-cp")
    if lasting:
        with pytest.raises(ConfigError, match="not sparse"):
            train(known, replace(QUICK, method=method, pseudo_labels="sparse"), quiet=True)
        return
    for one, other in zip(ends["memory"][1], ends["sparse"][1], strict=True):
        assert one["mAP"] == pytest.approx(other["mAP"], abs=0.1)


@pytest.mark.parametrize("dtype", ["uint8", "float16"])
def test_what_is_beyond_0_or_1_is_kept_as_this(dtype: str) -> None:
    store = PseudoLabels(1, 3, dtype=dtype)
    store.update(torch.arange(1), torch.tensor([[7.0, -3.0, 1.5]]))
    assert store.get(torch.arange(1)).tolist() == [[1, 0, 1]]


def test_where_room_is_short_none_is_for_known_labels(tmp_path: Path) -> None:
    known = hide(feature_table(300, labels=40), "pal:0.5")
    train(known, replace(QUICK, pseudo_labels="sparse:6"), tmp_path, quiet=True)
    columns = checkpoint.load(tmp_path / runs.CHECKPOINT)["rows"]["pseudo_labels.columns"].numpy()
    rows, slots = np.nonzero(columns >= 0)
    assert len(rows) > 300
    assert (known.dense()[rows, columns[rows, slots]] == UNKNOWN).all()


def test_a_checkpoint_holds_no_table_that_is_on_disk(tmp_path: Path) -> None:
    for kind in ("memory", "disk"):
        train(feature_table(300), replace(QUICK, pseudo_labels=kind), tmp_path / kind, quiet=True)
    saved = {
        kind: checkpoint.load(tmp_path / kind / runs.CHECKPOINT) for kind in ("memory", "disk")
    }
    assert saved["disk"]["rows"] == {}
    held = np.fromfile(tmp_path / "disk" / "pseudo_labels-0-of-1.rows", np.float16)
    assert np.array_equal(held, saved["memory"]["rows"]["pseudo_labels.values"].numpy().ravel())
    assert not [*(tmp_path / "disk").glob("*.undo")]


def test_where_pseudo_labels_begin() -> None:
    """At the paper's ½; in a sparse store at the class priors, from which few entries differ."""
    table = hide(feature_table(300), "ppl:0.6")
    facts = propensity.estimate(table)
    for keep, start in (("memory", 0.5), ("disk", 0.5), ("sparse:2", facts.priors)):
        training = methods.Training(table, facts, 3, keep=keep)
        methods.get("paper").start(training)
        store = training.stores["pseudo_labels"]
        assert isinstance(store, PseudoLabels)
        assert np.allclose(store.get(torch.arange(300)), start, atol=1e-3)


def test_a_method_that_keeps_nothing_says_so(tmp_path: Path, capsys: Any) -> None:
    train(feature_table(300), replace(QUICK, method="bce", pseudo_labels="disk"), tmp_path)
    assert (
        "bce keeps no pseudo-labels: pseudo_labels disk changes nothing" in capsys.readouterr().err
    )
    assert not [*tmp_path.glob("*.rows")]


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "data.npz", 1000, 0, labels=200)
    command = ["train", data, "--out", tmp_path / "run", "--method", "paper", "--epochs", 1]
    with no_file_larger_than(150_000):
        answer = partly_here(*command, "--pseudo-labels", "disk")
    assert answer.code == 2
    assert "partly: cannot write" in answer.err
    assert ".rows: File too large" in answer.err
