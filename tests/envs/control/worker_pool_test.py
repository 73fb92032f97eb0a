"""Environments in processes: the same bits as in this one, whole episodes, going on from what was saved, and deaths."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from made.envs.control import make_control
from made.envs.control.gym_env import Simulation
from made.envs.control.worker_pool import WorkerError, WorkerPool
from made.training.backends.control_tasks import in_threads

PIXELS = make_control("pendulum_swingup", size=24, low_res_shadows=True, repeat=250)  # four actions an episode
STATES = make_control("cartpole_swingup_sparse", pixels=False, repeat=500)
SEEDS = (5, 6, 7)


@pytest.fixture(scope="module")
def workers(drawn):
    with WorkerPool(PIXELS, SEEDS, processes=1) as made:
        yield made


@pytest.fixture(scope="module")
def others(drawn):
    with WorkerPool(PIXELS, (0, 1, 2), processes=2) as made:
        yield made


def actions(steps: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (steps, len(SEEDS), 1)).astype(np.float32)


def test_every_environment_is_that_of_this_process_through_its_episodes(workers):
    simulations = [Simulation(PIXELS, seed) for seed in SEEDS]
    stacks = [np.concatenate([simulation.seen] * 3, -1) for simulation in simulations]
    assert workers.spec == simulations[0].spec and np.array_equal(workers.reset(SEEDS), stacks)
    for simulation, seed in zip(simulations, SEEDS, strict=True):
        simulation.reset(seed)
    ends = 0
    for action in actions(9):
        step = workers.step(action)
        for i, simulation in enumerate(simulations):
            outcome = simulation.step(action[i])
            assert (step.reward[i], step.total[i]) == (np.float32(outcome.reward), simulation.total)
            assert (step.terminated[i], step.truncated[i]) == outcome[1:]
            assert np.array_equal(step.frame[i], simulation.seen)
            stacks[i] = np.concatenate([stacks[i][..., 3:], simulation.seen], -1)
            if simulation.over:
                simulation.reset()
                stacks[i], ends = np.concatenate([simulation.seen] * 3, -1), ends + 1
                assert not np.array_equal(step.seen[i], step.frame[i])
            assert np.array_equal(step.seen[i], simulation.seen)
        assert np.array_equal(workers.obs, stacks) and np.array_equal(workers.newest(workers.obs), step.seen)
    assert ends == 2 * len(SEEDS)


def test_others_go_on_to_the_bit_from_what_was_saved(workers, others):
    workers.reset(SEEDS)
    moves = actions(9)
    for move in moves[:3]:
        workers.step(move)
    others.load(workers.save())
    assert np.array_equal(others.obs, workers.obs)
    for move in moves[3:]:  # over two ends of episodes, so that the random numbers must have come along
        for one, other in zip(workers.step(move), others.step(move), strict=True):
            assert one.dtype == other.dtype and np.array_equal(one, other)
        assert np.array_equal(others.obs, workers.obs)


def test_parts_are_stepped_each_in_its_own_time_and_are_the_same(workers, drawn):
    workers.reset(SEEDS)
    moves = actions(6)
    with WorkerPool(PIXELS, SEEDS, parts=3) as apart:
        assert [apart.place(part) for part in range(3)] == [slice(0, 1), slice(1, 2), slice(2, 3)]
        for t, move in enumerate(moves):
            for part in (2, 0, 1):  # the others are still being drawn
                if t:
                    held = apart.obs
                    kept, step = held.copy(), apart.receive(part)
                    assert np.array_equal(held, kept), "what was seen before stays as it was"
                    same = [np.array_equal(x, y[part : part + 1]) for x, y in zip(step, whole, strict=True)]
                    assert all(same) and np.array_equal(apart.obs[part], workers.obs[part])
                apart.send(move[part : part + 1], part)
            with pytest.raises(ValueError, match="between send and receive: receive first"):
                apart.send(move[:1], 0)
            whole = workers.step(move)
        frames = [apart.receive(part).frame for part in range(3)]
        assert np.array_equal(np.concatenate(frames), whole.frame)
        with pytest.raises(ValueError, match="receive was called before send"):
            apart.receive(1)
        with pytest.raises(ValueError, match=r"takes finite actions \[1, 1\], got \[3, 1\]"):
            apart.send(moves[0], 1)
    with pytest.raises(ValueError, match=r"3 seeds cannot be divided among . processes in 2 parts"):
        WorkerPool(PIXELS, SEEDS, parts=2)
    with pytest.raises(ValueError, match="4 seeds cannot be divided among 3 processes in 2 parts"):
        WorkerPool(PIXELS, range(4), processes=3, parts=2)


def test_what_was_received_stays_and_the_order_of_calls_is_kept(workers):
    workers.reset(SEEDS)
    with pytest.raises(ValueError, match="receive was called before send"):
        workers.receive()
    workers.send(actions(1)[0])
    for call in (workers.reset, workers.save, lambda: workers.send(actions(1)[0])):
        with pytest.raises(ValueError, match="between send and receive: receive first"):
            call()
    step = workers.receive()
    kept = step.frame.copy()
    workers.step(-actions(1)[0])
    assert np.array_equal(step.frame, kept)
    with pytest.raises(ValueError, match=r"takes finite actions \[3, 1\], got \[2, 1\]"):
        workers.send(np.zeros((2, 1)))
    with pytest.raises(ValueError, match="takes finite actions"):
        workers.send(np.full((3, 1), np.nan))
    with pytest.raises(ValueError, match="3 environments take as many seeds, got 1"):
        workers.reset([0])
    with pytest.raises(ValueError, match="does not fit 3 environments of pendulum_swingup: 2/"):
        workers.load({name: x for name, x in workers.save().items() if not name.startswith("2/")})


def test_states_come_too_and_a_traceback_names_the_task(suite):
    workers, simulation = WorkerPool(STATES, [3]), Simulation(STATES, 3)
    assert np.array_equal(workers.obs, [simulation.seen])
    for _ in range(2):
        outcome, step = simulation.step(np.ones(1)), workers.step(np.ones((1, 1)))
        assert np.array_equal(step.frame, [simulation.seen]) and step.truncated[0] == outcome.truncated
    simulation.reset()
    assert step.truncated[0] and np.array_equal(workers.obs, [simulation.seen])
    with pytest.raises(WorkerError, match=r"_sparse with seeds 3 failed: Traceback(.|\n)*AttributeError"):
        workers._ask("dance")
    with pytest.raises(WorkerError, match="seeds 3 failed"):  # whoever asks later hears of it too
        workers.step(np.ones((1, 1)))
    with WorkerPool(STATES, [3]) as ended:
        pass
    with pytest.raises(ValueError, match="called after close: make a new one"):
        ended.step(np.ones((1, 1)))


def test_settings_that_a_task_does_not_take_are_refused_in_a_sentence(suite):
    with pytest.raises(ValueError, match="lqr_lqr_2_1 has actuators without bounds"):
        WorkerPool(make_control("lqr_lqr_2_1", pixels=False), [0])
    for seeds, processes in ([], None), ([0], 2), ([0, 1], 0):
        with pytest.raises(ValueError, match=r"seeds cannot be divided among . processes"):
            WorkerPool(STATES, seeds, processes)


def test_the_death_of_a_process_is_told_as_such_from_whatever_thread(suite):
    with WorkerPool(STATES, SEEDS, parts=3) as workers:

        def turn(part, i):
            if i:
                workers.receive(part)
            if (part, i) == (1, 20):
                os.kill(workers._processes[1].pid, signal.SIGKILL)
            workers.send(np.zeros((1, 1), np.float32), part)

        with pytest.raises(WorkerError, match="cartpole_swingup_sparse with seeds 6 failed: it died with exit code -9"):
            in_threads(turn, 3, 10_000, threads=True)


def test_a_process_that_is_killed_is_named_and_the_others_end(others):
    """The last test here, since it ends what it is given."""
    pids = [process.pid for process in others._processes]
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(WorkerError, match="pendulum_swingup with seeds 2 failed: it died with exit code -9"):
        others.step(np.zeros((3, 1)))
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    others.close()


def test_the_script_of_the_page_on_control_runs_as_printed(drawn, tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "control.md").read_text("utf-8")
    (script,) = (text for text in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "WorkerPool(" in text)
    path = tmp_path / "script.py"
    path.write_text(script + "        print(step.frame.shape)\n", "utf-8")
    assert subprocess.check_output([sys.executable, path], text=True).strip() == "(4, 100, 100, 3)"
