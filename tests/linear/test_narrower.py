"""Refinements of kinked losses, whose width becomes less and less."""

import numpy as np
import pytest

from dask_ma.linear.refine._coordinates import Coordinates, Found, Penalty
from dask_ma.linear.refine._lbfgs import LBFGS
from dask_ma.linear.refine._search import Track
from dask_ma.linear.refine._share import Share

TOLERANCE = 1e-3


class Greedy(LBFGS):
    """One that takes no point for the end."""

    def left(self, along):
        return np.inf


def make_track(rule=LBFGS):
    """A track without a bound of what is left, and its rule."""
    coordinates = Coordinates(
        np.zeros(2), np.ones(2), Penalty(0.0, 0.0), np.zeros(1), fit_intercept=False
    )
    share = Share(2)
    rule = rule(coordinates.l1, share)
    return Track(np.ones(2), rule, coordinates, share, 1.0, 1e-3), rule


def parabola(point):
    return point * [1.0, 0.1]


def endless(point):
    """Slopes of a function without a minimum."""
    return 1e-3 * np.exp(point * [0.1, 0.2])


def tell(track, value, gap, slopes):
    found = Found(value, value, gap, slopes(track.trial), None, None)
    track.note(found)
    track.update(found, TOLERANCE)


def steps_at_first_width(track, gains, gap, slopes=endless):
    """Steps until it is narrower, each of which gains something."""
    for n, total in enumerate(np.cumsum(gains), 1):
        tell(track, 1 - total, gap, slopes)
        if track.width < 1.0:
            return n
    return None


def test_what_was_learnt_of_a_wider_loss_is_kept():
    track, rule = make_track()
    assert steps_at_first_width(track, [1e-5] * 20, 0.1, parabola) is not None
    assert rule.has_memory
    # The first step with the narrower loss already goes by it.
    slopes = parabola(track.trial)
    tell(track, 0.5, 0.1, parabola)
    assert not np.allclose(rule.step, -slopes)


# Ten steps that gain a twentieth of what the width costs are the least that go on.
SLOW, QUICK = 4e-4, 6e-4


def test_a_width_that_costs_more_than_its_steps_gain_is_left():
    """A bound, or steps before, may say for long that much is left."""
    track, _ = make_track(Greedy)
    assert steps_at_first_width(track, [QUICK] * 30, 0.1) is None
    track, _ = make_track(Greedy)
    assert steps_at_first_width(track, [SLOW] * 30, 0.1) == 11


@pytest.mark.parametrize(("n_quick", "factor"), [(0, 0.1), (5, 0.1), (20, 0.5)])
def test_a_width_that_took_many_steps_shrinks_less(n_quick, factor):
    """With the next one there will be many, too, from as far away as it begins."""
    track, _ = make_track(Greedy)
    gains = [QUICK] * n_quick + [1e-5] * 11
    assert steps_at_first_width(track, gains, 0.1) is not None
    assert track.width == pytest.approx(factor)
