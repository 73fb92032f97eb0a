"""What the seven actions do, and what can be seen of a state, exactly as in the package minigrid 3.2.

An interaction depends on the cell ahead, on the action, and on two facts of the hand: whether it is empty and whether
it holds the key of the door ahead. So the rules are written out once, as a table that a step looks up.

The agent's view is cut out of the packed grid as seven slices, turned so that the agent looks up, and then shadowed row
by row from the agent outwards. A row of cells is a 7-bit mask, so a row's shadow is one lookup in a table of
128 x 128 entries (light that arrives, cells that let it through).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, UInt8, UInt32

from made.core import Step
from made.envs.minigrid import tile_codes
from made.envs.minigrid.tile_codes import VIEW, GridState

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
# Steps after four zeros for an agent that stays: looked up, so that the compiler computes it once an environment.
_MOVE_X, _MOVE_Y = np.pad(np.array(tile_codes.STEPS, np.int32).T, ((0, 0), (4, 0)))


def look_up(table: np.ndarray, index: Array) -> Array:
    """`table[index]` for an index that is known to be in range."""
    return jnp.asarray(table).at[index].get(mode="promise_in_bounds")


def act(state: GridState, action: Int[Array, ""], stride: int, max_steps: int | Array) -> tuple[GridState, Step]:
    """One action of one agent, without an observation. Reward of a success at step t: 1 - 0.9 t / max_steps."""
    action, facing = action.astype(jnp.int32), state.direction.astype(jnp.int32)
    step_x, step_y = (_of_four(facing, *steps) for steps in zip(*tile_codes.STEPS, strict=True))
    ahead_x, ahead_y = state.x.astype(jnp.int32) + step_x, state.y.astype(jnp.int32) + step_y
    index = tile_codes.LEAD + ahead_y * stride + ahead_x
    cell = state.grid.at[index].get(mode="promise_in_bounds")

    forward = action == FORWARD
    move = jnp.where(forward & (cell < tile_codes.STANDABLE_BELOW), 4, 0) + facing
    turn = jnp.where(action == TURN_LEFT, 3, jnp.where(action == TURN_RIGHT, 1, 0))
    new, carrying = _interact(cell, state.carrying, action)

    won = (forward & (cell == tile_codes.GOAL)) | ((action == PICK_UP) & (carrying == state.target))
    steps = state.steps + 1
    reward = jnp.where(won, 1 - 0.9 * (steps / max_steps), 0.0).astype(jnp.float32)
    outcome = Step((), reward, won | (forward & (cell == tile_codes.LAVA)), steps >= max_steps)
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


def _interact(cell: UInt8[Array, ""], hand: UInt8[Array, ""], action: Int[Array, ""]) -> tuple[Array, Array]:
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


def _of_four(facing: Int[Array, ""], right: Any, down: Any, left: Any, up: Any) -> Any:
    return jnp.where(facing < 2, jnp.where(facing == 0, right, down), jnp.where(facing == 2, left, up))


AGENT = 10  # MiniGrid's object index of the agent, in the full view only
_CORNER_X, _CORNER_Y = np.array([0, -3, -6, -3], np.int32), np.array([-3, 0, -3, -6], np.int32)
_COLUMN, _ROW = np.meshgrid(np.arange(VIEW), np.arange(VIEW), indexing="ij")  # images are indexed [column][row]
_AT_AGENT = (_COLUMN == VIEW // 2) & (_ROW == VIEW - 1)


def _shadow(light: np.ndarray, clear: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(cells of this row that are seen, light that falls on the next row), as the package's `process_vis`.

    A sweep to the right, then one to the left: a lit clear cell lights its neighbor, and in the next row the cell
    ahead of it and the one ahead of that neighbor.
    """
    ahead = np.zeros_like(light)
    for here, way in [(i, 1) for i in range(VIEW - 1)] + [(i, -1) for i in range(VIEW - 1, 0, -1)]:
        passes = (light >> here) & (clear >> here) & 1
        light = light | (passes << (here + way))
        ahead = ahead | (passes << here) | (passes << (here + way))
    return light, ahead


_SEEN, _NEXT = _shadow(*np.meshgrid(np.arange(128), np.arange(128), indexing="ij"))
_SHADOWS = (_SEEN | (_NEXT << VIEW)).astype(np.uint16).reshape(-1)  # [light * 128 + clear] -> seen | next light << 7


def window(state: GridState, stride: int) -> UInt8[Array, "7 7"]:
    """The codes of the 7x7 cells ahead, [column][row], as if nothing cast a shadow; the agent is at [3][6]."""
    facing = state.direction.astype(jnp.int32)
    corner = state.x.astype(jnp.int32) + look_up(_CORNER_X, facing)
    corner += (state.y.astype(jnp.int32) + look_up(_CORNER_Y, facing)) * stride + tile_codes.LEAD
    starts = corner + stride * np.arange(VIEW, dtype=np.int32)

    def cut(start: Int[Array, ""]) -> UInt8[Array, "7"]:
        # Rows beyond the grid start before 0 or after its end: clamped, they read the walls of its frame.
        return jax.lax.dynamic_slice(state.grid, (start,), (VIEW,), allow_negative_indices=False)

    block = jax.vmap(cut)(starts)
    return _of_four(facing, block[:, ::-1], block[::-1, ::-1].T, block[::-1, :], block.T)


def lit(codes: UInt8[Array, "7 7"]) -> Bool[Array, "7 7"]:
    """Which cells of a window the agent sees."""
    clear = (codes < tile_codes.OPAQUE_FROM).astype(jnp.uint16)
    rows = (clear << np.arange(VIEW, dtype=np.uint16)[:, None]).sum(0, dtype=jnp.uint16)
    light, seen = jnp.uint16(1 << VIEW // 2), [jnp.uint32(0)] * VIEW
    for row in reversed(range(VIEW)):
        shadow = look_up(_SHADOWS, (light << VIEW) | rows[row])
        seen[row], light = (shadow & 127).astype(jnp.uint32), shadow >> VIEW
    # Two words for the seven masks, so that a cell tests one bit of a number that its whole environment shares.
    far = sum((seen[row] << (VIEW * row) for row in range(1, 4)), seen[0])
    near = sum((seen[row] << (VIEW * (row - 4)) for row in range(5, VIEW)), seen[4])
    bit = (_COLUMN + VIEW * np.where(_ROW < 4, _ROW, _ROW - 4)).astype(np.uint32)
    return ((jnp.where(_ROW < 4, far, near) >> bit) & 1) != 0


def image(state: GridState, stride: int, see_through: bool = False) -> UInt8[Array, "7 7 3"]:
    """The package's `obs["image"]`: (object, color, state) of each cell in view, [column][row].

    Zeros where nothing is seen; the agent's own cell shows what it carries.
    """
    codes = window(state, stride)
    cells = look_up(tile_codes.ENCODING, jnp.where(_AT_AGENT, state.carrying, codes))
    if see_through:
        return cells
    # No byte of the encoding is above 10, so dividing by 255 gives the zeros of a cell in the dark. A select would give
    # them too, but the compiler for CPUs repeats a select for each use of the image, and a division it does once.
    darkness = jnp.where(lit(codes), np.uint8(1), np.uint8(255))
    return jax.lax.div(cells, jnp.broadcast_to(darkness[..., None], cells.shape))


def full_view(state: GridState, height: int, width: int) -> UInt8[Array, "W H 3"]:
    """The whole grid as the package's FullyObsWrapper gives it, [x][y]; the agent's cell is (AGENT, red, direction)."""
    cells = look_up(tile_codes.ENCODING, jnp.asarray(tile_codes.unpack(state.grid, height, width)).T)
    here = (jnp.arange(width)[:, None] == state.x) & (jnp.arange(height) == state.y)
    agent = jnp.stack([jnp.uint8(AGENT), jnp.uint8(0), state.direction.astype(jnp.uint8)])
    return jnp.where(here[..., None], agent, cells)


def state_hash(state: GridState) -> UInt32[Array, "2"]:
    """64 bits that tell a state from every other: the grid (contents of boxes too), the pose and the hand.

    The clock and the target are left out, as in the episodic counts of RIDE and NovelD.
    """
    parts = (state.x, state.y, state.direction, state.carrying)
    x, y, direction, hand = (part.astype(jnp.uint32) for part in parts)
    pose = x | (y << 8) | (direction << 16) | (hand << 24)
    return mix(state.hash + mix(pose * np.array([0xC2B2AE3D, 0x27D4EB2F], np.uint32)))
