"""Figure 5: where each bonus sends the agent, as visit counts every 200 iterations (Section 4.1)."""

import numpy as np

from made.core.trial import Trial
from made.experiments import plots, types
from made.experiments.paper import lock_setup
from made.experiments.paper.lock_setup import MADE_B, Setting, algorithms, bonuses
from made.experiments.statistics import Interval, interval, paired_interval
from made.experiments.store.store import Scale
from made.experiments.store.table import Label, Table
from made.experiments.types import Claim, Effect, Experiment, PaperFigure, Verdict, choose
from made.tabular.families import Lock
from made.training.probes import VisitMap

DRAWN = ("hoeffding", "bernstein", "inverse", MADE_B)
CADENCE = 200  # iterations between two maps, as in the paper


def settings(scale: Scale) -> Setting:
    return choose(scale, smoke=Setting(3, 0.1, 60), demo=Setting(10, 0.1, 1600))


def windows(scale: Scale) -> tuple[int, ...]:
    return choose(scale, smoke=(20, 1000), demo=(100, 300, 1000, 3000))


def seeds(scale: Scale) -> range:
    return range(choose(scale, smoke=2, demo=20, paper=100))


def trials(scale: Scale) -> dict[str, Trial]:
    setting = settings(scale)
    every = choose(scale, smoke=10, demo=CADENCE)
    runs: dict[str, Trial] = {}
    for form in ("vi", "vi-plain"):
        agent = algorithms(setting, variants=True)[form]
        for method, bonus in bonuses(setting, windows(scale)).items():
            label = Label(form=form, **method.tags)
            runs[label] = lock_setup.lock_run(setting, agent, bonus, every, (VisitMap(),), shuffled=False)
    return runs


def maps(table: Table, one: str) -> np.ndarray:
    """Visits within each stretch between two recordings, summed over actions: [seeds, stretches, states]."""
    counts = table.arrays(one, "visits")[1].sum(-1)
    return np.diff(counts, axis=1, prepend=0)


def distance(table: Table, a: str, b: str) -> np.ndarray:
    """Total variation between two methods' maps, averaged over stretches, one number a seed."""
    x, y = (m / m.sum(-1, keepdims=True) for m in (maps(table, a), maps(table, b)))
    return 0.5 * np.abs(x - y).sum(-1).mean(-1)


def closest_to_bernstein(table: Table) -> Verdict:
    """Claim 11: MADE's maps are nearer to Bernstein's than Hoeffding's are."""
    far = {m: distance(table, f"vi/{m}", "vi/bernstein") for m in ("hoeffding", MADE_B, "inverse")}
    gap = paired_interval(far["hoeffding"], far[MADE_B], "iqm", types.rng())
    verdict = types.above({"vi": gap}, "total variation to Bernstein's maps, Hoeffding minus MADE")
    means = {m: float(np.mean(x)) for m, x in far.items()}
    means["two seeds of Bernstein"] = distance_between_seeds(table, "vi/bernstein")
    unit = "mean total variation to Bernstein's maps"
    return verdict._replace(effects=(*verdict.effects, *(Effect(m, x, unit=unit) for m, x in means.items())))


def distance_between_seeds(table: Table, one: str) -> float:
    """How far apart two seeds of the same method are: the least that any distance can mean."""
    x = maps(table, one)
    x = x / x.sum(-1, keepdims=True)
    return float(0.5 * np.abs(x - np.roll(x, 1, axis=0)).sum(-1).mean())


def revisits(table: Table, one: str) -> np.ndarray:
    """Share of the last quarter's visits that go to the good states of the chain with the small reward, by seed.

    By then every method knows the large reward: who goes back there goes back for what it has not seen for long.
    """
    lock, x = _lock(table), maps(table, one)
    late = x[:, -max(1, x.shape[1] // 4) :].sum(1)
    other = [int(lock.good(1, h)) for h in range(lock.H)]
    return late[:, other].sum(-1) / late.sum(-1)


UNIT = "fraction of late visits in the abandoned chain"


def revisits_the_forgotten(table: Table) -> Verdict:
    """Claim 17: MADE goes back to the abandoned chain more than 1/N does, and the more so the shorter its window."""
    gaps: dict[str, Interval] = {}
    shares = []
    for form in ("vi", "vi-plain"):
        plain = revisits(table, f"{form}/inverse")
        gaps[form] = paired_interval(revisits(table, f"{form}/{MADE_B}"), plain, "iqm", types.rng())
        shown = sorted(table.select(form=form, method="made"), key=lambda one: one.tags["B"])
        for one in (*shown, f"{form}/inverse", f"{form}/hoeffding"):
            shares.append(Effect(one, float(revisits(table, one).mean()), unit=UNIT))
    verdict = types.above(gaps, f"{UNIT}, {MADE_B} minus 1/N")
    return verdict._replace(effects=(*verdict.effects, *shares))


def draw(table: Table) -> list[PaperFigure]:
    """A row of maps for each method, one map every 200 iterations; a map has four rows of H states."""
    lock = _lock(table)
    pictures = {m: np.median(maps(table, f"vi/{m}"), axis=0) for m in DRAWN}
    shown = range(0, next(iter(pictures.values())).shape[0], 2)
    steps = table.arrays("vi/bernstein", "visits")[0]
    fig, axes = plots.figure(len(DRAWN), len(shown), height=1.25)
    frames = [[_picture(lock, pictures[m][i]) for i in shown] for m in DRAWN]
    limits = plots.shared_limits([frame for row in frames for frame in row], log=True)
    for row, method in enumerate(DRAWN):
        for column, i in enumerate(shown):
            ax = axes[row, column]
            image = plots.heatmap(ax, frames[row][column], limits=limits, log=True)
            ax.set(xticks=[], yticks=[0, 1, 2, 3] if column == 0 else [], yticklabels=["good", "dead", "good", "dead"] if column == 0 else [])  # fmt: skip
            title = f"to episode {steps[i]}" if row == 0 else ""
            plots.title(ax, title, y=plots.style_of(method).text if column == 0 else "")
    with plots.style():
        fig.colorbar(image, ax=axes, label="visits", aspect=40, pad=0.02)
    text = (
        f"Visits of the {lock.H} columns of the lock in every second stretch of {steps[0]} episodes, value iteration, median "
        f"over {len(table.seeds('vi/bernstein'))} seeds. Upper pair of rows: the chain with the large reward; lower pair: the "
        "other. Grey: none."
    )
    return [PaperFigure("lock_heatmap", fig, plots.caption(fig, text))]


def _lock(table: Table) -> Lock:
    n_states = table.arrays("vi/bernstein", "visits")[1].shape[2]
    return Lock(H=(n_states - 2) // 4)


def _picture(lock: Lock, visits: np.ndarray) -> np.ndarray:
    """Four rows of H: good and dead states of the rewarding chain, then of the other; NaN where never visited."""
    columns = range(lock.H)
    rows = [[int(place(chain, h)) for h in columns] for chain in (0, 1) for place in (lock.good, lock.dead)]
    picture = visits[np.array(rows)].astype(float)
    return np.where(picture > 0, picture, np.nan)


def tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    """Distance to Bernstein's maps and late visits to the abandoned chain."""
    rows = []
    for one in table.select():
        apart = interval(distance(table, one, f"{one.tags['form']}/bernstein"), "iqm", types.rng())
        rows.append([one, str(apart), str(interval(revisits(table, one), "iqm", types.rng()))])
    return [("Maps", ["method", "total variation to Bernstein", "late visits to the abandoned chain"], rows)]


EXPERIMENT = Experiment(
    name="lock_heatmap",
    figure="fig:visitation_heatmap",
    title="Where the bonuses send the agent",
    about=(
        "Visits to every state of the lock, every 200 episodes of value iteration. `vi` keeps Q from rising, as He et al. "
        "do; `vi-plain` does not, and only there can a bonus that recovers call the agent back."
    ),
    trials=trials,
    seeds=seeds,
    claims=(
        Claim(11, "pattern-like-bernstein", "The exploration strategy of MADE is closest to the Bernstein bonus", "Fig. 5, Sec. 4.1", closest_to_bernstein),
        Claim(17, "revisits-forgotten", "MADE alleviates detachment by revisiting forgotten states and actions", "Sec. 3.2", revisits_the_forgotten),
    ),
    draw=draw,
    tables=tables,
    columns=("return",),
)  # fmt: skip
