"""An elastic net with next to nothing of L2: bounds that say something, and no warning.

The dual objective divides by the weight of the L2 part what a dual point exceeds that
of the L1 part by, which rounding alone then makes as large as you like.
"""

import numpy as np
import pytest
from scipy import sparse

from dask_ma import SFBLogisticRegression
from dask_ma.sfb.logistic import _objective
from dask_ma.sfb.logistic._objective import Objective
from dask_ma.sfb.logistic._penalty import Penalty

ALPHA = 3e-3


@pytest.fixture(scope="module")
def problem():
    """400 rows of 30 features, some of which matter, and labels of three classes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 30))
    W = rng.normal(size=(30, 3)) * (rng.random((30, 3)) < 0.2)
    return X, np.argmax(X @ W + rng.gumbel(size=(400, 3)), axis=1)


def labels(problem, n_classes):
    X, y = problem
    return X, y if n_classes == 3 else (y > 0).astype(int)


@pytest.mark.each
@pytest.mark.parametrize("share", [1e-3, 1e-5, 1e-7, 1e-10, 1e-15, 0.0])
@pytest.mark.parametrize("solver", ["sdca", "sgd"])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_optimum(problem, value, best, share, solver, n_classes, kind, n_ranks, dtype):
    """That of scikit-learn, with a gap that says so: a warning would be an error."""
    X, y = labels(problem, n_classes)
    of = {"penalty": "elasticnet", "l1_ratio": 1 - share}
    expected = best(X, y, ALPHA, **of)
    solver = solver if share else "auto"  # no dual ascent
    model = SFBLogisticRegression(
        alpha=ALPHA, solver=solver, n_ranks=n_ranks, random_state=0, **of
    )
    model.fit(kind(X.astype(dtype)), y)
    found = value(model, X, y, **of)
    assert -1e-6 <= found / expected - 1 <= 1e-3
    # The bound is one, and the gap at most what was asked for.
    assert found - model.dual_gap_ <= expected * (1 + 1e-6)
    assert model.dual_gap_ <= 1e-3 * found * (1 + 1e-6)


@pytest.mark.parametrize("share", [1e-2, 1e-4, 1e-10])
def test_passes_alone(problem, value, share):
    """Without steps on the whole objective, too, a model is better than none."""
    of = {"penalty": "elasticnet", "l1_ratio": 1 - share}
    model = SFBLogisticRegression(alpha=1e-2, refine=False, random_state=0, **of)
    model.set_params(n_ranks=2, tol=0.3).fit(*problem)
    assert model.solver_ == "sgd"
    found = value(model, *problem, **of)
    assert found < 0.9 * np.log(3) and model.dual_gap_ <= 0.3 * found


def test_slopes_of_the_conjugate():
    """Beside differences of the conjugate."""
    values = np.random.default_rng(0).normal(size=(9, 4))
    penalty = Penalty.of("elasticnet", 0.8, 0.75)
    for factor in (0.2, 0.7, 1.0):
        found = penalty.conjugate_along(np.abs(values), factor) / penalty.l2
        below, at, above = (
            penalty.conjugate((factor + step) * values) for step in (-1e-4, 0, 1e-4)
        )
        assert found[0] == pytest.approx(at, rel=1e-12)
        assert found[1] == pytest.approx((above - below) / 2e-4, rel=1e-6, abs=1e-9)
        curvature = (above - 2 * at + below) / 1e-8
        assert found[2] == pytest.approx(curvature, rel=1e-5, abs=1e-6)


@pytest.fixture
def looks(monkeypatch):
    """What bounds were found from, and how often what was looked at for them."""
    seen = {"bounds": [], "_mixed": 0, "_least_along": 0, "_entropies": 0}
    bound = Objective._bound

    def noted(objective, matrix, gradient, slopes, values):
        found = bound(objective, matrix, gradient, slopes, values)
        seen["bounds"].append((found, gradient.copy(), values[2]))
        return found

    def counted(name):
        original = getattr(Objective, name)

        def count(*args):
            seen[name] += 1
            return original(*args)

        monkeypatch.setattr(Objective, name, count)

    monkeypatch.setattr(Objective, "_bound", noted)
    for name in ("_mixed", "_least_along", "_entropies"):
        counted(name)
    return seen


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_plain_l2_has_the_bound_at_the_slopes(problem, looks, fit_intercept):
    """None nearer to zero is looked for, nor are the rows without an intercept."""
    params = {"alpha": 1e-4, "solver": "sgd", "fit_intercept": fit_intercept}
    SFBLogisticRegression(**params, n_ranks=1, random_state=0).fit(*problem)
    n_bounds = len(looks["bounds"])
    assert looks["_mixed"] == n_bounds > 2 and not looks["_least_along"]
    if fit_intercept:
        return
    assert not looks["_entropies"]
    penalty = Penalty.of("l2", 1e-4, 0.0)
    for found, gradient, entropy in looks["bounds"]:
        assert found == entropy - penalty.conjugate(-gradient)


@pytest.mark.parametrize("share", [0.5, 1e-10])
def test_elements_are_collected_once_where_it_matters(problem, looks, share):
    """And where an elastic net is about at its optimum, there is one look alone."""
    of = {"penalty": "elasticnet", "l1_ratio": 1 - share, "alpha": 1e-2}
    SFBLogisticRegression(**of, n_ranks=1, random_state=0, tol=1e-6).fit(*problem)
    is_needed = looks["_least_along"] == len(looks["bounds"])
    assert is_needed == (share < 0.5)
    assert looks["_mixed"] == len(looks["bounds"]) + looks["_least_along"]


@pytest.mark.parametrize("most", [1, 2, 3, 30])
def test_the_factor_is_that_of_the_conjugate(problem, monkeypatch, most):
    """However soon it is no longer looked for, and for all elements."""
    seen = []
    least_along, mixed = Objective._least_along, Objective._mixed

    def noted(objective, gradient, mix, slope, found):
        factor, least = least_along(objective, gradient, mix, slope, found)
        parts = [factor * values for values in mixed(objective, gradient, mix)]
        seen.append((least, sum(map(objective._penalty.conjugate, parts))))
        return factor, least

    monkeypatch.setattr(_objective, "_MOST_FACTORS", most)
    monkeypatch.setattr(Objective, "_least_along", noted)
    of = {"penalty": "elasticnet", "l1_ratio": 1 - 1e-6, "alpha": ALPHA}
    SFBLogisticRegression(**of, n_ranks=1, random_state=0, tol=0.1).fit(*problem)
    assert seen
    for found, expected in seen:
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)
