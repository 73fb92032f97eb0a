"""SAC and RAD: soft actor-critic on vectors, or on randomly cropped pixels as in the paper's control experiments.

The networks work on batches, channels last. Parameters are float32. The encoder, which takes nearly all of the time,
may compute in bfloat16; everything after it stays float32.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from made.core import Agent, Metrics, Space, Spec, trees
from made.core.config import ABOVE_ZERO, AT_LEAST_ZERO, COUNT, SHARE, check_numbers
from made.nets.distributions import TanhNormal
from made.nets.fast_conv import Convolutions, blockwise, reads_blocks, side_after
from made.nets.fit import descend
from made.nets.layers import MLP, Dense, check_precision, orthogonal_dense, rounded_product

LOG_STD = (-10.0, 2.0)
NEVER = 2**31 - 1  # the delay of an agent whose actor stays as it is
RANGES = {
    SHARE: ("discount", "polyak", "encoder_polyak"),
    AT_LEAST_ZERO: ("learning_rate", "alpha_rate"),
    ABOVE_ZERO: ("alpha",),  # its logarithm is what learns
    COUNT: ("delay",),
}


class Layout(eqx.Module):
    """Sizes of the networks; the defaults are those of the release for pixels.

    encoder "pixels": four convolutions 3x3, a dense layer to `features`, layer norm, tanh. "state": none, the heads
    read the vector as it is. `width` and `depth` are those of the heads' hidden layers.
    """

    encoder: str = eqx.field(static=True, default="pixels")
    channels: int = eqx.field(static=True, default=32)
    features: int = eqx.field(static=True, default=50)
    width: int = eqx.field(static=True, default=1024)
    depth: int = eqx.field(static=True, default=2)
    crop: int = eqx.field(static=True, default=84)  # pixels a side of what the encoder sees
    precision: str = eqx.field(static=True, default="float32")  # or "bfloat16": of the encoder

    def __check_init__(self):
        check_numbers(self, {COUNT: ("channels", "features", "width", "depth", "crop")})
        check_precision(self)
        if self.encoder not in ("pixels", "state"):
            raise ValueError(f"Layout takes encoder='pixels' or 'state', got encoder={self.encoder!r}.")


class Trunk(eqx.Module):
    """The head of the encoder, one for the actor and one for the critic: a dense layer, layer norm, tanh.

    Its weights are in the order of pixels on any device, so that states are portable.
    """

    dense: Dense
    scale: Float[Array, " features"]
    shift: Float[Array, " features"]
    side: int = eqx.field(static=True)  # of what it reads, in pixels

    def __init__(self, layout: Layout, *, key: Key[Array, ""]):
        self.side = side_after(layout.crop)
        self.dense = orthogonal_dense(self.side**2 * layout.channels, layout.features, key)
        self.scale, self.shift = jnp.ones(layout.features), jnp.zeros(layout.features)

    def __call__(self, x: Float[Array, "b n"], dtype: Any) -> Float[Array, "b features"]:
        weight, bias = self.dense.weight, self.dense.bias
        if blockwise():
            weight = reads_blocks(weight, self.side, self.side)
        x = (x @ weight if dtype == jnp.float32 else rounded_product(x.astype(dtype), weight)) + bias
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        return jnp.tanh(self.scale * x + self.shift)


class Actor(eqx.Module):
    """pi(a | s), a tanh-normal."""

    trunk: Trunk | None
    head: MLP

    def __call__(self, seen: Float[Array, "b n"], dtype: Any) -> TanhNormal:
        x = seen if self.trunk is None else self.trunk(seen, dtype)
        mean, log_std = jnp.split(self.head(x), 2, -1)
        low, high = LOG_STD
        log_std = low + 0.5 * (high - low) * (jnp.tanh(log_std) + 1)
        return TanhNormal(mean, jnp.exp(log_std), log_std)


class Critic(eqx.Module):
    """Q_1 and Q_2 of (s, a). They share the convolutions, which are the actor's too, and the trunk."""

    convolutions: Convolutions | None
    trunk: Trunk | None
    heads: tuple[MLP, MLP]

    def see(self, obs: Array, dtype: Any) -> Float[Array, "b n"]:
        """The input of trunks or heads: the features of the convolutions, or the vector itself."""
        return obs.astype(jnp.float32) if self.convolutions is None else self.convolutions(obs, dtype)

    def values(self, seen: Float[Array, "b n"], action: Float[Array, "b a"], dtype: Any) -> Float[Array, "2 b"]:
        """Q_1 and Q_2 from the output of `see`."""
        x = seen if self.trunk is None else self.trunk(seen, dtype)
        x = jnp.concatenate([x, action], -1)
        return jnp.stack([head(x)[..., 0] for head in self.heads])


def networks(layout: Layout, spec: Spec, key: Key[Array, ""]) -> tuple[Critic, Actor]:
    """A critic and an actor for an environment with one observation and actions within [-1, 1]."""
    obs, actions = checked(layout, spec)
    k_conv, k_critic, k_actor, *k_heads = jax.random.split(key, 6)
    convolutions, trunks, inputs = None, (None, None), math.prod(obs.shape)
    if layout.encoder == "pixels":
        convolutions = Convolutions(obs.shape[-1], layout.channels, key=k_conv)
        trunks, inputs = tuple(Trunk(layout, key=k) for k in (k_critic, k_actor)), layout.features
    hidden = [layout.width] * layout.depth
    sizes = (inputs + actions, *hidden, 1), (inputs + actions, *hidden, 1), (inputs, *hidden, 2 * actions)
    first, second, actor = (MLP(x, key=k, layer=orthogonal_dense) for x, k in zip(sizes, k_heads, strict=True))
    return Critic(convolutions, trunks[0], (first, second)), Actor(trunks[1], actor)


def checked(layout: Layout, spec: Spec) -> tuple[Space, int]:
    """(the space of observations, the length of an action). Raises ValueError for spaces that do not fit."""
    obs, action = spec.obs, spec.action
    if action.n is not None or len(action.shape) != 1 or (action.low, action.high) != (-1.0, 1.0):
        raise ValueError(
            f"RAD chooses vectors within [-1, 1], but the actions are {action}. Rescale them to [-1, 1], or use an "
            "agent for discrete ones."
        )
    if layout.encoder == "state":
        if not isinstance(obs, Space) or len(obs.shape) != 1 or not jnp.issubdtype(obs.dtype, jnp.floating):
            raise ValueError(
                f"encoder='state' reads one vector of reals, but the observations are {obs}. Flatten them, or use "
                "encoder='pixels' for images."
            )
        return obs, action.shape[0]
    image = isinstance(obs, Space) and len(obs.shape) == 3 and jnp.dtype(obs.dtype) == jnp.uint8
    if not image or min(obs.shape[:2]) < layout.crop or layout.crop < 15:
        raise ValueError(
            f"encoder='pixels' reads images [h, w, c] of bytes, cropped to crop={layout.crop} (15 at least) pixels a "
            f"side, but the observations are {obs}. Render larger images, set crop, or use encoder='state' for vectors."
        )
    return obs, action.shape[0]


class RADState(NamedTuple):
    """Networks, temperature, optimizer states, and updates done."""

    critic: Critic  # the convolutions among it
    actor: Actor
    target: Critic
    log_alpha: Float[Array, ""]
    optimisers: tuple[PyTree, PyTree, PyTree]  # of the critic, the actor and log_alpha
    k: Int[Array, ""]


class RAD(Agent):
    """Soft actor-critic (Haarnoja et al. 2018) with random crops (Laskin et al. 2020), with the release's settings.

        y = r + discount (1 - terminated) (min_i Q'_i(s', a') - alpha log pi(a' | s')),   a' ~ pi(s')
        critic:  sum_i mean (Q_i(s, a) - y)^2
        actor:   mean (alpha log pi(a | s) - min_i Q_i(s, a)),   a ~ pi(s)
        alpha:   mean alpha (-log pi(a | s) - target entropy),   target entropy = -dim(A)

    r is `reward_fn` of the sampled batch, with full images and the current bonus. The networks see random crops, drawn
    separately for s and s', and the center crop when acting. The convolutions belong to the critic; the actor sends no
    gradient to them. Truncation is not termination. Actor, alpha and targets move at every `delay`-th update. With
    `Layout(encoder="state")` it is SAC on vectors.
    """

    layout: Layout = Layout()
    discount: float = 0.99
    learning_rate: float = 2e-4  # of actor and critic
    alpha: float = 0.1  # at the start
    alpha_rate: float = 1e-3
    polyak: float = 0.01  # step of the target heads towards the online ones
    encoder_polyak: float = 0.05  # the same for convolutions and trunk
    delay: int = eqx.field(static=True, default=2)

    def __check_init__(self):
        check_numbers(self, RANGES)

    def init(self, key, spec: Spec) -> RADState:
        critic, actor = networks(self.layout, spec, key)
        log_alpha = jnp.log(jnp.asarray(self.alpha, jnp.float32))
        of_critic, of_actor, of_alpha = self._rates()
        optimisers = of_critic.init(critic), of_actor.init(actor), of_alpha.init(log_alpha)  # type: ignore[arg-type]
        copy = jax.tree.map(jnp.copy, critic)  # arrays of its own, so that a state may be donated
        return RADState(critic, actor, copy, log_alpha, optimisers, jnp.zeros((), jnp.int32))

    def _rates(self) -> tuple[optax.GradientTransformation, ...]:
        return optax.adam(self.learning_rate), optax.adam(self.learning_rate), optax.adam(self.alpha_rate)

    @property
    def dtype(self):
        """What the encoder computes in."""
        return jnp.dtype(self.layout.precision)

    def acting_params(self, state):
        """The convolutions and the actor: what `act` reads."""
        critic = Critic(state.critic.convolutions, None, ())  # type: ignore[arg-type]
        return RADState(critic, state.actor, *[None] * 4)  # type: ignore[arg-type]

    def act(self, state, carry, obs, goal, key, *, explore=True):
        if self.layout.encoder == "pixels":
            obs = center_crop(obs, self.layout.crop)
        policy = state.actor(state.critic.see(obs[None], self.dtype), self.dtype)
        return carry, (policy.sample(key) if explore else policy.mode())[0], ()

    def update(self, state, batch, reward_fn, key):
        k_obs, k_next, k_target, k_actor = jax.random.split(key, 4)
        reward = reward_fn(batch).reshape(-1)
        batch = trees.flatten_leading(batch._replace(extras=()), batch.reward.ndim)
        obs, after = self.seen(batch.obs, k_obs), self.seen(batch.next_obs, k_next)
        y = self.target(state, reward, after, batch.terminated, k_target)
        gradient_of = jax.value_and_grad(self.critic_loss, has_aux=True)
        (loss, of_critic), gradient = gradient_of(state.critic, obs, batch.action, jax.lax.stop_gradient(y))
        critic, optimiser = descend(self._rates()[0], state.critic, gradient, state.optimisers[0])
        state = state._replace(critic=critic, optimisers=(optimiser, *state.optimisers[1:]), k=state.k + 1)
        state, of_actor = self._improve_actor(state, obs, k_actor)
        others = {"critic_loss": loss, "reward": reward.mean(), "alpha": jnp.exp(state.log_alpha)}
        return state, {**of_critic, **of_actor, **others}

    def seen(self, obs: Array, key: Key[Array, ""]) -> Array:
        """The input of the networks: a random crop of each image; vectors as they are."""
        return random_crop(obs, self.layout.crop, key) if self.layout.encoder == "pixels" else obs

    def target(
        self, state: RADState, reward: Float[Array, " b"], after: Array, terminated: Array, key: Key[Array, ""]
    ) -> Float[Array, " b"]:
        """y = r + discount (1 - terminated) (min_i Q'_i(s', a') - alpha log pi(a' | s'))."""
        action, log_prob = state.actor(state.critic.see(after, self.dtype), self.dtype).sample_and_log_prob(key)
        values = state.target.values(state.target.see(after, self.dtype), action, self.dtype).min(0)
        return reward + self.discount * ~terminated * (values - jnp.exp(state.log_alpha) * log_prob)

    def critic_loss(
        self, critic: Critic, obs: Array, action: Float[Array, "b a"], y: Float[Array, " b"]
    ) -> tuple[Float[Array, ""], Metrics]:
        """sum_i mean (Q_i(s, a) - y)^2, the one loss that trains the convolutions."""
        values = critic.values(critic.see(obs, self.dtype), action, self.dtype)
        return ((values - y) ** 2).mean(-1).sum(), {"value": values.mean(), "target": y.mean()}

    def actor_loss(
        self, actor: Actor, critic: Critic, obs: Array, log_alpha: Float[Array, ""], key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], Float[Array, " b"]]:
        """(mean (alpha log pi(a | s) - min_i Q_i(s, a)), log pi(a | s)); no gradient reaches the convolutions."""
        seen = jax.lax.stop_gradient(critic.see(obs, self.dtype))
        action, log_prob = actor(seen, self.dtype).sample_and_log_prob(key)
        values = critic.values(seen, action, self.dtype).min(0)
        return (jnp.exp(log_alpha) * log_prob - values).mean(), log_prob

    def alpha_loss(self, log_alpha: Float[Array, ""], log_prob: Float[Array, " b"], actions: int) -> Float[Array, ""]:
        """mean alpha (-log pi(a | s) - target entropy), for actions of so many numbers."""
        return (jnp.exp(log_alpha) * jax.lax.stop_gradient(-log_prob + actions)).mean()

    def _improve_actor(self, state: RADState, obs: Array, key: Key[Array, ""]) -> tuple[RADState, Metrics]:
        """Actor, alpha and targets, at every `delay`-th update; the metrics of the actor are NaN in between."""
        move = lambda: self._move(state, obs, key)  # noqa: E731
        idle = lambda: (state, {name: jnp.full((), jnp.nan) for name in ("actor_objective", "entropy")})  # noqa: E731
        if self.delay in (1, NEVER):  # known at compile time
            return move() if self.delay == 1 else idle()
        return jax.lax.cond(state.k % self.delay == 0, move, idle)

    @property
    def kinds(self) -> int:
        return self.delay

    def at_phase(self, k: int) -> "RAD":
        return dataclasses.replace(self, delay=NEVER if k % self.delay else 1)

    def _move(self, state: RADState, obs: Array, key: Key[Array, ""]) -> tuple[RADState, Metrics]:
        gradient_of = jax.value_and_grad(self.actor_loss, has_aux=True)
        (loss, log_prob), gradient = gradient_of(state.actor, state.critic, obs, state.log_alpha, key)
        _, of_actor, of_alpha = self._rates()
        actor, actor_state = descend(of_actor, state.actor, gradient, state.optimisers[1])
        actions = state.actor.head.layers[-1].bias.size // 2
        gradient = jax.grad(self.alpha_loss)(state.log_alpha, log_prob, actions)
        log_alpha, alpha_state = descend(of_alpha, state.log_alpha, gradient, state.optimisers[2])
        state = state._replace(
            actor=actor,
            log_alpha=log_alpha,
            target=self.follow(state.target, state.critic),
            optimisers=(state.optimisers[0], actor_state, alpha_state),
        )
        return state, {"actor_objective": loss, "entropy": -log_prob.mean()}

    def follow(self, target: Critic, critic: Critic) -> Critic:
        """target + polyak (critic - target): `encoder_polyak` for convolutions and trunk, `polyak` for the heads."""
        move = lambda rate: lambda old, new: old + rate * (new - old)  # noqa: E731
        encoder = jax.tree.map(
            move(self.encoder_polyak), (target.convolutions, target.trunk), (critic.convolutions, critic.trunk)
        )
        return Critic(encoder[0], encoder[1], jax.tree.map(move(self.polyak), target.heads, critic.heads))


def SAC(width: int = 128) -> RAD:
    """Soft actor-critic on vectors, sized for a CPU: `RAD` without crops.

    Args:
        width: Units of each hidden layer.
    """
    return RAD(Layout(encoder="state", width=width), learning_rate=1e-3)


def random_crop(images: Array, side: int, key: Key[Array, ""]) -> Array:
    """A square of each image [b, h, w, c], at an independent uniform position."""
    b, height, width, channels = images.shape
    corners = jax.random.randint(key, (b, 2), 0, jnp.array([height - side + 1, width - side + 1]))
    corners = jax.lax.optimization_barrier(corners)  # or XLA recomputes them for every byte on a GPU
    cut = lambda image, at: jax.lax.dynamic_slice(image, (at[0], at[1], 0), (side, side, channels))  # noqa: E731
    # The barrier keeps the result as bytes: fusing casts and padding into the gather takes 5 times as long on a GPU.
    return jax.lax.optimization_barrier(jax.vmap(cut)(images, corners))


def center_crop(image: Array, side: int) -> Array:
    """The square in the middle of one image [h, w, c]."""
    top, left = ((n - side) // 2 for n in image.shape[:2])
    return image[top : top + side, left : left + side]
