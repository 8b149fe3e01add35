"""The examples: each runs as a process of its own, as users run it, and its scores are to believe.

Chance gives a mAP of about 0.19 on two digits of ten, and of 0.35 on the topics of the texts.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from builders import environment

EXAMPLES = Path(__file__).parents[1] / "examples"
DATA = {"digits.py"}  # imported by the others
LINES = 80  # an example is read in one sitting


def run(name: str) -> str:
    """What an example prints."""
    arguments = [sys.executable, str(EXAMPLES / name)]
    ended = subprocess.run(arguments, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def score(said: str, line: str, metric: str = "mAP") -> float:
    """The number behind a metric in the line that begins so."""
    found = re.search(rf"^{line}\b.*?\b{metric} (\d\.\d+)", said, re.MULTILINE)
    assert found, said
    return float(found[1])


def test_pytorch_loop():
    said = run("pytorch_loop.py")
    assert score(said, "blank is unknown") > score(said, "blank is no") > 0.6
    assert score(said, "blank is unknown", "F1") > score(said, "blank is no", "F1") + 0.3


def test_lightning_module():
    pytest.importorskip("lightning")
    said = run("lightning_module.py")
    assert score(said, "test") == score(said, "validation") > 0.8
    assert score(said, "test", "F1") > 0.7


def test_huggingface_trainer():
    pytest.importorskip("transformers")
    said = run("huggingface_trainer.py")
    assert score(said, "test") == score(said, "validation") > 0.8
    assert score(said, "test", "F1") > 0.7


def test_sklearn_text():
    said = run("sklearn_text.py")
    assert score(said, "blank is unknown") > score(said, "blank is no") + 0.02
    assert score(said, "partly on new texts") > 0.9
    assert said.endswith("worth it: service, price\n")


def test_every_example_is_tested_short_and_says_how_to_run_it():
    files = sorted(EXAMPLES.glob("*.py"))
    tests = Path(__file__).read_text(encoding="utf-8")
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert text.count("\n") < LINES, file.name
        if file.name not in DATA:
            assert f"def test_{file.stem}()" in tests
            assert f"    python examples/{file.name}\n" in text.split('"""')[1]
    assert {file.name for file in files} > DATA
