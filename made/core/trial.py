"""Whatever an experiment can run: a start, a step, a length. And how a grid of them becomes one compiled program.

A `Trial` is a pytree: its number-valued settings are leaves, its structure is static. So trials that differ only in
numbers and seeds stack into *lanes* of one program: `vmap` over the stack, one compilation.
"""

import abc
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Key, PyTree

from made.core.interfaces import Metrics

if TYPE_CHECKING:
    from typing import ClassVar as AbstractVar
else:
    from equinox import AbstractVar


class Trial(eqx.Module):
    """One configuration of something that goes on for a number of iterations and is measured on the way."""

    iterations: AbstractVar[int]
    every: AbstractVar[int]  # iterations between two recorded rows
    float64: ClassVar[bool] = False  # True: computed in float64
    on_host: ClassVar[bool] = False  # True: stepped outside compiled programs, by `made.experiments.resumable`

    @abc.abstractmethod
    def start(self, key: Key[Array, ""]) -> PyTree:
        """The state before the first iteration."""

    @abc.abstractmethod
    def advance(self, state: PyTree) -> tuple[PyTree, Metrics]:
        """One iteration: (state, scalars). Rows hold their mean since the row before, weighted by `mean_weight`."""

    def snapshot(self, state: PyTree) -> dict[str, Array]:
        """What is read off the state once for each recorded row: scalars or arrays."""
        del state
        return {}

    def demand(self) -> None:
        """Refuse, in a sentence, what cannot run on this machine; called before anything is run."""


EPISODE_MEANS = ("return", "length", "success")  # in one update: means over the episodes that ended in it


class TimeLimitReached(Exception):
    """A run stopped where it was told to, with a checkpoint to go on from."""


class RunsFailed(Exception):
    """Some runs of an experiment failed; the others are stored."""


class Record(NamedTuple):
    """What one lane measured. `rows` are columns of equal length, "step" (iterations done) among them."""

    rows: dict[str, np.ndarray]  # name -> [R]
    arrays: dict[str, np.ndarray]  # name -> [R, ...]


def structure(trial: Trial) -> Any:
    """Trials with equal structure can share one compiled program."""
    leaves, tree = jax.tree.flatten(trial)
    return tree, tuple((np.shape(leaf), np.result_type(leaf)) for leaf in leaves)


def rows_of(trial: Trial) -> int:
    """How many rows a trial records."""
    if trial.every < 1 or trial.iterations < trial.every:
        raise ValueError(
            f"A trial of {trial.iterations} iterations cannot record a row every {trial.every}: "
            "choose 1 <= every <= iterations."
        )
    return trial.iterations // trial.every
