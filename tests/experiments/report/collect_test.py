"""`made report` over several folders: what it finds, which of it counts, and what it says of the rest."""

import json
import shutil

import numpy as np
import pytest

from made.core.config import config_id, to_dict
from made.experiments import experiment, experiments
from made.experiments.paper import control_setup
from made.experiments.report import collect
from made.experiments.store import Job, Scale, Store

MADE_BY = {"commit": "abc123", "device": "cpu", "wall_s": 1.0, "lanes": 4}


def record(
    root, name: str = "lock_heatmap", scale: Scale = Scale.SMOKE, seeds: int = 2, labels: int | None = None
) -> Store:
    """Visits as if the lock had been run: the names and settings are the experiment's, the numbers are drawn."""
    store, rng = Store(root), np.random.default_rng(0)
    for label, trial in list(experiment(name).trials(scale).items())[:labels]:
        visits = np.cumsum(rng.integers(1, 9, (6, 14, 2)), axis=0)
        rows, arrays = (
            {"step": np.arange(10, 70, 10), "return": np.zeros(6)},
            {"step": np.arange(10, 70, 10), "visits": visits},
        )
        for seed in range(seeds):
            store.write(Job(name, label, seed, scale), config_id(trial), to_dict(trial), rows, arrays, MADE_BY)
    return store


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results in several places: two stores, one of them incomplete, and the page of the first."""
    root = tmp_path_factory.mktemp("results")
    record(root / "lock")
    record(root / "later", scale=Scale.DEMO, seeds=1, labels=3)
    return root, collect.reproduce([root], root / "report")


def test_stores_are_found_below_a_folder_and_the_complete_one_counts(folder):
    root, written = folder
    assert [store.root.name for store in collect.find([root]).stores] == ["later", "lock"]
    section = next(one for one in written.sections if one.name == "lock_heatmap")
    assert {claim["scale"] for claim in section.claims} == {"smoke"} and section.provenance["commit"] == "abc123"
    assert len(section.maps["steps"]) == 6 and section.earlier == ""
    assert (root / "report" / "lock_heatmap.png").exists() and "lock_heatmap" in written.page.read_text("utf-8")


def test_every_claim_is_on_the_page_recorded_or_not(folder):
    _, written = folder
    numbers = [row.claim for row in written.judged]
    assert numbers == sorted(claim.number for one in experiments().values() for claim in one.claims)
    assert {row.seeds for row in written.judged} == {0, 2}
    unrun = next(row for row in written.judged if row.name == "faster-on-control")
    assert unrun.holds is None and unrun.command == "made run dmc --scale small"
    recorded = json.loads((written.page.parent / "claims.json").read_text("utf-8"))
    assert {row["claim"] for row in recorded} == {11, 17}


def test_an_earlier_report_stands_in_for_a_store_that_is_not_there(folder, tmp_path):
    root, _ = folder
    shutil.copytree(root / "report", tmp_path / "old" / "report")
    record(tmp_path / "old" / "partial", labels=3)
    written = collect.reproduce([tmp_path / "old"], tmp_path / "new", ["lock_heatmap"])
    (section,) = written.sections
    assert section.earlier == "an earlier report, runs of commit abc123" and len(section.maps["steps"]) == 6
    assert (tmp_path / "new" / "lock_heatmap.png").read_bytes() == (root / "report" / "lock_heatmap.png").read_bytes()
    assert "copied from" in written.page.read_text("utf-8")
    assert collect.find([tmp_path / "new"]).earlier["lock_heatmap"].earlier == section.earlier


def test_what_is_incomplete_says_what_is_missing(tmp_path):
    record(tmp_path / "runs", labels=3)
    (section,) = collect.reproduce([tmp_path / "runs"], tmp_path / "to", ["lock_heatmap"]).sections
    assert all("configurations are missing" in claim["observed"] and not claim["seeds"] for claim in section.claims)


def control(root, scale: Scale, labels: int | None = None) -> None:
    """Evaluations as if RAD or SAC had been run."""
    store, rows = Store(root), {"step": np.arange(1, 6), "eval_return": np.arange(5.0)}
    for label, trial in list(experiment("dmc").trials(scale).items())[:labels]:
        store.write(Job("dmc", label, 0, scale), config_id(trial), to_dict(trial), rows, {}, MADE_BY)


def test_below_a_part_of_a_large_scale_stands_a_smaller_one_that_is_complete(tmp_path, monkeypatch):
    monkeypatch.setattr(control_setup, "CHOSEN", tmp_path / "none.json")  # without what was searched
    control(tmp_path / "runs", Scale.GPU, 2), control(tmp_path / "runs", Scale.SMOKE)
    (alone,) = collect.reproduce([tmp_path / "runs"], tmp_path / "alone", ["dmc"]).sections
    assert len(alone.figures) == 1, "a smoke test shows nothing"
    control(tmp_path / "runs", Scale.SMALL)
    written = collect.reproduce([tmp_path / "runs"], tmp_path / "to", ["dmc"])
    (both,) = written.sections
    assert [one.file.name for one in both.figures] == ["dmc.png", "dmc_small.png"]
    first, second = both.figures
    assert first.png == alone.figures[0].png and second.caption.startswith("At scale small: Soft actor-critic")
    assert [title for title, *_ in both.tables] == [
        "Every method",
        "Not run at this scale",
        "Every method, at scale small",
    ]
    assert both.claims == alone.claims and {claim["scale"] for claim in both.claims} == {"gpu"}
    assert both.provenance["runs"] == 2 and both.provenance["at scale small: runs"] == len(control_setup.SMALL)
    assert all(one.file.exists() for one in both.figures)


def test_a_scale_can_be_asked_for(folder, tmp_path):
    (section,) = collect.reproduce([folder[0]], tmp_path, ["lock_heatmap"], "demo").sections
    assert "missing" in section.claims[0]["observed"] and section.claims[0]["scale"] == "demo"


def test_nothing_recorded_names_the_command_that_helps(tmp_path):
    with pytest.raises(ValueError, match=r"Nothing is recorded in .*made demo"):
        collect.reproduce([tmp_path / "runs"], tmp_path / "to")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        collect.reproduce([tmp_path / "file"], tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_a_page_that_cannot_be_written_names_the_option(folder, tmp_path):
    (file := tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file is a file, not a folder: give another one with --to"):
        collect.reproduce([folder[0]], file, ["lock_heatmap"])
    with pytest.raises(ValueError, match="file is a file, not a folder: give another one with --report"):
        collect.publish([], Store(tmp_path / "runs"), file)  # as `made demo` calls it
