"""The control experiments: what the host steps goes through the same store in pieces, and every branch of a verdict."""

import contextlib
import csv
import dataclasses
import itertools
import json
import os
import signal
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from jax.errors import JaxRuntimeError
from training.stopping import stopped

from made.bonuses.replay_data import recent_window
from made.cli import main as cli
from made.core.config import config_id, to_dict
from made.core.trial import RunsFailed, TimeLimitReached
from made.envs.control import rendering
from made.experiments import resumable, runner
from made.experiments.executors import Options
from made.experiments.paper import (
    control_returns,
    control_setup,
    control_verdicts,
    minigrid_setup,
    searches,
)
from made.experiments.report import collect
from made.experiments.scheduler import plan, schedule
from made.experiments.store import Job, Scale, Store
from made.experiments.store.table import Label, Record, Table
from made.experiments.types import Experiment, read_settings, take_settings
from made.training import loggers, sharding, train_loop, train_run
from made.training.backends import control_tasks
from made.training.backends.compiled_envs import group_by_program
from made.training.control_config import ControlConfig
from made.training.loggers import Meter

TASKS = control_setup.TASKS
CLOCKED = ("frames_per_second",)
RESULTS = Path(__file__).parents[3] / "results"


# Runs in pieces


@pytest.fixture(scope="module")
def shared():
    """The real programs of the smoke run, compiled once for every piece of this module."""
    pytest.importorskip("dm_control", reason="needs dm_control: pip install -e '.[control]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "options", lambda level: {"xla_backend_optimization_level": 0})
        patch.setattr(os, "cpu_count", lambda: 1)
        real, made = control_tasks.ControlBackend, []

        def once(plan, devices):
            if not made:
                made.append(real(plan, devices))
            return made[0]

        patch.setattr(train_run, "control_tasks", types.SimpleNamespace(ControlBackend=once))
        own = types.SimpleNamespace(closing=contextlib.nullcontext, ExitStack=contextlib.ExitStack)
        patch.setattr(train_run, "contextlib", own)  # the backend stays open
        patch.setattr(resumable, "SECONDS", 0.0)  # a checkpoint at each row
        patch.setattr(resumable, "SELDOM", 0.0)
        yield
        for backend in made:
            backend.close()


def twice(scale: Scale) -> dict:
    """The smoke run under two labels, as where a search chooses the paper's own bonus coefficient."""
    (run,) = control_returns.trials(scale).values()
    return {"pendulum_swingup/none": run, "pendulum_swingup/tuned/rnd": run}


SMOKE = runner.Study(control_returns.EXPERIMENT._replace(trials=twice), Scale.SMOKE)


@pytest.fixture(scope="module")
def whole(shared, tmp_path_factory):
    """The store of a run that nothing stopped."""
    store = Store(tmp_path_factory.mktemp("whole"))
    assert runner.run([SMOKE], store) == 2
    return store


def rows(store: Store, label: str = "pendulum_swingup__none") -> list[dict[str, str]]:
    (folder,) = (store.root / "dmc" / "smoke" / label).iterdir()
    with open(folder / "metrics.csv", encoding="utf-8") as file:
        return [{k: v for k, v in row.items() if k not in CLOCKED} for row in csv.DictReader(file)]


def test_a_run_of_the_host_is_stored_like_any_other_and_its_folder_removed(whole):
    found = rows(whole)
    assert [(row["step"], row["frames"]) for row in found] == [("20", "2000.0"), ("40", "4000.0")]
    assert all(row["eval_return"] and row["return"] for row in found) and "seed" not in found[0]
    assert found == rows(whole, "pendulum_swingup__tuned__rnd"), "labels of one configuration share its runs"
    table, problem = runner.load(SMOKE, whole)
    assert not problem
    made_by = table.runs("pendulum_swingup/none")[0]["provenance"]
    assert made_by["pieces"] == 1 and made_by["lanes"] == 1 and made_by["wall_s"] > 0 and made_by["device"]
    assert not (whole.root / ".unfinished").exists()


def test_a_killed_piece_goes_on_from_its_checkpoint_to_the_same_rows(whole, tmp_path, monkeypatch, capsys):
    store = Store(tmp_path / "runs")
    # 20 actions and an evaluation of 10, then in the midst of the second row
    with pytest.raises(RunsFailed, match="stopped"), stopped(30):
        runner.run([SMOKE], store)
    (folder,) = (store.root / ".unfinished" / "dmc").iterdir()
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["000000020.safetensors"]
    again, begun = Store(store.root), []  # marked as a store, though nothing is stored yet
    monkeypatch.setattr(control_tasks.ControlBackend, "init", lambda *_: begun.append(1))
    assert runner.run([SMOKE], again) == 2 and not begun
    assert "2 runs made, 40 iterations at" in capsys.readouterr().out, "the other 40 of two labels were there before"
    assert rows(again) == rows(whole)
    table, _ = runner.load(SMOKE, again)
    assert table.runs("pendulum_swingup/none")[0]["provenance"]["pieces"] == 2
    assert not (store.root / ".unfinished").exists()


def test_without_checkpoints_a_run_is_the_same(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(resumable, "SECONDS", np.inf)
    store, saved = Store(tmp_path / "runs"), []
    with monkeypatch.context() as patch:
        patch.setattr(train_loop.checkpoint, "save", lambda *_: saved.append(1))
        assert runner.run([SMOKE], store) == 2 and not saved
    assert rows(store) == rows(whole)


def test_an_unfinished_run_on_other_seeds_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rendering, "installed", lambda: True)
    one = Record("", 0, {"step": np.array([20, 40]), "eval_return": np.zeros(2)})
    monkeypatch.setattr(resumable, "train_resumable", lambda trial, seeds, *_: (dict.fromkeys(seeds, one), {}))  # type: ignore[arg-type]
    for store, seeds, told in ((Store(tmp_path / "a"), [0], True), (Store(tmp_path / "b"), [0, 1, 2], False)):
        (group,) = planned(store)
        name = f"{group.stored_as[0][1]}-s{'-'.join(map(str, seeds))}"
        left = store.unfinished("dmc", name)
        left.mkdir(parents=True)
        list(schedule([group], store))
        said = capsys.readouterr().err
        assert (f"{left} is a run of pendulum_swingup/none on other seeds, not finished" in said) == told
        assert left.exists() == told, "what it holds stays"


@pytest.mark.parametrize("minutes", [None, 60.0])
def test_where_the_device_fails_once_the_run_goes_on_from_its_checkpoint(whole, tmp_path, capsys, monkeypatch, minutes):
    monkeypatch.setattr(loggers, "SECONDS_BETWEEN_LINES", np.inf)  # however slow the machine
    store, heard = Store(tmp_path / "runs"), Meter(1, "iterations")
    (group,), _ = plan(SMOKE, range(1), store)
    until = np.inf if minutes is None else time.monotonic() + 1e6 * minutes
    with stopped(30, JaxRuntimeError, once=True):
        assert len(list(schedule([group], store, heard.add, until=until))) == 1
    assert heard.done == heard.made == group.work, "no row counts twice"
    assert rows(store) == rows(whole)
    table, _ = runner.load(SMOKE, store)
    assert table.runs("pendulum_swingup/none")[0]["provenance"]["pieces"] == 2
    assert capsys.readouterr().err.splitlines() == [
        "made: the device failed (stopped by the test): going on from the checkpoint at 20 of 40 updates."
    ]


def test_a_device_that_fails_again_before_a_checkpoint_is_given_up(whole, tmp_path, monkeypatch, capsys):
    with pytest.raises(RunsFailed, match="JaxRuntimeError: stopped by the test"), stopped(30, JaxRuntimeError):
        runner.run([SMOKE], Store(tmp_path / "runs"))
    assert capsys.readouterr().err.count("the device failed (") == 1
    with pytest.raises(RunsFailed, match="JaxRuntimeError: stopped by the test"), stopped(3, JaxRuntimeError):
        runner.run([SMOKE], Store(tmp_path / "others"))
    assert "the device failed (" not in capsys.readouterr().err, "nothing to go on from"
    monkeypatch.setattr(resumable, "time", types.SimpleNamespace(monotonic=lambda: np.inf))
    trial = next(iter(SMOKE.experiment.trials(Scale.SMOKE).values()))
    with pytest.raises(TimeLimitReached, match="20 of 40 updates"), stopped(30, JaxRuntimeError, once=True):
        resumable.train_resumable(trial, [0], tmp_path / "late", until=1e12)


def test_a_piece_whose_time_is_up_stops_with_a_checkpoint_and_the_next_goes_on(whole, tmp_path, capsys, monkeypatch):
    store = Store(tmp_path / "runs")
    with monkeypatch.context() as patch:  # it is begun in time, and its first row ends too late, however fast it is
        patch.setattr("made.experiments.scheduler.time", types.SimpleNamespace(monotonic=lambda: 0.0, time=time.time))
        assert runner.run([SMOKE], store, options=Options(minutes=1e-9)) == 0
    said = capsys.readouterr().out
    assert "The time is up and 2 runs are not finished" in said
    assert "0 runs made, 40 iterations" in said
    (folder,) = (store.root / ".unfinished" / "dmc").iterdir()
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["000000020.safetensors"]
    assert runner.run([SMOKE], store, only=["*/none"]) == 1, "the other label is not asked for"
    assert rows(store) == rows(whole)
    assert runner.run([SMOKE], store) == 1
    with pytest.raises(ValueError, match=r"pendulum/none fits no .* Did you mean 'pendulum_swingup/none'"):
        runner.run([SMOKE], store, only=["pendulum/none"])


def test_sigterm_stops_a_piece_with_a_checkpoint_and_the_next_goes_on(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(resumable, "SECONDS", np.inf)  # no other checkpoint
    store, real = Store(tmp_path / "runs"), loggers.JSONL.write

    def signalled(self, lines):
        real(self, lines)
        os.kill(os.getpid(), signal.SIGTERM)
        train_loop._terminating.wait()  # the main thread hears it

    with monkeypatch.context() as patch, train_loop.raise_on_sigterm(), pytest.raises(train_loop.Terminated):
        patch.setattr(loggers.JSONL, "write", signalled)
        runner.run([SMOKE], store)
    (folder,) = (one for one in (store.root / ".unfinished" / "dmc").iterdir() if "locks" not in one.name)
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["000000020.safetensors"]
    assert runner.run([SMOKE], store) == 2 and rows(store) == rows(whole)


def test_without_what_it_needs_a_run_is_one_line_before_anything_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(rendering, "installed", lambda: False)
    assert cli.main(["run", "dmc", "--scale", "smoke", "--out", str(tmp_path / "runs")]) == 2
    assert capsys.readouterr().err.strip().splitlines() == [
        'made: Control tasks need dm_control, which is not here: pip install -e ".[control]" in the checkout of made.'
    ]

    def none():
        raise ValueError("Nothing can be rendered here.")

    monkeypatch.setattr(rendering, "choose", none)
    assert cli.main(["run", "dmc", "--scale", "gpu", "--out", str(tmp_path / "runs")]) == 2
    assert capsys.readouterr().err.splitlines() == ["made: Nothing can be rendered here."]
    assert cli.main(["run", "dmc", "--scale", "smoke", "--set", "replay.stack=2", "--out", str(tmp_path / "runs")]) == 2
    assert "replay.stack is 2" in capsys.readouterr().err and not (tmp_path / "runs").exists()


def test_labels_are_groups_of_their_own_and_equal_ones_are_one(tmp_path):
    trials = control_returns.buffer_trials(Scale.GPU)
    found = group_by_program(list(trials.values()))
    names = [sorted(list(trials)[i] for i in one) for one in found]
    assert ["pendulum_swingup/made/100k", "pendulum_swingup/made/all"] in names and ["hopper_hop/made/1k"] in names
    assert all(isinstance(trial, ControlConfig) for trial in trials.values())


def test_labels_that_share_runs_stay_in_one_group_however_few_lanes_it_may_have(tmp_path):
    """Or two tasks would train in one folder."""
    store = Store(tmp_path)
    both = [f"pendulum_swingup/made/{window}" for window in ("100k", "all")]
    made, _ = plan(runner.Study(control_returns.BUFFER, Scale.GPU), range(3), store, lanes=2, only=both)
    jobs = [[(label.rsplit("/", 1)[1], seed) for label, seed in group.jobs] for group in made]
    assert sorted(map(sorted, jobs)) == [[("100k", 0), ("100k", 1), ("all", 0), ("all", 1)], [("100k", 2), ("all", 2)]]


def planned(store: Store) -> list:
    return plan(SMOKE, range(3), store)[0]


def test_a_group_is_handed_to_the_host_once_with_all_its_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(rendering, "installed", lambda: True)
    store, asked, heard = Store(tmp_path), [], Meter(1, "iterations")

    def complete(trial, seeds, out, on_rows=None, until=0.0):
        asked.append((list(seeds), out.relative_to(tmp_path).parts[:2]))
        assert on_rows is not None
        on_rows(2)
        one = Record("", 0, {"step": np.array([20, 40]), "eval_return": np.zeros(2), "secret": np.zeros(2)})
        return dict.fromkeys(seeds, one), {"wall_s": 1.0}

    monkeypatch.setattr(resumable, "train_resumable", complete)
    work = planned(store)
    assert len(list(schedule(work, store, heard.add))) == 1
    assert asked == [([0, 1, 2], (".unfinished", "dmc"))] and heard.done == heard.made == work[0].work
    assert store.table("dmc", Scale.SMOKE).metrics() == ["eval_return"], "columns that the experiment did not name"
    assert planned(store) == []


# Configurations


def begun(store: Store, **seeds: int) -> runner.Study:
    """Some configurations of Figure 8 on a GPU, each on so many seeds."""
    one, trials = runner.Study(control_returns.EXPERIMENT, Scale.GPU), control_returns.trials(Scale.GPU)
    for method, n in seeds.items():
        label = f"pendulum_swingup/{method}"
        for seed in range(n):
            rows = {"step": np.arange(1, 5) * 2500, "eval_return": np.arange(4.0) + seed}
            store.write(Job("dmc", label, seed, Scale.GPU), config_id(trials[label]), to_dict(trials[label]), rows)
    return one


def test_what_was_run_is_judged_and_drawn_and_what_was_not_is_named(tmp_path, capsys):
    store = Store(tmp_path / "runs")
    one = begun(store, made=3, none=3, re3=2)
    table, problem = runner.load(one, store)
    assert not problem and table.labels() == [f"pendulum_swingup/{m}" for m in ("none", "re3", "made")]
    lack = runner.not_run(one, table)
    assert "pendulum_swingup/re3 (2 of 3 seeds)" in lack and "hopper_hop/made" in lack
    assert not {"pendulum_swingup/made", "pendulum_swingup/none"} & set(lack)
    section = collect.publish_study(one, store, tmp_path)
    assert len(section.figures) == 1 and section.tables[-1][2] == [[label] for label in lack]
    assert {row["holds"] for row in section.claims} == {None}
    seeds = {row["name"]: row["seeds"] for row in section.claims}
    assert seeds["faster-on-control"] == seeds["pendulum-in-30k"] == 2, "that it rests on"
    assert seeds["quadruped-gap"] == seeds["curiosity-fails"] == 0, "where none of its tasks was run"
    assert cli.main(["check", "dmc", "--out", str(store.root)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Not run of dmc at scale gpu: pendulum_swingup/rnd, " in said and "cartpole_swingup_sparse/re3" in said
    assert cli.main(["check", "dmc", "--out", str(tmp_path / "slip")]) == 2
    assert "There is no folder" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert cli.main(["check", "dmc", "--out", str(tmp_path / "empty")]) == 0
    assert "not recorded" in capsys.readouterr().out


def cut_off(
    store: Store, label: str, updates: int, seeds: Sequence[int] = (0,), of: Experiment = control_returns.EXPERIMENT
) -> Path:
    """What `made run` leaves of a configuration on a GPU after so many updates, a row every 5000."""
    trial = of.trials(Scale.GPU)[label]
    about = {"configuration": {**to_dict(trial), "seeds": list(seeds)}, "sessions": [{"commit": "ab12", "lanes": 1}]}
    lines = [
        {"seed": seed, "update": k, "frames": 2 * k, "seconds": 1.0, "eval_return": float(k + seed), "return": None}
        for k in range(5000, updates + 1, 5000)
        for seed in seeds
    ]
    folder = store.unfinished(of.name, f"{config_id(trial)}-s{'-'.join(map(str, seeds))}")
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"steps": 100_000, "frames_per_update": 2, **about}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_what_was_cut_off_is_drawn_and_told_as_far_as_it_goes_and_never_judged(tmp_path, capsys):
    store = Store(tmp_path / "runs")
    one = begun(store, made=3, none=3)
    before, judged = list(collect.publish_study(one, store, tmp_path).claims), runner.check(one, store)
    cut_off(store, "pendulum_swingup/re3", 20_000, (0, 1, 2))
    cut_off(store, "pendulum_swingup/made", 45_000)  # of which whole runs are there
    cut_off(store, "hopper_hop/made", 15_000)
    published = collect.publish_study(one, store, tmp_path)
    assert published.claims == before and runner.check(one, store) == judged, "no verdict rests on it"
    assert published.settings["hopper_hop/made"] == to_dict(control_returns.trials(Scale.GPU)["hopper_hop/made"])
    assert "from_update" not in published.provenance and published.provenance["runs"] == 10
    (title, _, rows), (_, _, absent) = published.tables
    steps = {(row[0].split(" ")[0], row[1]): row[3] for row in rows}
    assert title == "Every method" and steps[("pendulum_swingup", "re3")] == "40,000 of 100,000"
    assert steps[("hopper_hop", "made")] == "30,000 of 100,000" and steps[("pendulum_swingup", "made")] == "20,000"
    assert ["hopper_hop/made (begun: 30,000 of 100,000 steps)"] in absent and ["hopper_hop/re3"] in absent
    assert "circle" in published.figures[0].caption
    assert cli.main(["check", "dmc", "--out", str(store.root)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "pendulum_swingup/re3 (begun: 40,000 of 100,000 steps)" in said and "pendulum_swingup/made (" not in said


def test_a_curve_that_is_not_whole_ends_in_a_circle_on_an_axis_of_the_whole(tmp_path):
    store = Store(tmp_path / "runs")
    one = runner.Study(control_returns.EXPERIMENT, Scale.GPU)
    cut_off(store, "hopper_hop/made", 15_000)
    table = runner.load(one, store, partial=True)[0]
    (ax,) = control_returns.draw(table)[0].figure.axes
    (circle,) = [line for line in ax.lines if line.get_marker() == "o"]
    assert circle.get_xydata().tolist() == [[30_000.0, 15_000.0]]
    assert ax.get_xlim()[0] < 10_000 and 100_000 < ax.get_xlim()[1] < 110_000
    ((_, path),) = runner.draw(one, store, tmp_path / "drawn")
    assert path.exists(), "though nothing of it is whole"
    (whole,) = control_returns.draw(made_up({"hopper_hop/made": [1.0] * 50}))[0].figure.axes
    assert not [line for line in whole.lines if line.get_marker() == "o"]


def test_a_store_in_which_nothing_is_whole_yet_shows_what_is_begun(tmp_path, capsys):
    store = Store(tmp_path / "runs")
    cut_off(store, "hopper_hop/made", 15_000)
    there = ["--out", str(store.root)]
    assert cli.main(["figure", "dmc", *there, "--to", str(tmp_path / "drawn")]) == 0
    assert cli.main(["check", "dmc", *there]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "8 claims: 8 not recorded." in said
    assert "Not run of dmc at scale gpu: pendulum_swingup/none, " in said, "what is not begun either"
    assert said.endswith("hopper_hop/re3, hopper_hop/made (begun: 30,000 of 100,000 steps).")
    assert cli.main(["report", *there, "--to", str(tmp_path / "page")]) == 0
    assert "30,000 of 100,000" in (tmp_path / "page" / "index.html").read_text("utf-8")
    assert json.loads((tmp_path / "page" / "claims.json").read_text()) == []


def test_what_is_begun_stands_back_in_the_report_for_a_smaller_scale_that_is_whole(tmp_path):
    store = Store(tmp_path / "runs")
    trials, rows = control_returns.trials(Scale.SMALL), {"step": np.arange(1, 5) * 1000, "eval_return": np.arange(4.0)}
    for label, seed in itertools.product(("pendulum_swingup/made", "pendulum_swingup/re3"), range(2)):
        store.write(Job("dmc", label, seed, Scale.SMALL), config_id(trials[label]), to_dict(trials[label]), rows)
    store.write(Job("dmc", "pendulum_swingup/made", 0, Scale.GPU), "ab12", {}, rows)  # of other settings
    cut_off(store, "hopper_hop/made", 15_000)
    written = collect.reproduce([store.root], tmp_path / "page", ["dmc"])
    assert {row.scale for row in written.judged} == {"small"} and any(row.seeds for row in written.judged)


def test_one_seed_is_told_without_a_range():
    assert (
        control_returns.spread(np.array([3.0])) == "3" and control_returns.spread(np.array([3.0, 5.0])) == "4 (3 to 5)"
    )


def test_windows_that_are_cut_off_say_how_far_they_are(tmp_path):
    one, store = runner.Study(control_returns.BUFFER, Scale.GPU), Store(tmp_path)
    label = next(iter(control_returns.buffer_trials(Scale.GPU)))
    cut_off(store, label, 15_000, of=one.experiment)
    ((_, header, rows),) = control_returns.buffer_tables(runner.load(one, store, partial=True)[0])
    assert rows[0][header.index("steps")] == "30,000 of 100,000"


def test_a_task_on_which_nothing_is_compared_yet_takes_no_seeds_away():
    curves = {f"pendulum_swingup/{m}": [500.0] * 50 for m in ("made", "re3", "none", "rnd", "icm")}
    table = made_up({**curves, "hopper_hop/re3": [1.0] * 50}, 3)
    fewer = Table(x for one in table.labels() for x in table._records(one) if "hopper" not in one or x.seed == 0)
    assert control_verdicts.faster(fewer).seeds == control_verdicts.consistent(fewer).seeds == 3
    alone = control_verdicts.clearly_above(made_up({"hopper_hop/re3": [1.0] * 50}, 3))
    assert alone.seeds == 0 and "hopper_hop lacks made" in alone.observed


def test_methods_are_compared_on_the_seeds_that_both_have():
    def make(method: str, seed: int, height: float) -> Record:
        rows = {"step": np.arange(1, 4), "eval_return": np.full(3, height)}
        return Record(label_of(f"hopper_hop/{method}"), seed, rows, run={"description": {"task": {"repeat": 2}}})

    both = [make("made", 0, 10.0), make("made", 1, 30.0), make("re3", 1, 5.0), make("re3", 2, 900.0)]
    assert control_verdicts.difference(Table(both), "hopper_hop", ("made", "re3")).estimate == 25.0
    none = control_verdicts.difference(Table([both[0], both[2]]), "hopper_hop", ("made", "re3"))
    assert none.n == 0 and str(none) == "no seed" and np.isnan(none.low)


def some_seeds(table: Table, **seeds: Sequence[int]) -> Table:
    """The same with those seeds alone of the labels that end in a name."""
    keep = lambda one: next((x for name, x in seeds.items() if one.label.endswith(f"/{name}")), [one.seed])  # noqa: E731
    return Table(one for label in table.labels() for one in table._records(label) if one.seed in keep(one))


def test_seeds_are_those_that_the_compared_methods_share():
    grows = [400.0] * 35 + [500.0] * 10 + [560.0] * 5
    pair = {"quadruped_run/made": grows, "quadruped_run/re3": [400.0] * 50}
    assert control_verdicts.quadruped(made_up(pair, 8)).holds is True
    apart = control_verdicts.quadruped(some_seeds(made_up(pair, 8), made=range(5), re3=range(3, 8)))
    assert apart.holds is None and "2 of 5 seeds" in apart.observed
    beside = some_seeds(made_up({**pair, "pendulum_swingup/icm": [0.0] * 50}), icm=[0])
    assert control_verdicts.quadruped(beside).holds is True, "what it does not compare is nothing to it"


def test_a_gain_is_over_the_seeds_that_both_have():
    uneven = {"hopper_hop/made": [rise(at) for at in (10, 10, 40)], "hopper_hop/re3": [rise(at) for at in (30, 30)]}
    assert "re3 (printed 2.6) on 1 task 3 [3, 3]" in control_verdicts.faster(seed_by_seed(uneven)).observed
    apart = some_seeds(seed_by_seed(uneven), made=[2], re3=[0, 1])
    assert "re3 and MADE share no task" in control_verdicts.faster(apart).observed


def test_one_seed_on_a_task_leaves_a_gain_without_an_interval():
    whole = made_up(on_all(**ALL), 3)
    one = Table(x for label in whole.labels() for x in whole._records(label) if "hopper" not in label or not x.seed)
    told = control_verdicts.faster(one)
    assert "re3 (printed 2.6) on 6 tasks 3 [one seed, no interval]" in told.observed and told.seeds == 1
    alone = control_verdicts.clearly_above(one)
    assert "hopper_hop made minus re3 0 [one seed, no interval]" in alone.observed
    assert "walker_run_sparse made minus re3 0 [0, 0] (3 seeds)" in alone.observed


def test_a_claim_on_tasks_that_were_not_run_says_nothing_of_seeds():
    found = control_verdicts.quadruped(made_up({"hopper_hop/made": [1.0] * 50, "hopper_hop/re3": [1.0] * 50}, 1))
    assert found.seeds == 0 and found.missing == ("not run: quadruped_run",)


def test_panels_say_their_seeds_where_these_differ():
    curves = {"hopper_hop/made": [1.0] * 50, "pendulum_swingup/made": [1.0] * 50, "pendulum_swingup/re3": [1.0] * 50}
    titles = lambda table: [ax.get_title() for ax in control_returns.draw(table)[0].figure.axes]  # noqa: E731
    assert titles(made_up(curves)) == ["hopper_hop", "pendulum_swingup"]
    uneven = Table(x for label in made_up(curves).labels() for x in made_up(curves)._records(label) if kept(x))
    assert titles(uneven) == ["hopper_hop\n1 seed", "pendulum_swingup\n3 to 5 seeds"]


def kept(one: Record) -> bool:
    """Of Hopper one seed, of RE3 on Pendulum three."""
    return one.seed < (1 if one.label.startswith("hopper") else 3 if one.label.endswith("re3") else 5)


def test_a_task_that_is_begun_neither_makes_a_verdict_nor_undoes_one():
    levels = {"made": 500.0, "icm": 100.0, "rnd": 100.0, "re3": 100.0, "none": 100.0}
    whole = {f"hopper_hop/{m}": [x] * 50 for m, x in levels.items()}
    begun = {"pendulum_swingup/none": [900.0] * 50, "pendulum_swingup/made": [100.0] * 50}
    for more in ({}, {"pendulum_swingup/none": [900.0] * 50}, begun):
        assert control_verdicts.largest_gain(made_up({**whole, **more})).holds is True
        assert control_verdicts.consistent(made_up({**whole, **more, "hopper_hop/re3": [800.0] * 50})).holds is False
    only = control_verdicts.largest_gain(made_up({"hopper_hop/made": [500.0] * 50, "hopper_hop/none": [100.0] * 50}))
    assert only.holds is None and "hopper_hop lacks icm, rnd, re3" in only.observed
    told = control_verdicts.faster(made_up({"hopper_hop/made": [500.0] * 50, "hopper_hop/none": [500.0] * 50})).observed
    assert "re3 and MADE share no task" in told and "none (printed 3.8) on 1 task 1 [1, 1]" in told
    needed = control_verdicts.density_adds(made_up({"hopper_hop/none": [1.0] * 50})).observed
    assert "lacks made-released, rnd-at-made" in needed and ", made;" not in needed


def test_temperatures_are_the_papers_and_re3s_own_and_the_searchs(monkeypatch, tmp_path):
    chosen = tmp_path / "chosen.json"
    chosen.write_text(json.dumps({"paper": {"hopper_hop": {"rnd": 0.25, "re3": 1.25}}}))
    monkeypatch.setattr(control_setup, "CHOSEN", chosen)
    trials = control_returns.trials(Scale.PAPER)
    coef = lambda label: trials[label].bonus_coef.value  # type: ignore[attr-defined]  # noqa: E731
    assert (coef("pendulum_swingup/re3"), coef("pendulum_swingup/re3/printed"), coef("hopper_hop/made")) == (
        0.25,
        0.05,
        0.5,
    )
    assert (coef("cartpole_swingup_sparse/rnd"), coef("hopper_hop/rnd-at-made"), coef("hopper_hop/none")) == (
        10.0,
        0.5,
        0.0,
    )
    assert "hopper_hop/re3/printed" not in trials, "where both temperatures are the same"
    assert coef("hopper_hop/tuned/rnd") == 0.25 and trials["hopper_hop/tuned/re3"].bonus_coef.rho == 1e-5  # type: ignore[attr-defined]
    assert "pendulum_swingup/tuned/rnd" not in trials


def test_the_gpu_scale_is_the_release_but_for_what_it_says():
    """Row 110 of docs/deviations.md."""
    ours, theirs = (control_returns.trials(scale)["pendulum_swingup/made"] for scale in (Scale.GPU, Scale.PAPER))
    changed = {"bonus": theirs.bonus, "iterations": 250_000, "every": 5_000, "episodes": 10}  # type: ignore[attr-defined]
    changed |= {name: getattr(theirs, name) for name in ("task", "agent", "replay")}
    assert dataclasses.replace(ours, **changed) == theirs  # type: ignore[type-var]
    assert (ours.iterations, ours.every, ours.episodes) == (50_000, 2_500, 5)  # type: ignore[attr-defined]
    assert dataclasses.replace(ours.task, low_res_shadows=False) == theirs.task  # type: ignore[attr-defined]
    layout = dataclasses.replace(ours.agent.layout, precision="float32")  # type: ignore[attr-defined]
    assert dataclasses.replace(ours.agent, layout=layout) == theirs.agent  # type: ignore[attr-defined]
    assert ours.agent.layout.precision == "bfloat16" and ours.replay.capacity == 50_000  # type: ignore[attr-defined]
    assert (
        len(control_returns.EXPERIMENT.seeds(Scale.GPU)) == 3
        and len(control_returns.EXPERIMENT.seeds(Scale.PAPER)) == 5
    )
    assert control_returns.trials(Scale.GPU)["hopper_hop/made"].every == 5_000


@pytest.mark.parametrize("scale", [Scale.SMALL, Scale.GPU, Scale.PAPER])
def test_lengths_are_in_steps_of_the_environment_and_search_and_report_share_no_seed(scale):
    for label, trial in {**control_returns.trials(scale), **control_returns.buffer_trials(scale)}.items():
        budget, repeat = control_setup.BUDGETS[scale.value][label.split("/")[0]], trial.task.repeat  # type: ignore[attr-defined]
        assert (trial.iterations * repeat, trial.every * repeat) == (budget.steps, budget.every)
        assert trial.task.pixels == (scale is not Scale.SMALL)  # type: ignore[attr-defined]
    assert not set(control_returns.EXPERIMENT.seeds(scale)) & set(searches.CONTROL.seeds(scale))
    per = {}
    for label in searches.control_trials(scale):
        task, method, tau = label.tags.values()
        per.setdefault((task, method), []).append(tau)
    assert len({tuple(taus) for taus in per.values()}) == 1, "every method at the same temperatures"


def test_the_windows_reach_the_density_and_none_is_longer_than_the_replay():
    for scale, capacity in ((Scale.SMALL, 15_000), (Scale.GPU, 50_000), (Scale.PAPER, 100_000)):
        found = {
            label.split("/")[2]: recent_window(trial.bonus)
            for label, trial in control_returns.buffer_trials(scale).items()
        }  # type: ignore[attr-defined]
        assert found == {"1k": 1_000, "10k": 10_000, "100k": min(100_000, capacity), "all": capacity}


def test_the_search_takes_the_temperature_with_the_highest_return_and_keeps_other_scales(monkeypatch, tmp_path):
    monkeypatch.setattr(control_setup, "CHOSEN", tmp_path / "chosen.json")
    curves = {"hopper_hop/rnd/tau=0.1": [1, 9], "hopper_hop/rnd/tau=1": [6, 6], "hopper_hop/made/tau=0.1": [2, 2]}
    search = searches.CONTROL.search
    take_settings(search, made_up(curves), Scale.SMALL)
    take_settings(search, made_up({"hopper_hop/made/tau=3": [1, 1]}), Scale.GPU)
    small = {"hopper_hop": {"rnd": 1.0, "made": 0.1}}
    assert json.loads((tmp_path / "chosen.json").read_text()) == {"small": small, "gpu": {"hopper_hop": {"made": 3.0}}}

    other = made_up({"hopper_hop/rnd/tau=5": [1, 1], "pendulum_swingup/re3/tau=1": [1, 1]})
    with pytest.raises(ValueError, match=r"hopper_hop/rnd 1\.0 in place of 5\.0.*--replace"):
        take_settings(search, other, Scale.SMALL)
    assert read_settings(control_setup.CHOSEN)["small"] == small, "nothing was written"
    take_settings(search, other, Scale.DEMO, replace=True)  # has the budgets of small
    assert read_settings(control_setup.CHOSEN)["small"] == {
        "hopper_hop": {"rnd": 5.0, "made": 0.1},
        "pendulum_swingup": {"re3": 1.0},
    }


@pytest.mark.parametrize(("name", "folder"), [("dmc_search", "dmc"), ("minigrid_search", "minigrid")])
def test_what_was_chosen_is_what_the_recorded_searches_choose(name, folder, monkeypatch, tmp_path, capsys):
    module = {"dmc_search": control_setup, "minigrid_search": minigrid_setup}[name]
    kept = read_settings(module.CHOSEN)
    monkeypatch.setattr(module, "CHOSEN", tmp_path / "chosen.json")
    assert cli.main(["choose", name, "--out", str(RESULTS / folder)]) == 0
    assert read_settings(tmp_path / "chosen.json") == kept
    assert "made" in capsys.readouterr().out


def test_choosing_needs_a_search_and_runs(tmp_path, capsys):
    for words, said in ((["lock"], "is no search"), (["dmc_search"], "nothing to choose from")):
        assert cli.main(["choose", *words, "--out", str(tmp_path)]) == 2
        assert said in capsys.readouterr().err


# Verdicts


def label_of(text: str) -> Label:
    """The label of a configuration from its text."""
    task, *parts = text.split("/")
    *methods, last = parts
    if last in (*control_setup.WINDOWS, "all"):
        return Label(task=task, method="/".join(methods), window=last)
    if last.startswith("tau="):
        return Label(task=task, method="/".join(methods), tau=float(last.removeprefix("tau=")))
    return Label(task=task, method="/".join(parts), **{"tuned": True} if parts[0] == "tuned" else {})


def made_up(curves: Mapping[str, Sequence[float]], seeds: int = 5, steps: int = 500_000, pixels: bool = True) -> Table:
    """Evaluations as given, evenly over so many steps of the environment; seeds differ by half a point of return."""
    records = []
    for label, curve in curves.items():
        at = np.linspace(0, steps // 2, len(curve) + 1)[1:].astype(int)
        task = {"task": {"repeat": 2, "pixels": pixels}, "episodes": 10, "bonus_coef": {"value": 0.1}}
        for seed in range(seeds):
            returns = np.array(curve, float) + 0.5 * seed
            records.append(
                Record(label_of(label), seed, {"step": at, "eval_return": returns}, run={"description": task})
            )
    return Table(records)


def seed_by_seed(curves: Mapping[str, Sequence[Sequence[float]]]) -> Table:
    """The same with a curve of its own for each seed."""
    tables = [made_up({label: each[seed]}) for label, each in curves.items() for seed in range(len(each))]
    seeds = [seed for each in curves.values() for seed in range(len(each))]
    return Table(table._records(table.labels()[0])[0]._replace(seed=i) for table, i in zip(tables, seeds, strict=True))


def rise(at: int, height: float = 1000.0) -> list[float]:
    """Nothing up to a step, in tens of thousands, then a height: of fifty evaluations."""
    return [0.0] * (at - 1) + [height] * (51 - at)


def on_all(**rises: int) -> dict[str, list[float]]:
    """Each method's rise on all six tasks."""
    return {f"{task}/{m.replace('_', '-')}": rise(at) for task in TASKS for m, at in rises.items()}


ALL = {"made": 10, "icm": 30, "re3": 30, "rnd": 40, "none": 40}


def test_claim_23_is_the_mean_over_tasks_of_ratios_of_steps():
    verdict = control_verdicts.faster(made_up(on_all(**ALL)))
    assert verdict.holds is True and "re3 (printed 2.6) on 6 tasks 3 [3, 3]" in verdict.observed
    slow = control_verdicts.faster(made_up(on_all(**{**ALL, "re3": 20})))
    assert slow.holds is False and "re3 (printed 2.6) on 6 tasks 2 [" in slow.observed
    uneven = {**on_all(**{**ALL, "re3": 20}), "hopper_hop/re3": rise(50), "hopper_hop/made": rise(5)}
    assert "re3 (printed 2.6) on 6 tasks 3.333 [" in control_verdicts.faster(made_up(uneven)).observed, (
        "(5 x 2 + 10) / 6"
    )
    never = {**on_all(**{**ALL, "re3": 20}), **{f"{task}/re3": [0.0] * 50 for task in TASKS}}
    bound = control_verdicts.faster(made_up(never))
    assert bound.holds is True and "at least 5 [" in bound.observed
    late = {label: rise(25) if label.endswith("/made") else [0.0] * 50 for label in on_all(**ALL)}
    assert control_verdicts.faster(made_up(late)).holds is None, "at least 2 may be 2.6"
    part = {label: curve for label, curve in on_all(**ALL).items() if not label.startswith("quadruped")}
    missing = control_verdicts.faster(made_up(part))
    assert missing.holds is None and "not run: quadruped_run" in missing.observed and "CURL and DrQ" in missing.observed
    made = {label: [curve] * 5 for label, curve in on_all(**ALL).items()}
    made |= {f"{task}/made": [rise(10)] * 4 + [[0.0] * 50] for task in TASKS}
    upper = control_verdicts.faster(seed_by_seed(made))
    assert upper.holds is False and "re3 (printed 2.6) on 6 tasks, at most 1.667" in upper.observed, (
        "30 over (4 x 10 + 50) / 5"
    )
    far = {**made, **{f"{task}/{m}": [rise(49)] * 5 for task in TASKS for m in ("re3", "rnd", "none")}}
    far |= {f"{task}/made": [rise(2)] * 4 + [[0.0] * 50] for task in TASKS}
    assert control_verdicts.faster(seed_by_seed(far)).holds is None, "at most 4.2 may be less than 2.6"
    both = {**made, **{f"{task}/re3": [rise(30)] * 4 + [[0.0] * 50] for task in TASKS}}
    assert "with failures of both 1.889" in control_verdicts.faster(seed_by_seed(both)).observed
    tuned = {**on_all(**ALL), **{f"hopper_hop/tuned/{m}": rise(at) for m, at in (("made", 10), ("re3", 12))}}
    assert "own tuned bonus coefficient: re3 on 1 task 1.2" in control_verdicts.faster(made_up(tuned)).observed


@pytest.mark.parametrize("check", [claim.check for claim in control_returns.EXPERIMENT.claims])
def test_states_few_seeds_and_short_runs_cannot_tell_and_say_so(check):
    curves = {**on_all(**{**ALL, "rnd-at-made": 20, "made-released": 10}), "pendulum_swingup/re3/printed": rise(40)}
    states, few = check(made_up(curves, pixels=False)), check(made_up(curves, seeds=2))
    assert states.holds is None and "from states" in states.observed
    assert few.holds is None and f"2 of {3 if check is control_verdicts.pendulum else 5} seeds" in few.observed
    assert check(made_up({"walker_run_sparse/none": [1.0]})).holds is None


def test_claim_24_takes_both_temperatures_of_re3_and_the_paper_s_judges():
    task = "pendulum_swingup"
    curves = {f"{task}/made": rise(3), f"{task}/re3": rise(6), f"{task}/re3/printed": rise(30)}
    assert control_verdicts.pendulum(made_up(curves)).holds is True
    assert control_verdicts.pendulum(made_up({**curves, f"{task}/re3/printed": rise(8)})).holds is False
    assert control_verdicts.pendulum(made_up({**curves, f"{task}/made": rise(4)})).holds is False, "not yet at 30K"
    never = {**curves, f"{task}/re3/printed": [0.0] * 50}
    assert control_verdicts.pendulum(made_up(never)).holds is True
    short = control_verdicts.pendulum(made_up({label: curve[:10] for label, curve in never.items()}, steps=100_000))
    assert short.holds is None and "(reached by 0 of 5 seeds) not reached" in short.observed, "300K were not tried"
    assert short.missing == ("RE3 was tried for 100,000 of 300,000 steps",)


def test_claim_24_is_told_by_three_seeds_if_all_agree():
    task = "pendulum_swingup"
    late = {f"{task}/made": rise(3), f"{task}/re3": rise(6), f"{task}/re3/printed": rise(30)}
    soon = {**late, f"{task}/re3/printed": rise(8)}
    assert control_verdicts.pendulum(made_up(late, seeds=3)).holds is True
    assert control_verdicts.pendulum(made_up(soon, seeds=3)).holds is False
    tables = [made_up(curves, seeds=3) for curves in (late, soon)]
    for two, one in (tables, tables[::-1]):
        mixed = [x for label in two.labels() for x in (*two._records(label)[:2], one._records(label)[2])]
        assert control_verdicts.pendulum(Table(mixed)).holds is None


def test_claim_25_wants_a_gap_that_grows():
    def gap(early: float, late: float) -> Table:
        return made_up(
            {
                "quadruped_run/made": [400.0] * 35 + [400 + early] * 10 + [400 + late] * 5,
                "quadruped_run/re3": [400.0] * 50,
            }
        )

    assert control_verdicts.quadruped(gap(100, 160)).holds is True
    assert control_verdicts.quadruped(gap(160, 160)).holds is None
    assert control_verdicts.quadruped(gap(100, 140)).holds is False
    assert control_verdicts.quadruped(gap(200, 160)).holds is False, "it shrinks"


def test_claim_25_sees_the_gap_grow_seed_by_seed():
    def gaps(early: Sequence[float], late: Sequence[float]) -> Table:
        of_made = [[400.0] * 35 + [400 + a] * 10 + [400 + b] * 5 for a, b in zip(early, late, strict=True)]
        return seed_by_seed({"quadruped_run/made": of_made, "quadruped_run/re3": [[400.0] * 50] * 5})

    uneven = np.array([300.0, 310, 305, 295, 150])
    assert control_verdicts.quadruped(gaps(uneven, uneven)).holds is None, "one low seed is no growth"
    one_high = np.array([180.0, 180, 180, 180, 1800])
    assert control_verdicts.quadruped(gaps(one_high, one_high * 10 / 9)).holds is True


def test_claim_26_has_two_tasks_above_and_two_alike():
    fine = {"hopper_hop": 90.0, "walker_run_sparse": 90.0, "cartpole_swingup_sparse": 5.0, "cheetah_run_sparse": -5.0}

    def ends(**changed: float) -> Table:
        gaps = {**fine, **changed}
        curves = {f"{task}/made": [300 + x] * 50 for task, x in gaps.items()}
        return made_up(curves | {f"{task}/re3": [300.0] * 50 for task in gaps})

    assert control_verdicts.clearly_above(ends()).holds is True
    assert control_verdicts.clearly_above(ends(hopper_hop=-9.0)).holds is False
    assert control_verdicts.clearly_above(ends(cheetah_run_sparse=99.0)).holds is False, "not comparable"
    one = {label: [300.0 - 50 * label.endswith("made")] * 50 for label in ("hopper_hop/made", "hopper_hop/re3")}
    assert control_verdicts.clearly_above(made_up(one)).holds is False, "one task is enough to contradict"
    assert control_verdicts.clearly_above(made_up(one, steps=200_000)).holds is None


def test_claim_27_needs_that_somebody_learns():
    task = "cartpole_swingup_sparse"
    curves = {f"{task}/{m}": [0.0] * 10 for m in ("rnd", "icm", "rnd-at-made")}
    learnt = {**curves, f"{task}/made": rise(41)[-10:]}
    assert control_verdicts.curiosity_fails(made_up(learnt, steps=100_000)).holds is True
    assert (
        control_verdicts.curiosity_fails(made_up({**learnt, f"{task}/icm": [200.0] * 10}, steps=100_000)).holds is False
    )
    assert (
        control_verdicts.curiosity_fails(made_up({**curves, f"{task}/made": [0.0] * 10}, steps=100_000)).holds is None
    )


def test_claim_31_and_32_are_against_the_strongest_baseline():
    base = on_all(icm=30, re3=30, rnd=40) | {f"{task}/none": rise(40, 500) for task in TASKS}  # a weaker one beside
    worse = base | {f"{task}/made": rise(30, 1100) for task in TASKS}
    assert (
        control_verdicts.largest_gain(made_up(worse)).holds is False
        and control_verdicts.consistent(made_up(worse)).holds is True
    )
    once = worse | {"hopper_hop/made": rise(30, 1200)}
    assert control_verdicts.largest_gain(made_up(once)).holds is True
    late = worse | {"hopper_hop/made": rise(35, 1100)}
    assert control_verdicts.consistent(made_up(late)).holds is False
    alone = {label: curve for label, curve in late.items() if label.startswith("hopper")}
    assert control_verdicts.consistent(made_up(alone)).holds is False, "one task is enough to contradict"
    assert control_verdicts.largest_gain(made_up(alone)).holds is None
    assert (
        control_verdicts.consistent(made_up({label: x for label, x in worse.items() if "hopper" in label})).holds
        is None
    )


def test_claim_36_holds_the_released_bonus_against_rnd_at_its_scale():
    assert control_verdicts.density_adds(made_up(on_all(made_released=10, rnd_at_made=20))).holds is True
    assert control_verdicts.density_adds(made_up(on_all(made_released=20, rnd_at_made=10))).holds is False
    assert control_verdicts.density_adds(made_up(on_all(made_released=20, rnd_at_made=20))).holds is None
    both = control_verdicts.density_adds(made_up(on_all(made_released=10, rnd_at_made=20, made=20, cover_at_made=10)))
    assert both.holds is True and "made minus cover-at-made: pendulum_swingup -200" in both.observed, "told, not judged"


def test_claim_28_wants_ten_thousand_near_the_best_and_the_best_to_differ():
    def windows(names: Sequence[str] = ("1k", "10k", "100k", "all"), **of_task: tuple[float, float]) -> Table:
        """Returns with a window of 1k and with all longer ones."""
        each = {f"{task}/made/{w}": [x[w != "1k"]] * 10 for task, x in of_task.items() for w in names}
        return made_up(each)

    fine = windows(pendulum_swingup=(400.0, 500.0), hopper_hop=(220.0, 200.0))
    assert control_verdicts.ten_thousand_is_reasonable(fine).holds is True
    bad = windows(pendulum_swingup=(400.0, 500.0), hopper_hop=(300.0, 200.0))
    assert control_verdicts.ten_thousand_is_reasonable(bad).holds is False
    same = windows(pendulum_swingup=(400.0, 500.0), hopper_hop=(180.0, 200.0))
    assert control_verdicts.ten_thousand_is_reasonable(same).holds is None
    one = control_verdicts.ten_thousand_is_reasonable(windows(hopper_hop=(220.0, 200.0)))
    assert one.holds is None and "one task" in one.observed
    part = windows(("1k", "10k"), pendulum_swingup=(400.0, 500.0), hopper_hop=(220.0, 200.0))
    told = control_verdicts.ten_thousand_is_reasonable(part)
    assert told.holds is None and "hopper_hop/made lacks 100k, all" in told.observed
    nothing = windows(pendulum_swingup=(400.0, 500.0), hopper_hop=(-9.0, -9.0))
    assert control_verdicts.ten_thousand_is_reasonable(nothing).holds is None, "where nobody learns nothing is refuted"


def test_steps_are_of_the_environment_and_the_figures_have_a_panel_a_task():
    table = made_up({**on_all(**ALL), "pendulum_swingup/re3/printed": rise(30), "hopper_hop/tuned/made": rise(5)})
    assert control_setup.evaluations(table, "hopper_hop/made")[0][-1] == 500_000
    drawing, tuned = control_returns.draw(table)
    shown = [ax for ax in drawing.figure.axes if ax.get_visible()]
    assert [ax.get_title() for ax in shown] == list(TASKS) and "environment steps" in shown[0].get_xlabel()
    labels = {line.get_label() for ax in shown for line in ax.lines}
    assert {"RAD", "MADE", "RE3, printed"} <= labels and "10 episodes" in drawing.caption
    (ax,) = [ax for ax in tuned.figure.axes if ax.get_title() == "hopper_hop"]
    assert [line.get_label() for line in ax.lines if not str(line.get_label()).startswith("_")] == ["RAD", "MADE"]
    assert len(control_returns.draw(made_up(on_all(**ALL)))) == 1, "without a search there is no figure of it"
    (alone,) = control_returns.draw(made_up({"hopper_hop/tuned/made": rise(5)}))
    assert alone.name == "dmc_tuned"
