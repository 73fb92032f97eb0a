"""No file and no word on the command line can run code, reach other files or open a port; pages show text as text."""

import ast
import contextlib
import hashlib
import json
import os
import socket
import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import save

from examples import curves
from made.cli import experiments, main
from made.experiments import plots
from made.experiments.report import Figure, Section, collect
from made.experiments.report.page import render
from made.experiments.store import Job, Scale, Store
from made.experiments.types import Effect
from made.training import checkpoint, checkpoint_file, run_dir, sharding, video
from made.training.loggers import JSONL
from made.training.paths import require_file
from tests.reliability.processes import listening

ROOT = Path(__file__).resolve().parents[2] / "made"
RUNS_CODE = {"eval", "exec", "compile", "__import__", "execfile"}
UNSAFE = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "yaml"}
SERVERS = {"socketserver", "http.server", "xmlrpc", "wsgiref", "asyncio"}
WRITES = {"write_text", "write_bytes", "touch", "copyfile"}
OWN_FOLDERS = ("core/safe_files.py",)  # the one place that opens files for writing
# Names that are checked against a list first, given by the user, or those of the package's own files.
OWN_NAMES = {"training/loggers.py": "library", "experiments/__init__.py": "module.name"}
OWN_NAMES |= {"core/config.py": "module", "core/plugins.py": "module_name"}


def calls(tree: ast.AST) -> list[tuple[str, ast.Call]]:
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [(ast.unparse(node.func), node) for node in found]


def faults(path: str, source: str) -> list[str]:
    """Whatever in a file could turn data into code, or open a port."""
    tree, wrong = ast.parse(source), []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        wrong += [f"{path} imports {x}" for x in names if x.split(".")[0] in UNSAFE or x in SERVERS]
    for name, node in calls(tree):
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        last = name.rsplit(".", 1)[-1]
        if name in RUNS_CODE or name in ("os.system", "os.popen", "builtins.eval", "torch.load"):
            wrong.append(f"{path} calls {name}")
        if given.get("shell") == "True" or given.get("allow_pickle") == "True":
            wrong.append(f"{path} calls {name} with {given}")
        if last == "load" and name.startswith(("np.", "numpy.")) and given.get("allow_pickle") != "False":
            wrong.append(f"{path} calls {name} without allow_pickle=False")
        if last == "import_module" and not isinstance(node.args[0], ast.Constant):
            own = OWN_NAMES.get(path)
            wrong += [] if own and own in ast.unparse(node.args[0]) else [f"{path} imports by a name that is not fixed"]
        mode = given.get("mode") or (ast.unparse(node.args[-1]) if node.args else "")
        opens = last == "open" and mode.strip("'\"")[:1] in ("w", "a", "x") and len(mode) < 8
        saves = last == "savefig" and not any(word in ast.unparse(node) for word in ("BytesIO", "buffer"))
        if (opens or last in WRITES or saves) and not path.startswith(OWN_FOLDERS):
            wrong.append(f"{path} calls {name}, which follows links: use made.core.safe_files")
        binds = last == "bind" and not name.startswith("inspect.signature(")
        if binds or last in ("listen", "create_server", "start_server"):
            wrong.append(f"{path} calls {name}")
    return wrong


def test_no_file_of_the_library_turns_data_into_code_or_listens():
    files = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in sorted(ROOT.rglob("*.py"))}
    assert len(files) > 100
    assert not [fault for path, source in files.items() for fault in faults(path, source)]


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from yaml import load",
        "eval(text)",
        "__import__(name)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "torch.load(path)",
        "subprocess.run(words, shell=True)",
        "importlib.import_module(config['class'])",
        "server.bind(('', 80))",
        "import http.server",
        "open(path, 'w')",
        "path.open(mode='ab')",
        "path.write_text(text)",
    ],
)
def test_the_search_for_faults_finds_them(source):
    assert faults("x.py", source)


class Watcher:
    """Hears from Python itself what is opened, run, started or reached; it cannot be taken back, only be deaf."""

    TOLD = ("exec", "pickle.find_class", "os.system", "subprocess.Popen", "socket.connect", "socket.bind", "os.exec")

    def __init__(self):
        self.events, self.on = [], False
        sys.addaudithook(self.hear)

    def hear(self, event, args):
        if self.on and (event in self.TOLD or event == "open"):
            self.events.append((event, str(args[0]) if args else ""))

    @contextlib.contextmanager
    def listening(self):
        self.events, self.on = [], True
        try:
            yield self
        finally:
            self.on = False


@pytest.fixture(scope="module")
def watcher():
    return Watcher()


class Payload:
    def __reduce__(self):
        return os.system, ("touch ran",)


def hostile() -> dict[str, bytes]:
    """What an attacker would put in the place of a file."""
    import pickle

    pickled, text = pickle.dumps(Payload()), "__import__('os').system('touch ran')"
    header = json.dumps({"__metadata__": {"made": text}}).encode()
    return {
        "a pickle": pickled,
        "a pickle in safetensors": len(pickled).to_bytes(8, "little") + pickled,
        "code as a manifest": len(header).to_bytes(8, "little") + header,
        "code": f"#!/usr/bin/env python\n{text}\n".encode(),
        "JSON with a class": json.dumps({"py/reduce": [text], "class": "os.system", "format": 1}).encode(),
    }


@pytest.mark.parametrize("kind", list(hostile()))
def test_a_hostile_file_is_refused_and_runs_nothing(kind, tmp_path, watcher, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = hostile()[kind]
    kept, out = tmp_path / "run" / run_dir.CHECKPOINTS, tmp_path / "run"
    kept.mkdir(parents=True)
    for path in (tmp_path / "bonus", kept / "000000007.safetensors", out / run_dir.RUN, out / run_dir.METRICS):
        path.write_bytes(content)
    with watcher.listening():
        with pytest.raises(ValueError, match=r"not a whole|not written by made"):
            checkpoint_file.load(tmp_path / "bonus")
        with pytest.warns(UserWarning, match="000000007"):
            assert checkpoint.newest(kept) is None
        with pytest.raises(ValueError, match="damaged"):
            run_dir.read_run(out, {"bonus_coef": 1})
        assert run_dir.truncate_metrics(out / run_dir.METRICS, 100) == []
    assert not [event for event in watcher.events if event[0] != "open"] and not (tmp_path / "ran").exists()


def test_the_watcher_hears_a_pickle(tmp_path, watcher, monkeypatch):
    import pickle

    monkeypatch.chdir(tmp_path)
    with watcher.listening():
        pickle.loads(pickle.dumps(Payload()))
    assert (tmp_path / "ran").exists() and {event for event, _ in watcher.events} >= {"os.system"}


def written_video(at):
    return video.save_video([np.zeros((4, 4, 3), np.uint8)] * 2, at)


def written_map(at):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(video, "visits", lambda grid, played: None)
        patch.setattr(video, "visit_map", lambda grid, state, counts: np.zeros((4, 4, 3), np.uint8))
        return video.save_map(None, video.RecordedEpisode((), None, None, None), at)  # type: ignore[arg-type]


def written_dreams(at):
    told = video.Prediction(*np.zeros((3, 2)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(video, "has_model", lambda run: True)
        patch.setattr(video, "_predictions", lambda plan, state: [(0, None, told)])
        return video.record_dreams(types.SimpleNamespace(run=None, seeds=(0,)), None, at.parent)  # type: ignore[arg-type]


def written_marker(at):
    (victim := at.parent.parent / "victim").unlink()  # a mark that a link leads to is a mark; without it, one is made
    at.unlink()
    store = Store(at.parent)
    at.symlink_to(victim)
    store.unfinished("lock", "ab12-s0")


def written_figure(at):
    return plots.save(plots.figure(1, 1)[0], at.with_suffix(""))


def written_markdown(at):
    return experiments._print_paths(collect.Report(at.parent / "index.html", [], []), at)


def written_copy(at):
    (other := at.parent / "other").mkdir()
    (other / at.name).write_bytes(b"a figure")
    return collect._copied(Section("x", "x", figures=[Figure(other / at.name, "", "")]), at.parent)


REPLACED = {
    "run.json": ("run.json", lambda at: run_dir.write_run(at.parent, {"sessions": []})),
    "rows that are cut back": ("metrics.jsonl", lambda at: run_dir.truncate_metrics(at, -1)),
    "a checkpoint": (
        "000000007.safetensors",
        lambda at: checkpoint.save(at.parent, {"x": np.zeros(3)}, {}, 7, 0.0),
    ),
    "a bonus": ("bonus.safetensors", lambda at: checkpoint_file.save(at, {"x": np.zeros(3)}, {}, overwrite=True)),
    "a video": ("video-seed0.gif", written_video),
    "a map of visits": ("visits-seed0.png", written_map),
    "returns of dreams": ("dreams.csv", written_dreams),
    "the mark of a store": ("made-store.json", written_marker),
    "a figure as PNG": ("lock.png", written_figure),
    "a figure as SVG": ("lock.svg", written_figure),
    "the page of a report": ("index.html", lambda at: collect.write(at, [])),
    "the verdicts of a report": ("claims.json", lambda at: collect._written([], at.parent, {}, [])),  # type: ignore[arg-type]
    "a figure of an earlier report": ("lock.png", written_copy),
    "a report as Markdown": ("results.md", written_markdown),
    "recorded curves": ("curves.json", lambda at: curves.record(at, {}, 0.0)),
}


@pytest.mark.parametrize("kind", REPLACED)
def test_a_link_in_the_place_of_a_file_is_replaced_and_never_followed(kind, tmp_path):
    name, write = REPLACED[kind]
    (victim := tmp_path / "victim").write_text('{"update": 1}\n')
    at = tmp_path / "out" / name
    at.parent.mkdir(parents=True)
    at.symlink_to(victim)
    write(at)
    assert not at.is_symlink() and (kind == "the mark of a store" or victim.read_text() == '{"update": 1}\n')
    assert kind != "the mark of a store" or not victim.exists()


KEPT_OPEN = {
    "the lock of a run": (run_dir.LOCK, lambda at: run_dir.lock_run_dir(at.parent).__enter__()),
    "rows": (run_dir.METRICS, JSONL),
}


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("kind", KEPT_OPEN)
def test_a_link_in_the_place_of_a_file_that_stays_open_is_refused(kind, there, tmp_path):
    name, open_it = KEPT_OPEN[kind]
    victim = tmp_path / "victim"
    if there:
        victim.write_text("years of work")
    (at := tmp_path / "out" / name).parent.mkdir()
    at.symlink_to(victim)
    with pytest.raises(ValueError, match=rf"^{at} is a symbolic link, .* remove it, or choose another place\.$"):
        open_it(at)
    assert victim.exists() == there and at.is_symlink()
    assert not there or victim.read_text() == "years of work"


def test_the_lock_of_compiled_programs_follows_no_link_and_stops_nobody(tmp_path, monkeypatch):
    (victim := tmp_path / "victim").write_text("years of work")
    (tmp_path / ".compiling").symlink_to(victim)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    try:
        with sharding.compile_lock():
            assert victim.read_text() == "years of work"
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_a_lock_that_is_there_keeps_its_content(tmp_path):
    (tmp_path / run_dir.LOCK).write_text("whoever made it")
    with run_dir.lock_run_dir(tmp_path):
        assert (tmp_path / run_dir.LOCK).read_text() == "whoever made it"


def test_a_training_run_does_not_empty_what_its_lock_links_to(tmp_path, capsys):
    (victim := tmp_path / "victim").write_text("years of work")
    (out := tmp_path / "out").mkdir()
    (out / run_dir.LOCK).symlink_to(victim)
    asked = ["train", "--env", "lock-H5", "--agent", "q-learning", "--bonus", "none", "--steps", "3200"]
    assert main.main([*asked, "--out", str(out)]) == 2
    assert "is a symbolic link" in capsys.readouterr().err and victim.read_text() == "years of work"


def test_a_look_at_a_place_for_a_file_makes_nothing_where_a_link_leads(tmp_path):
    """The file will be put in the place of the link."""
    (at := tmp_path / "out.json").symlink_to(tmp_path / "victim")
    require_file(at, "--out")
    assert at.is_symlink() and not (tmp_path / "victim").exists() and len(list(tmp_path.iterdir())) == 1


def test_a_results_folder_leads_nowhere_else(tmp_path, watcher):
    secret = tmp_path / "secret.txt"
    secret.write_text("not for you")
    store, job = Store(tmp_path / "runs"), Job("lock", "vi/made", 0, Scale.SMOKE)
    at = store.write(job, "ab12", {}, {"step": [0], "return": [1.0]})
    run = json.loads((at / "run.json").read_text())
    digest = hashlib.sha256(secret.read_bytes()).hexdigest()
    hostile_files = {
        "../../../../../secret.txt": digest,
        str(secret): digest,
        "metrics.csv": run["files"]["metrics.csv"],
    }
    (at / "run.json").write_text(json.dumps({**run, "files": hostile_files, "label": "vi/made"}))
    with watcher.listening():
        assert store.has(job, "ab12"), "names that it does not know are not looked at"
    assert not [path for event, path in watcher.events if "secret" in path or event != "open"]
    for label in ("../../../x", "/etc/passwd", "..", "a/../../b"):
        made = store.write(job._replace(label=label), "ab12", {}, {"step": [0], "return": [1.0]})
        assert (tmp_path / "runs") in made.resolve().parents, label
    for name in ("../x", "/x", "..", "a/b", ""):
        with pytest.raises(ValueError, match="cannot be an experiment"):
            store.write(job._replace(experiment=name), "ab12", {}, {"step": [0]})


def test_arrays_of_a_results_folder_that_lie_are_named_and_skipped(tmp_path, watcher):
    store, job = Store(tmp_path / "runs"), Job("lock", "vi/made", 0, Scale.SMOKE)
    at = store.write(job, "ab12", {}, {"step": [0], "return": [1.0]}, {"step": [0], "visits": np.ones((1, 2))})
    run = json.loads((at / "run.json").read_text())
    lies = {"x": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 2**62]}}
    told = json.dumps(lies).encode()
    whole = save({"step": np.array([0]), "visits": np.ones((9, 2))})
    bad = [content for kind, content in hostile().items() if kind != "code as a manifest"]  # which says nothing here
    contents = [*bad, len(told).to_bytes(8, "little") + told + b"0000", whole]
    for content in contents:
        (at / "arrays.safetensors").write_bytes(content)
        run["files"]["arrays.safetensors"] = hashlib.sha256(content).hexdigest()  # which is right; the rest is not
        (at / "run.json").write_text(json.dumps(run))
        store.problems.clear()
        with watcher.listening():
            assert not store.has(job, "ab12") and len(store.problems) == 1
        assert not [event for event in watcher.events if event[0] != "open"]


@pytest.mark.parametrize(
    "setting",
    [
        "agent.discount=__import__('os').system('touch ran')",
        "agent.__class__=os.system",
        "__class__.__init__=0",
        "agent.layout.memory=__import__('os').system('touch ran')",
        "bonus_coef.value=(lambda: 0)()",
        "bonus.cover.fit=Fit(1)",
        "env.maker.size=open('ran','w')",
        "agent.discount=" + "(" * 500,
        "agent.discount=" + "9" * 5000,
        "agent.\0=1",
        "agent.discount=1\n--seeds=9",
    ],
)
def test_a_setting_is_never_run(setting, tmp_path, watcher, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    asked = ["train", "--env", "DoorKey-5x5", "--agent", "impala", "--bonus", "made", "--out", str(tmp_path / "file")]
    main.main(asked)  # whatever is imported by the way is imported now
    capsys.readouterr()
    with watcher.listening():
        status = main.main([*asked, "--set", setting])
    said = capsys.readouterr().err.strip().splitlines()
    assert status == 2 and len(said) == 1 and said[0].startswith("made: ")
    assert not (tmp_path / "ran").exists() and not [e for e in watcher.events if e[0] not in ("open", "exec")]


def test_a_report_shows_hostile_text_as_text():
    bad = "</script><script>alert('x')</script><img src=x onerror=alert(1)>\"'"
    claim = {"claim": 8, "text": bad, "name": bad, "where": bad, "holds": True, "observed": bad, "scale": bad}
    claim |= {"seeds": 3, "command": bad, "effects": [Effect(bad, 1.0, unit=bad).to_dict()], "missing": [bad]}
    section = Section(
        bad,
        bad,
        intro=bad,
        claims=[claim],
        tables=[(bad, (bad, bad), [(bad, 1.0)])],
        settings={bad: {"class": bad, bad: bad}, "other": {"class": "y"}},
        provenance={bad: bad, "device": bad, "started": bad},
    )
    page = render([section])
    assert "alert(" in page, "it is shown"
    for raw in ("</script><script>alert", "<script>alert", "<img src=x", "onerror=alert(1)>"):
        assert raw not in page
    assert "Content-Security-Policy" in page and "default-src 'none'" in page


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="only Linux tells who listens")
def test_nothing_listens_on_a_network_beside_environments_in_processes():
    pytest.importorskip("dm_control", reason="needs dm_control: pip install -e '.[control]'")
    from made.envs.control.tasks import Control
    from made.envs.control.worker_pool import WorkerPool

    before = listening("self")
    with socket.create_server(("127.0.0.1", 0)):
        assert len(listening("self")) == len(before) + 1, "the test sees who listens"
    with WorkerPool(Control("pendulum_swingup", pixels=False), (0,)) as workers:
        workers.reset((0,))
        pids = [process.pid for process in workers._processes]
        assert pids and listening("self") == before and not any(map(listening, pids))
