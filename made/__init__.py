"""made: exploration in reinforcement learning by maximizing deviation from explored regions.

Other public modules: `made.tabular`, `made.adapters` and `made.experiments`. Optional dependencies are imported where
they are used.
"""

from made.agents import IMPALA as IMPALA
from made.agents import PPO as PPO
from made.agents import RAD as RAD
from made.agents import SAC as SAC
from made.agents import Dreamer as Dreamer
from made.agents import ModelPPO as ModelPPO
from made.agents import QLearning as QLearning
from made.agents import Uniform as Uniform
from made.agents import ValueIteration as ValueIteration
from made.agents import list_agents as list_agents
from made.agents import make_agent as make_agent
from made.bonuses import E3B as E3B
from made.bonuses import ICM as ICM
from made.bonuses import MADE as MADE
from made.bonuses import NGU as NGU
from made.bonuses import RE3 as RE3
from made.bonuses import RIDE as RIDE
from made.bonuses import RND as RND
from made.bonuses import VAE as VAE
from made.bonuses import AMIGo as AMIGo
from made.bonuses import Bernstein as Bernstein
from made.bonuses import Calibrated as Calibrated
from made.bonuses import Clipped as Clipped
from made.bonuses import Count as Count
from made.bonuses import Disagreement as Disagreement
from made.bonuses import FirstVisit as FirstVisit
from made.bonuses import GeometricMixture as GeometricMixture
from made.bonuses import HashedCount as HashedCount
from made.bonuses import HashedRecentCounts as HashedRecentCounts
from made.bonuses import NoBonus as NoBonus
from made.bonuses import Normalized as Normalized
from made.bonuses import NovelD as NovelD
from made.bonuses import RecentCounts as RecentCounts
from made.bonuses import Scaled as Scaled
from made.bonuses import Standardized as Standardized
from made.bonuses import Sum as Sum
from made.bonuses import list_bonuses as list_bonuses
from made.bonuses import make_bonus as make_bonus
from made.core import Agent as Agent
from made.core import Bonus as Bonus
from made.core import Density as Density
from made.core import Environment as Environment
from made.core import EpisodeMemory as EpisodeMemory
from made.core import Space as Space
from made.core import Spec as Spec
from made.core import Step as Step
from made.core import Transition as Transition
from made.core.schedules import Constant as Constant
from made.core.schedules import Exponential as Exponential
from made.core.schedules import Power as Power
from made.envs.registry import list_envs as list_envs
from made.envs.registry import make as make
from made.training.evaluation import load_run as load_run
from made.training.host.bonus import HostBonus as HostBonus
from made.training.on_policy import RunConfig as RunConfig
from made.training.on_policy import evaluate as evaluate
from made.training.run_batch import run_batch as run_batch
from made.training.train_run import train as train

__version__ = "0.1.0"

_names = [name for name, x in globals().items() if hasattr(x, "__module__") and not name.startswith("_")]  # no modules
__all__ = _names  # pyright: ignore[reportUnsupportedDunderAll]
