"""What is compared of levels: numbers that a level has, and maps of where things lie, for the package's and for ours.

A batch of levels is a Level of NumPy arrays with a leading axis. Nothing here knows how levels are made.
"""

from collections import Counter
from string import ascii_letters, digits

import numpy as np
from scipy import ndimage, stats

from made.envs.minigrid.tile_codes import BALL, CLOSED, EMPTY, GOAL, KEY, KEYBOX, KINDS, LOCKED, NO_TARGET, Level

Histogram = dict[int, int]
_AHEAD = np.array([(1, 0), (0, 1), (-1, 0), (0, -1)])
_LETTERS = ascii_letters + digits + "+-"
_COLOURED = {"closed door": CLOSED, "locked door": LOCKED, "key": KEY, "ball": BALL}


def stack(levels: list[Level]) -> Level:
    """One batch of many levels."""
    return Level(*(np.stack([np.asarray(leaf) for leaf in leaves]) for leaves in zip(*levels, strict=True)))


def kinds(grid: np.ndarray) -> np.ndarray:
    """The kind of each cell, all boxes with keys alike."""
    kind = grid.astype(np.int32) // 8
    return np.where((grid >= KEYBOX) & (grid < CLOSED), KEYBOX // 8, kind)


def maps(task: str, levels: Level) -> dict[str, np.ndarray]:
    """For each kind of thing that occurs, and for the agent, how many levels have one in each cell.

    Walls matter where rooms have no fixed place; elsewhere they are where no door is.
    """
    kind = kinds(levels.grid)
    present = [k for k in np.unique(kind) if k != EMPTY and (KINDS[k] != "wall" or "MultiRoom" in task)]
    names = {k: KINDS[k] if k != KEYBOX // 8 else "key in a box" for k in present}
    found = {name: (kind == k).sum(0).ravel() for k, name in names.items()}
    _, height, width = levels.grid.shape
    found["agent"] = np.bincount(levels.y.astype(int) * width + levels.x, minlength=height * width)
    return found


def numbers(task: str, levels: Level) -> dict[str, np.ndarray]:
    """Whole numbers that each level has, [n] each."""
    rows = np.arange(len(levels.x))
    x, y, side = (np.asarray(part).astype(int) for part in levels[1:4])
    front = levels.grid[rows, y + _AHEAD[side, 1], x + _AHEAD[side, 0]]
    found = {"direction": side, "ahead": kinds(front), "target": np.asarray(levels.target).astype(int)}
    kind = kinds(levels.grid)
    for code, what in enumerate(KINDS):
        count = (kind == code).sum((1, 2))
        if count.any():
            found[f"number of {what}"] = count
    found |= _places(levels) | (chain(levels) if "MultiRoom" in task else _colours(levels.grid))
    if "KeyCorridor" in task or "ObstructedMaze" in task:
        size = int(task.split("S")[1][0]) if "KeyCorridor" in task else 6
        found |= passages(levels, size)
    return found


def _colours(grid: np.ndarray) -> dict[str, np.ndarray]:
    """The colours of the things of one kind in the order of reading, each with its successor (6 is none)."""
    found = {}
    flat = grid.reshape(len(grid), -1).astype(int)
    for what, base in {**_COLOURED, "hidden key": KEYBOX}.items():
        hidden = base == KEYBOX
        there = (flat >= base) & (flat < (CLOSED if hidden else base + 6))
        most = there.sum(1).max()
        if not most:
            continue
        order = np.argsort(~there, axis=1, kind="stable")[:, :most]
        code = np.take_along_axis(flat, order, 1) - base
        colour = np.where(np.take_along_axis(there, order, 1), code // 8 if hidden else code, 6)
        for k in range(most):
            following = colour[:, k + 1] if k + 1 < most else 0
            found[f"colour of {what} {k}, and the next"] = 7 * colour[:, k] + following
    return found


def _places(levels: Level) -> dict[str, np.ndarray]:
    """How far apart the agent and the single things of a level are."""
    flat = levels.grid.reshape(len(levels.grid), -1).astype(int)
    width = levels.grid.shape[2]
    spots = {"agent": np.asarray(levels.y).astype(int) * width + levels.x}
    singles = {
        "goal": (GOAL, GOAL + 1),
        "key": (KEY, KEY + 6),
        "lock": (LOCKED, LOCKED + 6),
        "hidden key": (KEYBOX, CLOSED),
    }
    for what, (low, high) in singles.items():
        there = (flat >= low) & (flat < high)
        if (there.sum(1) == 1).all():
            spots[what] = there.argmax(1)
    if (levels.target != NO_TARGET).all():
        spots["target"] = (flat == np.asarray(levels.target)[:, None]).argmax(1)
    names = list(spots)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    return {
        f"{a} to {b}": abs(spots[a] % width - spots[b] % width) + abs(spots[a] // width - spots[b] // width)
        for a, b in pairs
    }


def passages(levels: Level, size: int) -> dict[str, np.ndarray]:
    """Of rooms in rows and columns: which walls have doors, where in the wall, and which locks have no key."""
    pitch = size - 1
    n, height, width = levels.grid.shape
    grid = levels.grid.astype(int)
    door = (grid >= CLOSED) & (grid < LOCKED + 6)
    found, pattern = {}, np.zeros(n, int)
    walls = [door[:, j : j + pitch - 1, i] for i in range(pitch, width - 1, pitch) for j in range(1, height, pitch)]
    walls += [door[:, j, i : i + pitch - 1] for j in range(pitch, height - 1, pitch) for i in range(1, width, pitch)]
    for at, wall in enumerate(walls):
        pattern += wall.any(1).astype(int) << at
        if wall.any():
            found[f"place of door {at}"] = np.where(wall.any(1), wall.argmax(1), pitch)
    flat = grid.reshape(n, -1)
    keys = [((flat == KEY + c) | ((flat >= KEYBOX + 8 * c) & (flat < KEYBOX + 8 * c + 6))).sum(1) for c in range(6)]
    locks = [(flat == LOCKED + c).sum(1) for c in range(6)]
    lost = sum((np.maximum(lock - key, 0) for lock, key in zip(locks, keys, strict=True)), np.zeros(n, int))
    rooms = {"pattern of doors": pattern, "number of doors": door.sum((1, 2)), "locks without a key": lost}
    for what, there in {
        "lock": (flat >= LOCKED) & (flat < LOCKED + 6),
        "key": (flat >= KEY) & (flat < KEY + 6),
    }.items():
        if (there.sum(1) == 1).all():
            rooms[f"row of {what}"] = there.argmax(1) // width // pitch
    if "row of lock" in rooms and "row of key" in rooms:
        rooms["rows of lock and key"] = 10 * rooms["row of lock"] + rooms["row of key"]
        rooms["doors, by the row of the lock"] = 8 * rooms["number of doors"] + rooms["row of lock"]
    return found | rooms


def chain(levels: Level) -> dict[str, np.ndarray]:
    """Of a chain of rooms: the place and size of each, and the door that leads on, from the agent's room to the last.

    Where a chain is broken off or forks, its numbers are -1 from there on.
    """
    n = len(levels.x)
    rows = np.arange(n)
    label, box = _rooms(levels.grid)
    door, sides = _doors(levels.grid, label)
    here, came = label[rows, levels.y.astype(int), levels.x.astype(int)], np.full(n, -1)
    found: dict[str, np.ndarray] = {}
    area, length = np.zeros(n, int), np.zeros(n, int)
    for k in range(door.shape[1] + 1):
        left, top, right, bottom = box[here].T
        inside = {"x": left, "y": top, "width": right - left, "height": bottom - top}
        found |= {f"{what} of room {k}": np.where(here > 0, value, -1) for what, value in inside.items()}
        area += np.where(here > 0, (right - left + 2) * (bottom - top + 2), 0)
        length += here > 0
        if k == door.shape[1]:
            break
        ways = (sides == here[:, None, None]) & (here > 0)[:, None, None]
        ways &= (np.arange(door.shape[1]) != came[:, None])[:, :, None]
        sound = ways.sum((1, 2)) == 1
        came, side = np.divmod(ways.reshape(n, -1).argmax(1), 4)  # the room is on this side of the door
        code, y, x = door[rows, came].T
        upright = side % 2 == 0
        following = np.where(sound, sides[rows, came, (side + 2) % 4], 0)
        along, shift = (
            np.where(upright, y - top, x - left),
            np.where(upright, y - box[following][:, 1], x - box[following][:, 0]),
        )
        step = {
            "side of door": side,
            "colour of door": code - CLOSED,
            "place of door": along,
            "shift after door": shift,
        }
        found |= {f"{what} {k}": np.where(sound, value, -1) for what, value in step.items()}
        here, came = following, np.where(sound, came, -1)
    for k in range(door.shape[1] - 1):
        found[f"turn after room {k}"] = 5 * found[f"side of door {k}"] + found[f"side of door {k + 1}"]
        found[f"colours of doors {k}, {k + 1}"] = 7 * found[f"colour of door {k}"] + found[f"colour of door {k + 1}"]
    goal = (levels.grid == GOAL).reshape(n, -1).argmax(1)
    last = label.reshape(n, -1)[rows, goal] == here
    return found | {
        "rooms in a row": length,
        "area of all rooms": area // 20,
        "goal in the last room": last.astype(int),
    }


def _rooms(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The room each cell belongs to (0 for walls and doors), and each room's left, top, right and bottom."""
    flat = np.zeros((3, 3, 3), bool)
    flat[1] = ndimage.generate_binary_structure(2, 1)
    label, _ = ndimage.label((grid == EMPTY) | (grid == GOAL), flat)
    boxes = [(xs.start, ys.start, xs.stop, ys.stop) for _, ys, xs in ndimage.find_objects(label)]
    return label, np.array([(0, 0, 0, 0), *boxes])


def _doors(grid: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The doors of each level as (code, y, x), and the rooms right of, below, left of and above each."""
    there = (grid >= CLOSED) & (grid < CLOSED + 6)
    most = there.sum((1, 2)).max()
    i, y, x = np.nonzero(there)
    at = np.concatenate([np.arange(count) for count in there.sum((1, 2))])
    door, sides = np.zeros((len(grid), most, 3), int), np.full((len(grid), most, 4), -1)
    door[i, at] = np.stack([grid[i, y, x], y, x], 1)
    for side, (dx, dy) in enumerate(_AHEAD):
        sides[i, at, side] = label[i, y + dy, x + dx]
    return door, sides


def histogram(values: np.ndarray) -> Histogram:
    return {int(value): count for value, count in sorted(Counter(np.asarray(values).tolist()).items())}


def to_text(counts: np.ndarray) -> str:
    """Counts below 4096 as text, two letters each."""
    return "".join(_LETTERS[count // 64] + _LETTERS[count % 64] for count in counts.tolist())


def from_text(text: str) -> np.ndarray:
    """What `to_text` wrote."""
    values = np.array([_LETTERS.index(letter) for letter in text])
    return 64 * values[::2] + values[1::2]


def to_row(values: Histogram) -> list[int] | dict[str, int]:
    """A histogram as its least value and the counts from there on, or as it is where most of these would be 0."""
    span = range(min(values), max(values) + 1)
    if len(span) > 4 * len(values):
        return {str(value): count for value, count in values.items()}
    return [min(values), *(values.get(value, 0) for value in span)]


def from_row(row: list[int] | dict[str, int]) -> Histogram:
    """What `to_row` wrote."""
    if isinstance(row, dict):
        return {int(value): count for value, count in row.items()}
    return {row[0] + at: count for at, count in enumerate(row[1:]) if count}


def compare(ours: Histogram, theirs: Histogram) -> float:
    """The p-value of the chi-square test that two histograms have one distribution; rare values count as one."""
    n, m = sum(ours.values()), sum(theirs.values())
    least = 5 * (n + m) / max(1, min(n, m))  # so that 5 are expected in the smaller sample
    table: list[list[int]] = []
    rest = [0, 0]
    for value in sorted(ours.keys() | theirs.keys()):
        pair = [ours.get(value, 0), theirs.get(value, 0)]
        if sum(pair) < least:
            rest = [a + b for a, b in zip(rest, pair, strict=True)]
        else:
            table.append(pair)
    if sum(rest) >= least:
        table.append(rest)
    if len(table) < 2:
        return 1.0
    return float(stats.chi2_contingency(np.array(table).T, correction=False).pvalue)


def compare_maps(ours: np.ndarray, n: int, theirs: np.ndarray, m: int) -> np.ndarray:
    """The p-values, one a cell, of the exact test that a thing is there equally often in n of ours and m of theirs.

    Cells are left out where so few levels differ that no outcome could be called unlikely.
    """
    total = np.asarray(ours) + np.asarray(theirs)
    told = np.minimum(total, n + m - total) >= 20
    spread = stats.hypergeom(n + m, total[told], n)
    return np.minimum(1, 2 * np.minimum(spread.cdf(ours[told]), spread.sf(ours[told] - 1)))
