"""Damaged and hostile files in a run directory are rejected, skipped or repaired."""

import pytest

from tests.reliability import damage, damaged_files
from tests.reliability.processes import listening


@pytest.mark.reliability
def test_damaged_files_are_recognized(check):
    check("damage", damage.damage)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    return damage.damage(tmp_path_factory.mktemp("damage") / "here")


def test_every_damage_is_refused_skipped_or_mended_with_the_right_sentence(damaged):
    assert damaged["passed"], damaged["wrong"]
    assert damaged["damages"] >= 50 and set(damaged["by_outcome"]) == {"refused", "skipped", "mended"}
    assert len({name for name, *_ in damaged["each"]}) == damaged["damages"]
    assert not listening("self"), "a run opens no port"


def test_a_damage_that_goes_unnoticed_is_told(tmp_path):
    """A whole checkpoint of other numbers cannot be told from the right one, and leads to other bits."""
    damage.begun(tmp_path)
    half, whole = tmp_path / "half", tmp_path / "whole"
    flip = damaged_files.Damage("last bit", lambda out: damaged_files._flip(damaged_files.newest(out), 1.0), "skipped")
    assert not damage.tried(flip, half, whole, tmp_path / "seen").wrong
    other = damaged_files.Damage("unseen", lambda out: damaged_files.changed(out, _other_numbers), "mended")
    assert "differ" in damage.tried(other, half, whole, tmp_path / "unseen").wrong
    assert damage.tried(other._replace(then="refused"), half, whole, tmp_path / "again").wrong.startswith("mended, not")


def _other_numbers(held):
    return {name: x + 1 if x.dtype.kind == "f" else x for name, x in held.items()}
