"""What the plug-ins share: who waits to be learnt, the automatic scale, modes and schedules, going on from disk."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.adapters.reward_mixer import AutoScale, RewardMixer, StepBuffer
from made.bonuses import Calibrated, ConstantBonus, Count, FirstVisit, NoBonus, bonus_strength
from made.core import NoMemory, Space, Spec, Transition, schedules
from made.training.host.bonus import HostBonus

N = 2
SPACES = gymnasium.spaces.Discrete(6), gymnasium.spaces.Discrete(2)
OFF = np.zeros(N, bool)


class Goals(NoMemory):
    """A memory that shows goals, as AMIGo's does."""

    def goal(self, spec):
        return Space((), np.int32, 4)


def numbered(t):
    at = np.full(N, t)
    return Transition(at, at, at.astype(np.float32), at, OFF, OFF)


def test_waiting_steps_are_handed_on_in_order_each_once():
    waiting = StepBuffer(N)
    for t in range(5):
        waiting.add(numbered(t), ~OFF)
        batch = waiting.take(3)
        assert (batch is not None) == (t == 2)
        if batch is not None:
            assert batch.obs.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert [int(step.obs[0]) for step in waiting.steps] == [3, 4]


def test_steps_that_only_reset_are_left_out_and_nothing_true_is_lost():
    """Environment 1 resets at every third step, so it lags; each of its true steps is still learnt, in order."""
    waiting, learnt = StepBuffer(N), []
    for t in range(18):
        waiting.add(numbered(t), np.array([True, t % 3 != 2]))
        if (batch := waiting.take(4)) is not None:
            learnt.append(batch.obs)
    learnt = np.concatenate(learnt)
    assert learnt[:, 0].tolist() == list(range(12))
    assert learnt[:, 1].tolist() == [t for t in range(18) if t % 3 != 2]


def test_an_environment_that_never_steps_neither_fills_the_memory_nor_holds_up_the_others():
    waiting, learnt = StepBuffer(N), []
    for t in range(100):
        waiting.add(numbered(t), np.array([True, False]))
        if (batch := waiting.take(4)) is not None:
            assert batch.obs.shape == (8, 1) and batch.extras.lane.tolist() == [0] * 8
            learnt += batch.obs[:, 0].tolist()
        assert len(waiting.steps) == len(waiting.true) <= 16
    assert learnt + [int(step.obs[0]) for step in waiting.steps] == list(range(100))


def test_one_far_behind_is_learnt_with_the_others_and_each_step_once():
    waiting, learnt, given = StepBuffer(N), [], []
    for t in range(300):
        true = np.array([True, t % 2 == 0])
        given += [(t, i) for i in np.flatnonzero(true)]
        waiting.add(numbered(t), true)
        if (batch := waiting.take(4)) is not None:
            lanes = batch.extras.lane[:, None] if batch.extras else np.broadcast_to(np.arange(N), batch.obs.shape)
            learnt += [(int(t), int(i)) for t, i in zip(batch.obs.ravel(), lanes.ravel(), strict=True)]
        assert len(waiting.steps) <= 17
    left = [
        (int(x.obs[0]), i) for x, true in zip(waiting.steps, waiting.true, strict=True) for i in np.flatnonzero(true)
    ]
    assert sorted(learnt + left) == given and len(learnt) > 400


def test_an_episode_gets_the_strength_whatever_the_units_of_the_bonus():
    for unit in (1e-3, 50.0):
        scaled, rng = AutoScale(0.3, N), np.random.default_rng(0)
        earned, bonus = [], np.zeros(N)
        for t in range(4000):
            done = np.full(N, t % 20 == 19)
            raw = unit * rng.random(N)
            scaled.see(raw, np.zeros(N), done, ~OFF)
            bonus += scaled.scale() * raw
            earned += [*bonus] if done.any() else []
            bonus[done] = 0
        assert np.mean(earned[-100:]) == pytest.approx(0.3, rel=0.05)
    scaled.see(np.ones(N), np.full(N, 5.0), ~OFF, ~OFF)  # an episode of one step that was worth 5
    before = scaled.scale()
    scaled.see(np.ones(N), np.full(N, 10.0), ~OFF, ~OFF)
    assert scaled.seen.best == 10 and scaled.scale() > 1.5 * before


def test_the_factor_is_zero_without_a_bonus_and_uses_the_horizon():
    scaled = AutoScale(0.5, N, horizon=10)
    scaled.see(np.zeros(N), np.zeros(N), OFF, ~OFF)
    assert scaled.scale() == 0
    scaled.see(np.full(N, 2.0), np.zeros(N), OFF, ~OFF)
    assert scaled.scale() == pytest.approx(0.5 / (10 * 2.0 / (1 + 0.999)))
    with pytest.raises(ValueError, match="strength must be a number above 0"):
        AutoScale(0.0, N)


def test_the_strength_means_the_same_in_training_and_in_plug_ins():
    scaled = AutoScale(0.5, N, horizon=10)
    for _ in range(3):  # episodes of one step: the horizon counts, not their mean length
        scaled.see(np.full(N, 2.0), np.full(N, 4.0), ~OFF, ~OFF)
    assert bonus_strength(scaled.scale(), 2.0, 10, largest_return=4.0) == pytest.approx(0.5)
    bonus, n = Calibrated(ConstantBonus(), 0.5, warmup=2), jnp.zeros(8, int)
    batch = Transition(n, n, jnp.zeros(8), n, n > 0, n > 0, (), ())
    state = bonus.init(jax.random.key(0), Spec(Space((), np.int32, 6), Space((), np.int32, 2), horizon=10))
    state, _ = bonus.update(state, batch, jax.random.key(1))
    assert bonus_strength(1.0, float(bonus.reward(state, batch).mean()), 10) == pytest.approx(0.5)


def paid_walk(payer, steps, seed=0):
    """What a payer pays for a random walk whose episodes end now and then."""
    rng, host, out = np.random.default_rng(seed), payer.host, []
    for _ in range(steps):
        obs, after, first = rng.integers(0, 6, (3, N))
        ended = rng.random(N) < 0.2
        step = host.observe(obs, obs % 2, np.ones(N), after, ended, OFF, first)
        out.append(payer.pay(step, np.ones(N)))
    return out


def test_modes_and_schedules():
    paid = {}
    for mode in ("both", "intrinsic", "extrinsic"):
        host = HostBonus(Count(power=0.5), *SPACES, N)
        host.reset(np.zeros(N, int))
        paid[mode] = paid_walk(RewardMixer(host, coef=schedules.Power(2.0, 1.0), mode=mode, every=4), 12)
    for both, intrinsic, extrinsic in zip(*paid.values(), strict=True):
        assert np.array_equal(both.intrinsic, intrinsic.intrinsic) and both.intrinsic.any()
        assert np.array_equal(both.reward, 1 + both.intrinsic) and np.array_equal(intrinsic.reward, both.intrinsic)
        assert np.array_equal(extrinsic.reward, np.ones(N)) and np.array_equal(extrinsic.extrinsic, np.ones(N))
    assert paid["both"][0].intrinsic.tolist() == [2, 2] and max(paid["both"][4].intrinsic) <= 1  # coef / k, k = 2


def test_a_payer_goes_on_from_disk_as_if_nothing_had_happened(tmp_path):
    def new(seed):
        host = HostBonus(FirstVisit(Count(power=0.5)), *SPACES, N, seed)
        host.reset(np.zeros(N, int))
        return RewardMixer(host, every=4, strength=0.3)

    one, other = new(0), new(1)
    paid_walk(one, 10)  # two updates, and two steps that wait
    one.save(tmp_path / "payer")
    other.load(tmp_path / "payer")
    assert other.updates == 2 and len(other.waiting.steps) == 2
    for a, b in zip(paid_walk(one, 9, seed=5), paid_walk(other, 9, seed=5), strict=True):
        assert np.array_equal(a.reward, b.reward) and np.array_equal(a.intrinsic, b.intrinsic)
    assert one.updates == other.updates == 4
    with pytest.raises(ValueError, match="holds = 'plug-in', but here it is 'bonus'"):
        one.host.load(tmp_path / "payer")
    one.host.save(tmp_path / "alone")
    with pytest.raises(ValueError, match="holds = 'bonus', but here it is 'plug-in'"):
        one.load(tmp_path / "alone")
    with pytest.raises(ValueError, match=r"strength = 0\.3, but here it is None"):
        RewardMixer(HostBonus(FirstVisit(Count(power=0.5)), *SPACES, N), every=4).load(tmp_path / "payer")


def test_wrong_settings_are_refused():
    host = HostBonus("none", *SPACES, N)
    with pytest.raises(ValueError, match="mode is 'both', 'intrinsic' or 'extrinsic', not 'sum'"):
        RewardMixer(host, mode="sum")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every must be at least 1"):
        RewardMixer(host, every=0)
    with pytest.raises(ValueError, match="NoBonus shows goals to the policy"):
        RewardMixer(HostBonus(NoBonus(memory=Goals()), *SPACES, N))
