"""How far an objective can be above its optimum, by the gradient alone."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Ridge
from sklearn.preprocessing import StandardScaler

from dask_ma import MASGDClassifier
from dask_ma.linear.refine._coordinates import Coordinates, Found, Penalty
from dask_ma.linear.refine._floor import Floor, intercept_rest
from dask_ma.linear.refine._lbfgs import LBFGS
from dask_ma.linear.refine._search import Track
from dask_ma.linear.refine._share import Share

ALPHA, N_ROWS, N_FEATURES = 0.1, 60, 8


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_FEATURES)) * np.logspace(-1, 1, N_FEATURES) + 1
    return X, X @ rng.normal(size=N_FEATURES) + rng.normal(size=N_ROWS) + 2


@pytest.mark.parametrize("l1_ratio", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("distance", [0.0, 1e-6, 1e-2, 1.0])
def test_no_model_is_further_above(rows, l1_ratio, distance):
    X, y = rows
    peer = Ridge(alpha=ALPHA * N_ROWS)
    if l1_ratio:
        peer = ElasticNet(alpha=ALPHA, l1_ratio=l1_ratio, tol=1e-14, max_iter=10**6)
    peer.fit(X, y)
    penalty = Penalty(ALPHA * (1 - l1_ratio), ALPHA * l1_ratio)
    coordinates = Coordinates(
        X.mean(axis=0), (X**2).mean(axis=0), penalty, np.zeros(1), fit_intercept=True
    )
    scale = coordinates.standardization.scale
    columns = np.column_stack(
        [(X - X.mean(axis=0)) / scale, np.ones(N_ROWS)]
    )  # in which the points are

    def objective(point):
        loss = np.square(y - columns @ point).mean() / 2
        l2 = 0.5 * coordinates.l2 @ point**2
        return loss + l2 + coordinates.l1 @ np.abs(point)

    best = np.append(peer.coef_ * scale, y.mean())
    rng = np.random.default_rng(1)
    for _ in range(20):
        # Intercepts are taken to be off by their size at most.
        point = best * (1 + distance * rng.uniform(-0.5, 0.5, len(best)))
        gradient = columns.T @ (columns @ point - y) / N_ROWS + coordinates.l2 * point
        paid, slope, end, most = coordinates.bound_parts(point, gradient)
        bound = coordinates.bound(paid, most, objective(point))
        bound += intercept_rest(slope, end, coordinates.reach)
        excess = objective(point) - objective(best)
        assert bound >= excess - 1e-12
        if distance < 1:
            assert bound <= 1e-5 + 300 * distance * objective(best)


def test_nothing_is_known_without_a_penalty():
    coordinates = Coordinates(
        np.zeros(2), np.ones(2), Penalty(0.0, 0.0), np.zeros(1), fit_intercept=True
    )
    paid, _, _, most = coordinates.bound_parts(np.zeros(3), np.zeros(3))
    assert coordinates.bound(paid, most, 1.0) == np.inf


def test_the_best_bound_so_far_holds():
    """A later step whose gradient is steep says nothing that is not known better."""
    coordinates = Coordinates(
        np.zeros(1), np.ones(1), Penalty(1.0, 0.0), np.zeros(1), fit_intercept=False
    )
    share = Share(1)
    track = Track(
        np.zeros(1), LBFGS(coordinates.l1, share), coordinates, share, 1.0, 0.1
    )
    for objective, value, slope in ((1.0, 0.9, 0.01), (1.2, 0.8, 5.0)):
        found = Found(objective, value, 0.05, np.array([slope]), None, None)
        track.note(found)
        track.update(found, 1e-3)
        # What the smoothness costs, and next to nothing for the first slope.
        assert track.excess == pytest.approx(0.05, rel=2e-3)
    assert track.objective == 1.0


def test_a_floor_goes_by_the_intercept_that_is_known_now():
    """What a step far from the intercept of the optimum tells holds no more there."""
    floor = Floor(1.0)
    # The logistic loss of 20 times as many rows of one class, at an intercept of 0.
    assert floor.raised(0.693, 0.45, 0.0, 0.0) == pytest.approx(0.693 - 0.45)
    optimum = 0.19
    for intercept, lowest, slope in ((-2.0, 0.25, 0.07), (-3.0, optimum, 0.0)):
        assert floor.raised(lowest, slope, intercept, intercept) <= optimum


@pytest.mark.parametrize("loss", ["log_loss", "modified_huber"])
def test_intercepts_far_from_zero(loss):
    """Rare classes, from zero: the first steps of L-BFGS are not the last ones."""
    rng = np.random.default_rng(0)
    X = sparse.random_array((800, 600), density=0.02, format="csr", rng=rng)
    y = rng.permutation(np.arange(800) % 20)
    params = {"loss": loss, "alpha": 0.01, "random_state": 0}
    ends = []
    for changes in ({"max_iter": 0, "refine": "lbfgs"}, {}):
        model = MASGDClassifier(**params, **changes).fit(X, y)
        ends.append(model.history_[-1]["objective"])
    assert ends[0] == pytest.approx(ends[1], rel=2e-3)


class Crawling(LBFGS):
    """One that takes its own small steps for the end."""

    def left(self, along):
        return 0.0


@pytest.mark.parametrize("is_warm", [True, False])
def test_a_search_begins_anew_where_its_bound_says_that_much_is_left(is_warm):
    coordinates = Coordinates(
        np.zeros(1), np.ones(1), Penalty(1.0, 0.0), np.zeros(1), fit_intercept=False
    )
    share = Share(1)
    rule = Crawling(coordinates.l1, share)
    track = Track(np.ones(1), rule, coordinates, share, 1.0, 1.0, is_warm=is_warm)

    def tell(objective, slope):
        found = Found(objective, objective, 0.0, np.array([slope]), None, None)
        track.note(found)
        track.update(found, 1e-3)

    tell(1.0, 0.9)
    assert track.excess > 1e-3
    assert (track.trial == 0).all() == is_warm
    if is_warm:
        tell(1.5, 2.0)  # of a search above the best model nothing but a bound is known
        assert track.excess > 1e-3
        assert not (track.trial == 0).all()
    tell(0.9, 1e-4)
    assert track.excess <= 1e-3


@pytest.mark.parametrize(
    ("n_rows", "noise"), [(200, 3), (40, 0)], ids=["mixed", "divided by a plane"]
)
def test_lbfgs_ends_where_nothing_is_known(n_rows, noise):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 30)) * np.exp(rng.normal(size=30))
    y = X @ rng.normal(size=30) + noise * rng.normal(size=n_rows) > 0
    model = MASGDClassifier("hinge", penalty=None, refine="lbfgs", random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model.fit(X, y)
    assert model.history_[-1]["excess"] < 1e-3


def test_a_warning_says_what_the_mean_over_classes_has_left():
    """Not that one of them has more left, where all together are near the optimum."""
    X, y = load_iris(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    params = {"loss": "log_loss", "refine": "lbfgs", "max_iter": 1, "random_state": 0}
    tol, ends = 1e-3, []
    whole = MASGDClassifier(**params, refine_tol=tol).fit(X, y)
    n_rounds = sum(record.get("refined", False) for record in whole.history_)
    for n in range(1, n_rounds + 1):
        model = MASGDClassifier(**params, refine_tol=tol, refine_max_iter=n)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            model.fit(X, y)
        ends.append(model.history_[-1]["excess"] <= tol)
        assert bool(caught) != ends[-1]
    assert not ends[0]
    assert sum(ends) > 1  # some class had more left at the end of one of these
