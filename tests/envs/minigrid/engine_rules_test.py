"""What each action does to each thing, written out by hand."""

import numpy as np
import pytest
from envs.minigrid.conftest import room

from made.envs.minigrid import tile_codes
from made.envs.minigrid.dynamics import DONE, DROP, FORWARD, PICK_UP, TOGGLE, TURN_LEFT, TURN_RIGHT
from made.envs.minigrid.tile_codes import BLUE, GREY, RED, YELLOW

REDS, BLUES = {"key": tile_codes.KEY + RED, "ball": tile_codes.BALL + RED}, {"key": tile_codes.KEY + BLUE}
HIDING = tile_codes.KEYBOX + 8 * YELLOW + GREY  # a grey box with a yellow key

INTERACTIONS = [  # what lies ahead, in hand, the action -> what lies ahead, in hand
    (REDS["key"], 0, PICK_UP, 0, REDS["key"]),
    (REDS["ball"], 0, PICK_UP, 0, REDS["ball"]),
    (HIDING, 0, PICK_UP, 0, HIDING),
    (REDS["key"], BLUES["key"], PICK_UP, REDS["key"], BLUES["key"]),
    (tile_codes.WALL, 0, PICK_UP, tile_codes.WALL, 0),
    (tile_codes.OPEN + RED, 0, PICK_UP, tile_codes.OPEN + RED, 0),
    (tile_codes.GOAL, 0, PICK_UP, tile_codes.GOAL, 0),
    (0, 0, PICK_UP, 0, 0),
    (0, REDS["key"], DROP, REDS["key"], 0),
    (0, HIDING, DROP, HIDING, 0),
    (0, 0, DROP, 0, 0),
    (tile_codes.FLOOR + BLUE, REDS["key"], DROP, tile_codes.FLOOR + BLUE, REDS["key"]),
    (tile_codes.GOAL, REDS["key"], DROP, tile_codes.GOAL, REDS["key"]),
    (tile_codes.OPEN + RED, REDS["key"], DROP, tile_codes.OPEN + RED, REDS["key"]),
    (tile_codes.OPEN + BLUE, 0, TOGGLE, tile_codes.CLOSED + BLUE, 0),
    (tile_codes.CLOSED + BLUE, 0, TOGGLE, tile_codes.OPEN + BLUE, 0),
    (tile_codes.LOCKED + BLUE, 0, TOGGLE, tile_codes.LOCKED + BLUE, 0),
    (tile_codes.LOCKED + BLUE, BLUES["key"], TOGGLE, tile_codes.OPEN + BLUE, BLUES["key"]),
    (tile_codes.LOCKED + BLUE, REDS["key"], TOGGLE, tile_codes.LOCKED + BLUE, REDS["key"]),
    (tile_codes.LOCKED + RED, REDS["ball"], TOGGLE, tile_codes.LOCKED + RED, REDS["ball"]),
    (tile_codes.BOX + GREY, 0, TOGGLE, 0, 0),
    (HIDING, 0, TOGGLE, tile_codes.KEY + YELLOW, 0),
    (HIDING, REDS["key"], TOGGLE, tile_codes.KEY + YELLOW, REDS["key"]),
    (REDS["key"], 0, TOGGLE, REDS["key"], 0),
    (tile_codes.WALL, 0, TOGGLE, tile_codes.WALL, 0),
    (REDS["key"], 0, DONE, REDS["key"], 0),
]


@pytest.mark.parametrize(("ahead", "hand", "action", "cell", "held"), INTERACTIONS)
def test_an_interaction(step, ahead, hand, action, cell, held):
    level = room(ahead)
    state, outcome = step(level, action, hand)
    cells = np.asarray(tile_codes.unpack(state.grid, 5, 6))
    expected = level.grid.copy()
    expected[2, 3] = cell
    assert np.array_equal(cells, expected), tile_codes.name(int(cells[2, 3]))
    assert int(state.carrying) == held, tile_codes.name(int(state.carrying))
    assert (int(state.x), int(state.y), int(state.direction)) == (2, 2, tile_codes.RIGHT)
    assert not outcome.terminated and not outcome.truncated and outcome.reward == 0


@pytest.mark.parametrize("code", np.flatnonzero(tile_codes.KNOWN))
def test_what_can_be_walked_on(step, code):
    state, outcome = step(room(int(code)), FORWARD)
    name = tile_codes.name(int(code))
    walks = name == "empty" or name.endswith(("floor", "open door")) or name in ("goal", "lava")
    assert (int(state.x) == 3) == walks, name
    assert bool(outcome.terminated) == (name in ("goal", "lava"))
    assert (outcome.reward > 0) == (name == "goal")


@pytest.mark.parametrize("direction", range(4))
def test_turning_and_going(step, direction):
    dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[direction]
    level = room(direction=direction)
    assert int(step(level, TURN_LEFT)[0].direction) == (direction - 1) % 4
    assert int(step(level, TURN_RIGHT)[0].direction) == (direction + 1) % 4
    gone = step(level, FORWARD)[0]
    assert (int(gone.x), int(gone.y), int(gone.direction)) == (2 + dx, 2 + dy, direction)


def test_reward_and_clock(step):
    state, outcome = step(room(tile_codes.GOAL), FORWARD, steps=9)
    assert outcome.reward == pytest.approx(1 - 0.9 * 10 / 20) and outcome.terminated and not outcome.truncated
    assert int(state.steps) == 10
    assert step(room(), DONE, steps=18)[1].truncated == np.False_
    assert step(room(), DONE, steps=19)[1].truncated
    last = step(room(tile_codes.GOAL), FORWARD, steps=19)[1]  # both, as in the package
    assert last.terminated and last.truncated and last.reward == pytest.approx(0.1)


def test_the_target_wins_when_it_is_picked_up_and_only_then(step):
    ball, other = np.uint8(tile_codes.BALL + BLUE), tile_codes.BALL + RED
    won = step(room(int(ball), target=ball), PICK_UP, steps=1)[1]
    assert won.terminated and won.reward == pytest.approx(1 - 0.9 * 2 / 20)
    assert not step(room(other, target=ball), PICK_UP)[1].terminated
    assert not step(room(int(ball), target=ball), PICK_UP, hand=tile_codes.KEY)[1].terminated
    assert not step(room(int(ball), target=ball), TOGGLE)[1].terminated
    assert not step(room(int(ball)), PICK_UP)[1].terminated
