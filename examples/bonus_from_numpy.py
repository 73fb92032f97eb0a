"""Use a bonus from NumPy, in a loop of your own on a Gymnasium environment.

The agent plans on an 8 x 8 frozen lake with the bonus as its only reward and counts the goals that it reaches.

Usage: python examples/bonus_from_numpy.py
"""

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from made import MADE, HostBonus
from made.core import state_action_grid
from made.core.trees import stack
from made.training.host.bonus import HostEnvironment, true_successor

N, STEPS, GAMMA = 4, 300, 0.95


def plan(bonus: np.ndarray, successors: np.ndarray) -> np.ndarray:
    """Q[s, a] for the bonus of each pair as reward; -1 in `successors` ends the episode."""
    v = np.zeros(len(bonus))
    for _ in range(40):
        q = bonus + GAMMA * np.where(successors < 0, 0.0, v[successors])
        v = q.max(-1)
    return q


def explore(coef: float, seed: int = 0) -> dict[str, int]:
    """Cells visited and goals reached with coef times the bonus as reward; coef = 0 acts at random."""
    make = lambda: gymnasium.make("FrozenLake-v1", map_name="8x8", is_slippery=False)  # noqa: E731
    env = HostEnvironment(SyncVectorEnv([make] * N, autoreset_mode=AutoresetMode.SAME_STEP))
    rng, (s, a) = np.random.default_rng(seed), (env.spec.obs.n, env.spec.action.n)
    bonus = HostBonus(MADE.tabular(window=1000), env.spec, N, seed)
    successors = np.tile(np.arange(s)[:, None], a)  # an untried action is assumed to stay and to repeat its bonus
    seen, goals = np.zeros(s, bool), 0
    obs, _ = env.venv.reset(seed=seed)
    bonus.reset(obs)
    for _ in range(STEPS):
        q = plan(coef * bonus.reward(state_action_grid(s, a)), successors)
        action = (q[obs] + 1e-6 * rng.random((N, a))).argmax(-1)  # break ties at random
        after, reward, terminated, truncated, info = env.venv.step(action)
        successor = true_successor(after, info, terminated | truncated)
        step = bonus.step(obs, action, reward, successor, terminated, truncated, after)
        bonus.update(stack([step]))  # batches have leading axes [T, N]; here T = 1
        successors[obs, action] = np.where(terminated, -1, successor)
        seen[successor], goals, obs = True, goals + int(reward.sum()), after
    return {"cells": int(seen.sum()), "goals": goals}


def main() -> dict[float, dict[str, int]]:
    """Run the loop without and with the bonus."""
    found = {coef: explore(coef) for coef in (0.0, 1.0)}
    for coef, of in found.items():
        print(f"coef = {coef:g}: {of['cells']} of 64 cells visited, {of['goals']} goals reached in {N * STEPS} steps")
    return found


if __name__ == "__main__":
    main()
