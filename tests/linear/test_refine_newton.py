"""Minima of quadratic models with an L1 norm."""

import numpy as np
import pytest
from sklearn.linear_model import Lasso

from dask_ma.linear.refine._newton import minimize_model


@pytest.mark.parametrize(
    ("n_features", "alpha"), [(10, 1e-4), (60, 1e-4), (60, 1e-2), (120, 1e-2)]
)
def test_the_minimum_is_that_of_the_lasso(n_features, alpha):
    """Also with more columns than rows, where sweeps alone need thousands."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, n_features))
    y = X[:, :5].sum(axis=1) + 0.1 * rng.normal(size=40)
    expected = Lasso(alpha=alpha, fit_intercept=False, tol=1e-12, max_iter=10**6)
    expected.fit(X, y)
    gram = X.T @ X / 40 + 1e-10 * np.eye(n_features)
    l1 = np.full(n_features, alpha)
    for start in (np.zeros(n_features), rng.normal(size=n_features)):
        found = minimize_model(gram, -X.T @ y / 40, l1, start)
        np.testing.assert_allclose(found, expected.coef_, atol=1e-5)
        np.testing.assert_array_equal(found == 0, expected.coef_ == 0)
