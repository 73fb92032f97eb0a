"""Effect sizes of a claim with their intervals, drawn one below the other."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from made.experiments.types import Effect


def of(claim: Mapping[str, Any]) -> list[Effect]:
    """The effects of a claim; none of a claim that an older report holds."""
    return [Effect.from_dict(one) for one in claim.get("effects", ())]


def with_interval(effects: Sequence[Effect]) -> list[Effect]:
    """Those that can be drawn."""
    return [effect for effect in effects if math.isfinite(effect.low)]


def drawn(effects: Sequence[Effect]) -> str:
    """A table with a row for each effect: its name, its interval on a common scale, its numbers."""
    parts = []
    for what in dict.fromkeys(effect.unit for effect in effects):
        group = [effect for effect in effects if effect.unit == what]
        none = group[0].null
        rows = "".join(_row(effect, *_ends(group, none), none) for effect in group)
        named = f"<caption>{escape(what)}; the line marks {none:g}</caption>" if what else ""
        head = (
            '<tr><th scope="col">of</th><th scope="col">interval</th><th scope="col">estimate [95% interval]</th></tr>'
        )
        parts.append(f'<table class="effects">{named}<thead class="unseen">{head}</thead><tbody>{rows}</tbody></table>')
    return "".join(parts)


def _ends(effects: list[Effect], none: float) -> tuple[float, float]:
    """A common scale that holds every finite end and the line of no effect, with some room."""
    kept = [none, *(x for effect in effects for x in effect[1:4] if math.isfinite(x))]
    low, high = min(kept), max(kept)
    room = 0.04 * (high - low or 1.0)
    return low - room, high + room


def _row(effect: Effect, low: float, high: float, none: float) -> str:
    def at(x: float) -> float:
        return round(100 * min(max((x - low) / (high - low), 0.0), 1.0), 2)

    a, b, middle = at(effect.low), at(effect.high), at(effect.value)
    picture = (
        '<svg viewBox="0 0 100 14" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        f'<line class="none" x1="{at(none)}" x2="{at(none)}" y1="0" y2="14"/>'
        f'<line class="span" x1="{a}" x2="{b}" y1="7" y2="7"/>'
        f'<line class="middle" x1="{middle}" x2="{middle}" y1="2" y2="12"/></svg>'
    )
    name, text = escape(effect.name), escape(effect.text)
    return f'<tr><th scope="row">{name}</th><td class="bar">{picture}</td><td>{text}</td></tr>'
