"""The search behind Figure 7: every method at the same strengths and learning rates, on seeds of its own."""

import numpy as np

from made.core.trial import Trial
from made.experiments import plots
from made.experiments.paper import minigrid_setup as shared
from made.experiments.store.store import Scale
from made.experiments.store.table import Label, Table
from made.experiments.types import Experiment, PaperFigure, Search

FIRST_SEED = 100  # the report has 0, 1, 2, ...


def trials(scale: Scale) -> dict[str, Trial]:
    found: dict[str, Trial] = {}
    few = slice(1 if scale == Scale.SMOKE else None)
    for task, budget in shared.budgets(scale).items():
        for method in (name for name in budget.methods if name in shared.METHODS):
            for strength in shared.STRENGTHS[few] if method != "none" else (0.0,):
                for rate in budget.rates[few]:
                    run = shared.run_of(task, method, scale, budget.search, strength=strength, learning_rate=rate)
                    found[Label(task=task, method=method, B=strength, lr=rate)] = run
    return found


def choose(table: Table) -> dict[str, dict[str, dict[str, float]]]:
    """The best setting of each method on each task: fewest frames to solve it, then highest return at the end.

    Frames are the mean over seeds of min(frames to solve, the budget).
    """
    best: dict[str, dict[str, tuple]] = {}
    for one in table.select():
        task, method, strength, rate = one.tags.values()
        taken, last = shared.to_solve(table, one).times.mean(), shared.final(table, one).mean()
        held = best.setdefault(task, {}).get(method)
        if held is None or (taken, -last) < held[:2]:
            best[task][method] = (taken, -last, strength, rate)
    return {
        task: {method: {"strength": x[2], "learning_rate": x[3]} for method, x in of.items()}
        for task, of in best.items()
    }


def draw(table: Table) -> list[PaperFigure]:
    names = shared.tasks(table)
    fig, axes = plots.figure(len(names), 2, height=2.4)
    for row, task in zip(axes, names, strict=True):
        at = "strength" if task == names[-1] else ""
        for ax, read, told in zip(row, (_frames, _end), ("million frames to solve", "return at the end"), strict=True):
            _panel(ax, table, task, read)
            plots.title(ax, task, x=at, y=told)
    plots.legend(fig)
    seeds = len(table.seeds(table.labels()[0]))
    text = (
        f"The search: frames until the mean return is above {shared.SOLVED}, and the return over the last million frames, "
        f"against the strength of the bonus; a mark a seed ({seeds}) and a line through their means. Crosses at the top "
        f"were not solved within the budget. Faint: learning rate {shared.RATES[0]:g}; else {shared.RATES[-1]:g}."
    )
    return [PaperFigure("minigrid_search", fig, plots.caption(fig, text))]


def _frames(table: Table, one: str) -> tuple[np.ndarray, np.ndarray]:
    """Million frames to solve, a number a seed, and which seeds did not."""
    times = shared.to_solve(table, one)
    return times.times / 1e6, times.censored


def _end(table: Table, one: str) -> tuple[np.ndarray, np.ndarray]:
    """The return at the end, a number a seed; none is marked."""
    ends = shared.final(table, one)
    return ends, np.zeros(len(ends), bool)


def _panel(ax, table: Table, task: str, read) -> None:
    at: dict[tuple[str, float], list[tuple[float, str]]] = {}
    for one in table.select(task=task):
        _, method, strength, rate = one.tags.values()
        if method != "none":
            at.setdefault((method, rate), []).append((strength, one))
    for i, ((method, rate), entries) in enumerate(sorted(at.items())):
        look, shift, main = plots.style_of(method), 1 + 0.008 * (i - len(at) / 2), rate == shared.RATES[-1]
        faint = {"color": look.colour, "alpha": 1.0 if main else 0.3}
        values = [read(table, one) for _, one in sorted(entries)]
        x = np.array([strength for strength, _ in sorted(entries)]) * shift
        label = {"label": look.text} if main else {}
        ax.plot(x, [seeds.mean() for seeds, _ in values], linestyle=look.line, **faint, **label)
        for place, (seeds, failed) in zip(x, values, strict=True):
            for value, no in zip(seeds, failed, strict=True):
                ax.plot(place, value, "x" if no else look.marker, markersize=4, **faint)
    ax.set_xscale("log")
    ax.set_xticks(shared.STRENGTHS, [f"{b:g}" for b in shared.STRENGTHS])
    ax.minorticks_off()


def tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    header = ["task", "method", "strength", "learning rate", "million frames to solve, each seed", "return at the end"]
    rows = []
    for one in table.select():
        task, method, strength, rate = one.tags.values()
        times = shared.to_solve(table, one)
        said = [f"{t / 1e6:.1f}" if not c else "-" for t, c in zip(times.times, times.censored, strict=True)]
        ends = ", ".join(f"{x:.2f}" for x in shared.final(table, one))
        rows.append([task, plots.name_of(method), f"{strength:g}", f"{rate:g}", ", ".join(said), ends])
    return [("Every setting that was tried", header, rows)]


EXPERIMENT = Experiment(
    name="minigrid_search",
    figure="fig:minigrid_result",
    title="The search for settings on MiniGrid",
    about=(
        "Every method, with and without the first-visit mask, at the same four strengths (bonus coefficient x mean bonus x time limit) and the same "
        "learning rates (two on the first two tasks, the better of them on the others), on seeds that the report does not use. The strength is set by calibration over the first 300 "
        "updates and fixed from then on."
    ),
    trials=trials,
    seeds=lambda scale: range(FIRST_SEED, FIRST_SEED + (1 if scale == Scale.SMOKE else 2)),
    claims=(),
    draw=draw,
    tables=tables,
    columns=("return", "length", "bonus", "bonus_strength", "entropy", "factor/log_std", "pool_reused"),
    in_demo=False,
    search=Search(choose, lambda: shared.CHOSEN),
)
