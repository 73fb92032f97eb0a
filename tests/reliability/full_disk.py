"""What happens when the disk is full? Runs write to a disk with little room, stop, get more room, and go on.

The disk is a small one in memory where this process may mount one, as in most containers. Elsewhere files may not grow
beyond a limit, which the operating system says in almost the same words. A run must stop with status 1 and one line,
its last checkpoint whole; with room again it must end, to the bit, where a run with room enough ends.
"""

import contextlib
import functools
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from made.training import checkpoint
from made.training import run_dir as run_folder
from tests.reliability import processes
from tests.reliability.kill_and_resume import compared

KIB = 1024
_TRAIN = (
    "train --env lock-H5 --agent q-learning --bonus made-tabular --seeds 2 --set n_envs=4 --set unroll=8 --no-video"
)
_TRAIN += " --every 320 --steps 64k --checkpoint-every"
DISK = 4096 * KIB


class Scene(NamedTuple):
    """What is run, and how many bytes are free when it begins."""

    name: str
    words: str
    free: int
    limit: int | None  # of one file, where no disk can be mounted; None where that would not be the same


SCENES = (
    Scene("at the start", f"{_TRAIN} 960", 0, KIB),
    Scene("first checkpoint", f"{_TRAIN} 960", 24 * KIB, 24 * KIB),
    Scene("later checkpoint", f"{_TRAIN} 3200", 150 * KIB, None),
    Scene("metrics", f"{_TRAIN} 32k", 200 * KIB, 120 * KIB),
    Scene("results of an experiment", "run objective --scale smoke", 8 * KIB, 400),
)


@contextlib.contextmanager
def small_disk(at: Path) -> Iterator[bool]:
    """A disk of four megabytes mounted there, or False where that is not allowed."""
    at.mkdir(parents=True, exist_ok=True)
    try:
        asked = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(at)]
        mounted = not subprocess.run(asked, capture_output=True, check=False).returncode
    except OSError:  # there is no such command
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(at)], capture_output=True, check=False)


def limited(size: int) -> None:
    """No file of this process may grow beyond so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def play(scene: Scene, folder: Path, whole: Path, mount: bool = True) -> dict[str, Any]:
    """Run into the full disk, look at what is left, make room and go on."""
    name = scene.name.replace(" ", "-")
    err, cache = folder / f"{name}.err", folder / "cache"
    disk = small_disk(folder / f"disk-{name}") if mount else contextlib.nullcontext(False)
    with disk as mounted:
        at = folder / f"disk-{name}"
        at.mkdir(exist_ok=True)
        out, ballast = at / "out", at / "ballast"
        if mounted:
            ballast.write_bytes(bytes(DISK - scene.free - 8 * KIB))  # two pages are for the folders themselves
        more = {} if mounted else {"preexec_fn": functools.partial(limited, scene.limit or 24 * KIB)}
        stopped = processes.run([*scene.words.split(), "--out", str(out)], cache, err, **more)
        kept = [checkpoint.read(path).update for path in checkpoint.files(out / run_folder.CHECKPOINTS)]
        ballast.unlink(missing_ok=True)
        went_on = processes.run([*scene.words.split(), "--out", str(out)], cache, folder / f"{name}-on.err")
        odd = processes.tail(went_on) if went_on.status else compared(_kind(scene), whole, out)
    return {
        "scene": scene.name,
        "by": "small disk" if mounted else "limit of a file's size",
        "status": stopped.status,
        "said": " ".join(stopped.lines).replace(str(at), "OUT"),
        "checkpoints_whole": kept,
        "passed": _clean(stopped) and not odd,
        "differs": odd,
    }


def _kind(scene: Scene) -> str:
    return "store" if scene.words.startswith("run ") else "train"


def _clean(ended: processes.Ended) -> bool:
    """Status 1, one line that names the trouble, and no traceback."""
    lines = [line for line in ended.lines if "disk is full" in line]
    return ended.status == 1 and len(ended.lines) == len(lines) == 1 and "Traceback" not in ended.err


def disk(folder: Path, scenes: tuple[Scene, ...] = SCENES, mount: bool = True) -> dict[str, Any]:
    """Play the scenes, each against a run of the same command that had room."""
    folder.mkdir(parents=True, exist_ok=True)
    seen, whole = [], {}
    for scene in (scene for scene in scenes if mount or scene.limit is not None):
        if scene.words not in whole:
            out = folder / f"whole-{len(whole)}"
            ended = processes.run(
                [*scene.words.split(), "--out", str(out)], folder / "cache", folder / f"{out.name}.err"
            )
            if ended.status:
                raise ValueError(f"`made {scene.words}` does not run here by itself: {processes.tail(ended)}")
            whole[scene.words] = out
        seen.append(play(scene, folder, whole[scene.words], mount))
    return {
        "passed": all(one["passed"] for one in seen),
        "what": "a full disk while rows, checkpoints and results are written",
        "scenes": seen,
    }


def disk_both_ways(folder: Path) -> dict[str, Any]:
    """Every scene on a small disk and under a limit on the size of files."""
    both = [disk(folder / way, SCENES, mount=way == "disk") for way in ("disk", "limit")]
    return {**both[0], "passed": all(x["passed"] for x in both), "scenes": [one for x in both for one in x["scenes"]]}
