"""What the paper says of DeepMind Control, judged from recorded evaluations.

The paper gives neither its threshold nor its way of averaging, so these are ours: a task is reached at 0.8 of what
RAD+RE3's own data have at 500K steps; a seed that never gets there counts with the whole budget; the gain on a task is
the mean steps of a method over those of MADE, and the gain is the mean over tasks. MADE is the better of `made`, whose
density is one, and `made-released`, what the authors' code computes. Bonus coefficients are the paper's. Runs from states
are shown and never judged: the paper's are from pixels.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from made.experiments import plots
from made.experiments.paper import control_setup as shared
from made.experiments.statistics import Interval, interval, paired_interval, resampled_means
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
REASONABLE = 0.8  # of the return of the best window
STRONG = ("cheetah_run_sparse", "hopper_hop", "pendulum_swingup")  # where the text says that MADE in Dreamer does well
GAPS = {"re3": 100.0, "none": 250.0}  # how far it is above them on Hopper, as printed


def judged(
    table: Table,
    verdict: Verdict,
    tasks: Sequence[str],
    methods: Sequence[str],
    steps: int = 0,
    fewest: int = FEWEST_SEEDS,
    alone: bool | None = None,
    also: Sequence[str] = (),
) -> Verdict:
    """The verdict where all that it needs was run: on each task, for so many steps, these methods and one form of MADE.

    `alone` is the verdict that a single task is enough for: then others may be missing. What is `also` missing comes
    last.
    """
    if verdict.holds is not None and verdict.holds == alone:
        tasks = ready(table, tasks, methods)
    seeds = in_common(table, tasks, methods)
    lack = [] if shared.from_pixels(table) else ["the runs are from states, the paper's from pixels"]
    if absent := [task for task in tasks if task not in table.tag("task")]:
        lack.append(f"not run: {', '.join(absent)}")
    for task in (task for task in tasks if task not in absent):
        have = shared.methods(table, task)
        none = [m for m in methods if m not in have] + ([] if {*have, *methods} & set(MADES) else ["made"])
        lack += [f"{task} lacks {', '.join(none)}"] if none else []
        if (tried := shared.budget(table, task)) < steps:
            lack.append(f"{task} was tried for {tried:,} of {steps:,} steps")
    lack += [f"{seeds} of {fewest} seeds"] * (0 < seeds < fewest) + list(also)
    missing = tuple(dict.fromkeys((*verdict.missing, *lack)))
    return verdict._replace(holds=None if lack else verdict.holds, seeds=seeds, missing=missing)


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
    begun = {task: have for task in tasks if (have := shared.methods(table, task))}
    return [task for task, have in begun.items() if set(methods) <= set(have) and set(have) & set(MADES)] or list(begun)


def better_made(table: Table, task: str, tuned: bool = False) -> str | None:
    """Of the two forms of MADE the one with the higher return over the whole run; None where neither was run."""
    have = [m for m in (f"{'tuned/' * tuned}{m}" for m in MADES) if m in shared.methods(table, task)]
    return max(have, key=lambda m: shared.average(table, f"{task}/{m}").mean(), default=None)


def gain_over(table: Table, method: str, tuned: bool = False) -> tuple[Effect | None, bool | None]:
    """How many times more steps a method needs than MADE, mean over tasks, and whether that agrees with the printed gain.

    On the seeds of both; tasks that neither reaches are left out. Where seeds of the method failed it is a lower bound,
    where seeds of MADE did an upper one, and where both did neither. No interval where a task has one seed.
    """
    drawn, means, failed, made_failed, draw = [], [], False, False, rng()
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
        drawn.append(over[0] / over[1] if len(pair[0].times) > 1 else np.full_like(over[0], np.nan))
        means.append(pair[0].times.mean() / pair[1].times.mean())
        failed |= bool(pair[0].censored.any())
        made_failed |= bool(pair[1].censored.any())
    if not means:
        return None, None
    low, high = np.quantile(np.mean(drawn, axis=0), [0.025, 0.975])
    bound = ", at least" if failed else ", at most" if made_failed else ""
    bound = ", with failures of both" if failed and made_failed else bound
    name = f"on {len(means)} task{'s' * (len(means) > 1)}{bound}"
    over = Effect(name, float(np.mean(means)), float(low), float(high), "", 1.0, int(np.isnan(low)))
    if high < GAINS[method]:
        return over, None if failed else False
    return over, True if low > 1 and not made_failed else None


def faster(table: Table) -> Verdict:
    """Claim 23: holds if no gain over RE3, RND and RAD is below the printed one, all are above one, and MADE never fails.

    Fails if one is below the printed one although the method reached every task. CURL and DrQ are not run.
    """
    found, tuned = ({method: gain_over(table, method, of) for method in GAINS} for of in (False, True))
    named = {f"{m} (printed {GAINS[m]})": x for m, x in found.items()}
    units, effects = ("steps over MADE's", "steps over MADE's, each at its own tuned bonus coefficient"), []
    for of, unit in zip((named, tuned), units, strict=True):
        effects += [over._replace(name=f"{m} {over.name}", unit=unit) for m, (over, _) in of.items() if over]
    effects += [Effect(task, x, unit="published return of DrQ at 500K") for task, x in PUBLISHED_DRQ.items()]
    none = [f"{m} and MADE share no task and seed that either reaches" for m, (over, _) in found.items() if not over]
    holds = together([agrees for _, agrees in found.values()])
    verdict = Verdict(holds, tuple(effects), note="; ".join([*none, "CURL and DrQ were not run"]))
    return judged(table, verdict, shared.TASKS, tuple(GAINS))


def pendulum(table: Table) -> Verdict:
    """Claim 24: MADE has about 800 (0.9 of it) at 30K steps; RE3 at the printed tau gets there after 150K at least.

    Three seeds are enough here: their intervals reach from the least to the largest, so that all of them must agree.
    """
    task, verdict, also = "pendulum_swingup", Verdict(None), []
    best = better_made(table, task)
    re3 = [m for m in ("re3/printed", "re3") if m in shared.methods(table, task)]
    if best is not None and re3:
        steps, curves = shared.evaluations(table, f"{task}/{best}")
        early = interval(curves[:, max(0, np.searchsorted(steps, 30_000, "right") - 1)], "mean", rng())
        times = {m: shared.to_reach(table, f"{task}/{m}", ABOUT_800) for m in re3}
        took = {m: x.median(rng()) for m, x in times.items()}
        names = {m: f"{int((~x.censored).sum())} of {len(x.times)} seeds" for m, x in times.items()}
        names = {m: f"{plots.name_of(m)} (reached by {text})" for m, text in names.items()}
        unit = f"steps to {ABOUT_800:.0f}, median"
        effects = (Effect.of(best, early, "return at 30K steps"), *effects_of({names[m]: took[m] for m in re3}, unit))
        slow, half, tried = took[re3[0]], RE3_STEPS / 2, shared.budget(table, task)
        holds = True if early.low >= ABOUT_800 and slow.low >= half else None
        verdict = Verdict(False if early.high < ABOUT_800 or slow.high < half else holds, effects)
        if verdict.holds is not False and tried < RE3_STEPS and not np.isfinite(slow.high):
            also = [f"RE3 was tried for {tried:,} of {RE3_STEPS:,} steps"]
    return judged(table, verdict, [task], ("re3", "re3/printed"), fewest=IF_ALL_AGREE, also=also)


def quadruped(table: Table) -> Verdict:
    """Claim 25: at 500K steps MADE is 150 above RE3, and further above than at 400K, seed by seed."""
    task, verdict = "quadruped_run", Verdict(None)
    best = better_made(table, task)
    if best is not None and "re3" in shared.methods(table, task):
        gap = difference(table, task, (best, "re3"))
        grown = difference(table, task, (best, "re3"), lambda *run: shared.final(*run) - shared.final(*run, before=0.2))
        names = {"at the end": gap, "at the end, less that a fifth of the run before": grown}
        holds = True if gap.low > 0 and gap.high >= GAP and grown.low > 0 else None
        holds = False if gap.high < GAP or grown.high < 0 else holds
        verdict = Verdict(holds, effects_of(names, f"return, {best} minus re3"))
    return judged(table, verdict, [task], ("re3",), shared.PAPER_STEPS)


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


Pairs = dict[tuple[str, str, str], Interval]  # by task, method and the method it is compared with


def against(table: Table, tasks: Sequence[str], others: Sequence[str], read: Callable) -> Pairs:
    """MADE minus each other method on each task that is `ready` for them, where both were run."""
    best = {task: better_made(table, task) for task in ready(table, tasks, others)}
    pairs = [(t, made, m) for t, made in best.items() if made for m in others if m in shared.methods(table, t)]
    return {(task, a, b): difference(table, task, (a, b), read) for task, a, b in pairs}


def named(found: Pairs) -> dict[str, Interval]:
    """The differences by name."""
    return {f"{task} {a} minus {b}": x for (task, a, b), x in found.items()}


def clearly_above(table: Table) -> Verdict:
    """Claim 26: at 500K steps above RE3 on Hopper and Walker, within a tenth of RE3's published return on the two others."""
    ahead, alike = ("hopper_hop", "walker_run_sparse"), ("cartpole_swingup_sparse", "cheetah_run_sparse")
    found = against(table, (*ahead, *alike), ("re3",), shared.final)
    margins, each = {task: COMPARABLE * shared.PUBLISHED_RE3[task] for task in alike}, []
    for (task, *_), x in found.items():
        each.append((within({"": x}, margins[task], "") if task in alike else above({"": x}, "")).holds)
    verdict = Verdict(together(each), effects_of(named(found), "return at the end"))
    return judged(table, verdict, (*ahead, *alike), ("re3",), shared.PAPER_STEPS, alone=False)


def curiosity_fails(table: Table) -> Verdict:
    """Claim 27: RND and ICM end below 100 on Cartpole, sparse, where MADE does not; RND at the released MADE's scale is shown."""
    task, curious = "cartpole_swingup_sparse", ("rnd", "icm")
    shown = [m for m in (*curious, "rnd-at-made", *MADES) if m in shared.methods(table, task)]
    ends = {m: interval(shared.final(table, f"{task}/{m}"), "mean", rng()) for m in shown}
    learned = any(ends[m].low > FAILED for m in MADES if m in ends)
    failed = [x for m, x in ends.items() if m in curious]
    if any(x.low > FAILED for x in failed):
        holds = False
    else:
        tried = bool(shown) and shared.budget(table, task) >= shared.PAPER_STEPS
        holds = True if (learned or tried) and all(x.high < FAILED for x in failed) else None
    return judged(table, Verdict(holds, effects_of(ends, "return at the end")), [task], (*curious, "rnd-at-made"))


def largest_gain(table: Table) -> Verdict:
    """Claim 31: on some task MADE ends 150 above every baseline (the interval reaches 150 and lies above zero)."""
    least: dict[str, Interval] = {}  # over the strongest baseline of each task
    for (task, *_), x in against(table, table.tag("task"), baselines(table), shared.final).items():
        least[task] = min(least.get(task, x), x, key=lambda one: one.estimate)
    gained = any(x.low > 0 and x.high >= GAIN for x in least.values())
    holds = True if gained else False if all(x.high < GAIN for x in least.values()) else None
    verdict = Verdict(holds, effects_of(least, "return at the end, MADE minus the best baseline"))
    return judged(table, verdict, shared.TASKS, baselines(table), shared.PAPER_STEPS, alone=True)


def consistent(table: Table) -> Verdict:
    """Claim 32: on all six tasks MADE's return over the whole run is above that of every baseline."""
    found = against(table, table.tag("task"), baselines(table), shared.average)
    verdict = above(named(found), "return over the whole run")
    return judged(table, verdict, shared.TASKS, baselines(table), alone=False)


def density_adds(table: Table) -> Verdict:
    """Claim 36: the released MADE is above its own cover paid at its scale, over the whole run, on every task.

    That pair is judged, for the paper's bonus coefficients were found with it; `made` and its own cover are shown.
    """
    pairs = ("made-released", "rnd-at-made"), ("made", "cover-at-made")
    tasks = [[task for task in table.tag("task") if {*pair} <= {*shared.methods(table, task)}] for pair in pairs]
    checked, shown = (
        {t: difference(table, t, pair, shared.average) for t in of} for pair, of in zip(pairs, tasks, strict=True)
    )
    units = [f"return over the whole run, {a} minus {b}" for a, b in pairs]
    verdict = above(checked, units[0]).also(*effects_of(shown, units[1]))
    return judged(table, verdict, shared.TASKS, pairs[0], alone=False)


def ten_thousand_is_reasonable(table: Table) -> Verdict:
    """Claim 28: with 10k MADE has 0.8 of the return of the best window on every task, and the best window differs.

    The return is the mean over all evaluations. Fails where 10k has less; two tasks from pixels and 5 seeds are needed.
    """
    returns, shares, best, absent = [], [], set(), []
    for name in dict.fromkeys(label.without("window") for label in table.select()):
        each = {one.tags["window"]: shared.average(table, one) for one in table.select(**name.tags)}
        means = {window: float(x.mean()) for window, x in each.items()}
        returns += [Effect(f"{name} {window}", x, unit="return over the run") for window, x in means.items()]
        if lack := [window for window in (*shared.WINDOWS, "all") if window not in means]:
            absent.append(f"{name} lacks {', '.join(lack)}")
        if "10k" in means and max(means.values()) > 0:  # where no window has a return none is better
            over = over_best(each, "10k")
            shares.append(Effect(name, *over, "return with 10k over that with the best window", 1.0))
            best.add(max(means, key=lambda one: means[one]))
    if len(table.tag("task")) == 1:
        absent.insert(0, "one task says nothing of others")
    fine = all(x.low >= REASONABLE for x in shares) and len(best) > 1
    holds = False if any(x.high < REASONABLE for x in shares) else True if fine else None
    also = ["returns with a window of 10k"] if not shares else [] if holds is False else absent
    return judged(table, Verdict(holds, (*shares, *returns)), (), (), also=also)


def over_best(returns: Mapping[str, np.ndarray], window: str) -> tuple[float, float, float]:
    """The return with a window over that with the best window, with its interval.

    Seeds are resampled within each window; the best is the best of each resample, so that it is not favored by luck.
    """
    draw = rng()
    means = np.array([[x.mean(), *resampled_means(x, draw)] for x in returns.values()])
    mine, best = means[list(returns).index(window)], means.max(axis=0)
    share = np.where(best > 0, mine / np.maximum(best, 1e-9), 1.0)
    low, high = np.quantile(share[1:], [0.025, 0.975])
    return float(share[0]), float(low), float(high)


def above_both(table: Table) -> Verdict:
    """Claim 29: over 500K steps MADE above RE3 and RE3 above Dreamer alone on Cheetah (sparse), Hopper and Pendulum."""
    tasks = ready(table, STRONG, DREAMERS)
    found = against(table, tasks, ("re3",), shared.average)
    for task in (task for task in tasks if {*DREAMERS} <= {*shared.methods(table, task)}):
        found[task, "re3", "none"] = difference(table, task, ("re3", "none"), shared.average)
    verdict = above(named(found), "return over the whole run")
    return judged(table, verdict, STRONG, DREAMERS, shared.PAPER_STEPS, alone=False)


def hopper(table: Table) -> Verdict:
    """Claim 30: on Hopper MADE ends 100 above Dreamer+RE3 and 250 above Dreamer.

    Each part holds if the interval reaches the printed gap and lies above zero, and fails if it does not reach it.
    """
    found = {b: (a, x) for (_, a, b), x in against(table, ["hopper_hop"], tuple(GAPS), shared.final).items()}
    holds = together([False if x.high < GAPS[b] else True if x.low > 0 else None for b, (_, x) in found.items()])
    names = {f"{a} minus {b} (printed {GAPS[b]:.0f})": x for b, (a, x) in found.items()}
    effects = effects_of(names, "return at the end")
    return judged(table, Verdict(holds, effects), ["hopper_hop"], DREAMERS, shared.PAPER_STEPS)
