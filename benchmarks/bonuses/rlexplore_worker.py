"""RLeXplore's bonuses on recorded MiniGrid steps. Run by an interpreter that has rllte-core; imports nothing of made.

    python rlexplore_worker.py FOLDER REPEATS      prints one line of JSON: for each bonus the seconds of computing and
                                                    updating, those of watching, and the number of its parameters

`compute` with sync=True also updates. The default encoder refuses 7 x 7 images, so "espeholt" is chosen; all else is
as it comes.
"""

import json
import sys
import time

import numpy as np


def main(folder: str, repeats: int) -> dict[str, list | str]:
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

    found: dict[str, list | str] = {}
    for kind in (RND, RE3, ICM, E3B, RIDE, PseudoCounts, Disagreement):
        try:
            bonus = kind(Stored(), encoder_model="espeholt")
            found[kind.__name__] = [*seconds(bonus, samples, repeats), parameters(bonus, torch.nn.Module)]
        except Exception as error:  # one that does not run is named, and the others are still measured
            found[kind.__name__] = f"{type(error).__name__}: {error}"
    return found


def seconds(bonus, samples, repeats: int) -> tuple[float, float]:
    """(compute and update, watch): the best of several calls, each after every step was watched, as they ask for."""
    computing = watching = float("inf")
    while not getattr(bonus, "storage_full", True):  # RE3's: what it costs once 1,000 steps were made
        watch(bonus, samples)
    for _ in range(repeats + 1):
        began = time.perf_counter()
        watch(bonus, samples)
        probe_states = time.perf_counter()
        bonus.compute(samples, sync=True)
        computing = min(computing, time.perf_counter() - probe_states)
        watching = min(watching, probe_states - began)
    return computing, watching


def watch(bonus, samples) -> None:
    for t in range(len(samples["rewards"])):
        bonus.watch(*(samples[name][t] for name in samples))


def parameters(bonus, module) -> int:
    """Of every network that it holds, alone or in a list."""
    held = [x for value in vars(bonus).values() for x in (value if isinstance(value, list) else [value])]
    return sum(p.numel() for x in held if isinstance(x, module) for p in x.parameters())


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
