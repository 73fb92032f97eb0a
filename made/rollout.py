"""Experience in compiled environments: automatic resets, notes and recurrent state live here and nowhere else.

A reset is work that only one step in many needs, but under `vmap` every step would pay for it. So fresh starts are
drawn in one go before the scan, and a step only swaps one in when an episode ends.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from made import trees
from made.core import Agent, Bonus, Environment, Transition


class Stream(NamedTuple):
    """Everything of one environment that persists from step to step."""

    env: PyTree  # the environment's own state
    obs: PyTree
    note: PyTree  # what the bonus wrote beside obs
    memory: PyTree  # the bonus's episodic memory
    carry: PyTree  # the agent's recurrent state
    total: Float[Array, ""]  # extrinsic reward of the episode so far
    length: Int[Array, ""]  # steps of the episode so far


class Ended(NamedTuple):
    """Episodes that ended in a rollout: `total` and `length` count where `done` is set."""

    done: Bool[Array, "T N"]
    total: Float[Array, "T N"]
    length: Int[Array, "T N"]
    reused: Int[Array, ""]  # resets that found no unused start left; more `starts` brings it to zero


def begin(env: Environment, agent: Agent, bonus: Bonus, bonus_state: PyTree, n: int, key: Key[Array, ""]) -> Stream:
    """n fresh episodes side by side, leaves [n, ...]."""
    k_env, k_note = jax.random.split(key)
    env_state, obs = env.reset_many(k_env, n)

    def one(env_state, obs, key) -> Stream:
        memory, note = bonus.memory.remember(bonus_state, bonus.memory.blank(env.spec), obs, key)
        zero = jnp.zeros((), jnp.int32)
        return Stream(env_state, obs, note, memory, agent.carry(env.spec), jnp.zeros(()), zero)

    return jax.vmap(one)(env_state, obs, jax.random.split(k_note, n))


def advance(
    env: Environment,
    agent: Agent,
    bonus: Bonus,
    agent_state: PyTree,
    bonus_state: PyTree,
    stream: Stream,
    fresh: Stream,
    keys: Key[Array, "3"],
    explore: bool = True,
) -> tuple[Stream, Transition, Ended]:
    """One step of one environment. `fresh` takes over when the episode ends; the true successor is kept."""
    k_act, k_step, k_note = keys
    carry, action, extras = agent.act(agent_state, stream.carry, stream.obs, stream.note.goal, k_act, explore=explore)
    env_state, step = env.step(stream.env, action, k_step)
    memory, note = bonus.memory.remember(bonus_state, stream.memory, step.obs, k_note)
    transition = Transition(
        stream.obs, action, step.reward, step.obs, step.terminated, step.truncated, stream.note, note, extras
    )
    total, length = stream.total + step.reward, stream.length + 1
    done = step.terminated | step.truncated
    following = Stream(env_state, step.obs, note, memory, carry, total, length)
    ended = Ended(done, total, length, jnp.zeros((), jnp.int32))
    return trees.where(done, fresh, following), transition, ended


def rollout(
    env: Environment,
    agent: Agent,
    bonus: Bonus,
    agent_state: PyTree,
    bonus_state: PyTree,
    streams: Stream,
    length: int,
    key: Key[Array, ""],
    *,
    starts: int | None = None,
    explore: bool = True,
) -> tuple[Stream, Transition, Ended]:
    """`length` steps of N environments side by side: (streams, transitions [T, N], episode ends [T, N]).

    `starts` is how many fresh episodes are prepared for each environment. None prepares one for every step, so
    that none is ever used twice: right where a reset is cheap.
    """
    n = streams.total.shape[0]
    k_start, k_step = jax.random.split(key)
    keys = jax.random.split(k_step, (length, n, 3))
    rows = length if starts is None else min(starts, length)
    pool = begin(env, agent, bonus, bonus_state, rows * n, k_start)
    pool = jax.tree.map(lambda x: x.reshape((rows, n, *x.shape[1:])), pool)

    def one(stream, fresh, keys):
        return advance(env, agent, bonus, agent_state, bonus_state, stream, fresh, keys, explore)

    if rows == length:  # a start of its own for every step: no bookkeeping at all
        return _scan(lambda streams, x: jax.vmap(one)(streams, *x), streams, (pool, keys))

    def step(state, keys):
        streams, used = state
        pick = jnp.minimum(used, rows - 1)
        fresh = jax.tree.map(lambda x: jax.vmap(lambda i, column: column[i], in_axes=(0, 1))(pick, x), pool)
        streams, transition, ended = jax.vmap(one)(streams, fresh, keys)
        ended = ended._replace(reused=(ended.done & (used >= rows)).astype(jnp.int32))
        return (streams, used + ended.done), transition, ended

    (streams, _), batch, ended = _scan(step, (streams, jnp.zeros(n, jnp.int32)), keys)
    return streams, batch, ended


def _scan(step, state, xs):
    def body(state, x):
        state, transition, ended = step(state, x)
        return state, (transition, ended)

    state, (batch, ended) = jax.lax.scan(body, state, xs)
    return state, batch, ended._replace(reused=ended.reused.sum())
