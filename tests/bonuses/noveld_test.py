"""NovelD and BeBold against their formula, with novelties that can be written down."""

import jax
import numpy as np
import pytest
from bonuses.by_hand import embedded, episodes
from contracts.settings import Walk, collected, quick, rnd

from made.bonuses import RIDE, Count, HashedCount, Normalized, NovelD, make_bonus
from made.core.config import to_dict


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_pays_the_gain_in_novelty_at_first_visits_only(alpha):
    bonus = NovelD(rnd(), alpha=alpha)
    _, state, batch, _ = collected(bonus, Walk(), 12, 0)
    paid = np.asarray(quick(bonus.reward)(state, batch))

    def novelty(obs):
        return np.linalg.norm(embedded(state.target, obs) - embedded(state.predictor.params, obs))

    held_back = 0
    for n, times in episodes(batch):
        seen = {int(batch.obs[times[0], n])}
        for t in times:
            here, there = int(batch.obs[t, n]), int(batch.next_obs[t, n])
            gain = max(novelty(there) - alpha * novelty(here), 0)
            assert np.isclose(paid[t, n], gain if there not in seen else 0, rtol=1e-4, atol=1e-6)
            held_back += gain > 0 and there in seen
            seen.add(there)
    assert (paid > 0).any() and held_back > 0


def test_it_does_not_matter_at_which_end_the_novelty_looks():
    make = lambda on: NovelD(HashedCount(bits=8, on=on, power=1.0))  # noqa: E731
    _, state, batch, _ = collected(make("next_obs"), Walk(), 12, 0)
    state, _ = quick(make("next_obs").update)(state, batch, jax.random.key(0))
    a, b = (quick(make(on).reward)(state, batch) for on in ("obs", "next_obs"))
    assert np.array_equal(a, b)
    assert "action" in NovelD(Count()).reads and "action" not in make("obs").reads


def test_a_novelty_with_an_episodic_memory_is_refused_and_a_normalised_one_is_not():
    with pytest.raises(ValueError, match="RIDE keeps an episodic memory"):
        NovelD(RIDE())
    assert NovelD(Normalized(rnd())).reads == ("obs", "next_obs", "next_note")
    assert [to_dict(make_bonus(name))["alpha"] for name in ("noveld", "bebold")] == [0.5, 1.0]
