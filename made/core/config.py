"""A configuration as plain data, both ways: stored, read back, hashed and overridden, and the ranges of its numbers.

The object graph itself is the configuration, so there is nothing to keep in step with it.
"""

import ast
import base64
import dataclasses
import difflib
import functools
import hashlib
import importlib
import importlib.metadata
import inspect
import json
import math
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

_PACKAGE = __name__.partition(".")[0]
MANY, SOME = 60, 20  # names beyond which an error lists some

# What a number may be; none of them is what is not a number.
SHARE, BELOW_ONE = "a number from 0 to 1", "a number from 0 to below 1"
POSITIVE_SHARE = "a number above 0 and at most 1"
AT_LEAST_ZERO, ABOVE_ZERO = "a number of at least 0", "a number above 0"
POSITIVE, FINITE = "a finite number above 0", "a finite number"
COUNT, COUNT_OR_NONE = "a whole number of at least 1", "a whole number of at least 0"
SEVERAL = "a whole number of at least 2"
_HOLDS: dict[str, Callable[[Any], bool]] = {
    SHARE: lambda x: 0 <= x <= 1,
    POSITIVE_SHARE: lambda x: 0 < x <= 1,
    BELOW_ONE: lambda x: 0 <= x < 1,
    AT_LEAST_ZERO: lambda x: 0 <= x < math.inf,
    ABOVE_ZERO: lambda x: x > 0,
    POSITIVE: lambda x: 0 < x < math.inf,
    FINITE: lambda x: -math.inf < x < math.inf,
    SEVERAL: lambda x: 2 <= x < math.inf and x == int(x),
    COUNT: lambda x: 1 <= x < math.inf and x == int(x),
    COUNT_OR_NONE: lambda x: 0 <= x < math.inf and x == int(x),
}


# Metadata of a field that was added after runs were recorded. At its default, which must then never change, it is left
# out of descriptions, so that those runs keep their run ids and their checkpoints can be resumed.
OMIT_DEFAULT = MappingProxyType({"omit_default": True})


def to_dict(thing: Any) -> Any:
    """The configuration as dictionaries, lists and numbers: JSON can hold it, and `from_dict` reads it back.

    A class of made is stored under its name, any other class as `module:Name`. Arrays are stored with their content.
    A function is stored by name only and cannot be read back.
    """
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        kind, values = type(thing), {f: getattr(thing, f.name) for f in dataclasses.fields(thing)}
        own = kind.__module__.partition(".")[0] == _PACKAGE
        data = {"class": kind.__name__ if own else f"{kind.__module__}:{kind.__qualname__}"}
        return data | {
            f.name: to_dict(x) for f, x in values.items() if "omit_default" not in f.metadata or x != f.default
        }
    if isinstance(thing, np.ndarray | jax.Array) and np.ndim(thing):
        content = np.ascontiguousarray(thing)
        values = base64.b64encode(content.tobytes()).decode()
        return {"array": list(content.shape), "dtype": content.dtype.name, "base64": values}
    if isinstance(thing, np.ndarray | jax.Array | np.generic):
        return np.asarray(thing).item()
    if isinstance(thing, tuple | list):
        return [to_dict(x) for x in thing]
    if isinstance(thing, dict):
        return {str(name): to_dict(x) for name, x in thing.items()}
    if callable(thing):
        return {"function": getattr(thing, "__qualname__", type(thing).__name__)}
    return thing


def from_dict(data: Any, allow: Sequence[str] = ()) -> Any:
    """The configuration that `to_dict` stored, with lists as tuples: `from_dict(to_dict(config)) == config`.

    Args:
        data: What `to_dict` returned, as it is or read from JSON.
        allow: Modules outside made that may be imported to find a class, such as `["mypackage"]`; theirs too. Modules
            that are imported already and those of installed plug-ins need no permission. Nothing else is imported.

    Raises:
        ValueError: A class or a field is unknown or missing, or the module of a class may not be imported.
    """
    return _read(data, tuple(allow), "", Any)


_OTHER_VERSION = "It was written by another version of made: use that version, or write it again with this one."
_PLAIN = {bool: bool, int: int | float, float: int | float, str: str}
PLUG_INS = ("made.bonuses", "made.agents", "made.envs")  # groups of entry points


def _read(data: Any, allow: tuple[str, ...], path: str, declared: Any) -> Any:
    """The object at that path, whose field is declared with that type."""
    if isinstance(data, list):
        return tuple(_read(x, allow, f"{path}.{i}", declared) for i, x in enumerate(data))
    at = path.lstrip(".") or "the configuration"
    if not isinstance(data, dict):
        if declared in _PLAIN and not isinstance(data, _PLAIN[declared]):
            raise ValueError(f"{at} takes a {declared.__name__}, not {data!r}. {_OTHER_VERSION}")
        return data
    if "class" in data:
        return _object(data, allow, path, at, _find(data["class"], allow, at, declared))
    if "array" in data:
        return _array(data, at)
    if "function" in data:
        raise ValueError(f"{at} is a function, {data['function']}, and only its name was stored: make it a class.")
    return {name: _read(x, allow, f"{path}.{name}", Any) for name, x in data.items()}


def _object(data: dict[str, Any], allow: tuple[str, ...], path: str, at: str, kind: type) -> Any:
    given, fields = {x: y for x, y in data.items() if x != "class"}, {f.name: f.type for f in dataclasses.fields(kind)}
    optional = {f.name for f in dataclasses.fields(kind) if "omit_default" in f.metadata}
    for name in (*given, *fields):
        if name not in fields or (name not in given and name not in optional):
            fault = "lacks the field" if name in fields else "has an unknown field,"
            raise ValueError(f"{at}, a {kind.__name__}, {fault} {name!r}. {_OTHER_VERSION}")
    parts = {name: _read(x, allow, f"{path}.{name}", fields[name]) for name, x in given.items()}
    taken = inspect.signature(kind).parameters
    try:
        made = kind(**{name: x for name, x in parts.items() if name in taken})
    except TypeError as error:
        raise ValueError(f"{at} cannot be a {kind.__name__} with these fields: {error}. {_OTHER_VERSION}") from error
    for name, x in given.items():  # fields that follow from others included
        if json.dumps(to_dict(getattr(made, name))) != json.dumps(x):
            raise ValueError(f"{at}.{name} is now {getattr(made, name)!r}, not {parts[name]!r}. {_OTHER_VERSION}")
    return made


def _array(data: dict[str, Any], at: str) -> Any:
    try:
        content = base64.b64decode(data["base64"], validate=True)
        stored = np.frombuffer(content, np.dtype(data["dtype"])).reshape(data["array"]).copy()
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{at} is no array that made wrote: {error}. {_OTHER_VERSION}") from error
    array = jnp.asarray(stored)
    return array if array.dtype == stored.dtype else stored  # JAX would store float64 as float32


def _find(name: Any, allow: tuple[str, ...], at: str, declared: Any) -> type:
    """The module class of that name. Of several in made it is the one that the field is declared with."""
    module, colon, inside = str(name).partition(":")
    own = map(importlib.import_module, _sources().get(module, ()))
    found = [_elsewhere(module, inside, allow, at)] if colon else [getattr(one, module) for one in own]
    found = [x for x in found if isinstance(x, type) and issubclass(x, eqx.Module)]
    if len(found) > 1:
        found = [x for x in found if x in (declared, *typing.get_args(declared))]
    if len(found) != 1:
        hint = "Only an equinox.Module can be read." if colon else (nearest(module, list(_sources())) or _OTHER_VERSION)
        raise ValueError(f"{at}: there is no class {name!r}. {hint.strip()}")
    return found[0]


@functools.cache
def _sources() -> Mapping[str, list[str]]:
    """The modules of made that define a configuration class, by the name of the class."""
    found = {}
    for root in map(Path, sys.modules[_PACKAGE].__path__):
        for path in sorted(root.rglob("*.py")):
            module = ".".join((_PACKAGE, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
            for name in re.findall(r"^class (\w+)\(", path.read_text("utf-8"), re.MULTILINE):
                found.setdefault(name, []).append(module)
    return found


def _elsewhere(module: str, inside: str, allow: tuple[str, ...], at: str) -> Any:
    """The class of a module outside made. A file must not choose what is imported, so most modules are refused."""
    if module not in sys.modules:
        plug_ins = [entry.module for group in PLUG_INS for entry in importlib.metadata.entry_points(group=group)]
        if not any(module == one or module.startswith(f"{one}.") for one in (*allow, *plug_ins)):
            raise ValueError(
                f"{at} is a {module}:{inside}, and no module is imported because a file names it. If you trust "
                f"{module}, allow it: allow=[{module!r}], on the command line --allow {module}."
            )
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ValueError(f"{at} is a {module}:{inside}, which cannot be imported: {error}.") from error
    thing: Any = sys.modules[module]
    for part in inside.split("."):
        thing = getattr(thing, part, None)
    return thing


def config_id(thing: Any) -> str:
    """A short name for a configuration: the same settings give the same name, any change another."""
    return hashlib.sha256(json.dumps(to_dict(thing), sort_keys=True).encode()).hexdigest()[:12]


class NoSuchField(ValueError, LookupError):
    """A path that names a field which is not there."""


def override(
    thing: Any,
    path: str,
    text: str,
    before: str = "",
    kinds: Mapping[type, Callable[[str], Any]] = MappingProxyType({}),
) -> Any:
    """A copy with one field, named by a dotted path, set to the value written in `text`.

    `kinds` has functions that make a part of such a type from a name: a field that may hold one, and holds none, takes
    a name. `before` is the part of the path that led here, for messages.
    """
    if not path:
        return parse_as(thing, text, before)
    head, _, rest = path.partition(".")
    here = f"{before}.{head}" if before else head
    if isinstance(thing, tuple) and head.isdigit() and int(head) < len(thing):
        at = int(head)
        return (*thing[:at], override(thing[at], rest, text, here, kinds), *thing[at + 1 :])
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        raise NoSuchField(f"{here!r} leads into {thing!r}, which has no fields. Stop at the field before it.")
    types = {f.name: f.type for f in dataclasses.fields(thing)}
    if head not in types:
        raise NoSuchField(f"{type(thing).__name__} has no field {head!r}.{suggest(head, list(types))}")
    old, takes = getattr(thing, head), typing.get_args(types[head])
    made = [make for kind, make in (kinds or {}).items() if old is None and not rest and kind in takes]
    new = made[0](text) if made and text.lower() != "none" else override(old, rest, text, here, kinds)
    return dataclasses.replace(thing, **{head: new})


def parse_as(old: Any, text: str, path: str) -> Any:
    """The value written in `text`, which must be of the kind that stands there now."""
    if isinstance(old, str):
        return text
    try:
        new = ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text.lower(), text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        new = text
    if isinstance(old, float) and type(new) is int:
        new = float(new) if abs(new) < 2**1023 else text  # beyond it there is no float
    fits = type(new) is type(old) or (old is None and new is None) or (old is None and type(new) in (int, float))
    if not fits:
        wanted = {int: "a whole number", float: "a number", bool: "true or false"}.get(type(old), type(old).__name__)
        raise ValueError(f"{path} is {to_dict(old)!r} and takes {wanted}, not {text!r}.")
    return new


def setting(default: Any, within: str | range | tuple[str, ...], static: bool = False) -> Any:
    """A field with what it must be: words such as `COUNT`, a range of whole numbers, or a tuple of choices."""
    return eqx.field(default=default, static=static, metadata={"within": within})


def check_numbers(thing: Any, wanted: Mapping[str, tuple[str, ...]] = MappingProxyType({})) -> None:
    """Refuse what is no number, or no whole one, in fields declared as such, and what is out of the range of a field.

    For the `__check_init__` of whatever has settings: a number out of range would run to the end and learn nothing.
    Ranges are those of `setting`, or named here. Arrays and tracers pass. A `Configuration` does this by itself.
    """
    ranges = {name: words for words, names in wanted.items() for name in names}
    for field in (field for field in dataclasses.fields(thing) if field.init):
        x = getattr(thing, field.name)
        words = _other_type(field, x) or _out_of_range(x, ranges.get(field.name, field.metadata.get("within")))
        if words:
            hint = "" if field.default is dataclasses.MISSING else f": {field.default!r} is usual"
            raise ValueError(f"{type(thing).__name__} takes {words} as {field.name}, got {x!r}{hint}.")


class Configuration(eqx.Module):
    """A frozen module whose settings are checked when it is made, after the checks of its own class."""

    def __check_init__(self):
        check_numbers(self)


def _other_type(field: dataclasses.Field, x: Any) -> str:
    """What a field declared as a number takes, where this is nothing of the kind."""
    declared, static = field.type, bool(field.metadata.get("static"))
    several = typing.get_origin(declared) is tuple and typing.get_args(declared) in ((int, ...), (float, ...))
    kinds = {declared} if isinstance(declared, type) else set(typing.get_args(declared)) - {...}
    if not kinds & {int, float} or not kinds <= {int, float, type(None)}:
        return ""
    parts = x if several and isinstance(x, tuple) else (x,)
    if several == isinstance(x, tuple) and all(_is_number(part, kinds, static) for part in parts):
        return ""
    words = "a number" if float in kinds else "a whole number"
    return f"a tuple, each entry {words}" if several else words + " or None" * (type(None) in kinds)


def _is_number(x: Any, kinds: set[Any], static: bool) -> bool:
    if x is None or isinstance(x, bool | np.bool_):
        return x is None and type(None) in kinds
    if isinstance(x, float | np.floating):
        return float(x) == x and (float in kinds or (x.is_integer() and not static))
    is_array = hasattr(x, "shape") and hasattr(x, "dtype")  # a tracer and the shape of an array too
    return is_array or isinstance(x, int | np.integer)


def _out_of_range(x: Any, within: str | range | tuple[str, ...] | None) -> str:
    """What a field takes, where this is something else; only numbers and words are looked at."""
    if within is None or not isinstance(x, str | int | float | np.integer | np.floating):
        return ""
    if (_HOLDS[within] if isinstance(within, str) else within.__contains__)(x):
        return ""
    if isinstance(within, range):
        return f"a whole number from {within.start} to {within.stop - 1}"
    return within if isinstance(within, str) else " or ".join(map(repr, within))


def suggest(given: str, accepted: list[str], listed_by: str = "made list") -> str:
    """The tail of an error about an unknown name: the nearest if there is one, else all of them, or some of very many.

    `listed_by` is the command that prints all of very many.

    >>> suggest("zzz", [f"task-{i}" for i in range(200)])[:39]
    ' Some of the 200: task-0, task-1, task-'
    """
    if near := nearest(given, accepted):
        return near
    if len(accepted) > MANY:
        return f" Some of the {len(accepted)}: {', '.join(accepted[:SOME])}, ...; `{listed_by}` has them."
    return f" It has: {', '.join(accepted)}."


def nearest(given: str, accepted: list[str]) -> str:
    """The name that was probably meant, as the tail of an error; nothing where none is near.

    >>> nearest("rey", ["here", "ray"]), nearest("cloud", ["here", "ray"])
    (" Did you mean 'ray'?", '')
    """
    near = difflib.get_close_matches(given, accepted, 1)
    return f" Did you mean {near[0]!r}?" if near else ""
