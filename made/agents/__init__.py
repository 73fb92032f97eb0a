"""Agents. To add one, write a file here and a line in `made.agents.registry`."""

from made.agents.dreamer.agent import Dreamer
from made.agents.impala import IMPALA
from made.agents.ppo import PPO
from made.agents.registry import list_agents, make_agent
from made.agents.sac import RAD, SAC
from made.agents.tabular import ModelPPO, QLearning, ValueIteration
from made.agents.uniform import Uniform

__all__ = [
    "IMPALA",
    "PPO",
    "RAD",
    "SAC",
    "Dreamer",
    "ModelPPO",
    "QLearning",
    "Uniform",
    "ValueIteration",
    "list_agents",
    "make_agent",
]
