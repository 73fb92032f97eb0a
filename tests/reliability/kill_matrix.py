"""Does every agent with every bonus it takes go on to the bit? Each pair is run whole, and again with one kill -9.

Where `kills` draws many moments for a few kinds of run, this has one kill, after the first checkpoint, for all of them.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from made.agents import list_agents
from made.bonuses import list_bonuses
from made.training import checkpoint
from made.training import run_dir as run_folder
from tests.reliability import kill_and_resume, processes

COUNTED = ("hoeffding", "inverse", "bernstein", "made-tabular", "made-geometric")  # bonuses that need a table
_LOCK = "--env lock-H5 --set unroll=6 --every 60 --checkpoint-every 600 --steps 24k"
_SMALL = {  # where a default is large
    "made": "--set bonus.recent.density.window=64 --set bonus.recent.density.capacity=64",
    "made-released": "--set bonus.recent.density.window=64 --set bonus.recent.density.capacity=64",
    "re3": "--set bonus.capacity=256",
}
_DREAMT = ("none", "rnd", "made-counts", "disagreement")


def pairs() -> dict[str, str]:
    """The command of each agent with each bonus, small in every size."""
    found = {
        f"{agent}+made-tabular": f"{_LOCK} --agent {agent} --bonus made-tabular" for agent in list_agents("on_policy")
    }
    found = {name: words for name, words in found.items() if not name.startswith("impala")}
    found |= {f"value-iteration+{bonus}": f"{_LOCK} --agent value-iteration --bonus {bonus}" for bonus in COUNTED}
    for bonus in (name for name in list_bonuses("on_policy") if name not in COUNTED):
        found[f"impala+{bonus}"] = f"{kill_and_resume.GRID} --bonus {bonus} {_SMALL.get(bonus, '')}"
    for bonus in list_bonuses("off_policy"):
        found[f"sac+{bonus}"] = f"{kill_and_resume.CONTROL} --agent sac --bonus {bonus} --set agent.layout.width=8"
        sizes = "--set task.size=24 --set agent.layout.crop=20 --set agent.layout.width=8 --set agent.layout.channels=2"
        found[f"rad+{bonus}"] = f"{kill_and_resume.CONTROL} --agent rad --bonus {bonus} {sizes}"
    rows = "--every 320 --eval-every 6400 --checkpoint-every 640 --steps 6400"
    return found | {f"dreamer+{bonus}": f"{kill_and_resume.DREAMS} --bonus {bonus} {rows}" for bonus in _DREAMT}


def judged(pair: str, folder: Path) -> tuple[str, bool]:
    """(what is wrong with a pair, whether the kill met it alive after its first checkpoint)."""
    cache, begin = folder / "cache", lambda out: ["train", *pairs()[pair].split(), "--no-video", "--out", str(out)]
    whole, killed, err = folder / f"whole-{pair}", folder / f"killed-{pair}", folder / f"{pair}.err"
    ended = processes.run(begin(whole), cache, err)
    if ended.status:
        return f"it does not run by itself: {processes.tail(ended)}", False
    process, draw = processes.start(begin(killed), cache, err), np.random.default_rng(sum(pair.encode()))
    while process.poll() is None and not checkpoint.files(killed / run_folder.CHECKPOINTS):
        time.sleep(0.002)
    time.sleep(draw.uniform(0, 0.2))
    alive = process.poll() is None
    processes.kill(process)
    ended = processes.run(begin(killed), cache, err)
    return (f"it does not go on: {processes.tail(ended)}" if ended.status else processes.same(whole, killed)), alive


def matrix(folder: Path, chosen: Sequence[str] | None = None, at_once: int = 2) -> dict[str, Any]:
    """Every pair, or those that are named."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [
        name
        for name in (pairs() if chosen is None else chosen)
        if kill_and_resume.draws() or not name.startswith("rad+")
    ]
    with ThreadPoolExecutor(at_once) as pool:
        found = dict(zip(names, pool.map(partial(judged, folder=folder), names), strict=True))
    wrong = [f"{name}: {odd}" for name, (odd, _) in found.items() if odd]
    return {
        "passed": not wrong,
        "what": "every agent with every bonus: one kill -9 after a checkpoint, gone on with, and compared to the bit",
        "pairs": len(names),
        "met_alive": sum(alive for _, alive in found.values()),
        "differ": wrong,
        "each": {name: odd or "equal" for name, (odd, _) in found.items()},
    }
