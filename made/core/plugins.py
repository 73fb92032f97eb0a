"""What is not in this package: objects by name or import path, and optional dependencies.

An installed package declares them as entry points, in its pyproject.toml:

    [project.entry-points."made.bonuses"]
    my-bonus = "mypackage.mymodule:MyBonus"

Without that, "mypackage.mymodule:MyBonus" is a name too. Either stands for a class, for a function without arguments,
or for an object that is ready.
"""

import contextlib
import difflib
import importlib
import importlib.metadata
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from made.core.config import nearest, suggest


class MissingExtra(ModuleNotFoundError, ValueError):
    """An optional dependency is not installed. The message says how to install it."""


@contextlib.contextmanager
def needs(who: str, extra: str, *libraries: str) -> Iterator[None]:
    """Import optional libraries inside this block: where one of them is missing, the error names the extra.

    >>> with needs("A plug-in", "sb3", "no_such_library"):
    ...     import no_such_library
    Traceback (most recent call last):
    made.core.plugins.MissingExtra: A plug-in needs no_such_library: pip install -e ".[sb3]" in the checkout of made.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in libraries:
            raise
        raise MissingExtra(f"{who} needs {name}: {install(extra)}.", name=name) from None


def install(extra: str = "") -> str:
    """The command that installs made from a checkout, with an extra where one is named.

    >>> print(install("ray"))
    pip install -e ".[ray]" in the checkout of made
    """
    what = f'".[{extra}]"' if extra else "."
    return f"pip install -e {what} in the checkout of made"


def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
    """What installed packages declare, by name; of two of one name the first on the path."""
    found = {point.name: point for point in reversed(list(importlib.metadata.entry_points(group=group)))}
    return [found[name] for name in sorted(found)]


class Registry(NamedTuple):
    """One kind of object by name: a table of this package, then installed packages and import paths."""

    what: str  # in an error
    group: str  # of its entry points
    base: type
    table: Mapping[str, Any]

    def names(self, own: Iterable[str] | None = None) -> list[str]:
        """The names of this package, all or those given, then those of installed packages."""
        own = self.table if own is None else own
        return list(dict.fromkeys((*own, *(point.name for point in entry_points(self.group)))))

    def load(self, name: str, accepted: Iterable[str] | None = None, where: str = "") -> Any:
        """The object of an installed package or at an import path that goes by that name.

        Where there is none, the error suggests one of the `accepted` names.
        """
        declared = {point.name: point.value for point in entry_points(self.group)}
        path = name if ":" in name else declared.get(name)
        if path is None or name in self.table:
            raise ValueError(f"There is no {self.what} {name!r}{where}.{suggest(name, self.names(accepted))}")
        label = repr(name) if path == name else f"{name!r} ({path})"
        return self._object(_imported(path, label, self), label)

    def _object(self, thing: Any, label: str) -> Any:
        """An object of this kind from a class, a function without arguments or the object itself."""
        base = self.base
        if isinstance(thing, type):
            if not issubclass(thing, base):
                raise ValueError(f"{label} is a class, but no {self.what}: derive it from made.{base.__name__}.")
            _require_complete(base, thing, label)
        if callable(thing) and not isinstance(thing, base):
            try:
                inspect.signature(thing).bind()
            except TypeError as error:
                raise ValueError(
                    f"{label} cannot be made without arguments: {error}. Give them defaults, or name a function "
                    "without arguments that returns it."
                ) from error
            thing = thing()
        if not isinstance(thing, base):
            raise ValueError(
                f"{label} is a {type(thing).__name__}, no {self.what}: derive its class from made.{base.__name__}."
            )
        return thing


def _imported(path: str, label: str, kind: Registry) -> Any:
    """What is at an import path."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute or path.count(":") > 1:
        raise ValueError(f"{label} is no import path: write module:object, such as mypackage:My{kind.base.__name__}.")
    try:
        thing: Any = importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise ValueError(
                f"There is no module {missing!r}, which {kind.what} {label} needs: install it, or run from its folder."
            ) from error
        raise ValueError(f"The module of {label} cannot be imported: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(thing, part):
            public = [name for name in vars(thing) if not name.startswith("_")]
            raise ValueError(f"{module_name} has no {part!r}.{nearest(part, public)}")
        thing = getattr(thing, part)
    return thing


def _require_complete(base: type, cls: type, label: str) -> None:
    """Refuse a class that lacks methods or fields of its kind."""
    fields = {*getattr(cls, "__abstractvars__", ()), *getattr(cls, "__abstractclassvars__", ())}
    lacks = [(f"the method `{name}`", name) for name in sorted(getattr(cls, "__abstractmethods__", ()))]
    lacks += [(f"the field `{name}`", name) for name in sorted(fields)]
    own = [name for name in dir(cls) if not name.startswith("__") and name not in dir(base)]
    near = [(name, found) for _, name in lacks for found in difflib.get_close_matches(name, own, 1)]
    if lacks:
        hints = "".join(f" It has `{found}`: did you mean `{name}`?" for name, found in near)
        raise ValueError(f"{label} lacks {' and '.join(what for what, _ in lacks)} of made.{base.__name__}.{hints}")
