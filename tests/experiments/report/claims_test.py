"""How the numbers of a verdict are shown, and where a claim stands in the paper."""

import math
import re

import pytest

from made.experiments import experiments
from made.experiments.report import claims, effects
from made.experiments.report.model import PARTS, paper_section
from made.experiments.types import Effect


@pytest.mark.parametrize(("what", "none"), [("A minus B", 0.0), ("frames, A's over B's", 1.0)])
def test_an_interval_is_drawn_on_a_scale_that_holds_the_line_of_no_effect(what, none):
    drawn = effects.drawn([Effect("x", 3, 2, 4, what, none), Effect("y", 5, 4, math.inf, what, none)])
    at = [[float(x) for x in re.findall(r'x[12]="([\d.]+)"', row)] for row in drawn.split("<tr>")[2:]]
    (zero, _, low, high, middle, _), (_, _, lower, end, _, _) = at
    assert f"the line marks {none:g}" in drawn and 0 < zero < low < middle < high <= lower < end <= 100
    assert middle - low == pytest.approx(high - middle, abs=0.02)


def claim_with(*effects: Effect, observed: str = "x 1") -> dict:
    return {"observed": observed, "effects": [effect.to_dict() for effect in effects], "holds": True, "seeds": 3}


def test_the_table_shows_the_first_number():
    assert claims._gist(claim_with(Effect("Eq. (6)", 4e-16, unit="error"), Effect("b", 1.0))) == "error: Eq. (6) 4e-16"
    assert claims._gist(claim_with(observed="x " * 200)).endswith("x…"), "of an older report: the sentence"


@pytest.mark.parametrize(("n", "items", "folded"), [(1, 0, False), (3, 3, False), (9, 9, True)])
def test_many_numbers_become_a_list_and_the_first_stays_in_sight(n, items, folded):
    shown = claims._observed(claim_with(*(Effect(f"s{i}", float(i), unit="steps") for i in range(n))))
    assert shown.count("<li>") == items and ("<details>" in shown) == folded
    assert items == 0 or "<p>steps: s0 0</p>" in shown


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
