"""Runs that are killed (SIGKILL) and resumed end bit-exactly where an undisturbed run ends."""

import numpy as np
import pytest

from made.agents import list_agents
from made.bonuses import list_bonuses
from made.cli import main
from made.training import checkpoint, run_dir
from tests.reliability import kill_and_resume, kill_matrix, processes


@pytest.mark.reliability
def test_resume_is_bit_exact_after_100_kills(check):
    check("kills", kill_and_resume.kills)


@pytest.mark.reliability
def test_every_agent_with_every_bonus_resumes_bit_exactly(check):
    check("matrix", kill_matrix.matrix)


def test_a_run_is_killed_goes_on_and_ends_the_same(tmp_path):
    found = kill_and_resume.kills(tmp_path, 1, ("q-learning",), at_once=1, warm=False)
    assert found["passed"], found["differ"]
    assert found["kills"] >= 1 and sum(found["by_phase"].values()) == found["kills"]


def test_a_run_that_ends_otherwise_is_told(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name / run_dir.CHECKPOINTS).mkdir(parents=True)
        (tmp_path / name / run_dir.METRICS).write_text('{"seed": 0, "update": 2, "seconds": 1, "return": 1}\n')
        state = {"w": np.array([1.0, np.nan]), "k": np.array(2)}
        checkpoint.save(tmp_path / name / run_dir.CHECKPOINTS, state, {}, 2, 1.0)
    assert processes.same(tmp_path / "one", tmp_path / "other") == ""
    checkpoint.save(tmp_path / "other" / run_dir.CHECKPOINTS, {**state, "k": np.array(3)}, {}, 2, 1.0)
    assert processes.same(tmp_path / "one", tmp_path / "other") == "['k'] differs"
    (tmp_path / "other" / run_dir.METRICS).write_text('{"seed": 0, "update": 2, "seconds": 9, "return": 2}\n')
    assert processes.same(tmp_path / "one", tmp_path / "other") == "their rows differ"


def test_the_matrix_has_every_agent_and_every_bonus_in_commands_that_parse():
    commands = kill_matrix.pairs()
    agents, bonuses = ({name.split("+")[i] for name in commands} for i in (0, 1))
    assert agents == set(list_agents()) and bonuses == set(list_bonuses())
    for words in commands.values():
        assert main.parse(["train", *words.split()]).steps


def test_a_pair_that_does_not_run_or_goes_on_otherwise_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(kill_matrix, "judged", lambda pair, folder: ("a differs" if pair == "sac+rnd" else "", True))
    found = kill_matrix.matrix(tmp_path, ("sac+rnd", "sac+none"))
    assert not found["passed"] and found["differ"] == ["sac+rnd: a differs"] and found["met_alive"] == 2
