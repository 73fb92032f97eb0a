"""`made evidence`: what undecided claims still need, estimated from recorded runs."""

import math

import numpy as np

from made.cli import main
from made.core.config import config_id, to_dict
from made.experiments import experiment, runner
from made.experiments.store import Job, Scale, Store
from made.experiments.store.table import Label
from made.experiments.types import Claim, Experiment, Verdict

TRIALS = [*experiment("lock").trials(Scale.SMOKE).values()][:3]
LABELS = [Label(task="a", method="x"), Label(task="a", method="y"), Label(task="b", method="x")]


def study(name, verdict, **options) -> Experiment:
    """Three configurations on two tasks, two seeds, and one claim with that verdict."""
    return Experiment(
        name,
        "fig:1",
        "title",
        "about",
        lambda scale: dict(zip(LABELS, TRIALS, strict=True)),
        lambda scale: range(2),
        (Claim(len(name), f"claim-{name}", "A claim", "Sec. 1", lambda table: verdict),),
        lambda table: [],
        lambda table: [],
        in_pieces=True,
        **options,
    )


def record(store, name, label, seed, minutes, lanes=1):
    """One run that took so many minutes, with others in its program."""
    trial = dict(zip(LABELS, TRIALS, strict=True))[label]
    job, rows = Job(name, label, seed, Scale.GPU), {"step": np.arange(2), "return": np.zeros(2)}
    made_by = {"wall_s": 60.0 * minutes, "lanes": lanes}
    store.write(job, config_id(trial), to_dict(trial), rows, None, made_by)


def test_missing_runs_and_minutes_by_the_speed_of_the_same_task(tmp_path):
    store, open_claim = Store(tmp_path), Verdict(None, missing=("task b",))
    per_run = [trial.iterations for trial in TRIALS]
    record(store, "one", LABELS[0], 0, minutes=8.0, lanes=2)  # 4 minutes a run
    record(store, "one", LABELS[0], 1, minutes=8.0, lanes=2)
    (found,) = runner.missing_evidence([study("one", open_claim), study("decided", Verdict(True))], [store])
    assert found.missing == {LABELS[1]: 2, LABELS[2]: 2} and found.study.scale == Scale.GPU
    assert math.isclose(found.minutes, 2 * 4.0 * (per_run[1] + per_run[2]) / per_run[0])
    assert [row.missing for row in found.claims] == [["task b"]]
    record(store, "one", LABELS[2], 0, minutes=40.0)  # task b is slower; task a keeps its own speed
    (found,) = runner.missing_evidence([study("one", open_claim)], [store])
    assert found.missing == {LABELS[1]: 2, LABELS[2]: 1}
    assert math.isclose(found.minutes, 8.0 * per_run[1] / per_run[0] + 40.0)


def test_most_claims_per_minute_first_and_shared_runs_once(tmp_path):
    store, open_claim = Store(tmp_path), Verdict(None)
    record(store, "slow", LABELS[0], 0, minutes=100.0)
    record(store, "fast", LABELS[0], 0, minutes=1.0)
    for label in LABELS:
        for seed in range(2):
            record(store, "whole", label, seed, minutes=1.0)
    ones = [study("slow", open_claim), study("fast", open_claim), study("shared", open_claim, shares="fast")]
    found = runner.missing_evidence([*ones, study("whole", open_claim)], [store])
    assert [one.study.experiment.name for one in found] == ["fast", "slow", "whole"]
    assert [len(one.claims) for one in found] == [2, 1, 1] and not found[2].missing


def test_without_a_complete_run_the_time_is_unknown(tmp_path, monkeypatch, capsys):
    store, one = Store(tmp_path / "runs"), study("lock", Verdict(None))
    store.mark()
    monkeypatch.setattr(runner, "scales", lambda experiment, store: [Scale.GPU])  # a partial run alone
    (found,) = runner.missing_evidence([one], [store])
    assert math.isnan(found.minutes) and sum(found.missing.values()) == 6
    monkeypatch.setattr("made.cli.experiments.experiments", lambda: {"lock": one})
    assert main.main(["evidence", "--out", str(tmp_path / "runs")]) == 0
    assert "1 undecided, 6 runs missing." in capsys.readouterr().out


def test_the_command_names_claims_runs_and_how_to_make_them(tmp_path, monkeypatch, capsys):
    store = Store(tmp_path / "runs")
    record(store, "lock", LABELS[0], 0, minutes=1.0)
    one = study("lock", Verdict(None, missing=("task b",)))
    monkeypatch.setattr("made.cli.experiments.experiments", lambda: {"lock": one})
    assert main.main(["evidence", "--out", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "lock at scale gpu: 1 undecided, 5 runs missing, about " in said and "claim 4 claim-lock: task b" in said
    assert f"made run lock --scale gpu --out {store.root}" in said and "a/x (1), a/y (2), b/x (2)" in said
    assert main.main(["evidence", "--out", str(tmp_path / "none")]) == 2
