"""Agents. To add one, write a file here and a line in `made.agents.registry`."""

from made.agents.impala import IMPALA
from made.agents.ppo_model import ModelPPO
from made.agents.q_learning import QLearning
from made.agents.registry import list_agents, make_agent
from made.agents.uniform import Uniform
from made.agents.value_iteration import ValueIteration

__all__ = [
    "IMPALA",
    "ModelPPO",
    "QLearning",
    "Uniform",
    "ValueIteration",
    "list_agents",
    "make_agent",
]
