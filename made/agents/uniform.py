"""An agent that acts at random and learns nothing: the floor of every plot."""

import jax
import jax.numpy as jnp

from made.core import Agent


class Uniform(Agent):
    """Actions sampled uniformly, whatever is observed. Discrete actions, or continuous ones with bounds."""

    def init(self, key, spec):
        action = spec.action
        if action.n is not None:
            return {"logits": jnp.zeros((*action.shape, action.n))}
        if action.low is None or action.high is None:
            raise ValueError(f"Uniform draws from discrete or bounded actions, got {action}: give the space bounds.")
        return {"low": jnp.full(action.shape, action.low), "high": jnp.full(action.shape, action.high)}

    def act(self, state, carry, obs, goal, key, *, explore=True):
        if "logits" in state:
            return carry, jax.random.categorical(key, state["logits"]).astype(jnp.int32), ()
        low, high = state["low"], state["high"]
        return carry, jax.random.uniform(key, low.shape, low.dtype, low, high), ()

    def update(self, state, batch, reward_fn, key):
        return state, {}
