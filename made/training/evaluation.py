"""A run loaded from its folder, and whole episodes of its policy on fresh levels, in any environment."""

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from made.core import Agent, trees
from made.envs.host_env import Hosted
from made.training import checkpoint, run_dir, sharding
from made.training.backends import TrainPlan, compiled_envs, control_tasks, host_envs
from made.training.control_config import ControlConfig
from made.training.on_policy import RunConfig
from made.training.rollout import first_episodes

_APART = 0x706C6179  # sets the levels played here apart from those of training, evaluation and videos


class Policy(NamedTuple):
    """A trained policy: `action, carry = policy.act(obs, key)`, then `policy.act(obs, key, carry)` until the end."""

    agent: Agent
    state: PyTree  # of the agent, prepared for acting
    carry: PyTree  # recurrent state at the start of an episode; () where there is none

    def act(
        self, obs: PyTree, key: Key[Array, ""], carry: PyTree = None, *, goal: PyTree = (), explore: bool = False
    ) -> tuple[Array, PyTree]:
        """(action, carry) for one observation of one environment; use `jax.vmap` for several.

        Args:
            obs: The observation, as the environment of the run returns it.
            key: A random key. Greedy policies do not use it.
            carry: What the call before returned, or None at the start of an episode.
            goal: What the bonus shows to the policy, for bonuses with goals, such as AMIGo.
            explore: Sample the action, as in training. Otherwise act greedily.
        """
        before = self.carry if carry is None else carry
        after, action, _ = self.agent.act(self.state, before, obs, goal, key, explore=explore)
        return action, after


class LoadedRun(NamedTuple):
    """One seed of a run that `made train` made, as `load_run` returns it.

    `state` can be trained further: `run.config.advance(run.state)` for a `RunConfig` in a compiled environment. It is
    a RunState, for Dreamer in compiled environments a ReplayRunState, for control tasks a ReplayLearnerState.
    """

    config: Any  # RunConfig, ReplayRun, ControlConfig or DreamerConfig
    seed: int
    update: int  # after which the checkpoint was written
    state: Any
    policy: Policy
    command: str  # for people


class Episodes(NamedTuple):
    """Returns and lengths of n whole episodes."""

    returns: np.ndarray
    lengths: np.ndarray


def load_run(path: str | os.PathLike, seed: int | None = None, allow: Sequence[str] = ()) -> LoadedRun:
    """Load a run of `made train`: its configuration, the state of its newest complete checkpoint, and its policy.

        run = made.load_run("training/DoorKey-5x5-impala-made")
        action, carry = run.policy.act(obs, key)

    Args:
        path: The folder that `made train` wrote.
        seed: Which seed of the run; the first unless given.
        allow: Modules that may be imported to find classes of your own; see `made.core.config.from_dict`.

    Raises:
        ValueError: There is no run, no checkpoint or no such seed, or the configuration cannot be read.
    """
    out = Path(path)
    if not (out / run_dir.RUN).is_file():
        raise ValueError(f"{out} holds no run: give the folder that made train wrote, with its {run_dir.RUN}.")
    config, seeds, content = run_dir.configured(out, allow)
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        raise ValueError(f"The run in {out} has seeds {seeds[0]} to {seeds[-1]}, and no seed {seed}.")
    found = checkpoint.newest(out / run_dir.CHECKPOINTS)
    if found is None:
        raise ValueError(f"{out} holds no checkpoint to take a policy from: train there first.")
    run_dir.require_same_config(found.configuration, content["configuration"], found.path)
    lane, n = seeds.index(seed), len(seeds)
    if isinstance(config, ControlConfig):
        plan = TrainPlan(config, seeds, config.iterations, config.iterations)  # type: ignore[arg-type]
        spec, control = control_tasks.restored(plan, found)
        state = control_tasks.learner_of(control, lane, n, config.task.pixels)
    else:
        shapes = jax.eval_shape(compiled_envs.begin, compiled_envs.replicate(config, n), jnp.asarray(seeds, jnp.uint32))
        state = trees.index(checkpoint.restore(found, shapes), lane)
        spec = state.env.spec._replace(goal=config.bonus.memory.goal(state.env.spec))
    agent = config.agent
    policy = Policy(agent, agent.acting_params(state.agent), agent.carry(spec))
    return LoadedRun(config, seed, found.update, state, policy, str(content.get("command")))


def play(run: RunConfig, agent: PyTree, bonus: PyTree, n: int, numbers: tuple[int, ...], explore: bool) -> Episodes:
    """One whole episode in each of n environments, acting as in training or, without `explore`, greedily.

    The levels follow from the numbers, and are none that training on the same numbers has.
    """
    if isinstance(run.env, Hosted):
        source = host_envs.source_of(run, bonus, n)
        return Episodes(*source.play(agent, host_envs.seed_for(*numbers, _APART), explore=explore))
    key = functools.reduce(jax.random.fold_in, numbers, jax.random.key(_APART))
    program = jax.jit(_play, static_argnums=(3, 5), compiler_options=sharding.options(0))
    return Episodes(*map(np.asarray, program(run, agent, bonus, n, key, explore)))


def _play(run: RunConfig, agent: PyTree, bonus: PyTree, n: int, key, explore: bool) -> tuple[Any, Any]:
    parts = (run.env, run.agent, run.bonus, agent, bonus)
    ended = first_episodes(*parts, n, int(run.env.spec.horizon or 0), key, explore)
    return (ended.done * ended.total).sum(0), (ended.done * ended.length).sum(0)
