"""Agents. Adding one is a file here and a line in `AGENTS`."""

from collections.abc import Callable

from made.agents.impala import IMPALA
from made.agents.ppo_model import ModelPPO
from made.agents.q_learning import QLearning
from made.agents.uniform import Uniform
from made.agents.value_iteration import ValueIteration
from made.core import Agent

AGENTS: dict[str, Callable[[], Agent]] = {
    "value-iteration": ValueIteration,
    "ppo-model": ModelPPO,
    "q-learning": QLearning,
    "greedy": lambda: ValueIteration(initial=0.0, monotone=0.0),
    "epsilon-greedy": lambda: ValueIteration(initial=0.0, monotone=0.0, epsilon=0.1),
    "uniform": Uniform,
    "impala": IMPALA,
}

__all__ = ["AGENTS", "IMPALA", "ModelPPO", "QLearning", "Uniform", "ValueIteration"]
