"""MiniGrid for Stable-Baselines3: tasks by name as one VecEnv, and a network that reads their small symbolic views.

SB3's own network for images wants 36 x 36 pixels or more, and a view is 7 x 7 cells whose numbers are names.
"""

import gymnasium
from gymnasium.vector import AutoresetMode

from made.adapters.gymnasium import PREFIX
from made.core.extras import needs

with needs("made.adapters.sb3_minigrid", "sb3", "stable_baselines3", "torch"):
    import torch
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    from made.adapters.sb3 import GymVecEnv

SIZES = (11, 6, 3)  # how many kinds, colours and states a cell may have


class OneHotView(BaseFeaturesExtractor):
    """A column of zeros and a one for each number of the view, then one layer of `width`."""

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
