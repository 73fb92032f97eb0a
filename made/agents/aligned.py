"""Layers and rows in multiples of eight, as products in bfloat16 on a GPU need them.

Where a side of a product is none, its operands are padded by the compiler, in kernels of their own and in every step of
a loop: of the 3,068 kernels of an update of Dreamer on an H200, on 50 windows with states of 30 numbers, 745 padded.
Here it is done once, ahead of the loop.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from made.agents.dreamer_nets import Dense
from made.nets import EVEN


def side_of(dtype: Any) -> int:
    """What sides are to be multiples of."""
    return EVEN if jax.default_backend() != "cpu" and jnp.dtype(dtype) == jnp.bfloat16 else 1


class Typed(eqx.Module):
    """A layer with its weights in the type that products are computed in, zeros added to fill up their sides."""

    weight: Float[Array, "i+ o+"]
    bias: Float[Array, " o"]

    @classmethod
    def of(cls, layer: Dense, dtype: Any) -> "Typed":
        """The same layer."""
        return cls(filled_up(filled_up(layer.weight.astype(dtype), dtype, 0), dtype, 1), layer.bias)

    def __call__(self, x: Float[Array, "*b i"], dtype: Any = None) -> Float[Array, "*b o"]:
        """x W + b; `dtype` is known already."""
        del dtype
        x = filled_up(x.astype(self.weight.dtype), self.weight.dtype, x.ndim - 1)
        return (x @ self.weight).astype(jnp.float32)[..., : self.bias.size] + self.bias


def typed(tree: PyTree, dtype: Any) -> Any:
    """Every layer within as a `Typed` one."""
    is_layer = lambda x: isinstance(x, Dense)  # noqa: E731
    return jax.tree.map(lambda x: Typed.of(x, dtype) if is_layer(x) else x, tree, is_leaf=is_layer)


def filled_up(tree: PyTree, dtype: Any, axis: int) -> Any:
    """Arrays with zeros after their last rows along an axis, up to the next multiple."""
    side = side_of(dtype)

    def fill(x: Array) -> Array:
        more = -x.shape[axis] % side
        return jnp.pad(x, [(0, more if i == axis else 0) for i in range(x.ndim)]) if more else x

    return jax.tree.map(fill, tree)
