"""A scan over time that computes weight gradients after the loop, and dense layers padded for fast matmuls.

Plain differentiation computes the gradient of every layer's weights in each step, a matmul too small for a GPU, and
adds it up. But the gradient of the weights w of a part f is a sum over steps,

    dL/dw = sum_t g_t df(x_t; w)/dw,    x_t the inputs of the part, g_t the gradient of its outputs,

which is one matmul over all steps once all x_t and g_t are known.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from made.core import trees
from made.nets.layers import EVEN, Dense


def padded_size(dtype: Any) -> int:
    """The number that the sides of a matmul should be multiples of."""
    return EVEN if jax.default_backend() != "cpu" and jnp.dtype(dtype) == jnp.bfloat16 else 1


class PaddedDense(eqx.Module):
    """A dense layer with its weights cast once and padded with zeros, for use within a loop."""

    weight: Float[Array, "i+ o+"]
    bias: Float[Array, " o"]

    @classmethod
    def of(cls, layer: Dense, dtype: Any) -> "PaddedDense":
        """The same layer."""
        return cls(pad_axis(pad_axis(layer.weight.astype(dtype), dtype, 0), dtype, 1), layer.bias)

    def __call__(self, x: Float[Array, "*b i"], dtype: Any = None) -> Float[Array, "*b o"]:
        """x W + b; the weights have their dtype already."""
        del dtype
        x = pad_axis(x.astype(self.weight.dtype), self.weight.dtype, x.ndim - 1)
        return (x @ self.weight).astype(jnp.float32)[..., : self.bias.size] + self.bias


def padded_dense(tree: PyTree, dtype: Any) -> Any:
    """The tree with every `Dense` as a `PaddedDense`."""
    is_layer = lambda x: isinstance(x, Dense)  # noqa: E731
    return jax.tree.map(lambda x: PaddedDense.of(x, dtype) if is_layer(x) else x, tree, is_leaf=is_layer)


def pad_axis(tree: PyTree, dtype: Any, axis: int) -> Any:
    """Arrays padded with zeros along an axis, up to the next multiple of `padded_size`."""
    side = padded_size(dtype)

    def fill(x: Array) -> Array:
        more = -x.shape[axis] % side
        return jnp.pad(x, [(0, more if i == axis else 0) for i in range(x.ndim)]) if more else x

    return jax.tree.map(fill, tree)


Parts = Sequence[Callable]  # pytrees that are called with arrays


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def scan_deferred_grad(
    step: Callable, at_a_time: int, parts: Parts, fixed: PyTree, start: PyTree, given: PyTree
) -> Any:
    """`jax.lax.scan` of step(parts, fixed, carry, x) -> (carry, out), unrolled `at_a_time` steps.

    A step calls each part exactly once. `fixed` gets no gradient, and a step must close over nothing that needs one.
    """
    return jax.lax.scan(functools.partial(step, parts, fixed), start, given, unroll=at_a_time)


def _forward(
    step: Callable, at_a_time: int, parts: Parts, fixed: PyTree, start: PyTree, given: PyTree
) -> tuple[Any, tuple[Callable, list[Any], Parts]]:
    """The forward pass. Zeros are added to the outputs of each part, so that their cotangents can be read."""
    fixed, steps = jax.lax.stop_gradient(fixed), jax.tree.leaves(given)[0].shape[0]

    def tapped(carry: PyTree, x: tuple[PyTree, Any]) -> tuple[PyTree, Any]:
        seen, gave = [()] * len(parts), [()] * len(parts)

        def call(i: int, *inputs: Array) -> PyTree:
            calls[i] += 1
            seen[i], gave[i] = inputs, parts[i](*inputs)  # type: ignore[call-overload]
            return gave[i] if x[1] is None else jax.tree.map(jnp.add, gave[i], x[1][i])

        calls = [0] * len(parts)
        carry, out = step([functools.partial(call, i) for i in range(len(parts))], fixed, carry, x[0])
        if calls != [1] * len(parts):
            raise ValueError(f"A step of scan_deferred_grad calls each part once, but this one makes {calls} calls.")
        return carry, (out, seen, gave)

    shapes = jax.eval_shape(lambda: tapped(start, (jax.tree.map(lambda x: x[0], given), None))[1][2])
    zeros = jax.tree.map(lambda x: jnp.zeros((steps, *x.shape), x.dtype), shapes)

    def run(start: PyTree, given: PyTree, taps: PyTree) -> tuple[Any, list[Any]]:
        last, (outs, seen, _) = jax.lax.scan(tapped, start, (given, taps), unroll=at_a_time)
        return (last, outs), seen

    answer, back, seen = jax.vjp(run, start, given, zeros, has_aux=True)
    return answer, (back, seen, parts)


def _backward(
    step: Callable, at_a_time: int, kept: tuple[Callable, list[Any], Parts], grads: PyTree
) -> tuple[Any, ...]:
    back, seen, parts = kept
    by_start, by_given, by_taps = back(grads)

    def of(part: Callable, inputs: tuple[Array, ...], grad: PyTree) -> PyTree:
        at_once = all(map(_same_under_vmap, jax.tree.leaves(inputs)))
        inputs = jax.tree.map(_again, inputs)
        one = lambda part: lambda x: part(*x)  # noqa: E731
        every = lambda part: jax.vmap(one(part))(inputs) if at_once else jax.lax.map(one(part), inputs)  # noqa: E731
        return jax.vjp(every, part)[1](grad)[0]

    by_parts = [of(*each) for each in zip(parts, seen, by_taps, strict=True)]
    return type(parts)(by_parts), None, by_start, by_given  # type: ignore[call-arg]


scan_deferred_grad.defvjp(_forward, _backward)


def _again(x: Array) -> Array:
    """A copy of a key, which is used a second time for the same samples; anything else as it is."""
    return jax.random.clone(x) if trees.is_key(x) else x


def _same_under_vmap(x: Array) -> bool:
    """Whether a vmap leaves the samples of a key unchanged: only with threefry keys."""
    return not trees.is_key(x) or str(jax.random.key_impl(x)) == "threefry2x32"
