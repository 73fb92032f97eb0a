"""The reproduction page: one HTML file with every claim, figure, curve, map and video, which needs nothing else.

This module has the sections of a report, and report.json, which stores them: a store with every run can be too large
to publish. `collect` finds what is recorded, `charts` reads runs, and `page` fills the templates in `assets`, which
also has the style and the scripts of the page.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from made.core import safe_files
from made.experiments.types import Effect

SAID = {  # kind: (symbol, words)
    "yes": ("✓", "holds"),
    "no": ("✗", "does not hold"),
    "unknown": ("?", "undecided at this scale"),
    "unrun": ("○", "not recorded"),
}
SEVERAL = {"yes": "hold", "no": "do not hold", "unknown": "undecided at this scale", "unrun": "not recorded"}


class Figure(NamedTuple):
    """A figure that is stored as PNG, with its caption and its text for those who cannot see it."""

    file: Path
    caption: str
    alt: str

    @property
    def png(self) -> bytes:
        return self.file.read_bytes()


class Section(NamedTuple):
    """One experiment of a report.

    Args:
        claims: dicts with the fields of `ClaimResult` and `text`, the claim as a sentence.
        tables: (title, header, rows).
        settings: the configuration of each label.
        provenance: what `provenance.merged` returns.
        maps: what `charts.visit_maps` returns; scripts of the page render it, like the next one.
        curves: what `charts.learning_curves` returns.
        earlier: the report that the section is copied from, where the runs are not given; else "".

    >>> Section("lock", "Bidirectional lock").claims
    ()
    """

    name: str
    title: str
    intro: str = ""
    figures: Sequence[Figure] = ()
    claims: Sequence[Mapping[str, Any]] = ()
    tables: Sequence[tuple[str, Sequence[Any], Sequence[Sequence[Any]]]] = ()
    settings: Mapping[str, Mapping[str, Any]] = {}
    provenance: Mapping[str, Any] = {}
    maps: Mapping[str, Any] = {}
    curves: Mapping[str, Any] = {}
    earlier: str = ""


def kind_of(claim: Mapping[str, Any]) -> str:
    """The verdict of a claim: yes, no, unknown, or unrun, which has no seed and so is not the same as undecided.

    >>> kind_of({"holds": None, "seeds": 0}), kind_of({"holds": None, "seeds": 5})
    ('unrun', 'unknown')
    """
    holds = claim.get("holds")
    if holds is None:
        return "unrun" if claim.get("seeds") == 0 else "unknown"
    return "yes" if holds else "no"


def effects_of(claim: Mapping[str, Any]) -> list[Effect]:
    """The numbers that the verdict of a claim rests on."""
    return [Effect.from_dict(one) for one in claim.get("effects", ())]


NAME, FORMAT = "report.json", 2
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\.png")


def write_json(folder: Path, sections: Sequence[Section]) -> Path:
    """Write report.json atomically; the figures are in the same folder."""
    stored = [
        {**section._asdict(), "figures": [{**one._asdict(), "file": one.file.name} for one in section.figures]}
        for section in sections
    ]
    lines = ",\n".join(json.dumps(one, default=list, separators=(",", ":")) for one in stored)  # a section a line
    text = f'{{"format": {FORMAT}, "sections": [\n{lines}\n]}}\n'
    return safe_files.write_atomic(folder / NAME, text)


def read_json(folder: Path) -> list[Section]:
    """The sections of an earlier report, each marked as earlier; [] without one."""
    path = folder / NAME
    if not path.exists():
        return []
    try:
        stored = json.loads(path.read_text("utf-8"))
        if stored["format"] != FORMAT:
            raise ValueError(f"its format is {stored['format']}, and this version of made reads format {FORMAT}")
        return [_section(folder, one) for one in stored["sections"]]
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}): delete it, or write the report to another folder."
        ) from None


def _section(folder: Path, stored: Mapping[str, Any]) -> Section:
    figures = [Figure(**{**one, "file": folder / one["file"]}) for one in stored["figures"]]
    for one in stored["figures"]:
        if not _FILE.fullmatch(one["file"]):  # nothing outside the folder is opened
            raise ValueError(f"{one['file']!r} is not the name of a figure in the same folder")
    for claim in stored["claims"]:
        claim["claim"] = int(claim["claim"])
        if not all(one.text for one in effects_of(claim)):  # raises where an effect has no numbers
            raise ValueError(f"claim {claim['claim']} has an effect without a number")
    commit = stored["provenance"].get("commit")
    commits = [str(one)[:10] for one in (commit if isinstance(commit, list) else [commit]) if one]
    earlier = stored["earlier"] or f"an earlier report{f', runs of commit {commits[0]}' if commits else ''}"
    return Section(**{**stored, "figures": figures, "earlier": earlier})
