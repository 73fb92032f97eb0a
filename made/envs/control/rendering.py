"""Whether frames can be rendered here, by what, and if not, what is missing.

MuJoCo renders through EGL, OSMesa or GLFW. A broken driver can end the process, so each is tried in its own process.
"""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from made.core.plugins import install

OFF = ("disable", "disabled", "off", "false", "0")
ON = ("enable", "enabled", "on", "true", "1")  # what dm_control takes for glfw
PATIENCE = 120.0  # seconds; a first import from a slow disk takes some

# What each needs, as packages of Debian and Ubuntu.
NEEDS = {
    "egl": "apt-get install libegl1 libegl-mesa0 libgl1-mesa-dri libopengl0 (an NVIDIA driver brings its own EGL; in a "
    "container set NVIDIA_DRIVER_CAPABILITIES=all)",
    "osmesa": "apt-get install libosmesa6 libopengl0",
    "glfw": "a screen: set DISPLAY to that of a running X server",
}

_known: dict[str, "Backend"] = {}  # those tried in this process

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
    """A rendering backend that was tried."""

    name: str
    works: bool
    detail: str  # the renderer, or the error


def installed() -> bool:
    """Whether dm_control is installed, without importing it."""
    return importlib.util.find_spec("dm_control") is not None


def candidates() -> tuple[str, ...]:
    """The backends of this system, those that need no screen first."""
    return ("egl", "osmesa", "glfw") if sys.platform.startswith("linux") else ("glfw",)


def tried(*names: str) -> list[Backend]:
    """Render a ball with each backend, in parallel, each in its own process. The results are remembered."""
    new = [name for name in names if name not in _known]
    with ThreadPoolExecutor() as pool:
        _known.update(zip(new, pool.map(_try, new), strict=True))
    return [_known[name] for name in names]


def _try(name: str) -> Backend:
    environment = {**os.environ, "MUJOCO_GL": name}
    environment.pop("PYOPENGL_PLATFORM", None)  # it must agree with MUJOCO_GL, which sets it
    words = [sys.executable, "-W", "ignore", "-c", _DRAW]
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return Backend(name, False, f"it did not answer within {PATIENCE:.0f} s")
    drawn = [line for line in done.stdout.splitlines() if line.startswith("drawn by")]
    if done.returncode == 0 and drawn:
        return Backend(name, True, drawn[-1])
    if done.returncode < 0:
        return Backend(name, False, f"it ended the process with {signal.Signals(-done.returncode).name}")
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return Backend(name, False, lines[-1] if lines else f"exit status {done.returncode}")


def asked_for(*others: str) -> str:
    """MUJOCO_GL in small letters. Raises ValueError where it is no backend, not off, and none of those others."""
    asked = os.environ.get("MUJOCO_GL", "").lower()
    if asked and asked not in (*NEEDS, *OFF, *others):
        raise ValueError(f"MUJOCO_GL={asked} is none of {', '.join(NEEDS)}: unset it, or set it to one of them.")
    return asked


def demand_known() -> None:
    """Raise ValueError where dm_control cannot be imported, also for runs that render nothing."""
    if not installed():
        raise ValueError(f"Control tasks need dm_control, which is not here: {install('control')}.")
    asked_for(*ON)


def choose() -> str:
    """The backend to use: MUJOCO_GL if it is set, else the first that works. Raises ValueError where none does."""
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
    """The first of those backends that works here; those after it are not tried."""
    return next((name for name in names if tried(name)[0].works), None)


def reasons(failed: Sequence[Backend]) -> str:
    """Why each does not render."""
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

    Left to itself dm_control takes GLFW, which without a screen imports with a warning and fails at the first frame.
    It chooses when its `_render` is imported, which `import dm_control` alone does not do.
    """
    if "dm_control._render" in sys.modules or not installed():
        return
    # In small letters, as dm_control wants it; where nothing works off, for states need no frames.
    os.environ["MUJOCO_GL"] = asked_for(*ON) or first_that_works(candidates()) or "off"
    # dm_control sets it to what goes with MUJOCO_GL and refuses to be imported with another, so MUJOCO_GL decides: as
    # in the processes that try it, or `made doctor` would find that all is well where training cannot begin.
    os.environ.pop("PYOPENGL_PLATFORM", None)
