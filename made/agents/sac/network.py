"""The networks of RAD and SAC: an encoder of pixels, a tanh-normal actor, two Q functions.

They work on batches, channels last, the layout that convolutions on a GPU prefer. Parameters are float32. The encoder
may work in bfloat16, whose products nearly all of the time goes into; what comes after it, and all sums, stay float32.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, UInt8

from made.core import Space, Spec
from made.core.config import COUNT, check_numbers
from made.nets.distributions import TanhNormal
from made.nets.fast_conv import KERNEL, STRIDES, in_blocks, plain, reads_blocks, side_after
from made.nets.layers import MLP, Dense, check_precision, orthogonal_dense, orthonormal

LOG_STD = (-10.0, 2.0)


class Layout(eqx.Module):
    """Sizes of the networks; the defaults are those of the release for pixels.

    encoder "pixels": four convolutions 3x3, a dense layer to `features`, layer norm, tanh. "state": none, the heads
    read the vector as it is. `width` and `depth` are those of the heads' hidden layers.
    """

    encoder: str = eqx.field(static=True, default="pixels")
    channels: int = eqx.field(static=True, default=32)
    features: int = eqx.field(static=True, default=50)
    width: int = eqx.field(static=True, default=1024)
    depth: int = eqx.field(static=True, default=2)
    crop: int = eqx.field(static=True, default=84)  # pixels a side of what the encoder sees
    precision: str = eqx.field(static=True, default="float32")  # or "bfloat16": of the encoder

    def __check_init__(self):
        check_numbers(self, {COUNT: ("channels", "features", "width", "depth", "crop")})
        check_precision(self)
        if self.encoder not in ("pixels", "state"):
            raise ValueError(f"Layout takes encoder='pixels' or 'state', got encoder={self.encoder!r}.")


@jax.custom_vjp
def rounded_product(x: Float[Array, "b i"], weight: Float[Array, "i o"]) -> Float[Array, "b o"]:
    """x W with W as x's type, added up and given in float32; so are its slopes, of what comes back as x's type.

    Left to itself, JAX would multiply a float32 slope by the rounded factors: as slow as float32, and no more exact.
    """
    return jnp.matmul(x, weight.astype(x.dtype), preferred_element_type=jnp.float32)


def _product_and_factors(x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    return rounded_product(x, weight), (x, weight)


def _slopes(factors: tuple[Array, Array], grad: Array) -> tuple[Array, Array]:
    x, weight = factors
    grad = grad.astype(x.dtype)
    return grad @ weight.astype(x.dtype).T, jnp.matmul(x.T, grad, preferred_element_type=jnp.float32)


rounded_product.defvjp(_product_and_factors, _slopes)


class Convolutions(eqx.Module):
    """Convolutions 3x3 with strides 2, 1, 1, 1 and a relu after each, flattened; bytes in, as shares of 255.

    On a GPU they come out block by block, for a `Trunk` to read.

    The 255 divides the first weights in place of the pixels: bytes are exact in bfloat16, their shares are not.
    """

    weights: tuple[Float[Array, "k k i o"], ...]
    biases: tuple[Float[Array, " o"], ...]

    def __init__(self, inputs: int, layout: Layout, *, key: Key[Array, ""]):
        shapes = [(KERNEL, KERNEL, inputs if i == 0 else layout.channels, layout.channels) for i in range(len(STRIDES))]
        keys = jax.random.split(key, len(STRIDES))
        gain = math.sqrt(2.0)  # of a relu
        self.weights = tuple(
            gain * orthonormal(k, (math.prod(shape[:3]), shape[3])).reshape(shape)
            for shape, k in zip(shapes, keys, strict=True)
        )
        self.biases = tuple(jnp.zeros(layout.channels) for _ in STRIDES)

    def __call__(self, images: UInt8[Array, "b h w c"], dtype: Any) -> Float[Array, "b n"]:
        convolved = in_blocks if blockwise() else plain
        x = convolved(images, (self.weights[0] / 255, *self.weights[1:]), self.biases, dtype)
        return x.reshape(x.shape[0], -1)


def blockwise() -> bool:
    """Whether features are those of blocks of four pixels, as a GPU is fast at, or pixel by pixel."""
    return jax.default_backend() != "cpu"


class Trunk(eqx.Module):
    """What an actor or a critic makes of the convolutions for itself: a dense layer, layer norm, tanh.

    Its weights are those of pixels on any device, so that a state may go from one to another.
    """

    dense: Dense
    scale: Float[Array, " features"]
    shift: Float[Array, " features"]
    side: int = eqx.field(static=True)  # of what it reads, in pixels

    def __init__(self, layout: Layout, *, key: Key[Array, ""]):
        self.side = side_after(layout.crop)
        self.dense = orthogonal_dense(self.side**2 * layout.channels, layout.features, key)
        self.scale, self.shift = jnp.ones(layout.features), jnp.zeros(layout.features)

    def __call__(self, x: Float[Array, "b n"], dtype: Any) -> Float[Array, "b features"]:
        weight, bias = self.dense.weight, self.dense.bias
        if blockwise():
            weight = reads_blocks(weight, self.side, self.side)
        x = (x @ weight if dtype == jnp.float32 else rounded_product(x.astype(dtype), weight)) + bias
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        return jnp.tanh(self.scale * x + self.shift)


class Actor(eqx.Module):
    """pi(a | s): the mean and the logarithm of the deviation of a tanh-normal."""

    trunk: Trunk | None
    head: MLP

    def __call__(self, seen: Float[Array, "b n"], dtype: Any) -> TanhNormal:
        x = seen if self.trunk is None else self.trunk(seen, dtype)
        mean, log_std = jnp.split(self.head(x), 2, -1)
        low, high = LOG_STD
        log_std = low + 0.5 * (high - low) * (jnp.tanh(log_std) + 1)
        return TanhNormal(mean, jnp.exp(log_std), log_std)


class Critic(eqx.Module):
    """Q_1 and Q_2 of (s, a). They share the convolutions, which are the actor's too, and the trunk."""

    convolutions: Convolutions | None
    trunk: Trunk | None
    heads: tuple[MLP, MLP]

    def see(self, obs: Array, dtype: Any) -> Float[Array, "b n"]:
        """What actor and critic start from: the features of the convolutions, or the vector itself."""
        return obs.astype(jnp.float32) if self.convolutions is None else self.convolutions(obs, dtype)

    def values(self, seen: Float[Array, "b n"], action: Float[Array, "b a"], dtype: Any) -> Float[Array, "2 b"]:
        """Q_1 and Q_2 of what was seen."""
        x = seen if self.trunk is None else self.trunk(seen, dtype)
        x = jnp.concatenate([x, action], -1)
        return jnp.stack([head(x)[..., 0] for head in self.heads])


def networks(layout: Layout, spec: Spec, key: Key[Array, ""]) -> tuple[Critic, Actor]:
    """A critic and an actor for an environment with one observation and actions within [-1, 1]."""
    obs, actions = checked(layout, spec)
    k_conv, k_critic, k_actor, *k_heads = jax.random.split(key, 6)
    convolutions, trunks, inputs = None, (None, None), math.prod(obs.shape)
    if layout.encoder == "pixels":
        convolutions = Convolutions(obs.shape[-1], layout, key=k_conv)
        trunks, inputs = tuple(Trunk(layout, key=k) for k in (k_critic, k_actor)), layout.features
    hidden = [layout.width] * layout.depth
    sizes = (inputs + actions, *hidden, 1), (inputs + actions, *hidden, 1), (inputs, *hidden, 2 * actions)
    first, second, actor = (MLP(x, key=k, layer=orthogonal_dense) for x, k in zip(sizes, k_heads, strict=True))
    return Critic(convolutions, trunks[0], (first, second)), Actor(trunks[1], actor)


def checked(layout: Layout, spec: Spec) -> tuple[Space, int]:
    """(the space of observations, how many numbers an action has); a clear refusal of what these nets cannot take."""
    obs, action = spec.obs, spec.action
    if action.n is not None or len(action.shape) != 1 or (action.low, action.high) != (-1.0, 1.0):
        raise ValueError(
            f"RAD chooses vectors within [-1, 1], but the actions are {action}. Rescale them to [-1, 1], or use an "
            "agent for discrete ones."
        )
    if layout.encoder == "state":
        if not isinstance(obs, Space) or len(obs.shape) != 1 or not jnp.issubdtype(obs.dtype, jnp.floating):
            raise ValueError(
                f"encoder='state' reads one vector of reals, but the observations are {obs}. Flatten them, or use "
                "encoder='pixels' for images."
            )
        return obs, action.shape[0]
    image = isinstance(obs, Space) and len(obs.shape) == 3 and jnp.dtype(obs.dtype) == jnp.uint8
    if not image or min(obs.shape[:2]) < layout.crop or layout.crop < 15:
        raise ValueError(
            f"encoder='pixels' reads images [h, w, c] of bytes, cropped to crop={layout.crop} (15 at least) pixels a "
            f"side, but the observations are {obs}. Render larger images, set crop, or use encoder='state' for vectors."
        )
    return obs, action.shape[0]
