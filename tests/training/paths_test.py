"""Places to write to: those that cannot be are refused before any work, and a look at one leaves nothing behind."""

import errno
import os
import re
from pathlib import Path

import pytest

from made.training import paths


@pytest.mark.parametrize("look", [paths.make_dir, paths.require_dir])
@pytest.mark.parametrize(
    ("under", "message"),
    [
        ("file", "is a file, not a folder: give another one with --to."),
        ("file/x/y", "cannot be made: give another folder with --to."),
        ("new/" + 300 * "x", "cannot be made: give another folder with --to."),
    ],
)
def test_a_folder_that_cannot_be_is_refused_by_the_option_that_named_it(tmp_path, look, under, message):
    (tmp_path / "file").write_text("years of work")
    with pytest.raises(ValueError, match=f"^{re.escape(f'{tmp_path / under} {message}')}$"):
        look(tmp_path / under, "--to")
    assert (tmp_path / "file").read_text() == "years of work"


def test_a_look_leaves_nothing_behind_and_a_folder_that_is_there_alone(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "kept.json").write_text("kept")
    for name in ("there", "there/a/b", "new/a"):
        paths.require_dir(tmp_path / name, "--out")
    for name in ("there/a.json", "new/a/b.json", "kept.json"):
        paths.require_file(tmp_path / name, "--out")
    with pytest.raises(ValueError, match="cannot be made"):
        paths.require_dir(tmp_path / "new" / (300 * "x"), "--out")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept.json", "there"]
    assert (tmp_path / "kept.json").read_text() == "kept"


@pytest.mark.parametrize(
    ("under", "message"),
    [
        ("folder", "is a folder, not a file: give another one with --out."),
        ("pipe", "is no plain file: give another one with --out."),
        ("file/x.json", "cannot be written: give another file with --out."),
        (f"{300 * 'x'}.json", "cannot be written: give another file with --out."),
    ],
)
def test_a_file_that_cannot_be_is_refused_by_the_option_that_named_it(tmp_path, under, message):
    (tmp_path / "file").write_text("years of work")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=f"^{re.escape(f'{tmp_path / under} {message}')}$"):
        paths.require_file(tmp_path / under, "--out")
    assert len(list(tmp_path.iterdir())) == 3


def test_a_folder_that_may_only_be_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, how: how == os.R_OK)  # whoever runs as root may write anywhere
    for look in (paths.make_dir, paths.require_dir):
        with pytest.raises(ValueError, match=r"may not be written into: give another folder with --out\.$"):
            look(tmp_path, "--out")


def test_a_full_disk_is_not_told_as_a_wrong_place(tmp_path, monkeypatch):
    def full(path, **given):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "mkdir", full)
    for look in (paths.make_dir, paths.require_dir, paths.require_file):
        with pytest.raises(OSError, match="No space left"):
            look(tmp_path / "new" / "x", "--out")
