"""Backends: where experience comes from. Compiled environments, Gymnasium, or worker processes of control tasks."""

import abc
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from made.core import Metrics
from made.core.config import to_dict
from made.training.checkpoint import KEEP
from made.training.on_policy import RunConfig

NO_FAILURE = jnp.iinfo(jnp.int32).max  # the update at which a seed failed, if it did not


class TrainPlan(NamedTuple):
    """A run, the seeds it is made with, and the updates between two evaluations and two checkpoints."""

    run: RunConfig
    seeds: tuple[int, ...]
    evaluate_every: int
    checkpoint_every: int
    episodes: int = 32  # of one evaluation, for each seed
    checkpoint_seconds: float = math.inf  # also after so long, where the pace is not known beforehand
    keep: int = KEEP  # checkpoints
    keep_end: bool = True  # a checkpoint of the end too, so that a longer run can resume from it
    until: float = math.inf  # of time.monotonic(): save and stop rather than begin a log interval that ends later

    @property
    def frames_per_update(self) -> int:
        """Steps of the environments that one update of one seed takes."""
        return self.run.n_envs * self.run.unroll

    @property
    def configuration(self) -> dict[str, Any]:
        """The whole run and its seeds as data, which `made.training.run_dir.configured` reads back."""
        return {**to_dict(self.run), "seeds": list(self.seeds)}


class LogRecord(NamedTuple):
    """The metrics of a log interval of each seed, leaves [L]."""

    scalars: Metrics
    bad: Int[Array, " L"]  # NO_FAILURE, or the update in which something was not finite any more


def raise_if_nan(plan: TrainPlan, bad: np.ndarray, what: str = "a loss or parameters", kept: Any = None) -> None:
    """Raise an error if a seed failed, at the update that `bad` names for it, before that state is written anywhere."""
    first = int(bad.min())
    if first == NO_FAILURE:
        return
    seed, frames = plan.seeds[int(bad.argmin())], first * plan.frames_per_update
    last = f"its last checkpoint, {kept}, from before that, is kept" if kept else "it had no checkpoint yet"
    be = "are" if "parameters" in what or " and " in what else "is"
    raise ValueError(
        f"Seed {seed} has {what} that {be} not finite at update {first:,} ({frames:,} frames): the run stopped, and "
        f"{last}; try a smaller learning rate or a smaller --bonus-coef."
    )


def is_loss(name: str) -> bool:
    """Whether a metric is a loss, which must stay finite; others may be NaN for want of data."""
    return "loss" in name.rsplit("/", 1)[-1]


class Backend(abc.ABC):
    """What `made.training.train_loop.train` runs. A state holds everything that changes in a run, for all seeds."""

    @abc.abstractmethod
    def like(self) -> Any:
        """The shapes of a state."""

    @abc.abstractmethod
    def init(self) -> Any:
        """The state before the first update."""

    @abc.abstractmethod
    def advance(self, state: Any, n: int) -> tuple[Any, LogRecord]:
        """n updates of every seed, and what they measured."""

    @abc.abstractmethod
    def evaluate(self, state: Any) -> Metrics:
        """Metrics of an evaluation of every seed on episodes that training does not use, leaves [L]."""

    def put(self, state: Any) -> Any:
        """A state that was read from a checkpoint, on its devices."""
        return jax.device_put(state)

    def fetch(self, state: Any) -> Any:
        """A state as it can be saved. If there are several processes, each must call this."""
        return state

    def close(self) -> None:
        """End the processes that it has started."""
        return None
