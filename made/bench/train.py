"""`made bench train`: frames a second of whole training, IMPALA with MADE on a grid, and where the time goes.

A lane is a seed or a setting: 32 environments, unrolls of 100 steps, its own networks. Lanes rather than larger batches
fill an accelerator, because larger batches need more frames to learn the same.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from made import trees
from made.agents import IMPALA, Uniform
from made.agents.impala_nets import LAYOUTS, Layout
from made.bench import Measure
from made.bench.machine import device
from made.bonuses import MADE, RND, FirstVisit, NoBonus
from made.core import Agent, Bonus
from made.grids import make_grid
from made.rollout import begin, rollout
from made.run import Run, RunState, iterate, learn, start
from made.schedules import Constant

TASK = {"cpu": "MiniGrid-MultiRoom-N6-v0", "gpu": "MiniGrid-KeyCorridorS4R3-v0"}
N_ENVS, UNROLL, UPDATES = 32, 100, 10  # updates in one timed call
MOST_COST = 1.3  # what MADE may cost: times the time without a bonus
NARROW = RND(64, 64)  # smaller than the small network, of which RND's own defaults are nearly thrice the size


class Case(NamedTuple):
    """A network and how many lanes of it run side by side, with the frames a second asked for."""

    name: str
    layout: Layout
    lanes: int
    goal: float | None


def cases(backend: str) -> list[Case]:
    """What is measured on this machine: a small network on a CPU, the papers' on an accelerator."""
    if backend == "cpu":
        return [Case("small", LAYOUTS["small"], 1, 25e3)]
    half = dataclasses.replace(LAYOUTS["ride"], precision="bfloat16")
    return [
        *(Case("mid", LAYOUTS["mid"], lanes, 3e6 if lanes == 72 else None) for lanes in (1, 8, 24, 72)),
        Case("mid without memory", LAYOUTS["mid-ff"], 72, 5e6),
        Case("RIDE's", LAYOUTS["ride"], 16, None),
        Case("RIDE's, products in bfloat16", half, 16, 1.5e6),
    ]


def measures() -> Iterator[Measure]:
    """Every case with MADE, what MADE costs, and the shares of the time."""
    where, backend = device(), jax.default_backend()
    kind = "cpu" if backend == "cpu" else "gpu"
    for case in cases(kind):
        (each,) = seconds([lanes_of(case, made(), TASK[kind])])
        found, goal = case.lanes * N_ENVS * UNROLL / each, "" if case.goal is None else f"{case.goal:,.0f}"
        met = None if case.goal is None else found >= case.goal
        yield Measure(f"training, {_said(case)}, MADE on", found, "frames/s", None, None, goal, met, where)
    last = cases(kind)[0]._replace(lanes=1 if kind == "cpu" else 24)
    yield from costs(last, kind, where)
    for name, share in shares(last, TASK[kind]).items():
        yield Measure(f"share of an update: {name}", 100 * share, "%", None, None, "", None, where)


def costs(case: Case, kind: str, where: str) -> Iterator[Measure]:
    """An update with MADE beside one without a bonus, in turn; on a CPU also with the narrow RND under MADE."""
    paid = {"MADE": made()} | ({"MADE on an RND of width 64": made(NARROW)} if kind == "cpu" else {})
    plain, *whole = seconds([lanes_of(case, bonus, TASK[kind]) for bonus in (NoBonus(), *paid.values())])
    goal = f"at most {MOST_COST:g} times"
    for name, each in zip(paid, whole, strict=True):
        told, met = f"an update with {name}, {_said(case)}", each <= MOST_COST * plain
        yield Measure(told, 1e3 * each, "ms", 1e3 * plain, plain / each, goal, met, where)


def _said(case: Case) -> str:
    return f"{case.name} network, {case.lanes} lane{'s' * (case.lanes > 1)}"


def made(cover: RND | None = None) -> Bonus:
    """MADE behind the gate, with counts of hashed (o, a) as its recent density."""
    return FirstVisit(MADE.hashed(cover=cover))


def lanes_of(case: Case, bonus: Bonus, task: str) -> Run:
    """So many equal runs, stacked."""
    agent, env = IMPALA(case.layout, learning_rate=6e-4), make_grid(task, shows=("image", "hash"))
    run = Run(env, agent, bonus, Constant(0.01), n_envs=N_ENVS, unroll=UNROLL, starts=64, spares=4)
    return trees.stack([run] * case.lanes)


def begun(lanes: Run) -> RunState:
    """The state of every lane, after its start."""
    seeds = jnp.arange(jax.tree.leaves(lanes)[0].shape[0], dtype=jnp.uint32)
    return jax.jit(jax.vmap(lambda run, seed: start(run, jax.random.key(seed))))(lanes, seeds)


def seconds(runs: Sequence[Run], repeats: int = 3) -> list[float]:
    """Seconds of one update of all lanes of each run: the best of several calls, compiled before.

    Several runs take turns, because the speed of a machine drifts: only what was timed side by side can be compared.
    """

    def some(lanes: Run, state: RunState) -> RunState:
        step = lambda run, state: jax.lax.scan(lambda s, _: (iterate(run, s)[0], None), state, None, UPDATES)[0]  # noqa: E731
        return jax.vmap(step)(lanes, state)

    program = jax.jit(some, donate_argnums=1)
    states = [jax.block_until_ready(program(lanes, begun(lanes))) for lanes in runs]
    best = [float("inf")] * len(runs)
    for _ in range(repeats):
        for i, lanes in enumerate(runs):
            began = time.perf_counter()
            states[i] = jax.block_until_ready(program(lanes, states[i]))
            best[i] = min(best[i], (time.perf_counter() - began) / UPDATES)
    return best


def shares(case: Case, task: str) -> dict[str, float]:
    """The shares of environment, acting, bonus and learning, each part timed by a program of its own."""
    lanes = lanes_of(case, made(), task)
    state = begun(lanes)
    free, idle = (_walk(agent, NoBonus()) for agent in (lanes.agent, Uniform()))
    acting = timed(_walk(lanes.agent, lanes.bonus), lanes, state)
    env, plain = timed(idle, lanes, state), timed(free, lanes, state)
    batch = jax.jit(jax.vmap(_batch))(lanes, state)
    both = timed(lambda run, s, batch: learn(run, s.agent, s.bonus, batch, s.k, s.key), lanes, state, batch)
    paid = timed(_bonus_only, lanes, state, batch)
    parts = {"environment": env, "acting": plain - env, "bonus": acting - plain + paid, "learning": both - paid}
    parts = {name: max(x, 0.0) for name, x in parts.items()}
    return {name: x / sum(parts.values()) for name, x in parts.items()}


def _walk(agent: Agent, bonus: Bonus) -> Callable:
    """A rollout with that agent and bonus in place of the run's own; levels are drawn within it."""

    def walk(run: Run, state: RunState) -> jax.Array:
        own = type(agent) is type(run.agent)
        acting = state.agent if own else agent.init(state.key, run.env.spec)
        paid = state.bonus if type(bonus) is type(run.bonus) else ()
        streams = begin(run.env, run.agent if own else agent, bonus, paid, N_ENVS, state.key)
        parts = (run.env, run.agent if own else agent, bonus, acting, paid, streams)
        spare = state.reserve._replace(start=streams, used=jnp.zeros(N_ENVS, bool))  # type: ignore[union-attr]
        rolled = rollout(*parts, UNROLL, state.key, reserve=spare)
        return jax.tree.reduce(lambda total, x: total + x.astype(float).sum(), rolled.batch[:5], jnp.zeros(()))

    return walk


def _batch(run: Run, state: RunState):
    parts = (run.env, run.agent, run.bonus, state.agent, state.bonus, state.streams)
    return rollout(*parts, UNROLL, state.key, reserve=state.reserve).batch


def _bonus_only(run: Run, state: RunState, batch) -> tuple:
    after, _ = run.bonus.update(state.bonus, batch, state.key)
    return after, run.bonus.reward(after, batch)


def timed(fn: Callable, *args, repeats: int = 3) -> float:
    """Seconds of one call over all lanes, compiled before."""
    program, best = jax.jit(jax.vmap(fn)), float("inf")
    jax.block_until_ready(program(*args))
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(program(*args))
        best = min(best, time.perf_counter() - began)
    return best
