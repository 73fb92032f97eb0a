"""Bonuses, agents and environments of another package: by the names it declares, and by import path."""

import re
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import quick

import made
from made.agents.sac import RAD, Layout
from made.cli import info as listing
from made.cli import main
from made.cli.build import build
from made.core import Space, Spec, Transition
from made.core.schedules import Constant
from made.training.host.bonus import HostBonus
from made.training.off_policy import ReplayLearner
from made.training.replay import ReplayBuffer

CODE = '''
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from made import Agent, Bonus, Environment, Space, Spec, Step
from made.core import EpisodeMemory, NoMemory


class Rare(Bonus):
    """Pays 1 / sqrt(steps so far): a counting bonus."""

    learns_from: ClassVar[str] = "new"
    reads: ClassVar[tuple[str, ...]] = ("obs",)
    memory: EpisodeMemory = NoMemory()

    def init(self, key, spec):
        return jnp.zeros(())

    def reward(self, state, batch, *, value=None):
        return jnp.full_like(batch.reward, 1.0) / jnp.sqrt(jnp.maximum(state, 1.0))

    def update(self, state, batch, key):
        return state + batch.reward.size, {"steps_seen": state + batch.reward.size}


class Left(Agent):
    """Learns nothing and mostly goes right."""

    def init(self, key, spec):
        return jnp.zeros(())

    def act(self, state, carry, obs, goal, key, *, explore=True):
        return carry, jax.random.bernoulli(key, 0.8).astype(jnp.int32), ()

    def update(self, state, batch, reward_fn, key):
        return state + 1, {"paid": reward_fn(batch).mean()}


class Corridor(Environment):
    """Five places in a row."""

    @property
    def spec(self):
        return Spec(Space((), jnp.int32, 5), Space((), jnp.int32, 2), horizon=8)

    def reset(self, key):
        start = jnp.zeros((), jnp.int32)
        return (start, start), start

    def step(self, state, action, key):
        place, time = jnp.clip(state[0] + 2 * action - 1, 0, 4), state[1] + 1
        return (place, time), Step(place, (place == 4).astype(float), place == 4, (place < 4) & (time >= 8))


def small():
    return Rare()


ready = Rare()
number = 3


def needs(scale):
    return Rare()


class NoUpdate(Bonus):
    reads: ClassVar[tuple[str, ...]] = ("obs",)
    memory: EpisodeMemory = NoMemory()

    def init(self, key, spec):
        return ()

    def rewards(self, state, batch, *, value=None):
        return batch.reward

    def update(self, state, batch, key):
        return state, {}


class Other:
    pass
'''
ENTRY_POINTS = """
[made.bonuses]
tiny-rare = tinypack.parts:Rare
tiny-broken = tinypack.gone:Rare

[made.agents]
tiny-left = tinypack.parts:Left

[made.envs]
tiny-corridor = tinypack.parts:Corridor
"""
STATE = Spec(Space((3,), jnp.float32), Space((2,), jnp.float32, None, -1.0, 1.0), horizon=5)


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """A package as an installer leaves it: its files, and what it declares beside them."""
    where = tmp_path / "site"
    (where / "tinypack").mkdir(parents=True)
    (where / "tinypack" / "__init__.py").write_text("")
    (where / "tinypack" / "parts.py").write_text(CODE)
    (where / "needy.py").write_text("import not_there_at_all\n")
    told = where / "tinypack-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: tinypack\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(textwrap.dedent(ENTRY_POINTS))
    monkeypatch.syspath_prepend(str(where))
    yield where
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tinypack", "needy")]:
        del sys.modules[name]


def test_names_of_installed_packages_are_listed_without_importing_them():
    assert made.list_bonuses()[-2:] == ["tiny-broken", "tiny-rare"] and made.list_agents()[-1] == "tiny-left"
    assert made.list_envs()[-1] == "tiny-corridor" and made.list_envs()[0] == "lock"
    told = listing.everything()["installed"]
    assert told["tiny-rare"] == "bonuses of another package [tinypack.parts:Rare]" and "tiny-corridor" in told
    assert "tinypack" not in sys.modules


@pytest.mark.parametrize(
    ("env", "agent", "bonus"),
    [
        ("tiny-corridor", "tiny-left", "tiny-rare"),
        ("tinypack.parts:Corridor", "tinypack.parts:Left", "tinypack.parts:small"),
    ],
    ids=["names", "paths"],
)
def test_a_run_trains_with_all_three_from_elsewhere(env, agent, bonus, tmp_path):
    words = ["train", "--env", env, "--agent", agent, "--bonus", bonus, "--steps", "64", "--every", "32", "--no-video"]
    sizes = ["--set", "n_envs=2", "--set", "unroll=8", "--eval-every", "64", "--checkpoint-every", "64"]
    assert main.main([*words, *sizes, "--out", str(tmp_path / "run")]) == 0
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(rows) == 2 and '"steps_seen"' in rows[0] and '"paid"' in rows[0]


@pytest.mark.parametrize("name", ["tiny-rare", "tinypack.parts:Rare", "tinypack.parts:small", "tinypack.parts:ready"])
def test_a_bonus_from_elsewhere_is_the_same_in_every_setting(name):
    found = [made.make_bonus(name, setting, pixels=True) for setting in ("on_policy", "off_policy", "dreamer")]
    assert {type(bonus).__name__ for bonus in found} == {"Rare"} and found[0] == found[1] == found[2]
    assert type(HostBonus(name, STATE, 2).bonus).__name__ == "Rare"


def test_a_counting_bonus_from_elsewhere_takes_in_each_step_once_under_sac():
    bonus = made.make_bonus("tiny-rare", "off_policy")
    learner = ReplayLearner(
        STATE, RAD(Layout(encoder="state", width=4)), bonus, Constant(0.1), ReplayBuffer(20), batch=4
    )
    rng = np.random.default_rng(0)
    real = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    off = jnp.zeros((6, 1), bool)
    came = Transition(real(6, 1, 3), jnp.tanh(real(6, 1, 2)), real(6, 1), real(6, 1, 3), off, off)
    state, metrics = quick(lambda key: learner.advance(learner.start(key), came, 3))(jax.random.key(0))
    assert float(state.bonus) == 6 and float(metrics["steps_seen"]) == 4, "two new steps an update"
    run = build("pendulum_swingup", "sac", "tinypack.parts:Rare", False, 0.1, None, ())
    assert run.bonus == bonus and float(run.bonus_coef(1)) == pytest.approx(0.1)
    with pytest.raises(ValueError, match=r"No bonus coefficient is known for tiny-rare .* --bonus-coef 0\.05"):
        build("pendulum_swingup", "sac", "tiny-rare", False, None, None, ())


REFUSED = {
    "no such module": ("tinypac.parts:Rare", "There is no module 'tinypac'.* run from its folder"),
    "no such file": (
        "tiny-broken",
        r"There is no module 'tinypack.gone', which bonus 'tiny-broken' \(tinypack.gone:Rare\)",
    ),
    "a module that cannot be imported": ("needy:Rare", "'needy:Rare' cannot be imported: .*not_there_at_all"),
    "no such name": ("tinypack.parts:Rara", "tinypack.parts has no 'Rara'. Did you mean 'Rare'"),
    "another class": (
        "tinypack.parts:Other",
        "'tinypack.parts:Other' is a class, but no bonus: derive it from made.Bonus",
    ),
    "an agent": ("tinypack.parts:Left", "is a class, but no bonus"),
    "a number": ("tinypack.parts:number", "is a int, no bonus"),
    "an argument": ("tinypack.parts:needs", "cannot be made without arguments: missing a required argument: 'scale'"),
    "a method": (
        "tinypack.parts:NoUpdate",
        "lacks the method `reward` of made.Bonus. It has `rewards`: did you mean `reward`",
    ),
    "no object": ("tinypack.parts:", "is no import path: write module:object, such as mypackage:MyBonus"),
    "a name": ("tiny-rar", "There is no bonus 'tiny-rar'. Did you mean 'tiny-rare'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_had_is_told_in_one_line(case, capsys, tmp_path):
    name, sentence = REFUSED[case]
    with pytest.raises(ValueError, match=sentence):
        made.make_bonus(name)
    assert (
        main.main(["train", "--env", "lock", "--agent", "uniform", "--bonus", name, "--out", str(tmp_path / "x")]) == 2
    )
    assert capsys.readouterr().err.splitlines()[-1].startswith("made: ")


def test_known_prefixes_win_over_import_paths(installed):
    (installed / "gym.py").write_text("raise RuntimeError('imported')\n")
    assert made.make("gym:CartPole-v1").source == "gym" and "gym" not in sys.modules


def test_the_snippet_of_the_documentation_runs(capsys):
    text = (Path(__file__).parents[2] / "docs" / "extending.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(from made import list_bonuses.*?)```", text, re.S)
    exec(compile(code, "docs/extending.md", "exec"), {})
    assert capsys.readouterr().out.startswith("RND state 2\n['none', 'made', 'made-released', 'rnd'")
