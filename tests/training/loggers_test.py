"""The progress of a command: lines, a table, and the time left."""

import pytest

from made.training import loggers
from made.training.loggers import Meter

LINES = [
    {"seed": 0, "update": 4, "seconds": 1.0, "return": 0.5, "length": float("nan")},
    {"seed": 1, "update": 4, "seconds": 1.0, "return": 1.0, "length": 3.0},
]


def test_training_is_shown_in_lines_and_as_a_table(capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(loggers.time, "monotonic", lambda: clock[0])
    shown = loggers.Meter(1000, "frames", "made train", done=100, seeds=2)
    assert shown.left() == "?"
    with shown.shown():
        clock[0] += 10
        more = {"intrinsic_return": 0.25, "coverage": 1234.0, "bonus": 0.1, "frames": 200}
        shown.row([{**line, **more} for line in LINES])
        shown.row([{**line, **more} for line in LINES])
    said = capsys.readouterr().err.splitlines()
    assert said == [
        " 20%  200 of 1,000 frames x 2, 20 frames/s, return 0.75, intrinsic return 0.25, states seen 1,234, bonus 0.1, "
        "80 s left"
    ], "a second row within five seconds is not said"
    from rich.console import Console

    console = Console(width=100)
    with console.capture() as held:
        console.print(shown.table())
    text = held.get()
    for words in ("frames/s", "intrinsic return", "states seen", "bonus", "0.5 to 1 over the seeds", "80 s left"):
        assert words in text


def test_what_was_done_before_says_nothing_of_the_speed(capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(loggers.time, "monotonic", lambda: clock[0])
    with Meter(1000, "iterations").shown() as meter:
        clock[0] += 10
        meter.add(400, made=False)
        meter.add(100)
        assert meter.speed() == "10 iterations/s" and meter.left() == "50 s"
        meter.add(500)
    assert capsys.readouterr().err.splitlines() == [
        " 40%  400 of 1,000 iterations, 0 iterations/s, ? left",
        "100%  1,000 of 1,000 iterations, 60 iterations/s, 0 s left",
    ], "one line within five seconds, and the last one"


def test_no_last_line_is_printed_of_what_failed(capsys, monkeypatch):
    monkeypatch.setattr(loggers, "SECONDS_BETWEEN_LINES", float("inf"))
    with pytest.raises(ValueError), Meter(10, "iterations").shown() as meter:
        meter.add(5)
        raise ValueError
    assert not capsys.readouterr().err
