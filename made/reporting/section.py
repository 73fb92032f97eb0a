"""What the page knows of one experiment, as plain data, and what a verdict is called."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

SAID = {  # kind: (symbol, words)
    "yes": ("✓", "holds"),
    "no": ("✗", "does not hold"),
    "unknown": ("?", "cannot tell at this scale"),
    "unrun": ("○", "not recorded"),
}
SEVERAL = {"yes": "hold", "no": "do not hold", "unknown": "cannot be told at this scale", "unrun": "not recorded"}


class Section(NamedTuple):
    """One experiment of a report.

    `figures` holds (caption, PNG, text for those who cannot see it); `claims` dicts with the keys claim,
    name, where, holds (True, False, or None: this scale cannot tell), observed, scale, seeds and command;
    `tables` (title, header, rows); `settings` the description of the run of each label; `provenance` what
    `provenance.merged` returns. `maps` (`heatmaps.of`) and `curves` (`curves.of`) are drawn by the page's scripts.
    `earlier` says, where it is not empty, that this comes from an earlier report and from which.

    >>> Section("lock", "Bidirectional lock").claims
    ()
    """

    name: str
    title: str
    intro: str = ""
    figures: Sequence[tuple[str, bytes, str]] = ()
    claims: Sequence[Mapping[str, Any]] = ()
    tables: Sequence[tuple[str, Sequence[Any], Sequence[Sequence[Any]]]] = ()
    settings: Mapping[str, Mapping[str, Any]] = {}
    provenance: Mapping[str, Any] = {}
    maps: Mapping[str, Any] = {}
    curves: Mapping[str, Any] = {}
    earlier: str = ""


def verdict(holds: bool | None) -> tuple[str, str, str]:
    """The kind, the symbol and the words of a verdict: never by colour alone."""
    kind = "unknown" if holds is None else "yes" if holds else "no"
    return kind, *SAID[kind]


def kind_of(claim: Mapping[str, Any]) -> str:
    """yes, no, unknown, or unrun: without a seed nothing was recorded, which is not the same as undecided.

    >>> kind_of({"holds": None, "seeds": 0}), kind_of({"holds": None, "seeds": 5})
    ('unrun', 'unknown')
    """
    holds = claim.get("holds")
    if holds is None and claim.get("seeds") == 0:
        return "unrun"
    return verdict(None if holds is None else bool(holds))[0]


def numbered(claim: Mapping[str, Any]) -> tuple[int | None, str]:
    """The number of a claim and its sentence, from "Claim 8: MADE beats Hoeffding.".

    >>> numbered({"claim": "Claim 8: MADE beats Hoeffding."})
    (8, 'MADE beats Hoeffding.')
    """
    text = str(claim.get("claim", ""))
    found = re.match(r"Claim (\d+): (.*)", text, re.S)
    return (int(found[1]), found[2]) if found else (None, text)
