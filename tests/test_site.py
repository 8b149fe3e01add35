"""The documentation site: it builds without a warning, has the pages that code writes, and asks
nobody else for anything; and the walk through its links finds what is broken."""

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from builders import environment
from partly import cli, losses, methods

ROOT = Path(__file__).parents[1]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")

SITE = ROOT / "docs" / "site"

pytest.importorskip("material")  # of the extra [docs], like the rest of what the site needs
problems = runpy.run_path(str(SITE / "crawl.py"))["problems"]
to_markdown = runpy.run_path(str(SITE / "docstrings.py"))["to_markdown"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env=environment() | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_links_lead_somewhere_and_nothing_is_fetched(site):
    assert problems(site) == []


def test_every_method_has_a_page_with_its_options_and_the_card_of_its_loss(site):
    for name in methods.available():
        page = text_of(site / "methods" / f"{name}.html")
        for option in methods.get(name).options:
            assert f"<code>{option}</code>" in page, f"{name}: {option}"
        assert 'id="the-card-of-' in page, name
        assert f'href="methods/{name}.html"' in text_of(site / "methods.html")


def test_every_command_is_on_the_page_of_the_command_line(site):
    page = text_of(site / "commands.html")
    for name, command in typer.main.get_command(cli.app).commands.items():
        assert f'id="partly-{name}"' in page
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert f"<code>{parameter.opts[0]}</code>" in page, parameter.opts
    assert "<td>passes over the data</td>\n<td>12</td>" in page


def test_every_loss_is_in_the_api_with_its_example(site):
    page = text_of(site / "api" / "partly.losses.html")
    for name in losses.__all__:
        assert f'id="partly.losses.{name}"' in page, name
    assert 'gp">&gt;&gt;&gt; </span>' in page  # examples are code, not quotations of quotations


def test_every_document_is_in_the_navigation(site):
    written = {file.stem for file in (ROOT / "docs").glob("*.md")}
    missing = [name for name in written if not (site / f"{name}.html").is_file()]
    assert not missing
    guide = text_of(site / "images.html")
    assert 'href="examples.html" class="md-nav__link"' in guide


def test_formulas_are_drawn_without_a_script(site):
    page = text_of(site / "losses.html")
    assert page.count("<math") > 50
    assert "arithmatex" not in page
    assert "\\mathcal" not in page


def test_links_that_leave_the_documents_lead_to_sources_and_data(site):
    assert (site / "source/benchmarks/results/step.json").is_file()
    assert "share_ticked" in text_of(site / "source/examples/pytorch_loop.py.html")
    assert 'href="api/partly.images.html"' in text_of(site / "images.html")


@pytest.fixture(scope="module")
def tab() -> Iterator[Any]:
    """A tab of a real browser."""
    playwright = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("no Chromium here")
    with playwright.sync_playwright() as running:
        options = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = running.chromium.launch(executable_path=BROWSER, args=options)
        yield browser.new_page(viewport={"width": 390, "height": 800})
        browser.close()


def test_search_works_from_the_disk_and_asks_nobody(site, tab):
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto((site / "index.html").as_uri())
    tab.click('label[for="__search"]:visible')
    tab.locator(".md-search__input").press_sequentially("calibration")
    found = tab.locator(".md-search-result__meta")
    found.filter(has_text="matching documents").wait_for()
    assert int(found.inner_text().split()[0]) > 2
    assert [url for url in asked if not url.startswith("file:")] == []


@pytest.mark.parametrize("page", ["index", "losses", "results", "methods/partly", "api/index"])
def test_no_page_is_wider_than_a_phone(page, site, tab):
    tab.goto((site / f"{page}.html").as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") == 390


# --- docstrings as Markdown -----------------------------------------------------------------------


def test_what_is_written_for_an_editor_becomes_markdown():
    text = """A sum. What enters: a, and what
leaves: b.

a [N]: the first, of
several lines.
b: the second

short    in a table
longer   as well

>>> 1 + 1
2"""
    assert to_markdown(text).split("\n\n") == [
        "A sum. What enters: a, and what\nleaves: b.",
        "- `a [N]`: the first, of\n  several lines.\n- `b`: the second",
        "```text\nshort    in a table\nlonger   as well\n```",
        "```pycon\n>>> 1 + 1\n2\n```",
    ]


# --- the walk -------------------------------------------------------------------------------------


def write_site(folder: Path, body: str) -> Path:
    (folder / "deep").mkdir()
    (folder / "index.html").write_text(f"<h1 id=top>Start</h1>{body}")
    (folder / "deep" / "page.html").write_text('<a href="../index.html#top">back</a>')
    return folder


@pytest.mark.parametrize(
    "body",
    [
        '<a href="deep/page.html">there</a>',
        '<a href="#top">up</a>',
        '<a href="https://example.org/nowhere">elsewhere, when clicked</a>',
        '<link rel="canonical" href="https://example.org">',
        '<img src="data:image/png;base64,AA">',
    ],
)
def test_the_walk_has_nothing_to_say_of_what_is_right(body, tmp_path):
    assert problems(write_site(tmp_path, body)) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('<a href="gone.html">x</a>', "index.html links to gone.html, which is not there"),
        ('<a href="deep/page.html#no">x</a>', "page.html#no: that page has no such place"),
        ('<a href="#no">x</a>', "index.html links to #no: that page has no such place"),
        ('<img src="gone.png">', "index.html links to gone.png, which is not there"),
        ('<script src="https://example.org/a.js"></script>', "fetches https://example.org/a.js"),
        ('<link href="//example.org/a.css">', "fetches //example.org/a.css"),
    ],
)
def test_the_walk_finds_what_is_wrong(body, said, tmp_path):
    found = problems(write_site(tmp_path, body))
    assert len(found) == 1
    assert said in found[0]


def test_the_walk_reads_style_sheets_and_wants_pages(tmp_path):
    assert problems(tmp_path) == [f"{tmp_path} has no page"]
    write_site(tmp_path, "")
    (tmp_path / "style.css").write_text('a { background: url("https://example.org/a.png") }')
    assert problems(tmp_path) == ['style.css fetches https://example.org/a.png"']
