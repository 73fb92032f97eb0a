"""A configuration as plain data: what is stored, hashed, printed and overridden, and the ranges of its numbers.

The object graph itself is the configuration, so there is nothing to keep in step with it.
"""

import ast
import dataclasses
import difflib
import hashlib
import json
import math
import typing
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

MANY, SOME = 60, 20  # names beyond which an error lists some

# What a number may be; none of them is what is not a number.
SHARE, BELOW_ONE = "a number from 0 to 1", "a number from 0 to below 1"
AT_LEAST_ZERO, ABOVE_ZERO = "a number of at least 0", "a number above 0"
POSITIVE, FINITE = "a finite number above 0", "a finite number"
COUNT, COUNT_OR_NONE = "a whole number of at least 1", "a whole number of at least 0"
_HOLDS: dict[str, Callable[[Any], bool]] = {
    SHARE: lambda x: 0 <= x <= 1,
    BELOW_ONE: lambda x: 0 <= x < 1,
    AT_LEAST_ZERO: lambda x: 0 <= x < math.inf,
    ABOVE_ZERO: lambda x: x > 0,
    POSITIVE: lambda x: 0 < x < math.inf,
    FINITE: lambda x: -math.inf < x < math.inf,
    COUNT: lambda x: 1 <= x < math.inf and x == int(x),
    COUNT_OR_NONE: lambda x: 0 <= x < math.inf and x == int(x),
}


# Metadata of a field that was added after runs were recorded. At its default, which must then never change, it is left
# out of descriptions, so that those runs keep their run ids and their checkpoints can be resumed.
OMIT_DEFAULT = MappingProxyType({"omit_default": True})


def describe(thing: Any) -> Any:
    """The object graph as dictionaries, lists and numbers."""
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        described = (f for f in dataclasses.fields(thing) if not _omitted(f, getattr(thing, f.name)))
        fields = {f.name: describe(getattr(thing, f.name)) for f in described}
        return {"class": type(thing).__name__, **fields}
    if isinstance(thing, np.ndarray | jax.Array) and np.ndim(thing):
        content = np.ascontiguousarray(thing)
        return {"array": list(content.shape), "sha256": hashlib.sha256(content.tobytes()).hexdigest()[:16]}
    if isinstance(thing, np.ndarray | jax.Array | np.generic):
        return np.asarray(thing).item()
    if isinstance(thing, tuple | list):
        return [describe(x) for x in thing]
    if isinstance(thing, dict):
        return {str(name): describe(x) for name, x in thing.items()}
    if callable(thing):
        return getattr(thing, "__qualname__", type(thing).__name__)
    return thing


def _omitted(field: dataclasses.Field, value: Any) -> bool:
    return "omit_default" in field.metadata and value == field.default


def run_id(thing: Any) -> str:
    """A short name for a configuration: the same settings give the same name, any change another."""
    return hashlib.sha256(json.dumps(describe(thing), sort_keys=True).encode()).hexdigest()[:12]


class NoSuchField(ValueError, LookupError):
    """A path that names a field which is not there."""


Kinds = Mapping[type, Callable[[str], Any]]  # how a part of such a type is made from a name


def override(thing: Any, path: str, text: str, before: str = "", kinds: Kinds = MappingProxyType({})) -> Any:
    """A copy with one field, named by a dotted path, set to the value written in `text`.

    A field that may hold a part of one of those kinds, and holds none, takes a name. `before` is the part of the path
    that led here, for messages.
    """
    head, _, rest = path.partition(".")
    here = before + head
    if isinstance(thing, tuple) and head.isdigit() and int(head) < len(thing):
        at = int(head)
        return (*thing[:at], _set(thing[at], rest, text, here, kinds), *thing[at + 1 :])
    if not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        raise NoSuchField(f"{here!r} leads into {thing!r}, which has no fields. Stop at the field before it.")
    types = {f.name: f.type for f in dataclasses.fields(thing)}
    if head not in types:
        raise NoSuchField(f"{type(thing).__name__} has no field {head!r}.{suggest(head, list(types))}")
    old, takes = getattr(thing, head), typing.get_args(types[head])
    made = [make for kind, make in kinds.items() if old is None and not rest and kind in takes]
    new = made[0](text) if made and text.lower() != "none" else _set(old, rest, text, here, kinds)
    return dataclasses.replace(thing, **{head: new})


def _set(old: Any, rest: str, text: str, here: str, kinds: Kinds) -> Any:
    return override(old, rest, text, f"{here}.", kinds) if rest else parse_as(old, text, here)


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
        raise ValueError(f"{path} is {describe(old)!r} and takes {wanted}, not {text!r}.")
    return new


def check_types(thing: Any) -> None:
    """Refuse what is no number, or no whole one, in the fields that are declared as such; arrays and tracers pass.

    For the `__check_init__` of whatever has settings; `check_numbers` does it too.
    """
    for field in dataclasses.fields(thing):
        if not field.init:
            continue
        takes, x = _numbers_of(field.type), getattr(thing, field.name)
        several = tuple in takes and isinstance(x, tuple)
        wrong = [one for one in (x if several else (x,)) if not _is_number(one, takes - {tuple}, field.metadata)]
        if takes and (wrong or (tuple in takes) != several):
            words = "a number" if float in takes else "a whole number"
            words = f"a tuple, each entry {words}" if tuple in takes else words
            words += " or None" if type(None) in takes else ""
            hint = "" if field.default is dataclasses.MISSING else f": {field.default} is usual"
            raise ValueError(f"{type(thing).__name__} takes {words} as {field.name}, got {x!r}{hint}.")


def _numbers_of(declared: Any) -> set[Any]:
    """The kinds of number that a declared type allows, with None and tuple; nothing where it allows anything else."""
    if typing.get_origin(declared) is tuple and typing.get_args(declared) in ((int, ...), (float, ...)):
        return {tuple, typing.get_args(declared)[0]}
    parts = {declared} if isinstance(declared, type) else set(typing.get_args(declared))
    return parts if parts & {int, float} and parts <= {int, float, type(None)} else set()


def _is_number(x: Any, takes: set[Any], metadata: Mapping[str, Any]) -> bool:
    if x is None:
        return type(None) in takes
    if isinstance(x, bool | np.bool_):
        return False
    if isinstance(x, int | np.integer):
        return True
    if isinstance(x, float | np.floating):
        return float(x) == x and (float in takes or (x.is_integer() and not metadata.get("static")))
    return hasattr(x, "shape") and hasattr(x, "dtype")  # an array, a tracer or the shape of one


def check_numbers(thing: Any, wanted: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse fields out of range, named by the range that they must lie in; not those that are traced or stacked.

    For the `__check_init__` of whatever has settings: a number out of range would run to the end and learn nothing.
    """
    check_types(thing)
    usual = {field.name: field.default for field in dataclasses.fields(thing)}
    for words, names in wanted.items():
        for name in names:
            x = getattr(thing, name)
            if isinstance(x, int | float | np.integer | np.floating) and not _HOLDS[words](x):
                hint = "" if usual[name] is dataclasses.MISSING else f": {usual[name]} is usual"
                raise ValueError(f"{type(thing).__name__} takes {words} as {name}, got {x}{hint}.")


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
