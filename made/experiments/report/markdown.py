"""The recorded results as a Markdown page for the documentation: verdicts, figures, tables, provenance."""

import os
from collections.abc import Sequence
from pathlib import Path

from made.experiments.report.model import SAID, Section, kind_of


def render(sections: Sequence[Section], figures: Sequence[Sequence[Path]], page: Path) -> str:
    """The page as text; `figures` are the image files of each section, linked relative to the page."""
    lines = ["# Results", "", "Written by `made report --markdown`; every number comes from recorded runs.", ""]
    lines += ["| claim | verdict | seeds | scale |", "|---|---|---|---|"]
    claims = [claim for section in sections for claim in section.claims]
    for claim in sorted(claims, key=lambda claim: int(claim["claim"].split()[1].rstrip(":"))):
        symbol, words = SAID[kind_of(claim)]
        lines.append(f"| {_cell(claim['claim'])} | {symbol} {words} | {claim['seeds']} | {claim['scale']} |")
    for section, images in zip(sections, figures, strict=True):
        lines += ["", *_section(section, images, page)]
    return "\n".join(lines) + "\n"


def _section(section: Section, images: Sequence[Path], page: Path) -> list[str]:
    lines = [f"## {section.title}", "", section.intro, ""]
    for image, (caption, _, _) in zip(images, section.figures, strict=True):
        lines += [f"![{caption}]({os.path.relpath(image, page.parent)})", "", f"*{caption}*", ""]
    for claim in section.claims:
        symbol, words = SAID[kind_of(claim)]
        lines += [f"**{claim['claim']}** ({claim['where']}) {symbol} {words}.", "", f"{claim['observed']}.", ""]
        lines += [f"Repeat: `{claim['command']}`", ""]
    for title, header, rows in section.tables:
        lines += [f"### {title}", "", f"| {' | '.join(map(_cell, header))} |", "|" + "---|" * len(header)]
        lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows] + [""]
    made_by = ", ".join(f"{key} {value}" for key, value in section.provenance.items() if value not in (None, ""))
    return [*lines, f"Provenance: {made_by}."]


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
