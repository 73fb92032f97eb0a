"""A verdict as data, and the text that is made from it."""

import json
import math

import numpy as np
import pytest

from made.experiments.statistics import Interval
from made.experiments.types import Effect, Verdict, decide, effects_of, few_seeds


@pytest.mark.parametrize(
    ("effect", "text"),
    [
        (Effect("vi", 0.5, 0.25, 0.75, seeds=20), "0.5 [0.25, 0.75]"),
        (Effect("vi", 0.5, 0.25, math.inf, seeds=3), "0.5 [0.25, not reached] (3 seeds)"),
        (Effect("vi", 0.5, seeds=1), "0.5 [one seed, no interval]"),
        (Effect("vi", math.inf), "not reached"),
        (Effect("vi", math.inf, 12000.0, math.inf, seeds=5), "not reached [12000, not reached]"),
        (Effect("vi", 3), "3"),
    ],
)
def test_effect_becomes_text_and_survives_json(effect, text):
    assert effect.text == text
    back = Effect.from_dict(json.loads(json.dumps(effect.to_dict(), allow_nan=False)))
    assert back.text == text and back.to_dict() == effect.to_dict()


def test_numpy_numbers_become_json():
    effect = Effect("vi", np.float32(0.5), np.int64(0), np.float64(np.inf), "return")  # type: ignore[arg-type]
    assert json.loads(json.dumps(effect.to_dict()))["low"] == 0


def test_verdict_text_names_what_is_missing_then_each_unit_once():
    effects = (Effect("a", 1.0, unit="return"), Effect("b", 2.0, unit="steps"), Effect("c", 3.0, unit="return"))
    verdict = Verdict(None, effects, missing=("task x", "3 of 5 seeds"), note="b is a control")
    assert verdict.observed == "Missing: task x; 3 of 5 seeds. Return: a 1; c 3. Steps: b 2. b is a control"
    assert Verdict(True, (Effect("", 4.0),)).observed == "4"


def test_intervals_without_a_seed_are_no_effects_and_count_as_missing_seeds():
    none, some = (Interval(math.nan, math.nan, math.nan, n) for n in (0, 1))
    assert [effect.name for effect in effects_of({"a": none, "b": some}, "return")] == ["b"]
    assert few_seeds(7, 0) == ("0 of 5 seeds",) and few_seeds(5, 9) == few_seeds() == ()


def test_a_rule_holds_or_fails_only_where_nothing_is_missing_unless_it_fails_whatever_is_missing():
    effect, lack = Effect("vi", 1.0), ("2 of 5 seeds",)
    assert decide(True, [effect]) == Verdict(True, (effect,)) and decide(False, [effect]) == Verdict(False, (effect,))
    assert decide(True, [effect], lack) == decide(False, [effect], lack) == Verdict(None, (effect,), missing=lack)
    assert decide(True, [], lack, fails=True) == Verdict(False) and decide(False, [], fails=False).holds is None
    assert Verdict(True, (effect,)).also(effect).effects == (effect, effect)
