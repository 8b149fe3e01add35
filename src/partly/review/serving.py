"""The server of the review page, from its first to its last second.

What enters: a run, a data set, where to listen. What leaves: a page, then a summary of the answers
that were given.
"""

import errno
import getpass
import os
import socket
import sys
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from partly import answers, runs
from partly.checkpoint import read_json
from partly.errors import ConfigError, DataError, first_few, raise_if
from partly.labels import LabelTable
from partly.readers.common import counted
from partly.source import Source

PORT = 8765
PARTS = ("train", "validation", "test", "all")
PORT_TAKEN = (
    "--port 0 takes one that is free. But what a browser has not sent yet it sends to the port it "
    "was answered at: to have that too, end what listens there"
)

Say = Callable[[str], None]


def review_run(
    run: str | Path,
    data: str | Path | Source,
    *,
    labels: Sequence[str] = (),
    part: str = "train",
    budget: int = 500,
    by: str | None = None,
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str | None = None,
    names: Sequence[str] = (),
    open_browser: bool | None = None,
    device: str = "auto",
    say: Say = print,
) -> None:
    """Serve the page until Ctrl-C. names: further hosts under which it is asked for."""
    _check_installed()
    _check_choices(part, budget, port, by)
    from partly.review.guard import door_of

    door = door_of(host, token, names)
    listening = _listen(host, port)
    try:
        subject = subject_of(
            Path(run), Source.of(data), labels, part=part, budget=budget, device=device,
            say=say,
        )  # fmt: skip
        port = listening.getsockname()[1]
        door = door._replace(cookie=f"partly-review-{port}")
        _serve(listening, subject, door, _name(by, host), _address(host, port), open_browser, say)
    finally:
        listening.close()


def _check_installed() -> None:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise ConfigError("the review page needs FastAPI: pip install 'partly[review]'") from None


def _check_choices(part: str, budget: int, port: int, by: str | None) -> None:
    from partly.review.ledger import LONGEST_NAME

    problems = []
    if part not in PARTS:
        problems.append(f"--part is one of {', '.join(PARTS)}, not '{part}'")
    if budget < 1:
        problems.append(f"--budget is a number of questions, 1 or more, not {budget}")
    if not 0 <= port <= 65535:
        problems.append(f"--port is a number from 0 (any that is free) to 65535, not {port}")
    length = len(by or "")
    if length > LONGEST_NAME:
        problems.append(f"--by is a name of up to {LONGEST_NAME} characters, not of {length}")
    raise_if(problems, ConfigError)


def subject_of(
    run: Path,
    source: Source,
    labels: Sequence[str] = (),
    *,
    part: str = "train",
    budget: int = 500,
    device: str = "auto",
    say: Say = print,
) -> Any:
    """What the page is about: images that can be read, what is known and believed of them."""
    from partly.review.beliefs import believed
    from partly.review.choosing import Subject
    from partly.review.ledger import Ledger

    begun = (run / runs.WEIGHTS).is_file() and read_json(run / runs.CONFIG)
    if not begun or not begun.get("finished"):
        runs.load(run, "cpu")  # which says what is wrong with it
    known = read_json(run / runs.CONFIG)["labels"]
    unknown = [name for name in labels if name not in known]
    if unknown:
        raise ConfigError(
            f"the run in {run} has no label {first_few(unknown)}; it has {first_few(known)}"
        )
    journal = answers.journal_of(source.path)
    answers.read(journal)  # strange lines are named before anything else is done
    for sentence in answers.elsewhere(source.path):
        say(sentence)
    table = _part(replace(source, use_answers=False).read(), part, source)
    table = table.reorder(known, str(source.path))
    table, probabilities = believed(run, source, table, labels or known, device=device, say=say)
    ledger = Ledger(journal, table.ids, table.names)
    ledger.follow()
    name = source.name
    return Subject(name, table, probabilities, table.dense(), ledger, budget=budget)


def _part(table: LabelTable, part: str, source: Source) -> LabelTable:
    if table.paths is None:
        raise DataError(
            f"{source.path} has features and no images: there is nothing to look at. "
            "`partly suggest` writes its questions into a file instead"
        )
    found = table if part == "all" else table.part(part)
    if found is None:
        raise DataError(f"{source.path} has no part '{part}'; --part all takes every image")
    return found


def _listen(host: str, port: int) -> socket.socket:
    """The place to listen at, taken before any work is done."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        taken = error.errno == errno.EADDRINUSE
        hint = PORT_TAKEN if taken else "--host is a name of this machine"
        reason = error.strerror or error
        raise ConfigError(f"cannot listen at {host}, port {port}: {reason}; {hint}") from None
    return listening


def _name(by: str | None, host: str) -> str:
    """Whose answers these are unless the page is told otherwise."""
    from partly.review.guard import is_loopback

    if by is not None or not is_loopback(host):
        return by or ""  # people at other machines say their names themselves
    with suppress(Exception):  # not every account has a name
        return getpass.getuser()
    return ""


def _address(host: str, port: int) -> str:
    everywhere = host in ("0.0.0.0", "::")
    name = socket.gethostname() if everywhere else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/"


def _serve(
    listening: socket.socket,
    subject: Any,
    door: Any,
    by: str,
    address: str,
    open_browser: bool | None,
    say: Say,
) -> None:
    import uvicorn

    from partly.review.app import application
    from partly.review.pictures import pictures_of

    app = application(subject, pictures_of(subject.table.paths), door, by)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=3,
        server_header=False,
    )  # fmt: skip
    # What follows the # never leaves the browser: it stands in no log and no history of a proxy.
    full = address if door.token is None else f"{address}#token={quote(door.token, safe='')}"
    size = f"{counted(len(subject.table), 'image')}, {counted(len(subject.labels), 'label')}"
    say(f"{subject.name}: {size}; answers go to {subject.ledger.path}")
    say(f"open {full}   (Ctrl-C ends)")
    if open_browser if open_browser is not None else _has_a_screen():
        webbrowser.open(full)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])
    say(summary(subject))


def _has_a_screen() -> bool:
    """Is somebody sitting here, with a browser that opens beside the terminal?"""
    graphical = sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    return graphical and sys.stdout.isatty()


def summary(subject: Any) -> str:
    """What was answered while the server ran."""
    given = subject.ledger.given
    total = given[1] + given[0] + given[-1]
    if not total:
        return "no answers were given"
    parts = [f"{given[1]:,} yes", f"{given[0]:,} no", f"{given[-1]:,} cannot tell"]
    if given[None]:
        parts.append(f"{given[None]:,} taken back")
    return (
        f"{counted(total, 'answer')} given ({', '.join(parts)}), all in {subject.ledger.path}; "
        "`partly train` takes them in"
    )
