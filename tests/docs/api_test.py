"""The API pages and the public names are the same."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import made

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"matplotlib", "rich", "tyro", "torch", "stable_baselines3", "minigrid", "dm_control", "mujoco", "wandb", "ray"}


def entries() -> list[str]:
    """What the API pages document: one name for each `:::`."""
    pages = "".join(page.read_text("utf-8") for page in sorted((ROOT / "docs" / "api").glob("*.md")))
    return re.findall(r"^::: (\S+)$", pages, re.M)


def test_every_public_name_has_one_entry():
    found = [name.removeprefix("made.") for name in entries() if name.count(".") == 1]
    assert sorted(found) == sorted(made.__all__)


def test_every_entry_exists():
    assert len(set(entries())) == len(entries())
    for name in entries():
        module, _, attribute = name.rpartition(".")
        if not (ROOT / f"{name.replace('.', '/')}.py").is_file():
            assert hasattr(importlib.import_module(module), attribute), name


def test_all_lists_the_public_names_and_nothing_is_imported_beside_them():
    assert len(set(made.__all__)) == len(made.__all__) and all(hasattr(made, name) for name in made.__all__)
    modules = {path.stem for path in (ROOT / "made").iterdir()}
    others = {name for name in vars(made) if not name.startswith("_")} - set(made.__all__) - modules
    assert not others, "a public name that __all__ lacks"


def test_importing_made_loads_no_optional_library():
    code = "import sys, made; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert not HEAVY & set(loaded.split())


def test_the_package_has_type_information():
    assert (ROOT / "made" / "py.typed").is_file()
