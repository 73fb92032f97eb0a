"""Which machine a benchmark ran on."""

import time

from made.results.provenance import provenance


def device() -> str:
    """The machine, in words."""
    made_by = provenance(time.time(), 0.0)
    where = f"jax {made_by['jax']} on {made_by['device_platform']}"
    if made_by["device_platform"] != "cpu":
        return f"{made_by['device']}, {where}"
    return f"{made_by['cpu']}, {made_by['cpu_cores']} cores, {where}"
