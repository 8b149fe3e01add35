"""A protocol: the file that describes an arena, a comparison of methods over several data sets.

What enters: a .toml such as protocols/arena.toml and the folder its data sets lie in. What leaves:
a `Protocol`, checked as a whole before anything is trained. In the file everything but [[data]] has
a default:

    title, ours, validation, bootstrap              of the whole
    methods, settings, seeds, choices, [search]     of all data sets, or of one where it says so
    [search]         a list of values for each training knob that is searched; [] drops a knob
    [[data]]         name; path below the folder, or draw = { train, test, size, seed }
    [data.read]      options of the format; format, verify, on_bad_image stand beside it
    [data.training]  fields of a `Config`: epochs, batch_size, backbone, …

and where trainings are dear, of one data set:

    search_settings  search in these settings only: another takes the choice of the nearest of its
                     kind, the first of equals; fal is a pal that keeps everything
    finalists        train only so many baselines of a setting, the best in the search
    folds            judge a choice by the mean over so many draws of images set aside and of labels
                     hidden, not one: of a small table it would be mostly chance
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from partly import bootstrap, drawing, readers
from partly import methods as registry
from partly.config import Config
from partly.errors import ConfigError, PartlyError, raise_if
from partly.experiments import PAPER_SETTINGS, PER_TRIAL
from partly.hiding import Setting
from partly.recipe import read_toml
from partly.source import Source

# What a search may vary: how a model is trained, not how much or on what.
KNOBS = (
    "batch_size",
    "learning_rate",
    "head_factor",
    "optimiser",
    "weight_decay",
    "head_decay",
    "warmup",
    "schedule",
    "clip",
    "ema",
    "batch_norm",
    "start",
)
Values = Mapping[str, Any]
Table = dict[str, Any]


@dataclass(frozen=True)
class DataSet:
    """One data set of a protocol, with all that holds for it. draw: of pictures drawn by code.

    config: the budget. knobs: values of its fields that the search tries. choices: how many
    combinations each method tries in each setting. search_settings, finalists: see above.
    """

    name: str
    source: Source
    draw: Values | None
    config: Config
    knobs: Mapping[str, Sequence[Any]]
    methods: tuple[str, ...]
    settings: tuple[str, ...]
    seeds: int
    choices: int
    search_settings: tuple[str, ...] = ()
    finalists: int | None = None
    folds: int = 1

    def cells(self) -> list[tuple[str, str]]:
        """Methods × settings; a reference once, on full labels."""
        return [
            (name, setting)
            for name in self.methods
            for setting in (["fal"] if registry.get(name).reference else self.settings)
        ]

    def searched_in(self, method: str, setting: str) -> str:
        """The setting whose search decides for a method in this one."""
        if registry.get(method).reference or not self.search_settings:
            return setting
        return nearest(setting, self.search_settings) or setting


def nearest(setting: str, others: Sequence[str]) -> str | None:
    """That of the others which keeps about as much in the same way; None where there is none.

    >>> nearest("pal:0.9", ["pal:0.3", "pal:0.6", "spl"]), nearest("fal", ["pal:0.3", "spl"])
    ('pal:0.6', 'pal:0.3')
    """
    kind, keep = _kind(setting)
    alike = [other for other in others if _kind(other)[0] == kind]
    return min(alike, key=lambda other: round(abs(_kind(other)[1] - keep), 9), default=None)


def _kind(setting: str) -> tuple[str, float]:
    parsed = Setting.parse(setting)
    return "pal" if parsed.name == "fal" else parsed.name, parsed.keep or 1.0


@dataclass(frozen=True)
class Protocol:
    """What an arena consists of. validation: share of the training images for the search. only:
    names of the data sets that will be trained on."""

    title: str
    ours: str
    validation: float
    replicates: int
    data: tuple[DataSet, ...]
    only: tuple[str, ...]

    @classmethod
    def read(
        cls,
        path: str | Path,
        folder: str | Path,
        *,
        only: Sequence[str] = (),
        methods: Sequence[str] | None = None,
        settings: Sequence[str] | None = None,
        seeds: int | None = None,
        training: Values | None = None,
    ) -> "Protocol":
        """The protocol in a file, or an error with all that is wrong in it or missing in `folder`.

        only: the data sets that will be trained on, all if none; the others need not be there.
        methods, settings: restrict those of the file. seeds: in place of the file's. training:
        fields of a `Config` that change no result, such as the device.
        """
        content = read_toml(path, "protocol")
        raise_if((f"{path}: {p}" for p in _problems(content, Path(folder), only)), ConfigError)
        data = [_data_set(entry, content, Path(folder)) for entry in content["data"]]
        only = tuple(only) or tuple(entry.name for entry in data)
        return cls(
            content.get("title", "Arena"),
            registry.get(content.get("ours", "partly")).name,
            content.get("validation", 0.2),
            content.get("bootstrap", bootstrap.REPLICATES),
            _restricted(data, only, methods, settings, seeds, training or {}),
            only,
        )


def _restricted(
    data: Sequence[DataSet],
    only: Sequence[str],
    methods: Sequence[str] | None,
    settings: Sequence[str] | None,
    seeds: int | None,
    training: Values,
) -> tuple[DataSet, ...]:
    """The same with less: what is left out is not trained, and not in the tables."""
    wanted = None if methods is None else [registry.get(name).name for name in methods]
    columns = None if settings is None else _canonical(settings)
    restricted = tuple(
        replace(
            entry,
            methods=tuple(name for name in entry.methods if wanted is None or name in wanted),
            settings=tuple(s for s in entry.settings if columns is None or s in columns),
            seeds=entry.seeds if seeds is None else seeds,
            config=replace(entry.config, **training),
        )
        for entry in data
    )
    problems = []
    if seeds is not None and not _whole(seeds):
        problems.append(f"seeds must be a whole number above 0, not {seeds}")
    for entry in restricted:
        if entry.name in only:
            problems += entry.config.problems()
            if not entry.methods:
                problems.append(f"'{entry.name}' has none of the methods {', '.join(wanted or [])}")
            if not entry.settings:
                listed = ", ".join(columns or [])
                problems.append(f"'{entry.name}' has none of the settings {listed}")
    raise_if(dict.fromkeys(problems), ConfigError)
    return restricted


def _data_set(entry: Table, content: Table, folder: Path) -> DataSet:
    """One [[data]] table, with what it leaves to the top of the file."""
    how = {key: entry[key] for key in ("format", "on_bad_image", "verify") if key in entry}
    chosen = {**content, **entry}
    knobs = {**content.get("search", {}), **entry.get("search", {})}
    names = chosen.get("methods") or registry.available()
    return DataSet(
        name=entry["name"],
        source=Source(folder / entry.get("path", ""), options=entry.get("read", {}), **how),
        draw=entry.get("draw"),
        config=Config(**entry.get("training", {}), hold_out=0.0),
        knobs={knob: values for knob, values in knobs.items() if values},
        methods=tuple(dict.fromkeys(registry.get(name).name for name in names)),
        settings=_canonical(chosen.get("settings", PAPER_SETTINGS)),
        seeds=chosen.get("seeds", 3),
        choices=chosen.get("choices", 6),
        search_settings=_canonical(entry.get("search_settings", ())),
        finalists=entry.get("finalists"),
        folds=entry.get("folds", 1),
    )


def _canonical(settings: Sequence[str]) -> tuple[str, ...]:
    """Each once, as `Setting` writes it."""
    return tuple(dict.fromkeys(str(Setting.parse(text)) for text in settings))


# --- what can be wrong with a file ---------------------------------------------------------------


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)


def _share(value: Any) -> bool:
    return isinstance(value, float) and 0 < value < 1


def _tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _folder_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\w[\w.-]*", value) is not None


_WHOLE = (_whole, "a whole number above 0")
_TEXT = (lambda value: isinstance(value, str) and bool(value), "text")
_TEXTS = (_texts, 'a list of texts, such as ["an", "ign"]')
_TABLE = (lambda value: isinstance(value, dict), "a table of names and values")
Kinds = Mapping[str, tuple[Callable[[Any], bool], str]]

BOTH: Kinds = {
    "methods": _TEXTS,
    "settings": _TEXTS,
    "seeds": _WHOLE,
    "choices": _WHOLE,
    "search": _TABLE,
}
TOP: Kinds = {
    "title": _TEXT,
    "ours": _TEXT,
    "validation": (_share, "a number between 0 and 1"),
    "bootstrap": _WHOLE,
    **BOTH,
    "data": (_tables, "one or more tables [[data]]"),
}
DATA: Kinds = {
    "name": (_folder_name, "letters, digits, -, _ and dots: a folder will have it"),
    "path": _TEXT,
    "draw": _TABLE,
    "format": _TEXT,
    "on_bad_image": _TEXT,
    "verify": _TEXT,
    "read": _TABLE,
    "training": _TABLE,
    **BOTH,
    "search_settings": _TEXTS,
    "finalists": _WHOLE,
    "folds": _WHOLE,
}
TRAINING = tuple(f.name for f in fields(Config) if f.name not in (*PER_TRIAL, "hold_out"))
DRAW = ("train", "test", "size", "seed")


def _problems(content: Table, folder: Path, only: Sequence[str]) -> Iterator[str]:
    """Everything that is wrong with a protocol, and what is not there."""
    top = {key: value for key, value in content.items() if key in TOP and TOP[key][0](value)}
    yield from (f"the protocol: {problem}" for problem in _kind_problems(content, TOP))
    yield from (f"the protocol: {problem}" for problem in _shared_problems(top, {}))
    if "data" not in content:
        yield "there is no [[data]]: name a data set or more"
    entries = top.get("data", [])
    names = Counter(str(entry["name"]) for entry in entries if "name" in entry)
    yield from (f"{n} data sets are named '{name}'" for name, n in names.items() if n > 1)
    for name in only:
        if name not in names:
            yield f"there is no data set '{name}'; there are {', '.join(names)}"
    for number, entry in enumerate(entries, start=1):
        place = f"data set '{entry['name']}'" if "name" in entry else f"data set {number}"
        needed = not only or entry.get("name") in only
        yield from (f"{place}: {p}" for p in _data_problems(entry, top, folder, needed))


def _kind_problems(table: Table, kinds: Kinds) -> Iterator[str]:
    for key, value in table.items():
        if key not in kinds:
            yield f"has no '{key}'; it has {', '.join(kinds)}"
        elif not kinds[key][0](value):
            yield f"{key} is {kinds[key][1]}, not {value!r}"


def _data_problems(entry: Table, top: Table, folder: Path, needed: bool) -> Iterator[str]:
    """Of one data set. top: what is sound at the top of the file. needed: whether it must exist."""
    if "name" not in entry:
        yield "it has no name"
    yield from _kind_problems(entry, DATA)
    sound = {key: value for key, value in entry.items() if key in DATA and DATA[key][0](value)}
    training = sound.get("training", {})
    known = {name: value for name, value in training.items() if name in TRAINING}
    if len(known) < len(training):
        unknown = ", ".join(name for name in training if name not in known)
        yield f"training has no {unknown}; it has {', '.join(TRAINING)}"
    yield from (f"training: {problem}" for problem in Config(**known).problems())
    yield from _shared_problems(sound, known)
    yield from _search_setting_problems(sound, top)
    ours = top.get("ours", "partly")
    listed = sound.get("methods", top.get("methods"))
    plain = registry.plain_name
    if listed is not None and plain(ours) not in map(plain, listed):
        yield f"'{ours}', which is ours, is not among its methods {', '.join(listed)}"
    if ("path" in entry) == ("draw" in entry):
        yield "it needs either a path or draw = { train = 400, test = 200, size = 48 }"
    yield from (f"draw{problem}" for problem in _draw_problems(sound.get("draw")))
    if "path" in sound and needed:
        yield from _source_problems(sound, folder)


def _shared_problems(table: Table, training: Values) -> Iterator[str]:
    """Of what can stand at the top or in a data set; `table` has only what is of the right kind."""
    named = [*table.get("methods", []), *([table["ours"]] if "ours" in table else [])]
    for name in named:
        yield from _complaints(registry.get, name)
    yield from _unreadable(table.get("settings", []))
    wrong_already = set(Config(**training).problems())
    for knob, values in table.get("search", {}).items():
        if knob not in KNOBS:
            yield f"'{knob}' cannot be searched; what can is {', '.join(KNOBS)}"
        elif not isinstance(values, list):
            yield f"search: {knob} is a list of values to try, not {values!r}"
        else:
            if len({repr(value) for value in values}) < len(values):
                yield f"search: {knob} lists a value twice"
            for value in values:
                problems = Config(**{**training, knob: value}).problems()
                yield from (f"search: {p}" for p in problems if p not in wrong_already)


def _complaints(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> list[str]:
    """What a function says about arguments that it does not take."""
    try:
        function(*arguments, **keywords)
    except PartlyError as error:
        return error.problems
    return []


def _unreadable(settings: Sequence[str]) -> list[str]:
    return [problem for text in settings for problem in _complaints(Setting.parse, text)]


def _search_setting_problems(table: Table, top: Table) -> Iterator[str]:
    searched = table.get("search_settings", [])
    settings = {**top, **table}.get("settings", PAPER_SETTINGS)
    yield from (f"search_settings: {p}" for p in _unreadable(searched))
    if searched and not _unreadable([*searched, *settings]):
        lost = [setting for setting in settings if nearest(setting, searched) is None]
        if lost:
            yield f"search_settings has none of the kind of {', '.join(lost)}"


def _source_problems(entry: Table, folder: Path) -> Iterator[str]:
    path = folder / entry["path"]
    how = {key: entry[key] for key in ("on_bad_image", "verify") if key in entry}
    yield from Source(path, **how).problems()
    if not path.exists():
        yield f"no data at {path}"
        return
    try:
        name = entry.get("format") or readers.recognise(path)
    except PartlyError as error:
        yield from error.problems
        return
    if name not in readers.FORMATS:
        yield f"unknown format '{name}'; choose one of {', '.join(readers.FORMATS)}"
        return
    known = readers.options_of(name)
    unknown = [option for option in entry.get("read", {}) if option not in known]
    if unknown:
        listed = ", ".join(known) or "none"
        strange = ", ".join(unknown)
        yield f"{path} is read as '{name}', which has no option {strange}; it has {listed}"


def _draw_problems(draw: Table | None) -> Iterator[str]:
    if draw is None:
        return
    unknown = [name for name in draw if name not in DRAW]
    missing = [name for name in ("train", "test") if name not in draw]
    strange = [name for name, number in draw.items() if not isinstance(number, int)]
    if unknown:
        yield f" has no {', '.join(unknown)}; it has {', '.join(DRAW)}"
    if missing:
        yield f" needs {' and '.join(missing)}, how many pictures"
    if strange:
        yield f": {', '.join(strange)} must be whole numbers"
    if not (unknown or missing or strange):
        wrong = _complaints(drawing.check_numbers, **{"size": 64, **draw})
        yield from (f": {problem}" for problem in wrong)
