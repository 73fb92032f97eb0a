"""Contracts and small data structures. Imports nothing else of made."""

from made.core.interfaces import Agent as Agent
from made.core.interfaces import Bonus as Bonus
from made.core.interfaces import Density as Density
from made.core.interfaces import Environment as Environment
from made.core.interfaces import EpisodeMemory as EpisodeMemory
from made.core.interfaces import EpisodeNote as EpisodeNote
from made.core.interfaces import Estimator as Estimator
from made.core.interfaces import ImageSpace as ImageSpace
from made.core.interfaces import LearnsFrom as LearnsFrom
from made.core.interfaces import Metrics as Metrics
from made.core.interfaces import NoMemory as NoMemory
from made.core.interfaces import ReplayContext as ReplayContext
from made.core.interfaces import RewardFn as RewardFn
from made.core.interfaces import Space as Space
from made.core.interfaces import Spec as Spec
from made.core.interfaces import Step as Step
from made.core.interfaces import Transition as Transition
from made.core.interfaces import learning_data as learning_data
from made.core.interfaces import require_fields as require_fields
from made.core.interfaces import state_action_grid as state_action_grid
from made.core.interfaces import table_sizes as table_sizes
