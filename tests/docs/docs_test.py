"""README, docs and notebook as a reader meets them: snippets run, commands parse, links lead on, tables are true."""

import dataclasses
import functools
import inspect
import json
import re
import runpy
import shlex
import sys
import textwrap
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import made.bonuses
from made import IMPALA, Count, Space, Spec, Transition, list_bonuses, make, make_bonus
from made.bonuses.embedding import InverseDynamicsEmbedding
from made.bonuses.ngu import Kernel
from made.cli import info, main
from made.cli.train import Train
from made.nets.fit import Fit

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SPAN = re.compile(r"(?<!`)`(made [a-z][^`]*)`")
SHELL = re.compile(r"(made|pip|python3?|pytest|ruff|pyright|mkdocs|git|export|\.) ")  # how a shell block begins
ELSEWHERE = {  # pages whose snippets another test runs, with what it asserts of them
    "docs/extending.md": "tests/docs/examples_test.py",
    "docs/plugins.md": "tests/adapters/plugins_page_test.py",
    "CONTRIBUTING.md": "the form of a docstring, no program",
}
SMALLER = {  # what is run here for less long; a page that no longer says it fails
    "README.md": {
        "MultiRoom-N4-S5-v1": "Empty-5x5-v0",
        '", 32)': '", 4)',
        "FirstVisit(MADE.deep())": "FirstVisit()",
        "n_steps=100, batch_size=400": "n_steps=4, batch_size=16",
        "1_000_000": "16",
        "iterations=600": "iterations=200",
    },
    "docs/index.md": {
        "MultiRoom-N4-S5-v1": "Empty-5x5-v0",
        '", 32)': '", 4)',
        "FirstVisit(MADE.deep())": "FirstVisit()",
        "n_steps=100, batch_size=400": "n_steps=4, batch_size=16",
        "1_000_000": "16",
        "iterations=600": "iterations=200",
    },
    "docs/tutorials/sb3.md": {
        "n_steps=256, batch_size=256": "n_steps=4, batch_size=16",
        "100_000": "16",
        "MultiRoom-N4-S5-v1": "Empty-5x5-v0",
        '", 32)': '", 4)',
        "FirstVisit(MADE.deep())": "FirstVisit()",
        '"n_steps": 100, "batch_size": 400, "n_epochs": 4': '"n_steps": 4, "batch_size": 16, "n_epochs": 1',
        "240_000": "16",
    },
    "docs/training.md": {
        "made.IMPALA()": "made.Uniform()",
        "n_envs=32, unroll=100": "n_envs=2, unroll=4",
        'seeds=4, steps="1M"': 'seeds=1, steps="80"',
    },
    "docs/tutorials/tabular.md": {
        '"iterations": 600': '"iterations": 300',
        "every=200": "every=100",
        "range(10)": "range(4)",
        "* 10,": "* 4,",
    },
}
SKELETON = ["Formula", "Usage", "Options", "Results", "Differences", "Reference"]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, code) of each code block, those in tabs included."""
    return [(language, textwrap.dedent(code)) for _, language, code in FENCE.findall(text)]


def snippets(page: Path) -> list[str]:
    return [text for language, text in blocks(page.read_text("utf-8")) if language == "python"]


def with_snippets(under: str) -> list[str]:
    return [named(p) for p in PAGES if snippets(p) and named(p) not in ELSEWHERE and named(p).startswith(under)]


def played(page: str, folder: Path, monkeypatch) -> dict:
    """The names that the snippets of a page leave behind, run one after the other in one place."""
    monkeypatch.chdir(folder)
    texts = "\n\n".join(snippets(ROOT / page))
    for old, new in SMALLER.get(page, {}).items():
        assert old in texts, f"{page} no longer says {old!r}"
        texts = texts.replace(old, new)
    space: dict = {"__name__": "snippet"}
    exec(compile(texts, page, "exec"), space)
    return space


# Snippets


def test_every_page_with_snippets_is_run():
    """Or another test runs it: one that names the page."""
    for page, where in ELSEWHERE.items():
        if where.startswith("tests/"):
            assert f'"{Path(page).name}"' in (ROOT / where).read_text("utf-8")
    run = {
        "README.md",
        "docs/index.md",
        "docs/control.md",
        "docs/grids.md",
        "docs/training.md",
        *with_snippets("docs/tutorials/"),
        *with_snippets("docs/bonuses/"),
    }
    assert set(with_snippets("")) == run


@pytest.mark.filterwarnings("ignore:You are trying to run PPO on the GPU:UserWarning")
def test_the_readme_s_snippets_run(tmp_path, monkeypatch, capsys):
    space = played("README.md", tmp_path, monkeypatch)
    assert space["venv"].num_envs == 4
    returns = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(returns) == 4 and all(-0.1 < one <= 1 for one in returns)


@pytest.mark.filterwarnings("ignore:You are trying to run PPO on the GPU:UserWarning")
def test_the_snippets_of_the_landing_page_run(tmp_path, monkeypatch, capsys):
    space = played("docs/index.md", tmp_path, monkeypatch)
    assert space["intrinsic"].shape == (128, 8) and (space["intrinsic"] > 0).all()
    assert len(json.loads(capsys.readouterr().out.splitlines()[-1])) == 4


def test_the_snippets_on_grids_run(tmp_path, monkeypatch):
    space = played("docs/grids.md", tmp_path, monkeypatch)
    assert space["obs"]["image"].shape == (7, 7, 3) and space["envs"].num_envs == 64


@pytest.mark.filterwarnings("ignore:You are trying to run PPO on the GPU:UserWarning")
@pytest.mark.parametrize("page", with_snippets("docs/tutorials/"))
def test_a_tutorial_s_snippets_run(page, tmp_path, monkeypatch, capsys):
    space = played(page, tmp_path, monkeypatch)
    out = capsys.readouterr().out
    if page.endswith("tabular.md"):
        last = {line.split()[0]: float(line.strip(" ]").split()[-1]) for line in out.splitlines()[:3]}
        assert set(last) == {"1/sqrt(N)", "Bernstein", "MADE"} and last["Bernstein"] > last["1/sqrt(N)"]
        assert space["record"].arrays["visits"].shape[0] == 3
    if page.endswith("own-bonus.md"):
        bonuses = [float(x) for x in re.findall(r"\[(\S+) \S+\]\n", out)]
        assert bonuses == pytest.approx([2.7726, 2.1401], abs=1e-3)  # log 16 and log(17 / 2), as the page says
        last = {name: curve[-1] for name, curve in space["curves"].items()}
        assert last["MADE(Surprise)"] > last["Surprise"] > last["no bonus"]
    if page.endswith("sb3.md"):
        assert (tmp_path / "bonus.safetensors").stat().st_size > 100


@pytest.mark.parametrize("page", with_snippets("docs/bonuses/"))
def test_the_snippets_of_a_bonus_s_page_make_a_run(page, tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(made, "train", lambda run, **options: trained.append(run))
    run = played(page, tmp_path, monkeypatch)["run"]
    assert trained == [run] or page.endswith("count.md")
    spec = run.env.spec._replace(goal=run.bonus.memory.goal(run.env.spec))
    assert run.bonus.memory.blank(spec) is not None


def test_the_snippets_on_control_run(tmp_path, monkeypatch):
    env = played("docs/control.md", tmp_path, monkeypatch)["env"]
    assert env.reset(seed=0)[0].ndim == 1


def test_the_snippets_on_training_run(tmp_path, monkeypatch):
    space = played("docs/training.md", tmp_path, monkeypatch)
    assert space["run"].update == 10 and space["action"].shape == ()


def test_the_notebook_runs_from_top_to_bottom(monkeypatch, capsys):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "show", lambda: None)
    cells = json.loads((ROOT / "notebooks" / "first_steps.ipynb").read_text("utf-8"))["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert "EPISODES, SEEDS = 600, 10" in codes[0]
    codes[0] = codes[0].replace("EPISODES, SEEDS = 600, 10", "EPISODES, SEEDS = 200, 4")
    space: dict = {"__name__": "notebook"}
    for i, code in enumerate(codes):
        exec(compile(code, f"first_steps.ipynb, cell {i}", "exec"), space)
    first, last = map(float, re.search(r"first ten steps (\S+), last ten ([\d.]+)", capsys.readouterr().out).groups())  # type: ignore[union-attr]
    assert first > 1.5 * last and plt.get_fignums()
    assert not any(cell.get("outputs") for cell in cells), "a notebook is stored without its outputs"
    plt.close("all")


# Commands


def commands(page: Path) -> tuple[set[str], set[str]]:
    """The commands of `made` on a page: those given to be typed, and those that running text mentions."""
    text = page.read_text("utf-8")
    plain = FENCE.sub("", text)
    mentioned = {re.sub(r"\s+", " ", span) for span in SPAN.findall(plain)}
    shell = [block.replace("\\\n", " ") for language, block in blocks(text) if language in ("", "bash")]
    lines = [line for block in shell for line in block.splitlines()]
    lines += re.findall(r"^    (made [a-z].*)", plain, re.M)
    parts = [part.strip() for line in lines for part in re.split(r"&&|;", re.split(r"\s#", line.strip())[0])]
    typed = {part for part in parts if part.startswith("made ")}
    return (typed | mentioned, set()) if page.name == "README.md" else (typed, mentioned - typed)


def all_commands(mentioned: bool) -> list[str]:
    return sorted(set().union(*(commands(page)[mentioned] for page in PAGES)))


def shell_lines(text: str) -> list[str]:
    """The lines of the shell blocks of a page: those marked as such, and unmarked ones that begin with a command."""
    plain = [(language, block) for language, block in blocks(text) if language in ("", "bash", "sh", "console")]
    shell = [block for language, block in plain if language or SHELL.match(block)]
    return [line for block in shell for line in block.splitlines()]


def prose_in(line: str) -> bool:
    """Whether words in a column of their own follow a command without `#` before them: a shell would run them."""
    return re.search(r"\S\s{2,}[^\s#]", re.split(r"(?:^|\s)#", line)[0]) is not None


def test_comments_in_shell_blocks_begin_with_a_hash():
    lines = {named(page): shell_lines(page.read_text("utf-8")) for page in PAGES}
    assert sum(map(len, lines.values())) > 60
    wrong = [f"{page}: {line}" for page, ones in lines.items() for line in ones if prose_in(line)]
    assert not wrong, "put # before:\n" + "\n".join(wrong)


def test_prose_after_a_command_is_noticed():
    page = "```\nmade list      every check\nmade doctor   # says  why\n```\n```python\nx = 1   # y\n```\n"
    assert [prose_in(line) for line in shell_lines(page)] == [True, False]
    assert prose_in("made x --only a  b") and not any(map(prose_in, ("  made x", "# a  b", "made list")))


def test_commands_are_found():
    assert len(all_commands(False)) > 40 and len(all_commands(True)) > 20
    assert {"made demo", "made train", "made run chain --scale smoke"} <= set(all_commands(False))


@pytest.mark.parametrize("text", all_commands(False))
def test_a_command_of_the_documentation_is_understood(text, known, monkeypatch):
    """Options by their names, experiments, bonuses, agents and tasks by theirs; nothing is run."""
    own = types.ModuleType("mypackage.mymodule")  # what extending.md calls a package of one's own
    vars(own).update(MyBonus=Count, MyAgent=IMPALA, MyEnv=functools.partial(make, "DoorKey-5x5"))
    monkeypatch.setitem(sys.modules, "mypackage", types.ModuleType("mypackage"))
    monkeypatch.setitem(sys.modules, own.__name__, own)
    command = main.parse(shlex.split(text)[1:])
    if isinstance(command, Train):
        plan = command.plan()
        assert plan.run.iterations * plan.frames_per_update >= 30_000
    if experiment := getattr(command, "experiment", None):
        assert experiment in {*known["experiments"], "deepsea"}  # which a recipe of extending.md adds


@pytest.mark.parametrize("text", all_commands(True))
def test_a_command_that_is_mentioned_exists_and_has_such_options(text):
    words = text.split()
    command = {one.__name__.lower(): one for one in main.COMMANDS}[words[1]]
    options = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(command)} | {"--help"}
    assert {word for word in words if word.startswith("--")} <= options


@pytest.fixture(scope="module")
def known() -> dict[str, list[str]]:
    """Kind -> names, as `made list` has them."""
    return {kind: list(entries) for kind, entries in info.everything().items()}


def _printed(capsys, *words: str) -> str:
    capsys.readouterr()
    assert main.main(list(words)) == 0
    return capsys.readouterr().out


def test_the_first_minutes_do_what_the_pages_say(tmp_path, monkeypatch, capsys):
    """The tutorial on sweeps, begun; and the verdicts on MiniGrid from the recorded runs."""
    monkeypatch.chdir(tmp_path)
    assert "claim" in _printed(capsys, "run", "chain", "--scale", "smoke")
    assert "claims:" in _printed(capsys, "check", "chain")
    drawn = _printed(capsys, "figure", "chain").split()
    assert drawn and all((tmp_path / path).stat().st_size > 5000 for path in drawn)
    assert "20 faster-than-bebold" in _printed(capsys, "check", "minigrid", "--out", str(ROOT / "results" / "minigrid"))


# Links, tables, the site


def anchors(page: Path) -> set[str]:
    """The names of a page's headings in links, as code hosts and the site make them."""
    heads = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text("utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def texts_with_links() -> list[tuple[Path, str]]:
    cells = json.loads((ROOT / "notebooks" / "first_steps.ipynb").read_text("utf-8"))["cells"]
    notes = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    pages = [(page, FENCE.sub("", page.read_text("utf-8"))) for page in PAGES]
    return [*pages, (ROOT / "notebooks" / "first_steps.ipynb", notes)]


def test_every_link_leads_somewhere():
    dead, seen = [], 0
    for page, text in texts_with_links():
        for target in LINK.findall(text):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            file, seen = (page.parent / path).resolve() if path else page, seen + 1
            if not file.exists() or (anchor and anchor not in anchors(file)):
                dead.append(f"{named(page)}: {target}")
    assert seen > 100 and not dead, "\n".join(dead)


def bonus_pages() -> list[str]:
    return [named(p) for p in sorted((ROOT / "docs" / "bonuses").glob("*.md")) if p.stem not in ("index", "densities")]


@pytest.mark.parametrize("page", bonus_pages())
def test_a_bonus_s_page_has_the_skeleton_and_true_settings(page):
    text = (ROOT / page).read_text("utf-8")
    assert re.findall(r"^## (.*)$", FENCE.sub("", text), re.M) == SKELETON
    space = {**vars(made.bonuses), "Fit": Fit, "InverseDynamicsEmbedding": InverseDynamicsEmbedding, "Kernel": Kernel}
    told: dict[str, dict[str, str]] = {}
    for head, rows in re.findall(r"^\| (`?\w*`?) ?\| default \|.*\n\|.*\n((?:\|.*\n)+)", text, re.M):
        for name, default in re.findall(r"^\| `([\w.]+)` \| (?:`(.*?)`)? ?\|", rows, re.M):
            owner, _, field = name.rpartition(".")
            told.setdefault(owner or head.strip("`"), {})[field] = default
    assert told, "no settings"
    for owner, fields in told.items():
        real = defaults(space[owner])
        assert set(fields) == set(real) - ({"bonus"} if page.endswith("combine.md") else set()), owner
        for field, default in fields.items():
            if default:
                assert eval(default, dict(space)) == real[field], f"{owner}.{field}"


def defaults(thing) -> dict:
    """Setting -> default, but for an episodic memory that remembers nothing."""
    if not isinstance(thing, type):
        return {name: p.default for name, p in inspect.signature(thing).parameters.items()}
    own = {field.name: field.default for field in dataclasses.fields(thing)}
    return {name: value for name, value in own.items() if type(value).__name__ != "NoMemory"}


def test_every_bonus_has_a_page():
    text = (ROOT / "docs" / "bonuses" / "index.md").read_text("utf-8")
    assert set(re.findall(r"`([a-z0-9-]+)`(?=[,| ])", text)) >= set(list_bonuses("on_policy", installed=False))
    linked = {f"docs/bonuses/{name}" for name in LINK.findall(text) if "/" not in name}
    assert set(bonus_pages()) <= linked


@pytest.mark.parametrize("page", bonus_pages())
def test_maps_of_bonuses_have_the_recorded_correlations(page):
    record = json.loads((ROOT / "results" / "bonus_maps.json").read_text("utf-8"))
    shown = re.findall(
        r"`([\w-]+)`(?: bonus per cell)?; rank correlation (-?[\d.]+)\.\*", (ROOT / page).read_text("utf-8")
    )
    assert shown or page.endswith("count.md")
    for name, correlation in shown:
        assert correlation == f"{record[name]['rank_correlation_of_bonus_with_visits']:.2f}", name


def test_returns_on_doorkey_are_recorded():
    runs = json.loads((ROOT / "results" / "train" / "doorkey.json").read_text("utf-8"))
    last = {name: [returns[-1][1] for returns in run["returns"].values()] for name, run in runs.items()}
    shown = {name: f"{sum(x) / len(x):.2f} ({min(x):.2f} to {max(x):.2f}" for name, x in last.items()}
    for name in set(runs) - {"none", "first-visit"}:
        text = " ".join((ROOT / "docs" / "bonuses" / f"{name}.md").read_text("utf-8").split())
        text = text.replace(" after 400,000 frames", "")
        assert all(shown[one] in text for one in (name, "none", "first-visit")), name


def test_the_tutorial_s_runs_of_ppo_are_recorded():
    runs = json.loads((ROOT / "results" / "train" / "keycorridor.json").read_text("utf-8"))
    text = " ".join((ROOT / "docs" / "tutorials" / "grids.md").read_text("utf-8").split())
    for name, bonus in (("rnd", "first-visit RND the return passes 0.5"), ("made-counts", "first-visit MADE")):
        curves = runs[name]["returns"].values()
        solved = [next((frames / 1e6 for frames, x in curve if x > 0.5), None) for curve in curves]
        at = [frames for frames in solved if frames is not None]
        said = re.search(rf"{bonus}[^,;]* in (\d) of (\d)[^,]*, after ([\d.]+) to ([\d.]+) million", text)
        assert said and said.groups() == (str(len(at)), str(len(solved)), f"{min(at):.1f}", f"{max(at):.1f}"), name
    assert "{:.0f} and {:.0f} seconds".format(*(runs[name]["seconds"] for name in ("rnd", "made-counts"))) in text
    words = {*runs["rnd"]["command"].split()} - {"--no-video", "--eval-every"}  # they change no return
    assert words <= {*text.split()}, words - {*text.split()}


def test_readme_numbers_are_recorded():
    front = runpy.run_path(str(ROOT / "docs" / "build_front.py"))
    text = (ROOT / "README.md").read_text("utf-8")
    part = text.split("<!-- speeds -->")[1].split("<!-- /speeds -->")[0]
    assert part.strip() == front["speeds"]().strip(), "run: python docs/build_front.py"
    assert "EnvPool" in part and part.count("\n| ") == 6 + 1
    sections = json.loads((ROOT / "results" / "report" / "report.json").read_text("utf-8"))["sections"]
    verdicts = {one["claim"]: one["holds"] for section in sections for one in section["claims"] if one["observed"]}
    counts = [sum(holds is verdict for holds in verdicts.values()) for verdict in (True, False, None)]
    found = re.search(r"Of (\d+) claims of the paper, (\d+) hold, (\d+) do not, and (\d+) are open", text)
    assert found and [int(n) for n in found.groups()] == [len(verdicts), *counts]


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120


def test_bonus_table_is_what_the_code_accepts():
    text = (ROOT / "docs" / "choose.md").read_text("utf-8")
    rows = re.findall(r"^\| (.*`.*) \| (any|one integer) \| (any|discrete) \| (.*) \|$", text, re.M)
    shown = {name: cells for first, *cells in rows for name in re.findall(r"`([\w-]+)`", first)}
    assert shown == {name: capabilities(name) for name in list_bonuses(installed=False)}


OBSERVATIONS = [Space((), int, 5), Space((7, 7, 3), "uint8", 11), Space((6,), float)]
DISCRETE, CONTINUOUS = Space((), int, 4), Space((2,), float, low=-1.0, high=1.0)


def capabilities(name: str) -> list[str]:
    """The cells of a bonus in the table: observations, actions and agents that it works with."""
    settings = [one for one in ("on_policy", "off_policy", "dreamer") if name in list_bonuses(one, installed=False)]
    bonus = make_bonus(name, settings[0])
    agents = []
    if "on_policy" in settings:
        agents += ["planners"] if set(bonus.reads) <= {"obs", "action", "value"} else []
        agents += ["Q-learning" if "value" in bonus.reads else "rollouts"]
    agents += [{"off_policy": "SAC and RAD", "dreamer": "Dreamer"}[one] for one in settings if one != "on_policy"]
    observations = [accepts(bonus, obs, DISCRETE) for obs in OBSERVATIONS]
    assert observations in ([True] * 3, [True, False, False])
    actions = "any" if accepts(bonus, OBSERVATIONS[-1], CONTINUOUS) else "discrete"
    return ["any" if all(observations) else "one integer", actions, ", ".join(agents)]


def accepts(bonus: made.Bonus, obs: Space, action: Space) -> bool:
    spec = Spec(obs, action, bonus.memory.goal(Spec(obs, action, horizon=100)), 100)

    def use(key):
        state = bonus.init(key, spec)
        steps = {field: jnp.zeros((4, 2, *space.shape), space.dtype) for field, space in (("o", obs), ("a", action))}
        _, note = bonus.memory.remember(state, bonus.memory.blank(spec), steps["o"][0, 0], key)
        note = jax.tree.map(lambda x: jnp.broadcast_to(x, (4, 2, *jnp.shape(x))), note)
        ended = jnp.zeros((4, 2), bool)
        batch = Transition(steps["o"], steps["a"], jnp.zeros((4, 2)), steps["o"], ended, ended, note, note)
        state, _ = bonus.update(state, batch, key)
        return bonus.reward(state, batch, value=jnp.zeros(5))

    try:
        jax.eval_shape(use, jax.random.key(0))
    except ValueError:
        return False
    return True


def test_the_site_has_every_page():
    listed = set(re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M))
    assert listed == {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
