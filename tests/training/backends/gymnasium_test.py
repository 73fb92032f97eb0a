"""Training outside compiled code: the same experience, the same folder, going on from a checkpoint, and transfer."""

import dataclasses
import json
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from envs.minigrid import oracle
from gymnasium.vector import AutoresetMode
from training import tiny
from training.resume_test import Stops, assert_acts_as, assert_equal, assert_resumes, go, load_all, rows

from made.agents import IMPALA, registry
from made.agents.policy_net import Layout
from made.bonuses import FirstVisit, HashedCount, NoBonus
from made.cli import main
from made.cli import train as transfer
from made.cli.build import environment
from made.core import Agent, trees
from made.core.config import to_dict
from made.envs.host_env import Hosted
from made.envs.minigrid import Grid
from made.envs.registry import make
from made.training import evaluation, sharding, train_loop
from made.training.backends import host_envs
from made.training.evaluation import Episodes
from made.training.host.bonus import HostBonus, HostEnvironment, HostRollout

TASK, CLOCK, N, T = "MiniGrid-Short-v0", 6, 3, 20
GATED = FirstVisit(HashedCount(bits=8))


@pytest.fixture(scope="module", autouse=True)
def short():
    """The package's smallest room with a clock of six steps."""
    import minigrid  # noqa: F401

    gymnasium.register(TASK, entry_point="minigrid.envs:EmptyEnv", kwargs={"size": 5, "max_steps": CLOCK})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "options", lambda level: {"xla_backend_optimization_level": 0})  # quick to compile
        yield
    del gymnasium.registry[TASK]


def plan(**more):
    run = dataclasses.replace(tiny.run(bonus=GATED, **more), env=Hosted("gym", TASK), resets_per_update=None)
    return tiny.plan()._replace(run=run)


@pytest.fixture(scope="module")
def compiled():
    return host_envs.HostBackend(plan())


@pytest.fixture
def programs(compiled):
    return restarted(compiled)


def restarted(programs):
    """As a new process has them: there are no environments yet."""
    programs.at = -1
    programs._sources.clear()
    return programs


@pytest.fixture(scope="module")
def whole(compiled, tmp_path_factory):
    """Seven updates that nothing stopped, in environments that the others never touch."""
    out = tmp_path_factory.mktemp("hosted")
    return out, go(plan(), host_envs.HostBackend(plan()), out)


class Clocked(Agent):
    """Acts at random and remembers nothing but how many steps the episode has had."""

    def init(self, key, spec):
        return ()

    def carry(self, spec):
        return jnp.zeros((), jnp.int32)

    def act(self, state, carry, obs, goal, key, *, explore=True):
        return carry + 1, jax.random.randint(key, (), 0, 3), carry

    def update(self, state, batch, reward_fn, key):
        return state, {}


def test_the_transitions_are_those_of_the_compiled_grid():
    """The actions of a rollout, played again in the compiled dynamics from the package's own first states."""
    env = Hosted("gym", TASK).vector(N)
    source = HostRollout(env, Clocked(), HostBonus(GATED, env.spec, N), seed=3)
    live = [one.unwrapped for one in env.venv.envs]
    first, grid = [oracle.state_of(one) for one in live], oracle.grid_for(live[0])
    grid = dataclasses.replace(grid, shows=("image", "hash"))
    step = jax.jit(lambda state, action: grid.step(state, action, jax.random.key(0)))
    batch = jax.tree.map(np.asarray, source.collect((), T))
    done, clock, state, visits = batch.terminated | batch.truncated, [0] * N, [*first], [Counter()] * N
    assert len(source.returns) == done.sum() >= N * (T // CLOCK) and max(source.lengths) == CLOCK
    for t, n in np.ndindex(T, N):
        assert batch.extras[t, n] == clock[n], "what the agent remembers is blank where an episode begins, only there"
        if clock[n] == 0:  # in this room every episode begins in the same state
            state[n], visits[n] = first[n], Counter([tuple(batch.obs["hash"][t, n])])
        state[n], made = step(state[n], batch.action[t, n])
        at = tuple(np.asarray(made.obs["hash"]))
        visits[n][at] += 1
        assert all(np.array_equal(made.obs[part], batch.next_obs[part][t, n]) for part in ("image", "hash"))
        assert made.reward == pytest.approx(batch.reward[t, n], abs=1e-6)
        assert (made.terminated, made.truncated) == (batch.terminated[t, n], batch.truncated[t, n])
        assert batch.next_note.trace[0][t, n] == visits[n][at]
        clock[n] = 0 if done[t, n] else clock[n] + 1


def test_impala_learns_from_the_decisions_that_it_made():
    """Unrolled as the learner does it, with its resets, the policy gives the probabilities that were written down."""
    env, agent = Hosted("gym", TASK).vector(N), IMPALA(Layout((4,), (2,), (8,), "gru", 8))
    quick = {"xla_backend_optimization_level": 0}
    state = jax.jit(lambda key: agent.init(key, env.spec), compiler_options=quick)(jax.random.key(1))
    batch = HostRollout(env, agent, HostBonus(GATED, env.spec, N)).collect(state, T)
    fresh = jnp.concatenate([jnp.zeros((1, N), bool), (batch.terminated | batch.truncated)[:-1]])
    carry = jax.tree.map(lambda x: x[0], batch.extras.carry)
    unrolled = jax.jit(lambda net: net.unroll(carry, batch.obs, (), fresh)[1], compiler_options=quick)(state.net)
    told = np.take_along_axis(np.asarray(jax.nn.log_softmax(unrolled)), np.asarray(batch.action)[..., None], -1)[..., 0]
    np.testing.assert_allclose(batch.extras.log_prob, told, atol=1e-5)
    assert fresh.any() and np.ptp(told) > 1e-3


class Countdown(gymnasium.Env):
    """A reward of one in each of as many steps as its seed says."""

    observation_space, action_space = gymnasium.spaces.Discrete(9), gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 9))
        return self.left, {}

    def step(self, action):
        self.left -= 1
        return self.left, 1.0, self.left == 0, False, {}


def test_play_tells_one_whole_episode_of_each_environment():
    same = AutoresetMode.SAME_STEP
    env = HostEnvironment(gymnasium.vector.SyncVectorEnv([Countdown] * 5, autoreset_mode=same))
    source = HostRollout(env, Clocked(), HostBonus(NoBonus(), env.spec, 5), None)
    returns, lengths = source.play((), 5)
    wanted = [Countdown().reset(seed=5 + i)[0] for i in range(5)]
    assert lengths.tolist() == returns.tolist() == wanted and len(set(wanted)) > 2


def test_the_start_has_the_weights_of_a_compiled_run():
    run, key = tiny.run(bonus=GATED), jax.random.key(4)
    there = dataclasses.replace(run, env=Hosted("gym", TASK), resets_per_update=None)
    ours, theirs = jax.jit(lambda key: (there.start(key).agent, run.start(key).agent))(key)
    assert_equal(ours, theirs)


def test_rows_are_those_of_any_run(whole):
    found = rows(whole[0])
    assert [(line["update"], line["seed"]) for line in found] == [(k, s) for k in (2, 4, 6, 7) for s in (0, 1)]
    scalars = {"return", "length", "episodes", "pool_reused", "bonus", "intrinsic_return", "coverage", "loss"}
    assert all(scalars <= set(line) for line in found)
    assert [("eval_return" in line) for line in found[::2]] == [False, True, False, True]
    assert found[0]["length"] == CLOCK and found[0]["episodes"] == 8, "16 steps of 4 environments with a clock of 6"
    assert found[4]["episodes"] == 8, "new episodes have begun at the checkpoint after 4 updates"
    assert found[0] != {**found[1], "seed": 0}


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_run_stopped_after_any_row_goes_on_bit_for_bit(programs, whole, tmp_path, after):
    with pytest.raises(RuntimeError):
        go(plan(), programs, tmp_path, stops=Stops(after, RuntimeError))
    assert_equal(whole[1].state, go(plan(), restarted(programs), tmp_path).state)
    assert rows(tmp_path) == rows(whole[0])


def test_an_interrupted_run_goes_on_from_its_last_row_with_new_episodes(programs, whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        go(plan(), programs, tmp_path, stops=Stops(3, KeyboardInterrupt), first=True)
    assert train_loop.restore_or_init(plan(), programs, tmp_path).update == 6
    assert go(plan(), restarted(programs), tmp_path).update == 7
    assert [line["update"] for line in rows(tmp_path)] == [line["update"] for line in rows(whole[0])]


def test_what_cannot_be_spread_is_refused():
    with pytest.raises(ValueError, match="--devices 2 spreads compiled environments"):
        host_envs.HostBackend(plan(), 2)


# Transfer


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, transfer.SAME), (0.1, transfer.DIFFERS)])
def test_a_difference_is_told_with_its_interval(shift, verdict):
    rng = np.random.default_rng(1)
    home, away = (Episodes(rng.uniform(0, 0.4, n), rng.integers(5, 9, n)) for n in (300, 200))
    found = transfer.compared(home, away._replace(returns=away.returns + shift))
    middle, low, high = found["return"]["difference"]
    assert found["verdict"] == verdict and low <= middle <= high and abs(middle - shift) < 0.03
    assert middle == pytest.approx(away.returns.mean() + shift - home.returns.mean(), abs=1e-4)
    spread = np.sqrt(away.returns.var() / 200 + home.returns.var() / 300)
    assert high - low == pytest.approx(2 * 1.96 * spread, rel=0.1)
    assert found["success"]["away"][0] == 1.0 and found["length"]["home"][0] == pytest.approx(home.lengths.mean())


def test_policies_that_are_never_paid_are_not_called_the_same():
    none = Episodes(np.zeros(20), np.full(20, 100))
    assert transfer.compared(none, none)["verdict"] == transfer.NOTHING
    once = none._replace(returns=np.eye(1, 20)[0])
    assert transfer.compared(none, once)["verdict"] == transfer.compared(once, none)["verdict"] == transfer.SAME


def test_a_policy_of_the_package_plays_in_the_compiled_grid(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(registry._TABLE, "linear", tiny.ActorCritic)
    out = tmp_path / "run"
    words = [
        "train",
        "--env",
        "gym:Empty-5x5",
        "--agent",
        "linear",
        "--bonus",
        "hashed",
        "--first-visit",
        "--steps",
        "110",
    ]
    sizes = ["--set", "n_envs=4", "--set", "unroll=10", "--every", "40", "--no-video"]
    assert main.main([*words, *sizes, "--out", str(out)]) == 0
    found = rows(out)
    assert [line["frames"] for line in found] == [40, 80, 120] and all(np.isfinite(line["loss"]) for line in found)
    assert found[-1]["eval_length"] == 100 and found[-1]["coverage"] > 3
    monkeypatch.setitem(registry._TABLE, "linear", lambda: tiny.ActorCritic(learning_rate=0.5))  # another default since
    play, places = evaluation.play, []
    monkeypatch.setattr(evaluation, "play", lambda run, *rest: places.append(type(run.env)) or play(run, *rest))
    assert main.main(["transfer", str(out), "--episodes", "3"]) == 0
    said, record = capsys.readouterr().out, json.loads((out / "transfer.json").read_text())
    assert "3 episodes on fresh levels in the minigrid package (home) and in the compiled grids (away)" in said
    assert (record["home"], record["away"], record["frames"]) == ("gym", "made", 120) and "minigrid" in record[
        "versions"
    ]
    lengths = record["greedy"]["length"]
    assert places == [Hosted, Grid] * 2
    assert lengths["home"] == lengths["away"] == [100, 100, 100], "one level and no chance: the same episode in both"
    assert record["greedy"]["verdict"] == transfer.NOTHING and record["sampled"]["return"]["difference"][0] < 1
    for wrong, message in (
        (["--to", "gym"], "trained in the minigrid package; --to takes made, envpool"),
        (["--seed", "3"], "no seed 3"),
        (["--episodes", "1"], "at least 2"),
        (["--out", "/proc/x/y.json"], "made: /proc/x/y.json cannot be written: give another file with --out."),
        (["--out", str(out)], f"{out} is a folder, not a file: give another one with --out."),
    ):
        assert main.main(["transfer", str(out), *wrong]) == 2
        said = capsys.readouterr().err
        assert message in said and said.count("\n") == 1
    assert len(places) == 4, "what is refused plays nothing"
    assert main.main(["transfer", str(tmp_path)]) == 2 and "holds no run" in capsys.readouterr().err
    shutil.copytree(out, tmp_path / "old")
    (tmp_path / "old" / "run.json").write_text(json.dumps({"format": 1, "configuration": {}, "sessions": []}))
    assert main.main(["transfer", str(tmp_path / "old")]) == 2 and "has layout 1" in capsys.readouterr().err


def test_policies_of_tasks_with_one_implementation_are_refused():
    lock = SimpleNamespace(config=SimpleNamespace(env=make("lock")))
    with pytest.raises(ValueError, match="RandomTabular has one implementation only"):
        transfer.Transfer(Path("run"))._places(lock)
    odd = SimpleNamespace(config=tiny.run())
    with pytest.raises(ValueError, match="settings of its own; only those of `made list tasks`"):
        transfer.Transfer(Path("run"))._places(odd)
    known = SimpleNamespace(config=SimpleNamespace(env=environment("DoorKey-5x5")))
    assert transfer.Transfer(Path("run"))._places(known)[:2] == ("made", "gym")


def test_a_run_of_another_library_is_loaded_as_it_was_trained(compiled, whole, tmp_path):
    asked = plan()
    runs = load_all(asked, whole[0], tmp_path / "half", at=4)
    assert to_dict(runs[0].config) == to_dict(asked.run) and runs[1].update == 4
    assert_resumes(asked, restarted(compiled), runs, whole[1].state)
    for lane, run in enumerate(load_all(asked, whole[0], tmp_path / "end", at=7)):
        state = trees.index(whole[1].state, lane)
        assert_equal(run.state, state)
        assert_acts_as(run.policy, asked.run.agent, state.agent, asked.run.env.spec)
