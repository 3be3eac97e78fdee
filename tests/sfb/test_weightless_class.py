"""Classes that have next to no weight, or none: what the others make of the rows."""

import numpy as np
import pytest

from dask_ma import SFBLogisticRegression

N_CLASSES = 5


@pytest.fixture(scope="module")
def rows():
    """Rows of five classes, the third of which is to have next to no weight."""
    rng = np.random.default_rng(2)
    y = rng.integers(N_CLASSES, size=200)
    return rng.normal(size=(200, 6)) + 2 * rng.normal(size=(N_CLASSES, 6))[y], y


def objective_of_others(rows, **params):
    """Least objective of the rows of the other classes alone."""
    X, y = rows
    others = y != 2
    model = SFBLogisticRegression(tol=1e-7, **params).fit(X[others], y[others])
    return model.history_[-1]["objective"]


@pytest.mark.pairs
@pytest.mark.parametrize("weight", [0.0, 1e-20, 1e-12])
@pytest.mark.parametrize("penalty", ["l2", "elasticnet"])
@pytest.mark.parametrize("solver", ["sdca", "sgd"])
@pytest.mark.parametrize("may_refine", ["auto", False])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_the_optimum_is_that_of_the_others(
    rows, weight, penalty, solver, may_refine, n_ranks
):
    """Its intercept goes to minus infinity, and a fit knows when it is near enough."""
    params = {"penalty": penalty, "alpha": 0.01, "random_state": 0}
    least = objective_of_others(rows, **params)
    params |= {"solver": solver, "refine": may_refine, "n_ranks": n_ranks}
    if solver == "sgd" and may_refine is False:
        params |= {"tol": None, "max_iter": 30}  # no bound is asked for
    model = SFBLogisticRegression(class_weight={2: weight}, **params).fit(*rows)
    found = min(record["objective"] for record in model.history_)
    assert 2 not in model.predict(rows[0])
    if "tol" in params:
        assert found < 1.2 * least
        return
    assert found - least - 1e-7 <= model.dual_gap_ <= 1e-3 * found
