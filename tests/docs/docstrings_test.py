"""What docstrings show is what comes out."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def modules() -> list[str]:
    """Those with an example, by name."""
    shown = [path for path in sorted((ROOT / "made").rglob("*.py")) if ">>>" in path.read_text("utf-8")]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in shown]


@pytest.mark.parametrize("name", modules())
def test_the_examples_of_a_module_give_what_they_show(name, capsys):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed, capsys.readouterr().out


def test_many_modules_have_some():
    assert len(modules()) > 30
