"""Is the VAE a density? Estimates of d^{pi_mix} against true counts of the recent window, on grids (Section 5)."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from made.bonuses.count import NoBonus
from made.bonuses.densities.recent_counts import Factorized, HashedRecentCounts
from made.bonuses.densities.vae import ACTIVE, VAE
from made.bonuses.release import ReleasedVAE
from made.core import Agent, Density, Environment, Transition, ring_buffer, trees
from made.core.config import COUNT, SHARE, check_numbers
from made.core.trial import Trial
from made.envs.minigrid import make_grid
from made.experiments import plots, types
from made.experiments.statistics import Interval, interval
from made.experiments.store import Scale
from made.experiments.store.table import Table
from made.experiments.types import Claim, Effect, Experiment, PaperFigure, Verdict, choose
from made.nets.fit import Fit
from made.training.rollout import EnvSlot, ResetPool, refill_pool, reset_slots, rollout

ESTIMATORS = {  # each borrows the color of a method
    "released": plots.style_of("noveld")._replace(text="released VAE"),
    "vae": plots.style_of("made")._replace(text="our VAE"),
    "factorised": plots.style_of("re3")._replace(text="product of marginals"),
    "hashed": plots.style_of("none")._replace(text="hashed counts"),
}
TASKS = {
    "Empty": "MiniGrid-Empty-Random-6x6-v0",
    "DoorKey": "MiniGrid-DoorKey-6x6-v0",
    "MultiRoom": "MiniGrid-MultiRoom-N2-S4-v0",
}
ENOUGH = 0.5  # rank correlation with the true counts: what an estimate of the density must reach


class Wanderer(Agent):
    """Acts by preferences that drift, so that what is recent differs from what was ever seen. Learns nothing."""

    drift: float = 0.3

    def __check_init__(self):
        check_numbers(self, {SHARE: ("drift",)})

    def init(self, key, spec):
        return jax.random.normal(key, (spec.action.n,))  # type: ignore[arg-type]

    def act(self, state, carry, obs, goal, key, *, explore=True):
        return carry, jax.random.categorical(key, state).astype(jnp.int32), ()

    def update(self, state, batch, reward_fn, key):
        fresh = jax.random.normal(key, state.shape)
        return jnp.sqrt(1 - self.drift**2) * state + self.drift * fresh, {}


class EstimatesState(NamedTuple):
    """The wanderer, the grids, the window of transitions, and the state of every estimate."""

    agent: Float[Array, " A"]
    streams: EnvSlot
    reserve: ResetPool
    window: ring_buffer.Ring
    densities: dict[str, PyTree]
    k: Int[Array, ""]
    key: Key[Array, ""]


class Estimates(Trial):
    """All estimates learn from the same wandering; now and then they are asked for the density of what is in the window.

    A row holds, for every estimate, the rank correlation of log d(o, a) with the number of times the pair occurs among
    the last `window`, over the different pairs among `probes` drawn from it: `rank_` by the agent's view, which is what
    the estimates see, `full_` by the full state.
    """

    env: Environment
    released: Density
    vae: Density
    factorised: Density
    hashed: Density
    agent: Wanderer = Wanderer()
    window: int = eqx.field(static=True, default=10_000)
    probes: int = eqx.field(static=True, default=256)
    n_envs: int = eqx.field(static=True, default=16)
    unroll: int = eqx.field(static=True, default=64)
    iterations: int = eqx.field(static=True, default=60)
    every: int = eqx.field(static=True, default=5)

    def __check_init__(self):
        check_numbers(self, {COUNT: ("window", "probes", "n_envs", "unroll")})

    def start(self, key):
        k_agent, k_streams, k_reserve, k_density, k_next = jax.random.split(key, 5)
        agent = self.agent.init(k_agent, self.env.spec)
        parts = (self.env, self.agent, NoBonus(), ())
        streams, waiting = (reset_slots(*parts, self.n_envs, k) for k in (k_streams, k_reserve))
        seen = {**jax.tree.map(lambda x: x[0], streams.obs), "action": jnp.zeros((), jnp.int32)}
        window = ring_buffer.empty(seen, self.window)
        keys = jax.random.split(k_density, len(ESTIMATORS))
        states = {n: getattr(self, n).init(k, self.env.spec) for n, k in zip(ESTIMATORS, keys, strict=True)}
        reserve = ResetPool(waiting, jnp.zeros(self.n_envs, bool))
        return EstimatesState(agent, streams, reserve, window, states, jnp.zeros((), jnp.int32), k_next)

    def advance(self, state):
        key, k_roll, k_fresh, k_agent, k_density = jax.random.split(state.key, 5)
        parts = (self.env, self.agent, NoBonus())
        rolled = rollout(*parts, state.agent, (), state.streams, self.unroll, k_roll, reserve=state.reserve)
        batch = rolled.batch
        seen = {**batch.obs, "action": batch.action}
        window, _ = ring_buffer.push(state.window, trees.flatten_leading(seen, 2))
        densities, metrics = {}, {}
        for name, k in zip(ESTIMATORS, jax.random.split(k_density, len(ESTIMATORS)), strict=True):
            densities[name], found = getattr(self, name).update(state.densities[name], batch, k)
            metrics |= {f"{metric.removeprefix('vae/')}_{name}": x for metric, x in found.items()}
        reserve = refill_pool(rolled.reserve, reset_slots(*parts, (), self.n_envs, k_fresh))  # type: ignore[arg-type]
        agent, _ = self.agent.update(state.agent, batch, lambda batch: batch.reward, k_agent)
        return EstimatesState(agent, rolled.streams, reserve, window, densities, state.k + 1, key), metrics

    def snapshot(self, state):
        drawn = ring_buffer.sample(state.window, self.probes, jax.random.fold_in(jax.random.key(0), state.k))
        zeros = jnp.zeros(self.probes)
        batch = Transition(drawn, drawn["action"], zeros, (), zeros > 0, zeros > 0)
        (count, first), of_states = (occurrences(state.window, drawn, part) for part in ("image", "hash"))
        read: dict[str, Array] = {"count": count, "first": first, "distinct": first.sum()}
        for name in ESTIMATORS:
            log_d = getattr(self, name).log_density(state.densities[name], batch)
            read[f"log_{name}"] = log_d
            read[f"rank_{name}"] = rank_correlation(log_d, count, first)
            read[f"full_{name}"] = rank_correlation(log_d, *of_states)
            read[f"spread_{name}"] = 0.5 * log_d.std()
        return read


def occurrences(window: ring_buffer.Ring, drawn: PyTree, part: str) -> tuple[Float[Array, " M"], Bool[Array, " M"]]:
    """How often each (part of the observation, action) occurs in the window, and which are the first of their kind.

    Exact, by comparing 64-bit keys with all of the window.
    """
    keys = jax.vmap(lambda one: trees.digest((one[part], one["action"])))
    held = jnp.arange(ring_buffer.capacity(window)) < ring_buffer.size(window)
    all_of, some = keys(window.items), keys(drawn)
    same = (some[:, None] == all_of).all(-1) & held
    before = jnp.tril((some[:, None] == some).all(-1), -1).any(-1)
    return same.sum(-1).astype(float), ~before


def rank_correlation(x: Float[Array, " M"], y: Float[Array, " M"], among: Bool[Array, " M"]) -> Float[Array, ""]:
    """Spearman's: the correlation of ranks, ties given their mean rank, over some of the entries; NaN if all tie."""
    weight = among.astype(float)

    def centred_ranks(x: Float[Array, " M"]) -> Float[Array, " M"]:
        rank = ((x < x[:, None]) + 0.5 * (x == x[:, None])) @ weight
        return (rank - (rank @ weight) / weight.sum()) * weight

    a, b = centred_ranks(x), centred_ranks(y)
    return (a @ b) / jnp.sqrt((a @ a) * (b @ b))


def trials(scale: Scale) -> dict[str, Trial]:
    """The same number of steps, rate and minibatch for both VAEs."""
    size = {"window": 10_000, "iterations": choose(scale, smoke=4, demo=30, small=60, paper=600)}
    size |= {"every": choose(scale, smoke=2, demo=5, paper=25)}
    size |= choose(scale, smoke={"window": 500, "probes": 64, "n_envs": 4, "unroll": 16}, demo={})
    fit = Fit(2e-3, clip=1e9, steps=choose(scale, smoke=2, demo=24), batch=choose(scale, smoke=16, demo=64))
    room = {"window": size["window"], "capacity": size["window"], "view": "image"}
    of_vaes = {"fit": fit, "width": choose(scale, smoke=16, demo=128, paper=256), **room}
    estimates = {
        "released": ReleasedVAE(latent=choose(scale, smoke=4, demo=128), **of_vaes),
        "vae": VAE(latent=choose(scale, smoke=4, demo=32), fresh=0, **of_vaes),
        "factorised": Factorized(**room),
        "hashed": HashedRecentCounts(**room),
    }
    tasks = list(TASKS.items())[: choose(scale, smoke=1, demo=3)]
    return {name: Estimates(make_grid(task, shows=("image", "hash")), **estimates, **size) for name, task in tasks}


def is_a_density(table: Table) -> Verdict:
    """Claim 35, of the authors' VAE: rank correlation with the true counts above 0.5 on every task, and no collapse.

    Fails where the interval lies below 0.5 on a task, or where on every task every seed ends with a collapsed posterior:
    latents that carry nothing make of the estimate a distance from the mean of the window.
    """
    tasks = table.labels()
    ranks, ours = ({task: _final(table, task, f"rank_{name}") for task in tasks} for name in ("released", "vae"))
    idle = [float((_ends(table, task, "collapsed_released") > 0.5).mean()) for task in tasks]
    most = lambda metric: max(float(_ends(table, task, metric).mean()) for task in tasks)  # noqa: E731
    spread = "standard deviation of the log factor, at most"
    effects = (
        *types.effects_of(ranks, "rank correlation of the released VAE with true counts"),
        *types.effects_of(ours, "rank correlation of our VAE with true counts"),
        Effect("released VAE", float(np.mean(idle)), unit="fraction of runs with a collapsed posterior"),
        Effect("KL of the released VAE", most("kl_released"), unit="nats, at most"),
        Effect("released VAE", most("spread_released"), unit=spread),
        Effect("true counts", most("spread_hashed"), unit=spread),
    )
    missing = types.few_seeds(*(x.n for x in ranks.values()))
    holds = all(i.low > ENOUGH for i in ranks.values()) and not any(idle)
    fails = min(idle) == 1 or any(i.high < ENOUGH for i in ranks.values())
    return types.decide(holds, effects, missing, fails and not missing)


def _ends(table: Table, task: str, metric: str) -> np.ndarray:
    """Mean of the last quarter of the rows, one number a seed; an estimate that ties everywhere ranks nothing."""
    values = np.nan_to_num(table.curves(task, metric)[1])
    return values[:, -max(1, values.shape[1] // 4) :].mean(1)


def _final(table: Table, task: str, metric: str) -> Interval:
    return interval(_ends(table, task, metric), "iqm", types.rng())


def draw(table: Table) -> list[PaperFigure]:
    """Top: rank correlation over training on each task. Bottom: what the latents carry; log density against log count."""
    tasks, settings = table.labels(), table.runs(table.labels()[0])[0]["description"]
    last = tasks[-1]
    fig, axes = plots.figure(2, 3, height=2.3)
    for ax, task in zip(axes[0], tasks, strict=False):
        for name, look in ESTIMATORS.items():
            steps, values = table.curves(task, f"rank_{name}")
            plots.range_band(ax, steps, np.nan_to_num(values), look, marker=look.marker)
        ax.axhline(ENOUGH, color="black", linestyle=":", linewidth=0.8)
        ax.set_ylim(-0.3, 1.05)
        plots.title(ax, task, x=f"iterations of {settings['n_envs'] * settings['unroll']:,} pairs")
    for ax in axes[0, len(tasks) :]:
        ax.set_axis_off()
    axes[0, 0].set_ylabel("rank correlation\nwith true counts")
    for ax, name in zip(axes[1, 1:], ("released", "vae"), strict=True):
        look = ESTIMATORS[name]
        steps, values = table.curves(last, f"kl_{name}")
        kl = np.maximum(values.mean(0), 1e-6)
        axes[1, 0].plot(steps, kl, color=look.color, linestyle=look.line, marker=look.marker)
        count, first, log_d = (table.arrays(last, one)[1][0, -1] for one in ("count", "first", f"log_{name}"))
        ax.plot(count[first > 0], -0.5 * log_d[first > 0], ".", color=look.color, alpha=0.6, markeredgewidth=0)
        plots.log_axis(ax)
        plots.title(ax, look.text, x="occurrences in the window", y="log factor")
    collapsed = ACTIVE * settings["released"]["latent"]
    axes[1, 0].axhline(collapsed, color=ESTIMATORS["released"].color, linestyle=":", linewidth=0.8)
    plots.log_axis(axes[1, 0], "y")
    plots.title(axes[1, 0], "what the latents carry", x="iterations", y="nats")
    plots.legend(fig)
    text = (
        f"Estimates of the recent density, each asked for pairs (view, action) of its own window. Top: rank correlation of "
        f"log d with the true number of occurrences, mean over {len(table.seeds(tasks[0]))} seeds and their range. Bottom, {last}: nats "
        f"that the latents carry (dotted: below it the released VAE has collapsed); -log d / 2, the logarithm of MADE's factor, against the number of occurrences, first seed."
    )
    return [PaperFigure("density", fig, plots.caption(fig, text))]


def tables(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    """Every estimate on every task at the end of training."""
    header = ["task", "estimate", "rank, by view", "rank, by full state", "deviation of the log factor", "KL in nats"]
    rows = []
    for task in table.labels():
        for name, look in ESTIMATORS.items():
            kl = f"kl_{name}"
            carried = f"{table.final(task, kl).mean():.3g}" if kl in table.metrics(task) else "-"
            found = [str(_final(table, task, f"{what}_{name}")) for what in ("rank", "full", "spread")]
            rows.append([task, look.text, *found, carried])
    return [("Estimates of the density at the end, last quarter of the rows", header, rows)]


EXPERIMENT = Experiment(
    name="density",
    figure="sec:exp/deep_reward",
    title="Is the VAE a density?",
    about="The deep reward divides by the root of a density that a VAE stands for. Its estimates are ranked against exact counts of the recent window on grids, while an agent wanders with drifting preferences.",
    trials=trials,
    seeds=lambda scale: range(choose(scale, smoke=2, demo=3, small=5, paper=20)),
    claims=(Claim(35, "vae-is-a-density", "A VAE on recent experience estimates d^{pi_mix}", "Sec. 5", is_a_density),),
    draw=draw,
    tables=tables,
    in_demo=False,
)
