"""What these tests need: dm_control, and for pictures a way to draw them. Without it they are skipped and say why."""

import os

import pytest

from made.envs.control import rendering


@pytest.fixture(scope="session")
def suite():
    """The package, imported after MUJOCO_GL is settled, as the library itself does."""
    rendering.prepare()
    return pytest.importorskip("dm_control.suite", reason="needs dm_control: pip install -e '.[control]'")


@pytest.fixture(scope="session")
def drawn(suite, drawing):
    """The way of drawing, for tests that look at pictures."""
    os.environ["MUJOCO_GL"] = drawing
    return drawing
