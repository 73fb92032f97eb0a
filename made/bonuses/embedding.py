"""Embeddings of observations: the vectors in which the deep bonuses measure errors, distances and novelty."""

import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from made import nets
from made.core import Bonus, EpisodeMemory, Metrics, NoMemory, Space, Spec, Transition, dict_obs, trees
from made.core.config import COUNT, COUNT_OR_NONE, Configuration, setting
from made.nets.fast_conv import STRIDES, folded
from made.nets.fit import Fit, FitState, with_prefix
from made.nets.likelihood import LARGEST, Leaf, ObservationModel

FRAME = 3  # channels of the last frame of a stack
ENDS = ("obs", "next_obs")  # of a transition
SMALLEST_IMAGE = 15  # pixels a side, as `RandomEncoder` needs; smaller images go through dense layers


class Embedding(eqx.Module):
    """phi(o): an encoder of the named part of an observation, `hidden` layers of `width`, `size` outputs."""

    encoder: nets.Encoder
    head: nets.MLP
    view: str = eqx.field(static=True)

    def __init__(self, spaces: PyTree, size: int, width: int, *, hidden: int, view: str, key: Key[Array, ""]):
        k_encoder, k_head = jax.random.split(key)
        encoder = nets.Encoder(dict_obs.looked_at(spaces, view), width, key=k_encoder)
        head = nets.MLP((encoder.size, *[width] * hidden, size), key=k_head)
        self.encoder, self.head = he_scaled((encoder, head))
        self.view = view

    def __call__(self, obs: PyTree) -> Float[Array, " d"]:
        return self.of_part(dict_obs.looked_at(obs, self.view))

    def of_part(self, part: PyTree) -> Float[Array, " d"]:
        """The embedding of the part that `view` names."""
        return self.head(self.encoder(part))


def he_scaled(net: PyTree) -> PyTree:
    """The same network with weights on He's scale and zero biases.

    Equinox draws weights from U(-1/sqrt(i), 1/sqrt(i)), which shrinks activations 2.4 times a layer until biases
    dominate: a random encoder would hardly separate observations. A factor of sqrt(6) keeps their size.
    """
    is_layer = lambda x: isinstance(x, eqx.nn.Linear | eqx.nn.Conv2d)  # noqa: E731

    def scaled(layer):
        parts = lambda m: (m.weight, m.bias)  # noqa: E731
        return eqx.tree_at(parts, layer, (math.sqrt(6) * layer.weight, jnp.zeros_like(layer.bias)))

    return jax.tree.map(lambda x: scaled(x) if is_layer(x) else x, net, is_leaf=is_layer)


def has_convolutions(leaf: Leaf) -> bool:
    """Whether a leaf is an image that is large enough for convolutions. Anything else has a dense analogue."""
    return leaf.kind == "bytes" and len(leaf.shape) == 3 and min(leaf.shape[:2]) >= SMALLEST_IMAGE


def is_image(seen: ObservationModel) -> bool:
    """Whether an observation is one image, as in the authors' code."""
    return len(seen.leaves) == 2 and has_convolutions(seen.leaves[0])


def last_frame(image: Array) -> Float[Array, "h w 3"]:
    """The last frame of a stack of bytes, divided by 255."""
    return image[..., -FRAME:] / 255.0


class RandomEncoder(eqx.Module):
    """Four convolutions 3x3 with 32 channels (stride 2, 1, 1, 1), dense to `width`, layer norm, tanh. Never trained.

    On a GPU the convolutions run in bfloat16: rounding a random encoder gives another random encoder. In float32 they
    took 2 of the 34 ms of an update of Dreamer with MADE on an H200.
    """

    convolutions: nets.ConvNet | None
    dense: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    outline: ObservationModel = eqx.field(static=True)

    def __init__(self, outline: ObservationModel, width: int, key: Key[Array, ""]):
        k_conv, k_dense = jax.random.split(key)
        self.outline = outline
        channels = (FRAME, 32, 32, 32, 32)
        self.convolutions = nets.ConvNet(channels, key=k_conv, strides=STRIDES) if is_image(outline) else None
        inputs = jax.eval_shape(lambda x: self._inputs(x), outline.blank()[:-1]).shape[0]
        self.dense, self.norm = eqx.nn.Linear(inputs, width, key=k_dense), eqx.nn.LayerNorm(width)

    def _inputs(self, kept: tuple[Array, ...]) -> Float[Array, " inputs"]:
        if self.convolutions is None:
            leaves = zip(self.outline.leaves[:-1], kept, strict=True)  # without the action
            clip = lambda x: jnp.clip(x, -LARGEST, LARGEST).reshape(-1)  # noqa: E731
            return jnp.concatenate([clip(x) if leaf.kind == "numbers" else leaf.show(x, ()) for leaf, x in leaves])
        image = last_frame(kept[0])
        if jax.default_backend() == "cpu":
            return self.convolutions(image)
        kernels = [layer.weight.transpose(2, 3, 1, 0) for layer in self.convolutions.layers]
        biases = [layer.bias.reshape(-1) for layer in self.convolutions.layers]  # type: ignore[union-attr]
        return folded(image[None], kernels, biases, jnp.bfloat16).reshape(-1).astype(jnp.float32)

    def __call__(self, obs: PyTree) -> Float[Array, " width"]:
        kept = self.outline.keep(obs, jnp.zeros(self.outline.leaves[-1].shape))[:-1]
        return jnp.tanh(self.norm(self.dense(self._inputs(kept))))


class InverseModel(eqx.Module):
    """Which action led from one embedding to the next."""

    net: nets.MLP
    action: Space = eqx.field(static=True)

    def __init__(self, size: int, action: Space, width: int, *, key: Key[Array, ""]):
        self.net = nets.MLP((2 * size, width, math.prod(action.shape) * (action.n or 1)), key=key)
        self.action = action

    def loss(self, here: Float[Array, " d"], there: Float[Array, " d"], action: Array) -> Float[Array, ""]:
        """Cross-entropy of a discrete action, summed over its entries; mean squared error of a continuous one."""
        predicted, truth = self.net(jnp.concatenate([here, there])), nets.as_vector(action, self.action)
        if self.action.n is None:
            return jnp.mean((predicted - truth) ** 2)
        logits = jax.nn.log_softmax(predicted.reshape(-1, self.action.n))
        return -jnp.sum(logits.reshape(-1) * truth)


class InverseDynamicsEmbedding(Configuration):
    """An embedding of what the agent can influence: it learns to predict the action between two observations.

    The idea is of Pathak et al. (2017); E3B and NGU measure novelty in it.
    """

    size: int = setting(64, COUNT, static=True)
    width: int = setting(256, COUNT, static=True)
    view: str = eqx.field(static=True, default="")
    hidden: int = setting(1, COUNT_OR_NONE, static=True)  # dense layers between the encoder and the embedding
    fit: Fit = Fit()

    def init(self, key: Key[Array, ""], spec: Spec) -> FitState:
        """(embedding, inverse model) before any experience."""
        k_embedding, k_inverse = jax.random.split(key)
        embedding = Embedding(spec.obs, self.size, self.width, hidden=self.hidden, view=self.view, key=k_embedding)
        return self.fit.init((embedding, InverseModel(self.size, spec.action, self.width, key=k_inverse)))

    def embed(self, learned: FitState, obs: PyTree) -> Float[Array, " d"]:
        """phi(o) of one observation."""
        return learned.params[0](obs)

    def update(self, learned: FitState, batch: Transition, key: Key[Array, ""]) -> tuple[FitState, Metrics]:
        """Learn to predict actions from the observations before and after."""

        def loss(params, items, key):
            embedding, inverse = params
            one = lambda obs, action, after: inverse.loss(embedding(obs), embedding(after), action)  # noqa: E731
            return jnp.mean(jax.vmap(one)(*items)), {}

        items = trees.flatten_leading((batch.obs, batch.action, batch.next_obs), 2)
        learned, metrics = self.fit.fit(loss, learned, items, key)
        return learned, with_prefix(metrics, "inverse")


class StateBonus(Bonus):
    """A bonus of one state: of s', or with `on="obs"` of s."""

    on: ClassVar[str]  # one of `ENDS`

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.on,)


class EmbeddingBonus(Bonus):
    """A bonus on an embedding of the observation: the settings of that embedding."""

    embedding: int = setting(128, COUNT, static=True)
    width: int = setting(256, COUNT, static=True)
    view: str = eqx.field(static=True, default="")
    hidden: int = setting(1, COUNT_OR_NONE, static=True)  # dense layers between the encoder and the embedding
    memory: EpisodeMemory = NoMemory()

    def embedding_of(self, spec: Spec, key: Key[Array, ""], deeper: int = 0) -> Embedding:
        """A new embedding, `deeper` by so many dense layers."""
        hidden = self.hidden + deeper
        return Embedding(spec.obs, self.embedding, self.width, hidden=hidden, view=self.view, key=key)
