"""Pages of the site that nobody writes, and where the files of the project lie in it.

What enters: the registry of methods, the cards of docs/losses.md, the modules of the package, the
files that pages link to. What leaves: Markdown by its place in the site. None of it is stored:
what the code says stands in the code.
"""

import inspect
import re
from pathlib import Path
from posixpath import dirname, normpath, relpath

import partly
from partly import methods

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "partly"
FRONT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".csv": "text"}

FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
ROOM = re.compile(r"`(\w+)/?`")
NAMED_AS_FILE = re.compile(r"\[(?:\w+/)*([\w-]+)\.md\](?=\()")
LINK = re.compile(r"\]\(([^)\s#]*)(#[^)\s]*)?\)")


# --- links ----------------------------------------------------------------------------------------


def place_in_site(path: str) -> str:
    """Where a file or folder of the project, by its path from the root, is found in the site."""
    file = ROOT / path
    if path in FRONT:
        return FRONT[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if file.suffix == ".py" and file.is_relative_to(PACKAGE):
        return f"api/{module_of(file)}.md"
    if file.is_dir():
        return f"source/{path}/index.md"
    return f"source/{path}.md" if file.suffix in LANGUAGES else f"source/{path}"


def linked_files(markdown: str, path: str) -> set[str]:
    """Files of the project, from its root, that a page at `path` links to."""
    prose = FENCE.sub("", markdown)
    found = {normpath(f"{dirname(path)}/{target}") for target, _ in LINK.findall(prose) if target}
    return {each.lstrip("/") for each in found if (ROOT / each.lstrip("/")).exists()}


def relink(markdown: str, path: str, page: str) -> str:
    """The text of the project's file `path` with links as they are right on a page of the site."""

    def to_site(prose: str) -> str:
        return LINK.sub(replace, NAMED_AS_FILE.sub(r"[\1]", prose))

    def replace(link: re.Match[str]) -> str:
        target, anchor = link[1], link[2] or ""
        if "://" in target or target.startswith("mailto:"):
            return link[0]
        file = normpath(f"{dirname(path)}/{target}").lstrip("/") if target else path
        place = place_in_site(file) if (ROOT / file).exists() else target
        if place == page:
            return f"]({anchor})" if anchor else link[0]
        return f"]({relpath(place, dirname(page) or '.')}{anchor})"

    parts = FENCE.split(markdown)  # every other one is code, which has no links
    return "".join(part if place % 2 else to_site(part) for place, part in enumerate(parts))


# --- methods --------------------------------------------------------------------------------------


def method_pages() -> dict[str, str]:
    """One page a method: what it is, its options, and the cards of its loss."""
    return {f"methods/{name}.md": _method_page(methods.get(name)) for name in methods.available()}


def _method_page(method: methods.Method) -> str:
    page = f"methods/{method.name}.md"
    summary = method.summary.replace("(docs/paper.md)", "([why](docs/paper.md))")
    sentences = [f"{summary[:1].upper()}{summary[1:]}."]
    if method.reference:
        sentences.append("A reference: comparisons train it on full labels.")
    if method.needs_expected_positives:
        sentences.append(
            "It uses the expected number of positives an image: `--expected-positives`, if known."
        )
    lines = [f"# `{method.name}`", "", *sentences, "", *_calls(method), "", *_options(method)]
    if method.name == "partly":
        lines += ["", "What it does and why: [the default method](docs/method.md)."]
    own = relink("\n".join(lines), "README.md", page)
    cards = [relink(_card(name), "docs/losses.md", page) for name in _cards_of(method.name)]
    return "\n\n".join([own, *cards]) + "\n"


def _calls(method: methods.Method) -> list[str]:
    return [
        "```",
        f"partly train DATA --out RUN --method {method.name}",
        "```",
        "",
        "```python",
        f'model = partly.PartialLabelClassifier("{method.name}").fit(X, Y)',
        "```",
    ]


def _options(method: methods.Method) -> list[str]:
    if not method.options:
        return ["It has no options."]
    lines = [
        "## Options",
        "",
        "On the command line `--set name=value`, in Python `options={…}`.",
        "",
    ]
    searched = bool(method.search)
    lines += ["| option | default |" + " searched in an arena |" * searched]
    lines += ["|---|---|" + "---|" * searched]
    for name, value in method.options.items():
        tried = ", ".join(f"`{each}`" for each in method.search.get(name, ()))
        lines.append(f"| `{name}` | `{value}` |" + f" {tried} |" * searched)
    if method.parts:
        parts = "; ".join(
            f"{part} (`{' '.join(f'{name}={value}' for name, value in change.items())}`)"
            for part, change in method.parts.items()
        )
        lines += ["", f"`partly ablate` removes its parts one by one: {parts}."]
    return lines


def _cards_of(method: str) -> list[str]:
    special = {"paper": ["paper_loss"], "partly": ["observed", "consistent"]}
    return special.get(method, [method.split("-")[0]])


def _card(name: str) -> str:
    """The card of a loss, a level up."""
    _, found, rest = (DOCS / "losses.md").read_text(encoding="utf-8").partition(f"### `{name}`\n")
    assert found, f"docs/losses.md has no card `{name}`"
    return f"## The card of `{name}`\n" + re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0]


def link_methods(markdown: str) -> str:
    """The table of methods with a link in each line."""
    known = methods.available()
    return re.sub(
        r"^\| `([\w-]+)` ",
        lambda row: f"| [`{row[1]}`](methods/{row[1]}.md) " if row[1] in known else row[0],
        markdown,
        flags=re.MULTILINE,
    )


# --- API ------------------------------------------------------------------------------------------


def module_of(file: Path) -> str:
    """partly.losses.paper, of a file below src."""
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def modules() -> list[str]:
    """The package's modules."""
    found = [module_of(file) for file in PACKAGE.rglob("*.py")]
    return sorted(name for name in found if "._" not in name and name != "partly")


def module_navigation() -> list[dict[str, object]]:
    """The modules' pages by their short names, those of a package together."""
    rooms: dict[str, list[str]] = {}
    for name in modules():
        rooms.setdefault(name.split(".")[1], []).append(f"api/{name}.md")
    return [{room: found if found[1:] else found[0]} for room, found in rooms.items()]


def link_rooms(markdown: str) -> str:
    """The table of rooms with a link to each one's page."""
    known = {name.removeprefix("partly."): f"api/{name}.md" for name in modules()}

    def link(room: re.Match[str]) -> str:
        return f"[{room[0]}]({known[room[1]]})" if room[1] in known else room[0]

    lines = markdown.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("| `"):
            _, first, rest = line.split("|", 2)
            lines[number] = f"|{ROOM.sub(link, first)}|{rest}"
    return "\n".join(lines) + "\n"


def api_pages() -> dict[str, str]:
    """The names to rely on, and one page a module."""
    pages = {f"api/{name}.md": f"# `{name}`\n\n::: {name}\n" for name in modules()}
    return {"api/index.md": _names_to_rely_on()} | pages


def _names_to_rely_on() -> str:
    lines = [
        "# The names to rely on",
        "",
        "`import partly` has these. The rest lies in the modules of the list beside.",
        "",
        "| name | |",
        "|---|---|",
    ]
    for name in partly.__all__:
        value = getattr(partly, name)
        if inspect.ismodule(value):
            target = f"{value.__name__}.md"
        elif inspect.isclass(value) or inspect.isfunction(value):
            target = f"{value.__module__}.md#{value.__module__}.{value.__qualname__}"
        else:
            lines.append(f"| `partly.{name}` | {value} |")
            continue
        lines.append(f"| [`partly.{name}`]({target}) | {_first_sentence(value)} |")
    return "\n".join(lines) + "\n"


def _first_sentence(value: object) -> str:
    return (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


# --- sources --------------------------------------------------------------------------------------


def source_page(path: str) -> str:
    """A file of the project that a page links to, or what lies in a folder, as a page."""
    file = ROOT / path
    if not file.is_dir():
        code = file.read_text(encoding="utf-8")
        return f"# {path}\n\n`````{LANGUAGES[file.suffix]}\n{code}`````\n"
    page = place_in_site(path)
    names = [each for each in sorted(file.iterdir()) if each.is_file()]
    links = [f"- [{each.name}]({each.name})" for each in names]
    return relink("\n".join([f"# {path}", "", *links, ""]), f"{path}/", page)
