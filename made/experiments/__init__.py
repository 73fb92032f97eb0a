"""Experiments: every `Experiment` that a module of `made.experiments.paper` defines is found by its file."""

import functools
import importlib
import pkgutil

from made.core.config import suggest
from made.experiments.types import Experiment


@functools.cache
def experiments() -> dict[str, Experiment]:
    """Every experiment by name, in the order of the claims it settles."""
    from made.experiments import paper

    found = {}
    for module in pkgutil.iter_modules(paper.__path__):
        loaded = importlib.import_module(f"{paper.__name__}.{module.name}")
        found |= {one.name: one for one in vars(loaded).values() if isinstance(one, Experiment)}
    return dict(sorted(found.items(), key=lambda item: min((claim.number for claim in item[1].claims), default=10**6)))


def experiment(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in experiments():
        raise ValueError(f"There is no experiment {name!r}.{suggest(name, list(experiments()))}")
    return experiments()[name]
