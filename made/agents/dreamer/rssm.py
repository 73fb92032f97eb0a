"""The recurrent state-space model: a latent state with a deterministic and a stochastic part.

Hafner et al., "Learning Latent Dynamics for Planning from Pixels" (2019), in the form of Dreamer v1:

    h_t = GRU(h_{t-1}, elu(z_{t-1}, a_{t-1}))          deterministic
    z_t ~ p(z | h_t) = N(mean, std)                    the prior
    z_t ~ q(z | h_t, e_t) = N(mean, std)               the posterior, with the features e_t of the observation

Standard deviations are softplus + 0.1. Before an episode's first observation, state and action are zero.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from made.agents.dreamer.network import Layout, mlp
from made.core import trees
from made.nets.distributions import Normal
from made.nets.layers import MLP, Dense, glorot_dense, orthogonal_dense, pad_axis, padded_dense
from made.nets.recurrent import Parts, scan_deferred_grad

LEAST = 0.1  # standard deviation of a latent
# Steps that a loop unrolls on a GPU: each pass costs a host sync and copies. On an H200, 5 instead of 1 took an update
# from 37.7 to 34 ms.
WATCHED_AT_A_TIME = 5  # with observations
IMAGINED_AT_A_TIME = 5  # without


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

    def blank(self, *lead: int) -> Latent:
        """The state before an episode's first observation."""
        return Latent(jnp.zeros((*lead, self.layout.deter)), jnp.zeros((*lead, self.layout.stoch)))

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
        lead, actions = embed.shape[:-1], self.inputs.weight.shape[0] - self.layout.stoch
        return self.posterior_step(self.blank(*lead), jnp.zeros((*lead, actions)), embed, noise)

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
        found = scan_deferred_grad(step, at_a_time(fresh.shape[0], WATCHED_AT_A_TIME), layers, None, start, known)[1]  # type: ignore[index]
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
        passes, policy = at_a_time(horizon, IMAGINED_AT_A_TIME), padded_dense(policy, dtype)
        found = scan_deferred_grad(step, passes, (policy,), self._alone(), *given)[1]  # type: ignore[index]
        return jax.tree.map(lambda x: x[:, :rows], found)

    def follow(self, start: Latent, actions: Float[Array, "T B a"], noise: Float[Array, "T B s"]) -> Latent:
        """An open-loop prediction: the states after those actions, by the prior."""
        layers = self._alone()

        def step(before: Latent, x: tuple) -> tuple[Latent, Latent]:
            latent = prior_step(layers, before, *x)
            return latent, latent

        passes = at_a_time(noise.shape[0], IMAGINED_AT_A_TIME)
        return jax.lax.scan(step, start, (actions, noise), unroll=passes)[1]

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


def at_a_time(length: int, most: int) -> int:
    """Steps that a loop unrolls; 1 on a CPU, where compilation dominates."""
    return 1 if jax.default_backend() == "cpu" else max(1, min(most, length))


def normal(numbers: Float[Array, "*b 2s"]) -> Normal:
    """The distribution with the outputs of a layer as parameters."""
    mean, raw = jnp.split(numbers, 2, -1)
    return Normal(mean, jax.nn.softplus(raw) + LEAST)
