"""Write a bonus of your own, and wrap it in MADE.

Usage: python examples/own_bonus.py
"""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from made import MADE, Bonus, RecentCounts, RunConfig, ValueIteration, make, run_batch
from made.core import EpisodeMemory, NoMemory, table_sizes

EPISODES, SEEDS = 600, 10


class UpperConfidence(Bonus):
    """The bonus of UCB1 for bandits, on state-action pairs.

    b(s, a) = scale * sqrt(log(1 + sum N) / max(N(s, a), 1))
    """

    scale: float = 0.2
    memory: EpisodeMemory = NoMemory()
    reads: ClassVar[tuple[str, ...]] = ("obs", "action")

    def init(self, key, spec):
        return jnp.zeros(table_sizes(spec, "UpperConfidence"))

    def reward(self, state, batch, *, value=None):
        table = self.scale * jnp.sqrt(jnp.log1p(state.sum()) / jnp.maximum(state, 1.0))
        return table[batch.obs, batch.action]

    def update(self, state, batch, key):
        return state.at[batch.obs, batch.action].add(1.0), {}


def main() -> dict[str, float]:
    """Mean return of each bonus on a lock of five columns."""
    greedy, optimist = ValueIteration(initial=0.0, monotone=0.0), ValueIteration(monotone=0.0)
    agents_and_bonuses = {
        "greedy, no bonus": (greedy, UpperConfidence(scale=0.0)),
        "optimist, no bonus": (optimist, UpperConfidence(scale=0.0)),  # only numbers differ, so it is not recompiled
        "own bonus": (optimist, UpperConfidence()),
        "MADE of own bonus": (optimist, MADE(UpperConfidence(), RecentCounts(window=1000))),
    }
    found = {}
    for name, (agent, bonus) in agents_and_bonuses.items():
        run = RunConfig(make("lock-H5"), agent, bonus, unroll=6, iterations=EPISODES, every=EPISODES)
        found[name] = float(np.mean([record.rows["return"] for record in run_batch([run] * SEEDS, range(SEEDS))]))
        print(f"{name:18} mean return over {EPISODES} episodes and {SEEDS} seeds: {found[name]:6.3f}")
    return found


if __name__ == "__main__":
    main()
