"""What `python -m benchmarks.control` times: learners with a full replay, one update, and RE3's search."""

import time
from collections.abc import Callable
from itertools import cycle
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from benchmarks.common import best_of
from made.agents.sac import RAD, SAC, Layout
from made.bonuses import make_bonus
from made.bonuses.re3 import CACHED, LAUNCHED, distances
from made.bonuses.replay_data import CachedState
from made.core import Space, Spec, Transition, ring_buffer
from made.core.schedules import Constant
from made.training import sharding
from made.training.off_policy import ReplayLearner, ReplayLearnerState
from made.training.replay import ReplayBuffer, ReplayBufferState

EPISODE, FEATURES, NEIGHBOUR = 500, 50, 3  # actions of an episode; RE3's embedding and neighbour, as released


class Sizes(NamedTuple):
    """How large what is timed is; the defaults are those of the paper's release."""

    batch: int = 512
    steps: int = 100_000  # of the replay, and the points among which RE3 searches
    side: int = 100  # of an image
    crop: int = 84
    width: int = 1024  # of the heads
    updates: int = 40  # in one timed stretch
    actions: int = 1000  # in a stretch of training, after those at random


def pixel_learner(bonus: str, precision: str = "float32", sizes: Sizes = Sizes()) -> ReplayLearner:
    """RAD on stacks of three frames with a bonus by its name, as on pendulum_swingup."""
    spec = Spec(Space((sizes.side, sizes.side, 9), jnp.uint8), _actions(1), horizon=EPISODE)
    agent = RAD(Layout(crop=sizes.crop, width=sizes.width, precision=precision))
    replay = ReplayBuffer(sizes.steps, stack=3)
    return ReplayLearner(spec, agent, make_bonus(bonus, "off_policy", pixels=True), Constant(0.05), replay, sizes.batch)


def state_learner(bonus: str, sizes: Sizes = Sizes()) -> ReplayLearner:
    """SAC on the three numbers of pendulum_swingup."""
    spec = Spec(Space((3,), jnp.float32), _actions(1), horizon=EPISODE)
    return ReplayLearner(
        spec, SAC(), make_bonus(bonus, "off_policy"), Constant(0.05), ReplayBuffer(sizes.steps), sizes.batch
    )


def _actions(n: int) -> Space:
    return Space((n,), jnp.float32, None, -1.0, 1.0)


def filled(learner: ReplayLearner, key: Array) -> ReplayLearnerState:
    """A state whose replay is full of noise, and with it all that is kept of its steps."""
    k_start, k_frames, k_kept = jax.random.split(key, 3)
    state, (c, f) = learner.start(k_start), learner.replay.room
    replay: ReplayBufferState = state.replay  # type: ignore[assignment]
    number = jnp.arange(c, dtype=jnp.int32)
    at = number + number // EPISODE
    first = jnp.searchsorted(at, at[-1] + 2 - f + learner.replay.stack).astype(jnp.int32)
    full = replay._replace(
        frames=_noise(k_frames, replay.frames),
        at=at[None],
        age=jnp.minimum(number % EPISODE, learner.replay.stack - 1)[None],
        written=at[-1:] + 2,
        taken=jnp.int32(c),
        first=first[None],
    )
    kept = lambda x: isinstance(x, CachedState | ring_buffer.Ring)  # noqa: E731

    def fill(part: Any) -> Any:
        if isinstance(part, CachedState):
            return part._replace(features=_noise(k_kept, part.features))
        if isinstance(part, ring_buffer.Ring):
            return ring_buffer.Ring(
                jax.tree.map(lambda x: _noise(k_kept, x), part.items), jnp.int32(ring_buffer.capacity(part))
            )
        return part

    return state._replace(replay=full, bonus=jax.tree.map(fill, state.bonus, is_leaf=kept))


def _noise(key: Array, x: Array) -> Array:
    if x.dtype == jnp.uint8:
        return jax.random.bits(key, x.shape, jnp.uint8)
    return jax.random.uniform(key, x.shape, x.dtype, -1.0, 1.0)


def came(learner: ReplayLearner) -> Transition:
    """One step as it comes from an environment: pictures are single frames."""
    space = learner.spec.obs
    shape = space.shape if len(space.shape) == 1 else (*space.shape[:2], space.shape[-1] // learner.replay.stack)
    frame, no = np.zeros((1, 1, *shape), np.dtype(space.dtype)), np.zeros((1, 1), bool)
    return Transition(frame, np.zeros((1, 1, 1), np.float32), np.zeros((1, 1), np.float32), frame, no, no)  # type: ignore


def compiled(learner: ReplayLearner) -> tuple[Callable, Callable]:
    """(a full state, an update of it), both ready to be called."""
    begin, step = jax.jit(lambda: filled(learner, jax.random.key(0))), came(learner)
    shape = jax.eval_shape(begin)
    options = sharding.options(1)
    advance = lambda one: jax.jit(one.advance, donate_argnums=0, compiler_options=options).lower(shape, step)  # noqa: E731
    if jax.default_backend() == "cpu":
        return begin.lower().compile(), advance(learner).compile()
    turns = cycle(sharding.compiled(map(advance, learner.kinds)))
    return begin.lower().compile(), lambda state, step: next(turns)(state, step)


def update_seconds(learner: ReplayLearner, updates: int, repeats: int = 3) -> float:
    """Seconds of one update: storing, drawing, bonus and agent; the best of stretches that are waited for once each."""
    begin, update = compiled(learner)
    return timed(update, begin(), came(learner), updates, repeats)


def timed(update: Callable, state: PyTree, step: Transition, updates: int, repeats: int = 3) -> float:
    """Seconds of one call of a compiled update that takes its state over."""
    best = float("inf")
    for i in range(repeats + 1):
        began = time.perf_counter()
        for _ in range(updates if i else 2):
            state, _ = update(state, step)
        jax.block_until_ready(state)
        best = min(best, (time.perf_counter() - began) / updates) if i else best
    return best


def search(sizes: Sizes = Sizes()) -> tuple[float, float]:
    """(seconds of RE3's search for a batch among all points, megabytes of memory that it takes beside them)."""
    block = CACHED if jax.default_backend() == "cpu" else LAUNCHED
    k_points, k_queries = jax.random.split(jax.random.key(0))
    points = jax.random.normal(k_points, (sizes.steps, FEATURES))
    ring, queries = (
        ring_buffer.Ring(points, jnp.int32(sizes.steps)),
        jax.random.normal(k_queries, (sizes.batch, FEATURES)),
    )

    def far(ring: ring_buffer.Ring, queries: Array) -> Float[Array, " b"]:
        return distances(ring, queries, NEIGHBOUR, block)

    program = jax.jit(far).lower(ring, queries).compile()
    megabytes = program.memory_analysis().temp_size_in_bytes / 1e6  # type: ignore[union-attr]
    return best_of(lambda: program(ring, queries), 5), megabytes
