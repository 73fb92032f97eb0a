"""The sections of a report on disk: report.json, and the figures beside it as PNG.

A store with every run can be too large to travel; the digest keeps what the page shows, with what made it.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from made import saving
from made.reporting.section import Section

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
    return saving.replace(folder / NAME, text)


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
