"""The examples and the recipes of docs/extending.md run as they stand, and what they print makes sense."""

import functools
import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from made import ValueIteration
from made.core import Agent, Bonus, Environment, Transition, state_action_grid
from made.experiments import runner
from made.experiments.store import Scale, Store
from made.training.on_policy import RunConfig, iterate

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.compile(r"```python\n# made/([\w/]+)\.py\n(.*?)```", re.S)


LONGEST = {"cleanrl_ppo_made": 150}  # a whole agent in one file, as CleanRL's are; 60 lines for the others


def run_example(name: str, *words: str):
    """What the example's main returns, called with the words of a command line. It is run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "examples"))  # as for a script
        main = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"]
        return main(list(words)) if words else main()


@functools.cache
def run_recipe(name: str) -> dict:
    """The names that a code block of docs/extending.md leaves behind."""
    blocks = dict(BLOCKS.findall((ROOT / "docs" / "extending.md").read_text("utf-8")))
    space = {"__name__": "recipe"}
    exec(compile(blocks[name], f"docs/extending.md, {name}", "exec"), space)
    return space


def only(space: dict, kind: type) -> type:
    """The class of that kind which the recipe defines itself."""
    own = [x for x in space.values() if isinstance(x, type) and issubclass(x, kind) and x.__module__ == "recipe"]
    assert len(own) == 1
    return own[0]


def test_examples_are_short_and_each_is_tested():
    files = sorted(set((ROOT / "examples").glob("*.py")) - {ROOT / "examples" / "curves.py"})  # which they import
    assert all(len(file.read_text("utf-8").splitlines()) <= LONGEST.get(file.stem, 60) for file in files)
    tested = set(re.findall(r"run_example\(\n? *\"(\w+)\"", Path(__file__).read_text("utf-8")))
    assert {file.stem for file in files} == tested


def test_tabular_made_learns_the_lock(capsys):
    found = run_example("tabular_made")
    printed = [float(x) for x in re.findall(r": +(-?[\d.]+)$", capsys.readouterr().out, re.M)]
    assert found["best"] == pytest.approx(0.321, abs=1e-3)
    assert found["first"] < 0.2 * found["best"] and 0.5 * found["best"] < found["last"] < 1.2 * found["best"]
    assert len(printed) == 9 and printed[-1] == pytest.approx(found["last"], abs=1e-3)


def test_sb3_ppo_trains_records_and_draws(tmp_path, capsys):
    words = ["--task", "made/MiniGrid-Empty-5x5-v0", "--out", str(tmp_path), "--bonus", "none", "first-visit"]
    found = run_example("sb3_ppo_made", *words, "--steps", "6400")
    assert set(found) == {"none", "first-visit"} and capsys.readouterr().out.count("mean return") == 2
    for name, seeds in found.items():
        assert [row[0] for row in seeds[0]] == [3200, 6400] and 0 < seeds[0][-1][1] <= 1, name
    stored = json.loads((tmp_path / "made_MiniGrid-Empty-5x5-v0-none.json").read_text("utf-8"))
    assert stored["curves"]["none"]["0"][-1][1] == pytest.approx(found["none"][0][-1][1], abs=1e-4)
    assert len(stored["made_by"]["commit"] or "") in (0, 40) and stored["agent"]["n_steps"] == 100
    drawn = run_example("sb3_ppo_made", "--steps", "0", "--out", str(tmp_path), "--draw", str(tmp_path / "a.png"))
    assert drawn.read_bytes().startswith(b"\x89PNG") and drawn.stat().st_size > 10_000


def test_sb3_takes_the_package_s_own_minigrid(tmp_path):
    words = ["--task", "MiniGrid-Empty-5x5-v0", "--steps", "3200", "--bonus", "first-visit", "--out", str(tmp_path)]
    assert run_example("sb3_ppo_made", *words)["first-visit"][0][0][0] == 3200


def test_cleanrl_ppo_is_paid_by_the_bonus(capsys):
    words = ["--task", "made/MiniGrid-Empty-5x5-v0", "--num-envs", "8", "--num-steps", "10", "--total-steps", "800"]
    rows = run_example("cleanrl_ppo_made", *words)
    assert len(rows) == 10 and rows[-1][0] == 800 and "800 steps" in capsys.readouterr().out
    assert all(np.isfinite(row).all() and row[2] > 0 for row in rows)


def test_own_bonus_explores_where_the_greedy_agent_does_not(capsys):
    found = run_example("own_bonus")
    assert capsys.readouterr().out.count("mean return") == 4
    assert found["greedy, no bonus"] < 0.05
    assert min(found["own bonus"], found["MADE of own bonus"]) > max(0.15, found["optimist, no bonus"])


def test_bonus_from_numpy_sees_the_whole_lake(capsys):
    found = run_example("bonus_from_numpy")
    assert "coef = 1: 64 of 64 cells" in capsys.readouterr().out
    assert found[1.0]["cells"] == 64 > found[0.0]["cells"]
    assert found[1.0]["goals"] > 0


def test_every_recipe_is_tested():
    names = re.findall(r"run_recipe\(\"([\w/]+)\"\)", Path(__file__).read_text("utf-8"))
    blocks = BLOCKS.findall((ROOT / "docs" / "extending.md").read_text("utf-8"))
    assert {name for name, _ in blocks} == set(names)


def test_the_bonus_recipe_pays_for_neglect_and_explores():
    space = run_recipe("bonuses/neglect")
    bonus = only(space, Bonus)(kappa=0.5)
    state = space["NeglectState"](np.array([[9.0, 5.0], [0.0, 8.0]]), 9.0)
    assert np.allclose(bonus.reward(state, state_action_grid(2, 2)), [[0.0, 1.0], [1.5, 0.5]])
    returns = np.mean([record.rows["return"] for record in space["records"]], axis=0)
    assert returns.shape == (6,) and returns[-1] > 0.15  # the best policy has 0.304


def test_the_episodic_recipe_pays_first_visits_alone():
    space = run_recipe("bonuses/first_visit")
    bonus, run = only(space, Bonus)(), space["run"]
    assert space["record"].rows["return"].shape == (3,)
    assert np.isfinite(space["record"].rows["return"]).all()
    memory = bonus.memory.blank(run.env.spec)
    notes = []
    for obs in (3, 4, 3):
        memory, note = bonus.memory.remember((), memory, obs, None)
        notes.append(bool(note.trace))
    assert notes == [True, True, False]
    counts = np.array([0.0, 4.0])
    seen = Transition((), np.zeros(3, int), np.zeros(3), np.array([0, 1, 1]), False, False)
    seen = seen._replace(next_note=note._replace(trace=np.array([True, True, False])))
    assert np.allclose(bonus.reward(counts, seen), [1.0, 0.5, 0.0])


def test_the_episodic_recipe_is_refused_by_a_planner_as_the_page_says():
    import jax

    run = run_recipe("bonuses/first_visit")["run"]
    planned = RunConfig(run.env, ValueIteration(), run.bonus, unroll=6)
    with pytest.raises(ValueError, match="FirstVisit reads next_obs, next_note"):
        jax.eval_shape(lambda key: iterate(planned, planned.start(key)), jax.random.key(0))


def test_the_agent_recipe_learns():
    space = run_recipe("agents/boltzmann")
    assert isinstance(space["run"].agent, only(space, Agent))
    returns = np.mean([record.rows["return"] for record in space["records"]], axis=0)
    assert returns[0] < 0.1 and returns[-1] > 0.15  # the best policy has 0.304


def test_the_environment_recipe_is_solved():
    space = run_recipe("corridor")
    env = only(space, Environment)()
    returns, lengths = space["record"].rows["return"], space["record"].rows["length"]
    assert returns[0] < 1 and returns[-1] > 0.95
    assert env.length - 1 <= lengths[-1] < env.length  # the shortest way there, nearly always


def test_the_experiment_recipe_runs_judges_and_draws(tmp_path):
    experiment = run_recipe("experiments/paper/deepsea")["EXPERIMENT"]
    one, store = runner.Study(experiment, Scale.SMOKE), Store(tmp_path / "runs")
    assert runner.run([one], store) == 10
    (judged,) = runner.check(one, store)
    assert judged.claim == 101 and judged.seeds == 5 and judged.holds is True
    assert judged.effects[0]["unit"] == "average return, MADE minus greedy"
    (drawn,) = runner.draw(one, store, tmp_path / "report")
    assert drawn[1].stat().st_size > 5000
    (title, header, rows) = experiment.tables(runner.load(one, store)[0])[0]
    assert len(header) == 2 and [row[0] for row in rows] == ["made", "greedy"] and title
