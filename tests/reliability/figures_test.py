"""The figures and the table of docs/reliability.md, from the records of the checks."""

import json

import numpy as np
import pytest

from docs import build_reliability as figures
from tests.reliability import kill_and_resume, memory_growth


def test_figures_are_drawn_from_records_and_refused_without(tmp_path):
    with pytest.raises(ValueError, match=r"holds no kills\.json"):
        figures.draw(tmp_path, tmp_path / "img")
    each = [kill_and_resume.Kill("store", "any", 1.0, 0.5, phase) for phase in figures.COLORS]
    record = kill_and_resume.report(each, [], 4, {})
    (tmp_path / "kills.json").write_text(json.dumps(record))
    samples = [[float(t), 500.0, 5, 20] for t in range(60)]
    judged = memory_growth.judge(np.arange(60.0), np.full(60, 500.0))
    (tmp_path / "soak.json").write_text(json.dumps({**judged, "samples": samples, "rows_written": 9}))
    written = figures.draw(tmp_path, tmp_path / "img")
    assert [path.name for path in written] == ["kills.png", "soak.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    (tmp_path / "soak.json").unlink()
    header, _, row = figures.table(tmp_path).splitlines()
    assert header.count("|") == row.count("|") and "| passed | kills 7; trials 4; " in row and "store 7" in row
