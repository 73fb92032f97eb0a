"""Environments by name: one table of tabular tasks, grids, control tasks, and what other packages bring."""

from collections.abc import Callable
from typing import Any

from made.core import Environment
from made.core.plugins import Registry
from made.envs.control import CONTROL, make_control
from made.envs.control.tasks import SPARSE
from made.envs.host_env import Hosted, hosted
from made.envs.minigrid import GRIDS, grid_ids, make_grid
from made.envs.tabular import RandomTabular
from made.tabular.families import Chain, DeepSea, Garnet, Lock

_TABULAR: dict[str, Callable[[], Environment]] = {
    "lock": lambda: RandomTabular(Lock(H=10), horizon=11),
    "lock-H5": lambda: RandomTabular(Lock(H=5, p=0.2), horizon=6),
    "chain": lambda: RandomTabular(Chain(H=8), horizon=100),
    "deepsea": lambda: RandomTabular(DeepSea(size=10), horizon=10),
    "garnet": lambda: RandomTabular(Garnet(S=20, A=4, branching=3), horizon=50),
}
_REGISTRY = Registry("task", "made.envs", Environment, _TABULAR)


def make(name: str, **options: Any) -> Any:
    """The environment of that name.

        "lock"                      a tabular task
        "MiniGrid-DoorKey-5x5-v0"   a grid by its MiniGrid id, or as in "DoorKey-5x5"; `options` are those of its class
        "hopper_hop"                a task of DeepMind Control: its settings, a `made.envs.control.Control`
        "gym:CartPole-v1"           a task of Gymnasium, stepped on the host; "envpool:..." is one of EnvPool's
        "mypackage.mymodule:MyEnv"  an import path; names of installed packages (entry points `made.envs`) work too

    >>> make("lock").spec.action.n
    2
    """
    if name in grid_ids():
        return make_grid(name, **options)
    if name in CONTROL or name in SPARSE:
        return make_control(name, **options)
    if options:
        raise ValueError(f"Only grids and control tasks take options, and {name} got {', '.join(options)}.")
    elsewhere: Hosted | None = hosted(name)
    if elsewhere is not None:
        return elsewhere
    return _TABULAR[name]() if name in _TABULAR else _REGISTRY.load(name, [*grid_ids(), *list_envs()])


def list_envs(kind: str | None = None) -> list[str]:
    """The names that `make` takes, of one kind ("tabular", "grid" or "control") or all; of installed packages last.

    Any other task of the DeepMind Control suite has a name too, and so has any of Gymnasium and EnvPool.

    >>> list_envs("tabular")
    ['lock', 'lock-H5', 'chain', 'deepsea', 'garnet']
    """
    kinds = {"tabular": list(_TABULAR), "grid": list(GRIDS), "control": list(dict.fromkeys((*CONTROL, *SPARSE)))}
    if kind is None:
        return _REGISTRY.names(name for names in kinds.values() for name in names)
    if kind not in kinds:
        raise ValueError(f"A kind of environment is one of {', '.join(kinds)}, not {kind!r}.")
    return kinds[kind]
