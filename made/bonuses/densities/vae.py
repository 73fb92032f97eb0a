"""A variational auto-encoder as an estimate of the recent density d^{pi_mix,k}(s, a), Section 5."""

import abc
import math
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from made.bonuses.densities.recent_counts import WindowDensity
from made.bonuses.embedding import has_convolutions
from made.core import LearnsFrom, ring_buffer, trees
from made.core.config import AT_LEAST_ZERO, COUNT, COUNT_OR_NONE, setting
from made.nets.fit import Fit, FitState, with_prefix
from made.nets.layers import MLP, Linear, convolved, to_cells, to_pixels, windows
from made.nets.likelihood import SYMBOLS, ObservationModel, observation_model

ACTIVE = 0.01  # nats: a latent with less is inactive; a posterior with less on average has collapsed
CELL = 4  # pixels a side: images are read in cells of 4 x 4 pixels, and only cells have many channels


class ImageEncoder(eqx.Module):
    """Features of an image: a dense layer for the pixels of each cell, a convolution 3x3 with stride 2."""

    layers: tuple[Linear, ...]

    def __init__(self, depth: int, channels: tuple[int, int], key: Key[Array, ""]):
        k_cell, k_around = jax.random.split(key)
        cell, features = channels
        self.layers = (Linear(CELL**2 * depth, cell, k_cell), Linear(9 * cell, features, k_around))

    def __call__(self, image: Float[Array, "h w c"]) -> Float[Array, " features"]:
        x = jax.nn.relu(self.layers[0](to_cells(image, CELL)))
        return jax.nn.relu(conv3x3(self.layers[1], x, stride=2)).reshape(-1)


class ImageDecoder(eqx.Module):
    """The inverse: a map of an eighth of the image, doubled by a convolution 3x3, another one, and the pixels of cells.

    No layer with many channels runs at full size: 11M multiplications for 84 x 84 x 9, a seventh of `ReleaseDecoder`.
    """

    layers: tuple[Linear, ...]
    shape: tuple[int, int, int] = eqx.field(static=True)
    start: tuple[int, int, int] = eqx.field(static=True)  # height, width, channels of what comes in

    def __init__(self, shape: tuple[int, int, int], channels: tuple[int, int], key: Key[Array, ""]):
        height, width, depth = shape
        keys = jax.random.split(key, 3)
        first, cell = channels
        self.shape, self.start = shape, (-(-height // (2 * CELL)), -(-width // (2 * CELL)), first)
        sizes = ((9 * first, 4 * cell), (9 * cell, cell), (cell, CELL**2 * depth))
        self.layers = tuple(Linear(i, o, k) for (i, o), k in zip(sizes, keys, strict=True))

    @property
    def size(self) -> int:
        """The number of input features."""
        return math.prod(self.start)

    def __call__(self, x: Float[Array, " features"]) -> Float[Array, "h w c"]:
        height, width, _ = self.shape
        double, mix, paint = self.layers
        x = jax.nn.relu(x.reshape(self.start))
        x = jax.nn.relu(to_pixels(conv3x3(double, x), 2))
        x = jax.nn.relu(conv3x3(mix, x))
        return to_pixels(paint(x), CELL)[:height, :width]  # crop to the image


def conv3x3(layer: Linear, x: Float[Array, "h w c"], stride: int = 1) -> Float[Array, "i j o"]:
    """A convolution 3x3 with padding 1, channels last; on a CPU as a matmul of windows, which is faster there.

    On a GPU the windows cost nine times the memory traffic.
    """
    if jax.default_backend() != "cpu":
        kernel = layer.weight.T.reshape(3, 3, x.shape[-1], -1).swapaxes(0, 1)  # windows are column-major
        return convolved(x, kernel, (stride, stride), ((1, 1), (1, 1))) + layer.bias  # type: ignore[operator]
    return layer(windows(jnp.pad(x, ((1, 1), (1, 1), (0, 0))), (3, 3), (stride, stride)))


class AutoEncoder(eqx.Module):
    """Encoder, decoder and the scales of the Gaussian leaves. Pixels go through cells (`pixels`), all else is dense."""

    encoder: MLP
    decoder: MLP
    downs: tuple[ImageEncoder | None, ...]
    ups: tuple[ImageDecoder | None, ...]
    log_scale: Float[Array, " scales"]
    outline: ObservationModel = eqx.field(static=True)

    def __init__(self, outline: ObservationModel, latent: int, width: int, key: Key[Array, ""]):
        k_in, k_out, k_down, k_up = jax.random.split(key, 4)
        self.outline = outline
        images = {i: leaf.shape for i, leaf in enumerate(outline.leaves) if has_convolutions(leaf)}
        downs = {i: ImageEncoder(x[-1], (32, 64), jax.random.fold_in(k_down, i)) for i, x in images.items()}
        ups = {i: ImageDecoder(x, (32, 32), jax.random.fold_in(k_up, i)) for i, x in images.items()}  # type: ignore
        leaves = range(len(outline.leaves))
        self.downs, self.ups = tuple(map(downs.get, leaves)), tuple(map(ups.get, leaves))
        inputs = jax.eval_shape(lambda x: self._features(x), jnp.zeros(outline.size)).shape[0]
        self.encoder = MLP((inputs, width, width, 2 * latent), key=k_in)
        self.decoder = MLP((latent, width, width, sum(self._answers())), key=k_out)
        self.log_scale = jnp.zeros(sum(leaf.scales for leaf in outline.leaves))

    def _features(self, shown: Float[Array, " size"]) -> Float[Array, " features"]:
        each = zip(self.outline.leaves, self.downs, self.outline.parts(shown), strict=True)
        return jnp.concatenate([x if down is None else down(x.reshape(leaf.shape)) for leaf, down, x in each])

    def _answers(self) -> tuple[int, ...]:
        """The number of outputs of the dense decoder for each leaf."""
        return tuple((up or leaf).size for leaf, up in zip(self.outline.leaves, self.ups, strict=True))

    def inputs(self, kept: tuple[Array, ...], seen: PyTree) -> Float[Array, " size"]:
        """A stored pair as the network sees it."""
        return self.outline.show(kept, seen)

    def decode(self, z: Float[Array, " latent"]) -> Float[Array, " size"]:
        """The outputs for a latent: logits and means, leaf after leaf."""
        parts = self.outline.parts(self.decoder(z), self._answers())
        return jnp.concatenate([x if up is None else up(x).reshape(-1) for up, x in zip(self.ups, parts, strict=True)])

    def terms(self, shown: Float[Array, " size"], noise: Float[Array, "*K latent"]) -> tuple[Array, Array]:
        """(mean log p(x | z) over the samples z = mean + std * noise, KL(q || N(0, 1)) of each latent)."""
        mean, log_deviation = jnp.split(self.encoder(self._features(shown)), 2)
        log_deviation = jnp.clip(log_deviation, -7.0, 2.0)

        def at(eps: Float[Array, " latent"]) -> Float[Array, ""]:
            answer = self.decode(mean + jnp.exp(log_deviation) * eps)
            return self.outline.log_likelihood(answer, shown, self.log_scale)

        kl = 0.5 * (mean**2 + jnp.exp(2 * log_deviation) - 1) - log_deviation
        return jax.vmap(at)(jnp.atleast_2d(noise)).mean(), kl


class VAEState(NamedTuple):
    """The network, the recent pairs it learns from, their moments, and the noise of `log_density`."""

    learned: FitState
    ring: ring_buffer.Ring
    seen: tuple[PyTree, ...]
    noise: Float[Array, "*K latent"]


class WindowVAE(WindowDensity):
    """A VAE that learns from the last `window` pairs: the settings and the update, for any network and loss."""

    window: int = 10_000
    fit: Fit = Fit(learning_rate=2e-3, steps=8, batch=128)
    capacity: int = eqx.field(static=True, default=10_000)  # buffer size; runs with smaller windows are vectorized
    latent: int = setting(32, COUNT, static=True)
    width: int = setting(128, COUNT, static=True)
    view: str = eqx.field(static=True, default="")
    symbols: tuple[int, ...] = eqx.field(static=True, default=SYMBOLS)  # (): every byte image is pixels
    network: ClassVar[type]  # of (outline, latent, width, key), with `inputs` and `terms`
    fresh: ClassVar[int]  # new pairs per learned pair; 0: always all steps
    learns_from: ClassVar[LearnsFrom] = "recent"

    def __check_init__(self):
        if self.fit.batch < 1:
            raise ValueError(f"{type(self).__name__} takes fit.batch of at least 1, got fit.batch={self.fit.batch}.")

    @abc.abstractmethod
    def loss(self, fit: Float[Array, " B"], kl: Float[Array, "B latent"]) -> Float[Array, ""]:
        """The loss of a batch from the terms of its pairs."""

    def noise(self, key: Key[Array, ""]) -> Float[Array, "*K latent"]:
        """The noise of `log_density` until the next update."""
        return jax.random.normal(key, (self.latent,))

    def init(self, key, spec):
        k_net, k_noise = jax.random.split(key)
        outline = observation_model(spec, self.view, self.symbols)
        learned = self.fit.init(self.network(outline, self.latent, self.width, k_net))
        ring = ring_buffer.empty(outline.blank(), self.capacity)
        return VAEState(learned, ring, outline.unseen(), self.noise(k_noise))

    def log_density(self, state, batch):
        network = state.learned.params

        def one(obs, action) -> Float[Array, ""]:
            fit, kl = network.terms(network.inputs(network.outline.keep(obs, action), state.seen), state.noise)
            return fit - kl.sum()

        # Along one axis whatever the batch's shape, so that the compiler sees when the same pairs are read twice.
        pairs = trees.flatten_leading((batch.obs, batch.action), batch.reward.ndim)
        return jax.vmap(one)(*pairs).reshape(batch.reward.shape)

    def update(self, state, batch, key):
        k_fit, k_noise = jax.random.split(key)
        outline = state.learned.params.outline
        kept = trees.flatten_leading(outline.keep(batch.obs, batch.action), batch.reward.ndim)
        ring, seen = ring_buffer.push(state.ring, kept, self.window)[0], outline.look(state.seen, kept)

        def loss(network, items, key):
            noise = jax.random.normal(key, (self.fit.batch, self.latent))
            fit, kl = jax.vmap(lambda kept, eps: network.terms(network.inputs(kept, seen), eps))(items, noise)
            return self.loss(fit, kl), {"reconstruction": fit.mean(), **latent_metrics(kl)}

        draw = lambda key: ring_buffer.sample(ring, self.fit.batch, key, self.window)  # noqa: E731
        learned, metrics = self.fit.after(batch.reward.size, self.fresh).fit_sampled(loss, state.learned, draw, k_fit)
        return VAEState(learned, ring, seen, self.noise(k_noise)), with_prefix(metrics, "vae")


class VAE(WindowVAE):
    """The evidence lower bound of a VAE over the last `window` pairs (s, a).

        log d(s, a)  >=  E_{z ~ q(z | s, a)} log p(s, a | z)  -  KL(q(z | s, a) || N(0, 1))

    Section 5. The likelihood is summed over entries: categorical for discrete values and symbolic grids, Gaussian with
    a learned scale for pixels and vectors (`made.nets.likelihood`). It is evaluated at the mean of q, or averaged over
    `samples` draws that stay the same between two updates, so that `log_density` is pure.
    An update makes one step per `fresh * fit.batch` new pairs, from 1 to `fit.steps`: 8 for 32 x 100.
    The loss has `free` nats of KL for each latent (Kingma et al., 2016); the density has none.
    Differs from the authors' code: theirs averages the squared error over entries, whose optimum ignores the latent.

    >>> VAE(window=500, capacity=500).fit.steps
    8
    """

    free: float = setting(0.05, AT_LEAST_ZERO)  # free nats of each latent in the loss, against early posterior collapse
    samples: int = setting(0, COUNT_OR_NONE, static=True)  # 0: at the mean of q
    fresh: int = setting(3, COUNT_OR_NONE, static=True)
    network: ClassVar[type] = AutoEncoder

    def loss(self, fit, kl):
        return jnp.maximum(kl.mean(0), self.free).sum() - fit.mean()

    def noise(self, key):
        return jax.random.normal(key, (self.samples, self.latent)) if self.samples else jnp.zeros((1, self.latent))


def latent_metrics(kl: Float[Array, "B latent"]) -> dict[str, Array]:
    """The KL in nats, the number of active latents, and 1 if the posterior has collapsed."""
    each = kl.mean(0)
    return {
        "kl": each.sum(),
        "active": (each > ACTIVE).sum().astype(float),
        "collapsed": (each.mean() < ACTIVE).astype(float),
    }
