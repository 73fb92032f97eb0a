"""MADE as the authors released it for RAD (rad_made): what their code computes, its slips included."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from made.bonuses.combinators import StatefulWrapper
from made.bonuses.densities.recent_counts import subsample
from made.bonuses.made import MADE
from made.bonuses.release.release_vae import ReleasedVAE, is_image, last_frame
from made.core import Bonus, Density, EpisodeMemory, NoMemory, Transition, trees
from made.core.config import COUNT, check_numbers
from made.nets.fast_conv import STRIDES, folded
from made.nets.fit import Fit, FitState, with_prefix
from made.nets.layers import MLP, ConvNet, orthogonal_linear
from made.nets.likelihood import LARGEST, SYMBOLS, Leaf, ObservationModel, observation_model

NORMALISERS = ("released", "correct", "none")


def made_released(normaliser: str = "released", *, cover: Bonus | None = None, density: Density | None = None) -> MADE:
    """MADE of the authors' RAD code.

        b(s, a, s') = norm(target(s') - predictor(s')) * exp(ir(s, a) / 2) / deviation of the factor exp(ir / 2)

    ir is the loss of their VAE for this pair (`ReleasedVAE`). `normaliser`: "released" keeps the slip in their running
    deviation, "correct" mends it, "none" divides by nothing, as their Dreamer does.
    """
    recent = FactorNormalized(ReleasedVAE() if density is None else density, normaliser)
    return MADE(OrthogonalRND() if cover is None else cover, recent)


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

    delta = mean of the batch - mean. With the slip the mean is off by 1 / n after n batches, which the variance takes
    for spread: deviation = sqrt(variance + 1/n - 1/n^2) for batches of equal mean. A factor that hardly varies is thus
    divided by about 1 / sqrt(n): the bonus grows as training goes on.
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
    """A density whose factor d^{-1/2} is divided by the factor's own running deviation.

        log d'(s, a) = log d(s, a) + 2 log deviation(d^{-1/2})

    The authors' code normalises the factor, not the product of cover and factor. Statistics take in at most `sample`
    pairs of each batch, their batch size.
    """

    density: Density
    normaliser: str = eqx.field(static=True, default="released")
    sample: int = eqx.field(static=True, default=512)

    def __check_init__(self):
        check_numbers(self, {COUNT: ("sample",)})
        if self.normaliser not in NORMALISERS:
            raise ValueError(f"normaliser={self.normaliser!r} must be one of {', '.join(NORMALISERS)}.")

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
    """A bonus over the running deviation of RE3's release, whose mean has a slip (`update_variance`).

        b = inner / sqrt(variance(inner) + 1/n)   after n updates

    `Normalized` has the right one. A bonus that deviates by 0.01 is divided by 3.3 times as much after 1,000 updates
    and by 1.4 times as much after 10,000: what is paid grows as training goes on.
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


class RandomEncoder(eqx.Module):
    """Four convolutions 3x3 with 32 channels (stride 2, 1, 1, 1), dense to `width`, layer norm, tanh. Never trained.

    On a GPU the convolutions are computed in bfloat16: of an encoder that is random and stays as it is, rounding makes
    another such encoder. In float32 they took 2 of the 34 ms of an update of Dreamer with MADE on an H200.
    """

    convolutions: ConvNet | None
    dense: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    outline: ObservationModel = eqx.field(static=True)

    def __init__(self, outline: ObservationModel, width: int, key: Key[Array, ""]):
        k_conv, k_dense = jax.random.split(key)
        self.outline = outline
        self.convolutions = ConvNet((3, 32, 32, 32, 32), key=k_conv, strides=STRIDES) if is_image(outline) else None
        inputs = jax.eval_shape(lambda x: self._inputs(x), outline.blank()[:-1]).shape[0]
        self.dense, self.norm = eqx.nn.Linear(inputs, width, key=k_dense), eqx.nn.LayerNorm(width)

    def _inputs(self, kept: tuple[Array, ...]) -> Float[Array, " inputs"]:
        if self.convolutions is not None:
            return self._convolved(last_frame(kept[0]))

        def numbers(leaf: Leaf, x: Array) -> Array:
            return jnp.clip(x, -LARGEST, LARGEST).reshape(-1) if leaf.kind == "numbers" else leaf.show(x, ())

        # The action, last of the leaves, is not looked at.
        return jnp.concatenate([numbers(leaf, x) for leaf, x in zip(self.outline.leaves, kept, strict=False)])

    def _convolved(self, image: Float[Array, "h w c"]) -> Float[Array, " inputs"]:
        assert self.convolutions is not None
        if jax.default_backend() == "cpu":
            return self.convolutions(image)
        kernels = [layer.weight.transpose(2, 3, 1, 0) for layer in self.convolutions.layers]
        biases = [layer.bias.reshape(-1) for layer in self.convolutions.layers]  # type: ignore[union-attr]
        return folded(image[None], kernels, biases, jnp.bfloat16).reshape(-1).astype(jnp.float32)

    def __call__(self, obs: PyTree) -> Float[Array, " width"]:
        kept = self.outline.keep(obs, jnp.zeros(self.outline.leaves[-1].shape))[:-1]
        return jnp.tanh(self.norm(self.dense(self._inputs(kept))))


class ReleasedRND(Bonus):
    """b(s') = norm(target(s') - predictor(s')), on the next frame alone and on features of a random encoder.

    Encoder to `width`; predictor width-hidden-hidden-hidden-features from orthogonal weights, target
    width-hidden-features; mean squared error, Adam 2e-4, one step on 512 transitions of each batch. A symbolic grid is
    one-hot, a vector as it comes: both go to the dense layer of the encoder at once.
    Differs from the authors' code: the target starts from framework defaults, so that errors are about a third of
    theirs. That does not matter where they are normalised; where they are not, take `OrthogonalRND`.
    """

    fit: Fit = Fit(learning_rate=2e-4, clip=1e9, steps=1, batch=512)
    width: int = eqx.field(static=True, default=1024)
    hidden: int = eqx.field(static=True, default=512)
    features: int = eqx.field(static=True, default=128)
    view: str = eqx.field(static=True, default="")
    symbols: tuple[int, ...] = eqx.field(static=True, default=SYMBOLS)
    memory: EpisodeMemory = NoMemory()
    reads: ClassVar[tuple[str, ...]] = ("next_obs",)

    def __check_init__(self):
        check_numbers(self, {COUNT: ("width", "hidden", "features")})

    def init(self, key, spec):
        k_encoder, k_target, _, k_predictor = jax.random.split(key, 4)
        encoder = RandomEncoder(observation_model(spec, self.view, self.symbols), self.width, k_encoder)
        target = MLP((self.width, self.hidden, self.features), key=k_target)
        sizes = (self.width, self.hidden, self.hidden, self.hidden, self.features)
        predictor = MLP(sizes, key=k_predictor, layer=orthogonal_linear)
        return ReleasedRNDState(encoder, target, self.fit.init(predictor))

    def reward(self, state, batch, *, value=None):
        error = lambda x: jnp.linalg.norm(state.target(x) - state.predictor.params(x))  # noqa: E731
        return trees.over_leading(error, batch.reward.ndim)(self._features(state, batch))

    def _features(self, state: ReleasedRNDState, batch: Transition) -> Float[Array, "*b width"]:
        return trees.over_leading(state.encoder, batch.reward.ndim)(batch.next_obs)

    def update(self, state, batch, key):
        # Where all are learnt from they are encoded as `reward` encodes them: a compiler does it once for both.
        whole = not self.fit.batch
        items = trees.flatten_leading(self._features(state, batch) if whole else batch.next_obs, batch.reward.ndim)

        def loss(predictor: MLP, items, key):
            features = items if whole else jax.vmap(state.encoder)(items)
            error = jax.vmap(predictor)(features) - jax.vmap(state.target)(features)
            return (error**2).mean(), {}

        predictor, metrics = self.fit.fit(loss, state.predictor, items, key)
        return ReleasedRNDState(state.encoder, state.target, predictor), with_prefix(metrics, "rnd")


class OrthogonalRND(ReleasedRND):
    """`ReleasedRND` to the letter: the target starts from orthogonal weights and no biases, as the predictor does."""

    def init(self, key, spec):
        state = super().init(key, spec)
        sizes, key = (self.width, self.hidden, self.features), jax.random.fold_in(key, 0)
        return state._replace(target=MLP(sizes, key=key, layer=orthogonal_linear))
