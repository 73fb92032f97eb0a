"""The four flows of docs/architecture.md: every line is code, and every caller names what it is shown to call."""

import ast
import functools
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
BLOCK = re.compile(r"^```flow\n(.*?)^```", re.M | re.S)
MOST_MODULES = 25  # that a reader of one flow opens


class Hop(NamedTuple):
    """A line of a flow: a function or class of a module, and the line that it is indented below."""

    place: str  # module::name
    parent: str | None


def hops(block: str) -> list[Hop]:
    """The lines of a flow. Text after two spaces is a comment."""
    found: list[Hop] = []
    above: list[str] = []
    for line in block.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        place = re.split(r"\s{2,}", line.strip())[0]
        found.append(Hop(place, above[depth - 1] if depth else None))
        above[depth:] = [place]
    return found


def flows() -> list[list[Hop]]:
    return [hops(block) for block in BLOCK.findall(PAGE.read_text("utf-8"))]


@functools.cache
def definition(place: str) -> ast.AST:
    """The function or class that a place names."""
    module, _, name = place.partition("::")
    node: ast.AST = ast.parse((ROOT / "made" / module).read_text("utf-8"))
    for part in name.split("."):
        inner = [x for x in ast.walk(node) if isinstance(x, ast.FunctionDef | ast.ClassDef) and x.name == part]
        assert inner, f"{place}: made/{module} has no {part}"
        node = inner[0]
    return node


def names_in(place: str) -> set[str]:
    """Every name and attribute in the code of a place."""
    nodes = list(ast.walk(definition(place)))
    return {x.id for x in nodes if isinstance(x, ast.Name)} | {x.attr for x in nodes if isinstance(x, ast.Attribute)}


def missing(flow: list[Hop]) -> list[str]:
    """The hops whose parent does not name them."""
    return [
        f"{parent} does not name {place}"
        for place, parent in flow
        if parent and definition(place).name not in names_in(parent)  # type: ignore[attr-defined]
    ]


def test_there_are_four():
    assert len(flows()) == 4


@pytest.mark.parametrize("flow", flows(), ids=lambda flow: flow[0].place)
def test_every_hop_of_a_flow_is_in_the_code(flow):
    assert not missing(flow)
    modules = {hop.place.partition("::")[0] for hop in flow}
    assert len(modules) <= MOST_MODULES


def test_a_hop_that_the_code_does_not_make_is_noticed():
    wrong = hops("training/train_loop.py::train\n  training/checkpoint.py::restore\n")
    assert missing(wrong) == ["training/train_loop.py::train does not name training/checkpoint.py::restore"]
    with pytest.raises(AssertionError, match="has no tray"):
        missing(hops("training/train_loop.py::train\n  training/checkpoint.py::tray\n"))
