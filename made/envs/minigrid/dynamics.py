"""What the seven actions do, exactly as in the package minigrid 3.2.

An interaction depends on the cell ahead, on the action, and on two facts of the hand: whether it is empty and whether
it holds the key of the door ahead. So the rules are written out once, as a table that a step looks up.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt8, UInt32

from made.envs.minigrid import tile_codes
from made.envs.minigrid.tile_codes import GridState

ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
TURN_LEFT, TURN_RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)

_NOTHING, _TAKE, _PUT, _USE, _UNLOCK = range(5)  # deeds: an action that the hand allows
_FROM_HAND = 254  # in the table of cells: what is in the hand
_KEPT, _TAKEN, _GIVEN = range(3)  # what the hand does


def _rules() -> tuple[np.ndarray, np.ndarray]:
    cells = np.tile(np.arange(256, dtype=np.uint8), (5, 1))
    hands = np.full((5, 256), _KEPT, np.uint8)
    cells[_PUT, tile_codes.EMPTY], hands[_PUT, tile_codes.EMPTY] = _FROM_HAND, _GIVEN
    for color in range(6):
        door = {state: state + color for state in (tile_codes.OPEN, tile_codes.CLOSED, tile_codes.LOCKED)}
        for deed in (_USE, _UNLOCK):
            cells[deed, door[tile_codes.OPEN]] = door[tile_codes.CLOSED]
            cells[deed, door[tile_codes.CLOSED]] = door[tile_codes.OPEN]
            cells[deed, tile_codes.BOX + color] = tile_codes.EMPTY
            for inside in range(6):
                cells[deed, tile_codes.KEYBOX + 8 * inside + color] = tile_codes.KEY + inside
        cells[_UNLOCK, door[tile_codes.LOCKED]] = door[tile_codes.OPEN]
    for code in range(tile_codes.STANDABLE_BELOW, tile_codes.OPAQUE_FROM):
        cells[_TAKE, code], hands[_TAKE, code] = tile_codes.EMPTY, _TAKEN
    return cells.reshape(-1), hands.reshape(-1)


_CELLS, _HANDS = _rules()
_AHEAD_X, _AHEAD_Y = np.array([1, 0, -1, 0], np.int32), np.array([0, 1, 0, -1], np.int32)
# The same, after four zeros for an agent that stays: looked up, so that the compiler computes it once an environment.
_MOVE_X, _MOVE_Y = np.pad(_AHEAD_X, (4, 0)), np.pad(_AHEAD_Y, (4, 0))


class Outcome(NamedTuple):
    """What a step is worth and whether it ends the episode."""

    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


def look_up(table: np.ndarray, index: Array) -> Array:
    """`table[index]` for an index that is known to be in range."""
    return jnp.asarray(table).at[index].get(mode="promise_in_bounds")


def act(
    state: GridState, action: Int[Array, ""], stride: int, max_steps: int | Int[Array, ""]
) -> tuple[GridState, Outcome]:
    """One action of one agent. Reward of a success at step t: 1 - 0.9 t / max_steps."""
    action, facing = action.astype(jnp.int32), state.direction.astype(jnp.int32)
    ahead_x = state.x.astype(jnp.int32) + _of_four(facing, _AHEAD_X)
    ahead_y = state.y.astype(jnp.int32) + _of_four(facing, _AHEAD_Y)
    index = tile_codes.LEAD + ahead_y * stride + ahead_x
    cell = state.grid.at[index].get(mode="promise_in_bounds")

    forward = action == FORWARD
    move = jnp.where(forward & (cell < tile_codes.STANDABLE_BELOW), 4, 0) + facing
    turn = jnp.where(action == TURN_LEFT, 3, jnp.where(action == TURN_RIGHT, 1, 0))
    new, carrying = _interact(cell, state.carrying, action)

    won = (forward & (cell == tile_codes.GOAL)) | ((action == PICK_UP) & (carrying == state.target))
    steps = state.steps + 1
    reward = jnp.where(won, 1 - 0.9 * (steps / max_steps), 0.0).astype(jnp.float32)
    outcome = Outcome(reward, won | (forward & (cell == tile_codes.LAVA)), steps >= max_steps)
    following = GridState(
        grid=state.grid.at[index].set(new, mode="promise_in_bounds", unique_indices=True, indices_are_sorted=True),
        x=state.x + look_up(_MOVE_X, move).astype(state.x.dtype),
        y=state.y + look_up(_MOVE_Y, move).astype(state.y.dtype),
        direction=((facing + turn) & 3).astype(state.direction.dtype),
        carrying=carrying,
        target=state.target,
        steps=steps,
        hash=state.hash + cell_hash(index, new) - cell_hash(index, cell),
    )
    return following, outcome


def _interact(
    cell: UInt8[Array, ""], hand: UInt8[Array, ""], action: Int[Array, ""]
) -> tuple[UInt8[Array, ""], UInt8[Array, ""]]:
    """(the cell ahead, the hand) after an action."""
    empty = hand == tile_codes.EMPTY
    fits = hand == cell - np.uint8(tile_codes.LOCKED - tile_codes.KEY)
    deed = jnp.where(action == PICK_UP, jnp.where(empty, _TAKE, _NOTHING), _NOTHING)
    deed = jnp.where(action == DROP, jnp.where(empty, _NOTHING, _PUT), deed)
    deed = jnp.where(action == TOGGLE, jnp.where(fits, _UNLOCK, _USE), deed)
    rule = deed * 256 + cell.astype(jnp.int32)
    new, does = look_up(_CELLS, rule), look_up(_HANDS, rule)
    new = jnp.where(new == _FROM_HAND, hand, new)
    return new, jnp.where(does == _TAKEN, cell, jnp.where(does == _GIVEN, np.uint8(tile_codes.EMPTY), hand))


def recolor_balls(state: GridState, key: Key[Array, ""]) -> GridState:
    """The noisy television of RIDE: every ball, in the grid or in the hand, takes one color drawn at random."""
    color = jax.random.randint(key, (), 0, 6).astype(jnp.uint8)

    def tint(code: UInt8[Array, "*n"]) -> UInt8[Array, "*n"]:
        return jnp.where((code >= tile_codes.BALL) & (code < tile_codes.BALL + 6), tile_codes.BALL + color, code)

    grid = tint(state.grid)
    return state._replace(grid=grid, carrying=tint(state.carrying), hash=grid_hash(grid))


def cell_hash(index: Int[Array, "*#n"], code: UInt8[Array, "*#n"]) -> UInt32[Array, "*m 2"]:
    """Two random-looking words for a code at a place of the packed grid; empty cells count too."""
    word = (index.astype(jnp.uint32) << 8) | code.astype(jnp.uint32)
    return mix(word[..., None] * np.array([0x9E3779B1, 0x85EBCA77], np.uint32))


def grid_hash(grid: UInt8[Array, "*n C"]) -> UInt32[Array, "*n 2"]:
    """The sum of `cell_hash` over a packed grid, from scratch; `act` keeps the same number up to date."""
    return cell_hash(jnp.arange(grid.shape[-1]), grid).sum(-2, dtype=jnp.uint32)


def mix(word: UInt32[Array, "*n"]) -> UInt32[Array, "*n"]:
    """A bijection of 32-bit words in which every bit of the input moves about half of the output's."""
    word = (word ^ (word >> 16)) * np.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * np.uint32(0x846CA68B)
    return word ^ (word >> 16)


def _of_four(facing: Int[Array, ""], values: np.ndarray) -> Int[Array, ""]:
    right, down, left, up = (int(v) for v in values)
    return jnp.where(facing < 2, jnp.where(facing == 0, right, down), jnp.where(facing == 2, left, up))
