"""The registry of methods, and one battery for everything that is registered in it."""

import inspect
import io
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from partly import draws, losses, methods, mixing
from partly.config import Config
from partly.distributed import Shard
from partly.errors import ConfigError
from partly.hiding import hide
from partly.labels import LabelTable
from partly.losses.common import attend
from partly.methods import Batch, Step, Training
from partly.metrics import average_precision
from partly.propensity import estimate
from partly.pseudo import chance_of_single, posterior

# fmt: off
DESIGNED = [
    "bce", "bce_ls", "ign", "an", "an_ls", "wan", "epr", "focal", "asl", "em", "hill", "splc",
    "ll-r", "ll-ct", "ll-cp", "partial_bce", "csl", "spa", "role", "paper", "partly",
    "curriculum",
]
# fmt: on
EPOCHS = 6
EVERY_METHOD = pytest.mark.parametrize("name", methods.available())
# Where the name of a method is not that of the function that publishes its defaults.
LOSSES = {"ll-r": "ll", "ll-ct": "ll", "ll-cp": "ll", "paper": "paper_loss", "partly": "consistent"}
LOSSES |= {"curriculum": "ign"}
OF_THEIR_OWN = ("ll-cp", "curriculum", "role", "paper", "partly")  # more than the loss they use


def easy_data(images: int = 120, labels: int = 5) -> tuple[Tensor, np.ndarray]:
    """Features [N, 8] and full labels [N, L] that a linear model separates, 30 % positive."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(images, 8))
    scores = features @ generator.normal(size=(8, labels))
    full = (scores > np.quantile(scores, 0.7, axis=0)).astype(np.int8)
    return torch.from_numpy(features).float(), full


def training_on(labels: np.ndarray, seed: int = 0) -> Training:
    table = LabelTable.from_dense(labels)
    return Training(table, estimate(table), epochs=EPOCHS, seed=seed)


def batch_of(training: Training, rows: Any = slice(None), epoch: int = 1) -> Batch:
    chosen = np.arange(len(training.table))[rows]
    return Batch(torch.from_numpy(chosen), torch.from_numpy(training.table.dense(chosen)), epoch)


def fit(name: str, features: Tensor, training: Training) -> tuple[nn.Linear, list[float]]:
    """Six short epochs of a linear model, with its estimates where the method has some."""
    torch.manual_seed(0)
    model = nn.Linear(features.shape[1], len(training.table.names))
    step = methods.get(name).start(training)
    optimisers: list[torch.optim.Optimizer] = [torch.optim.Adam(model.parameters(), lr=0.05)]
    if training.estimates is not None:
        optimisers.append(torch.optim.SparseAdam(training.estimates.parameters(), lr=0.5))
    history = []
    for epoch in range(1, EPOCHS + 1):
        for rows in np.array_split(draws.order(0, epoch, len(features)), 4):
            loss = step(model(features[rows]), batch_of(training, rows, epoch))
            for optimiser in optimisers:
                optimiser.zero_grad()
            loss.backward()
            for optimiser in optimisers:
                optimiser.step()
            history.append(loss.item())
    return model, history


def some_steps(step: Step, training: Training, epochs: range = range(1, 4)) -> list[float]:
    """The losses of a few steps on logits that move; every third image is said "no" to."""
    generator = torch.Generator().manual_seed(len(epochs))
    shape = len(training.table), len(training.table.names)
    found = []
    for epoch in epochs:
        logits = torch.randn(shape, generator=generator)
        logits[::3] -= 6
        found.append(step(logits, batch_of(training, epoch=epoch)).item())
    return found


# The registry


def test_everything_designed_is_available() -> None:
    assert set(DESIGNED) <= set(methods.available())


@pytest.mark.parametrize(
    ("asked", "found"),
    [("ll_cp", "ll-cp"), ("LL-R", "ll-r"), ("an-ls", "an_ls"), (" Partly ", "partly")],
)
def test_hyphens_underscores_and_case_do_not_matter(asked: str, found: str) -> None:
    assert methods.get(asked).name == found


@pytest.mark.parametrize(("asked", "meant"), [("rolle", "role"), ("partial-bce2", "partial_bce")])
def test_did_you_mean(asked: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'") as caught:
        methods.get(asked)
    assert all(name in str(caught.value) for name in methods.available())


def test_a_name_like_no_other_gets_the_list_only() -> None:
    with pytest.raises(ConfigError, match="no method 'xyzzy'; available: ") as caught:
        methods.get("xyzzy")
    assert "did you mean" not in str(caught.value)


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test registers is gone after it."""
    monkeypatch.setattr(methods, "_REGISTRY", dict(methods._REGISTRY))


@pytest.mark.usefixtures("own_registry")
def test_a_registered_function_is_a_method() -> None:
    @methods.method("own", "a test", parts={"slope": {"slope": 0.0}})
    def _own(training: Training, *, slope: float = 2.0) -> Step:
        return lambda logits, batch: slope * logits.sum() + len(training.table)

    assert "own" in methods.available()
    assert methods.get("own").options == {"slope": 2.0}
    training = training_on(np.array([[1, 0], [0, 1]]))
    logits, batch = torch.ones(2, 2), batch_of(training)
    assert methods.get("own").start(training)(logits, batch) == 10
    assert methods.get("own").start(training, {"slope": 0.5})(logits, batch) == 4


@pytest.mark.usefixtures("own_registry")
def test_a_registered_loss_is_told_what_training_knows() -> None:
    seen: dict[str, Any] = {}

    def loss(
        logits: Tensor,
        labels: Tensor,
        *,
        epoch: int,
        priors: Tensor,
        expected_positives: float,
        scale: float = 3.0,
        reduction: str = "mean",
    ) -> Tensor:
        seen.update(epoch=epoch, priors=priors, expected_positives=expected_positives)
        return scale * logits.sum()

    methods.from_loss("own", "a test", loss)
    assert methods.get("own").options == {"scale": 3.0}
    training = training_on(np.array([[1, 0, 1], [0, 1, -1]]))
    step = methods.get("own").start(training, {"scale": 1.0})
    assert step(torch.ones(2, 3), batch_of(training, epoch=4)) == 6
    assert seen["epoch"] == 4
    assert seen["expected_positives"] == training.propensity.expected_positives
    assert seen["priors"].numpy() == pytest.approx(training.propensity.priors)


def test_the_registry_is_left_as_it_was() -> None:
    assert "own" not in methods.available()


# The battery


@EVERY_METHOD
def test_learns_what_is_easy(name: str) -> None:
    features, full = easy_data()
    training = training_on(full if methods.get(name).reference else hide(full, "pal:0.5", seed=1))
    model, history = fit(name, features, training)
    assert all(math.isfinite(loss) for loss in history)
    with torch.no_grad():
        scores = methods.get(name).probability(model(features), {}).numpy()
    assert average_precision(scores, full).mean() > 0.75  # chance is 0.3


@EVERY_METHOD
@pytest.mark.parametrize("setting", ["fal", "pal:0.3", "ppl:0.6", "spl"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_finite_in_every_setting(name: str, setting: str, dtype: torch.dtype) -> None:
    """With images of which nothing is known, a batch of one, logits far out, half precision."""
    _, full = easy_data(images=30)
    full[:3] = 0
    training = training_on(hide(full, setting))
    step = methods.get(name).start(training)
    for epoch in (1, 2, EPOCHS):
        for rows in (slice(None), slice(0, 1)):
            batch = batch_of(training, rows, epoch)
            logits = 40 * torch.randn(
                batch.labels.shape, generator=torch.Generator().manual_seed(epoch)
            )
            logits = logits.to(dtype).requires_grad_()
            loss = step(logits, batch)
            loss.backward()
            assert loss.shape == ()
            assert torch.isfinite(loss)
            assert logits.grad is not None
            assert torch.isfinite(logits.grad).all()


@EVERY_METHOD
def test_probabilities_rise_with_the_logits(name: str) -> None:
    method, logits = methods.get(name), torch.linspace(-30, 30, 61)
    implied = method.probability(logits, {})
    assert ((implied >= 0) & (implied <= 1)).all()
    assert (implied.diff() >= 0).all()
    assert implied[0] < 1e-3
    assert implied[-1] > 0.999
    assert method.probability(logits, method.options).equal(implied)


def test_the_link_of_a_loss_knows_its_options() -> None:
    options, logits = {"shift_negative": -2.0}, torch.tensor([0.0])
    found = methods.get("spa").probability(logits, options)
    assert found == losses.spa_probability(logits, **options)
    assert found != methods.get("spa").probability(logits, {})


@EVERY_METHOD
def test_options_are_checked(name: str) -> None:
    method = methods.get(name)
    training = training_on(np.array([[1, 0], [0, 1]]))
    with pytest.raises(ConfigError, match="no option nonsense, more") as caught:
        method.start(training, {"nonsense": 1, **method.options, "more": 2})
    listed = [f"{option}={value}" for option, value in method.options.items()] or ["it has none"]
    assert all(text in str(caught.value) for text in listed)


@EVERY_METHOD
def test_defaults_are_those_the_loss_publishes(name: str) -> None:
    method = methods.get(name)
    assert inspect.Parameter.empty not in method.options.values()
    parameters = inspect.signature(getattr(losses, LOSSES.get(name, name))).parameters
    for option, value in method.options.items():
        if option in parameters and not name.startswith("ll-"):
            assert value == parameters[option].default
    labels = hide(easy_data()[1], "pal:0.4")
    implied, spelt = training_on(labels), training_on(labels)
    assert some_steps(method.start(implied), implied) == some_steps(
        method.start(spelt, method.options), spelt
    )


@pytest.mark.parametrize("name", [name for name in DESIGNED if name not in OF_THEIR_OWN])
def test_a_loss_under_its_name_is_that_loss(name: str) -> None:
    training = training_on(hide(easy_data()[1], "pal:0.4"))
    batch = batch_of(training, epoch=3)
    logits = torch.randn(batch.labels.shape, generator=torch.Generator().manual_seed(1))
    function = getattr(losses, LOSSES.get(name, name))
    facts = {
        "epoch": 3,
        "priors": training.priors,
        "expected_positives": training.expected_positives,
        "variant": name.removeprefix("ll-"),
    }
    wanted = inspect.signature(function).parameters
    expected = function(logits, batch.labels, **{k: v for k, v in facts.items() if k in wanted})
    assert methods.get(name).start(training)(logits, batch) == expected


@EVERY_METHOD
def test_steps_repeat(name: str) -> None:
    labels = hide(easy_data()[1], "pal:0.4")
    runs = [training_on(labels), training_on(labels)]
    one, other = (some_steps(methods.get(name).start(run), run) for run in runs)
    assert one == other


@EVERY_METHOD
def test_stores_survive_a_checkpoint(name: str) -> None:
    labels = hide(easy_data()[1], "pal:0.4")
    going, resumed = training_on(labels), training_on(labels)
    step, again = methods.get(name).start(going), methods.get(name).start(resumed)
    some_steps(step, going)
    for key, store in going.stores.items():
        file = io.BytesIO()
        torch.save(store.state_dict(), file)
        file.seek(0)
        kept = torch.load(file, weights_only=True)
        for part, tensor in resumed.stores[key].state_dict().items():
            tensor.copy_(kept[part])
    assert going.stores.keys() == resumed.stores.keys()
    later = range(4, 6)
    assert some_steps(step, going, later) == some_steps(again, resumed, later)


@EVERY_METHOD
def test_what_is_remembered_does_not_depend_on_the_order_of_the_batch(name: str) -> None:
    labels = hide(easy_data()[1], "pal:0.4")
    logits = torch.randn(labels.shape, generator=torch.Generator().manual_seed(2))
    order = draws.order(0, 1, len(labels))
    remembered = []
    for rows in (np.arange(len(labels)), order):
        training = training_on(labels)
        methods.get(name).start(training)(logits[rows], batch_of(training, rows, epoch=2))
        remembered.append([store.state_dict() for store in training.stores.values()])
    for one, other in zip(*remembered, strict=True):
        assert all(one[key].equal(other[key]) for key in one)


@pytest.mark.parametrize(
    ("kind", "fine_tuned", "surprised"),
    [("linear", False, False), ("mlp", False, False), ("small", False, True),
     ("resnet50", True, False), ("resnet50", False, True)],
)  # fmt: skip
def test_only_a_network_without_weights_is_surprised(
    kind: str, fine_tuned: bool, surprised: bool
) -> None:
    training = training_on(hide(easy_data()[1], "pal:0.5"))
    training = replace(training, kind=kind, fine_tuned=fine_tuned)
    methods.get("partly").start(training)
    assert any("surprise" in note for note in training.notes) == surprised
    assert any("another scale" in note for note in training.notes) == surprised


@pytest.mark.parametrize("epoch", [1, EPOCHS])
def test_surprise_weighs_the_entries_of_mixed_images_too(epoch: int) -> None:
    training = training_on(hide(easy_data()[1], "ppl:0.5"))
    own = batch_of(training, epoch=epoch)
    mixture, targets = mixing.mix("logicmix", own.labels, seed=0, epoch=epoch, rows=own.rows)
    told = torch.randn(own.labels.shape, generator=torch.Generator().manual_seed(4))
    batch = replace(own, labels=targets[0][1], mixture=mixture, own=own.labels, teacher=told)
    found = []
    for surprise in (0.0, "1:0"):
        of_network = replace(training, kind="small", averaged=True, notes=[])
        options = {"surprise": surprise, "teacher": "average"}
        found.append(float(methods.get("partly").start(of_network, options)(-told, batch)))
    assert (found[1] < found[0]) if epoch == 1 else (found[1] == found[0])


def test_surprise_is_not_announced_where_one_epoch_leaves_no_time_for_it() -> None:
    training = replace(training_on(hide(easy_data()[1], "pal:0.5")), kind="small", epochs=1)
    methods.get("partly").start(training)
    assert not any("surprise" in note for note in training.notes)


def test_surprise_weighs_entries_at_first_and_not_in_the_end() -> None:
    labels = hide(easy_data()[1], "ppl:0.5")
    logits = torch.randn(labels.shape, generator=torch.Generator().manual_seed(3))
    found = {}
    for surprise in (0, "2:0"):
        training = replace(training_on(labels), kind="small")
        step = methods.get("partly").start(training, {"surprise": surprise})
        found[surprise] = [float(step(logits, batch_of(training, epoch=e))) for e in (1, EPOCHS)]
    assert found["2:0"][0] < found[0][0]
    assert found["2:0"][1] == found[0][1]
    training = training_on(labels)
    known, facts = batch_of(training), training.propensity
    chances = {"c_positive": facts.positive, "c_negative": facts.negative}
    chances = {name: torch.as_tensor(c, dtype=torch.float32) for name, c in chances.items()}
    weights = losses.surprise(logits, known.labels, **chances) ** 2
    # Values differ (entropies of soft targets), gradients are those of the weighed likelihood.
    x = logits.clone().requires_grad_()
    step = methods.get("partly").start(replace(training, kind="small"), {"surprise": 2})
    step(x, known).backward()
    y = logits.clone().requires_grad_()
    terms = losses.observed(y, known.labels, **chances, reduction="none")
    (weights * terms).mean().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-7)


@EVERY_METHOD
def test_every_part_can_be_removed(name: str) -> None:
    method = methods.get(name)
    labels = hide(easy_data()[1], "ppl:0.5")
    for part, choices in method.parts.items():
        options, chosen = method.split(choices)
        replace(Config(), **chosen)  # fields of a Config, or this fails
        if not options:
            continue
        # What a network teaches is there to be removed only where there is one.
        whole = {"teacher": "network"} if part in ("teacher", "focus") else {}
        # Nor is there a surprise in a linear layer: it has no features to learn.
        kind = "small" if part == "surprise" else "linear"
        found = []
        for given in (whole, whole | options):
            training = replace(training_on(labels), kind=kind)
            found.append(some_steps(method.start(training, given), training))
        assert all(math.isfinite(loss) for loss in found[1])
        assert found[0] != found[1]


# Picks


def test_picks_depend_on_seed_epoch_and_row_only() -> None:
    labels = np.full((200, 40), -1)
    labels[0, 0] = 1
    training = training_on(labels)
    whole = training.pick(batch_of(training), 0.3)
    assert whole is not None
    assert whole.float().mean() == pytest.approx(0.3, abs=0.025)
    rows = np.array([150, 3, 77])
    assert training.pick(batch_of(training, rows), 0.3).equal(whole[rows])
    others = (
        training.pick(batch_of(training, epoch=2), 0.3),
        training_on(labels, seed=1).pick(batch_of(training), 0.3),
    )
    for other in others:
        assert (other == whole).float().mean() == pytest.approx(0.3**2 + 0.7**2, abs=0.03)
    more = training.pick(batch_of(training), 0.6)
    assert (more | ~whole).all()
    assert training.pick(batch_of(training), 1.0) is None
    assert not training.pick(batch_of(training), 0.0).any()


@pytest.mark.parametrize("name", ["paper", "partly"])
def test_a_share_of_the_unknown_part_is_drawn_from_the_seed(name: str) -> None:
    labels = hide(easy_data()[1], "pal:0.4")

    def losses_of(seed: int, q: float) -> list[float]:
        training = training_on(labels, seed)
        return some_steps(methods.get(name).start(training, {"q": q}), training)

    assert losses_of(0, 0.5) == losses_of(0, 0.5)
    assert losses_of(0, 0.5) != losses_of(1, 0.5)
    assert losses_of(0, 1.0) == losses_of(1, 1.0)


# The default and the paper


@pytest.mark.parametrize(
    ("name", "options"),
    [("partly", {"weight": "0:1"}), ("partly", {"q": "0:1"}), ("paper", {"q": "0:1"})],
)
@pytest.mark.parametrize("setting", ["pal:0.3", "ppl:0.6"])
def test_the_unknown_part_may_start_at_nothing(
    name: str, options: dict[str, str], setting: str
) -> None:
    training = training_on(hide(easy_data()[1], setting))
    found = some_steps(methods.get(name).start(training, options), training)
    assert all(math.isfinite(loss) for loss in found)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("partly", {"targets": "magic"}),
        ("partly", {"teacher": "nobody"}),
        ("partly", {"focus": "much"}),
        ("partly", {"teacher": "average"}),  # of weights that are not averaged
        ("paper", {"store": "float8"}),
        ("partly", {"weight": "a:b"}),
        ("partly", {"share": "some"}),
        ("paper", {"d": "guess"}),
        ("paper", {"p": "guess"}),
        ("paper", {"q": "many"}),
        ("asl", {"unknown": "maybe"}),
        ("an_ls", {"convention": "third"}),
    ],
)
def test_values_that_make_no_sense(name: str, options: dict[str, Any]) -> None:
    training = training_on(np.array([[1, -1], [0, 1]]))
    with pytest.raises(ConfigError):
        some_steps(methods.get(name).start(training, options), training)


def test_the_papers_pseudo_labels_start_at_a_half() -> None:
    training = training_on(hide(easy_data()[1], "pal:0.4"))
    methods.get("paper").start(training)
    assert (training.stores["pseudo_labels"].get(torch.arange(120)) == 0.5).all()


def test_the_paper_remembers_its_predictions() -> None:
    training = training_on(hide(easy_data()[1], "pal:0.4"))
    step = methods.get("paper").start(training)
    rows = np.array([5, 2])
    logits = torch.tensor([[-3.0, -1, 0, 1, 3]] * 2)
    step(logits, batch_of(training, rows))
    believed = training.stores["pseudo_labels"].get(torch.arange(120))
    assert torch.allclose(believed[rows], torch.sigmoid(logits), atol=2**-11)
    assert (believed[np.delete(np.arange(120), rows)] == 0.5).all()


def observed_likelihood(logits: Tensor, labels: Tensor, c_positive: Tensor, c_negative: Tensor):
    """-log P(what was observed): y known, or unknown, of entries annotated with c₊ and c₋."""
    p = torch.sigmoid(logits)
    unknown = 1 - c_positive * p - c_negative * (1 - p)
    return -torch.where(labels == 1, p, torch.where(labels == 0, 1 - p, unknown)).log()


@pytest.mark.parametrize("setting", ["fal", "pal:0.4", "ppl:0.5", "spl"])
def test_partly_climbs_the_likelihood_of_what_was_observed(setting: str) -> None:
    """Fresh posterior targets are an expectation step: its gradient is the likelihood's own."""
    training = training_on(hide(easy_data()[1], setting))
    batch, known = batch_of(training), training.propensity
    logits = torch.linspace(-3, 3, batch.labels.numel()).view(batch.labels.shape).requires_grad_()
    methods.get("partly").start(training, {"focus": 0.0})(logits, batch).backward()
    found, logits.grad = logits.grad, None
    chances = (torch.from_numpy(c).float() for c in (known.positive, known.negative))
    observed_likelihood(logits, batch.labels, *chances).mean().backward()
    torch.testing.assert_close(found, logits.grad, atol=1e-7, rtol=1e-4)


def test_where_labels_are_missing_at_random_partly_ignores_them() -> None:
    training = training_on(hide(easy_data()[1], "pal:0.4"))
    batch = batch_of(training)
    step = methods.get("partly").start(training, {"focus": 0.0})
    logits = torch.linspace(-3, 3, batch.labels.numel()).view(batch.labels.shape).requires_grad_()
    step(logits, batch).backward()
    found, logits.grad = logits.grad, None
    losses.ign(logits, batch.labels).backward()
    torch.testing.assert_close(found, logits.grad, atol=1e-7, rtol=1e-4)


def test_partly_learns_from_the_teacher_it_is_given() -> None:
    training = replace(training_on(hide(easy_data()[1], "pal:0.4")), averaged=True)
    step = methods.get("partly").start(training, {"teacher": "average"})
    assert training.teacher == "average"
    batch = batch_of(training)
    logits, told = torch.full(batch.labels.shape, -1.0), torch.full(batch.labels.shape, 1.5)
    expected = losses.consistent(logits, batch.labels, torch.sigmoid(told))
    assert step(logits, replace(batch, teacher=told)) == pytest.approx(expected.item())
    assert step(logits, batch) != expected


def focused(terms: Tensor, logits: Tensor) -> float:
    """The mean of the terms, weighed by how likely their entries are to be positive."""
    weights = (torch.sigmoid(logits) + 0.003) ** 0.25
    return ((weights * terms).sum() / weights.sum()).item()


def test_partly_attends_to_what_its_teacher_takes_for_positive() -> None:
    """By the belief, not by the label, so that calibration stays."""
    training = replace(training_on(hide(easy_data()[1], "ppl:0.5")), averaged=True)
    logits, told = (torch.linspace(*ends, 600).view(120, 5) for ends in ((-6, 3), (1, -5)))
    batch, known = replace(batch_of(training), teacher=told), training.propensity
    focused_step, plain_step = (
        methods.get("partly").start(training, {"teacher": "average", **focus})
        for focus in ({}, {"focus": 0.0})
    )
    positive, negative = (torch.from_numpy(c).float() for c in (known.positive, known.negative))
    target = posterior(told, c_positive=positive, c_negative=negative)
    terms = losses.consistent(logits, batch.labels, target, reduction="none")
    assert plain_step(logits, batch) == pytest.approx(terms.mean().item())
    assert focused_step(logits, batch) == pytest.approx(focused(terms, told))


@pytest.mark.parametrize(
    ("setting", "kind", "attentive"),
    [
        ("fal", "linear", True),
        ("pal:0.4", "linear", True),
        ("ppl:0.5", "linear", False),  # no negative could correct a false belief
        ("half", "linear", True),  # of some labels negatives are known
        ("pal:0.4", "mlp", False),
        ("pal:0.4", "small", False),
    ],
)
def test_when_partly_attends_to_its_own_belief(setting: str, kind: str, attentive: bool) -> None:
    if setting == "half":
        labels = hide(easy_data()[1], "ppl:0.5")
        labels[:, 0] = easy_data()[1][:, 0]
    else:
        labels = hide(easy_data()[1], setting)
    training = replace(training_on(labels), kind=kind)
    batch, logits = batch_of(training), torch.linspace(-6, 3, 600).view(120, 5)
    found, plain = (
        methods.get("partly").start(training, {"teacher": "self", **focus})(logits, batch)
        for focus in ({}, {"focus": 0.0})
    )
    assert (found != plain) == attentive
    if setting == "fal":
        terms = losses.bce(logits, batch.labels, reduction="none")
        assert found == pytest.approx(focused(terms, logits))


@pytest.mark.parametrize("mix", [name for name in mixing.MIXES if name != "none"])
@pytest.mark.parametrize("teacher", ["average", "network"])
def test_attention_to_a_mixed_image_does_not_follow_its_labels(mix: str, teacher: str) -> None:
    """A teacher that says the same of every entry leaves all of them equal."""
    training = replace(training_on(hide(easy_data()[1], "pal:0.5")), averaged=True)
    batch = batch_of(training)
    told = torch.full(batch.labels.shape, -2.0)
    mixture, targets = mixing.mix(mix, batch.labels, seed=0, epoch=1, rows=batch.rows)
    for _, mixed in targets:
        own = replace(batch, labels=mixed, mixture=mixture, own=batch.labels, teacher=told)
        attention = attend(own.of_mixed_alone(torch.sigmoid(told)), 0.25)
        by_image = attention.std(dim=1)
        assert torch.allclose(by_image, torch.zeros(()), atol=1e-6)
        found, plain = (
            methods.get("partly").start(training, {"teacher": teacher, **focus})(told, own)
            for focus in ({}, {"focus": 0.0})
        )
        assert torch.isfinite(found)
        assert found == pytest.approx(plain.item(), rel=0.2)


def test_which_methods_ask_how_many_positives_there_are() -> None:
    asking = {name for name in methods.available() if methods.get(name).needs_expected_positives}
    assert asking == {"partly", "epr", "csl", "role"}


def test_a_network_teaches_known_and_unknown_entries() -> None:
    training = training_on(hide(easy_data()[1], "pal:0.4"))
    step = methods.get("partly").start(training, {"teacher": "network"})
    batch = batch_of(training)
    logits, told = torch.full(batch.labels.shape, -1.0), torch.full(batch.labels.shape, 1.5)
    expected = nn.functional.binary_cross_entropy_with_logits(logits, torch.sigmoid(told))
    assert step(logits, replace(batch, teacher=told)) == pytest.approx(expected.item())
    told = torch.linspace(-6, 3, 600).view(120, 5)
    p = torch.sigmoid(told)
    terms = nn.functional.binary_cross_entropy_with_logits(logits, p, reduction="none")
    found = step(logits, replace(batch, teacher=told))
    assert found == pytest.approx(focused(terms, told))
    with pytest.raises(ConfigError, match="teaches a linear layer"):
        methods.get("partly").start(replace(training, kind="mlp"), {"teacher": "network"})


@pytest.mark.parametrize("option", [{"weight": 0.5}, {"q": 0.5}, {"share": "all"}])
def test_a_network_that_is_tilted_does_not_teach(option: dict[str, Any]) -> None:
    training = training_on(np.tile(hide(easy_data()[1], "ppl:0.5"), (50, 1)))
    methods.get("partly").start(training, option)
    assert training.teacher == "self"
    with pytest.raises(ConfigError, match="weight=1, q=1 and share=off"):
        methods.get("partly").start(training, option | {"teacher": "network"})


def test_partly_takes_a_network_where_it_pays() -> None:
    labels = hide(easy_data(images=120)[1], "ppl:0.5")
    many = np.tile(labels, (50, 1))

    def chosen(table: np.ndarray, **more: Any) -> Training:
        training = replace(training_on(table), **more)
        methods.get("partly").start(training)
        return training

    assert chosen(labels).teacher == "self"
    assert chosen(many).teacher == "network"
    assert "network" in chosen(many).notes[0]
    assert chosen(many, kind="resnet50").teacher == "self"
    images = {"kind": "resnet50", "averaged": True, "fine_tuned": True}
    assert chosen(labels, **images).teacher == "average"
    for other in ({"averaged": False}, {"fine_tuned": False}):
        assert chosen(labels, **images | other).teacher == "self"
    assert chosen(easy_data()[1], **images).teacher == "self"
    assert chosen(many, kind="mlp").teacher == "self"
    assert chosen(np.tile(easy_data()[1], (50, 1))).teacher == "network"  # it smooths the labels


def test_of_many_images_with_one_known_positive_each_has_its_own_chance() -> None:
    labels = np.tile(hide(easy_data(images=120)[1], "spl"), (50, 1))
    training = training_on(labels)
    step = methods.get("partly").start(training, {"teacher": "self"})
    assert any("more positives" in note for note in training.notes)
    batch = batch_of(training, slice(0, 120))
    logits = torch.linspace(-3, 3, 600).view(120, 5)
    c_positive, c_negative = (
        torch.from_numpy(c).float()
        for c in (training.propensity.positive, training.propensity.negative)
    )
    own = chance_of_single(logits, batch.labels, c_positive)
    assert own.std() > 0
    pseudo = posterior(logits, c_positive=own, c_negative=c_negative)
    expected = losses.consistent(logits, batch.labels, pseudo)
    assert step(logits, batch) == pytest.approx(expected.item())


def test_partly_remembers_its_pseudo_labels_only_for_an_audit() -> None:
    training = training_on(hide(easy_data()[1], "pal:0.4"))  # c₊ = c₋: the posterior is σ(logits)
    methods.get("partly").start(training)
    assert not training.stores
    audited = replace(training, audited=True)
    logits = torch.linspace(-3, 3, 600).view(120, 5)
    methods.get("partly").start(audited)(logits, batch_of(audited))
    believed = audited.stores["pseudo_labels"].get(torch.arange(120))
    torch.testing.assert_close(believed, torch.sigmoid(logits), atol=2**-10, rtol=0)


def test_partly_weighs_a_sample_for_the_whole_unknown_part() -> None:
    training = training_on(hide(easy_data()[1], "ppl:0.5"))  # c₋ = 0: the weights tilt the model
    step = methods.get("partly").start(training, {"weight": "0.2:0.7", "q": 0.25})
    batch, known = batch_of(training, epoch=2), training.propensity
    logits = torch.linspace(-3, 3, batch.labels.numel()).view(batch.labels.shape)
    chances = [torch.from_numpy(c).float() for c in (known.positive, known.negative)]
    pseudo = posterior(logits, c_positive=chances[0], c_negative=chances[1], weight_unknown=0.3)
    picked = training.pick(batch, 0.25)
    expected = losses.consistent(logits, batch.labels, pseudo, weight=0.3 / 0.25, picked=picked)
    assert step(logits, batch).item() == pytest.approx(expected.item())


# Large losses, flipped for good


@pytest.mark.parametrize("rate", [0.001, 0.0123])
def test_ll_cp_flips_a_few_more_each_step_and_keeps_them(rate: float) -> None:
    labels = hide(easy_data()[1], "pal:0.4")
    training = training_on(labels)
    step = methods.get("ll-cp").start(training, {"rate": rate})
    flipped = training.stores["flipped"].values
    a_step = math.ceil(labels.size * rate)
    generator = torch.Generator().manual_seed(3)
    before = flipped.clone()
    for number, epoch in enumerate((1, 1, 2, 2, 3, 4)):
        logits = torch.randn(labels.shape, generator=generator)
        step(logits, batch_of(training, epoch=epoch))
        assert (flipped > 0).sum() == a_step * max(number - 1, 0)
        assert (flipped >= before).all()
        assert not flipped[torch.from_numpy(labels) != -1].any()
        fresh, left = (flipped > before), torch.from_numpy(labels == -1) & (flipped == 0)
        if fresh.any():
            assert logits[fresh].min() >= logits[left].max()
        before = flipped.clone()


def test_ll_cp_counts_what_is_flipped_as_positive() -> None:
    training = training_on(np.array([[1, -1, -1, 0]]))
    step = methods.get("ll-cp").start(training, {"rate": 0.25})
    logits = torch.tensor([[0.5, 2.0, -1.0, -2.0]])
    found = step(logits, batch_of(training, epoch=2))
    assert found == losses.bce(logits, torch.tensor([[1, 1, 0, 0]]))
    assert training.stores["flipped"].get(torch.tensor([0])).tolist() == [[0, 1, 0, 0]]


# A curriculum of labels


def curriculum_of(labels: Any, **options: Any) -> tuple[Training, Step]:
    training = training_on(np.array(labels))
    return training, methods.get("curriculum").start(training, options)


def test_a_curriculum_begins_with_known_labels_only() -> None:
    training, step = curriculum_of(hide(easy_data()[1], "pal:0.4"))
    for epoch in (1, 2):  # the second decides for the third
        batch = batch_of(training, epoch=epoch)
        logits = torch.full(batch.labels.shape, 5.0 * epoch)
        assert step(logits, batch) == losses.ign(logits, batch.labels)


def test_what_the_model_is_sure_of_is_a_label_from_the_next_epoch_on() -> None:
    training, step = curriculum_of([[1, 0, -1, -1, -1, -1]], positive=1.0, negative=3.0)
    logits = torch.tensor([[-9.0, 9.0, 1.1, 0.9, -2.9, -3.1]])
    step(logits, batch_of(training, epoch=2))
    now = torch.tensor([[1, 0, 1, -1, -1, 0]])
    for epoch in (3, 4):  # whatever it says meanwhile; known labels stay what they are
        found = step(-logits, batch_of(training, epoch=epoch))
        assert found == losses.ign(-logits, now)
    assert step(logits, batch_of(training, epoch=5)) == losses.ign(
        logits, torch.tensor([[1, 0, -1, -1, 1, 1]])
    )


def test_a_label_becomes_unknown_again_where_the_model_doubts() -> None:
    training, step = curriculum_of([[1, -1]], every=1)
    for logit, expected in ((4.0, -1), (0.0, 1), (-4.0, -1), (1.0, 0), (0.0, -1)):
        logits = torch.tensor([[0.3, logit]])
        found = step(logits, batch_of(training))
        assert found == losses.ign(logits, torch.tensor([[1, expected]]))


def test_curriculum_labels_are_kept_in_a_byte_and_audited() -> None:
    training, step = curriculum_of(hide(easy_data()[1], "pal:0.4"))
    step(torch.linspace(-4, 4, 600).view(120, 5), batch_of(training, epoch=2))
    store = training.stores["pseudo_labels"]
    assert store.values.dtype == torch.uint8
    assert store.get(torch.tensor([0, 60, 119]))[:, 0].tolist() == pytest.approx(
        [0, 0.5, 1], abs=0.01
    )


@pytest.mark.parametrize("kind", ["logicmix", "mixup-pme"])
def test_a_mixed_image_has_curriculum_labels_where_its_parts_agree(kind: str) -> None:
    """Two doubtful parts, or three, are no label, however likely it is that one of them has it."""
    training, step = curriculum_of([[-1, -1, -1]] * 63 + [[1, 0, -1]])
    said = torch.tensor([[5.0, -5.0, 0.0]]).expand(64, 3)
    step(said, batch_of(training, epoch=2))
    rows, own = torch.arange(64), torch.from_numpy(training.table.dense())
    mixture, targets = mixing.mix(kind, own, seed=3, epoch=3, rows=rows)
    assert not mixture.untouched.all()
    logits = torch.linspace(-1, 1, 192).view(64, 3)
    everywhere = torch.tensor([[1, 0, -1]], dtype=torch.int8).expand(64, 3)
    for _, mixed in targets:
        expected = torch.where(mixed == -1, everywhere, mixed)
        found = step(logits, Batch(rows, mixed, 3, mixture, own))
        assert found == losses.ign(logits, expected)


def test_a_curriculum_learns_nothing_about_single_images_from_mixed_ones() -> None:
    training, step = curriculum_of(hide(easy_data()[1], "pal:0.4"))
    batch = batch_of(training, epoch=2)
    mixture, targets = mixing.mix("logicmix", batch.labels, seed=0, epoch=2, rows=batch.rows)
    logits = torch.full(batch.labels.shape, 9.0)
    step(logits, Batch(batch.rows, targets[0][1], 2, mixture, batch.labels))
    decided = training.stores["pseudo_labels"].get(batch.rows) == 1
    assert decided.equal(mixture.untouched.expand_as(decided))
    assert 0 < decided.float().mean() < 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"every": 0}, "every 1, 2, … epochs, not every 0"),
        ({"every": 1.5}, "not every 1.5"),
        ({"positive": -3.0}, "without being both"),
        ({"positive": "high"}, "positive is a number, not 'high'"),
    ],
)
def test_an_impossible_curriculum_is_refused(options: dict, complaint: str) -> None:
    training = training_on(np.array([[1, -1, 0], [-1, 1, 0]]))
    with pytest.raises(ConfigError, match=complaint):
        methods.get("curriculum").rehearse(training, options)


# ROLE's estimates


def test_role_estimates_start_where_the_paper_says() -> None:
    labels = hide(easy_data(images=400)[1], "pal:0.5")
    estimates = torch.sigmoid(
        methods.role_estimates(LabelTable.from_dense(labels), 0, Shard.of(400)).weight
    )
    assert np.allclose(estimates[labels == 1].detach(), 0.995)
    assert np.allclose(estimates[labels == 0].detach(), 0.005)
    unknown = estimates[labels == -1].detach()
    assert 0.4 <= unknown.min() < 0.41
    assert 0.59 < unknown.max() <= 0.6
    assert unknown.mean() == pytest.approx(0.5, abs=0.01)
    other = torch.sigmoid(
        methods.role_estimates(LabelTable.from_dense(labels), 1, Shard.of(400)).weight
    )
    assert (other[labels == -1] != estimates[labels == -1]).float().mean() > 0.99


def test_role_estimates_learn_in_the_rows_of_the_batch_only() -> None:
    training = training_on(hide(easy_data()[1], "pal:0.4"))
    step = methods.get("role").start(training)
    assert training.estimates is training.stores["estimates"]
    rows = np.array([7, 3, 100])
    step(torch.zeros(3, 5), batch_of(training, rows)).backward()
    gradient = training.estimates.weight.grad.coalesce()
    assert gradient.indices()[0].tolist() == sorted(rows.tolist())
    assert (gradient.values() != 0).any(dim=1).all()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("splc", {"margin": "wide"}, "margin is a number, not 'wide'"),
        ("splc", {"margin": math.nan}, "margin lies between"),
        ("hill", {"turning": math.nan}, "turning lies between"),
        ("spa", {"slope_negative": -1}, "slope_negative lies between 1e-06 and"),
        ("spa", {"scale_positive": 0}, "scale_positive lies between 1e-06 and"),
        ("csl", {"likely": -3}, "likely lies between 0 and"),
        ("curriculum", {"positive": math.nan}, "positive lies between"),
        ("paper", {"m": math.nan}, "m lies between -100 and 100, not at nan"),
        ("focal", {"gamma": 10**400}, "gamma is a number, not"),
        ("splc", {"threshold": "high"}, "threshold is a number, not 'high'"),
        ("ll-r", {"rate": "lots"}, "rate is a number, not 'lots'"),
        ("ll-cp", {"rate": 2}, "rate lies between 0 and 1, not at 2"),
        ("asl", {"gamma_negative": -3}, "gamma_negative lies between 0 and"),
        ("asl", {"clip": 2}, "clip lies between 0 and 1, not at 2"),
        ("csl", {"gamma_unknown": math.nan}, "gamma_unknown lies between 0 and"),
        ("an_ls", {"epsilon": 5}, "epsilon lies between 0 and 1, not at 5"),
        ("em", {"weight": -1}, "weight lies between 0 and"),
        ("paper", {"gamma": 2}, "gamma lies between 0 and 1, not at 2"),
        ("paper", {"gamma": math.nan}, "gamma lies between 0 and 1, not at nan"),
        ("paper", {"q": "0:5"}, "q lies between 0 and 1, not at 5"),
        ("role", {}, "role trains 12 bytes an entry of the table"),
    ],
)
def test_a_rehearsal_finds_what_fails_whenever(name: str, options: dict, message: str) -> None:
    table = LabelTable.from_dense([[1, -1, -1], [-1, 1, -1]])
    training = methods.Training(table, estimate(table), epochs=3, keep="disk")
    with pytest.raises(ConfigError, match=f"^{message}"):
        methods.get(name).rehearse(training, options)
    assert not training.stores


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"focus": -1}, "focus lies between 0 and 10, not at -1"),
        ({"focus": "abc"}, "focus is a number, not 'abc'"),
        ({"focus": "0:0.5"}, "focus is a number"),
        ({"focus": math.nan}, "focus lies between"),
        ({"q": 2}, "q lies between 0 and 1, not at 2"),
        ({"q": "0.1:1.5"}, "q lies between 0 and 1"),
        ({"weight": -1}, "weight lies between 0"),
        ({"weight": "x"}, "weight is a number, not 'x'"),
    ],
)
def test_an_option_out_of_its_range_is_named(options, message):
    table = LabelTable.from_dense([[1, -1, 0], [-1, 1, 0]])
    with pytest.raises(ConfigError, match=message):
        methods.get("partly").start(methods.Training(table, estimate(table), epochs=3), options)


def test_what_partly_attends_to_is_said():
    table = LabelTable.from_dense([[1, -1, 0], [-1, 1, 0], [0, 0, 1]])
    training = methods.Training(table, estimate(table), epochs=3)
    methods.get("partly").start(training)
    assert training.focus == 0.25
    assert training.notes[-1].startswith("focus 0.25: an entry weighs more the likelier the layer")
    training = methods.Training(table, estimate(table), epochs=3)
    methods.get("partly").start(training, {"gamma": 0.2, "focus": 0.0})
    assert (training.focus, len(training.notes)) == (0.0, 1)
    assert "gamma changes nothing" in training.notes[0]
