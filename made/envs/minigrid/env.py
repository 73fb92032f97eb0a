"""`Grid`: a maker of levels, the dynamics and the views, put together as an environment."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key, PyTree, UInt8

from made.core import Environment, Space, Spec, Step
from made.envs.minigrid import dynamics, tile_codes
from made.envs.minigrid.tile_codes import VIEW, GridState, Level, Maker

SHOWN = ("image", "direction", "full", "hash")
LARGEST = 10.0  # number in an encoding: networks divide by it, where 255 would leave them next to nothing to see


class Grid(Environment):
    """A MiniGrid task. Observations are a dictionary of what `shows` names:

        image      the agent's own view, uint8 [7, 7, 3], equal to the package's obs["image"]
        direction  where the agent looks, 0 right, 1 down, 2 left, 3 up
        full       the whole grid with the agent in it, uint8 [width, height, 3]
        hash       64 bits that tell the full state, uint32 [2]: for counts of visits

    `noisy_tv=True` is RIDE's distraction (MiniGrid-MultiRoomNoisyTV-N7-S4-v0 there): a ball of a random color lies
    somewhere in the room the agent starts in, and `drop`, which puts nothing down any more, gives that ball a color
    drawn from all six, wherever it is, in the agent's hand too.
    """

    maker: Maker
    shows: tuple[str, ...] = eqx.field(static=True, default=("image",), converter=tuple)
    noisy_tv: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        if self.maker.max_steps < 1:
            raise ValueError(f"An episode has max_steps of at least 1, got {self.maker.max_steps}.")
        unknown = [part for part in self.shows if part not in SHOWN]
        if unknown or not self.shows:
            raise ValueError(
                f"shows={self.shows!r} must name one or more of {', '.join(SHOWN)}; "
                f"{f'there is no {unknown[0]!r}' if unknown else 'nothing would be observed'}."
            )

    @property
    def spec(self) -> Spec:  # type: ignore[override]
        spaces = {
            "image": Space((VIEW, VIEW, 3), jnp.uint8, high=LARGEST),
            "direction": Space((), jnp.int32, 4),
            "full": Space((self.maker.width, self.maker.height, 3), jnp.uint8, high=LARGEST),
            "hash": Space((2,), jnp.uint32),
        }
        obs = {part: spaces[part] for part in self.shows}
        return Spec(obs, Space((), jnp.int32, len(dynamics.ACTIONS)), horizon=self.maker.max_steps)

    def reset(self, key: Key[Array, ""]) -> tuple[GridState, PyTree]:
        return jax.tree.map(lambda x: x[0], self.reset_many(key, 1))

    def reset_many(self, key: Key[Array, ""], n: int) -> tuple[GridState, PyTree]:
        k_level, k_ball = jax.random.split(key)
        levels = self.maker.levels(k_level, n)
        if self.noisy_tv:
            levels = jax.vmap(_with_ball)(levels, jax.random.split(k_ball, n))
        return jax.vmap(self.start)(levels)

    def start(self, level: Level) -> tuple[GridState, PyTree]:
        """The first state and observation of a given level, which is not checked."""
        grid = tile_codes.pack(jnp.asarray(level.grid))
        small = (jnp.asarray(part).astype(jnp.int8) for part in (level.x, level.y, level.direction))
        state = GridState(
            grid,
            *small,
            carrying=jnp.zeros((), jnp.uint8),
            target=jnp.asarray(level.target).astype(jnp.uint8),
            steps=jnp.zeros((), jnp.int32),
            hash=dynamics.grid_hash(grid),
        )
        return state, self.observe(state)

    def step(self, state: GridState, action: Array, key: Key[Array, ""]) -> tuple[GridState, Step]:
        stride = tile_codes.stride(self.maker.width)
        noise = self.noisy_tv & (action == dynamics.DROP)
        heard = jnp.where(noise, dynamics.DONE, action) if self.noisy_tv else action
        following, outcome = dynamics.act(state, heard, stride, self.maker.max_steps)
        if self.noisy_tv:
            tinted = dynamics.recolor_balls(following, key)
            following = jax.tree.map(lambda a, b: jnp.where(noise, a, b), tinted, following)
        return following, outcome._replace(obs=self.observe(following))

    def observe(self, state: GridState) -> PyTree:
        """What is seen of one state."""
        maker = self.maker
        parts = {
            "image": lambda: dynamics.image(state, tile_codes.stride(maker.width), maker.see_through),
            "direction": lambda: state.direction.astype(jnp.int32),
            "full": lambda: dynamics.full_view(state, maker.height, maker.width),
            "hash": lambda: dynamics.state_hash(state),
        }
        return {part: parts[part]() for part in self.shows}


def _with_ball(level: Level, key: Key[Array, ""]) -> Level:
    """The level with a ball on a free cell of the agent's room, or as it was where there is none."""
    k_place, k_color = jax.random.split(key)
    height, width = level.grid.shape
    agent = (jnp.arange(height)[:, None] == level.y) & (jnp.arange(width) == level.x)
    free = _room(level.grid, agent) & ~agent
    chance = jnp.where(free, jax.random.uniform(k_place, free.shape, minval=0.5), 0.0)
    place = (jnp.arange(free.size) == jnp.argmax(chance)).reshape(free.shape) & free
    ball = tile_codes.BALL + jax.random.randint(k_color, (), 0, 6).astype(jnp.uint8)
    return level._replace(grid=jnp.where(place, ball, level.grid))


def _room(grid: UInt8[Array, "H W"], inside: Bool[Array, "H W"]) -> Bool[Array, "H W"]:
    """The empty cells that can be walked to from those inside, doors being the end of a room."""

    def grow(area: tuple[Array, Array]) -> tuple[Array, Array]:
        now, _ = area
        wide = jnp.pad(now, 1)
        near = now | wide[:-2, 1:-1] | wide[2:, 1:-1] | wide[1:-1, :-2] | wide[1:-1, 2:]
        return now | (near & (grid == np.uint8(tile_codes.EMPTY))), now

    return jax.lax.while_loop(lambda area: (area[0] != area[1]).any(), grow, grow((inside, inside)))[0]
