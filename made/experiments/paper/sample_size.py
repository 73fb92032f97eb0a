"""Figure 1: how many frames each method needs, relative to MADE; infinity where it fails."""

import numpy as np

from made.experiments import plots
from made.experiments.paper import minigrid_returns
from made.experiments.paper import minigrid_setup as shared
from made.experiments.store.table import Table
from made.experiments.types import Claim, Effect, Experiment, PaperFigure, Verdict, rng

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
    names, effects, worse, missed = shared.tasks(table, *minigrid_returns.MADES), [], [], []
    for task in names:
        ratios = relative(table, task)
        unit = "median frames to solve, over those of the better MADE"
        effects += [Effect(f"{task} {plots.name_of(m)}", x, unit=unit, null=1.0) for m, x in ratios.items()]
        worse += [m for m in THEIRS if m in ratios and minigrid_returns.against_made(table, task, m).high < 1]
        if not any(minigrid_returns.solves(table, task, m) for m in minigrid_returns.MADES):
            missed.append((task, minigrid_returns.frames_of_made(table, task) >= minigrid_returns.PAPER_FRAMES))
    few = minigrid_returns.lack_of_seeds(table)
    if not few and (worse or any(had for _, had in missed)):
        return Verdict(False, tuple(effects))
    short = (f"{task} is not solved by MADE, which had fewer than 90M frames" for task, had in missed if not had)
    missing = (*short, *minigrid_returns.unrun(len(names)), *few)
    return Verdict(None if missing else True, tuple(effects), missing=missing)


def _times(x: float) -> str:
    return "fails" if np.isinf(x) else f"{x:.2f}"


def draw(table: Table) -> list[PaperFigure]:
    names = shared.tasks(table, *minigrid_returns.MADES)
    fig, axes = plots.panels(len(names), height=2.6, sharey=True)
    for ax, task in zip(axes, names, strict=True):
        ratios = relative(table, task)
        top = 1.25 * max([x for x in ratios.values() if np.isfinite(x)], default=1.0)
        for i, (method, x) in enumerate(ratios.items()):
            look, fails = plots.style_of(method), not np.isfinite(x)
            ax.bar(
                i,
                top if fails else x,
                color=look.colour,
                hatch="//" if fails else "",
                alpha=0.35 if fails else 1,
                label=look.text,
            )
            ax.text(i, top if fails else x, "\u221e" if fails else f"{x:.1f}", ha="center", va="bottom", fontsize=6)
        ax.set_xticks([])
        ax.axhline(1, color="#888888", linewidth=0.6)
        plots.title(ax, task, y="frames, relative to MADE" if plots.leftmost(ax) else "")
    plots.legend(fig)
    seeds = [len(table.seeds(one)) for one in table.labels()]
    text = (
        f"Median frames until the mean return is above {shared.SOLVED}, over those of the better of MADE and first-visit MADE; "
        f"\u221e where fewer than half of {min(seeds)} seeds get there within the budget. Where neither MADE does, over all "
        "of the budget: an upper bound."
    )
    return [PaperFigure("sample_size", fig, plots.caption(fig, text))]


def tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    rows = []
    for task in shared.tasks(table, *minigrid_returns.MADES):
        ratios = relative(table, task)
        rows.append([task, *(_times(ratios[m]) if m in ratios else "not run" for m in SHOWN)])
    return [("Frames to solve, relative to MADE", ["task", *map(plots.name_of, SHOWN)], rows)]


EXPERIMENT = Experiment(
    name="sample_size",
    figure="fig:sample_size",
    title="Frames needed, relative to MADE",
    about="The runs of `minigrid`, read as Figure 1 reads them: frames to a common threshold, infinite where a method fails.",
    trials=minigrid_returns.trials,
    seeds=minigrid_returns.EXPERIMENT.seeds,
    claims=(
        Claim(21, "made-needs-fewest", "MADE needs the fewest samples to reach the maximum reward", "Fig. 1", made_needs_fewest),
    ),
    draw=draw,
    tables=tables,
    columns=minigrid_returns.EXPERIMENT.columns,
    in_demo=False,
    in_pieces=True,
    shares="minigrid",
)  # fmt: skip
