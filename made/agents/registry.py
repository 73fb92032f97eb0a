"""Agents by name: one table."""

from collections.abc import Callable

from made.agents.dreamer.agent import Dreamer
from made.agents.impala import IMPALA
from made.agents.ppo import PPO
from made.agents.sac import RAD, SAC
from made.agents.tabular import ModelPPO, QLearning, ValueIteration
from made.agents.uniform import Uniform
from made.core import Agent
from made.core.plugins import Registry

# To add an agent, write a file in this folder and a line here.
_TABLE: dict[str, Callable[[], Agent]] = {
    "value-iteration": ValueIteration,
    "ppo-model": ModelPPO,
    "q-learning": QLearning,
    "greedy": lambda: ValueIteration(initial=0.0, monotone=0.0),
    "epsilon-greedy": lambda: ValueIteration(initial=0.0, monotone=0.0, epsilon=0.1),
    "uniform": Uniform,
    "impala": IMPALA,
    "ppo": PPO,
    "rad": RAD,
    "sac": SAC,
    "dreamer": Dreamer,
}
_REGISTRY = Registry("agent", "made.agents", Agent, _TABLE)


def make_agent(name: str) -> Agent:
    """The agent of that name with its default settings.

    A name is one of `list_agents()`, of an installed package (entry points `made.agents`), or an import path such as
    "mypackage.mymodule:MyAgent".

    >>> make_agent("sac").layout.encoder
    'state'
    """
    return _TABLE[name]() if name in _TABLE else _REGISTRY.load(name)


def setting_of(agent: Agent) -> str:
    """What an agent learns from, which decides the preset of its bonus: "on_policy", "off_policy" or "dreamer".

    >>> [setting_of(make_agent(name)) for name in ("impala", "sac", "dreamer")]
    ['on_policy', 'off_policy', 'dreamer']
    """
    if isinstance(agent, Dreamer):
        return "dreamer"
    return "off_policy" if isinstance(agent, RAD) else "on_policy"


def list_agents(setting: str | None = None, *, installed: bool = True) -> list[str]:
    """The names that `make_agent` takes, of agents of that setting or of any; those of installed packages last.

    The setting of an installed agent is known once it is made, so with a setting they are left out.

    >>> list_agents("off_policy")
    ['rad', 'sac']
    """
    if setting is None:
        return _REGISTRY.names() if installed else list(_TABLE)
    return [name for name, make in _TABLE.items() if setting_of(make()) == setting]
