"""What the page draws, from recorded tables and folders; and the digest that outlasts the store."""

import json
import re

import numpy as np
import pytest

from made.experiments import experiments
from made.experiments.paper import lock_probes
from made.experiments.report import charts, collect, page, read_json, write_json
from made.experiments.report.page import render
from made.experiments.store import files
from made.experiments.store.table import Label, Record, Table
from made.tabular.families import Lock


def test_the_maps_are_those_of_figure_5():
    lock, rng = Lock(H=3), np.random.default_rng(0)
    visits = {s: np.cumsum(rng.integers(0, 9, (4, 14, 2)), axis=0) for s in range(3)}
    rows, arrays = {"step": np.arange(1, 5), "return": np.zeros(4)}, {"step": np.array([200, 400, 600, 800])}
    labels = [f"{form}/{m}" for form in charts.FORMS for m in lock_probes.SHOWN]
    table = Table(Record(one, s, rows, {**arrays, "visits": visits[s]}) for one in labels for s in visits)
    given = charts.visit_maps(table)
    assert (given["columns"], given["steps"], given["seeds"], len(given["forms"])) == (3, [200, 400, 600, 800], 3, 2)
    median = np.median(lock_probes.maps(table, "vi/bernstein"), axis=0)
    for shown, counted in zip(given["forms"][0]["methods"][1]["frames"], median, strict=True):
        np.testing.assert_allclose(np.reshape(shown, (4, 3)), np.nan_to_num(lock_probes._picture(lock, counted)))


def test_a_curve_has_frames_time_and_an_interval():
    steps = np.array([64, 128, 192])
    made_by = {"provenance": {"wall_s": 60.0, "lanes": 20, "device": "H200"}}
    seen = [np.array([0, 0 if s else np.nan, s]) for s in range(4)]  # no episode ended in a row of the first seed
    label = Label(task="DoorKey", method="made")
    runs = [Record(label, s, {"step": steps, "return": x}, run=made_by) for s, x in enumerate(seen)]
    given = charts.learning_curves(Table(runs))
    (panel,) = given["panels"]
    (line,) = panel["lines"]
    assert panel["name"] == "DoorKey" and line["text"] == "MADE" and line["shown"] and "H200" in given["note"]
    assert line["frames"] == [204800, 409600, 614400] and line["seconds"] == [1.0, 2.0, 3.0]  # 60 s for 20 lanes
    assert line["middle"] == [0, 0, 1.5] and line["low"][2] < 1.5 < line["high"][2]


def test_one_seed_has_a_line_and_no_interval():
    line = charts.line("none", np.array([1, 2]), np.array([1.0, 2.0]), np.array([[0.5, 0.25]]))
    assert line["middle"] == [0.5, 0.25] and line["low"] == line["high"] == [None, None] and line["dash"] == "5 2"


def run_folder(folder, gif=b"", png=b"", **changes):
    folder.mkdir()
    session = {"device": "cpu", "cpu": "EPYC", "cpu_cores": 2}
    options = {"env": "DoorKey-5x5", "bonus": "rnd", "first_visit": True}
    run = {"format": 2, "command": "made train", "options": options, "sessions": [session]} | changes
    (folder / "run.json").write_text(json.dumps(run))
    rows = [(0, 100, 2.0, None), (0, 200, 4.0, 0.5), (1, 200, 6.0, 0.7), (0, 300, 8.0, 0.9)]
    lines = [dict(zip(("seed", "frames", "seconds", "return"), row, strict=True)) for row in rows]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "video-seed0.gif").write_bytes(gif)
    (folder / "visits-seed0.png").write_bytes(png)
    return folder


def test_packed_runs_of_made_train_are_read_with_their_video(tmp_path, gif, png):
    options = {"env": "DoorKey-5x5", "bonus": "rnd", "first_visit": True}
    told = {"run_id": "ab12", "description": {"format": 2, "command": "made train", "options": options}}
    told |= {"written": "", "provenance": {"sessions": [{"device": "cpu", "cpu": "EPYC", "cpu_cores": 2}]}}
    seen = {0: [(1, 100, 2.0, np.nan), (2, 200, 4.0, 0.5), (3, 300, 8.0, 0.9)], 1: [(2, 200, 6.0, 0.7)]}
    names = ("step", "frames", "seconds", "return")
    columns = {
        seed: dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True)) for seed, rows in seen.items()
    }
    other = {**told, "description": {"format": 2, "command": "made run", "options": None}}
    runs = [Record("a", seed, rows, run=told) for seed, rows in columns.items()]
    (tmp_path / "some").mkdir()
    files.write_packed(tmp_path / "some" / "runs", [*runs, Record("b", 0, columns[0], run=other)])
    folder = run_folder(tmp_path / "some" / "a", gif, png)
    alone = charts.read_agent(folder)
    for name in ("run.json", "metrics.jsonl"):
        (folder / name).unlink()
    packed = charts.packed_agents(tmp_path / "some")
    assert packed == {folder: alone, tmp_path / "some" / "b": None}, "as from its folder; `made run` left no agent"
    assert collect.find([tmp_path]).agents == [alone]
    (tmp_path / "some" / "runs.csv.gz").write_bytes(b"")
    assert charts.packed_agents(tmp_path / "some") == {} == charts.packed_agents(tmp_path)


def test_a_run_of_made_train_is_read_with_its_video(tmp_path, gif, png):
    agent = charts.read_agent(run_folder(tmp_path / "a", gif, png))
    assert agent is not None
    assert (agent.task, agent.bonus, agent.device) == ("DoorKey-5x5", "first-visit rnd", "EPYC, 2 cores")
    assert agent.videos == (gif,) and agent.visits == (png,)
    assert agent.line["frames"] == [200] and agent.line["seconds"] == [5.0]  # the row that both seeds have
    shown = render([], [agent])
    assert 'class="video"' in shown and shown.count("data:image/gif") == 1


def test_dreams_are_shown_as_a_video_and_as_points(tmp_path, gif):
    folder = run_folder(tmp_path / "a")
    (folder / "dream-seed0.gif").write_bytes(gif)
    rows = [
        ("seed", "window", "real", "paid", "imagined"),
        (0, 0, 0, 1.0, 3.0),
        (0, 1, 0, 5.0, 2.0),
        (0, 2, 0, "nan", 1),
    ]
    (folder / "dreams.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    agent = charts.read_agent(folder)
    assert agent is not None and (agent.dreams, agent.returns) == ((gif,), ((1.0, 3.0), (5.0, 2.0)))
    shown = render([], [agent])
    assert shown.count("data:image/gif") == 1 and shown.count("<circle") == 2 and "2 windows" in shown
    # The larger imagined return stands higher, and the larger paid one further right.
    (x, y), (further, lower) = ([float(n) for n in found] for found in re.findall(r'cx="(.*?)" cy="(.*?)"', shown))
    assert further > x and lower > y and ">5</text>" in shown and ">1</text>" in shown
    alike = render([], [agent._replace(returns=[(0.0, 0.0)] * 3)])
    assert alike.count('cx="140.0" cy="80.0"') == 3
    (folder / "dreams.csv").write_text("seed,window\n0,0\n")
    (folder / "dream-seed0.gif").write_bytes(b"<svg onload=alert(1)>")
    agent = charts.read_agent(folder)
    assert agent is not None and agent.dreams == () == agent.returns


def test_what_is_no_run_or_no_image_is_left_out(tmp_path):
    agent = charts.read_agent(run_folder(tmp_path / "a", b"<svg onload=alert(1)>", b"<html>"))
    assert agent is not None and agent.videos == () == agent.visits
    assert charts.read_agent(tmp_path) is None and charts.read_agent(run_folder(tmp_path / "b", sessions=[])) is None
    assert charts.read_agent(run_folder(tmp_path / "part", options=None)) is None, "of made run"
    with pytest.warns(UserWarning, match="Left out of the report: .*layout 1 .*train again .*commit ab12"):
        assert charts.read_agent(run_folder(tmp_path / "old", format=1, sessions=[{"commit": "ab12"}])) is None


def test_report_json_keeps_a_section_and_marks_it_as_earlier(tmp_path, lock, png):
    (tmp_path / "lock.png").write_bytes(png)
    write_json(tmp_path, [lock])
    (section,) = read_json(tmp_path)
    assert section.earlier == "an earlier report, runs of commit abc123"
    assert section.figures == [lock.figures[0]._replace(file=tmp_path / "lock.png")]
    assert section.claims == lock.claims and section.maps == lock.maps
    write_json(tmp_path, [section])
    assert read_json(tmp_path) == [section] and read_json(tmp_path / "nothing") == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("lock.png", "../lock.png", "not the name of a figure"),
        ('"format": 2', '"format": 9', "reads format 2"),
        ('"format": 2', '"format": 1', "reads format 2"),
        ('"claim":1', '"claim":"x"', "cannot"),
        ('"value":1.2', '"value":"x"', "cannot"),
        ("}", "", "cannot"),
    ],
)
def test_a_report_json_that_cannot_be_trusted_is_refused(tmp_path, lock, png, old, new, told):
    (tmp_path / "lock.png").write_bytes(png)
    path = write_json(tmp_path, [lock])
    path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")
    with pytest.raises(ValueError, match=told):
        read_json(tmp_path)


def test_every_claim_stands_in_a_part_of_the_paper():
    places = {claim.where for experiment in experiments().values() for claim in experiment.claims}
    assert len(places) > 10 and all(page.paper_section(where) in set(page.PARTS) - {""} for where in places)
    given = {"Fig. 10, Sec. 5.3": "5.3", "Fig. 10": "", "Sec. 9": "", "Eqs. (5), (6)": "3"}
    assert {where: page.paper_section(where) for where in given} == given
