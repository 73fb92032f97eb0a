"""`python -m benchmarks.minigrid`: compiled MiniGrid, steps a second with fresh levels, beside what else is installed.

Every number is taken in this run, on this machine: random actions, ended episodes replaced by levels never played
before, the making of those levels included in the time. Environments start at random points of their clocks, as they
stand after a while, so that they do not all end together.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from benchmarks.common import Measure, device
from made.core import trees
from made.envs.minigrid import Grid, make_grid
from made.envs.minigrid.dynamics import ACTIONS

PAPER = (
    *("MultiRoom-N6", "MultiRoom-N7-S8", "MultiRoom-N12-S10"),
    *("KeyCorridorS3R3", "KeyCorridorS4R3", "KeyCorridorS5R3", "KeyCorridorS6R3"),
    *("ObstructedMaze-2Dlh", "ObstructedMaze-2Dlhb", "ObstructedMaze-1Q", "ObstructedMaze-2Q", "ObstructedMaze-Full"),
)
GOAL = {"cpu": 1.5e6, "gpu": 2e8}  # steps a second asked for
SIZES = {"cpu": (512, 2048), "gpu": (16384, 65536)}  # environments of one program
STEPS = {"cpu": 64, "gpu": 64}  # of each environment in one call
REPEATS = 3
GROWN = ("KeyCorridorS3R3", "MultiRoom-N7-S8")
GROWTH = {"cpu": (8, 32, 128, 512, 2048), "gpu": (1024, 4096, 16384, 65536, 262144)}
PEERS = (  # who, our task, theirs, how many times faster ours should be
    ("minigrid", "KeyCorridorS3R3", "KeyCorridorS3R3", 0),
    ("envpool", "KeyCorridorS3R3", "KeyCorridorS3R3", 5),
    ("envpool", "MultiRoom-N6", "MultiRoom-N6", 5),
    ("navix", "KeyCorridorS3R3", "KeyCorridorS3R3", 2),
    ("navix", "Empty-8x8", "Empty-8x8", 2),
    ("xminigrid", "KeyCorridorS3R3", "MiniGrid-BlockedUnlockPickUp", 2),
    ("xminigrid", "Empty-8x8", "MiniGrid-Empty-8x8", 2),
)


class Walk(NamedTuple):
    """Environments under way, a level in waiting for each, and what has been counted."""

    state: PyTree
    waiting: PyTree
    used: Bool[Array, " N"]
    replayed: Int[Array, ""]  # levels played twice: 0, or the number does not count
    checksum: Array  # of everything observed, so that nothing can be left uncomputed


def begin(env: Grid, n: int, key: Key[Array, ""]) -> Walk:
    """n environments at random points of their clocks."""
    k_levels, k_clock = jax.random.split(key)
    both = env.reset_many(k_levels, 2 * n)[0]  # one generator of levels to compile instead of two
    state, waiting = (jax.tree.map(lambda x, part=part: x[part], both) for part in (slice(n), slice(n, None)))
    clock = jax.random.randint(k_clock, (n,), 0, env.maker.max_steps).astype(state.steps.dtype)
    zero = jnp.zeros((), jnp.int32)
    return Walk(state._replace(steps=clock), waiting, jnp.zeros(n, bool), zero, zero)


def walk(env: Grid, steps: int, walked: Walk, key: Key[Array, ""]) -> Walk:
    """`steps` random actions in every environment, then fresh levels in the place of those used."""
    n = walked.used.shape[0]
    k_act, k_step, k_fresh = jax.random.split(key, 3)
    actions = jax.random.bits(k_act, (steps, n), jnp.uint8) % len(ACTIONS)

    def step(walked: Walk, x) -> tuple[Walk, None]:
        action, key = x
        state, out = jax.vmap(env.step, in_axes=(0, 0, None))(walked.state, action.astype(jnp.int32), key)
        done = out.terminated | out.truncated
        seen = sum(leaf.sum(dtype=jnp.int32) for leaf in jax.tree.leaves(out.obs)) + (out.reward > 0).sum()
        return Walk(
            trees.select(done, walked.waiting, state),
            walked.waiting,
            walked.used | done,
            walked.replayed + (done & walked.used).sum(dtype=jnp.int32),
            walked.checksum + seen.astype(jnp.int32),
        ), None

    walked, _ = jax.lax.scan(step, walked, (actions, jax.random.split(k_step, steps)))
    expected = n * steps / env.maker.max_steps  # truncation ends nearly every random walk
    fresh = min(n, int(1.1 * expected + 4 * expected**0.5) + 8)
    slots = jnp.nonzero(walked.used, size=fresh, fill_value=n)[0]
    put = lambda old, new: old.at[slots].set(new, mode="drop")  # noqa: E731
    waiting = jax.tree.map(put, walked.waiting, env.reset_many(k_fresh, fresh)[0])
    return walked._replace(waiting=waiting, used=put(walked.used, False))


class Speed(NamedTuple):
    """The best of several timed repeats of one task with one number of environments."""

    steps_per_s: float
    compile_s: float
    replayed: int


def speed(env: Grid, n: int, steps: int, workers: int, calls: int) -> Speed:
    """Steps a second of `workers` programs of n environments each, side by side."""
    steps = min(steps, env.maker.max_steps)  # in a longer call an environment would end twice and need two levels
    go = jax.jit(lambda walked, key: walk(env, steps, walked, key))
    first = jax.jit(lambda key: begin(env, n, key))
    began = time.perf_counter()
    walks = [first(jax.random.key(i)) for i in range(workers)]
    program = go.lower(walks[0], jax.random.key(0)).compile()
    walks = jax.block_until_ready([program(one, jax.random.key(9)) for one in walks])
    compile_s = time.perf_counter() - began

    def work(i: int) -> Walk:
        one = walks[i]
        for call in range(calls):
            one = program(one, jax.random.key(100 * i + call))
        return jax.block_until_ready(one)

    best = 0.0
    with ThreadPoolExecutor(workers) as pool:
        for _ in range(REPEATS):
            began = time.perf_counter()
            walks = list(pool.map(work, range(workers)))
            best = max(best, workers * n * steps * calls / (time.perf_counter() - began))
    return Speed(best, compile_s, sum(int(one.replayed) for one in walks))


def measures(tasks: tuple[str, ...] = PAPER) -> Iterator[Measure]:
    """Every task at its best number of environments; levels a second; growth with the number of environments."""
    where, kind = device(), "cpu" if jax.default_backend() == "cpu" else "gpu"
    workers = min(2, os.cpu_count() or 1) if kind == "cpu" else 1
    for task in tasks:
        env = make_grid(f"MiniGrid-{task}-v0")
        found = {n: speed(env, n, STEPS[kind], workers, calls=4) for n in SIZES[kind]}
        n, best = max(found.items(), key=lambda item: item[1].steps_per_s)
        played = f"{task}, {workers} x {n} environments, {best.replayed} levels replayed"
        met = best.steps_per_s >= GOAL[kind] and best.replayed == 0
        goal = f"{GOAL[kind] / 1e6:g}M steps/s"
        yield Measure(played, best.steps_per_s, "steps/s", None, None, goal, met, where)
        quickest = min(one.compile_s for one in found.values())
        yield Measure(f"{task}, compile time", quickest, "s", None, None, "at most 15 s", quickest <= 15, where)
    yield from levels(where)
    yield from growth(where, GROWTH[kind], workers, STEPS[kind])
    if kind == "cpu":
        yield from beside(where)


def levels(where: str, n: int = 2048) -> Iterator[Measure]:
    """Levels a second of the task whose levels are hardest to make, against the package where it is installed."""
    env = make_grid("MiniGrid-MultiRoom-N12-S10-v0")
    draw = jax.jit(lambda key: env.maker.levels(key, n).grid)
    jax.block_until_ready(draw(jax.random.key(0)))
    taken = min(_timed(lambda i=i: jax.block_until_ready(draw(jax.random.key(i)))) for i in range(1, 4))
    theirs = _package_levels()
    ours, name = n / taken, "MultiRoom-N12-S10 levels, against the minigrid package"
    ratio = None if theirs is None else ours / theirs
    yield Measure(name, ours, "levels/s", theirs, ratio, "100x", None if ratio is None else ratio >= 100, where)


def _package_levels(n: int = 20) -> float | None:
    """Levels a second of the minigrid package, or None where it is not installed."""
    try:
        from minigrid.envs.multiroom import MultiRoomEnv
    except ImportError:
        return None
    package = MultiRoomEnv(minNumRooms=12, maxNumRooms=12, maxRoomSize=10)
    return n / _timed(lambda: [package.reset(seed=i) for i in range(n)])


def growth(where: str, sizes: tuple[int, ...], workers: int, steps: int) -> Iterator[Measure]:
    """Steps a second by the number of environments of each program, for the plot in docs/grids.md."""
    for task in GROWN:
        env = make_grid(f"MiniGrid-{task}-v0")
        for n in sizes:
            found = speed(env, n, steps, workers, calls=4)
            label = f"growth: {task}, {workers} x {n} environments"
            yield Measure(label, found.steps_per_s, "steps/s", None, None, "", None, where)


def beside(where: str) -> Iterator[Measure]:
    """The same tasks in what else is installed, each beside ours on its own task, all in this run.

    Peers run by the interpreter that MADE_PEERS_PYTHON names, or by this one. Where a peer lacks the task, the one
    nearest to it among its own stands in.
    """
    workers = min(2, os.cpu_count() or 1)
    ours: dict[str, float] = {}
    for name, task, theirs_task, goal in PEERS:
        if task not in ours:
            ours[task] = speed(make_grid(f"MiniGrid-{task}-v0"), 2048, STEPS["cpu"], workers, calls=4).steps_per_s
        theirs = _farama(task) if name == "minigrid" else _peer(name, theirs_task)
        label = f"{task}, against {name}" + ("" if theirs_task == task else f"'s {theirs_task}")
        if theirs is None:
            label += " (not measured: not installed; MADE_PEERS_PYTHON names an interpreter that has it)"
        ratio = ours[task] / theirs if theirs else None
        met = None if ratio is None or not goal else ratio >= goal
        yield Measure(label, ours[task], "steps/s", theirs, ratio, f"{goal}x" if goal else "", met, where)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _farama(task: str, steps: int = 3000) -> float | None:
    """Steps a second of the minigrid package, one environment in one process."""
    try:
        import gymnasium
        import minigrid
    except ImportError:
        return None
    del minigrid  # importing it registers its environments
    env = gymnasium.make(f"MiniGrid-{task}-v0")
    env.reset(seed=0)

    def work() -> None:
        for i in range(steps):
            _, _, terminated, truncated, _ = env.step(i % 7)
            if terminated or truncated:
                env.reset()

    return steps / _timed(work)


def _peer(name: str, task: str) -> float | None:
    """Steps a second of another implementation, or None where it is not installed or fails."""
    script = str(Path(__file__).with_name("peers.py"))
    words = [os.environ.get("MADE_PEERS_PYTHON", sys.executable), script, name, task]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return None
    return None if done.returncode else float(done.stdout.split()[-1])
