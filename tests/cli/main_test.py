"""The command line: what it prints, how it fails, that an interrupted run loses nothing."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import jax
import pytest

import made
from made.cli import experiments, info, main
from made.experiments import experiment, plots, runner, scheduler
from made.experiments.executors import Options
from made.experiments.report.collect import Report
from made.experiments.store import Scale, Store, locking
from made.experiments.types import ClaimResult


def call(capsys, *words: str) -> tuple[int, str, str]:
    code = main.main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A store with the smallest experiment in it, made by the command itself."""
    folder = tmp_path_factory.mktemp("cli")
    assert main.main(["run", "objective", "--scale", "smoke", "--out", str(folder / "runs")]) == 0
    return folder


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_the_overview_names_every_command_and_fits_on_a_screen(capsys, words):
    code, out, _ = call(capsys, *words)
    assert code == 0 and all(f"  made {command.__name__.lower()}" in out for command in main.COMMANDS)
    assert len(out.splitlines()) <= 30 and max(map(len, out.splitlines())) <= 100


def test_list_names_everything_by_kind(capsys):
    code, out, _ = call(capsys, "list", "--json")
    kinds = json.loads(out)
    assert code == 0
    assert kinds["experiments"] == [
        "objective",
        "convergence",
        "lock",
        "lock_bonuses",
        "lock_heatmap",
        "chain",
        "minigrid",
        "sample_size",
        "dmc",
        "dmc_buffer",
        "dmc_dreamer",
        "density",
        "minigrid_density",
        "minigrid_precision",
        "minigrid_search",
        "dmc_search",
    ]
    assert {"made-tabular", "bernstein"} <= set(kinds["bonuses"]) and "value-iteration" in kinds["agents"]
    assert {"rad", "sac", "dreamer", "impala"} <= set(kinds["agents"]) and "hopper_hop" in kinds["control"]
    assert "lock" in kinds["tasks"] and "benchmarks" not in kinds
    told = call(capsys, "list")[1]
    assert "hoeffding" in told and re.search(r"^  sac +soft actor-critic; control from states", told, re.M)
    assert max(map(len, told.splitlines())) <= 110
    assert all(set(kinds[kind]) == set(lines) for kind, lines in info.ABOUT.items()), "a hand-written line for each"


def test_check_prints_every_claim_in_a_stable_form(capsys, recorded):
    code, out, _ = call(capsys, "check", "--json", "--out", str(recorded / "runs"))
    rows = json.loads(out)
    assert code == 0 and [row["claim"] for row in rows] == [*range(1, 39)]
    fields = ["claim", "name", "where", "holds", "observed", "scale", "seeds", "command", "effects", "missing", "note"]
    assert all(list(row) == fields for row in rows)
    assert [one["name"] for one in rows[0]["effects"]] == ["relative error of Eq. (6)"]
    assert [row["holds"] for row in rows] == [True] * 5 + [None] * 33
    assert rows[0]["scale"] == "smoke" and rows[0]["seeds"] == 2


def test_check_of_one_experiment_and_its_strict_form(capsys, recorded):
    code, out, _ = call(capsys, "check", "objective", "--strict", "--out", str(recorded / "runs"))
    assert code == 0 and "5 claims: 5 hold." in out
    assert "38 claims: 5 hold, 33 not recorded." in call(capsys, "check", "--out", str(recorded / "runs"))[1]


def test_figure_and_report_draw_what_is_recorded(capsys, recorded):
    runs, to = str(recorded / "runs"), recorded / "figures"
    code, out, _ = call(capsys, "figure", "objective", "--out", runs, "--to", str(to))
    assert code == 0 and Path(out.strip()).exists()
    code, out, _ = call(capsys, "report", "--out", runs, "--to", str(to))
    assert code == 0 and (to / "index.html").exists() and "index.html" in out


def test_map_finds_an_equation(capsys):
    code, out, _ = call(capsys, "map", "eq:bonus_design")
    assert code == 0 and "made/bonuses/made.py::MADE" in out
    assert len(call(capsys, "map")[1].splitlines()) > 40


def test_play_walks_a_grid_by_given_keys(capsys):
    code, out, _ = call(capsys, "play", "MiniGrid-Empty-5x5-v0", "--keys", "wwdwwq")
    assert code == 0 and "##" in out


@pytest.mark.parametrize("name", ["Empty-5x5", "Empty-5x5-v0"])
def test_play_takes_the_short_names_that_train_takes(capsys, name):
    code, out, err = call(capsys, "play", name, "--keys", "wq")
    assert (code, err) == (0, "") and out.startswith("MiniGrid-Empty-5x5-v0, seed 0") and "##" in out
    code, _, err = call(capsys, "play", "Emty-5x5", "--keys", "q")
    assert code == 2 and "Did you mean 'Empty-5x5'" in err


def test_the_version_is_one_line(capsys):
    assert call(capsys, "--version") == (0, f"made {made.__version__}\n", "")


def test_doctor_names_versions_and_fixes(capsys):
    _, out, _ = call(capsys, "doctor")
    assert "jax" in out and "JAX device" in out
    findings = info.examine()
    assert {"jax", "numpy", "minigrid", "ray"} <= {finding.what.split()[0].rstrip(":") for finding in findings}
    assert all(finding.fix for finding in findings if finding.state != "ok")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["frob"], "no command 'frob'"),
        (["chekc"], "Did you mean 'check'"),
        (["run"], "Missing"),
        (["run", "lokc"], "Did you mean 'lock'"),
        (["run", "lock", "--scale", "huge"], "Unknown scale 'huge'"),
        (["run", "lock", "--scal", "small"], "Did you mean --scale"),
        (["run", "lock", "--seeds", "0"], "--seeds must be at least 1"),
        (["run", "lock", "--seeds", "many"], "--seeds"),
        (["run", "lock", "--set", "agent.gama=1"], "Did you mean 'gamma'"),
        (["run", "lock", "--set", "agent.gamma=x"], "takes a number"),
        (["run", "lock", "--set", "iterations=7", "--set", "every=70"], "every"),
        (["map", "eq:bonus_desing"], "Did you mean 'eq:bonus_design'"),
        (["map", "zzz"], "...; `made map` has them."),
        (["play", "MiniGrid-Emty-5x5-v0"], "Did you mean 'MiniGrid-Empty-5x5-v0'"),
        (["figure", "lock"], "nothing recorded"),
        (["report"], "Nothing is recorded"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_2(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, *words)
    assert code == 2 and message in err and len(err.strip().splitlines()) == 1 and "Traceback" not in err
    assert not list(tmp_path.iterdir()), "a refused command leaves nothing behind"


def test_a_folder_that_holds_something_else_is_refused(capsys, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    code, _, err = call(capsys, "run", "objective", "--scale", "smoke", "--out", str(tmp_path))
    assert code == 2 and "thesis.txt" in err and (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("on", ["threads", "processes"])
@pytest.mark.parametrize("out", ["/proc/x", f"{__file__}/x"])
def test_a_store_that_cannot_be_made_is_refused_before_anything_runs(capsys, monkeypatch, on, out):
    begun = []
    monkeypatch.setattr("made.experiments.scheduler.run_batch", lambda *words: begun.append(words))
    code, told, err = call(capsys, "run", "objective", "--scale", "smoke", "--on", on, "--out", out)
    assert code == 2 and err.endswith(f"made: {out} cannot be made: give another folder with --out.\n")
    assert not begun and not told and "Traceback" not in err


@pytest.mark.parametrize("words", [["figure", "objective"], ["report"]])
def test_figures_that_are_to_go_into_a_file_are_refused(capsys, recorded, tmp_path, words):
    (file := tmp_path / "file").write_text("years of work")
    for to, message in (
        (file, "is a file, not a folder: give another one"),
        (file / "x", "cannot be made: give another"),
    ):
        code, _, err = call(capsys, *words, "--out", str(recorded / "runs"), "--to", str(to))
        assert code == 2 and f"{to} {message}" in err and "with --to." in err and len(err.splitlines()) == 1
    assert file.read_text() == "years of work"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report", "--markdown", "/proc/x.md"], "/proc/x.md cannot be written: give another file with --markdown."),
        (["report", "--markdown", "."], ". is a folder, not a file: give another one with --markdown."),
        (["figure", "objective", "--to", "/proc/x"], "/proc/x cannot be made: give another folder with --to."),
        (["report", "--to", "/proc/x"], "/proc/x cannot be made: give another folder with --to."),
    ],
)
def test_a_place_that_cannot_be_is_refused_before_anything_is_drawn(
    capsys, recorded, tmp_path, monkeypatch, words, message
):
    begun = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plots, "figure", lambda *given, **more: begun.append(given))
    code, _, err = call(capsys, *words, "--out", str(recorded / "runs"))
    assert (code, err) == (2, f"made: {message}\n") and not begun and not list(tmp_path.iterdir())


def test_a_report_of_trained_agents_alone_has_a_page_without_sections(tmp_path):
    """`made report --out results/train --markdown ...`: no experiment is recorded there."""
    assert experiments._print_paths(Report(tmp_path / "index.html", [], []), tmp_path / "new" / "results.md") == 0
    assert (tmp_path / "new" / "results.md").read_text().startswith("# Results")


def test_a_demo_whose_places_cannot_be_leaves_none_behind(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, refused in ((["--out", "/proc/x"], "--out"), (["--report", "/proc/x"], "--report")):
        code, _, err = call(capsys, "demo", "--scale", "smoke", *words)
        assert (code, err) == (2, f"made: /proc/x cannot be made: give another folder with {refused}.\n")
    assert not list(tmp_path.iterdir())


def test_what_only_reads_makes_no_folder(capsys, tmp_path):
    assert call(capsys, "check", "lock", "--out", str(tmp_path / "runs"))[0] == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", ["check", "check lock", "figure lock", "choose dmc_search", "report"])
def test_a_folder_of_runs_that_is_not_there_is_named(capsys, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, *words.split(), "--out", "rusn")
    assert (code, err) == (2, "made: There is no folder rusn: give one that holds runs with --out.\n")
    assert not list(tmp_path.iterdir())


def test_of_several_folders_the_one_that_is_not_there_is_named(capsys, recorded, tmp_path):
    code, _, err = call(capsys, "report", "--out", str(recorded / "runs"), str(tmp_path / "x"), "--to", str(tmp_path))
    assert code == 2 and f"There is no folder {tmp_path / 'x'}:" in err and not list(tmp_path.iterdir())


def whole(folder):
    """The runs that are stored; one that was being written has a name that begins with a dot."""
    return list(folder.glob("runs/*/*/*/[!.]*/run.json"))


def test_a_report_ends_with_verdicts_and_a_check_with_numbers(capsys):
    row = ClaimResult(5, "converges", "Thm. 1", True, "gap 0.25 [0.2, 0.3]", "demo", 3, "made run convergence")
    experiments._tell([row], numbers=False)
    short = capsys.readouterr().out
    experiments._tell([row])
    assert "5 converges" in short and "holds" in short and "gap" not in short
    assert "gap 0.25 [0.2, 0.3]" in capsys.readouterr().out


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_leaves_the_store_readable_and_the_next_goes_on(tmp_path, how, capsys):
    asked = ["run", "lock_heatmap", "--scale", "smoke", "--out", str(tmp_path / "runs")]
    words, quiet = [sys.executable, "-m", "made.cli.main", *asked], subprocess.DEVNULL
    running = subprocess.Popen(words, env={**os.environ, "MADE_CACHE": ""}, stdout=quiet, stderr=quiet)
    while not whole(tmp_path) and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(how)
    running.communicate()
    stored = len(whole(tmp_path))
    assert stored > 0
    assert how != signal.SIGINT or running.returncode in (0, 130)
    code, out, _ = call(capsys, *asked)
    assert code == 0
    assert len(whole(tmp_path)) == 24
    assert f"{stored} runs are stored already" in out or stored == 24


HELD = ["run", "objective", "--scale", "smoke", "--wait"]


def held_jobs(store: Store):
    """The jobs of the smallest experiment, locked as another process would; and how to release them."""
    groups, _ = scheduler.plan(runner.Study(experiment("objective"), Scale.SMOKE), range(2), store)
    jobs = [job for group in groups for job in group.stored_as]
    held = contextlib.ExitStack()
    assert len(held.enter_context(locking.locked(store, jobs))[0]) == len(jobs)
    return jobs, held


def test_a_run_waits_for_what_another_process_makes_and_reports_its_verdicts(recorded, tmp_path, monkeypatch, capsys):
    store = Store(tmp_path / "runs")
    jobs, held = held_jobs(store)

    def ends(*given):  # in place of waiting: meanwhile the other process stores its runs and ends
        for job, id in jobs:
            if not store.has(job, id):
                done = Store(recorded / "runs").folder(job, id)
                shutil.copytree(done, store.folder(job, id))
        held.close()
        return True

    monkeypatch.setattr(runner, "wait_for", ends)
    code, out, err = call(capsys, *HELD, "--out", str(store.root))
    assert code == 0 and "5 claims: 5 hold." in out and "nothing recorded" not in out
    assert f"made: waiting for {len(jobs)} runs that process {os.getpid()} on" in err


def test_a_run_makes_what_another_process_gave_up(tmp_path, monkeypatch, capsys):
    store = Store(tmp_path / "runs")
    jobs, held = held_jobs(store)
    monkeypatch.setattr(runner, "wait_for", lambda *given: held.close() or True)
    code, out, _ = call(capsys, *HELD, "--out", str(store.root))
    assert code == 0 and f"{len(jobs)} runs made" in out and "5 claims: 5 hold." in out


def test_the_waiting_ends_with_ctrl_c_and_with_the_minutes(tmp_path, monkeypatch, capsys):
    store, study = Store(tmp_path / "runs"), runner.Study(experiment("objective"), Scale.SMOKE)
    _, held = held_jobs(store)

    def interrupted(*given):
        raise KeyboardInterrupt

    with held, monkeypatch.context() as patch:
        patch.setattr(runner, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt):
            runner.run([study], store, wait=True)
        patch.setattr(runner, "wait_for", locking.wait_for)
        assert runner.run([study], store, options=Options(minutes=0.02), wait=True) == 0
    assert "The time is up; left out: " in capsys.readouterr().out


def test_sigterm_ends_a_run_with_what_is_stored_and_says_how_to_resume(tmp_path, capsys):
    """It comes when the first run is stored."""
    script = (
        "import os, signal, sys, threading; from made.cli import main as cli\n"
        "from made.experiments.store import Store\n"
        "write, first = Store.write, threading.Lock()  # a second SIGTERM may come when the handler is gone\n"
        "def stored(*what):\n"
        "    at = write(*what)\n"
        "    first.acquire(blocking=False) and os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return at\n"
        "Store.write = stored; sys.exit(cli.main(sys.argv[1:]))"
    )
    asked = ["run", "lock_heatmap", "--scale", "smoke", "--out", str(tmp_path / "runs")]
    ended = subprocess.run([sys.executable, "-c", script, *asked], capture_output=True, text=True)
    last = ended.stderr.splitlines()[-1]
    assert ended.returncode == 143 and "Traceback" not in ended.stderr, ended.stderr
    assert last == f"made: stopped by SIGTERM; progress is saved. To resume: made {' '.join(asked)}"
    assert (stored := len(whole(tmp_path))) > 0
    code, out, _ = call(capsys, *asked)
    assert code == 0 and len(whole(tmp_path)) == 24 and (f"{stored} runs are stored already" in out or stored == 24)


@pytest.mark.parametrize("words", [[], ["list"]])
def test_a_reader_who_has_enough_is_no_error(words):
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run([sys.executable, "-m", "made", *words], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_warning_is_one_line_without_a_place_in_the_code(monkeypatch, capsys):
    def warned(self):
        warnings.simplefilter("always")
        warnings.warn("One file\nis damaged.", stacklevel=1)
        return 0

    monkeypatch.setattr(main.Doctor, "main", warned)
    assert call(capsys, "doctor") == (0, "", "made: One file is damaged.\n")


def test_an_experiment_without_claims_says_so_and_prints_no_table(capsys, tmp_path):
    said = call(capsys, "check", "dmc_search", "--scale", "smoke", "--out", str(tmp_path))
    assert said == (0, "dmc_search judges no claim of the paper.\n", "")


def test_an_error_of_the_device_is_shown_whole_and_told_in_one_line(monkeypatch, capsys):
    def fail(self):
        raise raised

    monkeypatch.setattr(main.List, "main", fail)
    raised = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
    assert main.main(["list"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said and "RESOURCE_EXHAUSTED: Out of memory" in said
    assert said.splitlines()[-1].startswith("made: The device failed: out of memory")
    raised = RuntimeError("a mistake of ours")
    with pytest.raises(RuntimeError, match="of ours"):
        main.main(["list"])
