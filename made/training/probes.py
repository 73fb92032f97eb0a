"""Probes: measurements that change nothing in a run, such as visit maps, first successes and bonus tables."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from made.core import Agent, Bonus, Spec, Transition, dict_obs, state_action_grid, trees


class ProbeContext(NamedTuple):
    """What a probe may use when it is read."""

    agent: Agent
    agent_state: PyTree
    bonus_coef: Array  # tau_k of the iteration just done


class Probe(eqx.Module):
    """A measurement: its own state, how a batch changes it, how it is read."""

    @abc.abstractmethod
    def init(self, key: Key[Array, ""], spec: Spec) -> PyTree:
        """The state before any experience."""

    @abc.abstractmethod
    def update(self, seen: PyTree, batch: Transition, k: Int[Array, ""]) -> PyTree:
        """The state after the batch of iteration k."""

    @abc.abstractmethod
    def read(self, seen: PyTree, scene: ProbeContext) -> dict[str, Array]:
        """Named scalars or arrays for a log record."""


class VisitMap(Probe):
    """N_k(s, a): how often each pair was visited so far. Discrete observations."""

    def init(self, key, spec):
        return jnp.zeros((spec.obs.n, spec.action.n), jnp.int32)

    def update(self, seen, batch, k):
        return seen.at[batch.obs, batch.action].add(1)

    def read(self, seen, scene):
        return {"visits": seen}


class FirstReward(Probe):
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


class LastVisit(Probe):
    """The iteration in which each pair (s, a) was last visited; 0 for never. Discrete observations."""

    def init(self, key, spec):
        return jnp.zeros((spec.obs.n, spec.action.n), jnp.int32)

    def update(self, seen, batch, k):
        return seen.at[batch.obs, batch.action].set(k)

    def read(self, seen, scene):
        return {"last_visit": seen}


class BonusTable(Probe):
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


class Coverage(Probe):
    """An estimate of the number of distinct states visited so far (HyperLogLog, Flajolet et al., 2007).

    A state is told by the part `hash` of the observation where there is one, else by all that is observed. Half of
    its 64 bits choose a register; the register keeps the longest run of leading zeros that the other half showed.
    The standard error is 1.04 / sqrt(registers): 0.8 % with 2^14 of them.
    """

    bits: int = eqx.field(static=True, default=14)  # 2^bits registers

    def __check_init__(self):
        if not 4 <= self.bits <= 30:
            raise ValueError(f"Coverage has 2^bits registers with 4 <= bits <= 30, got bits={self.bits}: 14 is usual.")

    def init(self, key, spec):
        return jnp.zeros(2**self.bits, jnp.uint8)

    def update(self, seen, batch, k):
        digest = trees.over_leading(lambda obs: dict_obs.key_of(obs, ""), batch.reward.ndim)(batch.next_obs)
        flat = digest.reshape(-1, 2)
        register = (flat[:, 0] & (2**self.bits - 1)).astype(jnp.int32)
        return seen.at[register].max((jax.lax.clz(flat[:, 1]) + 1).astype(jnp.uint8))

    def read(self, seen, scene):
        return {"coverage": distinct(seen)}


def distinct(registers: Array) -> Float[Array, ""]:
    """The number that registers stand for. Where many are empty, counting the empty ones is the better estimate."""
    m = registers.size
    raw = 0.7213 / (1 + 1.079 / m) * m**2 / jnp.sum(2.0 ** -registers.astype(float))
    empty = jnp.sum(registers == 0)
    few = m * jnp.log(m / jnp.maximum(empty, 1))
    return jnp.where((raw <= 2.5 * m) & (empty > 0), few, raw)
