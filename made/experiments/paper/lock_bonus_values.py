"""Figure 4: the values of the bonuses themselves, side by side on the same experience (Section 4.1)."""

import numpy as np

from made.core.trial import Trial
from made.experiments import plots, types
from made.experiments.paper import lock_setup
from made.experiments.paper.lock_setup import MADE_B, Setting, algorithms, bonuses
from made.experiments.statistics import interval, paired_interval
from made.experiments.store.store import Scale
from made.experiments.store.table import Table
from made.experiments.types import Claim, Effect, Experiment, PaperFigure, Verdict, choose
from made.tabular.families import Lock
from made.training.probes import BonusTable, LastVisit, VisitMap

DRIVERS = ("hoeffding", "bernstein", MADE_B)  # whose bonus pays while all of them are looked at
SHOWN = ("hoeffding", "bernstein", "inverse", MADE_B)
ROWS = 60


def settings(scale: Scale) -> Setting:
    return choose(scale, smoke=Setting(3, 0.1, 60), demo=Setting(10, 0.1, 1500))


def windows(scale: Scale) -> tuple[int, ...]:
    return choose(scale, smoke=(20, 1000), demo=(100, 1000), small=(100, 300, 1000, 3000))


def seeds(scale: Scale) -> range:
    return range(choose(scale, smoke=2, demo=10, small=20, paper=100))


def trials(scale: Scale) -> dict[str, Trial]:
    setting = settings(scale)
    tables = bonuses(setting, windows(scale))
    probes = (*(BonusTable(str(name), bonus) for name, bonus in tables.items()), VisitMap(), LastVisit())
    rows = choose(scale, smoke=6, demo=ROWS)
    agent = algorithms(setting, variants=False)["vi"]
    return {
        driver: lock_setup.lock_run(setting, agent, tables[driver], setting.episodes // rows, probes, shuffled=False)
        for driver in DRIVERS
    }


def _visited(table: Table, driver: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """log bonus [seeds, rows, pairs] and the mask of pairs visited so far."""
    values = table.arrays(driver, f"bonus_{name}")[1]
    visits = table.arrays(driver, "visits")[1]
    flat = (*values.shape[:2], -1)
    return np.log(np.maximum(values.reshape(flat), 1e-9)), visits.reshape(flat) > 0


def log_distance(table: Table, driver: str, a: str, b: str) -> np.ndarray:
    """Mean |log a - log b| over visited pairs and time, one number a seed: how many e-folds apart two bonuses are."""
    (x, seen), (y, _) = _visited(table, driver, a), _visited(table, driver, b)
    return (np.abs(x - y) * seen).sum((1, 2)) / seen.sum((1, 2))


UNIT = "mean |log ratio| to Bernstein"


def tracks_bernstein(table: Table) -> Verdict:
    """Claim 10: on the same experience MADE's bonus is nearer to Bernstein's than Hoeffding's is."""
    gaps, means = {}, []
    for driver in DRIVERS:
        near = log_distance(table, driver, MADE_B, "bernstein")
        far = log_distance(table, driver, "hoeffding", "bernstein")
        gaps[f"paid by {driver}"] = paired_interval(far, near, "iqm", types.rng())
        plain = log_distance(table, driver, "inverse", "bernstein")
        of = {MADE_B: near, "1/N": plain, "Hoeffding": far}
        means += [Effect(f"{m}, paid by {driver}", float(x.mean()), unit=UNIT) for m, x in of.items()]
    verdict = types.above(gaps, "|log ratio to Bernstein|, Hoeffding minus MADE")
    return verdict._replace(effects=(*verdict.effects, *means))


def _rank(x: np.ndarray) -> np.ndarray:
    """Ranks along the last axis, ties given their mean rank."""
    order = np.sort(x, -1)
    low = np.searchsorted(order, x, "left")
    return (low + np.searchsorted(order, x, "right") - 1) / 2


def falls_and_recovers(table: Table) -> Verdict:
    """Claim 16: rank correlation of the bonus with visits below zero; with age, among pairs of equal visits, above zero."""
    falls, recovers = [], []
    steps, visits = table.arrays(MADE_B, "visits")
    _, last = table.arrays(MADE_B, "last_visit")
    bonus = table.arrays(MADE_B, f"bonus_{MADE_B}")[1]
    for seed in range(len(visits)):
        n, b, age = visits[seed, -1].ravel(), bonus[seed, -1].ravel(), steps[-1] - last[seed, -1].ravel()
        n, b, age = n[n > 0], b[n > 0], age[n > 0]
        falls.append(np.corrcoef(_rank(n), _rank(b))[0, 1])
        # 1/sqrt(N) taken out: what is left of the bonus at equal counts
        correction = b * np.sqrt(n)
        recovers.append(np.corrcoef(_rank(age), _rank(correction))[0, 1])
    down, up = (interval(x, "iqm", types.rng()) for x in (np.nan_to_num(falls), np.nan_to_num(recovers)))
    names = {"bonus with visits": down, "bonus x sqrt(visits) with episodes since the last visit": up}
    effects = types.effects_of(names, "rank correlation at the end")
    if missing := types.few_seeds(down.n):
        return Verdict(None, effects, missing=missing)
    return Verdict(bool(down.high < 0 and up.low > 0), effects)


def draw(table: Table) -> list[PaperFigure]:
    """Rows: whose bonus pays. Columns: the bonus looked at. Lines: the good states of the rewarding chain, action 1."""
    lock = _lock(table)
    fig, axes = plots.figure(len(DRIVERS), len(SHOWN), height=1.7, sharex=True, sharey=True)
    colours = _shades(lock.H)
    for row, driver in enumerate(DRIVERS):
        for column, name in enumerate(SHOWN):
            ax = axes[row, column]
            steps, values = table.arrays(driver, f"bonus_{name}")
            for h in range(lock.H):
                ax.plot(
                    steps, np.median(values[:, :, int(lock.good(0, h)), 1], axis=0), color=colours[h], linewidth=0.9
                )
            ax.set_yscale("log")
            top = plots.style_of(name).text if row == 0 else ""
            left = f"paid by {plots.style_of(driver).text}" if column == 0 else ""
            plots.title(ax, top, x="episodes" if row == len(DRIVERS) - 1 else "", y=left)
    text = (
        f"Bonus of action 1 in the {lock.H} good states of the rewarding chain (light: first, dark: last), value iteration, "
        f"median over {len(table.seeds(DRIVERS[0]))} seeds. Within a row all four are read off the same experience."
    )
    return [PaperFigure("lock_bonuses", fig, plots.caption(fig, text))]


def _lock(table: Table) -> Lock:
    n_states = table.arrays(DRIVERS[0], "visits")[1].shape[2]
    return Lock(H=(n_states - 2) // 4)


def _shades(n: int) -> list[tuple[float, ...]]:
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 - 0.85 * i / max(n - 1, 1)) for i in range(n)]


def tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    """How far every bonus is from Bernstein's on the same experience."""
    names = [n.removeprefix("bonus_") for n in table.array_names(DRIVERS[0]) if n.startswith("bonus_")]
    rows = [
        [driver, name, str(interval(log_distance(table, driver, name, "bernstein"), "iqm", types.rng()))]
        for driver in DRIVERS
        for name in names
        if name != "bernstein"
    ]
    return [
        ("Mean |log ratio| to Bernstein's bonus over visited pairs and time", ["paid by", "bonus", "|log ratio|"], rows)
    ]


EXPERIMENT = Experiment(
    name="lock_bonuses",
    figure="fig:bonuses_lock",
    title="Values of the bonuses over time",
    about=(
        "Value iteration explores the lock with one bonus while all the others are computed from the same visits. If MADE's "
        "bonus follows Bernstein's, it should do so whoever pays; the control 1/N tells how much of that is the count alone."
    ),
    trials=trials,
    seeds=seeds,
    claims=(
        Claim(10, "tracks-bernstein", "MADE bonus values closely follow Bernstein bonus values", "Fig. 4, Sec. 4.1", tracks_bernstein),
        Claim(16, "falls-and-recovers", "The bonus falls with visits and is higher for pairs visited longer ago", "Sec. 3.2", falls_and_recovers),
    ),
    draw=draw,
    tables=tables,
    columns=("return",),
)  # fmt: skip
