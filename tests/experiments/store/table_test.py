"""The long table: shapes, order, refusals, and the exact text form of its columns."""

import copy
import pickle

import numpy as np
import pytest

from made.experiments.store.table import Label, Record, Table, checked

STEPS = np.array([0, 10, 20])


def record(label: str = "vi/made", seed: int = 0, **columns) -> Record:
    columns = columns or {"return": STEPS / 10 + seed}
    return Record(label, seed, {"step": STEPS, **columns}, run={"run_id": f"id{seed}"})


@pytest.fixture
def table() -> Table:
    runs = [record(seed=2), record(seed=0), record("vi/hoeffding", 1), record("ppo/made", 0, loss=STEPS)]
    return Table(runs)


def test_labels_are_found_by_their_tags_and_keep_them_when_copied():
    labels = [Label(task=task, method=m, tau=0.1, tuned=True) for task in ("a", "b") for m in ("rnd", "made")]
    table = Table([Record(label, 0, {"step": np.arange(2)}) for label in (*labels, "plain")])
    assert table.select(task="a") == ["a/rnd/tau=0.1", "a/made/tau=0.1"] and table.select(task="c") == []
    assert table.tag("task") == ["a", "b"] and table.tag("method", task="b") == ["rnd", "made"]
    assert table.tags("b/made/tau=0.1") == {"task": "b", "method": "made", "tau": 0.1, "tuned": True}
    assert table.tags("plain") == {} and labels[0].without("task", "tau") == "rnd"
    assert pickle.loads(pickle.dumps(labels[0])).tags == copy.deepcopy(labels[0]).tags == labels[0].tags


def test_names_are_in_order(table):
    assert table.labels() == ["vi/made", "vi/hoeffding", "ppo/made"]
    assert table.seeds("vi/made") == [0, 2]
    assert table.metrics() == ["return", "loss"]
    assert table.metrics("ppo/made") == ["loss"]
    assert [run["run_id"] for run in table.runs("vi/made")] == ["id0", "id2"]
    assert len(table) == 4


def test_curves_have_seeds_first(table):
    steps, values = table.curves("vi/made", "return")
    np.testing.assert_array_equal(steps, STEPS)
    np.testing.assert_array_equal(values, [[0, 1, 2], [2, 3, 4]])
    np.testing.assert_array_equal(table.final("vi/made", "return"), [2, 4])


def test_steps_without_any_value_are_left_out():
    nan = np.nan
    runs = [record(seed=0, score=np.array([nan, 1.0, nan])), record(seed=1, score=np.array([nan, 3.0, 4.0]))]
    steps, values = Table(runs).curves("vi/made", "score")
    np.testing.assert_array_equal(steps, [10, 20])
    np.testing.assert_array_equal(values, [[1, nan], [3, 4]])
    with pytest.raises(ValueError, match="every entry is empty"):
        Table([record(score=np.full(3, nan))]).curves("vi/made", "score")


def test_an_empty_table_says_so():
    table = Table()
    assert table.labels() == [] and table.metrics() == [] and len(table) == 0
    with pytest.raises(ValueError, match=r"empty.*run the experiment"):
        table.curves("vi/made", "return")


def test_unknown_names_get_a_suggestion(table):
    with pytest.raises(ValueError, match=r"'vi/mde' is not a label.*mean 'vi/made'.*vi/hoeffding"):
        table.curves("vi/mde", "return")
    with pytest.raises(ValueError, match=r"'retrun' is not a metric of 'vi/made'.*mean 'return'"):
        table.curves("vi/made", "retrun")
    with pytest.raises(ValueError, match="'step' is not a metric"):
        table.curves("vi/made", "step")
    with pytest.raises(ValueError, match=r"'visits' is not an array of 'vi/made'.*none"):
        table.arrays("vi/made", "visits")


def test_ragged_seeds_are_refused():
    short = Record("vi/made", 1, {"step": STEPS[:2], "return": np.zeros(2)})
    with pytest.raises(ValueError, match=r"Seeds 0 and 1 .*shape \(3,\) up to step 20 against shape \(2,\)"):
        Table([record(), short]).curves("vi/made", "return")
    shifted = Record("vi/made", 1, {"step": STEPS + 1, "return": np.zeros(3)})
    with pytest.raises(ValueError, match="up to step 21"):
        Table([record(), shifted]).curves("vi/made", "return")
    with pytest.raises(ValueError, match=r"not recorded by seeds \[1\]"):
        Table([record(), record(seed=1, loss=STEPS)]).curves("vi/made", "return")
    with pytest.raises(ValueError, match="Two runs of 'vi/made' have seed 0"):
        Table([record(), record()])


def test_arrays_are_stacked_by_seed():
    def run(seed):
        arrays = {"step": np.array([0, 20]), "visits": np.full((2, 4, 3), seed)}
        return record(seed=seed)._replace(arrays=arrays)

    steps, visits = Table([run(1), run(0)]).arrays("vi/made", "visits")
    assert steps.tolist() == [0, 20] and visits.shape == (2, 2, 4, 3)
    assert visits[:, 0, 0, 0].tolist() == [0, 1]
    assert Table([run(1)]).array_names() == ["visits"]
    other = run(0)._replace(arrays={"step": np.array([0, 20]), "visits": np.zeros((2, 4, 2))})
    with pytest.raises(ValueError, match=r"\(2, 4, 2\)"):
        Table([run(1), other]).arrays("vi/made", "visits")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"return": [1.0]}, "lack 'step'"),
        ({"step": [0, 0]}, "increasing whole numbers"),
        ({"step": [0.5, 1.0]}, "increasing whole numbers"),
        ({"step": [0.0, np.nan]}, "increasing whole numbers"),
        ({"step": [[0], [1]]}, "increasing whole numbers"),
        ({"step": ["a", "b"]}, "increasing whole numbers"),
        ({"step": [0, 1], "return": [1.0]}, r"'return' must have shape \[2\]"),
        ({"step": [0, 1], "return": [[1.0], [2.0]]}, r"'return' must have shape \[2\]"),
        ({"step": [0, 1], "return": 3.0}, "'return' must have shape"),
        ({"step": [0, 1], "name": ["a", "b"]}, "real numbers"),
        ({"step": [0, 1], "thing": np.array([None, {}])}, "real numbers"),
    ],
)
def test_bad_columns_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        checked(columns)
