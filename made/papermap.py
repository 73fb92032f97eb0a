"""The map from the paper to the code: docs/paper.md, read as a table."""

import re
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from made.describe import suggest


class Row(NamedTuple):
    """One item of the paper: an equation, algorithm, theorem, lemma, figure or setting."""

    item: str
    label: str
    says: str
    code: str
    test: str
    status: str


def path() -> Path:
    """docs/paper.md of the checkout, or the copy that travels with an installed package."""
    here = Path(str(resources.files("made")))
    beside = here.parent / "docs" / "paper.md"
    return beside if beside.exists() else here / "data" / "paper.md"


def rows() -> list[Row]:
    """Every row of every table of the map that has the six columns."""
    found = []
    for line in path().read_text("utf-8").splitlines():
        cells = [cell.strip().replace("`", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == len(Row._fields) and cells[0] != "item" and not set(cells[0]) <= set("-: "):
            found.append(Row(*(cell.replace("\\|", "|") for cell in cells)))
    return found


def row(label: str) -> Row:
    """The row of a label such as eq:bonus_design."""
    by_label = {row.label: row for row in rows()}
    if label not in by_label:
        raise ValueError(f"The paper map has no label {label!r}.{suggest(label, list(by_label), 'made map')}")
    return by_label[label]
