"""MADE as the authors released it for RAD (rad_made), bugs included: its bonus, normalizers, RND and VAE."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from made.bonuses.combinators import StatefulWrapper
from made.bonuses.densities.recent_counts import subsample
from made.bonuses.densities.vae import WindowVAE
from made.bonuses.embedding import RandomEncoder, is_image, last_frame
from made.bonuses.made import MADE
from made.core import Bonus, Density, EpisodeMemory, Metrics, NoMemory, trees
from made.core.config import COUNT, setting
from made.nets.fast_conv import upconv3x3
from made.nets.fit import Fit, FitState, with_prefix
from made.nets.layers import MLP, ConvNet, convolve, orthogonal_linear
from made.nets.likelihood import SYMBOLS, ObservationModel, observation_model

LARGEST_LOSS = 160.0  # of a pair: its factor, exp(80), is the last that float32 can still square


class RunningVariance(NamedTuple):
    """The released running mean and variance."""

    mean: Float[Array, ""]
    variance: Float[Array, ""]
    count: Float[Array, ""]


def running_variance() -> RunningVariance:
    """As the authors start: mean 0, variance 1, for a ten-thousandth of a sample."""
    return RunningVariance(jnp.zeros(()), jnp.ones(()), jnp.asarray(1e-4))


def update_variance(stats: RunningVariance, batch: Float[Array, " B"], normaliser: str) -> RunningVariance:
    """Merge a batch of m numbers into n others.

        correct:  mean + delta * m / (n + m)        released:  mean + delta + m / (n + m)

    delta = mean of the batch - mean. With the bug the mean is off by 1 / n after n batches, which adds to the variance:
    std = sqrt(variance + 1/n - 1/n^2) for batches of equal mean. So a factor that hardly varies is divided by about
    1 / sqrt(n), and the bonus grows during training.
    """
    m, delta = batch.size, batch.mean() - stats.mean
    total = stats.count + m
    mean = stats.mean + (delta + m / total if normaliser == "released" else delta * (m / total))
    unbiased = batch.var(ddof=1) if m > 1 else jnp.zeros(())
    squares = stats.variance * stats.count + unbiased * m + delta**2 * stats.count * m / total
    return RunningVariance(mean, squares / total, total)


class FactorNormalizedState(NamedTuple):
    """The density's own state, and the running statistics of the factor."""

    inner: PyTree
    stats: RunningVariance


class FactorNormalized(Density):
    """A density whose factor d^{-1/2} is divided by its running standard deviation.

        log d'(s, a) = log d(s, a) + 2 log std(d^{-1/2})

    The authors' code normalizes the factor, not the product of cover and factor. Statistics use at most `sample` pairs
    of each batch, their batch size.
    """

    density: Density
    normaliser: str = setting("released", ("released", "correct", "none"), static=True)
    sample: int = setting(512, COUNT, static=True)

    def init(self, key, spec):
        return FactorNormalizedState(self.density.init(key, spec), running_variance())

    def log_density(self, state, batch):
        raw = self.density.log_density(state.inner, batch)
        return raw if self.normaliser == "none" else raw + jnp.log(jnp.maximum(state.stats.variance, 1e-12))

    def update(self, state, batch, key):
        inner, metrics = self.density.update(state.inner, batch, key)
        log_factor = -0.5 * self.density.log_density(inner, subsample(batch, self.sample))
        factor = jnp.exp(jnp.minimum(log_factor, 40.0))  # squared for the variance below
        stats = update_variance(state.stats, factor, self.normaliser)
        found = {"mean": factor.mean(), "log_std": log_factor.std(), "divisor": jnp.sqrt(stats.variance)}
        return FactorNormalizedState(inner, stats), {**metrics, **with_prefix(found, "factor")}


class Re3ReleaseNormalized(StatefulWrapper):
    """A bonus divided by the running standard deviation of RE3's release, whose mean has a bug (`update_variance`).

        b = inner / sqrt(variance(inner) + 1/n)   after n updates

    `Normalized` is correct. For a bonus with a standard deviation of 0.01 the divisor is 3.3 times too large after
    1,000 updates and 1.4 times after 10,000: the bonus grows during training.
    """

    bonus: Bonus

    def init(self, key, spec):
        return FactorNormalizedState(self.bonus.init(key, spec), running_variance())

    def reward(self, state, batch, *, value=None):
        return self.bonus.reward(state.inner, batch, value=value) / _root(state.stats.variance)

    def update(self, state, batch, key):
        inner, metrics = self.bonus.update(state.inner, batch, key)
        stats = update_variance(state.stats, self.bonus.reward(inner, batch).reshape(-1), "released")
        return FactorNormalizedState(inner, stats), {**metrics, "bonus_deviation": _root(stats.variance)}


def _root(variance: Float[Array, ""]) -> Float[Array, ""]:
    return jnp.sqrt(jnp.maximum(variance, 1e-12))


class ReleasedRNDState(NamedTuple):
    """The random encoder and target, which never learn, and the predictor, which does."""

    encoder: "RandomEncoder"
    target: MLP
    predictor: FitState


class ReleasedRND(Bonus):
    """b(s') = norm(target(s') - predictor(s')), on the next frame alone and on features of a random encoder.

    Encoder to `width`; predictor width-hidden-hidden-hidden-features from orthogonal weights, target
    width-hidden-features; mean squared error, Adam 2e-4, one step on 512 transitions of each batch. A symbolic grid is
    one-hot, a vector as it comes: both go to the dense layer of the encoder at once.
    Differs from the authors' code: the target starts from framework defaults, so that errors are about a third of
    theirs. That does not matter where they are normalized; otherwise use `OrthogonalRND`.
    """

    fit: Fit = Fit(learning_rate=2e-4, clip=1e9, steps=1, batch=512)
    width: int = setting(1024, COUNT, static=True)
    hidden: int = setting(512, COUNT, static=True)
    features: int = setting(128, COUNT, static=True)
    view: str = eqx.field(static=True, default="")
    symbols: tuple[int, ...] = eqx.field(static=True, default=SYMBOLS)
    memory: EpisodeMemory = NoMemory()
    reads: ClassVar[tuple[str, ...]] = ("next_obs",)

    def init(self, key, spec):
        k_encoder, k_target, _, k_predictor = jax.random.split(key, 4)
        encoder = RandomEncoder(observation_model(spec, self.view, self.symbols), self.width, k_encoder)
        target = MLP((self.width, self.hidden, self.features), key=k_target)
        sizes = (self.width, self.hidden, self.hidden, self.hidden, self.features)
        predictor = MLP(sizes, key=k_predictor, layer=orthogonal_linear)
        return ReleasedRNDState(encoder, target, self.fit.init(predictor))

    def reward(self, state, batch, *, value=None):
        return self.reward_at(state, trees.over_leading(state.encoder, batch.reward.ndim)(batch.next_obs))

    def reward_at(self, state: ReleasedRNDState, features: Float[Array, "*b width"]) -> Float[Array, "*b"]:
        """The reward at those features of the encoder."""
        error = lambda x: jnp.linalg.norm(state.target(x) - state.predictor.params(x))  # noqa: E731
        return trees.over_leading(error, features.ndim - 1)(features)

    def update(self, state, batch, key):
        if self.fit.batch:
            return self.learn(state, batch.next_obs, key, encode=jax.vmap(state.encoder))
        # Without subsampling, encode as `reward` does, so that XLA does it once for both.
        return self.learn(state, trees.over_leading(state.encoder, 2)(batch.next_obs), key)

    def learn(
        self, state: ReleasedRNDState, items: PyTree, key: Key[Array, ""], encode: Callable = lambda features: features
    ) -> tuple[ReleasedRNDState, Metrics]:
        """Fit the predictor to the target at the features that `encode` makes of the items [T, N, ...]."""

        def loss(predictor: MLP, items, key):
            features = encode(items)
            error = jax.vmap(predictor)(features) - jax.vmap(state.target)(features)
            return (error**2).mean(), {}

        predictor, metrics = self.fit.fit(loss, state.predictor, trees.flatten_leading(items, 2), key)
        return state._replace(predictor=predictor), with_prefix(metrics, "rnd")


class OrthogonalRND(ReleasedRND):
    """`ReleasedRND` to the letter: the target starts from orthogonal weights and no biases, as the predictor does."""

    def init(self, key, spec):
        state = super().init(key, spec)
        sizes, key = (self.width, self.hidden, self.features), jax.random.fold_in(key, 0)
        return state._replace(target=MLP(sizes, key=key, layer=orthogonal_linear))


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
        return math.prod(self.start)

    def __call__(self, x: Float[Array, " features"]) -> Float[Array, "h w c"]:
        x = jnp.moveaxis(x.reshape(self.start), 0, -1)
        for layer in self.layers:
            x = jax.nn.relu(upconv3x3(layer, x))
        return convolve(self.last, x)


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
        """(- mean squared error over all numbers of x, KL of each latent), for z = mean + deviation * noise."""
        features = self.down(x) if isinstance(self.down, ConvNet) else jax.nn.relu(self.down(x))
        mean, log_variance = self.mean(features), jnp.clip(self.log_variance(features), -14.0, 4.0)
        answer = self.up(self.back(mean + jnp.exp(0.5 * log_variance) * noise))
        if isinstance(self.up, ReleaseDecoder):
            answer = jnp.tanh(answer)
        return -((answer - x) ** 2).mean(), 0.5 * (mean**2 + jnp.exp(log_variance) - 1 - log_variance)


class ReleasedVAE(WindowVAE):
    """log d(s, a) = -ir, with ir as the authors' code has it (rad_made).

        ir(s, a) = KL(q(z | s, a) || N(0, 1)) + mean over all numbers of (x - reconstruction)^2

    x is the last frame with each number of the action as a plane, the loss is the mean of ir over 128 pairs drawn from
    the last 10,000. A mean squared error is a Gaussian likelihood of variance Dim / 2 for Dim numbers, more than the
    data vary, so the best posterior is the prior: KL -> 0 and ir -> squared distance from the mean of the window.
    Differs from the authors' code: one draw of z serves all reads between two updates, for a read is pure; ir ends at
    160. Observations that are not one image have a dense network of `width` on the vector that `VAE` sees, no tanh.
    """

    fit: Fit = Fit(learning_rate=1e-3, clip=1e9, steps=1, batch=128)
    latent: int = setting(128, COUNT, static=True)
    width: int = setting(256, COUNT, static=True)
    network: ClassVar[type] = ReleasedNetwork
    fresh: ClassVar[int] = 0

    def loss(self, fit, kl):
        return (kl.sum(-1) - fit).mean()

    def log_density(self, state, batch):
        return jnp.maximum(super().log_density(state, batch), -LARGEST_LOSS)


def made_released(
    normaliser: str = "released", *, cover: Bonus = OrthogonalRND(), density: Density = ReleasedVAE()
) -> MADE:
    """MADE of the authors' RAD code.

        b(s, a, s') = norm(target(s') - predictor(s')) * exp(ir(s, a) / 2) / deviation of the factor exp(ir / 2)

    ir is the loss of their VAE for this pair (`ReleasedVAE`). `normaliser`: "released" keeps the bug in their running
    standard deviation, "correct" fixes it, "none" does not normalize, as their Dreamer.
    """
    return MADE(cover, FactorNormalized(density, normaliser))
