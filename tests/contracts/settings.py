"""What the contract tests run on: for every registry entry, environments and partners it must work with."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from made import bonuses as b
from made.agents import Uniform, list_agents
from made.bonuses import NoBonus, list_bonuses, make_bonus
from made.bonuses.embedding import InverseDynamicsEmbedding
from made.bonuses.release import ReleasedRND, ReleasedVAE
from made.core import Bonus, Environment, NoMemory, Space, Spec, Step
from made.envs.minigrid import Empty, Grid
from made.envs.tabular import RandomTabular
from made.experiments.paper.minigrid_setup import Family
from made.nets.fit import Fit
from made.tabular.families import Lock
from made.training.on_policy import RunConfig
from made.training.rollout import reset_slots, rollout

N, T = 3, 8


# Sources of experience. In each, episodes end within a rollout.


def small_lock(H: int = 3) -> RandomTabular:
    """A lock whose episodes are shorter than a rollout, so that every rollout crosses episode ends."""
    return RandomTabular(Lock(H=H, p=0.2), horizon=H + 1)


def small_grid() -> Grid:
    """An empty room of 3 x 3 cells, seen as the agent's view and the hash of the full state."""
    return Grid(Empty(5, max_steps=5), shows=("image", "hash"))


class Drift(Environment):
    """A point in the plane that continuous actions push about. It ends far from the centre, or after five steps."""

    @property
    def spec(self):
        return Spec(Space((2,), jnp.float32), Space((2,), jnp.float32, None, -1.0, 1.0), horizon=5)

    def reset(self, key):
        place = 0.1 * jax.random.normal(key, (2,))
        return (place, jnp.zeros((), jnp.int32)), place

    def step(self, state, action, key):
        place, time = state[0] + 0.5 * action, state[1] + 1
        over = jnp.abs(place).max() > 1
        return (place, time), Step(place, jnp.float32(0), over, ~over & (time >= 5))


class Lamp(Environment):
    """A bright pixel on a dark square of 7 x 7, moved by four actions. It ends at the rim, or after five steps."""

    @property
    def spec(self):
        return Spec(Space((7, 7, 1), jnp.uint8), Space((), jnp.int32, 4), horizon=5)

    def reset(self, key):
        place = jax.random.randint(key, (2,), 2, 5)
        return (place, jnp.zeros((), jnp.int32)), self.picture(place)

    def step(self, state, action, key):
        moves = jnp.array([[0, 1], [1, 0], [0, -1], [-1, 0]])
        place, time = state[0] + moves[action], state[1] + 1
        over = (place == 0).any() | (place == 6).any()
        return (place, time), Step(self.picture(place), over.astype(float), over, ~over & (time >= 5))

    def picture(self, place):
        lit = (jnp.arange(7)[:, None] == place[0]) & (jnp.arange(7) == place[1])
        return jnp.where(lit, jnp.uint8(255), jnp.uint8(20))[..., None]


class Walk(Environment):
    """Five places on a line, left or right, often there and back: unlike the lock it is revisited within an episode."""

    @property
    def spec(self):
        return Spec(Space((), jnp.int32, 5), Space((), jnp.int32, 2), horizon=6)

    def reset(self, key):
        place = jnp.full((), 2, jnp.int32)
        return (place, jnp.zeros((), jnp.int32)), place

    def step(self, state, action, key):
        place, time = jnp.clip(state[0] + 2 * action - 1, 0, 4), state[1] + 1
        over = place == 4
        return (place, time), Step(place, over.astype(float), over, ~over & (time >= 6))


SOURCES = {"lock": small_lock, "grid": small_grid, "vector": Drift, "image": Lamp}


# Bonuses with networks small enough to compile in no time. A registry entry that is not here is tested as it is.

TINY: dict[str, Any] = {"embedding": 4, "width": 8}
FIT = Fit(1e-2)
CONTROLLABLE = InverseDynamicsEmbedding(4, 8, fit=FIT)


def rnd(**more) -> b.RND:
    return b.RND(**TINY, fit=FIT, **more)


def small_vae() -> b.Standardized:
    return b.Standardized(b.VAE(64, capacity=64, latent=2, width=8, fit=Fit(1e-3, batch=8)))


SMALL = {
    "made": lambda: b.MADE(rnd(), small_vae()),
    "made-counts": lambda: b.MADE(rnd(), b.Standardized(b.HashedRecentCounts(64, capacity=64, bits=8))),
    "made-released": lambda: b.made_released(
        cover=ReleasedRND(Fit(2e-4, batch=8), width=8, hidden=8, features=4),
        density=ReleasedVAE(64, capacity=64, latent=4, width=8, fit=Fit(1e-3, batch=8)),
    ),
    "rnd": rnd,
    "icm": lambda: b.ICM(**TINY, fit=FIT),
    "ride": lambda: b.RIDE(b.ICM(**TINY, fit=FIT)),
    "noveld": lambda: b.NovelD(rnd()),
    "bebold": lambda: b.NovelD(rnd(), alpha=1.0),
    "amigo": lambda: b.AMIGo(width=8, bits=3),
    "re3": lambda: b.RE3(**TINY, capacity=64),
    "e3b": lambda: b.E3B(CONTROLLABLE),
    "ngu": lambda: b.NGU(CONTROLLABLE, rnd(squared=True)),
    "disagreement": lambda: b.Disagreement(models=3, **TINY, fit=FIT),
    "hashed": lambda: b.HashedCount(bits=10),
}

# Combinators and settings that no registry entry shows.
COMBINED = {
    "scaled": lambda: b.Scaled(b.HashedCount(bits=8), 2.0),
    "clipped": lambda: b.Clipped(b.HashedCount(bits=8, kind="similar", on="obs"), high=0.5),
    "normalised": lambda: b.Normalized(rnd(normalize=True)),
    "normalised-return": lambda: b.Normalized(b.FirstVisit(b.HashedCount(bits=8)), of="return", n_envs=N),
    "calibrated-family": lambda: b.Calibrated(Family(power=0.5, gate=1.0, cover=rnd(), recent=small_vae())),
    "first-visit-sum": lambda: b.FirstVisit(b.Sum((b.FirstVisit(), b.Normalized(b.E3B(CONTROLLABLE))))),
}

AGENTS = list_agents("on_policy")
BONUSES = list_bonuses("on_policy", installed=False)
CASES = {**{name: functools.partial(make_bonus, name) for name in BONUSES}, **SMALL, **COMBINED}


def run_of(agent, bonus, env=None, **more) -> RunConfig:
    return RunConfig(env or small_lock(), agent, bonus, n_envs=N, unroll=T, **{"iterations": 4, "every": 2, **more})


_SHARED = {}  # what every bonus without a memory can share, by environment and length


def experience(bonus: Bonus, env=None, steps: int = T, seed: int = 0):
    """Random experience with this bonus's notes: (settled env, bonus state, transitions [T, N], final streams)."""
    env = env or small_lock()
    if not isinstance(bonus.memory, NoMemory):
        return collected(bonus, env, steps, seed)
    name = repr(env), steps, seed
    if name not in _SHARED:
        _SHARED[name] = collected(NoBonus(), env, steps, seed)
    settled, _, batch, streams = _SHARED[name]
    return settled, bonus.init(jax.random.key(seed), settled.spec), batch, streams


def collected(bonus: Bonus, env, steps: int, seed: int):
    """The same, by a program of this bonus's own. Networks are drawn outside it: that is slow to compile."""
    k_env, k_bonus, k_begin, k_roll = jax.random.split(jax.random.key(seed), 4)
    env, agent = env.sample_task(k_env), Uniform()
    spec = env.spec._replace(goal=bonus.memory.goal(env.spec))
    agent_state, bonus_state = agent.init(k_env, spec), bonus.init(k_bonus, spec)

    def collect(bonus_state, k_begin, k_roll):
        streams = reset_slots(env, agent, bonus, bonus_state, N, k_begin)
        rolled = rollout(env, agent, bonus, agent_state, bonus_state, streams, steps, k_roll)
        return rolled.batch, rolled.streams

    return env, bonus_state, *quick(collect)(bonus_state, k_begin, k_roll)


def quick(fn):
    """Compiled as fast as can be: for what runs a few times only."""
    return jax.jit(fn, compiler_options={"xla_backend_optimization_level": 0})


def leaves_are_arrays(tree) -> bool:
    return all(eqx.is_array(leaf) for leaf in jax.tree.leaves(tree))


def shapes(tree):
    return jax.tree.structure(tree), [(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(tree)]


__all__ = [
    "AGENTS",
    "BONUSES",
    "CASES",
    "COMBINED",
    "SOURCES",
    "Drift",
    "Lamp",
    "N",
    "NoBonus",
    "T",
    "Walk",
    "experience",
    "leaves_are_arrays",
    "quick",
    "rnd",
    "run_of",
    "shapes",
    "small_grid",
    "small_lock",
]
