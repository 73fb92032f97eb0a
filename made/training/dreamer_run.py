"""What `made train --agent dreamer` is to do in a compiled environment, a grid or a table."""

import dataclasses

from made.adapters.hosts import Hosted
from made.agents import make_agent
from made.agents.dreamer import Dreamer
from made.agents.dreamer_nets import Layout
from made.bonuses import FirstVisit, make_bonus
from made.dreaming import Dreaming
from made.grids import Grid
from made.replay import Replay
from made.run import Run
from made.schedules import Constant
from made.sequences import Sequences
from made.training.coverage import Coverage
from made.training.plan import SPARES, environment, settled

STEPS, WINDOW = 200_000, 16  # that the replay holds; of one window, which may hold the ends of episodes
TAU = 0.005  # a step's share of the bonus: imagination adds up many
SHORTEST = 10  # steps of an episode on average, for the room of the frames that begin them


def build(
    env: str, agent: str, bonus: str, gated: bool, tau: float | None, strength: float | None, settings: tuple[str, ...]
) -> Dreaming:
    """Dreamer with a head for the ends of episodes and, for discrete actions, likelihood ratios, sized for two cores.

    Eight environments take 50 steps each, then there are 50 updates on 8 windows of 16 steps: one every 8 steps, where
    control tasks have one every 5 actions. Fewer and larger ones learn less in the same time: a reward that is rare
    takes many steps of the reward head. The replay has a stream for each environment.
    """
    if strength is not None:
        raise ValueError("--strength is for agents that learn from rollouts: give Dreamer a --tau.")
    task, pays = environment(env), make_bonus(bonus)
    if isinstance(task, Hosted):
        raise ValueError(f"Dreamer learns in compiled environments and on control tasks; {env} is hosted elsewhere.")
    pays = FirstVisit(pays) if gated else pays
    dreamer = small_dreamer() if agent == "dreamer" else make_agent(agent)
    schedule = Constant(TAU if tau is None else tau)
    run = Run(task, dreamer, pays, schedule, n_envs=8, unroll=50, spares=SPARES, watches=(Coverage(),))
    replay = Sequences(Replay(STEPS, streams=8, shortest=SHORTEST), WINDOW, whole=False)
    trial = settled(Dreaming(run, replay, batch=8, updates=50, prefill=250), settings)
    run, steps = trial.run, dataclasses.replace(trial.replay.steps, streams=trial.run.n_envs)
    if run.starts is None and isinstance(task, Grid):  # levels are costly: as many as can be waiting, no more
        run = dataclasses.replace(run, starts=run.spares * run.n_envs)
    trial = dataclasses.replace(trial, run=run, replay=dataclasses.replace(trial.replay, steps=steps))
    trial.fits()
    return trial


def small_dreamer() -> Dreamer:
    """Dreamer for grids on two cores. Its entropy is paid, or the actor settles on one action before it knows any."""
    layout = Layout(deter=64, hidden=64, units=64)
    return Dreamer(layout, 10, actor_rate=3e-4, value_rate=3e-4, entropy=1e-3, reinforce=1.0, ends=True)
