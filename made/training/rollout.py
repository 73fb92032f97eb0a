"""Experience in compiled environments, with automatic resets, notes of the bonus and recurrent state.

Only one step in many needs a reset, but under `vmap` every step would compute it. So initial states are prepared before
the scan, and a step only uses one when an episode ends.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from made.core import Agent, Bonus, Environment, Transition, trees


class EnvSlot(NamedTuple):
    """Everything of one environment that persists from step to step."""

    env: PyTree  # the environment's own state
    obs: PyTree
    note: PyTree  # of the bonus on obs
    memory: PyTree  # the bonus's episodic memory
    carry: PyTree  # the agent's recurrent state
    total: Float[Array, ""]  # extrinsic reward of the episode so far
    length: Int[Array, ""]  # steps of the episode so far


class EpisodeEnds(NamedTuple):
    """Episodes that ended in a rollout: `total` and `length` count where `done` is set."""

    done: Bool[Array, "T N"]
    total: Float[Array, "T N"]
    length: Int[Array, "T N"]
    pool_reused: Bool[Array, "T N"]  # the next episode starts from an entry used before


class ResetPool(NamedTuple):
    """M prepared episodes, M a multiple of N; environment n has those at n, n + N, n + 2N, ...

    Used ones are replaced between rollouts. Within one, an environment with none left uses its first one again.
    """

    start: EnvSlot  # leaves [M, ...]
    used: Bool[Array, " M"]


class RolloutResult(NamedTuple):
    """The environments after a rollout, its transitions, [T, N], and the episodes that ended."""

    streams: EnvSlot
    batch: Transition
    ended: EpisodeEnds
    reserve: ResetPool | None


def reset_slots(
    env: Environment, agent: Agent, bonus: Bonus, bonus_state: PyTree, n: int, key: Key[Array, ""]
) -> EnvSlot:
    """n new episodes, leaves [n, ...]."""
    k_env, k_note = jax.random.split(key)
    env_state, obs = env.reset_many(k_env, n)

    def one(env_state, obs, key) -> EnvSlot:
        memory, note = bonus.memory.remember(bonus_state, bonus.memory.blank(env.spec), obs, key)
        zero = jnp.zeros((), jnp.int32)
        return EnvSlot(env_state, obs, note, memory, agent.carry(env.spec), jnp.zeros(()), zero)

    return jax.vmap(one)(env_state, obs, jax.random.split(k_note, n))


def advance(
    env: Environment,
    agent: Agent,
    bonus: Bonus,
    agent_state: PyTree,
    bonus_state: PyTree,
    stream: EnvSlot,
    fresh: EnvSlot,
    keys: Key[Array, "3"],
    explore: bool = True,
) -> tuple[EnvSlot, Transition, EpisodeEnds]:
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
    following = EnvSlot(env_state, step.obs, note, memory, carry, total, length)
    ended = EpisodeEnds(done, total, length, jnp.zeros_like(done))
    return trees.select(done, fresh, following), transition, ended


def rollout(
    env: Environment,
    agent: Agent,
    bonus: Bonus,
    agent_state: PyTree,
    bonus_state: PyTree,
    streams: EnvSlot,
    length: int,
    key: Key[Array, ""],
    *,
    reserve: ResetPool | None = None,
    explore: bool = True,
) -> RolloutResult:
    """`length` steps of N environments.

    Without a reset pool an episode is prepared for every step of every environment, for cheap resets. With one, an
    environment whose episode ends uses an entry of the pool; call `refill_pool` between rollouts.
    """
    n, agent_state = streams.total.shape[0], agent.acting_params(agent_state)
    k_start, k_step = jax.random.split(key)
    keys = jax.random.split(k_step, (length, n, 3))

    def one(stream, fresh, keys):
        stream, transition, ended = advance(env, agent, bonus, agent_state, bonus_state, stream, fresh, keys, explore)
        return stream, (transition, ended)

    if reserve is None:
        pool = reset_slots(env, agent, bonus, bonus_state, length * n, k_start)
        pool = jax.tree.map(lambda x: x.reshape((length, n, *x.shape[1:])), pool)
        streams, (batch, ended) = jax.lax.scan(lambda streams, x: jax.vmap(one)(streams, *x), streams, (pool, keys))
        return RolloutResult(streams, batch, ended, None)

    waiting = jax.tree.map(lambda x: x.reshape((-1, n, *x.shape[1:])), reserve.start)
    pool_per_env, each = reserve.used.size // n, jnp.arange(n)

    def step(state, keys):
        streams, used = state
        place = jnp.argmin(used, axis=0)  # the first that is unused; where none is left, the first of all
        fresh = jax.tree.map(lambda x: x[0] if pool_per_env == 1 else x[place, each], waiting)
        streams, (transition, ended) = jax.vmap(one)(streams, fresh, keys)
        again = used[place, each]
        used = used | (ended.done & (jnp.arange(pool_per_env)[:, None] == place))
        return (streams, used), (transition, ended._replace(pool_reused=ended.done & again))

    (streams, used), (batch, ended) = jax.lax.scan(step, (streams, reserve.used.reshape(pool_per_env, n)), keys)
    return RolloutResult(streams, batch, ended, ResetPool(reserve.start, used.reshape(-1)))


def first_episodes(
    env: Environment,
    agent: Agent,
    bonus: Bonus,
    agent_state: PyTree,
    bonus_state: PyTree,
    n: int,
    steps: int,
    key: Key[Array, ""],
    explore: bool = False,
) -> EpisodeEnds:
    """The ends of the first episode in each of n environments, leaves [steps, n]. Nothing is learned."""
    k_start, k_roll = jax.random.split(key)
    streams = reset_slots(env, agent, bonus, bonus_state, n, k_start)
    pool = ResetPool(streams, jnp.ones(n, bool))  # what comes after the first episode does not count
    parts = (env, agent, bonus, agent_state, bonus_state)
    ended = rollout(*parts, streams, steps, k_roll, reserve=pool, explore=explore).ended
    return ended._replace(done=ended.done & (jnp.cumsum(ended.done, axis=0) == 1))


def refill_pool(reserve: ResetPool, fresh: EnvSlot) -> ResetPool:
    """Replace used entries by new episodes, leaves [K, ...], as many as there are of either."""
    m, k = reserve.used.shape[0], fresh.total.shape[0]
    slots = jnp.nonzero(reserve.used, size=k, fill_value=m)[0]  # m is out of bounds: dropped
    put = lambda old, new: old.at[slots].set(new, mode="drop")  # noqa: E731
    return ResetPool(jax.tree.map(put, reserve.start, fresh), put(reserve.used, False))
