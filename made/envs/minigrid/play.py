"""Walk a task by hand, in the terminal or from a string of keys."""

import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from made.envs.minigrid import render, tile_codes
from made.envs.minigrid.dynamics import ACTIONS
from made.envs.minigrid.env import Grid
from made.envs.minigrid.tile_codes import GridState

KEYS = {"a": 0, "d": 1, "w": 2, "p": 3, "l": 4, "t": 5, "x": 6}  # key -> action
_ARROWS = {"[D": "a", "[C": "d", "[A": "w"}
_HELP = (
    "a, d, arrows: turn   w, up: go   p: pick up   l: lay down   t, space: toggle   x: done   r: new level   q: quit"
)
_SIGNS = {"goal": "G", "floor": ".", "key": "K", "ball": "O", "box": "B", "closed door": "D", "locked door": "L"}
_LETTERS = "rgbpyx"  # of the colors; x is grey
_AGENTS = (">>", "vv", "<<", "^^")


def sign(code: int) -> str:
    """Two characters for a cell: what it is and its color, such as `Kr` for a red key and `Ly` for a yellow lock."""
    kind = tile_codes.KINDS[code // 8]
    if code in (tile_codes.EMPTY, tile_codes.WALL, tile_codes.LAVA):
        return {tile_codes.EMPTY: "  ", tile_codes.WALL: "##", tile_codes.LAVA: "~~"}[code]
    if kind == "open door":
        return "_" + _LETTERS[code % 8]
    return _SIGNS["box" if kind.startswith("box") else kind] + _LETTERS[code % 8]


def board(grid: Grid, state: GridState, colors: bool = False) -> str:
    """A state as lines of text, with colors and what the agent sees in the codes of a terminal.

    Hidden keys stay hidden: a box looks the same whatever is in it.
    """
    lit, lines = render.seen_cells(grid, state) if colors else None, []
    for y, row in enumerate(np.asarray(tile_codes.unpack(state.grid, grid.maker.height, grid.maker.width))):
        signs = [sign(int(code)) for code in row]
        if lit is not None:
            signs = [_paint(int(code), bool(seen)) + s for code, seen, s in zip(row, lit[y], signs, strict=True)]
        if y == state.y:
            agent = _AGENTS[int(state.direction)]
            signs[int(state.x)] = f"\033[1;38;2;255;60;60;48;2;76;76;76m{agent}\033[22m" if colors else agent
        lines.append("".join(signs) + ("\033[0m" if colors else ""))
    return "\n".join(lines)


def play(task: str, seed: int = 0, keys: str | None = None) -> int:
    """Walk a grid; `keys` plays that string instead of asking. The exit code of `made play`.

    `task` is a MiniGrid id, in full or as in KeyCorridorS3R3.

    In a terminal each key acts at once and the map has colors; elsewhere keys are read from the input and the map is
    plain text.
    """
    from made.envs.minigrid import grid_ids, make_grid

    grid = make_grid(task)
    terminal = keys is None and sys.stdin.isatty() and sys.stdout.isatty() and find_spec("termios") is not None
    print(f"{grid_ids()[task]}, seed {seed}\n{_HELP}")
    piped = (key for line in sys.stdin for key in line.strip("\n"))
    source = keys if keys is not None else _pressed() if terminal else piped
    game_loop(grid, jax.random.key(seed), source, colors=terminal)
    return 0


def game_loop(grid: Grid, key: jax.Array, keys: Iterable[str], colors: bool = False) -> None:
    """Show a fresh level and then the outcome of each key, until `q` or the last one."""
    reset, step = eqx.filter_jit(grid.reset), eqx.filter_jit(grid.step)
    key, k_level = jax.random.split(key)
    state = jax.device_get(reset(k_level)[0])
    _show(grid, state, colors)
    for pressed in keys:
        if pressed == "q":
            return
        pressed = "t" if pressed == " " else pressed
        if pressed not in KEYS and pressed != "r":
            continue
        key, k_next = jax.random.split(key)
        if pressed != "r":
            state, seen = jax.device_get(step(state, jnp.int32(KEYS[pressed]), k_next))
            _show(grid, state, colors, ACTIONS[KEYS[pressed]])
            if not (seen.terminated or seen.truncated):
                continue
            how = "Won" if seen.reward > 0 else "Lost in the lava" if seen.terminated else "Out of time"
            print(f"{how} after {int(state.steps)} steps: return {float(seen.reward):.3f}.")
        key, k_level = jax.random.split(key)
        state = jax.device_get(reset(k_level)[0])
        _show(grid, state, colors, "a new level")


def _show(grid: Grid, state: GridState, colors: bool, word: str = "") -> None:
    hand = tile_codes.name(int(state.carrying)) if state.carrying else "nothing"
    target = int(state.target)
    aim = "reach the goal" if target == tile_codes.NO_TARGET else f"pick up the {tile_codes.name(target)}"
    line = f"step {int(state.steps)} of {grid.maker.max_steps}; in hand: {hand.split(' with')[0]}; {aim}"
    shown = board(grid, state, colors)
    if colors:
        print(f"\033[2J\033[H{shown}\n\n{line}   {f'({word})' if word else ''}\n{_HELP}", flush=True)
    else:
        print(f"\n{f'[{word}] ' if word else ''}{line}\n{shown}")


@cache
def _paint(code: int, lit: bool) -> str:
    red, green, blue = render.tile(code, None, lit, 8).reshape(-1, 3).max(0)
    ground = "100;100;100" if code == tile_codes.WALL else "76;76;76" if lit else "0;0;0"
    return f"\033[38;2;{red};{green};{blue};48;2;{ground}m"


def _pressed() -> Iterator[str]:
    """Keys as they are pressed, arrows as the letters they stand for; `q` at the end of the input."""
    import termios
    import tty

    kept = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        while True:
            key = sys.stdin.read(1)
            if key == "\033":
                key = _ARROWS.get(sys.stdin.read(2), "")
            yield key or "q"
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, kept)
