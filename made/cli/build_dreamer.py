"""What `made train --agent dreamer` is to do in a compiled environment, a grid or a table."""

import dataclasses

from made.agents import make_agent
from made.agents.dreamer.agent import Dreamer
from made.agents.dreamer.network import Layout
from made.bonuses import FirstVisit, make_bonus
from made.core.schedules import Constant
from made.envs.host_env import Hosted
from made.envs.minigrid import Grid
from made.training.on_policy import RunConfig
from made.training.probes import Coverage
from made.training.replay import ReplayBuffer
from made.training.sequence_buffer import SequenceBuffer
from made.training.sequence_learner import ReplayRun
from made.training.train_plan import SPARES, apply_settings, environment

STEPS, WINDOW = 200_000, 16  # that the replay holds; of one window, which may hold the ends of episodes
BONUS_COEF = 0.005  # a step's share of the bonus: imagination adds up many
SHORTEST = 10  # steps of an episode on average, for the room of the frames that begin them


def build(
    env: str,
    agent: str,
    bonus: str,
    first_visit: bool,
    bonus_coef: float | None,
    strength: float | None,
    settings: tuple[str, ...],
) -> ReplayRun:
    """Dreamer with a head for the ends of episodes and, for discrete actions, likelihood ratios, sized for two cores.

    Eight environments take 50 steps each, then there are 50 updates on 8 windows of 16 steps: one every 8 steps, where
    control tasks have one every 5 actions. Fewer and larger ones learn less in the same time: a reward that is rare
    takes many steps of the reward head. The replay has a stream for each environment.
    """
    if strength is not None:
        raise ValueError("--strength is for agents that learn from rollouts: give Dreamer a --bonus-coef.")
    task, pays = environment(env), make_bonus(bonus)
    if isinstance(task, Hosted):
        raise ValueError(f"Dreamer learns in compiled environments and on control tasks; {env} is hosted elsewhere.")
    pays = FirstVisit(pays) if first_visit else pays
    dreamer = small_dreamer() if agent == "dreamer" else make_agent(agent)
    schedule = Constant(BONUS_COEF if bonus_coef is None else bonus_coef)
    run = RunConfig(task, dreamer, pays, schedule, n_envs=8, unroll=50, pool_per_env=SPARES, probes=(Coverage(),))
    replay = SequenceBuffer(ReplayBuffer(STEPS, streams=8, shortest=SHORTEST), WINDOW, whole=False)
    trial = apply_settings(ReplayRun(run, replay, batch=8, updates=50, prefill=250), settings)
    run, steps = trial.run, dataclasses.replace(trial.replay.steps, streams=trial.run.n_envs)
    if run.resets_per_update is None and isinstance(
        task, Grid
    ):  # levels are costly: as many as can be waiting, no more
        run = dataclasses.replace(run, resets_per_update=run.pool_per_env * run.n_envs)
    trial = dataclasses.replace(trial, run=run, replay=dataclasses.replace(trial.replay, steps=steps))
    trial.fits()
    return trial


def small_dreamer() -> Dreamer:
    """Dreamer for grids on two cores. Its entropy is paid, or the actor settles on one action before it knows any."""
    layout = Layout(deter=64, hidden=64, units=64)
    return Dreamer(layout, 10, actor_rate=3e-4, value_rate=3e-4, entropy=1e-3, reinforce=1.0, ends=True)
