"""What a result says of its making: complete, plain, and silent about who and where."""

import getpass
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from made.training.provenance import checkout, merged, provenance


def test_it_names_versions_device_and_time():
    found = provenance(1_700_000_000.0, 12.34567, lanes=24)
    assert found["jax"] == jax.__version__ and found["numpy"] == np.__version__
    assert found["python"] == platform.python_version()
    assert found["device_platform"] == jax.default_backend() and found["device_count"] == len(jax.devices())
    assert found["cpu_cores"] >= 1
    assert found["started"] == "2023-11-14T22:13:20+00:00"
    assert (found["wall_s"], found["lanes"]) == (12.346, 24)
    assert json.loads(json.dumps(found)) == found


def test_it_does_not_say_who_or_where():
    text = json.dumps({k: v for k, v in provenance(time.time(), 1.0).items() if k != "cpu"})
    assert os.getcwd() not in text and str(Path.home()) + "/" not in text and str(Path(sys.prefix)) not in text
    names = {platform.node(), getpass.getuser()} - {"", "x", "root"}
    assert not [name for name in names if name in json.loads(text).values()]


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def package(tmp_path) -> Path:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    return folder


@pytest.fixture(autouse=True)
def forget():
    checkout.cache_clear()
    yield
    checkout.cache_clear()


def test_a_folder_outside_git_has_no_commit(package):
    assert checkout(package) == (None, None)
    assert checkout(package / "missing") == (None, None)


def test_a_tracked_package_has_a_commit_and_a_dirty_flag(package):
    git(package.parent, "init", "-q")
    git(package.parent, "add", ".")
    assert checkout(package) == (None, None)  # no commit yet
    checkout.cache_clear()
    git(package.parent, "commit", "-qm", "first")
    commit = git(package.parent, "rev-parse", "HEAD").strip()
    (package.parent / "notes.txt").write_text("not part of the package")
    assert checkout(package) == (commit, False)
    checkout.cache_clear()
    (package / "__init__.py").write_text("changed = True\n")
    assert checkout(package) == (commit, True)


def test_a_package_installed_inside_another_checkout_has_no_commit(package):
    (package.parent / "other.txt").write_text("")
    git(package.parent, "init", "-q")
    git(package.parent, "add", "other.txt")
    git(package.parent, "commit", "-qm", "first")
    assert checkout(package) == (None, None)


def test_without_git_nothing_is_raised(package, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert checkout(package) == (None, None)


def test_many_are_merged():
    one = {"jax": "0.10", "device": "cpu", "started": "2024-01-02", "wall_s": 30.0, "lanes": 10}
    two = one | {"device": "H200", "started": "2024-01-01", "wall_s": 4.0, "lanes": 1}
    assert merged([one, one, two]) == {
        "runs": 3,
        "jax": "0.10",
        "device": ["cpu", "H200"],
        "started": "2024-01-01",
        "wall_s": 10.0,
    }
    assert merged([]) == {"runs": 0}
