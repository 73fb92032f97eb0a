"""The same jobs by threads, processes, Ray and submitit: the same bytes, whatever dies, and nothing done twice."""

import fnmatch
import hashlib
import importlib.util
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import pytest
from experiments.executors import quick

from made.cli import main
from made.cli.sweep import Sweep
from made.experiments import experiment
from made.experiments.executors import process_pool, worker
from made.experiments.executors.job_format import WorkerLost, tasks, to_text
from made.experiments.scheduler import max_batch, plan, run_group
from made.experiments.store.job_lock import locked
from made.experiments.store.store import Scale, Store
from made.training import memory

pytestmark = pytest.mark.usefixtures("cache")  # shared by all processes
# Twenty deterministic jobs in two programs that compile in a second each.
SET = ("iterations=20", "every=10")
WORDS = ["sweep", "chain", "--scale", "smoke", "--set", SET[0], "--set", SET[1], "--workers", "2", "--lanes", "10"]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """A store made in this process by threads, undisturbed."""
    out = tmp_path_factory.mktemp("sweep") / "here"
    assert main.main([*WORDS, "--out", str(out)]) == 0
    return out


def numbers(out: Path) -> dict[str, str]:
    """A checksum of what each run measured."""
    files = [*out.glob("*/*/*/[!.]*/metrics.csv"), *out.glob("*/*/*/[!.]*/arrays.safetensors")]
    return {str(file.relative_to(out)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def asked(out: Path, on: str = "here", **more) -> Sweep:
    return Sweep("chain", "smoke", on, set=SET, out=out, workers=2, **{"lanes": 10, **more})


def left_behind(out: Path) -> list[str]:
    return [path.name for path in out.rglob(".*")]


def test_a_worker_that_is_killed_is_replaced_and_the_numbers_stay(quiet, tmp_path, monkeypatch):
    begun, start = [], process_pool.Pool._start

    def killed(self):  # the first worker, before it can answer
        begun.append(process := start(self))
        if process is begun[0]:
            process.kill()
        return process

    monkeypatch.setattr(process_pool.Pool, "_start", killed)
    tally = asked(tmp_path / "pool", "pool").once(Store(tmp_path / "pool"), Scale.SMOKE)
    assert tally.lost == 1 and tally.counts() == {"made": 20, "had": 0, "elsewhere": 0, "failed": 0}
    assert "1 tasks were sent again after their worker died" in tally.table()
    assert numbers(tmp_path / "pool") == numbers(quiet) and not left_behind(tmp_path / "pool")


def test_ray_and_submitit_give_the_same_bytes(quiet, tmp_path):
    missing = [name for name in ("ray", "submitit") if importlib.util.find_spec(name) is None]
    assert not missing, f"this test needs {', '.join(missing)}: pip install -e '.[test]'"
    ways = {"ray": ["--on", "ray"], "slurm": ["--on", "slurm", "--cluster", "local"]}
    running = {}
    for name, how in ways.items():
        words = [sys.executable, "-m", "made.cli.main", *WORDS, *how, "--out", str(tmp_path / name)]
        running[name] = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for name, process in running.items():
        out, err = process.communicate()
        assert process.returncode == 0, err[-2000:]
        assert "20 jobs in" in out and numbers(tmp_path / name) == numbers(quiet), name
        assert not left_behind(tmp_path / name), name


def test_what_is_stored_is_skipped_and_a_run_by_made_run_is_the_same(quiet, tmp_path, capsys):
    assert main.main([*WORDS, "--on", "pool", "--out", str(quiet)]) == 0
    assert "all" in (told := capsys.readouterr().out) and "20 jobs in 0.0 s" in told, "no worker was started"
    words = ["run", "chain", "--scale", "smoke", "--set", SET[0], "--set", SET[1], "--out", str(tmp_path)]
    assert main.main(words) == 0
    assert numbers(tmp_path) == numbers(quiet)


def test_two_sweeps_over_one_store_do_no_job_twice(tmp_path, monkeypatch):
    monkeypatch.setattr("made.experiments.scheduler.run_batch", quick.execute)
    tallies = []
    store = Store(tmp_path)
    store.unfinished("chain", "x")  # marks the store, so that both find it

    def go():
        tallies.append(asked(tmp_path, lanes=1).once(Store(tmp_path), Scale.SMOKE))

    threads = [threading.Thread(target=go) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [(one.label, one.seed) for tally in tallies for one in tally.done if one.state == "made"]
    assert len(made) == len(set(made)) == 20
    assert all(sum(tally.counts().values()) == 20 and not tally.counts()["failed"] for tally in tallies)
    assert not left_behind(tmp_path)


def test_a_job_that_another_sweep_has_is_reported_and_with_wait_done_when_it_is_given_up(quiet, tmp_path, capsys):
    groups, _ = plan(experiment("chain"), Scale.SMOKE, range(1), store := Store(tmp_path), SET, 10)
    begun, given_up = threading.Event(), threading.Event()

    def hold():
        with locked(store, [(planned.job, planned.id) for planned in groups[0].jobs]):
            begun.set()
            given_up.wait(60)

    holding = threading.Thread(target=hold)
    holding.start()
    begun.wait(60)
    assert main.main([*WORDS, "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert f"process {os.getpid()}" in told and told.splitlines()[-2].split() == ["all", "10", "0", "10", "0"]
    threading.Timer(1.0, given_up.set).start()
    assert main.main([*WORDS, "--wait", "--out", str(tmp_path)]) == 0
    holding.join()
    last = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("all ")]
    assert last == [["all", "0", "10", "10", "0"], ["all", "10", "10", "0", "0"]], (
        "it looked twice, not again and again"
    )
    assert numbers(tmp_path) == numbers(quiet)


def test_an_error_is_a_reason_not_a_retry_and_leaves_no_half_run(tmp_path, capsys, monkeypatch):
    calls, execute = [], sys.modules["made.experiments.scheduler"].run_batch

    def fails_first(*words):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("out of\nluck")
        return execute(*words)

    monkeypatch.setattr("made.experiments.scheduler.run_batch", fails_first)
    assert main.main([*WORDS, "--out", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert len(calls) == 2, "what fails is not tried again"
    assert "RuntimeError: out of luck" in out and "failed: " in err and "Traceback" not in err
    assert out.splitlines()[-2].split() == ["all", "10", "0", "0", "10"]
    assert len(numbers(tmp_path)) == 10 and not left_behind(tmp_path)


def test_lanes_stored_since_the_plan_do_not_change_the_numbers_of_the_others(quiet, tmp_path):
    """As after a worker that was killed while it stored its lanes: the next one has the same lanes, not fewer."""
    groups, _ = plan(experiment("chain"), Scale.SMOKE, range(1), store := Store(tmp_path), SET, 10)
    run_group(groups[0], store)
    lost = groups[0].jobs[3]
    folder = store.folder(lost.job, lost.id)
    folder.rename(tmp_path / ".lost")
    outcome = run_group(groups[0], store)
    assert outcome.made == (3,) and len(outcome.had) == 9
    assert (folder / "metrics.csv").read_bytes() == (tmp_path / ".lost" / "metrics.csv").read_bytes()


def test_as_many_lanes_as_fit_share_a_program(monkeypatch):
    trial = experiment("chain").trials(Scale.SMOKE)["simplex/uniform/eta=0.3/pg"]
    assert max_batch(trial, 300) == 300
    with jax.enable_x64(trial.float64):
        each = 3 * memory.size_of(jax.eval_shape(trial.start, jax.random.key(0)))
    monkeypatch.setattr(memory, "free", lambda: 7 * each)
    assert max_batch(trial, 7) == 7 and max_batch(trial, 300) == 4
    monkeypatch.setattr(memory, "free", lambda: 0)
    assert max_batch(trial, 300) == 1, "one is tried, and the device says what it lacks"


def test_some_configurations_alone_can_be_asked_for(quiet, tmp_path, capsys):
    chosen = "simplex/uniform/eta=0.3/*"
    assert Sweep("chain", "smoke", only=(chosen,), set=SET, out=tmp_path, workers=2).main() == 0
    stored = {run["label"] for run in Store(tmp_path).runs("chain", Scale.SMOKE)}
    labels = set(experiment("chain").trials(Scale.SMOKE))
    assert stored == {label for label in labels if fnmatch.fnmatch(label, chosen)} and 0 < len(stored) < len(labels)


def test_processes_share_the_memory_of_a_device_unless_told_otherwise(monkeypatch):
    part, grows = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"
    monkeypatch.delenv(part, raising=False)
    monkeypatch.delenv(grows, raising=False)
    assert part not in process_pool.shared(1) and grows not in process_pool.shared(1)
    assert process_pool.shared(3) == {**os.environ, part: "0.300", grows: "false"}
    monkeypatch.setenv(part, "0.5")
    assert process_pool.shared(3)[part] == "0.5"
    monkeypatch.delenv(part)
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.4")  # its newer name, which JAX refuses beside the other
    assert part not in process_pool.shared(3)


def test_half_an_answer_is_that_of_a_worker_that_died(tmp_path):
    (task, *_), _, _ = tasks("chain", Scale.SMOKE, Store(tmp_path), "", settings=SET)
    words = [sys.executable, "-c", "import os, sys; sys.stdin.readline(); os.write(1, b'{\"done\": ['); os.abort()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process_pool._ask(process, task) == WorkerLost("the worker was killed by signal 6")


def test_a_worker_whose_driver_is_gone_ends_in_the_middle_of_its_task(tmp_path):
    (task, *_), _, _ = tasks("chain", Scale.SMOKE, Store(tmp_path), "", settings=("iterations=100000000", "every=1000"))
    behind = (
        "trap '' INT; exec \"$0\" -m made.experiments.executors.worker"  # as a shell starts what is to run behind it
    )
    words = ["sh", "-c", behind, sys.executable]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(to_text(task) + "\n")
        process.stdin.flush()
        while not list(tmp_path.glob(".unfinished/*/claims-*/*")) and process.poll() is None:
            time.sleep(0.1)
        process.stdin.close()
        try:
            process.wait()
        finally:
            process.kill()
    assert not list(tmp_path.rglob("metrics.csv"))


@pytest.mark.parametrize(("heard", "ended"), [(1, False), (3, False), (4, True)])
def test_an_interrupt_that_is_lost_is_sent_again(heard, ended, monkeypatch):
    """Python drops what is raised within a callback of the garbage collector, and a worker would train on for ever."""
    waiting: queue.Queue[str] = queue.Queue()
    sent, exits = [], []

    def interrupt() -> None:
        sent.append(len(sent))
        if len(sent) == heard:
            waiting.get_nowait()
            waiting.task_done()

    monkeypatch.setattr("_thread.interrupt_main", interrupt)
    monkeypatch.setattr(os, "_exit", exits.append)
    monkeypatch.setattr(worker, "PATIENCE", 0.01)
    worker._listen(["a task\n"], waiting)
    assert len(sent) == min(heard, worker.INTERRUPTS), "until the task has ended"
    assert exits == ([130] if ended else []), "and what does not hear is ended"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "rey"], "Did you mean 'ray'"),
        (["--on", "ray"], 'pip install -e ".[ray]"'),
        (["--on", "slurm"], 'pip install -e ".[slurm]"'),
        (["--workers", "0"], "--workers must be at least 1, got 0"),
        (["--lanes", "0"], "--lanes must be at least 1"),
        (["--retries", "-1"], "--retries must be at least 0"),
        (["--cpus", "0"], "--cpus must be above 0"),
        (["--set", "etaa=1"], "etaa"),
        (["--only", "simplx/*"], "--only simplx/* fits no configuration"),
    ],
)
def test_a_mistake_is_one_clear_line(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main.main(["sweep", "chain", "--scale", "smoke", "--out", str(tmp_path / "runs"), *words]) == 2
    err = capsys.readouterr().err
    assert message in err and len(err.strip().splitlines()) == 1
