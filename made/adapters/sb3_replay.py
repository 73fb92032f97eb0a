"""A replay buffer for Stable-Baselines3's off-policy agents that pays old transitions by the present bonus.

model = DQN("MlpPolicy", env, replay_buffer_class=BonusReplayBuffer, replay_buffer_kwargs={"bonus": "rnd"})
"""

from collections.abc import Callable
from os import PathLike
from typing import Any

import gymnasium
import jax
import numpy as np

from made.adapters.reward_mixer import Mode, PluginState, RewardMixer
from made.core import Bonus, Transition
from made.core.plugins import needs
from made.training.host.bonus import HostBonus

with needs("made.adapters.sb3_replay", "sb3", "stable_baselines3", "torch"):
    from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
    from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples


def _turned(space: gymnasium.Space) -> bool:
    return is_image_space(space) and is_image_space_channels_first(space)  # type: ignore[arg-type]


def channels_last_space(space: gymnasium.Space) -> gymnasium.Space:
    """The space with every channels-first image turned; what is no image stays."""
    if isinstance(space, gymnasium.spaces.Dict):
        return gymnasium.spaces.Dict({name: channels_last_space(inner) for name, inner in space.spaces.items()})
    if _turned(space):
        c, h, w = space.shape  # type: ignore[misc]
        return gymnasium.spaces.Box(0, 255, (h, w, c), np.uint8)
    return space


def channels_last(obs: Any, space: gymnasium.Space, axes: int = 1) -> Any:
    """Observations of `space` as `channels_last_space` has them; `axes` leading axes. Nothing is copied."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: channels_last(obs[name], inner, axes) for name, inner in space.spaces.items()}
    return np.moveaxis(obs, axes, -1) if _turned(space) else obs


class BonusReplayBuffer(ReplayBuffer):
    """Stores extrinsic rewards, as ever; `sample` adds `coef` times what the bonus pays for each transition *now*.

    The bonus learns from the fresh steps, `every` of them at a time. Successors are the true ones: SB3 hands the last
    observation of an episode to `add`. What an episodic bonus noted is kept beside each transition. Dictionary
    observations need no other class. `save(path)` and `load(path)` take the place of `model.save_replay_buffer` and
    `model.load_replay_buffer`: one file holds the transitions and the bonus.
    """

    def __new__(cls, buffer_size: int, observation_space: gymnasium.Space, *args: Any, **kwargs: Any):
        kind = _BonusDictReplayBuffer if isinstance(observation_space, gymnasium.spaces.Dict) else BonusReplayBuffer
        return object.__new__(kind)

    def __init__(
        self,
        buffer_size: int,
        observation_space: gymnasium.Space,
        action_space: gymnasium.Space,
        *args: Any,
        bonus: Bonus | str,
        coef: float | Callable[[int], Any] = 1.0,
        mode: Mode = "both",
        every: int = 128,
        seed: int = 0,
        on_bad: Any = "refuse",
        horizon: int | None = None,
        **kwargs: Any,
    ):
        if kwargs.get("optimize_memory_usage"):
            raise ValueError(
                "optimize_memory_usage keeps the first observation of the next episode in the place of an episode's "
                "last, which a bonus must see: leave it off."
            )
        super().__init__(buffer_size, observation_space, action_space, *args, **kwargs)
        options = {"on_bad": on_bad, "horizon": horizon}
        self.bonus = HostBonus(
            bonus, channels_last_space(observation_space), action_space, self.n_envs, seed, **options
        )
        self.payer, self._ended = RewardMixer(self.bonus, coef, mode, every), np.zeros(self.n_envs, bool)
        self._notes = jax.tree.map(
            lambda x: np.zeros((self.buffer_size, *x.shape), x.dtype),
            (self.bonus.step_template().note, self.bonus.step_template().next_note),
        )

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        before, after = (self._read(x) for x in (obs, next_obs))
        began = self._ended | self._elsewhere(before)
        if self.bonus.note is None:
            self.bonus.reset(before)
        elif began.any():
            self.bonus.begin(before, began)
        done = np.asarray(done, bool)
        truncated = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos]) & done
        action = np.asarray(action).reshape((self.n_envs, *self.bonus.spec.action.shape))
        step = self.bonus.observe(before, action, reward, after, done & ~truncated, truncated, after)
        at, self._ended = self.pos, done
        for kept, seen in zip(jax.tree.leaves(self._notes), jax.tree.leaves((step.note, step.next_note)), strict=True):
            kept[at] = np.asarray(seen)
        super().add(obs, next_obs, action, reward, done, infos)
        self.timeouts[at] = truncated  # a clock that ended it is told apart, whatever the buffer makes of it
        self.payer.learn(step, np.ones(self.n_envs, bool))

    def _get_samples(self, batch_inds: np.ndarray, env: Any = None) -> Any:
        rows = batch_inds, np.random.randint(0, self.n_envs, len(batch_inds))
        pick = lambda store: jax.tree.map(lambda x: x[rows], store)  # noqa: E731
        obs, next_obs, (note, next_note) = map(pick, (self.observations, self.next_observations, self._notes))
        dones, timeouts, actions = self.dones[rows].astype(bool), self.timeouts[rows].astype(bool), self.actions[rows]
        extrinsic: Any = self.rewards[rows]
        # The bonus reads observations before they are normalized.
        seen = self._read(obs), actions.reshape((-1, *self.bonus.spec.action.shape)), extrinsic, self._read(next_obs)
        batch = Transition(*seen, dones & ~timeouts, timeouts, note, next_note)  # type: ignore[arg-type]
        intrinsic = np.float32(self.payer.coefficient()) * np.asarray(self.bonus.reward(batch))
        reward = self.payer.total(self._normalize_reward(extrinsic, env), intrinsic)
        tensors = lambda x: jax.tree.map(self.to_torch, self._normalize_obs(x, env))  # noqa: E731
        ends = dones & ~timeouts if self.handle_timeout_termination else dones
        kind = DictReplayBufferSamples if isinstance(obs, dict) else ReplayBufferSamples
        column = lambda x: self.to_torch(x.reshape(-1, 1).astype(np.float32))  # noqa: E731
        return kind(tensors(obs), self.to_torch(actions), tensors(next_obs), column(ends), column(reward))

    def _read(self, obs: Any) -> Any:
        """As the bonus reads it: channels last, and single discrete values without the axis SB3 gives them."""
        turned, spaces = channels_last(obs, self.observation_space), self.bonus.spec.obs
        if not isinstance(spaces, dict):
            return np.reshape(turned, (len(turned), *spaces.shape))
        return {name: np.reshape(turned[name], (-1, *space.shape)) for name, space in spaces.items()}

    def _elsewhere(self, before: Any) -> np.ndarray:
        """Which environments are not where their last transition led: they were reset from outside, or loaded."""
        if not self.size():
            return np.zeros(self.n_envs, bool)
        last = self._read(jax.tree.map(lambda x: x[self.pos - 1], self.next_observations))
        differ = np.zeros(self.n_envs, bool)
        for was, now in zip(jax.tree.leaves(last), jax.tree.leaves(before), strict=True):
            now = np.asarray(now).astype(was.dtype)
            unlike = (was != now) & ~((was != was) & (now != now))  # NaN is where NaN was
            differ |= unlike.reshape(self.n_envs, -1).any(1)
        return differ

    def save(self, path: str | PathLike, overwrite: bool = False) -> None:
        """The transitions and the bonus, in one file beside `model.save`."""
        self.payer.save(path, overwrite, self._plugin_state(self.size()))

    def load(self, path: str | PathLike) -> None:
        """Go on from what `save` wrote for a buffer of the same size, bonus and spaces."""
        found = self.payer.load(path, self._plugin_state(1))
        assert found is not None
        stored = (self._stored(), self._notes)
        for kept, rows in zip(jax.tree.leaves(stored), jax.tree.leaves(found.rows), strict=True):
            kept[: len(rows)], kept[len(rows) :] = rows, 0
        self.pos, self.full, self._ended = int(found.rest["pos"]), bool(found.rest["full"]), found.rest["ended"]

    def _stored(self) -> dict[str, Any]:
        names = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
        return {name: getattr(self, name) for name in names}

    def _plugin_state(self, n: int) -> PluginState:
        """The first n rows, and where the next one goes."""
        rows = jax.tree.map(lambda x: x[:n], (self._stored(), self._notes))
        rest = {"pos": np.int64(self.pos), "full": np.bool_(self.full), "ended": self._ended}
        return PluginState(rows, rest, {"holds": "replay buffer", "buffer_size": self.buffer_size})

    def __getstate__(self) -> dict[str, Any]:
        raise ValueError(
            "A BonusReplayBuffer is not pickled, since its bonus is not: call model.replay_buffer.save(path) in the "
            "place of model.save_replay_buffer(path), and model.replay_buffer.load(path) once the model is loaded."
        )


class _BonusDictReplayBuffer(BonusReplayBuffer, DictReplayBuffer):
    """The same for dictionaries of observations; `BonusReplayBuffer` makes one where the space is a Dict."""
