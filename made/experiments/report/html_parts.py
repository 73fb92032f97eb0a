"""Pieces of HTML. Whatever comes from outside is escaped here, and nowhere else is text put between tags."""

import base64
import io
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from made.experiments.report.model import SAID, SEVERAL

_PNG = b"\x89PNG\r\n\x1a\n"
_DPI = 200  # of the figures; they are shown in their size on paper


def words(value: Any) -> str:
    """A value as plain text: lists with commas, None and truth as words."""
    if isinstance(value, list | tuple | range):
        return ", ".join(map(words, value))
    return {None: "none", True: "yes", False: "no"}[value] if value is None or isinstance(value, bool) else str(value)


def prose(text: str) -> str:
    """Paragraphs; what stands between backticks is code.

    >>> prose("`a<b` holds")
    '<p><code>a&lt;b</code> holds</p>'
    """
    parts = [part.strip() for part in text.split("\n\n") if part.strip()]
    return "".join("<p>" + re.sub("`([^`]+)`", r"<code>\1</code>", escape(part)) + "</p>" for part in parts)


def badge(kind: str, count: int | None = None) -> str:
    """A verdict by symbol, words and colour, with how many there are of it where that is given."""
    symbol, text = SAID[kind]
    text = text if count is None else f"{count} {text if count == 1 else SEVERAL[kind]}"
    return f'<span class="verdict {kind}"><span aria-hidden="true">{symbol}</span> {text}</span>'


def anchor(prefix: str, name: str) -> str:
    """A name as part of an address within the page."""
    return f"{prefix}-{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-').lower()}"


def data(content: Any, name: str) -> str:
    """Plain data for the page's scripts. Nothing in it can end the element or be read as markup.

    >>> "</script>" in data(["</script>"], "x")[:-9]
    False
    """
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json" id="{escape(name)}">{text}</script>'


def source(content: bytes, kind: str = "png") -> str:
    """The content of an image as its own address."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def figure(caption: str, png: bytes, alt: str) -> str:
    """A figure of matplotlib with its caption; wider than the screen, it scrolls."""
    if not png.startswith(_PNG):
        raise ValueError(f"A figure must be PNG, but these {len(png)} bytes start with {png[:8]!r}: use plot.png(fig).")
    width, height = (int.from_bytes(png[at : at + 4], "big") * 96 // _DPI for at in (16, 20))
    image = f'<img src="{source(lean(png))}" width="{width}" height="{height}" alt="{escape(alt)}" class="paper">'
    return f'<figure>{wide(image, "Figure")}<figcaption class="within">{escape(caption)}</figcaption></figure>'


def lean(png: bytes) -> bytes:
    """The same picture with a palette of 256 colours, a third of the size; as it is where that gains nothing."""
    from PIL import Image

    held = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(held, "PNG", optimize=True)
    return min(png, held.getvalue(), key=len)


def table(header: Sequence[Any], rows: Sequence[Sequence[Any]], label: str = "Table") -> str:
    """A table whose first column names its rows."""
    head = "".join(f'<th scope="col">{escape(words(cell))}</th>' for cell in header)
    top = f"<thead><tr>{head}</tr></thead>" if any(words(cell) for cell in header) else ""
    lines = []
    for first, *rest in (row for row in rows if len(row)):
        cells = [f'<th scope="row">{escape(words(first))}</th>', *(_cell(cell) for cell in rest)]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return wide(f"<table>{top}<tbody>{''.join(lines)}</tbody></table>", label)


def _cell(cell: Any) -> str:
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        text = words(cell)
        kind = ' class="long"' if len(text) > 40 else ""
        return f"<td{kind}>{escape(text)}</td>"
    return f'<td class="number">{cell if isinstance(cell, int) else format(cell, ".4g")}</td>'


def wide(inside: str, label: str) -> str:
    """Something that may be wider than a small screen: it scrolls by itself, by keyboard too."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(label)}">{inside}</div>'


def details(title: str, inside: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{inside}</details>"


def settings(given: Mapping[str, Mapping[str, Any]]) -> str:
    """What all runs share, once; then for each label only what is its own."""
    flat = {label: dict(_flat(description)) for label, description in given.items()}
    first = next(iter(flat.values()))
    shared = {path for path in first if all(path in one and one[path] == first[path] for one in flat.values())}
    common = [(path, first[path]) for path in first if path in shared]
    own = [
        (label, "\n".join(f"{path} = {value}" for path, value in one.items() if path not in shared))
        for label, one in flat.items()
    ]
    rest = table(("run", "its own settings"), own, "Settings of each run") if any(text for _, text in own) else ""
    return table(("shared by all runs", "value"), common, "Settings that all runs share") + rest


def provenance(facts: Mapping[str, Any]) -> str:
    """What made the runs, as a table."""
    spoken = {"wall_s": "wall time, seconds", "dirty": "uncommitted changes"}
    return table(
        ("", ""), [(spoken.get(key, key.replace("_", " ")), words(x)) for key, x in facts.items()], "Provenance"
    )


def _flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    """A tree of dicts and lists as (dotted path, value) pairs; short lists of plain values stay whole."""
    if isinstance(value, Mapping) and value:
        return [pair for key, part in value.items() for pair in _flat(part, f"{path}.{key}" if path else str(key))]
    if isinstance(value, list | tuple) and any(isinstance(part, Mapping | list | tuple) for part in value):
        return [pair for i, part in enumerate(value) for pair in _flat(part, f"{path}[{i}]")]
    return [(path or "value", words(value))]
