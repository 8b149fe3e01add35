"""CheXpert, VISPR, VG-200, Vireo Food-172, lists of positives and .npy arrays of others."""

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import message_of, said
from partly.errors import ConfigError
from partly.readers import read, recognise
from partly.readers.chexpert import FINDINGS

SPLITS = Path(__file__).parents[2] / "shared" / "data" / "published_splits"


# CheXpert

RELEASE = "CheXpert-v1.0-small"
STUDIES = {
    "train": [
        ("train/patient00001/study1/view1_frontal.jpg", {"No Finding": "1.0", "Fracture": "0.0"}),
        ("train/patient00002/study2/view1_frontal.jpg", {"Edema": "-1.0", "Fracture": "1.0"}),
        ("train/patient00002/study2/view2_lateral.jpg", {"Edema": "-1.0", "Pneumonia": "-1.0"}),
    ],
    "valid": [
        ("valid/patient64541/study1/view1_frontal.jpg", dict.fromkeys(FINDINGS, "0.0")),
    ],
    "test": [
        ("test/patient64741/study1/view1_frontal.jpg", dict.fromkeys(FINDINGS, "1")),
    ],
}


def chexpert_csv(file: Path, studies: list[tuple[str, dict[str, str]]], release: str) -> None:
    lines = [",".join(["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *FINDINGS])]
    for path, found in studies:
        view = "Lateral" if "lateral" in path else "Frontal"
        shown = "" if view == "Lateral" else "AP"
        cells = [found.get(name, "") for name in FINDINGS]
        lines.append(",".join([release + path, "Female", "68", view, shown, *cells]))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\r\n".join(lines) + "\r\n")


def chexpert(root: Path, *parts: str) -> Path:
    for part in parts or ("train", "valid"):
        chexpert_csv(root / f"{part}.csv", STUDIES[part], f"{RELEASE}/")
    return root


def test_chexpert(tmp_path: Path) -> None:
    root = chexpert(tmp_path)
    assert recognise(root) == "chexpert"
    table = read(root)
    assert table.names == FINDINGS
    assert table.splits.tolist() == ["train"] * 3 + ["test"]
    assert table.ids[0] == "train/patient00001/study1/view1_frontal.jpg"
    labels = table.dense()
    assert labels[0, FINDINGS.index("No Finding")] == 1
    assert labels[0, FINDINGS.index("Fracture")] == 0
    assert (labels[0] >= 0).sum() == 2
    assert labels[1, FINDINGS.index("Edema")] == -1
    assert (labels[2] == -1).all()
    assert (labels[3] == 0).all()
    assert any("3 uncertain labels (-1) read as unknown" in note for note in table.notes)
    assert any("valid.csv is read as the test part" in note for note in table.notes)


@pytest.mark.parametrize(("meaning", "value"), [("positive", 1), ("negative", 0), ("unknown", -1)])
def test_chexpert_uncertain(tmp_path: Path, meaning: str, value: int) -> None:
    table = read(chexpert(tmp_path), uncertain=meaning)
    labels = table.dense()
    edema, pneumonia = FINDINGS.index("Edema"), FINDINGS.index("Pneumonia")
    assert [labels[1, edema], labels[2, edema], labels[2, pneumonia]] == [value] * 3
    assert labels[1, FINDINGS.index("Fracture")] == 1
    assert any(f"read as {meaning}" in note for note in table.notes)


def test_chexpert_with_a_test_part(tmp_path: Path) -> None:
    table = read(chexpert(tmp_path, "train", "valid", "test"))
    assert table.splits.tolist() == ["train"] * 3 + ["validation", "test"]
    assert (table.dense()[4] == 1).all()
    assert not any("test part" in note for note in table.notes)


def test_chexpert_views(tmp_path: Path) -> None:
    root = chexpert(tmp_path)
    frontal = read(root, view="frontal")
    assert len(frontal) == 3
    assert any("1 image left out: view=frontal" in note for note in frontal.notes)
    assert any("1 uncertain label (-1)" in note for note in frontal.notes)
    assert read(root, view="lateral").ids.tolist() == [STUDIES["train"][2][0]]


def test_chexpert_view_by_name_where_there_is_no_column(tmp_path: Path) -> None:
    lines = [",".join(["Path", *FINDINGS])]
    lines += [",".join([path, *[""] * 14]) for path, _ in STUDIES["train"]]
    (tmp_path / "train.csv").write_text("\n".join(lines))
    assert read(tmp_path, view="lateral").ids.tolist() == [STUDIES["train"][2][0]]
    assert len(read(tmp_path, view="frontal")) == 2


def test_chexpert_images_wherever_the_folder_is(tmp_path: Path) -> None:
    first = STUDIES["train"][0][0]
    for name in (RELEASE, "chest"):  # as released, and renamed
        root = chexpert(tmp_path / f"in {name}" / name)
        assert read(root).paths[0] == str(root / first)  # also while there is no image
        (root / first).parent.mkdir(parents=True)
        (root / first).touch()
        assert read(root).paths[0] == str(root / first)
        assert read(root).paths[3] == str(root / STUDIES["valid"][0][0])
    (tmp_path / RELEASE / first).parent.mkdir(parents=True)
    (tmp_path / RELEASE / first).touch()
    wanted = str(tmp_path / RELEASE / STUDIES["train"][1][0])
    for labels in (tmp_path, tmp_path / "labels"):  # around the release, and beside it
        assert read(chexpert(labels)).paths[1] == wanted


def test_chexpert_one_file_alone(tmp_path: Path) -> None:
    root = chexpert(tmp_path)
    assert recognise(root / "train.csv") == "chexpert"
    assert read(root / "train.csv").splits.tolist() == ["train"] * 3
    assert read(root / "valid.csv").splits.tolist() == ["test"]


def test_chexpert_refuses(tmp_path: Path) -> None:
    root = chexpert(tmp_path)
    content = (root / "train.csv").read_text()
    (root / "train.csv").write_text(content.replace("1.0", "maybe").replace("-maybe", "2"))
    message = message_of(root)
    assert "train.csv, line 2, column No Finding: 'maybe' is not a label" in message
    assert "line 3, column Edema: '2'" in message
    assert "2 such cells in this column" in message
    (root / "valid.csv").write_text((root / "valid.csv").read_text().replace("Edema", "Oedema"))
    message = message_of(root)
    assert "valid.csv has no column Edema" in message
    assert "maybe" in message  # the problems of both files at once
    with pytest.raises(ConfigError, match="uncertain is one of unknown, positive, negative"):
        read(root, uncertain="positiv")


def test_chexpert_with_an_image_twice_or_without_a_name(tmp_path: Path) -> None:
    root = chexpert(tmp_path)
    again = [*STUDIES["train"], STUDIES["train"][1]]
    chexpert_csv(root / "train.csv", again, f"{RELEASE}/")
    assert len(read(root)) == 4
    assert said(read(root), "1 row of images that were there before")
    lateral, frontal = STUDIES["train"][2], (STUDIES["train"][1][0], {"Edema": "0.0"})
    chexpert_csv(root / "train.csv", [lateral, STUDIES["train"][1], frontal], f"{RELEASE}/")
    message = message_of(root, view="frontal")
    assert f"{frontal[0]} occurs more than once" in message
    assert f"{root / 'train.csv'}, line 3, {root / 'train.csv'}, line 4" in message
    chexpert_csv(root / "train.csv", [lateral, ("", {}), ("", {})], "")
    assert "train.csv, line 3: the Path is empty; 2 rows without one" in message_of(root)


def test_a_manifest_called_train_csv_is_not_chexpert(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("path,cat\na.jpg,1\n")
    assert recognise(tmp_path / "train.csv") == "manifest"


# VISPR


def vispr(root: Path, attributes: bool = True) -> Path:
    annotations = {
        "train2017": {"2017_10": ["a4_gender", "a10_face_partial"], "2017_9": ["a0_safe"]},
        "val2017": {"2017_77": ["a10_face_partial"]},
        "test2017": {"2017_5": []},
    }
    for folder, images in annotations.items():
        (root / folder).mkdir(parents=True)
        for image, labels in images.items():
            annotation = {
                "id": image,
                "image_path": f"images/{folder}/{image}.jpg",
                "labels": labels,
                "safe": labels == ["a0_safe"],
                "url": "https://example.org/ü",
            }
            (root / folder / f"{image}.json").write_text(json.dumps(annotation))
    if attributes:
        rows = ["idx\tattribute_id\tdescription", "2\ta10_face_partial\tFace (partial)"]
        rows += ["\ta3_given_up\t", "0\ta0_safe\tSafe", "1\ta4_gender\tGender", "3\ta99_x\tÄ"]
        (root / "attributes.tsv").write_text("\r\n".join(rows) + "\r\n", encoding="utf-8")
    return root


def test_vispr(tmp_path: Path) -> None:
    root = vispr(tmp_path)
    assert recognise(root) == "vispr"
    table = read(root)
    assert table.names == ("a0_safe", "a4_gender", "a10_face_partial", "a99_x")
    assert table.ids.tolist() == ["2017_10", "2017_9", "2017_77", "2017_5"]
    assert table.splits.tolist() == ["train", "train", "validation", "test"]
    wanted = [[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert table.dense().tolist() == wanted


def test_vispr_without_a_list_of_attributes(tmp_path: Path) -> None:
    table = read(vispr(tmp_path, attributes=False))
    assert table.names == ("a0_safe", "a4_gender", "a10_face_partial")  # a10 after a4
    assert any("no attributes.tsv: 3 labels" in note for note in table.notes)


def test_vispr_images(tmp_path: Path) -> None:
    root = vispr(tmp_path)
    assert read(root).paths[0] == str(root / "train2017/2017_10.jpg")  # beside the annotations
    (root / "images").mkdir()
    assert read(root).paths[2] == str(root / "images/val2017/2017_77.jpg")
    (root / "small").mkdir()
    assert read(root, images=str(root / "small")).paths[2] == str(
        root / "small/val2017/2017_77.jpg"
    )


def test_vispr_refuses(tmp_path: Path) -> None:
    root = vispr(tmp_path)
    (root / "train2017/2017_9.json").write_text('{"id": "2017_9", "labels": ["a0_safe"]}')
    (root / "val2017/2017_77.json").write_text('{"image_path": "x.jpg", "labels": "a0_safe"}')
    message = message_of(root)
    assert "2017_9.json: an annotation has image_path and labels" in message
    assert "2017_77.json: labels is a list" in message


def test_vispr_collects_broken_files(tmp_path: Path) -> None:
    root = vispr(tmp_path)
    for number in range(30):
        content = ("{", "[]")[number % 2]
        (root / "val2017" / f"broken{number:02d}.JSON").write_text(content)
    message = message_of(root)
    assert f"cannot read {root / 'val2017/broken00.JSON'}" in message
    assert "broken19.JSON is not an object" in message
    assert "broken20" not in message
    assert message.endswith("and 10 more files that cannot be used")


def test_vispr_with_an_id_twice(tmp_path: Path) -> None:
    root = vispr(tmp_path)
    content = (root / "train2017/2017_9.json").read_text()
    (root / "train2017/copy.json").write_text(content)
    assert read(root).ids.tolist() == ["2017_10", "2017_9", "2017_77", "2017_5"]
    assert said(read(root), "1 row of images that were there before")
    (root / "train2017/copy.json").write_text(content.replace("a0_safe", "a4_gender"))
    message = message_of(root)
    assert "2017_9 occurs more than once" in message
    assert f"{root / 'train2017/2017_9.json'}, {root / 'train2017/copy.json'}" in message


def test_vispr_refuses_labels_that_are_not_listed(tmp_path: Path) -> None:
    root = vispr(tmp_path)
    (root / "attributes.tsv").write_text("idx\tattribute_id\n0\ta0_safe\n")
    assert "attributes.tsv: a4_gender, a10_face_partial" in message_of(root)
    (root / "attributes.tsv").write_text("number\tname\n0\ta0_safe\n")
    assert "has no columns idx and attribute_id" in message_of(root)


def test_folders_of_coco_are_not_vispr(tmp_path: Path) -> None:
    for folder in ("train2017", "val2017"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "000000000009.jpg").touch()
    assert "is in no known format" in message_of(tmp_path)


# VG-200


def vg200(root: Path, **labels: Any) -> Path:
    found = {"1.jpg": [0, 199], "20.jpg": [], "300.jpg": [7], "4000.jpg": [5, 6]} | labels
    root.mkdir(exist_ok=True)
    (root / "vg_category_200_labels_index.json").write_text(json.dumps(found))
    (root / "train_list_500.txt").write_text("300.jpg\r\n1.jpg\r\n\r\n")
    (root / "test_list_500.txt").write_text("20.jpg")
    return root


def test_vg200(tmp_path: Path) -> None:
    root = vg200(tmp_path)
    assert recognise(root) == "vg200"
    table = read(root)
    assert len(table.names) == 200
    assert table.ids.tolist() == ["300.jpg", "1.jpg", "20.jpg"]
    assert table.splits.tolist() == ["train", "train", "test"]
    labels = table.dense()
    assert [np.flatnonzero(row == 1).tolist() for row in labels] == [[7], [0, 199], []]
    assert (labels >= 0).all()
    assert any("1 image of vg_category" in note and "neither list" in note for note in table.notes)
    assert any("numbers only" in note for note in table.notes)


def test_vg200_of_which_only_positives_are_known(tmp_path: Path) -> None:
    table = read(vg200(tmp_path), absent="unknown")
    assert table.known == 3
    assert table.dense()[0, 7] == 1
    assert (table.dense() != 0).all()


def test_vg200_names(tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("\n".join(f"thing {number}" for number in range(200)))
    table = read(vg200(tmp_path / "data"), names=str(names))
    assert table.names[199] == "thing 199"
    names.write_text("cat\ndog\n")
    assert "has 2 names for 200 labels" in message_of(tmp_path / "data", names=str(names))


def test_vg200_images_in_one_folder_or_two(tmp_path: Path) -> None:
    root = vg200(tmp_path)
    assert read(root).paths[0] == str(root / "VG_100K/300.jpg")
    for folder, image in (("VG_100K", "1.jpg"), ("VG_100K_2", "300.jpg")):
        (root / folder).mkdir()
        (root / folder / image).touch()
    assert read(root).paths.tolist() == [
        str(root / "VG_100K_2/300.jpg"), str(root / "VG_100K/1.jpg"), str(root / "VG_100K/20.jpg"),
    ]  # fmt: skip
    (tmp_path / "tars").mkdir()
    for folder in ("VG_100K", "VG_100K_2"):
        with tarfile.open(tmp_path / "tars" / f"{folder}.tar", "w") as tar:
            tar.add(root / folder, folder)
    paths = read(root, images=str(tmp_path / "tars")).paths
    assert [Path(path.partition("[")[0]).name for path in paths[:2]] == [
        "VG_100K_2.tar", "VG_100K.tar",
    ]  # fmt: skip
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat/300.jpg").touch()
    assert read(root, images=str(tmp_path / "flat")).paths[1] == str(tmp_path / "flat/1.jpg")


def test_vg200_refuses(tmp_path: Path) -> None:
    root = vg200(tmp_path)
    (root / "test_list_500.txt").write_text("20.jpg\n555.jpg\n")
    assert "has no labels for 1 listed image: 555.jpg" in message_of(root)
    (root / "test_list_500.txt").write_text("1.jpg\n")
    files = [root / name for name in ("train_list_500.txt", "test_list_500.txt")]
    assert f"split: {files[0]}, line 2, {files[1]}, line 1" in message_of(root)
    (root / "test_list_500.txt").write_text("20.jpg\n\n20.jpg\n")
    assert read(root).ids.tolist() == ["300.jpg", "1.jpg", "20.jpg"]
    assert said(read(root), "1 row of images that were there before")
    (root / "test_list_500.txt").unlink()
    assert "there is no" in message_of(root)


@pytest.mark.parametrize("numbers", [[200], [-1], ["7"], [[7]], 7, [1.5], [True]])
def test_vg200_refuses_labels_that_are_no_numbers(tmp_path: Path, numbers: Any) -> None:
    root = vg200(tmp_path, **{"9.jpg": numbers})
    assert "labels are numbers from 0 to 199, not so for 9.jpg" in message_of(root)


# Vireo Food-172

INGREDIENTS = ("minced green onion", "Shredded pork, fried", "豆腐")


def food172(root: Path, lines: str | None = None) -> Path:
    folder = root / "SplitAndIngreLabel"
    folder.mkdir(parents=True)
    (folder / "IngredientList.txt").write_text("\r\n".join(INGREDIENTS), encoding="utf-8")
    (folder / "IngreLabel.txt").write_text(
        lines or "/1/4_41.jpg -1 1 -1\n/1/4_5.jpg -1 -1 1\n/172/0_1.jpg 1 -1 1\n/2/1_1.jpg 0 0 0\n"
    )
    for name, content in (
        ("TR", "/172/0_1.jpg\n"), ("VAL", "/1/4_5.jpg\r\n\r\n"), ("TE", "/1/4_41.jpg"),
    ):  # fmt: skip
        (folder / f"{name}.txt").write_text(content)
    return root


def test_food172(tmp_path: Path) -> None:
    root = food172(tmp_path)
    assert recognise(root) == "food172"
    assert recognise(root / "SplitAndIngreLabel") == "food172"
    table = read(root)
    assert table.names == INGREDIENTS
    assert table.ids.tolist() == ["172/0_1.jpg", "1/4_5.jpg", "1/4_41.jpg"]
    assert table.splits.tolist() == ["train", "validation", "test"]
    assert table.dense().tolist() == [[1, 0, 1], [0, 0, 1], [0, 1, 0]]
    assert table.paths[0] == str(root / "ready_chinese_food/172/0_1.jpg")
    assert any("1 image of IngreLabel.txt in no part" in note for note in table.notes)


def test_food172_images_elsewhere(tmp_path: Path) -> None:
    root = food172(tmp_path / "food")
    (tmp_path / "scaled_images").mkdir()
    table = read(root, images=str(tmp_path / "scaled_images"))
    assert table.paths[1] == str(tmp_path / "scaled_images/1/4_5.jpg")


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("/1/4_41.jpg 1 1\n", "has 2 labels a line for 3 names"),
        ("/1/4_41.jpg 1 1 1\n\n/1/4_5.jpg 1 1\n", "1 line not of an image and 3 labels"),
        ("/1/4_41.jpg 1 1 1\n\n/1/4_5.jpg 1 1\n", "line 3 (/1/4_5.jpg 1 1)"),
        ("/1/4_41.jpg 1 1 x\n", "line 1 (/1/4_41.jpg 1 1 x)"),
        ("/1/4_41.jpg 1 1 2\n", "line 1 (/1/4_41.jpg 1 1 2)"),
        ("/1/4_41.jpg 1 1 1\n/1/4_5.jpg 1 1 1\n", "no labels for 1 listed image: 172/0_1.jpg"),
    ],
)
def test_food172_refuses(tmp_path: Path, lines: str, sentence: str) -> None:
    assert sentence in message_of(food172(tmp_path, lines))


FOOD = "/1/4_41.jpg -1 1 -1 \r\n\n/1/4_5.jpg -1 -1 1\n/172/0_1.jpg 1 -1 1\t\n"


def test_food172_lines_that_end_in_a_space_or_come_again(tmp_path: Path) -> None:
    root = food172(tmp_path, "\ufeff" + FOOD + "/1/4_5.jpg 0 0 1\n")
    table = read(root)
    assert table.dense().tolist() == [[1, 0, 1], [0, 0, 1], [0, 1, 0]]
    assert said(table, "1 row of images that were there before")
    folder = root / "SplitAndIngreLabel"
    (folder / "IngreLabel.txt").write_text(FOOD + "/1/4_5.jpg 1 0 1\n")
    message = message_of(root)
    assert "1/4_5.jpg occurs more than once, and not with the same labels" in message
    assert "IngreLabel.txt, line 3" in message
    assert "IngreLabel.txt, line 5" in message
    (folder / "IngreLabel.txt").write_text(FOOD)
    (folder / "TE.txt").write_text("/1/4_41.jpg\n/1/4_5.jpg\n")
    message = message_of(root)
    assert f"{folder / 'VAL.txt'}, line 1, {folder / 'TE.txt'}, line 2" in message


def test_food172_with_missing_files(tmp_path: Path) -> None:
    folder = food172(tmp_path) / "SplitAndIngreLabel"
    (folder / "VAL.txt").unlink()
    (folder / "IngredientList.txt").unlink()
    message = message_of(tmp_path)
    assert "VAL.txt" in message
    assert "IngredientList.txt" in message


# Lists


def a_list(folder: Path, content: str, name: str = "partial.txt") -> Path:
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


LIST = "\ufeffa.jpg,3 0\r\n\r\nü b.JPG, 2\r\nc,d.png,\r\nsub/e.jpeg , 1  3 \r\n"


@pytest.mark.parametrize("name", ["partial.txt", "partial.csv"])
def test_list(tmp_path: Path, name: str) -> None:
    file = a_list(tmp_path, LIST, name)
    assert recognise(file) == "lists"
    table = read(file)
    assert table.names == ("label 0", "label 1", "label 2", "label 3")
    assert table.ids.tolist() == ["a.jpg", "ü b.JPG", "c,d.png", "sub/e.jpeg"]
    wanted = [[1, -1, -1, 1], [-1, -1, 1, -1], [-1] * 4, [-1, 1, -1, 1]]
    assert table.dense().tolist() == wanted
    assert table.paths[3] == str(tmp_path / "sub/e.jpeg")
    assert table.splits is None
    notes = " ".join(table.notes)
    assert "only positives are known" in notes
    assert "4 labels, as the largest number" in notes
    assert "1 image without a known label" in notes


def test_list_options(tmp_path: Path) -> None:
    file = a_list(tmp_path, LIST)
    assert len(read(file, labels=80).names) == 80
    assert len(read(file, labels="80").names) == 80  # from a command line
    many = a_list(tmp_path, "a.jpg,100000\n", "many.txt")
    assert len(read(many, labels=100_001).names) == 100_001
    names = a_list(tmp_path, "cat\r\ndog\nchair\nRad\n\nTür\n", "names.txt")
    assert read(file, names=str(names)).names == ("cat", "dog", "chair", "Rad", "Tür")
    (tmp_path / "train2014").mkdir()
    table = read(file, images=str(tmp_path / "train2014"))
    assert table.paths[0] == str(tmp_path / "train2014/a.jpg")
    assert "names.txt has 5 names" in message_of(file, labels=6, names=str(names))
    assert "no-such-file" in message_of(file, names=str(tmp_path / "no-such-file"))
    for wrong in ("many", -3, 2.5, True):
        with pytest.raises(ConfigError, match="labels is a number of labels"):
            read(file, labels=wrong)


@pytest.mark.parametrize(
    ("content", "options", "sentence"),
    [
        ("a.jpg,1\n\nb.jpg\n", {}, "line 3: 'b.jpg' is not an image, a comma and numbers"),
        ("a.jpg,1\nb.jpg,-1\n", {}, "line 2: 'b.jpg,-1'"),
        ("a.jpg,1\nb.jpg,1.0 2\n", {}, "line 2"),
        ("a.jpg,1\n\nb.jpg,3 17\n", {"labels": 17}, "line 3: there is no label 17"),
        ("a.jpg,1\na.jpg,2\n", {}, "image ids occur more than once: a.jpg"),
        ("a.jpg,\n", {}, "has no label at all"),
        (f"a.jpg,{2**70}\n", {}, str(2**70)),
        ("a.jpg,1\n\nb.jpg,2 999999999\nc.jpg,3\n", {}, "line 3: the number 999999999 would make"),
        ("a.jpg,1\n", {"names": 5}, "cannot read 5"),
        ("a.jpg,1\n", {"images": 2017}, "images=2017: there is no such folder"),
    ],
)
def test_list_refuses(tmp_path: Path, content: str, options: dict, sentence: str) -> None:
    assert sentence in message_of(a_list(tmp_path, content), **options)


@pytest.mark.parametrize(
    "content", ["path,cat,dog\na.jpg,1,0\n", "path,cat\na.jpg,1\n", "image,label\na.jpg,3\n"]
)
def test_a_manifest_is_no_list(tmp_path: Path, content: str) -> None:
    assert recognise(a_list(tmp_path, content, "own.csv")) == "manifest"


@pytest.mark.parametrize("content", ["", "\n\n", "a.jpg 1 2\n", "hello\n", "a.jpg,1,2\n"])
def test_other_texts_are_no_list(tmp_path: Path, content: str) -> None:
    assert "is in no known format" in message_of(a_list(tmp_path, content))


@pytest.mark.parametrize("name", ["coco_train_0.4left.txt", "coco_train_singlelabel.txt"])
def test_published_lists(name: str) -> None:
    file = SPLITS / name
    if not file.is_file():
        pytest.skip("no published splits beside the checkout")
    table = read(file)
    wanted = [
        (line.partition(",")[0], sorted(map(int, line.partition(",")[2].split())))
        for line in file.read_text().splitlines()
    ]
    assert len(table) == len(wanted) == 82_081
    assert table.ids.tolist() == [image for image, _ in wanted]
    known = sum(len(set(numbers)) for _, numbers in wanted)
    assert (table.known, table.counts_by_image().positive.sum()) == (known, known)
    for row in range(0, len(wanted), 997):
        assert np.flatnonzero(table.dense(np.array([row]))[0] == 1).tolist() == wanted[row][1]


# Arrays

NPY: dict[str, Any] = {
    "train_images": np.array(["a.jpg", "sub/ü.jpg", "c.jpg"]),
    "train_labels": np.array([[1.0, 0, 1], [0, 0, 1], [0, 0, 0]]),
    "train_labels_obs": np.array([[1, 0, 0], [0, -1, 0], [0, 0, 0]]),
    "val_images": np.array(["d.jpg", "e.jpg"]),
    "val_labels": np.array([[0.0, 1, 0], [1, 1, 1]]),
    "val_labels_obs": np.array([[0, 1, 0], [1, 0, 0]]),
}


def npy(root: Path, **replaced: Any) -> Path:
    root.mkdir(exist_ok=True)
    for name, array in (NPY | replaced).items():
        if array is not None:
            np.save(root / f"formatted_{name}.npy", array)
    return root


def test_npy(tmp_path: Path) -> None:
    root = npy(tmp_path)
    assert recognise(root) == "npy"
    table = read(root)
    assert table.names == ("label 0", "label 1", "label 2")
    assert table.ids.tolist() == ["a.jpg", "sub/ü.jpg", "c.jpg", "d.jpg", "e.jpg"]
    assert table.splits.tolist() == ["train"] * 3 + ["test"] * 2
    wanted = [[1, -1, -1], [-1, 0, -1], [-1, -1, -1], [0, 1, 0], [1, 1, 1]]
    assert table.dense().tolist() == wanted
    assert table.paths[1] == str(root / "sub/ü.jpg")
    assert any("val is read as test" in note for note in table.notes)


def test_npy_full_labels(tmp_path: Path) -> None:
    table = read(npy(tmp_path), which="full")
    assert (table.dense() == np.concatenate([NPY["train_labels"], NPY["val_labels"]])).all()
    alone = npy(tmp_path / "alone", train_labels_obs=None, val_images=None)
    table = read(alone)
    assert (table.dense() == NPY["train_labels"]).all()
    assert any("no formatted_train_labels_obs.npy" in note for note in table.notes)
    with pytest.raises(ConfigError, match="which is one of observed, full"):
        read(alone, which="all")


def test_npy_names_and_images(tmp_path: Path) -> None:
    root = npy(tmp_path / "data", train_images=np.array([b"a.jpg", b"b.jpg", "ü.jpg".encode()]))
    names = a_list(tmp_path, "cat\ndog\nchair\n")
    table = read(root, names=str(names), images=str(tmp_path))
    assert table.names == ("cat", "dog", "chair")
    assert table.paths[2] == str(tmp_path / "ü.jpg")


@pytest.mark.parametrize(
    ("replaced", "sentence"),
    [
        ({"train_images": np.array(["a", None, "b"], dtype=object)}, "holds Python objects"),
        ({"train_images": np.arange(3)}, "not a list of names"),
        ({"train_labels_obs": np.zeros((2, 3))}, "for each of 3 images"),
        (
            {"train_labels_obs": np.full((3, 3), 2)},
            "labels_obs.npy: label values that mean nothing",
        ),
        ({"train_labels_obs": np.full((3, 3), np.nan)}, "row a.jpg"),
        ({"val_labels": np.array([[0, 1, -1], [1, 1, 1]])}, "d.jpg, column 2 is -1"),
        ({"val_labels": np.zeros((2, 4))}, "train has 3 labels, val has 4"),
        ({"val_labels": None}, "formatted_val_labels.npy"),
        ({"val_images": np.array(["a.jpg", "e.jpg"])}, "image ids occur more than once: a.jpg"),
    ],
)
def test_npy_refuses(tmp_path: Path, replaced: dict, sentence: str) -> None:
    assert sentence in message_of(npy(tmp_path, **replaced))


def test_npy_reports_all_parts_at_once(tmp_path: Path) -> None:
    root = npy(tmp_path, train_images=np.arange(3))
    (root / "formatted_val_labels.npy").write_bytes(b"no array")
    message = message_of(root)
    assert "formatted_train_images.npy" in message
    assert "formatted_val_labels.npy" in message
