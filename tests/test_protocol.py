"""The file of an arena: what it says, and everything that can be wrong with it."""

from pathlib import Path
from typing import Any

import pytest

from builders import feature_table
from builders import write_npz as write_problem
from partly import experiments, methods
from partly.arena import choices_of
from partly.errors import ConfigError
from partly.protocol import Protocol, nearest

SHIPPED = Path(__file__).parents[1] / "protocols" / "arena.toml"
TOML = """
title = "Small"
methods = ["bce", "partly", "an", "asl"]
settings = ["pal:0.3", "spl"]
seeds = 2
choices = 3
bootstrap = 40

[search]
learning_rate = [1e-3, 1e-2, 1e-1]
start = ["prior", "plain"]

[[data]]
name = "first"
path = "first.npz"
training = { epochs = 2, batch_size = 64 }

[[data]]
name = "second"
path = "second.npz"
seeds = 1
methods = ["partly", "an"]
[data.training]
epochs = 1
batch_size = 64
[data.search]
learning_rate = []
weight_decay = [0.0, 0.1]
"""


def write(folder: Path, text: str = TOML) -> Path:
    path = folder / "arena.toml"
    path.write_text(text)
    return path


def fill(folder: Path) -> Path:
    """Two data sets and a protocol for them."""
    write_problem(folder / "first.npz", 300, 200)
    write_problem(folder / "second.npz", 200, 100, seed=3)
    write(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return fill(tmp_path_factory.mktemp("arena"))


def problems(tmp_path: Path, text: str, folder: Path, **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Protocol.read(write(tmp_path, text), folder, **more)
    return caught.value.problems


def test_everything_wrong_is_said_at_once(folder, tmp_path):
    text = """
colour = "red"
validation = 2
seeds = "3"
methods = ["partly", "asll"]
settings = ["pal", "spl"]
[search]
epochs = [1, 2]
learning_rate = [0.1, -1.0]
start = "prior"
clip = [1.0, 1.0]
[[data]]
path = "first.npz"
draw = { train = 10, test = 10 }
[[data]]
name = "missing"
path = "nowhere.npz"
training = { epochs = 0, seed = 1, speed = 2 }
[[data]]
name = "first"
path = "first.npz"
read = { annotations = "x" }
methods = ["an"]
format = "npz"
verify = "perhaps"
[[data]]
name = "first"
draw = { train = 10, size = "x", colour = 1 }
[data.search]
optimiser = ["lion"]
[[data]]
name = "a/b"
draw = { train = 10, test = -5, size = 4 }
"""
    found = problems(tmp_path, text, folder)
    wanted = [
        "the protocol: has no 'colour'",
        "validation is a number between 0 and 1, not 2",
        "seeds is a whole number above 0, not '3'",
        "no method 'asll' (did you mean 'asl'?)",
        "setting 'pal' needs the share to keep",
        "'epochs' cannot be searched; what can is batch_size",
        "search: learning_rate must be a number above 0, not -1.0",
        "search: start is a list of values to try, not 'prior'",
        "search: clip lists a value twice",
        "data set 1: it has no name",
        "data set 1: it needs either a path or draw",
        "2 data sets are named 'first'",
        "data set 'missing': no data at",
        "data set 'missing': training has no seed, speed; it has epochs",
        "data set 'missing': training: epochs must be a whole number above 0, not 0",
        "data set 'first': 'partly', which is ours, is not among its methods an",
        "which has no option annotations; it has convention",
        "verify is one of full, quick, off, not 'perhaps'",
        "draw has no colour; it has train, test, size, seed",
        "draw needs test, how many pictures",
        "draw: size must be whole numbers",
        "search: optimiser is one of adam, adamw, sgd, not 'lion'",
        "name is letters, digits, -, _ and dots: a folder will have it, not 'a/b'",
        "draw: test is -5; it must be 0 or more",
        "draw: size is 4; it must be 16 pixels or more",
    ]
    for sentence in wanted:
        assert sum(sentence in line for line in found) == 1, (sentence, found)
    assert len(found) == len(wanted)
    assert all(line.startswith(str(tmp_path / "arena.toml")) for line in found)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("title =", "cannot read the protocol"),
        ("", "there is no [[data]]"),
        ("data = 3", "data is one or more tables [[data]], not 3"),
        ("[[data]]\nname = 'x'\npath = 'first.npz'\nformat = 'zip'", "unknown format 'zip'"),
        ("search = 3\n[[data]]\nname = 'x'\npath = 'first.npz'", "search is a table of names"),
    ],
)
def test_a_protocol_that_says_nothing(folder, tmp_path, text, sentence):
    (found,) = problems(tmp_path, text, folder)
    assert sentence in found


def test_what_is_left_out_need_not_be_there(folder, tmp_path):
    text = TOML.replace("second.npz", "nowhere.npz")
    assert "no data at" in problems(tmp_path, text, folder)[0]
    assert Protocol.read(tmp_path / "arena.toml", folder, only=["first"]).data[1].name == "second"
    (found,) = problems(tmp_path, text, folder, only=["first", "third"])
    assert "there is no data set 'third'; there are first, second" in found


def test_a_part_of_a_protocol(folder):
    path = folder / "arena.toml"
    plan = Protocol.read(path, folder, methods=["an", "asl"], settings=["spl"], seeds=5)
    assert [data.methods for data in plan.data] == [("an", "asl"), ("an",)]
    assert {data.settings for data in plan.data} == {("spl",)}
    assert {data.seeds for data in plan.data} == {5}
    with pytest.raises(ConfigError, match="'second' has none of the methods bce"):
        Protocol.read(path, folder, methods=["bce"])
    Protocol.read(path, folder, methods=["bce"], only=["first"])
    with pytest.raises(ConfigError, match="seeds must be a whole number above 0, not 0"):
        Protocol.read(path, folder, seeds=0)


@pytest.mark.parametrize(
    ("setting", "taken"),
    [
        ("pal:0.3", "pal:0.3"),
        ("pal:0.9", "pal:0.7"),
        ("pal:0.5", "pal:0.3"),  # the first of equals
        ("fal", "pal:0.7"),
        ("ppl:0.1", "ppl:0.6"),
        ("spl", None),
    ],
)
def test_the_nearest_setting_is_of_the_same_kind(setting, taken):
    assert nearest(setting, ["ppl:0.6", "pal:0.3", "pal:0.7"]) == taken


def test_settings_and_finalists_of_a_search(folder, tmp_path):
    start = "[[data]]\nname = 'x'\npath = 'first.npz'\n"
    for line, sentence in (
        ("search_settings = ['pal:0.3']", "search_settings has none of the kind of ppl:0.3"),
        ("search_settings = ['pal']", "setting 'pal' needs the share"),
        ("search_settings = 'spl'", "search_settings is a list of texts"),
        ("finalists = 0", "finalists is a whole number above 0, not 0"),
    ):
        (found,) = problems(tmp_path, start + line, folder)
        assert sentence in found
    lines = "search_settings = ['pal_0.3', 'spl']\nsettings = ['fal', 'spl']\nfinalists = 2"
    (data,) = Protocol.read(write(tmp_path, start + lines), folder).data
    assert data.search_settings == ("pal:0.3", "spl")
    assert data.finalists == 2
    assert data.searched_in("an", "fal") == "pal:0.3"
    assert data.searched_in("bce", "fal") == "fal"  # a reference has nothing to hide


def test_the_shipped_protocol_is_sound(tmp_path):
    plan = Protocol.read(SHIPPED, tmp_path, only=["drawn"])
    assert len({data.name for data in plan.data}) == 10
    table = feature_table(300)
    for data in plan.data:
        assert plan.ours in data.methods
        assert data.settings == experiments.PAPER_SETTINGS
        for method in data.methods:
            assert len(choices_of(data, table, method)) == data.choices
    *rest, drawn, photographs = plan.data
    assert {data.methods for data in rest} == {tuple(methods.available())}
    assert drawn.methods == photographs.methods
    assert set(photographs.knobs) == {"learning_rate", "head_factor", "head_decay"}
    assert photographs.config.batch_norm == "keep"  # for every method
