"""Multiples of the penalty that the first working sets are solved for."""

import dask
import numpy as np
import pytest

from dask_ma import SchMPLogisticRegression
from dask_ma.comm import LocalGroup
from dask_ma.data import Block, Shard
from dask_ma.kernels import SquaredError, log_loss_of
from dask_ma.layouts._row_design import RowDesign
from dask_ma.schmp.l1 import _levels, _working_set
from dask_ma.schmp.l1._levels import next_level, raised
from dask_ma.schmp.l1._losses import WeightedLoss
from dask_ma.schmp.l1._problem import Objective, Penalty

N_CLASSES, N_FEATURES = 4, 400


@pytest.fixture
def of_few(monkeypatch):
    """There are levels for so few coefficients, too."""
    monkeypatch.setattr(_levels, "_FEWEST", N_CLASSES * N_FEATURES)


@pytest.fixture(scope="module")
def alike():
    """100 rows of 400 columns in large units, made of twelve that nobody sees."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(100, 12))
    X = hidden @ rng.normal(size=(12, N_FEATURES))
    X = 20 * (X + 0.5 * rng.normal(size=X.shape))
    noise = 0.3 * rng.normal(size=(100, N_CLASSES))
    return X, (hidden[:, :N_CLASSES] + noise).argmax(axis=1)


def largest(fit):
    return max(record["working_set"] for record in fit.history_)


@pytest.fixture(scope="module")
def tight(alike):
    """The optimum, to rounding, without any level."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_levels, "_FEWEST", 2**60)
        fit = SchMPLogisticRegression(1e-3, tol=1e-11).fit(*alike)
    assert largest(fit) > 12 * fit.history_[-1]["n_nonzero"]
    return fit.history_[-1]["objective"]


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_working_sets_stay_near_what_is_needed(of_few, alike, tight, n_ranks):
    fit = SchMPLogisticRegression(1e-3, tol=1e-6, n_ranks=n_ranks).fit(*alike)
    last = fit.history_[-1]
    assert largest(fit) < 9 * last["n_nonzero"]
    # Levels fall fast.
    assert len(fit.history_) <= 10
    assert -1e-9 <= last["objective"] - tight <= 1.01 * fit.dual_gap_ + 1e-9


def test_a_resumed_fit_goes_down_the_same_levels(
    of_few, alike, interrupted, monkeypatch, tmp_path
):
    levels, n_ranks = [], 2

    def noted(*args):
        levels.append(next_level(*args))
        return levels[-1]

    monkeypatch.setattr(_working_set, "next_level", noted)

    def fit():
        return SchMPLogisticRegression(1e-3, tol=1e-6, n_ranks=n_ranks).fit(*alike)

    whole = fit()
    assert levels[2 * n_ranks] > 1  # of the first round after the state that is kept
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(2):
            fit()
        levels.clear()
        resumed = fit()
    assert levels[0] > 1
    assert resumed.n_iter_ == whole.n_iter_
    np.testing.assert_allclose(resumed.coef_, whole.coef_, rtol=1e-9, atol=1e-12)


def test_an_elastic_net_with_weights_and_without_some_penalties(
    of_few, alike, monkeypatch
):
    """The optimum is that of the penalty itself, with smaller working sets."""
    weights = np.ones(N_FEATURES)
    weights[:3] = 0.0
    weights[3:100] = 2.0
    params = {"l1_ratio": 0.6, "feature_weights": weights, "tol": 1e-7}
    fit = SchMPLogisticRegression(1e-3, **params).fit(*alike)
    monkeypatch.setattr(_levels, "_FEWEST", 2**60)
    other = SchMPLogisticRegression(1e-3, **params).fit(*alike)
    assert largest(fit) < 0.7 * largest(other)
    ends = [one.history_[-1]["objective"] for one in (fit, other)]
    assert abs(ends[0] - ends[1]) <= fit.dual_gap_ + other.dual_gap_ + 1e-12


def make_objective(loss, n_features=5000):
    X, y = np.zeros((2, n_features)), np.array([0.0, 1.0])
    [group] = LocalGroup.create(1)
    shard = Shard([Block(X, y, None, 0, 0)], n_features, X.dtype)
    ones = np.ones(n_features)
    weighted = WeightedLoss(loss, y, np.full(2, 0.5))
    penalty = Penalty(ones, ones, positive=False)
    return Objective(RowDesign(group, shard), weighted, penalty, fit_intercept=True)


def test_what_the_next_level_is():
    objective = make_objective(log_loss_of(1))
    ratios = np.array([7.0, 90.0, 30.0, 20.0, 8.0])
    # Of three that come in, the one that is nearest to its bound.
    assert next_level(objective, ratios, 1000.0, 3) == 20
    # A small part of the level so far, at most.
    assert next_level(objective, ratios, 100.0, 3) == pytest.approx(5)
    # Never less than the penalty that is asked for.
    assert next_level(objective, ratios, 10.0, 3) == 1
    # All that violate optimality may come in.
    assert next_level(objective, ratios, 1000.0, 6) == 1
    assert next_level(objective, ratios, 1000.0, 5) == 7


def test_few_coefficients_and_squares_have_no_levels():
    ratios = np.array([70.0, 90.0, 30.0])
    few = make_objective(log_loss_of(1), n_features=4000)
    assert next_level(few, ratios, 1e4, 2) == 1
    squares = make_objective(SquaredError())
    assert next_level(squares, ratios, 1e4, 2) == 1


def test_a_multiple_of_a_penalty():
    penalty = Penalty(np.array([1.0, 0.0]), np.array([2.0, 3.0]), positive=False)
    assert raised(penalty, 1.0) is penalty
    twice = raised(penalty, 2.0)
    assert twice.l1.tolist() == [2.0, 0.0]
    assert twice.l2.tolist() == [4.0, 6.0]
    assert penalty.l1.tolist() == [1.0, 0.0]
