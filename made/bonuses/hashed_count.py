"""Counts where a table over states is out of reach: observations are hashed into a table of fixed size."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from made.bonuses.embedding import check_space
from made.core import Bonus, EpisodeMemory, LearnsFrom, NoMemory, Space, dict_obs, trees
from made.core.config import AT_LEAST_ZERO, check_numbers


class HashedCountState(NamedTuple):
    """Visits of each slot, and the directions that SimHash projects on (none for exact hashes)."""

    counts: Float[Array, " slots"]
    planes: Float[Array, "bits features"]


class HashedCount(Bonus):
    """A power of the visits of an observation's slot in a table of 2^bits.

        b(s, a, s') = 1 / N(slot(s'))^power,   N at least 1

    kind "exact": the slot is `bits` bits of a 64-bit hash of what `view` names ("" is the hash of the full state where
    an environment has one, else all that is observed), so states share a slot only by chance.
    kind "similar": SimHash, slot = signs of `bits` random projections, so near observations share a slot on purpose;
    Tang et al., "#Exploration: A Study of Count-Based Exploration" (2017).
    Differs from the release of RIDE, whose "count" keeps one table in each actor's process: this one is shared.
    """

    power: float = 0.5
    bits: int = eqx.field(static=True, default=20)
    kind: str = eqx.field(static=True, default="exact")
    on: str = eqx.field(static=True, default="next_obs")
    view: str = eqx.field(static=True, default="")
    memory: EpisodeMemory = NoMemory()
    learns_from: ClassVar[LearnsFrom] = "new"

    def __check_init__(self):
        check_numbers(self, {AT_LEAST_ZERO: ("power",)})
        check_space("HashedCount", self.on)
        if self.kind not in ("exact", "similar") or not 1 <= self.bits <= 30:
            raise ValueError(
                f"HashedCount takes kind='exact' or 'similar' and 1 <= bits <= 30, got kind={self.kind!r}, "
                f"bits={self.bits}."
            )

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.on,)

    def init(self, key, spec):
        planes = jnp.zeros((0, 0))
        if self.kind == "similar":
            spaces = dict_obs.looked_at(spec.obs, self.view)
            blank = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spaces, is_leaf=lambda s: isinstance(s, Space))
            planes = jax.random.normal(key, (self.bits, jax.eval_shape(flat, blank).shape[0]))
        return HashedCountState(jnp.zeros(2**self.bits), planes)

    def slot(self, state: HashedCountState, obs: PyTree) -> Int[Array, ""]:
        """The place of one observation in the table."""
        if self.kind == "similar":
            signs = state.planes @ flat(dict_obs.looked_at(obs, self.view)) > 0
            return jnp.sum(signs * 2 ** jnp.arange(self.bits))
        word: Array = dict_obs.key_of(obs, self.view)[0]
        return (word & (2**self.bits - 1)).astype(jnp.int32)

    def reward(self, state, batch, *, value=None):
        visits = state.counts[self._slots(state, batch)]
        return jnp.maximum(visits, 1.0) ** -jnp.asarray(self.power)

    def update(self, state, batch, key):
        counts = state.counts.at[self._slots(state, batch)].add(1.0)
        return state._replace(counts=counts), {"hashed/used": jnp.mean(counts > 0)}

    def _slots(self, state, batch) -> Int[Array, "*b"]:
        return trees.over_leading(lambda obs: self.slot(state, obs), batch.reward.ndim)(getattr(batch, self.on))


def flat(part: PyTree) -> Float[Array, " features"]:
    """An observation as one vector of numbers, as they are."""
    return jnp.concatenate([jnp.asarray(x, float).reshape(-1) for x in jax.tree.leaves(part)])
