"""Beside a GPU processes compile one after the other; nobody waits for ever, and a CPU's do not wait at all."""

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from made.training import sharding
from made.training.backends import control_learner, control_tasks
from made.training.backends.control_learner import CompiledOnce, ControlLearner

HOLD = """import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def beside_a_gpu(monkeypatch, tmp_path):
    """As if there were one, with a folder of compiled programs."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture
def other(beside_a_gpu):
    """Another process that compiles."""
    words = [sys.executable, "-c", HOLD, str(beside_a_gpu / ".compiling")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield process
        process.kill()


def test_one_waits_until_the_other_is_done_or_dead(monkeypatch, other):
    turns = []

    def sleep(seconds: float) -> None:
        turns.append(seconds)
        if len(turns) == 3:
            other.kill()
            other.wait()

    monkeypatch.setattr(time, "sleep", sleep)
    with sharding.compile_lock():
        assert len(turns) == 3, "it has the lock once nobody else has"


def test_who_compiles_keeps_others_out_and_lets_them_in_again(beside_a_gpu):
    tried = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    ask = lambda: subprocess.run([sys.executable, "-c", tried, str(beside_a_gpu / ".compiling")], capture_output=True)  # noqa: E731
    with sharding.compile_lock():
        assert b"BlockingIOError" in ask().stderr
    assert ask().returncode == 0


def test_nobody_waits_for_ever(monkeypatch, other):
    monkeypatch.setattr(sharding, "LOCK_S", 0.0)
    with sharding.compile_lock():
        assert other.poll() is None


def test_an_interruption_ends_the_waiting(monkeypatch, other):
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt), sharding.compile_lock():
        pytest.fail("it has no lock")


def test_a_thread_gives_up_once_the_others_are_over(other):
    over, heard = threading.Event(), []

    def wait() -> None:
        sharding.cancel_on(over)
        try:
            with sharding.compile_lock():
                heard.append("compiled")
        except KeyboardInterrupt:
            heard.append("gave up")

    thread = threading.Thread(target=wait)
    thread.start()
    over.set()
    thread.join()
    assert heard == ["gave up"] and other.poll() is None


def test_threads_of_seeds_are_told_when_they_are_over(monkeypatch):
    told = []
    monkeypatch.setattr(sharding, "cancel_on", told.append)
    control_tasks.in_threads(lambda part, i: None, 3, 2, threads=True)
    assert len(told) == 3 and len(set(told)) == 1 and told[0].is_set()


def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(beside_a_gpu):
    lock = beside_a_gpu / ".compiling"
    with sharding.compile_lock():
        mine = [int(one.name) for one in Path("/proc/self/fd").iterdir() if os.path.realpath(one) == str(lock)]
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=mine)
    try:
        assert mine
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        child.kill()
        child.communicate()


def test_a_folder_that_cannot_be_written_to_stops_nobody(monkeypatch, beside_a_gpu):
    (beside_a_gpu / "file").write_text("")
    jax.config.update("jax_compilation_cache_dir", str(beside_a_gpu / "file" / "below"))
    with sharding.compile_lock():
        assert [one.name for one in beside_a_gpu.iterdir()] == ["file"]


def test_on_a_cpu_and_without_a_folder_nothing_is_locked(monkeypatch, other, beside_a_gpu):
    def never(seconds: float) -> None:
        pytest.fail("it waits")

    monkeypatch.setattr(time, "sleep", never)
    jax.config.update("jax_compilation_cache_dir", None)
    with sharding.compile_lock():
        assert other.poll() is None, "while another process holds the lock"
    jax.config.update("jax_compilation_cache_dir", str(beside_a_gpu))
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    with sharding.compile_lock():
        assert other.poll() is None


def called(program) -> CompiledOnce:
    """Something that is called as a compiled program is."""
    once = CompiledOnce(program)
    once.program = program
    return once


def test_programs_of_a_run_are_compiled_within_it_and_called_without(monkeypatch):
    begun, inside = [], []

    @contextlib.contextmanager
    def noted():
        begun.append(True)
        yield
        begun.pop()

    monkeypatch.setattr(control_learner, "compile_lock", noted)
    monkeypatch.setattr(sharding, "compiled", lambda lowered: [inside.append(bool(begun)) or one for one in lowered])
    learner = ControlLearner.__new__(ControlLearner)
    learner.run, learner._phases = SimpleNamespace(agent=SimpleNamespace(kinds=2)), []  # type: ignore[assignment]
    program = SimpleNamespace(lower=lambda *given: lambda *given: bool(begun))
    learner._updating = SimpleNamespace(program=program)  # type: ignore[assignment]
    assert [learner._phase(k, ())() for k in range(3)] == [False] * 3 and inside == [True] * 2
    act = called(lambda: bool(begun))
    assert (act(), act()) == (True, False)


def test_a_program_that_another_thread_has_compiled_meanwhile_is_not_waited_for(monkeypatch):
    begun, act = [], called(lambda: 7)
    monkeypatch.setattr(control_learner, "compile_lock", lambda: contextlib.nullcontext(begun.append(True)))

    class Lock(contextlib.nullcontext):
        """Another thread was first."""

        def __enter__(self):
            act._ready.add(())

    monkeypatch.setattr(control_learner, "_compiling", Lock())
    assert act() == 7 and not begun
