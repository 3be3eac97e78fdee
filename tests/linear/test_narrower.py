"""Refinements of kinked losses, whose width becomes less and less."""

import numpy as np

from dask_ma.linear.refine._coordinates import Coordinates, Found, Penalty
from dask_ma.linear.refine._lbfgs import LBFGS
from dask_ma.linear.refine._search import Track
from dask_ma.linear.refine._share import Share

TOLERANCE = 1e-3


def make_track():
    """A track without a bound of what is left, and its rule."""
    coordinates = Coordinates(
        np.zeros(2), np.ones(2), Penalty(0.0, 0.0), np.zeros(1), fit_intercept=False
    )
    share = Share(2)
    rule = LBFGS(coordinates.l1, share)
    return Track(np.ones(2), rule, coordinates, share, 1.0, 1e-3), rule


def tell(track, value, gap):
    """A step's value, with gradients of a parabola that is longer one way."""
    found = Found(value, value, gap, track.trial * [1.0, 0.1], None, None)
    track.note(found)
    track.update(found, TOLERANCE)


def steps_at_first_width(track, gain, gap, n_steps):
    """Steps until it is narrower, each of which gains the same."""
    for n in range(1, n_steps + 1):
        tell(track, 1 - gain * n, gap)
        if track.width < 1.0:
            return n
    return None


def test_what_was_learnt_of_a_wider_loss_is_kept():
    track, rule = make_track()
    assert steps_at_first_width(track, 1e-5, 0.1, 20) is not None
    assert rule.has_memory
    # The first step with the narrower loss already goes by it.
    slopes = track.trial * [1.0, 0.1]
    tell(track, 0.5, 0.1)
    assert not np.allclose(rule.step, -slopes)
