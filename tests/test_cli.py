"""The command line: help, the whole way through, and one clear message for bad input."""

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from builders import (
    Answer,
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
from partly import __version__, images, methods, runs, training
from partly.cli import app
from partly.progress import Progress

COMMANDS = [one.name or one.callback.__name__ for one in app.registered_commands]


def really(*arguments: object) -> Answer:
    """`python -m partly …` in a process of its own."""
    ended = subprocess.run(
        command(*arguments), env=environment(), capture_output=True, text=True, check=False
    )
    return Answer(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """data.npz, and a run on it."""
    home = tmp_path_factory.mktemp("home")
    write_npz(home / "data.npz", 200, 100)
    partly_works("train", home / "data.npz", "--out", home / "run", "--epochs", 2)
    return home


# --- help ----------------------------------------------------------------------------------------

ALL_HELP = """
import contextlib, io, json, sys
from partly import cli

texts = {}
for name in sys.argv[1:]:
    sys.argv = ["partly", *name.split(), "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        cli.main()
    texts[name] = text.getvalue()
print(json.dumps([texts, sorted({"torch", "timm", "pyarrow", "matplotlib"} & set(sys.modules))]))
"""


def test_help_has_examples_and_does_not_wait_for_torch():
    script = [sys.executable, "-c", ALL_HELP, "", *COMMANDS]
    output = subprocess.run(script, env=environment(), capture_output=True, text=True, check=True)
    texts, loaded = json.loads(output.stdout)
    assert loaded == []
    assert all(name in texts[""] for name in COMMANDS)
    for name in COMMANDS:
        assert f"Example: partly {name}" in texts[name].replace("`", "")


def test_every_choice_of_a_config_is_an_option_of_train():
    wide = partly_works("train", "--help").out
    names = {"learning_rate": "--lr", "options": "--set"}
    for name in training.Config.__dataclass_fields__:
        assert names.get(name, "--" + name.replace("_", "-"))[:12] in wide


def test_methods_are_listed_with_their_options():
    listed = partly_works("methods").out
    for name in methods.available():
        assert f"\n{name} " in f"\n{listed}"
    assert "teacher=auto" in listed


# --- the whole way -------------------------------------------------------------------------------


def test_train_evaluate_predict(tmp_path):
    """Each a process of its own, as a user starts them."""
    data, run = write_npz(tmp_path / "data.npz", 300, 100), tmp_path / "runs" / "one"
    trained = really("train", data, "--out", run, "--epochs", 3, "--hide", "pal:0.5")
    assert trained.code == 0, trained.err
    assert "mAP" in trained.out
    epochs = [line.split("  ")[0] for line in trained.err.splitlines() if line.startswith("epoch")]
    assert epochs == [f"epoch {epoch}/3" for epoch in (1, 2, 3)]
    measured = really("evaluate", run, data, "--json")
    stored = json.loads((run / runs.EVALUATION).read_text())
    assert json.loads(measured.out)["metrics"]["AP"] == stored["metrics"]["AP"]
    predicted = really("predict", run, data, "--out", tmp_path / "scores.csv")
    assert predicted.out == f"400 images -> {tmp_path / 'scores.csv'}\n"
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 401
    assert (measured.err, predicted.err) == ("", "")


def test_options_reach_the_method_and_the_training(home, tmp_path):
    arguments = ["train", home / "data.npz", "--out", tmp_path / "run", "--method", "paper"]
    arguments += ["--set", "gamma=0.2", "--set", "q=0.5:1", "--set", "d=off", "--epochs", 1]
    arguments += ["--lr", 0.003, "--optimiser", "sgd", "--seed", 7, "--backbone", "mlp:9"]
    arguments += ["--batch-size", 50, "--clip", 0.5, "--ema", 0.5, "--no-standardise"]
    partly_works(*arguments)
    config = json.loads((tmp_path / "run" / runs.CONFIG).read_text())
    assert config["options"] == {"gamma": 0.2, "q": "0.5:1", "d": "off"}
    expected = {"method": "paper", "learning_rate": 0.003, "optimiser": "sgd", "seed": 7}
    expected |= {"backbone": "mlp:9", "batch_size": 50, "clip": 0.5, "ema": 0.5}
    assert {name: config[name] for name in expected} == expected
    assert config["standardise"] is False


def test_evaluate_in_words_and_check(home):
    words = partly_works("evaluate", home / "run", home / "data.npz").out
    assert words.startswith("100 images: mAP ")
    looked = partly_works("check", home / "data.npz").out
    assert "300 images, 4 labels" in looked
    assert "resembles  FAL" in looked
    found = json.loads(partly_works("check", home / "data.npz", "--json").out)
    assert found["images"] == 300
    assert found["problems"] == []


def test_control_c_is_no_crash(home, tmp_path, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "take_step", interrupt)
    answer = partly_here("train", home / "data.npz", "--out", tmp_path / "run")
    assert answer.code == 130
    assert "partly: interrupted; what was finished is kept" in answer.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("name", ["compare", "ablate", "evaluate", "demo", "pack", "check"])
def test_ranks_are_refused_where_one_process_works(tmp_path, monkeypatch, name):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    needed = {"evaluate": [tmp_path, tmp_path], "demo": []}.get(name, [tmp_path])
    more = {"evaluate": ["--part", "new"], "check": []}.get(name, ["--out", "new"])
    answer = partly_here(name, *needed, *more)
    assert answer.code == 2
    assert f"{name} is work for one process: start it without torchrun" in answer.err
    assert ("--jobs" in answer.err) == (name in ("compare", "ablate"))
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    assert partly_here(name, *needed).err == ""  # one sentence of a machine is enough
    assert "is work for one process" in (tmp_path / "error.json").read_text()  # for torchrun


def test_before_ranks_have_met_the_first_of_a_machine_says_what_is_wrong(tmp_path, monkeypatch):
    command = ["train", tmp_path, "--out", tmp_path / "run", "--recipe", tmp_path / "no.toml"]
    monkeypatch.setenv("WORLD_SIZE", "4")
    for rank, local, told in ((2, 0, 1), (3, 1, 0)):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(local))
        answer = partly_here(*command)
        assert answer.code == 2
        assert answer.err.count("no.toml") == told


def test_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch):
    record = {"epoch": 1, "loss": 0.5, "images_per_second": 1000.0, "criterion": "mAP"}
    shown = {}
    for screen in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setenv("TERM", "xterm")
        with Progress(4, 0) as progress:
            for _ in range(4):
                progress.step(0.5)
            progress.epoch(record | {"validation_score": 0.25}, 2)
            progress.epoch(record | {"epoch": 2, "loss": 0.00013456}, 2)
        shown[screen.isatty()] = screen.getvalue()
    assert shown[False].splitlines() == [
        "epoch 1/2  loss 0.5000  mAP 25.00  1,000 images/s",
        "epoch 2/2  loss 0.000135  1,000 images/s",
    ]
    assert "epoch 1/2  loss 0.5000  mAP 25.00" in shown[True]
    assert "100%" in shown[True]
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress(4, quiet=True) as progress:
        progress.say("nothing")
    assert sys.stderr.getvalue() == ""


# --- bad input -----------------------------------------------------------------------------------


def table(*lines: str) -> Callable[[Path], Path]:
    """A manifest of these lines beside two pictures, 0000.png and 0001.png."""

    def write(folder: Path) -> Path:
        write_pictures(folder, 2)
        (folder / "data.csv").write_text("\n".join(lines) + "\n")
        return folder / "data.csv"

    return write


def arrays(row: int = 0, column: int = 0, value: float = 1, part: str = "Y_train"):
    """An .npz in which one value is not what it should be."""

    def write(folder: Path) -> Path:
        rows, labels = problem(60)
        content = {"X_train": rows, "Y_train": labels.astype(np.float32)}
        content[part][row, column] = value
        np.savez(folder / "data.npz", **content)
        return folder / "data.npz"

    return write


def no_rows(folder: Path) -> Path:
    np.savez(folder / "data.npz", X_train=np.zeros((0, 3)), Y_train=np.zeros((0, 2), np.int8))
    return folder / "data.npz"


def text(folder: Path) -> Path:
    (folder / "data.npz").write_text("hello")
    return folder / "data.npz"


GOOD = ("path,red,blue", "0000.png,1,0", "0001.png,,1")
BAD_DATA = {
    "label 2": (table("path,red,blue", "0000.png,1,2"), "line 2, column blue: '2' is not a label"),
    "nan in a table": (table("path,red,blue", "0000.png,nan,0"), "'nan' is not a label"),
    "no images": (table("path,red,blue"), "has a header but no image"),
    "empty file": (table(""), "data.csv"),
    "one label": (table("path,red", "0000.png,1", "0001.png,0"), "only one label ('red')"),
    "no label": (table("path", "0000.png"), "no label column"),
    "all unknown": (table("path,red,blue", "0000.png,,-1", "0001.png,,"), "every label is unknown"),
    "no positive": (table("path,red,blue", "0000.png,0,0"), "no label is known to be positive"),
    "same id twice": (
        table(*GOOD, "0000.png,0,0"),
        "label red: positive in line 2, negative in line 4",
    ),
    "no path column": (table("photo,red,blue", "0000.png,1,0"), "no column with image paths"),
    "no such image": (table(*GOOD, "0002.png,0,1"), "cannot use 1 image: there is no such file"),
    "unknown split": (table("path,split,a,b", "0000.png,trian,1,0"), "trian"),
    "label 2 in arrays": (arrays(3, 1, 2.0), "column 1: 2.0"),
    "nan label": (arrays(3, 1, np.nan), "nan"),
    "nan feature": (arrays(3, 1, np.nan, "X_train"), "not finite: train-3"),
    "no rows": (no_rows, "the table is empty"),
    "not an npz": (text, "cannot read"),
    "missing": (lambda folder: folder / "none.csv", "no data at"),
}


def assert_refused(answer: Answer, message: str) -> None:
    assert answer.code == 2
    assert message in answer.err
    assert "Traceback" not in answer.out + answer.err


@pytest.mark.parametrize("name", BAD_DATA)
def test_bad_data_is_refused_in_one_message(tmp_path, name):
    write, message = BAD_DATA[name]
    folder = tmp_path / "data"
    folder.mkdir()
    data = write(folder)
    answer = partly_here("train", data, "--out", tmp_path / "run", "--backbone", _backbone(data))
    assert_refused(answer, message)
    assert all(line.startswith("partly: ") for line in answer.err.splitlines())
    assert not (tmp_path / "run").exists()


def _backbone(data: Path) -> str:
    return "linear" if data.suffix == ".npz" else "small:4"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--method", "partyl"], "did you mean 'partly'"),
        (["--hide", "most"], "unknown setting 'most'"),
        (["--hide", "pal"], "needs the share to keep"),
        (["--epoch", 3], "No such option"),
        (["--epochs", "many"], "--epochs"),
        (["--epochs", 0, "--optimiser", "lion"], "optimiser is one of"),
        (["--set", "gama=1"], "method 'partly' has no option gama; it has"),
        (["--set", "gamma"], "name=value, not 'gamma'"),
        (["--backbone", "resnet18"], "'resnet18' looks at images"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--device", "toaster"], "toaster"),
        (["--backbone", "smal:8"], "no backbone 'smal:8'"),
        (["--out", "{file}/run"], "cannot create folder"),
        (["--out", "{file}"], "cannot create folder"),
    ],
)
def test_a_bad_option_of_train_is_refused(home, tmp_path, more, message):
    file = tmp_path / "file"
    file.write_text("a file")
    out = ["--out", tmp_path / "run", "--epochs", 1]
    more = [str(word).replace("{file}", str(file)) for word in more]
    answer = partly_here("train", home / "data.npz", *out, *more)
    assert_refused(answer, message)
    assert files_of(tmp_path) == {"file": b"a file"}
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--backbone", "smal:8"], "no backbone 'smal:8'"),
        (["--backbone", "small:0"], "no backbone 'small:0'"),
        (["--backbone", "resnet1"], "no backbone 'resnet1' in timm"),
        (["--hide", "pal:3"], "cannot read setting 'pal:3'"),
        (["--device", "toaster"], "toaster"),
        (["--out", "{data}"], "cannot create folder"),
    ],
)
def test_a_bad_option_is_refused_before_an_image_is_opened(tmp_path, monkeypatch, more, message):
    data = write_manifest(tmp_path / "data.csv", write_pictures(tmp_path, 4))
    monkeypatch.setattr(images, "find_problems", lambda *_: pytest.fail("images were opened"))
    more = [word.replace("{data}", str(data)) for word in more]
    assert_refused(partly_here("train", data, "--out", tmp_path / "run", *more), message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "{tmp}", "{home}/data.npz"], "is not a run: it has no config.json"),
        (["predict", "{tmp}/none", "{home}/data.npz"], "is not a run"),
        (["evaluate", "{home}/run", "{tmp}/none.npz"], "no data at"),
        (["evaluate", "{home}/run", "{home}/data.npz", "--part", "dev"], "no part 'dev'"),
        (["predict", "{home}/run", "{tmp}/none"], "no data at"),
        (["predict", "{home}/run", "{home}/data.npz", "--out", "{home}/data.npz/x"], "cannot"),
        (["compare", "{home}/data.npz", "--out", "{home}/data.npz/x"], "cannot create folder"),
        (["pack", "{home}/data.npz", "--out", "{home}/data.npz/x"], "cannot create folder"),
        (["check", "{home}/data.npz", "--out", "{home}/data.npz/x"], "cannot create folder"),
        (
            ["suggest", "{home}/run", "{home}/data.npz", "--out", "{home}/data.npz/x.csv"],
            "cannot create folder",
        ),
        (["predict", "{home}/run", "{home}/data.npz", "--out", "{tmp}"], "cannot write"),
        (["check", "{tmp}/none.csv"], "no data at"),
        (["check", "{tmp}"], "no known format"),
        (["ablate", "{home}/data.npz", "--method", "an"], "no parts to remove"),
        (["traine"], "No such command"),
        (["train", "{home}/data.npz"], "Missing option '--out'"),
    ],
)
def test_a_bad_call_is_refused(home, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    before = files_of(home)
    filled = [word.format(home=home, tmp=tmp_path) for word in arguments]
    assert_refused(partly_here(*filled), message)
    assert files_of(home) == before
    assert list(tmp_path.iterdir()) == []


def test_a_message_and_nothing_else_in_a_real_process(tmp_path):
    answer = really("train", tmp_path / "none.csv", "--out", tmp_path / "run")
    assert answer == Answer(2, "", f"partly: no data at {tmp_path / 'none.csv'}\n")


def test_a_table_of_the_wrong_columns_is_refused(home, tmp_path):
    rows, labels = problem(50)
    np.savez(tmp_path / "d.npz", X_test=rows, Y_test=labels[:, :3], names=["a", "b", "label 1"])
    answer = partly_here("evaluate", home / "run", tmp_path / "d.npz")
    assert_refused(answer, "has no column for 3 of 4 labels: label 0, label 2, label 3")


def test_the_version():
    answer = partly_here("--version")
    assert (answer.code, answer.out) == (0, f"partly {__version__}\n")
