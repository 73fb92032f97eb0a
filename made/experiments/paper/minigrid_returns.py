"""Figures 1 and 7: IMPALA with each bonus on MiniGrid at its searched setting, and frames relative to MADE."""

import numpy as np

from made.core.trial import Trial
from made.experiments import plots
from made.experiments.paper import minigrid_setup as shared
from made.experiments.statistics import resampled_means
from made.experiments.store.store import Scale
from made.experiments.store.table import Label, Table
from made.experiments.types import Claim, Effect, Experiment, PaperFigure, Verdict, few_seeds, rng

MADES, BASELINES = ("made", "made/gated"), ("none", "rnd", "icm", "ride", "amigo")
PAPER_FRAMES = 90e6  # within which MADE is said to solve every task
MISSED = "tasks that are missed though another method solves them within the same frames"
LEAST_GAIN = 2.0  # "2-5x": how many times fewer frames than BeBold


def trials(scale: Scale) -> dict[str, Trial]:
    found: dict[str, Trial] = {}
    for task, budget in shared.budgets(scale).items():
        for method in (*budget.methods, *budget.unsearched):
            settings = shared.chosen(task, method, scale)
            found[Label(task=task, method=method)] = shared.run_of(task, method, scale, budget.rows(method), **settings)
    return found


def solved(table: Table, task: str, method: str) -> float:
    """The fraction of seeds that end above one half."""
    return float(np.mean(shared.final(table, f"{task}/{method}") > shared.SOLVED))


def solves(table: Table, task: str, method: str) -> bool:
    """Whether most seeds end above one half."""
    return solved(table, task, method) > 0.5


def frames_of_made(table: Table, task: str) -> float:
    """The frames that both MADE and first-visit MADE were run for."""
    return float(min(shared.returns(table, f"{task}/{method}")[0][-1] for method in MADES))


def lack_of_seeds(table: Table) -> tuple[str, ...]:
    """What is missing where a label has too few seeds."""
    return few_seeds(*table.seed_counts())


def made_solves_all(table: Table) -> Verdict:
    """Claim 18: holds if MADE solves all twelve tasks; fails if it misses one that it had 90 million frames for."""
    names, effects, missed, lack = shared.tasks(table, *MADES), [], False, []
    for task in names:
        frames = frames_of_made(table, task)
        shares = {m: solved(table, task, m) for m in MADES}
        within = f"{task} within {frames / 1e6:.0f}M frames,"
        effects += [
            Effect(f"{within} {plots.name_of(m)}", x, unit=f"fraction of seeds above {shared.SOLVED}")
            for m, x in shares.items()
        ]
        if max(shares.values()) <= 0.5:
            missed |= frames >= PAPER_FRAMES
            lack.append(f"{task} was tried for {frames / 1e6:.0f}M of {PAPER_FRAMES / 1e6:.0f}M frames")
    if missed:
        return Verdict(False, tuple(effects))
    missing = (*lack, *unrun(len(names)), *lack_of_seeds(table))
    return Verdict(None if missing else True, tuple(effects), missing=missing)


def unrun(tasks: int) -> tuple[str, ...]:
    return (f"{shared.ALL_TASKS - tasks} of {shared.ALL_TASKS} tasks",) if tasks < shared.ALL_TASKS else ()


def faster_than_bebold(table: Table) -> Verdict:
    """Claim 20: the frames of BeBold over those of the better MADE are at least 2 on every task both solve."""
    effects, missing = [], []
    for task in shared.tasks(table, "bebold", *MADES):
        times = {m: shared.to_solve(table, f"{task}/{m}") for m in ("bebold", *MADES)}
        best = better_made(table, task)
        if times[best].reached < 0.5 or times["bebold"].reached < 0.5:
            reached = ", ".join(f"{m} {t.reached:.0%} of seeds" for m, t in times.items())
            missing.append(f"{task} is not solved by both ({reached})")
            continue
        unit = "frames to solve, BeBold's over MADE's, each at its own best setting"
        effects.append(against_made(table, task, "bebold", f"{task}, {plots.name_of(best)}", unit))
    few = lack_of_seeds(table)
    if not effects or few:
        return Verdict(None, tuple(effects), missing=(*missing, *few))
    if any(x.high < LEAST_GAIN for x in effects):
        return Verdict(False, tuple(effects))
    return Verdict(True if all(x.low >= LEAST_GAIN for x in effects) else None, tuple(effects))


def better_made(table: Table, task: str) -> str:
    """Of MADE and first-visit MADE, the one that needs fewer frames."""
    return min(MADES, key=lambda m: shared.to_solve(table, f"{task}/{m}").times.mean())


def against_made(table: Table, task: str, method: str, name: str = "", unit: str = "") -> Effect:
    """Frames of a method over those of the better MADE, the budget where unsolved, with its interval."""
    theirs, ours = (shared.to_solve(table, f"{task}/{m}").times for m in (method, better_made(table, task)))
    return _ratio(theirs, ours, name, unit)


def _ratio(above: np.ndarray, below: np.ndarray, name: str, unit: str) -> Effect:
    """The ratio of means with its 95% bootstrap interval, the groups resampled apart."""
    draw = rng()
    means = [resampled_means(x, draw) for x in (above, below)]
    low, high = np.quantile(means[0] / means[1], [0.025, 0.975])
    return Effect(name, float(above.mean() / below.mean()), float(low), float(high), unit, 1.0, len(below))


def others_solve_half(table: Table) -> Verdict:
    """Claim 19: none, RND, ICM, RIDE and AMIGo, as the papers have them, solve at most half of the tasks.

    Holds once each of them has missed half of the twelve. A miss counts where it is one at equal terms: another method
    solves the task within the same frames, or it had 90 million. One that solves more than half is enough against it.
    """
    effects, most, least = [], 0, shared.ALL_TASKS
    for method in BASELINES:
        names = shared.tasks(table, method)
        won = [task for task in names if solves(table, task, method)]
        missed = [task for task in names if task not in won and could_solve(table, task, method)]
        effects.append(Effect(plots.name_of(method), len(won), unit="recorded tasks that are solved"))
        effects.append(Effect(f"{plots.name_of(method)} ({len(names)} tasks)", len(missed), unit=MISSED))
        most, least = max(most, len(won)), min(least, len(missed))
    half = shared.ALL_TASKS / 2
    if most > half:
        return Verdict(False, tuple(effects))
    short = (f"{least} of {half:.0f} tasks missed by each baseline",) if least < half else ()
    missing = (*short, *lack_of_seeds(table))
    return Verdict(None if missing else True, tuple(effects), missing=missing)


def could_solve(table: Table, task: str, method: str) -> bool:
    """Whether a method had enough frames: the paper's, or those in which another one solves the task in most seeds."""
    if shared.returns(table, f"{task}/{method}")[0][-1] >= PAPER_FRAMES:
        return True
    return any(shared.to_solve(table, f"{task}/{other}").reached > 0.5 for other in shared.methods(table, task))


def baselines_fail_on_rooms(table: Table) -> Verdict:
    """Claim 22: IMPALA alone, ICM and RND stay near zero on every MultiRoom task that was recorded.

    One that learns is enough against it; for it all three must have been run on each.
    """
    rooms = [task for task in shared.tasks(table) if task.startswith("MultiRoom")]
    pairs = [(task, m) for task in rooms for m in BASELINES[:3]]
    lack = [f"{task} {m}" for task, m in pairs if m not in shared.methods(table, task)]
    ends = [
        (f"{t} {plots.name_of(m)}", shared.final(table, f"{t}/{m}").mean()) for t, m in pairs if f"{t} {m}" not in lack
    ]
    effects = tuple(Effect(name, float(x), unit="return at the end") for name, x in ends)
    few = lack_of_seeds(table)
    missing = (*(f"not run: {one}" for one in lack), *few, *("MultiRoom",) * (not rooms))
    if effects and not few and max(x.value for x in effects) >= 0.1:
        return Verdict(False, effects)
    return Verdict(None if missing else True, effects, missing=missing)


def impact_stays(table: Table) -> Verdict:
    """Claim 34: what RIDE rewards at the end is at least half of what it was set to; RND's is shown with it."""
    unit = "strength at the end over the strength set, mean of the seeds"
    ride, rnd = (
        [
            Effect(f"{plots.name_of(m)} {task}", share_left(table, f"{task}/{m}"), unit=unit)
            for task in shared.tasks(table, m)
        ]
        for m in ("ride", "rnd")
    )
    missing = (*("ride",) * (not ride), *lack_of_seeds(table))
    return Verdict(None if missing else min(x.value for x in ride) >= 0.5, (*ride, *rnd), missing=missing)


def share_left(table: Table, label: str) -> float:
    """The strength of a bonus over the last million frames, over the strength that was set."""
    last = np.nanmean(table.curves(label, "bonus_strength")[1][:, -5:])
    return float(last / table.runs(label)[0]["description"]["bonus"]["strength"])


def factor_drives_the_gain(table: Table) -> Verdict:
    """Claim 33: with the recent density, MADE needs fewer frames than RND with the same first-visit mask.

    A task that neither of two methods solves with any seed says nothing about them and is left out.
    """
    ratios, alone, unit = [], [], "frames to solve (the budget where unsolved), {} over first-visit MADE"
    for task in shared.tasks(table, "rnd/gated", "made/gated", "gate"):
        times = {m: shared.to_solve(table, f"{task}/{m}") for m in ("rnd/gated", "made/gated", "gate")}
        ours = times["made/gated"]
        for theirs, effects, name in (
            (times["rnd/gated"], ratios, "first-visit RND"),
            (times["gate"], alone, "first-visit mask alone"),
        ):
            if ours.reached or theirs.reached:
                effects.append(_ratio(theirs.times, ours.times, task, unit.format(name)))
    effects, few = (*ratios, *alone), lack_of_seeds(table)
    if not ratios or few:
        return Verdict(
            None,
            effects,
            missing=few or ("first-visit RND, first-visit MADE and the mask alone on a task that one solves",),
        )
    if any(x.high < 1 for x in ratios):
        return Verdict(False, effects)
    return Verdict(True if all(x.low > 1 for x in ratios) else None, effects)


def draw(table: Table) -> list[PaperFigure]:
    names = shared.tasks(table)
    fig, axes = plots.panels(len(names), 2, height=2.3, sharey=True)
    for ax, task in zip(axes, names, strict=True):
        for method in shared.methods(table, task):
            plots.interval_band(ax, *shared.returns(table, f"{task}/{method}"), plots.style_of(method), "iqm")
        plots.step_axis(ax)
        plots.title(ax, task, x="frames", y="return" if plots.leftmost(ax) else "")
    plots.legend(fig, 3)
    seeds = table.seed_counts()
    text = (
        "IMPALA with each bonus, at the strength and learning rate chosen for it on other seeds, or on the nearest task "
        "where the task itself was not searched; all methods have one setting on KeyCorridorS6R3 and the mazes with blocked doors. 'printed' has the paper's printed settings. Return of the training episodes, every one on a level never seen before."
    )
    return [PaperFigure("minigrid", fig, plots.caption(fig, text, seeds=seeds))]


def tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    settings = ["strength", "learning rate"]
    header = ["task", "method", *settings, "frames to solve", "return at the end", "strength at the end"]
    rows = []
    for one in (f"{task}/{method}" for task in shared.tasks(table) for method in shared.methods(table, task)):
        described = table.runs(one)[0]["description"]
        set_to = (described["bonus"]["strength"], described["agent"]["learning_rate"])
        last = np.nanmean(table.curves(one, "bonus_strength")[1][:, -5:])
        task, method = table.tags(one).values()
        given = (task, plots.name_of(method), *(f"{x:g}" for x in set_to))
        rows.append([*given, *shared.outcome(table, one, rng()), f"{last:.2f}"])
    return [("Every method at its chosen setting", header, rows)]


EXPERIMENT = Experiment(
    name="minigrid",
    figure="fig:minigrid_result",
    title="IMPALA on MiniGrid",
    about=(
        "V-trace actor-critic on compiled MiniGrid, 32 environments and unrolls of 100. Every method runs at the "
        "strength and learning rate that did best for it in `minigrid_search`, on other seeds; tasks that were not "
        "searched take the settings of the nearest one, or one setting for all methods. Controls: the first-visit mask alone, "
        "first-visit RND, BeBold without its mask, MADE's factor on BeBold. The recent density is counted over hashed (o, a)."
    ),
    trials=trials,
    seeds=lambda scale: range(1 if scale == Scale.SMOKE else 2 if scale == Scale.SMALL else 5),
    claims=(
        Claim(18, "made-solves-all", "MADE solves all MiniGrid tasks within 90 million frames", "Fig. 7, Sec. 5.1", made_solves_all),
        Claim(19, "others-solve-half", "Baselines other than BeBold solve at most half of the tasks", "Fig. 7, Sec. 5.1", others_solve_half),
        Claim(20, "faster-than-bebold", "MADE needs 2 to 5 times fewer frames than BeBold", "Fig. 7, Sec. 5.1", faster_than_bebold),
        Claim(22, "baselines-fail-on-rooms", "IMPALA alone, ICM and RND fail on MultiRoom", "Fig. 7, Sec. 5.1", baselines_fail_on_rooms),
        Claim(34, "impact-stays", "Bonuses of state differences (RIDE) do not vanish", "Sec. 6", impact_stays),
        Claim(33, "factor-drives-the-gain", "The recent-density factor, not RND, drives the gain", "Sec. 5", factor_drives_the_gain),
    ),
    draw=draw,
    tables=tables,
    columns=shared.COLUMNS,
    in_demo=False,
    in_pieces=True,
)  # fmt: skip


THEIRS = ("bebold", "ride", "icm", "amigo", "rnd", "none")
SHOWN = ("made", "made/gated", "bebold", "rnd/gated", "gate", "ride", "icm", "amigo", "rnd", "none")


def relative(table: Table, task: str) -> dict[str, float]:
    """Median frames to solve over those of the better MADE; infinite where fewer than half of the seeds solve it.

    Where neither MADE solves the task, over all the frames they had: an upper bound.
    """
    have = [m for m in SHOWN if m in shared.methods(table, task)]
    medians = {m: float(shared.to_solve(table, f"{task}/{m}").median(rng()).estimate) for m in have}
    best = min(medians["made"], medians["made/gated"], shared.budget(table, task))
    return {m: x / best for m, x in medians.items()}


def made_needs_fewest(table: Table) -> Verdict:
    """Claim 21: no method of the paper needs fewer frames than the better MADE on any task (controls are only shown).

    Fails where the interval of (frames of the other) / (frames of MADE) lies below one on some task, or MADE solves a
    task in none of the paper's 90 million frames. A task that MADE misses in fewer frames leaves it open.
    """
    names, effects, worse, missed = shared.tasks(table, *MADES), [], [], []
    for task in names:
        ratios = relative(table, task)
        unit = "median frames to solve, over those of the better MADE"
        effects += [Effect(f"{task} {plots.name_of(m)}", x, unit=unit, null=1.0) for m, x in ratios.items()]
        worse += [m for m in THEIRS if m in ratios and against_made(table, task, m).high < 1]
        if not any(solves(table, task, m) for m in MADES):
            missed.append((task, frames_of_made(table, task) >= PAPER_FRAMES))
    few = lack_of_seeds(table)
    if not few and (worse or any(had for _, had in missed)):
        return Verdict(False, tuple(effects))
    short = (f"{task} is not solved by MADE, which had fewer than 90M frames" for task, had in missed if not had)
    missing = (*short, *unrun(len(names)), *few)
    return Verdict(None if missing else True, tuple(effects), missing=missing)


def draw_sample_size(table: Table) -> list[PaperFigure]:
    names = shared.tasks(table, *MADES)
    fig, axes = plots.panels(len(names), height=2.6, sharey=True)
    for ax, task in zip(axes, names, strict=True):
        ratios = relative(table, task)
        top = 1.25 * max([x for x in ratios.values() if np.isfinite(x)], default=1.0)
        for i, (method, x) in enumerate(ratios.items()):
            look, fails = plots.style_of(method), not np.isfinite(x)
            shape = {"hatch": "//" if fails else "", "alpha": 0.35 if fails else 1}
            ax.bar(i, top if fails else x, color=look.color, label=look.text, **shape)
            ax.text(i, top if fails else x, "\u221e" if fails else f"{x:.1f}", ha="center", va="bottom", fontsize=6)
        ax.set_xticks([])
        ax.axhline(1, color="#888888", linewidth=0.6)
        plots.title(ax, task, y="frames, relative to MADE" if plots.leftmost(ax) else "")
    plots.legend(fig)
    seeds = table.seed_counts()
    text = (
        f"Median frames until the mean return is above {shared.SOLVED}, over those of the better of MADE and first-visit MADE; "
        f"\u221e where fewer than half of {min(seeds)} seeds get there within the budget. Where neither MADE does, over all "
        "of the budget: an upper bound."
    )
    return [PaperFigure("sample_size", fig, plots.caption(fig, text))]


def sample_size_tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    text = lambda x: "not run" if x is None else "fails" if np.isinf(x) else f"{x:.2f}"  # noqa: E731
    ratios = {task: relative(table, task) for task in shared.tasks(table, *MADES)}
    rows = [[task, *(text(of.get(method)) for method in SHOWN)] for task, of in ratios.items()]
    return [("Frames to solve, relative to MADE", ["task", *map(plots.name_of, SHOWN)], rows)]


SAMPLE_SIZE = Experiment(
    name="sample_size",
    figure="fig:sample_size",
    title="Frames needed, relative to MADE",
    about="The runs of `minigrid`, read as Figure 1 reads them: frames to a common threshold, infinite where a method fails.",
    trials=trials,
    seeds=EXPERIMENT.seeds,
    claims=(
        Claim(21, "made-needs-fewest", "MADE needs the fewest samples to reach the maximum reward", "Fig. 1", made_needs_fewest),
    ),
    draw=draw_sample_size,
    tables=sample_size_tables,
    columns=EXPERIMENT.columns,
    in_demo=False,
    in_pieces=True,
    shares="minigrid",
)  # fmt: skip
