"""`python -m benchmarks.impala`: frames per second of IMPALA with MADE on a grid, and where the time goes.

A lane is a seed or a setting: 32 environments, unrolls of 100 steps, its own networks. Lanes rather than larger batches
fill an accelerator, because larger batches need more frames to learn the same. Only RIDE's network, whose weights take
longer to read than 32 environments to multiply, is also measured with more environments a lane.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.common import Measure, device
from benchmarks.impala.time_shares import shares
from made.agents import IMPALA
from made.agents.policy_net import LAYOUTS, Layout
from made.bonuses import MADE, RND, FirstVisit, NoBonus
from made.core import Bonus, trees
from made.core.schedules import Constant
from made.envs.minigrid import make_grid
from made.training.on_policy import RunConfig, RunState, iterate

TASK = {"cpu": "MiniGrid-MultiRoom-N6-v0", "gpu": "MiniGrid-KeyCorridorS4R3-v0"}
N_ENVS, UNROLL, UPDATES = 32, 100, 10  # updates in one timed call
COMPILERS = 6  # programs that are compiled at a time for an accelerator
MOST_COST = 1.3  # what MADE may cost on an accelerator: times the time without a bonus
NARROW = RND(64, 64)  # smaller than the small network, of which RND's own defaults are nearly thrice the size


class Case(NamedTuple):
    """A network and how many lanes of it run side by side, with the frames a second asked for."""

    name: str
    layout: Layout
    lanes: int
    goal: float | None
    n_envs: int = N_ENVS


def cases(kind: str) -> list[Case]:
    """What is measured on this machine: a small network on a CPU, the papers' on an accelerator."""
    if kind == "cpu":
        return [Case("small", LAYOUTS["small"], 1, 25e3)]
    half = dataclasses.replace(LAYOUTS["ride"], precision="bfloat16")
    return [
        *(Case("mid", LAYOUTS["mid"], lanes, 3e6 if lanes == 72 else None) for lanes in (1, 8, 24, 72)),
        Case("mid without memory", LAYOUTS["mid-ff"], 72, 5e6),
        Case("RIDE's", LAYOUTS["ride"], 16, None),
        Case("RIDE's, products in bfloat16", half, 16, None),
        Case("RIDE's", LAYOUTS["ride"], 8, None, 256),
        Case("RIDE's, products in bfloat16", half, 8, 1.5e6, 256),
    ]


def measures() -> Iterator[Measure]:
    """Every case with MADE, what MADE costs, and the shares of the time. Nothing compiles while something is timed."""
    where, kind = device(), "cpu" if jax.default_backend() == "cpu" else "gpu"
    each = cases(kind)
    last = each[0]._replace(lanes=1 if kind == "cpu" else 24)
    paid = {"": NoBonus(), "MADE": made()} | ({"MADE on an RND of width 64": made(NARROW)} if kind == "cpu" else {})
    asked = [(case, made()) for case in each] + [(last, bonus) for bonus in paid.values()]
    with ThreadPoolExecutor(1 if kind == "cpu" else COMPILERS) as pool:
        ready = list(pool.map(lambda one: built(lanes_of(one[0], one[1], TASK[kind])), asked))
        parts = pool.submit(shares, lanes_of(last, made(), TASK[kind])).result()
    for case, program in zip(each, ready, strict=False):
        (took,) = seconds([program])
        found, goal = case.lanes * case.n_envs * UNROLL / took, "" if case.goal is None else f"{case.goal:,.0f}"
        met = None if case.goal is None else found >= case.goal
        yield Measure(f"training, {_said(case)}, MADE on", found, "frames/s", None, None, goal, met, where)
    yield from costs(last, dict(zip(paid, ready[len(each) :], strict=True)), where, asked_for=kind != "cpu")
    for name, share in parts().items():
        yield Measure(f"share of an update: {name}", 100 * share, "%", None, None, "", None, where)


def costs(case: Case, programs: dict[str, "Built"], where: str, asked_for: bool) -> Iterator[Measure]:
    """An update with each bonus beside the first, which has none, in turn."""
    plain, *whole = seconds(list(programs.values()))
    goal = f"at most {MOST_COST:g} times" if asked_for else ""
    for name, each in zip(list(programs)[1:], whole, strict=True):
        told, met = f"an update with {name}, {_said(case)}", each <= MOST_COST * plain if asked_for else None
        yield Measure(told, 1e3 * each, "ms", 1e3 * plain, plain / each, goal, met, where)


def _said(case: Case) -> str:
    more = "" if case.n_envs == N_ENVS else f" of {case.n_envs} environments"
    return f"{case.name} network, {case.lanes} lane{'s' * (case.lanes > 1)}{more}"


def made(cover: RND = RND()) -> Bonus:
    """MADE behind the gate, with counts of hashed (o, a) as its recent density."""
    return FirstVisit(MADE.hashed(cover=cover))


def lanes_of(case: Case, bonus: Bonus, task: str) -> RunConfig:
    """So many equal runs, stacked."""
    agent, env = IMPALA(case.layout, learning_rate=6e-4), make_grid(task, shows=("image", "hash"))
    run = RunConfig(
        env,
        agent,
        bonus,
        Constant(0.01),
        n_envs=case.n_envs,
        unroll=UNROLL,
        resets_per_update=2 * case.n_envs,
        pool_per_env=4,
    )
    return trees.stack([run] * case.lanes)


class Built(NamedTuple):
    """A run's lanes and its two compiled programs."""

    lanes: RunConfig
    start: Callable[[], RunState]
    step: Callable[[RunConfig, RunState], RunState]  # UPDATES of every lane


def built(lanes: RunConfig) -> Built:
    """Compile both programs."""

    def some(lanes: RunConfig, state: RunState) -> RunState:
        step = lambda run, state: jax.lax.scan(lambda s, _: (iterate(run, s)[0], None), state, None, UPDATES)[0]  # noqa: E731
        return jax.vmap(step)(lanes, state)

    seeds = jnp.arange(jax.tree.leaves(lanes)[0].shape[0], dtype=jnp.uint32)
    begin = jax.jit(jax.vmap(lambda run, seed: run.start(jax.random.key(seed)))).lower(lanes, seeds).compile()
    step = jax.jit(some, donate_argnums=1).lower(lanes, begin.out_info).compile()
    return Built(lanes, lambda: begin(lanes, seeds), step)


def seconds(programs: Sequence[Built], repeats: int = 3) -> list[float]:
    """Seconds of one update of all lanes of each program: the best of several calls after a first one.

    Several take turns, because the speed of a machine drifts: only what was timed side by side can be compared.
    """
    states = [jax.block_until_ready(one.step(one.lanes, one.start())) for one in programs]
    best = [float("inf")] * len(programs)
    for _ in range(repeats):
        for i, one in enumerate(programs):
            began = time.perf_counter()
            states[i] = jax.block_until_ready(one.step(one.lanes, states[i]))
            best[i] = min(best[i], (time.perf_counter() - began) / UPDATES)
    return best
