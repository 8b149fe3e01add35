# mypy: disable-error-code="no-untyped-def"
# (what enters a kernel is a pointer, a number or a block: nothing that Python has a type for)
"""The fused losses as Triton kernels, for NVIDIA GPUs.

What enters: logits [B, L], labels and whatever else a loss reads, on one GPU. What leaves: loss,
gradient and pseudo-labels, written in one pass. A program works on tiles of ROWS x COLUMNS entries
and adds up its own loss; the sums of all programs are added at the end, in one order: no atomics,
so the same inputs give the same bits. Where a loss needs a number of the whole batch, or of a whole
image, before it can write a gradient, a survey gathers it first.

With TRITON_INTERPRET=1 set before this module is imported everything runs on the CPU, slowly.
"""

import math
import os

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from partly.losses.common import RARE, layout_of
from partly.losses.fused.common import DTYPES, Answer
from partly.losses.paper import TRIVIAL
from partly.pseudo import SMALLEST, TILT

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
WARPS = 8
TILE = 2048  # entries of a tile: eight a thread
TILES = 4  # of a program, where there are many
MANY = 1 << 24  # entries
ALONE = 1 << 15  # up to here one program does everything, and its sum is the loss
ALONE_TILE, ALONE_WARPS = 4096, 16
SURVEY_TILE = 4096
WIDTH = 1024  # columns of a tile, at most
FEW_SUMS = 1024  # of a survey, that each program of the main kernel adds up for itself
PROGRAMS = 512  # enough to keep a GPU busy
DOUBTFUL = math.log(TRIVIAL / (1 - TRIVIAL))  # as a logit

# What a kernel names of this module is compared at each launch: numbers are defaults instead.


# Parts of kernels


@triton.jit
def _places(COUNT: tl.constexpr):
    """0 … COUNT-1, four in a row for each thread whatever their size: a label of one byte then
    lies in the thread of its logit, and nothing is moved between threads."""
    NEIGHBOURS: tl.constexpr = 4 if COUNT >= 4 else 1
    return tl.max_contiguous(tl.arange(0, COUNT), NEIGHBOURS)


# A GPU's own exp, log and division are off by 2^-22 at most and take one or two instructions; exact
# ones take so many that arithmetic, not memory, would set the pace.


if INTERPRETED:  # which has no fast arithmetic

    @triton.jit
    def _exp(x):
        return tl.exp(x)

    @triton.jit
    def _log(x):
        return tl.log(x)

    @triton.jit
    def _over(x, y):
        return x / y

else:

    @triton.jit
    def _exp(x):
        return libdevice.fast_expf(x)

    @triton.jit
    def _log(x):
        return libdevice.fast_logf(x)

    @triton.jit
    def _over(x, y):
        return libdevice.fast_dividef(x, y)


@triton.jit
def _probability(x):
    return _over(1.0, 1 + _exp(-x))


@triton.jit
def _sides(x):
    """log(1 + e^-|x|), σ(x), σ(-x) and e^-|x|.

    The logarithm is a polynomial of e^-|x| in [0, 1], 2e-7 off at most, and right for tiny values:
    a sum of many of them is, too.
    """
    small = _exp(-tl.abs(x))
    slope = 0.0051058256067335606 * small - 0.028991956263780594
    slope = slope * small + 0.07738073915243149
    slope = slope * small - 0.13590599596500397
    slope = slope * small + 0.1907130926847458
    slope = slope * small - 0.2483394593000412
    slope = slope * small + 0.3331793546676636
    slope = slope * small - 0.4999943673610687
    slope = slope * small + 0.9999999403953552
    high = _over(1.0, 1 + small)  # σ(|x|)
    low = small * high
    right = x >= 0
    return slope * small, tl.where(right, high, low), tl.where(right, low, high), small


@triton.jit
def _moved(x, small, pull):
    """σ(x - log pull), from small = e^-|x|: the exponential, which takes long, is there already."""
    right = x >= 0
    return _over(tl.where(right, 1.0, small), tl.where(right, 1 + small * pull, small + pull))


@triton.jit
def _entropy(x, sides, target, alpha, beta):
    """-(α t log p + β (1-t) log(1-p)) and its slope in x."""
    log, probability, opposite, _small = sides
    yes = alpha * target
    no = beta - beta * target
    value = yes * (tl.maximum(-x, 0.0) + log) + no * (tl.maximum(x, 0.0) + log)
    return value, no * probability - yes * opposite


@triton.jit
def _attention(belief, focus, SELDOM: tl.constexpr = RARE):
    """How much an entry counts: see `losses.common.attend`."""
    return _exp(focus * _log(belief + SELDOM))


@triton.jit
def _raise(base, exponent, POWER: tl.constexpr):
    """base^exponent. POWER: the exponent where it is a small whole number, else -1."""
    if POWER == 0:
        return 1.0
    elif POWER == 1:
        return base
    elif POWER == 2:
        return base * base
    elif POWER == 3:
        return base * base * base
    elif POWER == 4:
        return base * base * (base * base)
    else:
        return tl.where(base > 0, _exp(exponent * _log(base)), 0.0)


@triton.jit
def _read(table, row, rows, columns, images, length, LAYOUT: tl.constexpr):
    """A number, or what a table has for these rows and columns, of a shape that spreads."""
    if LAYOUT == "number":
        return table
    elif LAYOUT == "one":
        return tl.load(table)
    elif LAYOUT == "label":
        inside = columns[None, :] < length
        return tl.load(table + columns[None, :], mask=inside, other=0.0)
    elif LAYOUT == "image":
        inside = row + rows[:, None] < images
        return tl.load(table + row + rows[:, None], mask=inside, other=0.0)
    else:
        inside = (row + rows[:, None] < images) & (columns[None, :] < length)
        base = table + row.to(tl.int64) * length
        return tl.load(base + rows[:, None] * length + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _sum_of(sums, which, count, COUNT: tl.constexpr):
    """The sum of row `which` of a survey's sums [·, count]; COUNT is a power of two above it."""
    places = tl.arange(0, COUNT)
    return tl.sum(tl.load(sums + which * count + places, mask=places < count, other=0.0))


@triton.jit
def _balance(positive, known, entries, gamma, SHARE: tl.constexpr):
    """α and β from how many entries are positive and how many known."""
    if SHARE == "off":
        return 1.0, 1.0
    else:
        total = entries
        if SHARE == "known":
            total = tl.maximum(known, 1.0)
        beta = tl.maximum(positive / total, gamma)
        return 1 - beta, beta


@triton.jit
def _log_ratio(alpha, beta, LEAST: tl.constexpr = SMALLEST):
    return tl.log(tl.maximum(alpha / beta, LEAST))


@triton.jit
def _look_through(
    believed,
    labels,
    row,
    tiles,
    rows,
    columns,
    sharpness,
    images,
    length,
    COUNTED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Of a program's tiles: positive entries, known entries, and the sum of the attention, if there
    is one: where sharpness is not None."""
    lines = rows[:, None] * length + columns[None, :]
    positives = tl.zeros([ROWS, COLUMNS], tl.float32)
    knowns = tl.zeros([ROWS, COLUMNS], tl.float32)
    attentions = tl.zeros([ROWS, COLUMNS], tl.float32)
    for _ in range(tiles):
        base = row.to(tl.int64) * length
        inside = (row + rows < images)[:, None] & (columns < length)[None, :]
        if COUNTED:
            label = tl.load(labels + base + lines, mask=inside, other=-1)
            positives += (label == 1).to(tl.float32)
            knowns += ((label == 1) | (label == 0)).to(tl.float32)
        if sharpness is not None:
            x = tl.load(believed + base + lines, mask=inside, other=0.0).to(tl.float32)
            attentions += tl.where(inside, _attention(_probability(x), sharpness), 0.0)
        row += ROWS
    positive = tl.sum(tl.sum(positives, axis=1))
    known = tl.sum(tl.sum(knowns, axis=1))
    return positive, known, tl.sum(tl.sum(attentions, axis=1))


@triton.jit
def _is_above(x, PENALTY: tl.constexpr, DOUBTFUL: tl.constexpr = DOUBTFUL):
    """Whether a prediction is one by which an image is not one the model says "no" to."""
    if PENALTY == "text":
        return x >= DOUBTFUL
    else:
        return x > DOUBTFUL


@triton.jit
def _write_belief(pointer, belief, inside):
    """As float32 or float16, or in steps of 1/255; what is no number is ½ there."""
    if pointer.dtype.element_ty == tl.uint8:
        belief = tl.floor(tl.where(belief == belief, belief, 0.5) * 255 + 0.5)
    tl.store(pointer, belief.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def _tilt(c_positive, c_negative, weight, log_ratio, LEAST: tl.constexpr = SMALLEST):
    """What is added to a model's logit to make it the posterior's: see `pseudo.posterior`."""
    left_positive = tl.maximum(1 - c_positive, LEAST)
    left_negative = tl.maximum(1 - c_negative, LEAST)
    above = left_positive * _seen(c_negative, weight)
    below = left_negative * _seen(c_positive, weight)
    return _log(_over(above, below)) - log_ratio


@triton.jit
def _seen(chance, weight, LEAST: tl.constexpr = SMALLEST):
    """What annotation and weight leave of positives, or of negatives."""
    return tl.maximum(chance + (1 - chance) * weight, LEAST)


@triton.jit
def _shift(c_positive, c_negative, weight, chance, STRENGTH: tl.constexpr = TILT):
    """What is added to the logits of labels that are drawn: see `pseudo.sample_tilt`."""
    odds = _over(
        _seen(c_positive, weight * chance) * _seen(c_negative, weight),
        _seen(c_negative, weight * chance) * _seen(c_positive, weight),
    )
    return STRENGTH * _log(odds)


# Kernels


@triton.jit
def _asymmetric_kernel(
    logits,
    labels,
    gradient,
    sums,
    entries,
    tiles,
    scale: tl.float32,
    gamma_positive: tl.float32,
    gamma_negative: tl.float32,
    clip: tl.float32,
    POSITIVE_POWER: tl.constexpr,
    NEGATIVE_POWER: tl.constexpr,
    CLIPPED: tl.constexpr,
    UNKNOWN: tl.constexpr,
    TILE: tl.constexpr,
):
    """ASL; cross-entropy where both powers are 0 and nothing is clipped."""
    program = tl.program_id(0)
    places = _places(TILE)
    total = tl.zeros([TILE], tl.float32)
    for tile in range(tiles):
        start = (program.to(tl.int64) * tiles + tile) * TILE
        inside = places < tl.minimum(entries - start, TILE).to(tl.int32)
        x = tl.load(logits + start + places, mask=inside, other=0.0).to(tl.float32)
        label = tl.load(labels + start + places, mask=inside, other=-1)
        positive = label == 1
        if CLIPPED or POSITIVE_POWER != 0 or NEGATIVE_POWER != 0:
            log, probability, opposite, _small = _sides(x)
            focus = _raise(opposite, gamma_positive, POSITIVE_POWER)
            value = focus * (tl.maximum(-x, 0.0) + log)
            slope = -focus * opposite
            focus = _raise(tl.maximum(probability - clip, 0.0), gamma_negative, NEGATIVE_POWER)
            if CLIPPED:
                left = opposite + clip
                shifted = tl.minimum(left, 1.0)
                pull = tl.where(left <= 1, focus * probability * _over(opposite, shifted), 0.0)
                value = tl.where(positive, value, -focus * _log(shifted))
            else:
                pull = focus * probability
                value = tl.where(positive, value, focus * (tl.maximum(x, 0.0) + log))
            slope = tl.where(positive, slope, pull)
        else:
            x = tl.where(positive, -x, x)
            log, probability, opposite, _small = _sides(x)
            value = tl.maximum(x, 0.0) + log
            slope = tl.where(positive, -probability, probability)
        counts = inside if UNKNOWN == "negative" else positive | (label == 0)
        total += tl.where(counts, value, 0.0)
        slope = tl.where(counts, slope, 0.0) * scale
        tl.store(gradient + start + places, slope.to(gradient.dtype.element_ty), mask=inside)
    tl.store(sums + program, tl.sum(total) * scale)


@triton.jit
def _paper_survey(
    logits,
    labels,
    picked,
    counts,
    sums,
    images,
    length,
    splits,
    stretch,
    PENALTY: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Of each image and stretch of columns: known entries, picked unknown ones, and whether a
    prediction is above TRIVIAL. Of all of them: positive and known entries."""
    program = tl.program_id(0)
    row = program // splits * ROWS
    split = program % splits
    begin = split * stretch
    end = tl.minimum(begin + stretch, length)
    rows = tl.arange(0, ROWS)
    places = tl.arange(0, COLUMNS)
    lines = rows[:, None] * length + places[None, :]
    exists = row + rows < images
    base = row.to(tl.int64) * length

    positives = tl.zeros([ROWS, COLUMNS], tl.int32)
    knowns = tl.zeros([ROWS, COLUMNS], tl.int32)
    chosens = tl.zeros([ROWS, COLUMNS], tl.int32)
    for start in range(begin, end, COLUMNS):
        inside = exists[:, None] & (start + places < end)[None, :]
        label = tl.load(labels + base + start + lines, mask=inside, other=-1)
        known = (label == 1) | (label == 0)
        chosen = inside & (known == 0)
        if picked is not None:
            taken = tl.load(picked + base + start + lines, mask=inside, other=0)
            chosen = chosen & (taken != 0)
        positives += (label == 1).to(tl.int32)
        knowns += known.to(tl.int32)
        chosens += chosen.to(tl.int32)
    known_of_row = tl.sum(knowns, axis=1)
    spots = (row + rows) * splits + split
    cells = images * splits
    tl.store(counts + spots, known_of_row, mask=exists)
    tl.store(counts + cells + spots, tl.sum(chosens, axis=1), mask=exists)
    tl.store(sums + program, tl.sum(tl.sum(positives, axis=1)).to(tl.float32))
    tl.store(sums + tl.num_programs(0) + program, tl.sum(known_of_row).to(tl.float32))

    if PENALTY != "off":
        # One prediction is enough: most images have one in the first columns.
        found = tl.zeros([ROWS], tl.int32)
        start = begin
        missing = 1
        while (missing > 0) & (start < end):
            inside = exists[:, None] & (start + places < end)[None, :]
            x = tl.load(logits + base + start + lines, mask=inside, other=-float("inf"))
            x = x.to(tl.float32)
            found = tl.maximum(found, tl.max(_is_above(x, PENALTY).to(tl.int32), axis=1))
            missing = tl.sum(tl.where(exists, 1 - found, 0))
            start += COLUMNS
        tl.store(counts + 2 * cells + spots, found, mask=exists)


@triton.jit
def _paper_kernel(
    logits,
    labels,
    pseudo,
    picked,
    counts,
    survey,
    gradient,
    fresh,
    sums,
    images,
    length,
    tiles,
    splits,
    surveyed,
    unit: tl.float32,
    weight: tl.float32,
    gamma: tl.float32,
    PENALTY: tl.constexpr,
    SHARE: tl.constexpr,
    SURVEYED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """unit: what one step of a pseudo-label is worth. weight: the paper's d. Without a survey this
    one program sees all entries, and all of an image at once: it counts for itself."""
    program = tl.program_id(0)
    widths = tl.cdiv(length, COLUMNS)
    column = program % widths * COLUMNS
    row = program // widths * (tiles * ROWS)
    rows = tl.arange(0, ROWS)
    places = _places(COLUMNS)
    lines = rows[:, None] * length + places[None, :]
    positive, known_in_all = 0.0, 0.0
    if survey is not None:
        positive = _sum_of(survey, 0, surveyed, SURVEYED)
        known_in_all = _sum_of(survey, 1, surveyed, SURVEYED)
    elif SHARE != "off":
        positive, known_in_all, _none = _look_through(
            logits, labels, row, tiles, rows, places, None, images, length,
            True, ROWS, COLUMNS,
        )  # fmt: skip
    alpha, beta = _balance(positive, known_in_all, 1.0 * images * length, gamma, SHARE)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for _ in range(tiles):
        exists = row + rows < images
        base = row.to(tl.int64) * length + column
        inside = exists[:, None] & (column + places < length)[None, :]
        x = tl.load(logits + base + lines, mask=inside, other=0.0).to(tl.float32)
        label = tl.load(labels + base + lines, mask=inside, other=-1)
        old = tl.load(pseudo + base + lines, mask=inside, other=0).to(tl.float32) * unit

        known = (label == 1) | (label == 0)
        counted = inside
        if picked is not None:
            taken = tl.load(picked + base + lines, mask=inside, other=0)
            counted = inside & (known | (taken != 0))

        known_entries = tl.zeros([ROWS], tl.int32)
        chosen_entries = tl.zeros([ROWS], tl.int32)
        above = tl.zeros([ROWS], tl.int32)
        if counts is None:
            known_entries += tl.sum(known.to(tl.int32), axis=1)
            chosen_entries += tl.sum((counted & (known == 0)).to(tl.int32), axis=1)
            if PENALTY != "off":
                above += tl.sum((_is_above(x, PENALTY) & inside).to(tl.int32), axis=1)
        else:
            for split in range(splits):
                spots = (row + rows) * splits + split
                known_entries += tl.load(counts + spots, mask=exists, other=0)
                spots += images * splits
                chosen_entries += tl.load(counts + spots, mask=exists, other=0)
                if PENALTY != "off":
                    spots += images * splits
                    above += tl.load(counts + spots, mask=exists, other=0)
        doubled = tl.full([ROWS], 1.0, tl.float32) / images
        if PENALTY == "text":
            doubled = tl.where(above == 0, 2 * doubled, doubled)
        if PENALTY == "printed":
            doubled = tl.where(above > 0, 2 * doubled, doubled)
        known_weight = doubled / tl.maximum(known_entries, 1)
        unknown_weight = weight * doubled / tl.maximum(chosen_entries, 1)
        target = tl.where(known, (label == 1).to(tl.float32), old)
        share = tl.where(known, known_weight[:, None], unknown_weight[:, None])
        sides = _sides(x)
        value, slope = _entropy(x, sides, target, alpha, beta)
        total += tl.where(counted, share * value, 0.0)
        slope = tl.where(counted, share * slope, 0.0)
        belief = sides[1]
        tl.store(gradient + base + lines, slope.to(gradient.dtype.element_ty), mask=inside)
        _write_belief(fresh + base + lines, tl.where(belief == belief, belief, old), inside)
        row += ROWS
    tl.store(sums + program, tl.sum(tl.sum(total, axis=1)))


@triton.jit
def _partly_survey(
    believed,
    labels,
    focus,
    sums,
    images,
    length,
    tiles,
    COUNTED: tl.constexpr,
    FOCUS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """What `_look_through` finds, of each program."""
    program = tl.program_id(0)
    widths = tl.cdiv(length, COLUMNS)
    row = program // widths * (tiles * ROWS)
    columns = program % widths * COLUMNS + _places(COLUMNS)
    rows = tl.arange(0, ROWS)
    sharpness = None
    if focus is not None:
        sharpness = _read(focus, row, rows, columns, images, length, FOCUS)
    positive, known, attention = _look_through(
        believed, labels, row, tiles, rows, columns, sharpness, images, length,
        COUNTED, ROWS, COLUMNS,
    )  # fmt: skip
    count = tl.num_programs(0)
    if COUNTED:
        tl.store(sums + program, positive)
        tl.store(sums + count + program, known)
    if focus is not None:
        tl.store(sums + 2 * count + program, attention)


@triton.jit
def _partly_kernel(
    logits,
    labels,
    teacher,
    picked,
    c_positive,
    c_negative,
    focus,
    chance,
    emphasis,
    survey,
    gradient,
    fresh,
    sums,
    images,
    length,
    tiles,
    trust: tl.float32,
    weight: tl.float32,
    factor: tl.float32,
    gamma: tl.float32,
    TARGETS: tl.constexpr,
    SHARE: tl.constexpr,
    C_POSITIVE: tl.constexpr,
    C_NEGATIVE: tl.constexpr,
    FOCUS: tl.constexpr,
    SURVEYED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """trust: the weight that the model was fitted with; weight: that of an unknown entry here.
    factor: of the loss. Without a survey this one program sees all entries."""
    program = tl.program_id(0)
    widths = tl.cdiv(length, COLUMNS)
    row = program // widths * (tiles * ROWS)
    columns = program % widths * COLUMNS + _places(COLUMNS)
    rows = tl.arange(0, ROWS)
    lines = rows[:, None] * length + columns[None, :]
    entries = 1.0 * images * length
    sharpness = None
    if focus is not None:
        sharpness = _read(focus, row, rows, columns, images, length, FOCUS)
    positive, known_in_all, attention = 0.0, 0.0, entries
    if SHARE != "off" or focus is not None:
        if survey is None:
            positive, known_in_all, attention = _look_through(
                logits if teacher is None else teacher, labels, row, tiles, rows, columns,
                sharpness, images, length, SHARE != "off", ROWS, COLUMNS,
            )  # fmt: skip
        else:
            # Of as many programs as there are here, or added up already.
            surveyed = 1 if SURVEYED == 1 else tl.num_programs(0)
            if SHARE != "off":
                positive = _sum_of(survey, 0, surveyed, SURVEYED)
                known_in_all = _sum_of(survey, 1, surveyed, SURVEYED)
            if focus is not None:
                attention = _sum_of(survey, 2, surveyed, SURVEYED)
    alpha, beta = _balance(positive, known_in_all, entries, gamma, SHARE)
    log_ratio = 0.0
    if SHARE != "off":
        log_ratio = _log_ratio(alpha, beta)
    scale = factor / entries
    if focus is not None:
        scale = factor / attention
    # In brackets, for Triton chains no `and`.
    SAME_IN_ALL_ROWS: tl.constexpr = (C_POSITIVE != "image" and C_POSITIVE != "entry") and (
        C_NEGATIVE != "image" and C_NEGATIVE != "entry"
    )
    drawn = 1.0
    if chance is not None:
        drawn = _read(chance, row, rows, columns, images, length, "label")
    if SAME_IN_ALL_ROWS:
        positive_chance = _read(c_positive, row, rows, columns, images, length, C_POSITIVE)
        negative_chance = _read(c_negative, row, rows, columns, images, length, C_NEGATIVE)
        tilt = _tilt(positive_chance, negative_chance, trust, log_ratio)
        shift = 0.0
        if chance is not None:
            shift = _shift(positive_chance, negative_chance, trust, drawn)
        pull = tl.exp(shift - tilt)
        pull = tl.where(pull > 1e30, 1e30, pull)  # finite: 0 times it is 0
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for _ in range(tiles):
        base = row.to(tl.int64) * length
        inside = (row + rows < images)[:, None] & (columns < length)[None, :]
        x = tl.load(logits + base + lines, mask=inside, other=0.0).to(tl.float32)
        label = tl.load(labels + base + lines, mask=inside, other=-1)
        believed = x
        if teacher is not None:
            believed = tl.load(teacher + base + lines, mask=inside, other=0.0).to(tl.float32)
        if not SAME_IN_ALL_ROWS:
            positive_chance = _read(c_positive, row, rows, columns, images, length, C_POSITIVE)
            negative_chance = _read(c_negative, row, rows, columns, images, length, C_NEGATIVE)
            tilt = _tilt(positive_chance, negative_chance, trust, log_ratio)
            if chance is not None:
                x += _shift(positive_chance, negative_chance, trust, drawn)
        elif chance is not None:
            x += shift
        sides = _sides(x)
        belief = sides[1]
        if teacher is not None or chance is not None:  # noqa: SIM102, as above
            if focus is not None or TARGETS == "prediction":
                belief = _probability(believed)
        known = (label == 1) | (label == 0)
        share = tl.where(known, 1.0, weight)
        if focus is not None:
            share = share * _attention(belief, sharpness)
        if emphasis is not None:
            more = tl.load(emphasis + base + lines, mask=inside, other=0.0)
            share = share * more.to(tl.float32)
        if TARGETS == "posterior":
            if teacher is None and SAME_IN_ALL_ROWS:
                belief = _moved(x, sides[3], pull)
            else:
                belief = _probability(believed + tilt)
        counted = inside
        if picked is not None:
            taken = tl.load(picked + base + lines, mask=inside, other=0)
            counted = inside & (known | (taken != 0))
        target = tl.where(known, (label == 1).to(tl.float32), belief)
        value, slope = _entropy(x, sides, target, alpha, beta)
        total += tl.where(counted, share * value, 0.0)
        slope = tl.where(counted, share * slope, 0.0) * scale
        tl.store(gradient + base + lines, slope.to(gradient.dtype.element_ty), mask=inside)
        if fresh is not None:
            _write_belief(fresh + base + lines, belief, inside)
        row += ROWS
    tl.store(sums + program, tl.sum(tl.sum(total, axis=1)) * scale)


@triton.jit
def _scale_kernel(values, factor, entries, tiles, TILE: tl.constexpr):
    """values *= factor, and nothing at all where the factor is 1."""
    by = tl.load(factor).to(tl.float32)
    if by != 1:
        places = tl.arange(0, TILE)
        for tile in range(tiles):
            start = (tl.program_id(0).to(tl.int64) * tiles + tile) * TILE
            inside = places < tl.minimum(entries - start, TILE).to(tl.int32)
            value = tl.load(values + start + places, mask=inside).to(tl.float32) * by
            tl.store(values + start + places, value.to(values.dtype.element_ty), mask=inside)


# Launches, which are most of what a small loss costs. What is compiled in is passed by position, in
# the kernel's order: keywords take Triton longer.


def bce(logits: Tensor, labels: Tensor, *, reduction: str) -> Answer:
    return asl(
        logits, labels, gamma_positive=0, gamma_negative=0, clip=0,
        unknown="ignore", reduction=reduction,
    )  # fmt: skip


def asl(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma_positive: float,
    gamma_negative: float,
    clip: float,
    unknown: str,
    reduction: str,
) -> Answer:
    entries = logits.numel()
    alone = entries <= ALONE
    tile = ALONE_TILE if alone else TILE
    tiles = _ceil(entries, tile) if alone else TILES if entries >= MANY else 1
    programs = _ceil(entries, tile * tiles)
    gradient, sums = _empty(logits, programs)
    _asymmetric_kernel[(programs,)](
        logits,
        labels,
        gradient,
        sums,
        entries,
        tiles,
        1 / entries if reduction == "mean" else 1.0,
        float(gamma_positive),
        float(gamma_negative),
        float(clip),
        _whole(gamma_positive),
        _whole(gamma_negative),
        clip != 0,
        unknown,
        tile,
        num_warps=ALONE_WARPS if alone else WARPS,
        enable_fp_fusion=True,
    )
    return _total(sums), gradient, None


def paper_loss(
    logits: Tensor,
    labels: Tensor,
    pseudo: Tensor,
    picked: Tensor | None,
    weight: float,
    *,
    gamma: float,
    p: str,
    share: str,
    store: str,
) -> Answer:
    images, length = logits.shape
    picked = _bytes(picked)
    rows, columns, tiles, programs, warps = _plan(images, length)
    counts, survey, splits = None, None, 1
    if programs > 1:
        counts, survey, splits = _survey_paper(logits, labels, picked, p)
    surveyed = 1 if survey is None else survey.shape[1]
    gradient, sums = _empty(logits, programs)
    fresh = torch.empty_like(logits, dtype=DTYPES[store])
    _paper_kernel[(programs,)](
        logits,
        labels,
        pseudo,
        picked,
        counts,
        survey,
        gradient,
        fresh,
        sums,
        images,
        length,
        tiles,
        splits,
        surveyed,
        1 / 255 if pseudo.dtype == torch.uint8 else 1.0,
        float(weight),
        float(gamma),
        p,
        share,
        _power_above(surveyed),
        rows,
        columns,
        num_warps=warps,
        enable_fp_fusion=True,
    )
    return _total(sums), gradient, fresh


def _survey_paper(
    logits: Tensor, labels: Tensor, picked: Tensor | None, p: str
) -> tuple[Tensor, Tensor, int]:
    """(counts, survey, splits): of each image, of all, and into how many parts an image falls."""
    images, length = logits.shape
    columns = min(_power_above(length), SURVEY_TILE)
    rows = SURVEY_TILE // columns
    tall, wide = _ceil(images, rows), _ceil(length, columns)
    stretch = _ceil(wide, min(wide, _ceil(PROGRAMS, tall))) * columns
    splits = _ceil(length, stretch)
    surveyed = tall * splits
    counts = torch.empty(3 * images * splits, dtype=torch.int32, device=logits.device)
    survey = torch.empty(2, surveyed, dtype=torch.float32, device=logits.device)
    _paper_survey[(surveyed,)](
        logits, labels, picked, counts, survey, images, length, splits, stretch,
        p, rows, columns, num_warps=WARPS, enable_fp_fusion=True,
    )  # fmt: skip
    return counts, _few(survey), splits


def partly(
    logits: Tensor,
    labels: Tensor,
    teacher: Tensor | None,
    picked: Tensor | None,
    c_positive: Tensor | float,
    c_negative: Tensor | float,
    focus: Tensor | float | None,
    chance: Tensor | None,
    emphasis: Tensor | None,
    trust: float,
    weight: float,
    factor: float,
    *,
    targets: str,
    share: str,
    gamma: float,
    store: str | None,
) -> Answer:
    images, length = logits.shape
    picked = _bytes(picked)
    rows, columns, tiles, programs, warps = _plan(images, length)
    focus_layout = "label" if isinstance(focus, Tensor) else "number"
    survey = None
    if (focus is not None or share != "off") and programs > 1:
        survey = torch.empty(3, programs, dtype=torch.float32, device=logits.device)
        _partly_survey[(programs,)](
            logits if teacher is None else teacher, labels, focus, survey, images, length, tiles,
            share != "off", focus_layout, rows, columns,
            num_warps=warps, enable_fp_fusion=True,
        )  # fmt: skip
        survey = _few(survey)
    gradient, sums = _empty(logits, programs)
    fresh = None if store is None else torch.empty_like(logits, dtype=DTYPES[store])
    _partly_kernel[(programs,)](
        logits,
        labels,
        teacher,
        picked,
        c_positive,
        c_negative,
        focus,
        chance,
        emphasis,
        survey,
        gradient,
        fresh,
        sums,
        images,
        length,
        tiles,
        float(trust),
        float(weight),
        float(factor),
        float(gamma),
        targets,
        share,
        layout_of(c_positive, logits.shape),
        layout_of(c_negative, logits.shape),
        focus_layout,
        1 if survey is None else _power_above(survey.shape[1]),
        rows,
        columns,
        num_warps=warps,
        enable_fp_fusion=True,
    )
    return _total(sums), gradient, fresh


def scale_(values: Tensor, factor: Tensor) -> Tensor:
    """values *= factor [0-dim], in place. The host does not wait to see whether there is a need."""
    tiles = _ceil(values.numel(), TILE * 4 * PROGRAMS)
    programs = _ceil(values.numel(), TILE * tiles)
    _scale_kernel[(programs,)](
        values, factor, values.numel(), tiles, TILE, num_warps=WARPS, enable_fp_fusion=True
    )
    return values


def _plan(images: int, length: int) -> tuple[int, int, int, int, int]:
    """(rows, columns, tiles, programs, warps): the shape of a tile, and who works on how many."""
    alone = images * length <= ALONE and length <= WIDTH
    columns = min(_power_above(length), WIDTH)
    rows = (ALONE_TILE if alone else TILE) // columns
    tall, wide = _ceil(images, rows), _ceil(length, columns)
    tiles = tall if alone else TILES if images * length >= MANY else 1
    return rows, columns, tiles, _ceil(tall, tiles) * wide, ALONE_WARPS if alone else WARPS


def _empty(logits: Tensor, programs: int) -> tuple[Tensor, Tensor]:
    """Room for the gradient and for the programs' sums.

    A gradient in float16 would vanish before the loss scaler reaches it: it is kept in float32.
    """
    wide = torch.float32 if logits.dtype == torch.float16 else logits.dtype
    shape = () if programs == 1 else (programs,)
    return (
        torch.empty_like(logits, dtype=wide),
        logits.new_empty(shape, dtype=torch.float32),
    )


def _ceil(count: int, size: int) -> int:
    """How many of this size it takes. Triton's own is for kernels and slow in Python."""
    return -(-count // size)


def _power_above(count: int) -> int:
    """The power of two that is not below."""
    return 1 << (count - 1).bit_length()


def _bytes(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.view(torch.uint8)


def _total(sums: Tensor) -> Tensor:
    return sums if sums.ndim == 0 else sums.sum()


def _few(sums: Tensor) -> Tensor:
    """Sums [·, programs] that are few enough to be added up by every program of a kernel."""
    return sums if sums.shape[1] <= FEW_SUMS else sums.sum(dim=1, keepdim=True)


def _whole(exponent: float) -> int:
    return int(exponent) if exponent in (0, 1, 2, 3, 4) else -1
