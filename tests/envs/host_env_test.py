"""Tasks of other libraries by name, and EnvPool's grids with their last observations and their fresh starts."""

import sys
import types
from typing import ClassVar

import gymnasium
import jax
import numpy as np
import pytest

from made.agents import PPO
from made.agents.policy_net import LAYOUTS
from made.bonuses import NoBonus
from made.core import trees
from made.envs import host_env
from made.envs.host_env import Hosted, hosted
from made.envs.host_grids import Changes, EnvPoolGrids, pool_task
from made.training.host.bonus import HostBonus, HostEnvironment, HostRollout

N = 3


def test_a_task_of_another_library_goes_by_its_source_and_name():
    rooms = Hosted("gym", "MiniGrid-MultiRoom-N7-S8-v0")
    for name in ("MultiRoom-N7-S8", "MultiRoom-N7-S8-v0", "MiniGrid-MultiRoom-N7-S8-v0"):
        assert hosted(f"gym:{name}") == rooms
    assert rooms.spec.horizon == 140 and sorted(rooms.spec.obs) == ["hash", "image"]
    pole = hosted("gym:CartPole-v1")
    assert pole is not None and pole.spec.horizon == 500 and pole.spec.obs.shape == (4,)
    assert hosted("MultiRoom-N7-S8") is None and hosted("tabular:lock") is None


def test_what_cannot_be_made_is_refused_with_a_sentence(monkeypatch):
    with pytest.raises(ValueError, match=r"no task 'MiniGrid-MultiRoom-N6-v7'.*Did you mean"):
        hosted("gym:MiniGrid-MultiRoom-N6-v7").spec  # noqa: B018
    with pytest.raises(ValueError, match=r"Gymnasium cannot make 'CartPool-v1'"):
        hosted("gym:CartPool-v1").spec  # noqa: B018
    with pytest.raises(ValueError, match="gym:CartPole-v1 cannot be compiled"):
        Hosted("gym", "CartPole-v1").reset(jax.random.key(0))
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ValueError, match="pip install envpool"):
        hosted("envpool:Empty-5x5").vector(1)
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(ValueError, match=r"pip install -e .\.\[grid\]"):
        host_env._gym("MiniGrid-Empty-5x5-v0", 1)


class Recorder(gymnasium.Env):
    """Remembers the actions that it was given; each of its episodes has four steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(np.array([-1, -3], np.float32), np.array([2, 1], np.float32))
    taken: ClassVar[list] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.taken.append(np.array(action))
        self.t += 1
        return self.observation_space.sample(), 0.0, False, self.t == 4, {}


def test_ppo_acts_within_the_bounds_of_each_continuous_entry():
    venv = gymnasium.vector.SyncVectorEnv([Recorder] * 3, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
    env, agent = HostEnvironment(venv), PPO(LAYOUTS["small"], minibatches=3)
    assert (env.spec.action.low, env.spec.action.high) == (-3.0, 2.0)
    state = agent.init(jax.random.key(0), env.spec)
    batch = HostRollout(env, agent, HostBonus(NoBonus(), env.spec, 3)).collect(state, 20)
    taken = np.array(Recorder.taken).reshape(20, 3, 2)
    assert (
        (batch.action == taken).all() and (taken == [-1, -3]).any((0, 1)).all() and (taken == [2, 1]).any((0, 1)).all()
    )
    assert bool(batch.truncated[3].all())
    after, metrics = agent.update(state, batch, lambda b: b.reward + b.action[..., 0], jax.random.key(0))
    assert int(after.k) == 1 and np.isfinite(float(metrics["loss"]))


def test_unequal_numbers_of_choices_are_an_error():
    class Uneven(Recorder):
        action_space = gymnasium.spaces.MultiDiscrete([2, 3])

    gymnasium.register("Uneven-v0", entry_point=Uneven)
    with pytest.raises(ValueError, match=r"gym:Uneven-v0 has MultiDiscrete actions of unequal sizes \[2, 3\]"):
        Hosted("gym", "Uneven-v0").spec  # noqa: B018
    del gymnasium.registry["Uneven-v0"]


class Pool:
    """EnvPool as it behaves: an ended environment is begun again by the next step, or at once by reset(ids).

    Episode e of environment i lasts i + 2 steps; its view holds 10 i + e, its position (e, step).
    """

    config, action_space = {"max_episode_steps": 9}, gymnasium.spaces.Discrete(7)
    observation_space = gymnasium.spaces.Dict({"image": gymnasium.spaces.Box(0, 255, (2, 2, 3), np.uint8)})

    def __init__(self, n, seed):
        self.n, self.seed, self.episode, self.t = n, seed, np.full(n, seed - 1), np.zeros(n, int)
        self.over = np.zeros(n, bool)

    def reset(self, ids=None):
        ids = np.arange(self.n) if ids is None else ids
        self.episode[ids] += 1
        self.t[ids], self.over[ids] = 0, False
        return self._told(ids[::-1])  # in whatever order

    def _told(self, ids):
        obs = {"image": np.zeros((len(ids), 2, 2, 3), np.uint8), "direction": np.zeros(len(ids), np.int32)}
        obs["image"] += (10 * ids + self.episode[ids]).astype(np.uint8)[:, None, None, None]
        return obs, {"env_id": ids, "agent_pos": np.stack([self.episode[ids], self.t[ids]], 1)}

    def step(self, action):
        assert not self.over.any(), "an ended environment was stepped before it was begun again"
        self.t += 1
        self.over = self.t == np.arange(self.n) + 2
        obs, info = self._told(np.arange(self.n))
        return obs, self.over.astype(np.float32), self.over, np.zeros(self.n, bool), info


@pytest.fixture
def pool(monkeypatch):
    made = []

    def make_gymnasium(task, num_envs, seed, **options):
        made.append((task, seed, options))
        return Pool(num_envs, seed)

    names = ["MiniGrid-Empty-5x5-v0", "MiniGrid-MultiRoom-N6-v0", "Pong-v5"]
    fake = types.SimpleNamespace(make_gymnasium=make_gymnasium, list_all_envs=lambda: names)
    monkeypatch.setitem(sys.modules, "envpool", fake)
    return made


def test_ended_environments_of_envpool_begin_again_at_once(pool):
    envs = EnvPoolGrids("MiniGrid-Empty-5x5-v0", N)
    obs, _ = envs.reset(seed=4)
    assert obs["image"][:, 0, 0, 0].tolist() == [4, 14, 24]
    steps = [envs.step(np.zeros(N, int)) for _ in range(6)]
    ended = [step[2].nonzero()[0].tolist() for step in steps]
    assert ended == [[], [0], [1], [0, 2], [], [0, 1]]
    for obs, reward, terminated, truncated, info in steps:
        done = terminated | truncated
        assert reward.tolist() == done.astype(float).tolist() and ("final_obs" in info) == done.any()
        for i in np.flatnonzero(done):
            last = info["final_obs"][i]
            assert last["image"][0, 0, 0] + 1 == obs["image"][i, 0, 0, 0], "the last view, and the first of the next"
            assert not np.array_equal(last["hash"], obs["hash"][i])


def test_a_state_of_envpool_is_told_by_pose_and_view(pool):
    envs = EnvPoolGrids("MiniGrid-Empty-5x5-v0", N)
    envs.reset(seed=0)
    obs, *_ = envs.step(np.zeros(N, int))
    position, view = np.array([0, 1]), np.full((2, 2, 3), 10, np.uint8)
    nothing = np.zeros(2, np.uint32)
    assert np.array_equal(obs["hash"][1], trees.digest((position, np.int32(0), view, nothing)))


def test_what_was_changed_out_of_sight_tells_states_of_envpool_apart():
    changes, door, ball = Changes(), b"door", b"ball"
    assert not changes.hash.any()
    changes.see((1, 2), door, b"open")
    opened = changes.hash
    changes.see((3, 4), ball, b"")
    both = changes.hash
    changes.see((1, 2), b"open", door)
    taken = changes.hash
    assert len({tuple(x) for x in (opened, both, taken, np.zeros(2))}) == 4
    changes.see((3, 4), b"", ball)
    assert not changes.hash.any(), "all is as it was"


def test_envpool_is_given_seeds_when_it_is_made_and_any_number_of_rooms(pool):
    with pytest.warns(UserWarning, match="most have no way to the goal"):
        EnvPoolGrids("MiniGrid-MultiRoom-N4-S5-v1", N).reset(seed=11)
    task, seed, options = pool[-1]
    assert (task, seed) == ("MiniGrid-MultiRoom-N6-v0", 11)
    assert options == {"min_num_rooms": 4, "max_num_rooms": 4, "max_room_size": 5, "max_episode_steps": 80}
    with pytest.raises(ValueError, match=r"no MiniGrid task 'MiniGrid-Empty-5x5'.*Did you mean"):
        pool_task("MiniGrid-Empty-5x5")


def test_a_door_that_the_real_envpool_opened_is_remembered_behind_the_agent():
    pytest.importorskip("envpool", reason="EnvPool is not installed")
    with pytest.warns(UserWarning, match="most have no way to the goal"):
        envs, rng = hosted("envpool:MultiRoom-N2-S4").vector(1).venv, np.random.default_rng(0)
    obs, _ = envs.reset(seed=0)
    while obs["image"][0, 3, 5].tolist()[::2] != [4, 1]:  # a closed door ahead
        obs, *_ = envs.step(rng.integers(0, 3, 1))

    def seen(*actions):
        for action in actions:
            obs, *_ = envs.step(np.array([action]))
        return obs["image"].tolist(), obs["hash"].tolist()

    (view, before), (same, opened) = seen(0, 0), seen(1, 1, 5, 0, 0)  # turned away; back, open it, turned away
    assert view == same and before != opened
    assert seen(1, 1, 5, 0, 0) == (view, before), "closed again"


def test_the_real_envpool_pays_and_ends_as_the_package_does():
    pytest.importorskip("envpool", reason="EnvPool is not installed")
    envs, rng = hosted("envpool:Empty-5x5").vector(16).venv, np.random.default_rng(0)
    first, _ = envs.reset(seed=5)
    length, won = np.zeros(16), 0
    for _ in range(300):
        _, reward, terminated, truncated, info = envs.step(rng.integers(0, 7, 16))
        length += 1
        done = terminated | truncated
        np.testing.assert_allclose(reward[terminated], 1 - 0.9 * length[terminated] / 100, rtol=1e-5)
        assert (length[truncated & ~terminated] == 100).all() and ("final_obs" in info) == done.any()
        won += int(terminated.sum())
        length[done] = 0
    again, _ = envs.reset(seed=5)
    assert won > 0 and all(np.array_equal(first[part], again[part]) for part in first)


def test_the_real_envpool_draws_rooms_without_a_way():
    """If this fails, EnvPool has mended its MultiRoom: the warning and docs/training.md are to be changed."""
    envpool = pytest.importorskip("envpool", reason="EnvPool is not installed")
    envs = envpool.make_gymnasium("MiniGrid-MultiRoom-N6-v0", num_envs=30, seed=11, render_mode="rgb_array")
    _, info = envs.reset()
    solvable = 0
    for i, (x, y) in enumerate(info["agent_pos"]):
        cells = np.asarray(envs.render(env_ids=np.array([i]))).reshape(25, 32, 25, 32, 3)[:, 13, :, 13].astype(int)
        free, goal = ~(np.abs(cells - 100).max(-1) < 5), (cells == [0, 255, 0]).all(-1)  # all but walls, which are grey
        reached = np.zeros((25, 25), bool)
        reached[y, x] = True
        for _ in range(200):
            wide = np.pad(reached, 1)
            reached = free & (reached | wide[:-2, 1:-1] | wide[2:, 1:-1] | wide[1:-1, :-2] | wide[1:-1, 2:])
        solvable += int(reached[goal].all())
    assert goal.sum() == 1 and 5 < solvable < 20
