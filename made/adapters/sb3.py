"""Exploration bonuses for Stable-Baselines3: `BonusVecEnv` for any agent, `BonusReplayBuffer` for off-policy ones.

    venv = GymVecEnv(gymnasium.make_vec("made/MiniGrid-DoorKey-8x8-v0", num_envs=16))
    venv = BonusVecEnv(venv, "made", strength=0.3)
    model = PPO("MultiInputPolicy", venv).learn(1_000_000)

`step_wait` adds the bonus, so the agent discounts it, bootstraps it and computes advantages with it as with any
other reward.
"""

import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from made.adapters.gymnasium import PREFIX, copied
from made.adapters.reward_mixer import Mode, RewardMixer, SavesBonus
from made.core import Bonus, dict_obs
from made.core.plugins import needs
from made.envs.host_env import replace_rows
from made.training.host.bonus import HostBonus

with needs("made.adapters.sb3", "sb3", "stable_baselines3", "torch"):
    import torch
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

    from made.adapters.sb3_replay import BonusReplayBuffer as BonusReplayBuffer
    from made.adapters.sb3_replay import channels_last, channels_last_space

SIZES = (11, 6, 3)  # object types, colors and states of a cell of MiniGrid


class BonusVecEnv(SavesBonus, VecEnvWrapper):
    """Adds `coef` times the bonus to each reward, and reports both parts in `infos`:

        extrinsic, intrinsic      of this step; intrinsic is coef times the bonus
        episode_intrinsic         at the end of an episode, the sum of the latter

    A Monitor or VecMonitor *inside* it (the usual place) keeps the statistics of episodes extrinsic. The bonus reads
    all parts of a dictionary observation; the policy sees the part that `show` names, or all but "hash", the full
    state that grids offer for counting. Options: coef, mode, every, strength as in `RewardMixer`; on_bad, horizon as in
    `HostBonus`.
    """

    def __init__(
        self,
        venv: VecEnv,
        bonus: Bonus | str,
        coef: float | Callable[[int], Any] = 1.0,
        mode: Mode = "both",
        every: int = 128,
        strength: float | None = None,
        seed: int = 0,
        show: str = "",
        **options: Any,
    ):
        whole = venv.observation_space
        if isinstance(whole, gymnasium.spaces.Dict):
            shown = dict_obs.looked_at(dict(whole.spaces), show)
            seen = gymnasium.spaces.Dict(shown) if isinstance(shown, dict) else shown
        else:
            seen = dict_obs.part(whole, show)
        super().__init__(venv, observation_space=seen)
        self.bonus = HostBonus(bonus, channels_last_space(whole), venv.action_space, venv.num_envs, seed, **options)
        self.payer, self.show, self._whole = RewardMixer(self.bonus, coef, mode, every, strength), show, whole
        self._obs, self._actions, self._earned = None, None, np.zeros(venv.num_envs)

    @property
    def metrics(self) -> dict[str, float]:
        """What the last update of the bonus reported, and the present coefficient."""
        return self.payer.metrics

    def reset(self) -> Any:
        obs = self.venv.reset()
        self._obs, self._earned = channels_last(obs, self._whole), np.zeros(self.num_envs)
        self.bonus.reset(self._obs)
        return dict_obs.looked_at(obs, self.show)

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = np.array(actions)
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        obs, rewards, dones, infos = self.venv.step_wait()
        truncated = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos]) & dones
        after = channels_last(obs, self._whole)
        finals = [self._final(info) if done else None for info, done in zip(infos, dones, strict=True)]
        successor = replace_rows(after, finals, dones) if dones.any() else after
        step = self.bonus.observe(self._obs, self._actions, rewards, successor, dones & ~truncated, truncated, after)
        paid = self.payer.pay(step, rewards)
        self._earned += paid.intrinsic
        for i, info in enumerate(infos):
            info["extrinsic"], info["intrinsic"] = float(paid.extrinsic[i]), float(paid.intrinsic[i])
            if dones[i]:
                info["episode_intrinsic"] = float(self._earned[i])
                info["terminal_observation"] = dict_obs.looked_at(info["terminal_observation"], self.show)
        self._obs, self._earned = after, np.where(dones, 0.0, self._earned)
        return dict_obs.looked_at(obs, self.show), paid.reward, dones, infos

    def _final(self, info: dict[str, Any]) -> Any:
        if "terminal_observation" not in info:
            raise ValueError(
                "An episode ended without infos[i]['terminal_observation'], so its true successor is lost: every "
                "VecEnv of Stable-Baselines3 keeps it, and so must this one."
            )
        return channels_last(info["terminal_observation"], self._whole, axes=0)


class GymVecEnv(VecEnv):
    """A Gymnasium vector environment with SAME_STEP autoreset as Stable-Baselines3's VecEnv: one call steps them all.

    Compiled grids run many times faster so than as a list of single environments. It reports `infos[i]["episode"]`
    as VecMonitor does.
    """

    def __init__(self, envs: gymnasium.vector.VectorEnv):
        mode = envs.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            raise ValueError(f"GymVecEnv needs SAME_STEP autoreset, which keeps the last observation, not {mode}.")
        self.envs, self.render_mode, self._began = envs, None, time.time()
        self._actions, self._returns, self._lengths = None, np.zeros(envs.num_envs), np.zeros(envs.num_envs, int)
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> Any:
        obs, _ = self.envs.reset(seed=self._seeds[0])
        self._reset_seeds()
        self._reset_options()
        self._returns[:], self._lengths[:] = 0.0, 0
        return copied(obs)

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> Any:
        obs, rewards, terminated, truncated, info = self.envs.step(self._actions)
        dones, infos = terminated | truncated, [{} for _ in range(self.num_envs)]
        self._returns, self._lengths = self._returns + rewards, self._lengths + 1
        for i in np.flatnonzero(dones):
            seconds = round(time.time() - self._began, 6)
            infos[i] = {
                "terminal_observation": copied(info["final_obs"][i]),
                "TimeLimit.truncated": bool(truncated[i] and not terminated[i]),
                "episode": {"r": round(float(self._returns[i]), 6), "l": int(self._lengths[i]), "t": seconds},
            }
        self._returns[dones], self._lengths[dones] = 0.0, 0
        return copied(obs), rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        self.envs.close()

    def has_attr(self, attr_name: str) -> bool:
        return hasattr(self.envs, attr_name)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.envs, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        setattr(self.envs, attr_name, value)

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        found = getattr(self.envs, method_name)(*method_args, **method_kwargs)
        return [found for _ in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]


class OneHotView(BaseFeaturesExtractor):
    """Features of MiniGrid's 7 x 7 views, which are too small for SB3's network for images: one-hot, then one layer."""

    def __init__(self, space: gymnasium.Space, width: int = 128):
        super().__init__(space, width)
        cells = int(space.shape[1] * space.shape[2])  # type: ignore[index]
        self.layer = torch.nn.Sequential(torch.nn.Linear(cells * sum(SIZES), width), torch.nn.ReLU())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Views with channels first, as SB3 turns images."""
        columns = [torch.nn.functional.one_hot(observations[:, i].long(), n) for i, n in enumerate(SIZES)]
        return self.layer(torch.cat(columns, -1).flatten(1).float())


VIEW_POLICY = {"features_extractor_class": OneHotView, "normalize_images": False, "net_arch": [128]}


def grid_envs(task: str, n: int) -> GymVecEnv:
    """n environments of a task: "made/MiniGrid-..." compiled, or the minigrid package's own without the prefix.

    Compiled ones show the view and a hash of the full state, which `BonusVecEnv` keeps for the bonus; the package's
    show the view alone. The mission's text, which no bonus reads, is left out.
    """
    if task.startswith(PREFIX):
        return GymVecEnv(gymnasium.make_vec(task, n, shows=("image", "hash")))
    with needs(f"The task {task!r}", "grid", "minigrid"):
        import minigrid  # noqa: F401, importing it registers its tasks

    keep = [lambda env: gymnasium.wrappers.FilterObservation(env, ["image"])]
    options = {"autoreset_mode": AutoresetMode.SAME_STEP}
    return GymVecEnv(gymnasium.make_vec(task, n, "sync", vector_kwargs=options, wrappers=keep))
