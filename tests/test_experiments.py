"""Comparisons: the tables, and going on after an interruption."""

import contextlib
import csv
import json
import os
import re
import signal
import statistics
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import (
    children_of,
    command,
    environment,
    files_of,
    partly_here,
    partly_works,
    problem,
    write_manifest,
    write_npz,
    write_pictures,
)
from partly import experiments
from partly import methods as registry
from partly.data import Look, prepare
from partly.errors import DataError, PartlyError
from partly.hiding import hide
from partly.labels import LabelTable
from partly.readers import read
from partly.training import Config

METHODS, SETTINGS = ["bce", "partly", "an"], ["pal:0.3", "spl"]
BUDGET = Config(epochs=2, batch_size=64)
PATIENCE = 120  # seconds until a slow machine is taken for a hung one


def compare(data: Path, out: Path, **more: Any) -> dict[str, Any]:
    how = {"methods": METHODS, "settings": SETTINGS, "seeds": 2, "config": BUDGET, "jobs": 1}
    return experiments.compare(data, out, **how | {"say": lambda text: None} | more)


def scores(results: dict[str, Any]) -> dict[tuple[str, str, int], list[float]]:
    """The figures of every run, to the last bit."""
    runs = results["runs"]
    return {(run["method"], run["setting"], run["seed"]): [run["mAP"], *run["AP"]] for run in runs}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_npz(tmp_path_factory.mktemp("data") / "data.npz", 300, 200)


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """A comparison that ran undisturbed: its folder and what it returned."""
    out = tmp_path_factory.mktemp("comparison")
    return out, compare(data, out)


@pytest.fixture
def spy(monkeypatch) -> list[Config]:
    """The configs of all trainings, complete."""
    seen: list[Config] = []
    train = experiments.train

    def listen(table: LabelTable, config: Config, **more: Any) -> Any:
        seen.append(config.complete(table))
        return train(table, config, **more)

    monkeypatch.setattr(experiments, "train", listen)
    return seen


# --- tables --------------------------------------------------------------------------------------


def test_every_training_is_there_once(data, finished):
    out, results = finished
    expected = [("bce", "fal")] + [(name, s) for name in METHODS[1:] for s in SETTINGS]
    assert sorted(scores(results)) == sorted((*cell, seed) for cell in expected for seed in (0, 1))
    assert len(list((out / "runs").iterdir())) == len(expected) * 2
    full, hashes = read(data).part("train"), {}
    for run in results["runs"]:
        assert 0 < run["mAP"] <= 1
        assert run["known_hash"] == hide(full, run["setting"], seed=run["seed"]).content_hash
        hashes.setdefault((run["setting"], run["seed"]), set()).add(run["known_hash"])
    assert all(len(same) == 1 for same in hashes.values())  # every method sees the same labels


def test_means_and_deviations(finished):
    out, results = finished
    by_cell: dict[tuple[str, str], list[float]] = {}
    for (method, setting, _), (score, *_) in scores(results).items():
        for column in SETTINGS if method == "bce" else [setting]:
            by_cell.setdefault((method, column), []).append(score)
    with (out / "results.csv").open() as file:
        rows = {(row["method"], row["setting"]): row for row in csv.DictReader(file)}
    assert rows.keys() == by_cell.keys()
    for cell, values in by_cell.items():
        assert float(rows[cell]["mean"]) == pytest.approx(statistics.mean(values))
        assert float(rows[cell]["deviation"]) == pytest.approx(np.std(values, ddof=1))
        assert rows[cell]["seeds"] == "2"


def test_the_table_marks_the_best_and_the_second_best(finished):
    out, results = finished
    lines = (out / "results.md").read_text().splitlines()
    assert lines[0] == "| method | PAL_0.3 | SPL |"
    rows = {(parts := line.strip("| ").split(" | "))[0]: parts[1:] for line in lines[2:]}
    assert list(rows) == ["bce (full labels)", "partly", "an"]
    means = {(c["method"], c["setting"]): c for c in experiments.summarise(results)}
    for column, setting in enumerate(SETTINGS):
        order = sorted(METHODS[1:], key=lambda name: -means[name, setting]["mean"])
        for name, form in ((order[0], "**{}**"), (order[1], "<u>{}</u>"), ("bce", "{}")):
            cell = means[name, setting]
            text = f"{100 * cell['mean']:.1f} ± {100 * cell['deviation']:.1f}"
            row = "bce (full labels)" if name == "bce" else name
            assert rows[row][column] == form.format(text)


def test_results_json_says_how_they_were_made(data, finished):
    out, results = finished
    stored = json.loads((out / "results.json").read_text())
    assert stored == {**results, "summary": experiments.summarise(results)}
    assert stored["settings"] == SETTINGS
    assert [row["name"] for row in stored["methods"] if row["reference"]] == ["bce"]
    assert stored["seeds"] == [0, 1]
    assert (stored["config"]["epochs"], stored["config"]["hold_out"]) == (2, 0.0)
    assert stored["label_hash"] == read(data).content_hash
    train = read(data).part("train")
    assert stored["train_positives"] == train.counts_by_label().positive.tolist()
    assert len(stored["labels"]) == 4


def test_the_written_budget_is_the_one_that_was_used(tmp_path, spy):
    """What the data decides, such as the size of a batch, follows from the training part."""
    data = write_npz(tmp_path / "much to test.npz", 300, 6000)
    results = compare(data, tmp_path / "out", methods=["an"], seeds=1, config=Config(epochs=1))
    assert {config.batch_size for config in spy} == {results["config"]["batch_size"]}


def test_the_written_budget_is_that_of_each_method(data, finished):
    _, results = finished
    for row in results["methods"]:
        written = results["config"] | row["config"]
        train = read(data).part("train")
        told = train.counts_by_image().positive.mean()  # as every method is
        config = replace(BUDGET, method=row["name"], hold_out=0.0, expected_positives=told)
        config = config.complete(train)
        assert {name: getattr(config, name) for name in written} == written
    assert all(row["config"].keys() == {"head_decay"} for row in results["methods"])


def made_up(settings: list[str], **means: float) -> dict[str, Any]:
    """Results of one seed in the first setting; `bce` is a reference."""
    return {
        "methods": [{"name": n, "summary": "", "reference": n == "bce"} for n in means],
        "settings": settings,
        "runs": [
            {"method": name, "setting": settings[0], "seed": 0, "mAP": score, "AP": []}
            for name, score in means.items()
        ],
    }


def test_one_seed_has_no_deviation():
    results = made_up(["spl", "fal"], an=0.1234)
    assert experiments.to_markdown(results).splitlines()[2] == "| an | **12.3** | – |"
    assert experiments.to_csv(results).splitlines()[1] == "an,spl,0.1234,,1,0"


def test_a_seed_that_diverged_is_counted():
    results = made_up(["spl"], an=0.9, ign=0.3, wan=0.1)
    results["runs"] = [run for run in results["runs"] if run["method"] != "wan"]
    failed = {"setting": "spl", "seed": 1, "mAP": None, "error": "the loss is not finite"}
    results["runs"] += [{"method": "an", **failed}, {"method": "wan", **failed}]
    assert experiments.to_markdown(results).splitlines()[2:] == [
        "| an | 90.0 (1 diverged) |",  # and so it is not the best
        "| ign | **30.0** |",
        "| wan | (1 diverged) |",
    ]
    lines = experiments.to_csv(results).splitlines()[1:]
    assert lines == ["an,spl,0.9,,1,1", "ign,spl,0.3,,1,0", "wan,spl,,,0,1"]


def test_equal_figures_share_a_place_and_references_have_none():
    results = made_up(["spl"], bce=0.9, an=0.30, ign=0.50012, wan=0.50049, epr=0.1, em=0.4)
    places = {method: place for (method, _), place in experiments.ranks(results).items()}
    assert places == {"ign": 1, "wan": 1, "em": 2}


# --- going on ------------------------------------------------------------------------------------


def test_only_what_is_missing_is_trained(data, tmp_path):
    first = compare(data, tmp_path)
    stored = sorted((tmp_path / "runs").iterdir())
    lost, broken = stored[1], stored[4]
    lost.unlink()
    broken.write_text(broken.read_text()[:100])
    times = {path: path.stat().st_mtime_ns for path in stored if path != lost}
    said: list[str] = []
    again = compare(data, tmp_path, say=said.append)
    assert said[0] == "10 trainings, 8 of them already there"
    assert len(said) == 3
    fresh = {p for p in (tmp_path / "runs").iterdir() if p.stat().st_mtime_ns != times.get(p)}
    assert fresh == {lost, broken}
    assert scores(again) == scores(first)


def test_more_methods_and_seeds_join_what_is_there(data, tmp_path):
    small = compare(data, tmp_path, methods=["an"], seeds=1)
    said: list[str] = []
    large = compare(data, tmp_path, methods=["an", "ign"], seeds=2, say=said.append)
    assert said[0] == "8 trainings, 2 of them already there"
    assert scores(small).items() <= scores(large).items()


def other_features(path: Path) -> None:
    rows, labels = problem(500)
    parts = {"Y_train": labels[:300], "Y_test": labels[300:]}
    np.savez(path, X_train=rows[:300] ** 3, X_test=rows[300:] ** 3, **parts)


@pytest.mark.parametrize("change", ["budget", "labels", "features", "features in place"])
def test_results_of_something_else_are_not_mixed_in(data, tmp_path, change):
    copy = tmp_path / "data.npz"
    copy.write_bytes(data.read_bytes())
    compare(copy, tmp_path / "out", methods=["an"], seeds=1)
    before, budget = files_of(tmp_path / "out"), BUDGET
    other = copy if change == "features in place" else tmp_path / "other.npz"
    if change == "budget":
        budget, other = Config(epochs=3, batch_size=64), copy
    elif change == "labels":
        write_npz(other, 300, 200, seed=5)
    else:
        other_features(other)
    with pytest.raises(PartlyError, match=r"another budget or other data: name another folder"):
        compare(other, tmp_path / "out", methods=["an"], seeds=1, config=budget)
    assert files_of(tmp_path / "out") == before


@pytest.fixture(scope="module")
def longer(tmp_path_factory) -> tuple[Path, list[object], dict[str, Any]]:
    """Data, a command of some seconds, and its results when nothing disturbs it."""
    folder = tmp_path_factory.mktemp("longer")
    data = write_npz(folder / "data.npz", 1500, 200)
    shape = ["--methods", "an,ign,bce", "--settings", "pal:0.3,spl", "--seeds", 2]
    arguments = ["compare", data, *shape, "--epochs", 8, "--batch-size", 32]
    partly_works(*arguments, "--out", folder / "out", "--jobs", 1)
    return folder / "out", arguments, json.loads((folder / "out" / "results.json").read_text())


def test_a_killed_comparison_goes_on_and_leaves_nobody_behind(longer, tmp_path):
    """kill -9 in the middle of two processes' work; a table is the same with one job or two."""
    undisturbed, arguments, expected = longer
    out = tmp_path / "out"
    process = subprocess.Popen(
        command(*arguments, "--out", out, "--jobs", 2),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    deadline = time.monotonic() + PATIENCE
    try:
        while len(list(out.glob("runs/*.json"))) < 2:
            assert process.poll() is None, process.communicate()[0].decode()
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.kill()
        process.communicate(timeout=PATIENCE)  # its workers hold the pipe open as long as they live
    except subprocess.TimeoutExpired:
        pytest.fail("the workers live on without their parent")
    finally:
        with contextlib.suppress(ProcessLookupError):  # what a failed test would leave behind
            os.killpg(process.pid, signal.SIGKILL)
    assert not (out / "results.md").exists()
    assert len(list(out.glob("runs/*.json"))) < len(expected["runs"])
    kept = {path: path.stat().st_mtime_ns for path in out.glob("runs/*.json")}
    partly_works(*arguments, "--out", out, "--jobs", 2)
    assert (out / "results.md").read_text() == (undisturbed / "results.md").read_text()
    assert scores(json.loads((out / "results.json").read_text())) == scores(expected)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert {p.name for p in out.rglob("*")} == {p.name for p in undisturbed.rglob("*")}


def start_comparison(data: Path, out: Path) -> subprocess.Popen[str]:
    """One that would take an hour, in two processes and a group of its own."""
    shape = ["--methods", "an,ign", "--settings", "spl", "--seeds", 2, "--epochs", 20000]
    return subprocess.Popen(
        command("compare", data, *shape, "--batch-size", 4, "--out", out, "--jobs", 2),
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def wait_for_workers(process: subprocess.Popen[str], count: int) -> None:
    """Until a process has so many children that were spawned to work."""
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        told = children_of(process.pid).values()
        if sum(b"spawn_main" in line for line in told) >= count:
            return
        time.sleep(0.005)
    pytest.fail("no workers")


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds workers in /proc")
@pytest.mark.parametrize(
    ("way", "code", "later"), [("alone", 130, 4), ("group", 130, 0), ("terminate", 143, 0)]
)
def test_an_interrupted_comparison_ends_at_once(data, tmp_path, way, code, later):
    """In the first moments, while workers import, and while they train."""
    process = start_comparison(data, tmp_path / "out")
    try:
        wait_for_workers(process, 2)
        time.sleep(later)
        if way == "group":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT if way == "alone" else signal.SIGTERM)
        # The workers hold the pipes open as long as they live.
        _, errors = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        pytest.fail("somebody trains on")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == code
    assert errors == "partly: interrupted; what was finished is kept\n"


# --- what can be compared ------------------------------------------------------------------------


SHOWN = ("results.md", "report.html")
IDLE_ON_FEATURES = ("averaged weights", "kept batch norm")


@pytest.mark.parametrize("method", ["paper", "partly"])
def test_an_ablation_removes_one_part_a_row(data, tmp_path, spy, method):
    """A part is an option of the method, or a field of the config that it would pick."""
    said: list[str] = []
    results = experiments.ablate(
        data, tmp_path, method=method, settings=["pal:0.6"], seeds=1, config=BUDGET, jobs=1,
        say=said.append,
    )  # fmt: skip
    parts = dict(registry.get(method).parts)
    if method == "partly":  # on features there is nothing to average and no batch norm
        idle = [parts.pop(name) and f"remove {name}" for name in IDLE_ON_FEATURES]
        assert f"left out, for it changes nothing here: {', '.join(idle)}" in said
    # What changes no figure is trained with the first seed, here the only one, to find that out.
    equal = " ".join(line for line in said if "changes no figure" in line)
    shown = [part for part in parts if f"remove {part}" not in equal]
    rows = [method, *(f"remove {part}" for part in shown)]
    assert [row["name"] for row in results["methods"]] == rows
    assert {config.method for config in spy} == {method}
    assert spy[0].options == {}
    assert len(spy) == 1 + len(parts)
    trained = dict(zip(parts, spy[1:], strict=True))
    for part, row in zip(shown, results["methods"][1:], strict=True):
        config, removed = trained[part], parts[part]
        options = {name: v for name, v in removed.items() if name in registry.get(method).options}
        assert config.options == options
        fields = {name: v for name, v in removed.items() if name not in options}
        assert {name: getattr(config, name) for name in fields} == fields
        assert (results["config"] | row["config"]).items() >= fields.items()
    written = (tmp_path / "results.md").read_text()
    assert re.findall(r"^\| (.*?) \| \S*\d+\.\d", written, re.MULTILINE)[1:] == rows


def test_parts_that_change_no_figure_are_found_with_the_first_seed(data, tmp_path, spy):
    """On features no network is surprised, and below 5,000 images none teaches."""
    said: list[str] = []
    results = experiments.ablate(
        data, tmp_path, method="partly", settings=["pal:0.6"], seeds=2, config=BUDGET, jobs=1,
        say=said.append,
    )  # fmt: skip
    rows = [row["name"] for row in results["methods"]]
    idle = {"remove teacher", "remove surprise"}
    assert "left out, for it changes no figure here: remove teacher, remove surprise" in said
    assert "remove focus" in rows
    assert not idle & {*rows, *(run["method"] for run in results["runs"])}
    assert {run["seed"] for run in results["runs"]} == {0, 1}
    assert len(results["runs"]) == 2 * len(rows)
    assert len(spy) == len(results["runs"]) + len(idle)
    assert not any("holds" in line for line in said)
    assert "surprise" not in (tmp_path / "results.md").read_text()


def test_a_test_part_of_positives_is_said_to_tell_nothing(tmp_path):
    rows, labels = problem(300)
    known = np.where(labels == 1, 1, -1).astype(np.int8)
    parts = {"X_train": rows[:200], "X_test": rows[200:]}
    np.savez(tmp_path / "p.npz", Y_train=labels[:200], Y_test=known[200:], **parts)
    answer = partly_works(
        "compare", tmp_path / "p.npz", "--methods", "an", "--settings", "spl", "--seeds", 1,
        "--epochs", 1, "--out", tmp_path / "out",
    )  # fmt: skip
    sentence = "f the test part 4 labels without a known negative: AP 100 and precision 100"
    for text in (answer.out, *((tmp_path / "out" / f"{n}").read_text() for n in SHOWN)):
        assert sentence in text


def test_pixels_are_kept_before_the_first_training(tmp_path, monkeypatch, spy):
    """Decoded once or on the CPU: the same results, which a comparison may take over."""
    write_manifest(tmp_path / "data.csv", write_pictures(tmp_path, 40), test=20)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    prepared: list[tuple[int, str, int]] = []

    def listen(tables: list[LabelTable], look: Look, **more: Any) -> None:
        prepared.append((len(tables[0]), look.decode, len(spy)))
        prepare(tables, look, **more)

    monkeypatch.setattr(experiments, "prepare", listen)
    budget = Config(backbone="small", image_size=16, epochs=1, decode="once")
    how: dict[str, Any] = {"methods": ["an"], "settings": ["spl"], "seeds": 1}
    kept = compare(tmp_path / "data.csv", tmp_path / "out", config=budget, **how)
    assert prepared == [(40, "once", 0)]
    assert any(path.is_file() for path in (tmp_path / "cache").rglob("*"))
    budget = replace(budget, decode="cpu")
    said: list[str] = []
    compare(tmp_path / "data.csv", tmp_path / "out", config=budget, say=said.append, **how)
    assert "1 trainings, 1 of them already there" in said
    assert scores(compare(tmp_path / "data.csv", tmp_path / "cpu", config=budget, **how)) == scores(
        kept
    )


def test_partial_training_labels_are_hidden_further(tmp_path):
    rows, labels = problem(500)
    labels[:300] = hide(labels[:300], "pal:0.7")
    parts = {"X_train": rows[:300], "X_test": rows[300:]}
    np.savez(tmp_path / "part.npz", Y_train=labels[:300], Y_test=labels[300:], **parts)
    results = compare(tmp_path / "part.npz", tmp_path / "out", seeds=1)
    assert len(results["runs"]) == 5
    hashes = {run["setting"]: run["known_hash"] for run in results["runs"]}
    full = read(tmp_path / "part.npz").part("train")
    assert hashes["fal"] == full.content_hash
    assert hashes["spl"] == hide(full, "spl").content_hash


def test_a_test_part_is_needed(tmp_path):
    data = write_npz(tmp_path / "train.npz", 100, 0)
    with pytest.raises(DataError, match=r"needs a test part, and .*train\.npz has none"):
        compare(data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_test_part_without_positives_scores_nothing(tmp_path):
    rows, labels = problem(300)
    parts = {"X_train": rows[:200], "Y_train": labels[:200], "X_test": rows[200:]}
    np.savez(tmp_path / "none.npz", Y_test=np.zeros_like(labels[200:]), **parts)
    answer = partly_here(
        "compare", tmp_path / "none.npz", "--out", tmp_path / "out", "--methods", "an",
        "--settings", "spl", "--seeds", 1, "--epochs", 1,
    )  # fmt: skip
    assert answer.code == 2
    assert "no positive label" in answer.err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--seeds", 0], "seed"),
        (["--methods", "an,partyl"], "did you mean 'partly'"),
        (["--methods", "an,"], "no method ''"),
        (["--settings", "pal"], "needs the share to keep"),
        (["--settings", "spl,pal:7"], "share of labels to keep"),
        (["--epochs", 0], "epochs must be"),
    ],
)
def test_a_comparison_that_makes_no_sense(data, tmp_path, more, message):
    answer = partly_here("compare", data, "--out", tmp_path / "out", "--jobs", 1, *more)
    assert answer.code == 2
    assert message in answer.err
    assert not (tmp_path / "out").exists()
