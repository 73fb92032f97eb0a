"""Optimizer steps: of agents (`descend`), and whole updates of the networks of bonuses and densities (`Fit`)."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from made.core import Metrics
from made.core.config import ABOVE_ZERO, COUNT, COUNT_OR_NONE, POSITIVE, Configuration, setting

Loss = Callable[[PyTree, PyTree, Key[Array, ""]], tuple[Float[Array, ""], Metrics]]


def linear_decay(rate: float, k: Array, steps: float) -> Float[Array, ""]:
    """A learning rate that falls linearly to 0 within that many updates; 0 keeps it constant."""
    return rate * jnp.where(steps > 0, jnp.maximum(1 - k / jnp.maximum(steps, 1), 0), 1)


def descend(optimizer: optax.GradientTransformation, params: PyTree, gradient: PyTree, state: PyTree) -> tuple:
    """(parameters, state of the optimizer) after one step."""
    change, state = optimizer.update(gradient, state, params)
    return optax.apply_updates(params, change), state


class FitState(NamedTuple):
    """Parameters and the state of their optimizer."""

    params: PyTree
    optimiser: PyTree


class Fit(Configuration):
    """Adam, `steps` steps an update, each on `batch` sampled items; batch=0 uses all of them.

    `after` makes the number of steps proportional to the new items; `steps` is then the maximum.
    A loss is a function (params, items, key) -> (scalar, metrics) of items with one leading axis.
    """

    learning_rate: float = setting(1e-4, POSITIVE)
    clip: float = setting(40.0, ABOVE_ZERO)  # of the gradient's global norm
    epsilon: float = setting(1e-8, POSITIVE)
    steps: int = setting(1, COUNT, static=True)
    batch: int = setting(0, COUNT_OR_NONE, static=True)

    def after(self, n: int, fresh: int) -> "Fit":
        """The same with one step for each fresh * batch of n new items, from 1 to `steps`; all where fresh is 0.

        >>> [Fit(steps=8, batch=128).after(n, fresh=3).steps for n in (512, 3200, 10_000)]
        [1, 8, 8]
        """
        if not fresh * self.batch:
            return self
        return dataclasses.replace(self, steps=min(max(n // (fresh * self.batch), 1), self.steps))

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.clip), optax.adam(self.learning_rate, eps=self.epsilon))

    def init(self, params: PyTree) -> FitState:
        """Parameters before any step."""
        return FitState(params, self._optimizer().init(params))

    def fit(self, loss: Loss, learned: FitState, items: PyTree, key: Key[Array, ""]) -> tuple[FitState, Metrics]:
        """The steps of one update; the metrics are those of the last step."""
        draw = lambda key: items  # noqa: E731
        if self.batch:
            n = jax.tree.leaves(items)[0].shape[0]
            draw = lambda key: jax.tree.map(lambda x: x[jax.random.randint(key, (self.batch,), 0, n)], items)  # noqa: E731
        return self.fit_sampled(loss, learned, draw, key)

    def fit_sampled(
        self, loss: Loss, learned: FitState, draw: Callable[[Key[Array, ""]], PyTree], key: Key[Array, ""]
    ) -> tuple[FitState, Metrics]:
        """The same with the items of each step from a function of a key, such as samples of a replay window."""
        optimizer, gradient_of = self._optimizer(), jax.value_and_grad(loss, has_aux=True)

        def step(learned: FitState, key) -> tuple[FitState, Metrics]:
            k_draw, k_loss = jax.random.split(key)
            (value, metrics), gradient = gradient_of(learned.params, draw(k_draw), k_loss)
            learned = FitState(*descend(optimizer, learned.params, gradient, learned.optimiser))
            return learned, {"loss": value, **metrics}

        if self.steps == 1:
            return step(learned, key)
        learned, metrics = jax.lax.scan(step, learned, jax.random.split(key, self.steps))
        return learned, jax.tree.map(lambda x: x[-1], metrics)


def with_prefix(metrics: Metrics, prefix: str) -> Metrics:
    """Metrics under a prefix, so that two learners of one bonus do not overwrite each other's."""
    return {f"{prefix}/{name}": jnp.asarray(x) for name, x in metrics.items()}
