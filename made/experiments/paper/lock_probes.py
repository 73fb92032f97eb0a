"""Figures 4 and 5: the values of the bonuses on the lock, and where each sends the agent (Section 4.1)."""

import numpy as np

from made.core.trial import Trial
from made.experiments import plots, types
from made.experiments.paper.lock_returns import MADE_B, Setting, algorithms, bonuses, lock_run, windows_of
from made.experiments.statistics import interval, paired_interval
from made.experiments.store import Scale
from made.experiments.store.table import Label, Table
from made.experiments.types import Claim, Effect, Experiment, PaperFigure, Verdict, choose
from made.tabular.families import Lock
from made.training.probes import BonusTable, LastVisit, VisitMap

DRIVERS = (Label(method="hoeffding"), Label(method="bernstein"), MADE_B)  # rewarded while all bonuses are evaluated
SHOWN = ("hoeffding", "bernstein", "inverse", MADE_B)
CADENCE = 200  # iterations between two maps, as in the paper
LOG_RATIO = "mean |log ratio| to Bernstein"
LATE = "fraction of late visits in the abandoned chain"


def values_trials(scale: Scale) -> dict[str, Trial]:
    setting = choose(scale, smoke=Setting(3, 0.1, 60), demo=Setting(10, 0.1, 1500))
    windows = choose(scale, smoke=(20, 1000), demo=(100, 1000), small=(100, 300, 1000, 3000))
    tables = bonuses(setting, windows)
    probes = (*(BonusTable(str(name), bonus) for name, bonus in tables.items()), VisitMap(), LastVisit())
    record = {"every": setting.episodes // choose(scale, smoke=6, demo=60), "probes": probes, "shuffled": False}
    agent = algorithms(setting)["vi"]
    return {driver: lock_run(setting, agent, tables[driver], **record) for driver in DRIVERS}


def log_distance(table: Table, driver: str, a: str, b: str) -> np.ndarray:
    """Mean |log a - log b| over visited pairs and time, one number a seed: how many e-folds apart two bonuses are."""
    x, y = (np.log(np.maximum(table.arrays(driver, f"bonus_{name}")[1], 1e-9)) for name in (a, b))
    seen = (table.arrays(driver, "visits")[1] > 0).reshape(x.shape)
    each = tuple(range(1, x.ndim))
    return (np.abs(x - y) * seen).sum(each) / seen.sum(each)


def tracks_bernstein(table: Table) -> Verdict:
    """Claim 10: on the same experience MADE's bonus is nearer to Bernstein's than Hoeffding's is."""
    gaps, means = {}, []
    for driver in DRIVERS:
        of = {MADE_B: MADE_B, "1/N": "inverse", "Hoeffding": "hoeffding"}
        of = {text: log_distance(table, driver, name, "bernstein") for text, name in of.items()}
        gaps[f"paid by {driver}"] = paired_interval(of["Hoeffding"], of[MADE_B], "iqm", types.rng())
        means += [Effect(f"{m}, paid by {driver}", float(x.mean()), unit=LOG_RATIO) for m, x in of.items()]
    return types.above(gaps, "|log ratio to Bernstein|, Hoeffding minus MADE").also(*means)


def falls_and_recovers(table: Table) -> Verdict:
    """Claim 16: rank correlation of the bonus with visits below zero; with age, among pairs of equal visits, above zero."""
    from scipy.stats import spearmanr

    falls, recovers, now = [], [], table.arrays(MADE_B, "visits")[0][-1]
    each = (table.arrays(MADE_B, name)[1][:, -1] for name in ("visits", f"bonus_{MADE_B}", "last_visit"))
    for visits, bonus, last in zip(*each, strict=True):
        seen = visits.ravel() > 0
        n, b, age = visits.ravel()[seen], bonus.ravel()[seen], now - last.ravel()[seen]
        falls.append(spearmanr(n, b)[0])
        recovers.append(spearmanr(age, b * np.sqrt(n))[0])  # what is left of the bonus at equal counts
    down, up = (interval(x, "iqm", types.rng()) for x in (np.nan_to_num(falls), np.nan_to_num(recovers)))
    names = {"bonus with visits": down, "bonus x sqrt(visits) with episodes since the last visit": up}
    effects = types.effects_of(names, "rank correlation at the end")
    return types.decide(bool(down.high < 0 and up.low > 0), effects, types.few_seeds(down.n))


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
    title = "Mean |log ratio| to Bernstein's bonus over visited pairs and time"
    return [(title, ["paid by", "bonus", "|log ratio|"], rows)]


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
    record = {"every": choose(scale, smoke=10, demo=CADENCE), "probes": (VisitMap(),), "shuffled": False}
    return {
        Label(form=form, **method.tags): lock_run(setting, algorithms(setting)[form], bonus, **record)
        for form in ("vi", "vi-plain")
        for method, bonus in bonuses(setting, windows).items()
    }


def maps(table: Table, one: str) -> np.ndarray:
    """Visits within each stretch between two recordings, summed over actions: [seeds, stretches, states]."""
    counts = table.arrays(one, "visits")[1].sum(-1)
    return np.diff(counts, axis=1, prepend=0)


def distance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Total variation between two methods' maps of each seed and stretch."""
    x, y = (visits / visits.sum(-1, keepdims=True) for visits in (x, y))
    return 0.5 * np.abs(x - y).sum(-1)


def closest_to_bernstein(table: Table) -> Verdict:
    """Claim 11: MADE's maps are nearer to Bernstein's than Hoeffding's are."""
    bernstein = maps(table, "vi/bernstein")
    far = {m: distance(maps(table, f"vi/{m}"), bernstein).mean(-1) for m in ("hoeffding", MADE_B, "inverse")}
    gap = paired_interval(far["hoeffding"], far[MADE_B], "iqm", types.rng())
    far["two seeds of Bernstein"] = distance(bernstein, np.roll(bernstein, 1, axis=0))
    means = [Effect(m, float(x.mean()), unit="mean total variation to Bernstein's maps") for m, x in far.items()]
    return types.above({"vi": gap}, "total variation to Bernstein's maps, Hoeffding minus MADE").also(*means)


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
    gaps, means = {}, []
    for form in ("vi", "vi-plain"):
        ours, plain = (revisits(table, f"{form}/{method}") for method in (MADE_B, "inverse"))
        gaps[form] = paired_interval(ours, plain, "iqm", types.rng())
        for one in (*windows_of(table, form=form), f"{form}/inverse", f"{form}/hoeffding"):
            means.append(Effect(one, float(revisits(table, one).mean()), unit=LATE))
    return types.above(gaps, f"{LATE}, {MADE_B} minus 1/N").also(*means)


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
        apart = distance(maps(table, one), maps(table, f"{one.tags['form']}/bernstein")).mean(-1)
        rows.append([one, *(str(interval(x, "iqm", types.rng())) for x in (apart, revisits(table, one)))])
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
