"""Run by devices_test.py in a process of its own: the same training on one device and on eight virtual ones."""

import jax
import numpy as np
from training import tiny

from made.bonuses import HashedCount
from made.training import checkpoint_file, sharding
from made.training.backends import compiled_envs


def after(seeds: int, count: int):
    """What two seeds have come to after four updates in two rows: state, last row, evaluation."""
    plan = tiny.plan(seeds, bonus=HashedCount(bits=6))
    backend = compiled_envs.CompiledBackend(plan, count)
    state = backend.put(jax.jit(compiled_envs.begin)(backend.runs, backend.seeds))
    for n in (3, 1):
        state, row = backend.advance(state, n)
    exam = backend.evaluate(state)
    assert {len(x.sharding.device_set) for x in jax.tree.leaves(state.streams)} == {count}
    return {name: x[:2] for name, x in checkpoint_file.flat((state, row, exam)).items()}


def largest_difference(one, other) -> float:
    """Whole numbers must be equal, keys and levels among them; of the others, the largest difference."""
    assert one.keys() == other.keys()
    worst = 0.0
    for name, x in one.items():
        if np.issubdtype(x.dtype, np.floating):
            np.testing.assert_allclose(other[name], x, rtol=1e-4, atol=1e-5, err_msg=name)
            worst = max(worst, float(np.nanmax(np.abs(other[name] - x), initial=0.0)))
        else:
            np.testing.assert_array_equal(other[name], x, err_msg=name)
    return worst


if __name__ == "__main__":
    sharding.options = lambda level: {"xla_backend_optimization_level": 0}
    assert jax.device_count() == 8
    alone = after(2, 1)
    for seeds in (8, 2):  # a seed on each device; two seeds whose environments are on four devices each
        print(f"{seeds} seeds: {largest_difference(alone, after(seeds, 8)):.1e}")
