"""Effect sizes with their intervals, read back from the words of a verdict, and drawn one below the other.

A verdict is a sentence in which each interval stands as `Interval.__str__` writes it: "vi 0.05 [0.04, 0.06]".
"""

import math
import re
from html import escape
from typing import NamedTuple

_NUMBER = r"-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf)"
_INTERVAL = re.compile(rf"({_NUMBER}) \[({_NUMBER}), ({_NUMBER})\]")
_RATIO = re.compile(r"\bover\b|\btimes\b")  # frames of one method over those of another: 1 is no effect


class Effect(NamedTuple):
    """One estimate with the ends of its interval, in the digits that the verdict has."""

    what: str  # of several effects, such as "average return, MADE minus Hoeffding"
    of: str  # which of them, such as "H10-p0.1 vi"
    estimate: str
    low: str
    high: str

    @property
    def text(self) -> str:
        return f"{self.estimate} [{self.low}, {self.high}]"


def found(observed: str) -> list[Effect]:
    """Every interval of a sentence, with the words that lead to it.

    >>> [one[:3] for one in found("return, A minus B: vi 0.5 [0.4, 0.6]; q -1e-3 [-2e-3, 0]. Also C")]
    [('return, A minus B', 'vi', '0.5'), ('return, A minus B', 'q', '-1e-3')]
    """
    effects, end, what = [], 0, ""
    for match in _INTERVAL.finditer(observed):
        before = observed[end : match.start()].strip()
        heading, colon, label = before.rpartition(": ")
        if colon:
            what = re.split(r"[;.]\s+", heading.strip("; "))[-1]
        elif before.endswith(":"):
            what, label = re.split(r"[;.]\s+", before.strip(":; "))[-1], ""
        label = re.split(r"(?:^|[;,.])\s+|^[;,.]", label)[-1].strip()
        effects.append(Effect(what, label, *match.groups()))
        end = match.end()
    return effects


def drawn(effects: list[Effect]) -> str:
    """A table with a row for each effect: its name, its interval on a common scale, its numbers."""
    parts = []
    for what in dict.fromkeys(effect.what for effect in effects):
        group = [effect for effect in effects if effect.what == what]
        none = 1.0 if _RATIO.search(what) else 0.0
        rows = "".join(_row(effect, *_ends(group, none), none) for effect in group)
        named = f"<caption>{escape(what)}; the line marks {none:g}</caption>" if what else ""
        head = (
            '<tr><th scope="col">of</th><th scope="col">interval</th><th scope="col">estimate [95% interval]</th></tr>'
        )
        parts.append(f'<table class="effects">{named}<thead class="unseen">{head}</thead><tbody>{rows}</tbody></table>')
    return "".join(parts)


def _ends(effects: list[Effect], none: float) -> tuple[float, float]:
    """A common scale that holds every finite end and the line of no effect, with some room."""
    numbers = [float(x) for effect in effects for x in effect[2:]]
    kept = [none, *(x for x in numbers if math.isfinite(x))]
    low, high = min(kept), max(kept)
    room = 0.04 * (high - low or 1.0)
    return low - room, high + room


def _row(effect: Effect, low: float, high: float, none: float) -> str:
    def at(x: float) -> float:
        return round(100 * min(max((x - low) / (high - low), 0.0), 1.0), 2)

    a, b, middle = at(float(effect.low)), at(float(effect.high)), at(float(effect.estimate))
    picture = (
        '<svg viewBox="0 0 100 14" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        f'<line class="none" x1="{at(none)}" x2="{at(none)}" y1="0" y2="14"/>'
        f'<line class="span" x1="{a}" x2="{b}" y1="7" y2="7"/>'
        f'<line class="middle" x1="{middle}" x2="{middle}" y1="2" y2="12"/></svg>'
    )
    return (
        f'<tr><th scope="row">{escape(effect.of)}</th><td class="bar">{picture}</td><td>{escape(effect.text)}</td></tr>'
    )
