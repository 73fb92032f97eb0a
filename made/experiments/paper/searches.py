"""The searches behind Figures 7 and 8: every method at the same settings, on seeds of its own."""

from collections.abc import Callable, Mapping

import numpy as np

from made.core.trial import Trial
from made.experiments import plots
from made.experiments.paper import control_setup as control
from made.experiments.paper import minigrid_setup as grids
from made.experiments.paper.control_returns import RETURNS, both_returns
from made.experiments.store import Scale
from made.experiments.store.table import Label, Table
from made.experiments.types import Experiment, PaperFigure, Search

FIRST_SEED = 100  # the report has 0, 1, 2, ...
SEEDS = {Scale.SMOKE: 1, Scale.SMALL: 4}  # of control; on two, a coefficient was chosen that did not hold up later


def minigrid_trials(scale: Scale) -> dict[str, Trial]:
    few = slice(1 if scale == Scale.SMOKE else None)
    return {
        Label(task=task, method=method, B=strength, lr=rate): grids.run_of(
            task, method, scale, budget.search, strength=strength, learning_rate=rate
        )
        for task, budget in grids.budgets(scale).items()
        for method in budget.methods
        if method in grids.METHODS
        for strength in (grids.STRENGTHS[few] if method != "none" else (0.0,))
        for rate in budget.rates[few]
    }


def _best(table: Table, score: Callable[[Label], tuple[float, float]]) -> dict[str, dict[str, Label]]:
    """The label with the highest score of each method on each task."""
    best: dict[str, dict[str, Label]] = {}
    for one in table.select():
        of, method = best.setdefault(one.tags["task"], {}), one.tags["method"]
        of[method] = max(of.get(method, one), one, key=score)
    return best


def choose_minigrid(table: Table) -> dict[str, dict[str, dict[str, float]]]:
    """The best setting of each method on each task: fewest frames to solve it, then highest return at the end.

    Frames are the mean over seeds of min(frames to solve, the budget).
    """
    score = lambda one: (-grids.to_solve(table, one).times.mean(), grids.final(table, one).mean())  # noqa: E731
    setting = lambda one: {"strength": one.tags["B"], "learning_rate": one.tags["lr"]}  # noqa: E731
    return {task: {m: setting(one) for m, one in of.items()} for task, of in _best(table, score).items()}


def draw_minigrid(table: Table) -> list[PaperFigure]:
    names = grids.tasks(table)
    fig, axes = plots.figure(len(names), 2, height=2.4)
    for row, task in zip(axes, names, strict=True):
        frames, ends = {}, {}
        for one in (one for one in table.select(task=task) if one.tags["method"] != "none"):
            line, times = (one.tags["method"], one.tags["lr"] == grids.RATES[-1]), grids.to_solve(table, one)
            frames.setdefault(line, {})[one.tags["B"]] = (times.times / 1e6, times.censored)
            ends.setdefault(line, {})[one.tags["B"]] = (grids.final(table, one), np.zeros_like(times.censored))
        for ax, lines, of in zip(row, (frames, ends), ("million frames to solve", "return at the end"), strict=True):
            _panel(ax, lines)
            ax.set_xticks(grids.STRENGTHS, [f"{b:g}" for b in grids.STRENGTHS])
            ax.minorticks_off()
            plots.title(ax, task, x="strength" if task == names[-1] else "", y=of)
    plots.legend(fig)
    seeds = len(table.seeds(table.labels()[0]))
    text = (
        f"The search: frames until the mean return is above {grids.SOLVED}, and the return over the last million frames, "
        f"against the strength of the bonus; a mark a seed ({seeds}) and a line through their means. Crosses at the top "
        f"were not solved within the budget. Faint: learning rate {grids.RATES[0]:g}; else {grids.RATES[-1]:g}."
    )
    return [PaperFigure("minigrid_search", fig, plots.caption(fig, text))]


def _panel(ax, lines: Mapping[tuple[str, bool], Mapping[float, tuple[np.ndarray, np.ndarray]]]) -> None:
    """By (method, whether it stands out) a line through the means over seeds, and a mark a seed, a cross if it failed."""
    for i, ((method, main), points) in enumerate(sorted(lines.items())):
        look, shift = plots.style_of(method), 1 + 0.008 * (i - len(lines) / 2)
        drawn = {"color": look.color, "alpha": 1.0 if main else 0.3}
        at = sorted(points)
        means = [points[x][0].mean() for x in at]
        label = {"label": look.text} if main else {}
        ax.plot([x * shift for x in at], means, linestyle=look.line, **drawn, **label)
        for x in at:
            for y, failed in zip(*points[x], strict=True):
                ax.plot(x * shift, y, "x" if failed else look.marker, markersize=4, **drawn)
    ax.set_xscale("log")


def minigrid_tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    header = ["task", "method", "strength", "learning rate", "million frames to solve, each seed", "return at the end"]
    rows = []
    for one in table.select():
        task, method, strength, rate = one.tags.values()
        times = ", ".join("-" if no else f"{t / 1e6:.1f}" for t, no in zip(*grids.to_solve(table, one), strict=True))
        ends = ", ".join(f"{x:.2f}" for x in grids.final(table, one))
        rows.append([task, plots.name_of(method), f"{strength:g}", f"{rate:g}", times, ends])
    return [("Every setting that was tried", header, rows)]


MINIGRID = Experiment(
    name="minigrid_search",
    figure="fig:minigrid_result",
    title="The search for settings on MiniGrid",
    about=(
        "Every method, with and without the first-visit mask, at the same four strengths (bonus coefficient x mean bonus x time limit) and the same "
        "learning rates (two on the first two tasks, the better of them on the others), on seeds that the report does not use. The strength is set by calibration over the first 300 "
        "updates and fixed from then on."
    ),
    trials=minigrid_trials,
    seeds=lambda scale: range(FIRST_SEED, FIRST_SEED + (1 if scale == Scale.SMOKE else 2)),
    claims=(),
    draw=draw_minigrid,
    tables=minigrid_tables,
    columns=grids.COLUMNS,
    in_demo=False,
    search=Search(choose_minigrid, lambda: grids.CHOSEN),
)


def control_trials(scale: Scale) -> dict[str, Trial]:
    setting = control.SETTINGS[control.named(scale)]
    return {
        Label(task=task, method=m, tau=coef): control.run_of(task, m, setting, budget.search, budget.every, coef)
        for task, budget in control.BUDGETS[control.named(scale)].items()
        for m in budget.searched
        for coef in setting.bonus_coefs
    }


def choose_control(table: Table) -> dict[str, dict[str, float]]:
    """The bonus coefficient of each method on each task with the highest return over the whole run, mean of the seeds."""
    score = lambda one: (float(control.average(table, one).mean()), one.tags["tau"])  # noqa: E731
    return {task: {m: one.tags["tau"] for m, one in of.items()} for task, of in _best(table, score).items()}


def draw_control(table: Table) -> list[PaperFigure]:
    names = table.tag("task")
    fig, axes = plots.panels(names, x="bonus coefficient", y="return over the run", height=2.7)
    for ax, task in zip(axes, names, strict=True):
        lines: dict = {}
        for one in table.select(task=task):
            returns, look = control.average(table, one), control.LOOKS.get(one.tags["method"], one.tags["method"])
            lines.setdefault((look, True), {})[one.tags["tau"]] = (returns, np.zeros(len(returns), bool))
        _panel(ax, lines)
    plots.legend(fig)
    seeds = len(table.seeds(table.labels()[0]))
    text = f"The search: mean return over all evaluations against the bonus coefficient, a mark a seed ({seeds}) and a line through their means."
    return [PaperFigure("dmc_search", fig, plots.caption(fig, text))]


def control_tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    taken, rows = choose_control(table), []
    for one in table.select():
        task, method, coef = one.tags.values()
        chosen = "taken" if taken[task][method] == coef else ""
        rows.append([task, method, f"{coef:g}", *both_returns(table, one), chosen])
    header = ["task", "method", "bonus coef.", *RETURNS, ""]
    return [("Every bonus coefficient that was tried", header, rows)]


CONTROL = Experiment(
    name="dmc_search",
    figure="fig:dm_control",
    title="The search for bonus coefficients on DeepMind Control",
    about=(
        "Every method that has a bonus coefficient at the same ones, on seeds that the report does not use; RE3's decays from it. "
        "The one with the highest mean return over all evaluations is taken. The paper tuned MADE, RND and ICM on each task and RE3 on none."
    ),
    trials=control_trials,
    seeds=lambda scale: range(FIRST_SEED, FIRST_SEED + SEEDS.get(scale, 2)),
    claims=(),
    draw=draw_control,
    tables=control_tables,
    columns=control.COLUMNS,
    in_demo=False,
    search=Search(choose_control, lambda: control.CHOSEN, control.named),
)
