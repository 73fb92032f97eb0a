"""Settings of Dreamer, RAD and their runs that cannot be meant: refused in a sentence, before anything begins."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from made.agents.dreamer.agent import Dreamer
from made.agents.sac import RAD
from made.cli import main
from made.cli.build import build
from made.core import trees
from made.training.backends import compiled_envs, control_tasks
from made.training.control_config import control_config
from made.training.replay import ReplayBuffer, SequenceBuffer

GRID = ["--env", "Empty-5x5", "--agent", "dreamer"]
CONTROL = ["--env", "pendulum_swingup", "--agent", "dreamer"]
SAC = ["--env", "pendulum_swingup", "--agent", "sac"]
RE3 = [*CONTROL, "--bonus", "re3"]
REFUSED = {
    "pretrain": ([*CONTROL, "--set", "pretrain=-1"], "at least 0 as pretrain, got -1"),
    "no episodes of a control run": ([*CONTROL, "--set", "episodes=0"], "at least 1 as episodes, got 0"),
    "no episodes": ([*GRID, "--set", "episodes=0"], "at least 1 as episodes, got 0"),
    "no batch": ([*GRID, "--set", "batch=0"], "at least 1 as batch, got 0"),
    "no updates": ([*GRID, "--set", "updates=0"], "at least 1 as updates, got 0"),
    "few neighbours": (
        [*RE3, "--set", "batch=1"],
        "k=50 needs more of them than batch=1 windows of replay.length=50, 50 in all: add --set batch=2 or more, or "
        "--set bonus.bonus.bonus.k=49 or less",
    ),
    "no window": ([*CONTROL, "--set", "replay.length=0"], "at least 1 as length, got 0: 50 is usual"),
    "no such noise": ([*CONTROL, "--set", "agent.noise=-1"], "Dreamer takes a number of at least 0 as noise, got -1.0"),
    "a discount on a grid": ([*GRID, "--set", "run.agent.discount=1.5"], "from 0 to 1 as discount, got 1.5: 0.99 is"),
    "a rate of sac": ([*SAC, "--set", "agent.learning_rate=-1"], "at least 0 as learning_rate, got -1.0"),
    "random to the end": (
        [*SAC, "--steps", "1k", "--set", "seed_steps=600"],
        "1000 steps are 500 actions, and with seed_steps=600 at random the first update would follow action 601: "
        "nothing would be learned. Take at least 1204 steps, or a smaller --set seed_steps",
    ),
    "too short for Dreamer": ([*CONTROL, "--steps", "5k"], "would follow action 2500: .* Take at least 5002 steps"),
    "too short without pretraining": (
        [*CONTROL, "--steps", "6k", "--set", "pretrain=0"],
        "would follow action 3000: .* Take at least 6002 steps",
    ),
}


@pytest.fixture(autouse=True)
def no_beginning(monkeypatch):
    """Whatever is not refused would begin here."""
    pytest.importorskip("dm_control", reason="needs dm_control: pip install -e '.[control]'")

    def begun(*given):
        raise AssertionError("it was begun")

    monkeypatch.setattr(control_tasks, "WorkerPool", begun)
    monkeypatch.setattr(compiled_envs, "CompiledBackend", begun)


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_in_a_sentence_and_leaves_nothing_behind(case, capsys, tmp_path):
    words, sentence = REFUSED[case]
    assert main.main(["train", *words, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("made: ") and re.search(sentence, said), said
    assert not list(tmp_path.iterdir())


def test_the_settings_that_the_sentence_on_neighbours_names_are_taken():
    for enough in (("batch=2",), ("batch=1", "bonus.bonus.bonus.k=49")):
        run = build("pendulum_swingup", "dreamer", "re3", False, None, None, enough[::-1])
        assert run.bonus.bonus.bonus.capacity == run.batch * 50  # type: ignore[union-attr]


OUT_OF_RANGE = {
    Dreamer: {
        "discount": (-0.1, 1.5),
        "lam": (-1.0, 2.0, float("nan")),
        "reinforce": (1.1,),
        "model_rate": (-1.0, float("inf")),
        "actor_rate": (-1.0,),
        "value_rate": (-1.0,),
        "free_nats": (-3.0,),
        "kl_scale": (-1.0,),
        "ends_scale": (-1.0,),
        "clip": (0.0, -1.0),
        "noise": (-1.0,),
        "noise_half": (-1.0,),
        "noise_least": (-1.0,),
    },
    RAD: {
        "discount": (-0.1, 1.5),
        "learning_rate": (-1.0,),
        "alpha": (0.0, -1.0),
        "alpha_rate": (-1.0,),
        "polyak": (-0.1, 2.0),
        "encoder_polyak": (-0.1, 2.0),
    },
}
EDGES = {
    Dreamer: ({"discount": 1, "lam": 0, "model_rate": 0.0, "free_nats": 0, "clip": float("inf")}, {"lam": 1.0}),
    RAD: ({"discount": 0.0, "polyak": 1, "learning_rate": 0, "alpha": 1e-3}, {"encoder_polyak": 0.0}),
}


@pytest.mark.parametrize("agent", OUT_OF_RANGE)
def test_numbers_out_of_range_are_refused_and_the_edges_are_not(agent):
    for name, numbers in OUT_OF_RANGE[agent].items():
        for x in numbers:
            with pytest.raises(ValueError, match=rf"{agent.__name__} takes a number.* as {name}, got {x}: .* is usual"):
                agent(**{name: x})
    for numbers in EDGES[agent]:
        agent(**numbers)


@pytest.mark.parametrize("agent", OUT_OF_RANGE)
def test_numbers_that_are_traced_or_stacked_are_left_alone(agent):
    lanes = trees.stack([agent(), agent(discount=0.5)])
    again = dataclasses.replace(lanes, discount=2 * lanes.discount)
    assert np.allclose(again.discount, [1.98, 1.0])
    assert jax.jit(lambda x: dataclasses.replace(agent(), discount=x).discount)(1.5) == 1.5
    assert jax.vmap(lambda one: dataclasses.replace(one, discount=one.discount + 1).discount)(lanes).shape == (2,)
    assert agent(discount=jnp.float32(1.5)).discount == 1.5


def test_a_window_longer_than_a_stream_still_says_how_to_make_room():
    with pytest.raises(ValueError, match=r"length=50 and 20 steps a stream: raise the capacity .* or draw shorter"):
        SequenceBuffer(ReplayBuffer(20))


@pytest.mark.parametrize(("agent", "more"), [("sac", {}), ("dreamer", {}), ("dreamer", {"pretrain": 0})])
def test_a_run_is_long_enough_as_soon_as_one_update_is_due(agent, more):
    """The last action of a run is followed by no update, so one is due before it."""
    run = dataclasses.replace(control_config("pendulum_swingup", agent, "none"), **more)
    task = dataclasses.replace(run.task, pixels=False)
    first = next(t for t in range(1, 10_000) if run.due(t)[0])
    assert run.first_update == first
    with pytest.raises(ValueError, match=f"would follow action {first}: nothing would be learned"):
        dataclasses.replace(run, task=task, iterations=first).demand()
    dataclasses.replace(run, task=task, iterations=first + 1).demand()
