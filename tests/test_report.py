"""Reports: the numbers on the page are the numbers of the files, and the page stands alone."""

import base64
import io
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
from PIL import Image

from builders import partly_here, partly_works
from partly import checkpoint, metrics, runs
from partly.comparison_report import comparison_report
from partly.diagnosis import diagnose
from partly.errors import RunError
from partly.experiments import write_tables
from partly.hiding import hide
from partly.labels import LabelTable
from partly.pages import data_address
from partly.report import report, run_report
from partly.training import Config, train

SCRIPT = "<script>alert('$x$')</script>"
NAMES = ("cat", SCRIPT, "street & road", "猫", "nobody has it", "dog")
FILES = (
    *(runs.CONFIG, runs.METRICS, runs.AUDIT, runs.THRESHOLDS, runs.DECISIONS),
    *(runs.EVALUATION, runs.DIAGNOSIS),
)
VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """A page taken apart: tags with their attributes, texts, the cells of its tables."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None], list[str]]] = []  # with their parents
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.words: list[str] = []
        self.marked: dict[str, list[str]] = {"b": [], "u": [], "h2": [], "figcaption": []}
        self.svg_words: list[str] = []
        self.feed(self.source)
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs), list(self.open)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")
        elif tag in self.marked:
            self.marked[tag].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs), list(self.open)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self.open or "style" in self.open:
            return
        (self.svg_words if "svg" in self.open else self.words).append(data)
        if {"td", "th"} & set(self.open) and "small" not in self.open:
            self.tables[-1][-1][-1] += data
        for tag in set(self.marked) & set(self.open):
            self.marked[tag][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes, _ in self.tags if name == tag]

    @property
    def regions(self) -> dict[str, list[list[str]]]:
        """{name: table} of the tables, each of which scrolls in a region of its own."""
        names = [str(a["aria-label"]) for a in self.named("div") if a.get("role") == "region"]
        return dict(zip(names, self.tables, strict=True))

    @property
    def descriptions(self) -> dict[str, str]:
        """{title: text alternative} of the plots."""
        texts = [str(a["aria-label"]) for a in self.named("div") if a.get("role") == "img"]
        return dict(zip(self.marked["figcaption"], texts, strict=True))


def points(share: float) -> str:
    return f"{100 * share:.1f}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real run, with everything a run can leave behind."""
    generator = np.random.default_rng(3)
    features = generator.standard_normal((800, 12)).astype(np.float32)
    noise = generator.standard_normal((800, len(NAMES)))
    scores = features @ generator.standard_normal((12, len(NAMES))) + noise
    values = (scores > np.array([0, 2, 4, 6, math.inf, 3])).astype(np.int8)
    ids = [f"<i>{number}</i>" for number in range(800)]
    full = LabelTable.from_dense(values, ids=ids, names=NAMES, features=features)
    training, test = full.take(np.arange(600)), hide(full.take(np.arange(600, 800)), "pal:0.7")
    known = hide(training, "pal", 0.4, seed=1)
    folder = tmp_path_factory.mktemp("runs") / "my run"
    config = Config(epochs=4, batch_size=100, seed=5)
    predictor = train(known, config, folder, truth=training, quiet=True)
    probabilities = predictor.probabilities(test)
    measured = metrics.evaluate(
        probabilities,
        test.dense(),
        train_positives=known.counts_by_label().positive,
        thresholds=predictor.thresholds,
    )
    checkpoint.write_json(folder / runs.EVALUATION, {"images": 200, "metrics": measured})
    found = diagnose(probabilities, test, measured["AP"], thresholds=predictor.thresholds)
    checkpoint.write_json(folder / runs.DIAGNOSIS, found)
    written = checkpoint.read_json(folder / runs.CONFIG)
    checkpoint.write_json(folder / runs.CONFIG, written | {"setting": "pal:0.4"})
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    copied = tmp_path / "my run"
    copied.mkdir()
    for name in FILES:
        (copied / name).write_bytes((trained / name).read_bytes())
    return copied


def change(path: Path, **changes: Any) -> None:
    checkpoint.write_json(path, checkpoint.read_json(path) | changes)


def make_results(seeds: int = 3, seed: int = 0, names: tuple[str, ...] = NAMES) -> dict[str, Any]:
    """What a comparison hands over, with random scores."""
    generator = np.random.default_rng(seed)
    rows = [("partly", False), ("ign", False), ("bce", True), ("an", False)]
    results: dict[str, Any] = {
        "title": "Comparison of four",
        "data": "zoo.npz",
        "command": "partly compare zoo.npz --seeds 3",
        "label_hash": "0123abcd",
        "labels": list(names),
        "settings": ["fal", "pal:0.3"],
        "methods": [{"name": n, "summary": f"how {n} works", "reference": r} for n, r in rows],
        "seeds": list(range(seeds)),
        "config": {"epochs": 7, "options": {}, "standardise": True, "weights": None},
        "versions": {"torch": "9.8.7"},
        "machine": "3 cores, abacus",
        "train_positives": [60, 50, 40, 30, 20, 10],
        "runs": [],
    }
    for name, reference in rows:
        for setting in ["fal"] if reference else results["settings"]:
            for number in range(seeds):
                precisions = [*generator.random(len(names) - 1).tolist(), None]
                keys = ("AUROC", "CF1", "OF1", "calibration_error")
                evaluation = {key: float(generator.random()) for key in keys}
                run = {"method": name, "setting": setting, "seed": number, "seconds": 60.0}
                run |= {"AP": precisions, "mAP": mean(precisions[:-1]), "evaluation": evaluation}
                results["runs"].append(run)
    return results


def scores_of(results: dict[str, Any], method: str, setting: str) -> list[float]:
    found = [run for run in results["runs"] if run["method"] == method]
    return [run["mAP"] for run in found if method == "bce" or run["setting"] == setting]


@pytest.fixture(scope="module")
def run_page(trained: Path) -> Page:
    return Page(run_report(trained))


@pytest.fixture(scope="module")
def comparison_page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page of `make_results()`."""
    pictures = [Image.new("RGBA", (900, 450), "teal"), Image.new("L", (40, 50), 128)]
    results = make_results() | {"pictures": [data_address(picture) for picture in pictures]}
    return Page(comparison_report(results, tmp_path_factory.mktemp("comparison") / "page.html"))


@pytest.fixture
def pages(run_page: Page, comparison_page: Page) -> list[Page]:
    """One page of each kind, each as full as it can be."""
    return [run_page, comparison_page]


# --- both kinds of page --------------------------------------------------------------------------


def test_nothing_is_fetched_from_elsewhere(pages):
    for page in pages:
        assert not re.search(r"https?://|@import|<link|<iframe", page.source)
        for _, attributes, _ in page.tags:
            assert (attributes.get("src") or "data:").startswith("data:")
            for name in ("href", "xlink:href"):
                assert (attributes.get(name) or "#").startswith("#")
        assert set(re.findall(r"url\((.)", page.source)) <= {"#"}
        assert "default-src 'none'" in page.source


def test_every_plot_has_a_title_and_a_text_in_its_place(pages):
    for page, count in zip(pages, (10, 5), strict=True):
        parents = [parents for tag, _, parents in page.tags if tag == "svg"]
        assert len(parents) == count
        assert all(chain[-2:] == ["figure", "div"] for chain in parents)
        assert len(page.descriptions) == count
        assert all(re.search(r"\d", text) for text in page.descriptions.values())


def test_no_name_is_given_twice(pages):
    for page in pages:
        names = [attributes["id"] for _, attributes, _ in page.tags if "id" in attributes]
        assert len(names) > 0
        assert len(names) == len(set(names))


def test_every_colour_of_a_plot_has_a_light_and_a_dark_tone(pages):
    for page in pages:
        plots = "".join(re.findall(r"<svg.*?</svg>", page.source, re.DOTALL))
        assert not re.search(r"(fill|stroke): (#|black|white)", plots)
        words = [attributes["style"] for tag, attributes, _ in page.tags if tag == "text"]
        assert len(words) > 0
        assert all("fill: var(--" in str(style) for style in words)  # else black, whatever the page
        for variable in set(re.findall(r"var\((--\w+)", plots)):
            assert len(re.findall(rf"{variable}: #\w{{6}};", page.source)) == 2


def test_a_report_is_the_same_each_time(folder, run_page, tmp_path):
    assert run_report(folder).read_text(encoding="utf-8") == run_page.source
    first, second = (comparison_report(make_results(1), tmp_path / name) for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()


def test_matplotlib_is_loaded_late_and_without_its_global_state(folder):
    code = (
        "import sys; from pathlib import Path; from partly.report import run_report\n"
        "assert 'matplotlib' not in sys.modules\n"
        "run_report(Path(sys.argv[1]))\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- a run ---------------------------------------------------------------------------------------


def test_the_result_is_that_of_evaluation_json(trained, run_page):
    measured = checkpoint.read_json(trained / runs.EVALUATION)["metrics"]
    assert f"mAP {points(measured['mAP'])} 5 of 6 labels scored" in run_page.text
    assert f"AUROC {points(measured['AUROC'])} mean" in run_page.text
    for name in ("CF1", "OF1"):
        tuned = points(measured[f"{name}_at_thresholds"])
        shown = f"{name} at 0.5 {points(measured[name])} {tuned} at tuned thresholds"
        assert shown in run_page.text
    assert f"Calibration error {points(measured['calibration_error'])} " in run_page.text
    for group, value in measured["mAP_by_frequency"].items():
        assert f"mAP, {group} {points(value)} " in run_page.text
    assert "1 label with no known positive , left out of mAP: nobody has it." in run_page.text


def test_the_table_of_labels_is_that_of_the_files(trained, run_page):
    config = checkpoint.read_json(trained / runs.CONFIG)
    precisions = checkpoint.read_json(trained / runs.EVALUATION)["metrics"]["AP"]
    table = run_page.regions["Table of labels"]
    assert table[0] == ["Label", "AP", "Positives", "Negatives", "Unknown"]
    for index, name in enumerate(NAMES):
        counts = [
            config["label_counts"][kind][index] for kind in ("positive", "negative", "unknown")
        ]
        precision = "–" if precisions[index] is None else points(precisions[index])
        assert table[index + 1] == [name, precision, *map(str, counts)]
    assert table[NAMES.index("nobody has it") + 1][1] == "–"
    positives = config["label_counts"]["positive"]
    scored = [positives[i] for i, precision in enumerate(precisions) if precision is not None]
    text = run_page.descriptions["AP of each label by its known positives"]
    assert text.startswith(f"5 labels with {min(scored)} to {max(scored)} known positives")


def test_what_it_was_trained_on(trained, run_page):
    config = checkpoint.read_json(trained / runs.CONFIG)
    assert run_page.text.startswith(
        "my run – Partly Partly · training run my run Method partly on 600"
    )
    facts = "images 600 labels 6 model input 12 features an image setting PAL_0.4 label hash"
    assert f"{facts} {config['label_hash']}" in run_page.text
    known = sum(config["label_counts"]["positive"])
    assert f"known positive: {known:,} ({points(known / 3600)} %)" in run_page.text


def test_every_option_and_version_is_there(folder):
    change(folder / runs.CONFIG, options={"gamma": 0.25, "deep": None}, clip=0)
    page = Page(run_report(folder))
    for name in Config.__dataclass_fields__:
        assert f" {name.replace('_', ' ')} " in page.text
    assert (
        "options gamma=0.25, deep=not set epochs 4 batch size 100 learning rate 0.01" in page.text
    )
    assert "clip 0 ema 0.0" in page.text
    assert "standardise yes" in page.text
    for name, version in runs.versions().items():
        assert f"{name} {version}" in page.text


def test_the_learning_curves_tell_which_epoch_was_kept(folder):
    history = [
        {"epoch": n + 1, "loss": 4.0 - n, "validation_score": s, "criterion": "wits", "kept": kept}
        for n, (s, kept) in enumerate([(0.25, True), (0.9, True), (math.nan, False), (0.75, True)])
    ]
    (folder / runs.METRICS).write_text("".join(json.dumps(line) + "\n" for line in history))
    page = Page(run_report(folder))
    assert (
        "Epoch 4 of 4 was kept: the last whose wits on the validation images, 75.0, is not clearly "
        "below the best." in page.text
    )
    loss = "By epoch: loss from 4 to 1. Epoch 4 was kept."
    assert page.descriptions["Training loss"] == loss
    score = "By epoch: score from 25 to 75. Epoch 4 was kept."
    assert page.descriptions["Validation: wits"] == score


@pytest.mark.parametrize("score", [{}, {"validation_score": math.nan, "criterion": "wits"}])
def test_without_a_score_the_last_epoch_was_kept(folder, score):
    (folder / runs.METRICS).write_text(json.dumps({"epoch": 1, "loss": 2.0} | score))
    page = Page(run_report(folder))
    assert "Not finished: 1 of 4 epochs are done." in page.text
    assert "Epoch 1 of 4, the last so far, was kept: there were no validation images" in page.text
    assert not [title for title in page.descriptions if title.startswith("Validation")]


def test_the_audit_of_the_pseudo_labels(trained, run_page):
    lines = runs.read_lines(trained / runs.AUDIT)
    last = lines[-1]
    assert f"{last['hidden_entries']:,} labels were hidden" in run_page.text
    said, true = points(last["mean_pseudo_label"]), points(last["share_positive"])
    assert f"say {said} % are positive; {true} % are." in run_page.text
    first_and_last = [f"{100 * line['mean_absolute_error']:.4g}" for line in (lines[0], last)]
    expected = f"By epoch: error from {' to '.join(first_and_last)}."
    assert run_page.descriptions["Mean absolute error"] == expected
    both = run_page.descriptions["Mean pseudo-label and true share of positives"]
    assert f"true share from {100 * lines[0]['share_positive']:.4g} to" in both


@pytest.mark.parametrize(
    ("missing", "heading"),
    [
        (runs.EVALUATION, "Result on the test part"),
        (runs.METRICS, "Learning"),
        (runs.AUDIT, "Audit of the pseudo-labels"),
    ],
)
def test_a_section_without_data_is_left_out(folder, run_page, missing, heading):
    (folder / missing).unlink()
    left = Page(run_report(folder)).marked["h2"]
    assert heading in run_page.marked["h2"]
    assert left == [title for title in run_page.marked["h2"] if title != heading]


def test_config_alone_makes_a_report(folder):
    for path in folder.iterdir():
        if path.name != runs.CONFIG:
            path.unlink()
    config = checkpoint.read_json(folder / runs.CONFIG)
    del config["label_counts"], config["setting"]
    checkpoint.write_json(folder / runs.CONFIG, config)
    page = Page(run_report(folder))
    assert page.marked["h2"] == ["What it was trained on", "Options and versions"]
    assert "Not finished: 0 of 4" in page.text
    assert "setting" not in page.text
    assert page.tables == []


def test_no_label_could_be_scored(folder):
    labels = np.full((4, len(NAMES)), -1)
    measured = metrics.evaluate(np.full((4, len(NAMES)), 0.5), labels)
    change(folder / runs.EVALUATION, metrics=measured)
    page = Page(run_report(folder))
    assert "mAP – 0 of 6 labels scored" in page.text
    assert "6 labels with no known label" in page.text
    assert "AP of each label by its known positives" not in page.descriptions


def test_a_name_cannot_become_markup(run_page):
    assert len(run_page.named("script")) == 1
    assert SCRIPT not in run_page.source
    assert SCRIPT in run_page.text


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(RunError, match="is not a run"):
        run_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_precision_and_recall_are_those_of_the_files(trained, run_page):
    found = checkpoint.read_json(trained / runs.DIAGNOSIS)
    known = found["known_positives"], found["known_negatives"]
    shown = f"Over {sum(known):,} known labels of the test part, {known[0]:,} of them positive."
    assert shown in run_page.text
    hits = found["known_positives"] - found["false_negatives"]
    precision = hits / (hits + found["false_positives"])
    text = run_page.descriptions["All labels together"]
    measured = f"precision {points(precision)}, recall {points(hits / known[0])}."
    assert f"At the thresholds: {measured}" in text
    whole, *typical = found["curves"]
    for goal in (0.1, 0.5, 0.9):
        first = next(n for n, recall in enumerate(whole["recall"]) if recall >= goal)
        assert f"{points(whole['precision'][first])} at recall {100 * goal:.0f}" in text
    text = run_page.descriptions["Labels with the best, the median and the worst AP"]
    for curve in typical:
        said = f"{curve['name']}, {NAMES[curve['label']]}, AP {points(curve['AP'])}: precision"
        assert said in text


def test_calibration_is_that_of_the_files(trained, run_page):
    bins = checkpoint.read_json(trained / runs.DIAGNOSIS)["reliability"]
    promised, true = round(sum(bins["expected"])), sum(bins["positives"])
    assert f"add up to {promised:,} positives; {true:,} are positive." in run_page.text
    text = run_page.descriptions["What is positive of what is promised"]
    for entries, positives, expected in zip(*bins.values(), strict=True):
        if entries:
            shares = points(expected / entries), points(positives / entries)
            assert f"{shares[0]} % promised, {shares[1]} % positive of {entries:,}" in text
    text = run_page.descriptions["How many known entries have such a probability"]
    assert text.endswith(f": {', '.join(f'{entries:,}' for entries in bins['entries'])}.")


def test_the_table_of_decisions_is_that_of_the_files(trained, run_page):
    decisions = checkpoint.read_json(trained / runs.DIAGNOSIS)["decisions"]
    thresholds = checkpoint.read_json(trained / runs.THRESHOLDS)
    head, *rows = run_page.regions["Table of decisions"]
    assert head == [
        "Label", "Threshold", "Precision", "Recall", "F1", "Predicted", "Known positives"
    ]  # fmt: skip
    for index, (name, row) in enumerate(zip(NAMES, rows, strict=True)):
        shares = [decisions[key][index] for key in ("precision", "recall", "F1")]
        shown = ["–" if share is None else points(share) for share in shares]
        counts = [str(decisions[key][index]) for key in ("predicted", "positives")]
        assert row == [name, f"{thresholds[name]:.3f}", *shown, *counts]
    assert "–" in rows[NAMES.index("nobody has it")]


def test_what_thresholds_were_fitted_for(folder):
    fitted = checkpoint.read_json(folder / runs.DECISIONS)
    images, few = fitted["images"], sum(row["by_model"] for row in fitted["labels"].values())
    page = Page(run_report(folder))
    assert f"for the best F1 on {images} other images that it was not trained on." in page.text
    assert few > 0  # nobody has one of them
    assert f"Of {few} label{'s' * (few > 1)} too few positives were known there" in page.text
    assert "anew" not in page.text
    for goal, words in (
        ("precision:0.9", "a precision of 90 % or more"),
        ("cost:1:5", "the lowest cost (1 for a false positive, 5 for a miss)"),
    ):
        change(folder / runs.DECISIONS, goal=goal)
        assert f"fitted for {words} on {images}" in Page(run_report(folder)).text


def test_thresholds_that_were_fitted_anew_are_told_from_those_that_were_measured(folder):
    fitted = checkpoint.read_json(folder / runs.DECISIONS)["labels"]
    fitted["cat"]["threshold"] += 0.01
    change(folder / runs.DECISIONS, labels=fitted)
    text = Page(run_report(folder)).text
    assert "Thresholds were fitted anew since. The table, the curves and the mistakes" in text


def test_without_a_test_part_the_page_says_what_thresholds_promise(folder):
    fitted = checkpoint.read_json(folder / runs.DECISIONS)
    for name in (runs.EVALUATION, runs.DIAGNOSIS):
        (folder / name).unlink()
    page = Page(run_report(folder))
    assert "Not measured: the data has no test part." in page.text
    assert f"fitted for the best F1 on {fitted['images']} images" in page.text
    head, *rows = page.regions["Table of decisions"]
    assert head == ["Label", "Threshold", "Precision", "Recall", "Known positives"]
    for name, row in zip(NAMES, rows, strict=True):
        own = fitted["labels"][name]
        shares = ["–" if own[key] is None else points(own[key]) for key in ("precision", "recall")]
        threshold, positives = f"{own['threshold']:.3f}", str(own["known_positives"])
        assert row == [name, threshold, *shares, positives]


def test_without_thresholds_the_page_says_that_half_decides(folder):
    change(folder / runs.DIAGNOSIS, tuned=False)
    (folder / runs.DECISIONS).unlink()
    text = Page(run_report(folder)).text
    assert "by the threshold 0.5: there were no images to fit others on" in text
    assert "By 0.5 the model calls" in text


def test_mistakes_without_pictures_are_a_table(trained, run_page):
    found = checkpoint.read_json(trained / runs.DIAGNOSIS)
    for kind, heading in (
        ("false_positives", "Called positive, but known to be negative"),
        ("false_negatives", "Missed, but known to be positive"),
    ):
        mistakes = found["mistakes"][kind]
        table = run_page.regions[heading]
        assert len(table) == len(mistakes) + 1 > 2
        for mistake, row in zip(mistakes, table[1:], strict=True):
            also = ", ".join(NAMES[label] for label in mistake["also"]) or "–"
            probability = f"{points(mistake['probability'])}\xa0%"
            assert row == [mistake["id"], NAMES[mistake["label"]], probability, also]
            assert re.fullmatch(r"<i>\d+</i>", row[0])
    assert not run_page.named("i") or "class" in run_page.named("i")[0]
    counts = found["false_positives"], found["known_negatives"], found["false_negatives"]
    told = "the model calls {:,} of {:,} known negatives positive, and misses {:,} of"
    assert told.format(*counts) in run_page.text


def test_mistakes_with_pictures_are_shown(folder):
    mistakes = [
        {"id": SCRIPT, "label": 1, "probability": 0.9, "also": [0, 2], "more": 3},
        {"id": "unreadable", "label": 0, "probability": 0.8, "also": [], "more": 0},
    ]
    picture = data_address(Image.new("RGB", (20, 10), "teal"))
    shown = [mistakes[0] | {"picture": picture}, mistakes[1] | {"picture": None}]
    change(folder / runs.DIAGNOSIS, mistakes={"false_positives": shown, "false_negatives": []})
    page = Page(run_report(folder))
    assert [(image["src"], image["alt"]) for image in page.named("img")] == [(picture, SCRIPT)]
    assert f"{SCRIPT} 90.0\xa0% with cat, street & road and 3 more {SCRIPT}" in page.text.replace(
        "90.0 %", "90.0\xa0%"
    )
    assert "unreadable" in page.text
    assert "Missed, but known to be positive" not in page.text
    assert len(page.named("script")) == 1


def test_only_positives_are_known_of_the_test_part(folder):
    labels = np.where(np.random.default_rng(0).random((50, len(NAMES))) < 0.3, 1, -1)
    table = LabelTable.from_dense(labels, names=NAMES)
    probabilities = np.random.default_rng(1).random(labels.shape)
    measured = metrics.evaluate(probabilities, labels)
    change(folder / runs.EVALUATION, images=50, metrics=measured)
    checkpoint.write_json(folder / runs.DIAGNOSIS, diagnose(probabilities, table, measured["AP"]))
    page = Page(run_report(folder))
    found = ((probabilities >= 0.5) & (labels == 1)).sum() / (labels == 1).sum()
    assert f"Recall {points(found)} of {(labels == 1).sum()} known positives, at 0.5" in page.text
    assert f"Predicted {(probabilities >= 0.5).sum() / 50:.2f} labels an image" in page.text
    assert "mAP 100.0" not in page.text
    assert "AP of each label by its known positives" not in page.descriptions
    assert "The test part has no known negative: whatever the model says" in page.text
    assert "Calibration" not in page.marked["h2"]
    assert "All labels together" not in page.descriptions


def test_the_best_and_the_worst_pseudo_labels(folder):
    count = 50
    names = [f"label {number}" for number in range(count)]
    change(folder / runs.CONFIG, labels=names, label_counts={})
    columns = ("average_precision", "mean_absolute_error", "mean_pseudo_label", "share_positive")
    by_label = dict(zip(columns, np.random.default_rng(2).random((4, count)).tolist(), strict=True))
    by_label["average_precision"][7] = None
    for name in (runs.EVALUATION, runs.DIAGNOSIS, runs.THRESHOLDS, runs.DECISIONS):
        (folder / name).unlink()
    line = runs.read_lines(folder / runs.AUDIT)[-1] | {"by_label": by_label}
    (folder / runs.AUDIT).write_text(json.dumps(line))
    _, best, *rows = Page(run_report(folder)).regions["Table of pseudo-labels"]
    order = sorted(range(count), key=lambda n: -(by_label["average_precision"][n] or -1))
    assert (best, rows[10]) == (["The 10 best"], ["The 10 worst of 49"])
    for place, row in zip([*order[:10], *order[-11:-1]], rows[:10] + rows[11:], strict=True):
        assert row == [names[place], *(points(by_label[key][place]) for key in columns)]


def test_thousands_of_labels_make_no_large_page(folder):
    count = 5000
    names = [f"a label with rather a long name, number {number}" for number in range(count)]
    generator = np.random.default_rng(0)
    labels = (generator.random((400, count)) < 0.02).astype(np.int8)
    table = LabelTable.from_dense(labels, names=names)
    probabilities = generator.random(labels.shape, dtype=np.float32)
    measured = metrics.evaluate(probabilities, labels)
    change(folder / runs.EVALUATION, metrics=measured)
    checkpoint.write_json(folder / runs.DIAGNOSIS, diagnose(probabilities, table, measured["AP"]))
    counts = {"positive": generator.integers(0, 900, count), "negative": generator.integers(9, 99)}
    counts = {kind: np.broadcast_to(numbers, count).tolist() for kind, numbers in counts.items()}
    change(folder / runs.CONFIG, labels=names, label_counts=counts)
    (folder / runs.AUDIT).unlink()
    page = Page(run_report(folder))
    assert len(page.source) < 1_500_000
    assert "The 1,000 labels with the most known positives." in page.text
    most = sorted(range(count), key=lambda label: -counts["positive"][label])[:1000]
    for table in ("Table of labels", "Table of decisions"):
        assert [row[0] for row in page.regions[table][1:]] == [names[label] for label in most]
    text = page.descriptions["AP of each label by its known positives"]
    assert text.endswith("1,000 of them are drawn.")


# --- written again -------------------------------------------------------------------------------


def test_the_page_of_a_run_is_written_again(folder, run_page):
    answer = partly_works("report", folder)
    assert answer.out == f"report: {folder / runs.REPORT}\n"
    assert (folder / runs.REPORT).read_text(encoding="utf-8") == run_page.source


def test_the_page_of_a_comparison_is_written_again(tmp_path, comparison_page):
    picture = data_address(Image.new("RGB", (20, 10), "teal"))
    results = make_results() | {"pictures": [picture]}
    first = comparison_report(results, tmp_path / "first.html").read_bytes()
    write_tables(results, tmp_path)
    assert report(tmp_path).read_bytes() == first


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nothing.txt", "", "is neither a run nor a comparison: it has no config.json and no"),
        ("config.json", "{", "cannot read"),
        ("config.json", "[1]", "holds no run"),
        ("results.json", '{"runs": []}', "holds no comparison"),
    ],
)
def test_a_folder_with_nothing_to_report(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    answer = partly_here("report", tmp_path)
    assert answer.code == 2
    assert message in answer.err
    assert not (tmp_path / runs.REPORT).exists()


# --- a comparison --------------------------------------------------------------------------------


def test_the_table_of_a_comparison(comparison_page):
    results = make_results()
    table = comparison_page.tables[0]
    assert table[0] == ["Method", "FAL", "PAL_0.3"]
    assert [row[0] for row in table[1:]] == ["bce", "partly", "ign", "an"]
    for name, *cells in table[1:]:
        for setting, cell in zip(results["settings"], cells, strict=True):
            scores = scores_of(results, name, setting)
            assert cell == f"{points(mean(scores))} ± {points(stdev(scores))}"
    assert comparison_page.text.count("how ign works") == 1


def test_best_and_second_best_are_marked_and_references_stand_above_the_rule(tmp_path):
    results = make_results()
    for run in results["runs"]:
        run["mAP"] += 1.0 if run["method"] == "bce" else 0.0
    page = Page(comparison_report(results, tmp_path / "page.html"))
    for tag, place in (("b", 0), ("u", 1)):
        expected = []
        for setting in results["settings"]:
            names = ("partly", "ign", "an")
            means = sorted((mean(scores_of(results, n, setting)) for n in names), reverse=True)
            expected.append(points(means[place]))
        marked = [text for text in page.marked[tag] if "±" in text]
        assert sorted(text.split()[0] for text in marked) == sorted(expected)
    bodies = [a.get("class") for a in page.named("tbody")]
    assert bodies[:2] == ["rule", None]


def test_a_single_seed_has_no_deviation(tmp_path):
    results = make_results(seeds=1)
    page = Page(comparison_report(results, tmp_path / "page.html"))
    assert "±" not in page.text + "".join(page.descriptions.values())
    assert "A single seed" in page.text
    for name, cell, _ in page.tables[0][1:]:
        assert cell == points(scores_of(results, name, "fal")[0])


def test_labels_saved_are_those_of_the_lines_between_the_settings(tmp_path):
    results = make_results(2)
    means = {"ign": (0.30, 0.40), "partly": (0.40, 0.60), "an": (0.46, 0.48), "bce": (0.5, 0.7)}
    for run in results["runs"]:
        run["mAP"] = means[run["method"]][run["setting"] == "fal"] + 0.01 * run["seed"]
    page = Page(comparison_report(results, tmp_path / "page.html"))
    assert "Labels saved" in page.marked["h2"]
    # partly: 0.405 at 30 % and 0.605 at all; each seed as far above.
    assert "partly needs 58 % of the labels for what an reaches with 100 % (48.5)" in page.text
    assert "does not reach what bce reaches with full labels (70.5): it comes to 60.5." in page.text
    assert page.regions["Table of labels saved, PAL"] == [
        ["to equal", "with 30 %", "with 100 %", "with full labels"],
        ["an", "51 %", "58 %", ""],
        ["ign", "≤ 30 %", "≤ 30 %", ""],
        ["bce", "", "", "not reached"],
    ]
    text = page.descriptions["PAL: mAP by the share of labels that is known"]
    assert "partly 40.5 at 30 %, 60.5 at 100 %; " in text
    assert text.endswith("bce 70.5 with full labels.")


def test_an_ablation_saves_no_labels(tmp_path):
    page = Page(comparison_report(make_results(1) | {"whole": "an"}, tmp_path / "page.html"))
    assert "Labels saved" not in page.marked["h2"]


def test_missing_runs_are_dashes(tmp_path):
    results = make_results()
    results["runs"] = [
        run
        for run in results["runs"]
        if (run["method"], run["setting"]) not in {("ign", "fal"), ("an", "fal"), ("an", "pal:0.3")}
    ]
    page = Page(comparison_report(results, tmp_path / "page.html"))
    cells = {row[0]: row[1:] for row in page.tables[0]}
    assert cells["an"] == ["–", "–"]
    assert cells["ign"][0] == "–"
    assert "±" in cells["ign"][1]
    assert "ign" not in page.descriptions["FAL"]
    assert "ign" in page.descriptions["PAL_0.3"]


def test_no_runs_at_all(tmp_path):
    page = Page(comparison_report(make_results() | {"runs": []}, tmp_path / "page.html"))
    assert page.marked["h2"] == ["mAP on the test part", "What was done", "Options and versions"]
    assert {cell for row in page.tables[0][1:] for cell in row[1:]} == {"–"}


def test_the_plot_of_scores_tells_the_table_best_first(comparison_page):
    results = make_results()
    names = [method["name"] for method in results["methods"]]
    scores = {name: scores_of(results, name, "pal:0.3") for name in names}
    names.sort(key=lambda name: -mean(scores[name]))
    cells = [f"{n} {points(mean(scores[n]))} ± {points(stdev(scores[n]))}" for n in names]
    assert comparison_page.descriptions["PAL_0.3"] == f"mAP in PAL_0.3: {'; '.join(cells)}."
    assert {"partly", "ign", "bce", "an"} <= set(comparison_page.svg_words)


def test_frequent_and_rare_labels_are_compared_with_the_best(tmp_path):
    results = make_results(seeds=2, seed=4)
    page = Page(comparison_report(results, tmp_path / "page.html"))

    def precision(method: str) -> np.ndarray:
        found = [r for r in results["runs"] if r["method"] == method and r["setting"] == "fal"]
        return np.mean([run["AP"][:5] for run in found], axis=0)

    names = ("partly", "ign", "an")
    best = max(names, key=lambda name: mean(scores_of(results, name, "fal")))
    text = page.descriptions[f"FAL: mAP relative to {best}"]
    for name in {*names, "bce"} - {best}:
        head, middle, tail = np.split(100 * (precision(name) - precision(best)), [2, 4])
        means = f"head {head.mean():+.1f}, middle {middle.mean():+.1f}, tail {tail.mean():+.1f}"
        assert f"{name} {means}" in text  # the last label has no AP: the tail is one label


def test_who_was_told_the_number_of_positives_is_said(tmp_path):
    results = make_results() | {"positives_an_image": 2.937, "told": ["csl", "partly"]}
    text = (comparison_report(results, tmp_path / "page.html")).read_text()
    assert "csl, partly are told how many positives an image has on average, 2.94." in text
    assert "are told" not in comparison_report(make_results(), tmp_path / "b.html").read_text()


def test_without_training_counts_there_are_no_groups(tmp_path):
    results = make_results() | {"train_positives": None}
    page = Page(comparison_report(results, tmp_path / "page.html"))
    assert {"FAL", "PAL_0.3"} < set(page.descriptions)
    assert not [title for title in page.descriptions if "relative" in title]


def test_other_metrics_are_means_over_seeds(comparison_page):
    results = make_results()
    table = comparison_page.regions["Table of further metrics"]
    assert table[0] == ["Method", "AUROC", "CF1 at 0.5", "OF1 at 0.5", "Calibration error"]
    assert [row[0] for row in table[1::5]] == ["FAL", "PAL_0.3"]
    found = [r for r in results["runs"] if (r["method"], r["setting"]) == ("ign", "pal:0.3")]
    keys = ("AUROC", "CF1", "OF1", "calibration_error")
    means = [points(mean(run["evaluation"][key] for run in found)) for key in keys]
    assert table[9] == ["ign", *means]
    assert table[2][0] == "bce"
    assert table[2] == table[7]  # the reference has the full labels in every setting


def test_a_metric_that_some_runs_lack(tmp_path):
    results = make_results()
    for run in results["runs"]:
        run["evaluation"]["CF1_at_thresholds"] = 0.5 if run["method"] == "ign" else None
    page = Page(comparison_report(results, tmp_path / "page.html"))
    table = page.regions["Table of further metrics"]
    assert table[0][4] == "CF1, tuned"
    column = {row[0]: row[4] for row in table[1:] if len(row) > 1}
    assert column == {"partly": "–", "ign": "50.0", "bce": "–", "an": "–"}


def test_what_was_done(comparison_page):
    assert "partly compare zoo.npz --seeds 3" in comparison_page.text
    done = "data zoo.npz label hash 0123abcd trainings 21, in all 21 min seeds 0, 1, 2"
    assert f"{done} machine 3 cores, abacus" in comparison_page.text
    assert (
        "epochs 7 options none standardise yes weights not set torch 9.8.7" in comparison_page.text
    )


def test_pictures_lie_inside_the_page(comparison_page):
    images = comparison_page.named("img")
    assert [image["alt"] for image in images] == [f"Example {n} of 2 from zoo.npz" for n in (1, 2)]
    contents = [base64.b64decode(str(image["src"]).split(",")[1]) for image in images]
    shown = [Image.open(io.BytesIO(content)) for content in contents]
    assert [image.size for image in shown] == [(320, 160), (40, 50)]
    red, green, blue = shown[0].getpixel((9, 9))
    assert max(red, abs(green - 128), abs(blue - 128)) < 6


def test_names_of_methods_cannot_become_markup_or_formulas(tmp_path):
    results = make_results()
    text = json.dumps(results).replace('"ign"', json.dumps(SCRIPT)).replace("zoo", "<i>zoo")
    page = Page(comparison_report(json.loads(text), tmp_path / "page.html"))
    assert len(page.named("script")) == 1
    assert not page.named("i")
    assert SCRIPT in page.svg_words
    assert SCRIPT in [row[0] for row in page.tables[0]]
    assert SCRIPT not in page.source


def test_no_row_of_a_comparison_hides_in_a_scroller(comparison_page):
    assert '<div class="scroll tall"' not in comparison_page.source


def test_a_training_that_failed_is_said_and_not_the_end(tmp_path):
    results = make_results(1)
    lost = {"mAP": None, "AP": None, "evaluation": None, "error": "the loss is not finite"}
    results["runs"] = [run | lost if run["method"] == "an" else run for run in results["runs"]]
    text = comparison_report(results, tmp_path / "page.html").read_text()
    assert re.search(r"<th>an.*?</th>\s*<td>\(1 diverged\)</td>", text, re.DOTALL)


def test_an_ablation_is_measured_against_the_whole(tmp_path):
    results = make_results(1) | {"whole": "an"}
    text = comparison_report(results, tmp_path / "page.html").read_text()
    assert "Best in" not in text
    assert "mAP relative to an" in text
