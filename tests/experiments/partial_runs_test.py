"""Runs that are not whole: how far they are is what all their seeds have, and what cannot be read is left out."""

import json
from pathlib import Path

import numpy as np
import pytest

from made.experiments import resumable as module
from made.experiments.resumable import columns, progress_text
from made.experiments.store import Store
from made.experiments.store.table import Record, Table
from made.training.provenance import over_pieces

DESCRIBED = {"class": "ControlConfig", "bonus_coef": 0.5}
ABOUT = {"steps": 80, "frames_per_update": 2, "configuration": {"bonus_coef": 0.5}, "sessions": [{"commit": "ab12"}]}


def begun(store: Store, experiment: str, ids: dict[str, str]) -> Table:
    return module.partial_runs(store, experiment, ids, dict.fromkeys(ids, DESCRIBED))


def left(store: Store, name: str, rows: list[tuple[int, int]], **more) -> Path:
    """The folder of a run with (seed, update) rows."""
    folder = store.unfinished("dmc", name)
    folder.mkdir(parents=True)
    seeds = sorted({seed for seed, _ in rows})
    about = {**ABOUT, "configuration": {"bonus_coef": 0.5, "seeds": seeds}, **more}
    (folder / "run.json").write_text(json.dumps(about))
    lines = [{"seed": s, "update": k, "frames": 2 * k, "seconds": 1.0, "eval_return": s + 10.0 * k} for s, k in rows]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_rows_that_all_seeds_have_with_what_is_known_of_the_run(tmp_path):
    store = Store(tmp_path)
    left(store, "ab12-s0-1", [(0, 10), (1, 10), (0, 20), (1, 20), (0, 30)])
    table = begun(store, "dmc", {"hopper/made": "ab12", "hopper/none": "cd34"})
    steps, values = table.curves("hopper/made", "eval_return")
    assert steps.tolist() == [10, 20] and values.tolist() == [[100.0, 200.0], [101.0, 201.0]]
    assert table.labels() == ["hopper/made"] and table.seeds("hopper/made") == [0, 1]
    run = table.runs("hopper/made")[0]
    assert run["begun"] == {"steps": 40, "of": 80} and progress_text(run) == "40 of 80"
    assert run["description"] == DESCRIBED, "as whole runs have it"
    assert "seconds" not in table.metrics(), "where it stands is not measured"


def test_of_two_runs_of_a_label_the_one_that_got_furthest(tmp_path):
    store = Store(tmp_path)
    left(store, "ab12-s0", [(0, 10), (0, 20), (0, 30)])
    left(store, "ab12-s0-1-2", [(s, k) for k in (10, 20) for s in range(3)])
    left(store, "ab123-s0", [(0, 39)])
    assert begun(store, "dmc", {"one": "ab12"}).runs("one")[0]["begun"]["steps"] == 60
    left(store, "ab12-s0-1", [(s, 30) for s in range(2)])
    assert begun(store, "dmc", {"one": "ab12"}).seeds("one") == [0, 1], "as far, on more seeds"


def test_a_row_that_is_being_written_is_left_out(tmp_path):
    store = Store(tmp_path)
    folder = left(store, "ab12-s0", [(0, 0), (0, 10)])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"seed": 0, "update": 20, "eval_ret')
    steps, values = begun(store, "dmc", {"one": "ab12"}).curves("one", "eval_return")
    assert steps.tolist() == [0, 10] and values.tolist() == [[0.0, 100.0]], "a return of 0 counts"


def test_where_and_by_what_it_was_made_over_all_its_pieces(tmp_path):
    store = Store(tmp_path)
    pieces = [{"commit": "ab12", "device": "GPU", "jax": "1", "from_update": 0, "started": "then", "odd": ["x"]}]
    pieces += [{"commit": "cd34", "device": "GPU", "jax": "1", "from_update": 5, "started": "later", "python": "3.12"}]
    left(store, "ab12-s0-1", [(0, 10), (1, 10)], sessions=pieces)
    made_by = begun(store, "dmc", {"one": "ab12"}).runs("one")[0]["provenance"]
    assert made_by == {
        "commit": "ab12, cd34", "device": "GPU", "jax": "1", "pieces": 2, "python": "3.12", "started": "then",
        "wall_s": 1.0, "lanes": 2,
    }  # fmt: skip
    assert over_pieces(pieces[:1]) == {"commit": "ab12", "device": "GPU", "jax": "1", "pieces": 1}


def test_rows_without_an_evaluation_of_every_seed_are_left_out(tmp_path):
    store = Store(tmp_path)
    folder = left(store, "ab12-s0-1", [(s, k) for k in (10, 20, 30) for s in (0, 1)])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[3]["eval_return"], lines[4]["eval_return"] = None, float("nan")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert begun(store, "dmc", {"one": "ab12"}).curves("one", "eval_return")[0].tolist() == [10]


def test_a_seed_that_is_named_twice_is_one(tmp_path):
    store = Store(tmp_path)
    left(store, "ab12-s0", [(0, 10)], configuration={"seeds": [0, 0]})
    assert begun(store, "dmc", {"one": "ab12"}).seeds("one") == [0]


def of(seeds: list, **more) -> str:
    """A run.json."""
    return json.dumps({**ABOUT, "configuration": {"seeds": seeds}, **more})


DAMAGES = ("", "[]", "{}", '{"configuration": 1}', "\x00", of([]), of([0, "x"]), of([0, 1]))


@pytest.mark.parametrize("damage", [*DAMAGES, of([0], sessions=["x"]), of([0], sessions=[]), of([0], steps="x")])
def test_a_folder_that_cannot_be_read_counts_for_nothing(tmp_path, damage):
    store = Store(tmp_path)
    folder = left(store, "ab12-s0", [(0, 10)])
    assert len(begun(store, "dmc", {"one": "ab12"})) == 1
    (folder / "run.json").write_text(damage)
    assert len(begun(store, "dmc", {"one": "ab12"})) == 0


@pytest.mark.parametrize(
    "line", ["nothing", "7", '{"seed": 0}', '{"seed": 0, "update": "x"}', '{"seed": [], "update": 1}']
)
def test_rows_that_cannot_be_read_count_for_nothing(tmp_path, line):
    store = Store(tmp_path)
    folder = left(store, "ab12-s0", [(0, 10)])
    (folder / "metrics.jsonl").write_text(line + "\n")
    assert len(begun(store, "dmc", {"one": "ab12"})) == 0


def test_a_run_that_made_no_row_yet_and_a_store_without_any(tmp_path):
    store = Store(tmp_path / "store")
    assert begun(store, "dmc", {"one": "ab12"}).labels() == [] and not store.root.exists(), "nothing is written"
    (left(store, "ab12-s0", [(0, 10)]) / "metrics.jsonl").write_text("")
    assert begun(store, "dmc", {"one": "ab12"}).labels() == []


def test_columns_of_rows_that_measured_different_things():
    found = columns([{"seed": 0, "update": 1, "loss": None}, {"seed": 0, "update": 2, "loss": 0.5, "value": 3.0}])
    assert found["step"].tolist() == [1, 2] and np.isnan(found["loss"][0]) and found["loss"][1] == 0.5
    assert np.isnan(found["value"][0]) and "seed" not in found


def test_a_table_beside_another_keeps_its_own_labels_in_the_order_that_is_given():
    one = lambda label, x: Record(label, 0, {"step": np.array([1]), "x": np.array([x])})  # noqa: E731
    mine, other = Table([one("b", 1.0), one("d", 1.0)]), Table([one("a", 2.0), one("b", 2.0), one("c", 2.0)])
    both = mine.joined(other, ["c", "b", "e"])
    assert both.labels() == ["c", "b", "a", "d"] and both.final("b", "x") == 1.0 and both.final("a", "x") == 2.0
    assert mine.labels() == ["b", "d"] and other.labels() == ["a", "b", "c"]


def test_the_folders_of_a_store_that_hold_runs_which_are_not_whole(tmp_path):
    store = Store(tmp_path)
    first, second = left(store, "ab12-s0", [(0, 10)]), left(store, "cd34-s0-1", [(0, 10), (1, 10)])
    store.unfinished("dmc", "locks-small").mkdir()  # who is at work, not what was made
    assert store.partial_runs("dmc") == [first, second] and store.partial_runs("dmc", "cd34") == [second]
    assert store.partial_runs("lock") == []
