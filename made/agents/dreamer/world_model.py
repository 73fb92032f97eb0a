"""The world model of Dreamer: a recurrent state-space model (RSSM), posterior states of sequences, their likelihood.

Hafner et al., "Learning Latent Dynamics for Planning from Pixels" (2019), in the form of Dreamer v1:

    h_t = GRU(h_{t-1}, elu(z_{t-1}, a_{t-1}))          deterministic
    z_t ~ p(z | h_t) = N(mean, std)                    the prior
    z_t ~ q(z | h_t, e_t) = N(mean, std)               the posterior, with the features e_t of the observation

Standard deviations are softplus + 0.1. Before an episode's first observation, state and action are zero.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree, UInt8

from made.agents.dreamer.network import Decoder, Encoder, Layout, action_size, as_vectors, mlp
from made.core import Metrics, Space, Spec, Transition, dict_obs, trees
from made.nets.distributions import Normal
from made.nets.layers import MLP, Dense, glorot_dense, orthogonal_dense, pad_axis, padded_dense
from made.nets.recurrent import Parts, scan_deferred_grad

LEAST = 0.1  # standard deviation of a latent
# Steps that a loop unrolls on a GPU: each pass costs a host sync and copies. On an H200, 5 instead of 1 took an update
# from 37.7 to 34 ms.
UNROLLED = 5


class Latent(NamedTuple):
    """A state of the model."""

    deter: Float[Array, "*b d"]
    stoch: Float[Array, "*b s"]

    @property
    def features(self) -> Float[Array, "*b f"]:
        """The input of heads, actor and value."""
        return jnp.concatenate([self.stoch, self.deter], -1)


class Observed(NamedTuple):
    """Posterior states, the distributions that they were sampled from, and the priors."""

    latent: Latent
    posterior: Normal
    prior: Normal


class RSSM(eqx.Module):
    """The layers of the model, and the ways to run it: with observations, or by the prior alone."""

    inputs: Dense  # of (z, a)
    gates: Dense  # of the GRU, from its input
    mixed: Dense  # of the GRU, from h
    prior: MLP
    joined: Dense  # of (h, e), before the posterior
    posterior: Dense
    layout: Layout = eqx.field(static=True)

    def __init__(self, embedding: int, actions: int, layout: Layout, *, key: Key[Array, ""]):
        keys, self.layout = jax.random.split(key, 6), layout
        deter, hidden, numbers = layout.deter, layout.hidden, 2 * layout.stoch
        self.inputs = glorot_dense(layout.stoch + actions, hidden, keys[0])
        self.gates = glorot_dense(hidden, 3 * deter, keys[1])
        self.mixed = orthogonal_dense(deter, 3 * deter, keys[2])
        self.prior = mlp(deter, hidden, 1, numbers, key=keys[3])
        self.joined = glorot_dense(deter + embedding, hidden, keys[4])
        self.posterior = glorot_dense(hidden, numbers, keys[5])

    def expected(self, deter: Float[Array, "*b d"]) -> Normal:
        """The prior p(z | h)."""
        return normal(self.prior(deter, self.layout.dtype))

    def posterior_step(
        self, before: Latent, action: Float[Array, "*b a"], embed: Float[Array, "*b e"], noise: Float[Array, "*b s"]
    ) -> Observed:
        """One step with an observation: z is sampled from the posterior."""
        of_action, *others, _ = self._alone()
        deter = next_deter(others, before, of_action(action))
        of_deter, of_embed = padded_dense(self.joined.split(self.layout.deter), self.layout.dtype)
        posterior = posterior_of((of_deter, padded_dense(self.posterior, self.layout.dtype)), deter, of_embed(embed))
        return Observed(Latent(deter, posterior.at(noise)), posterior, self.expected(deter))

    def begin(self, embed: Float[Array, "*b e"], noise: Float[Array, "*b s"]) -> Observed:
        """The first observation of an episode or a window: state and action before it are zero."""
        zeros = lambda size: jnp.zeros((*embed.shape[:-1], size))  # noqa: E731
        before = Latent(zeros(self.layout.deter), zeros(self.layout.stoch))
        return self.posterior_step(before, zeros(self.inputs.weight.shape[0] - self.layout.stoch), embed, noise)

    def observe(
        self,
        starts: Latent,
        fresh: Bool[Array, "T B"],
        actions: Float[Array, "T B a"],
        embeds: Float[Array, "T B e"],
        noise: Float[Array, "T B s"],
    ) -> Observed:
        """A sequence: embeds[t] is the result of actions[t], and where `fresh` the state before is starts[t].

        fresh[0] must be set. Everything that does not depend on the state before is computed for all steps at once,
        before or after the loop, since the loop dominates the time on a GPU.
        """
        dtype, (of_state, of_action) = self.layout.dtype, self.inputs.split(self.layout.stoch)
        of_deter, of_embed = self.joined.split(self.layout.deter)

        def step(layers: Parts, _: None, before: Latent, x: tuple) -> tuple[Latent, tuple[Latent, Normal]]:
            start, fresh, pushed, seen, noise = x
            deter = next_deter(layers[:3], trees.select(fresh, start, before), pushed)
            posterior = posterior_of(layers[3:], deter, seen)
            latent = Latent(deter, posterior.at(noise))
            return latent, (latent, posterior)

        layers = padded_dense((of_state, self.gates, self.mixed, of_deter, self.posterior), dtype)
        known = (starts, fresh, of_action(actions, dtype), of_embed(embeds, dtype), noise)
        start, known = pad_axis(trees.index(starts, 0), dtype, 0), pad_axis(known, dtype, 1)
        found = scan_deferred_grad(step, unroll_of(len(fresh)), layers, None, start, known)[1]  # type: ignore[index]
        latent, posterior = jax.tree.map(lambda x: x[:, : fresh.shape[1]], found)
        return Observed(latent, posterior, self.expected(latent.deter))

    def imagine(self, start: Latent, policy: Callable, horizon: int, key: Key[Array, ""]) -> tuple[Latent, PyTree]:
        """`horizon` steps by the prior from states [B]: (the states after each action [H, B], outputs of the policy).

        policy(features, key) -> (action, outputs) must be a pytree, such as a module. Its features carry no gradient:
        gradients of later states reach it through its actions, and the model gets none.
        """

        def step(parts: Parts, layers: Parts, before: Latent, x: tuple) -> tuple[Latent, tuple[Latent, PyTree]]:
            action, more = parts[0](jax.lax.stop_gradient(before.features), x[0])
            latent = prior_step(layers, before, action, x[1])
            return latent, (latent, more)

        dtype, rows = self.layout.dtype, start.stoch.shape[0]
        keys = jax.vmap(jax.random.split)(jax.random.split(key, horizon))
        noise = jax.vmap(lambda key: jax.random.normal(key, start.stoch.shape))(keys[:, 1])
        given = pad_axis(start, dtype, 0), (keys[:, 0], pad_axis(noise, dtype, 1))
        policy = padded_dense(policy, dtype)
        found = scan_deferred_grad(step, unroll_of(horizon), (policy,), self._alone(), *given)[1]  # type: ignore[index]
        return jax.tree.map(lambda x: x[:, :rows], found)

    def follow(self, start: Latent, actions: Float[Array, "T B a"], noise: Float[Array, "T B s"]) -> Latent:
        """An open-loop prediction: the states after those actions, by the prior."""
        layers = self._alone()

        def step(before: Latent, x: tuple) -> tuple[Latent, Latent]:
            latent = prior_step(layers, before, *x)
            return latent, latent

        return jax.lax.scan(step, start, (actions, noise), unroll=unroll_of(noise.shape[0]))[1]

    def _alone(self) -> Parts:
        """The layers of `prior_step`: of the action, of z, of the GRU (input and h), and of the prior."""
        of_state, of_action = self.inputs.split(self.layout.stoch)
        return padded_dense((of_action, of_state, self.gates, self.mixed, self.prior), self.layout.dtype)


def prior_step(layers: Parts, before: Latent, action: Float[Array, "*b a"], noise: Float[Array, "*b s"]) -> Latent:
    """(h_t, z_t) after an action, with z from the prior p(z | h_t)."""
    of_action, *others, prior = layers
    deter = next_deter(others, before, of_action(action))
    return Latent(deter, normal(prior(deter)).at(noise))


def next_deter(layers: Parts, before: Latent, pushed: Float[Array, "*b h"]) -> Float[Array, "*b d"]:
    """h_t from the state before and `pushed`, the action's part of the first layer."""
    of_state, gates, mixed = layers
    x = jax.nn.elu(of_state(before.stoch) + pushed)
    (r, u, n), (r_h, u_h, n_h) = (jnp.split(each, 3, -1) for each in (gates(x), mixed(before.deter)))
    keep = jax.nn.sigmoid(u + u_h)
    return keep * before.deter + (1 - keep) * jnp.tanh(n + jax.nn.sigmoid(r + r_h) * n_h)


def posterior_of(layers: Parts, deter: Float[Array, "*b d"], seen: Float[Array, "*b h"]) -> Normal:
    """q(z | h, e) from h and `seen`, the observation's part of the first layer."""
    of_deter, posterior = layers
    return normal(posterior(jax.nn.elu(of_deter(deter) + seen)))


def unroll_of(length: int) -> int:
    """Steps that a loop unrolls; 1 on a CPU, where compilation dominates."""
    return 1 if jax.default_backend() == "cpu" else max(1, min(UNROLLED, length))


def normal(numbers: Float[Array, "*b 2s"]) -> Normal:
    """The distribution with the outputs of a layer as parameters."""
    mean, raw = jnp.split(numbers, 2, -1)
    return Normal(mean, jax.nn.softplus(raw) + LEAST)


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
        image = self.decoder.score(latents.features, observations_of(batch)).sum()
        if len(fresh) > 1:  # first observations of episodes within a window
            begun, obs = fresh[1:], jax.tree.map(lambda x: x[1:], batch.obs)
            score = self._seldom(lambda features, obs: (self.decoder.score(features, obs) * begun).sum())
            later = starts.latent.features[1:]
            image += jax.lax.cond(begun.any(), score, lambda *_: jnp.zeros(()), later, obs)
        apart = arrivals.posterior.kl(arrivals.prior).sum() + (starts.posterior.kl(starts.prior) * fresh).sum()
        n, after = reward.size + fresh.sum(), arrivals.latent.features
        of_reward = -0.5 * (self.reward(after) - reward) ** 2 - 0.5 * math.log(2 * math.pi)
        parts = {"kl": apart / n, "image": image / n, "reward": of_reward.mean()}
        if self.ends_head is not None:
            logits, aim = self.ends_head(after, self.layout.dtype)[..., 0], discount * ~batch.terminated
            parts["ends"] = (aim * jax.nn.log_sigmoid(logits) + (1 - aim) * jax.nn.log_sigmoid(-logits)).mean()
        return posteriors, parts

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
    leaves, steps = world.decoder.leaves, len(batch.reward)
    at = next((i for i, leaf in enumerate(leaves) if len(leaf.shape) == 3), None)
    if at is None or not 1 <= context <= steps:
        raise ValueError(
            f"open_loop needs an image observation and 1 <= context <= {steps}; the leaves have shapes "
            f"{[leaf.shape for leaf in leaves]} and context={context}."
        )
    batch = jax.tree.map(lambda x: x[:, which : which + 1], batch)
    latents = jax.tree.map(lambda a, b: jnp.concatenate([a, b])[:, 0], *rollout_posterior(world, batch, key, context))
    seen = jax.tree.leaves(dict_obs.looked_at(observations_of(batch), world.layout.view))[at]
    model, truth = leaves[at].best(world.decoder(latents.features)[at]), leaves[at].share(seen[:, 0])
    video = jnp.concatenate([truth, model, (model - truth + 1) / 2], -2)[..., -3:]
    video = video if video.shape[-1] == 3 else jnp.broadcast_to(video[..., -1:], (*video.shape[:-1], 3))
    return (255 * jnp.clip(video, 0, 1)).astype(jnp.uint8)
