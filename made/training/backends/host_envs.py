"""`made train` on environments that are stepped on the host: the same log records, checkpoints and learner.

Experience comes from one `HostRollout` for each seed; `made.training.on_policy.learn` is the same as for compiled
environments. The state of an environment of another library cannot be stored. So after every checkpoint all
environments begin new episodes, from seeds that follow from the run's seed and the number of updates done. A resumed
run is then the same run, to the bit where the library gives the same episodes for the same seeds.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from made.core import Metrics, Transition, trees
from made.training import memory, sharding
from made.training.backends import Backend, LogRecord, TrainPlan, compiled_envs
from made.training.host.bonus import HostBonus, HostRollout
from made.training.on_policy import RunConfig, RunState, improve

_APART = 0x686F7374  # sets the seeds of evaluations apart from those of training


def source_of(run: RunConfig, bonus_state: PyTree, n: int) -> HostRollout:
    """n environments of a run's task, with its agent and its bonus, before `begin`."""
    env = run.env.vector(n)  # type: ignore[attr-defined]
    return HostRollout(env, run.agent, HostBonus(run.bonus, env.spec, n, state=bonus_state), None)


def seed_for(*numbers: int) -> int:
    """A seed for n environments, which use it and the n - 1 after it."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 2)


class HostBackend(Backend):
    """The environments of every seed. Programs are compiled at the first update; nothing is spread over devices."""

    def __init__(self, plan: TrainPlan, devices: int = 1):
        if devices != 1:
            raise ValueError(
                f"--devices {devices} spreads compiled environments; tasks of other libraries take --devices 1."
            )
        self.plan, self.at = plan, -1
        self.runs, self.seeds = compiled_envs.replicate(plan.run, len(plan.seeds)), jnp.asarray(plan.seeds, jnp.uint32)
        memory.demand(2 * memory.size_of(self.like()), memory.free(), len(plan.seeds), exact=False)
        self._sources: dict[int, HostRollout] = {}
        self._evaluator: HostRollout | None = None
        self._begin = jax.jit(compiled_envs.begin, compiler_options=sharding.options(0))
        self._update = jax.jit(self._add, compiler_options=sharding.options(1))
        self._row = jax.jit(compiled_envs.row_of, compiler_options=sharding.options(1))

    def like(self) -> RunState:
        return jax.eval_shape(compiled_envs.begin, self.runs, self.seeds)

    def init(self) -> RunState:
        return self.put(self._begin(self.runs, self.seeds))

    def _add(
        self, run: RunConfig, state: RunState, batch: Transition, episodes: Metrics, key, sums: compiled_envs.MetricSums
    ):
        state, measured = improve(run, state, batch, key)
        return state, compiled_envs.accumulate(sums, {**episodes, **measured}, state.k)

    def advance(self, state: RunState, n: int) -> tuple[RunState, LogRecord]:
        """n updates of one seed after the other, and what they measured."""
        k, every, checks = int(state.k[0]), self.plan.run.every, self.plan.checkpoint_every
        fresh = k != self.at or k // checks > (k - every) // checks  # a checkpoint was written here
        each = []
        for lane, seed in enumerate(self.plan.seeds):
            run, one = trees.index(self.runs, lane), trees.index(state, lane)
            if lane not in self._sources:
                self._sources[lane] = source_of(self.plan.run, one.bonus, self.plan.run.n_envs)
            if fresh:
                self._sources[lane].begin(seed_for(seed, k))
            each.append(self._lane(self._sources[lane], run, one, n))
        self.at = k + n
        return tuple(trees.stack(part) for part in zip(*each, strict=True))  # type: ignore[return-value]

    def _lane(self, source: HostRollout, run: RunConfig, state: RunState, n: int) -> tuple[RunState, LogRecord]:
        sums = None
        for _ in range(n):
            key, k_act, k_note, k_learn = jax.random.split(state.key, 4)
            source.key, source.bonus.key, source.bonus.state = k_act, k_note, state.bonus
            batch, state = source.collect(state.agent, run.unroll), state._replace(key=key)
            episodes = _episodes(source)
            if sums is None:
                sums = compiled_envs.zeros({**episodes, **jax.eval_shape(improve, run, state, batch, k_learn)[1]})
            state, sums = self._update(run, state, batch, episodes, k_learn, sums)
        return state, self._row(run, state, sums)  # type: ignore[arg-type]

    def evaluate(self, state: RunState) -> Metrics:
        """Evaluate every seed on levels that training never uses, as `compiled_envs.evaluate_seeds` does."""
        found = []
        for lane, seed in enumerate(self.plan.seeds):
            one = trees.index(state, lane)
            self._evaluator = source = self._evaluator or source_of(self.plan.run, one.bonus, self.plan.episodes)
            source.bonus.state = one.bonus
            found.append(source.play(one.agent, seed_for(seed, int(one.k), _APART)))
        returns, lengths = (np.stack(part) for part in zip(*found, strict=True))
        count = np.full(len(found), self.plan.episodes, float)
        return {"eval_return": returns.mean(1), "eval_length": lengths.mean(1), "eval_episodes": count}  # type: ignore[dict-item]


def _episodes(source: HostRollout) -> Metrics:
    """The metrics of `made.training.on_policy.episode_metrics` of the episodes that ended since the call before."""
    n = len(source.returns)
    mean = lambda x: sum(x) / n if n else float("nan")  # noqa: E731
    found = {"return": mean(source.returns), "length": mean(source.lengths), "episodes": n, "pool_reused": 0}
    source.returns, source.lengths = [], []
    return {name: jnp.float32(x) for name, x in found.items()}
