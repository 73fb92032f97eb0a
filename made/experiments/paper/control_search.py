"""The search behind the tuned rows of Figure 8: every method at the same temperatures, on seeds of its own."""

import numpy as np

from made.core.trial import Trial
from made.experiments import plots
from made.experiments.paper import control_setup as shared
from made.experiments.paper.control_returns import spread
from made.experiments.store.store import Scale
from made.experiments.store.table import Table
from made.experiments.types import Experiment, PaperFigure, Search

FIRST_SEED = 100  # the report has 0, 1, 2, ...
SEEDS = {Scale.SMOKE: 1, Scale.SMALL: 4}  # on two, one temperature was chosen that did not hold up on the report's


def trials(scale: Scale) -> dict[str, Trial]:
    found: dict[str, Trial] = {}
    for task, budget in shared.BUDGETS[shared.named(scale)].items():
        for method in budget.searched:
            for tau in shared.SETTINGS[shared.named(scale)].taus:
                run = shared.run_of(task, method, scale, budget.search, budget.every, tau)
                found[f"{task}/{method}/tau={tau:g}"] = run
    return found


def parts(one: str) -> tuple[str, str, float]:
    """(task, method, temperature) of a label."""
    task, method, tau = one.split("/")
    return task, method, float(tau.removeprefix("tau="))


def choose(table: Table) -> dict[str, dict[str, float]]:
    """The temperature of each method on each task with the highest return over the whole run, mean of the seeds."""
    best: dict[str, dict[str, tuple[float, float]]] = {}
    for one in table.labels():
        task, method, tau = parts(one)
        of = best.setdefault(task, {})
        of[method] = max(of.get(method, (-np.inf, 0.0)), (float(shared.average(table, one).mean()), tau))
    return {task: {method: tau for method, (_, tau) in of.items()} for task, of in best.items()}


def draw(table: Table) -> list[PaperFigure]:
    names = shared.tasks(table)
    fig, axes = plots.panels(len(names), height=2.7)
    for ax, task in zip(axes, names, strict=True):
        at: dict[str, list[tuple[float, np.ndarray]]] = {}
        for one in (label for label in table.labels() if label.startswith(f"{task}/")):
            at.setdefault(parts(one)[1], []).append((parts(one)[2], shared.average(table, one)))
        for method, entries in at.items():
            look = plots.style_of(shared.look(method))
            drawn = {"color": look.colour, "linestyle": look.line, "marker": look.marker, "label": look.text}
            ax.plot([tau for tau, _ in entries], [x.mean() for _, x in entries], **drawn)
            for tau, x in entries:
                ax.plot([tau] * len(x), x, ".", color=look.colour, alpha=0.5, markersize=4)
        plots.log_axis(ax)
        plots.title(ax, task, x="temperature", y="return over the run" if plots.leftmost(ax) else "")
    plots.legend(fig)
    seeds = len(table.seeds(table.labels()[0]))
    text = f"The search: mean return over all evaluations against the temperature, a dot a seed ({seeds}) and a line through their means."
    return [PaperFigure("dmc_search", fig, plots.caption(fig, text))]


def tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    taken, rows = choose(table), []
    for one in table.labels():
        task, method, tau = parts(one)
        said = [spread(read(table, one)) for read in (shared.average, shared.final)]
        rows.append([task, method, f"{tau:g}", *said, "taken" if taken[task][method] == tau else ""])
    header = ["task", "method", "tau", "return over the run", "return at the end", ""]
    return [("Every temperature that was tried", header, rows)]


EXPERIMENT = Experiment(
    name="dmc_search",
    figure="fig:dm_control",
    title="The search for temperatures on DeepMind Control",
    about=(
        "Every method that has a temperature at the same ones, on seeds that the report does not use; RE3's decays from it. "
        "The one with the highest mean return over all evaluations is taken. The paper tuned MADE, RND and ICM on each task and RE3 on none."
    ),
    trials=trials,
    seeds=lambda scale: range(FIRST_SEED, FIRST_SEED + SEEDS.get(scale, 2)),
    claims=(),
    draw=draw,
    tables=tables,
    columns=shared.COLUMNS,
    in_demo=False,
    search=Search(choose, lambda: shared.CHOSEN, shared.named),
)
