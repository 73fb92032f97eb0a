"""The report: complete, escaped, self-contained."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from made import report
from made.results import plot

EVIL = '<script>alert("x")</script><img src=http://evil.example/x onerror=alert(1)>\' onload="'


@pytest.fixture(scope="module")
def png() -> bytes:
    fig, axes = plot.figure(width=2.0, height=1.0)
    axes[0, 0].plot([0, 1])
    return plot.png(fig)


def claim(holds, text="MADE is faster", **changes):
    given = {"claim": text, "name": "faster", "where": "Figure 3", "holds": holds}
    given["observed"] = "1.2 [1, 1.4]"
    return given | {"scale": "small", "seeds": 20, "command": "made check lock --scale small"} | changes


def section(png: bytes, text: str = "Lock", **changes) -> report.Section:
    runs = {"vi/made": {"env": {"H": 20}, "bonus": {"kind": "MADE", "B": 100}}}
    runs["vi/none"] = {"env": {"H": 20}, "bonus": {"kind": "None"}}
    return report.Section(
        "lock",
        text,
        "First paragraph.\n\nSecond paragraph.",
        [("The caption", png, "a line")],
        [claim(True), claim(False), claim(None)],
        [("Final return", ("method", "return"), [("MADE", 0.123456789), ("none", 3)])],
        runs,
        {"commit": "abc123", "dirty": False, "device": ["cpu", "H200"], "wall_s": 12.5},
    )._replace(**changes)


class Page(HTMLParser):
    """Tags and attributes of a page, and its text; unbalanced tags are an error."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, text: str):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


def test_everything_given_is_shown(png):
    page = Page(report.render([section(png)]))
    for words in (
        "Lock", "First paragraph.", "Second paragraph.", "The caption", "MADE is faster",
        "In the paper Figure 3", "Observed 1.2 [1, 1.4]", "Scale small", "Seeds 20",
        "Repeat made check lock --scale small",
        "Final return", "0.1235", "abc123",
        "cpu, H200", "wall time, seconds 12.5", "uncommitted changes no",
    ):  # fmt: skip
        assert words in page.words, words


def test_verdicts_are_words_and_symbols(png):
    words = Page(report.render([section(png)])).words
    for symbol, text in (("✓", "holds"), ("✗", "does not hold"), ("?", "cannot tell at this scale")):
        assert f"{symbol} {text}" in words
        assert f"{symbol} 1 {text}" in words  # the summary counts each
    several = section(png, claims=[claim(np.True_), claim(True)])
    assert "✓ 2 holds" in Page(report.render([several])).words


def test_figures_are_inside_with_their_size_and_words(png):
    (image,) = [attrs for tag, attrs in Page(report.render([section(png)])).tags if tag == "img"]
    assert base64.b64decode(image["src"].removeprefix("data:image/png;base64,")) == png
    assert (image["width"], image["height"], image["alt"]) == ("192", "96", "a line")
    with pytest.raises(ValueError, match="must be PNG"):
        report.render([section(png, figures=[("c", b"<svg>", "a")])])


def test_settings_are_said_once(png):
    page = Page(report.render([section(png)]))
    assert page.words.count("env.H") == 1
    assert "bonus.kind = MADE bonus.B = 100" in page.words and "bonus.kind = None" in page.words
    nested = section(png, settings={"a": {"tau": [1.0, 0.5], "parts": [{"n": 1}, {"n": None}], "empty": {}}})
    words = Page(report.render([nested])).words
    assert "tau 1.0, 0.5" in words and "parts[0].n 1" in words and "parts[1].n none" in words


def test_nothing_given_is_trusted(png):
    evil = report.Section(
        EVIL,
        EVIL,
        EVIL,
        [(EVIL, png, EVIL)],
        [claim(True, EVIL, name=EVIL, where=EVIL, observed=EVIL, scale=EVIL, seeds=EVIL, command=EVIL)],
        [(EVIL, (EVIL, EVIL), [(EVIL, EVIL), (EVIL, [EVIL])])],
        {EVIL: {EVIL: EVIL}, "other": {EVIL: {EVIL: [EVIL]}}},
        {EVIL: EVIL, "device": [EVIL]},
    )
    text = report.render([evil], title=EVIL)
    clean = Page(report.render([section(png)], title="t"))
    page = Page(text)
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in clean.tags}
    allowed = set(
        [
            "lang",
            "charset",
            "name",
            "content",
            "http-equiv",
            "class",
            "href",
            "id",
            "src",
            "width",
            "height",
            "alt",
            "scope",
        ]
    )
    allowed |= {"aria-label", "aria-hidden", "tabindex"}
    for _, attrs in page.tags:
        assert set(attrs) <= allowed
        assert attrs.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")
        assert re.fullmatch(r"#s0-[a-z0-9-]*", attrs.get("href", "#s0-"))
    assert EVIL.split("<img")[0] in "".join(page.text)


def test_it_needs_no_network_and_suits_every_screen(png):
    text = report.render([section(png)])
    assert "http://" not in text and "https://" not in text and "<script" not in text and "@import" not in text
    assert "default-src 'none'" in text and "url(" not in text
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text


def test_sections_are_linked_by_distinct_anchors(png):
    page = Page(report.render([section(png), section(png, name="Lock!", text="Other")]))
    ids = [attrs["id"] for tag, attrs in page.tags if tag == "h2"]
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert links == [f"#{name}" for name in ids] and len(set(ids)) == 2


def test_nothing_to_report_is_said():
    assert "There are no results yet." in report.render([])
    assert "no claim checked" in report.render([report.Section("lock", "Lock")])


def test_writing_replaces_the_file_whole(png, tmp_path, monkeypatch):
    path = tmp_path / "deep" / "report.html"
    assert report.write(path, [section(png)]) == path
    before = path.read_text("utf-8")
    assert before == report.render([section(png)])
    whole = Path.write_text

    def half(self, text, encoding):
        whole(self, text[: len(text) // 2], encoding)
        raise OSError("disc full")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="disc full"):
        report.write(path, [])
    assert path.read_text("utf-8") == before and [p.name for p in path.parent.iterdir()] == ["report.html"]
