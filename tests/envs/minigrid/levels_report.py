"""Record how our levels compare with the package's and that they can be solved, at full size.

    python tests/envs/minigrid/levels_report.py [TASK ...]     # writes results/grids/levels.json

The suite makes the same comparison and solves 60 levels of each task; here it is 1,000 of each.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from envs.minigrid import levels_package_test as suite
from envs.minigrid.levels_features import compare, histogram, numbers
from envs.minigrid.planner import returned, solve

from made.training.provenance import provenance

SOLVED = 1000
OUT = Path(__file__).parents[3] / "results" / "grids" / "levels.json"


def row(task: str) -> dict:
    """One task: the least p-value of all the tests made, and what the planner made of 1,000 levels."""
    levels, record = suite.ours(task), suite.recorded(task)
    values = suite.p_values(task, levels)
    plans = [solve(suite.one(levels, i)) for i in range(SOLVED)]
    lost = numbers(task, levels).get("locks without a key", np.zeros(SOLVED, int))[:SOLVED] > 0
    unsolved = np.array([plan is None for plan in plans])
    lengths = np.array([-1 if plan is None else len(plan) for plan in plans])
    values["steps of the planner"] = compare(histogram(lengths), record["plans"])
    least = min(values, key=lambda name: values[name])
    return {
        "task": task,
        "levels_ours": len(levels.x),
        "levels_package": record["levels"],
        "tests": len(values),
        "least_p": {"of": least, "p": float(values[least])},
        "solved": int((~unsolved).sum()),
        "unsolved_with_a_covered_key": int((unsolved & lost).sum()),
        "unsolved_otherwise": int((unsolved & ~lost).sum()),
        "in_time": sum(returned(plan, record["max_steps"]) > 0 for plan in plans),
        "planner_steps": float(lengths[~unsolved].mean()),
        "planner_steps_package": float(
            np.mean([n for n, count in record["plans"].items() for _ in range(count) if n >= 0])
        ),
        "max_steps": record["max_steps"],
    }


def main(tasks: list[str]) -> None:
    began, rows = time.time(), []
    for task in tasks:
        rows.append(row(task))
        print(json.dumps(rows[-1]), flush=True)
    made_by = provenance(began, time.time() - began, len(rows))
    total = sum(row["tests"] for row in rows)
    OUT.write_text(
        json.dumps({"made_by": made_by, "threshold": 0.001 / total, "tests": total, "rows": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:] or suite.TASKS)
