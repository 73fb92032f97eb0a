"""The snippets of docs/plugins.md run as they stand, but for the number of steps."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "plugins.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)


def run(text, folder, monkeypatch):
    monkeypatch.chdir(folder)
    space = {"__name__": "snippet"}
    exec(compile(text, "docs/plugins.md", "exec"), space)
    return space


@pytest.mark.filterwarnings("ignore:You are trying to run PPO on the GPU:UserWarning")
def test_ppo_with_made(tmp_path, monkeypatch):
    small = {
        "1_000_000": "32",
        "n_steps=100, batch_size=400": "n_steps=4, batch_size=16",
        "FirstVisit(MADE.deep())": "FirstVisit()",
        "MultiRoom-N4-S5-v1": "Empty-5x5-v0",
        '", 32)': '", 4)',
    }
    text = SNIPPETS[0]
    for old, new in small.items():
        assert old in text
        text = text.replace(old, new)
    space = run(text, tmp_path, monkeypatch)
    assert space["model"].num_timesteps >= 32 and (tmp_path / "bonus.safetensors").stat().st_size > 1000


def test_sac_with_a_bonus_in_its_buffer(tmp_path, monkeypatch):
    space = run(SNIPPETS[1].replace("1_000_000", "8"), tmp_path, monkeypatch)
    assert space["model"].replay_buffer.pos == 8 and (tmp_path / "buffer.safetensors").is_file()


def test_gymnasium_wrapper(tmp_path, monkeypatch, capsys):
    space = run(SNIPPETS[2], tmp_path, monkeypatch)
    assert np.allclose(space["reward"], space["info"]["extrinsic"] + space["info"]["intrinsic"])
    assert capsys.readouterr().out.count("[") == 2


def test_the_minigrid_package(tmp_path, monkeypatch, capsys):
    space = run(SNIPPETS[3], tmp_path, monkeypatch)
    assert set(space["obs"]) == {"image", "hash"} and space["horizon"] == 250
    assert capsys.readouterr().out.startswith("(4, 7, 7, 3) (4, 2) [")
    visits = np.asarray(space["envs"].bonus.note.trace[0])  # of the present state, in this episode
    assert (visits >= 1).all() and len(np.unique(space["obs"]["hash"], axis=0)) > 1


def test_any_loop(tmp_path, monkeypatch):
    space = run(SNIPPETS[4], tmp_path, monkeypatch)
    assert isinstance(space["intrinsic"], torch.Tensor) and space["intrinsic"].shape == (16, 4)
    assert space["metrics"] and len(SNIPPETS) == 5
