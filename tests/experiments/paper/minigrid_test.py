"""The rules that judge the claims of Figures 1 and 7, on made-up curves whose verdict is plain."""

import numpy as np
import pytest

from made.experiments.paper import minigrid_returns
from made.experiments.paper import minigrid_setup as shared
from made.experiments.store import Scale
from made.experiments.store.table import Label, Record, Table
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
                records.append(Record(Label(task=task, method=method), seed, columns, run=run))
    return Table(records)


def everywhere(rows: int = SHORT, seeds: int = FEWEST_SEEDS, **solved: int) -> Table:
    return table_of({task: {**GOOD, **solved} for task in TWELVE}, rows, seeds)


def few(**solved: int) -> Table:
    return table_of({"MultiRoom-N7-S8": {**GOOD, **solved}})


MISSED = {"made/gated": NEVER}
UNSOLVED = dict.fromkeys(GOOD, NEVER)


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
        (minigrid_returns.others_solve_half, table_of(dict.fromkeys(TWELVE[:6], GOOD)), True),
        (minigrid_returns.others_solve_half, table_of(dict.fromkeys(TWELVE[:5], GOOD)), None),
        (minigrid_returns.others_solve_half, everywhere(**UNSOLVED), None),
        (minigrid_returns.others_solve_half, everywhere(LONG, **UNSOLVED), True),
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
        (minigrid_returns.factor_drives_the_gain, everywhere(**UNSOLVED), None),
        (minigrid_returns.factor_drives_the_gain, table_of({"KeyCorridorS6R3": UNSOLVED, TWELVE[0]: GOOD}), True),
        (minigrid_returns.impact_stays, table_of({"MultiRoom-N7-S8": GOOD}, ride=0.6), True),
        (minigrid_returns.impact_stays, table_of({"MultiRoom-N7-S8": GOOD}, ride=0.4), False),
        (minigrid_returns.impact_stays, table_of({"MultiRoom-N7-S8": ROOMS}), None),
        (minigrid_returns.made_needs_fewest, everywhere(), True),
        (minigrid_returns.made_needs_fewest, few(), None),
        (minigrid_returns.made_needs_fewest, everywhere(bebold=4), False),
        (minigrid_returns.made_needs_fewest, everywhere(seeds=2), None),
        (minigrid_returns.made_needs_fewest, everywhere(**UNSOLVED), None),
        (minigrid_returns.made_needs_fewest, everywhere(**UNSOLVED | {"bebold": 40}), False),
        (minigrid_returns.made_needs_fewest, everywhere(**UNSOLVED | {"gate": 40}), None),
        (minigrid_returns.made_needs_fewest, everywhere(LONG, **UNSOLVED), False),
    ],
)
def test_a_rule_of_a_claim(rule, table, holds):
    assert rule(table).holds is holds


@pytest.mark.parametrize("missing", ROOMS)
def test_baselines_that_were_not_run_on_all_rooms_leave_claim_22_open(missing):
    rooms = {"MultiRoom-N7-S8": GOOD, "MultiRoom-N12-S10": {m: x for m, x in GOOD.items() if m != missing}}
    found = minigrid_returns.baselines_fail_on_rooms(table_of(rooms))
    assert found.holds is None and found.missing == (f"not run: MultiRoom-N12-S10 {missing}",)
    won = table_of({**rooms, "MultiRoom-N7-S8": {**GOOD, missing: 20}})
    assert minigrid_returns.baselines_fail_on_rooms(won).holds is False, "one that learns is enough"


def test_methods_of_a_task_are_compared_over_the_frames_that_all_had():
    """MADE alone has 90 million: that decides claim 18, and counts neither for nor against the others."""
    long = table_of({"ObstructedMaze-2Dlhb": dict.fromkeys(minigrid_returns.MADES, 300)}, LONG)
    short = table_of({"ObstructedMaze-2Dlhb": {m: NEVER for m in GOOD if m not in minigrid_returns.MADES}}, SHORT)
    both = short.joined(long, [f"ObstructedMaze-2Dlhb/{method}" for method in GOOD])
    assert shared.budget(both, "ObstructedMaze-2Dlhb") == SHORT * shared.EVERY * shared.N_ENVS * shared.UNROLL
    assert shared.to_solve(both, "ObstructedMaze-2Dlhb/made").reached == 0, "within what the others had"
    assert [x.value for x in minigrid_returns.made_solves_all(both).effects] == [1.0, 1.0]
    assert minigrid_returns.made_needs_fewest(both).holds is None


def test_an_unsearched_task_takes_the_settings_of_the_nearest_or_one_for_all_methods():
    searched = shared.chosen("MultiRoom-N7-S8", "made/gated", Scale.GPU)
    assert shared.chosen("MultiRoom-N6", "made/gated", Scale.GPU) == searched
    assert shared.chosen("MultiRoom-N6", "made/gated", Scale.PAPER) == shared.DEFAULT
    hard = [shared.chosen("KeyCorridorS6R3", method, Scale.GPU) for method in shared.LATER]
    assert hard == [shared.HARDER["KeyCorridorS6R3"]] * len(hard)
    assert {*shared.budgets(Scale.GPU)} == {*TWELVE}


def test_a_task_of_which_only_some_methods_were_run_is_judged_where_it_can_be():
    some = table_of({"MultiRoom-N7-S8": GOOD, "MultiRoom-N6": ROOMS})
    assert minigrid_returns.baselines_fail_on_rooms(some).holds is True
    for claim in (*minigrid_returns.EXPERIMENT.claims, *minigrid_returns.SAMPLE_SIZE.claims):
        claim.check(some)
    for draw in (minigrid_returns.draw, minigrid_returns.draw_sample_size):
        assert draw(some)
