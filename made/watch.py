"""Instruments that look on while a run goes by, and change nothing in it: visit maps, first successes, bonus tables."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, PyTree

from made.core import Agent, Bonus, Spec, Transition


class Scene(NamedTuple):
    """What an instrument may look at when it is read."""

    agent: Agent
    agent_state: PyTree
    tau: Array  # tau_k of the iteration just done


class Watch(eqx.Module):
    """An instrument: its own state, how a batch changes it, how it is read."""

    @abc.abstractmethod
    def init(self, key: Key[Array, ""], spec: Spec) -> PyTree:
        """The reading before any experience."""

    @abc.abstractmethod
    def update(self, seen: PyTree, batch: Transition, k: Int[Array, ""]) -> PyTree:
        """Take in the batch of iteration k."""

    @abc.abstractmethod
    def read(self, seen: PyTree, scene: Scene) -> dict[str, Array]:
        """Named scalars or arrays, recorded once a row."""


class VisitMap(Watch):
    """N_k(s, a): how often each pair was visited so far. Discrete observations."""

    def init(self, key, spec):
        return jnp.zeros((spec.obs.n, spec.action.n), jnp.int32)

    def update(self, seen, batch, k):
        return seen.at[batch.obs, batch.action].add(1)

    def read(self, seen, scene):
        return {"visits": seen}


class FirstReward(Watch):
    """The iteration in which a reward between `least` and `most` was first paid; 0 until then."""

    name: str = eqx.field(static=True, default="first_reward")
    least: float = 0.5
    most: float = jnp.inf

    def init(self, key, spec):
        return jnp.zeros((), jnp.int32)

    def update(self, seen, batch, k):
        paid = ((batch.reward >= self.least) & (batch.reward <= self.most)).any()
        return jnp.where(paid & (seen == 0), k, seen)

    def read(self, seen, scene):
        return {self.name: seen}


class LastVisit(Watch):
    """The iteration in which each pair (s, a) was last visited; 0 for never. Discrete observations."""

    def init(self, key, spec):
        return jnp.zeros((spec.obs.n, spec.action.n), jnp.int32)

    def update(self, seen, batch, k):
        return seen.at[batch.obs, batch.action].set(k)

    def read(self, seen, scene):
        return {"last_visit": seen}


class BonusTable(Watch):
    """The value of a bonus on every (s, a), kept on the side: it sees the run's experience and pays nothing.

    With several of these, different bonuses are compared on the very same experience (Fig. 4).
    """

    name: str = eqx.field(static=True)
    bonus: Bonus

    def init(self, key, spec):
        return self.bonus.init(key, spec)

    def update(self, seen, batch, k):
        return self.bonus.update(seen, batch, jax.random.fold_in(jax.random.key(0), k))[0]

    def read(self, seen, scene):
        value = scene.agent.values(scene.agent_state)  # type: ignore[attr-defined]
        n_states, n_actions = scene.agent_state.q.shape
        grid = state_action_grid(n_states, n_actions)
        return {f"bonus_{self.name}": self.bonus.reward(seen, grid, value=value)}


def state_action_grid(n_states: int, n_actions: int, reward: Array | None = None) -> Transition:
    """All pairs (s, a) as a batch [S, A]: how a planner asks `reward_fn` for its whole table."""
    s, a = jnp.meshgrid(jnp.arange(n_states, dtype=jnp.int32), jnp.arange(n_actions, dtype=jnp.int32), indexing="ij")
    never = jnp.zeros(s.shape, bool)
    return Transition(s, a, jnp.zeros(s.shape) if reward is None else reward, (), never, never)
