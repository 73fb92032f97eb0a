"""Checks of the repository: the paper map, the documents, layers and imports, sizes, names, clean text."""

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from made.cli import info
from made.experiments import experiments

ROOT = Path(__file__).resolve().parents[1]

# Bottom to top. A module imports from lower layers only; in its own layer, from its own package.
LAYERS = (
    ("core",),
    ("nets",),
    ("bonuses", "agents", "envs", "tabular"),
    ("training",),
    ("adapters", "experiments"),
    ("cli",),
)
SIDEWAYS = {("envs", "tabular")}  # an MDP is an environment
HEAVY = {
    "matplotlib",
    "ray",
    "torch",
    "stable_baselines3",
    "dm_control",
    "mujoco",
    "wandb",
    "minigrid",
}  # only by those in need
PLUG_INS = {  # what subclasses a library's classes imports it, and only its users import that
    f"made/adapters/sb3{of}.py": {"stable_baselines3", "torch"} for of in ("", "_replay")
}
LONGEST_FILE, LONGEST_FUNCTION = 350, 60
# Of made/: packages and modules at the top, .py files, lines. The last may only fall, to 24,000.
MOST_ENTRIES, MOST_FILES, MOST_LINES = 12, 150, 25_800
SHARED_NAMES = {"__init__", "agent", "network", "registry", "tabular"}  # the same role in several packages
# Everyday words that stood for terms of the field. Functions, classes and arguments do not use them as names or parts.
BANNED = {
    "told",
    "said",
    "heard",
    "came",
    "beside",
    "slope",
    "odd",
    "whole",
    "begun",
    "stand",
    "walk",
    "shelf",
    "quiet",
    "narrow",
    "pays",
    "payer",
    "paid",
}

# What must have a row: the paper's labels (it is not in the repository, so they are kept here), then ours, then claims.
LABELS = {
    "eq": "made_objective RL_objective MADE_regularizer reward_general bonus_design smoothed_regularizer first_bound "
    "second_bound",
    "def": "regularized_objective_population_general",
    "alg": "population_solver",
    "thm": "convergence_MADE",
    "prop": "regularity regularity/i regularity/ii regularity/iii regularity/iv",
    "lemma": "policy_entropy_gradient MADE_gradient",
    "fig": "sample_size bidirectional_lock lock_results bonuses_lock visitation_heatmap chain_MDP sub1 minigrid_result "
    "dm_control dm_control_ablation mbdm_control dm_vis",
    "remark": "1 2",
    "sec": "preliminaries/mixture exp/deep_reward",
    "subsec": "made_obj/cover made_obj/weights",
    "app": "thm_proof/density_oracle thm_proof/planning_oracle thm_proof/third_bound lock/hoeffding lock/bernstein "
    "lock/made lock/value_iteration lock/ppo lock/q_learning chain/pg chain/pg_re chain/pg_e chain/pg_made chain/tau "
    "minigrid/learner minigrid/made dm_control/rnd dm_control/icm dm_control/re3 dm_control/made "
    "dm_control/dreamer_re3 dm_control/dreamer_made",
    "claim": " ".join(map(str, range(1, 36))),
}
PAPERS_CLAIMS, TABULAR_CLAIMS = range(1, 36), range(1, 18)
DEVIATIONS = 46  # found in the paper and its release; our own choices are numbered after them
RECIPES = ("bonuses/neglect", "bonuses/first_visit", "agents/boltzmann", "corridor", "experiments/paper/deepsea")

MACHINE = re.compile(rf"(?<![\w.])/(?:(?:{'work'}|{'root'})\b|{'tmp'}/)")
REGISTRY = re.compile(r"(?:pypi|pythonhosted|anaconda|npmjs)\.(?:org|com)|index[-]url|jfrog[.]")


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def test_recorded_results_are_few_files():
    """Runs are packed before they are added: made export --remove --out results/minigrid."""
    files = [path for path in (ROOT / "results").rglob("*") if path.is_file()]
    assert 0 < len(files) <= 120
    assert not list((ROOT / "results").glob("*/*/*/*/*/run.json")), "run folders of a store"


def library() -> list[Path]:
    return sorted((ROOT / "made").rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


# The paper map


def references(cell: str) -> list[str]:
    """A cell of the map holds one reference or several, separated by commas."""
    return [] if cell == "-" else [one.strip() for one in cell.split(",")]


def problem_of_symbol(reference: str) -> str | None:
    """Why `path/file.py::Name.attribute` is not there, or None if it is."""
    path, _, symbol = reference.partition("::")
    if not (ROOT / path).is_file():
        return f"there is no file {path}"
    thing = importlib.import_module(path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
    for name in filter(None, symbol.split(".")):
        if not hasattr(thing, name):
            return f"{path} has no {symbol}"
        thing = getattr(thing, name)
    return None


def problem_of_test(reference: str) -> str | None:
    """Why a test or `experiment:name` is not there, or None if it is. Test files are read, not imported."""
    kind, _, name = reference.partition(":")
    if kind == "experiment":
        return None if name in experiments() else f"there is no experiment {name}"
    path, _, name = reference.partition("::")
    if not re.fullmatch(r"tests/[\w/]+_test\.py", path) or not (ROOT / path).is_file():
        return f"there is no test file {path}"
    functions = {node.name for node in parsed(ROOT / path).body if isinstance(node, ast.FunctionDef)}
    return None if name.startswith("test_") and name in functions else f"{path} has no test {name}"


def problems_of_row(row: info.Row) -> list[str]:
    if row.status == "open":
        return [] if row.code == row.test == "-" else ["an open row has - for code and test"]
    if row.status != "done":
        return [f"status is {row.status!r}, not done or open"]
    code, test = references(row.code), references(row.test)
    found = [] if code and test else ["a done row names its code and its test"]
    found += [problem for one in code if (problem := problem_of_symbol(one))]
    return found + [problem for one in test if (problem := problem_of_test(one))]


def test_no_row_of_the_paper_map_lies():
    rows = info.rows()
    assert len(rows) > 100, "the map could not be read"
    lies = [f"{row.label}: {problem}" for row in rows for problem in problems_of_row(row)]
    assert not lies, "\n".join(lies)


def test_every_line_of_a_map_table_is_read_as_a_row():
    """A row with a pipe too many would be dropped without a word."""
    lines = [x for x in info.path().read_text("utf-8").splitlines() if x.startswith("|")]
    tables = sum(line.split("|")[1].strip() == "item" for line in lines)
    assert tables > 0 and len(lines) - 2 * tables == len(info.rows())


def test_every_item_of_the_paper_has_one_row():
    labels = Counter(row.label for row in info.rows())
    missing = [f"{kind}:{name}" for kind, names in LABELS.items() for name in names.split()]
    missing = [label for label in missing if label not in labels]
    twice = [label for label, n in labels.items() if n > 1]
    assert not missing and not twice, f"no row: {missing}; more than one row: {twice}"


def test_the_tabular_claims_are_done_and_a_claim_names_what_judges_it():
    rows = {row.label: row for row in info.rows()}
    undone = [n for n in TABULAR_CLAIMS if rows[f"claim:{n}"].status != "done"]
    assert not undone, f"claims not done: {undone}"
    for name, experiment in experiments().items():
        for claim in (claim for claim in experiment.claims if claim.number in PAPERS_CLAIMS):
            row, check = rows[f"claim:{claim.number}"], claim.check
            symbol = f"{check.__module__.replace('.', '/')}.py::{check.__name__}"
            assert references(row.code) == [symbol], f"{row.label} is judged by {symbol}"
            assert f"experiment:{name}" in references(row.test), f"{row.label} is a claim of {name}"


def test_every_experiment_stands_beside_what_it_reproduces():
    rows = {row.label: row for row in info.rows()}
    for name, experiment in experiments().items():
        if not experiment.figure:  # not of the paper
            continue
        row = rows.get(experiment.figure)
        assert row is not None, f"{name} reproduces {experiment.figure}, which has no row"
        assert f"experiment:{name}" in references(row.test), f"{row.label} does not name experiment:{name}"


# The documents


def problem_of_mention(path: str) -> str | None:
    if path.startswith("made/"):
        return problem_of_symbol(path)
    if "::" in path:
        return problem_of_test(path)
    return None if (ROOT / path).is_file() else f"there is no file {path}"


def test_documents_name_files_symbols_tests_and_pages_that_exist():
    lies = []
    planned = {f"made/{name}.py" for name in RECIPES}
    for page in [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]:
        text = page.read_text("utf-8")
        mentions = set(re.findall(r"(?:made|tests|examples)/[\w/]+\.py(?:::[\w.]*\w)?", text)) - planned
        found = [problem for one in mentions if (problem := problem_of_mention(one))]
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
        found += [f"the link {link} leads nowhere" for link in links if not (page.parent / link).exists()]
        lies += [f"{page.name}: {problem}" for problem in found]
    assert not lies, "\n".join(lies)


def test_deviations_are_numbered_without_gaps_and_have_four_cells():
    rows = [x for x in (ROOT / "docs" / "deviations.md").read_text("utf-8").splitlines() if x.startswith("|")]
    numbers = sorted(int(found[1]) for row in rows if (found := re.match(r"\| (\d+)\. ", row)))
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > DEVIATIONS
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}


# Layers and imports


def imports(path: Path, nodes=None) -> set[str]:
    """Full names of everything a file imports, inside functions too; relative imports made absolute."""
    package, found = path.relative_to(ROOT).parts[:-1], set()
    for node in ast.walk(parsed(path)) if nodes is None else nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            found |= {".".join([*above, *([node.module] if node.module else []), alias.name]) for alias in node.names}
    return found


def at_import(body: list[ast.stmt]) -> list[ast.AST]:
    """The nodes that run when a module is imported: not function bodies, not what only a type checker reads."""
    found: list[ast.AST] = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            found += at_import(node.orelse)
            continue
        found.append(node)
        for inner in ("body", "orelse", "finalbody", "handlers"):
            found += at_import(getattr(node, inner, None) or [])
    return found


def package_of(name: str) -> str:
    """The package of made that a module or a file belongs to: "bonuses" of "made.bonuses.rnd"."""
    parts = name.removesuffix(".py").replace("/", ".").split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_modules_import_only_from_below():
    height = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    wrong = []
    for path in library():
        here = package_of(named(path))
        if here in ("__init__", "__main__"):  # the public names, and `python -m made`
            continue
        assert here in height, f"made/{here} has no layer: place it in LAYERS and in docs/architecture.md"
        for name in sorted(name for name in imports(path) if name.startswith("made.")):
            there = package_of(name)
            below = there in height and height[there] < height[here]
            if not (below or there == here or (here, there) in SIDEWAYS):
                wrong.append(f"{named(path)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_public_names_do_not_import_the_command_line():
    assert not [name for name in imports(ROOT / "made" / "__init__.py") if name.startswith("made.cli")]


@pytest.mark.parametrize("outside", ["tests", "benchmarks", "examples"])
def test_the_package_imports_nothing_from_beside_it(outside):
    wrong = [f"{named(p)} imports {x}" for p in library() for x in imports(p) if x.split(".")[0] == outside]
    assert not wrong, "\n".join(wrong)


def test_the_documentation_draws_the_same_layers():
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    layers = re.search(r"```layers\n(.*?)```", text, re.S)
    assert layers is not None
    drawn = [tuple(line.split(" | ")) for line in layers[1].strip().splitlines()]
    assert tuple(reversed(drawn)) == LAYERS
    assert all((ROOT / "made" / name / "__init__.py").is_file() for layer in LAYERS for name in layer)


def test_nothing_heavy_is_imported_with_a_module():
    found = {path: imports(path, at_import(parsed(path).body)) for path in library()}
    wrong = [
        f"{named(p)} imports {name}"
        for p, names in found.items()
        for name in names
        if name.split(".")[0] in HEAVY - PLUG_INS.get(named(p), set())
    ]
    assert not wrong, "\n".join(wrong)


def test_importing_made_brings_nothing_heavy():
    code = "import sys, made; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = set(done.stdout.split())
    assert "made.core" in loaded and not loaded & HEAVY


# Sizes and clean text


def test_files_and_functions_stay_readable():
    wrong = []
    for path in library():
        lines = len(path.read_text("utf-8").splitlines())
        wrong += [f"{named(path)} has {lines} lines"] if lines > LONGEST_FILE else []
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                wrong += [f"{named(path)}: {node.name} has {length} lines"] if length > LONGEST_FUNCTION else []
    assert not wrong, "\n".join(wrong)


def test_the_package_has_few_entries():
    entries = [x for x in (ROOT / "made").iterdir() if x.suffix == ".py" or (x / "__init__.py").is_file()]
    assert len(entries) <= MOST_ENTRIES, sorted(x.name for x in entries)


def test_the_package_stays_small():
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in library())
    assert len(library()) <= MOST_FILES and lines <= MOST_LINES, f"{len(library())} files, {lines:,} lines"


def test_a_file_name_stands_for_one_module():
    """A traceback or a search names the file alone, so the name must say which module it is."""
    files = Counter(path.stem for path in library())
    twice = {name for name, n in files.items() if n > 1} - SHARED_NAMES
    assert not twice, sorted(named(path) for path in library() if path.stem in twice)


def defined_names(path: Path) -> set[str]:
    """The functions, classes and arguments that a file defines."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return found


def words_of(name: str) -> set[str]:
    """The words of an identifier, in snake case or camel case."""
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_"))


def test_names_use_the_words_of_the_field():
    wrong = [f"{named(p)}: {name}" for p in library() for name in sorted(defined_names(p)) if words_of(name) & BANNED]
    assert not wrong, "rename these to the term that RL papers and libraries use:\n" + "\n".join(wrong)


def texts() -> dict[str, str]:
    """Every text file that is in the repository or would be with the next commit."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    contents = {name: (ROOT / name).read_bytes() for name in names if (ROOT / name).is_file()}
    return {name: content.decode("utf-8", "replace") for name, content in contents.items() if b"\0" not in content}


@pytest.mark.parametrize("pattern", [MACHINE, REGISTRY], ids=["machine", "registry"])
def test_no_text_speaks_of_a_machine_or_of_where_packages_come_from(pattern):
    files = texts()
    assert len(files) > 50
    wrong = [f"{name}: {found[0]!r}" for name, text in files.items() if (found := pattern.search(text))]
    assert not wrong, "\n".join(wrong)
