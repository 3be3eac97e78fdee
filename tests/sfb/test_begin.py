"""Starts of fits from the model of a fit before."""

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

from dask_ma import SFBLogisticRegression

X, Y = load_wine(return_X_y=True)
STANDARDISED = StandardScaler().fit_transform(X)


@pytest.mark.pairs
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("solver", ["sgd", "sdca"])
def test_a_start_that_is_worse_than_none(n_ranks, classes, solver):
    """A fit to rows of another scale is as if there had been none before."""
    rows = classes > Y
    model = SFBLogisticRegression(solver=solver, n_ranks=n_ranks, random_state=0)
    if solver == "sdca":
        model.set_params(alpha=100)  # else it takes long with rows as they are
    expected = model.fit(X[rows], Y[rows]).coef_
    model.fit(STANDARDISED[rows], Y[rows]).set_params(warm_start=True)
    model.coef_ = model.coef_ * 10  # worse for sure
    np.testing.assert_array_equal(model.fit(X[rows], Y[rows]).coef_, expected)


def test_a_start_that_is_better_is_taken():
    model = SFBLogisticRegression(random_state=0).fit(STANDARDISED, Y)
    n_rounds = model.n_iter_
    assert model.set_params(warm_start=True).fit(STANDARDISED, Y).n_iter_ < n_rounds


def test_streams_go_on_from_any_model():
    """A call of partial fits may follow rows of another kind."""
    model = SFBLogisticRegression(eta0=1e-9, random_state=0)
    model.partial_fit(STANDARDISED, Y, classes=[0, 1, 2])
    model.coef_ = np.full_like(model.coef_, 5.0) * [[1], [2], [3]]
    before = model.coef_.copy()
    model.partial_fit(STANDARDISED, Y)
    np.testing.assert_allclose(model.coef_, before, atol=0.1)
