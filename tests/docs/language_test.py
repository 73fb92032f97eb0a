"""The language of the documentation, the help texts and the error messages: short sentences in the field's words."""

import ast
import re
from pathlib import Path

import pytest

from made.cli import main

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {"docs/results.md", "docs/grids.md"}  # by made report and docs/build_grids.py
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
PAGES += sorted(page for page in (ROOT / "docs").rglob("*.md") if page != ROOT / "docs" / "results.md")
ALLOWED = Path(__file__).with_name("allowed_words.txt")  # lines: file, word, why
WORDS, SENTENCE, COLUMNS, HEADING = 26_000, 40, 100, 8  # in all pages; of a sentence; of a line; words of a heading

FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)
BANNED = {  # what not to write -> what to write
    r"pay|pays|paid|paying|payer|payers|earn|earns|earned|earning|earnings|income": "reward, bonus",
    r"told|heard|hears|telling": "logged, reported",
    r"picture|pictures|film|films|filmed|drawn": "figure, frame, video, rendered, sampled",
    r"slope|slopes": "gradient",
    r"the clock": "time limit, truncation",
    r"gate|gates|gated": "first-visit mask, first-visit MADE",
    r"temperature|temperatures": "bonus coefficient",
    r"lane|lanes": "run of a batch",
    r"go on|goes on|went on|going on|gone on|begun": "resume, continue, start",
    r"refuse|refuses|refused|refusing|demand|demands|demanded": "reject, raise, require",
    r"beside": "in parallel with, compared with, next to",
    r"slip|slips|mend|mends|mended": "bug, fix",
    r"processor|processors": "CPU",
    r"anew|once more|of late|seldom|thrice|dearer|foresee|foresees|learnt|in vain": "again, rarely, recently",
    r"judge|judges|judged|judging": "check",
    r"watch it on|instrument|instruments": "probe",
    r"(?:behavi|col|neighb|fav|flav|lab|hon)our\w*|grey|centred?|labelled|modelled": "American spelling",
    r"(?:normal|standard|maxim|minim|optim|regular|initial|real|general|random|summar|synchron|vector|penal|visual)"
    r"is(?:e|es|ed|er|ers|ing|ation|ations)": "American spelling",
}
NOT_A_HEADING = r"(?:what|why|where|when|who|whose|which|how|it|this|that|is|are|do|does|can|if|and|but)\b"
FINITE = r"\b(?:is|are|was|were|has|have|had|does|did|can|will|must|should|it|you|we|they)\b"


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def without_code(text: str) -> str:
    """A page without front matter and code blocks, with as many lines."""
    blank = lambda match: "\n" * match[0].count("\n")  # noqa: E731
    return FENCE.sub(blank, re.sub(r"\A---\n.*?^---$", blank, text, flags=re.M | re.S))


def plain(text: str) -> str:
    """Markdown as words: code, formulas and addresses are one word each."""
    text = re.sub(r"!\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\$\$.*?\$\$|\$[^$]+\$", "formula", text, flags=re.S)
    return re.sub(r"(?<!`)`[^`]+`", "code", re.sub(r"<[^>\n]+>", " ", text))


def passages(text: str) -> list[str]:
    """Paragraphs, list items and cells of tables, each on one line."""
    found, current = [], []
    for line in [*plain(without_code(text)).splitlines(), ""]:
        starts = re.match(r"\s*([-*] |\d+\. |#|\||:::|===)", line)
        if starts or not line.strip():
            found, current = [*found, " ".join(current)], []
        if line.lstrip().startswith("|"):
            found += line.strip().strip("|").split("|")
        elif not line.startswith((":::", "#")):
            current.append(line.strip())
    return [passage for passage in found if re.search(r"\w", passage)]


def long_sentences(text: str) -> list[str]:
    """Sentences of more than 40 words. A colon or a semicolon does not end one."""
    split = (re.split(r"(?<=[.!?])[*_)\"]*\s+", passage) for passage in passages(text))
    return [one for sentences in split for one in sentences if len(one.split()) > SENTENCE]


def banned(text: str) -> list[str]:
    found = (re.findall(rf"\b(?:{words})\b", text, re.I) for words in BANNED)
    return sorted({word.lower() for one in found for word in one})


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ (.*)$", without_code(text), re.M)


def is_noun_or_task(heading: str) -> bool:
    words = plain(heading)
    bad = re.match(NOT_A_HEADING, words, re.I) or re.search(FINITE, words) or words.endswith((".", "?", "!"))
    return not bad and len(words.split()) <= HEADING


def long_lines(text: str) -> list[str]:
    """Lines of prose: tables, images and HTML may be longer."""
    lines = without_code(text).splitlines()
    return [line for line in lines if len(line) > COLUMNS and not line.lstrip().startswith(("|", "![", "[![", "<"))]


def count_words(text: str) -> int:
    """Words of a page, code and tables included."""
    return len(re.findall(r"\S*[^\W_]\S*", text))


def allowed() -> set[tuple[str, str]]:
    lines = (line.split(maxsplit=2) for line in ALLOWED.read_text("utf-8").splitlines() if line.strip())
    return {(file, word) for file, word, _ in lines}


def check_words(file: str, text: str) -> None:
    wrong = [word for word in banned(text) if (file, word) not in allowed()]
    instead = {word: hint for word in wrong for words, hint in BANNED.items() if re.fullmatch(words, word)}
    assert not wrong, f"{file}: {instead}; or a line in {ALLOWED.name} with the reason"


@pytest.mark.parametrize("page", [named(page) for page in PAGES])
def test_pages_have_short_sentences_in_the_words_of_the_field(page):
    text = (ROOT / page).read_text("utf-8")
    assert not long_sentences(text)
    assert not long_lines(text)
    assert all(map(is_noun_or_task, headings(text))), [one for one in headings(text) if not is_noun_or_task(one)]
    check_words(page, " ".join(passages(text)) + " ".join(headings(text)))


def test_pages_fit_the_budget_of_words():
    by_hand = [page for page in (ROOT / "docs").rglob("*.md") if named(page) not in GENERATED]
    total = sum(count_words(page.read_text("utf-8")) for page in by_hand if "docs/api/" not in named(page))
    assert 15_000 < total <= WORDS


@pytest.mark.parametrize("command", sorted(one.__name__.lower() for one in main.COMMANDS))
def test_help_is_in_the_words_of_the_field(command, capsys):
    try:
        main.main([command, "--help"])
    except SystemExit as end:
        assert end.code == 0
    text = capsys.readouterr().out
    assert f"made {command}" in text
    check_words(f"made-{command}--help", re.sub(r"[─│╭╮╰╯\s]+", " ", text))


def messages(source: str) -> list[str]:
    """The text of every error that this module raises."""
    raised = [node.exc for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise) and node.exc]
    parts = ([one.value for one in ast.walk(exc) if isinstance(one, ast.Constant)] for exc in raised)
    return [" ".join(map(str, one)) for one in parts if one]


def test_errors_are_in_the_words_of_the_field():
    texts = {named(file): messages(file.read_text("utf-8")) for file in sorted((ROOT / "made").rglob("*.py"))}
    assert sum(map(len, texts.values())) > 150
    for file, ones in texts.items():
        check_words(file, " ".join(ones))


def test_exceptions_are_needed():
    pages = {named(page): " ".join(passages(page.read_text("utf-8"))) for page in PAGES}
    errors = {named(file): " ".join(messages(file.read_text("utf-8"))) for file in (ROOT / "made").rglob("*.py")}
    texts = pages | errors
    unused = [(file, word) for file, word in allowed() if word not in banned(texts.get(file, ""))]
    assert not [one for one in unused if not one[0].endswith("--help")]


def test_each_rule_is_noticed():
    assert long_sentences("word " * 30 + "and\n" + "word " * 10 + ".") and not long_sentences("Word. " * 60)
    assert not long_sentences("- " + "word " * 30 + "\n- " + "word " * 30)
    assert not long_sentences("| a |" * 60)
    long = "x" * 101
    assert long_lines(long) and not long_lines(f"| {long}") and not long_lines(f"```\n{long}\n```")
    assert banned("It pays; the colour of a neighbour, normalised.") == ["colour", "neighbour", "normalised", "pays"]
    assert not banned("our hours, four promises, otherwise precise noise raised, advise, exercise, supervised runs")
    nouns = [is_noun_or_task(one) for one in ("Results", "Train an agent", "What works", "Runs are fast", "Is it?")]
    assert nouns == [True, True, False, False, False]
    assert messages("raise ValueError(f'a {b} c')\nraise E('d')") == ["a   c", "d"]
    assert count_words("| a | b_1 |\n|---|---|\n# $x$ ...") == 3
