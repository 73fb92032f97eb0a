"""Figures 4 and 5: the values of the bonuses on the lock, and where each sends the agent (Section 4.1)."""

import numpy as np

from made.core.trial import Trial
from made.experiments import plots, types
from made.experiments.paper.lock_returns import MADE_B, Setting, algorithms, bonuses, lock_run
from made.experiments.statistics import Interval, interval, paired_interval
from made.experiments.store import Scale
from made.experiments.store.table import Label, Table
from made.experiments.types import Claim, Effect, Experiment, PaperFigure, Verdict, choose
from made.tabular.families import Lock
from made.training.probes import BonusTable, LastVisit, VisitMap

DRIVERS = (
    Label(method="hoeffding"),
    Label(method="bernstein"),
    MADE_B,
)  # whose bonus is rewarded while all of them are evaluated
SHOWN = ("hoeffding", "bernstein", "inverse", MADE_B)
CADENCE = 200  # iterations between two maps, as in the paper
LOG_RATIO = "mean |log ratio| to Bernstein"
LATE = "fraction of late visits in the abandoned chain"


def values_trials(scale: Scale) -> dict[str, Trial]:
    setting = choose(scale, smoke=Setting(3, 0.1, 60), demo=Setting(10, 0.1, 1500))
    windows = choose(scale, smoke=(20, 1000), demo=(100, 1000), small=(100, 300, 1000, 3000))
    tables = bonuses(setting, windows)
    probes = (*(BonusTable(str(name), bonus) for name, bonus in tables.items()), VisitMap(), LastVisit())
    rows = choose(scale, smoke=6, demo=60)
    agent = algorithms(setting, variants=False)["vi"]
    return {
        driver: lock_run(setting, agent, tables[Label(driver)], setting.episodes // rows, probes, shuffled=False)
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


def tracks_bernstein(table: Table) -> Verdict:
    """Claim 10: on the same experience MADE's bonus is nearer to Bernstein's than Hoeffding's is."""
    gaps, means = {}, []
    for driver in DRIVERS:
        near = log_distance(table, driver, MADE_B, "bernstein")
        far = log_distance(table, driver, "hoeffding", "bernstein")
        gaps[f"paid by {driver}"] = paired_interval(far, near, "iqm", types.rng())
        plain = log_distance(table, driver, "inverse", "bernstein")
        of = {MADE_B: near, "1/N": plain, "Hoeffding": far}
        means += [Effect(f"{m}, paid by {driver}", float(x.mean()), unit=LOG_RATIO) for m, x in of.items()]
    verdict = types.above(gaps, "|log ratio to Bernstein|, Hoeffding minus MADE")
    return verdict._replace(effects=(*verdict.effects, *means))


def falls_and_recovers(table: Table) -> Verdict:
    """Claim 16: rank correlation of the bonus with visits below zero; with age, among pairs of equal visits, above zero."""
    from scipy.stats import spearmanr

    falls, recovers = [], []
    steps, visits = table.arrays(MADE_B, "visits")
    _, last = table.arrays(MADE_B, "last_visit")
    bonus = table.arrays(MADE_B, f"bonus_{MADE_B}")[1]
    for seed in range(len(visits)):
        n, b, age = visits[seed, -1].ravel(), bonus[seed, -1].ravel(), steps[-1] - last[seed, -1].ravel()
        n, b, age = n[n > 0], b[n > 0], age[n > 0]
        falls.append(spearmanr(n, b)[0])
        recovers.append(spearmanr(age, b * np.sqrt(n))[0])  # what is left of the bonus at equal counts
    down, up = (interval(x, "iqm", types.rng()) for x in (np.nan_to_num(falls), np.nan_to_num(recovers)))
    names = {"bonus with visits": down, "bonus x sqrt(visits) with episodes since the last visit": up}
    effects = types.effects_of(names, "rank correlation at the end")
    if missing := types.few_seeds(down.n):
        return Verdict(None, effects, missing=missing)
    return Verdict(bool(down.high < 0 and up.low > 0), effects)


def draw_values(table: Table) -> list[PaperFigure]:
    """Rows: whose bonus pays. Columns: the bonus looked at. Lines: the good states of the rewarding chain, action 1."""
    from matplotlib import colormaps

    lock = _lock(table, DRIVERS[0])
    fig, axes = plots.figure(len(DRIVERS), len(SHOWN), height=1.7, sharex=True, sharey=True)
    colors = [colormaps["viridis"](0.9 - 0.85 * i / max(lock.H - 1, 1)) for i in range(lock.H)]
    for row, driver in enumerate(DRIVERS):
        for column, name in enumerate(SHOWN):
            ax = axes[row, column]
            steps, values = table.arrays(driver, f"bonus_{name}")
            for h in range(lock.H):
                ax.plot(steps, np.median(values[:, :, int(lock.good(0, h)), 1], axis=0), color=colors[h], linewidth=0.9)
            ax.set_yscale("log")
            top = plots.style_of(name).text if row == 0 else ""
            left = f"paid by {plots.style_of(driver).text}" if column == 0 else ""
            plots.title(ax, top, x="episodes" if row == len(DRIVERS) - 1 else "", y=left)
    text = (
        f"Bonus of action 1 in the {lock.H} good states of the rewarding chain (light: first, dark: last), value iteration, "
        f"median over {len(table.seeds(DRIVERS[0]))} seeds. Within a row all four are read off the same experience."
    )
    return [PaperFigure("lock_bonuses", fig, plots.caption(fig, text))]


def _lock(table: Table, label: str) -> Lock:
    return Lock(H=(table.arrays(label, "visits")[1].shape[2] - 2) // 4)


def values_tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    """How far every bonus is from Bernstein's on the same experience."""
    names = sorted(n.removeprefix("bonus_") for n in table.array_names(DRIVERS[0]) if n.startswith("bonus_"))
    rows = [
        [driver, name, str(interval(log_distance(table, driver, name, "bernstein"), "iqm", types.rng()))]
        for driver in DRIVERS
        for name in names
        if name != "bernstein"
    ]
    return [
        ("Mean |log ratio| to Bernstein's bonus over visited pairs and time", ["paid by", "bonus", "|log ratio|"], rows)
    ]


VALUES = Experiment(
    name="lock_bonuses",
    figure="fig:bonuses_lock",
    title="Values of the bonuses over time",
    about=(
        "Value iteration explores the lock with one bonus while all the others are computed from the same visits. If MADE's "
        "bonus follows Bernstein's, it should do so whoever pays; the control 1/N tells how much of that is the count alone."
    ),
    trials=values_trials,
    seeds=lambda scale: range(choose(scale, smoke=2, demo=10, small=20, paper=100)),
    claims=(
        Claim(10, "tracks-bernstein", "MADE bonus values closely follow Bernstein bonus values", "Fig. 4, Sec. 4.1", tracks_bernstein),
        Claim(16, "falls-and-recovers", "The bonus falls with visits and is higher for pairs visited longer ago", "Sec. 3.2", falls_and_recovers),
    ),
    draw=draw_values,
    tables=values_tables,
    columns=("return",),
)  # fmt: skip


def maps_trials(scale: Scale) -> dict[str, Trial]:
    setting = choose(scale, smoke=Setting(3, 0.1, 60), demo=Setting(10, 0.1, 1600))
    windows = choose(scale, smoke=(20, 1000), demo=(100, 300, 1000, 3000))
    every = choose(scale, smoke=10, demo=CADENCE)
    runs: dict[str, Trial] = {}
    for form in ("vi", "vi-plain"):
        agent = algorithms(setting, variants=True)[form]
        for method, bonus in bonuses(setting, windows).items():
            label = Label(form=form, **method.tags)
            runs[label] = lock_run(setting, agent, bonus, every, (VisitMap(),), shuffled=False)
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
    x = maps(table, "vi/bernstein")
    x = x / x.sum(-1, keepdims=True)
    means["two seeds of Bernstein"] = float(0.5 * np.abs(x - np.roll(x, 1, axis=0)).sum(-1).mean())
    unit = "mean total variation to Bernstein's maps"
    return verdict._replace(effects=(*verdict.effects, *(Effect(m, x, unit=unit) for m, x in means.items())))


def revisits(table: Table, one: str) -> np.ndarray:
    """Share of the last quarter's visits that go to the good states of the chain with the small reward, by seed.

    By then every method knows the large reward: who goes back there goes back for what it has not seen for long.
    """
    lock, x = _lock(table, "vi/bernstein"), maps(table, one)
    late = x[:, -max(1, x.shape[1] // 4) :].sum(1)
    other = [int(lock.good(1, h)) for h in range(lock.H)]
    return late[:, other].sum(-1) / late.sum(-1)


def revisits_the_forgotten(table: Table) -> Verdict:
    """Claim 17: MADE goes back to the abandoned chain more than 1/N does, and the more so the shorter its window."""
    gaps: dict[str, Interval] = {}
    shares = []
    for form in ("vi", "vi-plain"):
        plain = revisits(table, f"{form}/inverse")
        gaps[form] = paired_interval(revisits(table, f"{form}/{MADE_B}"), plain, "iqm", types.rng())
        shown = sorted(table.select(form=form, method="made"), key=lambda one: one.tags["B"])
        for one in (*shown, f"{form}/inverse", f"{form}/hoeffding"):
            shares.append(Effect(one, float(revisits(table, one).mean()), unit=LATE))
    verdict = types.above(gaps, f"{LATE}, {MADE_B} minus 1/N")
    return verdict._replace(effects=(*verdict.effects, *shares))


def heatmap(ax, matrix: np.ndarray, limits: tuple[float, float]):
    """Draw a matrix [rows, columns] on a logarithmic color scale, its first row on top; NaN and 0 are left grey."""
    from matplotlib.colors import LogNorm

    with plots.style():
        ax.set_facecolor("#D9D9D9")
        masked = np.ma.masked_where(~(matrix > 0), matrix)
        image = ax.imshow(masked, norm=LogNorm(*limits), aspect="auto", interpolation="nearest")
        ax.grid(visible=False)
    return image


def draw_maps(table: Table) -> list[PaperFigure]:
    """A row of maps for each method, one map every 200 iterations; a map has four rows of H states."""
    lock = _lock(table, "vi/bernstein")
    pictures = {m: np.median(maps(table, f"vi/{m}"), axis=0) for m in SHOWN}
    shown = range(0, next(iter(pictures.values())).shape[0], 2)
    steps = table.arrays("vi/bernstein", "visits")[0]
    fig, axes = plots.figure(len(SHOWN), len(shown), height=1.25)
    frames = [[_picture(lock, pictures[m][i]) for i in shown] for m in SHOWN]
    limits = (float(np.nanmin(frames)), float(np.nanmax(frames)))
    for row, method in enumerate(SHOWN):
        for column, i in enumerate(shown):
            ax = axes[row, column]
            image = heatmap(ax, frames[row][column], limits)
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


def _picture(lock: Lock, visits: np.ndarray) -> np.ndarray:
    """Four rows of H: good and dead states of the rewarding chain, then of the other; NaN where never visited."""
    columns = range(lock.H)
    rows = [[int(place(chain, h)) for h in columns] for chain in (0, 1) for place in (lock.good, lock.dead)]
    picture = visits[np.array(rows)].astype(float)
    return np.where(picture > 0, picture, np.nan)


def maps_tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    """Distance to Bernstein's maps and late visits to the abandoned chain."""
    rows = []
    for one in table.select():
        apart = interval(distance(table, one, f"{one.tags['form']}/bernstein"), "iqm", types.rng())
        rows.append([one, str(apart), str(interval(revisits(table, one), "iqm", types.rng()))])
    return [("Maps", ["method", "total variation to Bernstein", "late visits to the abandoned chain"], rows)]


MAPS = Experiment(
    name="lock_heatmap",
    figure="fig:visitation_heatmap",
    title="Where the bonuses send the agent",
    about=(
        "Visits to every state of the lock, every 200 episodes of value iteration. `vi` keeps Q from rising, as He et al. "
        "do; `vi-plain` does not, and only there can a bonus that recovers call the agent back."
    ),
    trials=maps_trials,
    seeds=lambda scale: range(choose(scale, smoke=2, demo=20, paper=100)),
    claims=(
        Claim(11, "pattern-like-bernstein", "The exploration strategy of MADE is closest to the Bernstein bonus", "Fig. 5, Sec. 4.1", closest_to_bernstein),
        Claim(17, "revisits-forgotten", "MADE alleviates detachment by revisiting forgotten states and actions", "Sec. 3.2", revisits_the_forgotten),
    ),
    draw=draw_maps,
    tables=maps_tables,
    columns=("return",),
)  # fmt: skip
