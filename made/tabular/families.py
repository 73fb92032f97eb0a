"""Families of small MDPs: the lock and the chain of Section 4, random MDPs, and DeepSea.

Each family is a frozen module whose numbers are leaves and whose sizes are static. `draw(key)` returns one of its
MDPs and works under jit and under vmap over keys; `draw()` returns the family's plain member.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from made.core.config import AT_LEAST_ZERO, BELOW_ONE, COUNT, check_numbers
from made.tabular.mdp import MDP, check_discount


class Lock(eqx.Module):
    """The stochastic bidirectional lock (Section 4.1, fig:bidirectional_lock).

    From s0 the action picks one of two chains of H columns, each column with a good and a dead state. In a good
    state the right action reaches the next good state with probability 1 - p and the next dead one with p; the wrong
    action dies surely; the first move, from s0, risks p too. Leaving the last good state pays `big` in one chain and
    `small` in the other; which chain is the big one, and which action is right where, is drawn by key. An episode is
    exactly H + 1 steps.

    Differs from the paper: an explicit absorbing end state makes S = 4H + 2 where the drawing has 4H + 1. The negative
    reward for entering a good state is paid when that state is left, so that r is a function of (s, a); at penalty / H
    for each non-final good state it adds up to less than `penalty`, and the small lock stays worth having.
    H, p, penalty and gamma are not in the paper: these are our choices.

    >>> from made.tabular.solve import horizon_optimum
    >>> lock = Lock(H=5, p=0.2)
    >>> print(f"{horizon_optimum(lock.draw(jax.random.key(0)), lock.horizon)[0]:.3f}")
    0.304
    """

    H: int = eqx.field(static=True, default=10)
    p: float = 0.1
    penalty: float = 0.05
    big: float = 1.0
    small: float = 0.1
    gamma: float = 0.99

    def __check_init__(self):
        check_numbers(self, {COUNT: ("H",), BELOW_ONE: ("p",), AT_LEAST_ZERO: ("penalty",)})
        check_discount(self.gamma)  # where an MDP is drawn in a compiled program, nobody could

    @property
    def n_states(self) -> int:
        return 4 * self.H + 2

    @property
    def horizon(self) -> int:
        """The length of every episode: into the chain, along it, and out."""
        return self.H + 1

    @property
    def end(self) -> int:
        """The absorbing state."""
        return 4 * self.H + 1

    def good(self, chain: Any, h: Any) -> Any:
        """The good state of column h = 0..H-1 of chain 0 or 1."""
        return 1 + 2 * self.H * chain + h

    def dead(self, chain: Any, h: Any) -> Any:
        """The dead state of column h = 0..H-1 of chain 0 or 1."""
        return 1 + 2 * self.H * chain + self.H + h

    def layout(self, key: Key[Array, ""] | None = None) -> tuple[Int[Array, ""], Int[Array, "2 H"]]:
        """The secret of a draw: which chain pays `big`, and the right action of each good state.

        Without a key: chain 0, and action 1 everywhere. The right action of the last column does not matter.
        """
        if key is None:
            return jnp.zeros((), int), jnp.ones((2, self.H), int)
        k_side, k_right = jax.random.split(key)
        return jax.random.randint(k_side, (), 0, 2), jax.random.randint(k_right, (2, self.H), 0, 2)

    def draw(self, key: Key[Array, ""] | None = None) -> MDP:
        """A lock with a random combination, or the plain one."""
        return self.build(*self.layout(key))

    def build(self, good_side: Int[Array, ""] | int, right_actions: Int[Array, "2 H"]) -> MDP:
        """The lock whose combination is given."""
        S, side, last = self.n_states, jnp.arange(2), self.H - 1
        chain, h = side[:, None], jnp.arange(last)[None]
        good, dead, right = self.good(chain, h), self.dead(chain, h), right_actions[:, :-1]

        P = jnp.zeros((S, 2, S))
        P = P.at[0, side, self.good(side, 0)].set(1 - self.p)
        P = P.at[0, side, self.dead(side, 0)].set(self.p)
        P = P.at[good, right, good + 1].set(1 - self.p)
        P = P.at[good, right, dead + 1].set(self.p)
        P = P.at[good, 1 - right, dead + 1].set(1)
        P = P.at[dead, :, dead + 1].set(1)
        over = jnp.concatenate([self.good(side, last), self.dead(side, last), jnp.array([self.end])])
        P = P.at[over, :, self.end].set(1)

        r = jnp.zeros((S, 2)).at[good].set(-self.penalty / self.H)
        r = r.at[self.good(good_side, last)].set(self.big)
        r = r.at[self.good(1 - good_side, last)].set(self.small)
        return MDP(P, r, jnp.zeros(S).at[0].set(1), self.gamma)


class Chain(eqx.Module):
    """The chain on which policy gradients vanish (Section 4.2, fig:chain_MDP; Agarwal et al. 2019).

    States s0..s_{H+1}; action a1 (index 0) moves right, a2..a4 move left. Only r(s_{H+1}, a1) = 1 is paid, and
    gamma = H / (H + 1). The optimum is V*(s0) = gamma^(H+1) / (1 - gamma).

    Differs from the paper, which draws nothing for a2..a4 at the two ends: here they stay where they are.
    """

    H: int = eqx.field(static=True, default=8)

    def __check_init__(self):
        check_numbers(self, {COUNT: ("H",)})

    def draw(self, key: Key[Array, ""] | None = None) -> MDP:
        """The chain; it has nothing to draw, so the key is not used."""
        del key
        S = self.H + 2
        s = jnp.arange(S)
        left = jnp.maximum(s - 1, 0).at[-1].set(S - 1)
        P = jnp.zeros((S, 4, S)).at[s, 0, jnp.minimum(s + 1, S - 1)].set(1).at[s, 1:, left].set(1)
        return MDP(P, jnp.zeros((S, 4)).at[-1, 0].set(1), jnp.zeros(S).at[0].set(1), self.H / (self.H + 1))


class Garnet(eqx.Module):
    """Random MDPs: each (s, a) leads to `branching` distinct states with random probabilities.

    The next-state probabilities and rho are flat Dirichlet draws; rewards are uniform on [0, 1], as Section 2 assumes.
    """

    S: int = eqx.field(static=True, default=10)
    A: int = eqx.field(static=True, default=3)
    branching: int = eqx.field(static=True, default=3)
    gamma: float = 0.9

    def __check_init__(self):
        check_numbers(self, {COUNT: ("S", "A", "branching")})
        if self.branching > self.S:
            raise ValueError(
                f"Garnet has branching={self.branching} but only S={self.S} states to branch to: use at most {self.S}."
            )
        check_discount(self.gamma)

    def draw(self, key: Key[Array, ""] | None = None) -> MDP:
        """A random MDP; without a key, that of `jax.random.key(0)`."""
        k_next, k_prob, k_reward, k_start = jax.random.split(jax.random.key(0) if key is None else key, 4)
        S, A, pairs = self.S, self.A, self.S * self.A
        # The places of the largest of S uniforms are a uniform draw without replacement.
        _, reached = jax.lax.top_k(jax.random.uniform(k_next, (pairs, S)), self.branching)
        chance = _flat_dirichlet(k_prob, (pairs, self.branching))
        P = jnp.zeros((pairs, S)).at[jnp.arange(pairs)[:, None], reached].set(chance).reshape(S, A, S)
        return MDP(P, jax.random.uniform(k_reward, (S, A)), _flat_dirichlet(k_start, (S,)), self.gamma)


class DeepSea(eqx.Module):
    """DeepSea of bsuite: a treasure at the bottom right of a grid, and a cost for each step towards it.

    From the top left every step sinks one row, moving right or left; moving right costs 0.01 / size, and only moving
    right in every row finds the treasure, worth 1. Which action means right in which cell is drawn by key; without one
    it is action 1. An episode is `size` steps and the optimal return 0.99.
    Osband et al., "Behaviour Suite for Reinforcement Learning" (2020), deterministic version.

    Differs from bsuite: an explicit absorbing end state makes S = size^2 + 1. It is not in the paper.
    """

    size: int = eqx.field(static=True, default=10)
    gamma: float = 0.99

    def __check_init__(self):
        check_numbers(self, {COUNT: ("size",)})
        check_discount(self.gamma)

    def draw(self, key: Key[Array, ""] | None = None) -> MDP:
        """A sea with a random action mapping, or the plain one."""
        n, cell = self.size, jnp.arange(self.size**2)
        right = jnp.ones(n * n, int) if key is None else jax.random.randint(key, (n * n,), 0, 2)
        row, column, end = cell // n, cell % n, n * n
        below = row + 1 < n
        to_right = jnp.where(below, (row + 1) * n + jnp.minimum(column + 1, n - 1), end)
        to_left = jnp.where(below, (row + 1) * n + jnp.maximum(column - 1, 0), end)

        P = jnp.zeros((end + 1, 2, end + 1)).at[end, :, end].set(1)
        P = P.at[cell, right, to_right].set(1).at[cell, 1 - right, to_left].set(1)
        r = jnp.zeros((end + 1, 2)).at[cell, right].set(-0.01 / n)
        r = r.at[end - 1, right[-1]].add(1)
        return MDP(P, r, jnp.zeros(end + 1).at[0].set(1), self.gamma)


def _flat_dirichlet(key: Key[Array, ""], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Uniform draws from the simplex: exponentials over their sum, which compile far sooner than a gamma sampler."""
    parts = jax.random.exponential(key, shape)
    return parts / jnp.sum(parts, -1, keepdims=True)
