"""made: exploration in reinforcement learning by maximizing deviation from explored regions.

These are the public names, by theme. Other public modules: `made.tabular`, `made.adapters` and `made.experiments`.
Optional dependencies are imported where they are used.
"""

from made.agents import (
    IMPALA,
    PPO,
    RAD,
    SAC,
    Dreamer,
    ModelPPO,
    QLearning,
    Uniform,
    ValueIteration,
    list_agents,
    make_agent,
)
from made.bonuses import (
    E3B,
    ICM,
    MADE,
    NGU,
    RE3,
    RIDE,
    RND,
    VAE,
    AMIGo,
    Bernstein,
    Calibrated,
    Clipped,
    Count,
    Disagreement,
    FirstVisit,
    GeometricMixture,
    HashedCount,
    HashedRecentCounts,
    NoBonus,
    Normalized,
    NovelD,
    RecentCounts,
    Scaled,
    Standardized,
    Sum,
    list_bonuses,
    make_bonus,
)
from made.core import Agent, Bonus, Density, Environment, EpisodeMemory, Space, Spec, Step, Transition
from made.core.schedules import Constant, Exponential, Power
from made.envs.registry import list_envs, make
from made.training.backends.compiled_envs import run_batch
from made.training.evaluation import load_run
from made.training.host.bonus import HostBonus
from made.training.on_policy import RunConfig, evaluate
from made.training.train_run import train

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022, by theme
    # contracts
    "Agent",
    "Bonus",
    "Density",
    "Environment",
    "EpisodeMemory",
    "Space",
    "Spec",
    "Step",
    "Transition",
    # bonuses
    "AMIGo",
    "Bernstein",
    "Count",
    "Disagreement",
    "E3B",
    "HashedCount",
    "ICM",
    "MADE",
    "NGU",
    "NoBonus",
    "NovelD",
    "RE3",
    "RIDE",
    "RND",
    # combinators and densities
    "Calibrated",
    "Clipped",
    "FirstVisit",
    "Normalized",
    "Scaled",
    "Sum",
    "GeometricMixture",
    "HashedRecentCounts",
    "RecentCounts",
    "Standardized",
    "VAE",
    # agents
    "Dreamer",
    "IMPALA",
    "PPO",
    "ModelPPO",
    "QLearning",
    "RAD",
    "SAC",
    "Uniform",
    "ValueIteration",
    # by name
    "list_agents",
    "list_bonuses",
    "list_envs",
    "make",
    "make_agent",
    "make_bonus",
    # training
    "RunConfig",
    "evaluate",
    "load_run",
    "run_batch",
    "train",
    # a loop of your own
    "HostBonus",
    # schedules
    "Constant",
    "Exponential",
    "Power",
]
