"""Agents. To add one, write a file here and a line in `made.agents.registry`."""

from made.agents.dreamer.agent import Dreamer as Dreamer
from made.agents.impala import IMPALA as IMPALA
from made.agents.ppo import PPO as PPO
from made.agents.registry import list_agents as list_agents
from made.agents.registry import make_agent as make_agent
from made.agents.sac import RAD as RAD
from made.agents.sac import SAC as SAC
from made.agents.tabular import ModelPPO as ModelPPO
from made.agents.tabular import QLearning as QLearning
from made.agents.tabular import ValueIteration as ValueIteration
from made.agents.uniform import Uniform as Uniform
