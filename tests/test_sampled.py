"""The head whose labels are drawn: what a step is about, what it changes, what it costs."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from builders import partly_works
from partly import methods, propensity, pseudo, sampled, starting, training
from partly.config import Config
from partly.errors import ConfigError
from partly.labels import LabelTable
from partly.sampled import RowAdam, SampledHead, average_precisions, top_labels
from partly.training import train

IMAGES, LABELS, FEATURES = 600, 120, 16


def many_labels(images: int = IMAGES, seed: int = 0) -> LabelTable:
    """Images of a few labels each, known positives alone; each label has a direction."""
    fixed, drawn = np.random.default_rng(7), np.random.default_rng(seed)
    directions = fixed.normal(size=(LABELS, FEATURES))
    frequency = 1 / (np.arange(LABELS) + 3)
    cells = {
        (row, label)
        for row in range(images)
        for label in drawn.choice(LABELS, 3, p=frequency / frequency.sum())
    }
    rows, columns = np.array(sorted(cells)).T
    features = 0.3 * drawn.normal(size=(images, FEATURES))
    np.add.at(features, rows, directions[columns])
    return LabelTable.from_entries(
        rows,
        columns,
        np.ones(len(rows), np.int8),
        ids=np.arange(images),
        names=[f"label {n}" for n in range(LABELS)],
        features=features.astype(np.float32),
    )


def open_head(table: LabelTable, q: float | str = 0.1, seed: int = 0) -> SampledHead:
    layer = nn.Linear(FEATURES, len(table.names))
    return SampledHead(layer, table, q=q, epochs=4, seed=seed)


def test_a_step_is_about_all_known_labels_and_a_share_of_the_others() -> None:
    table, rows = many_labels(), np.arange(4)
    head, known = open_head(table), np.flatnonzero((table.dense(rows) != -1).any(axis=0))
    counts = np.zeros(LABELS)
    for step in range(2000):
        columns = head.draw(rows, 1, step).open().columns.numpy()
        assert (np.diff(columns) > 0).all()
        counts[columns] += 1
    assert (counts[known] == 2000).all()
    others = np.delete(counts, known) / 2000
    assert others.mean() == pytest.approx(0.1, abs=0.01)
    assert abs(others - 0.1).max() < 0.04


def test_many_labels_are_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SampledHead, "round_to", lambda *_: 8)
    head, rows = open_head(many_labels()), np.arange(4)
    for step in range(50):
        columns = head.draw(rows, 1, step).open().columns.numpy()
        assert len(columns) % 8 == 0
        assert (np.diff(columns) > 0).all()


def test_how_far_labels_are_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_head(many_labels()).round_to(4, 0.1) == 1  # too few to matter
    head, few = open_head(many_labels()), open_head(many_labels(), 0.9)
    monkeypatch.setattr(sampled, "MANY", 16)
    for images, unit in ((4, 1), (16, 2)):
        drawn = LABELS - head.missed(images, 0.1).sum()
        assert head.round_to(images, 0.1) == unit
        assert unit * 16 <= drawn < unit * 32
    assert few.round_to(4, 0.9) == 1  # nearly all: there is no room


def test_draws_follow_the_seed_and_the_step_alone() -> None:
    table, rows = many_labels(), np.arange(4)
    first, again = open_head(table), open_head(table)
    again.draw(rows, 1, 3)

    def drawn(head: SampledHead, step: int) -> list[int]:
        return head.draw(rows, 1, step).open().columns.tolist()

    assert drawn(first, 5) == drawn(again, 5)
    assert len(drawn(first, 5)) != LABELS
    assert drawn(first, 5) != drawn(first, 6)
    assert drawn(first, 5) != drawn(open_head(table, seed=1), 5)


@pytest.mark.parametrize("rounding", [1, 8])
def test_steps_that_are_drawn_together_are_those_that_are_drawn_alone(
    rounding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last of the batches are a little smaller, and are rounded to less.
    monkeypatch.setattr(SampledHead, "round_to", lambda _, size, q: rounding * (size - 6))
    table, chunks = many_labels(), np.array_split(np.arange(50), 7)
    together, alone = open_head(table), open_head(table)
    together.look_ahead(chunks, 1, 10)
    for step, rows in enumerate(chunks, start=10):
        here, there = (head.draw(rows, 1, step).open() for head in (together, alone))
        assert torch.equal(here.columns, there.columns)
        assert len(here.columns) % (rounding * (len(rows) - 6)) == 0
        for found in (here, there):
            labels = torch.full((len(rows) * len(found.columns) + 1,), -1, dtype=torch.int8)
            labels[found.places] = found.values.to(torch.int8)
            expected = table.dense(rows, found.columns.numpy())
            assert np.array_equal(labels[:-1].view(len(rows), -1), expected)
    assert not together.ahead


def test_labels_are_drawn_before_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of those that are there, those that follow, in the next epoch too."""
    monkeypatch.setattr(sampled, "TOGETHER", 8)
    table, blocks = many_labels(), []
    state = starting.start(table, config(epochs=2).complete(table))
    look_ahead = state.sampled.look_ahead

    def noted(chunks, epoch, step):
        blocks.append((state.step, epoch, step, len(chunks)))
        look_ahead(chunks, epoch, step)

    monkeypatch.setattr(state.sampled, "look_ahead", noted)
    for state.epoch in (1, 2):
        for batch in state.batches():
            training.take_step(state, *batch)
    # 19 steps an epoch: at step, of epoch, from step on, so many.
    first = [(0, 1, 0, 8), (4, 1, 8, 8), (12, 1, 16, 3)]
    assert blocks == [*first, (17, 2, 19, 8), (23, 2, 27, 8), (31, 2, 35, 3)]
    assert not state.sampled.ahead


def test_images_of_which_nothing_is_known_are_drawn_too() -> None:
    table = LabelTable.from_dense([[1, -1, -1], [-1] * 3, [-1] * 3], features=np.zeros((3, 2)))
    head = SampledHead(nn.Linear(2, 3), table, q=0.5, epochs=1, seed=0)
    head.look_ahead([np.array([1]), np.array([2, 0])], 1, 0)
    nothing = head.draw(np.array([1]), 1, 0).open()
    something = head.draw(np.array([2, 0]), 1, 1).open()
    assert (nothing.places == len(nothing.columns)).all()
    assert 0 in something.columns
    assert something.values.sum() == 1


def test_a_ramp_gets_there() -> None:
    rows, head = np.arange(4), open_head(many_labels(), "0.05:0.99")
    assert len(head.draw(rows, 1, 0).open().columns) < LABELS // 2
    assert len(head.draw(rows, 4, 0).open().columns) > 0.95 * LABELS


@pytest.mark.parametrize("rounding", [1, 8])
def test_the_chance_of_a_label_to_be_drawn_is_what_it_is(
    rounding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SampledHead, "round_to", lambda *_: rounding)
    table, batch = many_labels(), 20
    head, random = open_head(table), np.random.default_rng(0)
    there = np.zeros(LABELS)
    for step in range(3000):
        drawn = head.draw(random.choice(IMAGES, batch, replace=False), 1, step).open()
        there[drawn.columns.numpy()] += 1
    assert abs(head.present.numpy() - there / 3000).max() < 0.04


@pytest.mark.parametrize("batch", [1, 2, 6])
def test_the_chance_of_an_unknown_entry_to_be_there_is_what_it_is(batch: int) -> None:
    """Its own image does not bring its label: of few images that is a difference."""
    labels, random = np.full((40, 12), -1), np.random.default_rng(0)
    labels[random.random((40, 12)) < np.repeat([0.1, 0.5, 0.8], 4)] = 1
    head = open_head(LabelTable.from_dense(labels, features=np.zeros((40, FEATURES))))
    there, of = np.zeros(12), np.zeros(12)
    for step in range(6000):
        rows = random.choice(40, batch, replace=False)
        unknown = (labels[rows] == -1).sum(axis=0)
        columns = head.draw(rows, 1, step).open().columns.numpy()
        there[columns] += unknown[columns]
        of += unknown
    assert abs(head.chance.numpy() - there / of).max() < 0.06


def test_rows_are_those_that_were_drawn_for() -> None:
    head = open_head(many_labels())
    head.look_ahead([np.arange(4)], 1, 0)
    with pytest.raises(AssertionError):
        head.draw(np.arange(4, 8), 1, 0)


def test_a_line_grows_and_does_not_shrink() -> None:
    """So that a step of the last images of an epoch has the shape of the others."""
    head = open_head(many_labels())
    shapes = []
    for step, images in enumerate((20, 3, 40, 20)):
        head.look_ahead([np.arange(images)], 1, step)
        shapes.append(head.draw(np.arange(images), 1, step).rooms)
    assert shapes[0] == shapes[1]
    assert shapes[2] == shapes[3] != shapes[0]


def test_a_step_is_filled_up_by_its_own_candidates_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nearly all labels are there already, candidates run out; others in its block have more
    of them."""
    units = {4: 16, 5: 64}
    monkeypatch.setattr(SampledHead, "round_to", lambda _, size, q: units[size])
    table, chunks = many_labels(), [np.arange(4), np.arange(5), np.arange(4)]
    for q in (0.1, 0.7, 0.8, 0.9, 0.97):
        together, alone = open_head(table, q), open_head(table, q)
        together.look_ahead(chunks, 1, 0)
        for step, rows in enumerate(chunks):
            here, there = (head.draw(rows, 1, step).open() for head in (together, alone))
            assert torch.equal(here.columns, there.columns)


def test_one_label_can_be_drawn() -> None:
    one = LabelTable.from_dense([[1], [-1]], features=np.zeros((2, FEATURES)))
    assert open_head(one).draw(np.arange(2), 1, 0).open().columns.tolist() == [0]


def test_a_label_that_is_known_everywhere_is_always_there() -> None:
    table = LabelTable.from_dense([[1, -1, -1], [0, 1, -1]], features=np.zeros((2, FEATURES)))
    head = open_head(table)
    head.expect(1, 1)
    assert head.present[0] == 1
    assert head.present[2] == pytest.approx(1 / 3)  # a tenth of three labels is one draw
    assert torch.isfinite(head.chance).all()


@pytest.mark.parametrize(("labels", "q"), [(20, 0.001), (20, 0.1), (7, 0.3), (50, 0.9)])
def test_the_chance_is_that_of_whole_draws(labels: int, q: float) -> None:
    """Of few labels a small share is less than one."""
    unknown = LabelTable.from_dense([[-1] * labels] * 2, features=np.zeros((2, FEATURES)))
    head = open_head(unknown, q)
    steps = [len(head.draw(np.arange(2), 1, step).open().columns) for step in range(3000)]
    assert np.mean(steps) / labels == pytest.approx(float(head.chance[0]), rel=0.02)


def test_the_chance_follows_the_size_of_the_batch() -> None:
    head = open_head(many_labels())
    head.draw(np.arange(20), 1, 0)
    large = head.chance.clone()
    head.draw(np.arange(3), 1, 1)
    assert (head.chance < large).all()
    head.draw(np.arange(20), 1, 2)
    assert torch.equal(head.chance, large)


def test_only_the_drawn_rows_move_as_with_sparse_adam() -> None:
    torch.manual_seed(0)
    head = open_head(many_labels())
    weight, bias = (p.clone() for p in head.layer.parameters())
    table = nn.Embedding.from_pretrained(weight.clone(), freeze=False, sparse=True)
    ours = RowAdam([{"params": [p]} for p in head.layer.parameters()], head, lr=0.01)
    theirs = torch.optim.SparseAdam(table.parameters(), lr=0.01, eps=1e-15, betas=sampled.BETAS)
    for step in range(5):
        columns = torch.tensor([1, 4, 7 + step])
        head.take(columns)
        slope = torch.randn(3, FEATURES)
        ((head.rows[0] * slope).sum() + head.rows[1].sum()).backward()
        (table(columns) * slope).sum().backward()
        ours.set_pace()
        ours.step()
        theirs.step()
        theirs.zero_grad()
    assert torch.allclose(head.layer.weight, table.weight, atol=1e-7)
    still = torch.ones(LABELS, dtype=torch.bool)
    still[[1, 4, *range(7, 12)]] = False
    assert torch.equal(head.layer.weight[still], weight[still])
    assert torch.equal(head.layer.bias[still], bias[still])
    assert not torch.equal(head.layer.bias[[1, 4]], bias[[1, 4]])


def test_decay_makes_up_for_the_steps_a_row_was_not_drawn() -> None:
    head = open_head(many_labels())
    nn.init.ones_(head.layer.weight)
    group = {"params": list(head.layer.parameters()), "weight_decay": 0.5}
    optimiser = RowAdam([group], head, lr=0.0)
    head.expect(2, 1)
    head.take(torch.tensor([3]))
    (0 * (head.rows[0].sum() + head.rows[1].sum())).backward()
    optimiser.step()
    moved = optimiser.state[head.layer.weight]["mean"][3]
    assert torch.allclose(moved, (1 - sampled.BETAS[0]) * 0.5 / head.present[3].expand(FEATURES))


@pytest.mark.parametrize("entries", [1, 50, 10_000])
@pytest.mark.parametrize("k", [1, 5, LABELS + 3])
def test_the_best_labels_are_exact_whatever_the_blocks(
    entries: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled, "ENTRIES", entries)
    torch.manual_seed(1)
    layer, features = nn.Linear(FEATURES, LABELS), torch.randn(7, FEATURES)
    places, best = top_labels(features, layer, k)
    logits = layer(features)
    expected = logits.topk(min(k, LABELS), dim=1)
    assert torch.allclose(best, expected.values, atol=1e-6)
    assert torch.allclose(logits.gather(1, places), expected.values, atol=1e-6)


def test_average_precision_by_blocks_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from partly.metrics import average_precision

    random = np.random.default_rng(0)
    labels = random.integers(-1, 2, size=(40, 9)).astype(np.int8)
    labels[:, 2], labels[:, 5] = -1, np.abs(labels[:, 5])
    features = torch.randn(40, FEATURES)
    layer = nn.Linear(FEATURES, 9)
    expected = average_precision(layer(features).detach().numpy(), labels)
    one_sided = ~((labels == 0).any(axis=0) & (labels == 1).any(axis=0))
    expected[one_sided] = np.nan
    monkeypatch.setattr(sampled, "ENTRIES", 80)
    with torch.no_grad():
        found = average_precisions(features, layer, LabelTable.from_dense(labels))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_gradient_of_what_is_drawn() -> None:
    """Written out: the loss sees logits shifted by half of log 1/ρ where positives alone are known
    and all of them are, and is a mean over all labels, drawn or not."""
    torch.manual_seed(0)
    table = many_labels()
    facts = propensity.estimate(table, 1.000001 * table.known / len(table))
    training = methods.Training(table, facts, epochs=4)
    step = methods.get("partly").start(training, {"q": 0.1, "teacher": "self", "focus": 0.0})
    columns, rows = np.array([0, 3, 50, 119]), np.arange(8)
    chance = torch.linspace(0.1, 1.0, LABELS)
    labels = torch.from_numpy(table.dense(rows, columns))
    logits = torch.randn(8, 4, requires_grad=True)
    drawn = {"columns": torch.from_numpy(columns), "chance": chance}
    batch = methods.Batch(torch.from_numpy(rows), labels, 1, **drawn)
    (found,) = torch.autograd.grad(step(logits, batch), logits)
    shifted = logits.detach() - 0.5 * torch.log(chance[columns])
    expected = (torch.sigmoid(shifted) - (labels == 1).float()) / (8 * LABELS)
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-7)


def test_a_whole_tilt_leaves_rare_labels_as_likely_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = many_labels(3000)
    rare = table.counts_by_label().positive < 40

    def expected(**more: object) -> float:
        found = train(table, config(epochs=20, **more), quiet=True).probabilities(table)
        return float(found[:, rare].sum() / len(table))

    truth = table.counts_by_label().positive[rare].sum() / len(table)
    found = {}
    for tilt in (0.0, 0.5, 1.0):
        monkeypatch.setattr(pseudo, "TILT", tilt)
        found[tilt] = expected()
    assert found[1.0] == pytest.approx(truth, rel=0.15)
    assert found[1.0] < found[0.5] < found[0.0]
    assert found[0.0] > 1.5 * truth


@pytest.mark.parametrize("method", ["partly", "paper"])
def test_all_columns_at_a_chance_of_one_are_the_full_step(method: str) -> None:
    table = many_labels()
    facts = propensity.estimate(table, 3.5)
    labels = torch.from_numpy(table.dense(np.arange(8)))
    logits = torch.randn(8, LABELS, requires_grad=True)
    full = methods.Batch(torch.arange(8), labels, 1)
    every = replace(full, columns=torch.arange(LABELS), chance=torch.ones(LABELS))
    slopes = []
    for batch in (full, every):
        step = methods.get(method).start(methods.Training(table, facts, epochs=4), {"q": 1.0})
        slopes.append(torch.autograd.grad(step(logits, batch), logits)[0])
    assert torch.allclose(*slopes, atol=1e-8)


def config(**more: object) -> Config:
    given = {
        "options": {"q": 0.05, "teacher": "self", "focus": 0.0},
        "head": "sampled",
        "epochs": 12,
        "batch_size": 32,
        "learning_rate": 0.05,
        "hold_out": 0.0,
        "expected_positives": 3.0,
        "device": "cpu",
    }
    return Config(**(given | more))  # type: ignore[arg-type]


def first_hits(table: LabelTable, **more: object) -> float:
    """Of new images, the share whose first label is one of theirs."""
    test = many_labels(200, seed=1)
    columns, probabilities = train(table, config(**more), quiet=True).top(test, 2)
    assert ((probabilities > 0) & (probabilities < 1)).all()
    return float((test.dense()[np.arange(200), columns[:, 0]] == 1).mean())


def test_what_is_drawn_is_enough_to_learn_from() -> None:
    table = many_labels()
    share = first_hits(table)
    full = first_hits(table, head="full", options={"teacher": "self", "focus": 0.0})
    assert share > 0.7
    assert share > full - 0.05


def test_the_paper_is_sampled_too() -> None:
    options = {"q": 0.05, "share": "off"}
    assert first_hits(many_labels(), method="paper", options=options) > 0.4


def test_a_network_in_front_is_trained_as_ever() -> None:
    assert first_hits(many_labels(), backbone="mlp:32", learning_rate=0.01) > 0.4


def test_a_run_goes_on_where_it_was(tmp_path) -> None:
    table = many_labels()
    whole = train(table, config(epochs=4, checkpoint_steps=7), tmp_path / "whole", quiet=True)

    taken = []

    def stop(*given):
        if len(taken) == 45:
            raise KeyboardInterrupt
        taken.append(1)
        return step(*given)

    step = training.take_step
    training.take_step = stop
    try:
        with pytest.raises(KeyboardInterrupt):
            train(table, config(epochs=4, checkpoint_steps=7), tmp_path / "cut", quiet=True)
    finally:
        training.take_step = step
    resumed = train(
        table, config(epochs=4, checkpoint_steps=7), tmp_path / "cut", quiet=True, resume=True
    )
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name])


def test_one_c_for_all_where_an_image_has_one_known_positive(capsys) -> None:
    table = many_labels(methods.MANY)
    single = table.keep(np.diff(table.rows, prepend=-1) > 0)
    for head, said in (("full", True), ("sampled", False)):
        options = {"teacher": "self"} | ({"q": 0.05} if head == "sampled" else {})
        train(single, config(head=head, epochs=1, batch_size=1000, options=options))
        assert ("smaller where an image has more" in capsys.readouterr().err) == said


def test_a_study_of_many_labels_is_refused(tmp_path) -> None:
    from partly.experiments import compare

    with pytest.raises(ConfigError, match="head is full there"):
        compare(tmp_path, tmp_path / "out", methods=["partly"], config=config())


def test_from_a_table_to_a_run_to_its_first_labels(tmp_path) -> None:
    """All of it, as a user has it."""
    table, test = many_labels(), many_labels(200, seed=1)
    known = {
        f"E_{part}": np.stack([one.rows, one.indices], axis=1)
        for part, one in (("train", table), ("test", test))
    }
    features = {"X_train": table.features, "X_test": test.features}
    np.savez(tmp_path / "data.npz", **features, **known, names=table.names)
    np.savez(tmp_path / "new.npz", X=test.features)
    given = ["--head", "sampled", "--set", "q=0.05", "--epochs", 6, "--lr", 0.05]
    run = tmp_path / "run"
    said = partly_works("train", tmp_path / "data.npz", "--out", run, *given, "--batch-size", 32)
    assert "is kept" in said.err
    assert "P@5" in said.out
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["criterion"] == "known positives among the first 5 labels"
    assert lines[-1]["validation_score"] > lines[0]["validation_score"]
    assert not (run / "thresholds.json").exists()
    said = partly_works("evaluate", run, tmp_path / "data.npz")
    assert "P@1" in said.out
    scores = tmp_path / "first.csv"
    partly_works("predict", run, tmp_path / "new.npz", "--top", 2, "--out", scores)
    rows = scores.read_text().splitlines()
    assert rows[0] == "id,label,probability"
    assert len(rows) == 1 + 2 * 200
    assert rows[1].split(",")[1] in table.names


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"options": {}}, "set q between 0 and 1"),
        ({"options": {"q": 0}}, "set q between 0 and 1"),
        ({"options": {"q": "0.2:1"}}, "set q between 0 and 1"),
        ({"method": "paper", "options": {}}, "set q between 0 and 1"),
        ({"method": "an", "options": {}}, "partly, paper"),
        ({"pseudo_labels": "disk"}, "choose sparse"),
        ({"mix": "logicmix"}, "mix none"),
        ({"optimiser": "sgd"}, "optimiser adam"),
        ({"ema": 0.9}, "average"),
        ({"head": "small"}, "full, sampled"),
    ],
)
def test_what_cannot_be_sampled_is_said(more: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        train(many_labels(), config(**more), quiet=True)


def test_a_table_that_leaves_nothing_to_sample_is_said() -> None:
    some = many_labels()
    full = LabelTable.from_dense(np.maximum(some.dense(), 0), features=some.features)
    for table, told in ((some, False), (full, True)):
        state = starting.start(table, config().complete(table))
        assert any("saves little here" in note for note in state.training.notes) == told
