"""Claims: one process has a job, a dead one loses it, a live one keeps it, and nothing is left behind."""

import errno
import json
import os
import subprocess
import sys
import threading
import time

import pytest

from made.experiments.store import job_lock
from made.experiments.store.job_lock import JobLock, LockOwner, acquire, holder, locked, release_lock
from made.experiments.store.store import Job, Scale, Store

JOB, ID = Job("lock", "vi/made", 3, Scale.SMOKE), "ab12"


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


def dead_pid() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def rewrite(held: JobLock, age_s: float = 0.0, **told) -> None:
    """The claim as another process would have made it, so long ago."""
    held.file.write_text(json.dumps({**json.loads(held.file.read_text()), **told}))
    os.utime(held.file, (time.time() - age_s,) * 2)


def race(store: Store, monkeypatch, n: int = 16) -> list[JobLock | LockOwner]:
    """As many threads as that claim one job; each has looked before any of them claims."""
    got, start, looked, look = [], threading.Barrier(n), set(), job_lock._newest

    def look_together(path):
        found = look(path)
        if threading.get_ident() not in looked:
            looked.add(threading.get_ident())
            start.wait()
        return found

    monkeypatch.setattr(job_lock, "_newest", look_together)
    threads = [threading.Thread(target=lambda: got.append(acquire(store, JOB, ID))) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    return got


def winners(got) -> list[JobLock]:
    return [one for one in got if isinstance(one, JobLock)]


def test_of_many_one_gets_a_job_and_the_others_are_told_who(store, monkeypatch):
    got = race(store, monkeypatch)
    assert len(winners(got)) == 1
    assert {one.pid for one in got if isinstance(one, LockOwner)} == {os.getpid()}
    release_lock(winners(got)[0])
    assert holder(store, JOB, ID) is None and sorted(os.listdir(store.root)) == ["made-store.json"]


def test_the_claim_of_a_dead_process_is_taken_over_by_one(store, monkeypatch):
    held = acquire(store, JOB, ID)
    rewrite(held, pid=dead_pid())
    assert holder(store, JOB, ID) is None
    got = race(store, monkeypatch)
    assert [one.number for one in winners(got)] == [1]
    release_lock(winners(got)[0])
    assert not (store.root / ".unfinished").exists(), "what it was taken over from goes too"


@pytest.mark.parametrize(("age_s", "lives"), [(0.0, True), (job_lock.DEAD_S + 1, False)])
def test_elsewhere_the_last_touch_decides(store, age_s, lives):
    held = acquire(store, JOB, ID)
    rewrite(held, age_s, machine="elsewhere", pid=dead_pid(), host="moon")
    got = acquire(store, JOB, ID)
    assert isinstance(got, LockOwner) == lives
    assert not lives or "moon" in str(got)


def test_a_claim_cut_short_by_a_kill_counts_by_its_age(store):
    held = acquire(store, JOB, ID)
    held.file.write_text('{"host": "mo')
    assert isinstance(acquire(store, JOB, ID), LockOwner)
    os.utime(held.file, (time.time() - job_lock.DEAD_S - 1,) * 2)
    assert isinstance(acquire(store, JOB, ID), JobLock)


def test_an_earlier_attempt_of_the_same_sweep_gives_way(store):
    assert isinstance(acquire(store, JOB, ID, "mine"), JobLock)
    assert isinstance(acquire(store, JOB, ID, "another"), LockOwner)
    assert isinstance(acquire(store, JOB, ID, "mine"), JobLock)
    assert isinstance(acquire(store, JOB, ID, ""), LockOwner)


def test_who_wakes_up_late_gives_back_only_its_own(store):
    sleeper = acquire(store, JOB, ID)
    rewrite(sleeper, job_lock.DEAD_S + 1)
    mine = acquire(store, JOB, ID)
    release_lock(sleeper)
    assert holder(store, JOB, ID) is not None and mine.file.exists()


def test_a_job_claimed_afresh_between_look_and_claim_is_left_alone(store, monkeypatch):
    """The first look sees a dead owner; by the time the next number is made, a living one stands below it."""
    held = acquire(store, JOB, ID)
    looks = iter([True, False])
    monkeypatch.setattr(job_lock, "_gives_way", lambda file, owner, sweep: next(looks))
    assert isinstance(acquire(store, JOB, ID), LockOwner)
    assert sorted(os.listdir(held.file.parent)) == [held.file.name]


def test_claims_are_touched_while_they_are_held_and_given_back_however_it_ends(store, monkeypatch):
    monkeypatch.setattr(job_lock, "BEAT_S", 0.01)
    other = JOB._replace(seed=4)
    acquire(store, other, ID)
    with pytest.raises(KeyboardInterrupt), locked(store, [(JOB, ID), (other, ID)]) as (mine, others):
        assert mine == [0] and set(others) == {1}
        file = job_lock._newest(job_lock._path(store, JOB, ID)).file
        os.utime(file, (0, 0))
        while file.stat().st_mtime == 0:
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert holder(store, JOB, ID) is None and holder(store, other, ID) is not None


def test_jobs_come_and_go_beside_each_other(store):
    """The folder of the claims goes with the last of them, at any moment of somebody else's claim."""
    problems = []

    def go(seed: int):
        try:
            for _ in range(150):
                release_lock(acquire(store, JOB._replace(seed=seed), ID))
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=go, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems and not (store.root / ".unfinished").exists()


def test_a_claim_says_whose_it_is_from_its_first_moment(store, monkeypatch):
    """A kill while it is written leaves no claim at all, which would keep others from the job for a while."""
    seen, link = [], os.link

    def looked(draft, file):
        seen.append((json.loads(draft.read_text())["pid"], file.exists()))
        link(draft, file)

    monkeypatch.setattr(os, "link", looked)
    held = acquire(store, JOB, ID)
    assert isinstance(held, JobLock) and seen == [(os.getpid(), False)]
    assert [one.name for one in held.file.parent.iterdir()] == [held.file.name], "and nothing else is left"


def test_a_process_that_is_killed_while_it_claims_keeps_nobody_from_the_job(store):
    """It is killed once the claim is written and before it has its name."""
    script = (
        "import os, sys; from made.experiments.store.job_lock import acquire\n"
        "from made.experiments.store.store import Job, Scale, Store\n"
        "os.link = lambda *_: os._exit(9)\n"
        f"acquire(Store(sys.argv[1]), Job(*{tuple(JOB[:3])!r}, Scale.SMOKE), {ID!r})"
    )
    assert subprocess.run([sys.executable, "-c", script, str(store.root)]).returncode == 9
    held = acquire(store, JOB, ID)
    assert isinstance(held, JobLock) and held.number == 0
    (left,) = held.file.parent.glob(".draft-*")
    os.utime(left, (time.time() - 2 * job_lock.DEAD_S,) * 2)
    release_lock(held)
    assert not (store.root / ".unfinished").exists(), "what the kill left goes with the last claim"


def test_a_file_system_without_links_has_claims_too(store, monkeypatch):
    def none(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", none)
    held = acquire(store, JOB, ID)
    assert isinstance(held, JobLock) and json.loads(held.file.read_text())["pid"] == os.getpid()
    assert isinstance(acquire(store, JOB, ID), LockOwner), "only one can"
    assert len(winners(race(store, monkeypatch))) == 0
