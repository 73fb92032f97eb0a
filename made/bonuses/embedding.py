"""Embeddings of observations: the vectors in which the deep bonuses measure errors, distances and novelty."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from made import nets
from made.core import Metrics, Space, Spec, Transition, dict_obs, trees
from made.core.config import COUNT, COUNT_OR_NONE, check_numbers
from made.nets.fit import Fit, FitState, with_prefix


class Embedding(eqx.Module):
    """phi(o): the named part of an observation through an encoder and `hidden` layers of `width`: `size` numbers."""

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
        """The embedding of what `view` names, already taken out of the observation."""
        return self.head(self.encoder(part))


def he_scaled(net: PyTree) -> PyTree:
    """The same network on He's scale with biases at zero.

    Equinox draws weights from U(-1/sqrt(i), 1/sqrt(i)), which through ReLUs shrinks what flows by 2.4 a layer until
    the biases drown it: a random encoder would then tell observations apart badly. Times sqrt(6) it keeps its size.
    """
    is_layer = lambda x: isinstance(x, eqx.nn.Linear | eqx.nn.Conv2d)  # noqa: E731

    def scaled(layer):
        parts = lambda m: (m.weight, m.bias)  # noqa: E731
        return eqx.tree_at(parts, layer, (math.sqrt(6) * layer.weight, jnp.zeros_like(layer.bias)))

    return jax.tree.map(lambda x: scaled(x) if is_layer(x) else x, net, is_leaf=is_layer)


class InverseModel(eqx.Module):
    """Which action led from one embedding to the next."""

    net: nets.MLP
    action: Space = eqx.field(static=True)

    def __init__(self, size: int, action: Space, width: int, *, key: Key[Array, ""]):
        self.net = nets.MLP((2 * size, width, math.prod(action.shape) * (action.n or 1)), key=key)
        self.action = action

    def loss(self, here: Float[Array, " d"], there: Float[Array, " d"], action: Array) -> Float[Array, ""]:
        """Cross-entropy of a discrete action, summed over its entries; mean squared error of a continuous one."""
        said, truth = self.net(jnp.concatenate([here, there])), nets.action_vector(action, self.action)
        if self.action.n is None:
            return jnp.mean((said - truth) ** 2)
        logits = jax.nn.log_softmax(said.reshape(-1, self.action.n))
        return -jnp.sum(logits.reshape(-1) * truth)


class InverseDynamicsEmbedding(eqx.Module):
    """An embedding that keeps what the agent can influence: it learns to tell the action between two observations.

    Pathak et al. (2017) for the idea; E3B and NGU measure novelty in it.
    """

    size: int = eqx.field(static=True, default=64)
    width: int = eqx.field(static=True, default=256)
    view: str = eqx.field(static=True, default="")
    hidden: int = eqx.field(static=True, default=1)  # dense layers between the encoder and the embedding
    fit: Fit = Fit()

    def __check_init__(self):
        check_numbers(self, {COUNT: ("size", "width"), COUNT_OR_NONE: ("hidden",)})

    def init(self, key: Key[Array, ""], spec: Spec) -> FitState:
        """(embedding, inverse model) before any experience."""
        k_embedding, k_inverse = jax.random.split(key)
        embedding = Embedding(spec.obs, self.size, self.width, hidden=self.hidden, view=self.view, key=k_embedding)
        return self.fit.init((embedding, InverseModel(self.size, spec.action, self.width, key=k_inverse)))

    def embed(self, learned: FitState, obs: PyTree) -> Float[Array, " d"]:
        """phi(o) of one observation."""
        return learned.params[0](obs)

    def update(self, learned: FitState, batch: Transition, key: Key[Array, ""]) -> tuple[FitState, Metrics]:
        """Learn to tell actions from the observations before and after them."""

        def loss(params, items, key):
            embedding, inverse = params
            one = lambda obs, action, after: inverse.loss(embedding(obs), embedding(after), action)  # noqa: E731
            return jnp.mean(jax.vmap(one)(*items)), {}

        items = trees.flatten_leading((batch.obs, batch.action, batch.next_obs), 2)
        learned, metrics = self.fit.fit(loss, learned, items, key)
        return learned, with_prefix(metrics, "inverse")


def check_space(who: str, on: str) -> None:
    """Refuse a setting `on` that names neither end of a transition."""
    if on not in ("obs", "next_obs"):
        raise ValueError(f"{who} looks at on='obs' or on='next_obs', got on={on!r}.")
