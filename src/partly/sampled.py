"""A head for more labels than a step can compute: it computes and changes those that are drawn.

What enters: the rows of a batch. What leaves: the labels that this step is about, their logits
[B, C], and a head of which only those rows have moved. Time and memory of a step follow C, not L.

The labels of a step are all of which something is known in the batch, and a share q of the others,
drawn for the whole batch. So a known entry is always there, and an unknown one with a chance of
about

    ρ = 1 - (1 - a)ᴮ (1 - q),      a the share of images in which its label is known.

The model would learn that unknown entries are rarer than they are, most of all those of rare
labels. To weigh each 1/ρ times would be right on average, and so noisy that much less is learnt
from as many steps. Instead the loss of `partly` sees logits that are tilted as the sample is, and
what is learnt below the tilt needs none (`paper` takes means of what is drawn, as it says). A whole
tilt leaves probabilities as good as a full head's, by
their likelihood; half of it (TILT) ranks labels as well as a full head does, and calls rare ones
likelier than they are. docs/performance.md has the figures.

Letters: B images of a batch, L labels, C of them drawn, F features.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from partly import distributed, draws, metrics
from partly.labels import LabelTable
from partly.schedules import ramp

TILT = 0.5  # of the sample's, that is taken off
ROUND, MANY = 64, 1024  # so many labels or more are rounded up: such products are faster
BETAS, EPSILON = (0.9, 0.999), 1e-15


class SampledHead:
    """The rows of a linear layer that a step has drawn, and the chance that they were.

    q: a number, or start:end. The layer's own weights have no gradient; its rows do.
    """

    def __init__(
        self, layer: nn.Linear, table: LabelTable, *, q: float | str, epochs: int, seed: int
    ) -> None:
        self.layer, self.table = layer.requires_grad_(False), table
        self.q, self.epochs, self.seed = q, epochs, seed
        known = np.bincount(table.indices, minlength=len(table.names)) / len(table)
        with np.errstate(divide="ignore"):  # a label that is known in all images: always drawn
            missed = torch.from_numpy(np.log1p(-known)).float()
        self.log_missed = missed.to(layer.weight.device)  # log(1 - a) [L]
        self.marked = np.zeros(len(table.names), dtype=bool)
        self.columns = torch.zeros(0, dtype=torch.int64, device=layer.weight.device)
        self.rows: list[Tensor] = []
        self.chance = torch.ones(len(table.names), device=layer.weight.device)  # ρ [L]
        self.chance_of = (0, 0, False)  # so many images, in this epoch, rounded or not

    def draw(self, rows: np.ndarray, epoch: int, step: int) -> np.ndarray:
        """The labels of a step [C], ascending: known ones of these images, and a sample."""
        labels, q = len(self.table.names), ramp(self.q, epoch, self.epochs)
        if q >= 1:
            return np.arange(labels)
        # So many draws, some of them twice, leave out a label with a chance of 1 - q.
        count = math.ceil(math.log1p(-q) / math.log1p(-1 / labels))
        numbers = np.arange(count + 4 * ROUND)
        drawn = draws.bits(self.seed, draws.PICK, step, numbers, np.zeros(1, np.int64)) % labels
        self.marked[self.table.known_columns(rows)] = True
        self.marked[drawn[:count]] = True
        columns = np.flatnonzero(self.marked)
        if len(columns) >= MANY:
            more = drawn[count:][~self.marked[drawn[count:]]]
            more = more[np.sort(np.unique(more, return_index=True)[1])]  # each once, as they came
            self.marked[more[: -len(columns) % ROUND]] = True
            columns = np.flatnonzero(self.marked)
        self.marked[columns] = False
        return columns

    def take(self, columns: Tensor, images: int, epoch: int) -> None:
        """Take out the rows of these labels [C], for one step with so many images."""
        rounded = len(columns) >= MANY
        if self.chance_of != (images, epoch, rounded):
            self.chance_of = (images, epoch, rounded)
            more = ROUND / 2 / len(self.marked) if rounded else 0.0
            left = 1 - min(1.0, ramp(self.q, epoch, self.epochs) + more)
            self.chance = 1 - torch.exp(images * self.log_missed) * left
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


class RowAdam(torch.optim.Optimizer):
    """Adam on the rows that a step has drawn; the others, and what is remembered of them, rest.

    It does what `torch.optim.SparseAdam` does, without a sparse tensor: no row comes twice. As
    there, the correction of a young average follows the steps of all rows: one that is first drawn
    late takes a larger first step. To correct each row by its own visits learnt no better.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], head: SampledHead, lr: float) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})
        self.head, self.steps = head, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        rates = {id(p): g for g in self.param_groups for p in g["params"]}
        columns = self.head.columns
        for parameter, rows in zip(self.head.layer.parameters(), self.head.rows, strict=True):
            assert rows.grad is not None
            group, gradient = rates[id(parameter)], rows.grad
            if group["weight_decay"]:  # at each step, had the row been drawn
                pull = group["weight_decay"] / self.head.chance[columns]
                gradient = gradient + rows.detach() * pull.view(-1, *[1] * (rows.ndim - 1))
            state = self.state[parameter]
            if not state:
                state |= {name: torch.zeros_like(parameter) for name in ("mean", "square")}
            mean, square = (state[name].index_select(0, columns) for name in ("mean", "square"))
            mean.lerp_(gradient, 1 - BETAS[0])
            square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
            state["mean"].index_copy_(0, columns, mean)
            state["square"].index_copy_(0, columns, square)
            root = square.sqrt_().add_(EPSILON)
            pace = (1 - BETAS[1] ** self.steps) ** 0.5 / (1 - BETAS[0] ** self.steps)
            moved = rows.detach().addcdiv_(mean, root, value=-group["lr"] * pace)
            parameter.index_copy_(0, columns, moved)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps = state_dict["steps"]
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "steps"})


# --- all labels, block after block --------------------------------------------------------------

ENTRIES = 1 << 26  # logits that exist at the same time


def top_labels(features: Tensor, layer: nn.Linear, k: int) -> tuple[Tensor, Tensor]:
    """The k labels with the highest logits of each row, and those logits [B, k], best first.

    Exact, without a matrix of all logits: labels come in blocks, and of each block the best stay.
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
