"""What Dreamer's model makes of what happened, in the report: videos that it continues, and returns that it expects."""

import csv
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

FILM, _RETURNS = "dream-seed*.gif", "dreams.csv"
_SIDE, _ROOM, _BELOW = 160, 60, 34  # of the field of points, to its left and below it
ALT = "Truth, what the model makes of five observations and then actions alone, and their difference"


Returns = Sequence[tuple[float, float]]  # (paid, imagined) of windows of the replay


def returns(folder: Path) -> Returns:
    """What `made train` left of them; nothing where the file is not what it should be."""
    try:
        with open(folder / _RETURNS, encoding="utf-8", newline="") as file:
            pairs = [(float(row["paid"]), float(row["imagined"])) for row in csv.DictReader(file)]
    except (OSError, ValueError, LookupError, TypeError):
        pairs = []
    return tuple(pair for pair in pairs if np.isfinite(pair).all())


def scatter(returns: Returns, who: str) -> str:
    """Imagined against paid returns, a point a window; on the dashed line they are equal."""
    values = np.asarray(returns, float)
    low, high = float(values.min()), float(values.max())
    room = 0.05 * max(high - low, 1e-6)
    low, high = low - room, high + room
    at = (values - low) / (high - low) * _SIDE
    dots = "".join(f'<circle cx="{_ROOM + x:.1f}" cy="{_SIDE - y:.1f}" r="3"/>' for x, y in at)
    ends = [f"{end:.2g}" for end in (low + room, high - room)]
    words = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}">{word}</text>'
        for x, y, anchor, word in (
            (_ROOM, _SIDE + 14, "start", ends[0]),
            (_ROOM + _SIDE, _SIDE + 14, "end", ends[1]),
            (_ROOM + _SIDE / 2, _SIDE + 28, "middle", "paid"),
            (_ROOM - 5, _SIDE, "end", ends[0]),
            (_ROOM - 5, 10, "end", ends[1]),
            (_ROOM - 5, _SIDE / 2, "end", "imagined"),
        )
    )
    thin = 'fill="none" stroke="currentColor" opacity="0.4"'
    field = f'<rect x="{_ROOM}" y="0" width="{_SIDE}" height="{_SIDE}" {thin}/>'
    line = f'<line x1="{_ROOM}" y1="{_SIDE}" x2="{_ROOM + _SIDE}" y2="0" {thin} stroke-dasharray="4 3"/>'
    title = escape(f"Returns that the model imagines against those paid, {len(values)} windows: {who}")
    size = f'viewBox="0 -4 {_ROOM + _SIDE + 4} {_SIDE + _BELOW + 4}" width="{_ROOM + _SIDE + 4}"'
    drawn = f'<g fill="currentColor" font-size="10">{words}<g opacity="0.7">{dots}</g></g>'
    return f'<svg {size} role="img" aria-label="{title}"><title>{title}</title>{field}{line}{drawn}</svg>'
