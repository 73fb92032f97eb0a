"""`python -m benchmarks.dreamer`: updates of Dreamer with each bonus, and steps of the environment over a whole run.

An update is one of those that follow each other in a compiled call: 50 windows of 50 steps are drawn, the bonus learns
and pays, the world model, the actor and the value each take a step. A stretch of real training has the
paper's pace: 100 updates for 1000 steps of the environment.
"""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.common import Measure, device, main
from benchmarks.control.update_time import EPISODE
from made.agents.dreamer.agent import Dreamer
from made.agents.dreamer.network import Layout
from made.bonuses import make_bonus
from made.core import Space, Spec
from made.core.schedules import Constant
from made.envs.control import rendering
from made.training.backends import TrainPlan, control_tasks
from made.training.control_config import DreamerConfig, control_config
from made.training.off_policy import ReplayLearner, ReplayLearnerState
from made.training.replay import ReplayBuffer, SequenceBuffer, SequenceBufferState

TASK = "pendulum_swingup"
BONUSES = ("made", "none", "re3", "made-released")
LEAST_UPDATES, LEAST_STEPS = 50.0, 450.0  # a second, with MADE in bfloat16


class Sizes(NamedTuple):
    """How large what is timed is; the defaults are those of Dreamer v1."""

    batch: int = 50
    length: int = 50
    steps: int = 20_000  # of the replay, which is drawn from evenly whatever its size
    updates: int = 20  # in one call
    layout: Layout = Layout()
    horizon: int = 15
    bursts: int = 6  # of updates, in a stretch of training: seeds side by side begin it by all acting at once


ON_A_CPU = Sizes(4, 10, 1000, 2, Layout(10, 40, 40, 40, 8), 5, 1)


def measures() -> Iterator[Measure]:
    """Everything at full size on an accelerator, in both precisions; on a CPU small ones, and training from states."""
    where = device()
    if jax.default_backend() == "cpu":
        yield update(where, "made", "float32", ON_A_CPU, None)
        yield update(where, "none", "float32", ON_A_CPU, None)
        yield from training(where, "float32", ON_A_CPU, None, pixels=False)
        return
    yield update(where, "made", "bfloat16", Sizes(), LEAST_UPDATES)  # what has a goal comes first
    for seeds in (3, 1):
        yield from training(where, "bfloat16", Sizes(), LEAST_STEPS, seeds=seeds)
    for precision, bonuses in (("bfloat16", BONUSES[1:]), ("float32", BONUSES)):
        for bonus in bonuses:
            yield update(where, bonus, precision, Sizes(), None)
    yield from training(where, "float32", Sizes(), None)


def update(where: str, bonus: str, precision: str, sizes: Sizes, least: float | None) -> Measure:
    """Updates a second with a bonus."""
    found = 1 / update_seconds(learner(bonus, precision, sizes), sizes.updates)
    told = f"Dreamer with {bonus} in {precision}, {sizes.batch} windows of {sizes.length} pictures of 64 x 64"
    goal, met = ("", None) if least is None else (f"at least {least:g}/s", found >= least)
    return Measure(told, found, "updates/s", None, None, goal, met, where)


def learner(bonus: str, precision: str, sizes: Sizes) -> ReplayLearner:
    """What learns on pendulum_swingup."""
    obs, action = Space((64, 64, 3), jnp.uint8, None, 0.0, 255.0), Space((1,), jnp.float32, None, -1.0, 1.0)
    spec = Spec(obs, action, horizon=EPISODE)
    agent = Dreamer(dataclasses.replace(sizes.layout, precision=precision), horizon=sizes.horizon)
    pays = make_bonus(bonus, "dreamer", steps=sizes.batch * sizes.length)
    replay = SequenceBuffer(ReplayBuffer(sizes.steps, shortest=EPISODE), sizes.length)
    return ReplayLearner(spec, agent, pays, Constant(0.05), replay, sizes.batch)


def filled(learner: ReplayLearner, key: jax.Array) -> ReplayLearnerState:
    """A state whose replay is full of whole episodes of noise."""
    k_start, k_frames = jax.random.split(key)
    state, (c, f) = learner.start(k_start), learner.replay.steps.room
    replay: SequenceBufferState = state.replay  # type: ignore[assignment]
    number = jnp.arange(c, dtype=jnp.int32)
    at = number + number // EPISODE
    steps = replay.steps._replace(
        frames=jax.random.bits(k_frames, replay.steps.frames.shape, jnp.uint8),
        at=at[None],
        written=at[-1:] + 2,
        taken=jnp.int32(c),
        first=jnp.searchsorted(at, at[-1] + 3 - f).astype(jnp.int32)[None],
    )
    begun = (number // EPISODE * EPISODE)[None]
    return state._replace(replay=SequenceBufferState(steps, begun))  # type: ignore[arg-type]


def update_seconds(learner: ReplayLearner, updates: int, repeats: int = 3) -> float:
    """Seconds of one of so many updates in a call; the best of several calls."""
    on_cpu = jax.default_backend() == "cpu"  # there one a call, as in training
    options, calls = ({"xla_backend_optimization_level": 1}, updates) if on_cpu else (None, 1)
    state = jax.jit(lambda: filled(learner, jax.random.key(0)))()
    call = lambda state: learner.study(state, updates, i=0 if on_cpu else None)  # noqa: E731
    study = jax.jit(call, donate_argnums=0, compiler_options=options)
    best = float("inf")
    for i in range(repeats + 1):
        began = time.perf_counter()
        for _ in range(calls):
            state, _ = jax.block_until_ready(study(state))
        best = min(best, (time.perf_counter() - began) / updates) if i else best  # the first call compiles
    return best


def training(
    where: str, precision: str, sizes: Sizes, least: float | None, pixels: bool = True, seeds: int = 1
) -> Iterator[Measure]:
    """Steps of all environments a second while it trains with MADE, or why there are none."""
    seen = "" if pixels else f" from states, {sizes.batch} windows of {sizes.length}"
    side_by_side = "one seed" if seeds == 1 else f"{seeds} seeds side by side"
    told = f"{TASK}, Dreamer with made in {precision}{seen}, {side_by_side}: training"
    run = control_config(TASK, "dreamer", "made")
    run = dataclasses.replace(run, task=dataclasses.replace(run.task, pixels=pixels))
    try:
        found = steps_a_second(sized(run, precision, sizes), sizes.bursts, seeds)
    except ValueError as error:  # dm_control or a way to draw is missing: it says which
        yield Measure(f"{told}, not measured. {error}", float("nan"), "steps/s", None, None, "", None, where)
        return
    goal, met = ("", None) if least is None else (f"at least {least:g}/s", found >= least)
    yield Measure(told, found, "steps/s", None, None, goal, met, where)
    minutes = seeds * 500_000 / found / 60
    yield Measure(f"{told} for 500,000 steps, projected", minutes, "minutes", None, None, "", None, where)


def sized(run: DreamerConfig, precision: str, sizes: Sizes) -> DreamerConfig:
    """The run at those sizes, with no more actions at random than are needed."""
    layout = dataclasses.replace(sizes.layout, precision=precision)
    agent = dataclasses.replace(run.agent, layout=layout, horizon=sizes.horizon)
    steps = dataclasses.replace(run.replay.steps, capacity=sizes.steps)
    replay = SequenceBuffer(steps, sizes.length)
    return dataclasses.replace(run, agent=agent, replay=replay, batch=sizes.batch, seed_steps=2 * EPISODE)


def steps_a_second(run: DreamerConfig, bursts: int, seeds: int = 1) -> float:
    """Training as `made train` does it, from one burst of updates to another, after the first, which compile."""
    if run.task.pixels:
        rendering.choose()
    plan = TrainPlan(run, tuple(range(seeds)), evaluate_every=10**9, checkpoint_every=10**9)  # type: ignore[arg-type]
    with contextlib.closing(control_tasks.ControlBackend(plan)) as backend:
        state, _ = backend.advance(backend.init(), run.seed_steps + run.train_every + 2)
        jax.block_until_ready(state.learners)
        began, actions = time.perf_counter(), bursts * run.train_every
        state, _ = backend.advance(state, actions)
        jax.block_until_ready(state.learners)
        return seeds * actions * run.task.repeat / (time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(main("dreamer"))
