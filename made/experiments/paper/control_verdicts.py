"""What the paper says of DeepMind Control, judged from recorded evaluations.

The paper gives neither its threshold nor its way of averaging, so these are ours: a task is reached at 0.8 of what
RAD+RE3's own data have at 500K steps; a seed that never gets there counts with the whole budget; the gain on a task is
the mean steps of a method over those of MADE, and the gain is the mean over tasks. MADE is the better of `made`, whose
density is one, and `made-released`, what the authors' code computes. Bonus coefficients are the paper's. Runs from states
are shown and never judged: the paper's are from pixels.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from made.experiments import plots
from made.experiments.paper import control_setup as shared
from made.experiments.statistics import RESAMPLES, Interval, interval, paired_interval, resampled_means
from made.experiments.store.table import Table
from made.experiments.types import FEWEST_SEEDS, Effect, Verdict, above, effects_of, rng, together, within

MADES, BASELINES = ("made", "made-released"), ("none", "icm", "rnd", "re3")
DREAMERS = ("none", "re3")  # the baselines of the model-based study
GAINS = {"re3": 2.6, "rnd": 3.3, "none": 3.8}  # as printed
PUBLISHED_DRQ = {"pendulum_swingup": 584, "cartpole_swingup_sparse": 520, "hopper_hop": 208}  # at 500K, 10 seeds
ABOUT_800, RE3_STEPS = 0.9 * 800, 300_000
GAP, GAIN, FAILED = 150.0, 150.0, 100.0
IF_ALL_AGREE = 3  # seeds, where numbers are compared that differ by a factor
COMPARABLE = 0.1  # of the published return


class Gain(NamedTuple):
    """Steps of a method over MADE's, mean over tasks, with its interval: NaN where a task has one seed.

    Where seeds of the method failed it is a lower bound, where seeds of MADE did an upper one, and where both did neither.
    """

    estimate: float
    low: float
    high: float
    failed: bool  # some seed of the method
    made_failed: bool  # some seed of MADE
    tasks: int

    def effect(self, method: str, unit: str) -> Effect:
        """As an effect that says which bound it is and on how many tasks."""
        bounds = {(True, False): ", at least", (False, True): ", at most", (True, True): ", with failures of both"}
        bound = bounds.get((self.failed, self.made_failed), "")
        name = f"{method} on {self.tasks} task{'s' * (self.tasks > 1)}{bound}"
        return Effect(name, self.estimate, self.low, self.high, unit, 1.0, int(np.isnan(self.low)))


class Missing(NamedTuple):
    """What a claim needs and was not run, empty where all is there; and the seeds that it rests on."""

    parts: tuple[str, ...]
    seeds: int

    def also(self, *more: str) -> "Missing":
        """With more that is missing; empty words say nothing."""
        return self._replace(parts=(*self.parts, *filter(None, more)))


def lacking(
    table: Table, tasks: Sequence[str], methods: Sequence[str], steps: int = 0, fewest: int = FEWEST_SEEDS
) -> Missing:
    """What a claim on these tasks and methods lacks. One form of MADE is always needed."""
    seeds = in_common(table, tasks, methods)
    said = [] if shared.from_pixels(table) else ["the runs are from states, the paper's from pixels"]
    if absent := [task for task in tasks if task not in table.tag("task")]:
        said.append(f"not run: {', '.join(absent)}")
    for task in (task for task in tasks if task not in absent):
        have = shared.methods(table, task)
        lack = [m for m in methods if m not in have] + ([] if {*have, *methods} & set(MADES) else ["made"])
        said += [f"{task} lacks {', '.join(lack)}"] if lack else []
        if (tried := shared.budget(table, task)) < steps:
            said.append(f"{task} was tried for {tried:,} of {steps:,} steps")
    return Missing((), seeds).also(*said, f"{seeds} of {fewest} seeds" * (0 < seeds < fewest))


def in_common(table: Table, tasks: Sequence[str], methods: Sequence[str]) -> int:
    """The fewest seeds that the methods compared on a task share, 0 where no two of them were run on any.

    Where no task is asked for: that a label has.
    """
    each = []
    for task in tasks:
        names = {*methods, better_made(table, task)} & {*shared.methods(table, task)}
        if len(names) > 1:  # or nothing is compared there yet
            each.append(table.common(*(f"{task}/{m}" for m in names)).seed_counts()[0])
    return min(each, default=0) if tasks else min(table.seed_counts())


def ready(table: Table, tasks: Sequence[str], methods: Sequence[str]) -> list[str]:
    """The tasks on which every method and a MADE were run; where there is none, those that were begun.

    So a task that is begun neither makes a verdict nor undoes one that others have made.
    """
    begun = {task: shared.methods(table, task) for task in tasks if task in table.tag("task")}
    return [task for task, have in begun.items() if set(methods) <= set(have) and set(have) & set(MADES)] or list(begun)


def judged(verdict: Verdict, lack: Missing) -> Verdict:
    """The verdict where all that it needs was run."""
    holds = None if lack.parts else verdict.holds
    missing = tuple(dict.fromkeys((*verdict.missing, *lack.parts)))
    return verdict._replace(holds=holds, seeds=lack.seeds, missing=missing)


def settle(
    table: Table,
    verdict: Verdict,
    tasks: Sequence[str],
    methods: Sequence[str],
    steps: int = 0,
    alone: bool | None = None,
) -> Verdict:
    """The verdict on several tasks. `alone` is the one that a single task is enough for: then others may be missing."""
    needed = ready(table, tasks, methods) if verdict.holds is not None and verdict.holds == alone else tasks
    return judged(verdict, lacking(table, needed, methods, steps))


def better_made(table: Table, task: str, tuned: bool = False) -> str | None:
    """Of the two forms of MADE the one with the higher return over the whole run; None where neither was run."""
    names = [f"{'tuned/' * tuned}{m}" for m in MADES]
    have = [m for m in names if m in shared.methods(table, task)]
    return max(have, key=lambda m: shared.average(table, f"{task}/{m}").mean(), default=None)


def gain_over(table: Table, method: str, tuned: bool = False) -> Gain | None:
    """How many times more steps a method needs than MADE, on the seeds of both; tasks that neither reaches are left out."""
    drawn, means, failed, draw = [], [], [False, False], rng()
    other = f"{'tuned/' * (tuned and method != 'none')}{method}"
    for task in table.tag("task"):
        best = better_made(table, task, tuned)
        if best is None or other not in shared.methods(table, task):
            continue
        labels = [f"{task}/{m}" for m in (other, best)]
        both = table.common(*labels)
        pair = [shared.to_reach(both, label) for label in labels] if both.seeds(labels[0]) else []
        if not pair or max(one.reached for one in pair) < 0.5:
            continue
        over = [resampled_means(one.times, draw) for one in pair]
        drawn.append(over[0] / over[1] if len(pair[0].times) > 1 else np.full(RESAMPLES, np.nan))
        means.append(pair[0].times.mean() / pair[1].times.mean())
        failed = [before or bool(one.censored.any()) for before, one in zip(failed, pair, strict=True)]
    if not means:
        return None
    low, high = np.quantile(np.mean(drawn, axis=0), [0.025, 0.975])
    return Gain(float(np.mean(means)), float(low), float(high), failed[0], failed[1], len(means))


def faster(table: Table) -> Verdict:
    """Claim 23: holds if no gain over RE3, RND and RAD is below the printed one, all are above one, and MADE never fails.

    Fails if one is below the printed one although the method reached every task. CURL and DrQ are not run.
    """
    found = {method: gain_over(table, method) for method in GAINS}
    effects = [x.effect(f"{m} (printed {GAINS[m]})", "steps over MADE's") for m, x in found.items() if x]
    tuned = {method: gain_over(table, method, tuned=True) for method in GAINS}
    unit = "steps over MADE's, each at its own tuned bonus coefficient"
    effects += [x.effect(m, unit) for m, x in tuned.items() if x]
    effects += [Effect(task, x, unit="published return of DrQ at 500K") for task, x in PUBLISHED_DRQ.items()]
    none = [f"{m} and MADE share no task and seed that either reaches" for m, x in found.items() if not x]
    note = "; ".join([*none, "CURL and DrQ were not run"])
    lack = lacking(table, shared.TASKS, tuple(GAINS))
    gains = [(gain, GAINS[m]) for m, gain in found.items() if gain is not None]
    fine = all(gain.low > 1 and gain.high >= printed and not gain.made_failed for gain, printed in gains)
    holds = True if fine and len(gains) == len(GAINS) else None
    if any(gain.high < printed and not gain.failed for gain, printed in gains):
        holds = False
    return judged(Verdict(holds, tuple(effects), note=note), lack)


def pendulum(table: Table) -> Verdict:
    """Claim 24: MADE has about 800 (0.9 of it) at 30K steps; RE3 at the printed tau gets there after 150K at least.

    Three seeds are enough here: their intervals reach from the least to the largest, so that all of them must agree.
    """
    task = "pendulum_swingup"
    lack = lacking(table, [task], ("re3", "re3/printed"), fewest=IF_ALL_AGREE)
    best = better_made(table, task)
    re3 = [m for m in ("re3/printed", "re3") if m in shared.methods(table, task)]
    if best is None or not re3:
        return judged(Verdict(None), lack)
    steps, curves = shared.evaluations(table, f"{task}/{best}")
    early = interval(curves[:, max(0, np.searchsorted(steps, 30_000, "right") - 1)], "mean", rng())
    effects, took = [Effect.of(best, early, "return at 30K steps")], {}
    for method in re3:
        times = shared.time_to_threshold(*shared.evaluations(table, f"{task}/{method}"), ABOUT_800)
        took[method] = times.median(rng())
        n = len(times.times)
        name = f"{plots.name_of(method)} (reached by {round(n * times.reached)} of {n} seeds)"
        effects.append(Effect.of(name, took[method], f"steps to {ABOUT_800:.0f}, median"))
    slow, half = took[re3[0]], RE3_STEPS / 2
    if early.high < ABOUT_800 or slow.high < half:
        return judged(Verdict(False, tuple(effects)), lack)
    tried = shared.budget(table, task)
    if tried < RE3_STEPS and not np.isfinite(slow.high):
        lack = lack.also(f"RE3 was tried for {tried:,} of {RE3_STEPS:,} steps")
    return judged(Verdict(True if early.low >= ABOUT_800 and slow.low >= half else None, tuple(effects)), lack)


def quadruped(table: Table) -> Verdict:
    """Claim 25: at 500K steps MADE is 150 above RE3, and further above than at 400K, seed by seed."""
    task = "quadruped_run"
    lack, best = lacking(table, [task], ("re3",), shared.PAPER_STEPS), better_made(table, task)
    if best is None or "re3" not in shared.methods(table, task):
        return judged(Verdict(None), lack)
    gap = difference(table, task, (best, "re3"))
    grown = difference(table, task, (best, "re3"), lambda *run: shared.final(*run) - shared.final(*run, before=0.2))
    names = {"at the end": gap, "at the end, less that a fifth of the run before": grown}
    effects = effects_of(names, f"return, {best} minus re3")
    holds = gap.low > 0 and gap.high >= GAP and grown.low > 0
    return judged(Verdict(False if gap.high < GAP or grown.high < 0 else True if holds else None, effects), lack)


def baselines(table: Table) -> tuple[str, ...]:
    """What the paper compares MADE with: model-free four methods, in Dreamer two."""
    return DREAMERS if shared.model_based(table) else BASELINES


def difference(table: Table, task: str, pair: tuple[str, str], read: Callable = shared.final) -> Interval:
    """The interquartile mean, over shared seeds, of the first method less the second; NaN where they share none."""
    a, b = (f"{task}/{method}" for method in pair)
    both = table.common(a, b)
    if not both.seeds(a):
        return Interval(np.nan, np.nan, np.nan, n=0)
    return paired_interval(read(both, a), read(both, b), "iqm", rng())


def clearly_above(table: Table) -> Verdict:
    """Claim 26: at 500K steps above RE3 on Hopper and Walker, within a tenth of RE3's published return on the two others."""
    ahead, alike = ("hopper_hop", "walker_run_sparse"), ("cartpole_swingup_sparse", "cheetah_run_sparse")
    found = against(table, ready(table, (*ahead, *alike), ("re3",)), ("re3",), shared.final)
    verdicts = [above({"": x}, "").holds for (task, *_), x in found.items() if task in ahead]
    for task in alike:
        margin = COMPARABLE * shared.PUBLISHED_RE3[task]
        verdicts += [within({"": x}, margin, "").holds for (name, *_), x in found.items() if name == task]
    verdict = Verdict(together(verdicts), effects_of(named(found), "return at the end"))
    return settle(table, verdict, (*ahead, *alike), ("re3",), shared.PAPER_STEPS, alone=False)


Pairs = dict[tuple[str, str, str], Interval]  # by task, method and the method it is compared with


def against(table: Table, tasks: Sequence[str], others: Sequence[str], read: Callable) -> Pairs:
    """MADE minus each other method on each task where both were run."""
    found = {}
    for task in tasks:
        have = shared.methods(table, task) if task in table.tag("task") else []
        best = better_made(table, task) if have else None
        if best is None:
            continue
        for other in (m for m in others if m in have):
            found[task, best, other] = difference(table, task, (best, other), read)
    return found


def named(found: Pairs) -> dict[str, Interval]:
    """The differences by name."""
    return {f"{task} {a} minus {b}": x for (task, a, b), x in found.items()}


def curiosity_fails(table: Table) -> Verdict:
    """Claim 27: RND and ICM end below 100 on Cartpole, sparse, where MADE does not; RND at the released MADE's scale beside them."""
    task = "cartpole_swingup_sparse"
    lack = lacking(table, [task], ("rnd", "icm", "rnd-at-made"))
    have = shared.methods(table, task) if task in table.tag("task") else []
    shown = [m for m in ("rnd", "icm", "rnd-at-made", *MADES) if m in have]
    ends = {m: interval(shared.final(table, f"{task}/{m}"), "mean", rng()) for m in shown}
    effects = effects_of(ends, "return at the end")
    if lack.parts:
        return judged(Verdict(None, effects), lack)
    if any(ends[m].low > FAILED for m in ("rnd", "icm")):
        return judged(Verdict(False, effects), lack)
    learned = max(ends[m].low for m in MADES if m in ends) > FAILED or shared.budget(table, task) >= shared.PAPER_STEPS
    holds = learned and all(ends[m].high < FAILED for m in ("rnd", "icm"))
    return judged(Verdict(True if holds else None, effects), lack)


def largest_gain(table: Table) -> Verdict:
    """Claim 31: on some task MADE ends 150 above every baseline (the interval reaches 150 and lies above zero)."""
    tasks = ready(table, table.tag("task"), baselines(table))
    found = against(table, tasks, baselines(table), shared.final)
    least: dict[str, Interval] = {}  # over the strongest baseline of each task
    for (task, *_), x in found.items():
        least[task] = min(least.get(task, x), x, key=lambda one: one.estimate)
    gained = any(x.low > 0 and x.high >= GAIN for x in least.values())
    holds = True if gained else False if all(x.high < GAIN for x in least.values()) else None
    verdict = Verdict(holds, effects_of(least, "return at the end, MADE minus the best baseline"))
    return settle(table, verdict, shared.TASKS, baselines(table), shared.PAPER_STEPS, alone=True)


def consistent(table: Table) -> Verdict:
    """Claim 32: on all six tasks MADE's return over the whole run is above that of every baseline."""
    tasks = ready(table, table.tag("task"), baselines(table))
    found = against(table, tasks, baselines(table), shared.average)
    verdict = above(named(found), "return over the whole run")
    return settle(table, verdict, shared.TASKS, baselines(table), alone=False)


def density_adds(table: Table) -> Verdict:
    """Claim 36: the released MADE is above its own cover paid at its scale, over the whole run, on every task.

    That pair is judged, for the paper's bonus coefficients were found with it; `made` beside its own cover is told.
    """
    pairs = ("made-released", "rnd-at-made"), ("made", "cover-at-made")
    checked, shown = (_over_their_covers(table, pair) for pair in pairs)
    what = [f"return over the whole run, {a} minus {b}" for a, b in pairs]
    verdict = above(checked, what[0])
    verdict = verdict._replace(effects=(*verdict.effects, *effects_of(shown, what[1])))
    return settle(table, verdict, shared.TASKS, pairs[0], alone=False)


def _over_their_covers(table: Table, pair: tuple[str, str]) -> dict[str, Interval]:
    names = [task for task in table.tag("task") if set(pair) <= set(shared.methods(table, task))]
    return {task: difference(table, task, pair, shared.average) for task in names}
