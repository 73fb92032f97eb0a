"""The world model of Dreamer: posterior states of sequences, their likelihood, and open-loop predictions."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree, UInt8

from made.agents.dreamer.network import Decoder, Encoder, Layout, action_size, as_vectors, mlp
from made.agents.dreamer.rssm import RSSM, Latent, Observed
from made.core import Bonus, Metrics, NoMemory, Space, Spec, Transition, dict_obs, trees
from made.nets.layers import MLP


class PosteriorStates(NamedTuple):
    """The posterior states of sequences [T, B] of transitions."""

    arrivals: Observed  # after each transition
    starts: Observed  # before it, from its first observation alone; meaningful only where `fresh`
    fresh: Bool[Array, "T B"]  # a window or an episode begins with this transition


class WorldModel(eqx.Module):
    """Encoder, recurrent model, decoder, and heads for the reward and, where there is one, the discount."""

    encoder: Encoder
    rssm: RSSM
    decoder: Decoder
    reward_head: MLP
    ends_head: MLP | None
    action: Space = eqx.field(static=True)
    layout: Layout = eqx.field(static=True)

    def __init__(self, spec: Spec, layout: Layout, ends: bool, *, key: Key[Array, ""]):
        k_encoder, k_rssm, k_decoder, k_reward, k_ends = jax.random.split(key, 5)
        self.action, self.layout = spec.action, layout
        self.encoder = Encoder(spec.obs, layout, key=k_encoder)
        self.rssm = RSSM(self.encoder.size, action_size(spec.action), layout, key=k_rssm)
        self.decoder = Decoder(spec.obs, layout, key=k_decoder)
        self.reward_head = mlp(layout.features, layout.units, layout.reward, 1, key=k_reward)
        self.ends_head = mlp(layout.features, layout.units, layout.ends, 1, key=k_ends) if ends else None

    def reward(self, features: Float[Array, "*b f"]) -> Float[Array, "*b"]:
        """The reward on arriving at a state."""
        return self.reward_head(features, self.layout.dtype)[..., 0]

    def discounts(self, features: Float[Array, "*b f"], discount: Array | float) -> Float[Array, "*b"]:
        """The discount at a state: constant, or predicted by the head."""
        if self.ends_head is None:
            return jnp.full(features.shape[:-1], discount, jnp.float32)
        return jax.nn.sigmoid(self.ends_head(features, self.layout.dtype)[..., 0])

    def watch(self, batch: Transition, key: Key[Array, ""]) -> PosteriorStates:
        """The posterior states of sequences [T, B]; state and action before the first observation are zero.

        Every successor is encoded once. First observations of episodes within a window are encoded only if there are
        any.
        """
        k_starts, k_arrivals = jax.random.split(key)
        (steps, n), stoch = batch.reward.shape, self.layout.stoch
        over = (batch.terminated | batch.truncated)[:-1]
        fresh = jnp.concatenate([jnp.ones((1, n), bool), over])
        embeds = self.encoder(observations_of(batch))
        first = embeds[:1]
        if steps > 1:
            rest = jax.tree.map(lambda x: x[1:], batch.obs)
            blank = jnp.zeros((steps - 1, *first.shape[1:]))
            encode = self._seldom(lambda rest: self.encoder(rest))
            first = jnp.concatenate([first, jax.lax.cond(over.any(), encode, lambda _: blank, rest)])
        starts = self.rssm.begin(first, jax.random.normal(k_starts, (steps, n, stoch)))
        noise = jax.random.normal(k_arrivals, (steps, n, stoch))
        actions = as_vectors(batch.action, self.action)
        return PosteriorStates(self.rssm.observe(starts.latent, fresh, actions, embeds[1:], noise), starts, fresh)

    def judge(
        self, batch: Transition, reward: Float[Array, "T B"], discount: Array | float, key: Key[Array, ""]
    ) -> tuple[PosteriorStates, Metrics]:
        """The posterior states of sequences, and the terms of the loss in nats.

        kl      mean KL(q || p) over all observations
        image   mean log p(observation | state) over all observations
        reward  mean log N(reward; head, 1) over all transitions
        ends    mean log p(discount (1 - terminated)) of the head's Bernoulli, where there is one
        """
        posteriors = self.watch(batch, key)
        arrivals, starts, fresh = posteriors
        latents = _prepend(starts.latent, arrivals.latent)
        image = self.decoder.score(latents.features, observations_of(batch)).sum() + self._later(posteriors, batch)
        apart = arrivals.posterior.kl(arrivals.prior).sum() + (starts.posterior.kl(starts.prior) * fresh).sum()
        n, after = reward.size + fresh.sum(), arrivals.latent.features
        of_reward = -0.5 * (self.reward(after) - reward) ** 2 - 0.5 * math.log(2 * math.pi)
        parts = {"kl": apart / n, "image": image / n, "reward": of_reward.mean()}
        if self.ends_head is not None:
            logits, aim = self.ends_head(after, self.layout.dtype)[..., 0], discount * ~batch.terminated
            parts["ends"] = (aim * jax.nn.log_sigmoid(logits) + (1 - aim) * jax.nn.log_sigmoid(-logits)).mean()
        return posteriors, parts

    def _later(self, posteriors: PosteriorStates, batch: Transition) -> Float[Array, ""]:
        """The summed log-likelihood of first observations of episodes within a window."""
        if posteriors.fresh.shape[0] == 1:
            return jnp.zeros(())
        begun = posteriors.fresh[1:]
        latent, obs = jax.tree.map(lambda x: x[1:], (posteriors.starts.latent, batch.obs))
        score = self._seldom(lambda features, obs: (self.decoder.score(features, obs) * begun).sum())
        return jax.lax.cond(begun.any(), score, lambda *_: jnp.zeros(()), latent.features, obs)

    def _seldom(self, call: Callable) -> Callable:
        """A call that is seldom made, recomputed for the gradient if there are images.

        Otherwise its activations would be stored as zeros whenever it is not made.
        """
        return jax.checkpoint(call) if self.encoder.convolutions else call


def observations_of(batch: Transition) -> PyTree:
    """The T + 1 observations of windows [T, B]: the first one and all successors."""
    return _prepend(batch.obs, batch.next_obs)


def imagination_starts(posteriors: PosteriorStates, terminated: Bool[Array, "T B"]) -> tuple[Latent, Bool[Array, " n"]]:
    """The initial states of imagination: (states [(T + 1) B], whether the task continues from there).

    All states of the windows, where the last state of an episode is replaced by the first of the next one, if any.
    """
    arrivals, starts, fresh = posteriors.arrivals.latent, posteriors.starts.latent, posteriors.fresh
    shift = lambda x, last: jnp.concatenate([x[1:], last[-1:]])  # noqa: E731
    next_start, restarts = jax.tree.map(shift, (starts, fresh), (arrivals, fresh & False))
    states = _prepend(starts, trees.select(restarts, next_start, arrivals))
    live = jnp.concatenate([jnp.ones_like(terminated[:1]), ~terminated | restarts])
    return trees.flatten_leading((states, live), 2)


def _prepend(first: PyTree, rest: PyTree) -> Any:
    """The first row of one tree and all rows of the other."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a[:1], b]), first, rest)


def rollout_posterior(world: WorldModel, batch: Transition, key: Key[Array, ""], context: int) -> tuple[Latent, Latent]:
    """The states of sequences [T, B]: posterior at the first `context` of T + 1 observations, then open-loop."""
    k_watch, k_follow = jax.random.split(key)
    posteriors, n = world.watch(batch, k_watch), context - 1
    known = _prepend(posteriors.starts.latent, jax.tree.map(lambda x: x[:n], posteriors.arrivals.latent))
    steps, windows = batch.reward.shape
    noise = jax.random.normal(k_follow, (steps - n, windows, world.layout.stoch))
    return known, world.rssm.follow(trees.index(known, -1), as_vectors(batch.action[n:], world.action), noise)


def predicted_rewards(
    world: WorldModel, batch: Transition, key: Key[Array, ""], context: int = 5
) -> Float[Array, "t B"]:
    """Predicted rewards of the last T + 1 - context actions of sequences [T, B], open-loop after `context`."""
    return world.reward(rollout_posterior(world, batch, key, context)[1].features)


def open_loop(
    world: WorldModel, batch: Transition, key: Key[Array, ""], context: int = 5, which: int = 0
) -> UInt8[Array, "T h 3w 3"]:
    """A video of one sequence, side by side: truth, prediction, and (prediction - truth + 1) / 2.

    The model sees the first `context` of T + 1 observations, then only the actions. The video shows the first image
    leaf; symbols are divided by the largest. Choose a window within one episode.
    """
    leaves = world.decoder.leaves
    images = [i for i, leaf in enumerate(leaves) if len(leaf.shape) == 3]
    steps = batch.reward.shape[0]
    if not images or not 1 <= context <= steps:
        raise ValueError(
            f"open_loop needs an image observation and 1 <= context <= {steps}; the leaves have shapes "
            f"{[leaf.shape for leaf in leaves]} and context={context}."
        )
    batch = jax.tree.map(lambda x: x[:, which : which + 1], batch)
    latents = jax.tree.map(lambda a, b: jnp.concatenate([a, b])[:, 0], *rollout_posterior(world, batch, key, context))
    leaf = leaves[images[0]]
    seen = jax.tree.leaves(dict_obs.looked_at(observations_of(batch), world.layout.view))[images[0]]
    model, truth = leaf.best(world.decoder(latents.features)[images[0]]), leaf.share(seen[:, 0])
    video = jnp.concatenate([truth, model, (model - truth + 1) / 2], -2)[..., -3:]
    video = video if video.shape[-1] == 3 else jnp.broadcast_to(video[..., -1:], (*video.shape[:-1], 3))
    return (255 * jnp.clip(video, 0, 1)).astype(jnp.uint8)


# Transitions between latent states, from which the bonus `Dreamer.curiosity` learns and in which it is added as reward.


def latent_spec(spec: Spec, layout: Layout) -> Spec:
    """An environment whose observations are the features of latent states."""
    return spec._replace(obs=Space((layout.features,), jnp.float32))


def check_bonus(bonus: Bonus | None) -> None:
    """Raise ValueError for a bonus that reads what imagination does not have."""
    if bonus is not None and (not isinstance(bonus.memory, NoMemory) or "value" in bonus.reads):
        raise ValueError(
            f"Dreamer.curiosity rewards imagined states, which have neither episodes nor a table of values, but "
            f"{type(bonus).__name__} reads {', '.join(bonus.reads)}: use one such as RND or Disagreement."
        )


def replayed_latents(posteriors: PosteriorStates, batch: Transition) -> Transition:
    """The sequences [T, B] as transitions between latent states."""
    arrivals, starts = posteriors.arrivals.latent.features, posteriors.starts.latent.features
    before = jnp.concatenate([starts[:1], arrivals[:-1]])
    before = trees.select(posteriors.fresh, starts, before)
    return Transition(before, batch.action, batch.reward, arrivals, batch.terminated, batch.truncated)


def imagined_latents(
    first: Float[Array, "n f"], features: Float[Array, "H n f"], actions: Float[Array, "H n a"], space: Space
) -> Transition:
    """Imagined transitions [H, n]. Gradients reach the actor through the states."""
    taken = actions if space.n is None else jnp.argmax(actions, -1).astype(jnp.int32)
    before = jnp.concatenate([first[None], features[:-1]])
    off = jnp.zeros(features.shape[:-1], bool)
    return Transition(before, jax.lax.stop_gradient(taken), off.astype(jnp.float32), features, off, off)
