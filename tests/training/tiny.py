"""What the tests of training run: a linear actor-critic that compiles in no time, on the smallest grid."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from made.bonuses import RND
from made.core import Agent
from made.core.schedules import Constant
from made.envs.minigrid import Empty, Grid
from made.nets.fit import Fit
from made.training.backends import TrainPlan
from made.training.on_policy import RunConfig
from made.training.probes import Coverage


class Linear(NamedTuple):
    """Weights from the view to the logits and the value, and their optimiser."""

    weights: jax.Array
    optimiser: optax.OptState


class ActorCritic(Agent):
    """REINFORCE with a baseline, one linear layer. From update `breaks_at` on its loss is not a number."""

    learning_rate: float = 1e-2
    breaks_at: float = jnp.inf
    width: int = eqx.field(static=True, default=147)

    def _optimiser(self):
        return optax.adam(self.learning_rate, eps=1e-3)  # larger than rounding errors of a gradient

    def init(self, key, spec):
        weights = 0.01 * jax.random.normal(key, (self.width, spec.action.n + 1))
        return Linear(weights, self._optimiser().init(weights)), jnp.zeros((), jnp.int32)

    def act(self, state, carry, obs, goal, key, *, explore=True):
        logits = (features(obs) @ state[0].weights)[:-1]
        action = jax.random.categorical(key, logits) if explore else jnp.argmax(logits)
        return carry, action.astype(jnp.int32), ()

    def update(self, state, batch, reward_fn, key):
        (learner, k), reward = state, reward_fn(batch)

        def loss(weights):
            out = jax.vmap(jax.vmap(features))(batch.obs) @ weights
            log_pi, value = jax.nn.log_softmax(out[..., :-1]), out[..., -1]
            chosen = jnp.take_along_axis(log_pi, batch.action[..., None], -1)[..., 0]
            gain = reward - value
            return jnp.mean(gain**2 - chosen * jax.lax.stop_gradient(gain)) + jnp.where(k >= self.breaks_at, jnp.nan, 0)

        value, slope = jax.value_and_grad(loss)(learner.weights)
        change, optimiser = self._optimiser().update(slope, learner.optimiser)
        return (Linear(optax.apply_updates(learner.weights, change), optimiser), k + 1), {"loss": value}


def features(obs):
    return obs["image"].reshape(-1) / 10.0


def run(**more) -> RunConfig:
    """Four rooms of 3 x 3 cells, episodes of six steps, rows of two updates. The bonus looks at little: quick."""
    bonus = more.pop("bonus", RND(embedding=4, width=8, view="direction", fit=Fit(1e-2)))
    sizes = {"n_envs": 4, "unroll": 8, "iterations": 7, "every": 2, "resets_per_update": 4}
    agent = ActorCritic(breaks_at=more.pop("breaks_at", jnp.inf))
    grid = Grid(Empty(5, max_steps=6), shows=("image", "direction", "hash"))
    return RunConfig(grid, agent, bonus, Constant(0.1), probes=(Coverage(6),), **{**sizes, **more})


def plan(seeds: int = 2, **more) -> TrainPlan:
    return TrainPlan(run(**more), tuple(range(seeds)), evaluate_every=4, checkpoint_every=4, episodes=3)
