"""Is anything lost by kill -9? Runs are killed at random moments, gone on with, and compared with one that never was.

A trial starts a run in a process of its own, kills it one to three times, each time starting it again, and lets it end.
Then every row and every array of its last state must equal, to the bit, those of the run that nothing stopped. Moments
are drawn over the whole life of the process, over its training alone, or at the instant when a file is half written.
"""

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from made.envs.control import rendering
from made.experiments.store import MARKER
from made.training import run_dir as run_folder
from tests.reliability import processes

AT_MOST = 3  # kills of one trial
WAYS = ("any", "training", "writing")  # over the whole life, after run.json is there, while a file is half written
_HALF = re.compile(r"\.\d+\.safetensors\..*|\.tmp-.*|\..*\.new")  # what is not yet under its own name
_ROWS = "--every 320 --eval-every 6400 --checkpoint-every 640 --steps 12800"
GRID = f"--env Empty-5x5 --agent impala --set n_envs=4 --set unroll=8 --set agent.layout.dense=(8,) {_ROWS}"
CONTROL = "--env pendulum_swingup --set task.repeat=100 --set seed_steps=20 --set batch=4 --set episodes=1"
CONTROL += " --every 2k --eval-every 20k --checkpoint-every 4k --steps 30k --set replay.capacity=400"
DREAMS = "--env Empty-5x5 --agent dreamer --set run.n_envs=4 --set run.unroll=8 --set run.agent.horizon=3"
DREAMS += " --set replay.steps.capacity=2000 --set replay.length=8 --set batch=4 --set updates=1 --set prefill=10"
DREAMS += "".join(f" --set run.agent.layout.{name}=8" for name in ("units", "hidden", "deter", "stoch"))
_MADE = " --set bonus.recent.density.window=64 --set bonus.recent.density.capacity=64"
CASES = {  # small in every size, but each with all that a run of its kind carries from update to update
    "q-learning": "--env lock-H5 --agent q-learning --bonus made-tabular --seeds 2 --set n_envs=4 --set unroll=8 "
    "--every 320 --checkpoint-every 960 --steps 96k",
    "impala+made": f"{GRID} --bonus made {_MADE}",
    "impala+ngu": f"{GRID} --bonus ngu",
    "impala+re3": f"{GRID} --bonus re3 --set bonus.capacity=256",
    "dreamer+rnd": f"{DREAMS} --bonus rnd --every 320 --eval-every 6400 --checkpoint-every 640 --steps 6400",
    "sac+rnd": f"{CONTROL} --agent sac --bonus rnd --set agent.layout.width=8",
    "rad": f"{CONTROL} --agent rad --bonus none --set task.size=24 --set agent.layout.crop=20 "
    "--set agent.layout.width=8 --set agent.layout.channels=2",
    "store": "",  # an experiment of three tabular runs, through the store
}


class Kill(NamedTuple):
    """One kill: how its moment was drawn, when it was, as a share of the life of a run, and what it met."""

    case: str
    way: str
    seconds: float
    share: float
    phase: str


class Whole(NamedTuple):
    """A run that nothing stopped: where it is, how long it lived, and how long it had been there when it began."""

    out: Path
    life: float
    began: float


def words(case: str, out: Path) -> list[str]:
    """The command of a case, in a folder of its own."""
    if case == "store":
        return ["run", "objective", "--scale", "smoke", "--out", str(out)]
    return ["train", *CASES[case].split(), "--no-video", "--out", str(out)]


def whole(case: str, folder: Path, warm: bool = True) -> Whole:
    """Where it is to be warm, compile what the case needs into the cache; then run it and time it."""
    for out in [folder / f"{name}-{case}" for name in (("first", "whole") if warm else ("whole",))]:
        begins, since, began = time.monotonic(), time.time(), 0.0
        process = processes.start(words(case, out), folder / "cache", folder / f"{out.name}.err")
        while process.poll() is None:
            began = began or (time.monotonic() - begins if _begun(out, since) else 0.0)
            time.sleep(0.005)
        ended = processes.finish(process, folder / f"{out.name}.err")
        if ended.status:
            raise ValueError(f"{case} does not run here by itself: {processes.tail(ended)}")
        life = time.monotonic() - begins
    return Whole(out, life, began)


def trial(case: str, unkilled: Whole, number: int, folder: Path) -> tuple[list[Kill], str, int]:
    """Kill a run a few times, let it end, and say where it differs from the one that was not killed."""
    draw, out, kills = np.random.default_rng((number, 0x6B696C6C)), folder / f"killed-{case}-{number}", []
    for _ in range(int(draw.integers(1, AT_MOST + 1))):
        begins, since, way = time.monotonic(), time.time(), str(draw.choice(WAYS))
        process = processes.start(words(case, out), folder / "cache", folder / f"{out.name}.err")
        if wait(process, out, since, way, unkilled, draw):
            at, before = time.monotonic() - begins, process.poll()
            processes.kill(process)
            if before is None:  # it was alive: this was a kill
                kills.append(Kill(case, way, round(at, 3), round(at / unkilled.life, 4), phase(out, since)))
    ended = processes.run(words(case, out), folder / "cache", folder / f"{out.name}.err")
    if ended.status:
        return kills, f"it does not go on: {processes.tail(ended)}", 0
    return kills, compared(case, unkilled.out, out), to_rounding(unkilled.out, out) if case == "store" else 0


def compared(case: str, one: Path, other: Path) -> str:
    """Where two finished runs of a case differ; empty where they do not."""
    if case != "store":
        return processes.same(one, other)
    if _stored(one) != _stored(other):
        return "they hold other runs"
    odd = [at for at in _stored(one) if not _same_bits(one / at, other / at) and not _rounded(one / at, other / at)]
    return f"{odd[0]} differs" if odd else ""


def _stored(root: Path) -> list[Path]:
    return sorted(path.parent.relative_to(root) for path in root.glob("*/*/*/*/run.json"))


def _same_bits(one: Path, other: Path) -> bool:
    return (one / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()


def _rounded(one: Path, other: Path) -> bool:
    """Whether two stored runs differ in their last digits only, having shared programs with other numbers of runs.

    A sweep that was killed between two runs of one program runs the others alone, in a smaller program, in which the
    compiler adds numbers up in another order.
    """
    lanes = [json.loads((at / "run.json").read_text("utf-8"))["provenance"]["lanes"] for at in (one, other)]
    a, b = (np.genfromtxt(at / "metrics.csv", delimiter=",", skip_header=1) for at in (one, other))
    return lanes[0] != lanes[1] and a.shape == b.shape and np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)


def to_rounding(one: Path, other: Path) -> int:
    """How many runs of two stores differ in their last digits."""
    return sum(not _same_bits(one / at, other / at) for at in _stored(one) if (other / at).is_dir())


def wait(process: Any, out: Path, since: float, way: str, unkilled: Whole, draw: np.random.Generator) -> bool:
    """Until the moment to kill; False where the process ended before it."""
    begins, training = time.monotonic(), unkilled.life - unkilled.began
    until, halves, seen = draw.uniform(0, unkilled.life), int(draw.integers(1, 8)), set()
    if way == "training":
        while not _begun(out, since) and process.poll() is None:
            time.sleep(0.001)
        begins, until = time.monotonic(), draw.uniform(0, max(training, 0.1))
    while process.poll() is None:
        if way != "writing" and time.monotonic() - begins >= until:
            return True
        if way == "writing":
            seen |= set(_half_written(out, since))
            if len(seen) >= halves:
                return True
        time.sleep(0.0002 if way == "writing" else 0.001)
    return False


def _newer(path: Path, since: float) -> bool:
    """Whether a process that began then has written it; the clock of a disk is a little late."""
    try:
        return path.stat().st_mtime >= since - 0.01
    except OSError:
        return False


def _begun(out: Path, since: float) -> bool:
    names = (run_folder.RUN, MARKER, "objective/smoke")
    return any(_newer(out / name, since) for name in names)


def _half_written(out: Path, since: float) -> list[str]:
    found = [Path(at, name) for at, folders, names in os.walk(out) for name in (*folders, *names)]
    return [path.name for path in found if _HALF.fullmatch(path.name) and _newer(path, since)]


def phase(out: Path, since: float) -> str:
    """What the kill met, told from what it left."""
    if _half_written(out, since):
        return "while a file was written"
    if not _begun(out, since):
        return "before the run began" if not (out / run_folder.RUN).exists() else "before it went on"
    if (out / MARKER).exists():
        return "between two stored runs" if any(out.rglob("run.json")) else "before the first stored run"
    checkpoints = out / run_folder.CHECKPOINTS
    return "between two checkpoints" if any(checkpoints.glob("*.safetensors")) else "before the first checkpoint"


def kills(
    folder: Path,
    at_least: int = 100,
    cases: Sequence[str] = tuple(CASES),
    at_once: int = 2,
    warm: bool = True,
) -> dict[str, Any]:
    """Kill, go on and compare until so many kills have met a living process."""
    if "rad" in cases and not draws():
        cases = [case for case in cases if case != "rad"]
    folder.mkdir(parents=True, exist_ok=True)
    done: list[Kill] = []
    wrong: list[str] = []
    rounded = 0
    with ThreadPoolExecutor(at_once) as pool:
        unkilled = dict(zip(cases, pool.map(partial(whole, folder=folder, warm=warm), cases), strict=True))
        number = 0
        while len(done) < at_least:
            batch = [(cases[(number + i) % len(cases)], number + i) for i in range(max(at_once, 1))]
            number += len(batch)
            one: Callable = lambda asked: trial(asked[0], unkilled[asked[0]], asked[1], folder)  # noqa: E731
            for (case, at), (met, odd, less) in zip(batch, pool.map(one, batch), strict=True):
                done, rounded = done + met, rounded + less
                wrong += [f"{case} {at}: {odd}"] if odd else []
    return report(done, wrong, number, unkilled, rounded)


def report(
    done: Sequence[Kill], wrong: list[str], trials: int, unkilled: dict[str, Whole], rounded: int = 0
) -> dict[str, Any]:
    """The outcome as plain data."""
    return {
        "passed": not wrong,
        "what": "kill -9 at random moments, gone on with, and compared to the bit",
        "kills": len(done),
        "trials": trials,
        "differ": wrong,
        "stored_runs_equal_to_rounding_only": rounded,
        "by_case": Counter(kill.case for kill in done),
        "by_phase": Counter(kill.phase for kill in done),
        "life_seconds": {case: round(one.life, 2) for case, one in unkilled.items()},
        "columns": Kill._fields,
        "each": done,
    }


def draws() -> bool:
    """Whether pictures of control tasks can be drawn here."""
    try:
        return bool(rendering.choose())
    except ValueError:
        return False
