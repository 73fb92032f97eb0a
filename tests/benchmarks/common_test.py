"""What `python -m benchmarks.NAME` prints: rows as they are measured, a table or JSON."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from benchmarks import common
from benchmarks.common import BENCHMARKS, Measure, as_text


@pytest.fixture
def benchmark(monkeypatch):
    """Put a function in the place of the `measures` of the benchmark "tabular"."""
    monkeypatch.setattr(common, "use_compilation_cache", lambda: None)

    def replace(measures):
        modules = SimpleNamespace(import_module=lambda name: SimpleNamespace(measures=measures))
        monkeypatch.setattr(common, "importlib", modules)
        return lambda *words: common.main("tabular", list(words))

    return replace


def row(name: str) -> Measure:
    return Measure(name, 2.0, "ms", None, None, "", None, "here")


def test_rows_are_printed_as_they_are_measured(benchmark, capsys):
    printed = []

    def measures():
        yield row("first")._replace(value=1234.5)
        said = capsys.readouterr()
        printed.append(said.out)
        assert said.err == "first: 1,234 ms\n"
        yield row("second")

    assert benchmark(measures)("--json") == 0
    said = capsys.readouterr()
    assert [one["name"] for one in json.loads(printed[0] + said.out)] == ["first", "second"]
    assert said.err == "second: 2 ms\n"


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt])
def test_an_interrupted_benchmark_has_printed_valid_json(benchmark, capsys, error):
    rows, printed = [row("first"), row("second")], []

    def measures():
        for one in rows:
            yield one
            printed.append(capsys.readouterr().out)
        raise error("interrupted")

    with pytest.raises(error):
        benchmark(measures)("--json")
    assert "first" in printed[0] and "second" in printed[1]
    whole = "".join(printed) + capsys.readouterr().out
    assert json.loads(whole) == [one._asdict() for one in rows]
    assert whole == json.dumps(json.loads(whole), indent=1) + "\n", "the format stays the same"


def test_sigterm_ends_the_json_too(benchmark, capsys):
    def measures():
        yield row("first")
        os.kill(os.getpid(), signal.SIGTERM)
        yield row("second")

    assert benchmark(measures)("--json") == 128 + signal.SIGTERM
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["first"]


def test_a_benchmark_without_rows_prints_an_empty_list(benchmark, capsys):
    assert benchmark(lambda: iter(()))("--json") == 0
    assert capsys.readouterr() == ("[]\n", "")


def test_an_error_is_one_line(benchmark, capsys):
    def measures():
        yield row("first")
        raise ValueError("Install more.")

    assert benchmark(measures)() == 2
    assert capsys.readouterr() == ("", "first: 2 ms\npython -m benchmarks.tabular: Install more.\n")


def test_the_table_and_the_fields_are_stable():
    one = Measure("a", 2.0, "s", 1.0, 0.5, "at most 3 s", True, "a machine")
    assert list(one._asdict()) == ["name", "value", "unit", "baseline", "ratio", "goal", "met", "device"]
    text = as_text([one])
    assert "| a | 2 s | 1 s | 0.5x | at most 3 s | yes |" in text and "a machine" in text


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_is_one_module_call(name):
    assert callable(importlib.import_module(BENCHMARKS[name].module).measures)
    found = importlib.util.find_spec(f"benchmarks.{name}")
    assert found is not None
    if found.submodule_search_locations:
        assert importlib.util.find_spec(f"benchmarks.{name}.__main__") is not None


def test_the_list_names_every_benchmark():
    done = subprocess.run([sys.executable, "-m", "benchmarks"], capture_output=True, text=True, check=True)
    assert [line.split()[2] for line in done.stdout.splitlines()] == [f"benchmarks.{name}" for name in BENCHMARKS]
