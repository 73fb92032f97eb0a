"""RLeXplore's bonuses on recorded MiniGrid steps. Run by an interpreter that has rllte-core; imports nothing of made.

    python rlexplore_bonuses.py FOLDER REPEATS      prints one line of JSON: seconds of each bonus, compute and update

`compute` with sync=True also updates. The default encoder refuses 7 x 7 images, so "espeholt" is chosen.
"""

import json
import sys
import time

import numpy as np


def main(folder: str, repeats: int) -> dict[str, float | str]:
    import gymnasium
    import torch
    from gymnasium.vector import VectorEnv
    from rllte.xplore.reward import E3B, ICM, RE3, RIDE, RND, Disagreement, PseudoCounts  # type: ignore

    stored = np.load(f"{folder}/steps.npz", allow_pickle=False)
    images = {name: torch.tensor(stored[name]).float().movedim(-1, 2) for name in ("obs", "next_obs")}
    steps, n = stored["reward"].shape
    flags = {name: torch.tensor(stored[name]).float() for name in ("reward", "terminated", "truncated")}
    samples = {
        "observations": images["obs"], "actions": torch.tensor(stored["action"]), "rewards": flags["reward"],
        "terminateds": flags["terminated"], "truncateds": flags["truncated"], "next_observations": images["next_obs"],
    }  # fmt: skip

    class Stored(VectorEnv):
        """Hands out recorded observations: RLeXplore steps the environment at random to learn their moments."""

        num_envs, at = n, 0
        single_observation_space = gymnasium.spaces.Box(0, 255, tuple(images["obs"].shape[2:]), np.uint8)
        single_action_space = gymnasium.spaces.Discrete(7)

        def reset(self, **_):
            return images["obs"][0], {}

        def step(self, actions):
            self.at = (self.at + 1) % steps
            off = torch.zeros(n)
            return images["obs"][self.at], off, off, off, {}

    found: dict[str, float | str] = {}
    for kind in (RND, RE3, ICM, E3B, RIDE, PseudoCounts, Disagreement):
        try:
            found[kind.__name__] = seconds(kind(Stored(), encoder_model="espeholt"), samples, repeats)
        except Exception as error:  # one that does not run is named, and the others are still measured
            found[kind.__name__] = f"{type(error).__name__}: {error}"
    return found


def seconds(bonus, samples, repeats: int) -> float:
    """The best of several calls, each after every step has been watched, as its documentation asks."""
    best = float("inf")
    for _ in range(repeats + 1):
        for t in range(len(samples["rewards"])):
            bonus.watch(*(samples[name][t] for name in samples))
        began = time.perf_counter()
        bonus.compute(samples, sync=True)
        best = min(best, time.perf_counter() - began)
    return best


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
