"""Where and by what a result was made: versions, commit, device; no host name, user name or path."""

import functools
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]


def provenance(started: float | int, wall_s: float | int, lanes: int = 1) -> dict[str, Any]:
    """What made a result, as plain data for run.json.

    `started` is `time.time()` at the start, `wall_s` the seconds of the program that made the result, and `lanes` how
    many runs shared that program (seeds and settings under one vmap).
    """
    import jax
    import numpy as np

    commit, dirty = checkout(_PACKAGE)
    devices = jax.devices()
    return {
        "made": getattr(sys.modules.get("made"), "__version__", None),
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "device": devices[0].device_kind,
        "device_platform": devices[0].platform,
        "device_count": len(devices),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cpu_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        "wall_s": round(float(wall_s), 3),
        "lanes": int(lanes),
    }


def merged(provenances: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The provenance of many runs as one: a value that all share, else the list of those that occur.

    `runs` counts them, `started` is the earliest start, and `wall_s` is the sum of each run's fraction wall_s / lanes
    of its program.
    """
    given = list(provenances)
    out: dict[str, Any] = {"runs": len(given)}
    for key in dict.fromkeys(key for one in given for key in one if key not in ("wall_s", "lanes", "started")):
        values = list(dict.fromkeys(one.get(key) for one in given))
        out[key] = values[0] if len(values) == 1 else values
    starts = [one["started"] for one in given if "started" in one]
    shares = [one["wall_s"] / max(one.get("lanes", 1), 1) for one in given if "wall_s" in one]
    return out | ({"started": min(starts)} if starts else {}) | ({"wall_s": round(sum(shares), 3)} if shares else {})


def over_pieces(sessions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Every commit, device and version of JAX that took part in a run, and in how many pieces it was made."""
    values = {name: list(dict.fromkeys(one.get(name) for one in sessions)) for name in ("commit", "device", "jax")}
    joined = {name: ", ".join(map(str, found)) if len(found) > 1 else found[0] for name, found in values.items()}
    return {**joined, "pieces": len(sessions)}


@functools.cache
def checkout(package: Path) -> tuple[str | None, bool | None]:
    """The commit of the git checkout that tracks a package folder, and whether the folder differs from it.

    (None, None) where there is no git, no commit, or the folder is not tracked (an installed package inside another
    checkout). The environment variable MADE_COMMIT names the commit of sources that were copied without their
    checkout. Read once per process: later edits are not what is running.
    """

    def git(*words: str) -> str:
        command = ["git", "-C", str(package), *words]
        env = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True, env=env).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "--", "__init__.py")
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", "."))
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return os.environ.get("MADE_COMMIT"), None


def _cpu() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or None
