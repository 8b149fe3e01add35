"""The check of a data set: every fault is named once, and the way labels go missing is told."""

import base64
import csv
import io
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import partly
from partly import answers, check_page, checking, images
from partly.answers import Answer
from partly.checking import check, summary_lines
from partly.errors import ConfigError
from partly.hiding import hide
from partly.labels import LabelTable
from partly.missing import NAMES
from test_images import BOMB, encoded
from test_report import SCRIPT, Page

TRAIN, VALIDATION, TEST = 200, 5, 60
LABELS = (
    "red", "green", "nobody knows", "never there", "always there", "nearly always", "a twin",
    "its double", "once", "not in test", "only in test", "Traffic Light", "traffic_light",
)  # fmt: skip


def noise(number: int) -> Image.Image:
    pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def planted_labels() -> np.ndarray:
    """int8 [N, L]: 200 images to train on, 5 to validate, 60 to test."""
    generator = np.random.default_rng(5)
    count = TRAIN + VALIDATION + TEST
    training, validation = np.arange(count) < TRAIN, slice(TRAIN, TRAIN + VALIDATION)
    labels = (generator.random((count, len(LABELS))) < 0.35).astype(np.int8)
    labels[validation] = 1
    column = dict(zip(LABELS, labels.T, strict=True))
    column["nobody knows"][:] = -1
    column["never there"][:] = 0
    column["always there"][training] = 1
    column["nearly always"][training] = 1
    column["nearly always"][30] = 0
    column["its double"][:] = column["a twin"]
    column["once"][training] = 0
    column["once"][40] = 1
    column["not in test"][TRAIN + VALIDATION :] = 0
    column["only in test"][: TRAIN + VALIDATION] = 0
    labels[50:52] = -1  # two images of which nothing is known
    labels[10, LABELS.index("not in test")] = 0
    labels[-1] = labels[10]  # the same image is in training and in test
    labels[21] = labels[20]
    labels[20, 0], labels[21, 0] = 1, 0  # the same image again, but it is red only once
    return labels


def planted_images() -> dict[int, tuple[str, bytes | None]]:
    """{row: (name, content)} of images that are not as they should be; None is a folder."""
    sound = encoded(noise(1000), "JPEG", quality=95)
    half = len(sound) // 2
    exif = Image.Exif()
    exif[0x0112] = 6
    return {
        60: ("missing.jpg", b""),
        61: ("zero.jpg", b""),
        62: ("cut.jpg", encoded(noise(62), "JPEG")[:half]),
        63: ("page.jpg", b"<!doctype html><title>404</title>"),
        64: ("bomb.png", BOMB),
        65: ("folder.jpg", None),
        66: ("damaged.jpg", sound[:half] + b"\xff" * 90 + sound[half + 90 :]),
        70: ("moving.gif", encoded(noise(70), "GIF", save_all=True, append_images=[noise(71)])),
        71: ("turned.jpg", encoded(noise(72), "JPEG", exif=exif)),
        72: ("ink.jpg", encoded(noise(73).convert("CMYK"), "JPEG")),
        73: ("deep.png", encoded(Image.fromarray(np.full((40, 40), 30_000, np.uint16)))),
    }


# What must be said about each fault, and in which words it is named.
PROBLEMS = {
    "missing.jpg": "there is no such file",
    "zero.jpg": "the file is empty",
    "cut.jpg": "the file is truncated",
    "page.jpg": "this is no image",
    "bomb.png": "more than 120,000,000 pixels",
    "folder.jpg": "this is a folder",
    "damaged.jpg": "the file is damaged",
}
WARNINGS = {
    "0020.jpg (train) has 'red', 0021.jpg (train) has not": "contradict each other in 1 label",
    "moving.gif": "only the first picture is used",
    "turned.jpg": "EXIF orientation",
    "ink.jpg": "CMYK",
    "deep.png": "16 bits",
    "'nobody knows'": "unknown in every image",
    "'never there'": "never positive",
    "'always there'": "positive wherever known",
    "'nearly always'": "more than 99 %",
    "'a twin' and 'its double'": "in exactly the same training images",
    "'once'": "in a single training image",
    "0050.jpg, 0051.jpg": "2 images have no known label",
    "0264.jpg (= 0010.jpg)": "1 image of test is byte for byte in train",
    "'not in test'": "without a known positive in test",
    "'only in test'": "positive outside training only",
    "'Traffic Light' and 'traffic_light'": "nothing but case",
    "validation has only 5 images": "chance",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set with every fault of PROBLEMS and WARNINGS, as a person would hand it over."""
    folder = tmp_path_factory.mktemp("planted")
    labels, odd = planted_labels(), planted_images()
    splits = ["train"] * TRAIN + ["validation"] * VALIDATION + ["test"] * TEST
    same = {21: 20, len(labels) - 1: 10}
    with (folder / "manifest.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "split", *LABELS])
        for row, (split, values) in enumerate(zip(splits, labels.tolist(), strict=True)):
            content: bytes | None = encoded(noise(same.get(row, row)), "JPEG")
            name, content = odd.get(row, (f"{row:04d}.jpg", content))
            writer.writerow([name, split, *("" if value < 0 else value for value in values)])
            if content is None:
                (folder / name).mkdir()
            elif name != "missing.jpg":
                (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def table(folder: Path) -> LabelTable:
    return partly.read(folder)


@pytest.fixture(scope="module")
def found(table: LabelTable) -> dict:
    return check(table)


def test_every_planted_fault_is_reported_exactly_once(found):
    assert len(PROBLEMS) + len(WARNINGS) >= 20
    for kind, faults in (("problems", PROBLEMS), ("warnings", WARNINGS)):
        for named, words in faults.items():
            every = [*found["problems"], *found["warnings"]]
            sentences = [sentence for sentence in every if named in sentence]
            assert len(sentences) == 1, (named, sentences)
            assert sentences[0] in found[kind]
            assert words in sentences[0]


def test_nothing_else_is_reported(found):
    assert len(found["problems"]) == len(PROBLEMS), found["problems"]
    assert len(found["warnings"]) == len(WARNINGS), found["warnings"]
    (note,) = found["notes"]
    assert "cannot be used: mend them, or train without them: --on-bad-image skip" in note


def test_a_sound_data_set_has_no_faults(tmp_path):
    labels = (np.random.default_rng(0).random((120, 3)) < 0.4).astype(np.int8)
    for row in range(len(labels)):
        (tmp_path / f"{row}.jpg").write_bytes(encoded(noise(row), "JPEG"))
    table = LabelTable.from_dense(
        labels, paths=[str(tmp_path / f"{row}.jpg") for row in range(120)]
    )
    found = check(table)
    assert found["problems"] == found["warnings"] == found["notes"] == []
    assert found["bad_images"] == {"count": 0, "listed": []}
    assert found["duplicates"]["searched"]


# --- what is in it -------------------------------------------------------------------------------


def test_sizes_and_counts_are_those_of_the_table(table, found):
    labels = planted_labels()
    assert (found["images"], found["labels"]) == labels.shape
    assert found["known"] == (labels >= 0).sum()
    assert found["content_hash"] == table.content_hash
    train = labels[:TRAIN]
    assert found["splits"]["train"] == {
        "images": TRAIN,
        "positive": (train == 1).sum(),
        "negative": (train == 0).sum(),
        "unknown": (train < 0).sum(),
        "without_label": 2,
        "without_positive": (~(train == 1).any(axis=1)).sum(),
    }
    assert [label["name"] for label in found["label_counts"]] == list(LABELS)
    for column, label in enumerate(found["label_counts"]):
        assert label["positive"] == (labels[:, column] == 1).sum()
        assert label["negative"] == (labels[:, column] == 0).sum()
        assert label["unknown"] == (labels[:, column] < 0).sum()
        assert label["positive_in"]["train"] == (train[:, column] == 1).sum()
        assert sum(label["positive_in"].values()) == label["positive"]


def test_imbalance_and_positives_an_image(found):
    train = planted_labels()[:TRAIN]
    positives = (train == 1).sum(axis=0)
    assert found["imbalance"]["most"] == positives.max()
    assert found["imbalance"]["least"] == 0
    assert found["imbalance"]["median"] == np.median(positives)
    assert found["imbalance"]["ratio"] == positives.max() / 1  # 'once'
    assert found["imbalance"]["labels_without_positive"] == 3
    assert found["per_image"]["positives"] == np.bincount((train == 1).sum(axis=1)).tolist()


def test_labels_together_are_counted(full_labels):
    found = check(LabelTable.from_dense(full_labels))["co_occurrence"]
    both = full_labels.T.astype(int) @ full_labels
    order = np.argsort(-np.diagonal(both), kind="stable")[:30]
    assert found["labels"] == [f"label {column}" for column in order]
    assert found["together"] == both[np.ix_(order, order)].tolist()
    pairs = {(p["first"], p["second"]): p for p in found["pairs"]}
    pair = pairs["label 0", "label 1"]
    count, first, second = both[0, 1], both[0, 0], both[1, 1]
    assert pair["together"] == count
    assert pair["jaccard"] == pytest.approx(count / (first + second - count))
    assert pair["lift"] == pytest.approx(count * len(full_labels) / (first * second))


def test_of_very_many_labels_the_most_frequent_are_paired(full_labels, monkeypatch):
    monkeypatch.setattr(checking, "MANY_LABELS", 39)
    monkeypatch.setattr(checking, "LABELS_OF_MANY", 5)
    found = check(LabelTable.from_dense(full_labels))
    assert found["co_occurrence"]["labels"] == [f"label {column}" for column in range(5)]
    assert any("5 most frequent labels only" in note for note in found["notes"])


def test_blocks_of_images_change_nothing(table, found, monkeypatch):
    monkeypatch.setattr(checking, "ROWS", 7)
    assert check(table) == found


def test_a_table_without_a_training_part():
    labels = np.array([[1, 0], [0, 1]] * 40)
    table = LabelTable.from_dense(labels, features=np.eye(80), splits=np.array(["test"] * 80))
    found = check(table)
    assert found["problems"] == ["no image is marked 'train': there is nothing to learn from"]
    assert found["missing"]["resembles"] == "fal"
    assert list(found["splits"]) == ["test"]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.full((40, 2), -1), "every label of the training images is unknown"),
        (np.zeros((40, 2)), "no label is known to be positive"),
        (np.ones((40, 1)), "only one label"),
    ],
)
def test_what_cannot_be_trained_on(labels, words):
    found = check(LabelTable.from_dense(labels, features=np.random.default_rng(0).random((40, 3))))
    assert len(found["problems"]) == 1
    assert words in found["problems"][0]
    assert list(summary_lines(found))
    bare = check(LabelTable.from_dense(labels))
    assert any("neither image paths nor features" in problem for problem in bare["problems"])


def test_parts_in_which_nothing_can_be_measured():
    labels = np.random.default_rng(1).integers(0, 2, (150, 3))
    labels[50:100] = np.where(labels[50:100] == 0, -1, 1)  # positives only
    labels[100:] = -1
    splits = np.repeat(["train", "validation", "test"], 50)
    warnings = check(LabelTable.from_dense(labels, splits=splits))["warnings"]
    assert sum("no negative is known in validation" in warning for warning in warnings) == 1
    assert sum("no label is known in test" in warning for warning in warnings) == 1
    assert not any("scored" in warning for warning in warnings)


# --- how labels go missing -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "name", "rate"),
    [
        ("fal", "fal", 1.0),
        ("pal:0.1", "pal", 0.1),
        ("pal:0.5", "pal", 0.5),
        ("pal:0.9", "pal", 0.9),
        ("ppl:0.4", "ppl", None),
        ("ppl:0.05", "ppl", None),
        ("spl", "spl", None),
    ],
)
@pytest.mark.parametrize("images", [150, 3000])
def test_each_setting_of_the_paper_is_recognised(full_table, setting, name, rate, images):
    hidden = hide(full_table.take(np.arange(images)), setting, seed=3)
    missing = check(hidden)["missing"]
    assert missing["resembles"] == name
    assert missing["sentence"] == NAMES[name]
    assert missing["evidence"]
    if rate is None:
        assert missing["rate"] is None
    else:
        assert missing["rate"] == pytest.approx(rate, abs=0.02)
    assert (missing["setting"] or "").startswith({"ppl": ""}.get(name, name))
    if name == "ppl":
        assert any("cannot be told from positives alone" in e for e in missing["evidence"])


def test_answers_do_not_change_how_labels_seem_to_go_missing():
    truth = (np.random.default_rng(3).random((400, 6)) < 0.3).astype(np.int8)
    start = hide(LabelTable.from_dense(truth), "ppl", 0.5, seed=1)
    known = start.dense()
    given = [
        Answer(start.ids[row], start.names[column], int(truth[row, column]))
        for row, column in np.argwhere(known < 0)[:40]
        if column < 3
    ]
    before, after = check(start), check(answers.apply(start, given))
    assert after["missing"] == before["missing"]
    assert not any("without a single negative" in sentence for sentence in after["warnings"])
    assert after["negative"] > before["negative"] == 0


def test_few_labels_missing_at_random():
    labels = np.random.default_rng(2).integers(0, 2, (400, 4)).astype(np.int8)
    for share in (0.1, 0.5):
        missing = check(hide(LabelTable.from_dense(labels), "pal", share, seed=1))["missing"]
        assert missing["resembles"] == "pal"


def otherwise_missing(kind: str, labels: np.ndarray) -> np.ndarray:
    """Labels hidden in a way that is none of the paper's."""
    generator = np.random.default_rng(7)
    hidden = labels.copy()
    count, width = labels.shape
    if kind == "by label":
        hidden[:, 25:] = -1
    elif kind == "by image":
        hidden[generator.random(count) < 0.4] = -1
    elif kind == "by block":
        hidden[: count // 2, 20:] = -1
        hidden[count // 2 :, :20] = -1
    elif kind == "fixed number":
        hide_all = np.argsort(generator.random(labels.shape), axis=1) >= 6
        hidden[hide_all] = -1
    elif kind == "other":  # popular labels are asked about far more often
        hidden[generator.random(labels.shape) > np.linspace(0.9, 0.05, width)] = -1
    return hidden


@pytest.mark.parametrize("kind", ["by label", "by image", "by block", "fixed number", "other"])
def test_other_ways_are_told_apart(full_labels, kind):
    missing = check(LabelTable.from_dense(otherwise_missing(kind, full_labels)))["missing"]
    assert missing["resembles"] == kind
    assert missing["setting"] is None
    assert len(missing["evidence"]) >= 3


def test_verified_labels_are_no_random_sample():
    """A few labels an image, about half of them positive, as Open Images has them."""
    generator = np.random.default_rng(4)
    popular = 1 / np.arange(1, 601)
    labels = np.full((2000, 600), -1, np.int8)
    for row in labels:
        asked = generator.choice(600, generator.integers(2, 18), p=popular / popular.sum())
        row[asked] = generator.random(len(asked)) < 0.48
    missing = check(LabelTable.from_dense(labels))["missing"]
    assert missing["resembles"] == "verified"
    assert any("were the known labels a random sample" in e for e in missing["evidence"])


def test_only_the_training_part_is_looked_at(full_labels):
    labels = full_labels.copy()
    labels[:2000] = hide(labels[:2000], "spl")
    splits = np.repeat(["train", "test"], [2000, 1000])
    assert check(LabelTable.from_dense(labels, splits=splits))["missing"]["resembles"] == "spl"


# --- images --------------------------------------------------------------------------------------


def test_off_opens_no_image(table, monkeypatch):
    monkeypatch.setattr(images, "read_bytes", lambda path: pytest.fail("an image was opened"))
    found = check(table, verify="off")
    assert found["problems"] == []
    assert found["image_kinds"] == {}
    assert not found["duplicates"]["searched"]
    assert any("neither faults nor duplicates were looked for" in note for note in found["notes"])


def test_quick_finds_what_header_and_end_tell(table):
    found = check(table, verify="quick")
    assert len(found["problems"]) == len(PROBLEMS)
    assert any("7 images cannot be used" in n and "bad-image skip" in n for n in found["notes"])
    assert any("only headers and ends" in note for note in found["notes"])


def test_an_unknown_way_to_verify(table):
    with pytest.raises(ConfigError, match="full, quick, off, not 'hard'"):
        check(table, verify="hard")


def test_bad_and_unusual_images_are_listed(table, found):
    listed = {bad["id"]: bad["problem"] for bad in found["bad_images"]["listed"]}
    assert found["bad_images"]["count"] == len(listed) == 7
    assert listed["cut.jpg"] == images.TRUNCATED
    assert {kind: of["examples"] for kind, of in found["image_kinds"].items()} == {
        "animated": ["moving.gif"],
        "rotated": ["turned.jpg"],
        "CMYK": ["ink.jpg"],
        "16 bits": ["deep.png"],
    }
    assert found["image_sizes"]["median"] == [40, 40]
    assert found["duplicates"]["groups"] == [["0010.jpg", "0264.jpg"], ["0020.jpg", "0021.jpg"]]
    assert found["duplicates"]["across"] == [{"part": "test", "other": "train", "images": 1}]
    assert found["duplicates"]["contradictions"] == [
        {"positive": "0020.jpg", "negative": "0021.jpg", "label": "red"}
    ]


def test_equal_images_within_a_part(tmp_path):
    names = [f"{row}.jpg" for row in range(40)]
    for row, name in enumerate(names):
        (tmp_path / name).write_bytes(encoded(noise(0 if row in (3, 9, 12) else row + 1), "JPEG"))
    labels = np.tile([[1, 0], [0, 1]], (20, 1))
    labels[[3, 9, 12]] = [[1, -1], [-1, 0], [1, 0]]  # they agree where they are known
    paths = [str(tmp_path / name) for name in names]
    found = check(LabelTable.from_dense(labels, ids=names, paths=paths))
    assert found["problems"] == []
    same = [warning for warning in found["warnings"] if "more than once" in warning]
    assert same == [
        "2 images of train are there more than once, byte for byte: 3.jpg = 9.jpg = 12.jpg"
    ]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint8])
def test_equal_rows_of_features(dtype):
    generator = np.random.default_rng(0)
    features = generator.integers(0, 200, (120, 5)).astype(dtype)
    features[100], features[7] = features[20], features[6]
    labels = generator.integers(0, 2, (120, 3))
    labels[100], labels[7] = labels[20], labels[6]
    labels[100, 1] = 1 - labels[20, 1]
    splits = np.repeat(["train", "test"], [80, 40])
    found = check(LabelTable.from_dense(labels, features=features, splits=splits))
    assert found["duplicates"]["groups"] == [["6", "7"], ["20", "100"]]
    sentences = found["warnings"]
    assert sum("1 row of test is byte for byte in train" in s for s in sentences) == 1
    assert sum("6 = 7" in s for s in sentences) == 1
    assert sum("rows of features" in s and "'label 1'" in s for s in sentences) == 1
    assert found["problems"] == []  # things of equal features may differ: a warning is enough


# --- what a person sees --------------------------------------------------------------------------


def test_findings_are_json(found):
    assert json.loads(json.dumps(found)) == found


def test_the_summary_names_everything_and_stays_short(found):
    lines = list(summary_lines(found))
    text = "\n".join(lines)
    for sentence in (*found["problems"], *found["warnings"], *found["missing"]["evidence"]):
        assert sentence in text
    assert lines[-1] == f"{len(PROBLEMS)} problems, {len(WARNINGS)} warnings"
    for split in ("train", "validation", "test"):
        assert re.search(rf"^{split} ", text, re.MULTILINE)
    rows = [line for line in lines if line.startswith(LABELS)]
    assert len(rows) == len(LABELS)
    assert len({len(row) for row in rows}) == 1  # aligned


def test_the_summary_of_a_thousand_labels():
    generator = np.random.default_rng(0)
    labels = (generator.random((600, 1000)) < np.linspace(0.9, 0.1, 1000)).astype(np.int8)
    names = [f"label {'x' * 60 if column == 3 else ''}{column}" for column in range(1000)]
    lines = list(summary_lines(check(LabelTable.from_dense(labels, names=names))))
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 120
    assert "… 980 more" in lines
    assert sum(bool(re.match(r"label [x\d]", line)) for line in lines) == 20


@pytest.fixture(scope="module")
def page(table: LabelTable, found: dict, tmp_path_factory: pytest.TempPathFactory) -> Page:
    named = found | {"data": "planted"}
    return Page(check_page.write(named, table, tmp_path_factory.mktemp("page") / "new" / "a.html"))


def test_the_page_says_what_was_found(page, found):
    for sentence in (*found["problems"], *found["warnings"]):
        assert " ".join(sentence.split()) in page.text
    assert page.marked["h2"][:4] == ["Problems", "Warnings", "Notes", "What is in it"]
    assert found["missing"]["sentence"] in page.text
    labels = next(table for table in page.tables if table[0][0] == "Label")
    red = found["label_counts"][0]
    counts = [f"{red[key]:,}" for key in ("positive", "negative", "unknown")]
    assert {row[0]: row[1:4] for row in labels}["red"] == counts
    rows = {row[0]: row[1:] for row in page.tables[-1]}
    assert rows["cut.jpg"] == [images.TRUNCATED]


def test_the_page_stands_alone(page):
    assert not re.search(r"https?://|@import|<link|<iframe", page.source)
    for _, attributes, _ in page.tags:
        assert (attributes.get("src") or "data:").startswith("data:")
    assert len(page.descriptions) == 3
    assert all(re.search(r"\d", text) for text in page.descriptions.values())
    plots = "".join(re.findall(r"<svg.*?</svg>", page.source, re.DOTALL))
    assert not re.search(r"(fill|stroke): (#|black|white)", plots)


def test_the_page_shows_pictures_of_labels_kinds_and_duplicates(page):
    names = [str(image["alt"]) for image in page.named("img")]
    for name in ("moving.gif", "turned.jpg", "ink.jpg", "deep.png", "0020.jpg", "0021.jpg"):
        assert name in names
    assert not {"zero.jpg", "missing.jpg", "bomb.png"} & set(names)
    for image in page.named("img"):
        content = base64.b64decode(str(image["src"]).split(",")[1])
        assert max(Image.open(io.BytesIO(content)).size) <= check_page.THUMBNAIL


def test_the_page_of_features_and_of_names_that_are_markup(tmp_path):
    labels = np.random.default_rng(0).integers(0, 2, (200, 3))
    names = [SCRIPT, "$x$ & co", "plain"]
    table = LabelTable.from_dense(labels, names=names, features=labels.astype(float))
    page = Page(check_page.write(check(table) | {"data": SCRIPT}, table, tmp_path / "page.html"))
    assert len(page.named("script")) == 1
    assert SCRIPT not in page.source
    assert SCRIPT in [row[0] for table in page.tables for row in table]
    assert not page.named("img")


def test_of_very_many_labels_a_page_shows_both_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(check_page, "ROWS", 3)
    labels = np.full((8, 10), -1)
    for column in range(10):
        labels[: 10 - column, column] = 1  # the first are the most frequent
    table = LabelTable.from_dense(labels, features=np.random.default_rng(0).normal(size=(8, 2)))
    text = check_page.write(check(table), table, tmp_path / "page.html").read_text()
    rows = re.findall(r'<tr><th data-value="([^"]+)">', text)
    assert len(rows) == 6
    assert set(rows) == {table.names[column] for column in (0, 1, 2, 7, 8, 9)}
    assert "4 labels between the most frequent and the rarest are left out" in text
    monkeypatch.setattr(check_page, "ROWS", 5)
    text = check_page.write(check(table), table, tmp_path / "page.html").read_text()
    assert "are left out" not in text


def test_a_page_is_the_same_each_time(table, found, page, tmp_path):
    again = check_page.write(found | {"data": "planted"}, table, tmp_path / "page.html")
    assert again.read_text(encoding="utf-8") == page.source


def test_a_large_table_takes_seconds():
    """A hundredth of Open Images, in far more than a hundredth of the time it may take."""
    generator = np.random.default_rng(0)
    count, labels, known = 56_500, 600, 10
    columns = generator.integers(0, labels, (count, known))
    table = LabelTable.from_entries(
        np.arange(count * known) // known,
        columns.ravel() // known * known + np.tile(np.arange(known), count),  # no cell twice
        generator.integers(0, 2, count * known),
        ids=np.arange(count),
        names=[f"label {column}" for column in range(labels)],
    )
    began = time.monotonic()
    found = check(table, verify="off")
    assert time.monotonic() - began < 5
    assert found["known"] == count * known
