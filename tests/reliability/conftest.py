"""Run a check and keep its record: `MADE_RELIABILITY_RESULTS=DIR pytest -m reliability -n 0`."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from made.core.safe_files import write_atomic
from made.training.provenance import provenance


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., None]:
    """Call a check in an empty folder, write its record as NAME.json, and fail with what the check found."""

    def run(name: str, function: Callable[..., dict[str, Any]], **options: Any) -> None:
        started = time.time()
        found = function(tmp_path / name, **options)
        record = {**found, "provenance": provenance(started, time.time() - started)}
        if folder := os.environ.get("MADE_RELIABILITY_RESULTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            write_atomic(Path(folder) / f"{name}.json", json.dumps(record, indent=1) + "\n")
        failed = [one for one in found.get("scenes", ()) if not one["passed"]]
        assert found["passed"], found.get("wrong") or found.get("differ") or failed or found

    return run
