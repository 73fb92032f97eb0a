"""The command `made transfer`."""

import dataclasses
import importlib.metadata
import json
import time
from pathlib import Path
from typing import Annotated, Any

import tyro

from made.cli.train import Several, shown

KINDS = {"made": "the compiled grids", "gym": "the minigrid package", "envpool": "EnvPool"}
LIBRARIES = {"gym": "minigrid", "envpool": "envpool"}
MODES = {"sampled": True, "greedy": False}  # whether actions are drawn, as in training
SAME, DIFFERS = "same within the interval", "differs"
NOTHING = "nothing to compare: no episode was paid in either"


@dataclasses.dataclass
class Transfer:
    """Compare a trained policy on its own task and in another implementation of it, on unseen levels."""

    # run directory of `made train`; its newest checkpoint is used
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    # implementation to compare with: made (compiled grids), gym (the minigrid package) or envpool
    to: Annotated[str | None, shown("NAME", "gym for compiled grids, else made")] = None
    episodes: Annotated[int, tyro.conf.arg(metavar="N")] = 500  # episodes in each, with sampled and with greedy actions
    seed: int = 0  # seed of the run
    out: Annotated[Path | None, shown("FILE", "transfer.json in DIR")] = None  # where the results are written
    # module of your own that may be imported for its classes
    allow: Annotated[Several, tyro.conf.arg(metavar="MODULE")] = ()

    def main(self) -> int:
        from made.core.safe_files import write_atomic

        record, out = self.record(), self.place
        print(as_text(record))
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, json.dumps(record, indent=1) + "\n")
        print(f"The record is {out}.")
        return 0

    @property
    def place(self) -> Path:
        """The file of the record."""
        return self.out or self.folder / "transfer.json"

    def record(self) -> dict[str, Any]:
        """What was played, how it came out, and by which code and machine."""
        from made.training.evaluation import load_run
        from made.training.paths import require_file
        from made.training.provenance import provenance

        if self.episodes < 2:
            raise ValueError(f"--episodes must be at least 2 to have an interval, got {self.episodes}.")
        started, found = time.time(), load_run(self.folder, self.seed, self.allow)
        home, away, other = self._places(found)
        require_file(self.place, "--out")  # before episodes are played for it
        played = {mode: self._played(found, other, explore) for mode, explore in MODES.items()}
        about = {
            "format": 1,
            "command": found.command,
            "seed": self.seed,
            "frames": found.update * found.config.n_envs * found.config.unroll,
            "episodes": self.episodes,
            "home": home,
            "away": away,
            "versions": {name: importlib.metadata.version(name) for name in map(LIBRARIES.get, (home, away)) if name},
        }
        return {**about, **played, "provenance": provenance(started, time.time() - started)}

    def _places(self, found) -> tuple[str, str, Any]:
        """(where it was trained, where it is to go, the environment there)."""
        from made.cli.build import environment
        from made.core.config import to_dict
        from made.envs.host_env import Hosted
        from made.envs.minigrid import GRIDS, Grid

        env = found.config.env
        if not isinstance(env, Grid | Hosted):
            name = getattr(env, "task", type(env).__name__)
            raise ValueError(f"{name} has one implementation only: policies of grids can be played elsewhere.")
        if isinstance(env, Hosted):
            home, task = env.source, env.task
        else:
            same = (id for id, make in GRIDS.items() if to_dict(make(shows=env.shows)) == to_dict(env))
            home, task = "made", next(same, "")
            if not task:
                raise ValueError("This grid has settings of its own; only those of `made list tasks` exist elsewhere.")
        away = self.to or ("gym" if home == "made" else "made")
        if away not in KINDS or away == home:
            others = ", ".join(kind for kind in KINDS if kind != home)
            raise ValueError(f"This policy was trained in {KINDS[home]}; --to takes {others}, not {away!r}.")
        return home, away, environment(task if away == "made" else f"{away}:{task}")

    def _played(self, found, other, explore: bool) -> dict[str, Any]:
        from made.training.evaluation import play

        numbers, states = (self.seed, found.update), (found.state.agent, found.state.bonus)
        run = getattr(found.config, "run", found.config)  # Dreamer's has one within
        runs = (run, dataclasses.replace(run, env=other))
        return compared(*(play(run, *states, self.episodes, numbers, explore) for run in runs))


def compared(home, away) -> dict[str, Any]:
    """Means with 95% bootstrap intervals over episodes, the difference away - home, and what the return's says."""
    import numpy as np

    from made.experiments.statistics import interval, stratified_interval

    rng, found = np.random.default_rng(0), {}
    each = [{"return": x.returns, "length": x.lengths, "success": (x.returns > 0).astype(float)} for x in (home, away)]
    n = len(away.returns)  # of the values that come first when both groups are put together
    gap = lambda values, axis=-1: values[..., :n].mean(axis) - values[..., n:].mean(axis)  # noqa: E731
    for name in each[0]:
        one, other = (x[name] for x in each)
        ends = {"home": interval(one, "mean", rng), "away": interval(other, "mean", rng)}
        ends["difference"] = stratified_interval([other, one], gap, rng)
        found[name] = {who: [round(float(x), 4) for x in end[:3]] for who, end in ends.items()}
    _, low, high = found["return"]["difference"]
    paid = any(x["return"].any() for x in each)
    return {**found, "verdict": (SAME if low <= 0 <= high else DIFFERS) if paid else NOTHING}


def as_text(record: dict[str, Any]) -> str:
    """The record for people: estimate [ends of the 95% interval]."""
    home, away = (KINDS[record[place]] for place in ("home", "away"))
    lines = [f"{record['episodes']} episodes on fresh levels in {home} (home) and in {away} (away)"]
    for mode in MODES:
        for name in ("return", "length", "success"):
            said = ", ".join(
                f"{who} {x:.4g} [{low:.4g}, {high:.4g}]" for who, (x, low, high) in record[mode][name].items()
            )
            lines.append(f"  {mode:8} {name:8} {said}")
        lines.append(f"  {mode:8} {'verdict':8} {record[mode]['verdict']}")
    return "\n".join(lines)
