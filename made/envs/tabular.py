"""A tabular MDP as an environment that an agent can act in."""

from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from made.core import Environment, Space, Spec, Step
from made.core.config import COUNT, check_numbers
from made.tabular.mdp import MDP


@runtime_checkable
class Family(Protocol):
    """A set of MDPs to draw from, such as `made.tabular.families.Lock`."""

    def draw(self, key: Key[Array, ""] | None = None) -> MDP: ...


class RandomTabular(Environment):
    """An MDP drawn from a family once for each run; episodes end in its absorbing states or at the horizon.

    With `shuffled=False` every run has the family's plain member, `draw(None)`.
    """

    family: Family
    horizon: int = eqx.field(static=True, default=100)
    shuffled: bool = eqx.field(static=True, default=True)

    def __check_init__(self):
        check_numbers(self, {COUNT: ("horizon",)})

    @property
    def spec(self) -> Spec:  # type: ignore[override]
        n_states, n_actions = jax.eval_shape(lambda: self.family.draw(jax.random.key(0)).r).shape
        return _spec(n_states, n_actions, self.horizon)

    def sample_task(self, key):
        return Tabular(self.family.draw(key if self.shuffled else None), self.horizon)

    def reset(self, key):
        raise ValueError("RandomTabular is a family of MDPs: call sample_task(key) first, as made.RunConfig does.")

    def step(self, state, action, key):
        return self.reset(key)


class Tabular(Environment):
    """One fixed MDP. Cumulative distributions are kept, so that a draw is one uniform number and one comparison."""

    mdp: MDP
    horizon: int = eqx.field(static=True)
    first: Float[Array, " S"]
    following: Float[Array, "S A S"]
    absorbing: Bool[Array, " S"]

    def __init__(self, mdp: MDP, horizon: int):
        self.mdp, self.horizon = mdp, horizon
        self.first, self.following = jnp.cumsum(mdp.rho), jnp.cumsum(mdp.P, axis=-1)
        self.absorbing = mdp.absorbing

    @property
    def spec(self) -> Spec:  # type: ignore[override]
        return _spec(self.mdp.n_states, self.mdp.n_actions, self.horizon)

    def reset(self, key):
        s = _draw(self.first, key)
        return (s, jnp.zeros((), jnp.int32)), s

    def step(self, state, action, key):
        s, t = state
        following = _draw(self.following[s, action], key)
        over = self.absorbing[following]
        out_of_time = ~over & (t + 1 >= self.horizon)
        reward = self.mdp.r[s, action].astype(float)
        return (following, t + 1), Step(following, reward, over, out_of_time)


def _spec(n_states: int, n_actions: int, horizon: int) -> Spec:
    return Spec(Space((), jnp.int32, n_states), Space((), jnp.int32, n_actions), horizon=horizon)


def _draw(cumulative: Float[Array, " S"], key: Key[Array, ""]) -> Array:
    """Inverse-transform sampling; scaled by the last entry, which rounding may leave a little off one."""
    u = jax.random.uniform(key) * cumulative[-1]
    return (u >= cumulative).sum().astype(jnp.int32)
