"""`made doctor`: what is here, what is missing, and the command that mends it."""

import importlib.metadata
import importlib.util
import os
import platform
import sys
from typing import Literal, NamedTuple

from made.core.extras import install
from made.envs.control import rendering

EXTRAS = {
    "minigrid": ("grid", "Farama's MiniGrid, to compare with"),
    "dm_control": ("control", "DeepMind Control from pixels"),
    "stable_baselines3": ("sb3", "the Stable-Baselines3 plug-in"),
    "ray": ("ray", "sweeps over many machines"),
    "submitit": ("slurm", "sweeps through SLURM"),
    "tensorboardX": ("tensorboard", "TensorBoard logs"),
    "wandb": ("wandb", "Weights & Biases logs"),
}


class Finding(NamedTuple):
    """One thing looked at."""

    state: Literal["ok", "missing", "wrong"]
    what: str
    fix: str = ""


def version(package: str) -> str | None:
    """The installed version, without importing the package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def examine() -> list[Finding]:
    """Everything there is to say, most basic first."""
    return [*_python(), *_devices(), *_graphics(), *_extras(), *_clashes()]


def _python() -> list[Finding]:
    old = sys.version_info < (3, 11)
    fix = "install Python 3.11, 3.12 or 3.13" if old else ""
    found = [Finding("wrong" if old else "ok", f"Python {platform.python_version()}", fix)]
    for package in ("made-rl", "jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "matplotlib", "safetensors"):
        installed = version(package)
        state = "ok" if installed else "missing"
        found.append(Finding(state, f"{package} {installed or 'not installed'}", "" if installed else install()))
    return found


def _devices() -> list[Finding]:
    import jax

    devices = jax.devices()
    kinds = ", ".join(sorted({f"{d.platform} ({d.device_kind})" for d in devices}))
    found = [Finding("ok", f"{len(devices)} JAX device(s): {kinds}; {os.cpu_count()} CPU cores")]
    if devices[0].platform == "cpu" and os.path.exists("/proc/driver/nvidia/version"):
        fix = f"{install('cuda12')} (or cuda13, for a driver of version 580 or later)"
        found.append(Finding("wrong", "an NVIDIA driver is here, but JAX runs on the CPU", fix))
    return found


def _graphics() -> list[Finding]:
    """Whether MuJoCo can draw here: each way is tried, in a process of its own."""
    if not rendering.installed():
        return []  # said among the extras
    found = rendering.tried(*rendering.candidates())
    working = [backend for backend in found if backend.works]
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    if not working:
        fix = rendering.NEEDS[found[0].name]
        return [Finding("missing", f"pictures of control tasks: {rendering.reasons(found)}", fix)]
    if chosen and chosen not in [backend.name for backend in working]:
        fix = f"unset MUJOCO_GL, or set it to {working[0].name}, which works here"
        if chosen in rendering.NEEDS:
            fix += f"; or: {rendering.NEEDS[chosen]}"
        return [Finding("wrong", f"MUJOCO_GL={chosen}, which does not draw here", fix)]
    ways = ", ".join(f"{backend.name} {backend.detail}" for backend in working)
    return [Finding("ok", f"pictures of control tasks: {ways} (MUJOCO_GL={chosen or 'not set'})")]


def _extras() -> list[Finding]:
    found = []
    for module, (extra, purpose) in EXTRAS.items():
        here = importlib.util.find_spec(module) is not None
        fix = "" if here else install(extra)
        found.append(Finding("ok" if here else "missing", f"{module}: {purpose}", fix))
    return found


def _clashes() -> list[Finding]:
    """Combinations that are known to fail."""
    found = []
    mujoco = version("mujoco")
    if version("dm_control") and mujoco and int(mujoco.split(".")[0]) >= 4:
        found.append(
            Finding("wrong", f"dm_control does not work with mujoco {mujoco}", "pip install 'mujoco>=3.17,<4'")
        )
    if version("tensorflow-probability") and version("jax"):
        text = "tensorflow-probability is installed; its JAX part fails on jax 0.11 (made does not use it)"
        found.append(Finding("wrong", text, "pip uninstall tensorflow-probability, if nothing else needs it"))
    if os.environ.get("JAX_PLATFORMS") not in (None, "", "cpu", "cuda", "gpu", "tpu", "cuda,cpu"):
        found.append(
            Finding("wrong", f"JAX_PLATFORMS={os.environ['JAX_PLATFORMS']}", "unset JAX_PLATFORMS, or set it to cpu")
        )
    return found or [Finding("ok", "no known clash between the installed packages")]
