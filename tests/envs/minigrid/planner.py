"""A planner in plain Python that solves levels with keys, boxes and blockers, or says that it cannot.

It works on a copy of the level with the package's rules and returns the actions that win. Where only walls and
unlocked doors are in the way the way is a shortest one; otherwise it is a script: clear what stands in the way, fetch
the key of a locked door, put down what is in hand before taking something else.
"""

from heapq import heappop, heappush

import numpy as np

from made.envs.minigrid.tile_codes import BOX, CLOSED, EMPTY, GOAL, KEY, KEYBOX, LOCKED, NO_TARGET, OPEN, WALL, Level

LEFT_TURN, RIGHT_TURN, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
_PASSABLE_BELOW = KEY  # empty, goal, floor and open doors; no task here has lava
_OBJECT_COST, _LOCK_COST = 20, 40  # in steps: what a way round is weighed against


class Stuck(Exception):
    """There is no way, or the script went round in circles."""


def solve(level: Level, most: int = 5000) -> list[int] | None:
    """The actions of a solution, or None."""
    script = _Script(level, most)
    try:
        script.win(int(level.target))
    except Stuck:
        return None
    return script.actions


def returned(actions: list[int] | None, max_steps: int) -> float:
    """The return of a solution, 0 for none and for one that takes too long."""
    return 1 - 0.9 * len(actions) / max_steps if actions and len(actions) <= max_steps else 0.0


class _Script:
    def __init__(self, level: Level, most: int):
        grid = np.asarray(level.grid)
        self.cells = [int(code) for code in grid.ravel()]
        self.width = grid.shape[1]
        self.ahead = (1, self.width, -1, -self.width)
        self.at = int(level.y) * self.width + int(level.x)
        self.facing = int(level.direction)
        self.hand = EMPTY
        self.most = most
        self.actions: list[int] = []
        self.hopeless: set[int] = set()  # locked doors without a key

    # What is done

    def act(self, action: int) -> None:
        if len(self.actions) >= self.most:
            raise Stuck
        self.actions.append(action)
        front = self.at + self.ahead[self.facing]
        code = self.cells[front]
        if action == LEFT_TURN:
            self.facing = (self.facing + 3) % 4
        elif action == RIGHT_TURN:
            self.facing = (self.facing + 1) % 4
        elif action == FORWARD:
            assert code < _PASSABLE_BELOW
            self.at = front
        elif action == PICKUP:
            assert KEY <= code < CLOSED and self.hand == EMPTY
            self.hand, self.cells[front] = code, EMPTY
        elif action == DROP:
            assert code == EMPTY and self.hand != EMPTY
            self.hand, self.cells[front] = EMPTY, self.hand
        elif action == TOGGLE:
            self.cells[front] = self._toggled(code)

    def _toggled(self, code: int) -> int:
        if CLOSED <= code < LOCKED:
            return OPEN + code % 8
        if LOCKED <= code < WALL:
            assert self.hand == KEY + code % 8
            return OPEN + code % 8
        assert BOX <= code < CLOSED
        return KEY + (code - KEYBOX) // 8 if code >= KEYBOX else EMPTY

    def win(self, target: int) -> None:
        wanted = GOAL if target == NO_TARGET else target
        places = [cell for cell, code in enumerate(self.cells) if code == wanted]
        if len(places) != 1:
            raise Stuck
        if target == NO_TARGET:
            self.approach(places[0])
            self.act(FORWARD)
            return
        self.approach(places[0])
        if self.hand != EMPTY:
            self.put_down(places[0])
            self.approach(places[0])
        self.act(PICKUP)

    def approach(self, goal: int) -> None:
        """Stand in front of a cell, looking at it; whatever is in the way is removed or unlocked first."""
        while (way := self.way(goal)) is None:
            obstacle = next(
                (cell for cell in self.route(goal) if self.cells[cell] >= _PASSABLE_BELOW and not self._opens(cell)),
                None,
            )
            if obstacle is None or obstacle == goal:
                raise Stuck
            if self.cells[obstacle] >= LOCKED:
                self.unlock(obstacle)
            else:
                self.remove(obstacle, goal)
        for action in way:
            self.act(action)

    def _opens(self, cell: int) -> bool:
        return CLOSED <= self.cells[cell] < LOCKED

    def unlock(self, door: int) -> None:
        """Open a locked door, or note that it has no key."""
        color = self.cells[door] % 8
        holders = [KEY + color, *(KEYBOX + 8 * color + box for box in range(6))]
        if self.hand != KEY + color:
            if not any(code in holders for code in self.cells):
                self.hopeless.add(door)
                return
            self.approach(door)  # this clears what stands before it while the hand is of no use anyway
            self.fetch(holders)
        self.approach(door)
        self.act(TOGGLE)

    def fetch(self, holders: list[int]) -> None:
        """Get hold of the nearest key of a color, out of its box if need be."""
        places = [cell for cell, code in enumerate(self.cells) if code in holders]
        place = min(places, key=lambda cell: (self.cost(cell), cell))
        if self.hand != EMPTY:
            self.put_down(place)
        self.approach(place)
        if self.cells[place] >= KEYBOX:
            self.act(TOGGLE)
        self.act(PICKUP)

    def remove(self, thing: int, goal: int) -> None:
        """Take a thing out of the way to the goal; what was in hand is in hand again afterwards."""
        held, spot = self.hand, None
        if held != EMPTY:
            spot = self.put_down(thing)
        self.approach(thing)
        self.act(PICKUP)
        self.put_down(goal)
        if spot is not None:
            self.approach(spot)
            self.act(PICKUP)

    def put_down(self, goal: int) -> int:
        """Drop what is in hand at the nearest place where it is not in the way to the goal; return that place."""
        fallback = None
        for pose, way in self.poses():
            at, facing = divmod(pose, 4)
            place = at + self.ahead[facing]
            if self.cells[place] != EMPTY or place == goal:
                continue
            here, self.at = self.at, at
            self.cells[place] = self.hand
            clear = place not in self.route(goal)
            self.cells[place], self.at = EMPTY, here
            if clear and any(
                self.cells[place + step] >= CLOSED and self.cells[place + step] != WALL for step in self.ahead
            ):
                clear, fallback = (
                    False,
                    fallback or (place, way),
                )  # next to a door only if there is nothing better
            if clear:
                fallback = (place, way)
                break
        if fallback is None:
            raise Stuck
        place, way = fallback
        for action in (*way, DROP):
            self.act(action)
        return place

    # Where it leads

    def poses(self):
        """All poses that can be reached, the nearest first, as (cell * 4 + direction, actions)."""
        start = self.at * 4 + self.facing
        back: dict[int, tuple[int, tuple[int, ...], int]] = {start: (-1, (), 0)}
        waiting, done = [(0, start)], set()
        while waiting:
            cost, pose = heappop(waiting)
            if pose in done:
                continue
            done.add(pose)
            yield pose, _Way(back, pose)
            at, facing = divmod(pose, 4)
            front = at + self.ahead[facing]
            moves: list[tuple[int, tuple[int, ...]]]
            moves = [(at * 4 + (facing + 3) % 4, (LEFT_TURN,)), (at * 4 + (facing + 1) % 4, (RIGHT_TURN,))]
            if self.cells[front] < _PASSABLE_BELOW and self.cells[front] != GOAL:
                moves.append((front * 4 + facing, (FORWARD,)))
            elif self._opens(front):
                moves.append((front * 4 + facing, (TOGGLE, FORWARD)))
            for following, actions in moves:
                if following not in done:
                    new = cost + len(actions)
                    if following not in back or new < back[following][2]:
                        back[following] = (pose, actions, new)
                        heappush(waiting, (new, following))

    def way(self, goal: int) -> list[int] | None:
        """The fewest actions to a pose that looks at the goal, or None where something is in the way."""
        for pose, way in self.poses():
            if pose // 4 + self.ahead[pose % 4] == goal:
                return list(way)
        return None

    def route(self, goal: int) -> list[int]:
        """The cells to the goal as if things could be walked through at a price; empty where there is no way at all."""
        price, back, waiting = {self.at: 0}, {self.at: -1}, [(0, self.at)]
        while waiting:
            cost, cell = heappop(waiting)
            if cell == goal:
                cells = []
                while cell != -1:
                    cells.append(cell)
                    cell = back[cell]
                return cells[-2::-1]
            if cost > price[cell]:
                continue
            for step in self.ahead:
                following = cell + step
                code = self.cells[following]
                if code == WALL or following in self.hopeless:
                    continue
                extra = 0 if code < _PASSABLE_BELOW else 1 if self._opens(following) else _OBJECT_COST
                extra = _LOCK_COST if code >= LOCKED else 0 if following == goal else extra
                if cost + 1 + extra < price.get(following, 1 << 30):
                    price[following], back[following] = cost + 1 + extra, cell
                    heappush(waiting, (cost + 1 + extra, following))
        return []

    def cost(self, goal: int) -> int:
        return sum(
            1 if self.cells[cell] < _PASSABLE_BELOW else _LOCK_COST if self.cells[cell] >= LOCKED else _OBJECT_COST
            for cell in self.route(goal)
        )


class _Way:
    """The actions to a pose, worked out only when they are asked for."""

    def __init__(self, back, pose: int):
        self.back, self.pose = back, pose

    def __iter__(self):
        parts, pose = [], self.pose
        while pose != -1:
            parts.append(self.back[pose][1])
            pose = self.back[pose][0]
        return (action for part in reversed(parts) for action in part)
