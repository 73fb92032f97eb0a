"""What is compared of levels: numbers that a level has, and maps of where things lie, for the package's and for ours.

A batch of levels is a Level of NumPy arrays with a leading axis. Nothing here knows how levels are made.
"""

from collections import Counter

import numpy as np
from scipy import ndimage, stats

from made.grids.world import BALL, BOX, CLOSED, EMPTY, GOAL, KEY, KEYBOX, KINDS, LOCKED, NO_TARGET, Level

Histogram = dict[int, int]
_AHEAD = np.array([(1, 0), (0, 1), (-1, 0), (0, -1)])
_COLOURED = {"closed door": CLOSED, "locked door": LOCKED, "key": KEY, "ball": BALL}
_NEAR = 4  # a code in `sides`: no such room


def stack(levels: list[Level]) -> Level:
    """One batch of many levels."""
    return Level(*(np.stack([np.asarray(leaf) for leaf in leaves]) for leaves in zip(*levels, strict=True)))


def kinds(grid: np.ndarray) -> np.ndarray:
    """The kind of each cell, all boxes with keys alike."""
    kind = grid.astype(np.int32) // 8
    return np.where((grid >= KEYBOX) & (grid < CLOSED), KEYBOX // 8, kind)


def maps(levels: Level) -> dict[str, np.ndarray]:
    """For each kind of thing that occurs, and for the agent, how many levels have one in each cell."""
    kind = kinds(levels.grid)
    found = {KINDS[k] if k != KEYBOX // 8 else "key in a box": (kind == k).sum(0).ravel() for k in np.unique(kind) if k}
    n, height, width = levels.grid.shape
    found["agent"] = np.bincount(levels.y.astype(int) * width + levels.x, minlength=height * width)
    return found


def numbers(task: str, levels: Level) -> dict[str, np.ndarray]:
    """Whole numbers that each level has, [n] each."""
    rows = np.arange(len(levels.x))
    x, y, side = (np.asarray(part).astype(int) for part in levels[1:4])
    front = levels.grid[rows, y + _AHEAD[side, 1], x + _AHEAD[side, 0]]
    found = {"direction": side, "ahead": kinds(front), "target": np.asarray(levels.target).astype(int)}
    kind = kinds(levels.grid)
    for code, what in enumerate(KINDS[: len(KINDS)]):
        count = (kind == code).sum((1, 2))
        if count.any():
            found[f"number of {what}"] = count
    found |= _colours(levels.grid) | _places(levels)
    if "MultiRoom" in task:
        found |= chain(levels)
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
    singles = {"goal": (GOAL, GOAL + 1), "key": (KEY, KEY + 6), "lock": (LOCKED, LOCKED + 6), "hidden key": (KEYBOX, CLOSED)}
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
    for what, there in {"lock": (flat >= LOCKED) & (flat < LOCKED + 6), "key": (flat >= KEY) & (flat < KEY + 6)}.items():
        if (there.sum(1) == 1).all():
            rooms[f"row of {what}"] = there.argmax(1) // width // pitch
    if "row of lock" in rooms and "row of key" in rooms:
        rooms["rows of lock and key"] = 10 * rooms["row of lock"] + rooms["row of key"]
        rooms["doors, by the row of the lock"] = 8 * rooms["number of doors"] + rooms["row of lock"]
    return found | rooms


def chain(levels: Level) -> dict[str, np.ndarray]:
    """Of a chain of rooms: the place and size of each, and the door that leads on, from the agent's room to the last."""
    inside = (levels.grid == EMPTY) | (levels.grid == GOAL)
    flat_neighbours = np.zeros((3, 3, 3), bool)
    flat_neighbours[1] = ndimage.generate_binary_structure(2, 1)
    label, _ = ndimage.label(inside, flat_neighbours)
    boxes = ndimage.find_objects(label)
    doors = (levels.grid >= CLOSED) & (levels.grid < CLOSED + 6)
    most = doors.sum((1, 2)).max()
    rows = [_walk(levels, label, boxes, doors, i, most + 1) for i in range(len(levels.x))]
    found = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    for k in range(most - 1):
        found[f"turn after room {k}"] = 5 * found[f"side of door {k}"] + found[f"side of door {k + 1}"]
        found[f"colours of doors {k}, {k + 1}"] = 7 * found[f"colour of door {k}"] + found[f"colour of door {k + 1}"]
    return found


def _walk(levels: Level, label, boxes, doors, i: int, rooms: int) -> dict[str, int]:
    found: dict[str, int] = {}
    grid, labels = levels.grid[i], label[i]
    here, came = labels[levels.y[i], levels.x[i]], (-1, -1)
    links = [((y, x), _sides(labels, y, x)) for y, x in np.argwhere(doors[i])]
    area = 0
    for k in range(rooms):
        _, ys, xs = boxes[here - 1]
        width, height = xs.stop - xs.start, ys.stop - ys.start
        found |= {f"x of room {k}": xs.start, f"y of room {k}": ys.start}
        found |= {f"width of room {k}": width, f"height of room {k}": height}
        area += (width + 2) * (height + 2)
        ways = [(cell, sides) for cell, sides in links if cell != came and here in sides]
        if k == rooms - 1 or len(ways) != 1:
            found |= {"rooms in a row": k + 1, "area of all rooms": area // 20}
            break
        (y, x), sides = ways[0]
        side = sides.index(here)  # the room is on this side of the door, so the door is on the other side of the room
        along, start = (y, ys.start) if side in (0, 2) else (x, xs.start)
        found |= {f"side of door {k}": side, f"colour of door {k}": int(grid[y, x]) - CLOSED}
        found[f"place of door {k}"] = along - start
        here, came = sides[(side + 2) % 4], (y, x)
        _, ys, xs = boxes[here - 1]
        found[f"shift of room {k + 1}"] = along - (ys.start if side in (0, 2) else xs.start)
    for k in range(rooms):  # a chain that is broken off still has all the names
        for name in ("x of room", "y of room", "width of room", "height of room"):
            found.setdefault(f"{name} {k}", -1)
        for name in ("side of door", "colour of door", "place of door") if k < rooms - 1 else ():
            found.setdefault(f"{name} {k}", _NEAR)
        if k:
            found.setdefault(f"shift of room {k}", -1)
    goal = labels[tuple(np.argwhere(grid == GOAL)[0])]
    return found | {"goal in the last room": int(goal == here)}


def _sides(labels: np.ndarray, y: int, x: int) -> list[int]:
    """The rooms right of, below, left of and above a door; walls have the label 0."""
    return [int(labels[y + dy, x + dx]) for dx, dy in _AHEAD]


def histogram(values: np.ndarray) -> Histogram:
    return {int(value): count for value, count in sorted(Counter(np.asarray(values).tolist()).items())}


def compare(ours: Histogram, theirs: Histogram, least: int = 12) -> float:
    """The p-value of the chi-square test that two histograms have one distribution; rare values count as one."""
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


def compare_maps(ours: np.ndarray, n: int, theirs: np.ndarray, m: int, least: int = 20) -> np.ndarray:
    """The p-values, one a cell, of the test that a thing is there equally often in n of our levels and m of theirs."""
    ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
    share = (ours + theirs) / (n + m)
    tested = ((ours + theirs) >= least) & ((n + m - ours - theirs) >= least)
    share = share[tested]
    z = (ours[tested] / n - theirs[tested] / m) / np.sqrt(share * (1 - share) * (1 / n + 1 / m))
    return 2 * stats.norm.sf(abs(z))
