"""Fits of few long rows, in coordinates of what these span."""

import tracemalloc

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from dask_ma import SFBLogisticRegression
from dask_ma.exceptions import CheckpointError
from dask_ma.sfb import Exchange
from dask_ma.sfb.logistic import _agent, _span

N_ROWS, N_FEATURES = 40, 800
KINDS = {"dense": np.asarray, "csr": sparse.csr_array}


@pytest.fixture(scope="module")
def genes():
    """Rows of expression levels, far from zero and in units of their own; labels."""
    rng = np.random.default_rng(0)
    X = np.exp(rng.normal(5, 2, N_FEATURES) + rng.normal(size=(N_ROWS, N_FEATURES)))
    X[rng.random(X.shape) < 0.7] = 0
    return X, np.resize(np.arange(4), N_ROWS)


@pytest.fixture
def spans(monkeypatch):
    """The span of each rank of the fits made."""
    found = []

    def noted(*args):
        found.append(_span.find_span(*args))
        return found[-1]

    monkeypatch.setattr(_agent, "find_span", noted)
    return found


def fit(X, y, alpha=1e-4, **params):
    params = {"random_state": 0, "n_ranks": 1, **params}
    return SFBLogisticRegression(alpha=alpha, **params).fit(X, y)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_memory_of_the_ranks_of_a_process(spans):
    """One basis for all of them, and one model of all features."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(110, 40_000)), np.arange(110) % 50
    fit(X[:, :2000], y, n_ranks=4, max_iter=1)
    n_bytes = X.nbytes + 8 * 40_000 * 50
    tracemalloc.start()
    try:
        fit(X, y, n_ranks=4, max_iter=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert None not in spans
    # The basis and what it was a step before, then the basis and the model.
    assert peak < 1.6 * n_bytes


@pytest.mark.each
@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("alpha", [1e-4, 1e3, 1e8])
@pytest.mark.parametrize("weighted", [False, True])
def test_few_passes_are_enough(
    genes, value, best, n_classes, kind, n_ranks, fit_intercept, alpha, weighted
):
    """A weak penalty asks for margins, and passes, that units make many otherwise."""
    X, y = genes[0], genes[1] % n_classes
    weight = np.random.default_rng(1).uniform(0.5, 2, N_ROWS) if weighted else None
    model = SFBLogisticRegression(
        alpha=alpha, fit_intercept=fit_intercept, n_ranks=n_ranks, random_state=0
    ).fit(KINDS[kind](X), y, sample_weight=weight)
    assert model.n_iter_ < 100
    found = value(model, X, y, weight)
    assert model.history_[-1]["objective"] == pytest.approx(found, rel=1e-3, abs=1e-12)
    assert model.dual_gap_ <= 1e-3 * found
    # The peer needs units in which it comes near the optimum at all.
    unit, least = X.std() * np.sqrt(X.shape[1]), 1.0
    if alpha > 1:
        params = {"fit_intercept": fit_intercept}
        least = best(X / unit, y, alpha / unit**2, weight, **params)
    assert found <= 1.001 * least
    if alpha > 1e3:
        assert found >= least - model.dual_gap_ - 1e-6 * least


def test_the_optimum_is_that_of_the_features(genes, value, best):
    """Scikit-learn finds it where features are in the same units."""
    X, y = np.log1p(genes[0]), genes[1]
    model = fit(X, y, 1e-3, tol=1e-6)
    least = best(X, y, 1e-3)
    assert value(model, X, y) == pytest.approx(least, rel=1e-5)


def test_blocks_and_single_precision(genes, value):
    X, y = genes
    X = X.astype(np.float32)
    whole = fit(X, y)
    assert whole.coef_.dtype == np.float32
    blocks = da.from_array(X, chunks=(7, -1)), da.from_array(y, chunks=7)
    model = fit(*blocks, n_ranks=2)
    values = [value(each, X, y) for each in (whole, model)]
    assert values[1] == pytest.approx(values[0], rel=2e-3)


def test_features_that_no_row_has(genes):
    X, y = genes
    rows = X.copy()
    rows[:, ::3] = 0
    for kind in KINDS.values():
        model = fit(kind(rows), y)
        assert model.coef_.shape == (4, N_FEATURES)
        assert not model.coef_[:, ::3].any() and model.coef_[:, 1::3].any()
    model = fit(sparse.csr_array(rows.shape), y, 1.0)
    assert not model.coef_.any()
    np.testing.assert_allclose(model.predict_proba(rows[:1]), 0.25, atol=0.01)


def test_rows_that_are_there_twice(genes, value):
    X, y = genes
    once = fit(X, y)
    twice = fit(np.vstack([X, X]), np.append(y, y))
    found = value(twice, X, y)
    assert found == pytest.approx(value(once, X, y), rel=2e-3)


def test_a_warm_start_begins_with_the_model(genes, value):
    X, y = genes
    model = fit(X, y, warm_start=True)
    found = value(model, X, y)
    model.fit(X, y)
    assert model.history_[0]["objective"] <= 1.01 * found
    # What no row sees is left out at once.
    unseen = np.random.default_rng(0).normal(size=N_FEATURES)
    unseen -= X.T @ np.linalg.lstsq(X.T, unseen, rcond=None)[0]
    model.coef_ += 1e-3 * unseen
    model.fit(X, y)
    assert abs(model.coef_ @ unseen).max() <= 1e-6 * unseen @ unseen


def test_early_stopping(genes):
    X, y = genes
    model = fit(X, y, early_stopping=True, validation_fraction=0.3)
    assert all("validation_score" in record for record in model.history_)
    assert model.coef_.shape == (4, N_FEATURES)


# When it pays -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(genes):
    """Undisturbed fits by two ranks."""
    return {kind: fit(KINDS[kind](genes[0]), genes[1], n_ranks=2) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_few_long_rows_are_taken_so(genes, spans, kind):
    fit(KINDS[kind](genes[0]), genes[1], n_ranks=2)
    assert len(spans) == 2 and None not in spans


@pytest.mark.parametrize(
    "params",
    [
        {"penalty": "elasticnet"},
        {"penalty": None},
        {"solver": "sgd"},
        {"communication": "factors"},
        {"communication": Exchange(staleness=1)},
    ],
    ids=str,
)
def test_what_is_asked_for_is_done(genes, spans, params):
    """Rows and coefficients of which something is sent are those of the features."""
    with pytest.warns(match="max_iter"):
        fit(*genes, **params, max_iter=2)
    assert spans == [None]


@pytest.mark.parametrize(
    ("n_rows", "n_features", "name", "most"),
    [
        (40, 60, None, 0),
        (40, 800, "_MOST_ROWS", 39),
        (40, 800, "_MOST_NUMBERS", 31_999),
        (40, 800, "MOST_VARIABLES", 3200),
    ],
)
def test_other_shapes(genes, spans, monkeypatch, n_rows, n_features, name, most):
    X, y = genes
    if name is not None:
        monkeypatch.setattr(_span, name, most)
    with pytest.warns(match="max_iter"):
        fit(X[:n_rows, :n_features], y, max_iter=2)
    assert spans == [None]


def test_short_sparse_rows(genes, spans):
    """There coordinates have more elements than the rows."""
    X, y = genes
    X = np.where(np.random.default_rng(0).random(X.shape) < 0.02, X, 0)
    with pytest.warns(match="max_iter"):
        fit(sparse.csr_array(X), y, max_iter=2)
    assert spans == [None]


# Checkpoints --------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "share"), [*zip(KINDS, (0.3, 0.9), strict=True)])
def test_a_resumed_fit_is_an_undisturbed_one(
    genes, whole, interrupted, tmp_path, kind, share
):
    X, y = KINDS[kind](genes[0]), genes[1]
    whole = whole[kind]
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(int(share * whole.n_iter_)):
            fit(X, y, n_ranks=2)
        resumed = fit(X, y, n_ranks=2)
    assert resumed.n_iter_ == whole.n_iter_
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


@pytest.mark.filterwarnings("ignore:the checkpoint in .* was written by 2 ranks")
def test_other_ranks_go_on(genes, whole, value, interrupted, tmp_path):
    X, y = genes
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(3):
            fit(X, y, n_ranks=2)
        resumed = fit(X, y, n_ranks=3)
    expected = value(whole["dense"], X, y)
    assert value(resumed, X, y) == pytest.approx(expected, rel=2e-3)


def test_rows_that_a_state_does_not_span(genes):
    X, y = genes
    span = _span.Span(np.linalg.qr(X[:20].T)[0], None, N_FEATURES, np.float64)

    class Rows:
        """Blocks of a shard."""

        def __init__(self, X):
            self.X = X

        def read(self):
            yield self

    span.check(Rows(X[5:15]))
    with pytest.raises(CheckpointError, match="of other rows than these"):
        span.check(Rows(X[15:25]))
