"""Whether pictures can be drawn here, by what, and if not, what is missing.

MuJoCo draws through EGL, OSMesa or GLFW. A broken driver can end the process, so each is tried in a process of its own.
"""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from made.core.plugins import install

OFF = ("disable", "disabled", "off", "false", "0")
ON = ("enable", "enabled", "on", "true", "1")  # what dm_control takes for glfw
PATIENCE = 120.0  # seconds; a first import from a slow disk takes some

# What each needs, in the words of Debian and Ubuntu.
NEEDS = {
    "egl": "apt-get install libegl1 libegl-mesa0 libgl1-mesa-dri libopengl0 (an NVIDIA driver brings its own EGL; in a "
    "container set NVIDIA_DRIVER_CAPABILITIES=all)",
    "osmesa": "apt-get install libosmesa6 libopengl0",
    "glfw": "a screen: set DISPLAY to that of a running X server",
}

_known: dict[str, "Backend"] = {}  # what was tried in this process; it does not change while it runs

_DRAW = """
from dm_control import mujoco
from OpenGL import GL
xml = "<mujoco><worldbody><light pos='0 0 3'/><geom type='sphere' size='1'/></worldbody></mujoco>"
physics = mujoco.Physics.from_xml_string(xml)
if not physics.render(16, 16).any():
    raise SystemExit("it draws nothing but black")
with physics.contexts.gl.make_current() as gl:
    print("drawn by", gl.call(GL.glGetString, GL.GL_RENDERER).decode())
"""


class Backend(NamedTuple):
    """One way of drawing, tried."""

    name: str
    works: bool
    detail: str  # what draws, or what went wrong


def installed() -> bool:
    """Whether dm_control is here, without importing it."""
    return importlib.util.find_spec("dm_control") is not None


def candidates() -> tuple[str, ...]:
    """The ways of drawing on this system, those that need no screen first."""
    return ("egl", "osmesa", "glfw") if sys.platform.startswith("linux") else ("glfw",)


def tried(*names: str) -> list[Backend]:
    """Draw a ball with each, all at once, each in its own process. What came of it is remembered."""
    started = {}
    for name in (name for name in names if name not in _known):
        environment = {**os.environ, "MUJOCO_GL": name}
        environment.pop("PYOPENGL_PLATFORM", None)  # it must agree with MUJOCO_GL, which sets it
        words, pipe = [sys.executable, "-W", "ignore", "-c", _DRAW], subprocess.PIPE
        started[name] = subprocess.Popen(words, env=environment, stdout=pipe, stderr=pipe, text=True)
    for name, process in started.items():
        _known[name] = _outcome(name, process)
    return [_known[name] for name in names]


def _outcome(name: str, process: subprocess.Popen) -> Backend:
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Backend(name, False, f"it did not answer within {PATIENCE:.0f} s")
    drawn = [line for line in out.splitlines() if line.startswith("drawn by")]
    if process.returncode == 0 and drawn:
        return Backend(name, True, drawn[-1])
    if process.returncode < 0:
        return Backend(name, False, f"it ended the process with {signal.Signals(-process.returncode).name}")
    said = [line for line in err.splitlines() if line.strip()]
    return Backend(name, False, said[-1].strip() if said else f"exit status {process.returncode}")


def asked_for(*others: str) -> str:
    """MUJOCO_GL in small letters. A sentence where it is neither a way of drawing, nor off, nor one of those others."""
    asked = os.environ.get("MUJOCO_GL", "").lower()
    if asked and asked not in (*NEEDS, *OFF, *others):
        raise ValueError(f"MUJOCO_GL={asked} is none of {', '.join(NEEDS)}: unset it, or set it to one of them.")
    return asked


def demand_known() -> None:
    """Refuse, in a sentence, what dm_control cannot be imported with, also where nothing is to be drawn."""
    if not installed():
        raise ValueError(f"Control tasks need dm_control, which is not here: {install('control')}.")
    asked_for(*ON)


def choose() -> str:
    """The way of drawing to use: MUJOCO_GL if it is set, else the first that works. A sentence where none does."""
    demand_known()
    asked = asked_for()
    in_vain = all(name in _known and not _known[name].works for name in candidates())  # then `prepare` set it to off
    if asked in OFF and not in_vain:
        raise ValueError(
            f"Rendering is switched off by MUJOCO_GL={asked}: unset it, or learn from states, by --agent sac or in "
            "Python by pixels=False."
        )
    names = (asked,) if asked in NEEDS else candidates()
    found = first_that_works(names)
    if found is not None:
        return found
    failed = tried(*names)
    alone = f" MUJOCO_GL={asked} asks for it alone: unset it to let others be tried." if asked in NEEDS else ""
    raise ValueError(f"Nothing can be rendered here ({reasons(failed)}). To fix it: {NEEDS[failed[0].name]}.{alone}")


def first_that_works(names: Sequence[str]) -> str | None:
    """The first of those ways of drawing that works here; those after it are not tried."""
    return next((name for name in names if tried(name)[0].works), None)


def reasons(failed: Sequence[Backend]) -> str:
    """Why each does not draw."""
    return "; ".join(f"{backend.name}: {backend.detail}" for backend in failed)


def advice() -> str:
    """What to do where dm_control or its renderer failed in this process."""
    asked = os.environ.get("MUJOCO_GL")
    do = "unset it to let others be tried" if asked else "set it to egl or osmesa before that"
    return (
        f"MUJOCO_GL is {asked or 'not set'}, which dm_control reads when it is first imported: {do}. `made doctor` "
        "tries every way of drawing and says what is missing."
    )


def prepare() -> None:
    """Before dm_control is first imported: set MUJOCO_GL to what works, or to off, unless it is set.

    Left to itself dm_control takes GLFW, which without a screen imports with a warning and fails at the first picture.
    It chooses when its `_render` is imported, which `import dm_control` alone does not do.
    """
    if "dm_control._render" in sys.modules or not installed():
        return
    # In small letters, as dm_control wants it; where nothing works off, for states need no pictures.
    os.environ["MUJOCO_GL"] = asked_for(*ON) or first_that_works(candidates()) or "off"
    # dm_control sets it to what goes with MUJOCO_GL and refuses to be imported with another, so MUJOCO_GL decides: as
    # in the processes that try it, or `made doctor` would find that all is well where training cannot begin.
    os.environ.pop("PYOPENGL_PLATFORM", None)
