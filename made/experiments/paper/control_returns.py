"""Figures 8 to 10: RAD with each bonus on DeepMind Control, the length of MADE's recent buffer, and Dreamer."""

from collections.abc import Mapping

import numpy as np

from made.core.config import override
from made.core.trial import Trial
from made.experiments import plots
from made.experiments.paper import control_setup as shared
from made.experiments.paper import control_verdicts as claims
from made.experiments.statistics import n_seeds_text
from made.experiments.store import Scale
from made.experiments.store.table import Label, Table
from made.experiments.types import Claim, Experiment, PaperFigure, rng
from made.training.control_config import BONUS_COEFS

RETURNS = ("return over the run", "return at the end")
_MODEL_AXES = ("paid", "imagined")
ROW, BELOW = 1.5, 0.9  # inches: a method, and what the words under the figure take


def trials(scale: Scale) -> dict[str, Trial]:
    setting, budgets = shared.SETTINGS[shared.named(scale)], shared.BUDGETS[shared.named(scale)]
    found = _at_papers_coefs(setting, budgets)
    for task, budget in budgets.items():
        for method, coef in shared.chosen(task, scale).items():
            run = shared.run_of(task, method, setting, budget.steps, budget.every, coef)
            found[Label(task=task, method=f"tuned/{method}", tuned=True)] = run
    return found


def _at_papers_coefs(setting: shared.Setting, budgets: Mapping[str, shared.Budget]) -> dict[str, Trial]:
    return {
        Label(task=task, method=method): shared.run_of(task, method, setting, budget.steps, budget.every)
        for task, budget in budgets.items()
        for method in budget.methods
        if method != "re3/printed" or BONUS_COEFS[task]["re3"] != shared.PRINTED_RE3  # where it is the same as re3
    }


def draw(table: Table) -> list[PaperFigure]:
    what = "RAD from pixels" if shared.from_pixels(table) else "Soft actor-critic from states"
    read = f"Return of {_episodes(table)} episodes by the mean action, against steps of the environment; dotted: the threshold."
    printed = "pendulum_swingup/re3/printed" in table.labels()
    more = " RE3, printed: at the paper's bonus coefficient; RE3: at its authors'." * printed
    plain = [label for label in table.select() if "tuned" not in label.tags]
    searched = table.tag("task", tuned=True)
    none = [one for one in table.select(method="none") if one.tags["task"] in searched]
    texts = {
        "dmc": (plain, f"{what} with each bonus, at the paper's bonus coefficients. {read}{more}"),
        "dmc_tuned": (
            [*none, *table.select(tuned=True)],
            f"{what} with each bonus at the bonus coefficient that was chosen for it on other seeds, among the same for all. {read}",
        ),
    }
    return [_by_task(table, name, text, labels) for name, (labels, text) in texts.items() if labels]


def _by_task(table: Table, name: str, text: str, labels: list[Label]) -> PaperFigure:
    """A panel a task, with the seeds of its runs where these differ."""
    baseline = "rad" if shared.from_pixels(table) else "none"  # soft actor-critic, not RAD
    uneven, panels = len({len(table.seeds(one)) for one in labels}) > 1, {}
    for task in dict.fromkeys(label.tags["task"] for label in labels):
        mine = {f"{task}/{m}": shared.look(m, baseline) for m in shared.methods(table, task) if f"{task}/{m}" in labels}
        seeds = f"\n{n_seeds_text([len(table.seeds(one)) for one in mine])}" * uneven
        panels[f"{task}{seeds}"] = (shared.threshold(task), mine)
    return _returns_figure(table, name, text, panels)


def _returns_figure(
    table: Table, name: str, text: str, panels: Mapping[str, tuple[float, Mapping[str, plots.Style]]]
) -> PaperFigure:
    """By title a dotted level, and by label the mean over seeds of the evaluations, with its interval.

    A circle ends a run that is not whole, and the axis reaches to where it was to end.
    """
    fig, axes = plots.panels(panels, x="environment steps", y="return", height=2.7)
    for ax, (level, looks) in zip(axes, panels.values(), strict=True):
        for label, look in looks.items():
            at, curves = shared.evaluations(table, label)
            middle = plots.interval_band(ax, at, curves, look)
            if shared.is_partial(table, label):
                circle = {"marker": "o", "markersize": 4, "markerfacecolor": "none", "clip_on": False}
                ax.plot(at[-1:], middle[-1:], color=look.color, **circle)
                ax.update_datalim([(table.runs(label)[0]["begun"]["of"], 0.0)])
        ax.axhline(level, color="#888888", linewidth=0.6, linestyle=":")
        ax.set_ylim(bottom=0)
        plots.step_axis(ax)
    plots.legend(fig)
    labels = [label for _, looks in panels.values() for label in looks]
    text += " A circle ends runs that are not whole." * any(shared.is_partial(table, one) for one in labels)
    seeds = [len(table.seeds(one)) for one in labels]
    return PaperFigure(name, fig, plots.caption(fig, text, seeds=seeds, statistic="mean"))


def _episodes(table: Table) -> int:
    """Of one evaluation."""
    return int(table.runs(table.labels()[0])[0]["description"]["episodes"])


def tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    """Of Dreamer without the steps to a threshold."""
    dreamer, rows = shared.model_based(table), []
    for task in table.tag("task"):
        level = f"threshold {shared.threshold(task):.0f}"
        level = f"Dreamer+RE3 published {shared.DREAMER_RE3[task]}" if dreamer else level
        for method in shared.methods(table, task):
            one = f"{task}/{method}"
            coef = table.runs(one)[0]["description"]["bonus_coef"]["value"]
            to_reach = [] if dreamer else [shared.to_reach(table, one).say(rng())]
            given = (f"{task} ({level})", method, f"{coef:g}", shared.length(table, one))
            rows.append([*given, *to_reach, *both_returns(table, one)])
    to_reach = [] if dreamer else ["steps to the threshold"]
    return [("Every method", ["task", "method", "bonus coef.", "steps", *to_reach, *RETURNS], rows)]


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
    setting = shared.SETTINGS[shared.named(scale)]
    for task, budget in shared.BUDGETS[shared.named(scale)].items():
        for method in budget.windowed:
            run = shared.run_of(task, method, setting, budget.steps, budget.every)
            path = f"bonus{'.bonus' * run.task.pixels}.recent.density"
            for window in budget.windows:
                steps = min(shared.WINDOWS.get(window, run.replay.capacity), run.replay.capacity)
                roomy = override(run, f"{path}.capacity", str(max(steps, 10_000)))
                found[Label(task=task, method=method, window=window)] = override(roomy, f"{path}.window", str(steps))
    return found


def draw_buffer(table: Table) -> list[PaperFigure]:
    colors, panels = dict(zip((*shared.WINDOWS, "all"), plots.CYCLE, strict=False)), {}
    for label in table.select():
        task, method, window = label.tags.values()
        look = plots.Style(window, colors[window], "--" if window == "all" else "-")
        panels.setdefault(f"{task}, {method}", (shared.threshold(task), {}))[1][label] = look
    text = (
        f"MADE with a recent buffer of so many actions; all: the whole replay. Return of {_episodes(table)} episodes "
        f"by the mean action, against steps of the environment."
    )
    return [_returns_figure(table, "dmc_buffer", text, panels)]


def buffer_tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    rows = []
    for one in table.select():
        said = shared.to_reach(table, one).say(rng())
        rows.append([*one.tags.values(), shared.length(table, one), said, *both_returns(table, one)])
    header = ["task", "method", "window", "steps", "steps to the threshold", *RETURNS]
    return [("Every window", header, rows)]


BUFFER = EXPERIMENT._replace(
    name="dmc_buffer",
    figure="fig:dm_control_ablation",
    title="The length of MADE's recent buffer",
    about=(
        "MADE as in `dmc` with other windows of the recent density. No window is longer than the replay (100,000 actions; "
        "small: 15,000), so there 100k and all are one run."
    ),
    trials=buffer_trials,
    claims=(
        Claim(28, "buffer-length", "The best length of the recent buffer varies; 10000 is reasonable throughout", "Fig. 9, Sec. 5.2", claims.ten_thousand_is_reasonable),
    ),
    draw=draw_buffer,
    tables=buffer_tables,
)  # fmt: skip


def dreamer_trials(scale: Scale) -> dict[str, Trial]:
    return _at_papers_coefs(shared.DREAMER_SETTINGS[shared.named(scale)], shared.DREAMER_BUDGETS[shared.named(scale)])


def draw_dreamer(table: Table) -> list[PaperFigure]:
    panels = {}
    for task, level in ((task, shared.DREAMER_RE3[task]) for task in table.tag("task")):
        panels[task] = (level, {f"{task}/{m}": shared.look(m, "dreamer") for m in shared.methods(table, task)})
    what = "Dreamer from pixels" if shared.from_pixels(table) else "Dreamer from states"
    text = (
        f"{what} with each bonus, at the paper's bonus coefficients. Return of {_episodes(table)} episodes by the mode, "
        "without noise, against steps of the environment; dotted: what Dreamer+RE3 published at 500K."
    )
    return [_returns_figure(table, "dmc_dreamer", text, panels), *draw_predictions(table)]


def draw_predictions(table: Table) -> list[PaperFigure]:
    """A row for each method of whose model something was kept; nothing where there is none."""
    labels = [label for label in table.labels() if table.snapshots(label, "dream/paid")]
    if not labels:
        return []
    videos = {label: found[0][-1] for label in labels if (found := table.snapshots(label, "dream/film"))}
    if videos:
        height = ROW + BELOW / len(labels)
        fig, axes = plots.figure(len(labels), 2, height=height, gridspec_kw={"width_ratios": (3, 2)})
        for label, strip in zip(labels, axes[:, 0], strict=True):
            with plots.style():
                strip.set_axis_off()
                if label in videos:  # moments [K, h, 2w, 3], shown with the truth above the model
                    halves = np.split(videos[label], 2, axis=2)
                    rows = [np.concatenate(list(half), axis=1) for half in halves]
                    strip.imshow(np.concatenate(rows), interpolation="nearest", aspect="equal")
        fields = list(axes[:, 1])
    else:
        fig, fields = plots.panels(labels, height=2.2)
    for label, ax in zip(labels, fields, strict=True):
        both = [np.concatenate([x[-1] for x in table.snapshots(label, f"dream/{name}")]) for name in _MODEL_AXES]
        ends = (float(np.min(both)), float(np.max(both)))
        with plots.style():
            ax.plot(ends, ends, color="#888888", linewidth=0.6, linestyle="--")
            ax.plot(*both, linestyle="", marker="o", markersize=2.5, alpha=0.6)
        plots.title(ax, label, x=_MODEL_AXES[0], y=_MODEL_AXES[1])
    points = "eturns of windows of the replay after five observations, as paid with the bonus and as the model expects them, "
    points += "all seeds; on the dashed line they are equal."
    seen = "Left, of the first seed: a window of the replay above, below it the model, told the first five observations and "
    seen += "then the actions alone; at the first moment, the fifth, and three later ones, the last one at the end. Right: r"
    text = (seen if videos else "R") + points
    return [PaperFigure("dmc_dreams", fig, plots.caption(fig, text))]


DREAMER = EXPERIMENT._replace(
    name="dmc_dreamer",
    figure="fig:mbdm_control",
    title="Dreamer on DeepMind Control",
    about=(
        "Dreamer v1 on pictures of 64 x 64: 5000 steps at random, 100 updates, then 100 for every 1000 steps, on 50 windows of "
        "50. The reward head learns what r + tau b pays. At scale small from states, with small networks, 400 updates for every "
        "1000 steps on 16 windows of 20, and a KL of which half a nat is free and that counts a tenth. "
        "Bonus coefficients are the paper's for each task. Controls: the released MADE, and RND paid at the scale of the "
        "released MADE. Scale gpu multiplies in bfloat16."
    ),
    trials=dreamer_trials,
    seeds=lambda scale: range(shared.DREAMER_SETTINGS[shared.named(scale)].seeds),
    claims=(
        Claim(29, "in-dreamer", "In Dreamer MADE is above RE3 and RE3 above none on Cheetah sparse, Hopper and Pendulum", "Fig. 10, Sec. 5.3", claims.above_both),
        Claim(30, "hopper-in-dreamer", "On Hopper MADE is 100 above Dreamer+RE3 and 250 above Dreamer", "Fig. 10, Sec. 5.3", claims.hopper),
        Claim(37, "gains-150-in-dreamer", "In Dreamer too the return improves by up to 150 in 500K steps (claim 31)", "Sec. 1", claims.largest_gain),
        Claim(38, "consistent-in-dreamer", "In Dreamer too MADE is better than every baseline on every control task (claim 32)", "Fig. 10, Sec. 5.3", claims.consistent),
    ),
    draw=draw_dreamer,
)  # fmt: skip
