"""Replays in the host's memory under `made train`: what is stored, drawn and learnt, going on, and where they fit."""

import dataclasses
import shutil
from typing import Any

import jax
import numpy as np
import pytest
from contracts.settings import TINY, rnd
from training import dreamer_test
from training.backends.control_test import ACTIONS, FIRST, SEEDS, beside, plan, small  # noqa: F401, a fixture
from training.resume_test import assert_equal, go, rows
from training.stopping import stopped
from training.together import take

from made.agents.sac.agent import SAC
from made.bonuses import RE3, NoBonus, Sum
from made.bonuses.replay_data import LastFrame
from made.core import Space, Spec, Transition, trees
from made.envs.control import Control
from made.training import checkpoint, replay, run_dir
from made.training.backends import control_tasks
from made.training.backends.control_learner import ControlLearner
from made.training.backends.host_replay import HostReplay
from made.training.config import TrainPlan
from made.training.off_policy import ReplayLearner
from made.training.replay import ReplayBuffer

HELD = 16  # steps: fewer than there are actions, so that old ones make room
STATE = Spec(Space((3,), np.float32), Space((1,), np.float32, None, -1.0, 1.0))


def asking(agent: str) -> TrainPlan:
    """The run of `controlled_test` with a replay that overflows, and points of RE3 that stand beside its steps."""
    asked = plan(agent)
    bonus = Sum((rnd(), RE3(**TINY, capacity=40)))
    run = dataclasses.replace(
        asked.run,
        replay=dataclasses.replace(asked.run.replay, capacity=HELD),  # type: ignore[attr-defined]
        bonus=LastFrame(bonus) if agent == "rad" else bonus,
    )
    return asked._replace(run=run)


@pytest.fixture(scope="module", params=["sac", "rad"])
def whole(request, tmp_path_factory):
    """(plan, programs, folder, end) of a run with its replays on the host, which nothing stopped."""
    if request.param == "rad":
        request.getfixturevalue("drawing")
    asked, out = asking(request.param), tmp_path_factory.mktemp(request.param)
    programs = control_tasks._programs(control_tasks.ControlBackend(asked, on_host=True))
    yield asked, programs, out, go(asked, programs, out)
    beside(programs).close()


def seeds_of(learners) -> list:
    """The learner of each seed."""
    if len(learners) == len(SEEDS):
        return list(learners)
    return [trees.index(learners[0], i) for i in range(len(SEEDS))]


def test_it_learns_and_the_replays_never_leave_the_host(whole):
    _, programs, out, end = whole
    assert all(isinstance(x, np.ndarray) for one in end.state.learners for x in jax.tree.leaves(one.replay))
    assert all(isinstance(x, jax.Array) for one in end.state.learners for x in jax.tree.leaves(one.agent))
    assert all("critic_loss" in line for line in rows(out)[2:])
    for one, start in zip(*map(seeds_of, (end.state.learners, beside(programs).learning.start())), strict=True):
        assert int(one.k) == ACTIONS - 1 - FIRST and int(one.replay.taken) == ACTIONS - 1
        pairs = zip(*(jax.tree.leaves((x.agent.actor, x.agent.critic)) for x in (start, one)), strict=True)
        assert any(not np.array_equal(*pair) for pair in pairs)


def test_what_is_kept_beside_a_replay_on_the_host_is_of_its_steps(whole):
    """RE3's point at each place is that of the step which stands there: shown at the start, or when it was fresh."""
    asked, _, _, end = whole
    for one in seeds_of(end.state.learners):
        state = one.bonus[1]
        at = np.arange(ACTIONS - 1 - HELD, ACTIONS - 1) % HELD
        seen = one.replay.frames[0][one.replay.at[0, at] % asked.run.replay.room[1]]  # type: ignore[attr-defined]
        points = jax.vmap(state.encoder)(seen)
        assert np.allclose(state.ring.items[at], points, atol=1e-5) and np.ptp(points, axis=0).max() > 1e-4


def test_a_run_goes_on_from_a_checkpoint_bit_for_bit(whole, tmp_path):
    asked, programs, out, end = whole
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    (tmp_path / run_dir.CHECKPOINTS / f"{ACTIONS:09d}.safetensors").unlink()
    last = go(asked, programs, tmp_path)  # the last row anew, from the checkpoint before it
    assert rows(tmp_path) == rows(out)
    assert_equal(end.state, last.state)


@pytest.mark.parametrize("whole", ["sac"], indirect=True)
def test_a_replay_in_the_middle_of_a_row_is_not_saved_and_a_run_is_the_same_twice(whole, tmp_path):
    """Before it learns no array on the device is taken over, which would tell that a row has begun."""
    asked, programs, out, end = whole
    with pytest.raises(KeyboardInterrupt), stopped(5, KeyboardInterrupt):  # in the second row, a step short of learning
        go(asked, programs, tmp_path)
    assert len(rows(tmp_path)) == len(SEEDS) and not checkpoint.files(tmp_path / run_dir.CHECKPOINTS)
    assert_equal(end.state, go(asked, programs, tmp_path).state)
    assert rows(tmp_path) == rows(out)


def test_a_checkpoint_can_be_gone_on_from_in_either_place(whole):
    asked, programs, out, end = whole
    spec = beside(programs).workers.spec
    there = ControlLearner(asked.run, spec, SEEDS)  # type: ignore[arg-type]
    like = beside(programs).like()._replace(learners=there.like())
    found = checkpoint.newest(out / run_dir.CHECKPOINTS)
    assert found is not None
    state = checkpoint.restore(found, like)
    assert all(isinstance(x, jax.Array) for one in state.learners for x in jax.tree.leaves(one.replay))
    assert_equal(state, end.state)


def test_the_same_actions_are_stored_as_on_the_device(whole):
    asked, programs, _, _ = whole
    run = dataclasses.replace(asked.run, seed_steps=2 * HELD)
    spec, blank = beside(programs).workers.spec, beside(programs).like().came
    ends, rng = [], np.random.default_rng(0)
    shown = rng.integers(0, 255, (HELD + 10, *blank.obs.shape)).astype(blank.obs.dtype)
    for on_host in (False, True):
        learning = ControlLearner(run, spec, SEEDS, on_host=on_host)  # type: ignore[arg-type]
        learners = learning.opened(learning.start())
        for t in range(1, HELD + 9):
            number, over = np.full(len(SEEDS), t, np.float32), np.full(len(SEEDS), t % 5 == 4)
            came = blank._replace(obs=shown[t], next_obs=shown[t + 1], reward=number, truncated=over)
            take(learning, learners, [None] * len(learners), came, t)
        learning.row(learners, [None], HELD)
        ends.append(learning.closed(learners))
    assert_equal(*ends)


def shelf(steps: int, as_lanes: bool = True) -> HostReplay:
    """The replays of two seeds after so many steps, whose rewards count them."""
    learner = ReplayLearner(STATE, SAC(), NoBonus(), replay=ReplayBuffer(HELD), batch=200)
    found = HostReplay(learner, SEEDS, as_lanes)
    found.open(found.blank())
    for t in range(steps):
        found.push(numbered(t))
    return found


def numbered(t: int) -> Transition:
    obs, one, off = np.full((2, 1, 1, 3), t, np.float32), np.full((2, 1, 1), t, np.float32), np.zeros((2, 1, 1), bool)
    reward = one + np.array([0, 100], np.float32)[:, None, None]
    return Transition(obs, one[..., None], reward, obs + 1, off, off)  # type: ignore[arg-type]


def test_a_batch_is_drawn_ahead_from_all_but_the_step_that_makes_room():
    one, other = shelf(40), shelf(40)
    one.look_ahead(41)
    ahead: Any = one.drawn(41)
    assert_equal(ahead, other.drawn(41))  # as a run that goes on draws it again
    for seed in range(2):
        rewards = np.asarray(ahead.batch.steps.reward[seed])
        assert set(rewards) == {100 * seed + t for t in range(40 - HELD + 1, 40)}
        assert np.array_equal(rewards % 100 % HELD, ahead.at[seed])  # the t-th step stands at t % HELD
    place = one.push(numbered(40))
    assert place.shape == (2, 1, 1) and (place == 40 % HELD).all() and not (np.asarray(ahead.at) == 40 % HELD).any()
    assert_equal(ahead, one.drawn(41))
    later: Any = one.drawn(42)
    assert not np.array_equal(later.at, ahead.at) and float(later.batch.steps.reward.max()) == 140
    assert not np.array_equal(later.at[0], later.at[1]), "seeds draw apart"
    one.open(other.held)
    assert float(one.drawn(42).batch.steps.reward.max()) == 139, "what was drawn from other replays is dropped"


def room(monkeypatch, device: int, host: int) -> None:
    for module in (control_tasks, replay):
        monkeypatch.setattr(module, "available", lambda on_host=False: host if on_host else device)
    monkeypatch.setattr(control_tasks.memory, "left_of_share", lambda: None)
    monkeypatch.delenv("MADE_REPLAY", raising=False)


def test_a_run_whose_replay_fits_on_the_host_alone_says_so_and_begins(monkeypatch, capsys):
    rest = control_tasks.memory_beside_replay(asking("sac").run, Control("pendulum_swingup", pixels=False).spec(1, 3))
    room(monkeypatch, len(asking("sac").seeds) * rest, 2**50)
    with control_tasks.prepared(asking("sac")) as programs:
        assert beside(programs).learning.on_host
        state: Any = programs.place(programs.begin())
        assert isinstance(state.learners[0].replay.at, np.ndarray)
    said = capsys.readouterr().err
    assert said == "made: the replay, 0.5 KiB a seed, does not fit on the device and stays on the host.\n"


GIB = 2**30
WHERE = {  # free on the device and the host, MADE_REPLAY; then what comes of two replays of one GiB
    "both": (2 * GIB, 6 * GIB, "", False),
    "the host": (2 * GIB - 1, 2 * GIB, "", "does not fit on the device and stays on the host"),
    "no room for copies": (2 * GIB, 2 * GIB, "", "which has no room for the copies that a checkpoint makes"),
    "nowhere": (2 * GIB - 1, 2 * GIB - 1, "", ValueError("2.0 GiB are needed on the device")),
    "asked for": (2 * GIB, 6 * GIB, "host", ""),
    "asked for in vain": (2 * GIB, 2 * GIB - 1, "host", ValueError("2.0 GiB are needed on the host, and")),
    "the device alone": (2 * GIB - 1, 6 * GIB, "device", ValueError("2.0 GiB are needed on the device")),
    "misspelt": (2 * GIB, 6 * GIB, "hots", ValueError("MADE_REPLAY is 'hots': set it to host or device")),
}


@pytest.mark.parametrize("case", WHERE)
def test_where_replays_are_kept(case, monkeypatch, capsys):
    device, host, wish, outcome = WHERE[case]
    room(monkeypatch, device, host)
    monkeypatch.setenv("MADE_REPLAY", wish)
    run = plan("sac").run
    if isinstance(outcome, ValueError):
        with pytest.raises(ValueError, match=str(outcome)):
            control_tasks.keeps_replay_on_host(run, GIB, 2)  # type: ignore[arg-type]
        return
    assert control_tasks.keeps_replay_on_host(run, GIB, 2) == (outcome is not False)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert (outcome in said and said.count("\n") == 1) if outcome else not said


def test_the_share_of_a_container_is_counted_and_dreamer_stays_on_the_device(monkeypatch):
    room(monkeypatch, GIB, 2**50)
    dreamer = dreamer_test.plan().run
    with pytest.raises(ValueError, match=r"2\.0 GiB are needed on the device"):
        control_tasks.keeps_replay_on_host(dreamer, 2 * GIB, 1)  # type: ignore[arg-type]
    monkeypatch.setattr(control_tasks.memory, "left_of_share", lambda: GIB)
    with pytest.raises(ValueError, match=r"2\.0 GiB are needed on the device"):
        control_tasks.keeps_replay_on_host(plan("sac").run, 2 * GIB, 1)  # type: ignore[arg-type]
    monkeypatch.setenv("MADE_REPLAY", "host")
    with pytest.raises(ValueError, match="MADE_REPLAY=host is for rad and sac"):
        control_tasks.keeps_replay_on_host(dreamer, GIB, 1)  # type: ignore[arg-type]
