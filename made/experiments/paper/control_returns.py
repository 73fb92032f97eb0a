"""Figures 8 and 9: RAD with each bonus on DeepMind Control, and how long MADE's recent buffer is."""

from collections.abc import Callable, Iterator

import numpy as np

from made.core.config import override
from made.core.trial import Trial
from made.experiments import plots
from made.experiments.paper import control_setup as shared
from made.experiments.paper import control_verdicts as claims
from made.experiments.statistics import n_seeds_text, resampled_means
from made.experiments.store import Scale
from made.experiments.store.table import Label, Table
from made.experiments.types import Claim, Effect, Experiment, PaperFigure, Verdict, rng
from made.training.control_config import BONUS_COEFS

RETURNS = ("return over the run", "return at the end")
WINDOWS = {"1k": 1_000, "10k": 10_000, "100k": 100_000}  # actions; "all" is what the replay holds
REASONABLE = 0.8  # of the return of the best window


def trials(scale: Scale) -> dict[str, Trial]:
    found: dict[str, Trial] = {}
    for task, budget in shared.BUDGETS[shared.named(scale)].items():
        printed = () if BONUS_COEFS[task]["re3"] != shared.PRINTED_RE3 else ("re3/printed",)  # the same as re3 there
        for method in (m for m in budget.methods if m not in printed):
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
    none = [one for one in table.select(method="none") if one.tags["task"] in searched]
    tuned = [*none, *table.select(tuned=True)]
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
        panel(ax, task, told)
    plots.legend(fig)
    return PaperFigure(name, fig, plots.caption(fig, text, seeds=list(seeds.values()), statistic="mean"))


def curve(ax, table: Table, label: str, look: str | plots.Style) -> None:
    """The mean over seeds of the evaluations, with its interval; a circle at the end of a run that is not whole.

    Then the axis reaches to where it was to end.
    """
    look = plots.style_of(look) if isinstance(look, str) else look
    at, curves = shared.evaluations(table, label)
    middle = plots.interval_band(ax, at, curves, look)
    if shared.is_partial(table, label):
        circle = {"marker": "o", "markersize": 4, "markerfacecolor": "none", "clip_on": False}
        ax.plot(at[-1:], middle[-1:], color=look.color, **circle)
        ax.update_datalim([(table.runs(label)[0]["begun"]["of"], 0.0)])


def panel(ax, task: str, more: str = "", level: float = 0.0) -> None:
    """The axes of one task, `more` after its name: steps of the environment, and the claims' threshold, or a level."""
    ax.axhline(level or shared.threshold(task), color="#888888", linewidth=0.6, linestyle=":")
    ax.set_ylim(bottom=0)
    plots.step_axis(ax)
    plots.title(ax, task + more, x="environment steps", y="return" if plots.leftmost(ax) else "")


def episodes(table: Table) -> int:
    """Of one evaluation."""
    return int(table.runs(table.labels()[0])[0]["description"]["episodes"])


def tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    header = ["task", "method", "bonus coef.", "steps", "steps to the threshold", *RETURNS]
    named = lambda task: f"{task} (threshold {shared.threshold(task):.0f})"  # noqa: E731
    return [("Every method", header, list(rows(table, named, lambda one: [shared.to_reach(table, one).say(rng())])))]


def rows(
    table: Table, named: Callable[[str], str], more: Callable[[str], list[str]] = lambda one: []
) -> Iterator[list[str]]:
    """Each method on each task: the bonus coefficient, the length of its runs, `more` of its label, and its returns."""
    for task in table.tag("task"):
        for method in shared.methods(table, task):
            one = f"{task}/{method}"
            bonus_coef = table.runs(one)[0]["description"]["bonus_coef"]["value"]
            given = (named(task), method, f"{bonus_coef:g}", shared.length(table, one))
            yield [*given, *more(one), *both_returns(table, one)]


def both_returns(table: Table, label: str) -> list[str]:
    """The return over the run and at the end."""
    return [spread(read(table, label)) for read in (shared.average, shared.final)]


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


def buffer_trials(scale: Scale) -> dict[str, Trial]:
    found: dict[str, Trial] = {}
    for task, budget in shared.BUDGETS[shared.named(scale)].items():
        for method in budget.windowed:
            run = shared.run_of(task, method, scale, budget.report, budget.every)
            path = f"bonus{'.bonus' * run.task.pixels}.recent.density.window"
            for window in budget.windows:
                steps = min(WINDOWS.get(window, run.replay.capacity), run.replay.capacity)
                roomy = override(run, path.removesuffix("window") + "capacity", str(max(steps, 10_000)))
                found[Label(task=task, method=method, window=window)] = override(roomy, path, str(steps))
    return found


def studies(table: Table) -> dict[Label, list[Label]]:
    """The labels of each task and form of MADE, in the order of the windows."""
    found: dict[Label, list[Label]] = {}
    for label in table.select():
        found.setdefault(label.without("window"), []).append(label)
    return found


def over_best(table: Table, labels: list[Label], window: str) -> tuple[float, float, float]:
    """The return over the run with a window, over that with the best window, with its interval.

    Seeds are resampled within each window; the best is the best of each resample, so that it is not favored by luck.
    """
    draw, each = rng(), [shared.average(table, one) for one in labels]
    drawn = np.stack([resampled_means(x, draw) for x in each])
    mine = [one.tags["window"] for one in labels].index(window)
    share = lambda x: np.where(x.max(axis=0) > 0, x[mine] / np.maximum(x.max(axis=0), 1e-9), 1.0)  # noqa: E731
    low, high = np.quantile(share(drawn), [0.025, 0.975])
    return float(share(np.array([x.mean() for x in each]))), float(low), float(high)


def ten_thousand_is_reasonable(table: Table) -> Verdict:
    """Claim 28: with 10k MADE has 0.8 of the return of the best window on every task, and the best window differs.

    The return is the mean over all evaluations. Fails where 10k has less; two tasks from pixels and 5 seeds are needed.
    """
    returns, shares, best, absent = [], [], set(), []
    for name, labels in studies(table).items():
        means = {one.tags["window"]: float(shared.average(table, one).mean()) for one in labels}
        returns += [Effect(f"{name} {window}", x, unit="return over the run") for window, x in means.items()]
        if lack := [window for window in (*WINDOWS, "all") if window not in means]:
            absent.append(f"{name} lacks {', '.join(lack)}")
        if "10k" in means and max(means.values()) > 0:  # where no window has a return none is better
            over = over_best(table, labels, "10k")
            shares.append(Effect(name, *over, "return with 10k over that with the best window", 1.0))
            best.add(max(means, key=lambda one: means[one]))
    effects = (*shares, *returns)
    lack = claims.lacking(table, (), ())
    few = "" if len(table.tag("task")) > 1 else "one task says nothing of others"
    if not shares:
        return claims.judged(Verdict(None, effects), lack.also("returns with a window of 10k"))
    if any(x.high < REASONABLE for x in shares):
        return claims.judged(Verdict(False, effects), lack)
    fine = all(x.low >= REASONABLE for x in shares) and len(best) > 1
    return claims.judged(Verdict(True if fine else None, effects), lack.also(few, *absent))


def draw_buffer(table: Table) -> list[PaperFigure]:
    names = studies(table)
    fig, axes = plots.panels(len(names), height=2.7)
    for ax, (name, labels) in zip(axes, names.items(), strict=True):
        for label in labels:
            window = label.tags["window"]
            at = [*WINDOWS, "all"].index(window)
            curve(ax, table, label, plots.Style(window, plots.CYCLE[at], "--" if window == "all" else "-"))
        panel(ax, name.tags["task"], f", {name.tags['method']}")
    plots.legend(fig)
    seeds = table.seed_counts()
    text = (
        f"MADE with a recent buffer of so many actions; all: the whole replay. Return of {episodes(table)} episodes "
        f"by the mean action, against steps of the environment.{shared.circles(table, table.labels())}"
    )
    return [PaperFigure("dmc_buffer", fig, plots.caption(fig, text, seeds=seeds, statistic="mean"))]


def buffer_tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    rows = []
    for one in table.select():
        said = shared.to_reach(table, one).say(rng())
        rows.append([*one.tags.values(), shared.length(table, one), said, *both_returns(table, one)])
    header = ["task", "method", "window", "steps", "steps to the threshold", *RETURNS]
    return [("Every window", header, rows)]


BUFFER = Experiment(
    name="dmc_buffer",
    figure="fig:dm_control_ablation",
    title="The length of MADE's recent buffer",
    about=(
        "MADE as in `dmc` with other windows of the recent density. No window is longer than the replay (100,000 actions; "
        "small: 15,000), so there 100k and all are one run."
    ),
    trials=buffer_trials,
    seeds=EXPERIMENT.seeds,
    claims=(
        Claim(28, "buffer-length", "The best length of the recent buffer varies; 10000 is reasonable throughout", "Fig. 9, Sec. 5.2", ten_thousand_is_reasonable),
    ),
    draw=draw_buffer,
    tables=buffer_tables,
    columns=shared.COLUMNS,
    in_demo=False,
    in_pieces=True,
)  # fmt: skip
