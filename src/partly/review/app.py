"""The addresses that the page asks.

What enters: HTTP requests that the guard let through. What leaves: the page's files, images by
their row, questions, and answers: those that are given are on the disk before they are confirmed.
"""

import hashlib
from importlib.resources import files
from typing import Annotated, Any, Literal

from fastapi import Body, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError, field_validator

from partly.answers import Answer, moment
from partly.errors import DataError
from partly.images import ImageProblem
from partly.labels import POSITIVE
from partly.review.choosing import Kind, Order, Shown, Subject, gallery, queue
from partly.review.guard import Door, guarded, knows, secret_of
from partly.review.ledger import LONGEST_NAME, Wish
from partly.review.pictures import Pictures
from partly.review.presence import Looking, looking
from partly.suggest import Question

PAGE = {
    "/": ("index.html", "text/html"),
    "/review.css": ("review.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    **{
        f"/{name}.js": (f"{name}.js", "text/javascript")
        for name in ("review", "answers", "questions", "gallery", "elements")
    },
}
LOGIN = "/api/login"
CONTEXT = 12  # other labels of an image that are named beside its questions

Column = Annotated[int | None, Query(ge=0)]
Tab = Annotated[str, Query(max_length=40)]


class Given(BaseModel):
    """One answer as it is sent. at: when it was given; undoes: that of the one taken back; seen:
    that of the one which stood there before."""

    image: str
    label: str
    value: Literal[1, 0, -1] | None
    by: Annotated[str, Field(max_length=LONGEST_NAME)] = ""
    at: Annotated[str, Field(max_length=40)]
    undoes: Annotated[str, Field(max_length=40)] | None = None
    seen: str | None = None

    @field_validator("at", "undoes")
    @classmethod
    def _moment(cls, text: str | None) -> str | None:
        return None if text is None else moment(text)

    def wish(self) -> Wish:
        value = None if self.value is None else int(self.value)
        answer = Answer(self.image, self.label, value, self.by.strip(), self.at)
        return Wish(answer, self.undoes, self.seen)


def application(subject: Subject, pictures: Pictures, door: Door, by: str = "") -> Any:
    """The whole server as an ASGI application. by: the name that answers carry unless changed."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _add_page(app)
    _add_login(app, door)
    _add_pictures(app, subject, pictures)
    look = looking()
    _add_questions(app, subject, look)
    _add_answers(app, subject, look)

    @app.get("/api/start")
    def start() -> dict[str, Any]:
        place = subject.ledger.follow()
        journal = hashlib.sha256(str(subject.ledger.path).encode()).hexdigest()[:16]
        return {
            "data": subject.name,
            "journal": journal,  # what a browser keeps its unsent answers under
            "labels": list(subject.labels),
            "images": len(subject.table),
            "by": by,
            "place": place,
            "people": subject.ledger.people(),
        }

    @app.exception_handler(RequestValidationError)
    async def strange(request: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"problem": _what_is_strange(error)}, 422)

    @app.exception_handler(DataError)
    async def full(request: Request, error: DataError) -> JSONResponse:
        return JSONResponse({"problem": str(error)}, 503)

    return guarded(app, door._replace(open=frozenset((*PAGE, LOGIN))))


def _what_is_strange(error: RequestValidationError | ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _add_page(app: FastAPI) -> None:
    """A fixed list of files: no name in an address ever becomes a path."""
    folder = files("partly.review") / "page"

    def serve(address: str, name: str, kind: str) -> None:
        content = (folder / name).read_bytes()

        @app.get(address)
        def page() -> Response:
            return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    for address, (name, kind) in PAGE.items():
        serve(address, name, kind)


def _add_login(app: FastAPI, door: Door) -> None:
    @app.post(LOGIN)
    def login(token: Annotated[str, Body(embed=True, max_length=1000)]) -> Response:
        if door.token is None:
            return JSONResponse({})
        if not knows(door.token, token):
            return JSONResponse({"problem": "this is not the token"}, 401)
        answer = JSONResponse({})
        secret = secret_of(door.token)
        answer.set_cookie(door.cookie, secret, httponly=True, samesite="strict", max_age=30 * 86400)
        return answer


def _add_pictures(app: FastAPI, subject: Subject, pictures: Pictures) -> None:
    @app.get("/image/{row}")
    def large(row: int) -> Response:
        return picture("image", row)

    @app.get("/thumb/{row}")
    def small(row: int) -> Response:
        return picture("thumb", row)

    def picture(size: str, row: int) -> Response:
        if not 0 <= row < len(subject.table):
            return JSONResponse({"problem": f"there is no image {row}"}, 404)
        try:
            content = pictures(size, row)
        except ImageProblem as problem:
            return JSONResponse({"problem": f"{subject.table.ids[row]}: {problem}"}, 422)
        kept = {"cache-control": "private, max-age=600"}
        return Response(content, media_type="image/jpeg", headers=kept)


def _add_questions(app: FastAPI, subject: Subject, look: Looking) -> None:
    @app.get("/api/queue")
    def asked(kind: Kind, column: Column = None, tab: Tab = "") -> Response:
        subject.ledger.follow()
        if column is not None and column >= len(subject.labels):
            return _no_such_label(column)
        images = _images(subject, queue(subject, kind, column))
        return JSONResponse({"images": images, "looked_at": look(tab, None)})

    @app.get("/api/gallery")
    def tiles(
        column: Annotated[int, Query(ge=0)],
        order: Order = "likely",
        show: Shown = "open",
        after: int | None = None,
    ) -> Response:
        subject.ledger.follow()
        if column >= len(subject.labels):
            return _no_such_label(column)
        if after is not None and not 0 <= after < len(subject.table):
            return JSONResponse({"problem": f"there is no image {after}"}, 404)
        rows, left = gallery(subject, column, order=order, show=show, after=after)
        return JSONResponse({"tiles": [_cell(subject, row, column) for row in rows], "left": left})


def _no_such_label(column: int) -> Response:
    return JSONResponse({"problem": f"there is no label number {column}"}, 404)


def _images(subject: Subject, asked: list[Question]) -> list[dict[str, Any]]:
    """Questions as the page wants them: by image."""
    images: dict[int, dict[str, Any]] = {}
    for one in asked:
        if one.row not in images:
            images[one.row] = {
                "row": one.row,
                "image": subject.table.ids[one.row],
                "there": _there(subject, one.row),
                "questions": [],
            }
        images[one.row]["questions"].append(_cell(subject, one.row, one.column))
    return list(images.values())


def _there(subject: Subject, row: int) -> list[str]:
    """Some labels that the data says the image has."""
    columns = (subject.data[row] == POSITIVE).nonzero()[0][:CONTEXT]
    return [subject.labels[column] for column in columns]


def _cell(subject: Subject, row: int, column: int) -> dict[str, Any]:
    image, label = subject.cell(row, column)
    answer = subject.ledger.answer(image, label)
    return {
        "row": row,
        "image": image,
        "label": label,
        "probability": round(float(subject.probabilities[row, column]), 4),
        "known": int(subject.data[row, column]),
        "answer": None if answer is None else _public(answer),
    }


def _public(answer: Answer) -> dict[str, Any]:
    return {
        "image": answer.image,
        "label": answer.label,
        "value": answer.value,
        "by": answer.by,
        "at": answer.at,
    }


def _add_answers(app: FastAPI, subject: Subject, look: Looking) -> None:
    ledger = subject.ledger

    @app.get("/api/answers")
    def news(
        since: Annotated[int, Query(ge=0)], tab: Tab = "", row: Column = None
    ) -> dict[str, Any]:
        """What anybody has answered since a place in the journal. tab, row: who asks, and which
        image is looked at there."""
        place = ledger.follow()
        return {
            "anew": since > place,  # the journal is another one: the page begins again
            "place": place,
            "answers": [_public(answer) for answer in ledger.since(since)],
            "people": ledger.people(),
            "looked_at": look(tab, row),
        }

    @app.post("/api/answers")
    def give(
        answers: Annotated[list[dict[str, Any]], Body(embed=True, max_length=500)],
    ) -> dict[str, Any]:
        """Write answers down. What is replied, to each, is true of the disk.

        A strange one is refused by itself: it must not keep those that wait behind it.
        """
        read = [_given(answer) for answer in answers]
        wishes = [given.wish() for given in read if isinstance(given, Given)]
        taken = iter(ledger.add(wishes) if wishes else [])
        problems = [next(taken) if isinstance(given, Given) else given for given in read]
        standing = [ledger.answer(str(a.get("image")), str(a.get("label"))) for a in answers]
        return {
            "outcomes": [
                {"problem": problem, "now": None if now is None else _public(now)}
                for problem, now in zip(problems, standing, strict=True)
            ],
            "people": ledger.people(),
        }


def _given(answer: dict[str, Any]) -> Given | str:
    """An answer as it was sent, or what is strange about it."""
    try:
        return Given.model_validate(answer)
    except ValidationError as error:
        return _what_is_strange(error)
