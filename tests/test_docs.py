"""The documents: their code runs, their links lead somewhere, nothing that exists is missing."""

import ast
import doctest
import inspect
import json
import re
import runpy
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch

import partly
from partly import arena, losses, methods, readers

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
HELPERS = {"balance", "penalty", "large_losses", "spa_probability", "surprise"}


def snippets(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("name", ["README.md", "docs/losses.md", "docs/scaling.md"])
def test_the_code_of_a_page_runs_from_top_to_bottom(name):
    code = snippets(ROOT / name)
    assert code
    scope = {"logits": torch.randn(2, 4), "labels": torch.tensor([[1, 0, -1, -1], [-1, 1, 0, -1]])}
    for snippet in code:
        exec(snippet, scope)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_methods_page_is_what_the_registry_says():
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert page == methods.to_markdown(), "run `make format`"


def test_formats_page_is_what_the_readers_say():
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    assert page == readers.to_markdown(), "run `make format`"


def test_the_arena_is_what_its_json_says():
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    stored = json.loads((ROOT / "benchmarks" / "results" / "arena.json").read_text())
    shown = page.split("benchmarks/results/arena.json -->\n")[1].split("<!-- end of the arena")[0]
    assert shown == arena.to_markdown(stored)


@pytest.mark.parametrize("name", sorted(set(losses.__all__) - HELPERS))
def test_every_loss_has_a_card_with_its_signature(name):
    page = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
    card = page.split(f"### `{name}`")[1].split("\n### ")[0]
    for parameter in inspect.signature(getattr(losses, name)).parameters:
        assert parameter in card.split("**Equation**")[0]


def test_the_page_of_costs_says_what_was_measured() -> None:
    """docs/performance.md and its plots are what benchmarks/page.py makes of the results."""
    page = runpy.run_path(str(ROOT / "benchmarks" / "page.py"))
    text = page["PAGE"].read_text(encoding="utf-8")
    names = {found[1] for found in page["MARKED"].findall(text)}
    assert names == {section.__name__ for section in page["SECTIONS"]}
    assert text == page["filled"](text, page["read_results"]()), "make it anew: benchmarks/page.py"
    assert {path.stem for path in (ROOT / "docs" / "plots").glob("*.svg")} >= set(page["PLOTS"])


# --- examples in docstrings -----------------------------------------------------------------------


def modules_with_examples() -> list[str]:
    source = ROOT / "src"
    files = [f for f in sorted(source.rglob("*.py")) if ">>> " in f.read_text(encoding="utf-8")]
    names = [".".join(file.relative_to(source).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_run(name):
    outcome = doctest.testmod(import_module(name))
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_every_name_to_rely_on_has_an_example():
    names = [getattr(partly, name) for name in partly.__all__]
    public = [value for value in names if inspect.isclass(value) or inspect.isfunction(value)]
    public += [getattr(losses, name) for name in losses.__all__] + [methods.available]
    without = [value.__qualname__ for value in public if ">>> " not in (value.__doc__ or "")]
    assert not without


def rooms_of(page: str) -> dict[str, int]:
    """The rooms of the architecture's table, and how far down each stands."""
    lines = page.split("| room |")[1].split("## Decisions")[0].splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    return {
        name.rstrip("/"): place
        for place, cell in enumerate(cells)
        for name in re.findall(r"`([^`]+)`", cell)
    }


def imports_of(file: Path) -> Iterator[str]:
    """The rooms that a module imports anything from, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "partly":
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("partly."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (n.name.split(".")[1] for n in node.names if n.name.startswith("partly."))


def test_a_room_imports_only_from_rooms_above_it():
    rooms = rooms_of((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    source = ROOT / "src" / "partly"
    own = {"__init__.py", "__main__.py"}
    files = [f for f in source.rglob("*.py") if f.parent != source or f.name not in own]
    found = {file: file.relative_to(source).parts[0].removesuffix(".py") for file in files}
    assert set(found.values()) == set(rooms)
    wrong = {
        (room, other)
        for file, room in found.items()
        for other in imports_of(file)
        if other in rooms and rooms[other] > rooms[room]
    }
    assert wrong == {("metrics", "ranking")}  # the one that the page names
