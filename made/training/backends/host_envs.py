"""`made train` on environments that live outside compiled code: the same rows, checkpoints and learner.

Experience comes from one `HostRollout` for each seed; `made.training.on_policy.learn` is the same as for compiled
environments.

What an environment of another library is in the middle of cannot be stored. So a checkpoint holds all but that, and
after every checkpoint all environments begin new episodes, from seeds that follow from the run's seed and the number
of updates done. Going on from a checkpoint is then going on with the same run, to the bit where the library gives the
same episodes for the same seeds.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, PyTree

from made.core import Metrics, Transition, trees
from made.envs.host_env import Hosted
from made.training import memory, sharding
from made.training.backends import compiled_envs
from made.training.host.bonus import HostBonus, HostRollout
from made.training.on_policy import RunConfig, RunState, learn
from made.training.train_loop import Backend
from made.training.train_plan import TrainPlan

_APART = 0x686F7374  # sets the seeds of evaluations apart from those of training


def prepare(plan: TrainPlan, count: int = 1) -> Backend:
    """What `train_loop.train` runs. The programs are compiled at the first update; nothing is spread over devices."""
    if count != 1:
        raise ValueError(f"--devices {count} spreads compiled environments; tasks of other libraries take --devices 1.")
    runs, seeds = compiled_envs.replicate(plan.run, len(plan.seeds)), jnp.asarray(plan.seeds, jnp.uint32)
    like = jax.eval_shape(begin, runs, seeds)
    memory.demand(2 * memory.size_of(like), memory.free(), len(plan.seeds), exact=False)
    quick, hosts = jax.jit(begin, compiler_options=sharding.options(0)), Hosts(plan)
    return Backend(runs, seeds, like, quick, hosts.advance, hosts.examine, jax.device_put)


def begin(runs: RunConfig, seeds: Int[Array, " L"]) -> RunState:
    """The state of each seed before its first update, leaves [L, ...]: `compiled_envs.begin` for hosts."""
    return jax.vmap(lambda run, seed: start(run, jax.random.key(seed)))(runs, seeds)


def start(run: RunConfig, key: Key[Array, ""]) -> RunState:
    """As `made.training.on_policy.start`, with the same weights for the same key, but without environments."""
    _, k_agent, k_bonus, _, _, k_watch, k_next = jax.random.split(key, 7)
    spec = run.env.spec._replace(goal=run.bonus.memory.goal(run.env.spec))
    keys = jax.random.split(k_watch, len(run.probes)) if run.probes else ()
    probe_states = tuple(watch.init(k, spec) for watch, k in zip(run.probes, keys, strict=True))
    agent, bonus, nothing = run.agent.init(k_agent, spec), run.bonus.init(k_bonus, spec), jnp.zeros((), jnp.int32)
    state = RunState(run.env, agent, bonus, (), None, probe_states, nothing, k_next)  # type: ignore[arg-type]
    return jax.tree.map(compiled_envs.strip_weak_type, state)


def update(
    run: RunConfig, state: RunState, batch: Transition, episodes: Metrics, key: Key[Array, ""]
) -> tuple[RunState, Metrics]:
    """One iteration of `made.training.on_policy.iterate` after its rollout."""
    k = state.k + 1
    agent, bonus, metrics = learn(run, state.agent, state.bonus, batch, k, key)
    probe_states = tuple(
        watch.update(seen, batch, k) for watch, seen in zip(run.probes, state.probe_states, strict=True)
    )
    return state._replace(agent=agent, bonus=bonus, probe_states=probe_states, k=k), {**episodes, **metrics}


def source_of(run: RunConfig, bonus_state: PyTree, n: int) -> HostRollout:
    """n environments of a run's task, with its agent and its bonus, not begun."""
    if not isinstance(run.env, Hosted):
        raise ValueError(
            f"{type(run.env).__name__} is compiled; name a task of another library, as in gym:CartPole-v1."
        )
    env = run.env.vector(n)
    return HostRollout(env, run.agent, HostBonus(run.bonus, env.spec, n, state=bonus_state), None)


def seed_for(*numbers: int) -> int:
    """A seed for n environments, whose own seeds follow it one by one."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 2)


class Hosts:
    """The environments of every seed, and where they stand."""

    def __init__(self, plan: TrainPlan):
        self.plan, self.at = plan, -1
        self._sources: dict[int, HostRollout] = {}
        self._judge: HostRollout | None = None
        quick = sharding.options(1)
        self._update, self._row = (jax.jit(f, compiler_options=quick) for f in (self._add, compiled_envs.row_of))

    def _add(
        self, run: RunConfig, state: RunState, batch: Transition, episodes: Metrics, key, sums: compiled_envs.MetricSums
    ):
        state, measured = update(run, state, batch, episodes, key)
        return state, compiled_envs.accumulate(sums, measured, state.k)

    def advance(self, runs: RunConfig, state: RunState, n: Int[Array, ""]) -> tuple[RunState, compiled_envs.LogRecord]:
        """n updates of one seed after the other, and what they measured: `compiled_envs.advance` for hosts."""
        k, every, checks = int(state.k[0]), self.plan.run.every, self.plan.checkpoint_every
        fresh = k != self.at or k // checks > (k - every) // checks  # a checkpoint was written here
        each = []
        for lane, seed in enumerate(self.plan.seeds):
            run, one = trees.index(runs, lane), trees.index(state, lane)
            if lane not in self._sources:
                self._sources[lane] = source_of(self.plan.run, one.bonus, self.plan.run.n_envs)
            if fresh:
                self._sources[lane].begin(seed_for(seed, k))
            each.append(self._lane(self._sources[lane], run, one, int(n)))
        self.at = k + int(n)
        return tuple(trees.stack(part) for part in zip(*each, strict=True))  # type: ignore[return-value]

    def _lane(
        self, source: HostRollout, run: RunConfig, state: RunState, n: int
    ) -> tuple[RunState, compiled_envs.LogRecord]:
        sums = None
        for _ in range(n):
            key, k_act, k_note, k_learn = jax.random.split(state.key, 4)
            source.key, source.bonus.key, source.bonus.state = k_act, k_note, state.bonus
            batch, state = source.collect(state.agent, run.unroll), state._replace(key=key)
            given = (run, state, batch, _episodes(source), k_learn)
            sums = sums or compiled_envs.zeros(jax.eval_shape(update, *given)[1])
            state, sums = self._update(*given, sums)
        return state, self._row(run, state, sums)  # type: ignore[arg-type]

    def examine(self, runs: RunConfig, state: RunState, seeds: PyTree) -> Metrics:
        """Evaluate every seed on levels that training never uses, as `compiled_envs.evaluate_seeds` does."""
        del runs, seeds
        found = []
        for lane, seed in enumerate(self.plan.seeds):
            one = trees.index(state, lane)
            self._judge = judge = self._judge or source_of(self.plan.run, one.bonus, self.plan.episodes)
            judge.bonus.state = one.bonus
            found.append(judge.play(one.agent, seed_for(seed, int(one.k), _APART)))
        returns, lengths = (np.stack(part) for part in zip(*found, strict=True))
        count = np.full(len(found), self.plan.episodes, float)
        return {"eval_return": returns.mean(1), "eval_length": lengths.mean(1), "eval_episodes": count}  # type: ignore[dict-item]


def _episodes(source: HostRollout) -> Metrics:
    """What `made.training.on_policy.episode_metrics` says of the episodes that ended since this was asked before."""
    n, nan = len(source.returns), float("nan")
    mean = lambda x: sum(x) / n if n else nan  # noqa: E731
    said = {"return": mean(source.returns), "length": mean(source.lengths), "episodes": n, "pool_reused": 0}
    source.returns, source.lengths = [], []
    return {name: jnp.float32(x) for name, x in said.items()}
