"""The losses: against slow references, against each other, and one battery for all of them.

A new loss needs a reference in references.py and an entry in CASES; nothing else.
"""

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import references
from partly import LabelTable, losses, propensity, schedules
from partly.errors import ConfigError
from partly.losses import fused

torch.set_num_threads(1)

HELPERS = {"balance", "penalty", "large_losses", "spa_probability", "surprise"}
PATTERNS = ("mixed", "known", "unknown", "positives", "rows")
SHAPES = ((1, 1), (1, 5), (4, 1), (2, 2), (3, 4), (6, 9))
WIDE = (6, 9)
OTHER_LINK = {
    "slope_positive": 2.0,
    "shift_positive": -0.5,
    "scale_positive": 3.0,
    "slope_negative": 0.7,
    "shift_negative": 0.25,
    "scale_negative": 1.5,
}
UNIT_LINK = {"slope_negative": 1.0, "shift_negative": 0.0, "scale_negative": 1.0}
REDUCED = inspect.signature(losses.bce).parameters["reduction"].annotation


# Batches


@dataclasses.dataclass(frozen=True)
class Batch:
    """Everything a loss may ask for, under the names of the losses' parameters."""

    logits: Tensor
    labels: Tensor
    pseudo: Tensor
    picked: Tensor
    flipped: Tensor
    estimates: Tensor
    priors: Tensor

    def but(self, **tables: Tensor) -> "Batch":
        return dataclasses.replace(self, **tables)

    def permuted(self, images: Tensor, labels: Tensor) -> "Batch":
        tables = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        priors = tables.pop("priors")[labels]
        return Batch(priors=priors, **{k: v[images][:, labels] for k, v in tables.items()})

    def cast(self, dtype: torch.dtype) -> "Batch":
        return self.but(logits=self.logits.to(dtype), estimates=self.estimates.to(dtype))

    def unknown(self) -> Tensor:
        return self.labels == -1


def make_labels(shape: tuple[int, int], pattern: str, generator: torch.Generator) -> Tensor:
    labels = torch.randint(-1, 2, shape, generator=generator, dtype=torch.int8)
    if pattern == "known":
        return labels.abs()
    if pattern == "unknown":
        return torch.full_like(labels, -1)
    if pattern == "positives":
        return torch.where(labels == 0, -1, labels)
    if pattern == "rows":
        labels[0] = -1
        labels[1:2] = labels[1:2].abs()
    return labels


def make_batch(
    shape: tuple[int, int] = WIDE,
    pattern: str = "mixed",
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    spread: float = 2.0,
) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def draw(kind: Callable[..., Tensor], *size: int) -> Tensor:
        return kind(size or shape, generator=generator, dtype=torch.float64)

    labels = make_labels(shape, pattern, generator)
    return Batch(
        logits=(spread * draw(torch.randn)).to(dtype),
        labels=labels,
        pseudo=draw(torch.rand).to(dtype),
        picked=draw(torch.rand) < 0.6,
        flipped=draw(torch.rand) < 0.3,
        estimates=draw(torch.randn).to(dtype),
        priors=draw(torch.rand, shape[1]).to(dtype),
    )


def extreme_batch(dtype: torch.dtype, size: float = 1e4) -> Batch:
    """Every label meets every logit that could overflow, alone and among others."""
    values = torch.tensor([-size, -100.0, -1.0, 0.0, 1.0, 100.0, size])
    columns = torch.arange(len(values))
    logits = torch.stack([values.roll(shift) for shift in (0, 1, 2)] + [values[:1].expand(7)] * 3)
    labels = torch.tensor([[1], [0], [-1]], dtype=torch.int8).repeat(2, len(values))
    return Batch(
        logits=logits.to(dtype),
        labels=labels,
        pseudo=(columns % 3 / 2).expand(6, -1),
        picked=(columns % 2 == 0).expand(6, -1),
        flipped=(columns % 2 == 0).expand(6, -1),
        estimates=logits.flip(1).to(dtype),
        priors=torch.linspace(0, 1, len(values)),
    )


# The battery


@dataclasses.dataclass(frozen=True)
class Case:
    """A loss with options. `unknown` says which unknown entries get a gradient."""

    name: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    extras: tuple[str, ...] = ()
    unknown: str = "every"  # "silent", "some", "picked" or "every"
    tolerance: float = 1e-9

    @property
    def reducible(self) -> bool:
        return "reduction" in inspect.signature(getattr(losses, self.name)).parameters

    def __call__(self, batch: Batch, **more: Any) -> Tensor:
        tables = {extra: getattr(batch, extra) for extra in self.extras}
        loss = getattr(losses, self.name)
        return loss(batch.logits, batch.labels, **tables, **self.options, **more)

    def reference(self, batch: Batch, frozen: Tensor | None = None) -> float:
        tables = {extra: getattr(batch, extra).tolist() for extra in self.extras}
        slow = getattr(references, self.name)
        if frozen is not None and "frozen" in inspect.signature(slow).parameters:
            tables["frozen"] = frozen.tolist()
        return slow(batch.logits.tolist(), batch.labels.tolist(), **tables, **self.options)


def paper_case(extras: tuple[str, ...] = ("pseudo",), unknown: str = "every", **more: Any) -> Case:
    # The share P/T is a float32 number, also for float64 logits.
    return Case("paper_loss", {"epoch": 2, "epochs": 8, **more}, extras, unknown, 1e-7)


CASES = {
    "bce": Case("bce", unknown="silent"),
    "ign": Case("ign", unknown="silent"),
    "an": Case("an"),
    "wan": Case("wan"),
    "wan, weight": Case("wan", {"weight": 0.3}),
    "wan, no weight": Case("wan", {"weight": 0.0}, unknown="silent"),
    "bce_ls": Case("bce_ls", unknown="silent"),
    "bce_ls, half": Case("bce_ls", {"convention": "half", "epsilon": 0.3}, unknown="silent"),
    "an_ls": Case("an_ls"),
    "an_ls, half": Case("an_ls", {"convention": "half"}),
    "partial_bce": Case("partial_bce", unknown="silent"),
    "partial_bce, slope": Case("partial_bce", {"slope": 2.0, "offset": 0.5}, unknown="silent"),
    "observed": Case("observed", {"c_positive": 0.3}),
    "observed, both": Case("observed", {"c_positive": 0.6, "c_negative": 0.2}),
    "consistent": Case("consistent", extras=("pseudo",)),
    "consistent, picked": Case(
        "consistent",
        {"weight": 0.3, "alpha": 0.9, "beta": 0.1},
        ("pseudo", "picked"),
        unknown="picked",
    ),
    "focal": Case("focal"),
    "focal, ignore": Case("focal", {"unknown": "ignore"}, unknown="silent"),
    "focal, gamma 0": Case("focal", {"gamma": 0.0}),
    "focal, gamma half": Case("focal", {"gamma": 0.5}),
    "focal, gamma 1": Case("focal", {"gamma": 1.0}),
    "asl": Case("asl", unknown="some"),
    "asl, gamma positive": Case("asl", {"gamma_positive": 1.0, "clip": 0.2}, unknown="some"),
    "asl, gamma 0": Case("asl", {"gamma_negative": 0.0}, unknown="some"),
    "asl, no clip": Case("asl", {"gamma_negative": 0.5, "clip": 0.0}),
    "asl, ignore": Case("asl", {"unknown": "ignore"}, unknown="silent"),
    "csl": Case("csl", {"likely": 1}, unknown="some"),
    "csl, priors": Case(
        "csl", {"likely": 1, "clip": 0.05, "gamma_positive": 1.0}, ("priors",), "some"
    ),
    "csl, none likely": Case("csl", {"likely": 0, "prior_threshold": 0.4}, ("priors",), "some"),
    "csl, all likely": Case("csl", {"likely": 50}, unknown="silent"),
    "hill": Case("hill"),
    "hill, options": Case("hill", {"margin": 0.5, "gamma": 1.0, "turning": 2.0}),
    "hill, gamma half": Case("hill", {"gamma": 0.5}),
    "splc": Case("splc", {"epoch": 2}),
    "splc, first epoch": Case("splc", {"epoch": 1}),
    "splc, gamma half": Case("splc", {"epoch": 3, "gamma": 0.5, "margin": 0.2, "threshold": 0.3}),
    "spa": Case("spa", unknown="silent"),
    "spa, link": Case("spa", OTHER_LINK, unknown="silent"),
    "epr": Case("epr", {"expected_positives": 1.5}),
    "role": Case("role", {"expected_positives": 1.5}, ("estimates",)),
    "em": Case("em"),
    "em, no weight": Case("em", {"weight": 0.0}, unknown="silent"),
    "ll": Case("ll", {"epoch": 2}, unknown="some"),
    "ll, later": Case("ll", {"epoch": 7, "rate": 0.03}, unknown="some"),
    "ll, first epoch": Case("ll", {"epoch": 1, "rate": 0.5}),
    "ll, ct": Case("ll", {"epoch": 9, "variant": "ct"}),
    "ll, cp": Case("ll", {"epoch": 2, "variant": "cp"}, ("flipped",)),
    "paper_loss": paper_case(),
    "paper_loss, picked": paper_case(("pseudo", "picked"), "picked"),
    "paper_loss, printed": paper_case(d="printed", p="printed", m=1.5),
    "paper_loss, known": paper_case(share="known", gamma=0.2),
    "paper_loss, plain": paper_case(d="off", p="off", share="off"),
}
# The rest of the losses' gradients is the derivative of their values.
DETACHED = {"asl", "csl", "role"}


def cases_where(wanted: Callable[[Case], bool]) -> pytest.MarkDecorator:
    chosen = [pytest.param(case, id=key) for key, case in CASES.items() if wanted(case)]
    return pytest.mark.parametrize("case", chosen)


every_case = cases_where(lambda case: True)
half_dtypes = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def graded(loss: Callable[[Batch], Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
    """A loss's value and its gradient in the logits."""
    logits = batch.logits.clone().requires_grad_()
    value = loss(batch.but(logits=logits))
    (gradient,) = torch.autograd.grad(value, logits)
    return value.detach(), gradient


def assert_same(left: Any, right: Any, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance, check_dtype=False)


def test_battery_covers_every_public_loss() -> None:
    assert {case.name for case in CASES.values()} == set(losses.__all__) - HELPERS


@every_case
@pytest.mark.parametrize("pattern", PATTERNS)
def test_value_is_the_reference(case: Case, pattern: str) -> None:
    for seed, shape in enumerate(SHAPES * 2):
        batch = make_batch(shape, pattern, seed)
        value = case(batch)
        assert value.dtype == torch.float64
        assert_same(value.item(), case.reference(batch), case.tolerance)


def finite_differences(case: Case, batch: Batch, step: float = 1e-5) -> Tensor:
    """The reference's slope at every logit, what is frozen staying at the base point."""
    slopes = torch.zeros_like(batch.logits)
    for entry in range(slopes.numel()):
        shift = torch.zeros_like(slopes)
        shift.view(-1)[entry] = step
        above = case.reference(batch.but(logits=batch.logits + shift), batch.logits)
        below = case.reference(batch.but(logits=batch.logits - shift), batch.logits)
        slopes.view(-1)[entry] = (above - below) / (2 * step)
    return slopes


@every_case
@pytest.mark.parametrize("pattern", PATTERNS)
def test_gradient_is_the_references(case: Case, pattern: str) -> None:
    for seed, shape in enumerate([(1, 1), (3, 4)]):
        batch = make_batch(shape, pattern, seed)
        _, gradient = graded(case, batch)
        torch.testing.assert_close(gradient, finite_differences(case, batch), rtol=1e-6, atol=1e-8)


@cases_where(lambda case: case.name not in DETACHED)
def test_gradcheck(case: Case) -> None:
    batch = make_batch((3, 4), seed=5)
    logits = batch.logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: case(batch.but(logits=x)), logits)


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_finite_at_extreme_logits(case: Case, dtype: torch.dtype) -> None:
    value, gradient = graded(case, extreme_batch(dtype))
    assert value.isfinite()
    assert gradient.isfinite().all()


@every_case
@half_dtypes
def test_half_precision_is_computed_in_float32(case: Case, dtype: torch.dtype) -> None:
    batch = make_batch(dtype=torch.float32).cast(dtype)
    value, gradient = graded(case, batch)
    wide_value, wide_gradient = graded(case, batch.cast(torch.float32))
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    assert_same(value, wide_value, 1e-6)
    torch.testing.assert_close(gradient.float(), wide_gradient, rtol=1e-2, atol=1e-5)


@every_case
def test_result_is_one_number(case: Case) -> None:
    assert case(make_batch()).shape == ()


def expected_gradients(case: Case, batch: Batch) -> Tensor:
    silent = torch.zeros_like(batch.picked)
    return {"silent": silent, "picked": batch.picked, "every": ~silent}[case.unknown]


@every_case
def test_gradient_at_unknown_entries_is_as_promised(case: Case) -> None:
    batch = make_batch(pattern="rows", seed=3)
    unknown = batch.unknown()
    pulled = graded(case, batch)[1] != 0
    if case.unknown == "some":
        assert 0 < pulled[unknown].sum() < unknown.sum()
    else:
        assert torch.equal(pulled[unknown], expected_gradients(case, batch)[unknown])


@cases_where(lambda case: case.unknown == "silent")
def test_silent_unknown_entries_have_no_value(case: Case) -> None:
    batch = make_batch(pattern="rows", seed=3)
    moved = torch.where(batch.unknown(), 1e4, batch.logits)
    assert torch.equal(case(batch), case(batch.but(logits=moved)))
    assert case(make_batch(pattern="unknown")) == 0


@every_case
def test_order_of_images_and_labels_does_not_matter(case: Case) -> None:
    batch = make_batch(seed=1)
    generator = torch.Generator().manual_seed(0)
    images, labels = (torch.randperm(length, generator=generator) for length in WIDE)
    value, gradient = graded(case, batch)
    moved_value, moved_gradient = graded(case, batch.permuted(images, labels))
    assert_same(moved_value, value)
    assert_same(moved_gradient, gradient[images][:, labels])


@cases_where(lambda case: case.reducible)
def test_reductions_agree(case: Case) -> None:
    batch = make_batch(seed=2)
    terms = case(batch, reduction="none")
    assert terms.shape == WIDE
    assert_same(terms.mean(), case(batch, reduction="mean"))
    assert_same(terms.sum(), case(batch, reduction="sum"))
    assert_same(case(batch), case(batch, reduction="mean"))


@every_case
def test_gradient_mode_stays(case: Case) -> None:
    batch = make_batch()
    batch.logits.requires_grad_()
    with torch.enable_grad():
        assert case(batch).requires_grad
        assert torch.is_grad_enabled()
    with torch.no_grad():
        silent = case(batch)
        assert not torch.is_grad_enabled()
    assert not silent.requires_grad
    assert_same(silent, case(batch).detach())


@every_case
def test_integer_type_of_labels_does_not_matter(case: Case) -> None:
    batch = make_batch()
    wide = batch.but(labels=batch.labels.to(torch.int64))
    for narrow, other in zip(graded(case, batch), graded(case, wide), strict=True):
        assert torch.equal(narrow, other)


@every_case
def test_inputs_stay_untouched(case: Case) -> None:
    batch, copy = make_batch(), make_batch()
    graded(case, batch)
    for field in dataclasses.fields(batch):
        assert torch.equal(getattr(batch, field.name), getattr(copy, field.name))


# Options


ALLOWED = {
    "reduction": ("mean", "sum", "none"),
    "convention": ("full", "half"),
    "unknown": ("negative", "ignore"),
    "variant": ("r", "ct", "cp"),
    "share": ("all", "known", "off"),
    "d": ("text", "printed", "off"),
    "p": ("text", "printed", "off"),
    "reading": ("text", "printed", "off"),
    "schedule": ("cosine", "constant"),
}
NUMBERS = {"epoch": 2, "epochs": 8, "count": 1, "expected_positives": 1.5, "step": 1, "steps": 9}
NUMBERS["c_positive"] = 0.5


def functions() -> dict[str, Callable[..., Any]]:
    found = {name: getattr(losses, name) for name in losses.__all__}
    found["attention"] = schedules.attention
    found["learning_rate_factor"] = schedules.learning_rate_factor
    return found


def worded_options() -> Iterator[tuple[str, str]]:
    for name, function in functions().items():
        for option, parameter in inspect.signature(function).parameters.items():
            if parameter.annotation in (str, REDUCED):
                yield name, option


@pytest.mark.parametrize(("name", "option"), list(worded_options()))
def test_unknown_word_is_refused_with_the_allowed_ones(name: str, option: str) -> None:
    function, batch = functions()[name], make_batch()
    arguments = {
        key: NUMBERS[key] if key in NUMBERS else getattr(batch, key)
        for key, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
    }
    with pytest.raises(ConfigError) as caught:
        function(**arguments, **{option: "nonsense"})
    assert "nonsense" in str(caught.value)
    words = set(re.findall(r"\w+", str(caught.value)))
    assert words.issuperset(ALLOWED[option])


# Identities, in value and gradient


Loss = Callable[[Batch], Tensor]


@dataclasses.dataclass(frozen=True)
class Same:
    """Two losses that agree in value and gradient on labels of this pattern."""

    left: Loss
    right: Loss
    pattern: str = "mixed"
    shape: tuple[int, int] = WIDE
    tolerance: float = 1e-12


def call(name: str, *extras: str, **options: Any) -> Loss:
    return Case(name, options, extras)


def paper(**options: Any) -> Loss:
    plain = {"epoch": 2, "epochs": 8, "d": "off", "p": "off", "share": "off"}
    return Case("paper_loss", {**plain, **options}, ("pseudo",))


def believing(loss: Loss) -> Loss:
    """The loss with every unknown label counted as positive."""
    return lambda batch: loss(batch.but(labels=batch.labels.abs()))


def targeting(value: float, loss: Loss) -> Loss:
    """The loss with every pseudo-label at `value`."""
    return lambda batch: loss(batch.but(pseudo=torch.full_like(batch.pseudo, value)))


def lowered(margin: float, loss: Loss) -> Loss:
    return lambda batch: loss(batch.but(logits=batch.logits - margin))


def scaled(factor: float, loss: Loss) -> Loss:
    return lambda batch: factor * loss(batch)


def weighted_bce(alpha: float, beta: float) -> Loss:
    def loss(batch: Batch) -> Tensor:
        weights = torch.where(batch.labels == 1, alpha, beta).double()
        return binary_cross_entropy_with_logits(batch.logits, batch.labels.double(), weights)

    return loss


def balanced_bce(batch: Batch) -> Tensor:
    share = (batch.labels == 1).double().mean().item()
    assert share > 0.05
    return weighted_bce(1 - share, share)(batch)


THREE = {"gamma_positive": 3.0, "gamma_negative": 3.0, "clip": 0.05}
UNFOCUSED = {"gamma_positive": 0.0, "gamma_negative": 0.0, "clip": 0.0}
IDENTITIES = {
    "bce is torch's": Same(call("bce"), weighted_bce(1.0, 1.0), "known"),
    "ign knowing all is bce": Same(call("ign"), call("bce"), "known"),
    "an knowing all is bce": Same(call("an"), call("bce"), "known"),
    "wan of two labels is an": Same(call("wan"), call("an"), shape=(5, 2)),
    "wan, weight 1 is an": Same(call("wan", weight=1.0), call("an")),
    "wan, weight 0 is ign": Same(call("wan", weight=0.0), call("ign")),
    "bce_ls, epsilon 0 is bce": Same(call("bce_ls", epsilon=0.0), call("bce")),
    "an_ls, epsilon 0 is an": Same(call("an_ls", epsilon=0.0), call("an")),
    "an_ls knowing all is bce_ls": Same(call("an_ls"), call("bce_ls"), "known"),
    "smoothing by half of double": Same(
        call("an_ls", epsilon=0.2, convention="half"), call("an_ls", epsilon=0.1)
    ),
    "partial_bce knowing all is bce": Same(call("partial_bce"), call("bce"), "known"),
    "partial_bce, slope 0 is ign": Same(call("partial_bce", slope=0.0, offset=1.0), call("ign")),
    "observed, all positives annotated is an": Same(call("observed", c_positive=1.0), call("an")),
    "observed, nothing annotated is ign": Same(call("observed", c_positive=0.0), call("ign")),
    "observed knowing all is bce": Same(call("observed", c_positive=0.4), call("bce"), "known"),
    "consistent, pseudo 0 is an": Same(targeting(0.0, call("consistent", "pseudo")), call("an")),
    "consistent, pseudo 0, 1/(L-1) is wan": Same(
        targeting(0.0, call("consistent", "pseudo", weight=1 / 8)), call("wan")
    ),
    "consistent, weight 0 is ign": Same(call("consistent", "pseudo", weight=0.0), call("ign")),
    "consistent, pseudo 1 believes": Same(
        targeting(1.0, call("consistent", "pseudo")), believing(call("bce"))
    ),
    "focal, gamma 0 is an": Same(call("focal", gamma=0.0), call("an")),
    "focal, gamma 0, ignoring is ign": Same(
        call("focal", gamma=0.0, unknown="ignore"), call("ign")
    ),
    "asl, unfocused is an": Same(call("asl", **UNFOCUSED), call("an")),
    "asl, unfocused, ignoring is ign": Same(
        call("asl", unknown="ignore", **UNFOCUSED), call("ign")
    ),
    "csl with one gamma is asl": Same(
        call("csl", likely=0, gamma_unknown=3.0, **THREE), call("asl", **THREE)
    ),
    "csl leaving all out is asl, ignoring": Same(
        call("csl", likely=50, **THREE), call("asl", unknown="ignore", **THREE)
    ),
    "hill on positives is focal with a margin": Same(
        believing(call("hill")), lowered(1.0, believing(call("focal"))), "positives"
    ),
    "hill on positives, plain is bce": Same(
        believing(call("hill", margin=0.0, gamma=0.0)), believing(call("bce")), "positives"
    ),
    "splc, epoch 1, plain is an": Same(call("splc", epoch=1, margin=0.0, gamma=0.0), call("an")),
    "splc, epoch 1, no margin is focal": Same(call("splc", epoch=1, margin=0.0), call("focal")),
    "splc, threshold 1 never believes": Same(
        call("splc", epoch=9, threshold=1.0), call("splc", epoch=1)
    ),
    "splc, threshold 0 believes": Same(
        call("splc", epoch=2, threshold=0.0, margin=0.0), believing(call("focal"))
    ),
    "spa, unit link is bce": Same(call("spa", **UNIT_LINK), call("bce")),
    "em, weight 0 is ign": Same(call("em", weight=0.0), call("ign")),
    "em knowing all is bce": Same(call("em"), call("bce"), "known"),
    "ll, epoch 1 is an": Same(call("ll", epoch=1, rate=0.3), call("an")),
    "ll, ct, epoch 1 is an": Same(call("ll", epoch=1, rate=0.3, variant="ct"), call("an")),
    "ll, rate 0 is an": Same(call("ll", epoch=9, rate=0.0), call("an")),
    "ll, all dropped is ign": Same(call("ll", epoch=2, rate=1.0), call("ign")),
    "ll, ct, all flipped believes": Same(
        call("ll", epoch=2, rate=1.0, variant="ct"), believing(call("bce"))
    ),
    "paper_loss knowing all, plain is bce": Same(paper(), call("bce"), "known"),
    "paper_loss knowing all is balanced bce": Same(
        paper(share="all"), balanced_bce, "known", tolerance=1e-7
    ),
    "paper_loss knowing all, both totals agree": Same(
        paper(share="known"), paper(share="all"), "known"
    ),
    "paper_loss knowing nothing, plain is consistent": Same(
        paper(), call("consistent", "pseudo"), "unknown"
    ),
    "paper_loss knowing nothing, d scales": Same(
        paper(d="text"), scaled(math.exp(5 / 8 - 1), paper()), "unknown"
    ),
    "paper_loss, pseudo 0, knowing nothing is an": Same(
        targeting(0.0, paper()), call("an"), "unknown"
    ),
}


@pytest.mark.parametrize("same", IDENTITIES.values(), ids=IDENTITIES.keys())
def test_identity_in_value_and_gradient(same: Same) -> None:
    batch = make_batch(same.shape, same.pattern, seed=4)
    for left, right in zip(graded(same.left, batch), graded(same.right, batch), strict=True):
        assert_same(left, right, same.tolerance)


def test_asl_is_focal_in_value_only() -> None:
    batch = make_batch()
    asl_value, asl_gradient = graded(call("asl", **{**THREE, "clip": 0.0}), batch)
    focal_value, focal_gradient = graded(call("focal", gamma=3.0), batch)
    assert_same(asl_value, focal_value)
    assert (asl_gradient - focal_gradient).abs().max() > 1e-3


def test_hill_gives_up_on_confident_negatives() -> None:
    batch = make_batch(pattern="unknown")
    probability = batch.logits.sigmoid()
    slope = 3 * probability**2 * (1 - probability) ** 2  # d/dx of (3/2 - p)p²
    assert_same(graded(call("hill"), batch)[1], slope / slope.numel())


def test_epr_at_the_expected_count_only_lifts_positives() -> None:
    batch = make_batch(pattern="positives")
    count = batch.logits.sigmoid().sum(1).mean().item()
    value, gradient = graded(call("epr", expected_positives=count), batch)
    positive_value, positive_gradient = graded(call("ign"), batch)
    assert_same(value, positive_value)
    assert_same(gradient, positive_gradient)


def test_em_gains_from_doubt() -> None:
    unsure = make_batch(pattern="unknown").but(logits=torch.zeros(WIDE))
    assert_same(call("em")(unsure).item(), -0.1 * math.log(2), 1e-6)


def test_role_teaches_both_sides_alike() -> None:
    batch = make_batch()
    estimates = batch.estimates.clone().requires_grad_()
    role = call("role", "estimates", expected_positives=1.5)
    value = role(batch.but(estimates=estimates))
    (gradient,) = torch.autograd.grad(value, estimates)
    swapped = batch.but(logits=batch.estimates, estimates=batch.logits)
    swapped_value, swapped_gradient = graded(role, swapped)
    assert_same(value.detach(), swapped_value)
    assert_same(gradient, swapped_gradient)


@pytest.mark.parametrize("name", ["consistent", "paper_loss", "paper_loss, picked"])
def test_no_gradient_reaches_pseudo_labels(name: str) -> None:
    batch = make_batch()
    batch.logits.requires_grad_()
    batch.pseudo.requires_grad_()
    CASES[name](batch).backward()
    assert batch.pseudo.grad is None
    assert batch.logits.grad is not None


# Large losses


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("count", [0, 1, 5, 10_000])
def test_large_losses_are_the_largest_unknown(pattern: str, count: int) -> None:
    batch = make_batch(pattern=pattern)
    expected = references.largest_unknown(batch.logits.tolist(), batch.labels.tolist(), count)
    mask = losses.large_losses(batch.logits, batch.labels, count)
    assert mask.dtype == torch.bool
    assert {tuple(entry) for entry in mask.nonzero().tolist()} == expected


def test_large_losses_count_ties_exactly() -> None:
    batch = make_batch(pattern="unknown")
    mask = losses.large_losses(torch.zeros(WIDE), batch.labels, 7)
    assert mask.sum() == 7


@pytest.mark.parametrize(
    ("shape", "rate", "epoch"),
    [((10, 20), 0.005, 2), ((10, 20), 0.005, 8), ((10, 100), 0.001, 4), ((10, 70), 0.01, 2)],
)
def test_large_loss_count_is_not_rounded_up_by_binary_noise(
    shape: tuple[int, int], rate: float, epoch: int
) -> None:
    batch = make_batch(shape, "unknown")
    terms = losses.ll(batch.logits, batch.labels, epoch=epoch, rate=rate, reduction="none")
    dropped = (terms == 0).sum().item()
    assert dropped == references.large_loss_count(batch.labels.tolist(), epoch, rate)


# The strictly proper loss


links = pytest.mark.parametrize(
    "link", [{}, UNIT_LINK, OTHER_LINK], ids=["default", "unit", "other"]
)


def expected_minimum(probability: Tensor, link: dict[str, float]) -> Tensor:
    """The logit of smallest expected loss for each true probability, by bisection."""

    def slope(logits: Tensor, label: int) -> Tensor:
        batch = make_batch((1, len(logits)), "known").but(
            logits=logits[None], labels=torch.full((1, len(logits)), label)
        )
        return graded(call("spa", reduction="sum", **link), batch)[1][0]

    low, high = torch.full_like(probability, -60), torch.full_like(probability, 60)
    for _ in range(80):
        middle = (low + high) / 2
        rising = probability * slope(middle, 1) + (1 - probability) * slope(middle, 0) > 0
        low, high = torch.where(rising, low, middle), torch.where(rising, middle, high)
    return (low + high) / 2


@links
def test_spa_probability_is_the_reference(link: dict[str, float]) -> None:
    logits = torch.linspace(-12, 12, 101, dtype=torch.float64)
    expected = [references.spa_probability(logit, **link) for logit in logits.tolist()]
    assert_same(losses.spa_probability(logits, **link).tolist(), expected, 1e-12)


@links
def test_spa_is_strictly_proper(link: dict[str, float]) -> None:
    truth = torch.linspace(0.001, 0.999, 201, dtype=torch.float64)
    assert_same(losses.spa_probability(expected_minimum(truth, link), **link), truth)


def test_spa_probability_with_unit_link_is_sigmoid() -> None:
    logits = make_batch().logits
    assert_same(losses.spa_probability(logits, **UNIT_LINK), logits.sigmoid(), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_spa_probability_stays_a_probability(dtype: torch.dtype) -> None:
    logits = torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4], dtype=dtype)
    probabilities = losses.spa_probability(logits)
    assert probabilities.dtype == torch.float32
    assert (probabilities.diff() >= 0).all()
    assert ((probabilities >= 0) & (probabilities <= 1)).all()


# The paper's loss, by hand


def tables(*rows: str) -> Tensor:
    """Labels from "1", "0" and "?"."""
    return torch.tensor([[{"1": 1, "0": 0, "?": -1}[sign] for sign in row] for row in rows])


def paper_value(labels: Tensor, logits: Tensor | None = None, **options: Any) -> float:
    """The paper's loss at ŷ = ỹ = ½ unless told, α/β and p off unless told."""
    logits = torch.zeros(labels.shape, dtype=torch.float64) if logits is None else logits
    defaults = {"epoch": 1, "epochs": 12, "share": "off", "p": "off"}
    pseudo = torch.full_like(logits, 0.5)
    return losses.paper_loss(logits, labels, pseudo, **{**defaults, **options}).item()


def double(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def logit(probability: float) -> float:
    return math.log(probability / (1 - probability))


@pytest.mark.parametrize(
    ("reading", "epoch", "expected"),
    [
        ("text", 9, 1.0),
        ("text", 1, math.exp(-2 / 3)),
        ("text", 12, math.exp(1 / 4)),
        ("printed", 9, math.e),
        ("printed", 1, math.exp(1 / 3)),
        ("off", 1, 1.0),
        ("off", 12, 1.0),
    ],
)
def test_d_weighs_the_unknown_part(reading: str, epoch: int, expected: float) -> None:
    value = paper_value(tables("??"), epoch=epoch, d=reading)
    assert_same(value, expected * math.log(2), 1e-12)
    assert_same(schedules.attention(epoch, 12, reading=reading), expected, 1e-12)


@pytest.mark.parametrize(("m", "epoch"), [(0, 12), (1, 11), (5, 7)])
def test_d_is_one_m_epochs_before_the_end(m: float, epoch: int) -> None:
    assert_same(paper_value(tables("?"), epoch=epoch, m=m), math.log(2), 1e-12)


@pytest.mark.parametrize(
    ("row", "text", "printed"),
    [((0.05, 0.09), 2, 1), ((0.05, 0.11), 1, 2), ((0.9, 0.9), 1, 2), ((1e-9, 1e-9), 2, 1)],
)
def test_p_doubles_an_image(row: tuple[float, float], text: float, printed: float) -> None:
    logits = double([[logit(probability) for probability in row], [0.0, 0.0]])
    for reading, factor in {"text": text, "printed": printed, "off": 1}.items():
        other = 2 if reading == "printed" else 1
        assert losses.penalty(logits, reading).tolist() == [factor, other]
        value = paper_value(tables("00", "00"), logits, p=reading)
        trivial = -sum(math.log(1 - probability) for probability in row) / 2
        assert_same(value, (factor * trivial + other * math.log(2)) / 2, 1e-9)


@pytest.mark.parametrize("reading", ["text", "printed", "off"])
@pytest.mark.parametrize("seed", range(3))
def test_penalty_is_the_reference(reading: str, seed: int) -> None:
    logits = make_batch((50, 2), seed=seed).logits - 2
    assert losses.penalty(logits, reading).tolist() == references.penalty(logits.tolist(), reading)


@pytest.mark.parametrize(
    ("labels", "share", "beta"),
    [
        (tables("1" + 39 * "0"), "all", 0.05),  # 1/40 is below γ
        (tables("1" + 19 * "0"), "all", 0.05),  # 1/20 is γ
        (tables("1111" + 36 * "0"), "all", 0.1),
        (tables("11??", "????"), "all", 0.25),
        (tables("10??", "????"), "known", 0.5),
        (tables("11??", "????"), "known", 1.0),
        (tables("00??", "????"), "known", 0.05),
        (tables("????"), "known", 0.05),
        (tables("????"), "all", 0.05),
    ],
)
def test_beta_is_the_share_of_positives_but_at_least_gamma(
    labels: Tensor, share: str, beta: float
) -> None:
    weights = [float(weight) for weight in losses.balance(labels, share=share)]
    assert_same(weights, [1 - beta, beta], 1e-7)


@pytest.mark.parametrize("share", ["all", "known", "off"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("gamma", [0.0, 0.05, 0.6])
def test_balance_is_the_reference(share: str, pattern: str, gamma: float) -> None:
    labels = make_batch(pattern=pattern).labels
    alpha, beta = losses.balance(labels, gamma, share)
    expected = references.balance(labels.tolist(), gamma, share)
    assert_same((float(alpha), float(beta)), expected, 1e-7)


def test_paper_loss_of_one_image_by_hand() -> None:
    logits = double([[logit(0.8), logit(0.3), logit(0.6), logit(0.2)]])
    pseudo = double([[9.0, 9.0, 0.7, 9.0]])  # read at the picked entry alone
    picked = torch.tensor([[True, True, True, False]])
    value = losses.paper_loss(logits, tables("10??"), pseudo, epoch=5, epochs=10, picked=picked)
    alpha, beta, weight = 0.75, 0.25, math.exp(-0.2)  # one positive of four entries
    known = -(alpha * math.log(0.8) + beta * math.log(0.7)) / 2
    unknown = -(alpha * 0.7 * math.log(0.6) + beta * 0.3 * math.log(0.4))
    assert_same(value.item(), known + weight * unknown, 1e-7)


def test_only_positives_known_teach_nothing_when_t_counts_known() -> None:
    batch = make_batch(pattern="positives")
    nobody = batch.but(picked=torch.zeros_like(batch.picked))
    loss = call("paper_loss", "pseudo", "picked", epoch=1, epochs=8, share="known")
    value, gradient = graded(loss, nobody)
    assert value == 0
    assert not gradient.any()
    assert graded(call("paper_loss", "pseudo", "picked", epoch=1, epochs=8), nobody)[0] > 0


def test_part_without_entries_contributes_nothing() -> None:
    assert_same(paper_value(tables("??", "10"), d="off"), math.log(2))
    assert_same(paper_value(tables("??", "11"), picked=torch.zeros(2, 2).bool()), math.log(2) / 2)
    assert paper_value(tables("??"), picked=torch.zeros(1, 2).bool()) == 0
    assert_same(paper_value(tables("1?", "?0"), d="off"), 2 * math.log(2))


def test_unpicked_entries_have_no_value() -> None:
    batch = make_batch()
    case = paper_case(("pseudo", "picked"), p="off")
    unpicked = batch.unknown() & ~batch.picked
    moved = batch.but(logits=torch.where(unpicked, 50.0, batch.logits))
    assert torch.equal(case(batch), case(moved))


def test_picking_all_is_picking_nothing_in_particular() -> None:
    batch = make_batch()
    everything = batch.but(picked=torch.ones_like(batch.picked))
    unknown = batch.but(picked=batch.unknown())
    expected = CASES["paper_loss"](batch)
    assert torch.equal(CASES["paper_loss, picked"](everything), expected)
    assert torch.equal(CASES["paper_loss, picked"](unknown), expected)


@every_case
@pytest.mark.parametrize("blank", [math.nan, 0.5, 2.0, -7.0])
def test_whatever_is_neither_yes_nor_no_is_unknown(case: Case, blank: float) -> None:
    batch = make_batch()
    labels = torch.where(batch.labels == -1, blank, batch.labels.double())
    assert_same(graded(case, batch.but(labels=labels)), graded(case, batch))


@pytest.mark.parametrize("name", sorted({name.split(",")[0] for name in CASES} & {*losses.__all__}))
def test_shapes_must_agree(name):
    logits, labels = torch.zeros(4, 3), torch.ones(4, 1, dtype=torch.int8)
    extra = {"paper_loss": (torch.zeros(4, 3),), "consistent": (torch.zeros(4, 3),)}
    extra["role"] = extra["paper_loss"]
    needs = {"epoch": 1, "epochs": 3, "expected_positives": 1.0, "c_positive": 0.5}
    loss = getattr(losses, name)
    known = inspect.signature(loss).parameters
    chosen = {word: value for word, value in needs.items() if word in known}
    with pytest.raises(ConfigError, match="shape"):
        loss(logits, labels, *extra.get(name, ()), **chosen)


@pytest.mark.parametrize("chance", [60, 1.5, -0.1])
def test_a_chance_is_no_percentage(chance: float) -> None:
    logits, labels = torch.zeros(1, 2), torch.tensor([[1, -1]])
    with pytest.raises(ConfigError, match="c_positive is a chance between 0 and 1"):
        losses.observed(logits, labels, c_positive=chance)
    with pytest.raises(ConfigError, match="c_negative is a chance between 0 and 1"):
        losses.observed(logits, labels, c_positive=0.5, c_negative=chance)


# Surprise


def test_surprise_is_what_the_probability_of_the_observation_lacks() -> None:
    logits = torch.tensor([[0.7, 0.7, 0.7]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[1, 0, -1]])
    p = float(torch.sigmoid(logits[0, 0]).detach())
    only_positives = losses.surprise(logits, labels, c_positive=0.4)
    torch.testing.assert_close(only_positives[0].tolist(), [1 - p, p, 0.4 * p])
    at_random = losses.surprise(logits, labels, c_positive=0.3, c_negative=0.3)
    torch.testing.assert_close(at_random[0].tolist(), [1 - p, p, 0.0])
    assert not only_positives.requires_grad


@pytest.mark.parametrize("size", [1e4, -1e4])
@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_surprise_stays_between_0_and_1(size: float, chance: float) -> None:
    labels = torch.tensor([[1, 0, -1]])
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.full((1, 3), size, dtype=dtype)
        found = losses.surprise(logits, labels, c_positive=chance, c_negative=0.5)
        assert ((found >= 0) & (found <= 1)).all()


# Wrong input


def test_chances_come_as_numbers_arrays_lists_or_tensors() -> None:
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 0, -1]]).expand(4, 3)
    chances = [0.2, 0.5, 0.9]
    forms = (chances, np.array(chances), torch.tensor(chances), torch.tensor([chances]))
    found = [float(losses.observed(logits, labels, c_positive=form)) for form in forms]
    assert found == pytest.approx([found[0]] * len(forms))
    each = [float(fused.partly(logits, labels, c_positive=form)[0]) for form in forms]
    assert each == pytest.approx([each[0]] * len(forms))
    priors = [losses.csl(logits, labels, priors=form, likely=0) for form in forms[:3]]
    assert priors[0] == priors[1] == priors[2] != losses.csl(logits, labels, likely=0)
    one = losses.observed(torch.tensor(0.3), torch.tensor(1), c_positive=torch.tensor(0.5))
    assert one == losses.observed(torch.tensor([0.3]), torch.tensor([1]), c_positive=0.5)
    table = LabelTable.from_dense(labels.numpy())
    facts = propensity.estimate(table, expected_positives=2)
    both = {"c_positive": facts.positive, "c_negative": facts.negative}
    assert torch.isfinite(losses.observed(logits.bfloat16(), labels, **both))
    assert (losses.surprise(logits, labels, **both) <= 1).all()


@pytest.mark.parametrize("loss", [losses.observed, losses.surprise, fused.partly])
@pytest.mark.parametrize(
    ("chance", "message"),
    [
        ([0.5, 1.5, 0.5], "c_positive is a chance between 0 and 1, not 1.5"),
        ([0.5, 0.5], "c_positive: expected one number, one a label .3."),
        (torch.full((5,), 0.5), "c_positive: expected one number, one a label .3."),
        ("half", "c_positive is a chance, or one a label, not 'half'"),
    ],
)
def test_chances_that_are_none(loss: Any, chance: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loss(torch.zeros(4, 3), torch.ones(4, 3, dtype=torch.int8), c_positive=chance)


def test_inputs_that_are_no_logits_or_labels_are_named() -> None:
    logits, labels = torch.zeros(2, 3), torch.tensor([[1, 0, -1]] * 2)
    with pytest.raises(ConfigError, match=r"logits: a tensor of real numbers.*torch.int64"):
        losses.ign(logits.long(), labels)
    with pytest.raises(ConfigError, match="labels are a tensor, not ndarray"):
        losses.ign(logits, labels.numpy())
    times = {"epoch": 1, "epochs": 2}
    with pytest.raises(ConfigError, match="pseudo"):
        losses.paper_loss(logits, labels, torch.zeros(2, 4), **times)
    with pytest.raises(ConfigError, match="picked"):
        losses.paper_loss(logits, labels, logits, picked=torch.ones(3), **times)
    picked = torch.tensor([[1.0, 1.0, 0.0]] * 2)
    as_numbers = losses.paper_loss(logits, labels, logits, picked=picked, **times)
    assert as_numbers == losses.paper_loss(logits, labels, logits, picked=picked.bool(), **times)


def test_pseudo_labels_may_be_as_they_are_kept():
    """In steps of 1/255, as the fused losses take and give them."""
    torch.manual_seed(0)
    logits, labels = torch.randn(4, 3), torch.tensor([[1, 0, -1]] * 4)
    kept = torch.randint(0, 256, (4, 3), dtype=torch.uint8)
    for loss in (losses.consistent, partial(losses.paper_loss, epoch=1, epochs=3)):
        assert loss(logits, labels, kept) == loss(logits, labels, kept.float() / 255)
        for wrong in (kept.to(torch.int8), kept > 3):
            with pytest.raises(ConfigError, match=r"^pseudo: a tensor of probabilities"):
                loss(logits, labels, wrong)
    with pytest.raises(ConfigError, match=r"^pseudo: a tensor of probabilities"):
        fused.paper_loss(logits, labels, kept.to(torch.int8), epoch=1, epochs=3)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda x, y: losses.consistent(x, y, torch.rand(3)), "pseudo"),
        (lambda x, y: losses.consistent(x, y, x.sigmoid(), picked=y[0] > 0), "picked"),
        (lambda x, y: losses.role(x, y, torch.zeros(1, 3), expected_positives=1), "estimates"),
        (lambda x, y: losses.large_losses(x, y.T, 1), "labels"),
        (lambda x, y: losses.ll(x, y, epoch=5, variant="cp", flipped=y[0] > 0), "flipped"),
        (lambda x, y: losses.csl(x, y, priors=[0.1, 0.2]), "priors"),
        (lambda x, y: losses.csl(x, y, priors=torch.rand(4, 1)), "priors"),
        (lambda x, y: losses.consistent(x, y, [0.5] * 3), "pseudo is a tensor, not list"),
        (lambda x, y: losses.paper_loss(x, y, None, epoch=1, epochs=3), "pseudo is a tensor, not"),
        (lambda x, y: losses.role(x, y, y, expected_positives=1), "estimates: a tensor of real"),
    ],
)
def test_a_table_of_another_shape_is_named(call, named):
    with pytest.raises(ConfigError, match=named):
        call(torch.zeros(4, 3), torch.tensor([[1, 0, -1]] * 4))


def test_picked_entries_may_be_marked_by_numbers():
    logits, labels = torch.randn(2, 3), torch.tensor([[1, -1, -1]] * 2)
    picked = torch.tensor([[0, 1, 0], [0, 0, 1]])
    found = losses.consistent(logits, labels, logits.sigmoid(), picked=picked.float())
    assert found == losses.consistent(logits, labels, logits.sigmoid(), picked=picked.bool())
