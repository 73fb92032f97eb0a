"""A Gymnasium vector environment whose rewards include an exploration bonus, with either kind of autoreset.

envs = BonusVectorWrapper(gymnasium.make_vec("made/MiniGrid-MultiRoom-N6-v0", num_envs=32), "made", coef=0.1)
"""

from collections.abc import Callable
from os import PathLike
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from made.adapters.reward_mixer import Mode, RewardMixer
from made.core import Bonus
from made.envs.external.spaces import true_successor
from made.training.host.bonus import HostBonus


class BonusVectorWrapper(gymnasium.vector.VectorWrapper):
    """Adds `coef` times the bonus to each reward; info["extrinsic"] and info["intrinsic"] hold the two parts, [N].

    With SAME_STEP the true successor of a last step is info["final_obs"]. With NEXT_STEP it is the observation
    returned; the call after it only resets, so it earns nothing and is never learnt from. Put wrappers that record
    the statistics of episodes inside this one, and they stay extrinsic.
    """

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv,
        bonus: Bonus | str,
        coef: float | Callable[[int], Any] = 1.0,
        mode: Mode = "both",
        every: int = 128,
        strength: float | None = None,
        seed: int = 0,
        **options: Any,
    ):
        super().__init__(env)
        self._kind = env.metadata.get("autoreset_mode")
        if self._kind not in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
            raise ValueError(
                f"This vector environment has autoreset_mode {self._kind}, so that the end of an episode cannot be "
                "told from the start of the next: make it with SAME_STEP or NEXT_STEP."
            )
        spaces = env.single_observation_space, env.single_action_space
        self.bonus = HostBonus(bonus, *spaces, env.num_envs, seed, **options)
        self.payer = RewardMixer(self.bonus, coef, mode, every, strength)
        self._obs, self._ended = None, np.zeros(env.num_envs, bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None):
        obs, info = self.env.reset(seed=seed, options=options)
        self.bonus.reset(obs)
        self._obs, self._ended = obs, np.zeros(self.num_envs, bool)
        return obs, info

    def step(self, actions):
        if self._obs is None:
            raise gymnasium.error.ResetNeeded("Call reset before step.")
        before = _copy(self._obs)  # some vector environments write the next observation into the same arrays
        after, reward, terminated, truncated, info = self.env.step(actions)
        done = terminated | truncated
        same = self._kind is AutoresetMode.SAME_STEP
        successor = true_successor(after, info, done) if same else after
        step = self.bonus.observe(before, actions, reward, successor, terminated, truncated, after)
        paid = self.payer.pay(step, np.asarray(reward), ~self._ended)
        if self._ended.any():
            self.bonus.begin(after, self._ended)
        self._obs, self._ended = after, np.zeros_like(done) if same else done
        parts = {"extrinsic": paid.extrinsic, "intrinsic": paid.intrinsic}
        return after, paid.reward, terminated, truncated, {**info, **parts}

    def save(self, path: str | PathLike, overwrite: bool = False) -> None:
        """The state of the bonus, to go on from."""
        self.payer.save(path, overwrite)

    def load(self, path: str | PathLike) -> None:
        """Go on from what `save` wrote."""
        self.payer.load(path)


def _copy(obs: Any) -> Any:
    return {name: _copy(x) for name, x in obs.items()} if isinstance(obs, dict) else np.array(obs)
