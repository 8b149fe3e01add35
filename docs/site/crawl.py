"""Every link of a built site leads somewhere, and no page asks another server for anything.

What enters: the folder of a built site. What leaves: sentences about what is wrong.

    python docs/site/crawl.py build/site
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """anchors: what can be linked to. links: what is clicked. loaded: what a browser fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        if tag in LOADED and found.get(LOADED[tag]) and found.get("rel") != "canonical":
            self.loaded.append(str(found[LOADED[tag]]))


def problems(site: Path) -> list[str]:
    """What is wrong with a site: links into nothing, things fetched from elsewhere."""
    site = site.resolve()
    pages = {file: Page(file.read_text(encoding="utf-8")) for file in sorted(site.rglob("*.html"))}
    if not pages:
        return [f"{site} has no page"]
    found = [each for file, page in pages.items() for each in _problems_of(site, file, page, pages)]
    for style in sorted(site.rglob("*.css")):
        outside = re.findall(r"url\(\s*[\"']?((?:https?:)?//[^)]*)", style.read_text("utf-8"))
        found += [f"{style.relative_to(site)} fetches {each}" for each in outside]
    return found


def _problems_of(site: Path, file: Path, page: Page, pages: dict[Path, Page]) -> list[str]:
    name = file.relative_to(site)
    found = [f"{name} fetches {each}" for each in page.loaded if urlsplit(each).netloc]
    for link in [*page.links, *page.loaded]:
        parts = urlsplit(link)
        if parts.netloc or parts.scheme:
            continue
        # 404.html alone has links from the site's root, for it is shown anywhere.
        start = site if parts.path.startswith("/") else file.parent
        target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else file
        if target.is_dir():
            target = target / "index.html"
        if not target.is_file():
            found.append(f"{name} links to {link}, which is not there")
        elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
            found.append(f"{name} links to {link}: that page has no such place")
    return found


if __name__ == "__main__":
    said = problems(Path(sys.argv[1]))
    sys.exit("\n".join(said) or None)
