"""The rules that judge the claims of Figures 1 and 7, on made-up curves whose verdict is plain."""

import numpy as np
import pytest

from made.experiments.paper import minigrid_returns, sample_size
from made.experiments.paper import minigrid_setup as shared
from made.experiments.store.table import Record, Table
from made.experiments.types import FEWEST_SEEDS

TWELVE = tuple(shared.BUDGETS["paper"])
NEVER = 10**6
SHORT, LONG = 60, 450  # rows: 12 and 92 million frames
ROOMS = {"none": NEVER, "rnd": NEVER, "icm": NEVER}
GOOD = {**ROOMS, "ride": NEVER, "amigo": NEVER, "bebold": 40, "made": NEVER, "made/gated": 10}
GOOD |= {"rnd/gated": 20, "gate": 30}


def table_of(tasks: dict[str, dict[str, int]], rows: int = SHORT, seeds: int = FEWEST_SEEDS, **strength) -> Table:
    """Methods that solve a task from some row on, a row later with every second seed."""
    steps, records = np.arange(1, rows + 1) * shared.EVERY, []
    for task, methods in tasks.items():
        for method, solved in methods.items():
            for seed in range(seeds):
                curve = np.where(np.arange(rows) >= solved + seed % 2, 0.9, 0.0)
                columns = {"step": steps, "return": curve, "bonus_strength": np.full(rows, strength.get(method, 1.0))}
                run = {"description": {"bonus": {"strength": 1.0}}}
                records.append(Record(f"{task}/{method}", seed, columns, run=run))
    return Table(records)


def everywhere(rows: int = SHORT, seeds: int = FEWEST_SEEDS, **solved: int) -> Table:
    return table_of({task: {**GOOD, **solved} for task in TWELVE}, rows, seeds)


def few(**solved: int) -> Table:
    return table_of({"MultiRoom-N7-S8": {**GOOD, **solved}})


MISSED = {"made/gated": NEVER}


@pytest.mark.parametrize(
    ("rule", "table", "holds"),
    [
        (minigrid_returns.made_solves_all, everywhere(), True),
        (minigrid_returns.made_solves_all, few(), None),
        (minigrid_returns.made_solves_all, everywhere(**MISSED), None),
        (minigrid_returns.made_solves_all, everywhere(LONG, **MISSED), False),
        (minigrid_returns.made_solves_all, everywhere(seeds=2), None),
        (minigrid_returns.others_solve_half, everywhere(), True),
        (minigrid_returns.others_solve_half, everywhere(ride=5), False),
        (minigrid_returns.others_solve_half, few(ride=5), None),
        (minigrid_returns.faster_than_bebold, everywhere(), True),
        (minigrid_returns.faster_than_bebold, everywhere(bebold=12), False),
        (minigrid_returns.faster_than_bebold, everywhere(bebold=NEVER), None),
        (minigrid_returns.faster_than_bebold, everywhere(seeds=2), None),
        (minigrid_returns.baselines_fail_on_rooms, few(), True),
        (minigrid_returns.baselines_fail_on_rooms, few(icm=30), False),
        (minigrid_returns.baselines_fail_on_rooms, table_of({"KeyCorridorS3R3": GOOD}), None),
        (minigrid_returns.factor_drives_the_gain, everywhere(), True),
        (minigrid_returns.factor_drives_the_gain, everywhere(**{"rnd/gated": 5}), False),
        (minigrid_returns.factor_drives_the_gain, everywhere(**{"rnd/gated": 10}), None),
        (minigrid_returns.factor_drives_the_gain, everywhere(seeds=2), None),
        (minigrid_returns.impact_stays, table_of({"MultiRoom-N7-S8": GOOD}, ride=0.6), True),
        (minigrid_returns.impact_stays, table_of({"MultiRoom-N7-S8": GOOD}, ride=0.4), False),
        (minigrid_returns.impact_stays, table_of({"MultiRoom-N7-S8": ROOMS}), None),
        (sample_size.made_needs_fewest, everywhere(), True),
        (sample_size.made_needs_fewest, few(), None),
        (sample_size.made_needs_fewest, everywhere(bebold=4), False),
        (sample_size.made_needs_fewest, everywhere(seeds=2), None),
    ],
)
def test_a_rule_of_a_claim(rule, table, holds):
    assert rule(table).holds is holds


@pytest.mark.parametrize("missing", ROOMS)
def test_baselines_that_were_not_run_on_all_rooms_leave_claim_22_open(missing):
    rooms = {"MultiRoom-N7-S8": GOOD, "MultiRoom-N12-S10": {m: x for m, x in GOOD.items() if m != missing}}
    found = minigrid_returns.baselines_fail_on_rooms(table_of(rooms))
    assert found.holds is None and found.observed.endswith(f"; not run: MultiRoom-N12-S10 {missing}")
    won = table_of({**rooms, "MultiRoom-N7-S8": {**GOOD, missing: 20}})
    assert minigrid_returns.baselines_fail_on_rooms(won).holds is False, "one that learns is enough"
