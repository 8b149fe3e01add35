"""Docstrings as Markdown. They are written to be read in an editor: this says it to a browser.

What enters: a docstring. What leaves: the same with its examples and its tables as code, and its
lines about parameters as a list.
"""

import re
from typing import Any

from griffe import Extension, Object

PARAMETER = re.compile(r"((?:\w+, )*[a-z]\w*(?: \[[^\]]+\])*): (?=\S)")
TABLE = re.compile(r"\S {3,}\S")


class Readable(Extension):
    """What mkdocstrings calls for everything it finds in the code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text: str) -> str:
    """Paragraph by paragraph, for a blank line ends whatever there is."""
    return "\n\n".join(_paragraph(each) for each in re.split(r"\n\s*\n", text))


def _paragraph(text: str) -> str:
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.startswith(">>> "):
            before = [_paragraph("\n".join(lines[:number]))] if number else []
            return "\n\n".join([*before, _code("pycon", lines[number:])])
    if any(TABLE.search(line) for line in lines) and not text.startswith(("-", " ")):
        return _code("text", lines)
    return "\n".join(_parameters(lines))


def _parameters(lines: list[str]) -> list[str]:
    found: list[str] = []
    listed = False
    for line in lines:
        begins = not found or found[-1].endswith((".", ":", ";"))  # or a sentence goes on here
        parameter = PARAMETER.match(line) if begins else None
        if parameter and not listed and found:
            found.append("")  # Markdown wants it in front of a list
        listed = listed or parameter is not None
        if parameter:
            line = f"- `{parameter[1]}`: {line[parameter.end() :]}"
        elif listed:
            line = f"  {line}"
        found.append(line)
    return found


def _code(language: str, lines: list[str]) -> str:
    return "\n".join([f"```{language}", *lines, "```"])
