"""`made plot`: what is drawn of the records of training runs, and what is an error."""

import json

import numpy as np
import pytest
from PIL import Image

from made.cli import main
from made.cli.train import draw_curves
from made.experiments import plots


def run_dir(folder, returns, start=0):
    """A run directory with those returns [seeds, records], every 100 frames; None is a record without an episode."""
    folder.mkdir()
    rows = [
        {"seed": seed, "update": i, "frames": 100 * (i + 1), "return": x, "entropy": 0.5}
        for seed, values in enumerate(returns, start)
        for i, x in enumerate(values)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def drawn(monkeypatch):
    """The lines and bands that are drawn, by their text."""
    found, band = {}, plots.band
    monkeypatch.setattr(plots, "band", lambda ax, x, *y: (found.update({y[3].text: (x, *y[:3])}), band(ax, x, *y)))
    return found


def test_curves_are_the_mean_over_seeds_between_the_extremes(tmp_path, drawn, capsys):
    one = run_dir(tmp_path / "one", [[None, 0.2, 0.4], [None, 0.6, 0.4]])
    other = run_dir(tmp_path / "other", [[1.0, 1.0, 1.0]])
    assert main.main(["plot", str(one), str(other), "--out", str(tmp_path / "both.png")]) == 0
    assert f"drawn: {tmp_path}/both.png, {tmp_path}/both.svg" in capsys.readouterr().out
    x, middle, low, high = drawn["one (2 seeds)"]
    assert x.tolist() == [200, 300] and np.allclose(middle, [0.4, 0.4])
    assert np.allclose(low, [0.2, 0.4]) and np.allclose(high, [0.6, 0.4])
    assert drawn["other (1 seed)"][0].tolist() == [100, 200, 300]
    with Image.open(tmp_path / "both.png") as image:
        assert image.size[0] > 600 and len(image.convert("RGB").getcolors(10**6)) > 10
    assert "<svg" in (tmp_path / "both.svg").read_text()


def test_folders_of_one_name_go_by_their_path(tmp_path, drawn):
    for parent in ("a", "b"):
        (tmp_path / parent).mkdir()
    runs = [run_dir(tmp_path / parent / "run", [[1.0]]) for parent in ("a", "b")]
    draw_curves(runs, "entropy", tmp_path / "x.png")
    assert sorted(drawn) == [f"{run} (1 seed)" for run in runs]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["run", "--metric", "retrun"], "has no metric 'retrun'. Did you mean 'return'?"),
        (["late"], "has no finite value of return yet"),
        (["absent"], "absent has no metrics.jsonl: name a folder"),
        (["blank"], "has no log records yet"),
        (["damaged"], "line 1, is no log record"),
        (["run", "--out", "x.jpg"], "ends in .png or .svg, not 'x.jpg'"),
        (["run"] * 8, "takes 1 to 7 run directories, got 8"),
        ([], "made plot"),
    ],
)
def test_what_cannot_be_drawn_is_one_clear_line(tmp_path, monkeypatch, capsys, more, message):
    monkeypatch.chdir(tmp_path)
    run_dir(tmp_path / "run", [[0.5]]), run_dir(tmp_path / "late", [[None]]), run_dir(tmp_path / "blank", [])
    (run_dir(tmp_path / "damaged", []) / "metrics.jsonl").write_text('{"frames": 1}\n')
    assert main.main(["plot", *more]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(tmp_path.glob("*.png"))
