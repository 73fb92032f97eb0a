"""What the contract tests run on: for every registry entry, environments and partners it must work with."""

import equinox as eqx
import jax
import jax.numpy as jnp

from made.agents import AGENTS, Uniform
from made.bonuses import BONUSES, NoBonus
from made.core import Bonus
from made.rollout import rollout
from made.run import Run, start
from made.tabular.env import RandomTabular
from made.tabular.zoo import Lock

N, T = 3, 8


def small_lock(H: int = 3) -> RandomTabular:
    """A lock whose episodes are shorter than a rollout, so that every rollout crosses episode ends."""
    return RandomTabular(Lock(H=H, p=0.2), horizon=H + 1)


def run_of(agent, bonus, env=None, **more) -> Run:
    return Run(env or small_lock(), agent, bonus, n_envs=N, unroll=T, **{"iterations": 4, "every": 2, **more})


def experience(bonus: Bonus, env=None, steps: int = T, seed: int = 0):
    """Random experience with this bonus's notes: (settled env, bonus state, transitions [T, N], final streams)."""
    run = run_of(Uniform(), bonus, env)
    state = start(run, jax.random.key(seed))
    parts = (state.env, run.agent, bonus, state.agent, state.bonus, state.streams)
    rolled = rollout(*parts, steps, jax.random.key(seed + 1))
    return state.env, state.bonus, rolled.batch, rolled.streams


def leaves_are_arrays(tree) -> bool:
    return all(eqx.is_array(leaf) for leaf in jax.tree.leaves(tree))


def shapes(tree):
    return jax.tree.structure(tree), [(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(tree)]


__all__ = [
    "AGENTS",
    "BONUSES",
    "N",
    "NoBonus",
    "T",
    "experience",
    "leaves_are_arrays",
    "run_of",
    "shapes",
    "small_lock",
]
