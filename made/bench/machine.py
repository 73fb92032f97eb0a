"""Which machine a benchmark ran on, and how its calls are timed."""

import time
from collections.abc import Callable

import jax

from made.results.provenance import provenance


def device() -> str:
    """The machine, in words."""
    made_by = provenance(time.time(), 0.0)
    where = f"jax {made_by['jax']} on {made_by['device_platform']}"
    if made_by["device_platform"] != "cpu":
        return f"{made_by['device']}, {where}"
    return f"{made_by['cpu']}, {made_by['cpu_cores']} cores, {where}"


def best_of(call: Callable, repeats: int = 3) -> float:
    """Seconds of a call, all it computes included: the best of several after a first one."""
    jax.block_until_ready(call())
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(call())
        best = min(best, time.perf_counter() - began)
    return best
