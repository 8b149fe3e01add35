"""The page of the command line, from what `--help` is made of.

What enters: the commands as they are registered. What leaves: Markdown, a section a command.
"""

import re
from typing import Any

import typer

from partly import cli

DEFAULT = re.compile(r"(.*?)\s*(?:\[([^\[\]]+)\])?", re.DOTALL)  # a help may end with it


def command_page() -> str:
    """Every command: what it does, an example, its arguments and options as `--help` sorts them."""
    commands: dict[str, Any] = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    lines = ["# Command line", "", "What `partly --help` and the `--help` of each command say.", ""]
    lines += ["| command | |", "|---|---|"]
    for name, command in commands.items():
        lines.append(f"| [`partly {name}`](#partly-{name}) | {_first_line(command.help)} |")
    return "\n".join(lines + [line for each in commands.items() for line in _section(*each)]) + "\n"


def _first_line(text: str | None) -> str:
    return (text or "").split("\n\n")[0].replace("\n", " ")


def _section(name: str, command: Any) -> list[str]:
    lines = ["", f"## `partly {name}`", "", command.help or ""]
    boxes: dict[str, list[Any]] = {}
    for each in command.params:
        if each.name != "help" and not each.hidden:
            usual = "Arguments" if each.param_type_name == "argument" else "Options"
            boxes.setdefault(each.rich_help_panel or usual, []).append(each)
    for box, entries in boxes.items():
        lines += ["", f"| {box} | | default |", "|---|---|---|", *map(_row, entries)]
    return lines


def _row(entry: Any) -> str:
    spelt = [*entry.opts, *entry.secondary_opts]
    if entry.param_type_name == "argument":
        spelt = [entry.name.upper()]
    names = ", ".join(f"`{each}`" for each in spelt)
    said, default = DEFAULT.fullmatch(entry.help or "").groups()  # type: ignore[union-attr]
    if default is None and entry.default not in (None, False, ()) and not callable(entry.default):
        default = f"`{entry.default}`"
    return f"| {names} | {said} | {default or ''} |".replace("\n", " ")
