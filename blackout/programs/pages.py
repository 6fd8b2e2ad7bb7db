"""Self-contained HTML pages: text is escaped, pictures are inside, nothing is loaded and nothing is run."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from blackout.addresses import leaves

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1, h2 { line-height: 1.2 }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ddd }
img { max-width: 100%; height: auto; image-rendering: pixelated }
figure { display: inline-block; margin: 0 1rem 1rem 0; vertical-align: top }
figcaption { color: #666; font-size: .85rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: .9rem }
td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #eee }
td.number { text-align: right; font-variant-numeric: tabular-nums }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto }
"""
_LARGEST = 400_000
"""Bytes of a picture that is embedded as it is; a larger one is made smaller."""
_WIDEST = 1000


def page(title: str, sections: Iterable[tuple[str, str]], lead: str = "") -> str:
    """A whole page of (heading, HTML) sections; empty ones are left out."""
    shown = [f"<section><h2>{text(name)}</h2>{content}</section>" for name, content in sections if content]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body><h1>{text(title)}</h1>{paragraph(lead)}\n"
        + "\n".join(shown)
        + "\n</body></html>\n"
    )


def text(value: Any) -> str:
    """A plain value, escaped; numbers with five digits."""
    return html.escape(f"{value:.5g}" if isinstance(value, float) else str(value))


def paragraph(words: str) -> str:
    """A paragraph of plain text, if there is any."""
    return f"<p>{text(words)}</p>" if words else ""


def code(lines: str) -> str:
    """Plain text as it stands."""
    return f"<pre>{text(lines)}</pre>"


def table(rows: Iterable[Sequence[Any]], head: Sequence[Any] = ()) -> str:
    """Rows of plain values, numbers to the right; nothing for no rows."""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    above = f"<thead><tr>{''.join(f'<th>{text(name)}</th>' for name in head)}</tr></thead>" if head else ""
    return f'<div class="wide"><table>{above}<tbody>{body}</tbody></table></div>' if body else ""


def fields(content: Mapping[str, Any]) -> str:
    """Nested mappings as a table of dotted names and values."""
    return table(leaves(content))


def folded(summary: str, content: str) -> str:
    """What is shown when its summary is clicked; nothing for no content."""
    return f"<details><summary>{text(summary)}</summary>{content}</details>" if content else ""


def picture(path: Path, caption: str | None = None) -> str:
    """A picture file inside the page; nothing where there is none, or none that can be read."""
    try:
        content, kind = _content(path)
    except (OSError, Image.DecompressionBombError):
        return ""
    return embedded(content, kind, path.name if caption is None else caption)


def embedded(content: bytes, kind: str, caption: str) -> str:
    """The bytes of a picture of that kind (png, webp) with a caption."""
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return f'<figure><img src="{source}" alt="{text(caption)}"><figcaption>{text(caption)}</figcaption></figure>'


def _content(path: Path) -> tuple[bytes, str]:
    """The file as it is if it is small; else, made smaller, as WebP."""
    with Image.open(path) as image:
        if path.stat().st_size <= _LARGEST:
            return path.read_bytes(), str(image.format).lower()
        image.thumbnail((_WIDEST, _WIDEST))
        with io.BytesIO() as file:
            image.convert("RGB").save(file, "webp", quality=80)
            return file.getvalue(), "webp"


def _cell(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f'<td class="number">{text(value)}</td>' if number else f"<td>{text(value)}</td>"
