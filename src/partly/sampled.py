"""A head for more labels than a step can compute: it computes and changes those that are drawn.

What enters: the rows of a batch. What leaves: the labels that this step is about, their logits
[B, C], and a head of which only those rows have moved. Time and memory of a step follow C, not L.

The labels of a step are all of which something is known in the batch, and a share q of the others,
drawn for the whole batch. So a known entry is always there, and an unknown one with a chance of

    ρ = 1 - (1 - a)ᴮ⁻¹ (1 - q),      a the share of images in which its label is known,

for it takes another image of the batch to bring its label, or a draw.

The model would learn that unknown entries are rarer than they are, most of all those of rare
labels. To weigh each 1/ρ times would be right on average, and so noisy that much less is learnt
from as many steps. Instead the loss of `partly` sees logits that are tilted as the sample is
(`pseudo.sample_tilt`), and what is learnt below the tilt needs none (`paper` takes means of what is
drawn, as it says). A whole tilt leaves probabilities as good as a full head's, by their likelihood;
half of it (`pseudo.TILT`) ranks labels as well as a full head does, and calls rare ones likelier
than they are. docs/performance.md has the figures.

Letters: B images of a batch, L labels, C of them drawn, F features, S steps.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from partly import distributed, draws, metrics
from partly.data import sent
from partly.labels import LabelTable
from partly.losses import fused
from partly.schedules import ramp

MANY = 128  # labels of a step from which on their number is rounded up: see `round_to`
AHEAD = 1 << 21  # known entries and labels that are drawn at the same time, at most
TOGETHER = 256  # steps that are drawn at the same time, at most
BETAS, EPSILON = (0.4, 0.999), 1e-15


class Drawn(NamedTuple):
    """What a step is about, on the device.

    rows [B] of the table. columns [C]: its labels, ascending; None: all of them. places and values
    [K]: where known entries stand in the batch [B, C], read line by line, and what they are. A
    place behind the last stands for none, where there are fewer than K.
    """

    rows: Tensor
    columns: Tensor | None
    places: Tensor
    values: Tensor


class Packed(NamedTuple):
    """The same as one line of numbers, for a GPU that is told of it in one go.

    images, labels: B and C. rooms: how long each of the four parts of the line may be.
    """

    line: Tensor
    images: int
    labels: int
    rooms: tuple[int, ...]

    def open(self) -> Drawn:
        rows, columns, places, values = self.line.split(self.rooms)
        return Drawn(rows[: self.images], columns[: self.labels], places, values)


class SampledHead:
    """The rows of a linear layer that a step has drawn, and the chance that they were.

    q: between 0 and 1, a number or start:end. Its rows have gradients, the layer's weights none.
    """

    def __init__(
        self, layer: nn.Linear, table: LabelTable, *, q: float | str, epochs: int, seed: int
    ) -> None:
        self.layer = layer.requires_grad_(False)
        self.q, self.epochs, self.seed, self.labels = q, epochs, seed, len(table.names)
        self.device = layer.weight.device
        known = np.bincount(table.indices, minlength=self.labels) / len(table)
        # log(1 - a) [L]; finite too for a label that is known in all images.
        self.log_missed = np.log1p(-np.minimum(known, 1 - 1e-12))
        self.known_of_row = np.diff(table.indptr)
        self.indptr, self.indices, self.values = (
            torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
            for array in (table.indptr, table.indices, table.values)
        )
        self.columns = torch.zeros(0, dtype=torch.int64, device=self.device)
        self.rows: list[Tensor] = []
        self.present = torch.ones(self.labels, device=self.device)  # the chance to be drawn [L]
        self.chance = self.present.clone()  # of an unknown entry to be there: ρ [L]
        self.chance_of: tuple[int, float] | None = None  # so many images, at this q
        self.ahead: dict[int, tuple[np.ndarray, Packed]] = {}  # rows of the steps that come next
        self.middle, self.end = -1, -1  # of those
        self.rooms = [0, 0, 0]  # that rows, columns and entries of a step have needed so far
        self.blocks: list[Tensor] = []  # that a GPU may be reading still
        self.aside: torch.cuda.Stream | None = None
        self.read: torch.cuda.Event | None = None  # when those are read that were drawn before
        if self.device.type == "cuda":
            self.aside = torch.cuda.Stream(self.device)
            self.aside.wait_stream(torch.cuda.current_stream(self.device))
        self._missed: dict[tuple[int, float], np.ndarray] = {}
        self._units: dict[tuple[int, float], int] = {}

    # What a step is about

    def expected(self, images: int) -> float:
        """How many labels a step of so many images is about in the first epoch, on average."""
        return float(self.labels - self.missed(images, ramp(self.q, 1, self.epochs)).sum())

    def draws_for(self, q: float) -> int:
        """So many draws, some of them twice, leave out a label with a chance of 1 - q, or less."""
        return math.ceil(math.log1p(-q) / math.log1p(-1 / max(self.labels, 2)))

    def missed(self, images: int, q: float) -> np.ndarray:
        """The chance [L] that so many images do not bring a label, nor a draw, before the number of
        labels is rounded up."""
        if (images, q) not in self._missed:
            self._missed = {key: kept for key, kept in self._missed.items() if key[1] == q}
            left_out = (1 - 1 / self.labels) ** self.draws_for(q)
            self._missed[images, q] = np.exp(images * self.log_missed) * left_out
        return self._missed[images, q]

    def round_to(self, images: int, q: float) -> int:
        """The number of a step's labels is rounded up to a multiple of this: such products are
        faster, and steps of the same shape need to be recorded once."""
        if (images, q) not in self._units:
            drawn = self.labels - self.missed(images, q).sum()
            some = MANY <= drawn <= self.labels / 2
            self._units[images, q] = 1 << (int(drawn).bit_length() - 5) if some else 1
        return self._units[images, q]

    def steps_ahead(self, images: int, epoch: int) -> int:
        """How many steps of so many images are drawn at the same time."""
        q = ramp(self.q, epoch, self.epochs)
        candidates = self.draws_for(q) + 4 * self.round_to(images, q)
        known = int(images * self.known_of_row.mean())
        return max(1, min(TOGETHER, AHEAD // (images + candidates + known)))

    def due(self, step: int) -> int | None:
        """The step from which on labels are to be drawn now: this one, if its are not there; the
        first that has none, in the middle of those that have."""
        if step not in self.ahead:
            return step
        return self.end if step == self.middle else None

    @contextmanager
    def beside(self) -> Iterator[None]:
        """What is begun here, a GPU does beside what it is busy with; what comes after waits."""
        if self.aside is None:
            yield
            return
        main = torch.cuda.current_stream(self.device)
        if self.read is not None:  # then the oldest block may be somebody else's
            self.aside.wait_event(self.read)
        with torch.cuda.stream(self.aside):
            yield
        self.read = main.record_event()
        main.wait_stream(self.aside)

    def look_ahead(self, chunks: Sequence[np.ndarray], epoch: int, step: int) -> None:
        """Draw the labels of the steps that come next, from `step` on, of these rows each.

        All of them at the same time, on the device: a GPU is asked a few times how many there are,
        not in each step.
        """
        q, steps = ramp(self.q, epoch, self.epochs), len(chunks)
        sizes = [len(chunk) for chunk in chunks]
        every = np.concatenate(chunks)
        known = np.add.reduceat(self.known_of_row[every], np.cumsum([0, *sizes[:-1]]))
        units = [self.round_to(size, q) for size in sizes]
        device, count, total = self.device, len(every), int(known.sum())
        rows = sent(torch.from_numpy(every), device)
        images, unit, entries = sent(torch.from_numpy(np.array([sizes, units, known])), device)
        number = torch.arange(max(count, total), device=device)
        step_of = _repeat(number[:steps], images, count)
        line_of = number[:count] - _before(images)[step_of]

        # All known entries of these rows, one after another.
        first, lengths = self.indptr[rows], self.indptr[rows + 1] - self.indptr[rows]
        row = _repeat(number[:count], lengths, total)
        position = (first - _before(lengths))[row] + number[:total]
        column, value, at = self.indices[position].long(), self.values[position], step_of[row]

        # The labels of all steps, ascending: each is step·L + label.
        begins = self.labels * torch.arange(steps + 1, device=device)
        needed = begins[at] + column
        drawn = self._sample(needed, begins, unit, max(units), q, step)
        ends = torch.searchsorted(drawn, begins)
        before, counts = ends[:-1], ends.diff()
        of_step = _repeat(number[:steps], counts, len(drawn))
        labels = counts.tolist()

        # A line for each step, all of the same length, now and later: so that steps are of few
        # shapes. Places that are left over lie behind the last entry.
        most = max(sizes), max(labels), int(known.max())
        self.rooms = [max(had, _roomy(count)) for had, count in zip(self.rooms, most, strict=True)]
        columns, places, values = itertools.accumulate(self.rooms)
        lines = torch.zeros(steps, values + self.rooms[2], dtype=torch.int64, device=device)
        lines[:, places:values] = (images * counts)[:, None]
        lines[step_of, line_of] = rows
        rank = torch.arange(len(drawn), device=device) - before[of_step]
        lines[of_step, columns + rank] = drawn - begins[of_step]
        within = number[:total] - _before(entries)[at]
        rank = torch.searchsorted(drawn, needed) - before[at]
        lines[at, places + within] = line_of[row] * counts[at] + rank
        lines[at, values + within] = value.long()
        shape = (*self.rooms, self.rooms[2])
        for place, line in enumerate(lines.unbind()):
            packed = Packed(line, sizes[place], labels[place], shape)
            self.ahead[step + place] = chunks[place], packed
        self.middle, self.end = step + steps // 2, step + steps
        # Of the two before, a step may not be done yet; see `beside`.
        self.blocks = [*self.blocks[-2:], lines]

    def _sample(
        self, needed: Tensor, begins: Tensor, units: Tensor, largest: int, q: float, step: int
    ) -> Tensor:
        """The labels that are needed, a share q of all, and more until those of each step are a
        multiple of its unit [S]. All of them are step·L + label, as `begins` [S + 1] are with 0."""
        count = self.draws_for(q)
        steps = torch.arange(step, step + len(units), device=self.device)[:, None]
        numbers = torch.arange(count + 4 * largest, device=self.device)
        drawn = draws.bits(self.seed, draws.PICK, 0, steps, numbers) % self.labels
        drawn += begins[:-1, None]
        found = torch.cat([needed, drawn[:, :count].flatten()]).unique()
        if largest == 1:
            return found
        lacking = -torch.searchsorted(found, begins).diff() % units
        more = drawn[:, count:].contiguous()
        ordered, order = more.sort(dim=1, stable=True)
        fresh = torch.ones_like(more, dtype=torch.bool)
        fresh.scatter_(1, order[:, 1:], ordered[:, 1:] != ordered[:, :-1])
        fresh &= found[torch.searchsorted(found, more).clamp(max=len(found) - 1)] != more
        # A step has as many candidates whatever other steps are drawn with it.
        fresh &= numbers[: 4 * largest] < 4 * units[:, None]
        taken = fresh & (fresh.cumsum(dim=1) <= lacking[:, None])
        return torch.cat([found, more[taken]]).sort().values

    def draw(self, rows: np.ndarray, epoch: int, step: int) -> Packed:
        """What this step is about: known labels of these images, and a sample."""
        if step not in self.ahead:
            with self.beside():
                self.look_ahead([rows], epoch, step)
        self.expect(len(rows), epoch)
        expected, packed = self.ahead.pop(step)
        assert np.array_equal(rows, expected)
        return packed

    def expect(self, images: int, epoch: int) -> None:
        """Settle the chance of each label to be drawn beside so many images, and ρ."""
        q = ramp(self.q, epoch, self.epochs)
        if self.chance_of != (images, q):
            self.chance_of = (images, q)
            missed = self.missed(images, q)
            more = (self.round_to(images, q) - 1) / 2  # labels, on average
            missed = missed * (1 - more / max(missed.sum(), 1.0))
            by_others = missed / np.exp(self.log_missed)  # not by the image itself
            self.present.copy_(sent(torch.from_numpy(1 - missed), self.device))
            self.chance.copy_(sent(torch.from_numpy(1 - by_others), self.device))

    # What a step does

    def take(self, columns: Tensor) -> None:
        """Take out the rows of these labels [C], for one step."""
        self.columns = columns
        self.rows = [p.index_select(0, columns).requires_grad_() for p in self.layer.parameters()]

    def add_up_gradients(self) -> None:
        """Ranks have drawn the same rows: each has a part of their gradients."""
        for rows in self.rows:
            assert rows.grad is not None
            distributed.add_up(rows.grad)

    def __call__(self, features: Tensor) -> Tensor:
        weight, bias = self.rows
        return linear(features, weight, bias)


def _before(counts: Tensor) -> Tensor:
    """How many there are before each."""
    return counts.cumsum(0) - counts


def _repeat(values: Tensor, counts: Tensor, total: int) -> Tensor:
    """Each value as often as it says, `total` in all: told that, nobody has to ask a GPU."""
    return torch.repeat_interleave(values, counts, output_size=total)


def _roomy(count: int) -> int:
    """A number that is not below, of which there are few: eight up to its double."""
    unit = max(16, 1 << max(0, count.bit_length() - 4))
    return -(-count // unit) * unit


class RowAdam(torch.optim.Optimizer):
    """Adam on the rows that a step has drawn; the others, and what is remembered of them, rest.

    It does what `torch.optim.SparseAdam` does, without a sparse tensor: no row comes twice. As
    there, the correction of a young average follows the steps of all rows: one that is first drawn
    late takes a larger first step. To correct each row by its own visits learnt no better.

    Momentum spreads the move that a gradient causes over the steps after it, ten of them with the
    usual β₁ = 0.9. A row that is seldom drawn rests in most of them, and is left behind where steps
    are few. With none, rows that are drawn in every step never settle. Hence less (BETAS):
    docs/performance.md has the figures.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], head: SampledHead, lr: float) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})
        self.head, self.steps = head, 0
        self.pace = torch.zeros((), device=head.layer.weight.device)
        for parameter in head.layer.parameters():
            for name in ("mean", "square"):
                self.state[parameter][name] = torch.zeros_like(parameter)

    def set_pace(self) -> None:
        """What the learning rate is worth in the step that comes next; a GPU is told."""
        self.steps += 1
        young, square = (1 - beta**self.steps for beta in BETAS)
        self.pace.fill_(self.param_groups[0]["lr"] * square**0.5 / young)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        decays = {id(p): g["weight_decay"] for g in self.param_groups for p in g["params"]}
        head = self.head
        for parameter, rows in zip(head.layer.parameters(), head.rows, strict=True):
            assert rows.grad is not None
            pull = None
            if decay := decays[id(parameter)]:  # at each step, had the row been drawn
                pull = decay / head.present[head.columns]
            mean, square = (self.state[parameter][name] for name in ("mean", "square"))
            tables = parameter, mean, square
            move(*tables, head.columns, rows.grad, pull, self.pace)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps = state_dict["steps"]
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "steps"})


def move(weights: Tensor, *given: Any) -> None:
    """`move_rows`, which a GPU does in one kernel where Triton works."""
    choices: dict[str, Any] = {"betas": BETAS, "epsilon": EPSILON}
    if weights.is_cuda and fused.works("triton", "move_rows"):
        try:
            import_module("partly.row_kernels").move_rows(weights, *given, **choices)
        except fused.UNHELPED:
            raise
        except Exception as error:
            fused.give_up("triton", "move_rows", error)
        else:
            return
    move_rows(weights, *given, **choices)


def move_rows(
    weights: Tensor,
    mean: Tensor,
    square: Tensor,
    columns: Tensor,
    gradient: Tensor,
    pull: Tensor | None,
    pace: Tensor,
    *,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """Adam's step, in place, on some rows of weights and of their gradients' averages [L, …].

    columns [C]: which rows. gradient [C, …]: theirs. pull [C]: times the weights, it is added to
    the gradient. pace: the learning rate, corrected for young averages.
    """
    rows = weights.index_select(0, columns)
    if pull is not None:
        gradient = gradient + rows * pull.view(-1, *[1] * (rows.ndim - 1))
    first, second = mean.index_select(0, columns), square.index_select(0, columns)
    first.lerp_(gradient, 1 - betas[0])
    second.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    mean.index_copy_(0, columns, first)
    square.index_copy_(0, columns, second)
    weights.index_copy_(0, columns, rows - pace * first / second.sqrt_().add_(epsilon))


# --- all labels, block after block --------------------------------------------------------------

ENTRIES = 1 << 26  # logits that exist at the same time


def top_labels(features: Tensor, layer: nn.Linear, k: int) -> tuple[Tensor, Tensor]:
    """The k labels with the highest logits of each row, and those logits [B, k], best first.

    Exact, without a matrix of all logits: labels come in blocks, and of each block the best stay.
    Of equal logits any may come first.
    """
    labels, k = layer.out_features, min(k, layer.out_features)
    width = max(k, ENTRIES // max(len(features), 1))
    best = torch.full((len(features), 0), 0.0, device=features.device)
    places = torch.zeros(len(features), 0, dtype=torch.int64, device=features.device)
    for first in range(0, labels, width):
        block = slice(first, min(first + width, labels))
        logits = linear(features, layer.weight[block], layer.bias[block]).float()
        values, found = logits.topk(min(k, logits.shape[1]), dim=1)
        best, places = torch.cat([best, values], 1), torch.cat([places, found + first], 1)
        best, order = best.sort(dim=1, descending=True, stable=True)
        best, places = best[:, :k], places.gather(1, order)[:, :k]
    return places, best


def average_precisions(features: Tensor, layer: nn.Linear, table: LabelTable) -> np.ndarray:
    """AP of each label [L] by its known entries; nan where no positive or no negative is known."""
    counts = table.counts_by_label()
    judged = np.flatnonzero((counts.positive > 0) & (counts.negative > 0))
    if not len(judged):
        return np.full(len(table.names), np.nan)
    result = np.full(len(table.names), np.nan)
    width = max(1, ENTRIES // max(len(table), 1))
    for first in range(0, len(judged), width):
        columns = judged[first : first + width]
        chosen = torch.from_numpy(columns).to(layer.weight.device)
        logits = linear(features, layer.weight[chosen], layer.bias[chosen]).float().cpu().numpy()
        result[columns] = metrics.average_precision(logits, table.dense(columns=columns))
    return result
