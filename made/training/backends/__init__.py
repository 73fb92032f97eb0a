"""Where experience comes from: compiled environments, Gymnasium, or worker processes of control tasks."""

import abc
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Int

from made.core import Metrics


class LogRecord(NamedTuple):
    """The metrics of a log interval of each seed, leaves [L]."""

    scalars: Metrics
    bad: Int[Array, " L"]  # NO_FAILURE, or the update in which something was not finite any more


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
