"""Who may ask for what: what stands between the page and everybody else's.

What enters: a request's method, path and headers. What leaves: None, or a status and a sentence.

- The name under which the server is asked for must be one of its own. A foreign page whose name is
  made to point here (DNS rebinding) comes with its own name.
- A foreign page cannot write: that takes a header which browsers send across origins only if the
  server allows it, and this one never does; and an origin, where it is sent, must be ours.
- What is sent is small: its length is said before, and no byte more is read.
- With a token, everything but the empty page needs it, as a cookie or a header. Tokens are compared
  in constant time, and stand neither in an address nor in a log.
"""

import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, NamedTuple

from partly.errors import ConfigError

LARGEST_BODY = 2**20  # bytes
SHORTEST_TOKEN = 16  # characters
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]


class Door(NamedTuple):
    """names: hosts under which the server may be asked for, beside addresses. everywhere: it
    listens to other machines too. token: what they must know. open: addresses that need none."""

    names: frozenset[str]
    everywhere: bool = False
    token: str | None = None
    cookie: str = "partly-review"
    open: frozenset[str] = frozenset()


def door_of(host: str, token: str | None, names: Iterable[str] = ()) -> Door:
    """How to guard a server that listens to `host`; a token is made where one is needed."""
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise ConfigError(
            f"the token is short enough to be guessed: use {SHORTEST_TOKEN} characters or more, or "
            "leave it out elsewhere than on this machine, and one is made"
        )
    everywhere = not is_loopback(host)
    own = {"localhost", *names}
    if everywhere:
        own |= {host, socket.gethostname(), socket.getfqdn(), f"{socket.gethostname()}.local"}
        token = token or secrets.token_urlsafe(24)
    return Door(frozenset(name.lower() for name in own), everywhere, token)


def is_loopback(host: str) -> bool:
    """Does only this machine reach it?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def secret_of(token: str) -> str:
    """What the cookie holds: it opens the door, and does not tell the token."""
    return hmac.new(token.encode(), b"partly review", hashlib.sha256).hexdigest()


def knows(token: str, given: str) -> bool:
    """Is this the token? In the same time whatever it is."""
    return hmac.compare_digest(token.encode(), given.encode("utf-8", "replace"))


def refusal(
    door: Door, method: str, path: str, headers: Mapping[str, str]
) -> tuple[int, str] | None:
    """The status and the reason with which a request is turned away; None if it is not."""
    host = headers.get("host", "")
    if not _is_own(door, host):
        return 403, "this server does not go by that name; --name adds one"
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and path != "/":
        return 403, "another page asked for this"
    if method == "POST":
        refused = _refused_to_write(host, headers)
        if refused:
            return refused
    elif method not in ("GET", "HEAD"):
        return 405, "only GET and POST"
    if door.token is not None and path not in door.open and not _is_let_in(door, headers):
        return 401, "the token is missing or wrong"
    return None


def _is_own(door: Door, host: str) -> bool:
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower() in door.names:
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return door.everywhere or address.is_loopback


def _refused_to_write(host: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
    origin = headers.get("origin")
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        return 403, "another page asked for this"
    if headers.get("x-partly") != "review":
        return 403, "the header X-Partly: review is missing"
    if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return 415, "answers come as application/json"
    length = headers.get("content-length", "")
    # A body in pieces has no length, whatever a second header says of it.
    if "transfer-encoding" in headers or not length.isdecimal():
        return 411, "the length is missing"
    if int(length) > LARGEST_BODY:
        return 413, f"more than {LARGEST_BODY:,} bytes at once"
    return None


def _is_let_in(door: Door, headers: Mapping[str, str]) -> bool:
    assert door.token is not None
    kind, _, given = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and knows(door.token, given.strip()):
        return True
    cookies = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    wanted = secret_of(door.token)
    return any(name == door.cookie and knows(wanted, value) for name, _, value in cookies)


def guarded(application: Application, door: Door) -> Application:
    """The application behind the door; every answer carries `HEADERS`."""

    async def guard(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        pairs = (
            (name.decode("latin-1"), text.decode("latin-1")) for name, text in scope["headers"]
        )
        refused = refusal(door, scope["method"], scope["path"], dict(pairs))
        if refused is None:
            await application(scope, _at_most(LARGEST_BODY, receive), send_with_headers)
        else:
            await _refuse(send_with_headers, *refused)

    return guard


def _at_most(most: int, receive: Any) -> Any:
    """Whoever sends more than so many bytes is listened to no longer."""
    taken = 0

    async def bounded() -> MutableMapping[str, Any]:
        nonlocal taken
        if taken > most:
            return {"type": "http.disconnect"}
        message: MutableMapping[str, Any] = await receive()
        taken += len(message.get("body", b""))
        return message if taken <= most else {"type": "http.disconnect"}

    return bounded


async def _refuse(send: Any, status: int, reason: str) -> None:
    import json

    content = json.dumps({"problem": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
