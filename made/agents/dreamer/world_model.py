"""The world model of Dreamer: what it makes of sequences, how likely it finds them, and what it sees coming."""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree, UInt8

from made.agents.dreamer.network import Decoder, Encoder, Layout, action_size, as_vectors, mlp
from made.agents.dreamer.rssm import RSSM, Latent, Observed
from made.core import Bonus, Metrics, NoMemory, Space, Spec, Transition, dict_obs, trees
from made.nets.layers import MLP


class PosteriorStates(NamedTuple):
    """The states of sequences [T, B] of transitions."""

    arrivals: Observed  # after each transition
    starts: Observed  # before it, from its first observation alone; of use only where `fresh`
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
        """What the future counts for at a state: `discount`, or what the head has learnt of it."""
        if self.ends_head is None:
            return jnp.full(features.shape[:-1], discount, jnp.float32)
        return jax.nn.sigmoid(self.ends_head(features, self.layout.dtype)[..., 0])

    def watch(self, batch: Transition, key: Key[Array, ""]) -> PosteriorStates:
        """Follow sequences [T, B]. A window begins with its first observation and nothing before it.

        Within an episode every observation is encoded once. Those that begin an episode in the middle of a window are
        encoded as well, where a window holds any.
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
        """Follow sequences, and tell what the loss is made of, in nats.

        kl      mean KL(q || p) over all observations
        image   mean log p(observation | state), the same
        reward  mean log N(reward; head, 1) over all transitions
        ends    mean log p(discount (1 - terminated)) of the head's Bernoulli, where there is one
        """
        posteriors = self.watch(batch, key)
        arrivals, starts, fresh = posteriors
        latents = jax.tree.map(lambda a, b: jnp.concatenate([a[:1], b]), starts.latent, arrivals.latent)
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
        """How likely the observations are that begin an episode in the middle of a window, added up."""
        if posteriors.fresh.shape[0] == 1:
            return jnp.zeros(())
        begun = posteriors.fresh[1:]
        latent, obs = jax.tree.map(lambda x: x[1:], (posteriors.starts.latent, batch.obs))
        score = self._seldom(lambda features, obs: (self.decoder.score(features, obs) * begun).sum())
        return jax.lax.cond(begun.any(), score, lambda *_: jnp.zeros(()), latent.features, obs)

    def _seldom(self, call: Callable) -> Callable:
        """A call that is seldom made. Of images it is made anew on the way back: else all that a slope needs of its
        layers would be kept in zeros, whenever it is not made.
        """
        return jax.checkpoint(call) if self.encoder.convolutions else call


def observations_of(batch: Transition) -> PyTree:
    """The observations of windows [T, B], T + 1 of each: the first one, and what every transition led to."""
    return jax.tree.map(lambda a, b: jnp.concatenate([a[:1], b]), batch.obs, batch.next_obs)


def imagination_starts(posteriors: PosteriorStates, terminated: Bool[Array, "T B"]) -> tuple[Latent, Bool[Array, " n"]]:
    """Where imagination sets out: (states [(T + 1) B], whether the task went on from there).

    Every state of the windows; in the place of one that an episode ended in, the first of the next episode, where the
    window holds it.
    """
    arrivals, starts, fresh = (
        posteriors.arrivals.latent,
        posteriors.starts.latent,
        posteriors.fresh,
    )
    begun = jax.tree.map(
        lambda x, last: jnp.concatenate([x[1:], last[-1:]]), (starts, fresh), (arrivals, fresh & False)
    )
    following = trees.select(begun[1], begun[0], arrivals)
    states = jax.tree.map(lambda a, b: jnp.concatenate([a[:1], b]), starts, following)
    live = jnp.concatenate([jnp.ones_like(terminated[:1]), ~terminated | begun[1]])
    return trees.flatten_leading((states, live), 2)


def rollout_posterior(world: WorldModel, batch: Transition, key: Key[Array, ""], context: int) -> tuple[Latent, Latent]:
    """The states of sequences [T, B] at the first `context` of T + 1 observations, then by the actions alone."""
    k_watch, k_follow = jax.random.split(key)
    posteriors, n = world.watch(batch, k_watch), context - 1
    known = jax.tree.map(
        lambda a, b: jnp.concatenate([a[:1], b[:n]]),
        posteriors.starts.latent,
        posteriors.arrivals.latent,
    )
    steps, windows = batch.reward.shape
    noise = jax.random.normal(k_follow, (steps - n, windows, world.layout.stoch))
    return known, world.rssm.follow(trees.index(known, -1), as_vectors(batch.action[n:], world.action), noise)


def predicted_rewards(
    world: WorldModel, batch: Transition, key: Key[Array, ""], context: int = 5
) -> Float[Array, "t B"]:
    """The rewards that the model expects of the last T + 1 - context actions of sequences [T, B], which it is told."""
    return world.reward(rollout_posterior(world, batch, key, context)[1].features)


def open_loop(
    world: WorldModel, batch: Transition, key: Key[Array, ""], context: int = 5, which: int = 0
) -> UInt8[Array, "T h 3w 3"]:
    """A video of one sequence: the truth, what the model makes of it, and (model - truth + 1) / 2, side by side.

    The model sees the first `context` of T + 1 observations and then only the actions. It takes the first leaf
    of an observation that is an image; symbols are shown as shares of the largest. Choose a window within one episode.
    """
    leaves = world.decoder.leaves
    images = [i for i, leaf in enumerate(leaves) if len(leaf.shape) == 3]
    steps = batch.reward.shape[0]
    if not images or not 1 <= context <= steps:
        raise ValueError(
            f"open_loop videos one image of an observation after 1 <= context <= {steps} observations; the leaves "
            f"are {[leaf.shape for leaf in leaves]} and context={context}."
        )
    batch = jax.tree.map(lambda x: x[:, which : which + 1], batch)
    latents = jax.tree.map(lambda a, b: jnp.concatenate([a, b])[:, 0], *rollout_posterior(world, batch, key, context))
    leaf, seen = (
        leaves[images[0]],
        jax.tree.leaves(dict_obs.looked_at(observations_of(batch), world.layout.view))[images[0]],
    )
    model, truth = leaf.best(world.decoder(latents.features)[images[0]]), leaf.share(seen[:, 0])
    video = jnp.concatenate([truth, model, (model - truth + 1) / 2], -2)[..., -3:]
    video = video if video.shape[-1] == 3 else jnp.broadcast_to(video[..., -1:], (*video.shape[:-1], 3))
    return (255 * jnp.clip(video, 0, 1)).astype(jnp.uint8)


# Transitions between latent states, from which the bonus `Dreamer.curiosity` learns and in which it is added as reward.


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
