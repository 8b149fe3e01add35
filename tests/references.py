"""Every loss once more, slowly: plain Python in double precision, written from the equations.

What enters: tables as lists of lists (logits, labels 1 / 0 / -1, pseudo-labels, …) and the options
under the names they have in `partly.losses`. What leaves: a float, the loss's mean.

`frozen` is the table of logits at which everything without gradient is computed (focusing weights,
chosen entries, p, the other side of ROLE). With it, finite differences of a reference are the
gradient the loss promises.
"""

import math
from collections.abc import Callable
from fractions import Fraction

Table = list[list[float]]
Term = Callable[[int, int], float]
Entries = set[tuple[int, int]]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def size(table: Table) -> int:
    return len(table) * len(table[0])


def entries(table: Table) -> list[tuple[int, int]]:
    return [(image, label) for image in range(len(table)) for label in range(len(table[0]))]


def mean(labels: Table, positive: Term, negative: Term, unknown: Term) -> float:
    """The mean over B·L of the term that belongs to each label."""
    total = 0.0
    for image, label in entries(labels):
        term = {1: positive, 0: negative, -1: unknown}[labels[image][label]]
        total += term(image, label)
    return total / size(labels)


def nothing(image: int, label: int) -> float:
    return 0.0


def as_positive(logits: Table) -> Term:
    return lambda image, label: -math.log(sigmoid(logits[image][label]))


def as_negative(logits: Table) -> Term:
    return lambda image, label: -math.log(1 - sigmoid(logits[image][label]))


def as_soft(logits: Table, target: Term) -> Term:
    positive, negative = as_positive(logits), as_negative(logits)

    def term(image: int, label: int) -> float:
        share = target(image, label)
        return share * positive(image, label) + (1 - share) * negative(image, label)

    return term


def times(weight: Term, term: Term) -> Term:
    return lambda image, label: weight(image, label) * term(image, label)


def either(chosen: Entries, inside: Term, outside: Term) -> Term:
    return lambda image, label: (inside if (image, label) in chosen else outside)(image, label)


def constant(value: float) -> Term:
    return lambda image, label: value


def largest_unknown(logits: Table, labels: Table, count: int) -> Entries:
    """The `count` unknown entries with the largest logits."""
    unknown = [entry for entry in entries(labels) if labels[entry[0]][entry[1]] == -1]
    unknown.sort(key=lambda entry: logits[entry[0]][entry[1]], reverse=True)
    return set(unknown[:count])


# Plain cross-entropy


def bce(logits: Table, labels: Table) -> float:
    return mean(labels, as_positive(logits), as_negative(logits), nothing)


ign = bce


def an(logits: Table, labels: Table) -> float:
    return mean(labels, as_positive(logits), as_negative(logits), as_negative(logits))


def wan(logits: Table, labels: Table, weight: float | None = None) -> float:
    if weight is None:
        others = len(labels[0]) - 1
        weight = 1 / others if others else 1.0
    assumed = times(constant(weight), as_negative(logits))
    return mean(labels, as_positive(logits), as_negative(logits), assumed)


def _smooth(logits: Table, epsilon: float, convention: str) -> tuple[Term, Term]:
    moved = {"full": epsilon, "half": epsilon / 2}[convention]
    return as_soft(logits, constant(1 - moved)), as_soft(logits, constant(moved))


def bce_ls(logits: Table, labels: Table, epsilon: float = 0.1, convention: str = "full") -> float:
    positive, negative = _smooth(logits, epsilon, convention)
    return mean(labels, positive, negative, nothing)


def an_ls(logits: Table, labels: Table, epsilon: float = 0.1, convention: str = "full") -> float:
    positive, negative = _smooth(logits, epsilon, convention)
    return mean(labels, positive, negative, negative)


def partial_bce(logits: Table, labels: Table, slope: float = -4.45, offset: float = 5.45) -> float:
    def weight(image: int, label: int) -> float:
        known = sum(value != -1 for value in labels[image])
        return slope * known / len(labels[image]) + offset

    positive, negative = as_positive(logits), as_negative(logits)
    return mean(labels, times(weight, positive), times(weight, negative), nothing)


def observed(
    logits: Table, labels: Table, c_positive: float = 0.5, c_negative: float = 0.0
) -> float:
    positive, negative = as_positive(logits), as_negative(logits)

    def unknown(image: int, label: int) -> float:
        left = (1 - c_positive) * math.exp(-positive(image, label))
        return -math.log(left + (1 - c_negative) * math.exp(-negative(image, label)))

    return mean(labels, positive, negative, unknown)


def consistent(
    logits: Table,
    labels: Table,
    pseudo: Table,
    weight: float = 1.0,
    picked: Table | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> float:
    positive = times(constant(alpha), as_positive(logits))
    negative = times(constant(beta), as_negative(logits))

    def unknown(image: int, label: int) -> float:
        if picked is not None and not picked[image][label]:
            return 0.0
        target = pseudo[image][label]
        soft = target * positive(image, label) + (1 - target) * negative(image, label)
        return weight * soft

    return mean(labels, positive, negative, unknown)


# Focusing


def focused_positive(logits: Table, gamma: float, frozen: Table | None = None) -> Term:
    def weight(image: int, label: int) -> float:
        return (1 - sigmoid((frozen or logits)[image][label])) ** gamma

    return times(weight, as_positive(logits))


def focused_negative(
    logits: Table, gamma: float, frozen: Table | None = None, clip: float = 0.0
) -> Term:
    def shifted(table: Table, image: int, label: int) -> float:
        return max(sigmoid(table[image][label]) - clip, 0.0)

    def term(image: int, label: int) -> float:
        weight = shifted(frozen or logits, image, label) ** gamma
        return -weight * math.log(1 - shifted(logits, image, label))

    return term


def focal(logits: Table, labels: Table, gamma: float = 2.0, unknown: str = "negative") -> float:
    positive, negative = focused_positive(logits, gamma), focused_negative(logits, gamma)
    return mean(labels, positive, negative, {"negative": negative, "ignore": nothing}[unknown])


def asl(
    logits: Table,
    labels: Table,
    gamma_positive: float = 0.0,
    gamma_negative: float = 4.0,
    clip: float = 0.05,
    unknown: str = "negative",
    frozen: Table | None = None,
) -> float:
    positive = focused_positive(logits, gamma_positive, frozen)
    negative = focused_negative(logits, gamma_negative, frozen, clip)
    return mean(labels, positive, negative, {"negative": negative, "ignore": nothing}[unknown])


def csl(
    logits: Table,
    labels: Table,
    priors: list[float] | None = None,
    gamma_positive: float = 0.0,
    gamma_negative: float = 1.0,
    gamma_unknown: float = 4.0,
    clip: float = 0.0,
    prior_threshold: float = 0.5,
    likely: int = 5,
    frozen: Table | None = None,
) -> float:
    left_out = largest_unknown(frozen or logits, labels, likely * len(labels))
    if priors is not None:
        left_out |= {entry for entry in entries(labels) if priors[entry[1]] > prior_threshold}
    positive = focused_positive(logits, gamma_positive, frozen)
    negative = focused_negative(logits, gamma_negative, frozen, clip)
    assumed = focused_negative(logits, gamma_unknown, frozen, clip)
    return mean(labels, positive, negative, either(left_out, nothing, assumed))


def _lowered(logits: Table, margin: float) -> Table:
    return [[x - margin for x in row] for row in logits]


def hill(
    logits: Table, labels: Table, margin: float = 1.0, gamma: float = 2.0, turning: float = 1.5
) -> float:
    def negative(image: int, label: int) -> float:
        probability = sigmoid(logits[image][label])
        return (turning - probability) * probability**2

    return mean(labels, focused_positive(_lowered(logits, margin), gamma), negative, negative)


def splc(
    logits: Table,
    labels: Table,
    epoch: int,
    margin: float = 1.0,
    gamma: float = 2.0,
    threshold: float = 0.6,
    frozen: Table | None = None,
) -> float:
    seen = frozen or logits
    believed = {
        entry
        for entry in entries(labels)
        if epoch >= 2 and sigmoid(seen[entry[0]][entry[1]]) > threshold
    }
    negative = focused_negative(logits, gamma)
    unknown = either(believed, focused_positive(logits, gamma), negative)
    return mean(labels, focused_positive(_lowered(logits, margin), gamma), negative, unknown)


def spa(
    logits: Table,
    labels: Table,
    slope_positive: float = 1.0,
    shift_positive: float = 0.0,
    scale_positive: float = 1.0,
    slope_negative: float = 3.0,
    shift_negative: float = 1.0,
    scale_negative: float = 5.0,
) -> float:
    def positive(image: int, label: int) -> float:
        inner = slope_positive * (logits[image][label] - shift_positive)
        return -math.log(sigmoid(inner)) / scale_positive

    def negative(image: int, label: int) -> float:
        inner = -slope_negative * (logits[image][label] - shift_negative)
        return -math.log(sigmoid(inner)) / scale_negative

    return mean(labels, positive, negative, nothing)


def spa_probability(
    logit: float,
    slope_positive: float = 1.0,
    shift_positive: float = 0.0,
    scale_positive: float = 1.0,
    slope_negative: float = 3.0,
    shift_negative: float = 1.0,
    scale_negative: float = 5.0,
) -> float:
    upper = slope_positive * scale_negative * sigmoid(-slope_positive * (logit - shift_positive))
    lower = slope_negative * scale_positive * sigmoid(slope_negative * (logit - shift_negative))
    return 1 / (1 + upper / lower)


# Reasoning about the unknown


def _count_penalty(probabilities: Table, expected_positives: float) -> float:
    count = sum(sum(row) for row in probabilities) / len(probabilities)
    return ((count - expected_positives) / len(probabilities[0])) ** 2


def _sigmoids(logits: Table) -> Table:
    return [[sigmoid(x) for x in row] for row in logits]


def epr(logits: Table, labels: Table, expected_positives: float) -> float:
    positives = mean(labels, as_positive(logits), nothing, nothing)
    return positives + _count_penalty(_sigmoids(logits), expected_positives)


def _half_of_role(taught: Table, teacher: Table, labels: Table, expected_positives: float) -> float:
    soft = as_soft(taught, lambda image, label: sigmoid(teacher[image][label]))
    return mean(labels, soft, soft, soft) + epr(taught, labels, expected_positives)


def role(
    logits: Table,
    labels: Table,
    estimates: Table,
    expected_positives: float,
    frozen: Table | None = None,
) -> float:
    model = _half_of_role(logits, estimates, labels, expected_positives)
    other = _half_of_role(estimates, frozen or logits, labels, expected_positives)
    return (model + other) / 2


def em(logits: Table, labels: Table, weight: float = 0.1) -> float:
    entropy = as_soft(logits, lambda image, label: sigmoid(logits[image][label]))
    unknown = times(constant(-weight), entropy)
    return mean(labels, as_positive(logits), as_negative(logits), unknown)


def large_loss_count(labels: Table, epoch: int, rate: float) -> int:
    """⌈B·L·Δ·(epoch-1)⌉ of the number as written, not of its binary neighbour."""
    return math.ceil(size(labels) * Fraction(str(rate)) * (epoch - 1))


def ll(
    logits: Table,
    labels: Table,
    epoch: int,
    variant: str = "r",
    rate: float | None = None,
    flipped: Table | None = None,
    frozen: Table | None = None,
) -> float:
    if variant == "cp":
        chosen = {entry for entry in entries(labels) if flipped and flipped[entry[0]][entry[1]]}
    else:
        rate = {"r": 0.005, "ct": 0.002}[variant] if rate is None else rate
        count = large_loss_count(labels, epoch, rate)
        chosen = largest_unknown(frozen or logits, labels, count)
    positive, negative = as_positive(logits), as_negative(logits)
    unknown = either(chosen, nothing if variant == "r" else positive, negative)
    return mean(labels, positive, negative, unknown)


# The paper


def balance(labels: Table, gamma: float = 0.05, share: str = "all") -> tuple[float, float]:
    if share == "off":
        return 1.0, 1.0
    values = [value for row in labels for value in row]
    total = {"all": len(values), "known": sum(value != -1 for value in values)}[share]
    beta = max(sum(value == 1 for value in values) / total, gamma) if total else gamma
    return 1 - beta, beta


def penalty(logits: Table, reading: str = "text") -> list[float]:
    if reading == "off":
        return [1.0 for _ in logits]
    if reading == "text":
        return [2.0 if all(sigmoid(x) < 0.1 for x in row) else 1.0 for row in logits]
    return [2.0 if sum(max(sigmoid(x) - 0.1, 0) for x in row) > 0 else 1.0 for row in logits]


def attention(epoch: int, epochs: int, m: float = 3, reading: str = "text") -> float:
    ratio = (epoch + m) / epochs
    return {"text": math.exp(ratio - 1), "printed": math.exp(ratio), "off": 1.0}[reading]


def _average(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def paper_loss(
    logits: Table,
    labels: Table,
    pseudo: Table,
    epoch: int,
    epochs: int,
    gamma: float = 0.05,
    m: float = 3,
    picked: Table | None = None,
    d: str = "text",
    p: str = "text",
    share: str = "all",
    frozen: Table | None = None,
) -> float:
    alpha, beta = balance(labels, gamma, share)
    factors = penalty(frozen or logits, p)
    total = 0.0
    for image, row in enumerate(logits):
        known, unknown = [], []
        for label, x in enumerate(row):
            is_known = labels[image][label] != -1
            target = labels[image][label] if is_known else pseudo[image][label]
            term = -alpha * target * math.log(sigmoid(x))
            term -= beta * (1 - target) * math.log(1 - sigmoid(x))
            if is_known:
                known.append(term)
            elif picked is None or picked[image][label]:
                unknown.append(term)
        weight = attention(epoch, epochs, m, d)
        total += factors[image] * (_average(known) + weight * _average(unknown))
    return total / len(logits)
