"""`made train` as it is typed: what it writes, what it says, what it refuses, and a kill in the middle of it."""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from training.resume_test import assert_acts_as, assert_resumes, load_all

from made.bonuses import RND
from made.cli import main
from made.cli.build import environment
from made.cli.train import Train
from made.core import trees
from made.core.config import to_dict
from made.training import backends, checkpoint, checkpoint_file, memory, run_dir
from made.training.backends import compiled_envs, control_tasks, host_envs

pytestmark = pytest.mark.usefixtures("cache", "level_1")  # runs are compared with those of other processes
# A learner with a state worth comparing that compiles in no time.
LOCK = ["train", "--env", "lock-H5", "--agent", "q-learning", "--bonus", "made-tabular", "--seeds", "2"]
SMALL = [*LOCK, "--set", "n_envs=4", "--set", "unroll=8", "--every", "320", "--checkpoint-every", "960"]


def call(capsys, *words) -> tuple[int, str, str]:
    code = main.main([str(word) for word in words])
    return code, *capsys.readouterr()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 3,000 updates that nothing stopped, made by the command itself."""
    out = tmp_path_factory.mktemp("train") / "whole"
    assert main.main([*SMALL, "--steps", "96k", "--out", str(out)]) == 0
    return out


def rows(out: Path):
    lines = [json.loads(line) for line in (out / run_dir.METRICS).read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "frames_per_second")} for line in lines]


def test_the_folder_says_what_was_run_by_what(whole):
    run = json.loads((whole / run_dir.RUN).read_text())
    assert run["command"].startswith("made train --env lock-H5 --agent q-learning --bonus made-tabular")
    assert "--set n_envs=4 --set unroll=8" in run["command"] and "whole" not in run["command"]
    assert run["configuration"]["agent"]["class"] == "QLearning" and run["configuration"]["seeds"] == [0, 1]
    assert run["configuration"]["class"] == "RunConfig" and run["configuration"]["iterations"] == 3000
    assert run["options"]["env"] == "lock-H5" and "out" not in run["options"]
    assert {"commit", "jax", "device", "from_update"} <= set(run["sessions"][0])
    found = rows(whole)
    assert len(found) == 2 * 300 and found[-1]["frames"] == run["steps"] == 96_000
    assert found[-1]["eval_return"] is not None and found[-1]["coverage"] > 5


def test_a_tabular_run_is_loaded_as_it_was_trained(whole, tmp_path):
    asked = Train("lock-H5", "q-learning", "made-tabular", "96k", 2, set=("n_envs=4", "unroll=8"), every="320").plan()
    (run, one), end = load_all(asked, whole, tmp_path / "half", at=2970), load_all(asked, whole, tmp_path / "end", 3000)
    assert to_dict(run.config) == to_dict(asked.run) and (one.seed, one.update, int(one.state.k)) == (1, 2970, 2970)
    assert run.command.startswith("made train --env lock-H5")
    assert_resumes(asked, compiled_envs.CompiledBackend(asked), (run, one), trees.stack([each.state for each in end]))
    assert_acts_as(one.policy, asked.run.agent, one.state.agent, one.state.env.spec)


# Sends itself a signal after so many rows.
SIGNALLED = """
import os, sys
from made.cli.main import main
from made.training import loggers
left, write = [int(sys.argv[1])], loggers.JSONL.write
def counted(self, lines):
    write(self, lines)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), int(sys.argv[2]))
loggers.JSONL.write = counted
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize("n", [6, 8])  # at a checkpoint and between two
def test_a_run_killed_after_any_row_goes_on_bit_for_bit(whole, tmp_path, capsys, n):
    asked = [*SMALL, "--steps", "96k", "--out", str(tmp_path / "killed")]
    words = [sys.executable, "-c", SIGNALLED, str(n), str(int(signal.SIGKILL)), *asked]
    assert subprocess.run(words, capture_output=True).returncode == -signal.SIGKILL
    stopped_at = checkpoint.files(tmp_path / "killed" / run_dir.CHECKPOINTS)[-1].stem
    assert int(stopped_at) == {6: 30, 8: 60}[n], "the checkpoint of a row comes after it"
    code, _, err = call(capsys, *asked)
    assert code == 0 and f"from frame {int(stopped_at) * 32:,}" in err
    assert rows(tmp_path / "killed") == rows(whole)
    one, other = (checkpoint_file.load(checkpoint.files(f / run_dir.CHECKPOINTS)[-1], checkpoint.FORMAT)[0]
                  for f in (whole, tmp_path / "killed"))  # fmt: skip
    assert one.keys() == other.keys() and all(np.array_equal(x, other[name]) for name, x in one.items())
    assert len(json.loads((tmp_path / "killed" / run_dir.RUN).read_text())["sessions"]) == 2


def test_sigterm_saves_a_checkpoint_and_says_how_to_resume(whole, tmp_path, capsys):
    """In the middle between two checkpoints, which are 30 updates apart."""
    asked = [*SMALL, "--steps", "96k", "--out", str(tmp_path / "run")]
    words = [sys.executable, "-c", SIGNALLED, "5", str(int(signal.SIGTERM)), *asked]
    ended = subprocess.run(words, capture_output=True, text=True)
    said = ended.stderr.splitlines()
    assert ended.returncode == 143 and "Traceback" not in ended.stderr, ended.stderr
    assert said[-1].startswith("made: stopped by SIGTERM at frame 1,600 of 96,000, with a checkpoint")
    assert said[-1].endswith(f"To resume: made {shlex.join(asked)}")
    assert [path.stem for path in checkpoint.files(tmp_path / "run" / run_dir.CHECKPOINTS)][-1] == "000000050"
    code, _, err = call(capsys, *asked)
    assert code == 0 and "from frame 1,600" in err and rows(tmp_path / "run") == rows(whole)


def test_a_finished_run_is_not_run_again_and_another_is_refused(whole, capsys):
    before = (whole / run_dir.METRICS).read_bytes()
    code, _, err = call(capsys, *SMALL, "--steps", "96k", "--out", whole)
    assert code == 0 and "finished" in err and (whole / run_dir.METRICS).read_bytes() == before
    code, _, err = call(capsys, *SMALL, "--steps", "96k", "--out", whole, "--bonus-coef", "0.5")
    assert code == 2 and "bonus_coef.value = 0.01, but here it is 0.5" in err and "--out" in err
    with run_dir.lock_run_dir(whole):
        code, _, err = call(capsys, *SMALL, "--steps", "96k", "--out", whole)
    assert code == 2 and "Another process is training" in err


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--env", "KeyCoridorS4R3"], "Did you mean 'KeyCorridorS4R3'"),
        (["--agent", "impalla"], "Did you mean 'impala'"),
        (["--bonus", "maed"], "Did you mean 'made'"),
        (["--steps", "40X"], "--steps takes a number of frames such as 40M"),
        (["--steps", "0"], "--steps takes"),
        (["--every", "often"], "--every takes"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        (["--devices", "99"], "--devices 99"),
        (["--set", "agent.gama=1"], "Did you mean 'gamma'"),
        (["--set", "n_envs"], "--set takes path=value"),
        (["--set", "iterations=7"], "given by --steps"),
        (["--tensorboard"], 'pip install -e ".[tensorboard]" in the checkout of made'),
        (["--bonus-coef", "nan"], "--bonus-coef must be a number of at least 0, got nan."),
        (["--strength", "-1"], "--strength must be a number above 0, got -1."),
        (["--bonus", "none", "--first-visit"], "--bonus none gives no reward: leave --first-visit and --strength out."),
    ],
)
def test_a_mistake_is_one_clear_line_and_leaves_nothing(capsys, tmp_path, monkeypatch, changed, message):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    code, _, err = call(capsys, *SMALL, "--steps", "320", "--out", tmp_path / "new", *changed)
    said = [line for line in err.strip().splitlines() if "compiling" not in line]
    assert code == 2 and message in err and len(said) == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "kind",
    [
        {"env": "DoorKey-5x5"},
        {"env": "lock", "agent": "value-iteration"},
        {"env": "hopper_hop", "agent": "sac"},
        {"env": "hopper_hop", "agent": "dreamer"},
        {"env": "DoorKey-5x5", "agent": "dreamer"},
    ],
    ids=lambda kind: "-".join(kind.values()),
)
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"bonus_coef": -1.0}, "--bonus-coef must be a number of at least 0, got -1."),
        ({"bonus_coef": float("nan")}, "--bonus-coef must be a number of at least 0, got nan."),
        ({"bonus_coef": float("inf")}, "--bonus-coef must be a number of at least 0, got inf."),
        ({"strength": 0.0}, "--strength must be a number above 0, got 0."),
        ({"strength": float("nan")}, "--strength must be a number above 0, got nan."),
        ({"bonus": "none", "strength": 0.4}, "--bonus none gives no reward: leave --first-visit and --strength out."),
        (
            {"bonus": "none", "first_visit": True},
            "--bonus none gives no reward: leave --first-visit and --strength out.",
        ),
    ],
)
def test_what_no_bonus_can_pay_is_refused_for_every_kind_of_run(kind, more, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Train(**kind, **more).plan()


def test_one_loss_is_not_finite_and_parameters_are_not():
    plan = Train(env="lock", agent="q-learning", bonus="none", steps="320k").plan()
    for what, be in (("a loss (loss)", "is"), ("parameters (agent.q)", "are"), ("a reward (x) and a loss (y)", "are")):
        with pytest.raises(ValueError, match=re.escape(f"Seed 0 has {what} that {be} not finite at update 3 ")):
            backends.raise_if_nan(plan, np.array([3]), what)


def test_a_run_that_does_not_fit_is_refused_with_the_size_before_it_starts(capsys, tmp_path, monkeypatch):
    for free, message in ((100_000, "needs at least 1"), (200_000, "needs 2")):  # the state alone; the compiled program
        monkeypatch.setattr(memory, "free", lambda devices, free=free: free)
        code, _, err = call(capsys, *SMALL, "--steps", "320", "--out", tmp_path / "new")
        assert code == 2 and message in err and f"{memory.in_words(free)} are free" in err and "--seeds" in err
        assert not list(tmp_path.iterdir())


def test_a_folder_with_something_else_in_it_is_left_alone(capsys, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    code, _, err = call(capsys, *SMALL, "--steps", "320", "--out", tmp_path)
    assert code == 2 and "thesis.txt" in err and list(tmp_path.iterdir()) == [tmp_path / "thesis.txt"]


KINDS = {
    "a table": LOCK[1:],
    "a grid": ["--env", "DoorKey-5x5"],
    "sac": ["--env", "hopper_hop", "--agent", "sac"],
    "dreamer on a control task": ["--env", "hopper_hop", "--agent", "dreamer"],
    "dreamer on a grid": ["--env", "DoorKey-5x5", "--agent", "dreamer"],
    "another library": ["--env", "gym:CartPole-v1"],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("out", ["/proc/x", "/dev/null/x", f"{__file__}/x"])
def test_a_folder_that_cannot_be_made_is_refused_before_anything_begins(capsys, monkeypatch, kind, out):
    begun = []
    backends = (compiled_envs, "CompiledBackend"), (control_tasks, "ControlBackend"), (host_envs, "HostBackend")
    for source, name in backends:
        monkeypatch.setattr(source, name, lambda *given: begun.append(given))
    code, told, err = call(capsys, "train", *KINDS[kind], "--steps", "320k", "--out", out)
    assert (code, told, err) == (2, "", f"made: {out} cannot be made: give another folder with --out.\n")
    assert not begun


def test_the_first_of_several_hosts_refuses_such_a_folder_too():
    with pytest.raises(ValueError, match="cannot be made: give another"), run_dir.lock_run_dir(Path("/proc/x")):
        pass


def test_steps_are_rounded_up_to_whole_updates_and_it_says_so(capsys, tmp_path):
    asked = Train(env="DoorKey-5x5", agent="uniform", bonus="none", steps="100k", every="10k")
    plan = asked.plan()
    assert (plan.run.iterations, plan.run.every, plan.frames_per_update) == (32, 4, 3200)
    assert plan.run.resets_per_update == 4 * 32, "fresh levels are drawn for grids, not one for every step"
    Train(env="lock", agent="uniform", bonus="none", steps="320k").plan()
    assert capsys.readouterr().err == "", "what is asked for may yet be refused"
    note = "made: an update takes 32 frames, so 1,000 steps are rounded up to 1,024.\n"
    assert note in call(capsys, *SMALL, "--steps", "1000", "--out", tmp_path / "run")[2]
    _, out, err = call(capsys, *SMALL, "--steps", "2048", "--out", tmp_path / "run")
    assert "rounded up" not in err and "2,048 frames per seed" in out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--devices", "99"], "--devices 99, but there"),
        (["--devices", "2", "--seeds", "3", "--set", "n_envs=3"], "cannot be spread evenly over 2 devices"),
        (["--out", "TAKEN"], "holds thesis.txt but no run of made train"),
        (["--env", "gym:Nope-v0"], "Gymnasium cannot make 'Nope-v0'"),
        (["--env", "envpool:DoorKey-5x5"], "EnvPool"),
        (["--env", "DoorKey-5x5"], "QLearning"),
        (["--env", "DoorKey-5x5", "--agent", "impala"], "Count keeps a table"),
    ],
)
def test_what_is_refused_is_refused_in_one_line_whatever_its_length_is_rounded_to(
    more, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "envpool", None)
    monkeypatch.setattr(jax, "devices", lambda: [*range(2)])
    (taken := tmp_path / "taken").mkdir()
    (taken / "thesis.txt").write_text("years of work")
    more = [str(taken) if word == "TAKEN" else word for word in more]
    code, out, err = call(capsys, *SMALL, "--steps", "1001", "--out", tmp_path / "new", *more)
    assert (code, out, err.count("\n")) == (2, "", 1) and message in err, err


def test_a_grid_goes_by_its_short_name_and_shows_what_counts_need():
    for name in ("KeyCorridorS4R3", "KeyCorridorS4R3-v0", "MiniGrid-KeyCorridorS4R3-v0"):
        assert environment(name).spec.horizon == 480
    assert sorted(environment("MultiRoom-N4-S5-v1").spec.obs) == ["hash", "image"]


def test_an_empty_place_for_a_bonus_takes_its_name():
    """Dreamer's bonus in imagination, on a control task and on a grid."""

    def agent(env: str, *settings: str):
        before = "" if env == "pendulum_swingup" else "run."
        return Train(env, agent="dreamer", set=tuple(before + one for one in settings)).plan().run.agent

    for env in ("pendulum_swingup", "DoorKey-5x5"):
        assert agent(env).curiosity is None and agent(env, "agent.curiosity=none").curiosity is None
        settings = "agent.curiosity=rnd", "agent.curiosity.width=7", "agent.curiosity_coef=0.1"
        assert isinstance(agent(env, *settings).curiosity, RND) and agent(env, *settings).curiosity.width == 7
    with pytest.raises(ValueError, match=r"no bonus 'rmd'\. Did you mean 'rnd'"):
        agent("pendulum_swingup", "agent.curiosity=rmd")
    with pytest.raises(ValueError, match="neither episodes nor a table"):
        agent("pendulum_swingup", "agent.curiosity=noveld")


def test_a_bonus_is_set_by_its_temperature_or_by_its_strength():
    asked = {"env": "DoorKey-5x5", "agent": "uniform", "bonus": "rnd", "steps": "320k"}
    plain, strong = Train(**asked).plan().run, Train(**asked, strength=0.5).plan().run
    assert (plain.bonus_coef.value, type(plain.bonus).__name__) == (0.01, "RND")
    assert (strong.bonus_coef.value, strong.bonus.strength, type(strong.bonus.bonus).__name__) == (1.0, 0.5, "RND")
    both = Train(**asked, bonus_coef=0.1, strength=0.5).plan().run
    assert (both.bonus_coef.value, both.bonus.strength) == (0.1, 0.5), (
        "the strength is that at coefficient 1, and bonus_coef scales it"
    )
    first_visit = Train(**asked, first_visit=True, strength=0.5).plan().run.bonus.bonus
    assert (type(first_visit).__name__, type(first_visit.bonus).__name__) == ("FirstVisit", "RND")
