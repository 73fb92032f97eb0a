"""Walking a task by hand."""

import io

import jax
import numpy as np
import pytest
from envs.minigrid.conftest import Same, room

from made.envs.minigrid import play, render, tile_codes
from made.envs.minigrid.env import Grid


def test_signs_tell_things_and_colors():
    assert [play.sign(c) for c in (tile_codes.WALL, tile_codes.EMPTY, tile_codes.LAVA, tile_codes.GOAL)] == [
        "##",
        "  ",
        "~~",
        "Gg",
    ]
    assert play.sign(tile_codes.KEY + tile_codes.RED) == "Kr" and play.sign(tile_codes.LOCKED + tile_codes.GREY) == "Lx"
    assert play.sign(tile_codes.OPEN + tile_codes.BLUE) == "_b"
    assert play.sign(tile_codes.BOX + tile_codes.PURPLE) == play.sign(tile_codes.KEYBOX + 8 + tile_codes.PURPLE) == "Bp"
    assert all(len(play.sign(int(code))) == 2 for code in np.flatnonzero(tile_codes.KNOWN))


def test_keys_walk_to_the_goal_and_a_new_level_follows(capsys):
    play.game_loop(Grid(Same(room(tile_codes.GOAL))), jax.random.key(0), "?dawq w")
    shown = capsys.readouterr().out
    assert "Won after 3 steps: return 0.865." in shown
    assert shown.count("[go forward]") == 1 and shown.rstrip().endswith("#" * 12)  # nothing after q
    assert "##  >>Gg  ##" in shown and "##    >>  ##" in shown and "[a new level] step 0 of 20" in shown


def test_lava_the_clock_and_the_hand_are_told(capsys):
    play.game_loop(Grid(Same(room(tile_codes.LAVA))), jax.random.key(0), "w")
    play.game_loop(Grid(Same(room(tile_codes.KEY + tile_codes.RED), max_steps=2)), jax.random.key(0), "p ")
    play.game_loop(Grid(Same(room(target=np.uint8(tile_codes.BALL + tile_codes.BLUE)))), jax.random.key(0), "r")
    shown = capsys.readouterr().out
    assert "Lost in the lava after 1 steps" in shown and "in hand: red key" in shown
    assert "Out of time after 2 steps" in shown and "pick up the blue ball" in shown


def test_a_hidden_key_is_not_told(capsys):
    play.game_loop(Grid(Same(room(tile_codes.KEYBOX + tile_codes.GREY))), jax.random.key(0), "p")
    shown = capsys.readouterr().out
    assert "in hand: grey box;" in shown and "key" not in shown


def test_play_by_id_with_keys_from_a_string_and_from_a_pipe(capsys, monkeypatch):
    assert play.play("MiniGrid-Empty-5x5-v0", 1, keys="wwdww") == 0
    told = capsys.readouterr().out
    assert "MiniGrid-Empty-5x5-v0, seed 1" in told and "Won after 5 steps" in told
    monkeypatch.setattr("sys.stdin", io.StringIO("ww\ndww\n"))
    assert play.play("MiniGrid-Empty-5x5-v0", 1) == 0
    assert capsys.readouterr().out == told


def test_an_unknown_task_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="MiniGrid-Empty-5x5-v0"):
        play.play("MiniGrid-Empty-5x5", 0, keys="")


def test_the_colored_map_has_the_same_signs(grid):
    state = jax.device_get(grid.reset(jax.random.key(0))[0])
    colored = play.board(grid, state, colors=True)
    bare = "".join(part.partition("m")[2] for part in colored.replace("\n", "\033[0m\n").split("\033["))
    assert bare == play.board(grid, state)
    walkable = np.asarray(tile_codes.unpack(state.grid, 5, 6)) != tile_codes.WALL
    assert colored.count("48;2;76;76;76") == (render.seen_cells(grid, state) & walkable).sum() == 9
