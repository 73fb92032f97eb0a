"""Figure 8: RAD with each bonus on DeepMind Control, at the paper's bonus coefficients and at tuned ones."""

from collections.abc import Callable, Iterator

import numpy as np

from made.core.trial import Trial
from made.experiments import plots
from made.experiments.paper import control_setup as shared
from made.experiments.paper import control_verdicts as claims
from made.experiments.statistics import interval, n_seeds_text
from made.experiments.store.store import Scale
from made.experiments.store.table import Label, Table
from made.experiments.types import Claim, Experiment, PaperFigure, rng


def trials(scale: Scale) -> dict[str, Trial]:
    found: dict[str, Trial] = {}
    for task, budget in shared.BUDGETS[shared.named(scale)].items():
        for method in (m for m in budget.methods if m != "re3/printed" or shared.has_printed(task)):
            found[Label(task=task, method=method)] = shared.run_of(task, method, scale, budget.report, budget.every)
        for method, bonus_coef in shared.chosen(task, scale).items():
            run = shared.run_of(task, method, scale, budget.report, budget.every, bonus_coef)
            found[Label(task=task, method=f"tuned/{method}", tuned=True)] = run
    return found


def draw(table: Table) -> list[PaperFigure]:
    what = "RAD from pixels" if shared.from_pixels(table) else "Soft actor-critic from states"
    read = f"Return of {episodes(table)} episodes by the mean action, against steps of the environment; dotted: the threshold."
    printed = "pendulum_swingup/re3/printed" in table.labels()
    more = " RE3, printed: at the paper's bonus coefficient; RE3: at its authors'." * printed
    plain = [label for label in table.select() if "tuned" not in label.tags]
    text = f"{what} with each bonus, at the paper's bonus coefficients. {read}{more}{shared.circles(table, plain)}"
    drawn = [_figure(table, plain, "dmc", text)] if plain else []
    searched = table.tag("task", tuned=True)
    tuned = [
        one
        for task in searched
        for one in (*table.select(task=task, method="none"), *table.select(task=task, tuned=True))
    ]
    if tuned:
        text = f"{what} with each bonus at the bonus coefficient that was chosen for it on other seeds, among the same for all. {read}{shared.circles(table, tuned)}"
        drawn.append(_figure(table, tuned, "dmc_tuned", text))
    return drawn


def _figure(table: Table, labels: list[Label], name: str, text: str) -> PaperFigure:
    """A panel a task."""
    seeds = {label: len(table.seeds(label)) for label in labels}
    names = list(dict.fromkeys(label.tags["task"] for label in labels))
    fig, axes = plots.panels(len(names), height=2.7)
    for ax, task in zip(axes, names, strict=True):
        mine = [label for label in labels if label.tags["task"] == task]
        for method in (m for m in shared.methods(table, task) if f"{task}/{m}" in mine):
            plain = method == "none" and not shared.from_pixels(table)  # soft actor-critic, not RAD
            curve(ax, table, f"{task}/{method}", "none" if plain else shared.look(method))
        told = f"\n{n_seeds_text([seeds[one] for one in mine])}" if len(set(seeds.values())) > 1 else ""
        panel(ax, task, first=plots.leftmost(ax), more=told)
    plots.legend(fig)
    return PaperFigure(name, fig, plots.caption(fig, text, seeds=list(seeds.values()), statistic="mean"))


def curve(ax, table: Table, label: str, look: str | plots.Style) -> None:
    """The mean over seeds of the evaluations, with its interval; a circle at the end of a run that is not whole.

    Then the axis reaches to where it was to end.
    """
    look = plots.style_of(look) if isinstance(look, str) else look
    at, curves = shared.evaluations(table, label)
    middle, low, high = (np.asarray(x) for x in interval(curves, "mean", np.random.default_rng(0))[:3])
    ax.plot(at, middle, color=look.colour, linestyle=look.line, label=look.text)
    ax.fill_between(at, low, high, color=look.colour, alpha=0.15, linewidth=0)
    if shared.is_partial(table, label):
        ax.plot(
            at[-1:], middle[-1:], color=look.colour, marker="o", markersize=4, markerfacecolor="none", clip_on=False
        )
        ax.update_datalim([(table.runs(label)[0]["begun"]["of"], 0.0)])


def panel(ax, task: str, first: bool, more: str = "") -> None:
    """The axes of one task: steps of the environment, and the threshold that claims are judged at.

    `more` stands behind its name.
    """
    ax.axhline(shared.threshold(task), color="#888888", linewidth=0.6, linestyle=":")
    ax.set_ylim(bottom=0)
    plots.step_axis(ax)
    plots.title(ax, task + more, x="environment steps", y="return" if first else "")


def episodes(table: Table) -> int:
    """Of one evaluation."""
    return int(table.runs(table.labels()[0])[0]["description"]["episodes"])


def tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    header = [
        "task",
        "method",
        "bonus coef.",
        "steps",
        "steps to the threshold",
        "return over the run",
        "return at the end",
    ]
    named = lambda task: f"{task} (threshold {shared.threshold(task):.0f})"  # noqa: E731
    return [("Every method", header, list(rows(table, named, lambda one: [shared.to_reach(table, one).say(rng())])))]


def rows(
    table: Table, named: Callable[[str], str], more: Callable[[str], list[str]] = lambda one: []
) -> Iterator[list[str]]:
    """Each method on each task: the bonus coefficient, the length of its runs, `more` of its label, and its returns."""
    for task in shared.tasks(table):
        for method in shared.methods(table, task):
            one = f"{task}/{method}"
            bonus_coef = table.runs(one)[0]["description"]["bonus_coef"]["value"]
            each = [spread(read(table, one)) for read in (shared.average, shared.final)]
            yield [named(task), method, f"{bonus_coef:g}", shared.length(table, one), *more(one), *each]


def spread(values: np.ndarray) -> str:
    """The mean over seeds, and the least and the largest where there are several."""
    ends = f" ({values.min():.0f} to {values.max():.0f})" if len(values) > 1 else ""
    return f"{values.mean():.0f}{ends}"


EXPERIMENT = Experiment(
    name="dmc",
    figure="fig:dm_control",
    title="RAD on DeepMind Control",
    about=(
        "Soft actor-critic on random crops (from states at scale small), batches of 512 from a replay of 100,000 steps "
        "(small: 128 of 15,000), one update an action, repeat 2 (quadruped 4). Bonus coefficients are the paper's for each task; RE3 as its "
        "authors start it, and on Pendulum also at the paper's 0.05; `tuned/` is what `dmc_search` chose. Controls: the "
        "released MADE, and the covers of both forms of MADE alone, paid as much as these would pay in all. Scale gpu multiplies in bfloat16 and draws coarser shadows."
    ),
    trials=trials,
    seeds=lambda scale: range(shared.SETTINGS[shared.named(scale)].seeds),
    claims=(
        Claim(23, "faster-on-control", "MADE needs 2.6 times fewer steps than RAD+RE3, 3.3 than RAD+RND, 3.8 than RAD (19.7 CURL, 15.0 DrQ)", "Sec. 5.2", claims.faster),
        Claim(24, "pendulum-in-30k", "On Pendulum MADE has about 800 in 30K steps, where RE3 needs 300K", "Fig. 8, Sec. 5.2", claims.pendulum),
        Claim(25, "quadruped-gap", "On Quadruped MADE is 150 above RE3, and the gap still grows", "Fig. 8, Sec. 5.2", claims.quadruped),
        Claim(26, "clearly-above-re3", "MADE is clearly above RE3 on Hopper and Walker; on two tasks they are comparable", "Fig. 8, Sec. 5.2", claims.clearly_above),
        Claim(27, "curiosity-fails", "RND and ICM fail on Cartpole swing-up, sparse", "Fig. 8, Sec. 5.2", claims.curiosity_fails),
        Claim(31, "gains-150", "The return improves by up to 150 in 500K steps", "Sec. 1", claims.largest_gain),
        Claim(32, "consistent-on-control", "MADE is better than every baseline on every control task", "Fig. 8, Sec. 5.2", claims.consistent),
        Claim(36, "density-adds-on-control", "On control too the recent density, not RND alone, makes the difference (claim 33)", "Sec. 5", claims.density_adds),
    ),
    draw=draw,
    tables=tables,
    columns=shared.COLUMNS,
    in_demo=False,
    in_pieces=True,
)  # fmt: skip
