"""Bonuses, agents and environments that are not in this package: installed ones by name, any other by import path.

An installed package declares them as entry points, in its pyproject.toml:

    [project.entry-points."made.bonuses"]
    my-bonus = "mypackage.mymodule:MyBonus"

Without that, "mypackage.mymodule:MyBonus" is a name too. Either stands for a class, for a function without arguments,
or for an object that is ready.
"""

import difflib
import importlib
import importlib.metadata
import inspect
from collections.abc import Iterable
from typing import Any, NamedTuple

from made.core.config import nearest


class Kind(NamedTuple):
    """What may come from elsewhere."""

    what: str  # in an error
    group: str  # of its entry points
    base: type


def is_path(name: str) -> bool:
    """Whether a name is an import path, "module:object"."""
    return ":" in name


def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
    """What installed packages declare, by name; of two of one name the first on the path."""
    found = {point.name: point for point in reversed(list(importlib.metadata.entry_points(group=group)))}
    return [found[name] for name in sorted(found)]


def names(kind: Kind) -> list[str]:
    """The names that installed packages declare."""
    return [point.name for point in entry_points(kind.group)]


def with_installed(kind: Kind, own: Iterable[str]) -> list[str]:
    """The names of this package, then those of installed ones; where both have a name, it is this package's."""
    return list(dict.fromkeys((*own, *names(kind))))


def make(kind: Kind, name: str) -> Any:
    """The object that a name of an installed package or an import path stands for."""
    path = name if is_path(name) else next(point.value for point in entry_points(kind.group) if point.name == name)
    label = repr(name) if path == name else f"{name!r} ({path})"
    return _made(kind, _found(kind, path, label), label)


def _found(kind: Kind, path: str, label: str) -> Any:
    """What stands at an import path."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute or path.count(":") > 1:
        raise ValueError(f"{label} is no import path: write module:object, such as mypackage:My{kind.base.__name__}.")
    try:
        thing: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if not (module_name == missing or module_name.startswith(f"{missing}.")):
            raise ValueError(f"The module of {label} cannot be imported: {error}.") from error
        raise ValueError(
            f"There is no module {missing!r}, which {kind.what} {label} needs: install it, or run from its folder."
        ) from error
    except Exception as error:
        raise ValueError(f"The module of {label} cannot be imported: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(thing, part):
            public = [name for name in vars(thing) if not name.startswith("_")]
            raise ValueError(f"{module_name} has no {part!r}.{nearest(part, public)}")
        thing = getattr(thing, part)
    return thing


def _made(kind: Kind, thing: Any, label: str) -> Any:
    """An object of that kind from a class, a function without arguments or the object itself."""
    base = kind.base
    if isinstance(thing, type):
        if not issubclass(thing, base):
            raise ValueError(f"{label} is a class, but no {kind.what}: derive it from made.{base.__name__}.")
        _require_complete(kind, thing, label)
    if callable(thing) and not isinstance(thing, base):
        try:
            inspect.signature(thing).bind()
        except TypeError as error:
            raise ValueError(
                f"{label} cannot be made without arguments: {error}. Give them defaults, or name a function without "
                "arguments that returns it."
            ) from error
        thing = thing()
    if not isinstance(thing, base):
        raise ValueError(
            f"{label} is a {type(thing).__name__}, no {kind.what}: derive its class from made.{base.__name__}."
        )
    return thing


def _require_complete(kind: Kind, cls: type, label: str) -> None:
    """Refuse a class that lacks methods or fields of its kind."""
    methods = sorted(getattr(cls, "__abstractmethods__", ()))
    fields = sorted({*getattr(cls, "__abstractvars__", ()), *getattr(cls, "__abstractclassvars__", ())})
    if not methods and not fields:
        return
    inherited = set(dir(kind.base))
    own = [name for name in dir(cls) if not name.startswith("__") and name not in inherited]
    near = {name: difflib.get_close_matches(name, own, 1) for name in (*methods, *fields)}
    lacks = [f"the method `{name}`" for name in methods] + [f"the field `{name}`" for name in fields]
    hints = [f" It has `{found[0]}`: did you mean `{name}`?" for name, found in near.items() if found]
    raise ValueError(f"{label} lacks {' and '.join(lacks)} of made.{kind.base.__name__}.{''.join(hints)}")
