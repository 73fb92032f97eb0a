"""Tabular MADE: value iteration with the bonus 1/sqrt(N B) finds the far end of the bidirectional lock.

Usage: python examples/tabular_made.py
"""

import numpy as np

from made import MADE, RunConfig, ValueIteration, make, run_batch
from made.tabular.families import Lock
from made.tabular.solve import horizon_optimum

EPISODES, SEEDS = 900, 10


def main() -> dict[str, float]:
    """Train ten seeds in one compiled program."""
    lock = make("lock")  # H = 10, p = 0.1; episodes have 11 steps
    run = RunConfig(lock, ValueIteration(), MADE.tabular(window=1000), unroll=11, iterations=EPISODES, every=100)
    records = run_batch([run] * SEEDS, range(SEEDS))
    returns = np.array([record.rows["return"] for record in records]).mean(axis=0)
    best = float(horizon_optimum(Lock(H=10).draw(), 11)[0])

    print(f"mean return of {SEEDS} seeds; the best policy has {best:.3f}")
    for step, mean in zip(records[0].rows["step"], returns, strict=True):
        print(f"  episodes {step - 99:4} to {step:4}: {mean:6.3f}")
    return {"first": float(returns[0]), "last": float(returns[-1]), "best": best}


if __name__ == "__main__":
    main()
