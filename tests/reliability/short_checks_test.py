"""The short half of `made selftest`: each check passes here, and can tell when it should not."""

import json
import re

import made.selftest
import numpy as np
import pytest
from reliability.untrusted_files_test import listening

from made.agents import list_agents
from made.bonuses import list_bonuses
from made.cli import main
from made.training import checkpoint, run_dir
from tests.reliability import (
    cli_fuzz,
    command,
    damage,
    damaged_files,
    figures,
    kill_and_resume,
    kill_matrix,
    memory_growth,
    processes,
)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    return damage.damage(tmp_path_factory.mktemp("damage") / "here")


def test_every_damage_is_refused_skipped_or_mended_with_the_right_sentence(damaged):
    assert damaged["passed"], damaged["wrong"]
    assert damaged["damages"] >= 50 and set(damaged["by_outcome"]) == {"refused", "skipped", "mended"}
    assert len({name for name, *_ in damaged["each"]}) == damaged["damages"]
    assert not listening("self"), "a run opens no port"


def test_a_damage_that_goes_unnoticed_is_told(tmp_path):
    """A whole checkpoint of other numbers cannot be told from the right one, and leads to other bits."""
    damage.begun(tmp_path)
    half, whole = tmp_path / "half", tmp_path / "whole"
    flip = damaged_files.Damage("last bit", lambda out: damaged_files._flip(damaged_files.newest(out), 1.0), "skipped")
    assert not damage.tried(flip, half, whole, tmp_path / "seen").wrong
    other = damaged_files.Damage("unseen", lambda out: damaged_files.changed(out, _other_numbers), "mended")
    assert "differ" in damage.tried(other, half, whole, tmp_path / "unseen").wrong
    assert damage.tried(other._replace(then="refused"), half, whole, tmp_path / "again").wrong.startswith("mended, not")


def _other_numbers(held):
    return {name: x + 1 if x.dtype.kind == "f" else x for name, x in held.items()}


@pytest.mark.parametrize(
    ("words", "option"),
    [(["--out", "/proc/x"], "--out"), (["--figures", "/proc/x", "--out", "RECORDS"], "--figures")],
)
def test_records_that_could_not_be_kept_are_refused_before_any_check(words, option, tmp_path, capsys, monkeypatch):
    begun = []
    (tmp_path / "soak.json").write_text("{}")
    words = [str(tmp_path) if word == "RECORDS" else word for word in words]
    monkeypatch.setattr(made.selftest, "checks", lambda long: {"good": begun.append})
    monkeypatch.setattr(figures, "soak", begun.append)
    assert main.main(["selftest", "--only", "good", *words]) == 2 and not begun
    assert capsys.readouterr().err == f"made: /proc/x cannot be made: give another folder with {option}.\n"


def test_a_run_is_killed_goes_on_and_ends_the_same(tmp_path):
    found = kill_and_resume.kills(tmp_path, 1, ("q-learning",), warm=False)
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


def test_fuzzed_settings_and_calls_never_give_a_traceback(tmp_path):
    found = cli_fuzz.fuzz(tmp_path, 150)
    assert found["passed"], found["wrong"]
    assert found["settings"] == 120 and found["calls"] == 30 and found["answers"]["settings"]["refused"] > 60


def test_a_traceback_is_told_from_an_answer(tmp_path):
    def breaks(words):
        raise KeyError("x")

    assert cli_fuzz.called(breaks, ["map"], tmp_path).startswith("traceback: KeyError")
    assert cli_fuzz.called(lambda words: 2, ["map"], tmp_path) == "traceback: status 2, 0 lines"
    assert cli_fuzz.called(lambda words: 0, ["map"], tmp_path) == "status 0"


def test_memory_that_grows_is_told_from_memory_that_is_flat():
    seconds = np.linspace(0, 1800, 400)
    noise = np.random.default_rng(0).normal(0, 2, 400)
    warm = np.minimum(seconds / 60, 1) * 300
    flat, leaky = (memory_growth.judge(seconds, 800 + warm + noise + slope * seconds / 3600) for slope in (0, 200))
    assert abs(flat["growth_mib"]) < 2 and leaky["growth_mib"] == pytest.approx(200 / 3, abs=2)
    assert leaky["growth_mib"] > max(memory_growth.SHARE * leaky["mean_mib"], memory_growth.LEAST)
    mib, files, threads = memory_growth.looked_at("self")
    assert mib > 50 and files >= 3 and threads >= 1


def test_the_command_runs_checks_by_name_keeps_records_and_says_what_failed(tmp_path, monkeypatch, capsys):
    good = {"passed": True, "what": "nothing at all", "tries": 3}
    bad = {"passed": False, "what": "something", "wrong": ["the third one"]}
    monkeypatch.setattr(made.selftest, "checks", lambda long: {"good": lambda f: good, "bad": lambda f: bad})
    assert command.SelfTest(only="good", out=tmp_path).main() == 0
    assert command.SelfTest().main() == 1
    said = capsys.readouterr().out
    assert "passed   good: nothing at all (tries 3; 0 s)" in said and re.search("FAILED   bad.*\n +the third one", said)
    kept = json.loads((tmp_path / "good.json").read_text())
    assert kept["tries"] == 3 and {"commit", "jax", "cpu"} <= set(kept["provenance"]) and not kept["long"]
    with pytest.raises(ValueError, match=r"no check 'goood'. Did you mean 'good'"):
        command.SelfTest(only="goood").main()


def test_all_checks_are_there_in_both_forms():
    short, full = made.selftest.CHECKS, made.selftest.LONG
    assert set(short) == set(full) >= {"kills", "matrix", "damage", "disk", "fuzz", "soak"}
    assert short["fuzz"] is not full["fuzz"]


def test_figures_are_drawn_from_records_and_refused_without(tmp_path):
    with pytest.raises(ValueError, match=r"holds no kills\.json"):
        figures.draw(tmp_path, tmp_path / "img")
    each = [kill_and_resume.Kill("store", "any", 1.0, 0.5, phase) for phase in figures.COLOURS]
    record = kill_and_resume.report(each, [], 4, {})
    (tmp_path / "kills.json").write_text(json.dumps(record))
    samples = [[float(t), 500.0, 5, 20] for t in range(60)]
    judged = memory_growth.judge(np.arange(60.0), np.full(60, 500.0))
    (tmp_path / "soak.json").write_text(json.dumps({**judged, "samples": samples, "rows_written": 9}))
    written = figures.draw(tmp_path, tmp_path / "img")
    assert [path.name for path in written] == ["kills.png", "soak.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    (tmp_path / "soak.json").unlink()
    header, _, row = figures.table(tmp_path).splitlines()
    assert header.count("|") == row.count("|") and "| passed | kills 7; trials 4; " in row and "store 7" in row


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
