"""Which numbers an agent takes: one out of range would run to the end and learn nothing, or worse."""

import dataclasses
import math
from collections.abc import Callable, Mapping

from made.core import Agent

SHARE, AT_LEAST_ZERO, ABOVE_ZERO = "a number from 0 to 1", "a number of at least 0", "a number above 0"
_HOLDS: dict[str, Callable[[float], bool]] = {  # none of them of what is not a number
    SHARE: lambda x: 0 <= x <= 1,
    AT_LEAST_ZERO: lambda x: 0 <= x < math.inf,
    ABOVE_ZERO: lambda x: x > 0,
}


def check_numbers(agent: Agent, wanted: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse fields out of range, named by the range that they must lie in; not those that are traced or stacked."""
    usual = {field.name: field.default for field in dataclasses.fields(agent)}
    for words, names in wanted.items():
        for name in names:
            x = getattr(agent, name)
            if isinstance(x, int | float) and not _HOLDS[words](x):
                raise ValueError(f"{type(agent).__name__} takes {words} as {name}, got {x}: {usual[name]} is usual.")
