"""Does the command line ever answer with a traceback? Thousands of calls that nobody would type on purpose.

Half of what is tried goes through `--set`: paths of real fields, bent, with values of every kind. The others are whole
calls. Nothing long starts: where a call is right, it meets a results folder that is a file, and is refused for that.
A good answer is status 0, or status 2 with one line that begins with "made:".
"""

import contextlib
import io
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from made.cli import main as cli

EXAMPLES = 10_000
CALLS = 0.2  # the share of whole calls; a setting by itself takes a tenth of the time
PATHS = (
    "n_envs", "unroll", "resets_per_update", "pool_per_env", "env.maker.size", "env.shows", "agent.layout.channels",
    "agent.discount", "agent.learning_rate", "agent.heads", "bonus.cover.width", "bonus.cover.fit.steps",
    "bonus.recent.density.window", "bonus.cover.on", "bonus_coef.value", "probes.0.bits", "probes.9", "agent",
    "bonus.recent",
    "env.maker.max_steps", "iterations", "every", "agent.__class__", "__class__.__init__", "agent.layout.__dict__",
    "", ".", "..", "agent..x",
)  # fmt: skip
VALUES = (
    "0", "-1", "1e999", "-1e999", "nan", "1" * 5000, "1e-400", "0x10", "1_0", "true", "None", "()", "[]", "{}", "(1,)",
    "(0,)", "(-1,)", "(1, 'a')", "__import__('os').system('true')", "lambda: 0", "exit()", "open('x')", "f'{1}'", "'",
    "(" * 300, "[" * 5000 + "]" * 5000, "{" * 90 + "}" * 90, "-" * 3000 + "1", "\0", "\udcff", "1\n2", "<script>", "%s",
    "$(true)", "../../x", "9" * 30, "1j", "b'x'", "...", "1+1", "2**99999", "'a'*9", " 1 ", "\u0661", "True", "3.0",
)  # fmt: skip
COMMANDS = ("train", "check", "figure", "list", "map", "run", "demo", "report", "play", "transfer", "doctor")
OPTIONS = (
    "--env",
    "--agent",
    "--bonus",
    "--steps",
    "--seeds",
    "--bonus-coef",
    "--set",
    "--out",
    "--every",
    "--scale",
    "--on",
    "--json",
)
WORDS = ("DoorKey-5x5", "impala", "made", "lock", "objective", "smoke", "10k", "0", "-1", "eq:bonus_design", "--", "-h")


def strategies() -> tuple[Any, Any]:
    """(settings, calls) for hypothesis to draw from."""
    text = st.text(max_size=20)
    real, bent = st.sampled_from(PATHS), st.lists(st.sampled_from(PATHS), min_size=2, max_size=3).map(".".join)
    number = st.one_of(st.integers().map(str), st.floats().map(str))
    value = st.one_of(st.sampled_from(VALUES), number, text, st.recursive(number, _nested, max_leaves=6))
    likely, odd = st.tuples(real, value).map("=".join), st.tuples(st.one_of(bent, text), value)
    setting = st.one_of(likely, likely, likely, odd.map("=".join), odd.map("".join), text)
    word = st.one_of(st.sampled_from(OPTIONS), st.sampled_from(WORDS), st.sampled_from(VALUES), setting, text)
    call = st.tuples(st.one_of(st.sampled_from(COMMANDS), text), st.lists(word, max_size=6)).map(
        lambda x: [x[0], *x[1]]
    )
    return setting, call


def _nested(inner: Any) -> Any:
    return st.lists(inner, max_size=3).map(lambda parts: f"({', '.join(parts)})")


def tried(examples: int, strategy: Any, seed: int, one: Callable[[Any], str]) -> tuple[Counter, list[str]]:
    """Draw so many and put each to the test; counts of the answers, and those that were not one."""
    answers: Counter = Counter()
    wrong: list[str] = []

    @seeded(seed)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),  # type: ignore[arg-type]
    )
    @given(strategy)
    def drawn(x: Any) -> None:
        answer = one(x)
        answers[answer.split(":")[0]] += 1
        if answer.startswith("traceback"):
            wrong.append(f"{ascii(x)[:200]}: {answer}")

    drawn()
    return answers, wrong


def asked_to_set(text: str) -> str:
    """What comes of `made train --set TEXT` before anything is compiled: taken, refused in a line, or a traceback."""
    from made.cli.train import Train

    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python, on what it parses
            Train(env="DoorKey-5x5", agent="impala", bonus="made", set=(text,)).plan()
    except ValueError as error:
        return "refused" if str(error).strip() else f"traceback: an empty {type(error).__name__}"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"[:300]
    return "taken"


def called(main: Callable[[list[str]], int], words: list[str], blocked: Path) -> str:
    """What comes of `made WORDS`, with folders that lead to a file, so that a call without fault is refused too."""
    out, err = io.StringIO(), io.StringIO()
    train = ["--out", str(blocked)] if words[:1] in (["train"], ["check"], ["figure"], ["run"], ["report"]) else []
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            status = main([*words, *train])
    except SystemExit as end:
        status = end.code or 0
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"[:300]
    lines = [line for line in err.getvalue().splitlines() if line.startswith("made:") and not _progress(line)]
    if status == 0:
        return "status 0"
    return f"status {status}" if status == 2 and len(lines) == 1 else f"traceback: status {status}, {len(lines)} lines"


def _progress(line: str) -> bool:
    return bool(re.match(r"made: (compiling|an update takes)", line))


@contextlib.contextmanager
def parsing_only(cli: Any) -> Iterator[Callable[[list[str]], int]]:
    """The command line, whose commands are parsed and built but, apart from those that are quick, not carried out."""
    real, quick = cli.parse, ("Train", "Check", "Figure", "Map", "List")

    class Held:
        def main(self) -> int:
            return 0

    def parse(words: list[str]) -> Any:
        command = real(words)
        return command if type(command).__name__ in quick else Held()

    cli.parse = parse
    try:
        yield cli.main
    finally:
        cli.parse = real


def fuzz(folder: Path, examples: int = EXAMPLES) -> dict[str, Any]:
    """Settings and calls, drawn from a fixed seed."""
    folder.mkdir(parents=True, exist_ok=True)
    blocked = folder / "blocked"
    blocked.write_text("not a folder")
    by_path, calls = strategies()
    whole = max(1, int(CALLS * examples))
    before = os.getcwd()
    try:
        os.chdir(folder)  # whatever a call writes, it writes here
        with parsing_only(cli) as main:
            by_call = tried(whole, calls, 1, lambda words: called(main, words, blocked))
    finally:
        os.chdir(before)
    by_setting = tried(examples - whole, by_path, 0, asked_to_set)
    wrong = [*by_setting[1], *by_call[1]]
    return {
        "passed": not wrong,
        "what": "fuzzed --set strings and calls of the command line",
        "settings": sum(by_setting[0].values()),
        "calls": sum(by_call[0].values()),
        "answers": {"settings": by_setting[0], "calls": by_call[0]},
        "wrong": wrong[:50],
        "wrong_in_all": len(wrong),
    }
