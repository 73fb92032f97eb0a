"""Transitions between latent states, real and imagined, so that a bonus can pay for them within the model.

`Dreamer.curiosity` is any bonus without an episodic memory. It learns from the states of real sequences, and pays in
imagination, on top of the reward head: novelty is then planned for where it is expected, not where it was found.
Disagreement there is the bonus of Plan2Explore (Sekar et al. 2020).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from made.agents.dreamer.network import Layout
from made.agents.dreamer.world_model import PosteriorStates
from made.core import Bonus, NoMemory, Space, Spec, Transition, trees


def latent_spec(spec: Spec, layout: Layout) -> Spec:
    """An environment whose observations are the features of latent states."""
    return spec._replace(obs=Space((layout.features,), jnp.float32))


def check_bonus(bonus: Bonus | None) -> None:
    """Refuse a bonus that imagination cannot give what it reads."""
    if bonus is not None and (not isinstance(bonus.memory, NoMemory) or "value" in bonus.reads):
        raise ValueError(
            f"Dreamer.curiosity pays for imagined states, which have neither episodes nor a table of values, but "
            f"{type(bonus).__name__} reads {', '.join(bonus.reads)}: take one such as RND or Disagreement."
        )


def replayed_latents(posteriors: PosteriorStates, batch: Transition) -> Transition:
    """The sequences [T, B] as the model saw them."""
    arrivals, starts = posteriors.arrivals.latent.features, posteriors.starts.latent.features
    before = jnp.concatenate([starts[:1], arrivals[:-1]])
    before = trees.select(posteriors.fresh, starts, before)
    return Transition(before, batch.action, batch.reward, arrivals, batch.terminated, batch.truncated)


def imagined_latents(
    first: Float[Array, "n f"], features: Float[Array, "H n f"], actions: Float[Array, "H n a"], space: Space
) -> Transition:
    """What was imagined, [H, n]. A gradient reaches the actor by way of the states."""
    taken = actions if space.n is None else jnp.argmax(actions, -1).astype(jnp.int32)
    before = jnp.concatenate([first[None], features[:-1]])
    off = jnp.zeros(features.shape[:-1], bool)
    return Transition(before, jax.lax.stop_gradient(taken), off.astype(jnp.float32), features, off, off)
