"""What must not change: bits of short runs, the recorded runs of every label, and their verdicts."""

import json
from collections import defaultdict
from pathlib import Path

import pytest
from golden.runs import RECORDED, RUNS, environment

from made.experiments import experiments
from made.experiments.runner import Study, check
from made.experiments.store import Scale, Store

HERE = Path(__file__).parent
STORES = [Store(HERE.parents[1] / "results" / name) for name in ("minigrid", "dmc")]
QUICK = ("lock", "grid", "host")  # the others compile for half a minute each


@pytest.mark.parametrize("name", QUICK)
def test_short_run_reproduces_recorded_digest(name):
    recorded, found = json.loads(RECORDED.read_text()), RUNS[name]()
    expected = recorded["runs"][name]
    assert found["leaves"] == expected["leaves"]
    if environment() == recorded["environment"]:
        assert found["sha256"] == expected["sha256"]
    else:
        assert found["sum"] == pytest.approx(expected["sum"], rel=0.02)


def test_every_recorded_run_is_there_under_the_id_of_its_label():
    recorded = json.loads((HERE / "recorded_runs.json").read_text())
    assert sum(map(len, recorded.values())) == 1436
    by_study: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(dict)
    for key, seeds in recorded.items():
        experiment, scale, label = key.split("/", 2)
        by_study[experiment, scale][label] = seeds
    for (name, scale), labels in by_study.items():
        study = next(x for x in experiments().values() if x.name == name)
        ids = Study(study, Scale(scale)).ids
        found: dict[tuple[str, str], set[int]] = defaultdict(set)
        for store in STORES:
            for run in store.runs(name, scale):
                found[run["label"], run["run_id"]].add(run["seed"])
        lost = [label for label, seeds in labels.items() if not set(seeds) <= found[label, ids[label]]]
        assert not lost, f"{name}/{scale}: {lost[:5]}"


def test_recorded_runs_give_the_recorded_verdicts():
    expected = {int(claim): holds for claim, holds in json.loads((HERE / "verdicts.json").read_text()).items()}
    found = {}
    for store in STORES:
        for experiment in experiments().values():
            for scale in store.scales(experiment.stored_as):
                if scale == Scale.GPU or experiment.name == "dmc_buffer":
                    found |= {one.claim: one.holds for one in check(Study(experiment, scale), store)}
    assert {18, 19, 20, 21, 22, 33, 34, 23, 24, 28, 29} <= set(found)
    assert found == {claim: expected.get(claim) for claim in found}
