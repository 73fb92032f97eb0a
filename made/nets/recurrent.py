"""LSTM and GRU over unrolls with resets, and the scan that they use, which computes weight gradients after the loop.

Plain differentiation computes the gradient of every layer's weights in each step, a matmul too small for a GPU, and
adds it up. But the gradient of the weights w of a part f is a sum over steps,

    dL/dw = sum_t g_t df(x_t; w)/dw,    x_t the inputs of the part, g_t the gradient of its outputs,

which is one matmul over all steps once all x_t and g_t are known. A recurrent layer also projects the inputs of all
steps in one matmul before the loop, so only h_t-1 @ U runs step by step.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from made.core import trees

GATES = {"lstm": 4, "gru": 3}
Carry = tuple[Array, ...]  # (h, c) of an LSTM, (h,) of a GRU

Parts = Sequence[Callable]  # pytrees that are called with arrays


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def scan_deferred_grad(
    step: Callable, at_a_time: int, parts: Parts, fixed: PyTree, start: PyTree, given: PyTree
) -> Any:
    """`jax.lax.scan` of step(parts, fixed, carry, x) -> (carry, out), unrolled `at_a_time` steps.

    A step calls each part exactly once. `fixed` gets no gradient, and a step must close over nothing that needs one.
    """
    return jax.lax.scan(functools.partial(step, parts, fixed), start, given, unroll=at_a_time)


def _scan_forward(
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


def _scan_backward(
    step: Callable, at_a_time: int, kept: tuple[Callable, list[Any], Parts], grads: PyTree
) -> tuple[Any, ...]:
    back, seen, parts = kept
    by_start, by_given, by_taps = back(grads)

    def of(part: Callable, inputs: tuple[Array, ...], grad: PyTree) -> PyTree:
        # Keys are used a second time for the same samples, and a vmap leaves those of threefry keys unchanged.
        at_once = all("threefry" in str(jax.random.key_impl(x)) for x in jax.tree.leaves(inputs) if trees.is_key(x))
        inputs = jax.tree.map(lambda x: jax.random.clone(x) if trees.is_key(x) else x, inputs)
        one = lambda part: lambda x: part(*x)  # noqa: E731
        every = lambda part: jax.vmap(one(part))(inputs) if at_once else jax.lax.map(one(part), inputs)  # noqa: E731
        return jax.vjp(every, part)[1](grad)[0]

    by_parts = [of(*each) for each in zip(parts, seen, by_taps, strict=True)]
    return type(parts)(by_parts), None, by_start, by_given  # type: ignore[call-arg]


scan_deferred_grad.defvjp(_scan_forward, _scan_backward)


class Recurrent(eqx.Module):
    """One recurrent layer; biases and input weights in one product.

    lstm:  i, f, g, o = W x + U h + b;   c' = sigmoid(f) c + sigmoid(i) tanh(g);   h' = sigmoid(o) tanh(c')
    gru:   r, z from W x + U h + b;   n = tanh(W_n x + b_n + r (U_n h));   h' = (1 - z) n + z h
    """

    inputs: Float[Array, "i g"]
    bias: Float[Array, " g"]
    weights: Float[Array, "h g"]
    kind: str = eqx.field(static=True)

    def __init__(self, kind: str, inputs: int, width: int, *, key: Key[Array, ""]):
        if kind not in GATES:
            raise ValueError(f"Recurrent comes as {' or '.join(map(repr, GATES))}, got {kind!r}.")
        k_inputs, k_weights = jax.random.split(key)
        gates, bound = GATES[kind] * width, width**-0.5
        self.inputs = jax.random.uniform(k_inputs, (inputs, gates), minval=-bound, maxval=bound)
        self.weights = jax.random.uniform(k_weights, (width, gates), minval=-bound, maxval=bound)
        self.bias, self.kind = jnp.zeros(gates), kind

    def blank(self) -> Carry:
        """The carry at the start of an episode."""
        return (jnp.zeros(self.weights.shape[0]),) * (2 if self.kind == "lstm" else 1)

    def step(self, carry: Carry, x: Float[Array, "*b i"]) -> Carry:
        """One step, for any leading axes; the output is the first part of the carry."""
        return cell(self.kind, self.weights, x @ self.inputs + self.bias, carry)

    def unroll(self, carry: Carry, xs: Float[Array, "T N i"], fresh: Bool[Array, "T N"]) -> tuple[Carry, Array]:
        """(last carry, outputs [T, N, h]); the carry is blank before a step where `fresh`: an episode begins."""
        return unrolled(self.kind, self.weights, xs @ self.inputs + self.bias, carry, fresh)

    def carries(self, carry: Carry, xs: Float[Array, "T N i"], fresh: Bool[Array, "T N"]) -> Carry:
        """The carry after every step of an unroll, leaves [T, N, h]; for values alone, not for gradients."""

        def step(carry, x):
            projected, fresh = x
            carry = tuple(jnp.where(fresh[:, None], 0.0, part) for part in carry)
            carry = cell(self.kind, self.weights, projected, carry)
            return carry, carry

        return jax.lax.scan(step, carry, (xs @ self.inputs + self.bias, fresh))[1]


def cell(kind: str, weights: Array, projected: Array, carry: Carry, nudge: Array | float = 0.0) -> Carry:
    """The next carry, from the inputs already multiplied with their weights. `nudge` is added to h @ weights."""
    h, mixed = carry[0], carry[0] @ weights + nudge
    if kind == "lstm":
        i, f, g, o = jnp.split(projected + mixed, 4, -1)
        c = jax.nn.sigmoid(f) * carry[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c
    (r, z, n), (r_h, z_h, n_h) = jnp.split(projected, 3, -1), jnp.split(mixed, 3, -1)
    z = jax.nn.sigmoid(z + z_h)
    return ((1 - z) * jnp.tanh(n + jax.nn.sigmoid(r + r_h) * n_h) + z * h,)


def steps(kind: str, weights: Array, projected: Array, carry: Carry, fresh: Array, nudge: Array) -> tuple[Carry, Array]:
    """The plain loop: what `unrolled` computes, and differentiates in its own way."""

    def step(carry, x):
        projected, fresh, nudge = x
        carry = tuple(jnp.where(fresh[:, None], 0.0, part) for part in carry)
        carry = cell(kind, weights, projected, carry, nudge)
        return carry, carry[0]

    return jax.lax.scan(step, carry, (projected, fresh, nudge))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def unrolled(kind: str, weights: Array, projected: Array, carry: Carry, fresh: Array) -> tuple[Carry, Array]:
    """(last carry, outputs [T, N, h]) of a recurrent layer, from its inputs multiplied beforehand.

    The gradient of the weights is sum_t h_t-1^T nudge_t, with nudge_t the gradient of h_t-1 @ weights.
    """
    return steps(kind, weights, projected, carry, fresh, jnp.zeros_like(projected))


def _unrolled_forward(kind, weights, projected, carry, fresh):
    loop = lambda projected, carry, nudge: steps(kind, weights, projected, carry, fresh, nudge)  # noqa: E731
    out, pull = jax.vjp(loop, projected, carry, jnp.zeros_like(projected))
    before = jnp.concatenate([carry[0][None], out[1][:-1]])
    before = jnp.where(fresh[..., None], 0.0, before)
    return out, (pull, weights, before)


def _unrolled_backward(kind, kept, gradient):
    pull, weights, before = kept
    projected, carry, nudge = pull(gradient)
    of_weights = jnp.einsum("tnh,tng->hg", before, nudge).astype(weights.dtype)
    return of_weights, projected, carry, None


unrolled.defvjp(_unrolled_forward, _unrolled_backward)
