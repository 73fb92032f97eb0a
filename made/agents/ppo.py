"""PPO: an actor-critic that takes several epochs of clipped updates on each rollout."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from made.agents.policy_net import LAYOUTS, Layout, PolicyNet
from made.agents.returns import check_heads, episode_starts, gae, split_reward
from made.core import Agent, Metrics, Spec, Transition, trees
from made.core.config import ABOVE_ZERO, AT_LEAST_ZERO, COUNT, POSITIVE, SHARE, check_numbers
from made.core.interfaces import RewardFn
from made.nets.distributions import action_distribution, to_bounds
from made.nets.fit import descend, linear_decay

RANGES = {
    SHARE: ("discount", "discount_intrinsic", "gae_lambda"),
    AT_LEAST_ZERO: ("decay", "entropy", "value_coef"),
    ABOVE_ZERO: ("clip_range", "clip_range_value", "max_grad_norm", "target_kl"),
    POSITIVE: ("learning_rate", "epsilon"),
    COUNT: ("epochs", "minibatches"),
}
POLICY_GAIN = 0.01  # initial scale of the policy head: the first policy is close to uniform


class PolicyExtras(NamedTuple):
    """What the learner needs of the policy that acted."""

    log_prob: Float[Array, "*b"]
    value: Float[Array, "*b heads"]
    sample: PyTree  # continuous action before clipping and scaling; () where actions are discrete
    carry: PyTree  # recurrent state before the action


class PPOParams(eqx.Module):
    """The network, and the log standard deviation of continuous actions."""

    net: PolicyNet
    log_std: Float[Array, " a"]


class PPOState(NamedTuple):
    """Parameters, optimizer state and updates done."""

    params: PPOParams
    optimizer: PyTree
    k: Int[Array, ""]


class Samples(NamedTuple):
    """The data of one rollout that the epochs go over: sequences [T, N, ...]."""

    obs: PyTree
    goal: PyTree
    action: Array
    fresh: Bool[Array, "T N"]  # an episode begins at this step
    log_prob: Float[Array, "T N"]
    value: Float[Array, "T N heads"]
    advantage: Float[Array, "T N"]
    target: Float[Array, "T N heads"]


class PPO(Agent):
    """Proximal policy optimization (Schulman et al. 2017), with memory and with one or two value heads.

        loss = mean[ -min(ratio A, clip(ratio, 1 - clip_range, 1 + clip_range) A) ]
               + value_coef mean[ 1/2 (target - V)^2 ] - entropy mean[ H(pi) ]

    Advantages A are those of `gae` for the reward r + tau b that `reward_fn` gives. A truncated step bootstraps from
    the value of its true successor, a terminated one from nothing.

    A recurrent network learns from whole sequences: a minibatch holds all steps of `n_envs / minibatches`
    environments. Without memory, a minibatch is a random subset of all steps.

    With `heads=2` the task reward r and the bonus tau b have values of their own, the latter with
    `discount_intrinsic`. With `episodic_intrinsic=False` the intrinsic return goes on into the next episode, as in the
    paper of RND (Burda et al. 2018).

    Args:
        layout: the network; one of `LAYOUTS`, or a `Layout` with sizes of your own.
        learning_rate: step size of Adam.
        decay: updates (rollouts) after which the learning rate has fallen linearly to 0; 0 keeps it constant.
        epochs: passes over each rollout.
        minibatches: parts of each pass.
        discount: of the task reward, and of the bonus where heads=1.
        discount_intrinsic: of the bonus where heads=2.
        gae_lambda: weight of longer returns in the advantages.
        clip_range: largest change of the probability ratio that is rewarded.
        clip_range_value: largest change of a value in one update of the loss; None does not clip values.
        entropy: coefficient of the entropy.
        value_coef: coefficient of the value loss.
        max_grad_norm: norm to which gradients are clipped.
        target_kl: skip the rest of an update once the approximate KL divergence is above 1.5 times this; None never.
        normalize_advantage: normalize the advantages of each minibatch to mean 0 and standard deviation 1.
        heads: 1 value, or 2: of the task reward and of the bonus.
        episodic_intrinsic: whether the intrinsic return ends with the episode; needs heads=2 to be False.
        view: path of the part of a dictionary observation that the network sees; "" is all but counts and hashes.
    """

    layout: Layout = LAYOUTS["small-ff"]
    learning_rate: float = 3e-4
    decay: float = 0.0
    epochs: int = eqx.field(static=True, default=4)
    minibatches: int = eqx.field(static=True, default=4)
    discount: float = 0.99
    discount_intrinsic: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    clip_range_value: float | None = None
    entropy: float = 0.01
    value_coef: float = 0.5
    max_grad_norm: float = 0.5
    epsilon: float = 1e-5
    target_kl: float | None = None
    normalize_advantage: bool = eqx.field(static=True, default=True)
    heads: int = eqx.field(static=True, default=1)
    episodic_intrinsic: bool = eqx.field(static=True, default=True)
    view: str = eqx.field(static=True, default="")

    def __check_init__(self):
        check_numbers(self, RANGES)
        check_heads(self)

    def init(self, key, spec: Spec) -> PPOState:
        action = spec.action
        if action.n is None and not all(x is not None and math.isfinite(x) for x in (action.low, action.high)):
            raise ValueError(
                f"PPO scales continuous actions to their bounds, but the actions are {action} without finite bounds. "
                "Wrap the environment in gymnasium.wrappers.RescaleAction or ClipAction, or bound its action space."
            )
        net = PolicyNet(self.layout, spec, self.heads, self.view, key=key)
        net = eqx.tree_at(lambda net: net.policy.weight, net, POLICY_GAIN * net.policy.weight)
        params = PPOParams(net, jnp.zeros(0 if action.n is not None else net.policy.bias.size))
        optimizer = self._optimizer(self.learning_rate).init(params)  # type: ignore[arg-type]
        return PPOState(params, optimizer, jnp.zeros((), jnp.int32))

    def _optimizer(self, rate: Array | float) -> optax.GradientTransformation:
        adam = optax.scale_by_adam(eps=self.epsilon)
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), adam, optax.scale_by_learning_rate(rate))

    def carry(self, spec):
        return self.layout.blank()

    def acting_params(self, state):
        """The parameters in the precision of the network, cast once for a rollout."""
        return state._replace(params=eqx.tree_at(lambda p: p.net, state.params, state.params.net.cast()))

    def act(self, state, carry, obs, goal, key, *, explore=True):
        params = state.params
        after, outputs, value = params.net.step(carry, obs, goal)
        space = params.net.action
        policy = action_distribution(space, outputs, params.log_std)
        sample = policy.sample(key) if explore else policy.mode()
        kept = () if space.n is not None else sample
        return after, to_bounds(space, sample), PolicyExtras(policy.log_prob(sample), value, kept, carry)

    def update(self, state, batch, reward_fn: RewardFn, key):
        samples = self.samples(state.params.net, batch, reward_fn(batch))
        first = trees.index(batch.extras.carry, 0)
        if not self.layout.memory:  # every step is a sequence of its own
            samples = jax.tree.map(lambda x: x.reshape((1, -1, *x.shape[2:])), samples)
        n = samples.fresh.shape[1]
        if n % self.minibatches:
            what = f"environments ({n})" if self.layout.memory else f"steps of a rollout ({n})"
            raise ValueError(
                f"PPO splits the {what} into minibatches={self.minibatches} of equal size: take a number of "
                "minibatches that divides it."
            )
        order = jax.vmap(lambda k: jax.random.permutation(k, n))(jax.random.split(key, self.epochs))
        rate = linear_decay(self.learning_rate, state.k, self.decay)

        def step(now, index):
            params, optimizer, stopped = now
            part = jax.tree.map(lambda x: x[:, index], samples)
            carry = jax.tree.map(lambda x: x[index], first)
            (_, metrics), gradient = jax.value_and_grad(self.loss, has_aux=True)(params, part, carry)
            following = descend(self._optimizer(rate), params, gradient, optimizer)
            if self.target_kl is not None:
                stopped = stopped | (metrics["approx_kl"] > 1.5 * self.target_kl)
                following = trees.select(stopped, (params, optimizer), following)
            return (*following, stopped), {**metrics, "gradient_norm": optax.tree.norm(gradient)}

        begin = (state.params, state.optimizer, jnp.zeros((), bool))
        (params, optimizer, stopped), metrics = jax.lax.scan(step, begin, order.reshape(-1, n // self.minibatches))
        metrics = {name: x.mean() for name, x in metrics.items()}
        unexplained = jnp.var(samples.target - samples.value) / jnp.maximum(jnp.var(samples.target), 1e-8)
        metrics |= {"learning_rate": rate, "value": samples.value.mean(), "explained_variance": 1 - unexplained}
        if self.target_kl is not None:
            metrics["stopped_early"] = stopped.astype(float)
        return PPOState(params, optimizer, state.k + 1), metrics  # type: ignore[arg-type]

    def samples(self, net: PolicyNet, batch: Transition, reward: Float[Array, "T N"]) -> Samples:
        """Advantages and value targets of a rollout, with all else that the epochs need."""
        episodic = jnp.array([True, self.episodic_intrinsic])[: self.heads]
        terminated, done = (x[..., None] & episodic for x in (batch.terminated, batch.terminated | batch.truncated))
        value, last = batch.extras.value, jnp.zeros_like(batch.terminated).at[-1].set(True)
        fresh = episode_starts(batch)
        successor = net.successor_values(trees.index(batch.extras.carry, 0), batch, fresh)
        # Where the return goes on into the next episode, so does the value.
        next_value = jnp.where(episodic | last[..., None], successor, jnp.roll(value, -1, 0))
        discount = jnp.stack([self.discount, self.discount_intrinsic][: self.heads])
        rewards = split_reward(batch, reward, self.heads)
        advantage = gae(rewards, value, next_value, terminated, done, discount=discount, gae_lambda=self.gae_lambda)
        action, log_prob = batch.action if net.action.n is not None else batch.extras.sample, batch.extras.log_prob
        total, target = advantage.sum(-1), advantage + value
        return Samples(batch.obs, batch.note.goal, action, fresh, log_prob, value, total, target)

    def loss(self, params: PPOParams, samples: Samples, carry: PyTree) -> tuple[Float[Array, ""], Metrics]:
        """The loss of one minibatch of sequences, and its parts."""
        _, outputs, value = params.net.unroll(carry, samples.obs, samples.goal, samples.fresh)
        policy = action_distribution(params.net.action, outputs, params.log_std)
        log_ratio = policy.log_prob(samples.action) - samples.log_prob
        ratio, advantage = jnp.exp(log_ratio), samples.advantage
        if self.normalize_advantage:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = jnp.clip(ratio, 1 - self.clip_range, 1 + self.clip_range)
        policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
        error = (samples.target - value) ** 2
        if self.clip_range_value is not None:
            near = samples.value + jnp.clip(value - samples.value, -self.clip_range_value, self.clip_range_value)
            error = jnp.maximum(error, (samples.target - near) ** 2)
        value_loss = 0.5 * error.sum(-1).mean()
        entropy = policy.entropy().mean()
        total = policy_loss + self.value_coef * value_loss - self.entropy * entropy
        return total, {
            "loss": total,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": (ratio - 1 - log_ratio).mean(),
            "clip_fraction": (jnp.abs(ratio - 1) > self.clip_range).mean(),
        }
