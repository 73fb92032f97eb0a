"""rlberry's UCBVI on an MDP given as arrays. Run by an interpreter that has rlberry; imports nothing of made.

    python rlberry_lock.py FOLDER HORIZON EPISODES      prints episodes a second

rlberry wants a Gymnasium older than made does, so the two rarely share an environment.
"""

import sys
import time

import numpy as np


def main(folder: str, horizon: int, episodes: int) -> float:
    from rlberry.envs.finite_mdp import FiniteMDP  # type: ignore[import-not-found]
    from rlberry_scool.agents.ucbvi import UCBVIAgent  # type: ignore[import-not-found]

    P, r = np.load(f"{folder}/P.npy", allow_pickle=False), np.load(f"{folder}/r.npy", allow_pickle=False)
    agent = UCBVIAgent(FiniteMDP(r, P, initial_state_distribution=0), gamma=1.0, horizon=horizon)
    agent.fit(budget=20)  # numba compiles here
    began = time.perf_counter()
    agent.fit(budget=episodes)
    return episodes / (time.perf_counter() - began)


if __name__ == "__main__":
    print(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
