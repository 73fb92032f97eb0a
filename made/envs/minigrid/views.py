"""What can be seen of a state: the agent's own 7x7 view, the whole grid, and a hash that tells states apart.

The agent's view is cut out of the packed grid as seven slices, turned so that the agent looks up, and then shadowed row
by row from the agent outwards. A row of cells is a 7-bit mask, so a row's shadow is one lookup in a table of
128 x 128 entries (light that arrives, cells that let it through).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, UInt8, UInt32

from made.envs.minigrid import tile_codes
from made.envs.minigrid.dynamics import look_up, mix
from made.envs.minigrid.tile_codes import VIEW, GridState

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
    right, down, left, up = block[:, ::-1], block[::-1, ::-1].T, block[::-1, :], block.T
    return jnp.where(facing < 2, jnp.where(facing == 0, right, down), jnp.where(facing == 2, left, up))


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
