"""Dreamer: an actor that learns in a learned world model, the model-based agent of the paper.

agent          how it acts, its three losses, and transitions for a bonus on latent states
world_model    the recurrent state-space model, posterior states, likelihoods, open-loop predictions
network        sizes, encoder, decoder, actor
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from made.agents.dreamer.network import Actor, Layout, action_size, mlp
from made.agents.dreamer.world_model import Latent, PosteriorStates, WorldModel, imagination_starts
from made.agents.returns import lambda_returns
from made.core import Agent, Bonus, Metrics, NoMemory, Space, Spec, Transition, trees
from made.core.config import ABOVE_ZERO, AT_LEAST_ZERO, SHARE, check_numbers
from made.nets.fit import descend
from made.nets.layers import MLP

EPSILON = 1e-7  # of Adam, as in the framework of Dreamer v1
_RATES, _NOISE = ("model_rate", "actor_rate", "value_rate"), ("noise", "noise_half", "noise_least")
RANGES = {
    SHARE: ("discount", "lam", "reinforce"),
    AT_LEAST_ZERO: ("free_nats", "kl_scale", "ends_scale", *_RATES, *_NOISE),
    ABOVE_ZERO: ("clip",),
}


class DreamerState(NamedTuple):
    """World model, actor and value, their optimizer states, and updates done."""

    world: WorldModel
    actor: Actor
    value: MLP
    optimisers: tuple[PyTree, ...]  # one each
    curiosity: PyTree  # of the bonus on latent states; () without one
    k: Int[Array, ""]


class ImaginedReturns(NamedTuple):
    """The data of the value: imagined states, their returns and weights."""

    features: Float[Array, "H n f"]
    returns: Float[Array, "H n"]
    weights: Float[Array, "H n"]


class Dreamer(Agent):
    """Dreamer v1 (Hafner et al. 2020), with its settings for DeepMind Control.

        world:  kl_scale max(KL(q || p), free_nats) - log p(observation) - log p(reward) [- ends_scale log p(discount)]
        actor:  - mean_t w_t R_t,   through the model, by the reparameterized states and actions of `horizon` steps
        value:  mean_t w_t 1/2 (V(s_t) - R_t)^2
        R_t = r_t + g_t ((1 - lam) V(s_{t+1}) + lam R_{t+1}),   w_t = g_0 ... g_{t-1}

    r is the output of the reward head at s_t, which learns `reward_fn` of real transitions: so the actor plans for the
    bonus, and evaluation is extrinsic. g is `discount`, or with `ends` a head's prediction of
    discount (1 - terminated). Batches are sequences [T, B] of transitions, with ends of episodes.
    Exploration adds Gaussian noise with standard deviation `noise` to actions, or replaces discrete ones at random with
    that probability. It halves every `noise_half` updates (0: never), down to `noise_least`.
    `curiosity` is any bonus without an episodic memory, for transitions between latent states. It learns from real
    sequences and is added to the imagined reward, so novelty is planned for where it is expected; with Disagreement
    this is Plan2Explore (Sekar et al. 2020). It is off by default.
    With `reinforce=1` the actor maximizes log pi(a) (R - V) instead, as Dreamer v2 does for discrete actions, where
    straight-through gradients are biased.
    Differs from v1: the first observation of a window is encoded without the action before it. v1 has neither
    `entropy`, `reinforce` nor `curiosity`, and only pixel observations (see `Layout`).
    """

    layout: Layout = Layout()
    horizon: int = eqx.field(static=True, default=15)
    discount: float = 0.99
    lam: float = 0.95
    free_nats: float = 3.0
    kl_scale: float = 1.0
    model_rate: float = 6e-4
    actor_rate: float = 8e-5
    value_rate: float = 8e-5
    clip: float = 100.0  # of the norm of each gradient
    noise: float = 0.3
    noise_half: float = 0.0
    noise_least: float = 0.0
    entropy: float = 0.0  # coefficient of the policy's entropy at every imagined step
    reinforce: float = eqx.field(static=True, default=0.0)  # fraction of the actor's gradient by likelihood ratios
    ends: bool = eqx.field(static=True, default=False)
    ends_scale: float = 10.0
    curiosity: Bonus | None = None
    curiosity_coef: float = 1.0

    def __check_init__(self):
        bonus = self.curiosity
        if bonus is not None and (not isinstance(bonus.memory, NoMemory) or "value" in bonus.reads):
            raise ValueError(
                f"Dreamer.curiosity rewards imagined states, which have neither episodes nor a table of values, but "
                f"{type(bonus).__name__} reads {', '.join(bonus.reads)}: use one such as RND or Disagreement."
            )
        check_numbers(self, RANGES)
        if self.horizon < 2:
            raise ValueError(f"Dreamer imagines horizon >= 2 steps, the last for its value alone, got {self.horizon}.")

    def init(self, key, spec: Spec) -> DreamerState:
        action = spec.action
        vector = action.n is None and len(action.shape) == 1 and (action.low, action.high) == (-1.0, 1.0)
        if not vector and (action.n is None or action.shape):
            raise ValueError(
                f"Dreamer chooses one of n discrete actions, or vectors within [-1, 1], but the actions are {action}. "
                "Rescale them to [-1, 1], or flatten several discrete ones into one."
            )
        if spec.goal is not None:
            raise ValueError("Dreamer is not shown goals: use a bonus that gives none.")
        k_world, k_actor, k_value, k_bonus = jax.random.split(key, 4)
        world = WorldModel(spec, self.layout, self.ends, key=k_world)
        actor = Actor(self.layout, action, key=k_actor)
        value = mlp(self.layout.features, self.layout.units, self.layout.value, 1, key=k_value)
        parts: tuple[PyTree, ...] = (world, actor, value)
        optimisers = tuple(rate.init(x) for rate, x in zip(self._rates(), parts, strict=True))
        latents = spec._replace(obs=Space((self.layout.features,), jnp.float32))
        curiosity = () if self.curiosity is None else self.curiosity.init(k_bonus, latents)
        return DreamerState(world, actor, value, optimisers, curiosity, jnp.zeros((), jnp.int32))

    def _rates(self) -> tuple[optax.GradientTransformation, ...]:
        adam = lambda rate: optax.chain(optax.clip_by_global_norm(self.clip), optax.adam(rate, eps=EPSILON))  # noqa: E731
        return adam(self.model_rate), adam(self.actor_rate), adam(self.value_rate)

    def carry(self, spec):
        """(the latent state, the action) before the first observation: zeros."""
        blank = Latent(jnp.zeros(self.layout.deter), jnp.zeros(self.layout.stoch))
        return blank, jnp.zeros(action_size(spec.action))

    def acting_params(self, state):
        """Encoder, recurrent model, actor and k: what `act` reads."""
        unread = lambda world: (world.decoder, world.reward_head, world.ends_head)  # noqa: E731
        world = eqx.tree_at(unread, state.world, (None, None, None), is_leaf=lambda x: x is None)
        return DreamerState(world, state.actor, None, (), (), state.k)  # type: ignore[arg-type]

    def act(self, state, carry, obs, goal, key, *, explore=True):
        k_state, k_act, k_noise = jax.random.split(key, 3)
        noise = jax.random.normal(k_state, carry[0].stoch.shape)
        latent = state.world.rssm.posterior_step(*carry, state.world.encoder(obs), noise).latent
        policy = state.actor(latent.features)
        drawn = lambda: policy.noisy(policy.sample(k_act), self.amount(state.k), k_noise)  # noqa: E731
        action = drawn() if explore else policy.best(k_act)
        taken = jnp.argmax(action, -1).astype(jnp.int32) if state.actor.discrete else action
        return (latent, action), taken, ()

    def amount(self, k: Int[Array, ""]) -> Float[Array, ""]:
        """max(noise 2^{-k / noise_half}, noise_least)."""
        halvings = jnp.where(self.noise_half > 0, k / jnp.maximum(self.noise_half, 1e-9), 0.0)
        return jnp.maximum(self.noise * 0.5**halvings, self.noise_least)

    def update(self, state, batch, reward_fn, key):
        """One step of all three, each from what they were before it, as in v1."""
        k_model, k_bonus, k_actor = jax.random.split(key, 3)
        reward = jax.lax.stop_gradient(reward_fn(batch))
        gradient_of = jax.value_and_grad(self.model_loss, has_aux=True)
        (loss, (posteriors, of_model)), of_world = gradient_of(state.world, batch, reward, k_model)
        posteriors = jax.lax.stop_gradient(posteriors)
        if self.curiosity is not None:
            between = replayed_latents(posteriors, batch)
            state = state._replace(curiosity=self.curiosity.update(state.curiosity, between, k_bonus)[0])
        gradient_of = jax.value_and_grad(self.actor_loss, has_aux=True)
        start, live = imagination_starts(posteriors, batch.terminated)
        (aim, (dreamt, of_dream)), of_actor = gradient_of(state.actor, state, start, live, k_actor)
        error, of_value = jax.value_and_grad(self.value_loss)(state.value, jax.lax.stop_gradient(dreamt))
        after, norms = self._moved(state, (of_world, of_actor, of_value))
        losses = {"model_loss": loss, "actor_loss": aim, "value_loss": error, "reward": reward.mean()}
        return after, {**losses, **of_model, **of_dream, **norms}

    def _moved(self, state: DreamerState, gradients: tuple[PyTree, ...]) -> tuple[DreamerState, Metrics]:
        """One optimizer step of all parts, and the norms of the gradients."""
        before: tuple[PyTree, ...] = (state.world, state.actor, state.value)
        steps = map(descend, self._rates(), before, gradients, state.optimisers)
        (world, actor, value), optimisers = zip(*steps, strict=True)
        names = ("model_gradient", "actor_gradient", "value_gradient")
        norms = {name: optax.tree.norm(gradient) for name, gradient in zip(names, gradients, strict=True)}
        return DreamerState(world, actor, value, optimisers, state.curiosity, state.k + 1), norms

    def model_loss(
        self, world: WorldModel, batch: Transition, reward: Float[Array, "T B"], key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], tuple[PosteriorStates, Metrics]]:
        """The loss of the world model on sequences. The KL is free up to `free_nats` on average, not each by itself."""
        posteriors, parts = world.judge(batch, reward, self.discount, key)
        loss = self.kl_scale * jnp.maximum(parts["kl"], self.free_nats) - parts["image"] - parts["reward"]
        if "ends" in parts:
            loss -= self.ends_scale * parts["ends"]
        return loss, (posteriors, {f"model/{name}": x for name, x in parts.items()})

    def actor_loss(
        self, actor: Actor, state: DreamerState, start: Latent, live: Bool[Array, " n"], key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], tuple[ImaginedReturns, Metrics]]:
        """Minus the imagined return; states in which the task has ended have weight 0."""
        world = state.world
        latents, (actions, scores, entropy) = world.rssm.imagine(start, Acting(actor), self.horizon, key)
        features = latents.features
        reward, discounts = world.reward(features), world.discounts(features, self.discount)
        if self.curiosity is not None:
            path = imagined_latents(start.features, features, actions, world.action)
            reward += self.curiosity_coef * self.curiosity.reward(state.curiosity, path)
        values = state.value(features, self.layout.dtype)[..., 0]
        returns = lambda_returns(reward[:-1], discounts[:-1], values[1:], self.lam)
        weights = jnp.cumprod(jnp.concatenate([jnp.ones_like(discounts[:1]), discounts[:-2]]), 0) * live
        weights = jax.lax.stop_gradient(weights)
        gain = returns
        if self.reinforce:
            before = jnp.concatenate([start.features[None], features[:-2]])
            better = jax.lax.stop_gradient(returns - state.value(before, self.layout.dtype)[..., 0])
            gain = (1 - self.reinforce) * returns + self.reinforce * better * scores[:-1]
        loss = -(weights * (gain + self.entropy * entropy[:-1])).mean()
        metrics = {"dream/reward": reward.mean(), "dream/value": values.mean(), "entropy": entropy.mean()}
        return loss, (ImaginedReturns(features[:-1], returns, weights), metrics)

    def value_loss(self, value: MLP, dreamt: ImaginedReturns) -> Float[Array, ""]:
        """The squared error of the value in imagination; only the value learns from it."""
        values = value(dreamt.features, self.layout.dtype)[..., 0]
        return (dreamt.weights * 0.5 * (values - dreamt.returns) ** 2).mean()


class Acting(eqx.Module):
    """A policy in imagination: (action, (action, its log-probability, the entropy)) at states."""

    actor: Actor

    def __call__(self, features: Float[Array, "n f"], key: Key[Array, ""]) -> tuple[Array, tuple[Array, ...]]:
        k_act, k_entropy = jax.random.split(key)
        policy = self.actor(features)
        action = policy.sample(k_act)
        return action, (action, policy.log_prob(action), policy.entropy(k_entropy))


# Transitions between latent states, from which `Dreamer.curiosity` learns and for which it is added as reward.


def replayed_latents(posteriors: PosteriorStates, batch: Transition) -> Transition:
    """The sequences [T, B] as transitions between latent states."""
    arrivals, starts = posteriors.arrivals.latent.features, posteriors.starts.latent.features
    before = trees.select(posteriors.fresh, starts, jnp.concatenate([starts[:1], arrivals[:-1]]))
    return Transition(before, batch.action, batch.reward, arrivals, batch.terminated, batch.truncated)


def imagined_latents(
    first: Float[Array, "n f"], features: Float[Array, "H n f"], actions: Float[Array, "H n a"], space: Space
) -> Transition:
    """Imagined transitions [H, n]. Gradients reach the actor through the states."""
    taken = actions if space.n is None else jnp.argmax(actions, -1).astype(jnp.int32)
    before = jnp.concatenate([first[None], features[:-1]])
    off = jnp.zeros(features.shape[:-1], bool)
    return Transition(before, jax.lax.stop_gradient(taken), off.astype(jnp.float32), features, off, off)
