"""Finding a way to draw without ending the process, and saying what is missing."""

import dataclasses
import importlib
import os
import subprocess
import sys

import pytest

from made.envs.control import rendering
from made.envs.control.rendering import Backend
from made.training.control_config import control_config


@pytest.fixture(autouse=True)
def forgetful(monkeypatch):
    """Nothing tried before counts, and nothing tried here is remembered."""
    monkeypatch.setattr(rendering, "_known", {})
    monkeypatch.setattr(rendering, "installed", lambda: True)
    for name in ("MUJOCO_GL", "PYOPENGL_PLATFORM"):
        monkeypatch.setenv(name, "")  # so that whatever is set later is taken back
        monkeypatch.delenv(name)


def found(monkeypatch, **works: bool) -> None:
    known = {name: Backend(name, ok, "drawn by a hand" if ok else "no hand") for name, ok in works.items()}
    monkeypatch.setattr(rendering, "_known", known)
    monkeypatch.setattr(rendering, "candidates", lambda: tuple(works))


@pytest.mark.parametrize(
    ("code", "works", "detail"),
    [
        ("print('hello'); print('drawn by a hand')", True, "drawn by a hand"),
        ("print('hello')", False, "exit status 0"),
        ("import os; raise OSError('no library ' + os.environ['MUJOCO_GL'])", False, "OSError: no library egl"),
        ("raise SystemExit('it draws nothing but black')", False, "it draws nothing but black"),
        ("import os; os.abort()", False, "it ended the process with SIGABRT"),
    ],
)
def test_a_way_of_drawing_is_tried_in_a_process_of_its_own(monkeypatch, code, works, detail):
    monkeypatch.setattr(rendering, "_DRAW", code)
    assert rendering.tried("egl") == [Backend("egl", works, detail)]


def test_one_that_does_not_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(rendering, "_DRAW", "import time; time.sleep(60)")
    monkeypatch.setattr(rendering, "PATIENCE", 0.2)
    [backend] = rendering.tried("osmesa")
    assert not backend.works and "did not answer within" in backend.detail


def test_each_is_tried_once(monkeypatch):
    monkeypatch.setattr(rendering, "_DRAW", "print('drawn by a hand')")
    first = rendering.tried("egl", "osmesa")
    monkeypatch.setattr(rendering, "_DRAW", "raise SystemExit('again')")
    assert rendering.tried("osmesa", "egl") == first[::-1]


def test_the_first_that_works_is_chosen_unless_one_is_asked_for(monkeypatch):
    found(monkeypatch, egl=False, osmesa=True, glfw=True)
    assert rendering.choose() == "osmesa"
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    assert rendering.choose() == "glfw"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("", r"egl: no hand; osmesa: no hand\). To fix it: apt-get install libegl1"),
        ("osmesa", r"\(osmesa: no hand\). To fix it: apt-get install libosmesa6.*unset it to let others be tried"),
        ("off", "switched off by MUJOCO_GL=off: unset it, or learn from states, by --agent sac or .* pixels=False"),
        ("vulkan", "MUJOCO_GL=vulkan is none of egl, osmesa, glfw"),
    ],
)
def test_where_none_works_a_sentence_says_what_to_do(monkeypatch, asked, message):
    found(monkeypatch, egl=asked == "off", osmesa=False)
    if asked:
        monkeypatch.setenv("MUJOCO_GL", asked)
    with pytest.raises(ValueError, match=message):
        rendering.choose()


def test_without_dm_control_its_extra_is_named(monkeypatch):
    monkeypatch.setattr(rendering, "installed", lambda: False)
    with pytest.raises(ValueError, match=r"pip install -e .\.\[control\]"):
        rendering.choose()


def test_preparing_sets_what_works_before_dm_control_is_imported(monkeypatch):
    found(monkeypatch, egl=False, osmesa=True)
    monkeypatch.setitem(sys.modules, "dm_control._render", None)
    rendering.prepare()
    assert "MUJOCO_GL" not in os.environ, "too late: dm_control has made its choice"
    monkeypatch.delitem(sys.modules, "dm_control._render")
    monkeypatch.setitem(sys.modules, "dm_control", importlib)  # whatever: the package by itself chooses nothing
    rendering.prepare()
    assert os.environ["MUJOCO_GL"] == "osmesa"
    found(monkeypatch, egl=True)
    rendering.prepare()
    assert os.environ["MUJOCO_GL"] == "osmesa", "what is set stays"


def test_preparing_lets_mujoco_gl_decide_as_the_processes_that_try_it_do(monkeypatch):
    """dm_control refuses to be imported with another platform of PyOpenGL than goes with MUJOCO_GL."""
    monkeypatch.setenv("PYOPENGL_PLATFORM", "glx")
    monkeypatch.setattr(rendering, "_DRAW", "import os; print('drawn by', os.environ.get('PYOPENGL_PLATFORM'))")
    monkeypatch.setitem(sys.modules, "dm_control._render", None)
    rendering.prepare()
    assert os.environ["PYOPENGL_PLATFORM"] == "glx", "too late: dm_control has made its choice"
    monkeypatch.delitem(sys.modules, "dm_control._render")
    for asked, chosen in (("", rendering.candidates()[0]), ("EGL", "egl")):
        monkeypatch.setenv("PYOPENGL_PLATFORM", "glx")
        monkeypatch.setenv("MUJOCO_GL", asked)
        rendering.prepare()
        assert os.environ["MUJOCO_GL"] == chosen and "PYOPENGL_PLATFORM" not in os.environ
        assert rendering.tried(chosen) == [Backend(chosen, True, "drawn by None")]


def test_a_word_that_dm_control_does_not_know_is_refused_also_where_nothing_is_drawn(monkeypatch):
    monkeypatch.delitem(sys.modules, "dm_control._render", raising=False)
    monkeypatch.setenv("MUJOCO_GL", "vulkan")
    words = "MUJOCO_GL=vulkan is none of egl, osmesa, glfw: unset it, or set it to one of them"
    with pytest.raises(ValueError, match=words):
        rendering.prepare()
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(control_config("pendulum_swingup", "sac", "none"), iterations=5000).demand()
    for known in ("on", "off", "glfw"):
        monkeypatch.setenv("MUJOCO_GL", known)
        rendering.prepare()
        assert os.environ["MUJOCO_GL"] == known


def test_advice_is_to_let_others_be_tried_or_to_choose_in_time(monkeypatch):
    assert "MUJOCO_GL is not set" in rendering.advice() and "set it to egl or osmesa before that" in rendering.advice()
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    assert "MUJOCO_GL is osmesa" in rendering.advice() and "unset it to let others be tried" in rendering.advice()


def test_where_nothing_works_states_do_and_pictures_say_what_is_missing(monkeypatch):
    found(monkeypatch, egl=False, osmesa=False)
    monkeypatch.delitem(sys.modules, "dm_control._render", raising=False)
    rendering.prepare()
    assert os.environ["MUJOCO_GL"] == "off"
    with pytest.raises(ValueError, match=r"egl: no hand; osmesa: no hand\). To fix it: apt-get install libegl1"):
        rendering.choose()


def test_what_is_said_of_egl_is_what_the_suite_finds(suite):
    """Were this wrong, every test of pictures would be skipped without a word."""
    words = "from dm_control import suite; suite.load('pendulum', 'swingup').physics.render(8, 8)"
    egl = {**os.environ, "MUJOCO_GL": "egl"}
    done = subprocess.run([sys.executable, "-c", words], env=egl, capture_output=True, check=False)
    [backend] = rendering.tried("egl")
    assert backend.works == (done.returncode == 0) and backend.detail.startswith("drawn by ") == backend.works
