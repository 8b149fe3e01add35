"""COCO, LVIS, VOC and VAW in the layouts in which they are handed out."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import refuses, said
from partly.errors import ConfigError, DataError
from partly.labels import LabelTable
from partly.readers import paper, read, recognise
from partly.tars import read_bytes

DATA = Path(__file__).parents[2] / "shared" / "data"
CATEGORIES = {1: "person", 3: "car", 13: "stop sign", 90: "toothbrush"}  # with gaps, as in COCO
OUTLINE = [[312.29, 562.89, 1e-05, -511.49], [400, 425.38, 398.39, 372.69, 388.11, 3.3e2]]


def write_json(file: Path, content: Any, mark: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(mark + json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return file


def rows_of(table: LabelTable) -> dict[str, list[int]]:
    return dict(zip(table.ids, table.dense().tolist(), strict=True))


# COCO


def annotation(image: int, category: int, crowd: int = 0) -> dict[str, Any]:
    """With the fields of the real files; a crowd's outline is run-length encoded."""
    counts = {"counts": [272, 2, 4, 4, 120], "size": [480, 640]}
    return {
        "segmentation": counts if crowd else OUTLINE,
        "area": 702.1057499999998,
        "iscrowd": crowd,
        "image_id": image,
        "bbox": [473.07, 395.93, 38.65, 28.67],
        "category_id": category,
        "id": 18 + image * 100 + category,
    }


def coco_content(
    part: str,
    images: list[int],
    boxes: list[tuple[int, ...]],
    categories: dict[int, str] = CATEGORIES,
) -> dict[str, Any]:
    return {
        "info": {"description": 'COCO with "segmentation": [1] in a text', "year": 2014},
        "images": [
            {"license": 5, "file_name": f"COCO_{part}_{i:012d}.jpg", "height": 480, "id": i}
            for i in images
        ],
        "licenses": [{"id": 1, "name": "Attribution"}],
        "annotations": [annotation(*box) for box in boxes],
        "categories": [
            {"supercategory": "thing", "id": number, "name": name}
            for number, name in categories.items()
        ],
    }


TRAIN = ([9, 30, 25, 400], [(9, 1), (9, 1), (9, 90), (25, 3), (25, 13, 1), (400, 13, 1)])
VAL = ([42, 7], [(42, 90)])


@pytest.fixture
def coco(tmp_path: Path) -> Callable[..., Path]:
    def write(year: int = 2014, folder: str = "annotations", **replaced: Any) -> Path:
        for part, content in (("train", TRAIN), ("val", VAL)):
            made = replaced.get(part, coco_content(f"{part}{year}", *content))
            if made is not None:
                write_json(tmp_path / folder / f"instances_{part}{year}.json", made)
        return tmp_path

    return write


def test_coco(coco: Callable[..., Path]) -> None:
    path = coco()
    assert recognise(path) == "coco"
    table = read(path)
    assert table.names == tuple(CATEGORIES.values())
    assert rows_of(table) == {
        "9": [1, 0, 0, 1],
        "25": [0, 1, 1, 0],
        "400": [0, 0, 1, 0],
        "42": [0, 0, 0, 1],
    }
    assert table.splits.tolist() == ["train", "train", "train", "test"]
    assert table.paths[0] == str(path / "train2014" / "COCO_train2014_000000000009.jpg")
    assert table.paths[3] == str(path / "val2014" / "COCO_val2014_000000000042.jpg")
    assert said(table, "train2014: 1 image without a box left out")
    assert said(table, "val2014: 1 image without a box left out")
    assert said(table, "val2014 is the test set")
    assert said(table, r"Table II has 82,081 training images \(here 3\), 40,137 .*, 80 labels")


def test_coco_keeps_images_without_boxes(coco: Callable[..., Path]) -> None:
    table = read(coco(), empty="keep")
    assert table.ids.tolist() == ["9", "30", "25", "400", "42", "7"]
    assert rows_of(table)["30"] == rows_of(table)["7"] == [0, 0, 0, 0]
    assert table.known == 24
    assert said(table, "train2014: 1 image without a box kept")
    assert said(table, "82,783")


def test_coco_without_crowds(coco: Callable[..., Path]) -> None:
    table = read(coco(), crowd="drop")
    assert rows_of(table) == {"9": [1, 0, 0, 1], "25": [0, 1, 0, 0], "42": [0, 0, 0, 1]}
    assert said(table, "2 boxes around crowds")


def test_coco_columns_go_by_name(coco: Callable[..., Path]) -> None:
    other = {1: "toothbrush", 2: "stop sign", 3: "car", 4: "person"}
    val = coco_content("val2014", [42, 43], [(42, 1), (43, 4)], dict(reversed(other.items())))
    assert rows_of(read(coco(val=val)))["42"] == [0, 0, 0, 1]
    assert rows_of(read(coco(val=val)))["43"] == [1, 0, 0, 0]


def test_coco_of_two_years(coco: Callable[..., Path]) -> None:
    coco(2014)
    path = coco(2017, val=None)
    refuses(path, "holds COCO 2014 and 2017", "year=2014")
    refuses(path, "year is one of 2014, 2017, not '2015'", year=2015)
    assert len(read(path, year=2014)) == 4
    for year in (2017, "2017"):
        table = read(path, year=year)
        assert (len(table), set(table.splits.tolist())) == (3, {"train"})
        assert said(table, "its counts are those of 2014")


def test_coco_another_annotations_folder(coco: Callable[..., Path]) -> None:
    coco(train=coco_content("train2014", [1], [(1, 1)]), val=None)
    path = coco(folder="annotations_more")
    assert len(read(path)) == 1
    assert said(read(path), "not read: annotations_more")
    assert len(read(path, annotations="annotations_more")) == 4
    refuses(
        path, "annotations_less has no instances_train2014.json", annotations="annotations_less"
    )


def test_coco_in_folders_of_other_names(coco: Callable[..., Path]) -> None:
    path = coco(folder="annotations_trainval2014")
    assert recognise(path) == "coco"
    assert len(read(path)) == 4
    folder = path / "annotations_trainval2014"
    (folder / "instances_train2014.json").rename(folder / "instances_train2014.JSON")
    assert len(read(path)) == 4
    coco(2017, folder="annotations_trainval2017")
    refuses(path, "has annotations_trainval2014, annotations_trainval2017", "annotations=annot")
    assert len(read(path, annotations="annotations_trainval2017")) == 4


@pytest.mark.parametrize("images", ["train2014", "images/train2014", "annotations/train2014"])
def test_coco_one_file(coco: Callable[..., Path], images: str) -> None:
    path = coco()
    (path / images).mkdir(parents=True)
    file = path / "annotations" / "instances_train2014.json"
    table = read(file)
    assert set(table.splits.tolist()) == {"train"}
    assert table.paths[0] == str(path / images / "COCO_train2014_000000000009.jpg")
    assert set(read(file.with_name("instances_val2014.json")).splits.tolist()) == {"test"}
    assert read(path / "annotations").ids.tolist() == read(path).ids.tolist()


def test_a_file_of_no_part_in_cocos_form(tmp_path: Path) -> None:
    content = coco_content("own", [1, 2], [(1, 1), (2, 3)])
    del content["annotations"][0]["iscrowd"]
    table = read(write_json(tmp_path / "instances_default.json", content, mark="\ufeff"))
    assert table.splits is None
    assert not said(table, "paper")


def test_coco_images_in_a_tar(coco: Callable[..., Path], tmp_path: Path) -> None:
    path = coco()
    picture = tmp_path / "picture"
    picture.write_bytes(b"the picture")
    with tarfile.open(path / "train2014.tar", "w") as tar:
        tar.add(picture, "train2014/COCO_train2014_000000000009.jpg")
    assert read_bytes(read(path).paths[0]) == b"the picture"


def test_coco_ids_that_both_parts_use(coco: Callable[..., Path]) -> None:
    table = read(coco(val=coco_content("val2014", [9, 7], [(9, 1), (7, 1)])))
    assert table.ids.tolist() == [
        "train2014-9", "train2014-25", "train2014-400", "val2014-9", "val2014-7",
    ]  # fmt: skip
    assert said(table, "share image ids")


def broken(**lists: Any) -> dict[str, Any]:
    return coco_content("train2014", *TRAIN) | lists


@pytest.mark.parametrize(
    ("content", "sentences"),
    [
        ([], ["no list of images, annotations, categories"]),
        ({"images": [], "categories": [5]}, ["no list of annotations, categories"]),
        (broken(images=[]), ["has no images"]),
        (broken(categories=[]), ["has no categories"]),
        (
            broken(
                images=[{"id": 9}, {"id": "x", "file_name": "a"}, {"id": 9, "file_name": "b"}],
                annotations=[
                    *({"image_id": number, "category_id": 1} for number in range(1, 8)),
                    {"image_id": 9, "category_id": 91},
                    {"image_id": 9, "category_id": 1.5},
                    {"category_id": 1},
                    {"image_id": 2**70, "category_id": 1},
                ],
            ),
            [
                "1 image without file_name: 9",
                "1 image entry without a whole number as id: number 1 has 'x'",
                "ids of images that occur more than once: 9",
                "7 annotations whose image_id is not in the file: 1, 2, 3, 4, 5 and 2 more",
                "1 annotation whose category_id is not in the file: 91",
                "1 annotation entry without a whole number as category_id: number 8 has 1.5",
                "2 annotation entries without a whole number as image_id: number 9 has None",
            ],
        ),
        (
            coco_content("train2014", [1], [(1, 1)], {1: "person", 3: "lorry"}),
            ["different categories", "car, lorry, stop sign, toothbrush"],
        ),
        (
            coco_content("train2014", [1], [(1, 1)], CATEGORIES | {91: "car"}),
            ["label names occur more than once: car"],
        ),
    ],
)
def test_coco_refuses(coco: Callable[..., Path], content: Any, sentences: list[str]) -> None:
    refuses(coco(train=content), *sentences)


def test_coco_says_where_a_file_is_broken(coco: Callable[..., Path]) -> None:
    file = coco() / "annotations" / "instances_val2014.json"
    text = file.read_text()[:-5]
    file.write_text(text)
    refuses(file.parent.parent, f"cannot read {file}", f"(char {text.rindex(chr(34))})")


@pytest.mark.parametrize("option", ["empty", "crowd"])
def test_coco_options(coco: Callable[..., Path], option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} is one of .*, not 'dorp'"):
        read(coco(), **{option: "dorp"})


@pytest.mark.parametrize(
    ("folder", "train", "test"),
    [("annotations", 7_000, 2_000), ("annotations_more", 13_000, 5_000)],
)
def test_real_coco(tmp_path: Path, folder: str, train: int, test: int) -> None:
    archives = [DATA / f"coco_{name}.tar" for name in ("mini", "more")]
    if not all(archive.is_file() for archive in archives):
        pytest.skip("no COCO images beside the checkout")
    for archive in archives:
        with tarfile.open(archive) as tar:
            wanted = [member for member in tar.getmembers() if member.name.endswith(".json")]
            tar.extractall(tmp_path, wanted, filter="data")
    (root,) = {file.parent.parent for file in tmp_path.rglob("instances_train2014.json")}
    table = read(root, annotations=folder)
    sizes = {split: len(table.part(split)) for split in ("train", "test")}
    assert sizes == {"train": train, "test": test}
    assert (len(table.names), table.names[0], table.names[-1]) == (80, "person", "toothbrush")
    assert table.known == 80 * (train + test)
    assert table.counts_by_image().positive.min() == 1


# The paper's counts


def test_differences_from_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([[1, 0, -1], [1, 1, 0], [0, -1, -1], [1, 1, 1]], dtype=np.int8)
    splits = np.array(["train", "train", "train", "test"])
    table = LabelTable.from_dense(labels, splits=splits)
    same = paper.Row(train=3, test=1, positives=1.0, negatives=1.0, labels=3)
    assert paper.count(table) == same
    monkeypatch.setitem(paper.TABLE_II, "coco", same)
    assert paper.differences("coco", table)[0].startswith("as in the paper's Table II")
    monkeypatch.setitem(paper.TABLE_II, "coco", same._replace(train=1_003, negatives=1.1))
    assert paper.differences("coco", table) == (
        "the paper's Table II has 1,003 training images (here 3), "
        "1.1 negatives per training image (here 1.0)",
    )
    assert paper.count(LabelTable.from_dense(labels)).train == 4


# LVIS


def lvis_content(images: list[dict[str, Any]], boxes: list[tuple[int, int]]) -> dict[str, Any]:
    content = coco_content("", [], boxes, {1: "aerosol_can", 2: "air_conditioner", 3: "zebra"})
    common = {"license": 2, "flickr_url": "http://farm5.staticflickr.com/a.jpg", "width": 640}
    return content | {"images": [common | image for image in images]}


def lvis_image(number: int, folder: str, negative: list[int], partial: list[int]) -> dict[str, Any]:
    return {
        "id": number,
        "coco_url": f"http://images.cocodataset.org/{folder}/{number:012d}.jpg",
        "neg_category_ids": negative,
        "not_exhaustive_category_ids": partial,
    }


def write_lvis(folder: Path) -> Path:
    train = [lvis_image(9, "train2017", [1], [3]), lvis_image(5, "train2017", [], [])]
    val = [lvis_image(100, "train2017", [2, 3], []), lvis_image(7, "val2017", [1, 2], [2])]
    write_json(folder / "lvis_v1_train.json", lvis_content(train, [(9, 3), (9, 2), (9, 2)]))
    write_json(folder / "lvis_v1_val.json", lvis_content(val, [(100, 1), (7, 1)]))
    return folder


def test_lvis(tmp_path: Path) -> None:
    path = write_lvis(tmp_path)
    assert recognise(path) == "lvis"
    table = read(path)
    assert table.names == ("aerosol_can", "air_conditioner", "zebra")
    assert rows_of(table) == {
        "9": [0, 1, 1],
        "5": [-1, -1, -1],
        "100": [1, 0, 0],
        "7": [1, 1, -1],
    }
    assert table.splits.tolist() == ["train", "train", "test", "test"]
    assert said(table, "lvis_v1_val is the test set")
    assert said(table, "lvis_v1_val: 2 labels both annotated and listed as absent: positive")
    assert [Path(file).parent.name for file in table.paths] == [
        "train2017", "train2017", "train2017", "val2017",
    ]  # fmt: skip
    assert table.paths[2] == str(tmp_path / "train2017" / "000000000100.jpg")


@pytest.mark.parametrize("place", ["annotations", "lvis"])
def test_lvis_finds_the_images(tmp_path: Path, place: str) -> None:
    (tmp_path / "val2017").mkdir()
    folder = write_lvis(tmp_path / place)
    expected = str(tmp_path / "val2017" / "000000000007.jpg")
    paths = [folder, folder / "lvis_v1_val.json", *([tmp_path] if place == "annotations" else [])]
    for path in paths:
        assert recognise(path) == "lvis"
        assert read(path).paths[-1] == expected
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    table = read(folder, images=str(elsewhere))
    assert table.paths[-1] == str(elsewhere / "val2017" / "000000000007.jpg")
    refuses(folder, "there is no such folder", images=str(tmp_path / "nowhere"))


def test_lvis_beside_coco_is_read_when_asked_for(coco: Callable[..., Path]) -> None:
    path = coco(2017)
    write_lvis(path / "annotations")
    refuses(path, "holds coco and lvis")
    assert read(path, format="lvis").names[0] == "aerosol_can"


def test_lvis_refuses(tmp_path: Path) -> None:
    path = write_lvis(tmp_path)
    images = [
        lvis_image(1, "train2017", [1, 1204], []),
        lvis_image(2, "train2017", [], []) | {"coco_url": None},
        lvis_image(3, "train2017", [], []) | {"not_exhaustive_category_ids": ["1"]},
    ]
    write_json(path / "lvis_v1_train.json", lvis_content(images, [(77, 1)]))
    refuses(
        path,
        "neg_category_ids names categories that are not in it: 1204",
        "1 image without a coco_url that ends in train2017/….jpg or val2017/….jpg: 2",
        "1 image without a list of whole numbers not_exhaustive_category_ids: 3",
        "1 annotation whose image_id is not in the file: 77",
    )


# VOC


VOC = {
    "train": {
        "aeroplane": {"000012": "-1", "000026": " 0"},
        "cat": {"000012": " 1", "000026": "-1"},
    },
    "val": {"aeroplane": {"000005": " 1"}, "cat": {"000005": "-1"}},
    "test": {"aeroplane": {"000001": "-1"}, "cat": {"000001": " 1"}},
}
VOC["trainval"] = {
    name: VOC["val"][name] | VOC["train"][name] for name in VOC["train"]
}  # another order than train and val


def write_voc(folder: Path, *sets: str, ends: str = "\n", mark: str = "") -> Path:
    main = folder / "ImageSets" / "Main"
    main.mkdir(parents=True, exist_ok=True)
    (folder / "JPEGImages").mkdir(exist_ok=True)
    for name in sets:
        (main / f"{name}.txt").write_text("\n".join(VOC[name]["cat"]) + "\n")
        for label, lines in VOC[name].items():
            text = mark + "".join(f"{image} {value}{ends}" for image, value in lines.items())
            (main / f"{label}_{name}.txt").write_bytes(text.encode())
    return folder


@pytest.mark.parametrize(("ends", "mark"), [("\n", ""), ("\r\n", "\ufeff"), (" \n\n", "")])
def test_voc_2007(tmp_path: Path, ends: str, mark: str) -> None:
    folder = tmp_path / "VOCdevkit" / "VOC2007"
    write_voc(folder, "train", "val", "trainval", "test", ends=ends, mark=mark)
    for path in (tmp_path, folder.parent, folder):
        assert recognise(path) == "voc"
        table = read(path)
        assert table.names == ("aeroplane", "cat")
        assert rows_of(table) == {
            "000005": [1, 0],
            "000012": [0, 1],
            "000026": [-1, 0],
            "000001": [0, 1],
        }
        assert table.splits.tolist() == ["train", "train", "train", "test"]
        assert table.paths[0] == str(folder / "JPEGImages" / "000005.jpg")
        assert table.notes == ("1 label of difficult objects: unknown",)


@pytest.mark.parametrize(("difficult", "value"), [("positive", 1), ("negative", 0)])
def test_voc_difficult(tmp_path: Path, difficult: str, value: int) -> None:
    path = write_voc(tmp_path / "VOC2007", "trainval", "test")
    assert rows_of(read(path, difficult=difficult))["000026"] == [value, 0]
    refuses(path, "difficult is one of unknown, positive, negative", difficult="drop")


def test_voc_2012_has_no_test_labels(tmp_path: Path) -> None:
    table = read(write_voc(tmp_path / "VOC2012", "train", "val", "trainval"))
    assert table.ids.tolist() == ["000012", "000026", "000005"]
    assert table.splits.tolist() == ["train", "train", "test"]
    assert said(table, "val the test set")


def test_voc_of_which_only_some_sets_are_there(tmp_path: Path) -> None:
    table = read(write_voc(tmp_path / "a", "train", "val", "test"))
    assert table.splits.tolist() == ["train", "train", "train", "test"]
    table = read(write_voc(tmp_path / "b", "trainval"))
    assert set(table.splits.tolist()) == {"train"}
    assert said(table, "there is no test set")


def test_voc_of_two_years(tmp_path: Path) -> None:
    write_voc(tmp_path / "VOC2007", "trainval", "test")
    write_voc(tmp_path / "VOC2012", "train", "val")
    refuses(tmp_path, "holds VOC 2007 and 2012: choose with year=2007")
    refuses(tmp_path, "year is one of", year=2010)
    assert len(read(tmp_path, year=2007)) == 4
    assert len(read(tmp_path, year=2012)) == 3
    (tmp_path / "VOC2007").rename(tmp_path / "voc")
    assert len(read(tmp_path / "voc", year=2007)) == 4


def test_voc_refuses(tmp_path: Path) -> None:
    path = write_voc(tmp_path / "VOC2007", "trainval", "test")
    main = path / "ImageSets" / "Main"
    (main / "cat_trainval.txt").write_text("000005 1\n\n000012 2\n000012 1\n000012 1\n000077\n")
    (main / "dog_trainval.txt").write_text("000005 1\n000012 1\n000026 1\n")
    refuses(path, "has no test file of dog")
    (main / "dog_test.txt").write_text("000001 -1\n000009 -1\n")
    refuses(
        path,
        "cat_trainval.txt: 3 lines not of an image named once and 1, 0 or -1: line 3 '000012 2', "
        "line 5 '000012 1', line 6 '000077'",
        "cat_trainval.txt and aeroplane_trainval.txt list different images: 000026",
        "dog_test.txt and aeroplane_test.txt list different images: 000009",
    )


def test_voc_files_in_different_orders(tmp_path: Path) -> None:
    path = write_voc(tmp_path / "VOC2007", "trainval", "test")
    file = path / "ImageSets/Main/cat_trainval.txt"
    file.write_text("000026 +1\n000012\t0\n000005   -1\n")
    table = read(path, difficult="negative")
    labels = rows_of(table)
    assert [labels[name][1] for name in ("000005", "000012", "000026")] == [0, 0, 1]
    assert table.notes == ("2 labels of difficult objects: negative",)
    file.write_text("000026 +-1\n000012 +0\n000005 -1\n")
    refuses(path, "2 lines not of an image", "line 1 '000026 +-1', line 2 '000012 +0'")


# VAW


def vaw_object(image: object, number: int, positive: list, negative: list) -> dict[str, Any]:
    return {
        "image_id": image,
        "instance_id": f"{image}{number:03d}",
        "instance_bbox": [0.0, 182.5, 500.16666666666663, 148.5],
        "instance_polygon": [[[432.5, 214.16], [425.83, 194.16]]] if number else None,
        "object_name": "Fußboden",
        "positive_attributes": positive,
        "negative_attributes": negative,
    }


VAW = {
    "train_part1": [
        vaw_object("2373241", 4, ["tiled", "gray"], ["wet"]),
        vaw_object("2373241", 0, ["wet"], ["gray", "café style"]),
    ],
    "train_part2": [vaw_object("10", 1, [], ["tiled", "tiled"])],
    "val": [vaw_object(713, 1, ["gray"], [])],
    "test": [vaw_object("4", 2, ["wet"], ["wet"]), vaw_object("5", 2, [], [])],
}
INDEX = {"wet": 2, "tiled": 0, "gray": 1, "café style": 3, "never seen": 4}


def write_vaw(folder: Path, index: dict[str, int] | None = INDEX, **replaced: Any) -> Path:
    for name, objects in (VAW | replaced).items():
        if objects is not None:
            write_json(folder / f"{name}.json", objects)
    if index:
        write_json(folder / "attribute_index.json", index)
    return folder


def test_vaw_by_image(tmp_path: Path) -> None:
    path = write_vaw(tmp_path)
    assert recognise(path) == "vaw"
    table = read(path)
    assert table.names == ("tiled", "gray", "wet", "café style", "never seen")
    assert rows_of(table) == {
        "2373241": [1, 1, 1, 0, -1],
        "10": [0, -1, -1, -1, -1],
        "713": [-1, 1, -1, -1, -1],
        "4": [-1, -1, 1, -1, -1],
        "5": [-1, -1, -1, -1, -1],
    }
    assert table.splits.tolist() == ["train", "train", "validation", "test", "test"]
    assert said(table, "6 objects of 5 images")
    assert said(table, "3 labels of one object and not of another: positive")


def test_vaw_by_object(tmp_path: Path) -> None:
    table = read(write_vaw(tmp_path, index=None), unit="object")
    assert table.names == ("café style", "gray", "tiled", "wet")
    assert rows_of(table) == {
        "2373241004": [-1, 1, 1, 0],
        "2373241000": [0, 0, -1, 1],
        "10001": [-1, -1, 0, -1],
        "713001": [-1, 1, -1, -1],
        "4002": [-1, -1, -1, 1],
        "5002": [-1, -1, -1, -1],
    }
    assert len(set(table.paths[:2])) == 1
    assert said(table, "1 label .*: positive")
    refuses(tmp_path, "unit is one of image, object, not 'box'", unit="box")


def test_vaw_finds_the_images(tmp_path: Path) -> None:
    folder = write_vaw(tmp_path / "data", train_part1=None, train_part2=None)
    write_json(folder / "train.json", VAW["train_part1"] + VAW["train_part2"])
    assert recognise(tmp_path) == "vaw"
    assert read(tmp_path).paths[0] == str(folder / "VG_100K" / "2373241.jpg")
    for name, image in (("VG_100K", "2373241"), ("VG_100K_2", "10"), ("VG_100K_2", "4")):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / f"{image}.jpg").touch()
    expected = ["VG_100K/2373241", "VG_100K_2/10", "VG_100K/713", "VG_100K_2/4", "VG_100K/5"]
    assert read(tmp_path).paths.tolist() == [str(tmp_path / f"{name}.jpg") for name in expected]
    assert read(folder).paths.tolist() == read(tmp_path).paths.tolist()
    flat = tmp_path / "flat"
    flat.mkdir()
    assert read(folder, images=str(flat)).paths[0] == str(flat / "2373241.jpg")
    for name in ("VG_100K", "VG_100K_2"):
        with tarfile.open(flat / f"{name}.tar", "w") as tar:
            tar.add(tmp_path / name, name)
    spans = [path.partition("[")[0] for path in read(folder, images=str(flat)).paths]
    expected = ["VG_100K", "VG_100K_2", "VG_100K.tar/713.jpg", "VG_100K_2", "VG_100K.tar/5.jpg"]
    tars = [name if "jpg" in name else f"{name}.tar" for name in expected]
    assert spans == [str(flat / name) for name in tars]


@pytest.mark.parametrize(
    ("replaced", "sentences"),
    [
        (
            {"val": {"a": 1}, "test": [vaw_object("4", 2, ["wet"], [5]), 7]},
            ["val.json is not a list […]", "2 objects without a proper negative_attributes"],
        ),
        ({"val": 5}, ["val.json is not a list […]"]),
        ({"index": {"wet": 0, "gray": 1}}, ["lacks 2 attributes", "café style, tiled"]),
        ({"index": {"wet": "one"}}, ["does not give each attribute a number"]),
        ({"test": VAW["val"]}, ["1 image in more than one part, such as 713"]),
        ({name: [] for name in VAW}, ["has no objects"]),
    ],
)
def test_vaw_refuses(tmp_path: Path, replaced: dict[str, Any], sentences: list[str]) -> None:
    write_vaw(tmp_path, **replaced)
    with pytest.raises(DataError) as caught:
        read(tmp_path, format="vaw")
    assert all(sentence in str(caught.value) for sentence in sentences), caught.value


def test_no_reader_claims_what_is_not_its_own(tmp_path: Path) -> None:
    for name in ("annotations", "ImageSets/Main", "data", "attributes"):
        (tmp_path / name).mkdir(parents=True)
    write_json(tmp_path / "train.json", [{"image": "a.jpg", "labels": ["x"]}])
    write_json(tmp_path / "annotations" / "captions_train2014.json", {})
    (tmp_path / "ImageSets" / "Main" / "train.txt").write_text("000005\n")
    (tmp_path / "images.txt").write_text("1 a.jpg\n")
    refuses(tmp_path, "no known format")
