"""Job locks: one process has a job, a dead one loses it, and nothing is left behind."""

import os
import subprocess
import sys
import threading

import pytest

from made.experiments.store import Job, Scale, Store, locking
from made.experiments.store.locking import locked, wait_for

JOB, ID = Job("lock", "vi/made", 3, Scale.SMOKE), "ab12"
OTHER = JOB._replace(seed=4)
HOLD = f"""import os, sys
from made.experiments.store import Job, Scale, Store
from made.experiments.store.locking import locked
with locked(Store(sys.argv[1]), [(Job(*{tuple(JOB[:3])!r}, Scale.SMOKE), {ID!r})]):
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs")


@pytest.fixture
def other(store):
    """Another process that holds the job."""
    words = [sys.executable, "-c", HOLD, str(store.root)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield process
        process.kill()


def left(store: Store) -> list[str]:
    return sorted(os.listdir(store.root))


def test_what_another_process_holds_is_left_out_and_named(store, other):
    with locked(store, [(JOB, ID), (OTHER, ID)]) as (mine, held):
        assert mine == [1] and list(held) == [0] and held[0].startswith(f"process {other.pid} on ")
    assert not wait_for(store, JOB, ID, 0.0)
    other.communicate()
    with locked(store, [(JOB, ID)]) as (mine, held):
        assert mine == [0] and not held
    assert left(store) == ["made-store.json"]


def test_the_lock_of_a_killed_process_is_free(store, other):
    other.kill()
    other.wait()
    with locked(store, [(JOB, ID)]) as (mine, _), locked(store, [(JOB, ID)]) as (_, held):
        assert mine == [0] and held[0].startswith(f"process {os.getpid()} on "), "the last line of the file counts"
    assert left(store) == ["made-store.json"], "what the kill left goes too"


def test_waiting_ends_when_the_other_process_ends(store, other, monkeypatch):
    monkeypatch.setattr(locking, "POLL_S", 0.05)
    threading.Timer(0.5, other.kill).start()
    assert wait_for(store, JOB, ID, 60.0) and left(store) == ["made-store.json"]


def test_locks_are_released_however_the_block_ends(store):
    with pytest.raises(KeyboardInterrupt), locked(store, [(JOB, ID)]):
        raise KeyboardInterrupt
    assert left(store) == ["made-store.json"]


def test_of_many_threads_one_has_a_job(store):
    winners, start, over = [], threading.Barrier(16), threading.Barrier(16)

    def go():
        start.wait()
        with locked(store, [(JOB, ID)]) as (mine, _):
            winners.extend(mine)
            over.wait()

    threads = [threading.Thread(target=go) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert winners == [0] and left(store) == ["made-store.json"]


def test_the_folder_of_the_locks_may_go_at_any_moment(store):
    problems, inside = [], threading.Lock()

    def go():
        try:
            for _ in range(150):
                with locked(store, [(JOB, ID)]) as (mine, _):
                    if mine and not inside.acquire(blocking=False):
                        problems.append("two hold it")
                    if mine:
                        inside.release()
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems and left(store) == ["made-store.json"]


def test_a_link_in_the_place_of_a_lock_is_not_followed(store, tmp_path):
    path = locking._lock_file(store, JOB, ID)
    path.parent.mkdir(parents=True)
    (victim := tmp_path / "victim").write_text("years of work")
    path.symlink_to(victim)
    with pytest.raises(OSError), locked(store, [(JOB, ID)]):
        pass
    assert victim.read_text() == "years of work"
