"""The same runs on threads, processes, Ray and submitit: the same bytes, whatever dies, and nothing done twice."""

import contextlib
import fnmatch
import hashlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import pytest
from experiments import quick

from made.cli import main
from made.core.trial import RunsFailed
from made.experiments import executors, experiment, runner, scheduler
from made.experiments.executors import Options, Workers
from made.experiments.scheduler import Result, Study, max_batch, plan, run_group
from made.experiments.store import Scale, Store
from made.experiments.store.locking import locked
from made.training import memory

pytestmark = pytest.mark.usefixtures("cache", "level_1")  # compiled programs and their bits are those of all processes
# Twenty deterministic runs in two programs that compile in a second each.
STUDY = Study(experiment("chain"), Scale.SMOKE, ("iterations=20", "every=10"))
WORDS = ["run", "chain", "--scale", "smoke", "--set", STUDY.settings[0], "--set", STUDY.settings[1]]
WORDS += ["--workers", "2", "--max-batch", "10"]


@pytest.fixture(scope="module")
def on_threads(tmp_path_factory):
    """A store made by threads of this process, undisturbed."""
    out = tmp_path_factory.mktemp("stores") / "threads"
    assert main.main([*WORDS, "--out", str(out)]) == 0
    return out


def digests(out: Path) -> dict[str, str]:
    """A checksum of what each run measured."""
    files = [*out.glob("*/*/*/[!.]*/metrics.csv"), *out.glob("*/*/*/[!.]*/arrays.safetensors")]
    return {str(file.relative_to(out)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def left_behind(out: Path) -> list[str]:
    return [path.name for path in out.rglob(".*")]


def test_processes_give_the_same_bytes_and_a_killed_one_is_replaced(on_threads, tmp_path, monkeypatch, capsys):
    submit, killed = executors.ProcessPoolExecutor.submit, []

    def submitted(self, function, *task):  # the first worker dies with its first task
        future = submit(self, function, *task)
        if not killed:
            killed.extend(self._processes)
            os.kill(killed[0], signal.SIGKILL)
        return future

    monkeypatch.setattr(executors.ProcessPoolExecutor, "submit", submitted)
    assert main.main([*WORDS, "--on", "processes", "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "20 runs made" in out and err.count("died (1 of 4): BrokenProcessPool") == 1
    assert digests(tmp_path) == digests(on_threads) and not left_behind(tmp_path)


def test_ray_and_submitit_give_the_same_bytes(on_threads, tmp_path):
    missing = [name for name in ("ray", "submitit") if importlib.util.find_spec(name) is None]
    assert not missing, f"this test needs {', '.join(missing)}: pip install -e '.[test]'"
    ways = {"ray": ["--on", "ray"], "slurm": ["--on", "slurm", "--cluster", "local"]}
    running = {}
    for name, how in ways.items():
        words = [sys.executable, "-m", "made.cli.main", *WORDS, *how, "--out", str(tmp_path / name)]
        running[name] = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for name, process in running.items():
        out, err = process.communicate()
        assert process.returncode == 0 and "20 runs made" in out, err[-2000:]
        assert digests(tmp_path / name) == digests(on_threads) and not left_behind(tmp_path / name), name


def test_stored_runs_start_no_worker(on_threads, capsys, monkeypatch):
    monkeypatch.setattr(executors, "start", None)
    assert main.main([*WORDS, "--on", "processes", "--out", str(on_threads)]) == 0
    assert "20 runs are stored already, 0 are to be made." in capsys.readouterr().out


class Dying:
    """Workers that die so many times; then they answer."""

    def __init__(self, monkeypatch, deaths: int):
        self.tasks: list[tuple] = []
        self.deaths = deaths
        started = contextlib.nullcontext(Workers(self.call, (executors.BrokenProcessPool,), 1))
        monkeypatch.setattr(executors, "_processes", lambda *_: started)
        monkeypatch.setattr(scheduler, "run_batch", quick.execute)

    def call(self, *task) -> Result:
        self.tasks.append(task)
        if self.tasks.count(task) <= self.deaths:
            raise executors.BrokenProcessPool("struck by lightning")
        return executors.work(*task)


def on_processes(store: Store, **options) -> int:
    return runner.run([STUDY], store, lanes=10, options=Options("processes", workers=1, **options))


def test_the_group_of_a_dead_worker_is_sent_again(tmp_path, monkeypatch, capsys):
    dying = Dying(monkeypatch, 2)
    assert on_processes(Store(tmp_path), retries=2) == 20 and len(dying.tasks) == 6
    assert "chain: simplex/uniform/eta=0.3/pg, simplex/uniform/eta=0.3/" in (told := capsys.readouterr().err)
    assert "died (2 of 3): BrokenProcessPool: struck by lightning" in told


def test_retries_are_bounded_and_the_last_reason_is_reported(tmp_path, monkeypatch, capsys):
    dying = Dying(monkeypatch, 99)
    with pytest.raises(RunsFailed, match=r"20 runs failed, .* its worker died 3 times, .*struck by lightning"):
        on_processes(Store(tmp_path), retries=2)
    assert len(dying.tasks) == 6 and not digests(tmp_path)


def test_a_worker_of_another_version_is_named():
    task = ("chain", "smoke", STUDY.settings, (("nothing", 0),), "", float("inf"))
    assert executors.work(*task).error.startswith("a worker has no configuration 'nothing': install the driver's")


def test_an_error_is_reported_with_its_label_and_not_tried_again(tmp_path, capsys, monkeypatch):
    calls, execute = [], scheduler.run_batch

    def fails_first(*words):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("out of\nluck")
        return execute(*words)

    monkeypatch.setattr(scheduler, "run_batch", fails_first)
    assert main.main([*WORDS, "--workers", "1", "--out", str(tmp_path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    failed = r"chain: \S+, \S+, \.\.\. \(10 runs\) failed: RuntimeError: out of luck \(executors_test.py:\d+\)"
    assert len(calls) == 2, "what fails is not tried again"
    assert any(re.fullmatch(f"made: {failed}", line) for line in lines)
    assert re.fullmatch(f"made: 10 runs failed, the others are stored. {failed}", lines[-1])
    assert len(digests(tmp_path)) == 10 and not left_behind(tmp_path)


def test_two_commands_on_one_store_do_no_job_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler, "run_batch", quick.execute)
    made, store = [], Store(tmp_path)
    store.mark()  # so that both find it
    threads = [threading.Thread(target=lambda: made.append(runner.run([STUDY], store, lanes=1))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(made) == len(digests(tmp_path)) == 20 and min(made) > 0 and not left_behind(tmp_path)


def test_a_job_that_another_process_holds_is_left_out_and_made_with_wait_when_it_is_free(on_threads, tmp_path, capsys):
    groups, _ = plan(STUDY, range(1), store := Store(tmp_path), 10)
    begun, given_up = threading.Event(), threading.Event()

    def hold():
        with locked(store, groups[0].stored_as):
            begun.set()
            given_up.wait(60)

    holding = threading.Thread(target=hold)
    holding.start()
    begun.wait(60)
    assert main.main([*WORDS, "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "10 runs made" in told and f"Left out: 10 runs that process {os.getpid()} on " in told
    threading.Timer(1.0, given_up.set).start()
    assert main.main([*WORDS, "--wait", "--out", str(tmp_path)]) == 0
    holding.join()
    assert "10 runs made" in capsys.readouterr().out and digests(tmp_path) == digests(on_threads)


def test_runs_stored_since_the_plan_do_not_change_the_numbers_of_the_others(on_threads, tmp_path):
    groups, _ = plan(STUDY, range(1), store := Store(tmp_path), 10)
    run_group(groups[0], store)
    folder = store.folder(*groups[0].stored_as[3])
    folder.rename(tmp_path / ".lost")
    outcome = run_group(groups[0], store)
    assert outcome.made == (3,) and len(outcome.had) == 9
    assert (folder / "metrics.csv").read_bytes() == (tmp_path / ".lost" / "metrics.csv").read_bytes()


def test_as_many_runs_as_fit_share_a_program(monkeypatch):
    trial = STUDY.trials["simplex/uniform/eta=0.3/pg"]
    assert max_batch(trial, 300) == 300
    with jax.enable_x64(trial.float64):
        each = 3 * memory.size_of(jax.eval_shape(trial.start, jax.random.key(0)))
    monkeypatch.setattr(memory, "free", lambda: 7 * each)
    assert max_batch(trial, 7) == 7 and max_batch(trial, 300) == 4
    monkeypatch.setattr(memory, "free", lambda: 0)
    assert max_batch(trial, 300) == 1, "one is tried, and the device says what it lacks"


def test_only_selects_configurations(tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler, "run_batch", quick.execute)
    chosen, store = "simplex/uniform/eta=0.3/*", Store(tmp_path)
    runner.run([STUDY], store, only=[chosen])
    stored = {run["label"] for run in store.runs("chain", Scale.SMOKE)}
    assert stored == set(fnmatch.filter(STUDY.trials, chosen)) and 0 < len(stored) < len(STUDY.trials)


def test_processes_share_the_memory_of_a_device_unless_the_user_sets_it(monkeypatch):
    part, grows = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"
    for name in (part, grows, "XLA_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    assert executors.device_part(1) == {} and executors.device_part(3) == {part: "0.300", grows: "false"}
    monkeypatch.setenv(part, "0.5")
    assert executors.device_part(3) == {grows: "false"}
    monkeypatch.delenv(part)
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.4")  # its newer name; JAX refuses both
    assert part not in executors.device_part(3)


def test_a_process_ends_with_its_driver():
    """The driver is killed in the middle of a task."""
    script = (
        "import multiprocessing, os, signal, time\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from made.experiments import executors\n"
        "if __name__ == '__main__':\n"
        "    spawn = multiprocessing.get_context('spawn')\n"
        "    pool = ProcessPoolExecutor(1, spawn, initializer=executors._start_worker, initargs=({},))\n"
        "    print(pool.submit(os.getpid).result(), flush=True)\n"
        "    pool.submit(time.sleep, 1000)\n"
        "    time.sleep(1)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    driver = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert driver.returncode == -signal.SIGKILL
    worker, until = Path("/proc") / driver.stdout.strip(), time.monotonic() + 60
    while worker.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not worker.exists()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_its_workers(how, tmp_path):
    # A shell starts background jobs with Ctrl-C ignored, so the command sets Python's handler itself.
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    words = [sys.executable, "-c", code + "from made.cli.main import main; sys.exit(main(sys.argv[1:]))", *WORDS]
    words += ["--set", "iterations=100000000", "--set", "every=1000", "--on", "processes"]
    words += ["--out", str(tmp_path / "runs")]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        while not list(tmp_path.glob("runs/.unfinished/*/locks-*/*")) and process.poll() is None:
            time.sleep(0.1)
        time.sleep(1)
        os.killpg(process.pid, how)  # as a terminal and a cluster do
        _, err = process.communicate()
    assert process.returncode == 128 + how and "Traceback" not in err, err
    with pytest.raises(ProcessLookupError):
        for _ in range(600):
            os.killpg(process.pid, 0)  # until nobody of its session is left
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on": "cloud"}, "--on takes threads, processes, ray or slurm, not 'cloud'."),
        ({"on": "rey"}, "--on takes threads, processes, ray or slurm, not 'rey'. Did you mean 'ray'?"),
        ({"address": "auto"}, "--address is for --on ray, and this is --on threads."),
        ({"address": "auto", "on": "slurm"}, "--address is for --on ray, and this is --on slurm."),
        ({"partition": "gpu", "on": "ray"}, "--partition is for --on slurm, and this is --on ray."),
        ({"cluster": "local"}, "--cluster is for --on slurm, and this is --on threads."),
        ({"retries": 1}, "--retries is for --on processes or ray or slurm, and this is --on threads."),
        ({"cpus": 2.0}, "--cpus is for --on ray or slurm, and this is --on threads."),
        ({"gpus": 1.0, "on": "processes"}, "--gpus is for --on ray or slurm, and this is --on processes."),
    ],
)
def test_options_of_another_executor_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Options(**options).validate()


def test_options_of_the_executor_are_taken():
    given = [Options(on, minutes=10) for on in executors.EXECUTORS]
    given.append(Options("ray", address="auto", cpus=2.0, gpus=1.0, retries=0))
    given.append(Options("slurm", partition="gpu", cluster="local", cpus=2.0, gpus=1.0))
    assert [options.validate() for options in given] == [None] * 6


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "rey"], "Did you mean 'ray'"),
        (["--on", "ray"], 'pip install -e ".[ray]"'),
        (["--on", "slurm"], 'pip install -e ".[slurm]"'),
        (["--workers", "0"], "--workers must be at least 1, got 0"),
        (["--max-batch", "0"], "--max-batch must be at least 1"),
        (["--on", "ray", "--retries", "-1"], "--retries must be at least 0"),
        (["--on", "ray", "--cpus", "0"], "--cpus must be above 0"),
        (["--on", "slurm", "--cluster", "here"], "--cluster takes slurm or local, not 'here'"),
        (["--minutes", "0"], "--minutes must be above 0"),
        (["--set", "etaa=1"], "etaa"),
        (["--only", "simplx/*"], "--only simplx/* fits no configuration"),
    ],
)
def test_a_mistake_is_one_clear_line(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main.main(["run", "chain", "--scale", "smoke", "--out", str(tmp_path / "runs"), *words]) == 2
    err = capsys.readouterr().err
    assert message in err and len(err.strip().splitlines()) == 1
