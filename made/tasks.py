"""Environments by name: a literal table, one line a task."""

from collections.abc import Callable

from made.core import Environment
from made.describe import suggest
from made.grids import GRIDS, make_grid
from made.tabular.env import RandomTabular
from made.tabular.zoo import Chain, DeepSea, Garnet, Lock

TASKS: dict[str, Callable[[], Environment]] = {
    "lock": lambda: RandomTabular(Lock(H=10), horizon=11),
    "lock-H5": lambda: RandomTabular(Lock(H=5, p=0.2), horizon=6),
    "chain": lambda: RandomTabular(Chain(H=8), horizon=100),
    "deepsea": lambda: RandomTabular(DeepSea(size=10), horizon=10),
    "garnet": lambda: RandomTabular(Garnet(S=20, A=4, branching=3), horizon=50),
}


def make(name: str) -> Environment:
    """The environment of that name: a tabular task, or a grid by its MiniGrid id.

    >>> make("lock").spec.action.n
    2
    """
    if name in GRIDS:
        return make_grid(name)
    if name not in TASKS:
        raise ValueError(f"There is no task {name!r}.{suggest(name, [*TASKS, *GRIDS])}")
    return TASKS[name]()
