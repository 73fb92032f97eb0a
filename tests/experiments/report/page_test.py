"""The page as text: complete, escaped, self-contained."""

import base64
import hashlib
import io
import json
import math
import os
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from made.experiments.report import Figure, Section
from made.experiments.report.page import SENTENCES, render, write
from made.experiments.types import Effect
from tests.experiments.report.conftest import claim

ADDRESS = "http://www.w3.org/2000/svg"  # a name, which nothing is fetched from
PAPER = "https://arxiv.org/abs/2106.10268"  # a link, which is followed on request
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
        "return, MADE minus none; the dashed line marks 0", "Missing: more seeds.",
        "Final return", "0.1235", "abc123", "cpu, H200", "wall-clock, seconds 12.5", "uncommitted changes no",
    ):  # fmt: skip
        assert words in page.words, words


def test_verdicts_are_words_and_symbols(lock, grid):
    words = Page(render([lock, grid])).words
    for symbol, text in (
        ("✓", "holds"),
        ("✗", "does not hold"),
        ("?", "undecided at this scale"),
        ("○", "not recorded"),
    ):
        assert f"{symbol} {text}" in words
        assert f"{symbol} 1 {text}" in words  # the bar on top counts each
    twice = lock._replace(claims=[{**lock.claims[0], "holds": np.True_}, lock.claims[0]])
    assert "✓ 2 hold" in Page(render([twice])).words


def test_figures_are_inside_with_their_size_and_words(lock, png, gif, tmp_path):
    from PIL import Image

    (image,) = [attrs for tag, attrs in Page(render([lock])).tags if tag == "img"]
    assert (image["width"], image["height"], image["alt"]) == ("192", "96", "a line")
    inside = base64.b64decode(image["src"].removeprefix("data:image/webp;base64,"))
    shown, given = (np.asarray(Image.open(io.BytesIO(x)).convert("RGB"), float) for x in (inside, png))
    assert len(inside) <= len(png) and np.abs(shown - given).max() < 24  # fewer colors, the same picture
    (file := tmp_path / "video.png").write_bytes(gif)
    with pytest.raises(ValueError, match="must be PNG, not GIF"):
        render([lock._replace(figures=[Figure(file, "c", "a")])])


def test_settings_of_most_runs_are_shown_once_and_others_where_they_differ(lock):
    three = lock._replace(settings={**lock.settings, "vi/other": {"env": {"H": 20}, "bonus": {"kind": "MADE", "B": 3}}})
    page = Page(render([three]))
    assert page.words.count("env.H") == 1 and page.words.count("bonus.kind") == 2
    assert "bonus.kind MADE" in page.words and "bonus.B 100" in page.words
    assert "vi/none bonus.kind = None" in page.words and "vi/other bonus.B = 3" in page.words
    nested = lock._replace(settings={"a": {"tau": [1.0, 0.5], "parts": [{"n": 1}, {"n": None}], "empty": {}}})
    words = Page(render([nested])).words
    assert "tau 1, 0.5" in words and "parts[0].n 1" in words and "parts[1].n none" in words


def test_nothing_given_is_trusted(lock, grid, agent, hostile):
    section, bad = hostile
    clean = Page(render([lock, grid], [agent]))
    page = Page(render([section], [bad]))
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in clean.tags}
    for _, attrs in page.tags:
        assert set(attrs) <= ATTRIBUTES
        assert re.match(r"data:image/(png|gif|webp);base64,", attrs.get("src", "data:image/png;base64,"))
        assert re.fullmatch(r"#[a-z0-9-]+", attrs.get("href", "#main")) or attrs["href"] == PAPER
    assert "<script>window.caught=1</script>" in "".join(page.text)


def test_data_cannot_leave_its_element(hostile):
    page = Page(render([hostile[0]], [hostile[1]]))
    *given, script = page.scripts
    assert len(given) == 3 and not any(set("<>&\u2028") & set(text) for text in given)
    assert [json.loads(text) for text in given[:2]] == json.loads(json.dumps([hostile[0].maps, hostile[0].curves]))
    assert "caught" not in script


def test_what_is_not_a_number_is_refused_as_data(lock):
    with pytest.raises(ValueError, match="not JSON compliant"):
        render([lock._replace(maps={**lock.maps, "seeds": 1, "x": float("nan")})])


def test_it_fetches_nothing_and_runs_its_own_script_only(lock, grid, agent):
    text = render([lock, grid], [agent])
    assert set(re.findall(r"https?:[^\s\"')]+", text)) == {ADDRESS, PAPER}
    assert "@import" not in text and "url(" not in text and "default-src 'none'" in text
    digest = hashlib.sha256(Page(text).scripts[-1].encode()).digest()
    assert f"script-src 'sha256-{base64.b64encode(digest).decode()}'" in text
    assert text.count("<script>") == 1 and 'name="viewport"' in text


def test_sections_and_claims_are_linked_by_distinct_anchors(lock):
    others = [{**claim, "claim": claim["claim"] + 5} for claim in lock.claims]
    page = Page(render([lock, lock._replace(name="Chain!", claims=others)]))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    links = [attrs["href"].removeprefix("#") for tag, attrs in page.tags if tag == "a" and attrs["href"] != PAPER]
    assert len(set(ids)) == len(ids) and set(links) <= set(ids)
    assert {"experiment-lock", "experiment-chain", "claim-1", "claim-8"} <= set(links)


def test_what_comes_from_an_earlier_report_says_so_in_its_provenance(lock):
    assert "earlier report" not in Page(render([lock])).words
    marked = lock._replace(earlier="an earlier report, runs of commit abc123")
    assert Page(render([marked])).words.count("copied from an earlier report, runs of commit abc123") == 1


def test_the_findings_come_first_and_follow_the_verdicts(lock):
    density, vae, other = (claim(n, kind) for n, kind in ((33, "no"), (35, "yes"), (9, "no")))
    words = Page(render([lock._replace(claims=[vae, other, density])])).words
    first, second, third = SENTENCES[33][1], SENTENCES[35][0], "The paper's claim does not hold here: MADE is faster."
    assert (
        0 < words.index(first) < words.index(second) < words.index(third) < words.index("Every claim with its verdict")
    )
    assert "Return, MADE minus none: vi 1.2 [1, 1.4]; q 0.5 [-0.1, 1.1]" in words
    assert SENTENCES[33][0] not in words
    undecided = Page(render([lock._replace(claims=[claim(33, "unknown")])])).words
    assert not any(sentence in undecided for sentence in SENTENCES[33])


def test_a_section_that_decides_nothing_is_short(lock):
    figures = [lock.figures[0]._replace(caption=f"Caption {i}") for i in range(3)]
    undecided = [claim(i, "unknown", missing=["more seeds"]) for i in (1, 2)]
    short = render([lock._replace(claims=undecided, figures=figures, maps={})])
    assert "The recorded runs decide none of its 2 claims." in short and "More figures (2)" in short
    assert "More figures" not in render([lock._replace(figures=figures, maps={})])


@pytest.mark.parametrize("null", [0.0, 1.0])
def test_an_interval_is_drawn_on_a_scale_that_has_the_line_of_no_effect(lock, null):
    effects = [Effect("x", 3.0, 2.0, 4.0, "A", null), Effect("y", 5.0, 4.0, math.inf, "A", null)]
    text = render([lock._replace(claims=[claim(1, "yes", effects=[one.to_dict() for one in effects])])])
    rows = re.findall(r"<svg viewBox.*?</svg>", text)
    at = [[float(x) for x in re.findall(r'x[12]="([\d.]+)"', row)] for row in rows]
    (line, _, low, high, middle, _), (_, _, lower, end, _, _) = at
    assert f"the dashed line marks {null:g}" in text and 0 < line < low < middle < high <= lower < end == 100
    assert middle - low == pytest.approx(high - middle, abs=0.02)


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
