"""The data of a report: sections with their claims, how verdicts are named, and report.json, which stores them.

A store with every run can be too large to publish. report.json and the PNG files next to it hold what the page shows,
with its provenance.
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


SENTENCES: Mapping[int, tuple[str, str]] = {  # by claim, the most important first: if it holds, and if it does not
    33: (
        "On MiniGrid the density of MADE matters: with the same first-visit mask, RND needs more frames.",
        "On MiniGrid the first-visit mask matters more than the density of MADE: with the mask, RND and even a "
        "constant bonus come close.",
    ),
    35: (
        "The VAE released with the paper ranks recent experience as true counts do.",
        "The VAE released with the paper is not a density of recent experience.",
    ),
}


def findings(sections: Sequence[Section], most: int = 3) -> list[dict[str, Any]]:
    """What matters most of the decided claims: a sentence for each, with the range of its effects.

    After those of `SENTENCES` come claims that do not hold, then claims that do.
    """
    claims = [claim for section in sections for claim in section.claims if claim["holds"] is not None]
    order = list(SENTENCES)
    claims.sort(key=lambda one: (order.index(one["claim"]) if one["claim"] in order else 99, bool(one["holds"])))
    found = []
    for claim in claims[:most]:
        plain = (claim["text"], f"The paper's claim does not hold here: {claim['text']}")
        text = SENTENCES.get(claim["claim"], plain)[not claim["holds"]]
        found.append({"claim": claim["claim"], "text": text, "evidence": _evidence(claim)})
    return found


def _evidence(claim: Mapping[str, Any]) -> list[str]:
    """For each unit with several effects, their range, or both of two."""
    lines, effects = [], effects_of(claim)
    for unit in dict.fromkeys(one.unit for one in effects):
        same = [one for one in effects if one.unit == unit]
        text = "; ".join(f"{one.name} {one.text}".strip() for one in same)
        if len(same) > 2:
            low, high = (find(one.value for one in same) for find in (min, max))
            text = f"{low:.2g} to {high:.2g} ({len(same)} comparisons, {claim['seeds']} seeds)"
        if len(same) > 1 or len(effects) == 1:
            lines.append(f"{unit}: {text}" if unit else text)
    return lines[:2]


PARTS = {  # as the page's filter names them, in the paper's order
    "1": "1 Introduction",
    "3": "3 The objective and its theory",
    "4.1": "4.1 Bidirectional lock",
    "4.2": "4.2 Chain MDP",
    "5": "5 Deep rewards",
    "5.1": "5.1 MiniGrid",
    "5.2": "5.2 DeepMind Control",
    "5.3": "5.3 Dreamer",
    "6": "6 Related work",
    "": "elsewhere",
}
_THEORY = ("Eq", "Proposition", "Theorem", "Remark")


def paper_section(where: str) -> str:
    """The part that a reference such as "Fig. 3, Sec. 4.1" is in.

    >>> [paper_section(x) for x in ("Fig. 3, Sec. 4.1", "Theorem 1", "Fig. 1", "Sec. 3.2, App. A", "a letter")]
    ['4.1', '3', '1', '3', '']
    """
    found = re.search(r"Sec\. (\d+)(\.\d+)?", where)
    names = (found[0][5:], found[1]) if found else ("3",) if where.startswith(_THEORY) else ("1",) * (where == "Fig. 1")
    return next((name for name in names if name in PARTS), "")


NAME, FORMAT = "report.json", 2
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\.png")


def write(folder: Path, sections: Sequence[Section]) -> Path:
    """Write report.json atomically; the figures are in the same folder."""
    stored = [
        {**section._asdict(), "figures": [{**one._asdict(), "file": one.file.name} for one in section.figures]}
        for section in sections
    ]
    lines = ",\n".join(json.dumps(one, default=list, separators=(",", ":")) for one in stored)  # a section a line
    text = f'{{"format": {FORMAT}, "sections": [\n{lines}\n]}}\n'
    return safe_files.write_atomic(folder / NAME, text)


def read(folder: Path) -> list[Section]:
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
    figures = [Figure(folder / one["file"], one["caption"], one["alt"]) for one in stored["figures"]]
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
