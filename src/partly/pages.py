"""Pages: one HTML file that needs nothing else, neither a network nor further files.

What enters: a template's name and what to fill it with. What leaves: the page, with its style and
pictures inside, for light and dark, a phone and paper.
"""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from partly.errors import first_few
from partly.experiments import format_cell, label

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURE_SIZE = 320  # pixels, the longer side


def render(template: str, **content: Any) -> str:
    """A page of `templates/`, filled in; what stands in `content` can never become markup."""
    templates = PackageLoader("partly")
    page = Environment(loader=templates, autoescape=True, undefined=StrictUndefined)
    page.trim_blocks = page.lstrip_blocks = True
    page.filters |= {"points": points, "setting": label, "cell": format_cell, "few": first_few}
    page.filters |= {"short": short}
    return page.get_template(template).render(content)


def points(share: float | None) -> str:
    """0.587 as `58.7`; a dash for what could not be computed."""
    return "–" if share is None or math.isnan(share) else f"{100 * share:.1f}"


def short(number: float | None) -> str:
    """A number to sort by or to draw with: six digits are enough, none for what is not there."""
    return "" if number is None else f"{number:.6g}"


def options(chosen: Mapping[str, Any], without: Sequence[str] = ()) -> list[tuple[str, str]]:
    """What was chosen, in words, for the list at a page's end."""
    return [
        (name.replace("_", " "), _in_words(value))
        for name, value in chosen.items()
        if name not in without
    ]


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_in_words(item)}" for name, item in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not set" if value is None else str(value)


def data_address(picture: "Image", size: int = PICTURE_SIZE) -> str:
    """An address that is the whole picture, at most `size` pixels long."""
    small, file = picture.convert("RGB"), io.BytesIO()
    small.thumbnail((size, size))
    small.save(file, format="JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
