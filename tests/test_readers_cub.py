"""CUB-200-2011 in the layouts in which it lies on people's disks."""

from collections.abc import Callable
from pathlib import Path

import pytest

from builders import refuses, said
from partly.errors import ConfigError
from partly.readers import read, recognise

IMAGES = {
    1: "001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg",
    2: "001.Black_footed_Albatross/Black_Footed_Albatross_0009_34.jpg",
    4: "002.Laysan_Albatross/Laysan_Albatross_0001_545.jpg",
}
ATTRIBUTES = {
    1: "has_bill_shape::curved_(up_or_down)",
    2: "has_bill_shape::dagger",
    3: "has_size::large_(16_-_32_in)",
}
# image, attribute, present, certainty, time; two lines have fields too many, as in the real file
LABELS = """\
1 1 0 3 27.7080
1 2 1 4 27.7080
1 3 0 1 0
2 1 1 2 0 1.1470
2 2 0 1 14.8120
2 3 1 3 0 4 5.2190
4 3 1 4 9.0
4 2 0 4 9.0
4 1 0 4 9.0
"""


def write_named(file: Path, lines: dict[int, object], ends: str = "\n") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes("".join(f"{n} {text}{ends}" for n, text in lines.items()).encode())


@pytest.fixture
def cub(tmp_path: Path) -> Callable[..., Path]:
    def write(
        inside: str = "CUB_200_2011",
        attributes: str = "CUB_200_2011/attributes.txt",
        labels: str = LABELS,
        ends: str = "\n",
        mark: str = "",
    ) -> Path:
        folder = tmp_path / inside
        write_named(folder / "images.txt", IMAGES, ends)
        write_named(folder / "train_test_split.txt", {1: 0, 2: 1, 4: 1}, ends)
        write_named(folder / "classes.txt", {1: "001.Black_footed_Albatross"})
        write_named(folder / "attributes" / "certainties.txt", {1: "not visible", 4: "definitely"})
        write_named(tmp_path / attributes, ATTRIBUTES, ends)
        text = mark + labels.replace("\n", ends)
        (folder / "attributes" / "image_attribute_labels.txt").write_bytes(text.encode())
        return folder

    return write


@pytest.mark.parametrize(
    ("ends", "mark"), [("\n", ""), ("\r\n", ""), ("\n", "\ufeff"), ("\n\n", ""), (" \n", "")]
)
def test_cub(cub: Callable[..., Path], ends: str, mark: str) -> None:
    folder = cub(ends=ends, mark=mark)
    assert recognise(folder) == "cub"
    table = read(folder)
    assert table.names == tuple(ATTRIBUTES.values())
    assert table.ids.tolist() == ["1", "2", "4"]
    assert table.dense().tolist() == [[0, 1, 0], [1, 0, 1], [0, 0, 1]]
    assert table.splits.tolist() == ["test", "train", "train"]
    assert table.paths.tolist() == [str(folder / "images" / name) for name in IMAGES.values()]
    assert said(table, r"Table II has 5,994 training images \(here 2\), .*312 labels \(here 3\)")
    assert said(table, "^2 lines with more than the usual five fields")


@pytest.mark.parametrize(
    ("certainty", "expected"),
    [
        (1, [[0, 1, 0], [1, 0, 1], [0, 0, 1]]),
        (2, [[0, 1, -1], [1, -1, 1], [0, 0, 1]]),
        (3, [[0, 1, -1], [-1, -1, 1], [0, 0, 1]]),
        ("4", [[-1, 1, -1], [-1, -1, -1], [0, 0, 1]]),
    ],
)
def test_what_was_not_certain_is_unknown(
    cub: Callable[..., Path], certainty: int, expected: list
) -> None:
    table = read(cub(), certainty=certainty)
    assert table.dense().tolist() == expected
    unknown = sum(value == -1 for row in expected for value in row)
    assert said(table, f"^{unknown} labels? with a certainty below {certainty}: unknown")
    assert not said(table, "not in the file")


@pytest.mark.parametrize("certainty", [5, -1, "known"])
def test_certainty_is_a_number(cub: Callable[..., Path], certainty: object) -> None:
    with pytest.raises(ConfigError, match=f"from 0 to 4, not '{certainty}'"):
        read(cub(), certainty=certainty)


@pytest.mark.parametrize(
    ("inside", "attributes"),
    [
        ("CUB_200_2011", "attributes.txt"),
        ("CUB_200_2011", "CUB_200_2011/attributes/attributes.txt"),
        ("CUB_200_2011/CUB_200_2011", "CUB_200_2011/attributes.txt"),
        ("CUB_200_2011/CUB_200_2011", "CUB_200_2011/CUB_200_2011/attributes.txt"),
    ],
)
def test_where_things_lie(
    cub: Callable[..., Path], tmp_path: Path, inside: str, attributes: str
) -> None:
    folder = cub(inside=inside, attributes=attributes)
    (tmp_path / "segmentations").mkdir()
    for path in {folder, folder.parent, tmp_path}:
        assert recognise(path) == "cub"
        table = read(path)
        assert table.names == tuple(ATTRIBUTES.values())
        assert table.paths[0] == str(folder / "images" / IMAGES[1])


def test_labels_that_are_missing_are_unknown(cub: Callable[..., Path]) -> None:
    table = read(cub(labels="2 1 1 4 0\n"))
    assert table.dense().tolist() == [[-1, -1, -1], [1, -1, -1], [-1, -1, -1]]
    assert said(table, "^8 labels not in the file: unknown")


@pytest.mark.parametrize("between", ["\t", "  "])
def test_other_spaces_are_nothing_to_speak_of(cub: Callable[..., Path], between: str) -> None:
    folder = cub(labels="1 1 0 3 27.7\n2 1 1 2 0\n".replace(" ", between))
    for name in ("images.txt", "attributes.txt"):
        lines = (folder / name).read_text().split("\n")
        (folder / name).write_text("\n".join(line.replace(" ", between, 1) for line in lines))
    table = read(folder)
    assert table.names == tuple(ATTRIBUTES.values())
    assert table.dense()[:, 0].tolist() == [0, 1, -1]
    assert not said(table, "five fields")


def test_no_attribute_names(cub: Callable[..., Path]) -> None:
    folder = cub()
    (folder / "attributes.txt").unlink()
    refuses(folder, "no attributes.txt", "beside the folder CUB_200_2011")


@pytest.mark.parametrize(
    ("labels", "sentences"),
    [
        (
            LABELS + "\n3 1 1 4 0\n1 4 1 4 0\n1 1 2 4 0\n1 0 1 4 0\n",
            [
                "1 line with a number under image that images.txt does not list: 3 (line 11)",
                "under attribute that attributes.txt does not list: 0, 4 (line 12, 14)",
                "1 line with a number under present that is neither 1 nor 0: 2 (line 13)",
            ],
        ),
        (
            LABELS + "\none 1 1 4 0\n1 2 3\n1 1 1 99999999999 0\n",
            ["3 lines not of image, attribute", "line 11 'one 1 1 4 0', line 12 '1 2 3', line 13"],
        ),
        (
            LABELS + "\n1 1 1 3 27.7080\n",
            ["labels.txt: 1 label both 1 and 0, such as attribute 1 of image 1: line 1, 11"],
        ),
        ("", ["image_attribute_labels.txt"]),
    ],
)
def test_refuses(cub: Callable[..., Path], labels: str, sentences: list[str]) -> None:
    refuses(cub(labels=labels), *sentences)


def test_refuses_lists_that_differ(cub: Callable[..., Path]) -> None:
    folder = cub()
    write_named(folder / "train_test_split.txt", {1: 0, 2: 2, 5: 1})
    (folder / "images.txt").write_text("1 a.jpg\n1 b.jpg\n2\n2 c.jpg\nthree d.jpg\n")
    refuses(
        folder,
        "images.txt: 3 lines not of a new number and a text: line 2 '1 b.jpg', line 3 '2', line 5",
        "train_test_split.txt and images.txt list different images: 5",
        "neither 1 (training) nor 0 (test): 2",
    )
