"""The VAE of the authors' code, loss and all: what the released MADE takes for a density."""

import itertools
from collections.abc import Sequence
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from made.bonuses.densities.vae import SMALLEST_IMAGE, VAEState, add_batch, latent_metrics
from made.core import Density, LearnsFrom, ring_buffer, trees
from made.core.config import check_types
from made.nets.fast_conv import scatter_blocks
from made.nets.fit import Fit, with_prefix
from made.nets.layers import MLP, ConvNet, convolve
from made.nets.likelihood import SYMBOLS, ObservationModel, observation_model

FRAME = 3  # channels of the last frame of a stack
LARGEST_LOSS = 160.0  # of a pair: its factor, exp(80), is the last that float32 can still square


def is_image(seen: ObservationModel) -> bool:
    """Whether an observation is one image, as in the authors' code. Anything else has a dense analogue."""
    first, rest = seen.leaves[0], seen.leaves[1:]
    large = len(first.shape) == 3 and min(first.shape[:2]) >= SMALLEST_IMAGE
    return first.kind == "bytes" and large and len(rest) == 1


def last_frame(image: Array) -> Float[Array, "h w 3"]:
    """The last frame of a stack of bytes, as shares of 255."""
    return image[..., -FRAME:] / 255.0


class ReleaseDecoder(eqx.Module):
    """The released decoder: three transposed convolutions 3x3 with stride 2, a relu after each, a convolution 2x2.

    A transposed convolution makes 2n - 1 or 2n of n, so three of them invert three halvings of any size. The authors'
    layout, 13 - 26 - 51 - 101 - 100, is the case of 100 pixels.
    """

    layers: tuple[eqx.nn.ConvTranspose2d, ...]
    last: eqx.nn.Conv2d
    start: tuple[int, int, int] = eqx.field(static=True)  # channels, height, width of what comes in

    def __init__(self, shape: tuple[int, int, int], channels: Sequence[int], key: Key[Array, ""]):
        height, width, depth = shape
        keys = jax.random.split(key, 4)
        ways = [_way(n) for n in (height, width)]
        self.start = (channels[0], (height + 7) // 8, (width + 7) // 8)
        self.layers = tuple(
            eqx.nn.ConvTranspose2d(i, o, 3, 2, output_padding=(ways[0][at], ways[1][at]), padding=1, key=keys[at])
            for at, (i, o) in enumerate(itertools.pairwise(channels))
        )
        room = [(0, 1) if n % 8 == 0 else (0, 0) for n in (height, width)]  # a multiple of 8 has no larger way
        self.last = eqx.nn.Conv2d(channels[3], depth, 2, padding=room, key=keys[3])

    @property
    def size(self) -> int:
        """The number of input features."""
        channels, height, width = self.start
        return channels * height * width

    def __call__(self, x: Float[Array, " features"]) -> Float[Array, "h w c"]:
        x = jnp.moveaxis(x.reshape(self.start), 0, -1)
        for layer in self.layers:
            x = jax.nn.relu(upconv3x3(layer, x))
        return convolve(self.last, x)


def upconv3x3(layer: eqx.nn.ConvTranspose2d, x: Float[Array, "h w c"]) -> Float[Array, "i j o"]:
    """A transposed convolution 3x3 with stride 2 and padding 1 of one image, channels last."""
    (height, width, _), more = x.shape, layer.output_padding
    full = scatter_blocks(x[None], layer.weight.transpose(2, 3, 1, 0))[0]
    return full[1 : 2 * height + more[0], 1 : 2 * width + more[1]] + layer.bias.reshape(-1)  # type: ignore[union-attr]


def _way(size: int) -> tuple[int, int, int]:
    """Which of the three steps must make 2n rather than 2n - 1, to end one above the size (or at a multiple of 8)."""
    end = size if size % 8 == 0 else size + 1
    over = end - (8 * ((size + 7) // 8) - 7)
    return over // 4, over // 2 % 2, over % 2


class ReleasedNetwork(eqx.Module):
    """Convolutions 32, 64, 128 and two heads; back through 128, 64, 32 to the planes and a tanh. Dense elsewhere."""

    down: ConvNet | MLP
    mean: eqx.nn.Linear
    log_variance: eqx.nn.Linear
    back: eqx.nn.Linear
    up: ReleaseDecoder | MLP
    outline: ObservationModel = eqx.field(static=True)

    def __init__(self, outline: ObservationModel, latent: int, width: int, key: Key[Array, ""]):
        k_down, k_mean, k_log, k_back, k_up = jax.random.split(key, 5)
        self.outline = outline
        x = jax.eval_shape(lambda *pair: self.inputs(*pair), outline.blank(), outline.unseen())
        if is_image(outline):
            self.down = ConvNet((x.shape[-1], 32, 64, 128), key=k_down, strides=[2, 2, 2], padding=1)
            self.up = ReleaseDecoder(x.shape, (128, 64, 32, x.shape[-1]), k_up)
            features, start = jax.eval_shape(lambda x: self.down(x), x).shape[0], self.up.size
        else:
            self.down, self.up = MLP((x.size, width, width), key=k_down), MLP((width, width, x.size), key=k_up)
            features, start = width, width
        self.mean, self.log_variance = (eqx.nn.Linear(features, latent, key=k) for k in (k_mean, k_log))
        self.back = eqx.nn.Linear(latent, start, key=k_back)

    def inputs(self, kept: tuple[Array, ...], seen: PyTree) -> Float[Array, "..."]:
        """A stored pair: the frame with every number of the action as a plane; a plain vector where it is no image."""
        if not is_image(self.outline):
            return self.outline.show(kept, seen)
        frame, action, leaf = last_frame(kept[0]), kept[1], self.outline.leaves[1]
        numbers = leaf.show(action, ()) if leaf.kind == "values" else action.reshape(-1)
        planes = jnp.broadcast_to(numbers, (*frame.shape[:2], numbers.size))
        return jnp.concatenate([frame, planes], -1)

    def terms(self, x: Float[Array, "..."], noise: Float[Array, " latent"]) -> tuple[Array, Array]:
        """(mean squared error over all numbers of x, KL of each latent), for z = mean + deviation * noise."""
        features = self.down(x) if isinstance(self.down, ConvNet) else jax.nn.relu(self.down(x))
        mean, log_variance = self.mean(features), jnp.clip(self.log_variance(features), -14.0, 4.0)
        answer = self.up(self.back(mean + jnp.exp(0.5 * log_variance) * noise))
        if isinstance(self.up, ReleaseDecoder):
            answer = jnp.tanh(answer)
        return ((answer - x) ** 2).mean(), 0.5 * (mean**2 + jnp.exp(log_variance) - 1 - log_variance)


class ReleasedVAE(Density):
    """log d(s, a) = -ir, with ir as the authors' code has it (rad_made).

        ir(s, a) = KL(q(z | s, a) || N(0, 1)) + mean over all numbers of (x - reconstruction)^2

    x is the last frame with each number of the action as a plane, the loss is the mean of ir over 128 pairs drawn from
    the last 10,000. A mean squared error is a Gaussian likelihood of variance Dim / 2 for Dim numbers, more than the
    data vary, so the best posterior is the prior: KL -> 0 and ir -> squared distance from the mean of the window.
    Differs from the authors' code: one draw of z serves all reads between two updates, for a read is pure; ir ends at
    160. Observations that are not one image have a dense network of `width` on the vector that `VAE` sees, no tanh.
    """

    window: int = 10_000
    fit: Fit = Fit(learning_rate=1e-3, clip=1e9, steps=1, batch=128)
    capacity: int = eqx.field(static=True, default=10_000)
    latent: int = eqx.field(static=True, default=128)
    width: int = eqx.field(static=True, default=256)
    view: str = eqx.field(static=True, default="")
    symbols: tuple[int, ...] = eqx.field(static=True, default=SYMBOLS)
    learns_from: ClassVar[LearnsFrom] = "recent"

    def __check_init__(self):
        check_types(self)
        ring_buffer.check_window("ReleasedVAE", self.window, self.capacity)
        if min(self.latent, self.width, self.fit.batch) < 1:
            raise ValueError(
                f"ReleasedVAE takes latent, width and fit.batch of at least 1, got latent={self.latent}, "
                f"width={self.width}, fit.batch={self.fit.batch}."
            )

    def init(self, key, spec):
        k_net, k_noise = jax.random.split(key)
        seen = observation_model(spec, self.view, self.symbols)
        network = ReleasedNetwork(seen, self.latent, self.width, k_net)
        noise = jax.random.normal(k_noise, (self.latent,))
        return VAEState(self.fit.init(network), ring_buffer.empty(seen.blank(), self.capacity), seen.unseen(), noise)

    def log_density(self, state, batch):
        network = state.learned.params

        def one(obs, action) -> Float[Array, ""]:
            error, kl = network.terms(network.inputs(network.outline.keep(obs, action), state.seen), state.noise)
            return -jnp.minimum(error + kl.sum(), LARGEST_LOSS)

        # Along one axis whatever the batch's shape, so that the compiler sees when the same pairs are read twice.
        pairs = trees.flatten_leading((batch.obs, batch.action), batch.reward.ndim)
        return jax.vmap(one)(*pairs).reshape(batch.reward.shape)

    def update(self, state, batch, key):
        k_fit, k_noise = jax.random.split(key)
        ring, seen = add_batch(state, batch, self.window)

        def loss(network: ReleasedNetwork, items, key):
            noise = jax.random.normal(key, (self.fit.batch, self.latent))
            error, kl = jax.vmap(lambda kept, eps: network.terms(network.inputs(kept, seen), eps))(items, noise)
            return (error + kl.sum(-1)).mean(), {"reconstruction": -error.mean(), **latent_metrics(kl)}

        draw = lambda key: ring_buffer.sample(ring, self.fit.batch, key, self.window)  # noqa: E731
        learned, metrics = self.fit.fit_sampled(loss, state.learned, draw, k_fit)
        return VAEState(learned, ring, seen, jax.random.normal(k_noise, (self.latent,))), with_prefix(metrics, "vae")
