"""`python -m benchmarks.control`: RAD's update with each bonus, RE3's search, replay memory, minutes of a run.

An update is all that follows an action: the step is stored, a batch is drawn and cropped, the bonus learns and pays,
critic, actor, temperature and targets move. A stretch of real training, where pictures can be drawn, says how long a
run would take and what an action's time goes into; processes draw while the learner learns, so that parts overlap.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from benchmarks.common import Measure, best_of, device
from benchmarks.control.update_time import FEATURES, Sizes, filled, pixel_learner, search, state_learner, update_seconds
from made.envs.control import rendering
from made.envs.control.worker_pool import WorkerPool
from made.training.backends import TrainPlan, control_tasks
from made.training.control_config import ControlConfig, control_config

TASK, FRAMES = "pendulum_swingup", 500_000
BONUSES = {"float32": ("made", "none"), "bfloat16": ("made", "none", "rnd", "re3", "icm", "made-released")}
MOST_MS = {("made", "float32"): 8.0, ("made", "bfloat16"): 5.0}
MOST_SEARCH_MS, MOST_MINUTES = 2.0, 30.0
RELEASED = 2 * 9  # frames that the release stores for a step: two stacks of three, three channels each
ON_A_CPU = Sizes(batch=16, steps=1000, updates=2)


class Stretch(NamedTuple):
    """A stretch of training: seconds of an action of all seeds, and the shares that each part would take alone."""

    seconds: float
    shares: dict[str, float]


def measures() -> Iterator[Measure]:
    """What suits this machine: pixels at full size on an accelerator; states, and pixels in small, on a CPU."""
    where = device()
    if jax.default_backend() == "cpu":
        yield from on_cpu(where)
    else:
        yield from on_accelerator(where)


def on_accelerator(
    where: str, sizes: Sizes = Sizes(), bonuses: Mapping[str, Sequence[str]] = BONUSES
) -> Iterator[Measure]:
    """Updates in both precisions, the search, memory, and training on one seed and on three."""
    for precision, each in bonuses.items():
        for bonus in each:
            found = 1e3 * update_seconds(pixel_learner(bonus, precision, sizes), sizes.updates)
            most = MOST_MS.get((bonus, precision))
            goal, met = ("", None) if most is None else (f"at most {most:g} ms", found <= most)
            told = f"an update on {sizes.batch} crops of {sizes.crop} pixels, {bonus}, encoder in {precision}"
            yield Measure(told, found, "ms", None, None, goal, met, where)
    yield from neighbours(where, sizes, MOST_SEARCH_MS)
    yield memory(where, sizes)
    for seeds in (1, 3):
        yield from training(where, "rad", seeds, sizes, MOST_MINUTES if seeds == 1 else None)


def on_cpu(where: str, sizes: Sizes = Sizes(), small: Sizes = ON_A_CPU) -> Iterator[Measure]:
    """SAC with MADE on states, the search, memory, and an update on pixels at a small batch."""
    each = update_seconds(state_learner("made", sizes), sizes.updates)
    yield Measure(f"SAC with MADE from states, batch {sizes.batch}", 1 / each, "updates/s", None, None, "", None, where)
    yield from training(where, "sac", 1, sizes, None)
    yield from neighbours(where, sizes, None)
    yield memory(where, sizes)
    for bonus in ("made", "none"):
        found = 1e3 * update_seconds(pixel_learner(bonus, "float32", small), small.updates)
        told = f"an update on {small.batch} crops of {small.crop} pixels, {bonus}"
        yield Measure(told, found, "ms", None, None, "", None, where)


def neighbours(where: str, sizes: Sizes, most: float | None) -> Iterator[Measure]:
    """RE3's search, and the memory it takes beside the matrix of all distances."""
    seconds, megabytes = search(sizes)
    goal, met = ("", None) if most is None else (f"at most {most:g} ms", 1e3 * seconds <= most)
    told = f"neighbours of {sizes.batch} among {sizes.steps:,} points of {FEATURES} numbers"
    yield Measure(told, 1e3 * seconds, "ms", None, None, goal, met, where)
    whole = 4e-6 * sizes.batch * sizes.steps
    beside = f"{told}: memory, beside all distances at once"
    yield Measure(beside, megabytes, "MB", whole, whole / max(megabytes, 1e-9), "less", megabytes < whole, where)


def memory(where: str, sizes: Sizes) -> Measure:
    """Bytes of a replay for each step, beside what the release takes."""
    learner = pixel_learner("none", sizes=sizes)
    each, theirs = learner.replay.size_of(learner.spec) / sizes.steps, RELEASED * sizes.side**2
    told = f"a step of {sizes.side} x {sizes.side} pixels in a replay of {sizes.steps:,}"
    return Measure(told, each, "bytes", theirs, theirs / each, "", None, where)


def training(where: str, agent: str, seeds: int, sizes: Sizes, most: float | None) -> Iterator[Measure]:
    """A whole run's minutes, projected from a stretch of it, or why there is none."""
    run = control_config(TASK, agent, "made")
    side_by_side = f"{seeds} seed{'s side by side' * (seeds > 1)}"
    told = f"{TASK}, {agent} with MADE, {side_by_side}"
    try:
        found = stretch(sized(run, sizes), seeds, sizes.actions)
    except ValueError as error:  # dm_control or a way to draw is missing: it says which
        yield Measure(f"{told}: not measured. {error}", float("nan"), "minutes", None, None, "", None, where)
        return
    minutes = FRAMES / run.task.repeat * found.seconds / 60
    goal, met = ("", None) if most is None else (f"at most {most:g} minutes", minutes <= most)
    yield Measure(f"{told}: actions", seeds / found.seconds, "actions/s", None, None, "", None, where)
    yield Measure(f"{told}: {FRAMES:,} steps, projected", minutes, "minutes", None, None, goal, met, where)
    for name, share in found.shares.items():
        yield Measure(f"{told}: {name}, alone", 100 * share, "% of an action", None, None, "", None, where)


def sized(run: ControlConfig, sizes: Sizes) -> ControlConfig:
    """The run at those sizes; from pixels with its encoder in bfloat16."""
    replay, task, layout = dataclasses.replace(run.replay, capacity=sizes.steps), run.task, run.agent.layout
    if task.pixels:
        task = dataclasses.replace(task, size=sizes.side)
        layout = dataclasses.replace(layout, crop=sizes.crop, width=sizes.width, precision="bfloat16")
    agent = dataclasses.replace(run.agent, layout=layout)
    seed_steps = min(run.seed_steps, sizes.actions)
    return dataclasses.replace(
        run, task=task, agent=agent, replay=replay, batch=sizes.batch, seed_steps=seed_steps, every=sizes.actions
    )


def stretch(run: ControlConfig, seeds: int, actions: int) -> Stretch:
    """Training as `made train` does it, after the actions at random and the first updates, which compile."""
    if run.task.pixels:
        rendering.choose()
    plan = TrainPlan(run, tuple(range(seeds)), evaluate_every=10**9, checkpoint_every=10**9)  # type: ignore[arg-type]
    with contextlib.closing(control_tasks.ControlBackend(plan)) as backend:
        state, _ = backend.advance(backend.init(), run.seed_steps + 10)
        began = time.perf_counter()
        state, _ = backend.advance(state, actions)
        each = (time.perf_counter() - began) / actions
        del state
    return Stretch(each, {name: found / each for name, found in parts(run, seeds, min(actions, 200)).items()})


def parts(run: ControlConfig, seeds: int, actions: int) -> dict[str, float]:
    """Seconds, for one action of all seeds, of each part with nothing else going on."""
    with WorkerPool(run.task, range(seeds)) as workers:
        spec, obs = workers.spec, np.array(workers.obs)
        idle = np.zeros((seeds, *spec.action.shape), np.float32)
        began = time.perf_counter()
        for _ in range(actions):
            workers.step(idle)
        stepping = (time.perf_counter() - began) / actions
    learner = run.learner(spec)
    state = jax.jit(lambda: filled(learner, jax.random.key(0)))()
    draw = jax.jit(lambda replay, key: learner.sample(replay, key))
    drawing = best_of(lambda: draw(state.replay, jax.random.key(0)), 5)
    del state
    return {
        "physics and drawing, in processes": stepping,
        "transfer of what is seen": best_of(lambda: jax.device_put((obs, obs[..., -3:], obs[..., -3:])), 5),
        "drawing a batch": seeds * drawing,
        "updates": seeds * update_seconds(learner, 20, 2),
    }
