"""Comparisons: methods × settings × seeds -> the paper's tables.

What enters: a data set with full training labels and a test part, the names of methods and
settings, a budget. What leaves: one JSON file a run, so that an interrupted comparison goes on
where it stopped, and the tables as Markdown, CSV and JSON.
"""

import csv
import hashlib
import io
import json
import os
import platform
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeVar

import numpy as np
import torch

from partly import checkpoint, metrics, models, runs
from partly import methods as registry
from partly.config import Config
from partly.data import prepare
from partly.errors import ConfigError, DataError, PartlyError, RunError, raise_if
from partly.hiding import Setting, hide
from partly.labels import POSITIVE, LabelTable
from partly.processes import as_they_come, cores
from partly.source import Source
from partly.starting import look_through, open_eye
from partly.training import train

Results = dict[str, Any]
Say = Callable[[str], None]
Item = TypeVar("Item")

PAPER_SETTINGS = ("fal", "pal:0.3", "pal:0.6", "pal:0.9", "ppl:0.3", "ppl:0.6", "ppl:0.9", "spl")
RESULTS = "results.json"  # in a comparison's folder: all that its tables and its page are made of
ABLATION_SETTINGS = ("pal:0.6", "ppl:0.6")
PER_TRIAL = ("method", "seed", "options")  # of a Config: what differs within a comparison
FREE = ("device", "workers", "checkpoint_steps")  # of a Config: what changes no result


@dataclass(frozen=True)
class Trial:
    """One training of a comparison. `row`: its line in the table, a method perhaps less a part.

    options: of the method, in place of its defaults. training: fields of the `Config`, likewise.
    """

    row: str
    method: str
    setting: str
    seed: int
    options: tuple[tuple[str, Any], ...] = ()
    training: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return f"{self.row} {self.setting} seed {self.seed}"

    def counts(self) -> bool:
        """Whether its method depends on how many positives an image has."""
        return registry.get(self.method).needs_expected_positives

    def name(self) -> str:
        """A file name that says what it is."""
        row = self.row if self.row == self.method else f"{self.method} {self.row}"
        row = "".join(letter if letter.isalnum() else "-" for letter in row)
        return f"{row}_{self.setting.replace(':', '-')}_{self.seed}"

    def config(self, base: Config) -> Config:
        """The budget with what is this training's own."""
        chosen = replace(base, method=self.method, options=dict(self.options), seed=self.seed)
        return replace(chosen, **dict(self.training))


@dataclass(frozen=True)
class Study:
    """What a comparison consists of: the lines and columns of its table, and the trainings."""

    title: str
    rows: list[dict[str, Any]]
    settings: list[str]
    trials: list[Trial]
    whole: str | None = None  # of an ablation: the row the others are measured against


def compare(
    data: str | Path | Source,
    out: str | Path,
    *,
    methods: Sequence[str] | None = None,
    settings: Sequence[str] = PAPER_SETTINGS,
    seeds: int | Sequence[int] = 3,
    **how: Any,
) -> Results:
    """Every method in every setting with every seed, with equal budgets; `how`: see `run_study`.

    A method that is a reference (`bce`, `bce_ls`) is trained on the full labels, once a seed, and
    stands in every setting's column, as in the paper.
    """
    names = dict.fromkeys(registry.get(name).name for name in methods or registry.available())
    chosen = [registry.get(name) for name in names]  # each once
    columns = [str(Setting.parse(text)) for text in settings]
    trials = [
        Trial(method.name, method.name, setting, seed)
        for method in chosen
        for setting in (["fal"] if method.reference else columns)
        for seed in (range(seeds) if isinstance(seeds, int) else seeds)
    ]
    return run_study(Study("Comparison", rows_of(chosen), columns, trials), data, out, **how)


def rows_of(methods: Iterable[registry.Method]) -> list[dict[str, Any]]:
    """The lines of a table of methods."""
    return [{"name": m.name, "summary": m.summary, "reference": m.reference} for m in methods]


def ablate(
    data: str | Path | Source,
    out: str | Path,
    *,
    method: str = "paper",
    settings: Sequence[str] = ABLATION_SETTINGS,
    seeds: int | Sequence[int] = 3,
    **how: Any,
) -> Results:
    """A method whole, and without each of its parts; `how`: see `run_study`."""
    whole = registry.get(method)
    if not whole.parts:
        able = [name for name in registry.available() if registry.get(name).parts]
        raise ConfigError(f"method '{method}' has no parts to remove; choose {', '.join(able)}")
    columns = [str(Setting.parse(text)) for text in settings]
    variants: dict[str, Mapping[str, Any]] = {whole.name: {}}
    variants |= {f"remove {part}": changed for part, changed in whole.parts.items()}
    trials = [
        Trial(row, whole.name, setting, seed, *(tuple(c.items()) for c in whole.split(changed)))
        for row, changed in variants.items()
        for setting in columns
        for seed in (range(seeds) if isinstance(seeds, int) else seeds)
    ]
    rows = [{"name": row, "summary": "", "reference": False} for row in variants]
    title = f"Ablation of {whole.name}"
    return run_study(Study(title, rows, columns, trials, whole.name), data, out, **how)


def run_study(
    study: Study,
    data: str | Path | Source,
    out: str | Path,
    *,
    config: Config | None = None,
    jobs: int | None = None,
    command: str = "",
    say: Say = print,
) -> Results:
    """Run the trainings that have no result yet, several at once, and write the tables.

    config: the budget, the same for all. jobs: trainings at once, one a core if None. The last
    epoch counts: nothing is chosen by a validation part that a method could profit from.
    """
    if not study.trials:
        raise ConfigError("there is nothing to train: name a method, a setting and a seed or more")
    config = replace(config or Config(), hold_out=0.0)
    if config.head == "sampled":
        raise ConfigError("a comparison looks at all labels of all images: head is full there")
    raise_if(replace(config, method=study.trials[0].method).problems(), ConfigError)
    checkpoint.check_folder(Path(out))
    source, config, table = open_study(Source.of(data), config, say)
    train = part_of(table, "train")
    folder = Path(out) / "runs"
    budgets = {trial: _budget(table, config, trial) for trial in study.trials}
    study = without_idle_parts(study, budgets, say)
    done = {trial: _read_trial(folder, trial, budgets[trial]) for trial in study.trials}
    left = [trial for trial, record in done.items() if record is None]
    checkpoint.make_folder(folder)
    if not is_full(train):
        say("the training labels are not full: each setting hides some of what is known of them")
    say(f"{len(done)} trainings, {len(done) - len(left)} of them already there")
    run = partial(run_trial, source, config)

    def finish(trials: Sequence[Trial], later: float = 0) -> None:
        with closing(in_parallel(trials, run, config.device, jobs)) as finished:
            for trial, record in with_progress(finished, len(trials), say, later):
                done[trial] = record
                kept = {**record, "budget": budgets[trial]}
                checkpoint.write_json(folder / f"{trial.name()}.json", kept)

    if study.whole is not None:  # the first seed tells which parts do nothing here
        first = [trial for trial in left if trial.seed == study.trials[0].seed]
        finish(first, len(left) - len(first))
        study = without_equal_rows(study, done, say)
    finish([trial for trial in study.trials if done[trial] is None])
    known = told(config, train)
    configs = {trial.row: trial.config(known).complete(train) for trial in study.trials}
    results = {
        "title": study.title,
        "whole": study.whole,
        **describe(source, table, study.rows, configs),
        "command": command,
        "positives_an_image": known.expected_positives,
        "told": sorted({t.row for t in study.trials if t.counts()}),
        "labels": list(table.names),
        "settings": study.settings,
        "seeds": sorted({trial.seed for trial in study.trials}),
        "train_positives": train.counts_by_label().positive.tolist(),
        "runs": [done[trial] for trial in study.trials],
    }
    others = len([*folder.glob("*.json")]) - sum(record is not None for record in done.values())
    if others > 0:
        say(f"{folder} holds {others} more, of other methods, settings or seeds: not in this table")
    write_tables(results, Path(out))
    return results


def without_idle_parts(study: Study, budgets: Mapping[Trial, str], say: Say) -> Study:
    """The study less the parts whose removal changes no choice here: they have no line to fill."""
    whole = {(t.setting, t.seed): budgets[t] for t in study.trials if t.row == study.whole}
    acts = {t.row for t in study.trials if budgets[t] != whole.get((t.setting, t.seed))}
    idle = [row["name"] for row in study.rows if row["name"] not in (study.whole, *acts)]
    if study.whole is None:
        return study
    return without_rows(study, idle, "it changes nothing here", say)


def without_equal_rows(study: Study, done: Mapping[Trial, Results | None], say: Say) -> Study:
    """The study less the parts without which a training comes out the same, to the last digit: what
    `auto` chooses here is what their removal would choose."""
    found: dict[str, dict[tuple[str, int], str]] = {}
    for trial in study.trials:
        if (record := done[trial]) is not None:
            figures = json.dumps([record["AP"], record["evaluation"]], sort_keys=True)
            found.setdefault(trial.row, {})[trial.setting, trial.seed] = figures
    whole = found[study.whole or ""]
    equal = [
        row
        for row in found
        if row != study.whole and all(whole[c] == t for c, t in found[row].items())
    ]
    return without_rows(study, equal, "it changes no figure here", say)


def without_rows(study: Study, rows: Sequence[str], why: str, say: Say) -> Study:
    """The study less some lines of its table, and a word about it."""
    if not rows:
        return study
    say(f"left out, for {why}: {', '.join(rows)}")
    kept = [row for row in study.rows if row["name"] not in rows]
    return replace(study, rows=kept, trials=[t for t in study.trials if t.row not in rows])


def describe(
    source: Source,
    table: LabelTable,
    rows: Iterable[Mapping[str, Any]],
    configs: Mapping[str, Config],
) -> Results:
    """What results say of their data, methods, budget and machine. configs: of each row, complete.

    `config` is what all rows have in common; what only some have stands in their own.
    """
    budgets = {
        row: {name: value for name, value in asdict(config).items() if name not in PER_TRIAL}
        for row, config in configs.items()
    }
    first = next(iter(budgets.values()))
    shared = {n: v for n, v in first.items() if all(own[n] == v for own in budgets.values())}
    own = {row: {n: v for n, v in b.items() if n not in shared} for row, b in budgets.items()}
    return {
        "data": source.name,
        "left_out": list(source.leave_out),
        "label_hash": table.content_hash,
        "full_labels": is_full(part_of(table, "train")),
        "methods": [{**row, "config": own[row["name"]]} for row in rows],
        "config": shared,
        "versions": runs.versions(),
        "machine": machine(),
    }


def with_progress(
    finished: Iterable[tuple[Item, Any]], count: int, say: Say, later: float = 0
) -> Iterator[tuple[Item, Any]]:
    """The trainings as they finish, each with a line once whoever takes it has kept it.

    later: trainings that are to come after these `count`, for the time that is left.
    """
    began = time.monotonic()
    for number, (item, record) in enumerate(finished, start=1):
        yield item, record
        rate = (time.monotonic() - began) / number
        result = record.get("error") or f"mAP {100 * record['mAP']:.2f}"
        say(
            f"[{number}/{count}] {item}: {result} in {record['seconds']:.0f} s, "
            f"{rate * (count - number + later) / 60:.0f} min left"
        )


def in_parallel(
    items: Sequence[Item], run: Callable[[Item], Any], device: str, jobs: int | None
) -> Generator[tuple[Item, Any], None, None]:
    """Results as they come. One job runs here; more run in processes of one thread each, which end
    when this is closed."""
    workers = min(len(items), jobs or usual_jobs(device))
    if workers <= 1:
        for item in items:
            yield item, run(item)
        return
    yield from as_they_come(run, items, workers, _use_one_thread)


def usual_jobs(device: str) -> int:
    """One a core this process may use; on a GPU one at a time, for they would share its memory."""
    if runs.choose_device(device).type == "cuda":
        return 1
    return cores()


def _use_one_thread() -> None:
    torch.set_num_threads(1)


def open_study(source: Source, config: Config, say: Say) -> tuple[Source, Config, LabelTable]:
    """The data less its bad images, its table, and the budget with its weights settled: looked at
    once, so that the trainings need not. Nor need they decode what is to be decoded once."""
    source, images = check_images(source, say)
    if images is not None:
        complete = config.complete(images)
        assert complete.backbone is not None
        # All trainings begin alike, those of tomorrow too.
        weights, origin = models.settle(complete.backbone, config.weights, config.image_size)
        say(f"{complete.backbone} from {origin}")
        config = replace(config, weights=weights)
    table = read_study(source, config, say)
    prepare([table], config.look, workers=config.workers, say=say)
    return source, config, table


def check_images(source: Source, say: Say) -> tuple[Source, LabelTable | None]:
    """The same data less its bad images, which need not be looked for again; its table of images,
    None where it has features."""
    table, bad = source.open(say)
    checked = replace(source, verify="off", leave_out=(*source.leave_out, *bad))
    return checked, table if table.features is None else None


_studies: dict[str, LabelTable] = {}


def read_study(source: Source, config: Config, say: Say = lambda line: None) -> LabelTable:
    """The data set, read once a process unless the file changes; features where those are used."""
    if not Path(source.path).exists():
        raise DataError(f"no data at {source.path}")
    eye = (config.backbone, config.weights, config.look) if config.head_only else None
    key = repr((source, Path(source.path).stat().st_mtime_ns, eye))
    if key not in _studies:
        _studies[key] = _read_study(source, config, say)
    return _studies[key]


def _read_study(source: Source, config: Config, say: Say) -> LabelTable:
    table = source.read()
    raise_if(
        (
            f"a comparison needs a {part} part, and {source.path} has none"
            for part in ("train", "test")
            if table.part(part) is None
        ),
        DataError,
    )
    if not (part_of(table, "test").values == POSITIVE).any():
        raise DataError(
            f"the test part of {source.path} has no positive label: nothing can be scored"
        )
    if config.head_only and table.features is None:
        complete = config.complete(table)
        eye, origin = open_eye(complete)
        say(f"features of {complete.backbone} from {origin}, {complete.image_size} px")
        say(f"computing, or finding, what it sees in {len(table):,} images")
        table = look_through(eye, complete, table)
    return table


def part_of(table: LabelTable, split: str) -> LabelTable:
    """The rows of a split that is known to be there."""
    part = table.part(split)
    assert part is not None
    return part


def run_trial(source: Source, config: Config, trial: Trial) -> dict[str, Any]:
    """Hide, train, evaluate on the test part; the record of one run."""
    table = read_study(source, config)
    full, test = part_of(table, "train"), part_of(table, "test")
    record, probabilities = train_trial(full, test, config, trial)
    if probabilities is None:
        return record | {"AP": None, "evaluation": None}
    positives = full.counts_by_label().positive
    evaluation = metrics.evaluate(probabilities, test.dense(), train_positives=positives)
    return record | {
        "mAP": evaluation["mAP"],
        "AP": evaluation["AP"],
        "evaluation": evaluation,
    }


def train_trial(
    full: LabelTable, judged: LabelTable, config: Config, trial: Trial
) -> tuple[dict[str, Any], np.ndarray | None]:
    """Hide labels of `full`, train on the rest: a record, and the probabilities [N, L] of `judged`.

    Hidden labels are drawn from the trial's seed, as are the weights and the order of images. The
    methods that need the expected number of positives are told the training set's, as published,
    where its labels are full. A training that diverges is a dash in the table, not the end of the
    others: it has no probabilities, and the record says why.
    """
    known = hide(full, trial.setting, seed=trial.seed)
    own = trial.config(told(config, full))
    record: dict[str, Any] = {"method": trial.row, "setting": trial.setting, "seed": trial.seed}
    began = time.monotonic()
    try:
        predictor = train(known, own, quiet=True)
        seconds = {"seconds": round(time.monotonic() - began, 2)}
        probabilities = predictor.probabilities(judged)
        if not np.isfinite(probabilities).all():
            raise RunError("its predictions are not finite: lower the learning rate")
    except RunError as error:
        lost = {"mAP": None, "error": str(error)}
        return record | lost | {"seconds": round(time.monotonic() - began, 2)}, None
    return record | seconds | {"known_hash": known.content_hash}, probabilities


def told(config: Config, full: LabelTable) -> Config:
    """The same with the mean number of positives an image, where full labels tell it."""
    if config.expected_positives is not None or not is_full(full):
        return config
    return replace(config, expected_positives=float(full.counts_by_image().positive.mean()))


def is_full(table: LabelTable) -> bool:
    """Whether every label is known."""
    return table.known == len(table) * len(table.names)


def _budget(table: LabelTable, config: Config, trial: Trial) -> str:
    """Changes when a stored result would not be the result of this comparison: with the data, the
    choices, and what the method picks by default."""
    chosen = budget_of(trial.config(config).complete(part_of(table, "train")))
    options = {**registry.get(trial.method).options, **dict(trial.options)}
    return fingerprint([table.content_hash, table.inputs_hash, chosen, options], 16)


def fingerprint(facts: Any, length: int) -> str:
    """Letters that change with any of the facts."""
    text = json.dumps(facts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def budget_of(config: Config) -> dict[str, Any]:
    """The fields that results follow from, whatever the method. Pixels kept on disk are those that
    the CPU decodes, to the bit."""
    if config.decode == "once":
        config = replace(config, decode="cpu")
    fields = asdict(config).items()
    return {name: value for name, value in fields if name not in (*PER_TRIAL, *FREE)}


def _read_trial(folder: Path, trial: Trial, budget: str) -> dict[str, Any] | None:
    """A stored result, if it is there and was made with this budget on this data."""
    path = folder / f"{trial.name()}.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if record.pop("budget", None) != budget:
        raise PartlyError(
            f"{path} was made with another budget or other data: "
            "name another folder, or delete this one to start over"
        )
    return record


def machine() -> str:
    """What the figures were measured on."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU only"
    return f"{os.cpu_count()} cores, {platform.machine()}, {device}"


# --- tables --------------------------------------------------------------------------------------


def summarise(results: Results) -> list[dict[str, Any]]:
    """Mean and standard deviation of the mAP of each method in each setting, over the seeds that
    came to an end; `diverged` counts the others. The mean is None where none did."""
    cells: dict[tuple[str, str], list[float | None]] = {}
    references = {row["name"] for row in results["methods"] if row["reference"]}
    for run in results["runs"]:
        settings = results["settings"] if run["method"] in references else [run["setting"]]
        for setting in settings:
            cells.setdefault((run["method"], setting), []).append(run["mAP"])
    summary = []
    for (method, setting), found in cells.items():
        scores = [score for score in found if score is not None]
        summary.append(
            {
                "method": method,
                "setting": setting,
                "mean": mean(scores) if scores else None,
                "deviation": stdev(scores) if len(scores) > 1 else None,
                "seeds": len(scores),
                "diverged": len(found) - len(scores),
            }
        )
    return summary


def ranks(results: Results) -> dict[tuple[str, str], int]:
    """1 for the best of a setting, 2 for the second; references do not compete, nor does a method
    of which a seed diverged.

    Methods that show the same figure share a place: a tenth of a point is no victory to be split.
    """
    references = {row["name"] for row in results["methods"] if row["reference"]}
    shown = {
        (cell["method"], cell["setting"]): round(100 * cell["mean"], 1)
        for cell in summarise(results)
        if cell["method"] not in references and not cell["diverged"]
    }
    placed = {}
    for setting in results["settings"]:
        figures = sorted({f for (_, s), f in shown.items() if s == setting}, reverse=True)
        for (method, own), figure in shown.items():
            if own == setting and figure in figures[:2]:
                placed[method, setting] = figures.index(figure) + 1
    return placed


def to_markdown(results: Results) -> str:
    """The paper's table: mAP in points, best in bold, second best underlined."""
    cells = {(cell["method"], cell["setting"]): cell for cell in summarise(results)}
    placed = ranks(results)
    lines = [
        "| method | " + " | ".join(label(setting) for setting in results["settings"]) + " |",
        "|---|" + "---|" * len(results["settings"]),
    ]
    for row in results["methods"]:
        seen = "full labels" if results.get("full_labels", True) else "all known labels"
        name = row["name"] + (f" ({seen})" if row["reference"] else "")
        texts = []
        for setting in results["settings"]:
            text = format_cell(cells.get((row["name"], setting)))
            place = placed.get((row["name"], setting))
            texts.append({1: f"**{text}**", 2: f"<u>{text}</u>"}.get(place or 0, text))
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return "\n".join(lines) + "\n"


def format_cell(cell: Mapping[str, Any] | None) -> str:
    """`58.7 ± 0.1`, in points, and how many seeds diverged; a dash where there is no result."""
    if cell is None:
        return "–"
    text = "" if cell["mean"] is None else f"{100 * cell['mean']:.1f}"
    if cell["deviation"] is not None:
        text += f" ± {100 * cell['deviation']:.1f}"
    failed = f"({cell['diverged']} diverged)" if cell.get("diverged") else ""
    return f"{text} {failed}".strip()


def label(setting: str) -> str:
    """`pal:0.3` as the paper writes it: PAL_0.3."""
    return setting.upper().replace(":", "_")


def to_csv(results: Results) -> str:
    """One line a method and setting."""
    text = io.StringIO()
    fields = ("method", "setting", "mean", "deviation", "seeds", "diverged")
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(summarise(results))
    return text.getvalue()


def caution(results: Results) -> str:
    """What keeps an mAP from meaning what it seems to: labels of which no negative is known."""
    coverages = (run["evaluation"].get("coverage") for run in results["runs"] if run["evaluation"])
    coverage = next((found for found in coverages if found), None)
    return "" if coverage is None else metrics.without_negatives(coverage)


def write_tables(results: Results, out: Path) -> None:
    """results.md, results.csv and results.json."""
    warning = caution(results)
    text = to_markdown(results) + (f"\nOf the test part {warning}.\n" if warning else "")
    checkpoint.write_text(out / "results.md", text)
    checkpoint.write_text(out / "results.csv", to_csv(results))
    checkpoint.write_json(out / RESULTS, {**results, "summary": summarise(results)})
