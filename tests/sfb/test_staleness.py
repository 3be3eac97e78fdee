"""The rule of bounded staleness, as an object."""

import numpy as np
import pytest

from dask_ma.sfb.exchange._staleness import Staleness


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_who_waits_for_whom(bound):
    rule = Staleness.checked(np.int64(bound))
    assert rule == Staleness(bound)
    assert rule.is_synchronous == (bound == 0)
    for made in range(6):
        for received in range(8):
            assert rule.must_wait(made, received) == (made > received + bound)
            assert rule.may_apply(made, received) == (received < made)


def test_a_rank_that_never_waits_too_long_is_never_too_far_ahead():
    """Ranks that go on whenever they may, in random order."""
    rng, rule, made = np.random.default_rng(0), Staleness(2), [0, 0, 0]
    ahead = set()
    for rank in rng.choice(3, 3000, p=[0.1, 0.4, 0.5]):
        if not any(rule.must_wait(made[rank], other) for other in made):
            made[rank] += 1  # the factors are sent, and arrive at once
            ahead.add(max(made) - min(made))
    # The third one is what they send before they wait.
    assert ahead == {0, 1, 2, 3}
    assert min(made) > 100


@pytest.mark.parametrize("bound", [-1, 1.0, True, "2", None])
def test_bounds_that_cannot_be(bound):
    with pytest.raises(ValueError, match="staleness must be an integer from 0 on, got"):
        Staleness.checked(bound)
