"""`made doctor`: what is here, what is missing, and the command that mends it."""

import importlib.metadata
import importlib.util
import os
import platform
import sys
from typing import Literal, NamedTuple

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
        found.append(
            Finding(state, f"{package} {installed or 'not installed'}", "" if installed else "pip install made-rl")
        )
    return found


def _devices() -> list[Finding]:
    import jax

    devices = jax.devices()
    kinds = ", ".join(sorted({f"{d.platform} ({d.device_kind})" for d in devices}))
    found = [Finding("ok", f"{len(devices)} JAX device(s): {kinds}; {os.cpu_count()} CPU cores")]
    if devices[0].platform == "cpu" and os.path.exists("/proc/driver/nvidia/version"):
        fix = "pip install 'made-rl[cuda12]' (or cuda13, for a driver of version 580 or later)"
        found.append(Finding("wrong", "an NVIDIA driver is here, but JAX runs on the CPU", fix))
    return found


def _graphics() -> list[Finding]:
    """What MuJoCo needs to render without a screen: EGL or OSMesa."""
    import ctypes.util

    libraries = {name: ctypes.util.find_library(name) for name in ("EGL", "OSMesa")}
    have = [name for name, path in libraries.items() if path]
    chosen = os.environ.get("MUJOCO_GL")
    if chosen in ("egl", "osmesa") and {"egl": "EGL", "osmesa": "OSMesa"}[chosen] not in have:
        fix = f"install its library (Debian: lib{'egl1' if chosen == 'egl' else 'osmesa6'}), or unset MUJOCO_GL"
        return [Finding("wrong", f"MUJOCO_GL={chosen}, but that library is not here", fix)]
    if not have:
        fix = "Debian: apt-get install libegl1 (with a GPU) or libosmesa6 (without); for pixels from DeepMind Control"
        return [Finding("missing", "no EGL or OSMesa: no rendering without a screen", fix)]
    return [Finding("ok", f"rendering without a screen: {', '.join(have)} (MUJOCO_GL={chosen or 'not set'})")]


def _extras() -> list[Finding]:
    found = []
    for module, (extra, purpose) in EXTRAS.items():
        here = importlib.util.find_spec(module) is not None
        fix = "" if here else f"pip install 'made-rl[{extra}]'"
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
