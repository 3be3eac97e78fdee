"""SFBLogisticRegression by dual ascent with an elastic net: optima, gaps, zeros."""

import dask
import numpy as np
import pytest
from scipy import sparse, special
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from dask_ma import SFBLogisticRegression
from dask_ma.kernels import dual_steps, row_products
from dask_ma.sfb import Exchange
from dask_ma.sfb.logistic._dual_model import ElasticDualModel

ALPHA, RATIO = 0.02, 0.5
EXACT = {"penalty": "elasticnet", "alpha": ALPHA, "l1_ratio": RATIO, "solver": "sdca"}
EXACT |= {"tol": 3e-5, "max_iter": 400, "random_state": 0, "refine": False}
EXACT |= {"communication": Exchange("factors")}
OF = {"penalty": "elasticnet", "l1_ratio": RATIO}
every_size = pytest.mark.parametrize("n_ranks", [1, 3])


def fit(X, y, weight=None, **params):
    model = clone(SFBLogisticRegression(**EXACT)).set_params(**params)
    return model.fit(X, y, sample_weight=weight)


def check(found, expected, rtol=1e-4):
    """The objective is that of the optimum, and not below it."""
    assert -1e-7 < found - expected <= rtol * expected


@pytest.mark.each
@every_size
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_scikit_learn(labelled, value, best, n_classes, fit_intercept, n_ranks):
    X, y = labelled[n_classes]
    expected = best(X, y, ALPHA, fit_intercept=fit_intercept, **OF)
    rows = sparse.csr_array(X) if n_ranks == 3 else X
    model = fit(rows, y, fit_intercept=fit_intercept, n_ranks=n_ranks)
    found = value(model, X, y, **OF)
    check(found, expected)
    assert min(r["objective"] for r in model.history_) == pytest.approx(found, rel=1e-9)
    assert fit_intercept or not model.intercept_.any()
    assert model.solver_ == "sdca"
    assert 0 < (model.coef_ == 0).mean() < 1  # zeros are exact


@pytest.mark.parametrize("l1_ratio", [0.0, 0.1, 0.9])
def test_every_mixture(labelled, value, best, l1_ratio):
    X, y = labelled[3]
    params = {"penalty": "elasticnet", "l1_ratio": l1_ratio}
    model = fit(X, y, l1_ratio=l1_ratio, n_ranks=2, max_iter=1500)
    check(value(model, X, y, **params), best(X, y, ALPHA, **params))


def test_no_l1_part_is_the_l2_penalty(labelled):
    X, y = labelled[3]
    model = fit(X, y, l1_ratio=0.0, n_ranks=2)
    plain = fit(X, y, penalty="l2", l1_ratio=0.15, n_ranks=2)
    np.testing.assert_array_equal(model.coef_, plain.coef_)


@pytest.mark.parametrize(
    "params",
    [
        {"communication__staleness": 2},
        {"communication__broadcast": 1},
        {"communication__staleness": 2, "communication__averaging": False},
        {"communication": "full_matrix"},
        {"shuffle": False},
        {"batch_size": 4},
    ],
    ids=str,
)
def test_every_way_leads_to_the_optimum(labelled, value, best, params):
    X, y = labelled[3]
    model = fit(X, y, n_ranks=3, **params)
    check(value(model, X, y, **OF), best(X, y, ALPHA, **OF))
    assert model.communication_ == params.get("communication", "factors")


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_factors_and_matrices_are_the_same(labelled, n_ranks):
    X, y = labelled[10]
    params = {"tol": None, "max_iter": 3, "n_ranks": n_ranks, "batch_size": 16}
    model = fit(X, y, **params)
    for communication in ("full_matrix", "server"):
        other = fit(X, y, communication=communication, **params)
        np.testing.assert_allclose(other.coef_, model.coef_, atol=1e-12)
        np.testing.assert_allclose(other.intercept_, model.intercept_, atol=1e-12)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_weights(labelled, value, best, n_classes):
    """A row that weighs as much as several is as good as so many."""
    X, y = labelled[n_classes]
    rng = np.random.default_rng(0)
    weights, factors = rng.integers(1, 4, 120), np.array([1, 3, 2])[:n_classes]
    times = weights * factors[y]
    rows, labels = np.repeat(X, times, axis=0), np.repeat(y, times)
    expected = best(rows, labels, ALPHA, **OF)
    class_weight = dict(enumerate(factors.tolist()))
    model = fit(X, y, weights, class_weight=class_weight, n_ranks=2)
    check(value(model, rows, labels, **OF), expected)


def test_float32(labelled, value, best):
    X, y = labelled[3]
    model = fit(X.astype(np.float32), y, n_ranks=2)
    assert model.coef_.dtype == np.float32
    check(value(model, X, y, **OF), best(X, y, ALPHA, **OF))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_penalty_that_leaves_nothing(labelled, n_classes):
    """The intercepts alone, whose optimum is known."""
    X, y = labelled[n_classes]
    model = fit(X, y, alpha=10.0, tol=1e-9, n_ranks=2, max_iter=60)
    assert not model.coef_.any()
    shares = np.bincount(y) / len(y)
    expected = special.entr(shares).sum()
    assert model.history_[-1]["objective"] == pytest.approx(expected, rel=1e-8)
    assert 0 <= model.dual_gap_ <= 1e-9 * expected


def test_early_stopping(labelled):
    X, y = labelled[3]
    model = fit(X, y, early_stopping=True, tol=0.5, n_iter_no_change=2, n_ranks=2)
    assert model.n_iter_ == 3
    best = max(record["validation_score"] for record in model.history_)
    held = {"early_stopping": True, "tol": None, "n_ranks": 2}
    one = fit(X, y, max_iter=1, **held)
    assert one.history_[0]["validation_score"] <= best


# The steps, and the duality gap -------------------------------------------------------


def soft(Z, l1):
    return np.sign(Z) * np.maximum(np.abs(Z) - l1, 0)


def slow_fit(X, y, weight, l1, l2, n_ranks, n_passes):
    """All rows of a rank in a batch, sums of all rows anew; Z, W, b and the dual."""
    n, J = len(y), y.max() + 1
    weight = weight * n / weight.sum()
    rows = X - np.average(X, axis=0, weights=weight)
    scale, kappa2 = 1 / (l2 * n), 0.03 * (rows**2).sum() / n
    parts = np.array_split(np.arange(n), n_ranks)
    truth = np.eye(J)[y]
    q, b = truth.copy(), np.zeros(J)
    for _ in range(n_passes):
        Z = -(weight[:, None] * (q - truth)).T @ rows / n
        b = b - scale * kappa2 * weight @ (q - truth)
        m, new = rows @ soft(Z, l1).T / l2 + b, q.copy()
        for part in parts:
            gram, own = row_products(rows[part], kappa2), new[part]
            dual_steps(m[part], gram, own, y[part], weight[part], scale=scale)
            new[part] = own
        change = weight[:, None] * (new - q)
        linear = weight @ (special.entr(new) - special.entr(q)).sum(axis=1)
        linear += (change * m).sum()
        update = np.c_[rows, np.full(n, np.sqrt(kappa2))].T @ change
        t = min(1.0, linear / (scale * (update**2).sum()))

        def dual(t, q=q, new=new, b=b):
            """The augmented Lagrangian, exactly."""
            p = q + t * (new - q)
            residuals = weight[:, None] * (p - truth)
            Z = -residuals.T @ rows / n
            r = (weight[:, None] * (p - q)).sum(axis=0)
            value = (weight @ special.entr(p)).sum() / n + b @ r / n
            value -= kappa2 * scale / (2 * n) * r @ r
            return value - (soft(Z, l1) ** 2).sum() / (2 * l2)

        # What is said of the rise holds, and so the dual never falls.
        least = t * linear - t**2 * scale / 2 * (update**2).sum()
        assert dual(t) - dual(0.0) >= least / n - 1e-12 >= -1e-12
        q = q + t * (new - q)
        b = b - t * scale * kappa2 * change.sum(axis=0)
    Z = -(weight[:, None] * (q - truth)).T @ rows / n
    W = soft(Z, l1) / l2
    return W, b - W @ np.average(X, axis=0, weights=weight), q


@pytest.mark.parametrize("communication", ["factors", "full_matrix"])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_against_sums_over_all_rows(
    labelled, weights, monkeypatch, n_ranks, communication
):
    X, y = labelled[3]
    duals = {}
    plain = ElasticDualModel.dual_objective

    def look(self, matrix):
        duals[self._group.rank] = self.dual.copy()
        return plain(self, matrix)

    monkeypatch.setattr(ElasticDualModel, "dual_objective", look)
    model = fit(
        X,
        y,
        weights,
        alpha=2e-3,
        tol=None,
        max_iter=8,
        batch_size=120,
        shuffle=False,
        n_ranks=n_ranks,
        communication=communication,
    )
    _, _, q = slow_fit(X, y, weights, 1e-3, 1e-3, n_ranks, 8)
    found = np.concatenate([duals[rank] for rank in range(n_ranks)])
    np.testing.assert_allclose(found, q, atol=1e-9)
    # The best pass is given back.
    n_passes = 1 + np.argmin([record["objective"] for record in model.history_])
    W, b, _ = slow_fit(X, y, weights, 1e-3, 1e-3, n_ranks, n_passes)
    np.testing.assert_allclose(model.coef_, W, atol=1e-8)
    np.testing.assert_allclose(model.intercept_, b, atol=1e-8)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_the_bound_is_that_of_the_dual_variables(labelled, monkeypatch, n_ranks):
    """Entropies less the conjugate, which is the largest ``<W, Z> - penalty(W)``."""
    X, y = labelled[3]
    duals = {}
    plain = ElasticDualModel.dual_objective

    def look(self, matrix):
        duals[self._group.rank] = self.dual.copy()
        return plain(self, matrix)

    monkeypatch.setattr(ElasticDualModel, "dual_objective", look)
    model = fit(X, y, fit_intercept=False, tol=None, max_iter=1, n_ranks=n_ranks)
    q = np.concatenate([duals[rank] for rank in range(n_ranks)])
    Z, l1, l2 = -(q - np.eye(3)[y]).T @ X / len(y), ALPHA * RATIO, ALPHA * (1 - RATIO)
    W = np.linspace(-8, 8, 64001)
    values = [(z * W - l1 * np.abs(W) - l2 / 2 * W**2).max() for z in Z.ravel()]
    expected = special.entr(q).sum() / len(y) - np.sum(values)
    record = model.history_[-1]
    assert record["objective"] - record["dual_gap"] == pytest.approx(expected, abs=1e-7)
    np.testing.assert_allclose(model.coef_, soft(Z, l1) / l2, atol=1e-12)


@pytest.mark.each
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_gap_bounds_the_distance(
    labelled, best, n_classes, fit_intercept, weighted
):
    """In every pass, though not much more."""
    X, y = labelled[n_classes]
    times = 1 + np.arange(120) % 3 if weighted else np.ones(120, dtype=int)
    weight = times if weighted else None
    rows, labels = np.repeat(X, times, axis=0), np.repeat(y, times)
    expected = best(rows, labels, ALPHA, fit_intercept=fit_intercept, **OF)
    for n_ranks in (1, 3):
        model = fit(
            X, y, weight, fit_intercept=fit_intercept, n_ranks=n_ranks, tol=1e-5
        )
        gaps, objectives = (
            np.array([record[name] for record in model.history_])
            for name in ("dual_gap", "objective")
        )
        distances = objectives - expected
        assert (gaps >= distances - 1e-7).all() and (distances > -1e-7).all()
        assert model.dual_gap_ <= 1e-5 * min(objectives)


def test_a_gap_that_is_too_large_warns(labelled, value):
    X, y = labelled[3]
    with pytest.warns(ConvergenceWarning, match="maximum of 2 passes") as caught:
        model = fit(X, y, max_iter=2, tol=1e-6)
    text, objective = str(caught[0].message), value(model, X, y, **OF)
    assert f"a duality gap of {model.dual_gap_:.3e}" in text
    assert f"{model.dual_gap_ / objective:.2%} of the objective" in text
    assert "Raise max_iter" in text


# Going on -----------------------------------------------------------------------------


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_steps_on_the_whole_objective_follow(labelled, value, best, n_ranks):
    """Where the L2 part is so weak that dual ascent takes long."""
    X, y = labelled[3]
    of = {"penalty": "elasticnet", "l1_ratio": 0.99}
    params = {"l1_ratio": 0.99, "alpha": 0.005, "n_ranks": n_ranks, "tol": 1e-6}
    model = fit(X, y, refine=True, **params)
    check(value(model, X, y, **of), best(X, y, 0.005, **of), rtol=2e-6)
    assert model.solver_ == "sdca" and model.dual_gap_ <= 1e-6
    with pytest.warns(ConvergenceWarning):
        slow = fit(X, y, max_iter=model.n_iter_, **params)
    assert slow.dual_gap_ > model.dual_gap_


@pytest.mark.parametrize("refine", [False, True])
def test_warm_start_goes_on(labelled, refine):
    X, y = labelled[3]
    model = fit(X, y, tol=1e-6, warm_start=True, n_ranks=2, refine=refine)
    n_iter = model.n_iter_
    assert model.set_params(tol=1e-5).fit(X, y).n_iter_ == 1 < n_iter
    cold = fit(X, y, tol=1e-5, n_ranks=2)
    assert cold.n_iter_ > 1


@pytest.mark.each
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("refine", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_resumed_fit_is_an_uninterrupted_one(labelled, tmp_path, n_classes, refine):
    """From dual sums, and from the matrix once steps are made on it."""
    X, y = labelled[n_classes]
    params = {"tol": 1e-12 if refine else None, "n_ranks": 3, "refine": refine}
    params |= {"l1_ratio": 0.95, "alpha": 1e-3}
    whole = fit(X, y, max_iter=7, **params)
    assert len(whole.history_) > 5
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        for n_passes in (2, 5, 7):
            resumed = fit(X, y, max_iter=n_passes, **params)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
    np.testing.assert_array_equal(resumed.intercept_, whole.intercept_)
    assert resumed.dual_gap_ == whole.dual_gap_
    assert len(resumed.history_) == len(whole.history_)


def test_other_ranks_find_the_dual_variables(labelled, value, best, tmp_path):
    X, y = labelled[3]
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        first = fit(X, y, tol=None, max_iter=10, n_ranks=3)
        with pytest.warns(UserWarning, match="by 3 ranks and goes on with 2"):
            model = fit(X, y, tol=None, max_iter=50, n_ranks=2)
    assert model.history_[:10] == first.history_
    # What the model says of the dual variables is nearly what they were.
    assert model.history_[10]["objective"] < model.history_[3]["objective"]
    check(value(model, X, y, **OF), best(X, y, ALPHA, **OF))


# Refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"l1_ratio": 1.0}, "penalty='elasticnet', l1_ratio=1.0"),
        ({"alpha": 0}, "alpha=0"),
        ({"penalty": "l1", "l1_ratio": 0.15}, "penalty='l1'"),
        ({"communication__compression": 0.1}, "compression is 0.1"),
    ],
    ids=str,
)
def test_what_dual_ascent_cannot_do(labelled, params, message):
    with pytest.raises(ValueError, match="solver='sdca' needs") as caught:
        fit(*labelled[3], **params)
    assert message in str(caught.value)
