"""How many distinct states a run has visited, in 16 KiB however many they are."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from made import trees, views
from made.watch import Watch


class Coverage(Watch):
    """An estimate of the number of distinct states visited so far (HyperLogLog, Flajolet et al., 2007).

    A state is told by the part `hash` of the observation where there is one, else by all that is observed. Half of
    its 64 bits choose a register; the register keeps the longest run of leading zeros that the other half showed.
    The standard error is 1.04 / sqrt(registers): 0.8 % with 2^14 of them.
    """

    bits: int = eqx.field(static=True, default=14)  # 2^bits registers

    def __check_init__(self):
        if not 4 <= self.bits <= 30:
            raise ValueError(f"Coverage has 2^bits registers with 4 <= bits <= 30, got bits={self.bits}: 14 is usual.")

    def init(self, key, spec):
        return jnp.zeros(2**self.bits, jnp.uint8)

    def update(self, seen, batch, k):
        digest = trees.over_leading(lambda obs: views.key_of(obs, ""), batch.reward.ndim)(batch.next_obs)
        flat = digest.reshape(-1, 2)
        register = (flat[:, 0] & (2**self.bits - 1)).astype(jnp.int32)
        return seen.at[register].max((jax.lax.clz(flat[:, 1]) + 1).astype(jnp.uint8))

    def read(self, seen, scene):
        return {"coverage": distinct(seen)}


def distinct(registers: Array) -> Float[Array, ""]:
    """The number that registers stand for. Where many are empty, counting the empty ones is the better estimate."""
    m = registers.size
    raw = 0.7213 / (1 + 1.079 / m) * m**2 / jnp.sum(2.0 ** -registers.astype(float))
    empty = jnp.sum(registers == 0)
    few = m * jnp.log(m / jnp.maximum(empty, 1))
    return jnp.where((raw <= 2.5 * m) & (empty > 0), few, raw)
