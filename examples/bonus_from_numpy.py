"""A bonus by hand from NumPy, in your own training loop on a Gymnasium environment.

The loop is Q-learning on an 8 x 8 frozen lake, paid by the bonus alone; the lake's own reward is only counted.
`HostBonus` computes what the compiled loop would. Run it: python examples/bonus_from_numpy.py
"""

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from made import MADE, HostBonus, HostEnvironment
from made.host import true_successor
from made.trees import stack

N, STEPS, GAMMA = 4, 400, 0.95


def lakes() -> SyncVectorEnv:
    """Lakes that keep the true successor when an episode ends, as a bonus needs it."""
    make = lambda: gymnasium.make("FrozenLake-v1", map_name="8x8", is_slippery=False)  # noqa: E731
    return SyncVectorEnv([make] * N, autoreset_mode=AutoresetMode.SAME_STEP)


def explore(curious: bool, seed: int = 0) -> dict[str, int]:
    """Cells seen and goals reached by a curious agent, or by one that acts at random."""
    env, rng = HostEnvironment(lakes()), np.random.default_rng(seed)
    bonus = HostBonus(MADE.tabular(window=1000), env.spec, N, seed)
    q = np.ones((env.spec.obs.n, env.spec.action.n))  # what is untried is worth V_max = 1
    seen, goals = np.zeros(env.spec.obs.n, bool), 0
    obs, _ = env.venv.reset(seed=seed)
    bonus.reset(obs)
    for _ in range(STEPS):
        noise = rng.random((N, q.shape[1]))  # breaks ties, or decides alone
        action = (q[obs] + 1e-6 * noise if curious else noise).argmax(-1)
        after, reward, terminated, truncated, info = env.venv.step(action)
        successor = true_successor(after, info, terminated | truncated)
        step = bonus.step(obs, action, reward, successor, terminated, truncated, after)
        bonus.update(stack([step]))  # batches lead with [T, N]; here T = 1
        r_k = (1 - GAMMA) * bonus.reward(step)  # Eq. (6) with r = 0: at most 1 - gamma, so that Q is at most 1
        q[obs, action] = r_k + GAMMA * np.where(terminated, 0.0, q[successor].max(-1))
        seen[successor] = True
        goals += int(reward.sum())
        obs = after
    return {"cells": int(seen.sum()), "goals": goals}


def main() -> dict[str, dict[str, int]]:
    """The same loop with and without the bonus."""
    found = {"at random": explore(curious=False), "curious": explore(curious=True)}
    for name, of in found.items():
        print(f"{name:9}: {of['cells']} of 64 cells seen and {of['goals']} goals reached in {N * STEPS} steps")
    return found


if __name__ == "__main__":
    main()
