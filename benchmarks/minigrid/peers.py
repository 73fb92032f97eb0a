"""Other implementations of MiniGrid, random actions. Run by an interpreter that has them; imports nothing of made.

    python peers.py PEER TASK      prints steps a second, the best of several sizes

They want versions of Python, jax and Gymnasium of their own, so they rarely share an environment with made.
"""

import sys
import time

REPEATS = 3


def best(work, steps: int) -> float:
    """The best rate of several timed repeats."""
    rates = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        rates.append(steps / (time.perf_counter() - began))
    return max(rates)


def envpool(task: str, n: int = 64, steps: int = 1000) -> float:
    """C++ threads; observations come back to NumPy at every step, as its users get them."""
    import envpool as peer  # type: ignore[import-not-found]
    import numpy as np

    envs = peer.make_gymnasium(f"MiniGrid-{task}-v0", num_envs=n)
    envs.reset()
    actions = np.random.default_rng(0).integers(0, 7, (steps, n))
    return best(lambda: [envs.step(action) for action in actions], n * steps)


def scanned(step, start, n: int, actions: int, steps: int = 128) -> float:
    """A JAX environment: one program of `steps` random actions in n environments, as its users would write it."""
    import jax
    import jax.numpy as jnp

    def walk(state, key):
        k_act, k_step = jax.random.split(key)
        chosen = jax.random.randint(k_act, (steps, n), 0, actions)

        def body(state, x):
            action, key = x
            state, seen, reward = step(state, action, jax.random.split(key, n))
            return state, seen.sum(dtype=jnp.int32) + (reward > 0).sum()

        state, sums = jax.lax.scan(body, state, (chosen, jax.random.split(k_step, steps)))
        return state, sums.sum()

    go = jax.jit(walk)
    state = start(jax.random.split(jax.random.key(0), n))
    jax.block_until_ready(go(state, jax.random.key(1)))
    return best(lambda: jax.block_until_ready(go(state, jax.random.key(2))), n * steps)


def xminigrid(task: str) -> float:
    """Its own task of the same kind: it has none of MiniGrid's MultiRoom, KeyCorridor or ObstructedMaze."""
    import jax
    import xminigrid as peer  # type: ignore[import-not-found]
    from xminigrid.wrappers import GymAutoResetWrapper  # type: ignore[import-not-found]

    env, params = peer.make(task)
    env = GymAutoResetWrapper(env)
    start = jax.jit(jax.vmap(env.reset, in_axes=(None, 0)))

    def step(state, action, keys):
        state = jax.vmap(env.step, in_axes=(None, 0, 0))(params, state, action)
        return state, state.observation, state.reward

    return max(scanned(step, lambda keys: start(params, keys), n, env.num_actions(params)) for n in (1024, 4096))


def navix(task: str) -> float:
    """With the agent's own view, as MiniGrid has it; navix itself shows the whole grid. It resets inside its step."""
    import jax
    import navix as peer  # type: ignore[import-not-found]

    env = peer.make(f"Navix-{task}-v0", observation_fn=peer.observations.symbolic_first_person)
    start = jax.jit(jax.vmap(env.reset))

    def step(state, action, keys):
        state = jax.vmap(env.step)(state, action)
        return state, state.observation, state.reward

    return max(scanned(step, start, n, 7) for n in (1024,))


if __name__ == "__main__":
    print({"envpool": envpool, "xminigrid": xminigrid, "navix": navix}[sys.argv[1]](sys.argv[2]))
