"""Benchmarks: `made bench NAME`. Adding one is a file here and a line in `BENCHES`."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

from made.core.config import suggest
from made.training.provenance import provenance


class Measure(NamedTuple):
    """One measured number beside what it is compared with and what it should be."""

    name: str
    value: float
    unit: str
    baseline: float | None  # the same work done by the alternative, in the same unit, in the same run
    ratio: float | None  # how many times better than the baseline
    goal: str
    met: bool | None  # None: nothing was asked for, or it could not be measured
    device: str


def _tabular() -> Iterator[Measure]:
    """The demo's time and memory, the lock against a NumPy loop, Algorithm 1 by size."""
    from benchmarks.tabular import lock_speed

    yield from lock_speed.measures()


def _grids() -> Iterator[Measure]:
    """Compiled MiniGrid: steps a second on the paper's twelve tasks with fresh levels, and levels a second."""
    from benchmarks.minigrid import grid_speed

    yield from grid_speed.measures()


def _bonuses() -> Iterator[Measure]:
    """Reward and update of every bonus on 32 x 100 grid observations, beside RLeXplore; and on 512 images."""
    from benchmarks.bonuses import speed

    yield from speed.measures()


def _train() -> Iterator[Measure]:
    """Frames a second of whole training, IMPALA with MADE on a grid, what MADE costs, and where the time goes."""
    from benchmarks.impala import training_speed

    yield from training_speed.measures()


def _control() -> Iterator[Measure]:
    """RAD on DeepMind Control: an update with each bonus, RE3's search, bytes of a replay, minutes of a run."""
    from benchmarks.control import control_training

    yield from control_training.measures()


def _dreamer() -> Iterator[Measure]:
    """Dreamer on DeepMind Control: updates a second with each bonus, and steps of the environment over a run."""
    from benchmarks import dreamer_speed

    yield from dreamer_speed.measures()


def _drawing() -> Iterator[Measure]:
    """Pictures of a control task a second, and what drawing takes from a GPU that learns meanwhile."""
    from benchmarks.control import rendering_speed

    yield from rendering_speed.measures()


BENCHES: dict[str, Callable[[], Iterator[Measure]]] = {
    "tabular": _tabular,
    "grids": _grids,
    "bonuses": _bonuses,
    "train": _train,
    "control": _control,
    "dreamer": _dreamer,
    "drawing": _drawing,
}


def run(name: str | None, tell: Callable[[Measure], None] = lambda measure: None) -> list[Measure]:
    """Every measure of a benchmark, or of all of them; `tell` hears each as soon as it is there."""
    if name is not None and name not in BENCHES:
        raise ValueError(f"There is no benchmark {name!r}.{suggest(name, list(BENCHES))}")
    chosen = BENCHES if name is None else {name: BENCHES[name]}
    found: list[Measure] = []
    for measures in chosen.values():
        for measure in measures():
            found.append(measure)
            tell(measure)
    return found


def as_text(measured: list[Measure]) -> str:
    """The measures as a Markdown table, as docs/benchmarks.md has them."""
    lines = ["| what | measured | beside | ratio | goal | met |", "|---|---|---|---|---|---|"]
    for row in measured:
        beside = "" if row.baseline is None else f"{row.baseline:,.4g} {row.unit}"
        ratio = "" if row.ratio is None else f"{row.ratio:.1f}x"
        met = {True: "yes", False: "no", None: ""}[row.met]
        lines.append(f"| {row.name} | {row.value:,.4g} {row.unit} | {beside} | {ratio} | {row.goal} | {met} |")
    devices = ", ".join(dict.fromkeys(row.device for row in measured))
    return "\n".join([*lines, "", f"Measured on: {devices}."])


def device() -> str:
    """The machine, in words."""
    made_by = provenance(time.time(), 0.0)
    where = f"jax {made_by['jax']} on {made_by['device_platform']}"
    if made_by["device_platform"] != "cpu":
        return f"{made_by['device']}, {where}"
    return f"{made_by['cpu']}, {made_by['cpu_cores']} cores, {where}"


def best_of(call: Callable, repeats: int = 3) -> float:
    """Seconds of a call, all it computes included: the best of several after a first one."""
    jax.block_until_ready(call())
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(call())
        best = min(best, time.perf_counter() - began)
    return best
