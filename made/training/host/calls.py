"""The compiled calls behind a bonus and an agent that are driven from outside: one for each thing that happens."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from made.bonuses.combinators import Lanes
from made.core import Agent, Bonus, EpisodeNote, Spec, Transition, trees


class CompiledCalls(NamedTuple):
    """Each takes the bonus's state first, and gives back whatever changes."""

    reset: Callable  # (state, key, obs) -> memory, note, key
    begin: Callable  # (state, memory, note, key, obs, where) -> memory, note, key
    observe: Callable  # (state, memory, note, key, step, reset_obs) -> step, memory, note, key
    reward: Callable  # (state, batch, value) -> bonus, how many entries hold NaN or infinity
    update: Callable  # (state, batch, key) -> state, metrics, key
    spoilt: Callable  # (batch) -> which entries hold NaN or infinity


def _compiled_once(build: Callable[..., Any]) -> Callable[..., Any]:
    """`build(thing, spec, n)`, once for equal arguments. What holds arrays has no hash and is built each time."""
    specs: dict[str, Spec] = {}  # by their text, since dictionaries have no hash
    shared = functools.lru_cache(maxsize=32)(lambda thing, text, n: build(thing, specs[text], n))

    @functools.wraps(build)
    def get(thing: Any, spec: Spec, n: int) -> Any:
        specs[repr(spec)] = spec
        try:
            return shared(thing, repr(spec), n)
        except TypeError:
            return build(thing, spec, n)

    return get


def repeated(tree: PyTree, n: int) -> PyTree:
    """The same for each of n environments: leaves [n, ...]."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *jnp.shape(x))), tree)


@_compiled_once
def calls(bonus: Bonus, spec: Spec, n: int) -> CompiledCalls:
    """The calls of one bonus over n environments, compiled once for equal bonuses."""
    blank = repeated(bonus.memory.blank(spec), n)

    def remember(state, memory, obs, key, note: EpisodeNote | None = None) -> tuple[PyTree, EpisodeNote]:
        """What is seen enters the memories; an observation that is NaN or infinite leaves them as they are."""
        keys = jax.random.split(key, n)
        seen = jax.vmap(bonus.memory.remember, (None, 0, 0, 0))(state, memory, jax.tree.map(_zeroed, obs), keys)
        return trees.select(_unreadable(obs, n), (memory, seen[1] if note is None else note), seen)

    def reset(state, key, obs):
        key, k_begin = jax.random.split(key)
        return *remember(state, blank, obs, k_begin), key

    def begin(state, memory, note, key, obs, where):
        key, k_begin = jax.random.split(key)
        return *trees.select(where, remember(state, blank, obs, k_begin), (memory, note)), key

    def observe(state, memory, note, key, step: Transition, reset_obs):
        key, k_step, k_begin = jax.random.split(key, 3)
        seen = remember(state, memory, step.next_obs, k_step, note)
        fresh = remember(state, blank, reset_obs, k_begin)
        following = trees.select(step.terminated | step.truncated, fresh, seen)
        return step._replace(note=note, next_note=seen[1]), *following, key

    def reward(state, batch: Transition, value):
        bad = bad_steps(batch)
        clean = jax.tree.map(_zeroed, batch)
        return jnp.where(bad, 0.0, bonus.reward(state, clean, value=value)), bad.sum(dtype=jnp.int32)

    def update(state, batch: Transition, key):
        key, k_update = jax.random.split(key)
        return *bonus.update(state, batch, k_update), key

    return CompiledCalls(*map(jax.jit, (reset, begin, observe, reward, update, bad_steps)))


@_compiled_once
def decisions(agent: Agent, spec: Spec, n: int) -> Callable:
    """The decisions of an agent in n environments, compiled once for equal agents.

        (state, key, carry, began, obs, goal, explore) -> key, carry, actions, extras

    Where an episode has just begun, the recurrent state is that of `agent.carry`, whatever was carried.
    """

    def decide(state, key, carry, began, obs, goal, explore: bool):
        key, k_act = jax.random.split(key)
        carry = trees.select(began, repeated(agent.carry(spec), n), carry)
        one = lambda c, o, g, k: agent.act(state, c, o, g, k, explore=explore)  # noqa: E731
        return key, *jax.vmap(one)(carry, obs, goal, jax.random.split(k_act, n))

    return jax.jit(decide, static_argnames="explore")


def _floating(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)


def _zeroed(x: Array) -> Array:
    return jnp.where(jnp.isfinite(x), x, jnp.zeros_like(x)) if _floating(x) else x


def _unreadable(seen: PyTree, *batch: int) -> Bool[Array, "*b"]:
    """Where NaN or infinity is among the numbers, by the leading axes of that shape."""
    bad = jnp.zeros(batch, bool)
    for x in jax.tree.leaves(seen):
        if _floating(x):
            bad = bad | ~jnp.isfinite(x).all(axis=tuple(range(len(batch), x.ndim)))
    return bad


def bad_steps(batch: Transition) -> Bool[Array, "*b"]:
    """Which transitions hold NaN or infinity in what is observed or done."""
    return _unreadable((batch.obs, batch.action, batch.next_obs), *batch.reward.shape)


def without(bad: np.ndarray, batch: Transition) -> Transition:
    """The other transitions of a batch [T, N, ...], in order, as [M, 1, ...]; `extras` tells whose each was."""
    good = np.flatnonzero(~bad.reshape(-1))
    lanes = np.asarray(batch.extras.lane)[good] if isinstance(batch.extras, Lanes) else good % bad.shape[1]
    left = jax.tree.map(lambda x: np.asarray(x).reshape((-1, *x.shape[2:]))[good][:, None], batch._replace(extras=()))
    return left._replace(extras=Lanes(lanes.astype(np.int32)))  # type: ignore[arg-type]
