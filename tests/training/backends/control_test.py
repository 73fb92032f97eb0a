"""Training on DeepMind Control: what is stored and when, going on from a checkpoint, evaluation, what is refused."""

import contextlib
import dataclasses
import functools
import json
import os
import re

import jax
import numpy as np
import pytest
from contracts.settings import TINY, rnd
from training.resume_test import assert_acts_as, assert_equal, go, load_all, rows
from training.stopping import stopped
from training.together import take

from made.agents.sac import RAD
from made.bonuses import RE3, Sum
from made.bonuses.replay_data import LastFrame
from made.cli import main
from made.cli.build import build
from made.cli.train import Train
from made.core.config import to_dict
from made.envs.control import rendering
from made.envs.control.gym_env import Simulation
from made.training import checkpoint, checkpoint_file, memory, run_dir, sharding, train_loop
from made.training.backends import TrainPlan, control_learner, control_tasks
from made.training.backends.control_learner import ControlLearner
from made.training.control_config import BONUS_COEFS as TASKS
from made.training.control_config import bonus_coef_for

ACTIONS, FIRST, EVERY, SEEDS = 26, 6, 5, (0, 1)
LONG = ("task.repeat=100", f"seed_steps={FIRST}", "batch=8", "replay.capacity=64")  # an episode is ten actions


@pytest.fixture(scope="module", autouse=True)
def small():
    """Programs that are quick to compile, and one process for all environments."""
    pytest.importorskip("dm_control", reason="needs dm_control: pip install -e '.[control]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "options", lambda level: {"xla_backend_optimization_level": 0})
        patch.setattr(os, "cpu_count", lambda: 1)
        yield


def plan(agent: str) -> TrainPlan:
    """Twenty-six actions in rows of five, learning after the first six; episodes end in the midst of rows."""
    more = ("task.size=24", "agent.layout.crop=20") if agent == "rad" else ()
    run = build("pendulum_swingup", agent, "none", False, 0.1, None, (*LONG, *more))
    layout = dataclasses.replace(run.agent.layout, width=6, depth=1, channels=2, features=4)
    bonus = Sum((rnd(), RE3(**TINY, capacity=40)))  # one that learns from the batch, one that takes in every step
    run = dataclasses.replace(
        run, agent=RAD(layout), bonus=LastFrame(bonus) if agent == "rad" else bonus, iterations=ACTIONS, every=EVERY
    )
    return TrainPlan(run, SEEDS, evaluate_every=10, checkpoint_every=10, episodes=2, keep=2)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["sac", "rad"])
def whole(request, tmp_path_factory):
    """(plan, programs, folder, end) of a run that nothing stopped."""
    if request.param == "rad":
        request.getfixturevalue("drawing")
    asked, out = plan(request.param), tmp_path_factory.mktemp(request.param)
    with contextlib.closing(control_tasks.ControlBackend(asked)) as backend:
        yield asked, backend, out, go(asked, backend, out)


def replays(state) -> list:
    """The replay of each seed."""
    if len(state.learners) == len(SEEDS):
        return [jax.tree.map(np.asarray, one.replay) for one in state.learners]
    return [jax.tree.map(lambda x, i=i: np.asarray(x[i]), state.learners[0].replay) for i in range(len(SEEDS))]


def test_the_rows_tell_steps_of_the_environment_and_whole_episodes(whole):
    _, _, out, end = whole
    found = rows(out)
    assert [(line["frames"], line["seed"]) for line in found] == [
        (100 * k, seed) for k in (5, 10, 15, 20, 25, 26) for seed in SEEDS
    ]
    assert [line["episodes"] for line in found[::2]] == [0, 1, 0, 1, 0, 0]
    assert all(line["length"] == (1000 if line["episodes"] else None) for line in found)
    assert "critic_loss" not in found[2 - 1] and all("critic_loss" in line for line in found[2:])
    assert ["eval_return" in line for line in found[::2]] == [False, True, False, True, False, True]
    last = found[-1]
    assert last["intrinsic_return"] == pytest.approx(0.1 * last["bonus"] * 10, rel=1e-4), "ten actions, not 1000 steps"
    assert [path.stem for path in checkpoint.files(out / run_dir.CHECKPOINTS)] == ["000000020", "000000026"]
    updates = {int(x) for one in end.state.learners for x in np.ravel(one.k)}
    assert updates == {ACTIONS - 1 - FIRST}, "one an action after the first ones, the last step not learnt from yet"


def test_a_control_run_is_loaded_as_it_was_trained(whole, tmp_path):
    asked, programs, out, end = whole
    for lane, run in enumerate(load_all(asked, out, tmp_path / "run", at=ACTIONS)):
        learner = control_tasks.learner_of(end.state, lane, len(SEEDS), asked.run.task.pixels)
        assert to_dict(run.config) == to_dict(asked.run) and run.update == ACTIONS
        assert_equal(run.state, learner)
        assert_acts_as(run.policy, asked.run.agent, learner.agent, programs.learning.learner.spec)


def test_a_program_for_each_kind_of_update_learns_the_same(whole):
    """As on a GPU, where the host would have to wait for the choice between them."""
    asked, programs, _, _ = whole
    one = programs.learning
    other = ControlLearner(asked.run, one.learner.spec, SEEDS, at_phase=True)  # type: ignore[arg-type]
    assert other.at_phase and not one.at_phase
    came, ends = programs.like().came, []
    for learning in (one, other):
        learners, sums = learning.open(one.start()), [None] * len(one.like())
        for t in range(FIRST, FIRST + 4):
            take(learning, learners, sums, came, t)
        ends.append(learners)
    for x, y in zip(*map(jax.tree.leaves, ends), strict=True):
        assert np.allclose(*(np.asarray(jax.random.key_data(z) if _is_key(z) else z) for z in (x, y)), atol=1e-5)


def _is_key(x) -> bool:
    return jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)


def test_the_replay_holds_what_the_actions_bring_about(whole):
    """The stored actions, taken again in simulations of the same seeds, show the stored observations and rewards."""
    asked, _, _, end = whole
    for lane, (seed, held) in enumerate(zip(SEEDS, replays(end.state), strict=True)):
        taken = int(held.taken)
        assert taken == ACTIONS - 1
        actions, frames = held.steps.action[0, :taken], held.frames[0]
        at_random = [
            np.random.default_rng((seed, t, control_tasks.AT_RANDOM)).uniform(-1, 1, 1).astype(np.float32)
            for t in range(taken)
        ]
        same = np.isclose(actions, at_random).all(-1)
        assert same[:FIRST].all() and not same[FIRST:].any(), "at random first, then not"
        simulation = Simulation(asked.run.task, seed)  # type: ignore[arg-type]
        for t in range(ACTIONS):
            before, after = (held.at[0, t], held.at[0, t] + 1) if t < taken else (None, None)
            seen = simulation.seen if t % 10 else np.array(simulation.seen)
            shown = frames[before] if t < taken else end.state.came.obs[lane]
            np.testing.assert_array_equal(shown, seen)
            outcome = simulation.step(actions[t] if t < taken else end.state.came.action[lane])
            reached = frames[after] if t < taken else end.state.came.next_obs[lane]
            np.testing.assert_array_equal(reached, simulation.seen)
            stored = held.steps.reward[0, t] if t < taken else end.state.came.reward[lane]
            assert stored == np.float32(outcome.reward)
            if simulation.over:
                assert t % 10 == 9 and held.steps.truncated[0, t] and not held.steps.terminated[0, t]
                simulation.reset()
        simulation.close()


def test_a_run_killed_in_the_middle_of_a_row_goes_on_bit_for_bit(whole, tmp_path):
    asked, programs, out, end = whole
    error = KeyboardInterrupt if asked.run.task.pixels else RuntimeError  # type: ignore[attr-defined]
    with pytest.raises(error), stopped(17, error, len(SEEDS)):  # not those of evaluations
        go(asked, programs, tmp_path)
    stand = train_loop.restore_or_init(asked, programs, tmp_path)
    assert stand.update == 10 and isinstance(stand.state.workers["obs"], np.ndarray)
    kinds = {x.dtype for x in stand.state.workers.values()}
    assert {np.dtype("float64"), np.dtype("uint32"), np.dtype("int64")} <= kinds, "no array of the environments is cut"
    last = go(asked, programs, tmp_path)
    assert_equal(end.state, last.state)
    assert rows(tmp_path) == rows(out)


@pytest.mark.parametrize("whole", ["rad"], indirect=True)
def test_a_seed_that_takes_turns_with_others_is_the_same_alone(whole, tmp_path):
    asked, _, out, _ = whole
    alone = asked._replace(seeds=SEEDS[1:])
    with contextlib.closing(control_tasks.ControlBackend(alone)) as programs:
        go(alone, programs, tmp_path)
    assert rows(tmp_path) == [line for line in rows(out) if line["seed"] == SEEDS[1]]


def test_seeds_in_threads_of_their_own_are_the_same(drawing, tmp_path, monkeypatch):
    """As on a GPU, with a program for each kind of update; threads that need a program first compile it once."""
    asked, compiled, ends = plan("rad"), [], []
    monkeypatch.setattr(sharding, "compiled", lambda lowered: compiled.append(1) or [one.compile() for one in lowered])
    in_threads = control_tasks.in_threads
    with contextlib.closing(control_tasks.ControlBackend(asked)) as programs:
        programs.learning = ControlLearner(asked.run, programs.workers.spec, SEEDS, at_phase=True)  # type: ignore[arg-type]
        for threads in (True, False):
            monkeypatch.setattr(control_tasks, "in_threads", functools.partial(in_threads, threads=threads))
            ends.append(go(asked, programs, tmp_path / str(threads)))
    assert len(compiled) == 1 and rows(tmp_path / "True") == rows(tmp_path / "False")
    assert_equal(*(end.state for end in ends))


@pytest.mark.parametrize("whole", ["sac"], indirect=True)
def test_an_evaluation_plays_whole_episodes_of_its_own_by_the_mean_action(whole, monkeypatch):
    asked, programs, _, end = whole
    asked_how = []

    def push(i, learner, carry, began, obs, *when, explore=True):
        asked_how.append(explore)
        return carry, np.full((len(obs), 1), 0.9, np.float32)

    monkeypatch.setattr(programs.learning, "act", push)
    before = checkpoint_file.flat(end.state.workers)
    found = programs.evaluate(end.state)
    assert not any(asked_how) and len(asked_how) == 10
    assert all(np.array_equal(x, before[name]) for name, x in checkpoint_file.flat(programs.workers.save()).items())
    for lane, seed in enumerate(SEEDS):
        totals = []
        for i in range(2):
            simulation = Simulation(asked.run.task, 0)  # type: ignore[arg-type]
            simulation.reset(control_tasks.seed_for(seed, ACTIONS, control_tasks._JUDGED, i))
            while not simulation.over:
                simulation.step(np.array([0.9]))
            totals.append(simulation.total)
        assert found["eval_return"][lane] == pytest.approx(np.mean(totals))


def test_parameters_that_are_no_numbers_stop_the_run_before_they_act(whole):
    asked, programs, out, _ = whole
    state = train_loop.restore_or_init(asked, programs, out).state
    broken = jax.tree.map(lambda x: x * np.nan, state.learners[-1].agent.actor)
    if len(state.learners) == 1:  # seeds are lanes
        keep = jax.tree.map(lambda good, bad: good.at[1].set(bad[1]), state.learners[0].agent.actor, broken)
        broken = keep
    last = state.learners[-1]._replace(agent=state.learners[-1].agent._replace(actor=broken))
    with pytest.raises(ValueError, match=r"Seed 1 has .* not finite at update 26 \(2,600 frames\)"):
        programs.advance(state._replace(learners=(*state.learners[:-1], last)), 2)


@pytest.mark.parametrize("whole", ["sac"], indirect=True)
def test_a_process_that_dies_is_named_in_a_sentence(whole):
    asked, programs, out, _ = whole
    state = train_loop.restore_or_init(asked, programs, out).state
    programs.workers._processes[0].kill()
    words = r"with seeds 0, 1 failed: .*exit code -9[^.]*\. The same command .* last checkpoint, where there is one"
    with pytest.raises(ValueError, match=words):
        programs.advance(state, 1)


REFUSED = {
    "an unknown task": (
        ["--env", "pendulum_swing", "--agent", "sac"],
        "has no task 'swing'.*pendulum_swingup",
    ),
    "a misspelt domain": (["--env", "pendullum_swingup"], "Did you mean 'pendulum_swingup'"),
    "a repeat": (["--env", "hopper_hop", "--agent", "sac", "--set", "task.repeat=3"], "repeat=3 does not divide"),
    "a discrete agent": (["--env", "hopper_hop", "--agent", "impala"], "impala chooses among .* --agent rad"),
    "no agent": (["--env", "hopper_hop", "--agent", "rat"], "no agent 'rat'. Did you mean 'rad'"),
    "a grid": (
        ["--env", "DoorKey-5x5", "--agent", "rad"],
        "tasks of DeepMind Control.*DoorKey-5x5 is none",
    ),
    "another task": (["--env", "hopper_hop", "--agent", "sac", "--set", "task.task=walker_run"], "name it by --env"),
    "a crop": (["--env", "hopper_hop", "--agent", "rad", "--set", "task.size=50"], "crops of 84 .*layout.crop=42"),
    "pixels for sac": (["--env", "hopper_hop", "--agent", "sac", "--set", "task.pixels=true"], "reads state and task"),
    "streams": (["--env", "hopper_hop", "--agent", "sac", "--set", "replay.streams=2"], "replay.streams must be 1"),
    "a stack": (["--env", "hopper_hop", "--agent", "rad", "--set", "replay.stack=2"], "set task.stack, which"),
    "few neighbours": (
        ["--env", "hopper_hop", "--agent", "sac", "--bonus", "re3", "--set", "replay.capacity=3"],
        r"k=3 needs more of them than replay.capacity=3.*=4 or more, or --set bonus\.bonus\.k=2 or less",
    ),
    "a window": (
        ["--env", "hopper_hop", "--agent", "sac", "--set", "bonus.recent.density.window=0"],
        "last window=0 pairs.*choose 1 <= window",
    ),
    "a batch": (["--env", "hopper_hop", "--agent", "sac", "--set", "batch=0"], "at least 1 as batch, got 0"),
    "a bonus": (["--env", "hopper_hop", "--agent", "sac", "--bonus", "mad"], "no bonus 'mad' for control.*'made'"),
    "a gate": (["--env", "hopper_hop", "--agent", "sac", "--first-visit"], "--first-visit and --strength are for"),
    "devices": (["--env", "hopper_hop", "--agent", "sac", "--devices", "2"], "control tasks take --devices 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_told_in_a_sentence(case, capsys, tmp_path):
    words, sentence = REFUSED[case]
    assert main.main(["train", *words, "--out", str(tmp_path / "out")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("made: ")
    assert re.search(sentence, said), said


def test_pictures_that_cannot_be_drawn_are_told_before_anything_is_started(monkeypatch, capsys, tmp_path):
    def none():
        raise ValueError("Nothing can be rendered here.")

    monkeypatch.setattr(rendering, "choose", none)
    assert main.main(["train", "--env", "hopper_hop", "--agent", "rad", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "made: Nothing can be rendered here.\n"


@pytest.mark.parametrize(
    "free, where",
    [((2**31, 2**50), "3.0 GiB are needed on the device"), ((2**50, 2**31), "9.0 GiB are needed on the host")],
)
def test_a_replay_that_does_not_fit_is_refused_with_its_size(free, where, monkeypatch):
    asked = plan("sac").run
    monkeypatch.setattr(memory, "free", lambda: free[0])
    monkeypatch.setattr(memory, "free_on_host", lambda: free[1])
    says = (
        rf"64 steps needs 1.5 GiB for each of 2 seeds; {where}.* 2.0 GiB are free: train fewer --seeds or set .*\.\.\.$"
    )
    with pytest.raises(ValueError, match=says) as error:
        control_learner.require_memory(asked, 3 * 2**29, 2)  # type: ignore[arg-type]
    assert "replay.capacity=..." in str(error.value)
    assert "task.size" not in str(error.value), "from states there is no frame"
    with pytest.raises(ValueError, match="free: set a smaller"):
        control_learner.require_memory(asked, 2**33, 1)  # type: ignore[arg-type]
    assert control_learner.require_memory(asked, 2**29, 1) is None  # type: ignore[arg-type, func-returns-value]


def test_a_run_that_does_not_fit_is_refused_before_it_compiles(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(memory, "free", lambda devices=1: 2**20)
    monkeypatch.setattr(control_tasks, "ControlLearner", None)
    words = ("--env", "pendulum_swingup", "--agent", "sac", "--set", "replay.capacity=100000")
    assert main.main(["train", *words, "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(r"^made: A replay of 100,000 steps needs .* 1\.0 MiB are free: .*--set replay\.capacity=", line), (
        line
    )


def test_networks_and_bonus_are_counted_with_the_replay(monkeypatch):
    run = build("pendulum_swingup", "rad", "made", False, 0.1, None, ("replay.capacity=1000",))
    spec = run.task.spec(actions=1)
    rest = control_learner.memory_outside_replay(run, spec)
    state = jax.eval_shape(run.learner(spec).start, jax.random.key(0))
    assert rest == memory.size_of(state) - memory.size_of(state.replay) > 2**28  # features, networks, Adam's moments
    needed = 3 * (2**30 + rest)
    monkeypatch.setattr(memory, "free_on_host", lambda: None)
    monkeypatch.setattr(memory, "free", lambda: needed)
    control_learner.require_memory(run, 2**30, 3, rest)
    monkeypatch.setattr(memory, "free", lambda: needed - 1)
    says = f"1.0 GiB, and the networks and bonus {memory.in_words(rest)}, for each of 3 seeds; "
    with pytest.raises(ValueError, match=f"{re.escape(says)}.* device.* task.size"):
        control_learner.require_memory(run, 2**30, 3, rest)


def test_the_command_counts_steps_of_the_environment_and_takes_the_papers_temperatures():
    asked = Train(env="quadruped_run", agent="rad", seeds=2).plan()
    run = asked.run
    assert (run.iterations, run.every, asked.frames_per_update) == (125_000, 500, 4)
    assert (asked.evaluate_every, asked.checkpoint_every, asked.episodes, asked.keep) == (2500, 12_500, 10, 2)
    assert (run.seed_steps, run.batch, run.replay.capacity, run.replay.stack) == (10_000, 512, 100_000, 3)
    assert float(run.bonus_coef(1)) == pytest.approx(0.001)
    given = Train(env="walker_run_sparse", agent="sac", bonus="re3", bonus_coef=0.3, set=("replay.capacity=7",)).plan()
    assert float(given.run.bonus_coef(1000)) == pytest.approx(0.3) and given.run.replay.stack == 1
    for capacity in (7, 200_000):  # RE3's neighbours are the whole replay, unless its own memory was given
        words = {"env": "walker_run_sparse", "agent": "rad", "bonus": "re3", "set": (f"replay.capacity={capacity}",)}
        assert Train(**words).plan().configuration["bonus"]["bonus"]["bonus"]["capacity"] == capacity
    asked = Train(**words | {"set": (*words["set"], "bonus.bonus.bonus.capacity=50")}).plan()
    assert asked.configuration["bonus"]["bonus"]["bonus"]["capacity"] == 50
    assert given.configuration["replay"]["capacity"] == 7 and given.configuration["task"]["pixels"] is False
    assert json.loads(json.dumps(given.configuration)) == given.configuration


def test_the_bonus_coefs_are_the_papers_and_re3_decays():
    """Appendix B.4 for MADE, RND and ICM; RE3 as its authors start it."""
    found = {task: tuple(float(bonus_coef_for(task, m).value) for m in ("made", "rnd", "icm", "re3")) for task in TASKS}  # type: ignore[attr-defined]
    assert found == {
        "cartpole_swingup_sparse": (0.05, 10.0, 0.1, 0.05),
        "cheetah_run_sparse": (0.05, 0.1, 1.0, 0.05),
        "walker_run_sparse": (0.05, 0.05, 0.1, 0.05),
        "hopper_hop": (0.5, 0.05, 0.1, 0.05),
        "pendulum_swingup": (0.5, 0.1, 0.1, 0.25),
        "quadruped_run": (0.001, 0.05, 0.1, 0.05),
    }
    decays = {task: bonus_coef_for(task, "re3").rho for task in TASKS}  # type: ignore[attr-defined]
    assert decays == {task: 2.5e-5 if task == "walker_run_sparse" else 1e-5 for task in TASKS}
    assert float(bonus_coef_for("walker_run_sparse", "re3")(40_000)) == pytest.approx(
        0.05 / np.e, rel=5e-3
    )  # in float32
    assert float(bonus_coef_for("finger_spin", "icm")(1)) == pytest.approx(0.1)
    assert (
        float(bonus_coef_for("hopper_hop", "made-released")(1)) == 0.5
        and float(bonus_coef_for("hopper_hop", "none")(1)) == 0
    )
