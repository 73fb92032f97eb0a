"""Features of frames that never change, kept beside the replay: a fixed encoder sees each step once, when it is fresh.

An update on 512 steps would otherwise run the encoder on 512 images that it has seen before, at a cost near that of the
agent's own networks. The learner says at which places of the replay the steps of a batch stand (`Replayed.at`), and
the features stand at the same places.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from made.bonuses.combinators import RewardWrapper
from made.bonuses.re3 import RE3, RE3State
from made.bonuses.release.release_rnd import ReleasedRND, ReleasedRNDState
from made.bonuses.replay_data import FromBatch
from made.core import Bonus, EpisodeMemory, NoMemory, ReplayContext, Transition, learning_data, ring_buffer, trees
from made.core.config import check_types
from made.nets import MLP
from made.nets.fit import with_prefix

AT_A_TIME = 256  # images that are encoded side by side


class CachedState(NamedTuple):
    """RND's own state, and the features of each step of the replay."""

    rnd: ReleasedRNDState
    features: Float[Array, "steps width"]  # float16: they are within (-1, 1)


class CachedRND(Bonus):
    """`ReleasedRND` on features that are kept: b(s') = norm(target(phi(s')) - predictor(phi(s'))), phi fixed.

    `steps` is the capacity of the replay, told by the learner (`beside`). Where it is 0, or a batch is not from that
    replay, images are encoded as they come. Differs from `ReleasedRND`: features that are kept are rounded to float16.
    Steps that were stored and never shown as fresh have NaN for features: `Learner.introduce` shows them.
    """

    rnd: ReleasedRND = ReleasedRND()
    steps: int = eqx.field(static=True, default=0)
    memory: EpisodeMemory = NoMemory()
    reads: ClassVar[tuple[str, ...]] = ("next_obs",)

    def __check_init__(self):
        check_types(self)

    def init(self, key, spec):
        return CachedState(self.rnd.init(key, spec), jnp.full((self.steps, self.rnd.width), jnp.nan, jnp.float16))

    def _features(self, state: CachedState, batch: Transition) -> Float[Array, "*b width"]:
        at = _places(batch, self.steps)
        if at is not None:
            return state.features[at].astype(jnp.float32)
        return trees.over_leading(state.rnd.encoder, batch.reward.ndim)(batch.next_obs)

    def reward(self, state, batch, *, value=None):
        net = state.rnd
        error = lambda x: jnp.linalg.norm(net.target(x) - net.predictor.params(x))  # noqa: E731
        return trees.over_leading(error, batch.reward.ndim)(self._features(state, batch))

    def update(self, state, batch, key):
        net, features = state.rnd, state.features
        if _places(batch, self.steps) is not None:
            new = encoded(net.encoder, batch.extras.new.next_obs)
            features = features.at[batch.extras.new_at.reshape(-1)].set(new.astype(features.dtype))
        seen = self._features(CachedState(net, features), batch)
        items = trees.flatten_leading(seen, batch.reward.ndim)

        def loss(predictor: MLP, items, key):
            error = jax.vmap(predictor)(items) - jax.vmap(net.target)(items)
            return (error**2).mean(), {}

        predictor, metrics = self.rnd.fit.fit(loss, net.predictor, items, key)
        return CachedState(net._replace(predictor=predictor), features), with_prefix(metrics, "rnd")


class CachedRE3(RewardWrapper):
    """`RE3` whose neighbours are the steps of the replay: what is drawn from it is among them, and looked up."""

    bonus: RE3

    def change(self, reward):
        return reward

    def reward(self, state, batch, *, value=None):
        at = _places(batch, self.bonus.capacity)
        points = self.bonus.points(state, batch) if at is None else state.ring.items[at]
        return self.bonus.reward_at(state, points)

    def update(self, state, batch, key):
        if _places(batch, self.bonus.capacity) is None:
            return self.bonus.update(state, batch, key)
        fresh = learning_data(batch, "new")
        points = encoded(state.encoder, getattr(fresh, self.bonus.on))
        items = state.ring.items.at[batch.extras.new_at.reshape(-1)].set(points)
        ring = ring_buffer.Ring(items, state.ring.written + fresh.reward.size)
        return RE3State(state.encoder, ring), {"re3/held": ring_buffer.size(ring).astype(float)}


def _places(batch: Transition, steps: int) -> Array | None:
    """Where in the replay the steps of a batch stand; None where nothing is kept or nobody knows."""
    return batch.extras.at if steps and isinstance(batch.extras, ReplayContext) else None


def encoded(encoder: eqx.Module, images: PyTree) -> Float[Array, "n width"]:
    """The features of observations [T, N, ...], some at a time: they are many when learning begins, and one later."""
    rows = trees.flatten_leading(images, 2)
    few = jax.tree.leaves(rows)[0].shape[0] <= AT_A_TIME
    return jax.vmap(encoder)(rows) if few else jax.lax.map(encoder, rows, batch_size=AT_A_TIME)  # type: ignore


def with_feature_cache(bonus: Bonus, steps: int) -> Bonus:
    """The same bonus beside a replay of so many steps of one stream: fixed features are kept rather than made anew.

    RE3 can do so where it has room for as many neighbours as the replay has steps, and then holds no more.
    """

    def settle(part):
        if isinstance(part, CachedRND):
            return dataclasses.replace(part, steps=steps)
        if isinstance(part, RE3) and part.k < steps <= part.capacity:
            return CachedRE3(dataclasses.replace(part, capacity=steps))
        return part

    return jax.tree.map(settle, bonus, is_leaf=lambda x: isinstance(x, CachedRND | RE3 | CachedRE3 | FromBatch))
