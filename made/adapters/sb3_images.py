"""Images as Stable-Baselines3 may turn them, channels first, as the bonuses read them, channels last."""

from typing import Any

import gymnasium
import numpy as np

from made.adapters import needs

with needs("made.adapters.sb3_images", "sb3", "stable_baselines3", "torch"):
    from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first


def _turned(space: gymnasium.Space) -> bool:
    return is_image_space(space) and is_image_space_channels_first(space)  # type: ignore[arg-type]


def last_space(space: gymnasium.Space) -> gymnasium.Space:
    """The space with every channels-first image turned; what is no image stays."""
    if isinstance(space, gymnasium.spaces.Dict):
        return gymnasium.spaces.Dict({name: last_space(inner) for name, inner in space.spaces.items()})
    if _turned(space):
        c, h, w = space.shape  # type: ignore[misc]
        return gymnasium.spaces.Box(0, 255, (h, w, c), np.uint8)
    return space


def channels_last(obs: Any, space: gymnasium.Space, axes: int = 1) -> Any:
    """Observations of `space` as `last_space` has them; `axes` leading axes. Nothing is copied."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: channels_last(obs[name], inner, axes) for name, inner in space.spaces.items()}
    return np.moveaxis(obs, axes, -1) if _turned(space) else obs
