"""The sections of a report on disk: report.json, and the figures beside it as PNG.

A store with every run can be too large to travel; the digest keeps what the page shows, with what made it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from made.core import safe_files

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
_FIGURES = {1: "1", 3: "4.1", 4: "4.1", 5: "4.1", 6: "4.2", 7: "5.1", 8: "5.2", 9: "5.2", 10: "5.3"}


def paper_section(where: str) -> str:
    """The part that a place such as "Fig. 3, Sec. 4.1" is in; the section counts before the figure.

    >>> [paper_section(x) for x in ("Fig. 3, Sec. 4.1", "Theorem 1", "Fig. 1", "Sec. 3.2, App. A", "a letter")]
    ['4.1', '3', '1', '3', '']
    """
    if found := re.search(r"Sec\. (\d+)(\.\d+)?", where):
        whole = found[1] + (found[2] or "")
        return next((name for name in (whole, found[1]) if name in PARTS), "")
    if found := re.search(r"Fig\. (\d+)", where):
        return _FIGURES.get(int(found[1]), "")
    return "3" if re.search(r"\b(Eqs?\.|Proposition|Theorem|Remark|Lemma|Algorithm|Alg\.|App\. A)", where) else ""


NAME, FORMAT = "report.json", 1
_PLAIN = ("name", "title", "intro", "claims", "tables", "settings", "provenance", "maps", "curves")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\.png")


def write(folder: Path, sections: Sequence[Section], images: Sequence[Sequence[Path]]) -> Path:
    """Write report.json, whole or not at all; `images` are the files of each section's figures, in that folder."""
    kept = []
    for section, files in zip(sections, images, strict=True):
        shown = zip(files, section.figures, strict=True)
        figures = [{"file": path.name, "caption": caption, "alt": alt} for path, (caption, _, alt) in shown]
        kept.append(
            {name: getattr(section, name) for name in _PLAIN} | {"figures": figures, "earlier": section.earlier}
        )
    lines = ",\n".join(json.dumps(one, default=list, separators=(",", ":")) for one in kept)  # a section a line
    text = f'{{"format": {FORMAT}, "sections": [\n{lines}\n]}}\n'
    return safe_files.write_atomic(folder / NAME, text)


def read(folder: Path) -> list[tuple[Section, list[Path]]]:
    """The sections of an earlier report with the files of their figures, each marked as earlier; [] without one."""
    path = folder / NAME
    if not path.exists():
        return []
    try:
        held = json.loads(path.read_text("utf-8"))
        if held["format"] > FORMAT:
            raise ValueError(f"its format is {held['format']}, and this made reads up to {FORMAT}: update made")
        return [_section(folder, one) for one in held["sections"]]
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}): delete it, or write the report to another folder."
        ) from None


def _section(folder: Path, held: dict[str, Any]) -> tuple[Section, list[Path]]:
    files = [folder / _named(one["file"]) for one in held["figures"]]
    pairs = zip(files, held["figures"], strict=True)
    figures = [(one["caption"], file.read_bytes(), one["alt"]) for file, one in pairs]
    commit = held["provenance"].get("commit")
    commits = [str(one)[:10] for one in (commit if isinstance(commit, list) else [commit]) if one]
    mark = held["earlier"] or f"an earlier report{f', runs of commit {commits[0]}' if commits else ''}"
    return Section(**{name: held[name] for name in _PLAIN}, figures=figures, earlier=mark), files


def _named(file: str) -> str:
    """A plain file name; whatever the digest says, nothing outside its folder is opened."""
    if not _FILE.fullmatch(file):
        raise ValueError(f"{file!r} is not the name of a figure beside it")
    return file
