"""Every task of the registry keeps the contract of `made.core.Environment`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contracts.settings import leaves_are_arrays, shapes

from made.core import Space
from made.envs.registry import list_envs, make

GRIDS = ("MultiRoom-N2-S4", "KeyCorridorS3R1", "ObstructedMaze-1Dlhb", "DoorKey-5x5")  # one a family
NAMES = [*list_envs("tabular"), *(f"MiniGrid-{grid}-v0" for grid in GRIDS)]
STEPS = 40


@pytest.fixture(scope="module")
def walks():
    """A random walk of 40 steps in 4 copies of each task, without resets, by one program a task."""
    made = {}

    def get(name: str):
        if name not in made:
            env = make(name).sample_task(jax.random.key(0))

            def walk(key):
                k_reset, k_walk = jax.random.split(key)
                state, obs = env.reset(k_reset)

                def step(state, key):
                    k_act, k_step = jax.random.split(key)
                    action = jax.random.randint(k_act, (), 0, env.spec.action.n)
                    state, out = env.step(state, action, k_step)
                    return state, out

                last, steps = jax.lax.scan(step, state, jax.random.split(k_walk, STEPS))
                return (state, obs), last, steps

            run = jax.jit(jax.vmap(walk))
            made[name] = env, run, run(jax.random.split(jax.random.key(1), 4))
        return made[name]

    return get


@pytest.mark.parametrize("name", NAMES)
def test_states_are_arrays_of_a_stable_kind(name, walks):
    _, _, ((state, _), last, _) = walks(name)
    assert leaves_are_arrays(state)
    assert shapes(state) == shapes(last)


@pytest.mark.parametrize("name", NAMES)
def test_observations_are_what_the_spec_says(name, walks):
    env, _, ((_, obs), _, steps) = walks(name)
    spaces, tree = jax.tree.flatten(env.spec.obs, is_leaf=lambda x: isinstance(x, Space))
    assert spaces and all(isinstance(space, Space) for space in spaces)
    for seen, lead in ((obs, 1), (steps.obs, 2)):
        for space, part in zip(spaces, tree.flatten_up_to(seen), strict=True):
            assert part.dtype == space.dtype and part.shape[lead:] == space.shape
            assert space.n is None or (int(part.min()) >= 0 and int(part.max()) < space.n)
    assert steps.reward.dtype == jnp.float32 and bool(jnp.isfinite(steps.reward).all())
    assert steps.terminated.dtype == steps.truncated.dtype == bool


@pytest.mark.parametrize("name", NAMES)
def test_the_unsettled_task_has_the_same_spec(name):
    task = make(name)
    assert task.spec == task.sample_task(jax.random.key(3)).spec


@pytest.mark.parametrize("name", NAMES)
def test_the_same_key_gives_the_same_walk_and_another_key_another(name, walks):
    _, run, first = walks(name)
    again = run(jax.random.split(jax.random.key(1), 4))
    other = run(jax.random.split(jax.random.key(2), 4))
    same = lambda a, b: all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))  # noqa: E731
    assert same(first, again)
    assert not same(first[2], other[2])


@pytest.mark.parametrize("name", NAMES)
def test_the_clock_truncates_and_never_together_with_the_end(name, walks):
    _, _, (_, _, steps) = walks(name)
    assert not bool((steps.terminated & steps.truncated).any())


@pytest.mark.parametrize("name", [name for name in NAMES if make(name).spec.horizon <= STEPS])
def test_every_episode_has_ended_at_its_horizon(name, walks):
    env, _, (_, _, steps) = walks(name)
    at_horizon = (steps.terminated | steps.truncated)[:, env.spec.horizon - 1]
    reached_before = steps.terminated[:, : env.spec.horizon - 1].any(1)
    assert bool((at_horizon | reached_before).all())


@pytest.mark.parametrize("name", NAMES)
def test_reset_many_starts_different_episodes_where_starts_are_random(name):
    env = make(name).sample_task(jax.random.key(0))
    begun = env.reset_many(jax.random.key(1), 5)
    assert all(x.shape[0] == 5 for x in jax.tree.leaves(begun))
    differ = lambda trees: any((np.asarray(x) != np.asarray(x)[:1]).any() for x in jax.tree.leaves(trees))  # noqa: E731
    one_by_one = jax.vmap(env.reset)(jax.random.split(jax.random.key(2), 5))
    assert differ(begun) == differ(one_by_one)


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'lock'"):
        make("lokc")


def test_a_family_must_be_settled_before_it_is_played():
    with pytest.raises(ValueError, match="call sample_task"):
        make("lock").reset(jax.random.key(0))
