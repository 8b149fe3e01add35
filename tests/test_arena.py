"""The arena: an equal search that never sees the test part, its tables, and going on."""

import contextlib
import itertools
import json
import math
import os
import runpy
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import command, environment, feature_table, partly_here, partly_works, problem
from builders import write_npz as write_problem
from partly import arena as arena_
from partly import arena_page, experiments, methods
from partly.arena import choices_of, run_protocol, spread
from partly.config import Config
from partly.errors import DataError, RunError
from partly.labels import LabelTable
from partly.propensity import estimate
from partly.protocol import DataSet, Protocol
from partly.readers import read
from partly.source import Source
from test_protocol import TOML, fill, write

PATIENCE = 120  # seconds until a slow machine is taken for a hung one
CHANCE = ("seconds", "command", "device")  # of a result: what may differ between two runs
METHODS, SETTINGS = ["bce", "partly", "an", "asl"], ["pal:0.3", "spl"]


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return fill(tmp_path_factory.mktemp("arena"))


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """An arena that ran undisturbed."""
    out = tmp_path_factory.mktemp("out")
    arena = run_protocol(Protocol.read(folder / "arena.toml", folder), out, jobs=1, say=quiet)
    return out, arena


@pytest.fixture
def spy(monkeypatch) -> list[tuple[LabelTable, Config]]:
    """What each training was given."""
    seen: list[tuple[LabelTable, Config]] = []
    train = experiments.train

    def listen(table: LabelTable, config: Config, **more: Any) -> Any:
        seen.append((table, config))
        return train(table, config, **more)

    monkeypatch.setattr(experiments, "train", listen)
    return seen


def run_first(folder: Path, out: Path, say: Any = quiet, **part: Any) -> dict[str, Any]:
    """The arena of the first data set alone."""
    plan = Protocol.read(folder / "arena.toml", folder, only=["first"], **part)
    return run_protocol(plan, out, jobs=1, say=say)


def figures(content: Any) -> Any:
    """What a result must have in common with the same result made elsewhere."""
    if isinstance(content, dict):
        return {k: figures(v) for k, v in content.items() if k not in CHANCE}
    return [figures(item) for item in content] if isinstance(content, list) else content


# --- the whole of it -----------------------------------------------------------------------------


def test_every_method_has_the_same_search_and_every_seed(finished):
    _, arena = finished
    first, second = arena["data"]
    assert {name: len(tried) for name, tried in first["candidates"].items()} == dict.fromkeys(
        METHODS, 3
    )
    cells = [("bce", "fal"), *itertools.product(METHODS[1:], SETTINGS)]
    assert [(cell["method"], cell["setting"]) for cell in first["search"]] == cells
    assert all(len(cell["mAP"]) == 3 and None not in cell["mAP"] for cell in first["search"])
    done = [(run["method"], run["setting"], run["seed"]) for run in first["runs"]]
    assert sorted(done) == sorted((*cell, seed) for cell in cells for seed in (0, 1))
    assert first["images"] == {"train": 300, "set aside": first["images"]["set aside"], "test": 200}
    assert 40 < first["images"]["set aside"] < 80
    assert [row["name"] for row in second["methods"]] == ["partly", "an"]
    assert {run["seed"] for run in second["runs"]} == {0}
    assert set(second["candidates"]["an"][0]) == {"start", "weight_decay"}


def test_the_best_on_the_images_set_aside_is_trained(folder, tmp_path, spy):
    (results,) = run_first(folder, tmp_path)["data"]
    train = read(folder / "first.npz").part("train")
    searched, rest = spy[: 3 * 7], spy[3 * 7 :]
    assert len(rest) == 2 * 7
    configs = iter(config for _, config in rest)
    for cell in results["search"]:
        assert cell["chosen"] == int(np.argmax(cell["mAP"]))
        chosen = results["candidates"][cell["method"]][cell["chosen"]]
        for seed in (0, 1):
            config = next(configs)
            complete = config.complete(train)
            used = {name: getattr(complete, name) for name in ("learning_rate", "start")}
            assert used | dict(config.options) == chosen
            assert (config.method, config.seed, config.epochs) == (cell["method"], seed, 2)
    assert {config.seed for _, config in searched} == {0}
    assert {len(table) for table, _ in rest} == {300}
    seen = {row for table, _ in searched for row in table.ids}
    assert seen < set(train.ids)
    assert len(seen) == 300 - results["images"]["set aside"]
    assert all(cell["setting"] != "fal" for cell in results["search"] if cell["method"] != "bce")


def test_a_final_run_is_what_its_choice_gives(folder, finished):
    """Trained again by hand, from the file's own words."""
    _, arena = finished
    results = arena["data"][0]
    cell = next(c for c in results["search"] if (c["method"], c["setting"]) == ("asl", "spl"))
    chosen = dict(results["candidates"]["asl"][cell["chosen"]])
    options = tuple((name, chosen.pop(name)) for name in ("gamma_negative", "clip"))
    trial = experiments.Trial("asl", "asl", "spl", 1, options)
    config = Config(epochs=2, batch_size=64, hold_out=0.0, **chosen)
    record = experiments.run_trial(experiments.Source(folder / "first.npz"), config, trial)
    (run,) = (
        r for r in results["runs"] if (r["method"], r["setting"], r["seed"]) == ("asl", "spl", 1)
    )
    assert run["mAP"] == round(record["mAP"], 6)
    assert run["calibration_error"] == round(record["evaluation"]["calibration_error"], 6)


def test_the_best_baseline_is_the_best_on_the_test_part(finished):
    _, arena = finished
    results = arena["data"][0]
    means = {(c["method"], c["setting"]): c["mean"] for c in experiments.summarise(results)}
    assert [(d["setting"], d["against"]) for d in results["differences"]] == [
        (s, kind) for s in SETTINGS for kind in ("best baseline", "full labels")
    ]
    for found in results["differences"]:
        setting = found["setting"]
        if found["against"] == "best baseline":
            assert found["method"] == max(("an", "asl"), key=lambda name: means[name, setting])
        else:
            assert found["method"] == "bce"
        expected = means["partly", setting] - means[found["method"], setting]
        assert found["difference"] == pytest.approx(expected, abs=3e-6)
        assert found["low"] <= found["difference"] <= found["high"]
        assert found["replicates"] == 40
        sign = "better" if found["low"] > 0 else "worse" if found["high"] < 0 else "level"
        assert found["verdict"] == sign
    assert [d["against"] for d in arena["data"][1]["differences"]] == ["best baseline"] * 2


def test_files_are_small_and_say_everything(finished):
    out, arena = finished
    stored = json.loads((out / "arena.json").read_text())
    assert stored == json.loads(json.dumps(arena))
    for results in stored["data"]:
        own = out / results["name"]
        assert json.loads((own / "results.json").read_text()) == results
        assert len(list((own / "scores").glob("*.npy"))) == len(results["runs"])
        assert len(list((own / "runs").glob("*.json"))) == len(results["runs"])
        assert (own / "results.md").read_text() in (out / "arena.md").read_text()
        ranks = np.load(next((own / "scores").glob("*.npy")))
        assert ranks.dtype == np.uint16
        assert ranks.shape == (results["images"]["test"], 4)


def test_the_page_is_a_pure_function_of_the_json(finished):
    out, _ = finished
    page = (out / "arena.md").read_text()
    assert page == arena_.to_markdown(json.loads((out / "arena.json").read_text()))
    results = json.loads((out / "first" / "results.json").read_text())
    table = experiments.to_markdown(results)
    assert table in page
    found = results["differences"][0]
    cell = f"{100 * found['difference']:+.1f} [{100 * found['low']:.1f}, {100 * found['high']:.1f}]"
    row = next(line for line in page.splitlines() if line.startswith("| first "))
    assert cell.replace("-0.0", "0.0") in row.replace("-0.0", "0.0")
    assert found["method"] in row
    assert "| partly − best baseline | " in page
    assert "| partly − bce | " in page
    assert "which favours it" in " ".join(page.split())
    errors = {}
    for run in results["runs"]:
        errors.setdefault((run["method"], run["setting"]), []).append(run["calibration_error"])
    calibration = page[page.index("### Calibration") :].splitlines()
    row = next(line for line in calibration if line.startswith("| first "))
    cells = [("partly", setting) for setting in results["settings"]] + [("bce", "fal")]
    assert row.split(" | ")[1:] == [
        f"{100 * np.mean(errors[cell]):.1f}" + " |" * (cell == cells[-1]) for cell in cells
    ]


def test_a_reference_that_was_not_asked_for_has_no_column(finished):
    out, _ = finished
    arena = json.loads((out / "arena.json").read_text())
    for results in arena["data"]:
        results["methods"] = [m for m in results["methods"] if m["name"] != "bce"]
    page = arena_.to_markdown(arena)
    calibration = page[page.index("### Calibration") : page.index("### first")]
    assert "bce" not in calibration
    assert "| data | PAL_0.3 | SPL |" in calibration
    assert "–" not in calibration
    assert "setting. 15 bins" in calibration


def test_report_names_the_files_of_an_arena(finished):
    out, _ = finished
    answer = partly_here("report", out)
    assert answer.code == 2
    assert f"{out} is an arena: its tables are {out / 'arena.md'}" in answer.err


def made_up(verdict: str, middle: float) -> dict[str, Any]:
    return {
        "verdict": verdict,
        "difference": middle,
        "low": 0.0081,
        "high": 0.01649,
        "method": "an",
    }


def test_cells_in_words():
    difference = arena_page._difference
    assert difference(made_up("better", 0.0121), "best baseline") == "**+1.2 [0.8, 1.6]** an"
    assert difference(made_up("worse", -0.0121), "full labels") == "*-1.2 [0.8, 1.6]*"
    assert difference(made_up("level", -0.0001), "full labels") == "+0.0 [0.8, 1.6]"
    assert difference(None, "best baseline") == "–"


# --- the test part stays unseen ------------------------------------------------------------------


def test_the_search_never_sees_the_test_part(folder, finished, tmp_path):
    """Other test images with other labels: the same choices for the same reasons."""
    out, arena = finished
    with np.load(folder / "first.npz") as file:
        arrays = dict(file)
    arrays["Y_test"] = 1 - arrays["Y_test"][::-1]
    arrays["X_test"] = arrays["X_test"] ** 3
    np.savez(tmp_path / "first.npz", **arrays)
    write(tmp_path)
    fresh = run_first(tmp_path, tmp_path / "out")["data"][0]
    before = arena["data"][0]
    assert figures(fresh["search"]) == figures(before["search"])
    assert fresh["candidates"] == before["candidates"]
    assert [run["mAP"] for run in fresh["runs"]] != [run["mAP"] for run in before["runs"]]
    # Nor does a stored search lose its validity by it; the final runs do.
    shutil.copytree(out / "first", tmp_path / "again" / "first")
    said: list[str] = []
    run_first(tmp_path, tmp_path / "again", said.append)
    assert "search: 21 trainings, 21 of them already there" in said
    assert "runs: 14 trainings, 0 of them already there" in said


def test_the_search_takes_batches_of_the_final_size(tmp_path, spy):
    """Left open, the size follows from the number of images: of all, not of those that remain."""
    write_problem(tmp_path / "first.npz", 2100, 50)
    write(tmp_path, TOML.replace("epochs = 2, batch_size = 64", "epochs = 1"))
    run_first(tmp_path, tmp_path / "out", methods=["partly"], seeds=1)
    assert {len(table) for table, _ in spy} > {2100}
    assert {config.complete(table).batch_size for table, config in spy} == {64}


def test_other_training_labels_are_searched_anew(finished, tmp_path):
    out, _ = finished
    shutil.copytree(out / "first", tmp_path / "out" / "first")
    write_problem(tmp_path / "first.npz", 300, 200, seed=8)
    write(tmp_path)
    said: list[str] = []
    run_first(tmp_path, tmp_path / "out", said.append)
    assert "search: 21 trainings, 0 of them already there" in said


# --- where trainings are dear --------------------------------------------------------------------


@pytest.fixture(scope="module")
def dear(folder, tmp_path_factory) -> tuple[dict[str, Any], str]:
    """Two settings of three searched, one baseline of three trained in each."""
    short = """
methods = ["bce", "partly", "an", "asl", "paper"]
settings = ["pal:0.3", "pal:0.6", "fal"]
seeds = 1
choices = 2
bootstrap = 10
[search]
learning_rate = [1e-3, 1e-1]
[[data]]
name = "first"
path = "first.npz"
training = { epochs = 2, batch_size = 64 }
search_settings = ["pal:0.3"]
finalists = 1
"""
    out = tmp_path_factory.mktemp("dear")
    plan = Protocol.read(write(out, short), folder)
    (results,) = run_protocol(plan, out / "out", jobs=1, say=quiet)["data"]
    return results, (out / "out" / "arena.md").read_text()


def test_a_setting_takes_the_choice_of_the_one_that_was_searched(dear, folder):
    results, page = dear
    assert results["searched_in"] == {"pal:0.3": "pal:0.3", "pal:0.6": "pal:0.3", "fal": "pal:0.3"}
    assert "PAL_0.6 takes the choice of PAL_0.3, FAL takes the choice of PAL_0.3." in page
    cells = [(cell["method"], cell["setting"]) for cell in results["search"]]
    searched = [(name, "pal:0.3") for name in ("partly", "an", "asl", "paper")]
    assert cells == [("bce", "fal"), *searched]
    cell = results["search"][1]
    chosen = results["candidates"]["partly"][cell["chosen"]]
    trial = experiments.Trial("partly", "partly", "pal:0.6", 0, training=tuple(chosen.items()))
    config = Config(epochs=2, batch_size=64, hold_out=0.0)
    record = experiments.run_trial(Source(folder / "first.npz"), config, trial)
    runs = {(run["method"], run["setting"]): run["mAP"] for run in results["runs"]}
    assert runs["partly", "pal:0.6"] == round(record["mAP"], 6)


def test_only_finalists_are_trained(dear):
    results, page = dear
    score = {c["method"]: max(c["mAP"]) for c in results["search"]}
    finalist = max(("an", "asl", "paper"), key=lambda name: score[name])
    settings = ["pal:0.3", "pal:0.6", "fal"]
    expected = [("bce", "fal"), *itertools.product(("partly", finalist), settings)]
    assert sorted((r["method"], r["setting"]) for r in results["runs"]) == sorted(expected)
    rivals = [d["method"] for d in results["differences"] if d["against"] == "best baseline"]
    assert rivals == [finalist] * 3
    assert "only the 1 best of a setting in the search" in page
    assert page.count(" | – | – | – |\n") == 2


def test_the_written_budget_is_that_of_each_method(finished, folder):
    results = finished[1]["data"][0]
    train = read(folder / "first.npz").part("train")
    budget = experiments.told(Config(epochs=2, batch_size=64, hold_out=0.0), train)
    for row in results["methods"]:
        config = replace(budget, method=row["name"]).complete(train)
        written = results["config"] | row["config"]
        assert {name: getattr(config, name) for name in written} == written
    assert all(row["config"].keys() == {"head_decay"} for row in results["methods"])


# --- choices -------------------------------------------------------------------------------------


TABLE = feature_table(200)


def data_set(choices: int = 6, name: str = "name", **knobs: list[Any]) -> DataSet:
    names = tuple(methods.available())
    return DataSet(name, Source(""), None, Config(), knobs, names, ("spl",), 3, choices)


KNOBS: dict[str, list[Any]] = {
    "learning_rate": [0.003, 0.01, 0.03],
    "start": ["prior", "plain"],
    "weight_decay": [0.0, 1e-5, 1e-4, 1e-3],
}


@pytest.mark.parametrize("choices", [1, 2, 6, 40])
def test_choices_begin_with_the_defaults_and_never_repeat(choices):
    for name in methods.available():
        method, own = methods.get(name), Config(method=name).complete(TABLE)
        tried = choices_of(data_set(choices, **KNOBS), TABLE, name)
        first, values = next(iter(tried.items()))
        assert dict(first.training) == {"start": "prior"}  # what is left open stays so
        default = {knob: getattr(own, knob) for knob in KNOBS}
        assert values == default | {o: method.options[o] for o in method.search}
        assert len({str(values) for values in tried.values()}) == len(tried)
        listed = all(default[knob] in values for knob, values in KNOBS.items())
        possible = (24 if listed else 25) * math.prod(map(len, method.search.values()))
        assert len(tried) == min(choices, possible)


def test_all_methods_try_the_same_trainings():
    data = data_set(6, **KNOBS)
    lists = {
        tuple(choice.training for choice in choices_of(data, TABLE, name))
        for name in methods.available()
    }
    assert len(lists) == 1
    (trainings,) = lists
    for knob, values in KNOBS.items():
        counts = [sum(dict(t).get(knob) == value for t in trainings) for value in values]
        assert max(counts) - min(counts) <= 1  # every value about equally often
    other = choices_of(data_set(6, "other name", **KNOBS), TABLE, "an")
    assert tuple(choice.training for choice in other) != trainings


def test_few_combinations_are_all_tried():
    data = data_set(20, start=["prior", "plain"])
    tried = choices_of(data, TABLE, "asl").values()
    wanted = itertools.product(["prior", "plain"], (2.0, 4.0), (0.0, 0.05))
    names = ("start", "gamma_negative", "clip")
    assert sorted(map(str, tried)) == sorted(str(dict(zip(names, w, strict=True))) for w in wanted)


def test_a_default_outside_the_ranges_is_tried_as_well():
    found = spread({"rate": [1, 2]}, {"rate": 5}, 9, "")
    assert found[0] == {"rate": 5}
    assert sorted(c["rate"] for c in found[1:]) == [1, 2]
    assert spread({}, {}, 5, "any") == [{}]


def test_choices_are_the_same_in_every_process():
    """Written down once: no process, platform or order of methods may change them."""
    found = spread(KNOBS, {"learning_rate": 0.01, "start": "prior", "weight_decay": 0.0}, 4, "coco")
    assert [list(choice.values()) for choice in found] == [
        [0.01, "prior", 0.0],
        [0.03, "plain", 1e-05],
        [0.003, "prior", 0.0001],
        [0.03, "plain", 0.001],
    ]


def test_a_huge_number_of_combinations_is_no_burden():
    ranges = {f"knob {number}": list(range(10)) for number in range(15)}
    found = spread(ranges, dict.fromkeys(ranges, 0), 3, "key")
    assert len({str(c) for c in found}) == 3


@pytest.mark.parametrize("name", methods.available())
def test_what_a_method_searches_can_be_trained(name):
    method, table = methods.get(name), feature_table(20)
    assert len(method.search) <= 3
    for values in itertools.product(*method.search.values()):
        training = methods.Training(table, estimate(table), 4)
        method.rehearse(training, dict(zip(method.search, values, strict=True)))


@pytest.mark.parametrize(
    ("scores", "place"),
    [([0.1, 0.5, 0.5], 1), ([None, 0.0, None], 1), ([None, None], None), ([], None)],
)
def test_the_first_of_the_best_wins(scores, place):
    assert arena_.best(scores) == place


# --- trainings that fail -------------------------------------------------------------------------


def test_a_choice_is_judged_by_the_mean_over_folds(folder, tmp_path, spy):
    protocol = Protocol.read(folder / "arena.toml", folder, only=["first"])
    data = [replace(d, folds=3, methods=("partly", "an"), settings=("spl",)) for d in protocol.data]
    protocol = replace(protocol, data=tuple(data))
    (results,) = run_protocol(protocol, tmp_path, jobs=1, say=quiet)["data"]
    assert results["folds"] == 3
    found = [json.loads(path.read_text()) for path in (tmp_path / "first/search").glob("an_*.json")]
    assert sorted({record["seed"] for record in found}) == [0, 1, 2]
    (cell,) = (cell for cell in results["search"] if cell["method"] == "an")
    assert np.mean(cell["mAP"]) == pytest.approx(np.mean([record["mAP"] for record in found]))
    searched = [table for table, config in spy if config.method == "an"][: len(found)]
    assert len({table.inputs_hash for table in searched}) == 3  # other images are set aside
    assert "the mean over 3 draws of images" in (tmp_path / "arena.md").read_text()


def test_a_choice_that_diverges_is_not_chosen(folder, tmp_path, monkeypatch):
    train = experiments.train

    def fail(table: LabelTable, config: Config, **more: Any) -> Any:
        if config.method == "asl" or (config.method == "an" and config.start == "plain"):
            raise RunError("the loss is not finite")
        return train(table, config, **more)

    monkeypatch.setattr(experiments, "train", fail)
    said: list[str] = []
    (results,) = run_first(folder, tmp_path, said.append, settings=["spl"], seeds=1)["data"]
    cells = {cell["method"]: cell for cell in results["search"]}
    assert cells["asl"]["chosen"] is None
    assert cells["asl"]["errors"] == ["the loss is not finite"]
    tried = results["candidates"]["an"]
    assert [score is None for score in cells["an"]["mAP"]] == [c["start"] == "plain" for c in tried]
    assert tried[cells["an"]["chosen"]]["start"] == "prior"
    assert {run["method"] for run in results["runs"]} == {"bce", "partly", "an"}
    assert "| asl | – |" in (tmp_path / "arena.md").read_text()
    assert any("asl spl" in line and "not finite" in line for line in said)


def test_predictions_that_are_not_finite_are_a_dash(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(
        experiments.runs.Predictor,
        "probabilities",
        lambda self, table: np.full((len(table), 4), np.nan),
    )
    (results,) = run_first(folder, tmp_path, methods=["partly", "an"], seeds=1)["data"]
    assert results["runs"] == []
    assert {cell["chosen"] for cell in results["search"]} == {None}


def test_too_few_images_to_choose_by(tmp_path):
    rows, labels = problem(60)
    labels[:40] = 0
    labels[0, 0] = 1
    parts = {"X_train": rows[:40], "Y_train": labels[:40], "X_test": rows[40:]}
    np.savez(tmp_path / "first.npz", Y_test=labels[40:], **parts)
    write(tmp_path)
    with pytest.raises(DataError, match="too few to choose by"):
        run_first(tmp_path, tmp_path / "out")


# --- going on ------------------------------------------------------------------------------------


def test_only_what_is_missing_is_trained(folder, finished, tmp_path):
    out, arena = finished
    shutil.copytree(out, tmp_path / "out")
    own = tmp_path / "out" / "first"
    searched, runs = sorted((own / "search").iterdir()), sorted((own / "runs").iterdir())
    ranked = sorted((own / "scores").iterdir())
    searched[3].unlink()
    searched[8].write_text(searched[8].read_text()[:20])
    runs[2].unlink()
    ranked[5].unlink()
    (own / "results.json").unlink()
    said: list[str] = []
    plan = Protocol.read(folder / "arena.toml", folder)
    again = run_protocol(plan, tmp_path / "out", jobs=1, say=said.append)
    assert "search: 21 trainings, 19 of them already there" in said
    assert "runs: 14 trainings, 12 of them already there" in said
    assert sum(line.startswith("[") for line in said) == 4
    assert figures(again) == figures(arena)
    assert sorted((own / "scores").iterdir()) == ranked


def test_more_choices_join_those_that_are_there(folder, finished, tmp_path):
    out, _ = finished
    shutil.copytree(out, tmp_path / "out")
    path = write(tmp_path, TOML.replace("choices = 3", "choices = 4"))
    said: list[str] = []
    plan = Protocol.read(path, folder, only=["first"])
    arena = run_protocol(plan, tmp_path / "out", jobs=1, say=said.append)
    assert "search: 28 trainings, 21 of them already there" in said
    assert any("second" in line and "made with other choices" in line for line in said)
    assert [results["name"] for results in arena["data"]] == ["first"]


def test_other_defaults_of_a_method_are_another_arena(folder, finished, tmp_path, monkeypatch):
    out, _ = finished
    shutil.copytree(out, tmp_path / "out")
    other = replace(methods.get("asl"), options={**methods.get("asl").options, "clip": 0.1})
    monkeypatch.setitem(methods._REGISTRY, "asl", other)
    said: list[str] = []
    plan = Protocol.read(folder / "arena.toml", folder)
    assert arena_.assemble(plan, out, say=said.append)["data"][0]["name"] == "second"
    assert "made with other choices" in said[0]
    run_first(folder, tmp_path / "out", said.append)
    assert "search: 21 trainings, 15 of them already there" in said  # all of bce, partly and an


def test_data_sets_of_two_machines_are_put_together(folder, finished, tmp_path):
    out, arena = finished
    (tmp_path / "first").mkdir()
    shutil.copy(out / "first" / "results.json", tmp_path / "first")
    plan = Protocol.read(folder / "arena.toml", folder, only=["second"])
    merged = run_protocol(plan, tmp_path, jobs=1, say=quiet)
    assert figures(merged) == figures(arena)
    assert "### first" in (tmp_path / "arena.md").read_text()


def test_a_killed_arena_goes_on(folder, finished, tmp_path):
    """kill -9 in the middle of the search."""
    expected = finished[1]["data"][0]
    out, log = tmp_path / "out", tmp_path / "output.txt"
    arguments = ["compare", folder, "--protocol", folder / "arena.toml", "--out", out, "--jobs", 1]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command(*arguments),
            env=environment(),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + PATIENCE
    try:
        while len(list(out.glob("first/search/*.json"))) < 4:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.kill()
        process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert not (out / "arena.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("first/search/*.json")}
    assert len(kept) < 21
    arena = run_first(folder, out)
    assert figures(arena["data"]) == [figures(expected)]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert not list(out.rglob("*.partial"))


# --- the command ---------------------------------------------------------------------------------


def test_the_command_runs_a_part_of_an_arena(folder, finished, tmp_path):
    _, arena = finished
    path, out = folder / "arena.toml", tmp_path / "out"
    answer = partly_works(
        "compare", folder, "--protocol", path, "--out", out, "--jobs", 1, "--only", "second",
        "--device", "cpu",
    )  # fmt: skip
    assert "--- second" in answer.out
    assert "--- first" not in answer.out
    assert "min left" in answer.out
    stored = json.loads((out / "arena.json").read_text())
    assert figures(stored["data"]) == figures(arena["data"][1:])
    assert (out / "arena.md").read_text() in answer.out
    assert stored["data"][0]["command"].startswith("partly compare")


def test_drawn_pictures_are_data_too(tmp_path):
    text = """
methods = ["partly", "an"]
settings = ["pal:0.5"]
seeds = 1
choices = 2
bootstrap = 10
[search]
start = ["prior", "plain"]
[[data]]
name = "drawn"
draw = { train = 60, test = 40, size = 16 }
training = { backbone = "small", image_size = 16, epochs = 1 }
"""
    out = tmp_path / "out"
    partly_works(
        "compare", tmp_path, "--protocol", write(tmp_path, text), "--out", out, "--jobs", 1
    )
    (results,) = json.loads((out / "arena.json").read_text())["data"]
    assert (results["data"], results["labels"], results["images"]["test"]) == ("drawn", 36, 40)
    assert len(results["differences"]) == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--only", "third"], "no data set 'third'"),
        (["--epochs", 3], "--epochs is the protocol's to say"),
        (["--lr", 0.1], "--lr is the protocol's to say"),
        (["--methods", "partyl"], "did you mean 'partly'"),
        (["--settings", "fal"], "'first' has none of the settings fal"),
        (["--device", "tpu"], "device"),
    ],
)
def test_a_command_that_makes_no_sense(folder, tmp_path, more, message):
    answer = partly_here(
        "compare", folder, "--protocol", folder / "arena.toml", "--out", tmp_path / "out", *more
    )
    assert answer.code == 2
    assert message in answer.err
    assert "Traceback" not in answer.err


def test_only_needs_a_protocol(folder, tmp_path):
    answer = partly_here("compare", folder / "first.npz", "--only", "x", "--out", tmp_path / "out")
    assert answer.code == 2
    assert "--only names data sets of a --protocol" in answer.err


def test_a_protocol_wants_a_folder(folder, tmp_path):
    answer = partly_here(
        "compare", folder / "first.npz", "--protocol", folder / "arena.toml", "--out", tmp_path
    )
    assert answer.code == 2
    assert "first.npz is a file: with --protocol, DATA is the folder" in answer.err


def test_the_page_of_a_stored_arena(finished, monkeypatch, capsys):
    """`python -m partly.arena arena.json`"""
    out, _ = finished
    monkeypatch.setattr("sys.argv", ["arena", str(out / "arena.json")])
    runpy.run_path(str(arena_.__file__), run_name="__main__")
    assert capsys.readouterr().out == (out / "arena.md").read_text()
