"""The network of IMPALA and PPO: convolutions, dense layers, a recurrent core, heads for the policy and the values.

Everything takes any leading axes, so an unroll of many environments is a few large matmuls. Convolutions are slices
and a matmul too: under a `vmap` over runs with their own weights, a grouped convolution would be slow.
"""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from made.core import Space, Spec, Transition, dict_obs, trees
from made.core.config import COUNT, check_numbers
from made.nets.layers import Dense, as_vector, check_precision, orthogonal_dense
from made.nets.recurrent import GATES, Carry, Recurrent

KERNEL = 3
Carries = tuple[Carry, ...]  # of all recurrent layers
GAIN = math.sqrt(2)  # of the initial weights before a ReLU, as in RIDE's code


class Patches(eqx.Module):
    """A 3 x 3 convolution with padding 1, as nine shifted images concatenated and one matmul."""

    dense: Dense
    stride: int = eqx.field(static=True)

    def __call__(self, image: Float[Array, "*b w h c"]) -> Float[Array, "*b w2 h2 o"]:
        w, h, s = *image.shape[-3:-1], self.stride
        padded = jnp.pad(image, [*[(0, 0)] * (image.ndim - 3), (1, 1), (1, 1), (0, 0)])
        shifted = [padded[..., i : i + w : s, j : j + h : s, :] for i in range(KERNEL) for j in range(KERNEL)]
        return self.dense(jnp.concatenate(shifted, -1))


class Layout(eqx.Module):
    """The shape of a network. `memory` is "lstm", "gru" or "" for none.

    `inputs` is "symbols" for grids, whose values are not scaled, as in RIDE's and NovelD's code, and "pixels" for
    images, divided by 255. `precision` is that of the matmuls; the parameters stay float32.
    """

    channels: tuple[int, ...] = eqx.field(static=True, default=(16, 32, 32))
    strides: tuple[int, ...] = eqx.field(static=True, default=(1, 2, 2))
    dense: tuple[int, ...] = eqx.field(static=True, default=(128,))
    memory: str = eqx.field(static=True, default="gru")
    width: int = eqx.field(static=True, default=128)
    layers: int = eqx.field(static=True, default=1)
    inputs: str = eqx.field(static=True, default="symbols")
    precision: str = eqx.field(static=True, default="float32")

    def __check_init__(self):
        check_numbers(self, {COUNT: ("width", "layers")})
        sizes = (*self.channels, *self.strides, *self.dense)
        if len(self.channels) != len(self.strides) or not self.dense or min(sizes) < 1:
            raise ValueError(
                "Layout takes sizes of at least 1: a stride for each convolution, and one dense layer or more. Got "
                f"channels={self.channels}, strides={self.strides}, dense={self.dense}."
            )
        if self.memory not in ("", *GATES) or self.inputs not in ("symbols", "pixels"):
            raise ValueError(
                f"Layout takes memory='lstm', 'gru' or '' and inputs='symbols' or 'pixels'; got "
                f"memory={self.memory!r}, inputs={self.inputs!r}."
            )
        check_precision(self)

    def blank(self) -> Carries:
        """The recurrent state at the start of an episode, one part for each layer."""
        parts = {"lstm": 2, "gru": 1}.get(self.memory, 0)
        return tuple((jnp.zeros(self.width),) * parts for _ in range(self.layers if parts else 0))


LAYOUTS = {
    "small": Layout((16, 32), (2, 2)),  # for CPUs: 140,000 multiplications a frame; Layout() has 246,000
    "mid": Layout((32, 64), (2, 2), (256,), "lstm", 256),
    "ride": Layout((32, 32, 32), (2, 2, 2), (1024, 1024), "lstm", 1024, 2),
    "noveld": Layout((32, 128, 512), (1, 2, 2), (1024, 1024), "lstm", 1024, 2),
}
# The same with a dense layer of the same width for the recurrent core.
LAYOUTS |= {f"{name}-ff": Layout(x.channels, x.strides, (*x.dense, x.width), "") for name, x in LAYOUTS.items()}


class PolicyNet(eqx.Module):
    """pi(a | o) and one value or two, with memory."""

    convolutions: tuple[tuple[Patches, ...], ...]  # one stack for each image of the observation
    dense: tuple[Dense, ...]
    core: tuple[Recurrent, ...]
    policy: Dense
    value: Dense
    layout: Layout = eqx.field(static=True)
    spaces: tuple[Space, ...] = eqx.field(static=True)
    action: Space = eqx.field(static=True)
    goal: Space | None = eqx.field(static=True)
    view: str = eqx.field(static=True)

    def __init__(self, layout: Layout, spec: Spec, heads: int, view: str, *, key: Key[Array, ""]):
        self.layout, self.action, self.goal, self.view = layout, spec.action, spec.goal, view
        is_space, looked_at = lambda x: isinstance(x, Space), dict_obs.looked_at(spec.obs, view)
        self.spaces = tuple(jax.tree.leaves(looked_at, is_leaf=is_space))
        k_conv, k_dense, k_core, k_policy, k_value = jax.random.split(key, 5)
        images = [space for space in self.spaces if is_image(space)]
        keys = jax.random.split(k_conv, max(len(images), 1))
        self.convolutions = tuple(self._stack(space, k) for space, k in zip(images, keys, strict=False))
        blank = lambda tree: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree, is_leaf=is_space)  # noqa: E731
        sizes = (jax.eval_shape(lambda: self._inputs(blank(spec.obs), blank(spec.goal))).size, *layout.dense)
        self.dense = _dense(sizes, k_dense)
        top, layers = layout.dense[-1], layout.layers if layout.memory else 0
        sizes = (top, *[layout.width] * layers)
        keys = jax.random.split(k_core, max(layers, 1))
        self.core = tuple(
            Recurrent(layout.memory, i, layout.width, key=k) for i, k in zip(sizes[:-1], keys, strict=False)
        )
        self.policy = orthogonal_dense(sizes[-1], math.prod(spec.action.shape) * (spec.action.n or 1), k_policy)
        self.value = orthogonal_dense(sizes[-1], heads, k_value)

    def _stack(self, space: Space, key: Key[Array, ""]) -> tuple[Patches, ...]:
        sizes = (space.shape[-1] + self._on_image(space), *self.layout.channels)
        return tuple(Patches(d, s) for d, s in zip(_dense(sizes, key, KERNEL**2), self.layout.strides, strict=True))

    def _on_image(self, space: Space) -> bool:
        """Whether the goal is a cell of this image: then it is one more channel."""
        return is_image(space) and self.goal is not None and self.goal.n == math.prod(space.shape[:2])

    def _inputs(self, obs: PyTree, goal: PyTree) -> Float[Array, "*b i"]:
        """All parts of an observation and the goal as one vector."""
        parts, stacks = [], iter(self.convolutions)
        for space, x in zip(self.spaces, jax.tree.leaves(dict_obs.looked_at(obs, self.view)), strict=True):
            parts.append(self._image(x, space, goal, next(stacks)) if is_image(space) else _vector(x, space))
        if self.goal is not None and not any(map(self._on_image, self.spaces)):
            parts.append(_vector(goal, self.goal))
        return jnp.concatenate([part.astype(self.layout.precision) for part in parts], -1)

    def features(self, obs: PyTree, goal: PyTree) -> Float[Array, "*b f"]:
        """The output of the dense layers."""
        x = self._inputs(obs, goal)
        for layer in self.dense:
            x = jax.nn.relu(layer(x))
        return x

    def _image(self, x: Array, space: Space, goal: PyTree, stack: tuple[Patches, ...]) -> Array:
        x = x.astype(self.layout.precision) / (255.0 if self.layout.inputs == "pixels" else 1.0)
        if self._on_image(space):
            mark = jax.nn.one_hot(goal, self.goal.n, dtype=x.dtype)  # type: ignore[union-attr]
            x = jnp.concatenate([x, mark.reshape((*x.shape[:-1], 1))], -1)
        for layer in stack:
            x = jax.nn.elu(layer(x))
        return x.reshape((*x.shape[:-3], -1))

    def step(self, carry: Carries, obs: PyTree, goal: PyTree) -> tuple[Carries, Array, Array]:
        """One step: (carry, logits, values)."""
        net, after = self.cast(), []
        x = net.features(obs, goal)
        for layer, part in zip(net.core, carry, strict=True):
            part = layer.step(tuple(p.astype(x.dtype) for p in part), x)
            x = part[0]
            after.append(tuple(p.astype(jnp.float32) for p in part))
        return tuple(after), *self.heads(x)

    def unroll(
        self, carry: Carries, obs: PyTree, goal: PyTree, fresh: Bool[Array, "T N"]
    ) -> tuple[Carries, Array, Array]:
        """All steps of an unroll, leaves [T, N, ...]; the carry is reset where `fresh`."""
        net, after = self.cast(), []
        x = net.features(obs, goal)
        for layer, part in zip(net.core, carry, strict=True):
            part, x = layer.unroll(tuple(p.astype(x.dtype) for p in part), x, fresh)
            after.append(tuple(p.astype(jnp.float32) for p in part))
        return tuple(after), *self.heads(x)

    def successor_values(self, carry: Carries, batch: Transition, fresh: Bool[Array, "T N"]) -> Float[Array, "T N v"]:
        """The values of the true successors, from the recurrent states before any reset."""
        net = self.cast()
        x, ahead = net.features(batch.obs, batch.note.goal), net.features(batch.next_obs, batch.next_note.goal)
        for layer, part in zip(net.core, carry, strict=True):
            after = layer.carries(tuple(p.astype(x.dtype) for p in part), x, fresh)
            x, ahead = after[0], layer.step(after, ahead)[0]
        return self.heads(ahead)[1]

    def heads(self, x: Float[Array, "*b f"]) -> tuple[Array, Array]:
        """(logits, values), in full precision."""
        x = x.astype(jnp.float32)
        return self.policy(x), self.value(x)

    def cast(self) -> "PolicyNet":
        """The same network with parameters in the precision of its matmuls; the heads stay in float32."""
        if self.layout.precision == "float32":
            return self
        body = lambda net: (net.convolutions, net.dense, net.core)  # noqa: E731
        return eqx.tree_at(body, self, jax.tree.map(lambda x: x.astype(self.layout.precision), body(self)))


def is_image(space: Space) -> bool:
    """Whether a leaf is an image [w, h, c] at least as large as the kernel."""
    return space.n is None and len(space.shape) == 3 and min(space.shape[:2]) >= KERNEL


def _dense(sizes: Sequence[int], key: Key[Array, ""], taps: int = 1) -> tuple[Dense, ...]:
    keys = jax.random.split(key, max(len(sizes) - 1, 1))
    return tuple(orthogonal_dense(taps * i, o, k, GAIN) for i, o, k in zip(sizes, sizes[1:], keys, strict=False))


def _vector(x: Array, space: Space) -> Array:
    """One leaf as a vector, for any leading axes."""
    return trees.over_leading(lambda x: as_vector(x, space), x.ndim - len(space.shape))(x)
