"""Dreamer through `made train`: when it learns, what it remembers as it acts, going on to the bit, videos, refusals."""

import contextlib
import csv
import dataclasses
import functools
import os
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import TINY, Walk, quick, rnd
from PIL import Image
from training import tiny
from training.resume_test import Stops, assert_equal, go, rows
from training.sequence_buffer_test import Listener
from training.stopping import stopped
from training.together import act

from made.agents.dreamer.agent import Dreamer
from made.agents.dreamer.network import Layout
from made.bonuses import RE3, NoBonus
from made.bonuses.replay_data import recent_window
from made.cli import main
from made.cli.build import build
from made.cli.train import Train
from made.core import Space, Spec, Transition
from made.core.schedules import Constant
from made.training import memory, sharding, train_loop, video
from made.training.backends import TrainPlan, control_learner, control_tasks
from made.training.backends.compiled_envs import CompiledBackend
from made.training.control_config import DREAMER, DreamerConfig, bonus_coef_for
from made.training.off_policy import ReplayLearner
from made.training.replay import ReplayBuffer, SequenceBuffer

ACTIONS, FIRST, EVERY, SEEDS = 27, 8, 6, (0, 1)
SMALL = Layout(stoch=2, deter=4, hidden=4, units=4, depth=2, reward=1, ends=1, value=1, actor=1)
SETTINGS = ("task.repeat=100", "replay.length=4", f"seed_steps={FIRST}", "batch=2", "pretrain=2")
SETTINGS += ("train_every=8", "updates=2", "replay.steps.capacity=64", "agent.horizon=2")
LEARNT = (8, 16, 24)  # actions that are followed by two updates, all by the same program


@pytest.fixture(scope="module", autouse=True)
def small():
    """Programs that are quick to compile, and one process for all environments."""
    pytest.importorskip("dm_control", reason="needs dm_control: pip install -e '.[control]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "options", lambda level: {"xla_backend_optimization_level": 0})
        patch.setattr(os, "cpu_count", lambda: 1)
        yield


def plan(pixels: bool = False) -> TrainPlan:
    """Twenty-seven actions in rows of six, with a bonus that takes in every step once."""
    settings = (*SETTINGS, f"task.pixels={pixels}")
    run = build("pendulum_swingup", "dreamer", "none", False, 0.1, None, settings)
    agent, bonus = dataclasses.replace(run.agent, layout=SMALL), RE3(**TINY, capacity=40)  # type: ignore[type-var]
    run = dataclasses.replace(run, agent=agent, bonus=bonus, iterations=ACTIONS, every=EVERY)  # type: ignore[call-arg]
    return TrainPlan(run, SEEDS, evaluate_every=12, checkpoint_every=12, episodes=2, keep=2)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(plan, programs, folder, end) of a run that nothing stopped."""
    asked, out = plan(), tmp_path_factory.mktemp("dreamer")
    with contextlib.closing(control_tasks.ControlBackend(asked)) as backend:
        yield asked, backend, out, go(asked, backend, out)


def test_updates_come_many_at_a_time_as_in_dreamer_v1():
    run = build("pendulum_swingup", "dreamer", "made", False, None, None, ())
    assert isinstance(run, DreamerConfig)
    due = {t: run.due(t) for t in range(1, 4001) if run.due(t)[0]}
    assert due == {2500: (100, 2500), 3000: (100, 500), 3500: (100, 500), 4000: (100, 500)}
    assert (run.batch, run.replay.length, run.task.size, run.task.stack, run.task.repeat) == (50, 50, 64, 1, 2)
    assert float(run.bonus_coef(1)) == pytest.approx(0.01)
    slow = build("quadruped_run", "dreamer", "re3", False, None, None, ("batch=10",))
    assert (slow.seed_steps, slow.train_every) == (1250, 250) and float(slow.bonus_coef(10**6)) == pytest.approx(0.1)  # type: ignore[union-attr]
    assert slow.bonus.bonus.bonus.capacity == 500, "the neighbours are the batch"  # type: ignore[union-attr]


def test_it_learns_when_updates_are_due_and_at_no_other_time(whole):
    _, _, out, end = whole
    found = rows(out)[:: len(SEEDS)]
    assert [line["frames"] for line in found] == [600, 1200, 1800, 2400, 2700]
    assert ["model_loss" in line for line in found] == [False, True, True, False, True]
    assert [line["episodes"] for line in found] == [0, 1, 0, 1, 0]
    (learner,) = end.state.learners
    assert learner.k.tolist() == [2 * len(LEARNT)] * 2 and learner.agent.k.tolist() == learner.k.tolist()
    assert learner.replay.steps.taken.tolist() == [ACTIONS - 1] * 2
    ring = learner.bonus.ring.written
    assert ring.tolist() == [24, 24], "every step was fresh once, eight at a time"


def test_a_step_is_stored_without_the_networks_and_an_action_taken_without_optimisers(whole):
    _, programs, _, end = whole
    (learner,), learning = end.state.learners, programs.learning
    leaves = jax.tree.leaves(learner)
    for part, wanted in (
        (learning._replay, learner.replay),
        (
            learning._params,
            (learner.agent.world.encoder, learner.agent.world.rssm, learner.agent.actor, learner.agent.k),
        ),
    ):
        assert [id(x) for x in part.pick(leaves)] == [id(x) for x in jax.tree.leaves(wanted)]


def test_a_run_killed_in_the_middle_of_a_row_goes_on_bit_for_bit(whole, tmp_path):
    asked, programs, out, end = whole
    with pytest.raises(RuntimeError), stopped(21, n_envs=len(SEEDS)):  # not those of evaluations
        go(asked, programs, tmp_path)
    stand = train_loop.restore_or_init(asked, programs, tmp_path)
    assert stand.update == 12 and float(abs(stand.state.carries[0][0].deter).sum()) > 0
    last = go(asked, programs, tmp_path)
    assert_equal(end.state, last.state)
    assert rows(tmp_path) == rows(out)


def test_steps_stored_a_stretch_at_a_time_are_those_stored_one_by_one(whole, tmp_path):
    """Rows of six actions end within each stretch of eight; a row of all does not."""
    asked, programs, _, end = whole
    many = programs.learning._storing[8].program
    assert not many._cache_size(), "not used before"
    one_row = asked._replace(run=dataclasses.replace(asked.run, every=ACTIONS), evaluate_every=10**6)
    last = go(one_row, programs, tmp_path)
    assert many._cache_size() == 1
    assert_equal(end.state, last.state)


def test_from_pixels_seeds_in_threads_go_on_bit_for_bit_too(drawing, tmp_path, monkeypatch):
    """A state and a memory for each seed, as on a GPU, and the first burst of updates compiled by one thread alone.

    The first run acts on its agent, the other on a copy, which is made anew where the agent has learnt.
    """
    asked = plan(pixels=True)._replace(evaluate_every=10**6)
    monkeypatch.setattr(control_tasks, "in_threads", functools.partial(control_tasks.in_threads, threads=True))
    monkeypatch.setattr(control_learner, "cpu_device", lambda: jax.devices()[0])
    with contextlib.closing(control_tasks.ControlBackend(asked)) as programs:
        learning = programs.learning
        actor, learning.actor = learning.actor, None
        assert learning.one_by_one, "as on a CPU"
        single = go(asked, programs, tmp_path / "single")
        learning.one_by_one = False
        end = go(asked, programs, tmp_path / "whole")
        pairs = zip(*(jax.tree.leaves([one.agent for one in x.state.learners]) for x in (end, single)), strict=True)
        assert all(np.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs), "the same updates, in a loop or not"
        assert len(end.state.learners) == len(SEEDS) and [int(one.k) for one in end.state.learners] == [6, 6]
        assert learning._studying.program._cache_size() == 2, "in a loop, and one by one"
        learning.actor, studying, taken = actor, learning._studying, []
        learning._studying = lambda *given: taken.append((int(given[2]), learning._burst.locked())) or studying(*given)
        with pytest.raises(KeyboardInterrupt), stopped(20, KeyboardInterrupt, len(SEEDS)):
            go(asked, programs, tmp_path / "killed")
        stand = train_loop.restore_or_init(asked, programs, tmp_path / "killed")
        assert stand.update == 18, "nothing was stored or learnt since that row"
        assert_equal(end.state, go(asked, programs, tmp_path / "killed").state)
    assert sorted(taken) == [(t, True) for t in (8, 8, 16, 16, 24, 24)], (
        "updates that come at once are one seed's at a time"
    )
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


def test_what_is_remembered_is_carried_on_and_blank_where_an_episode_begins(whole):
    _, programs, _, end = whole
    learning, learners = programs.learning, end.state.learners
    obs = np.ones((2, 3), np.float32)
    blank = learning.carries(1)
    first, _ = act(learning, learners, blank, np.ones(2, bool), obs, 5)
    on, _ = act(learning, learners, first, np.zeros(2, bool), obs, 6)
    anew, _ = act(learning, learners, first, np.ones(2, bool), obs, 6)
    fresh, _ = act(learning, learners, blank, np.zeros(2, bool), obs, 6)
    assert_equal(anew, fresh)
    half, _ = act(learning, learners, first, np.array([True, False]), obs, 6)
    deter = lambda carries: np.asarray(carries[0][0].deter)[:, 0]  # noqa: E731
    assert not np.allclose(deter(on), deter(anew))
    np.testing.assert_array_equal(deter(half), np.stack([deter(anew)[0], deter(on)[1]]))
    again = [act(learning, learners, first, np.zeros(2, bool), obs, 9, i, explore=False)[1] for i in (0, 0, 1)]
    assert np.array_equal(again[0], again[1]) and np.abs(again[0]).max() <= 1
    state = [act(learning, learners, first, np.zeros(2, bool), obs, 9, i, explore=False)[0] for i in (0, 1)]
    assert not np.allclose(state[0][0][0].stoch, state[1][0][0].stoch), "each step has noise of its own"


def test_dreams_are_of_each_seed_by_itself(whole):
    asked, _, _, end = whole
    one, other = video.seeds_of(asked.run, end.state, 2)
    assert one.k.shape == () and one.replay.steps.taken == ACTIONS - 1
    assert not np.array_equal(one.replay.steps.frames, other.replay.steps.frames)


def test_a_stored_run_keeps_returns_of_every_seed_and_goes_without_where_the_device_fails(whole, monkeypatch, capsys):
    asked, _, _, end = whole
    kept = video.kept(asked, end.state, ACTIONS)
    assert list(kept) == list(SEEDS) and all(set(x) == {"step", "dream/paid", "dream/imagined"} for x in kept.values())
    assert kept[0]["dream/paid"].shape == (1, video.WINDOWS) and kept[0]["step"].tolist() == [ACTIONS]

    def fail(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nand more")

    monkeypatch.setattr(video, "predict", fail)
    assert video.kept(asked, end.state, ACTIONS) == {}
    assert capsys.readouterr().err == "made: no dreams are kept: RESOURCE_EXHAUSTED: out of memory\n"
    assert video.kept(tiny.plan(), None, 1) == {}, "nobody dreams there"


def test_of_a_film_a_stored_run_keeps_a_few_moments_of_the_first_seed(whole, monkeypatch):
    asked, _, _, end = whole
    frames = np.arange(51, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 12, 3), np.uint8)
    told = video.Prediction(*[np.zeros(2, np.float32)] * 3)  # type: ignore[arg-type]
    monkeypatch.setattr(video, "_predictions", lambda plan, state: ((seed, frames, told) for seed in plan.seeds))
    kept = video.kept(asked, end.state, ACTIONS)
    assert kept[0]["dream/film"].shape == (1, video.MOMENTS, 4, 8, 3) and "dream/film" not in kept[1]
    assert kept[0]["dream/film"][0, :, 0, 0, 0].tolist() == [0, 4, 19, 35, 50]
    assert len(video.moments(frames[:4])) == video.MOMENTS, "however short"


def test_a_film_shows_truth_model_and_difference_side_by_side(tmp_path):
    """Of windows that a replay of small pictures holds; an untrained model is enough."""
    spec = Spec(Space((8, 8, 3), jnp.uint8, None, 0.0, 255.0), Space((1,), jnp.float32, None, -1.0, 1.0))
    replay = SequenceBuffer(ReplayBuffer(20, shortest=9), 6)
    agent = Dreamer(SMALL, horizon=2)
    learner = ReplayLearner(spec, agent, rnd(), Constant(0.5), replay, 2)
    run = dataclasses.replace(
        build("pendulum_swingup", "dreamer", "none", False, 0.5, None, ()),
        agent=agent,
        replay=replay,
        bonus=rnd(),
    )
    rng = np.random.default_rng(0)
    image = rng.integers(0, 255, (12, 1, 8, 8, 3), np.uint8)
    no, zero = np.zeros((12, 1), bool), np.zeros((12, 1), np.float32)
    came = Transition(image, zero[..., None], zero + 1, np.roll(image, -1, 0), no, no)  # type: ignore[arg-type]
    state = quick(learner.start)(jax.random.key(0))
    state = state._replace(replay=quick(learner.store)(state.replay, came))
    end = control_tasks.ControlState((state,), {}, came, np.zeros(1), np.asarray(12))  # type: ignore[arg-type]
    asked = TrainPlan(run, (7,), evaluate_every=1, checkpoint_every=1)  # type: ignore[arg-type]
    gif, table = video.record_dreams(asked, end, tmp_path)
    with Image.open(gif) as shown:
        assert shown.n_frames == 7 and shown.size == (3 * 128, 128)  # type: ignore[attr-defined]
        first = np.asarray(shown.convert("RGB"), float)
    near = [np.abs(first[::16, :128:16] - x[0]).mean() for x in image]
    assert min(near) < 25 and np.median(near) > 40, "the truth on the left, but for the colors of a GIF"
    with open(table, encoding="utf-8") as file:
        told = list(csv.DictReader(file))
    assert len(told) == video.WINDOWS and {line["real"] for line in told} == {"2.0"}, "two actions after five pictures"
    assert all(float(line["paid"]) > 2 for line in told) and len({line["imagined"] for line in told}) > 1


def test_the_bonus_coefs_are_the_papers_for_dreamer():
    assert DREAMER == {
        "cartpole_swingup_sparse": 0.5,
        "cheetah_run_sparse": 0.5,
        "walker_run_sparse": 0.01,
        "hopper_hop": 0.5,
        "pendulum_swingup": 0.01,
        "quadruped_run": 0.0005,
    }
    coef = lambda *names: float(bonus_coef_for(*names, "dreamer")(10**6))  # noqa: E731
    assert coef("walker_run_sparse", "rnd-at-made") == pytest.approx(0.01) and coef("hopper_hop", "none") == 0
    assert coef("quadruped_run", "re3") == pytest.approx(0.1) and coef("finger_spin", "made") == 0.5


GRID = ["--env", "Empty-5x5", "--agent", "dreamer"]
CONTROL = ["--env", "hopper_hop", "--agent", "dreamer"]
REFUSED = {
    "a size": ([*CONTROL, "--set", "task.size=84"], "one frame of 64 x 64 .*task.size=84"),
    "a bonus": ([*CONTROL, "--bonus", "icm"], "no bonus 'icm' for Dreamer"),
    "a first window": ([*CONTROL, "--set", "seed_steps=20"], "replay.length=50 actions, and seed_steps=20"),
    "no updates": ([*CONTROL, "--set", "updates=0"], "at least 1 as updates, got 0: 100 is usual"),
    "streams": ([*CONTROL, "--set", "replay.steps.streams=2"], "replay.steps.streams and .* must be 1, got 2 and 1"),
    "a gate": ([*CONTROL, "--first-visit"], "--first-visit and --strength are for"),
    "a misspelt grid": (["--env", "Emty-5x5", "--agent", "dreamer"], "no task 'Emty-5x5'. Did you mean 'Empty-5x5'"),
    "a strength on a grid": ([*GRID, "--strength", "1"], "give Dreamer a --bonus-coef"),
    "a hosted grid": (["--env", "gym:Empty-5x5", "--agent", "dreamer"], "compiled environments and on control tasks"),
    "uneven updates of a grid": ([*GRID, "--set", "updates=7"], "updates=7 updates takes its share of run.unroll=50"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_told_in_a_sentence(case, capsys, tmp_path):
    words, sentence = REFUSED[case]
    assert main.main(["train", *words, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("made: ")
    assert re.search(sentence, said), said


def test_steps_that_are_taken_in_once_must_be_shared_out_evenly():
    run = plan().run
    with pytest.raises(ValueError, match="train_every=8 cannot be shared out over updates=3"):
        dataclasses.replace(run, updates=3).resolved()  # type: ignore[arg-type]
    other = dataclasses.replace(run, updates=3, bonus=rnd())
    assert other.resolved().updates == 3  # type: ignore[arg-type, attr-defined]


def test_a_replay_that_does_not_fit_is_refused_with_the_setting_that_helps(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda: 2**30)
    with pytest.raises(
        ValueError, match=r"64 steps needs 2\.0 GiB .* a smaller --set replay\.steps\.capacity=\.\.\.\.$"
    ):
        control_learner.require_memory(plan().run, 2**31, 1)  # type: ignore[arg-type]


TINY_GRID = ("run.n_envs=2", "run.unroll=4", "updates=2", "prefill=8", "batch=2", "replay.length=4", "episodes=2")
TINY_GRID += ("replay.steps.capacity=64", "run.agent.horizon=2", "run.pool_per_env=1")
SIZES = {"stoch": 2, "deter": 4, "hidden": 4, "units": 4, "reward": 1, "ends": 1, "value": 1, "actor": 1}
TINY_GRID += tuple(f"run.agent.layout.{name}={n}" for name, n in SIZES.items())


def test_a_run_in_a_compiled_environment_is_stopped_and_gone_on_with(tmp_path):
    """As `made train` builds it for a grid, then in a world and with an agent that compile in no time."""
    asked = Train("Empty-5x5", "dreamer", "made", "48", set=TINY_GRID, every="16", eval_every="32").plan()
    run: Any = asked.run
    assert (
        asked.frames_per_update == 8
        and run.replay.steps.streams == 2
        and run.run.resets_per_update == 2
        and asked.episodes == 2
    )
    assert run.agent.ends and run.agent.reinforce == 1 and recent_window(run.bonus) == 10_000
    cheap = dataclasses.replace(
        run.run, env=Walk(), agent=Listener(), bonus=NoBonus(), probes=(), resets_per_update=None
    )
    asked = asked._replace(run=dataclasses.replace(run, run=cheap), checkpoint_every=2)
    programs = CompiledBackend(asked)
    end, found = go(asked, programs, tmp_path / "whole"), rows(tmp_path / "whole")
    assert [line["frames"] for line in found] == [16, 32, 48] and int(end.state.k[0]) == 6
    assert int(end.state.run.k[0]) == 12 and {"paid", "return"} <= set(found[0]) and "eval_return" in found[1]
    with pytest.raises(RuntimeError):
        go(asked, programs, tmp_path / "part", stops=Stops(1, RuntimeError))
    assert_equal(end.state, go(asked, programs, tmp_path / "part").state)
    assert rows(tmp_path / "part") == found and video.record_dreams(asked, end.state, tmp_path) == []


def test_dreamer_itself_learns_on_a_grid(tmp_path):
    """As `made train` builds it, nothing swapped: every network has moved, rows and dreams hold numbers."""
    settings = (*TINY_GRID, "run.agent.free_nats=0")  # or nothing teaches the prior
    asked = Train("Empty-5x5", "dreamer", "rnd", "16", set=settings, every="8", eval_every="16").plan()
    programs = CompiledBackend(asked)
    first = programs.init().agent
    end, found = go(asked, programs, tmp_path).state, rows(tmp_path)
    for part in ("world", "actor", "value"):
        pairs = zip(*(jax.tree.leaves(getattr(of, part)) for of in (first, end.agent)), strict=True)
        assert all(np.isfinite(b).all() and not np.array_equal(a, b) for a, b in pairs), part
    assert end.agent.k.tolist() == [4] and [line["frames"] for line in found] == [8, 16]
    told = ("model_loss", "actor_loss", "value_loss", "model/ends", "entropy", "bonus", "dream/value")
    assert all(np.isfinite([line[name] for name in told]).all() for line in found) and "eval_return" in found[1]
    (known,) = video.seeds_of(asked.run, end, 1)
    frames, returns = quick(lambda known, key: video.predict(asked.run, known, key))(known, jax.random.key(0))
    assert frames.dtype == np.uint8 and frames.shape[0] == 5 and np.isfinite(returns).all()
