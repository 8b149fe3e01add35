"""Rankings on devices, in blocks and over ranks against the plain metric; P@k against loops."""

import math
import multiprocessing
import pickle
import shutil
import tracemalloc
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from pandas import DataFrame
from scipy.sparse import csr_matrix

from partly import metrics, ranking
from partly.errors import DataError, LabelError, PartlyError, RunError
from partly.labels import LabelTable
from partly.ranking import Entries

nan = math.nan


def draw(seed=0, rows=200, columns=9, unknown=0.4, levels=64):
    """Scores with ties and labels, one of them without a positive and one without anything."""
    generator = np.random.default_rng(seed)
    scores = generator.integers(-levels, levels, (rows, columns)) / levels
    labels = (generator.random((rows, columns)) < 0.3).astype(np.int8)
    labels[generator.random((rows, columns)) < unknown] = -1
    labels[:, 1] = np.minimum(labels[:, 1], 0)
    labels[:, 2] = -1
    return scores, labels


def same(found, expected):
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


# On a device


@pytest.mark.parametrize("entries", [1, 500, ranking.ON_DEVICE])
@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8],
)
def test_a_device_computes_what_numpy_does(dtype, entries, monkeypatch):
    monkeypatch.setattr(ranking, "ON_DEVICE", entries)
    scores, labels = draw()
    tensor = torch.from_numpy(scores * (1 if dtype.is_floating_point else 64) + 2).to(dtype)
    expected = metrics.average_precision(tensor, labels)
    for truth in (torch.from_numpy(labels), torch.from_numpy(labels).half(), labels):
        same(ranking.average_precision_on_device(tensor, truth), expected)
    same(ranking.average_precision_on_device(tensor, labels.tolist()), expected)


def test_a_device_takes_booleans_and_signed_zeros():
    scores, labels = draw(unknown=0.0)
    decided, truth = torch.from_numpy(scores > 0), torch.from_numpy(labels == 1)
    expected = metrics.average_precision(decided, truth)
    same(ranking.average_precision_on_device(decided, truth), expected)
    zeros = torch.tensor([[0.0], [-0.0]], requires_grad=True)
    assert ranking.average_precision_on_device(zeros, [[0], [1]]) == [0.5]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_a_device_has_nothing_to_say_about_nothing(shape):
    found = ranking.average_precision_on_device(torch.zeros(shape), torch.zeros(shape))
    assert found.shape == shape[1:]
    assert np.isnan(found).all()


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        ([[0.1]], [[1, 0]]),
        ([[nan, 0], [0, math.inf]], [[1, 0], [0, 1]]),
        ([[nan]], [[5]]),
        ([0.5], [1]),
        ([[0.5], [0.5]], [[1], [0.5]]),
    ],
)
def test_faults_on_a_device_are_told_in_the_same_words(scores, labels):
    with pytest.raises(PartlyError) as expected:
        metrics.average_precision(scores, labels)
    for truth in (labels, torch.tensor(labels)):
        with pytest.raises(type(expected.value)) as caught:
            ranking.average_precision_on_device(torch.tensor(scores), truth)
        assert len(caught.value.problems) == len(expected.value.problems)
        assert caught.value.problems[0].split(",")[0] == expected.value.problems[0].split(",")[0]


def test_an_unsigned_255_is_no_unknown_label():
    truth = torch.tensor([[1], [255]], dtype=torch.uint8)
    with pytest.raises(LabelError, match="not 255: at"):
        ranking.average_precision_on_device(torch.zeros(2, 1), truth)


def test_scores_on_a_gpu_are_sorted_there(monkeypatch):
    calls = []
    monkeypatch.setattr(ranking, "average_precision_on_device", lambda *given: calls.append(given))
    on_gpu = SimpleNamespace(is_cuda=True)
    metrics.average_precision(on_gpu, "labels")
    assert calls == [(on_gpu, "labels")]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_computes_what_numpy_does():
    scores, labels = draw(rows=20_000)
    for dtype in (torch.float16, torch.float32, torch.float64):
        tensor = torch.from_numpy(scores).to(dtype)
        expected = metrics.average_precision(tensor, labels)
        same(metrics.average_precision(tensor.cuda(), labels), expected)
        same(metrics.average_precision(tensor.cuda(), torch.from_numpy(labels).cuda()), expected)


# Block after block


@pytest.mark.parametrize("piece", [1, 300, ranking.PIECE])
@pytest.mark.parametrize("height", [1, 7, 200])
def test_blocks_give_what_the_whole_gives(piece, height, monkeypatch, tmp_path):
    monkeypatch.setattr(ranking, "PIECE", piece)
    monkeypatch.setattr(metrics, "BLOCK", 1)
    monkeypatch.setattr(metrics, "NARROWEST", 2)
    scores, labels = draw()
    blocks = [(scores[i : i + height], labels[i : i + height]) for i in range(0, 200, height)]
    found = ranking.streamed_average_precision(iter(blocks), tmp_path)
    np.testing.assert_array_equal(found, metrics.average_precision(scores, labels))
    assert not list(tmp_path.iterdir())


def test_blocks_can_lie_on_disk_share_an_array_be_empty_and_have_other_types(tmp_path, monkeypatch):
    monkeypatch.setattr(ranking, "PIECE", 400)
    scores, labels = draw()
    np.save(tmp_path / "scores.npy", scores[:90])
    buffer = np.empty((30, 9))

    def blocks():
        yield np.load(tmp_path / "scores.npy", mmap_mode="r"), labels[:90].tolist()
        for first in (90, 120):
            buffer[:] = scores[first : first + 30]
            yield buffer, labels[first : first + 30]
        yield np.zeros((0, 9)), np.zeros((0, 9))
        yield torch.from_numpy(scores[150:170]).bfloat16(), torch.from_numpy(labels[150:170])
        yield scores[170:].astype(np.float16), labels[170:].astype(np.float64)

    expected = metrics.average_precision(scores, labels)
    np.testing.assert_array_equal(ranking.streamed_average_precision(blocks()), expected)


def test_small_blocks_are_joined_and_large_ones_cut(monkeypatch):
    monkeypatch.setattr(ranking, "PIECE", 200)  # 22 rows of 9 columns
    scores, labels = draw()
    small = [(scores[i : i + 10], labels[i : i + 10]) for i in range(0, 200, 10)]
    joined = [len(part) for part, _ in ranking._pieces(small)]
    assert joined == [30] * 6 + [20]
    assert max(len(part) for part, _ in ranking._pieces([(scores, labels)])) <= 2 * 22


def test_only_known_entries_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(ranking, "PIECE", 500)
    scores, labels = draw()
    written = []

    def blocks():
        yield scores.astype(np.float32), labels
        written.extend(path.stat().st_size for path in tmp_path.rglob("*.*"))
        yield scores, labels

    ranking.streamed_average_precision(blocks(), tmp_path)
    assert sum(written) == 5 * np.count_nonzero(labels >= 0)


def test_blocks_without_any_image_have_no_score():
    found = ranking.streamed_average_precision([(np.zeros((0, 3)), np.zeros((0, 3)))])
    np.testing.assert_array_equal(found, [nan] * 3)
    assert ranking.streamed_average_precision([(np.zeros((2, 0)), np.zeros((2, 0)))]).shape == (0,)


def test_faults_of_blocks_are_told_with_their_number():
    good = np.zeros((2, 2)), np.ones((2, 2))
    with pytest.raises(LabelError, match=r"^block 1: labels must be 1, 0 or -1, not 3\.0: at"):
        ranking.streamed_average_precision([good, (good[0], 3 * good[1])])
    with pytest.raises(DataError, match="block 1 has 1 labels and those before it 2: give all"):
        ranking.streamed_average_precision([good, (good[0][:, :1], good[1][:, :1])])
    with pytest.raises(DataError, match="there is no block of scores"):
        ranking.streamed_average_precision([])


def test_a_disk_that_fails_is_told_and_what_the_blocks_raise_passes(tmp_path, monkeypatch):
    monkeypatch.setattr(ranking, "PIECE", 500)
    with pytest.raises(RunError, match=r"scores cannot be kept on disk .*name a folder with room"):
        ranking.streamed_average_precision([draw()], tmp_path / "nowhere")

    def lost():
        yield draw()
        for folder in tmp_path.iterdir():
            shutil.rmtree(folder)
        yield draw()

    with pytest.raises(RunError, match="scores cannot be kept on disk"):
        ranking.streamed_average_precision(lost(), tmp_path)

    def missing():
        yield draw()
        yield np.load(tmp_path / "shard.npy"), draw()[1]

    with pytest.raises(FileNotFoundError, match=r"shard\.npy"):
        ranking.streamed_average_precision(missing(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_streaming_holds_a_block_only(tmp_path, monkeypatch):
    monkeypatch.setattr(ranking, "PIECE", 2**16)
    monkeypatch.setattr(metrics, "BLOCK", 2**16)
    monkeypatch.setattr(metrics, "cores", lambda: 1)
    generator = np.random.default_rng(0)
    scores = generator.random((8192, 256), np.float32)
    labels = (generator.random(scores.shape) < 0.02).astype(np.int8)
    tracemalloc.start()
    ranking.streamed_average_precision([(scores, labels)], tmp_path)
    highest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert highest < scores.nbytes / 4


# Over ranks


def shards(world, seed=0):
    """Uneven parts of one table; with more than one rank, the second has no image."""
    scores, labels = draw(seed)
    edges = {1: [0, 200], 2: [0, 200, 200], 4: [0, 90, 90, 91, 200]}[world]
    return [(scores[a:b], labels[a:b]) for a, b in pairwise(edges)]


def selections(labels):
    """Labels [n, L] that are judged by AP, one of them without a negative, and by AUROC."""
    some = labels.copy()
    some[:, 3] = np.where(some[:, 3] == 0, -1, some[:, 3])
    return {"by AP": some, "by AUROC": np.where(labels == 1, labels, -1)}


def attempt(*given, how=ranking.sharded_average_precision, **options):
    try:
        return how(*given, **options)
    except DataError as error:
        return error.problems


def answers_of_rank(rank, world, folder):
    """All questions to one rank, in the same order as the others."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    scores, labels = shards(world)[rank]
    last = rank == world - 1
    answers = {
        "plain": attempt(scores, labels),
        "tensors": attempt(torch.from_numpy(scores).bfloat16(), torch.from_numpy(labels)),
        "two labels": attempt(scores[:, :2].astype(np.float32), labels[:, :2]),
        "types": attempt(scores.astype(np.float64 if last else np.float32) / 3, labels),
        "whole numbers": attempt((scores * 64).astype(np.int16), labels == 1),
        "nothing": attempt(scores[:0], labels[:0]),
        "fault": attempt(scores if not last else scores * nan, labels),
        "columns": attempt(scores[:, : 8 if last else 9], labels[:, : 8 if last else 9]),
    }
    for blocks in ("", " in rounds"):
        answers["thresholds" + blocks] = ranking.sharded(
            metrics.tune_thresholds, np.abs(scores).astype(np.float32), labels
        )
        for name, judged in selections(labels).items():
            answers[name + blocks] = ranking.sharded_select_scores(scores, judged)
        metrics.BLOCK, metrics.NARROWEST = 1, 1  # one label a rank and round
    answers["rounds"] = attempt(scores, labels)
    answers["fault of labels"] = attempt(
        scores, labels + 5 * last, how=ranking.sharded_select_scores
    )
    first_two = dist.new_group([0, 1]) if world == 4 else None
    if first_two and rank < 2:
        answers["group"] = attempt(scores, labels, group=first_two)
    dist.destroy_process_group()
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps(answers))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_agree_on_what_one_array_gives(world, tmp_path):
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=answers_of_rank, args=(rank, world, tmp_path), daemon=True)
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
        process.kill()  # no rank outlives the test
    assert [process.exitcode for process in ranks] == [0] * world
    scores, labels = draw()
    expected = metrics.average_precision(scores, labels)
    mixed = [part.astype(np.float32) / 3 for part, _ in shards(world)]
    mixed[-1] = shards(world)[-1][0] / 3
    last = f"rank {world - 1}: scores must be finite: at [row, column] [0, 0]"
    for rank in range(world):
        answers = pickle.loads((tmp_path / f"{rank}.pickle").read_bytes())
        for name in ("plain", "tensors", "rounds"):
            same(answers[name], expected)
        same(answers["two labels"], expected[:2])
        same(answers["types"], metrics.average_precision(np.concatenate(mixed), labels))
        same(answers["whole numbers"], metrics.average_precision(scores, labels == 1))
        same(answers["nothing"], np.full(9, nan))
        if world == 2:  # the last has no image, and so no fault
            same(answers["fault"], expected)
        else:
            assert answers["fault"][0].startswith(last)
        if world > 1:
            assert "labels: give all of them the same columns" in answers["columns"][0]
        if "group" in answers:
            same(answers["group"], metrics.average_precision(scores[:90], labels[:90]))
        for blocks in ("", " in rounds"):
            fitted = metrics.tune_thresholds(np.abs(scores).astype(np.float32), labels)
            np.testing.assert_array_equal(answers["thresholds" + blocks], fitted)
            for name, judged in selections(labels).items():
                values, criterion = metrics.select_scores(scores, judged)
                assert criterion in ranking.CRITERIA
                assert np.isnan(values[3]) == (name == "by AP")
                np.testing.assert_array_equal(answers[name + blocks][0], values)
                assert answers[name + blocks][1] == criterion
        if world != 2:
            fault = answers["fault of labels"][0]
            assert fault.startswith(f"rank {world - 1}: labels must be 1, 0 or -1")


def test_without_other_ranks_it_is_the_plain_metric():
    scores, labels = draw()
    expected = metrics.average_precision(scores, labels)
    np.testing.assert_array_equal(ranking.sharded_average_precision(scores, labels), expected)
    for judged in selections(labels).values():
        values, criterion = metrics.select_scores(scores, judged)
        found = ranking.sharded_select_scores(scores, judged)
        np.testing.assert_array_equal(found[0], values)
        assert found[1] == criterion


@pytest.mark.parametrize(("count", "ranks", "images"), [(600, 4, 125_436), (3, 4, 9), (0, 2, 9)])
def test_every_label_has_one_rank(count, ranks, images):
    rounds = ranking._shares(count, ranks, images)
    taken = [label for shares in rounds for share in shares for label in share]
    assert taken == list(range(count))
    widths = [len(share) for shares in rounds for share in shares]
    assert max(widths) - min(widths) <= 1
    assert max(widths) <= metrics.width_of_block(images)


# Huge label spaces


def draw_top(seed=0, images=50, labels=12, k=5):
    """Scores as a ranking, and the same labels dense and as a table."""
    generator = np.random.default_rng(seed)
    dense = generator.choice([-1, 0, 1], (images, labels), p=[0.3, 0.5, 0.2]).astype(np.int8)
    dense[3] = 0  # nothing positive
    dense[4] = -1  # nothing known
    top = np.argsort(generator.random((images, labels)), axis=1)[:, :k]
    return top, dense, LabelTable.from_dense(dense)


def precision_by_loops(top, dense, k, unknown_counts):
    shares = []
    for row, labels in zip(top, dense, strict=True):
        seen = [labels[label] for label in row[:k] if unknown_counts or labels[label] >= 0]
        if seen:
            shares.append(sum(label == 1 for label in seen) / len(seen))
    return np.mean(shares)


def propensity_scored_by_loops(top, dense, propensities, k, unknown_counts):
    gained = best = 0.0
    for row, labels in zip(top, dense, strict=True):
        seen = [label for label in row[:k] if unknown_counts or labels[label] >= 0]
        gained += sum(1 / propensities[label] for label in seen if labels[label] == 1)
        weights = sorted((1 / propensities[labels == 1]).tolist(), reverse=True)
        best += sum(weights[: len(seen)])
    return gained / best


@pytest.mark.parametrize("together", [1, 7, ranking.IMAGES])
@pytest.mark.parametrize("unknown_counts", [True, False])
def test_precisions_at_k_equal_loops(unknown_counts, together, monkeypatch):
    monkeypatch.setattr(ranking, "IMAGES", together)
    top, dense, table = draw_top()
    positives = ranking.entries(table, 1)
    negatives = None if unknown_counts else ranking.entries(table, 0)
    propensities = np.linspace(0.1, 1, 12)
    plain = ranking.precision_at_k(top, positives, negatives)
    scored = ranking.propensity_scored_precision_at_k(top, positives, propensities, negatives)
    for k in range(1, 6):
        same(plain[k - 1], precision_by_loops(top, dense, k, unknown_counts))
        expected = propensity_scored_by_loops(top, dense, propensities, k, unknown_counts)
        same(scored[k - 1], expected)


def test_equal_propensities_and_the_best_ranking_give_one():
    _, dense, table = draw_top()
    positives = ranking.entries(table, 1)
    best = np.argsort(-dense, axis=1, kind="stable")[:, :5]
    propensities = np.full(12, 0.5)
    scored = ranking.propensity_scored_precision_at_k(best, positives, propensities)
    np.testing.assert_allclose(scored, 1)


def test_propensities_worked_by_hand():
    scale = (math.log(1000) - 1) * 2.5**0.55
    expected = [1 / (1 + scale * math.exp(-0.55 * math.log(n + 1.5))) for n in (0, 5, 1000)]
    np.testing.assert_allclose(ranking.label_propensities([0, 5, 1000], 1000), expected)
    scale = (math.log(1000) - 1) * 3.6**0.6
    other = ranking.label_propensities([7], 1000, a=0.6, b=2.6)
    np.testing.assert_allclose(other, 1 / (1 + scale * 9.6**-0.6))


def test_entries_need_not_be_sorted_and_labels_can_be_many():
    huge = 10**12
    positives = Entries(np.array([0, 3, 3, 4]), np.array([huge, 2, 0, huge]))
    top = np.array([[huge, 1], [huge, 0], [0, huge]])
    np.testing.assert_allclose(ranking.precision_at_k(top, positives), [1 / 3, 1 / 3])
    nothing = Entries(np.zeros(4, int), np.zeros(0, int))
    np.testing.assert_array_equal(ranking.precision_at_k(top, positives, nothing), [1, 1])
    np.testing.assert_array_equal(ranking.precision_at_k(top, nothing), [0, 0])
    np.testing.assert_array_equal(ranking.precision_at_k(top, nothing, nothing), [nan, nan])
    small = np.tile([3, 1], (3, 1))
    scored = ranking.propensity_scored_precision_at_k(small, nothing, np.ones(8))
    np.testing.assert_array_equal(scored, [nan, nan])


def test_entries_of_a_table_are_its_known_labels():
    table = LabelTable.from_dense([[1, 0, -1], [-1, -1, -1], [0, 1, 1]])
    for value, indptr, indices in ((1, [0, 1, 1, 3], [0, 1, 2]), (0, [0, 1, 1, 2], [1, 0])):
        found = ranking.entries(table, value)
        np.testing.assert_array_equal(found.indptr, indptr)
        np.testing.assert_array_equal(found.indices, indices)


def test_ranks_that_have_not_met_are_told_to(monkeypatch) -> None:
    """Each would take its own images for all that there are."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for measure in (ranking.sharded_average_precision, ranking.sharded_select_scores):
        with pytest.raises(PartlyError, match="init_process_group"):
            measure([[0.5]], [[1]])


def test_blocks_that_are_no_pairs_are_told() -> None:
    with pytest.raises(DataError, match="block 0 is no pair of scores and labels"):
        ranking.streamed_average_precision(list(draw()))


def test_rows_of_scipy_do_as_well_as_those_of_a_table() -> None:
    table = LabelTable.from_dense([[1, 0, -1], [1, 1, 0]])
    matrix = csr_matrix(table.dense() == 1)
    top = [[2, 0], [1, 0]]
    for positives in (matrix, ranking.entries(table, 1)):
        assert ranking.precision_at_k(top, positives).tolist() == [0.5, 0.75]
    for wrong, message in (
        (csr_matrix(table.dense()), "values that are not above 0"),
        (matrix.tocsc(), "compressed by csc, not by rows"),
        (np.array(["a"]), "have indptr and indices, not ndarray"),
        ("a,b", "have indptr and indices, not str"),
        (DataFrame({"data": ["a"]}), "have indptr and indices, not DataFrame"),
    ):
        with pytest.raises(LabelError, match=f"positives .*{message}"):
            ranking.precision_at_k(top, wrong)


ONE = Entries(np.array([0, 1]), np.array([0]))


@pytest.mark.parametrize(
    ("top", "positives", "error", "message"),
    [
        ([[1], [1, 2]], ONE, DataError, r"top must be whole numbers of shape \[N, k\]: "),
        ([[0]], [[0]], LabelError, r"positives are ranking.entries\(table, value\).*, not list"),
        ([0.5], ONE, DataError, r"top must be whole numbers of shape \[N, k\], not float64"),
        ([[-1]], ONE, DataError, "top must hold numbers of labels, from 0 on"),
        ([[1, 2, 1]], ONE, DataError, "top names a label twice in the rows 0"),
        ([[0], [1]], ONE, LabelError, "positives have rows for 1 images and top has 2"),
        ([[0]], Entries(np.array([0, 2]), np.array([0])), LabelError, "must rise from 0 to 1"),
        ([[0]], Entries(np.array([0, 1]), np.array([-3])), LabelError, "numbers of labels"),
        ([[0]], Entries(np.array([0, 1]), np.array([0.5])), LabelError, "whole numbers"),
        ([[0]], Entries(np.array([0, 2]), np.array([4, 4])), LabelError, "the same label twice"),
    ],
)
def test_faults_of_the_first_labels_are_told(top, positives, error, message):
    with pytest.raises(error, match=message):
        ranking.precision_at_k(top, positives)
    with pytest.raises(error, match=message):
        ranking.propensity_scored_precision_at_k(top, positives, np.ones(9))
    with pytest.raises(PartlyError):
        ranking.precision_at_k([[0, 1]], ONE, Entries(np.array([0, 3]), np.array([1])))


def test_faults_of_propensities_are_told():
    for propensities, message in (
        ([1.0], "shape .* and labels go up to 1"),
        ([0.0, 1.0], "above 0 and not above 1"),
        ([nan, 1.0], "above 0 and not above 1"),
    ):
        with pytest.raises(DataError, match=message):
            ranking.propensity_scored_precision_at_k([[1]], ONE, propensities)
    with pytest.raises(DataError) as caught:
        ranking.label_propensities([-1], 2)
    assert len(caught.value.problems) == 2
    with pytest.raises(DataError, match=r"train_positives must be counts \[L\]"):
        ranking.label_propensities([[1]], 10)
