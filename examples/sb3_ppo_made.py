"""PPO of Stable-Baselines3 on a sparse grid, without a bonus and with MADE: wrap the environment.

A task made/... is compiled. Without made/ it is that of the minigrid package, which is slower.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from curves import draw, record
from stable_baselines3 import PPO

from made.adapters.sb3 import VIEW_POLICY, BonusVecEnv, grid_envs
from made.bonuses import MADE, FirstVisit, make_bonus

BONUS = {"strength": 0.15, "every": 100}  # total bonus of an episode; reaching the goal gives up to 1
AGENT = {"n_steps": 100, "batch_size": 400, "n_epochs": 4, "learning_rate": 6e-4, "ent_coef": 1e-3}


def train(task: str, name: str, steps: int, seed: int, n_envs: int = 32) -> list[tuple[float, ...]]:
    """Rows of (steps, mean return and success rate of the last 200 episodes, CPU seconds)."""
    bonus = FirstVisit(MADE.deep()) if name == "made" else make_bonus(name)
    venv = BonusVecEnv(grid_envs(task, n_envs), bonus, show="image", seed=seed, **BONUS)
    model = PPO("MlpPolicy", venv, seed=seed, device="cpu", policy_kwargs=VIEW_POLICY, **AGENT)
    returns, rows, began = [], [], time.process_time()

    def callback(local: dict, _: dict) -> bool:
        returns.extend(info["episode"]["r"] for info in local["infos"] if "episode" in info)
        if model.num_timesteps % (n_envs * AGENT["n_steps"]) == 0 and returns:
            last = np.array(returns[-200:])
            rows.append((model.num_timesteps, last.mean(), (last > 0).mean(), time.process_time() - began))
        return True

    model.learn(steps, callback=callback)
    print(f"{name:12} seed {seed}: mean return {rows[-1][1]:.3f} after {steps:,} steps, {rows[-1][3]:.0f} CPU seconds")
    return rows


def main(words: list[str] | None = None) -> dict | Path:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--task", default="made/MiniGrid-MultiRoom-N4-S5-v1")
    flags.add_argument("--steps", type=int, default=200_000)
    flags.add_argument("--seeds", type=int, nargs="+", default=[0])
    flags.add_argument("--bonus", nargs="+", default=["none", "made"], help="none, made, or any of `made list`")
    flags.add_argument("--out", type=Path, default=Path("results/sb3"), help="folder for the curves")
    flags.add_argument("--draw", type=Path, help="plot all curves to this .png; --steps 0 only plots")
    given, began = flags.parse_args(words), time.time()
    settings = {"task": given.task, "command": " ".join(["python", *sys.argv]), "bonus": BONUS, "agent": AGENT}
    found = {}
    for name in given.bonus if given.steps else ():
        found[name] = {seed: train(given.task, name, given.steps, seed) for seed in given.seeds}
        record(given.out / f"{given.task.replace('/', '_')}-{name}.json", {name: found[name]}, began, **settings)
    return found if given.draw is None else draw(sorted(given.out.glob("*.json")), given.draw)


if __name__ == "__main__":
    main()
