"""RAD: soft actor-critic on randomly cropped pixels, the model-free agent of the paper's control experiments."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from made.agents.sac.network import Actor, Critic, Layout, mean_action, networks, sample_action
from made.core import Agent, Metrics, Spec, trees
from made.core.config import ABOVE_ZERO, AT_LEAST_ZERO, SHARE, check_numbers

RANGES = {
    SHARE: ("discount", "polyak", "encoder_polyak"),
    AT_LEAST_ZERO: ("learning_rate", "alpha_rate"),
    ABOVE_ZERO: ("alpha",),  # its logarithm is what learns
}


class RADState(NamedTuple):
    """Networks, temperature, optimisers, and updates done."""

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

    r is what `reward_fn` gives for the batch as it was drawn, whole images and all, by the bonus as it is now; the
    networks see crops, other ones of s than of s', and the middle when acting. The convolutions belong to the critic;
    the actor uses them and sends no gradient back. A clock that ended an episode is no terminal. Actor, alpha and
    targets move at every `delay`-th update. With `Layout(encoder="state")` it is SAC on vectors.
    """

    layout: Layout = Layout()
    discount: float = 0.99
    learning_rate: float = 2e-4  # of actor and critic
    alpha: float = 0.1  # at the start
    alpha_rate: float = 1e-3
    polyak: float = 0.01  # share of the online heads in each step of the target's
    encoder_polyak: float = 0.05  # the same of convolutions and trunk
    delay: int = eqx.field(static=True, default=2)

    def __check_init__(self):
        check_numbers(self, RANGES)
        if self.delay < 1:
            raise ValueError(f"RAD moves its actor at every delay-th update with delay >= 1, got {self.delay}.")

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
            obs = centre_crop(obs, self.layout.crop)
        policy = state.actor(state.critic.see(obs[None], self.dtype), self.dtype)
        return carry, (sample_action(policy, key)[0] if explore else mean_action(policy))[0], ()

    def update(self, state, batch, reward_fn, key):
        k_obs, k_next, k_target, k_actor = jax.random.split(key, 4)
        reward = reward_fn(batch).reshape(-1)
        batch = trees.flatten_leading(batch._replace(extras=()), batch.reward.ndim)
        obs, after = self.seen(batch.obs, k_obs), self.seen(batch.next_obs, k_next)
        y = self.target(state, reward, after, batch.terminated, k_target)
        state, metrics = self._improve_critic(state, obs, batch.action, y)
        moved = self._improve_actor(state, obs, k_actor)
        return moved[0], metrics | moved[1] | {"reward": reward.mean(), "alpha": jnp.exp(moved[0].log_alpha)}

    def seen(self, obs: Array, key: Key[Array, ""]) -> Array:
        """What the networks see of a batch of observations: a random crop of each image; vectors as they are."""
        return random_crop(obs, self.layout.crop, key) if self.layout.encoder == "pixels" else obs

    def target(
        self, state: RADState, reward: Float[Array, " b"], after: Array, terminated: Array, key: Key[Array, ""]
    ) -> Float[Array, " b"]:
        """y = r + discount (1 - terminated) (min_i Q'_i(s', a') - alpha log pi(a' | s'))."""
        action, log_prob = sample_action(state.actor(state.critic.see(after, self.dtype), self.dtype), key)
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
        action, log_prob = sample_action(actor(seen, self.dtype), key)
        values = critic.values(seen, action, self.dtype).min(0)
        return (jnp.exp(log_alpha) * log_prob - values).mean(), log_prob

    def alpha_loss(self, log_alpha: Float[Array, ""], log_prob: Float[Array, " b"], actions: int) -> Float[Array, ""]:
        """mean alpha (-log pi(a | s) - target entropy), for actions of so many numbers."""
        return (jnp.exp(log_alpha) * jax.lax.stop_gradient(-log_prob + actions)).mean()

    def _improve_critic(self, state: RADState, obs: Array, action: Array, y: Array) -> tuple[RADState, Metrics]:
        slope = jax.value_and_grad(self.critic_loss, has_aux=True)
        (loss, metrics), gradient = slope(state.critic, obs, action, jax.lax.stop_gradient(y))
        critic, optimiser = _step(self._rates()[0], state.critic, gradient, state.optimisers[0])
        state = state._replace(critic=critic, optimisers=(optimiser, *state.optimisers[1:]), k=state.k + 1)
        return state, {"critic_loss": loss, **metrics}

    def _improve_actor(self, state: RADState, obs: Array, key: Key[Array, ""]) -> tuple[RADState, Metrics]:
        """Actor, alpha and targets, at every `delay`-th update; NaN is told of the actor in between."""
        told, due = ("actor_objective", "entropy"), self.moves_at(state.k)
        move = lambda: self._move(state, obs, key)  # noqa: E731
        idle = lambda: (state, {name: jnp.full((), jnp.nan) for name in told})  # noqa: E731
        return (move if due else idle)() if isinstance(due, bool) else jax.lax.cond(due, move, idle)

    def moves_at(self, k: Int[Array, ""]) -> Bool[Array, ""] | bool:
        """Whether the k-th update moves the actor; a plain bool where that is known when it is compiled."""
        return True if self.delay == 1 else k % self.delay == 0

    @property
    def kinds(self) -> int:
        return self.delay

    def at_phase(self, k: int) -> "RAD":
        return PhasedRAD(**{name: getattr(self, name) for name in RAD.__dataclass_fields__}, due=k % self.delay == 0)

    def _move(self, state: RADState, obs: Array, key: Key[Array, ""]) -> tuple[RADState, Metrics]:
        slope = jax.value_and_grad(self.actor_loss, has_aux=True)
        (loss, log_prob), gradient = slope(state.actor, state.critic, obs, state.log_alpha, key)
        _, of_actor, of_alpha = self._rates()
        actor, actor_state = _step(of_actor, state.actor, gradient, state.optimisers[1])
        actions = state.actor.head.layers[-1].bias.size // 2
        gradient = jax.grad(self.alpha_loss)(state.log_alpha, log_prob, actions)
        log_alpha, alpha_state = _step(of_alpha, state.log_alpha, gradient, state.optimisers[2])
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


class PhasedRAD(RAD):
    """RAD whose next update is known to move the actor, or not to: what `RAD.at_phase` gives."""

    due: bool = eqx.field(static=True, default=True)

    def moves_at(self, k):
        return self.due


def SAC(width: int = 128) -> RAD:
    """Soft actor-critic on vectors, sized for a CPU: `RAD` without crops.

    Args:
        width: Units of each hidden layer.
    """
    return RAD(Layout(encoder="state", width=width), learning_rate=1e-3)


def _step(rate: optax.GradientTransformation, params: PyTree, gradient: PyTree, state: PyTree) -> tuple[PyTree, PyTree]:
    change, state = rate.update(gradient, state, params)
    return optax.apply_updates(params, change), state


def random_crop(images: Array, side: int, key: Key[Array, ""]) -> Array:
    """A square of each image [b, h, w, c], at a place of its own, all places alike likely."""
    b, height, width, channels = images.shape
    corners = jax.random.randint(key, (b, 2), 0, jnp.array([height - side + 1, width - side + 1]))
    corners = jax.lax.optimization_barrier(corners)  # or a GPU draws them anew for every byte that it picks
    cut = lambda image, at: jax.lax.dynamic_slice(image, (at[0], at[1], 0), (side, side, channels))  # noqa: E731
    # As bytes, whatever comes next: a GPU that casts and pads while it picks pixels takes five times as long.
    return jax.lax.optimization_barrier(jax.vmap(cut)(images, corners))


def centre_crop(image: Array, side: int) -> Array:
    """The square in the middle of one image [h, w, c]."""
    top, left = ((n - side) // 2 for n in image.shape[:2])
    return image[top : top + side, left : left + side]
