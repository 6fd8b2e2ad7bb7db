"""HTML pages that need no network: templates, embedded pictures, and a policy for browsers.

Text is escaped, pictures are embedded, and browsers are told to run no script but `page.js`.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import shlex
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from blackout.cli.metrics_file import label
from blackout.cli.run_results import place_label, score_cards
from blackout.component import leaves
from blackout.errors import escaped
from blackout.files import creating, replacing
from blackout.safe_reading import open_regular

MAX_PICTURE_BYTES = 400_000  # larger pictures are made smaller
MAX_ANIMATION_BYTES = 4_000_000
REDUCED_SIDE = 1000  # pixels of the longer side of a picture that was made smaller
WEBP_QUALITY = 80
MAX_DESCRIPTION = 2000  # characters of a picture's description
# characters that no page shows, but for tabs and ends of lines
CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
PICTURE_CACHE = 512  # pictures that are remembered for the next page of a run


def _format_value(value: Any) -> Any:
    """Return a value as a page shows it; control and invalid characters of text are escaped."""
    if isinstance(value, float):
        return f"{value:.5g}"
    return CONTROL_CHARACTERS.sub(_escape_match, value) if type(value) is str else value


def _escape_match(match: re.Match[str]) -> str:
    return escaped(match[0])


def _allow_breaks(name: str) -> Markup:
    """Return a name with places where a narrow screen may break it."""
    return Markup("_<wbr>").join(name.split("_"))


def _read_asset(name: str) -> Markup:
    """Return a file of this package, which is not escaped."""
    return Markup((Path(__file__).with_name("templates") / name).read_text(encoding="utf-8"))


def _content_policy(**contents: str) -> str:
    """Return the content security policy of pages with this style and script."""
    rules = ["default-src 'none'", "img-src data:", "base-uri 'none'", "form-action 'none'"]
    for kind, content in contents.items():
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        rules.append(f"{kind}-src 'sha256-{digest}'")
    return "; ".join(rules)


STYLE = _read_asset("page.css")
SCRIPT = _read_asset("page.js")
POLICY = _content_policy(style=STYLE, script=SCRIPT)
PAGES = Environment(
    loader=PackageLoader("blackout.cli"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    finalize=_format_value,
)
PAGES.filters |= {
    "leaves": leaves,
    "quoted": shlex.quote,
    "breakable": _allow_breaks,
    "label": label,
}
PAGES.globals |= {
    "style": STYLE,
    "script": SCRIPT,
    "policy": Markup(POLICY),
    "place_label": place_label,
    "score_cards": score_cards,
    "refresh": None,
}


def render_page(template: str, **content: Any) -> bytes:
    """Return the page of a template, in UTF-8."""
    return PAGES.get_template(template).render(content).encode("utf-8", "backslashreplace")


def save_page(template: str, path: Path, *, is_new: bool = False, **content: Any) -> None:
    """Write the page of a template, to a new file if `is_new`; see `creating`."""
    page = render_page(template, **content)
    with (creating if is_new else replacing)(path) as part:
        part.write_bytes(page)


class Picture(NamedTuple):
    """A picture inside a page."""

    source: str  # data: address with the whole picture
    title: str
    description: str
    width: int
    height: int


def load_picture(path: Path, title: str, run: Path) -> Picture | None:
    """Return a picture file of a run, made smaller if it is large; None if it cannot be read."""
    # The page is written without a picture that is missing or damaged. A decoder of damaged files
    # raises errors of nearly any type.
    with suppress(Exception):
        status = path.stat()
        return _load_picture(path, title, run, (status.st_mtime_ns, status.st_size))
    return None


@lru_cache(maxsize=PICTURE_CACHE)
def _load_picture(path: Path, title: str, run: Path, stamp: tuple[int, int]) -> Picture:
    """Read a picture; `stamp`, its time and size, makes the cache forget pictures that changed."""
    with open_regular(path, run) as content, Image.open(content, formats=("PNG", "WEBP")) as image:
        width, height = image.size
        kind = str(image.format).lower()
        description = str(path.relative_to(run))
        text = image.info.get("Description")
        if isinstance(text, str) and text:
            description = f"{text[:MAX_DESCRIPTION]} ({description})"
        is_animation = getattr(image, "is_animated", False)
        if stamp[1] <= (MAX_ANIMATION_BYTES if is_animation else MAX_PICTURE_BYTES):
            content.seek(0)
            data = content.read()
        else:
            image.thumbnail((REDUCED_SIDE, REDUCED_SIDE))
            kind = "webp"
            file = io.BytesIO()
            image.convert("RGB").save(file, kind, quality=WEBP_QUALITY)
            data = file.getvalue()
            width, height = image.size
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return Picture(source, title, description, width, height)
