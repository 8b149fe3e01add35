"""The arena: every method on several data sets, with an equal search for each.

What enters: a `Protocol`. What leaves: one JSON file a training, so that an interrupted arena goes
on where it stopped; for each data set a results.json that stands by itself; and arena.json with its
Markdown (`python -m partly.arena arena.json` prints it).

How it is done stands in `arena_page.EXPLANATION`, above every page of tables. A reference (`bce`)
is searched and trained on full labels. The defaults that come first are the method's own picks.
"""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import numpy as np

from partly import bootstrap, checkpoint, drawing, draws, experiments, metrics
from partly import methods as registry
from partly.arena_page import REFERENCE, data_markdown, to_markdown
from partly.config import Config
from partly.errors import DataError
from partly.experiments import Results, Say, Trial, budget_of, fingerprint, part_of
from partly.labels import POSITIVE, LabelTable
from partly.protocol import DataSet, Protocol, Table, Values
from partly.source import Source

POOL = 4096  # combinations that are looked at where there are more
Cell = tuple[str, str]  # a method, a setting


# --- the search ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """Values of training knobs and of the method's own options, as names and values."""

    training: tuple[tuple[str, Any], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()


def spread(
    ranges: Mapping[str, Sequence[Any]], default: Values, count: int, key: str
) -> list[Table]:
    """`count` combinations of the values in `ranges`, or all there are; the default comes first.

    Each next one is that whose values were used least so far, drawn among equals: a few
    combinations see every value about equally often. The draw follows from `key` alone.

    >>> found = spread({"rate": [1, 2], "start": ["a", "b"]}, {"rate": 1, "start": "a"}, 2, "")
    >>> found == [{"rate": 1, "start": "a"}, {"rate": 2, "start": "b"}]
    True
    """
    sizes = [len(values) for values in ranges.values()]
    total = math.prod(sizes)
    numbers = Random(key).sample(range(total), min(total, POOL))
    places = zip(*np.unravel_index(numbers, sizes), strict=True) if sizes else [()]
    pool = [
        {name: ranges[name][place] for name, place in zip(ranges, combination, strict=True)}
        for combination in places
    ]
    chosen, pool = [dict(default)], [combination for combination in pool if combination != default]
    while pool and len(chosen) < count:
        used = Counter(item for combination in chosen for item in combination.items())
        least = min(pool, key=lambda combination: sum(used[item] for item in combination.items()))
        pool.remove(least)
        chosen.append(least)
    return chosen


def choices_of(data: DataSet, train: LabelTable, method: str) -> dict[Choice, Table]:
    """What a method tries on a data set, in every setting, the defaults first; with the values that
    it amounts to.

    The training knobs follow from the data set's name, so that all methods try the same; the
    method's options from both names. A pair never comes twice: their cycles shift after a round.
    A knob that the protocol leaves open stays so in the defaults: the method, or the data, decides.
    """
    known = registry.get(method)
    base = replace(data.config, method=known.name)
    left_open = {knob: getattr(base, knob) for knob in data.knobs}
    meant: dict[tuple[Any, ...], Table] = {}  # what is meant, and the first way to say it
    for training in spread(data.knobs, left_open, data.choices + 1, data.name):
        complete = replace(base, **training).complete(train)
        meant.setdefault(tuple(getattr(complete, knob) for knob in data.knobs), training)
    trainings = list(meant.items())[: data.choices]
    own = {name: known.options[name] for name in known.search}
    options = spread(known.search, own, data.choices, f"{data.name} {known.name}")
    round_ = math.lcm(len(trainings), len(options))
    choices = {}
    for number in range(min(data.choices, len(trainings) * len(options))):
        values, training = trainings[number % len(trainings)]
        chosen = options[(number + number // round_) % len(options)]
        choice = Choice(
            tuple((knob, value) for knob, value in training.items() if value is not None),
            tuple(chosen.items()),
        )
        choices[choice] = dict(zip(data.knobs, values, strict=True)) | chosen
    return choices


def set_aside(train: LabelTable, share: float, fold: int = 0) -> tuple[LabelTable, LabelTable]:
    """The training part less a share of its images, and that share, to judge the search by.

    fold: one of several draws of those images.
    """
    rows = np.arange(len(train))
    aside = draws.uniform(fold, draws.HOLD_OUT, 0, rows, np.zeros(1, dtype=np.int64)) < share
    return train.take(rows[~aside]), train.take(rows[aside])


def best(scores: Sequence[float | None]) -> int | None:
    """Where the highest score stands, the first of equals; None where there is none."""
    scored = [place for place, score in enumerate(scores) if score is not None]
    return max(scored, key=lambda place: scores[place] or 0.0, default=None)


# --- trainings -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """One training. key: a fingerprint of all that its result follows from."""

    trial: Trial
    key: str

    def __str__(self) -> str:
        chosen = dict(self.trial.training) | dict(self.trial.options)
        listed = ", ".join(f"{name}={value}" for name, value in chosen.items())
        return f"{self.trial} ({listed})" if listed else str(self.trial)

    @property
    def name(self) -> str:
        return f"{self.trial.name()}_{self.key}"


def run_candidate(source: Source, config: Config, share: float, task: Task) -> Table:
    """Train on the training part less the images set aside, score on those. No test row is used.

    The trial's seed is the fold: it says which images are set aside, and which labels hidden.
    """
    train = part_of(experiments.read_study(source, config), "train")
    rest, aside = set_aside(train, share, task.trial.seed)
    record, probabilities = experiments.train_trial(rest, aside, config, task.trial)
    if probabilities is None:
        return record
    return record | {"mAP": metrics.mean_average_precision(probabilities, aside.dense())}


def run_final(source: Source, config: Config, scores: Path, task: Task) -> Table:
    """Train on the whole training part, score on the test part and keep how it was ranked."""
    table = experiments.read_study(source, config)
    train, test = part_of(table, "train"), part_of(table, "test")
    record, probabilities = experiments.train_trial(train, test, config, task.trial)
    if probabilities is None:
        return record
    ranks = bootstrap.rank(probabilities)

    def write(place: Path) -> None:
        with place.open("wb") as file:
            np.save(file, ranks)

    checkpoint.write_atomically(scores / f"{task.name}.npy", write)
    return record | {
        "mAP": metrics.mean_average_precision(probabilities, test.dense()),
        "calibration_error": metrics.calibration_error(probabilities, test.dense()),
    }


def run_bootstrap(
    source: Source, config: Config, replicates: int, files: tuple[Path, ...]
) -> np.ndarray:
    """The mAP [R + 1] of a method in a setting: as it is, and in each replicate. files: rankings of
    its seeds."""
    labels = part_of(experiments.read_study(source, config), "test").dense()
    ranks = [np.load(file) for file in files]
    return bootstrap.replicate_scores(ranks, labels, replicates=replicates)


@dataclass(frozen=True)
class Desk:
    """All that the trainings of one data set share: what, on what, how, and where they are kept."""

    protocol: Protocol
    data: DataSet  # its budget with the origin of the weights settled
    source: Source
    table: LabelTable
    train: LabelTable  # its training part
    folder: Path
    jobs: int | None
    say: Say

    def task(self, facts: Sequence[Any], cell: Cell, seed: int, choice: Choice) -> Task:
        """A task whose key changes with the data, the budget, the choice and the defaults."""
        method, setting = cell
        trial = Trial(method, method, setting, seed, choice.options, choice.training)
        budget = budget_of(trial.config(self.data.config).complete(self.train))
        options = {**registry.get(method).options, **dict(choice.options)}
        return Task(trial, fingerprint([*facts, method, setting, seed, budget, options], 12))

    def work(
        self, stage: str, tasks: Sequence[Task], run: Callable[[Task], Table], later: float = 0
    ) -> dict[Task, Table]:
        """The records of all tasks; those that are there are read, the others trained and kept."""
        place = self.folder / stage
        checkpoint.make_folder(place)
        done = {task: self.stored(place, task) for task in tasks}
        left = [task for task, record in done.items() if record is None]
        self.say(f"{stage}: {len(done)} trainings, {len(done) - len(left)} of them already there")
        device = self.data.config.device
        with closing(experiments.in_parallel(left, run, device, self.jobs)) as finished:
            for task, record in experiments.with_progress(finished, len(left), self.say, later):
                done[task] = record
                checkpoint.write_json(place / f"{task.name}.json", record)
        return {task: record for task, record in done.items() if record is not None}

    def stored(self, place: Path, task: Task) -> Table | None:
        """A result, if it is whole; one that lacks its ranking is not."""
        try:
            record: Table = json.loads((place / f"{task.name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        ranked = self.folder / "scores" / f"{task.name}.npy"
        if place.name == "runs" and record["mAP"] is not None and not ranked.is_file():
            return None
        return record


# --- one data set --------------------------------------------------------------------------------


def run_data_set(
    protocol: Protocol,
    data: DataSet,
    out: Path,
    *,
    jobs: int | None = None,
    command: str = "",
    say: Say = print,
) -> Results:
    """Search, train, compare; everything about it lies in `out`, its results in results.json."""
    checkpoint.make_folder(out / "scores")
    source = data.source
    if data.draw is not None:
        say(f"drawing pictures into {out / 'pictures'}, unless they are there")
        source = replace(source, path=drawing.draw_dataset(out / "pictures", **data.draw))
    source, config, table = experiments.open_study(source, data.config, say)
    train = part_of(table, "train")
    # The search has fewer images than the final training, and must not take smaller batches for it.
    config = replace(config, batch_size=config.complete(train).batch_size)
    desk = Desk(protocol, replace(data, config=config), source, table, train, out, jobs, say)
    candidates = {method: choices_of(desk.data, train, method) for method in data.methods}
    searched = search(desk, candidates)
    final = train_chosen(desk, candidates, searched)
    chosen = [registry.get(method) for method in data.methods]
    known = experiments.told(config, train)
    configs = {m.name: replace(known, method=m.name).complete(train) for m in chosen}
    results: Results = {
        "name": data.name,
        "definition": definition(protocol, data),
        "ours": protocol.ours,
        **experiments.describe(source, table, experiments.rows_of(chosen), configs),
        "data": source.name if data.draw is None else data.name,
        "command": command,
        "images": {
            "train": len(train),
            "set aside": len(set_aside(train, protocol.validation)[1]),
            "test": len(part_of(table, "test")),
        },
        "labels": len(table.names),
        "settings": list(data.settings),
        "seeds": list(range(data.seeds)),
        "finalists": data.finalists,
        "folds": data.folds,
        "searched_in": {s: data.searched_in(protocol.ours, s) for s in data.settings},
        "candidates": {method: list(tried.values()) for method, tried in candidates.items()},
        "search": list(searched.values()),
        "runs": [compact(record) for record in final.values()],
        "seconds": {
            "search": round(sum(cell["seconds"] for cell in searched.values())),
            "runs": round(sum(record["seconds"] for record in final.values())),
        },
    }
    results["differences"] = differences(desk, final, results)
    checkpoint.write_text(out / "results.json", to_json(results, 2))
    checkpoint.write_text(out / "results.md", data_markdown(results))
    return results


Candidates = Mapping[str, Mapping[Choice, Table]]


def search(desk: Desk, candidates: Candidates) -> dict[Cell, Table]:
    """For each method and setting the mAP of every choice on the images set aside, and the best.

    A choice whose training diverged has no mAP; where all did there is no best, and nothing more is
    trained. A method that has one choice only need not search, unless finalists are to be found.
    """
    data, train, share = desk.data, desk.train, desk.protocol.validation
    folds = range(data.folds)
    for rest, aside in (set_aside(train, share, fold) for fold in folds):
        if not (len(rest) and (aside.values == POSITIVE).any()):
            raise DataError(
                f"{share} of the {len(train)} training images of '{data.name}' are too few to "
                "choose by: no label is positive in them"
            )
    facts = ["search", train.content_hash, train.inputs_hash, share]
    cells = dict.fromkeys((m, data.searched_in(m, setting)) for m, setting in data.cells())
    tasks = {
        cell: [[desk.task(facts, cell, fold, c) for fold in folds] for c in candidates[cell[0]]]
        for cell in cells
    }
    contested = [
        task
        for tried in tasks.values()
        if len(tried) > 1 or data.finalists
        for one_choice in tried
        for task in one_choice
    ]
    run = partial(run_candidate, desk.source, data.config, share)
    # Who will be trained in the end is not known yet, but how many.
    to_come = finals(desk, {cell: {"chosen": 0, "mAP": [0.0]} for cell in cells})
    records = desk.work("search", contested, run, len(to_come) * data.seeds / (1 - share))
    searched = {}
    for cell, tried in tasks.items():
        found = [records[task] for one in tried for task in one if task in records]
        judged = [[records[task]["mAP"] for task in one if task in records] for one in tried]
        scores = [None if None in one else mean(one) for one in judged if one]
        searched[cell] = {
            "method": cell[0],
            "setting": cell[1],
            "mAP": [None if score is None else round(score, 6) for score in scores],
            "chosen": best(scores) if found else 0,
            "errors": sorted({record["error"] for record in found if "error" in record}),
            "seconds": round(sum(record["seconds"] for record in found), 1),
        }
    return searched


def finals(desk: Desk, searched: Mapping[Cell, Table]) -> list[Cell]:
    """The cells that are trained with every seed: those with a choice, of baselines the finalists.

    A finalist of a setting is among the best in the search that decided for it.
    """
    data, ours = desk.data, desk.protocol.ours
    found = {cell: searched[cell[0], data.searched_in(*cell)] for cell in data.cells()}
    kept = [cell for cell, result in found.items() if result["chosen"] is not None]
    if data.finalists is None:
        return kept
    lost: set[Cell] = set()
    for setting in data.settings:
        baselines = [
            (method, own)
            for method, own in kept
            if own == setting and method != ours and not registry.get(method).reference
        ]
        baselines.sort(key=lambda cell: max(s or 0.0 for s in found[cell]["mAP"]), reverse=True)
        lost.update(baselines[data.finalists :])
    return [cell for cell in kept if cell not in lost]


def train_chosen(
    desk: Desk, candidates: Candidates, searched: Mapping[Cell, Table]
) -> dict[Task, Table]:
    """The best choice of each method and setting, with every seed."""
    facts = ["final", desk.table.content_hash, desk.table.inputs_hash]
    tasks = []
    for method, setting in finals(desk, searched):
        number = searched[method, desk.data.searched_in(method, setting)]["chosen"]
        choice = list(candidates[method])[number]
        seeds = range(desk.data.seeds)
        tasks += [desk.task(facts, (method, setting), seed, choice) for seed in seeds]
    run = partial(run_final, desk.source, desk.data.config, desk.folder / "scores")
    return desk.work("runs", tasks, run)


def definition(protocol: Protocol, data: DataSet) -> Table:
    """What the file and the methods' defaults say, as far as results follow from it."""
    known = [registry.get(name) for name in data.methods]
    content = {
        "ours": protocol.ours,
        "validation": protocol.validation,
        "bootstrap": protocol.replicates,
        "draw": data.draw,
        "read": data.source.options,
        "knobs": data.knobs,
        "methods": data.methods,
        "options": fingerprint([[method.options, method.search] for method in known], 12),
        "settings": data.settings,
        "seeds": data.seeds,
        "choices": data.choices,
        "search_settings": data.search_settings,
        "finalists": data.finalists,
        "folds": data.folds,
        "config": budget_of(data.config),
    }
    plain: Table = json.loads(json.dumps(content))
    return plain


def compact(record: Table) -> Table:
    """What results.json keeps of a run."""
    kept = ("method", "setting", "seed", "mAP", "calibration_error", "seconds", "error")
    return _rounded({key: record[key] for key in kept if key in record})


def _rounded(record: Table) -> Table:
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in record.items()}


def differences(desk: Desk, final: Mapping[Task, Table], results: Results) -> list[Table]:
    """Ours less the best baseline and ours less the reference, setting by setting."""
    files: dict[Cell, tuple[Path, ...]] = {}
    for task, record in final.items():
        if record["mAP"] is not None:
            cell = (task.trial.method, task.trial.setting)
            files[cell] = (*files.get(cell, ()), desk.folder / "scores" / f"{task.name}.npy")
    pairs = list(rivals(results))
    rankings = list(dict.fromkeys(files[cell] for _, _, *both in pairs for cell in both))
    if rankings:
        desk.say(f"bootstrap over the test images: {len(rankings)} methods and settings")
    run = partial(run_bootstrap, desk.source, desk.data.config, desk.protocol.replicates)
    replicates = dict(experiments.in_parallel(rankings, run, "cpu", desk.jobs))
    return [
        {"setting": setting, "against": kind, "method": theirs[0]}
        | _rounded(bootstrap.difference(replicates[files[own]], replicates[files[theirs]]))
        for setting, kind, own, theirs in pairs
    ]


def rivals(results: Results) -> Iterator[tuple[str, str, Cell, Cell]]:
    """Whom ours is measured against: (setting, kind, our cell, their cell)."""
    ours, references = results["ours"], [m["name"] for m in results["methods"] if m["reference"]]
    scores: dict[Cell, list[float]] = {}
    for run in results["runs"]:
        if run["mAP"] is not None:
            scores.setdefault((run["method"], run["setting"]), []).append(run["mAP"])
    for setting in results["settings"]:
        own = (ours, setting)
        others = [c for c in scores if c[1] == setting and c[0] not in (ours, *references)]
        if own in scores and others:
            yield setting, "best baseline", own, max(others, key=lambda cell: mean(scores[cell]))
        if own in scores and (REFERENCE, "fal") in scores:
            yield setting, "full labels", own, (REFERENCE, "fal")


# --- all of it -----------------------------------------------------------------------------------


def run_protocol(
    protocol: Protocol,
    out: str | Path,
    *,
    jobs: int | None = None,
    command: str = "",
    say: Say = print,
) -> Results:
    """Run the data sets one after another; what is there is not trained again.

    arena.json and arena.md hold whatever data sets have results in `out`, so that several machines
    can each do some of them.
    """
    arena: Results = {}
    for data in protocol.data:
        if data.name in protocol.only:
            say(f"--- {data.name}")
            run_data_set(protocol, data, Path(out) / data.name, jobs=jobs, command=command, say=say)
            arena = assemble(protocol, out, say=say)
            checkpoint.write_text(Path(out) / "arena.json", to_json(arena, 4))
            checkpoint.write_text(Path(out) / "arena.md", to_markdown(arena))
    return arena


def assemble(protocol: Protocol, out: str | Path, *, say: Say = print) -> Results:
    """The arena of those data sets that have results of this protocol in `out`."""
    found = []
    for data in protocol.data:
        path = Path(out) / data.name / "results.json"
        if not path.is_file():
            continue
        results = checkpoint.read_json(path)
        if results.get("definition") == definition(protocol, data):
            found.append(results)
        else:
            say(f"{path} was made with other choices: not in the arena until it is run again")
    return {"title": protocol.title, "data": found}


def to_json(content: Any, depth: int) -> str:
    """JSON with a line an entry down to this depth: small, and a change shows where it is."""
    return _lines(content, depth) + "\n"


def _lines(value: Any, depth: int) -> str:
    if not depth or not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[\n" + ",\n".join(_lines(item, depth - 1) for item in value) + "\n]"
    entries = (f"{json.dumps(key)}: {_lines(item, depth - 1)}" for key, item in value.items())
    return "{\n" + ",\n".join(entries) + "\n}"


if __name__ == "__main__":  # python -m partly.arena arena.json: its Markdown
    print(to_markdown(checkpoint.read_json(Path(sys.argv[1]))), end="")
