"""`made doctor` on drawing: what works, what is asked for in vain, what is missing."""

import re
from pathlib import Path

import pytest

from made.cli import info
from made.envs.control import rendering
from made.envs.control.rendering import Backend


@pytest.mark.parametrize(
    ("works", "asked", "state", "what", "fix"),
    [
        ({"egl": True, "osmesa": False}, "", "ok", "egl drawn by a hand (MUJOCO_GL=not set)", ""),
        ({"egl": False, "osmesa": True}, "osmesa", "ok", "osmesa drawn by a hand (MUJOCO_GL=osmesa)", ""),
        (
            {"egl": False, "osmesa": True},
            "egl",
            "wrong",
            "MUJOCO_GL=egl, which does not draw",
            "set it to osmesa, which",
        ),
        ({"egl": True}, "vulkan", "wrong", "MUJOCO_GL=vulkan", "unset MUJOCO_GL, or set it to egl"),
        ({"egl": False, "osmesa": False}, "", "missing", "egl: no hand; osmesa: no hand", "apt-get install libegl1"),
    ],
)
def test_doctor_says_whether_control_tasks_can_be_drawn(monkeypatch, works, asked, state, what, fix):
    known = {name: Backend(name, ok, "drawn by a hand" if ok else "no hand") for name, ok in works.items()}
    monkeypatch.setattr(rendering, "_known", known)
    monkeypatch.setattr(rendering, "candidates", lambda: tuple(works))
    monkeypatch.setattr(rendering, "installed", lambda: True)
    monkeypatch.setenv("MUJOCO_GL", asked)
    [finding] = info._graphics()
    assert finding.state == state and what in finding.what and fix in finding.fix and bool(finding.fix) == bool(fix)


def test_without_dm_control_nothing_is_tried_and_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(rendering, "installed", lambda: False)
    monkeypatch.setattr(rendering, "tried", lambda *names: pytest.fail("tried to draw"))
    monkeypatch.setattr(info.importlib.util, "find_spec", lambda name: None)
    assert info._graphics() == []
    assert any('pip install -e ".[control]"' in finding.fix for finding in info.examine())


def test_no_advice_names_a_package_that_no_index_has():
    """`made-rl` is the name of the distribution, not of anything that pip finds."""
    files = sorted(Path(info.__file__).parents[1].rglob("*.py"))
    advised = [path.name for path in files if re.search(r"pip install .?made", path.read_text("utf-8"))]
    assert len(files) > 100 and not advised


def test_a_missing_package_is_installed_from_a_checkout(monkeypatch):
    monkeypatch.setattr(info, "version", lambda package: None)
    fixes = {one.fix for one in info.examine() if one.what.endswith("not installed")}
    assert fixes == {"pip install -e . in the checkout of made"}
