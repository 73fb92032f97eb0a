"""What each action does to each thing, written out by hand."""

import numpy as np
import pytest
from grids.conftest import room

from made.grids import world
from made.grids.dynamics import DONE, DROP, FORWARD, PICK_UP, TOGGLE, TURN_LEFT, TURN_RIGHT
from made.grids.world import BLUE, GREY, RED, YELLOW

REDS, BLUES = {"key": world.KEY + RED, "ball": world.BALL + RED}, {"key": world.KEY + BLUE}
HIDING = world.KEYBOX + 8 * YELLOW + GREY  # a grey box with a yellow key

INTERACTIONS = [  # what lies ahead, in hand, the action -> what lies ahead, in hand
    (REDS["key"], 0, PICK_UP, 0, REDS["key"]),
    (REDS["ball"], 0, PICK_UP, 0, REDS["ball"]),
    (HIDING, 0, PICK_UP, 0, HIDING),
    (REDS["key"], BLUES["key"], PICK_UP, REDS["key"], BLUES["key"]),
    (world.WALL, 0, PICK_UP, world.WALL, 0),
    (world.OPEN + RED, 0, PICK_UP, world.OPEN + RED, 0),
    (world.GOAL, 0, PICK_UP, world.GOAL, 0),
    (0, 0, PICK_UP, 0, 0),
    (0, REDS["key"], DROP, REDS["key"], 0),
    (0, HIDING, DROP, HIDING, 0),
    (0, 0, DROP, 0, 0),
    (world.FLOOR + BLUE, REDS["key"], DROP, world.FLOOR + BLUE, REDS["key"]),
    (world.GOAL, REDS["key"], DROP, world.GOAL, REDS["key"]),
    (world.OPEN + RED, REDS["key"], DROP, world.OPEN + RED, REDS["key"]),
    (world.OPEN + BLUE, 0, TOGGLE, world.CLOSED + BLUE, 0),
    (world.CLOSED + BLUE, 0, TOGGLE, world.OPEN + BLUE, 0),
    (world.LOCKED + BLUE, 0, TOGGLE, world.LOCKED + BLUE, 0),
    (world.LOCKED + BLUE, BLUES["key"], TOGGLE, world.OPEN + BLUE, BLUES["key"]),
    (world.LOCKED + BLUE, REDS["key"], TOGGLE, world.LOCKED + BLUE, REDS["key"]),
    (world.LOCKED + RED, REDS["ball"], TOGGLE, world.LOCKED + RED, REDS["ball"]),
    (world.BOX + GREY, 0, TOGGLE, 0, 0),
    (HIDING, 0, TOGGLE, world.KEY + YELLOW, 0),
    (HIDING, REDS["key"], TOGGLE, world.KEY + YELLOW, REDS["key"]),
    (REDS["key"], 0, TOGGLE, REDS["key"], 0),
    (world.WALL, 0, TOGGLE, world.WALL, 0),
    (REDS["key"], 0, DONE, REDS["key"], 0),
]


@pytest.mark.parametrize(("ahead", "hand", "action", "cell", "held"), INTERACTIONS)
def test_an_interaction(step, ahead, hand, action, cell, held):
    level = room(ahead)
    state, outcome = step(level, action, hand)
    cells = np.asarray(world.unpack(state.grid, 5, 6))
    expected = level.grid.copy()
    expected[2, 3] = cell
    assert np.array_equal(cells, expected), world.name(int(cells[2, 3]))
    assert int(state.carrying) == held, world.name(int(state.carrying))
    assert (int(state.x), int(state.y), int(state.direction)) == (2, 2, world.RIGHT)
    assert not outcome.terminated and not outcome.truncated and outcome.reward == 0


@pytest.mark.parametrize("code", np.flatnonzero(world.KNOWN))
def test_what_can_be_walked_on(step, code):
    state, outcome = step(room(int(code)), FORWARD)
    name = world.name(int(code))
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
    state, outcome = step(room(world.GOAL), FORWARD, steps=9)
    assert outcome.reward == pytest.approx(1 - 0.9 * 10 / 20) and outcome.terminated and not outcome.truncated
    assert int(state.steps) == 10
    assert step(room(), DONE, steps=18)[1].truncated == np.False_
    assert step(room(), DONE, steps=19)[1].truncated
    last = step(room(world.GOAL), FORWARD, steps=19)[1]  # both, as in the package
    assert last.terminated and last.truncated and last.reward == pytest.approx(0.1)


def test_the_target_wins_when_it_is_picked_up_and_only_then(step):
    ball, other = np.uint8(world.BALL + BLUE), world.BALL + RED
    won = step(room(int(ball), target=ball), PICK_UP, steps=1)[1]
    assert won.terminated and won.reward == pytest.approx(1 - 0.9 * 2 / 20)
    assert not step(room(other, target=ball), PICK_UP)[1].terminated
    assert not step(room(int(ball), target=ball), PICK_UP, hand=world.KEY)[1].terminated
    assert not step(room(int(ball), target=ball), TOGGLE)[1].terminated
    assert not step(room(int(ball)), PICK_UP)[1].terminated
