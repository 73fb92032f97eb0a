"""Figure 3: MADE against Hoeffding and Bernstein on the bidirectional lock (Section 4.1); the locks of Figures 4 and 5."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from made.agents import ModelPPO, QLearning, ValueIteration
from made.bonuses import MADE, Bernstein, Count
from made.core import Agent, Bonus
from made.core.schedules import Constant
from made.core.trial import Trial
from made.envs.tabular import RandomTabular
from made.experiments import plots, types
from made.experiments.statistics import CensoredTimes, interval, probability_of_improvement
from made.experiments.store import Scale
from made.experiments.store.table import Label, Table
from made.experiments.types import Claim, Effect, Experiment, PaperFigure, Verdict, choose
from made.tabular.families import Lock
from made.tabular.solve import horizon_optimum
from made.training.on_policy import RunConfig
from made.training.probes import FirstReward

WINDOW = 1000  # B of the headline comparison; the paper names none for the lock, 1000 or 10000 for the deep studies
MADE_B = Label(method="made", B=WINDOW)
BIG = FirstReward("first_big", least=0.5)
SMALL = FirstReward("first_small", least=0.05, most=0.5)
ALGORITHMS = {"vi": "Value iteration", "ppo": "PPO with a model", "q": "Q-learning"}
METHODS = ("hoeffding", "bernstein", "inverse", MADE_B)
MARGIN = 0.1  # of V*: how near "comparable" is


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


def algorithms(setting: Setting) -> dict[str, Agent]:
    """The three algorithms of Section 4.1, and the forms that the paper's text leaves open.

    vi-plain lets Q rise again; ppo-printed has the printed step size sqrt(2 log A / (H K)); ppo-fast one ten times ours.
    """
    H, sweeps = setting.H, setting.H + 2
    alpha = math.sqrt(2 * math.log(2) / setting.episodes)
    return {
        "vi": ValueIteration(sweeps=sweeps),
        "ppo": ModelPPO(alpha=alpha, sweeps=sweeps),
        "q": QLearning(horizon=float(H + 1)),
        "vi-plain": ValueIteration(monotone=0.0, sweeps=sweeps),
        "ppo-printed": ModelPPO(alpha=alpha / math.sqrt(H), sweeps=sweeps),
        "ppo-fast": ModelPPO(alpha=10 * alpha, sweeps=sweeps),
    }


def lock_run(
    setting: Setting, agent: Agent, bonus: Bonus, bonus_coef: float = 1.0, shuffled: bool = True, **record: Any
) -> RunConfig:
    """One iteration is one episode: s_0 and then one state of each of the H columns."""
    steps = setting.H + 1
    env = RandomTabular(Lock(H=setting.H, p=setting.p), horizon=steps, shuffled=shuffled)
    return RunConfig(env, agent, bonus, Constant(bonus_coef), unroll=steps, iterations=setting.episodes, **record)


@functools.cache
def best_return(H: int, p: float) -> float:
    """V*: the undiscounted return of the best policy; the same for every combination of the lock."""
    return float(horizon_optimum(Lock(H=H, p=p).draw(), H + 1)[0])


def settings(scale: Scale) -> tuple[Setting, ...]:
    """The locks of a scale; the paper names none. The first is the one drawn."""
    grid = (10, 0.1, 1500), (5, 0.2, 1000), (5, 0.1, 1000), (10, 0.05, 1500), (15, 0.05, 3000)
    some = choose(scale, smoke=[(3, 0.1, 60)], demo=grid[:1], small=grid[:2], paper=grid)
    return tuple(Setting(*one) for one in some)


def trials(scale: Scale) -> dict[str, Trial]:
    runs: dict[str, Trial] = {}
    windows = choose(scale, smoke=(20, 1000), demo=(100, 1000, 3000), small=(100, 300, 1000, 3000))
    for setting in settings(scale):
        every = setting.episodes // choose(scale, smoke=6, demo=30, paper=50)
        record = {"every": every, "probes": (BIG, SMALL)}
        agents, each = algorithms(setting), bonuses(setting, windows)
        for algorithm in agents if scale in (Scale.SMALL, Scale.PAPER) else ALGORITHMS:
            for method, bonus in each.items():
                label = Label(lock=setting, algorithm=algorithm, **method.tags)
                runs[label] = lock_run(setting, agents[algorithm], bonus, **record)
        for method, epsilon in (("greedy", 0.0), ("epsilon-greedy", 0.1)):  # no optimism, no bonus
            agent = ValueIteration(initial=0.0, monotone=0.0, epsilon=epsilon, sweeps=setting.H + 2)
            unrewarded = lock_run(setting, agent, each[Label(method="hoeffding")], bonus_coef=0.0, **record)
            runs[Label(lock=setting, algorithm="vi", method=method)] = unrewarded
    return runs


def times(table: Table, one: str, metric: str = "first_big") -> CensoredTimes:
    """Episodes to the first big reward; censored at the end of the run where it was never paid."""
    steps, curves = table.curves(one, metric)
    first = curves[:, -1]
    return CensoredTimes(np.where(first > 0, first, steps[-1]), first == 0)


def studies(table: Table) -> list[tuple[Setting, str, str]]:
    """Every lock and algorithm, and how their labels begin."""
    return [(lock, algorithm, f"{lock}/{algorithm}") for lock in table.tag("lock") for algorithm in ALGORITHMS]


def beats_hoeffding(table: Table) -> Verdict:
    """Claim 8, at the declared window; what the other windows do is shown with it."""
    gaps = {}
    for lock, algorithm, at in studies(table):
        gaps[f"{lock} {algorithm}"] = types.difference(table, f"{at}/{MADE_B}", f"{at}/hoeffding")
    verdict = types.above(gaps, f"average return, {MADE_B} minus Hoeffding")
    return verdict.also(*_by_window(table, "hoeffding"))


def matches_bernstein(table: Table) -> Verdict:
    """Claim 9: within a tenth of V* of Bernstein, in units of V*. The control 1/N is shown with it."""
    gaps, control = {}, []
    for lock, algorithm, at in studies(table):
        best, name = best_return(lock.H, lock.p), f"{lock} {algorithm}"
        ours, theirs, plain = (types.average(table, f"{at}/{m}") / best for m in (MADE_B, "bernstein", "inverse"))
        gaps[name] = types.paired_interval(ours, theirs, "iqm", types.rng())
        unit = "average return over V*, 1/N minus Bernstein"
        control.append(Effect(name, float(np.mean(plain - theirs)), unit=unit))
    verdict = types.within(gaps, MARGIN, f"average return over V*, {MADE_B} minus Bernstein")
    return verdict.also(*control, *_by_window(table, "bernstein"))


def _by_window(table: Table, other: str) -> list[Effect]:
    """The mean gap of every recorded window to another bonus, over locks and algorithms, in units of V*."""
    found: dict[int, list[float]] = {}
    for lock, algorithm, at in studies(table):
        rival = types.average(table, f"{at}/{other}").mean()
        for one in windows_of(table, lock=lock, algorithm=algorithm):
            gap = (types.average(table, one).mean() - rival) / best_return(lock.H, lock.p)
            found.setdefault(one.tags["B"], []).append(gap)
    unit = f"average return over V*, MADE minus {other}, mean"
    return [Effect(f"B={b}", float(np.mean(gaps)), unit=unit) for b, gaps in sorted(found.items())]


def windows_of(table: Table, **tags: Any) -> list[Label]:
    """The runs of MADE with these tags, by increasing window."""
    return sorted(table.select(**tags, method="made"), key=lambda one: one.tags["B"])


def traps_the_greedy(table: Table) -> Verdict:
    """Claim 12: without exploration nearly no seed finds the big reward, and few reach both ends."""
    found, both = [], []
    for setting in table.tag("lock"):
        for method in ("greedy", "epsilon-greedy"):
            one, name = f"{setting}/vi/{method}", f"{setting} {method}"
            big, small = times(table, one), times(table, one, "first_small")
            found.append(Effect(name, big.reached, unit="fraction of seeds that find the big reward"))
            neither = float(np.mean(big.censored | small.censored))
            both.append(Effect(name, neither, unit="fraction of seeds that do not see both ends"))
    missing = types.few_seeds(len(table.seeds(table.labels()[0])))
    holds = all(one.value <= 0.5 for one in found) and all(one.value >= 0.5 for one in both)
    return types.decide(holds, (*found, *both), missing)


def draw(table: Table) -> list[PaperFigure]:
    setting = table.tag("lock")[0]
    best = best_return(setting.H, setting.p)
    fig, axes = plots.panels(ALGORITHMS.values(), x="episodes", y="return", height=2.6, sharey=True)
    for ax, algorithm in zip(axes, ALGORITHMS, strict=True):
        shown = [*METHODS, "made-geometric"] + (["greedy"] if algorithm == "vi" else [])
        names = {f"{setting}/{algorithm}/{method}": str(method) for method in shown}
        plots.curves(ax, table, list(names), "return", names, rng=types.rng())
        ax.axhline(best, color="black", linewidth=0.8, linestyle=":", label="best policy")
    plots.legend(fig, columns=4)
    n = len(table.seeds(f"{setting}/vi/{MADE_B}"))
    window = int(table.curves(f"{setting}/vi/{MADE_B}", "return")[0][0])
    text = f"Bidirectional lock, H={setting.H}, p={setting.p:g}: return while learning, mean of {window} episodes at a time."
    return [PaperFigure("lock", fig, plots.caption(fig, text, seeds=n)), _draw_windows(table, setting, n)]


def _draw_windows(table: Table, setting: Setting, n: int) -> PaperFigure:
    """What the window does: average return and episodes to the first big reward."""
    fig, axes = plots.figure(2, 3, height=2.3, sharey=True)
    for column, (algorithm, title) in enumerate(ALGORITHMS.items()):
        found = [one.without("lock", "algorithm") for one in windows_of(table, lock=setting, algorithm=algorithm)]
        shown = ["hoeffding", *found, "made-geometric", "inverse", "bernstein"]
        of = {method: f"{setting}/{algorithm}/{method}" for method in shown}
        plots.bars(axes[0, column], {m: types.average(table, one) for m, one in of.items()}, rng=types.rng())
        plots.bars(axes[1, column], {m: times(table, one) for m, one in of.items()}, rng=types.rng())
        plots.title(axes[0, column], title, x="average return")
        plots.title(axes[1, column], "", x="first big reward, episode")
    text = (
        f"What the window of MADE does, H={setting.H}, p={setting.p:g}. MADE with a window that holds everything is 1/N; "
        f"a pair that has left the window is paid Hoeffding's bonus. Average return: interquartile mean; first big reward: "
        f"median; {n} seeds (dots), bars are 95% bootstrap intervals."
    )
    return PaperFigure("lock_windows", fig, plots.caption(fig, text))


def tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    """Average return, regret, first big reward, share of seeds and probability of improvement, for every run."""
    rows, header = [], ["lock", "algorithm", "bonus", "average return", "regret", "first big reward"]
    header += ["seeds that find it", "P(better than Hoeffding)"]
    for one in table.select():
        setting, algorithm = one.tags["lock"], one.tags["algorithm"]
        mean, first = types.average(table, one), times(table, one)
        regret = (best_return(setting.H, setting.p) - mean) * table.curves(one, "return")[0][-1]
        rival = types.average(table, f"{setting}/{algorithm}/hoeffding")
        p = probability_of_improvement(mean, rival, types.rng())
        found = [str(interval(x, "iqm", types.rng())) for x in (mean, regret)]
        found += [first.say(types.rng()), f"{first.reached:.0%}", f"{p.estimate:.2f} [{p.low:.2f}, {p.high:.2f}]"]
        rows.append([str(setting), algorithm, one.without("lock", "algorithm"), *found])
    return [("All runs: interquartile mean with 95% bootstrap interval", header, rows)]


EXPERIMENT = Experiment(
    name="lock",
    figure="fig:lock_results",
    title="Exploration in the bidirectional lock",
    about=(
        "Three algorithms, each with Hoeffding's, Bernstein's and MADE's bonus, on a lock with a large reward at the end of "
        "one chain, a small one at the end of the other, and a small penalty on every step of the way. The paper names "
        "neither H, p, the penalty, the window B nor the number of episodes: all are stated here, and B is swept."
    ),
    trials=trials,
    seeds=lambda scale: range(choose(scale, smoke=2, demo=20, paper=100)),
    claims=(
        Claim(8, "beats-hoeffding", "MADE performs better than the Hoeffding bonus in all three algorithms", "Fig. 3, Sec. 4.1", beats_hoeffding),
        Claim(9, "matches-bernstein", "MADE is comparable to the Bernstein bonus in all three algorithms", "Fig. 3, Sec. 4.1", matches_bernstein),
        Claim(12, "lock-traps", "Moving to a dead state is locally optimal and one chain may be forgotten", "Sec. 4.1", traps_the_greedy),
    ),
    draw=draw,
    tables=tables,
    columns=("return", "first_big", "first_small"),
)  # fmt: skip
