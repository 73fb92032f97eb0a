"""What is sent, what comes back, what is sent again: with back ends made for the purpose."""

import contextlib
import re
from collections import Counter

import pytest
from experiments.executors import quick

from made.cli.sweep import Sweep
from made.experiments.executors import sweep_progress, worker
from made.experiments.executors.job_format import (
    JobDone,
    JobResult,
    SweepJob,
    WorkerLost,
    answer_of,
    group_of,
    task_of,
    tasks,
    to_text,
)
from made.experiments.executors.retries import schedule
from made.experiments.executors.run_transfer import TransferredRuns, received
from made.experiments.store.job_lock import locked
from made.experiments.store.store import Scale, Store

SET = ("iterations=20", "every=10")


class Losing:
    """Loses every task so many times; then answers that all was made."""

    def __init__(self, times: int):
        self.times, self.sent, self._waiting = times, Counter(), []

    def submit(self, task):
        self.sent[task] += 1
        self._waiting.append(task)

    def take(self, seconds):
        task = self._waiting.pop(0)
        if self.sent[task] <= self.times:
            return task, WorkerLost("struck by lightning")
        return task, JobResult(tuple(JobDone(*job, "made") for job in task.jobs))


@pytest.fixture
def few(tmp_path):
    """Three tasks of one job, by name."""
    return [SweepJob("chain", "smoke", SET, ((label, 0),), str(tmp_path / "runs"), "s1") for label in "abc"]


def test_what_is_lost_is_sent_again_and_counted(few, tmp_path):
    back_end, heard = Losing(2), []
    got = dict(filter(None, schedule(few, back_end, Store(tmp_path), 2, lambda *words: heard.append(words))))
    assert set(back_end.sent.values()) == {3} and len(heard) == 6
    assert [one.state for task in few for one in got[task].done] == ["made"] * 3


def test_what_is_lost_too_often_has_failed_with_the_last_reason(few, tmp_path):
    back_end = Losing(99)
    got = dict(filter(None, schedule(few, back_end, Store(tmp_path), 2)))
    assert set(back_end.sent.values()) == {3}, "bounded"
    assert [one.why for one in got[few[0]].done] == ["lost 3 times, the last time: struck by lightning"]
    assert got[few[0]].done[0].state == "failed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on": "cloud"}, "--on takes here, pool, ray or slurm, not 'cloud'."),
        ({"on": "rey"}, "--on takes here, pool, ray or slurm, not 'rey'. Did you mean 'ray'?"),
        ({"address": "auto"}, "--address is for --on ray, and this is --on here."),
        ({"address": "auto", "on": "slurm"}, "--address is for --on ray, and this is --on slurm."),
        ({"partition": "gpu", "on": "ray"}, "--partition is for --on slurm, and this is --on ray."),
        ({"cluster": "local"}, "--cluster is for --on slurm, and this is --on here."),
        ({"minutes": 10, "on": "pool"}, "--minutes is for --on slurm, and this is --on pool."),
        ({"cpus": 2.0}, "--cpus is for --on ray or slurm, and this is --on here."),
        ({"gpus": 1.0, "on": "pool"}, "--gpus is for --on ray or slurm, and this is --on pool."),
    ],
)
def test_options_of_another_place_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Sweep("chain", **options).demand()


def test_options_of_the_place_that_is_asked_for_are_taken():
    asked = [Sweep("chain", on=on) for on in ("here", "pool", "ray", "slurm")]
    asked.append(Sweep("chain", on="ray", address="auto", cpus=2.0, gpus=1.0))
    asked.append(Sweep("chain", on="slurm", partition="gpu", cluster="local", minutes=10, cpus=2.0, gpus=1.0))
    assert [one.demand() for one in asked] == [None] * 6, "nothing is refused"


def test_tasks_and_answers_travel_as_text(few):
    assert task_of(to_text(few[0])) == few[0]
    answer = JobResult((JobDone("a", 1, "failed", "why"),), 1.5, 12)
    assert answer_of(to_text(answer)) == answer
    for odd in ("[]", '{"done": 3}', '{"done": [["a", 0, "eaten", ""]], "seconds": 0, "pid": 1}', "nonsense"):
        with pytest.raises(ValueError):
            answer_of(odd)


def test_a_worker_of_another_version_says_so(few):
    done = worker.work(few[0]).done
    assert done[0].state == "failed" and "is it another version of made than the driver's?" in done[0].why


def test_the_tally_says_how_it_stands_and_how_long_it_will_take(few, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(sweep_progress.time, "monotonic", lambda: now[0])
    tally = sweep_progress.SweepProgress(few, [10, 20, 30], had=4)
    now[0] = 100.0
    tally.add(few[0], JobResult((JobDone("a", 0, "made"),)))
    assert tally.line() == "1 made, 4 stored already, of 7 jobs, about 8 min left"
    tally.add(few[1], JobResult((JobDone("b", 0, "failed", "out of luck"),)))
    assert "failed: b seed 0: out of luck" in capsys.readouterr().err
    tally.add(few[2], JobResult((JobDone("c", 0, "elsewhere", "process 3 on moon"),)))
    assert tally.table().splitlines() == [
        "label  made  stored already  in another sweep  failed  why",
        "a      1",
        "b                                              1       out of luck",
        "c                            1                         process 3 on moon",
        "all    1     4               1                 1",
        "7 jobs in 100.0 s.",
    ]


class Far:
    """A cluster whose workers do not see the store: it has room for one task."""

    def __init__(self):
        self.asked, self._waiting = [], []

    def slots(self):
        return 1

    def submit(self, task):
        self.asked.append(task)
        self._waiting.append(task)

    def take(self, seconds):
        task = self._waiting.pop(0)
        text, parcels = worker.answer(to_text(task))
        return task, answer_of(text, parcels)


@pytest.fixture
def chain(tmp_path, monkeypatch):
    """Two tasks of two jobs and a store that has them, to compare with."""
    monkeypatch.setattr("made.experiments.scheduler.run_batch", quick.execute)
    store = Store(tmp_path / "near")
    asked, _, _ = tasks("chain", Scale.SMOKE, store, "s1", settings=SET, lanes=2)
    assert {one.state for task in asked[:2] for one in worker.work(task).done} == {"made"}
    return asked[:2], store


def metrics(store: Store, task: SweepJob) -> list[bytes]:
    return [(store.folder(p.job, p.id) / "metrics.csv").read_bytes() for p in group_of(task).jobs]


def test_where_the_store_is_not_seen_runs_come_home_as_bytes_under_claims_of_the_driver(chain, tmp_path):
    (one, two), near = chain
    one, two = (task._replace(store=str(tmp_path / "not there"), token="sealed") for task in (one, two))
    store = Store(tmp_path / "runs")
    about = [[(planned.job, planned.id) for planned in group_of(task).jobs] for task in (one, two)]
    with locked(store, about[1][:1]), contextlib.ExitStack() as stack:
        far = Far()
        back_end = stack.enter_context(TransferredRuns(far, store))  # type: ignore[arg-type]
        got = dict(filter(None, schedule([one, two], back_end, store)))
    assert [done.state for done in got[one].done] == ["made", "made"]
    assert sorted(done.state for done in got[two].done) == ["elsewhere", "made"]
    assert far.asked[1].jobs == two.jobs[1:], "what another sweep has is not sent"
    assert metrics(store, one) == metrics(near, one)
    assert not (tmp_path / "not there").exists()
    assert [path.name for path in store.root.rglob(".*")] == [], "claims are given back"


def test_a_run_that_arrives_damaged_has_failed_and_the_others_are_stored(chain, tmp_path):
    one = chain[0][0]
    store = Store(tmp_path / "runs")
    text, parcels = worker.answer(to_text(one._replace(token="sealed")))
    parcels[0]["metrics.csv"] += b"1"
    done = received(one, answer_of(text, parcels), store).done
    assert [x.state for x in done] == ["failed", "made"] and "arrived damaged" in done[0].why
    assert len(list(store.root.glob("*/*/*/*/run.json"))) == 1
