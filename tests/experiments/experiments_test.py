"""Every experiment, through the same store, sweep, verdicts, figures and report that a user's run goes through.

The smoke scale of all experiments is run once for the module, in this process; what the host steps is made up here and
run in tests/experiments/paper/control_test.py.
"""

import json
import math
import re

import numpy as np
import pytest

from made.core.trial import Record as Recorded
from made.envs.control import rendering
from made.experiments import experiment, experiments, resumable, runner
from made.experiments.paper import convergence, minigrid_ablations
from made.experiments.plots import png
from made.experiments.report import collect
from made.experiments.report.page import markdown, render
from made.experiments.scheduler import Study, plan, schedule
from made.experiments.statistics import Interval
from made.experiments.store import Scale, Store
from made.experiments.store.table import Record, Table
from made.experiments.types import Claim, ClaimResult, Effect, Experiment, Verdict, above, choose, within
from made.training.backends.compiled_envs import group_by_program

NAMES = list(experiments())


def made_up(trial, seeds, out, on_rows=None, until=0.0):
    """In the place of a run in processes: rows as such a run leaves them."""
    steps = np.arange(trial.every, trial.iterations + 1, trial.every)
    rows = {"step": steps, "frames": 2.0 * steps, "return": 0.1 * steps, "eval_return": 0.2 * steps}
    return {seed: Recorded(rows, {}) for seed in seeds}, {"wall_s": 1.0, "lanes": len(seeds)}


@pytest.fixture(scope="module", autouse=True)
def small():
    """The ablations on MiniGrid in one room, which compiles in half the time. The rooms are those of `minigrid`."""
    with pytest.MonkeyPatch.context() as patch:
        task_of = minigrid_ablations.task_of
        patch.setattr(
            minigrid_ablations, "task_of", lambda scale: "Empty-5x5" if scale == Scale.SMOKE else task_of(scale)
        )
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("runs"))
    studies = [runner.Study(e, Scale.SMOKE) for e in experiments().values()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resumable, "train_resumable", made_up)
        patch.setattr(rendering, "installed", lambda: True)  # nothing of it is used
        assert runner.run(studies, store) > 0
    return store


def of(name: str, *settings: str) -> runner.Study:
    return runner.Study(experiment(name), Scale.SMOKE, settings)


def test_claims_1_to_17_have_one_experiment_each_and_the_demo_judges_these():
    numbers = sorted(claim.number for e in experiments().values() for claim in e.claims)
    assert numbers == sorted(set(numbers)) and set(range(1, 18)) <= set(numbers)
    assert sorted(claim.number for e in experiments().values() if e.in_demo for claim in e.claims) == list(range(1, 18))


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_gets_a_verdict_with_numbers(name, store):
    judged = runner.check(of(name), store)
    assert len(judged) == len(experiment(name).claims) and all(isinstance(row, ClaimResult) for row in judged)
    for row in judged:
        assert row.holds in (True, False, None) and row.observed and (row.effects or row.missing)
        assert row.command == f"made run {name} --scale smoke"
        whole = len(experiment(name).seeds(Scale.SMOKE))
        unrun = experiment(name).in_pieces and re.search("not run: | lacks ", " ".join(row.missing))
        assert row.seeds == whole or (unrun and row.seeds == 0)
        json.dumps(row._asdict())


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_draws_and_tabulates(name, store):
    table, problem = runner.load(of(name), store)
    assert problem == ""
    for drawing in experiment(name).draw(table):
        assert len(png(drawing.figure, dpi=50)) > 5000 and drawing.caption
    for _, header, rows in experiment(name).tables(table):
        assert rows and all(len(row) == len(header) for row in rows)


@pytest.mark.parametrize("name", NAMES)
def test_a_second_run_finds_everything_done(name, store):
    work, done = plan(of(name), list(experiment(name).seeds(Scale.SMOKE)), store)
    assert work == [] and done > 0


def test_an_experiment_that_shares_runs_makes_none_of_its_own(store):
    """`sample_size` reads those of `minigrid`, which are not run twice when both are asked for."""
    assert store.experiments() == sorted(e.name for e in experiments().values() if not e.shares)
    assert [e.shares for e in experiments().values() if e.shares] == ["minigrid"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [Scale.DEMO, Scale.SMALL, Scale.PAPER])
def test_larger_scales_are_made_of_whole_programs(name, scale):
    """Not run here: that every scale can be planned, and that seeds and settings share programs."""
    trials = Study(experiment(name), scale).trials
    seeds = experiment(name).seeds(scale)
    assert len(group_by_program(list(trials.values()))) <= max(3, 0.6 * len(trials)) or all(
        t.on_host for t in trials.values()
    )
    if scale is not Scale.DEMO and name.startswith("lock"):
        assert len(seeds) >= (100 if scale is Scale.PAPER else 20)


def test_identities_hold_even_at_the_smallest_scale(store):
    assert [row.holds for row in runner.check(of("objective"), store)] == [True] * 5


def test_the_bound_drawn_is_the_theorem_s(store):
    table, _ = runner.load(of("convergence"), store)
    for one in ("exact", "c=0.5", "both errors"):
        solver = table.runs(one)[0]["description"]["solver"]
        K = int(table.curves(one, "gap")[0][-1])
        exact = convergence.constants(table, one).bound(solver["eta"], K, solver["eps_d"], solver["eps_p"])
        assert np.isclose(convergence.bounds(table, one)[-1], exact, rtol=1e-5)


def test_too_few_seeds_cannot_tell(store):
    assert [row.holds for row in runner.check(of("lock"), store)] == [None, None, None]


def test_nothing_recorded_and_incomplete_are_said_with_the_command(tmp_path, store):
    empty = runner.check(of("chain"), Store(tmp_path))
    assert all(row.holds is None and "made run chain --scale smoke" in row.observed for row in empty)
    part = Store(tmp_path / "part")
    work, _ = plan(of("chain"), [0], part)
    list(schedule(work[:1], part))
    unfinished = runner.check(of("chain"), part)
    assert all(row.holds is None and "goes on from there" in row.observed for row in unfinished)
    with pytest.raises(ValueError, match="cannot be plotted"):
        runner.draw(of("chain"), part, tmp_path)
    assert runner.run([of("chain")], part) == sum(len(group.jobs) for group in work[1:])
    assert runner.load(of("chain"), part)[1] == ""


def test_a_changed_setting_is_another_run_and_only_where_the_setting_exists(store):
    plain, changed = (of("lock", *settings).trials for settings in ((), ("bonus.recent.window=10",)))
    differ = [label for label in plain if plain[label] != changed[label]]
    assert differ and all("made/B=" in label for label in differ)
    assert runner.load(of("lock", "bonus.recent.window=10"), store)[1]
    wrong_settings = {
        "bonus.recent.windw=10": "has no field",
        "window": "not 'window'",
        "=3": "not '=3'",
    }
    for wrong, message in wrong_settings.items():
        with pytest.raises(ValueError, match=message):
            _ = of("lock", wrong).trials


def test_the_report_has_every_claim_figure_and_setting(store, tmp_path):
    section = collect.publish_study(of("lock"), store, tmp_path)
    page = render([section])
    assert (tmp_path / "lock.png").exists() and (tmp_path / "lock.svg").exists()
    assert all(row["name"] in page for row in section.claims) and page.count("data:image/") == 2
    assert "RecentCounts" in page and "commit" in page.lower()
    text = markdown([section], tmp_path / "docs" / "results.md")
    assert "](../lock.png)" in text and "Claim 9" in text and "made run lock --scale smoke" in text


def test_an_unknown_experiment_names_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'lock_heatmap'"):
        experiment("lock_heatmpa")


def test_a_scale_without_an_entry_takes_the_next_smaller():
    assert choose(Scale.PAPER, smoke=1, small=2) == 2 and choose(Scale.SMOKE, smoke=1, small=2) == 1
    with pytest.raises(ValueError, match="smoke"):
        choose(Scale.SMOKE, small=2)


def test_verdict_rules_hold_fail_and_cannot_tell():
    wide, up, down = (Interval(e, lo, hi, 20) for e, lo, hi in ((0.1, -1, 1), (2, 1, 3), (-2, -3, -1)))
    few = Interval(2.0, 1.0, 3.0, 3)
    assert above({"a": up}, "x").holds is True
    assert above({"a": up, "b": down}, "x").holds is False
    assert above({"a": up, "b": wide}, "x").holds is None
    assert above({"a": few}, "x").holds is None
    assert within({"a": wide}, 1.5, "x").holds is True
    assert within({"a": up}, 0.5, "x").holds is False
    assert within({"a": up}, 2.0, "x").holds is None
    assert np.isnan(above({}, "x").holds or np.nan)


def test_claim_result_holds_the_verdict_as_plain_data():
    verdict = Verdict(None, (Effect("a", 1.0, 0.5, math.inf, "return"),), missing=("task x",))
    made_up = Experiment(
        *("name", "fig:1", "title", "about"), lambda scale: {}, lambda scale: range(1),
        (Claim(1, "claim", "A claim", "Sec. 1", lambda table: verdict),), lambda table: [], lambda table: [],
    )  # fmt: skip
    study = Study(made_up, Scale.SMOKE)
    table = Table([Record("a", 0, {"step": np.arange(2)})])
    (row,) = runner.check_claims(study, table)
    (effect,) = row.effects
    assert effect == {"name": "a", "value": 1.0, "low": 0.5, "high": None, "unit": "return", "null": 0.0, "seeds": 0}
    assert (row.missing, row.observed, row.seeds) == (["task x"], verdict.observed, 1)
    (empty,) = runner.check_claims(study, Table())
    assert (empty.holds, empty.seeds, empty.observed) == (None, 0, "nothing recorded yet")
    (part,) = runner.check_claims(study, table, "incomplete")
    assert (part.holds, part.seeds, part.missing) == (None, 0, ["incomplete"])
