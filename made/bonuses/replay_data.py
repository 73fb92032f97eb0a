"""Bonuses that learn from a replay buffer: which parts need which steps (`Estimator.learns_from` in `made.core`)."""

import dataclasses

import jax
from jaxtyping import Array

from made.bonuses.combinators import RewardWrapper
from made.bonuses.release.release_vae import FRAME
from made.core import Bonus, Density, Estimator, ImageSpace, ReplayContext, Space, Spec, Transition

DRAWS = 512  # recent steps that a density is given at each update


class FromBatch(RewardWrapper):
    """A bonus that learns from the sampled batch, whatever its class says.

    `RE3` remembers each new step. `FromBatch(RE3())` looks for neighbours in the batch that it pays, as the release
    does with Dreamer.
    """

    bonus: Bonus

    def change(self, reward):
        return reward

    def update(self, state, batch, key):
        extras = () if isinstance(batch.extras, ReplayContext) else batch.extras
        return self.bonus.update(state, batch._replace(extras=extras), key)


def _decides(part: object) -> bool:
    """Whether a part of a bonus, or nothing inside it, decides what is learnt from."""
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
    if not parts:
        return None
    if not hasattr(parts[0], "window"):
        raise ValueError(
            f"{type(parts[0]).__name__} learns from recent steps, so it needs a field `window`: how many of them."
        )
    return parts[0].window  # type: ignore[attr-defined]


def under_replay(bonus: Bonus) -> Bonus:
    """The bonus with room for `DRAWS` recent steps in place of its window: the replay buffer holds the window."""

    def settle(part):
        if not isinstance(part, Estimator) or part.learns_from != "recent":
            return part
        names = {field.name for field in dataclasses.fields(part)}
        return dataclasses.replace(part, **{name: DRAWS for name in ("window", "capacity") if name in names})

    return jax.tree.map(settle, bonus, is_leaf=_decides)


class LastFrame(RewardWrapper):
    """A bonus that looks at the last frame of a stack alone, three channels, as those of the authors' code do."""

    bonus: Bonus

    def init(self, key, spec: Spec):
        if not isinstance(spec.obs, Space) or len(spec.obs.shape) != 3 or spec.obs.shape[-1] < FRAME:
            raise ValueError(
                f"LastFrame reads the last three channels of an image [h, w, c], but the observations are {spec.obs}: "
                "leave it out."
            )
        last = ImageSpace(*spec.obs._replace(shape=(*spec.obs.shape[:2], FRAME)))
        return self.bonus.init(key, spec._replace(obs=last))

    def change(self, reward):
        return reward

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
