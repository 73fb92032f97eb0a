"""A bonus scaled by itself: so that what it pays in an episode is a chosen share of what the task can pay."""

from typing import NamedTuple

import numpy as np

DECAY = 0.999  # of the mean bonus, a step of all environments: it remembers about a thousand
EPISODES = 0.95  # of the mean length, an ended episode
SHORTEST = 100  # an episode's length, before one has ended and where the clock is not known


class Seen(NamedTuple):
    """What has been measured so far."""

    bonus: np.ndarray  # the decayed sum of the mean bonus of a step, and of its weights
    weight: np.ndarray
    length: np.ndarray  # the same of the lengths of episodes
    episodes: np.ndarray
    best: np.ndarray  # the largest return of an episode, whatever its sign
    returns: np.ndarray  # [N], of the episodes under way
    steps: np.ndarray  # [N]


class Share:
    """The factor f with  f * (mean bonus of a step) * (mean length of an episode) = share * prize.

    The prize is the largest extrinsic return seen, and 1 before any: a sparse task has paid nothing when the bonus is
    needed most. So share = 0.3 means that an episode earns 0.3 by exploring where success is worth 1, whatever the
    units of the bonus, and also when the bonus itself has shrunk; let tau fall if it should fade.
    """

    def __init__(self, share: float, n_envs: int, horizon: int | None = None):
        if not share > 0:
            raise ValueError(f"share must be above 0, for instance 0.3, got {share}.")
        self.share, self.horizon = float(share), horizon
        zero = np.zeros(())
        self.seen = Seen(zero, zero, zero, zero, zero, np.zeros(n_envs), np.zeros(n_envs))

    def see(self, bonus: np.ndarray, extrinsic: np.ndarray, done: np.ndarray, true: np.ndarray) -> None:
        """Take in one step of every environment; only true steps count."""
        seen = self.seen
        if not true.any():
            return
        returns, steps = seen.returns + np.where(true, extrinsic, 0.0), seen.steps + true
        length, episodes = seen.length, seen.episodes
        for ended in steps[done & true]:
            length, episodes = EPISODES * length + ended, EPISODES * episodes + 1
        best = np.maximum(seen.best, np.abs(returns[done & true]).max(initial=0.0))
        mean = float(bonus[true].mean())
        self.seen = Seen(
            np.asarray(DECAY * seen.bonus + mean), np.asarray(DECAY * seen.weight + 1), np.asarray(length),
            np.asarray(episodes), np.asarray(best), np.where(done, 0.0, returns), np.where(done, 0.0, steps),
        )  # fmt: skip

    def scale(self) -> float:
        """The factor as it stands; 0 while the bonus has paid nothing."""
        seen = self.seen
        if seen.bonus <= 0:
            return 0.0
        longest = max(SHORTEST, float(seen.steps.max()))
        length = float(seen.length / seen.episodes) if seen.episodes > 0 else float(self.horizon or longest)
        prize = float(seen.best) if seen.best > 0 else 1.0
        return self.share * prize / (float(seen.bonus / seen.weight) * length)
