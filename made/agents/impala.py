"""IMPALA: an actor-critic with V-trace, the agent of the paper's MiniGrid experiments."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from made.agents.policy_net import LAYOUTS, Layout, PolicyNet
from made.agents.returns import check_heads, episode_starts, split_reward, vtrace
from made.core import Agent, Metrics, Spec, Transition, trees
from made.core.config import ABOVE_ZERO, AT_LEAST_ZERO, BELOW_ONE, OMIT_DEFAULT, POSITIVE, SHARE, check_numbers
from made.nets.fit import descend, linear_decay

RANGES = {
    SHARE: ("discount", "discount_intrinsic"),
    BELOW_ONE: ("smoothing",),
    AT_LEAST_ZERO: ("decay", "entropy", "baseline", "lag"),
    ABOVE_ZERO: ("clip", "clip_gradient"),
    POSITIVE: ("learning_rate", "epsilon"),
}


class ActionExtras(NamedTuple):
    """What the learner needs of the policy that acted: log pi(a), and the recurrent state before the action."""

    log_prob: Float[Array, "*b"]
    carry: PyTree


class IMPALAState(NamedTuple):
    """Parameters, optimizer state, older parameters for the actors (oldest first), and updates done."""

    net: PolicyNet
    optimiser: PyTree
    older: PyTree  # leaves [lag, ...]
    k: Int[Array, ""]


class IMPALA(Agent):
    """V-trace actor-critic with RMSProp (Espeholt et al. 2018), with the settings of RIDE's code.

        loss = sum_t mean_n [ -log pi(a) advantage + baseline 1/2 (v - V)^2 - entropy H(pi) ]

    The reward of `reward_fn`, r + tau b, is clipped to [-clip, clip]. Termination and truncation end the return, as in
    RIDE's and NovelD's code. With `bootstrap_truncated` a truncated step bootstraps from the value of the last
    observation before the reset. `heads=2` has separate values for r and tau b, the latter with `discount_intrinsic`.
    With `episodic_intrinsic=False` the return of tau b continues into the next episode, as in the paper of RND (Burda
    et al. 2018). The actors are `lag` updates behind, as asynchronous actors are.
    The paper prints epsilon 0.01; RIDE's and NovelD's releases have 1e-5 (docs/deviations.md).
    """

    layout: Layout = LAYOUTS["small"]
    learning_rate: float = 1e-4
    decay: float = 0.0  # updates until the learning rate is 0; 0: constant
    epsilon: float = 1e-5
    smoothing: float = 0.99
    entropy: float = 5e-4
    baseline: float = 0.5
    discount: float = 0.99
    discount_intrinsic: float = 0.99
    clip: float = 1.0  # of rewards
    clip_gradient: float = 40.0
    heads: int = eqx.field(static=True, default=1)
    lag: int = eqx.field(static=True, default=0)
    view: str = eqx.field(static=True, default="")
    bootstrap_truncated: bool = eqx.field(static=True, default=False, metadata=OMIT_DEFAULT)
    episodic_intrinsic: bool = eqx.field(static=True, default=True, metadata=OMIT_DEFAULT)

    def __check_init__(self):
        check_numbers(self, RANGES)
        check_heads(self)

    def init(self, key, spec: Spec) -> IMPALAState:
        if spec.action.n is None or spec.action.shape:
            raise ValueError(
                f"IMPALA chooses one of n discrete actions, but the actions are {spec.action}. Use a task with "
                "discrete actions, or an agent for continuous ones."
            )
        net = PolicyNet(self.layout, spec, self.heads, self.view, key=key)
        older = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.lag, *x.shape)), net) if self.lag else ()
        optimiser = self._optimizer(self.learning_rate).init(net)  # type: ignore[arg-type]
        return IMPALAState(net, optimiser, older, jnp.zeros((), jnp.int32))

    def _optimizer(self, rate: Array | float) -> optax.GradientTransformation:
        scale = optax.scale_by_rms(self.smoothing, self.epsilon, eps_in_sqrt=False)
        return optax.chain(optax.clip_by_global_norm(self.clip_gradient), scale, optax.scale_by_learning_rate(rate))

    def carry(self, spec):
        return self.layout.blank()

    def acting_params(self, state):
        """The parameters in the precision of the network, cast once for a rollout."""
        older = jax.vmap(PolicyNet.cast)(state.older) if self.lag else state.older
        return state._replace(net=state.net.cast(), older=older)

    def act(self, state, carry, obs, goal, key, *, explore=True):
        net = trees.index(state.older, 0) if self.lag else state.net
        after, logits, _ = net.step(carry, obs, goal)
        action = jax.random.categorical(key, logits) if explore else jnp.argmax(logits)
        return after, action.astype(jnp.int32), ActionExtras(jax.nn.log_softmax(logits)[action], carry)

    def update(self, state, batch, reward_fn, key):
        rewards = self.streams(batch, reward_fn(batch))
        loss = lambda net: self.loss(net, batch, rewards)  # noqa: E731
        (_, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(state.net)
        rate = linear_decay(self.learning_rate, state.k, self.decay)
        net, optimiser = descend(self._optimizer(rate), state.net, gradient, state.optimiser)
        older = state.older
        if self.lag:
            older = jax.tree.map(lambda old, new: jnp.concatenate([old[1:], new[None]]), older, state.net)
        metrics |= {"gradient_norm": optax.tree.norm(gradient), "learning_rate": rate}
        return IMPALAState(net, optimiser, older, state.k + 1), metrics

    def streams(self, batch: Transition, reward: Float[Array, "T N"]) -> Float[Array, "T N heads"]:
        """The clipped reward of each value."""
        return jnp.clip(split_reward(batch, reward, self.heads), -self.clip, self.clip)

    def _by_head(self, ends: Bool[Array, "T N"]) -> Bool[Array, "T N heads"]:
        """Where the return of each value ends; that of the bonus does not unless `episodic_intrinsic`."""
        return jnp.stack([ends, ends & self.episodic_intrinsic][: self.heads], -1)

    def loss(self, net: PolicyNet, batch: Transition, rewards: Float[Array, "T N heads"]) -> tuple[Array, Metrics]:
        """The loss of one batch [T, N], summed over time and averaged over environments, and its parts."""
        first, fresh = trees.index(batch.extras.carry, 0), episode_starts(batch)
        carry, logits, value = net.unroll(first, batch.obs, batch.note.goal, fresh)
        _, _, bootstrap = net.step(carry, trees.index(batch.next_obs, -1), trees.index(batch.next_note.goal, -1))
        log_pi = jax.nn.log_softmax(logits)
        log_prob = jnp.take_along_axis(log_pi, batch.action[..., None], -1)[..., 0]
        log_ratio = jax.lax.stop_gradient(log_prob - batch.extras.log_prob)
        discount = jnp.stack([self.discount, self.discount_intrinsic][: self.heads])
        ends, last = batch.terminated | batch.truncated, None
        if self.bootstrap_truncated:
            successors = jax.lax.stop_gradient(net).successor_values(first, batch, fresh)
            ends, last = batch.terminated, (self._by_head(batch.truncated), successors)
        discount = discount * ~self._by_head(ends)
        aim = vtrace(log_ratio[..., None], rewards, discount, value, bootstrap, last)
        aim = jax.tree.map(jax.lax.stop_gradient, aim)
        parts = {
            "policy_loss": -(log_prob * aim.advantage.sum(-1)),
            "baseline_loss": 0.5 * jnp.sum((aim.target - value) ** 2, -1),
            "entropy": -jnp.sum(jnp.exp(log_pi) * log_pi, -1),
        }
        summed = {name: x.mean(1).sum() for name, x in parts.items()}
        total = summed["policy_loss"] + self.baseline * summed["baseline_loss"] - self.entropy * summed["entropy"]
        metrics = {name: x.mean() for name, x in parts.items()}
        return total, {"loss": total, "ratio": jnp.exp(log_ratio).mean(), "value": value.mean(), **metrics}
