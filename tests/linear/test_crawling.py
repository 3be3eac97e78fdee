"""Refinements that crawl from the weights that SGD has left, or know little."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import entr
from sklearn.exceptions import ConvergenceWarning

from dask_ma import MASGDClassifier
from dask_ma.linear.refine._constant import constant_objective
from dask_ma.linear.refine._coordinates import Coordinates, Found, Penalty
from dask_ma.linear.refine._lbfgs import LBFGS
from dask_ma.linear.refine._newton import Newton
from dask_ma.linear.refine._search import Track
from dask_ma.linear.refine._share import Share

TOLERANCE = 1e-3


class Content(LBFGS):
    """One that takes every point for the end."""

    def left(self, along):
        return 0.0


def make_track(rule, *, is_warm, start=(1e3,), fit_intercept=False):
    coordinates = Coordinates(
        np.zeros(1),
        np.ones(1),
        Penalty(1.0, 0.0),
        np.zeros(1),
        fit_intercept=fit_intercept,
    )
    share = Share(1)
    rule = rule(coordinates.l1, share)
    start = np.array(start)
    return Track(start, rule, coordinates, share, 1.0, 1.0, is_warm=is_warm)


def tell(track, objective, slopes, gap=0.0):
    columns = np.arange(len(slopes))
    hessian = np.eye(len(slopes))
    found = Found(objective, objective, gap, np.array(slopes), hessian, columns)
    track.note(found)
    track.update(found, TOLERANCE)


def steps_until_anew(track, slope, gap, n_steps):
    """Steps after which the trial is zero; each of them gains a little."""
    for n in range(1, n_steps + 1):
        tell(track, 1 - 5e-4 * n, [slope], gap)
        if (track.trial == 0).all():
            return n
    return None


@pytest.mark.parametrize(
    ("slope", "gap", "expected"),
    [
        # By a bound of twice the objective nothing is known, with a kink or not.
        pytest.param(2.0, 2e-3, 30, id="kinked, nothing is known"),
        pytest.param(2.0, 0.0, 30, id="smooth, nothing is known"),
        # A half of it is left at most. Bounds of a kinked loss are often as loose.
        pytest.param(0.9, 2e-3, None, id="kinked, something is known"),
        pytest.param(0.9, 0.0, 100, id="smooth, something is known"),
    ],
)
def test_a_search_that_crawls_begins_anew(slope, gap, expected):
    warm = make_track(LBFGS, is_warm=True)
    assert steps_until_anew(warm, slope, gap, 150) == expected
    cold = make_track(LBFGS, is_warm=False)
    assert steps_until_anew(cold, slope, gap, 150) is None


def test_newtons_method_does_not_begin_anew():
    """Second derivatives tell of large weights; a search from zero takes as long."""
    track = make_track(Newton, is_warm=True)
    assert steps_until_anew(track, 2.0, 2e-3, 250) is None


@pytest.mark.parametrize(
    ("slope", "gap", "left"),
    [(2.0, 2e-3, 1.0), (2.0, 0.0, 1.0), (0.9, 0.0, 0.5)],
    ids=["kinked, nothing is known", "smooth, nothing is known", "smooth, a half"],
)
def test_what_is_left_is_not_told_to_be_less_than_is_known(slope, gap, left):
    track = make_track(Content, is_warm=False)
    for n in range(20):
        tell(track, 1 - 5e-4 * n, [slope], gap)
    assert track.excess / track.objective == pytest.approx(left, rel=0.05)


def test_intercepts_of_the_best_model_count_until_a_new_search_has_come_back():
    """Those of its first steps, far from there, would bound too much from below."""
    track = make_track(LBFGS, is_warm=True, start=(1.0, -3.0), fit_intercept=True)
    track.leave()
    tell(track, 0.19, [0.7, 0.01])
    assert (track.trial == 0).all()
    # The logistic loss of 20 times as many rows of one class, at an intercept of 0.
    tell(track, 0.693, [0.0, 0.45])
    assert track.excess > TOLERANCE


@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_best_model_of_one_value(n_classes, weighted):
    shares = np.arange(1, n_classes + 1) / np.arange(1, n_classes + 1).sum()
    n_problems = n_classes if n_classes > 2 else 1
    own = shares[-n_problems:]
    factors = np.linspace(1, 3, n_problems) if weighted else np.ones(n_problems)
    problem = SimpleNamespace(
        shares=shares,
        n_problems=n_problems,
        positive_weight=factors if weighted else None,
    )
    positive, total = factors * own, factors * own + 1 - own
    expected = {
        "hinge": 2 * np.minimum(positive, 1 - own),
        "log_loss": total * (entr(positive / total) + entr((1 - own) / total)),
        "squared_hinge": 4 * positive * (1 - own) / total,
    }
    for loss, values in expected.items():
        params = SimpleNamespace(loss=loss, epsilon=0.1, fit_intercept=True)
        found = constant_objective(params, problem)
        assert found == pytest.approx(values.mean(), rel=1e-6)
        params.fit_intercept = False
        assert constant_objective(params, problem) == np.inf


def test_a_model_worse_than_one_value_is_left():
    """Steps too long for counts of rare classes: a search from there would crawl."""
    rng = np.random.default_rng(0)
    y = np.arange(600) % 10
    rates = rng.lognormal(sigma=2, size=60) * rng.lognormal(sigma=0.6, size=(10, 60))
    X = rng.poisson(0.3 * rates[y]).astype(float)
    params = {"refine": "lbfgs", "refine_max_iter": 40, "random_state": 0}
    steps = {"learning_rate": "constant", "eta0": 0.1, "max_iter": 1, "tol": None}
    ends = []
    for changes in (steps, {"max_iter": 0}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = MASGDClassifier(**params, **changes).fit(X, y)
        ends.append(model.history_[-1]["objective"])
    assert ends[0] < 2 * ends[1]
