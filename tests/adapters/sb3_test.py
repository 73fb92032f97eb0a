"""Stable-Baselines3: tiny real runs of PPO, DQN and SAC, each number against HostBonus on the same transitions."""

import importlib
import pickle
import sys
import tomllib
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecTransposeImage

import made.adapters.gymnasium
from made.adapters.sb3 import BonusReplayBuffer, BonusVecEnv, GymVecEnv, grid_envs
from made.bonuses import Count, FirstVisit, HashedCount
from made.core.plugins import needs
from made.core.trees import stack
from made.envs.host_env import replace_rows
from made.envs.host_grids import package_envs
from made.training.host.bonus import HostBonus

N, EVERY = 3, 8
LAKE = {"is_slippery": False, "max_episode_steps": 6}
TABLE = gymnasium.spaces.Discrete(16), gymnasium.spaces.Discrete(4)


def bonus():
    return FirstVisit(Count(power=0.5))


def lakes(n=N, seed=0):
    return make_vec_env("FrozenLake-v1", n, seed=seed, env_kwargs=LAKE)


def random_steps(venv, steps, seed=0):
    """First observations, then (action, what step returned) for each step."""
    rng, out = np.random.default_rng(seed), []
    first = venv.reset()
    for _ in range(steps):
        action = rng.integers(0, venv.action_space.n, venv.num_envs)
        out.append((action, venv.step(action)))
    return first, out


class Dots(gymnasium.Env):
    """Two steps an episode; images count up, so that every one can be told from the others."""

    observation_space = gymnasium.spaces.Box(0, 255, (8, 6, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, parts=False):
        self.t, self.parts = 0, parts
        if parts:
            self.observation_space = gymnasium.spaces.Dict(
                {"image": Dots.observation_space, "way": gymnasium.spaces.Discrete(4)}
            )

    def seen(self):
        image = np.full((8, 6, 3), self.t % 250, np.uint8)
        image[..., 1] = 7
        return {"image": image, "way": self.t % 4} if self.parts else image

    def reset(self, *, seed=None, options=None):
        self.t = self.t + 1 - self.t % 2  # the first picture of an episode is odd
        return self.seen(), {}

    def step(self, action):
        self.t += 1
        return self.seen(), 1.0, self.t % 4 == 0, self.t % 4 == 2, {}


def test_ppo_trains_and_every_payment_equals_the_host_bonus_s():
    """A real run is recorded from inside; HostBonus in a plain loop gives the same intrinsic part at every step."""

    class Recorder(DummyVecEnv):
        def step_wait(self):
            out = super().step_wait()
            tape.append((np.array(self.actions), *jax.tree.map(np.array, out[:3]), [dict(x) for x in out[3]]))
            return out

    tape, paid = [], []

    class Watch(BaseCallback):
        def _on_step(self):
            paid.append([dict(info) for info in self.locals["infos"]])
            rewards.append(np.array(self.locals["rewards"]))
            return True

    rewards = []
    venv = VecMonitor(Recorder([lambda: gymnasium.make("FrozenLake-v1", **LAKE)] * N))
    whole = BonusVecEnv(venv, bonus(), coef=0.25, every=EVERY)
    model = PPO("MlpPolicy", whole, n_steps=16, batch_size=24, n_epochs=1, gamma=0.9, seed=0, device="cpu")
    model.learn(96, callback=Watch())
    host = HostBonus(bonus(), *TABLE, N)
    obs, steps, ends = np.zeros(N, int), [], 0  # the lake starts in its corner
    host.reset(obs)
    for (action, after, reward, done, infos), told, given in zip(tape, paid, rewards, strict=True):
        truncated = np.array([info.get("TimeLimit.truncated", False) for info in infos]) & done
        successor = np.where(done, [info.get("terminal_observation", 0) for info in infos], after)
        steps.append(host.observe(obs, action, reward, successor, done & ~truncated, truncated, after))
        expected = np.float32(0.25) * host.reward(steps[-1])
        assert [info["intrinsic"] for info in told] == expected.tolist()
        assert [info["extrinsic"] for info in told] == reward.tolist()
        bootstrap = given - (reward + expected)  # SB3 adds gamma V(last observation) where the clock ran out
        assert (np.abs(bootstrap[~truncated]) < 1e-6).all()
        for i in np.flatnonzero(done):
            assert told[i]["episode"]["r"] in (0.0, 1.0)  # VecMonitor inside: the lake's own return
            ends += 1
        if len(steps) == EVERY:
            host.update(stack(steps))
            steps = []
        obs = after
    assert len(tape) == 32 and ends > 10 and np.array_equal(whole.bonus.state, host.state)
    assert [len(x) for x in (paid, rewards)] == [32, 32] and host.state.sum() == 96


def test_a_monitor_inside_does_not_see_the_bonus_and_modes_choose_the_pay():
    plain = [x[1] for x in random_steps(lakes(), 30)[1]]
    for mode in ("both", "intrinsic", "extrinsic"):
        paid = [x[1] for x in random_steps(BonusVecEnv(lakes(), bonus(), mode=mode, every=EVERY), 30)[1]]
        for (obs, reward, done, infos), (seen, given, ended, told) in zip(plain, paid, strict=True):
            assert np.array_equal(obs, seen) and np.array_equal(done, ended)
            intrinsic = np.array([info["intrinsic"] for info in told], np.float32)
            total = {"both": reward + intrinsic, "intrinsic": intrinsic, "extrinsic": reward}[mode]
            assert np.array_equal(given, total)
            for info, other in zip(infos, told, strict=True):
                assert ("episode" in info) == ("episode" in other) == ("episode_intrinsic" in other)
                assert "episode" not in info or info["episode"]["r"] == other["episode"]["r"]


def test_saved_beside_the_model_and_loaded_it_goes_on_the_same(tmp_path):
    venvs = [BonusVecEnv(lakes(), bonus(), strength=0.3, every=EVERY, seed=s) for s in (0, 5)]
    model = PPO("MlpPolicy", venvs[0], n_steps=8, batch_size=24, n_epochs=1, seed=0, device="cpu").learn(72)
    model.save(tmp_path / "model")
    venvs[0].save(tmp_path / "bonus.safetensors")
    venvs[1].load(tmp_path / "bonus.safetensors")
    again = PPO.load(tmp_path / "model", env=venvs[1], device="cpu")
    assert again.num_timesteps == 72 and venvs[1].metrics == {} and "coefficient" in venvs[0].metrics
    runs = []
    for venv in venvs:
        venv.seed(11)
        runs.append([step[1] for _, step in random_steps(venv, 20)[1]])
    assert np.array_equal(*runs)


def test_what_the_policy_is_shown(tmp_path):
    grid = lambda: GymVecEnv(  # noqa: E731
        gymnasium.make_vec("made/MiniGrid-Empty-5x5-v0", num_envs=2, shows=("image", "direction", "hash"))
    )
    every_part = BonusVecEnv(grid(), FirstVisit())
    assert set(every_part.observation_space.spaces) == set(every_part.reset()) == {"image", "direction"}
    venv = BonusVecEnv(grid(), FirstVisit(), show="image", horizon=100)
    first, steps = random_steps(venv, 110)
    assert venv.observation_space.shape == (7, 7, 3) and first.shape == (2, 7, 7, 3)
    last = [info["terminal_observation"] for _, (*_, infos) in steps for info in infos if "episode" in info]
    assert last and all(x.shape == (7, 7, 3) for x in last)
    ends = [info for _, (*_, infos) in steps for info in infos if "episode" in info]
    assert all(info["episode"]["l"] <= 100 and "TimeLimit.truncated" in info for info in ends)
    assert made.adapters.gymnasium.PREFIX == "made/"


def test_channels_first_images_are_turned_for_the_bonus():
    """The counts of a bonus are the same, whichever way SB3 turned the images."""
    make = lambda: DummyVecEnv([Dots] * 2)  # noqa: E731
    exact = FirstVisit(HashedCount(bits=8))
    venvs = BonusVecEnv(make(), exact, every=4), BonusVecEnv(VecTransposeImage(make()), exact, every=4)
    assert venvs[1].observation_space.shape == (3, 8, 6) and venvs[1].bonus.spec.obs.shape == (8, 6, 3)
    paid = [[step[1] for _, step in random_steps(venv, 12)[1]] for venv in venvs]
    assert np.array_equal(*paid) and np.array_equal(venvs[0].bonus.state.counts, venvs[1].bonus.state.counts)


@pytest.mark.parametrize("parts", [False, True], ids=["box", "dict"])
def test_replay_pays_old_transitions_by_the_present_bonus(parts):
    """Every transition that DQN stored comes out with its true successor and the bonus of the state as it is now."""
    options = {"bonus": FirstVisit(HashedCount(bits=20)), "coef": 0.5, "every": 4, "horizon": 4}
    policy = "MultiInputPolicy" if parts else "MlpPolicy"
    model = DQN(
        policy, DummyVecEnv([lambda: Dots(parts)] * 2), replay_buffer_class=BonusReplayBuffer, buffer_size=64,
        replay_buffer_kwargs=options, learning_starts=20, train_freq=4, batch_size=8, seed=0, device="cpu",
        policy_kwargs={"net_arch": [8], "normalize_images": False, **flat_images(parts)},
    )  # fmt: skip
    model.learn(48)
    buffer = model.replay_buffer
    assert isinstance(buffer, BonusReplayBuffer) and buffer.payer.updates == 6 and buffer.pos == 24
    np.random.seed(0)
    drawn = buffer.sample(200)
    image = lambda x: (x["image"] if parts else x).numpy()[:, 0, 0, 0]  # noqa: E731, channels first: SB3 turned them
    before, after = image(drawn.observations), image(drawn.next_observations)
    assert (after == before + 1).all() and (after % 2 == 0).all() and (before % 2 == 1).all()  # no reset picture
    counts = np.asarray(buffer.bonus.state.counts)
    assert counts.sum() == 48 and counts.max() == 2  # two environments, 24 steps, each picture seen once in each
    expected = 1 + 0.5 * 2**-0.5  # first in its episode, and seen twice by now
    assert drawn.rewards.shape == (200, 1) and np.allclose(drawn.rewards.numpy(), expected)
    ended = after % 4 == 0
    assert np.array_equal(drawn.dones.numpy()[:, 0].astype(bool), ended)  # the clock's ends are not the task's


def flat_images(parts):
    """SB3's CNN wants larger pictures than these."""
    from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor

    class Flat(CombinedExtractor):
        def __init__(self, space, **kwargs):
            super().__init__(gymnasium.spaces.Dict({"way": space["way"]}), **kwargs)

    return {"features_extractor_class": Flat if parts else FlattenExtractor}


def test_replay_of_an_episodic_bonus_keeps_the_notes_of_each_transition():
    buffer = BonusReplayBuffer(16, *TABLE, "cpu", 2, bonus="first-visit", every=4)
    path = [0, 1, 1, 2, 0]
    for t in range(4):
        at, to = np.full(2, path[t]), np.full(2, path[t + 1])
        buffer.add(at, to, np.zeros(2, int), np.zeros(2), np.zeros(2, bool), [{}, {}])
    drawn = buffer.sample(100)
    steps = {
        (int(a), int(b)): float(r)
        for a, b, r in zip(drawn.observations, drawn.next_observations, drawn.rewards, strict=True)
    }
    assert steps == {(0, 1): 1.0, (1, 1): 0.0, (1, 2): 1.0, (2, 0): 0.0}
    buffer.add(np.full(2, 0), np.full(2, 1), np.zeros(2, int), np.zeros(2), np.ones(2, bool), [{}, {}])
    buffer.add(np.full(2, 4), np.full(2, 1), np.zeros(2, int), np.zeros(2), np.zeros(2, bool), [{}, {}])
    last = buffer.bonus.reward(buffer.payer.waiting.steps[-1])
    assert last.tolist() == [1.0, 1.0]  # a new episode began with 4, so 1 is new again


def test_sac_takes_the_buffer_too_and_the_bonus_is_saved_beside_it(tmp_path):
    from made.bonuses.rnd import RND

    model = SAC(
        "MlpPolicy", "Pendulum-v1", replay_buffer_class=BonusReplayBuffer, buffer_size=50, learning_starts=20,
        batch_size=8, seed=0, device="cpu", policy_kwargs={"net_arch": [8]},
        replay_buffer_kwargs={"bonus": RND(embedding=4, width=8), "every": 10, "mode": "intrinsic"},
    )  # fmt: skip
    model.learn(24)
    buffer = model.replay_buffer
    drawn = buffer.sample(5)
    assert (drawn.rewards >= 0).all() and buffer.payer.updates == 2  # Pendulum's own rewards are below 0
    buffer.save(tmp_path / "bonus")
    other = BonusReplayBuffer(
        50, model.observation_space, model.action_space, "cpu", bonus=RND(embedding=4, width=8), seed=3
    )
    other.load(tmp_path / "bonus")
    assert jax.tree.all(jax.tree.map(np.array_equal, buffer.bonus.state, other.bonus.state))
    with pytest.raises(ValueError, match="is not pickled"):
        pickle.dumps(buffer)  # as model.save_replay_buffer does


def filled(parts, steps, seed=0, size=12):
    """A buffer that two environments have filled."""
    venv = DummyVecEnv([lambda: Dots(parts)] * 2)
    options = {"bonus": FirstVisit(HashedCount(bits=8)), "every": 4, "horizon": 4, "seed": seed}
    buffer = BonusReplayBuffer(size, venv.observation_space, venv.action_space, "cpu", 2, **options)
    go_on(buffer, venv, venv.reset(), steps)
    return buffer


def go_on(buffer, venv, obs, steps):
    for t in range(steps):
        action = np.full(2, t % 2)
        after, reward, done, infos = venv.step(action)
        last = [info["terminal_observation"] if d else None for info, d in zip(infos, done, strict=True)]
        buffer.add(obs, replace_rows(after, last, done) if done.any() else after, action, reward, done, infos)
        obs = after
    return obs


def sampled(buffer):
    np.random.seed(3)
    return jax.tree.map(np.asarray, tuple(buffer.sample(50)))


@pytest.mark.parametrize("parts", [False, True], ids=["box", "dict"])
@pytest.mark.parametrize("steps", [0, 5, 17], ids=["empty", "begun", "full"])
def test_a_buffer_and_its_bonus_come_back_together(parts, steps, tmp_path):
    one, other = filled(parts, steps), filled(parts, 4, seed=9)
    one.save(tmp_path / "buffer")
    other.load(tmp_path / "buffer")
    assert (other.pos, other.full, other.size()) == (one.pos, one.full, one.size())
    ways = [DummyVecEnv([lambda: Dots(parts)] * 2) for _ in range(2)]
    if steps:
        assert jax.tree.all(jax.tree.map(np.array_equal, sampled(one), sampled(other)))
    for buffer, way in zip((one, other), ways, strict=True):
        go_on(buffer, way, way.reset(), 9)
    assert jax.tree.all(jax.tree.map(np.array_equal, sampled(one), sampled(other)))
    assert jax.tree.all(jax.tree.map(np.array_equal, one.bonus.state, other.bonus.state))
    assert one.payer.updates == other.payer.updates


def test_a_buffer_of_another_size_or_a_bonus_alone_is_refused(tmp_path):
    buffer = filled(False, 5)
    buffer.save(tmp_path / "buffer")
    with pytest.raises(ValueError, match="buffer_size = 6, but here it is 10"):
        filled(False, 5, size=20).load(tmp_path / "buffer")
    buffer.payer.save(tmp_path / "alone")
    with pytest.raises(ValueError, match="holds = 'plug-in', but here it is 'replay buffer'"):
        buffer.load(tmp_path / "alone")


def test_an_episode_that_is_left_in_the_middle_is_a_new_one_for_the_bonus():
    """As at a second call of `learn`, which resets the environments: the start is no longer among what was visited."""
    buffer = BonusReplayBuffer(16, *TABLE, "cpu", 2, bonus="first-visit", every=4)
    for at, to in ((0, 1), (1, 2), (5, 1), (1, 2)):
        buffer.add(*(np.full(2, x) for x in (at, to, 0)), np.zeros(2), np.zeros(2, bool), [{}, {}])
    drawn = buffer.sample(100)
    assert (drawn.rewards == 1).all()


def test_what_cannot_work_is_refused():
    class Forgetful(DummyVecEnv):
        def step_wait(self):
            obs, reward, done, infos = super().step_wait()
            return obs, reward, done, [{} for _ in infos]

    venv = BonusVecEnv(Forgetful([lambda: gymnasium.make("FrozenLake-v1", **LAKE)]), bonus())
    with pytest.raises(ValueError, match="true successor is lost"):
        random_steps(venv, 10)
    with pytest.raises(ValueError, match="There is no part 'image' to read"):
        BonusVecEnv(lakes(), bonus(), show="image")
    with pytest.raises(ValueError, match="optimize_memory_usage keeps the first observation"):
        BonusReplayBuffer(8, *TABLE, bonus="none", optimize_memory_usage=True, handle_timeout_termination=False)
    with pytest.raises(ValueError, match="GymVecEnv needs SAME_STEP"):
        GymVecEnv(gymnasium.make_vec("made/MiniGrid-Empty-5x5-v0", 2, autoreset_mode=AutoresetMode.NEXT_STEP))


@pytest.mark.parametrize("name", ["sb3", "sb3_replay"])
def test_without_the_extra_an_import_says_what_to_install(name, monkeypatch):
    for module in [module for module in sys.modules if module.split(".")[0] == "stable_baselines3"]:
        monkeypatch.setitem(sys.modules, module, None)
    for module in [module for module in sys.modules if module.startswith("made.adapters.sb3")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ImportError, match=r"needs stable_baselines3: pip install -e \"\.\[sb3\]\"") as caught:
        importlib.import_module(f"made.adapters.{name}")
    assert isinstance(caught.value, ValueError)


def test_the_package_s_tasks_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    for make in (grid_envs, package_envs):
        with pytest.raises(ImportError, match=r"needs minigrid: pip install -e \"\.\[grid\]\""):
            make("MiniGrid-Empty-5x5-v0", 2)


def test_an_import_that_fails_inside_an_installed_library_is_not_hidden():
    with pytest.raises(ModuleNotFoundError, match="another"), needs("x", "sb3", "stable_baselines3"):
        raise ModuleNotFoundError("No module named 'another'", name="another")


def test_the_extra_does_not_pin_torch_and_the_tests_do():
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    torch = {name: [one for one in extras[name] if one.startswith("torch")] for name in ("sb3", "test")}
    assert torch["sb3"] == ["torch>=2.8"] and torch["test"][0].startswith("torch==")
