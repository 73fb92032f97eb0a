"""The memory of a long training does not grow."""

import numpy as np
import pytest

from tests.reliability import memory_growth


@pytest.mark.reliability
def test_memory_is_flat_over_half_an_hour(check):
    check("soak", memory_growth.soak)


def test_memory_that_grows_is_told_from_memory_that_is_flat():
    seconds = np.linspace(0, 1800, 400)
    noise = np.random.default_rng(0).normal(0, 2, 400)
    warm = np.minimum(seconds / 60, 1) * 300
    flat, leaky = (memory_growth.judge(seconds, 800 + warm + noise + slope * seconds / 3600) for slope in (0, 200))
    assert abs(flat["growth_mib"]) < 2 and leaky["growth_mib"] == pytest.approx(200 / 3, abs=2)
    assert leaky["growth_mib"] > max(memory_growth.SHARE * leaky["mean_mib"], memory_growth.LEAST)
    mib, files, threads = memory_growth.looked_at("self")
    assert mib > 50 and files >= 3 and threads >= 1
