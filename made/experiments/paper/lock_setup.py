"""What the three studies on the bidirectional lock share: the lock, the algorithms, the bonuses and their names."""

import functools
import math
from typing import NamedTuple

from made.agents import ModelPPO, QLearning, ValueIteration
from made.bonuses import MADE, Bernstein, Count
from made.core import Agent, Bonus
from made.core.schedules import Constant
from made.envs.tabular import RandomTabular
from made.experiments.store.table import Label
from made.tabular.families import Lock
from made.tabular.solve import horizon_optimum
from made.training.on_policy import RunConfig
from made.training.probes import Probe

WINDOW = 1000  # B of the headline comparison; the paper names none for the lock, 1000 or 10000 for the deep studies
MADE_B = Label(method="made", B=WINDOW)


class Setting(NamedTuple):
    """One lock and how many episodes are played on it."""

    H: int
    p: float
    episodes: int

    def __str__(self) -> str:
        return f"H{self.H}-p{self.p:g}"


def bonuses(setting: Setting, windows: tuple[int, ...]) -> dict[Label, Bonus]:
    """Appendix B.1's three bonuses, the control 1/N, MADE over several windows and with a geometric mixture.

    The mixture's eta gives it the effective length of the headline window: (H + 1) (2 - eta) / eta pairs = B.
    """
    pairs = setting.H + 1
    counted: dict[str, Bonus] = {
        "hoeffding": Count(power=0.5),
        "inverse": Count(power=1.0),
        "bernstein": Bernstein(),
        "made-geometric": MADE.geometric(eta=2 * pairs / (WINDOW + pairs)),
    }
    windowed = {Label(method="made", B=b): MADE.tabular(b, capacity=max(windows)) for b in windows}
    return {Label(method=name): bonus for name, bonus in counted.items()} | windowed


def algorithms(setting: Setting, variants: bool) -> dict[str, Agent]:
    """The three algorithms of Section 4.1 and, as variants, the forms that the paper's text leaves open.

    vi-plain lets Q rise again; ppo-printed has the printed step size sqrt(2 log A / (H K)); ppo-fast one ten times ours.
    """
    H, K = setting.H, setting.episodes
    alpha = math.sqrt(2 * math.log(2) / K)
    sweeps = H + 2
    main: dict[str, Agent] = {
        "vi": ValueIteration(sweeps=sweeps),
        "ppo": ModelPPO(alpha=alpha, sweeps=sweeps),
        "q": QLearning(horizon=float(H + 1)),
    }
    more: dict[str, Agent] = {
        "vi-plain": ValueIteration(monotone=0.0, sweeps=sweeps),
        "ppo-printed": ModelPPO(alpha=alpha / math.sqrt(H), sweeps=sweeps),
        "ppo-fast": ModelPPO(alpha=10 * alpha, sweeps=sweeps),
    }
    return main | more if variants else main


def floors(setting: Setting) -> dict[str, Agent]:
    """Greedy and epsilon-greedy: no optimism, no bonus."""
    plain = ValueIteration(initial=0.0, monotone=0.0, sweeps=setting.H + 2)
    wandering = ValueIteration(initial=0.0, monotone=0.0, epsilon=0.1, sweeps=setting.H + 2)
    return {"greedy": plain, "epsilon-greedy": wandering}


def lock_run(
    setting: Setting,
    agent: Agent,
    bonus: Bonus,
    every: int,
    probes: tuple[Probe, ...],
    bonus_coef: float = 1.0,
    shuffled: bool = True,
) -> RunConfig:
    """One iteration is one episode: s_0 and then one state of each of the H columns."""
    env = RandomTabular(Lock(H=setting.H, p=setting.p), horizon=setting.H + 1, shuffled=shuffled)
    return RunConfig(
        env,
        agent,
        bonus,
        Constant(bonus_coef),
        unroll=setting.H + 1,
        iterations=setting.episodes,
        every=every,
        probes=probes,
    )


@functools.cache
def best_return(H: int, p: float) -> float:
    """V*: the undiscounted return of the best policy; the same for every combination of the lock."""
    return float(horizon_optimum(Lock(H=H, p=p).draw(), H + 1)[0])
