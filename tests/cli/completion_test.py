"""The first minutes: what `made` says alone, what `made train` does alone, completion, lists, and clear mistakes."""

import os
import re
import subprocess
import sys

import pytest

from made.cli import info, main
from made.cli.main import FIRST_TRAINING, PLACES
from made.cli.train import Train


def call(capsys, *words: str) -> tuple[int, str, str]:
    code = main.main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def test_every_command_that_made_names_alone_is_one(capsys):
    code, out, _ = call(capsys)
    named = re.findall(r"^  made (.*?)  ", out, re.M)
    assert code == 0 and {"demo", "train", "list", "doctor"} <= set(named)
    for words in named:
        main.parse(words.split())


def test_train_alone_is_the_recorded_run_and_says_so(capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(Train, "main", lambda self: asked.append(self) or 0)
    code, _, err = call(capsys, "train")
    assert code == 0 and f"made train {FIRST_TRAINING}" in err
    assert asked[0] == main.parse(["train", *FIRST_TRAINING.split()])
    plan = asked[0].plan()
    assert plan.run.iterations * plan.frames_per_update == 4_000_000 and plan.seeds == (0,)
    assert type(plan.run.env.maker).__name__ == "MultiRoom" and plan.run.env.maker.rooms == 6
    assert plan.run.agent.learning_rate == 6e-4


def test_train_with_other_options_is_left_as_it_is(capsys, monkeypatch):
    monkeypatch.setattr(Train, "main", lambda self: 0)
    code, _, err = call(capsys, "train", "--env", "DoorKey-5x5")
    assert code == 0 and err == ""
    code, _, err = call(capsys, "train", "--seeds", "2")
    assert code == 2 and "--env" in err and "made list" in err and "made train --help" in err


@pytest.mark.parametrize("name", [command.__name__.lower() for command in main.COMMANDS])
def test_no_flag_is_shown_with_the_value_it_has_when_it_is_not_given(name, capsys):
    """`--no-video (default: True)` would read as if no video were made by default."""
    with pytest.raises(SystemExit, match="0"):
        main.main([name, "--help"])
    told = " ".join(re.sub(r"[^\x20-\x7e]", " ", capsys.readouterr().out).split())
    assert "usage: made" in told and "default: True" not in told and "default: False" not in told
    assert name != "train" or "--no-video skip the video" in told


def test_help_explains_bonus_coef_and_strength(capsys):
    with pytest.raises(SystemExit, match="0"):
        main.main(["train", "--help"])
    told = " ".join(re.sub(r"[^\x20-\x7e]", " ", capsys.readouterr().out).split())
    assert "bonus coefficient (default: 0.01; 1.0 with --strength; the paper's on control tasks)" in told
    assert "a full-length episode gets X in total" in told and "--bonus-coef multiplies it" in told


def test_bash_completes_commands(capsys, tmp_path):
    code, out, err = call(capsys, "completion", "bash")
    assert code == 0 and PLACES["bash"] in err
    (tmp_path / "made").write_text(out)
    (function,) = re.findall(r"^complete .*-F (\w+)", out, re.M)
    typed = f"source {tmp_path}/made; COMP_WORDS=(made tra); COMP_CWORD=1; {function} made tra made"
    asked = typed + '; echo "${COMPREPLY[@]}"'
    ran = subprocess.run(["bash", "-c", asked], capture_output=True, text=True)
    assert set(ran.stdout.split()) >= {"train", "transfer"}, ran.stderr


def test_completion_is_for_shells_that_it_knows(capsys):
    code, _, err = call(capsys, "completion", "csh")
    assert code == 2 and "('bash', 'zsh', 'fish')" in err and len(err.splitlines()) == 1


def test_list_takes_one_kind_and_tells_the_forms_of_made_apart(capsys):
    code, out, _ = call(capsys, "list", "bonuses")
    lines = out.splitlines()
    assert code == 0 and lines[0] == "bonuses:" and not any(line.endswith(":") for line in lines[1:])
    forms = [line.split(maxsplit=1)[1] for line in lines if line.split()[0].startswith("made")]
    assert len(forms) == len(set(forms)) == 5
    code, _, err = call(capsys, "list", "bonus")
    assert code == 2 and "Did you mean 'bonuses'?" in err and "made list" in err


def test_a_terminal_gets_one_line_each(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(info.shutil, "get_terminal_size", lambda **_: os.terminal_size((60, 24)))
    _, out, _ = call(capsys, "list", "agents")
    assert max(map(len, out.splitlines())) == 60


BOXES = {
    "drawn": """
╭─ Required options ────────────╮
│ Missing from made run:        │
│     STR                       │
│         experiment (required) │
│ ───────────────────────────── │
│ For full helptext, run:       │
│     made run --help           │
╰───────────────────────────────╯
""",
    "ascii": """
 Required options
 -------------------------------
  Missing from made run:
      STR
          experiment (required)
  -------------------------------
  For full helptext, run:
      made run --help
""",
}


@pytest.mark.parametrize("box", BOXES)
def test_a_mistake_reads_the_same_where_boxes_cannot_be_drawn(box, capsys):
    told = "Missing from made run: STR (experiment). `made list` names what there is."
    assert main._in_one_line(BOXES[box]) == told
    assert told in call(capsys, "run")[2]  # what tyro says is what is written here
