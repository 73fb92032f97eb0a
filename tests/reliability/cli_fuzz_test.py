"""Fuzzed settings and calls of the command line never end in a traceback."""

import pytest

from tests.reliability import cli_fuzz


@pytest.mark.reliability
def test_10000_fuzzed_calls_never_give_a_traceback(check):
    check("fuzz", cli_fuzz.fuzz)


def test_fuzzed_settings_and_calls_never_give_a_traceback(tmp_path):
    found = cli_fuzz.fuzz(tmp_path, 150)
    assert found["passed"], found["wrong"]
    assert found["settings"] == 120 and found["calls"] == 30 and found["answers"]["settings"]["refused"] > 60


def test_a_traceback_is_told_from_an_answer(tmp_path):
    def breaks(words):
        raise KeyError("x")

    assert cli_fuzz.called(breaks, ["map"], tmp_path).startswith("traceback: KeyError")
    assert cli_fuzz.called(lambda words: 2, ["map"], tmp_path) == "traceback: status 2, 0 lines"
    assert cli_fuzz.called(lambda words: 0, ["map"], tmp_path) == "status 0"
