"""LSTM and GRU over whole unrolls, with resets where episodes begin.

The inputs of all steps are projected in one matmul before the loop, and the gradient of the recurrent weights is one
matmul after it, so only h_t-1 @ W runs step by step.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

GATES = {"lstm": 4, "gru": 3}
Carry = tuple[Array, ...]  # (h, c) of an LSTM, (h,) of a GRU


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

    def unroll(
        self, carry: Carry, xs: Float[Array, "T N i"], fresh: Bool[Array, "T N"]
    ) -> tuple[Carry, Float[Array, "T N h"]]:
        """All steps of an unroll; where `fresh`, an episode begins and the carry is blank before the step."""
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

    Differentiating the loop would add up the gradient of the weights anew at each step, reading and writing all of it
    every time. The weights meet the loop in h_t-1 @ weights alone, so their gradient is sum_t h_t-1^T nudge_t with
    nudge_t the gradient of that product: one matrix product over all steps at once.
    """
    return steps(kind, weights, projected, carry, fresh, _no_nudge(projected))


def _no_nudge(projected: Array) -> Array:
    return jnp.zeros_like(projected)


def _forward(kind, weights, projected, carry, fresh):
    loop = lambda projected, carry, nudge: steps(kind, weights, projected, carry, fresh, nudge)  # noqa: E731
    out, pull = jax.vjp(loop, projected, carry, _no_nudge(projected))
    before = jnp.concatenate([carry[0][None], out[1][:-1]])
    before = jnp.where(fresh[..., None], 0.0, before)
    return out, (pull, weights, before)


def _backward(kind, kept, gradient):
    pull, weights, before = kept
    projected, carry, nudge = pull(gradient)
    of_weights = jnp.einsum("tnh,tng->hg", before, nudge).astype(weights.dtype)
    return of_weights, projected, carry, None


unrolled.defvjp(_forward, _backward)
