"""The fused losses: equal to the plain ones in value, gradient and pseudo-labels, whoever computes.

Kernels run in Triton's interpreter, on the CPU, with tiles so small that little data takes many
programs: that is in a process of its own, for Triton decides at its import. They run as they are
where there is a GPU. The closed forms run as they are written.
"""

import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import compress, product
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from builders import Compiled, passes_interpreted
from partly import losses, methods
from partly.errors import ConfigError, PartlyError, PartlyWarning
from partly.labels import LabelTable
from partly.losses import fused
from partly.losses.common import attend
from partly.losses.fused import closed
from partly.losses.fused import common as parts
from partly.methods import Batch, Training
from partly.propensity import estimate
from partly.pseudo import PseudoLabels, posterior

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ENGINES = ["interpreter"] if INTERPRETED else ["closed form", "plain"]
if torch.cuda.is_available() and not INTERPRETED:
    ENGINES.append("gpu")
PATTERNS = ("mixed", "known", "unknown", "positives", "rows")


# Who computes


class Engine(NamedTuple):
    backend: str
    device: str = "cpu"


def tiles(**sizes: int) -> AbstractContextManager[Any]:
    """Other tiles for the interpreter, where there is one."""
    if not INTERPRETED:
        return nullcontext()
    from partly.losses.fused import kernels

    return mock.patch.multiple(kernels, **sizes)


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "closed form":
        with mock.patch.object(torch, "compile", lambda function, dynamic: function):
            closed._compiled.cache_clear()
            yield Engine("compiled")
        closed._compiled.cache_clear()
    elif request.param == "plain":
        yield Engine("plain")
    elif request.param == "gpu":
        yield Engine("triton", "cuda")
    else:
        # Tiles of which 4 × 50 entries fill several, and surveys that are added up in either way.
        with tiles(ALONE=128, TILE=64, WIDTH=32, SURVEY_TILE=16, PROGRAMS=8, FEW_SUMS=4):
            yield Engine("triton")


def test_kernels_in_the_interpreter() -> None:
    """Everything here with the engine "interpreter", and what is said of kernels only."""
    passes_interpreted(__file__, "interpreter and not test_kernels_in_the_interpreter")


# Batches and cases


@dataclass(frozen=True)
class Data:
    logits: Tensor
    labels: Tensor
    pseudo: Tensor
    picked: Tensor
    teacher: Tensor
    by_label: Tensor
    by_image: Tensor
    by_entry: Tensor

    def to(self, device: str) -> "Data":
        return Data(*(getattr(self, field.name).to(device) for field in fields(self)))


def make_data(shape: tuple[int, int] = (4, 40), pattern: str = "mixed", seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)

    def uniform(*size: int) -> Tensor:
        return torch.rand(size or shape, generator=generator)

    labels = torch.randint(-1, 2, shape, generator=generator, dtype=torch.int8)
    if pattern == "known":
        labels = labels.abs()
    elif pattern == "unknown":
        labels = torch.full_like(labels, -1)
    elif pattern == "positives":
        labels = torch.where(labels == 0, -1, labels)
    elif pattern == "rows":
        labels[0], labels[1:2] = -1, 1
    logits = 6 * uniform() - 3
    # Images without a prediction above 0.1, and some with none but the last.
    logits[::2] -= 6
    logits[1::4, :-1] -= 6
    logits[1::4, -1:] = 1.0
    return Data(
        logits=logits,
        labels=labels,
        pseudo=uniform(),
        picked=uniform() < 0.6,
        teacher=4 * uniform() - 2,
        by_label=uniform(shape[1]),
        by_image=uniform(shape[0], 1),
        by_entry=uniform(),
    )


class Of(str):
    """An option that the data have, by the name of its field."""


class Case(NamedTuple):
    name: str
    options: dict[str, Any]

    def options_of(self, data: Data) -> dict[str, Any]:
        return {k: getattr(data, v) if isinstance(v, Of) else v for k, v in self.options.items()}

    def fused(self, data: Data, backend: str) -> Any:
        tables = [data.pseudo] if self.name == "paper_loss" else []
        options = self.options_of(data)
        return getattr(fused, self.name)(
            data.logits, data.labels, *tables, **options, backend=backend
        )

    def reference(self, data: Data) -> Any:
        options = self.options_of(data)
        if self.name == "partly":
            return partly_reference(data.logits, data.labels, **options)
        if self.name == "paper_loss":
            store = options.pop("store", "float32")
            loss = losses.paper_loss(data.logits, data.labels, data.pseudo, **options)
            return loss, kept_as(store, torch.sigmoid(data.logits.detach().float()))
        return getattr(losses, self.name)(data.logits, data.labels, **options)


def partly_reference(
    logits: Tensor,
    labels: Tensor,
    *,
    c_positive: Any,
    c_negative: Any,
    teacher: Tensor | None = None,
    targets: str = "posterior",
    focus: Any = 0.0,
    weight: float = 1.0,
    q: float = 1.0,
    picked: Tensor | None = None,
    share: str = "off",
    gamma: float = 0.05,
    chance: Tensor | None = None,
    factor: float = 1.0,
    emphasis: Tensor | None = None,
    store: str = "float32",
) -> tuple[Tensor, Tensor]:
    """What a step of the method `partly` does."""
    alpha, beta = losses.balance(labels, gamma, share)
    believed = (logits.detach() if teacher is None else teacher).float()
    if chance is not None:
        logits = logits.float() + 0.5 * torch.log(
            left_of(c_positive, weight * chance) / left_of(c_negative, weight * chance)
            * left_of(c_negative, weight) / left_of(c_positive, weight)
        )  # fmt: skip
    pseudo = torch.sigmoid(believed)
    if targets == "posterior":
        pseudo = posterior(
            believed, c_positive=c_positive, c_negative=c_negative, alpha=alpha, beta=beta,
            weight_unknown=weight,
        )  # fmt: skip
    entries = losses.consistent(
        logits, labels, pseudo, weight=weight / q if q else 0.0, picked=picked, alpha=alpha,
        beta=beta, reduction="none",
    )  # fmt: skip
    entries = entries * attend(torch.sigmoid(believed), focus)
    entries = entries if emphasis is None else entries * emphasis
    return factor * entries.mean(), kept_as(store, pseudo)


def left_of(annotated: Any, weight: Any) -> Any:
    """The weight that is left of positives, or of negatives."""
    return torch.as_tensor(annotated + (1 - annotated) * weight).clamp(1e-6)


def kept_as(store: str, values: Tensor) -> Tensor:
    if store == "float32":
        return values
    kept = PseudoLabels(len(values), values.shape[1], dtype=store)
    kept.update(torch.arange(len(values)), values)
    return kept.values


def paper(**options: Any) -> Case:
    return Case("paper_loss", {"epoch": 2, "epochs": 9, **options})


def partly(**options: Any) -> Case:
    return Case("partly", {"c_positive": 0.3, "c_negative": 0.1, **options})


CASES = {
    "bce": Case("bce", {}),
    "bce, sum": Case("bce", {"reduction": "sum"}),
    "asl": Case("asl", {}),
    "asl, sum": Case("asl", {"reduction": "sum", "gamma_negative": 3}),
    "asl, ignore": Case("asl", {"unknown": "ignore", "gamma_negative": 2.0}),
    "asl, no clip": Case("asl", {"clip": 0.0, "gamma_positive": 1.0}),
    "asl, fractions": Case("asl", {"gamma_positive": 0.5, "gamma_negative": 1.5, "clip": 0.2}),
    "asl, gamma 0": Case("asl", {"gamma_negative": 0.0}),
    "asl, bce": Case("asl", {"gamma_negative": 0.0, "clip": 0.0}),
    "paper": paper(),
    "paper, picked": paper(picked=Of("picked"), store="float16"),
    "paper, printed": paper(d="printed", p="printed", m=1.5, store="uint8"),
    "paper, known": paper(share="known", gamma=0.2, picked=Of("picked")),
    "paper, plain": paper(d="off", p="off", share="off"),
    "partly": partly(),
    "partly, by label": partly(c_positive=Of("by_label"), weight=0.4, store="float16"),
    "partly, by image": partly(c_positive=Of("by_image"), c_negative=Of("by_label")),
    "partly, by entry": partly(c_negative=Of("by_entry"), share="all", weight=0.7),
    "partly, one": partly(c_positive=torch.tensor(0.6), store="uint8"),
    "partly, all annotated": partly(c_positive=1.0, c_negative=1.0),
    "partly, teacher": partly(teacher=Of("teacher"), c_positive=Of("by_label")),
    "partly, prediction": partly(targets="prediction", share="known", gamma=0.2),
    "partly, told": partly(targets="prediction", teacher=Of("teacher"), focus=0.25),
    "partly, focus": partly(focus=0.5, share="all"),
    "partly, focus by label": partly(focus=Of("by_label"), teacher=Of("teacher")),
    "partly, picked": partly(picked=Of("picked"), q=0.6, weight=0.5, focus=0.25),
    "partly, drawn": partly(chance=Of("by_label"), c_negative=0.0, factor=0.3),
    "partly, drawn, focus": partly(chance=Of("by_label"), c_positive=Of("by_entry"), focus=0.5),
    "partly, drawn, told": partly(
        chance=Of("by_label"), targets="prediction", weight=0.5, share="all", factor=2.0
    ),
    "partly, drawn, by image": partly(chance=Of("by_label"), c_positive=Of("by_image")),
    "partly, emphasis": partly(emphasis=Of("by_entry"), focus=0.5, picked=Of("picked")),
    "partly, nothing picked": partly(picked=Of("picked"), q=0.0),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def graded(data: Data, compute: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Value, gradient in the logits, pseudo-labels."""
    logits = data.logits.detach().clone().requires_grad_()
    answer = compute(replace(data, logits=logits))
    loss, pseudo = answer if isinstance(answer, tuple) else (answer, None)
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.detach().cpu(), gradient.cpu(), None if pseudo is None else pseudo.cpu()


def assert_equal(case: Case, data: Data, engine: Engine, rounding: float = 1e-5) -> Any:
    """rounding: of the gradient, relative to its largest entry, or to that of a mean."""
    expected = graded(data, case.reference)
    there = data.to(engine.device)
    found = graded(there, lambda given: case.fused(given, engine.backend))
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)
    assert found[1].dtype == data.logits.dtype
    # Where a model learns from its own belief what is left of two gradients is rounding.
    largest = max(expected[1].abs().max().item(), 1 / data.logits.numel())
    torch.testing.assert_close(found[1], expected[1], rtol=rounding, atol=rounding * largest)
    if expected[2] is not None:
        assert found[2] is not None
        assert found[2].dtype == expected[2].dtype
        assert not found[2].requires_grad
        step = {torch.float32: 1e-5, torch.float16: 1e-3, torch.uint8: 1}[expected[2].dtype]
        assert (found[2].float() - expected[2].float()).abs().max() <= step
    return found


# Equality


@every_case
def test_equal_to_the_plain_loss(case: Case, engine: Engine) -> None:
    assert_equal(case, make_data((4, 50)), engine)


@pytest.mark.parametrize("name", ["bce", "asl", "paper, picked", "partly, by entry"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_equal_whatever_is_known(name: str, pattern: str, engine: Engine) -> None:
    for seed, shape in enumerate([(1, 1), (40, 1), (5, 11)]):
        assert_equal(CASES[name], make_data(shape, pattern, seed), engine)


CHANCES = st.sampled_from([0.0, 0.2, 0.99, 1.0, Of("by_label"), Of("by_image"), Of("by_entry")])
PICKED, SHARES = st.sampled_from([None, Of("picked")]), st.sampled_from(["all", "known", "off"])
READINGS, STORES = st.sampled_from(["text", "printed", "off"]), st.sampled_from([*parts.DTYPES])
GAMMAS = st.sampled_from([0.0, 0.7, 1.0, 2.0, 3.0, 4.0])
any_case = st.one_of(
    st.builds(
        lambda **options: Case("asl", options),
        gamma_positive=GAMMAS,
        gamma_negative=GAMMAS,
        clip=st.sampled_from([0.0, 0.05, 0.4]),
        unknown=st.sampled_from(["negative", "ignore"]),
        reduction=st.sampled_from(["mean", "sum"]),
    ),
    st.builds(
        paper,
        epoch=st.integers(1, 9),
        gamma=st.sampled_from([0.01, 0.3]),
        picked=PICKED,
        d=READINGS,
        p=READINGS,
        share=SHARES,
        store=STORES,
    ),
    st.builds(
        partly,
        c_positive=CHANCES,
        c_negative=CHANCES,
        teacher=st.sampled_from([None, Of("teacher")]),
        targets=st.sampled_from(["posterior", "prediction"]),
        focus=st.sampled_from([0.0, 0.25, 1.0, Of("by_label")]),
        weight=st.sampled_from([0.0, 0.3, 1.0]),
        q=st.sampled_from([0.5, 1.0]),
        picked=PICKED,
        share=SHARES,
        gamma=st.sampled_from([0.01, 0.3]),
        chance=st.sampled_from([None, Of("by_label")]),
        factor=st.sampled_from([0.1, 1.0]),
        emphasis=st.sampled_from([None, Of("by_entry")]),
        store=STORES,
    ),
)


@settings(max_examples=15 if INTERPRETED else 100)
@given(
    case=any_case,
    shape=st.tuples(st.integers(1, 9), st.integers(1, 40)),
    pattern=st.sampled_from(PATTERNS),
    seed=st.integers(0, 99),
)
def test_equal_for_any_options(
    engine: Engine, case: Case, shape: tuple[int, int], pattern: str, seed: int
) -> None:
    assert_equal(case, make_data(shape, pattern, seed), engine)


WIDE_CASES = [CASES[name] for name in ("bce", "asl", "paper, picked", "partly, focus by label")]
wide_case = pytest.mark.parametrize("case", WIDE_CASES, ids=lambda case: case.name)


@wide_case
@pytest.mark.parametrize("shape", [(1, 20_011 if INTERPRETED else 1_000_000), (9_000, 1)])
def test_many_labels_or_many_images(case: Case, shape: tuple[int, int], engine: Engine) -> None:
    with tiles(TILE=1 << 12, WIDTH=1 << 12, SURVEY_TILE=1 << 14, FEW_SUMS=1024, MANY=1):
        assert_equal(case, make_data(shape), engine)


@every_case
def test_finite_and_equal_at_extreme_logits(case: Case, engine: Engine) -> None:
    values = torch.tensor([-1e4, -200.0, -30.0, -1.0, 0.0, 1.0, 30.0, 200.0, 1e4])
    logits = torch.stack([values.roll(shift) for shift in range(9)])
    data = replace(make_data((9, 9)), logits=logits, teacher=logits.flip(0))
    for found in assert_equal(case, data, engine):
        assert found is None or found.isfinite().all()


@wide_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_computed_in_float32(
    case: Case, dtype: torch.dtype, engine: Engine
) -> None:
    data = make_data((5, 30))
    narrow = replace(data, logits=data.logits.to(dtype))
    assert_equal(case, narrow, engine, 2**-8 if dtype == torch.bfloat16 else 2**-10)


@pytest.mark.parametrize("name", ["bce", "asl", "paper", "partly", "partly, focus"])
def test_float64_stays_float64(name: str, engine: Engine) -> None:
    data = make_data((3, 4))
    data = replace(data, logits=data.logits.double())
    if engine.backend == "triton":
        data = data.to(engine.device)
        with pytest.raises(ConfigError, match="computes in float32: for float64 take 'plain'"):
            CASES[name].fused(data, engine.backend)
        assert fused._choose("auto", CASES[name].name, data.logits) == "plain"
        return
    expected = graded(data, CASES[name].reference)
    found = graded(data, lambda given: CASES[name].fused(given, engine.backend))
    tolerance = 1e-7 if name in ("paper", "partly, focus") else 1e-12  # P/T, a mean in float32
    for one, other in zip(found[:2], expected[:2], strict=True):
        assert one.dtype == torch.float64
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["bce", "paper", "partly, told", "partly, teacher"])
def test_gradcheck_of_the_plain_backend(name: str) -> None:
    data = make_data((3, 4))

    def value(logits: Tensor) -> Tensor:
        answer = CASES[name].fused(replace(data, logits=logits), "plain")
        return answer[0] if isinstance(answer, tuple) else answer

    assert torch.autograd.gradcheck(value, data.logits.double().requires_grad_())


def test_sums_are_exact(engine: Engine) -> None:
    """One large term and a million small ones, each too small to be added to it alone."""
    entries = 1 << 20
    logits = torch.full((1, entries), -14.0, device=engine.device)
    logits[0, 0] = 1e3
    expected = (1e3 + (entries - 1) * np.log1p(np.exp(-14.0))) / entries
    with tiles(TILE=1 << 14):
        found = fused.bce(logits, torch.zeros_like(logits).to(torch.int8), backend=engine.backend)
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_the_same_bits_every_time(engine: Engine) -> None:
    data = make_data((300, 700) if engine.device == "cuda" else (4, 40)).to(engine.device)
    for name in ("paper, picked", "partly, focus"):
        compute = partial(CASES[name].fused, backend=engine.backend)
        first, second = (graded(data, compute) for _ in range(2))
        for one, other in zip(first, second, strict=True):
            assert one is other or torch.equal(one, other)


# Methods


def step_of(name: str, data: Data, **options: Any) -> tuple[Tensor, Tensor, Training]:
    """Loss and gradient of the method's own step, and what it remembers."""
    table = LabelTable.from_dense(data.labels.numpy())
    training = Training(table, estimate(table), epochs=9, kind="linear", audited=True)
    step = methods.get(name).start(training, options)
    rows = torch.arange(len(data.labels))
    loss, gradient, _ = graded(data, lambda it: step(it.logits, Batch(rows, it.labels, 2)))
    return loss, gradient, training


def test_the_method_partly(engine: Engine) -> None:
    data = make_data((60, 12))
    loss, gradient, training = step_of("partly", data, weight=0.7)
    known = training.propensity
    case = partly(
        c_positive=torch.as_tensor(known.positive),
        c_negative=torch.as_tensor(known.negative),
        focus=methods.FOCUS * torch.as_tensor(known.negative > 0),
        weight=0.7,
        store="float16",
    )
    found = graded(data.to(engine.device), lambda given: case.fused(given, engine.backend))
    torch.testing.assert_close(found[0], loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[1], gradient, rtol=1e-4, atol=1e-8)
    assert training.stores["pseudo_labels"].state_dict()["values"] == pytest.approx(
        found[2], abs=1e-3
    )


def test_the_method_paper(engine: Engine) -> None:
    data = make_data((60, 12))
    loss, gradient, training = step_of("paper", data, q=1.0, store="uint8")
    case = paper(store="uint8")
    start = torch.full_like(data.pseudo, 128, dtype=torch.uint8)  # as a store keeps ½
    data = replace(data, pseudo=start)
    found = graded(data.to(engine.device), lambda given: case.fused(given, engine.backend))
    torch.testing.assert_close(found[0], loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[1], gradient, rtol=1e-4, atol=1e-8)
    remembered = training.stores["pseudo_labels"].state_dict()["values"]
    assert (remembered.int() - found[2].int()).abs().max() <= 1  # type: ignore[union-attr]


# Pseudo-labels


@pytest.mark.parametrize("store", ["float16", "uint8"])
def test_pseudo_labels_are_read_as_they_are_kept(store: str, engine: Engine) -> None:
    data = make_data()
    kept = kept_as(store, data.pseudo)
    wide = kept.float() / (255 if store == "uint8" else 1)
    expected = graded(replace(data, pseudo=wide), CASES["paper"].reference)
    there = replace(data, pseudo=kept).to(engine.device)
    found = graded(there, lambda given: CASES["paper"].fused(given, engine.backend))
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("store", [*parts.DTYPES])
def test_where_a_prediction_is_no_number_the_old_pseudo_label_stays(
    store: str, engine: Engine
) -> None:
    data = make_data((4, 20)).to(engine.device)
    data.logits[2, 3] = torch.nan
    _, fresh = paper(store=store).fused(data, engine.backend)
    old = kept_as(store, data.pseudo.cpu())
    assert fresh[2, 3].item() == pytest.approx(old[2, 3].item(), abs=1e-6)
    assert fresh.float().isfinite().all()


def test_pseudo_labels_that_nobody_wants_are_not_made(engine: Engine) -> None:
    data = make_data().to(engine.device)
    loss, pseudo = partly(store=None).fused(data, engine.backend)
    assert pseudo is None
    assert torch.equal(loss, partly().fused(data, engine.backend)[0])


# Gradients


def test_the_gradient_follows_what_is_done_to_the_loss(engine: Engine) -> None:
    data = make_data().to(engine.device)
    for name in ("bce", "paper", "partly, focus"):
        _, once, _ = graded(data, partial(CASES[name].fused, backend=engine.backend))

        def trebled(given: Data, name: str = name) -> Tensor:
            answer = CASES[name].fused(given, engine.backend)
            return 3 * (answer[0] if isinstance(answer, tuple) else answer) + 1

        torch.testing.assert_close(graded(data, trebled)[1], 3 * once)


def test_a_loss_scaler_keeps_small_gradients_in_float16(engine: Engine) -> None:
    """A gradient of 1e-9 is 0 in float16 unless it is scaled before it is rounded."""
    logits = torch.full((1, 400_000), -7.0, dtype=torch.float16, device=engine.device)
    labels = torch.zeros_like(logits, dtype=torch.int8)
    logits.requires_grad_()
    with tiles(TILE=1 << 15):
        (2.0**16 * fused.bce(logits, labels, backend=engine.backend)).backward()
    expected = 2.0**16 / 400_000 * torch.sigmoid(torch.tensor(-7.0))
    torch.testing.assert_close(logits.grad.float().mean().cpu(), expected, rtol=1e-2, atol=0)


def test_a_second_gradient_is_refused_unless_plain(engine: Engine) -> None:
    data = make_data().to(engine.device)
    logits = data.logits.requires_grad_()
    loss = fused.bce(logits, data.labels, backend=engine.backend)
    if engine.backend == "plain":
        first, again = (torch.autograd.grad(loss, logits, create_graph=True)[0] for _ in range(2))
        assert torch.equal(first, again)
        assert torch.autograd.grad(first.sum(), logits)[0].abs().sum() > 0
        return
    loss.backward(retain_graph=True)
    with pytest.raises(PartlyError, match="handed out once"):
        loss.backward()
    loss = fused.bce(logits, data.labels, backend=engine.backend)
    with pytest.raises(PartlyError, match="no gradient of its own"):
        torch.autograd.grad(loss, logits, create_graph=True)


def test_gradient_mode_stays_and_inputs_too(engine: Engine) -> None:
    data, copy = make_data().to(engine.device), make_data().to(engine.device)
    data.logits.requires_grad_()
    for case in (CASES["paper, picked"], CASES["partly, by entry"], CASES["asl"]):
        with torch.no_grad():
            answer = case.fused(data, engine.backend)
            assert not torch.is_grad_enabled()
        loss = answer[0] if isinstance(answer, tuple) else answer
        assert not loss.requires_grad
        assert loss.shape == ()
    for field in fields(data):
        assert torch.equal(getattr(data, field.name), getattr(copy, field.name))


def test_tensors_need_not_be_contiguous_nor_labels_bytes(engine: Engine) -> None:
    data = make_data((8, 8))
    turned = Data(*(getattr(data, field.name).T.contiguous().T for field in fields(data)[:5]),
                  *(getattr(data, field.name) for field in fields(data)[5:]))  # fmt: skip
    for name in ("bce", "paper, picked", "partly, teacher"):
        assert_equal(CASES[name], turned, engine)
        assert_equal(CASES[name], replace(turned, labels=turned.labels.long()), engine)


@pytest.mark.parametrize("case", ["bce", "asl, ignore", "paper, known", "partly, by entry"])
def test_labels_may_be_booleans(case: str, engine: Engine) -> None:
    """Where a tile goes beyond the table there is nothing, and nothing positive."""
    for shape in ((1, 5), (3, 50)):
        data = make_data(shape, "known")
        assert_equal(CASES[case], replace(data, labels=data.labels.bool()), engine)


def test_numbers_beyond_all_bounds_stay_numbers(engine: Engine) -> None:
    """α/β without a bound where no positive is known, and a logit of which the belief is 1."""
    data = make_data((1, 3), "unknown").to(engine.device)
    logits = torch.tensor([[120.0, 90.0, -120.0]], device=engine.device, requires_grad=True)
    for gamma in (0.0, 0.05):
        loss, _ = fused.partly(
            logits, data.labels, c_positive=0.3, share="all", gamma=gamma, backend=engine.backend
        )
        (gradient,) = torch.autograd.grad(loss, logits)
        assert torch.isfinite(loss)
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_an_empty_batch_is_what_the_plain_loss_makes_of_it(
    shape: tuple[int, int], engine: Engine
) -> None:
    data = make_data(shape).to(engine.device)
    for name in ("bce", "bce, sum", "asl"):
        expected = CASES[name].reference(data)
        torch.testing.assert_close(
            CASES[name].fused(data, engine.backend), expected, equal_nan=True
        )
    assert partly().fused(data, engine.backend)[1].shape == shape


# Kernels only


@pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter's process")
class TestInterpreter:
    def test_what_scales_a_gradient(self) -> None:
        from partly.losses.fused.kernels import scale_

        values = torch.arange(5000.0)
        with tiles(TILE=1024, PROGRAMS=1):
            scale_(values, torch.tensor(1.0))
            assert torch.equal(values, torch.arange(5000.0))
            scale_(values, torch.tensor(-2.0))
        assert torch.equal(values, -2 * torch.arange(5000.0))

    def test_a_small_batch_takes_one_program(self, engine: Engine) -> None:
        """Nothing is counted before it and added up after it: at 256 × 80 it is launches that
        cost."""
        from partly.losses.fused import kernels

        data, surveys = make_data((256, 80)), {"_paper_survey": None, "_partly_survey": None}
        with (
            tiles(ALONE=1 << 15, WIDTH=1024),
            mock.patch.multiple(kernels, **surveys),
            mock.patch.object(kernels, "_total", side_effect=lambda sums: sums.view(())),
        ):
            for name in ("bce", "asl", "paper", "paper, known", "partly", "partly, focus"):
                assert_equal(CASES[name], data, engine)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@every_case
@pytest.mark.parametrize("alone", [True, False], ids=["one program", "many"])
def test_kernels_can_be_compiled(case: Case, alone: bool) -> None:
    """A compiler wants what the interpreter does not: a variable of a loop keeps its shape."""
    pytest.importorskip("triton")
    from partly.losses.fused import kernels

    names = [name for name in vars(kernels) if name.endswith(("_kernel", "_survey"))]
    compiled = {name: Compiled(getattr(kernels, name)) for name in names}
    few = {} if alone else {"ALONE": 1, "MANY": 1, "TILE": 512}
    with (
        mock.patch.multiple(kernels, **compiled, **few),
        mock.patch.object(fused, "_against_triton", return_value=[]),
    ):
        case.fused(make_data((40, 50)), "triton")
    launches = {name: kernel.launches for name, kernel in compiled.items() if kernel.launches}
    needs = case.name == "paper_loss" or case.options.get("share", "off") != "off"
    surveys = not alone and (needs or "focus" in case.options)
    assert launches == dict.fromkeys(launches, 1)
    assert sorted(name.endswith("_survey") for name in launches) == [False] + surveys * [True]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_more_entries_than_32_bits_count() -> None:
    images, length = 2200, 1_000_000
    if torch.cuda.mem_get_info()[0] < 16 * images * length:
        pytest.skip("not enough memory")
    logits = torch.randn(1, length, device="cuda", dtype=torch.bfloat16).repeat(images, 1)
    labels = torch.randint(-1, 2, (1, length), device="cuda", dtype=torch.int8).repeat(images, 1)
    for name in ("bce", "partly, focus"):
        data = replace(make_data((1, 1)), logits=logits.requires_grad_(), labels=labels)
        answer = CASES[name].fused(data, "triton")
        loss = answer[0] if isinstance(answer, tuple) else answer
        (gradient,) = torch.autograd.grad(loss, logits)
        row = replace(make_data((1, 1)), logits=logits[:1].detach(), labels=labels[:1])
        expected = graded(row, CASES[name].reference)
        torch.testing.assert_close(loss.detach().cpu(), expected[0], rtol=1e-5, atol=1e-6)
        scaled = expected[1].float() / images
        torch.testing.assert_close(gradient[-1:].cpu().float(), scaled, rtol=1e-2, atol=1e-14)


# The switch


def test_who_computes_by_default() -> None:
    small, large = torch.zeros(2, 3), torch.zeros(1, 1).expand(2048, 2048)
    with mock.patch.object(fused, "has_compiler", return_value=True):
        assert fused._choose("auto", "bce", small) == "plain"
        assert fused._choose("auto", "bce", large) == "compiled"
        with mock.patch.object(fused, "_given_up", {("compiled", "bce")}):
            assert fused._choose("auto", "bce", large) == "plain"
            assert fused._choose("auto", "asl", large) == "compiled"
    with mock.patch.object(fused, "has_compiler", return_value=False):
        assert fused._choose("auto", "bce", large) == "plain"


def test_what_is_missing_or_no_number_is_said() -> None:
    data = make_data()
    logits, labels = data.logits, data.labels
    for arguments, message in (
        ({"c_positive": None}, "c_positive is a chance, or one a label, not None"),
        ({"c_positive": 0.5, "factor": "much"}, "factor is a number, not 'much'"),
        ({"c_positive": 0.5, "factor": math.nan}, "factor lies between"),
    ):
        with pytest.raises(ConfigError, match=f"^{message}"):
            fused.partly(logits, labels, **arguments)
    for arguments, message in (
        ({"epochs": 0}, "epochs count from 1, not 0"),
        ({"epochs": "3"}, "epochs is a number, not '3'"),
        ({"pseudo": None}, "pseudo is a tensor, not NoneType"),
    ):
        given = {"pseudo": torch.rand_like(logits), "epoch": 1, "epochs": 3} | arguments
        with pytest.raises(ConfigError, match=f"^{message}"):
            fused.paper_loss(logits, labels, **given)


def test_only_logits_have_a_gradient(engine: Engine) -> None:
    data = make_data().to(engine.device)
    logits = data.logits.clone().requires_grad_()
    chances = {name: data.by_label.clone() for name in ("c_positive", "c_negative", "chance")}
    chances |= {"focus": data.by_label.clone(), "emphasis": data.by_entry.clone()}
    given = {name: value.requires_grad_() for name, value in chances.items()}
    loss, pseudo = fused.partly(logits, data.labels, **given, backend=engine.backend)
    told = data.pseudo.clone().requires_grad_()
    other, kept = fused.paper_loss(
        logits, data.labels, told, epoch=1, epochs=3, backend=engine.backend
    )
    (loss + other).backward()
    assert logits.grad is not None
    assert all(value.grad is None for value in (*given.values(), told))
    assert not pseudo.requires_grad
    assert not kept.requires_grad


def test_one_number_may_have_no_dimension() -> None:
    data = make_data()
    logits = data.logits
    expected = fused.partly(logits, data.labels, c_positive=0.3, focus=0.25)[0]
    for focus in (torch.tensor(0.25), np.array(0.25), np.float32(0.25)):
        assert fused.partly(logits, data.labels, c_positive=0.3, focus=focus)[0] == expected
    with pytest.raises(ConfigError, match=r"^teacher: a tensor of real numbers"):
        fused.partly(logits, data.labels, c_positive=0.3, teacher=data.labels)


@pytest.mark.parametrize("name", ["chance", "focus"])
def test_what_is_one_a_label_is_nothing_else(name: str) -> None:
    data = make_data()
    for value in (torch.rand(1), torch.rand(4, 40), torch.rand(4, 1), [0.5] * 39, "much"):
        with pytest.raises(ConfigError, match=f"^{name}.* one number a label"):
            fused.partly(data.logits, data.labels, c_positive=0.3, **{name: value})
    expected = fused.partly(
        data.logits, data.labels, c_positive=0.3, **{name: torch.full((40,), 0.5)}
    )
    found = fused.partly(data.logits, data.labels, c_positive=0.3, **{name: [0.5] * 40})
    assert torch.equal(found[0], expected[0])


def test_every_kind_of_input_is_compiled_by_itself() -> None:
    """The compiler takes eight versions of a function, and computes all further ones slowly."""
    data, graphs = make_data(), []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    tables = {"teacher": data.teacher, "picked": data.picked, "emphasis": data.by_entry}
    closed._compiled.cache_clear()
    with mock.patch.object(torch, "compile", partial(torch.compile, backend=keep)):
        for which in product([False, True], repeat=3):
            some = dict(compress(tables.items(), which))
            for c_positive in (0.3, data.by_image):
                given = {"c_positive": c_positive, "backend": "compiled", **some}
                fused.partly(data.logits, data.labels, **given)
    closed._compiled.cache_clear()
    assert len(graphs) == 16


@pytest.mark.parametrize("count", [1, 2])
def test_a_kernel_runs_on_the_gpu_of_its_tensors(count: int, monkeypatch: Any) -> None:
    """Told by what is asked of PyTorch, for there are seldom two."""
    asked: list[Any] = []
    tensor = mock.Mock(is_cuda=True, device=torch.device("cuda", count - 1))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda device: asked.append(device) or nullcontext())
    fused._one_gpu.cache_clear()
    assert fused._on_device_of(tensor, lambda a, b: a - b, [5], {"b": 3}) == 2
    fused._one_gpu.cache_clear()
    assert asked == [torch.device("cuda", 1)] * (count - 1)


def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no compiler for you")


def test_what_cannot_be_compiled_is_computed_plainly_and_said() -> None:
    data = make_data()
    with (
        mock.patch.object(closed, "bce", broken),
        mock.patch.object(fused, "WORTH_COMPILING", 1),
        mock.patch.object(fused, "has_compiler", return_value=True),
        mock.patch.object(fused, "_given_up", set()) as given_up,
    ):
        with pytest.raises(ConfigError, match="'compiled' cannot compute bce here: no compiler"):
            fused.bce(data.logits, data.labels, backend="compiled")
        assert not given_up  # whoever insists is told each time
        with pytest.warns(PartlyWarning, match="no compiler for you"):
            found = fused.bce(data.logits, data.labels)
        assert torch.equal(found, losses.bce(data.logits, data.labels))
        fused.bce(data.logits, data.labels)  # said once
        assert fused.works("compiled", "asl")  # which nobody has tried


def test_a_wrong_tensor_is_named_and_nothing_is_given_up() -> None:
    data = make_data()
    with (
        mock.patch.object(fused, "WORTH_COMPILING", 1),
        mock.patch.object(fused, "_given_up", set()) as given_up,
    ):
        with pytest.raises(ConfigError, match=r"labels is a tensor, not ndarray: torch\.as_t"):
            fused.bce(data.logits, data.labels.numpy())  # type: ignore[arg-type]
        with pytest.raises(ConfigError) as caught:
            fused.partly(
                data.logits,
                data.labels.to("meta"),
                c_positive=0.3,
                teacher=data.teacher.to("meta"),
                picked=[True],  # type: ignore[arg-type]
            )
        for complaint in (
            "on cpu, labels on meta",
            "on cpu, teacher on meta",
            "picked is a tensor",
        ):
            assert complaint in str(caught.value)
        for logits in (data.logits.long(), data.logits.numpy()):
            with pytest.raises(ConfigError, match="logits: a tensor of real numbers"):
                fused.asl(logits, data.labels)  # type: ignore[arg-type]
        assert not given_up


def test_triton_says_why_it_cannot() -> None:
    data = make_data()
    with (
        mock.patch.object(fused, "has_triton", return_value=False),
        pytest.raises(ConfigError, match="not installed"),
    ):
        fused.bce(data.logits, data.labels, backend="triton")
    pytest.importorskip("triton")
    with pytest.raises(ConfigError, match="float64") as caught:
        fused.bce(data.logits.double(), data.labels, backend="triton")
    assert "needs tensors on a GPU, not on 'cpu'" in str(caught.value)


@pytest.mark.parametrize(
    ("case", "more", "complaints"),
    [
        (CASES["bce"], {"reduction": "none"}, ["reduction is one of mean, sum, not 'none'"]),
        (CASES["asl"], {"unknown": "maybe", "reduction": "x"}, ["not 'maybe'", "not 'x'"]),
        (paper(), {"p": "loud", "share": "some"}, ["p is one of", "share is one of"]),
        (paper(), {"d": "loud"}, ["d is read as"]),
        (paper(), {"store": "int4"}, ["store is one of float32, float16, uint8"]),
        (partly(), {"targets": "x"}, ["targets is one of posterior, prediction"]),
        (partly(), {"picked": torch.ones(2, 2)}, ["picked (2, 2)"]),
        (partly(), {"c_positive": torch.ones(3)}, ["not shape (3,)"]),
    ],
)
def test_all_that_is_wrong_is_said(case: Case, more: dict, complaints: list[str]) -> None:
    for backend in ("plain", "auto"):
        with pytest.raises(ConfigError) as caught:
            Case(case.name, case.options | more).fused(make_data(), backend)
        assert all(complaint in str(caught.value) for complaint in complaints)


def test_shapes_and_the_word_for_the_backend_are_checked() -> None:
    data = make_data()
    with pytest.raises(ConfigError, match=r"logits have shape \(4, 40\), labels \(4, 39\)"):
        fused.bce(data.logits, data.labels[:, 1:])
    with pytest.raises(ConfigError, match=r"give \[images, labels\]"):
        fused.bce(data.logits.flatten(), data.labels.flatten())
    with pytest.raises(ConfigError, match="backend is one of auto, triton, compiled, plain"):
        fused.bce(data.logits, data.labels, backend="cuda")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("case", "later"),
    [
        (CASES["bce"], {}),
        (CASES["paper, picked"], {"epoch": 5}),
        (CASES["partly, focus"], {"weight": 0.5, "focus": 0.1}),
    ],
    ids=str,
)
def test_nothing_is_compiled_twice(case: Case, later: dict[str, Any]) -> None:
    """Neither for a last batch that is smaller nor for a weight that changes with the epoch.

    The graph is run as it is found: a C++ compiler takes longer than all tests here, and what it
    makes is compared with the plain losses in benchmarks/fused.py.
    """
    graphs = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    closed._compiled.cache_clear()
    with mock.patch.object(torch, "compile", partial(torch.compile, backend=keep)):
        assert_equal(case, make_data((7, 50)), Engine("compiled"))
        assert len(graphs) == 1
        assert_equal(Case(case.name, case.options | later), make_data((4, 9)), Engine("compiled"))
    closed._compiled.cache_clear()
    assert len(graphs) == 1
