"""What is read from the words of a verdict, and where a claim stands in the paper."""

import re

import pytest

from made.experiments import experiments
from made.experiments.report import claims, effects
from made.experiments.report.model import PARTS, paper_section
from made.experiments.statistics import Interval


def test_intervals_are_read_back_from_a_verdict():
    a, b = Interval(0.5, 0.25, 0.75, 20, 0.95), Interval(-1e-9, -2e-9, 3e-12, 20, 0.95)
    seen = effects.found(f"return, A minus B: H10-p0.1 vi {a}; q {b}. Means, all: x 1, y 2; ours: vi {a}, and so on")
    assert [one[:2] for one in seen] == [
        ("return, A minus B", "H10-p0.1 vi"),
        ("return, A minus B", "q"),
        ("ours", "vi"),
    ]
    assert [float(x) for x in seen[1][2:]] == [-1e-9, -2e-9, 3e-12]
    assert seen[0].text == "0.5 [0.25, 0.75]" and effects.found("1 of [2, 3, 4]; no interval 3 [x, y]") == []


def test_a_label_after_more_words_is_the_nearest_clause():
    seen = effects.found(
        "rank correlation, with visits -0.9 [-1, -0.8]; with time 0.7 [0.6, 0.8], and 3; Empty 1 [0, 2]"
    )
    assert [one.of for one in seen] == ["with visits", "with time", "Empty"]


@pytest.mark.parametrize(("what", "none"), [("A minus B", 0.0), ("frames, A's over B's", 1.0)])
def test_an_interval_is_drawn_on_a_scale_that_holds_the_line_of_no_effect(what, none):
    drawn = effects.drawn(effects.found(f"{what}: x 3 [2, 4]; y 5 [4, inf]"))
    at = [[float(x) for x in re.findall(r'x[12]="([\d.]+)"', row)] for row in drawn.split("<tr>")[2:]]
    (zero, _, low, high, middle, _), (_, _, lower, end, _, _) = at
    assert f"the line marks {none:g}" in drawn and 0 < zero < low < middle < high <= lower < end <= 100
    assert middle - low == pytest.approx(high - middle, abs=0.02)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("error of Eq. (6) 4e-16; other 1", "error of Eq. (6) 4e-16"),
        ("slow in 16 of 20. Steps: 3", "slow in 16 of 20"),
        ("x" * 200, "x" * 89 + "…"),
    ],
)
def test_the_table_shows_the_first_finding(text, seen):
    assert claims._gist(text) == seen


@pytest.mark.parametrize(
    ("text", "lead", "items", "folded"),
    [
        ("ends: a 1; b 2; c 3", "ends:", 3, False),
        ("x: a 1; y: b 2; z: c 3", None, 3, False),
        ("worst 4; " + "; ".join(f"s{i}: {i}" for i in range(9)), "worst 4", 10, True),
        ("one sentence: a; b", "one sentence: a; b", 0, False),
    ],
)
def test_many_findings_become_a_list_and_the_first_stays_in_sight(text, lead, items, folded):
    shown = claims._observed(text)
    assert (re.findall(r"<p[^>]*>(.*?)</p>", shown) or [None]) == [lead]
    assert shown.count("<li>") == items and ("<details>" in shown) == folded


def test_every_claim_stands_in_a_part_of_the_paper():
    places = {claim.where for experiment in experiments().values() for claim in experiment.claims}
    assert len(places) > 10 and all(paper_section(where) in set(PARTS) - {""} for where in places)
    assert (
        paper_section("Fig. 10, Sec. 5.3"),
        paper_section("Fig. 10"),
        paper_section("Sec. 9"),
        paper_section("Eqs. (5), (6)"),
    ) == (
        "5.3",
        "5.3",
        "",
        "3",
    )
