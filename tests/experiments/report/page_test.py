"""The page as text: complete, escaped, self-contained."""

import base64
import hashlib
import io
import json
import os
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from made.experiments.report import html_parts
from made.experiments.report.model import Section
from made.experiments.report.page import render, write

ADDRESS = "http://www.w3.org/2000/svg"  # a name, which nothing is fetched from
ATTRIBUTES = set(
    re.findall(
        r"\S+",
        """lang charset name content http-equiv class href id src width height alt scope style hidden type value checked
        for role tabindex min max step title open viewbox preserveaspectratio focusable x1 x2 y1 y2 data-verdict
        data-part data-head data-from data-video aria-label aria-hidden aria-live aria-pressed""",
    )
)


class Page(HTMLParser):
    """Tags and attributes of a page, and its text; unbalanced tags are an error."""

    VOID = frozenset({"meta", "img", "br", "input", "line"})

    def __init__(self, text: str):
        super().__init__()
        self.open, self.tags, self.text, self.scripts = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open[-1:] == ["script"] else self.text).append(data)

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


def test_everything_given_is_shown(lock):
    page = Page(render([lock]))
    for words in (
        "Lock", "First paragraph .", "Second paragraph.", "The caption", "MADE is faster", "In the paper Fig. 3",
        "vi 1.2 [1, 1.4]", "q 0.5 [-0.1, 1.1]", "Scale small", "Seeds 20", "Repeat made run lock --scale small",
        "Final return", "0.1235", "abc123", "cpu, H200", "wall time, seconds 12.5", "uncommitted changes no",
    ):  # fmt: skip
        assert words in page.words, words


def test_verdicts_are_words_and_symbols(lock, grid):
    words = Page(render([lock, grid])).words
    for symbol, text in (
        ("✓", "holds"),
        ("✗", "does not hold"),
        ("?", "cannot tell at this scale"),
        ("○", "not recorded"),
    ):
        assert f"{symbol} {text}" in words
        assert f"{symbol} 1 {text}" in words  # the bar on top counts each
    twice = lock._replace(claims=[{**lock.claims[0], "holds": np.True_}, lock.claims[0]])
    assert "✓ 2 hold" in Page(render([twice])).words


def test_figures_are_inside_with_their_size_and_words(lock, png):
    from PIL import Image

    (image,) = [attrs for tag, attrs in Page(render([lock])).tags if tag == "img"]
    assert (image["width"], image["height"], image["alt"]) == ("192", "96", "a line")
    inside = base64.b64decode(image["src"].removeprefix("data:image/png;base64,"))
    shown, given = (np.asarray(Image.open(io.BytesIO(x)).convert("RGB"), float) for x in (inside, png))
    assert len(inside) <= len(png) and np.abs(shown - given).max() < 24  # fewer colours, the same picture
    with pytest.raises(ValueError, match="must be PNG"):
        render([lock._replace(figures=[("c", b"<svg>", "a")])])


def test_settings_are_said_once(lock):
    page = Page(render([lock]))
    assert page.words.count("env.H") == 1
    assert "bonus.kind = MADE bonus.B = 100" in page.words and "bonus.kind = None" in page.words
    nested = lock._replace(settings={"a": {"tau": [1.0, 0.5], "parts": [{"n": 1}, {"n": None}], "empty": {}}})
    words = Page(render([nested])).words
    assert "tau 1.0, 0.5" in words and "parts[0].n 1" in words and "parts[1].n none" in words


def test_nothing_given_is_trusted(lock, grid, agent, hostile):
    section, bad = hostile
    clean = Page(render([lock, grid], "t", [agent]))
    page = Page(render([section], section.title, [bad]))
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in clean.tags}
    for _, attrs in page.tags:
        assert set(attrs) <= ATTRIBUTES
        assert re.match(r"data:image/(png|gif);base64,", attrs.get("src", "data:image/png;base64,"))
        assert re.fullmatch(r"#[a-z0-9-]+", attrs.get("href", "#main"))
    assert "<script>window.caught=1</script>" in "".join(page.text)


def test_data_cannot_leave_its_element(hostile):
    page = Page(render([hostile[0]], "t", [hostile[1]]))
    *given, script = page.scripts
    assert len(given) == 3 and not any(set("<>&\u2028") & set(text) for text in given)
    assert [json.loads(text) for text in given[:2]] == json.loads(json.dumps([hostile[0].maps, hostile[0].curves]))
    assert "caught" not in script


def test_what_is_not_a_number_is_refused_as_data():
    with pytest.raises(ValueError, match="not JSON compliant"):
        html_parts.data({"x": float("nan")}, "x")


def test_it_fetches_nothing_and_runs_its_own_script_only(lock, grid, agent):
    text = render([lock, grid], "t", [agent])
    assert set(re.findall(r"https?:[^\s\"')]+", text)) == {ADDRESS}
    assert "@import" not in text and "url(" not in text and "default-src 'none'" in text
    digest = hashlib.sha256(Page(text).scripts[-1].encode()).digest()
    assert f"script-src 'sha256-{base64.b64encode(digest).decode()}'" in text
    assert text.count("<script>") == 1 and 'name="viewport"' in text


def test_sections_and_claims_are_linked_by_distinct_anchors(lock):
    page = Page(render([lock, lock._replace(name="Lock!", title="Other")]))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    links = [attrs["href"].removeprefix("#") for tag, attrs in page.tags if tag == "a"]
    assert len(set(ids)) == len(ids) and set(links) <= set(ids)
    assert {"s0-lock", "s1-lock", "claim-0-0", "claim-1-2"} <= set(links)


def test_what_comes_from_an_earlier_report_says_so(lock):
    assert "earlier report" not in Page(render([lock])).words
    marked = lock._replace(earlier="an earlier report, runs of commit abc123")
    assert "From an earlier report, runs of commit abc123" in Page(render([marked])).words


def test_nothing_to_report_is_said():
    assert "There are no results yet." in render([])
    assert "no claim checked" in render([Section("lock", "Lock")])


def test_writing_replaces_the_file_whole(lock, tmp_path, monkeypatch):
    path = tmp_path / "deep" / "report.html"
    assert write(path, [lock]) == path
    before = path.read_text("utf-8")
    assert before == render([lock])

    def half(written):
        os.ftruncate(written, os.fstat(written).st_size // 2)
        raise OSError("disc full")

    monkeypatch.setattr(os, "fsync", half)
    with pytest.raises(OSError, match="disc full"):
        write(path, [])
    assert path.read_text("utf-8") == before and [p.name for p in path.parent.iterdir()] == ["report.html"]
