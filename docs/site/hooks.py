"""What mkdocs does with the documents: the pages that code writes, links, formulas, and a check.

What enters: mkdocs' events. What leaves: a site without a broken link, that asks no other server
for anything.
"""

import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

import commands
import crawl
import pages

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
NOT_IN_NAV = InclusionLevel.NOT_IN_NAV
made: dict[str, str] = {}  # pages that code writes, by their place in the site


def on_config(config: Any) -> Any:
    """Every page finds its place in the navigation."""
    made.clear()
    made.update({"commands.md": commands.command_page()} | pages.method_pages() | pages.api_pages())
    named = re.findall(r"[\w./-]+\.md", str(config.nav))
    written = sorted(file.name for file in pages.DOCS.glob("*.md"))
    sections = {name: entries for entry in config.nav for name, entries in entry.items()}
    sections["Guide"] += [name for name in written if name not in named]
    sections["Methods"].append({"One by one": [n for n in made if n.startswith("methods/")]})
    sections["API"] += pages.module_navigation()
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add what is not in docs/: the front pages, the written ones, and the files they link to."""
    front = {place: (pages.ROOT / name).read_text("utf-8") for name, place in pages.FRONT.items()}
    for place, text in (front | made).items():
        files.append(File.generated(config, place, content=text))
    for path in sorted(_linked()):
        place = pages.place_in_site(path)
        if place in files.src_uris:
            continue
        if place.endswith(".md"):
            page = pages.source_page(path)
            files.append(File.generated(config, place, content=page, inclusion=NOT_IN_NAV))
        else:
            files.append(File.generated(config, place, abs_src_path=str(pages.ROOT / path)))
    return files


def _linked() -> set[str]:
    """Files and folders that a document links to, and what lies in those folders."""
    documents = [*pages.FRONT, *(f"docs/{file.name}" for file in pages.DOCS.glob("*.md"))]
    found: set[str] = set()
    for path in documents:
        found |= pages.linked_files((pages.ROOT / path).read_text("utf-8"), path)
    folders = [pages.ROOT / path for path in found if (pages.ROOT / path).is_dir()]
    inside = {file for folder in folders for file in folder.iterdir() if file.is_file()}
    return found | {file.relative_to(pages.ROOT).as_posix() for file in inside}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are right in the site; the tables of methods and rooms lead to their pages."""
    place = page.file.src_uri
    if place == "index.md":
        page.meta["hide"] = ["navigation"]  # it has the whole width: there is nothing beside it
    own = {site: name for name, site in pages.FRONT.items()}
    path = own.get(place, f"docs/{place}")
    if not (pages.ROOT / path).is_file():
        return markdown
    markdown = pages.relink(markdown, path, place)
    if place == "methods.md":
        return pages.link_methods(markdown)
    return pages.link_rooms(markdown) if place == "architecture.md" else markdown


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Formulas become MathML, which browsers draw without a script."""

    def draw(formula: re.Match[str]) -> str:
        kind = "inline" if formula[2] == "(" else "block"
        try:
            return convert(unescape(formula[3]), display=kind)
        except Exception as error:
            raise PluginError(f"{page.file.src_uri}: cannot read {formula[3]}: {error}") from None

    return FORMULA.sub(draw, html)


def on_post_build(config: Any) -> None:
    """Walk through what was built."""
    problems = crawl.problems(Path(config.site_dir))
    if problems:
        raise PluginError("\n".join(problems))
