"""Bonuses that learn from a replay buffer: which parts need which steps (`Estimator.learns_from`), cached features."""

import dataclasses
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from made.bonuses.combinators import RewardWrapper
from made.bonuses.embedding import FRAME
from made.bonuses.re3 import RE3, RE3State
from made.bonuses.release import ReleasedRND, ReleasedRNDState
from made.core import (
    Bonus,
    Density,
    EpisodeMemory,
    Estimator,
    ImageSpace,
    NoMemory,
    ReplayContext,
    Space,
    Spec,
    Transition,
    learning_data,
    ring_buffer,
    trees,
)

DRAWS = 512  # recent steps that a density is given at each update
CHUNK = 256  # images that are encoded at once


class FromBatch(RewardWrapper):
    """A bonus that learns from the sampled batch, whatever its class says.

    `RE3` remembers each new step. `FromBatch(RE3())` looks for neighbors in the batch that it rewards, as the release
    does with Dreamer.
    """

    bonus: Bonus

    def update(self, state, batch, key):
        extras = () if isinstance(batch.extras, ReplayContext) else batch.extras
        return self.bonus.update(state, batch._replace(extras=extras), key)


def _decides(part: object) -> bool:
    """Whether a part of a bonus, or nothing inside it, decides what is learned from."""
    return isinstance(part, FromBatch) or (isinstance(part, Estimator) and part.learns_from != "batch")


def _learning_from(bonus: Bonus, source: str) -> list[Bonus | Density]:
    """The outermost parts of a bonus, itself among them, that learn from `source`."""
    parts = jax.tree.leaves(bonus, is_leaf=_decides)
    return [part for part in parts if isinstance(part, Estimator) and part.learns_from == source]  # type: ignore[misc]


def needs_new(bonus: Bonus) -> bool:
    """Whether some part of a bonus takes in each step once.

    >>> from made.bonuses import MADE, RE3, Normalized
    >>> needs_new(MADE.deep()), needs_new(MADE.hashed()), needs_new(Normalized(RE3())), needs_new(FromBatch(RE3()))
    (False, True, True, False)
    """
    return bool(_learning_from(bonus, "new"))


def recent_window(bonus: Bonus) -> Array | int | None:
    """How many steps back the recent steps go that a bonus asks for; None where it asks for none.

    >>> from made.bonuses import MADE
    >>> recent_window(MADE.deep(window=700)), recent_window(MADE.hashed(window=700))
    (700, None)
    """
    parts = _learning_from(bonus, "recent")
    if len(parts) > 1:
        raise ValueError(
            f"A bonus may have one part that learns from recent steps, got {len(parts)}: leave out the others."
        )
    if parts and not hasattr(parts[0], "window"):
        raise ValueError(
            f"{type(parts[0]).__name__} learns from recent steps, so it needs a field `window`: how many of them."
        )
    return parts[0].window if parts else None  # type: ignore[attr-defined]


def settle(bonus: Bonus, steps: int = 0) -> Bonus:
    """The bonus as a learner uses it, with a replay of so many steps of one stream, or another one if 0.

    What learns from recent steps gets room for `DRAWS` of them in place of its window, which the replay holds. Where
    steps have indices in the replay, fixed features are cached: RE3 can do so if it has room for as many neighbors as
    the replay has steps, and then holds no more.
    """

    def room(part):
        if not isinstance(part, Estimator) or part.learns_from != "recent":
            return part
        names = {field.name for field in dataclasses.fields(part)}
        return dataclasses.replace(part, **{name: DRAWS for name in ("window", "capacity") if name in names})

    def cache(part):
        if isinstance(part, CachedRND):
            return dataclasses.replace(part, steps=steps)
        if isinstance(part, RE3) and part.k < steps <= part.capacity:
            return CachedRE3(dataclasses.replace(part, capacity=steps))
        return part

    bonus = jax.tree.map(room, bonus, is_leaf=_decides)
    cached = CachedRND | RE3 | CachedRE3 | FromBatch
    return jax.tree.map(cache, bonus, is_leaf=lambda x: isinstance(x, cached)) if steps else bonus


class LastFrame(RewardWrapper):
    """A bonus that reads only the last frame of a stack, three channels, as those of the authors' code do."""

    bonus: Bonus

    def init(self, key, spec: Spec):
        if not isinstance(spec.obs, Space) or len(spec.obs.shape) != 3 or spec.obs.shape[-1] < FRAME:
            raise ValueError(
                f"LastFrame reads the last three channels of an image [h, w, c], but the observations are {spec.obs}: "
                "leave it out."
            )
        last = ImageSpace(*spec.obs._replace(shape=(*spec.obs.shape[:2], FRAME)))
        return self.bonus.init(key, spec._replace(obs=last))

    def reward(self, state, batch, *, value=None):
        return self.bonus.reward(state, _cut(batch), value=value)

    def update(self, state, batch, key):
        return self.bonus.update(state, _cut(batch), key)


def _cut(batch: Transition) -> Transition:
    extras = batch.extras
    if isinstance(extras, ReplayContext):
        extras = extras._replace(new=_cut(extras.new), recent=_cut(extras.recent))
    last = lambda x: x[..., -FRAME:]  # noqa: E731
    return batch._replace(obs=last(batch.obs), next_obs=last(batch.next_obs), extras=extras)


# A fixed encoder sees each step once, when it is new, and its features are cached at the step's index in the replay
# (`ReplayContext.at`). Encoding the 512 images of each update would cost about as much as the agent's own networks.


class CachedState(NamedTuple):
    """The state of RND, and the features of each step of the replay."""

    rnd: ReleasedRNDState
    features: Float[Array, "steps width"]  # float16: they are within (-1, 1)


class CachedRND(Bonus):
    """`ReleasedRND` on cached features: b(s') = norm(target(phi(s')) - predictor(phi(s'))), phi fixed.

    `steps` is the capacity of the replay, which `settle` sets. If it is 0, or a batch is not from that replay, images
    are encoded as they come. Differs from `ReleasedRND`: cached features are rounded to float16. Those of steps that
    were never new are NaN: `ReplayLearner.introduce` shows them.
    """

    rnd: ReleasedRND = ReleasedRND()
    steps: int = eqx.field(static=True, default=0)
    memory: EpisodeMemory = NoMemory()
    reads: ClassVar[tuple[str, ...]] = ("next_obs",)

    def init(self, key, spec):
        return CachedState(self.rnd.init(key, spec), jnp.full((self.steps, self.rnd.width), jnp.nan, jnp.float16))

    def _features(self, state: CachedState, batch: Transition) -> Float[Array, "*b width"]:
        at = _places(batch, self.steps)
        if at is not None:
            return state.features[at].astype(jnp.float32)
        return trees.over_leading(state.rnd.encoder, batch.reward.ndim)(batch.next_obs)

    def reward(self, state, batch, *, value=None):
        return self.rnd.reward_at(state.rnd, self._features(state, batch))

    def update(self, state, batch, key):
        net, features = state
        if _places(batch, self.steps) is not None:
            new = encoded(net.encoder, batch.extras.new.next_obs)
            features = features.at[batch.extras.new_at.reshape(-1)].set(new.astype(features.dtype))
        net, metrics = self.rnd.learn(net, self._features(CachedState(net, features), batch), key)
        return CachedState(net, features), metrics


class CachedRE3(RewardWrapper):
    """`RE3` whose neighbors are the steps of the replay, so that points of sampled steps are looked up."""

    bonus: RE3

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
    """The indices of a batch in the replay; None if nothing is cached or they are unknown."""
    return batch.extras.at if steps and isinstance(batch.extras, ReplayContext) else None


def encoded(encoder: eqx.Module, images: PyTree) -> Float[Array, "n width"]:
    """The features of observations [T, N, ...], in chunks: they are many when learning begins, and one later."""
    rows = trees.flatten_leading(images, 2)
    few = jax.tree.leaves(rows)[0].shape[0] <= CHUNK
    return jax.vmap(encoder)(rows) if few else jax.lax.map(encoder, rows, batch_size=CHUNK)  # type: ignore
