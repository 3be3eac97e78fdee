"""SchMPLasso against scikit-learn, on ranks here and on clusters."""

import inspect
import pickle
import warnings

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Lasso, LinearRegression
from sklearn.model_selection import GridSearchCV
from traced import traced

from dask_ma import SchMPLasso
from dask_ma.schmp.l1 import _working_set

ALPHA = 0.05
PARAMS = {"alpha": ALPHA, "tol": 1e-10}
# Ranks and layout.
LAYOUTS = [(1, "rows"), (3, "rows"), (4, "columns")]
SETTINGS = [
    {},
    {"fit_intercept": False},
    {"positive": True},
    {"l1_ratio": 0.4},
    {"l1_ratio": 0.4, "positive": True, "fit_intercept": False},
]
KINDS = {
    "dense": np.asarray,
    "float32": lambda X: X.astype(np.float32),
    "csr_matrix": sparse.csr_matrix,
    "csr_array": sparse.csr_array,
}


def reference(X, y, weight=None, alpha=ALPHA, l1_ratio=1.0, **params):
    """scikit-learn's model of the same problem."""
    X = X.toarray() if sparse.issparse(X) else np.asarray(X)
    twin = ElasticNet(alpha, l1_ratio=l1_ratio, tol=1e-14, max_iter=10**6, **params)
    return twin.fit(X.astype(np.float64), y, sample_weight=weight)


def assert_same_model(model, other, atol=1e-6):
    np.testing.assert_allclose(model.coef_, other.coef_, atol=atol)
    assert model.intercept_ == pytest.approx(other.intercept_, abs=20 * atol)


# -- The optimum ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "weighted", "params"),
    [
        *[("dense", i % 2 == 0, p) for i, p in enumerate(SETTINGS)],
        ("csr_array", True, SETTINGS[1]),
        ("csr_array", False, SETTINGS[3]),
        ("float32", True, {}),
        ("csr_matrix", False, {}),
    ],
    ids=str,
)
def test_scikit_learn(wide, l1_objective, kind, params, weighted):
    """Coefficients, intercept and gap, however rows or columns are shared out."""
    X, y = KINDS[kind](wide["X"]), wide["number"]
    weight = wide["weight"] if weighted else None
    expected = reference(X, y, weight, **params)
    best = l1_objective(expected, X, y, weight)
    is_short = kind == "float32"
    for n_ranks, layout in LAYOUTS:
        model = SchMPLasso(**PARAMS, **params, n_ranks=n_ranks, layout=layout)
        model.fit(X, y, sample_weight=weight)
        assert model.coef_.dtype == (np.float32 if is_short else np.float64)
        assert model.coef_.shape == (90,) and type(model.intercept_) is float
        assert_same_model(model, expected, 2e-5 if is_short else 2e-6)
        assert l1_objective(model, X, y, weight) <= best + (1e-7 if is_short else 1e-10)
        assert 0 <= model.dual_gap_ <= 1e-10 * model.history_[0]["objective"] * 10
        assert model.n_iter_ == len(model.history_) < 20
        if params.get("positive"):
            assert model.coef_.min() >= 0


@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_weights_of_features(wide, params):
    """They divide the columns, and multiply their squares in an elastic net."""
    X, y = wide["X"], wide["number"]
    factors = np.random.default_rng(1).uniform(0.3, 3, 90)
    if "l1_ratio" in params:  # the ridge is a row per column
        return check_ridge(X, y, factors, params)
    expected = reference(X / factors, y, **params)
    for n_ranks, layout in LAYOUTS:
        model = SchMPLasso(
            **PARAMS, **params, feature_weights=factors, n_ranks=n_ranks, layout=layout
        ).fit(X, y)
        np.testing.assert_allclose(model.coef_ * factors, expected.coef_, atol=3e-6)


def check_ridge(X, y, factors, params):
    """An elastic net is a Lasso with a row more for each column."""
    share = params["l1_ratio"]
    fit_intercept = params.get("fit_intercept", True)
    if fit_intercept:
        X, y = X - X.mean(axis=0), y - y.mean()
    rows = np.diag(np.sqrt(len(y) * ALPHA * (1 - share) * factors))
    expected = reference(
        np.vstack([X, rows]) / factors,
        np.r_[y, np.zeros(90)],
        alpha=ALPHA * share * len(y) / (len(y) + 90),
        positive=params.get("positive", False),
        fit_intercept=False,
    )
    model = SchMPLasso(**PARAMS, **params, feature_weights=factors, n_ranks=2).fit(X, y)
    np.testing.assert_allclose(model.coef_ * factors, expected.coef_, atol=3e-6)


@pytest.mark.parametrize("factors", [np.r_[0.0, np.ones(89)], None])
def test_signs_need_a_penalty(wide, factors):
    alpha = 0.0 if factors is None else 0.1
    model = SchMPLasso(alpha, positive=True, feature_weights=factors)
    with pytest.raises(ValueError, match="positive=True needs an L1 penalty on every"):
        model.fit(wide["X"], wide["number"])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_columns_without_penalty(wide, weighted, fit_intercept):
    """A Lasso of what the free columns leave of other columns and of the targets."""
    X, y = wide["X"], wide["number"]
    weight = wide["weight"] if weighted else np.ones(60)
    free = np.array([0, 2, 3])  # have positive coefficients
    factors = np.ones(90)
    factors[free] = 0
    root = np.sqrt(weight / weight.mean())[:, np.newaxis]
    known = X[:, free]
    if fit_intercept:
        known = np.hstack([known, np.ones((60, 1))])
    basis = np.linalg.qr(root * known)[0]
    rest = root * np.delete(X, free, axis=1)
    rest = rest - basis @ (basis.T @ rest)
    target = root[:, 0] * y
    target = target - basis @ (basis.T @ target)
    expected = reference(rest, target, fit_intercept=False)
    for n_ranks, layout in LAYOUTS[1:]:
        model = SchMPLasso(
            **PARAMS,
            fit_intercept=fit_intercept,
            feature_weights=factors,
            n_ranks=n_ranks,
            layout=layout,
        ).fit(X, y, sample_weight=weight if weighted else None)
        coef = np.delete(model.coef_, free)
        np.testing.assert_allclose(coef, expected.coef_, atol=3e-6)
        assert model.coef_[free].min() > 0.5
        residual = y - model.predict(X)
        assert np.abs(known.T @ (weight * residual)).max() / 60 < 1e-9


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_no_penalty_is_least_squares(regression, layout):
    X, y = regression
    expected = LinearRegression().fit(X, y)
    model = SchMPLasso(0, tol=1e-12, n_ranks=3, layout=layout).fit(X, y)
    assert_same_model(model, expected, 1e-9)


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_a_ridge(wide, layout):
    X, y = wide["X"], wide["number"]
    from sklearn.linear_model import Ridge

    expected = Ridge(ALPHA * 60, tol=1e-12).fit(X, y)
    model = SchMPLasso(**PARAMS, l1_ratio=0, n_ranks=2, layout=layout).fit(X, y)
    assert_same_model(model, expected, 1e-8)


def test_ranks_and_layouts_agree(wide):
    X, y = wide["X"], wide["number"]
    models = [
        SchMPLasso(ALPHA, tol=1e-12, n_ranks=n_ranks, layout=layout).fit(X, y)
        for n_ranks, layout in LAYOUTS
    ]
    for model in models[1:]:
        assert_same_model(model, models[0], 1e-9)


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_weights_of_rows(wide, layout):
    """2 is the row twice, 0 no row, and their scale does not matter."""
    X, y = wide["X"], wide["number"]
    weight = np.arange(60) % 3
    twice = np.repeat(np.arange(60), weight)
    params = {**PARAMS, "tol": 1e-12, "n_ranks": 3, "layout": layout}
    expected = SchMPLasso(**params).fit(X[twice], y[twice])
    for scale in (1, 1e-6, 1e6):
        model = SchMPLasso(**params).fit(X, y, sample_weight=scale * weight)
        assert_same_model(model, expected, 1e-8)


# -- Gap and rounds ------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("max_iter", [1, 2])
@pytest.mark.parametrize("params", SETTINGS, ids=str)
def test_the_gap_is_a_bound_after_few_rounds(wide, l1_objective, max_iter, params):
    X, y = wide["X"], wide["number"]
    best = l1_objective(reference(X, y, alpha=0.003, **params), X, y, alpha=0.003)
    model = SchMPLasso(0.003, max_iter=max_iter, tol=0, n_ranks=2, **params)
    with pytest.warns(ConvergenceWarning) as caught:
        model.fit(X, y)
    message = str(caught[0].message)
    assert f"the maximum of {max_iter} rounds was reached" in message
    assert f"gap of {model.dual_gap_:.3e}, asked was 0.000e+00 (tol=0 times" in message
    assert caught[0].filename == __file__
    found = l1_objective(model, X, y)
    assert model.n_iter_ == max_iter == len(model.history_)
    assert found - best <= model.dual_gap_ + 1e-12
    assert model.history_[-1]["objective"] == pytest.approx(found, rel=1e-10)
    assert model.history_[-1]["dual_gap"] == model.dual_gap_


@pytest.mark.parametrize("tol", [1e-1, 1e-3, 1e-6])
def test_tol_is_a_part_of_the_objective_without_coefficients(wide, l1_objective, tol):
    """And its root one of the objective reached."""
    X, y = wide["X"], wide["number"]
    null = ((y - y.mean()) ** 2).mean() / 2
    model = SchMPLasso(0.003, tol=tol, n_ranks=2).fit(X, y)
    *before, last = (
        record["dual_gap"] <= min(tol * null, tol**0.5 * record["objective"])
        for record in model.history_
    )
    assert last
    assert not any(before)
    best = l1_objective(reference(X, y, alpha=0.003), X, y, alpha=0.003)
    assert l1_objective(model, X, y) - best <= model.dual_gap_ + 1e-12


def test_the_warning_names_what_was_asked(wide):
    X, y = wide["X"], wide["number"]
    asked = 1e-9 * ((y - y.mean()) ** 2).mean() / 2
    with pytest.warns(ConvergenceWarning, match=f"asked was {asked:.3e} .tol=1e-09"):
        SchMPLasso(1e-3, max_iter=1, tol=1e-9).fit(X, y)


def test_history(wide):
    X, y = wide["X"], wide["number"]
    model = SchMPLasso(0.003, tol=1e-10, n_ranks=2).fit(X, y)
    assert [r["round"] for r in model.history_] == list(range(1, model.n_iter_ + 1))
    gaps = [r["dual_gap"] for r in model.history_]
    assert len(gaps) > 1 and gaps == sorted(gaps, reverse=True)
    last = model.history_[-1]
    assert last["n_nonzero"] == np.count_nonzero(model.coef_)
    assert last["n_nonzero"] <= last["working_set"] <= 90


@pytest.mark.parametrize(
    ("n_ranks", "layout"), [(1, "rows"), (3, "rows"), (1, "columns"), (2, "columns")]
)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_data_touched_are_stored_elements(n_ranks, layout, kind):
    """All that is read in a fit of which one knows what it does."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 12)) * (rng.random((50, 12)) < 0.4)
    X[:, 4] += 3 * (rng.random(50) < 0.5)
    y = 2 * X[:, 4] + 0.1 * rng.normal(size=50)
    slopes = np.sort(np.abs((X - X.mean(axis=0)).T @ (y - y.mean()))) / 50
    alpha = slopes[-2:].mean()  # one feature alone violates its bound
    stored = (X != 0).sum(axis=0) if kind == "sparse" else np.full(12, 50)
    rows = sparse.csr_array(X) if kind == "sparse" else X
    params = {"n_ranks": n_ranks, "layout": layout, "tol": 1e-10}

    zero = SchMPLasso(2 * slopes[-1], **params).fit(rows, y)
    touched = [r["n_touched"] for r in zero.history_]
    assert touched == [2 * stored.sum()]  # the means and the gradient
    model = SchMPLasso(alpha, **params).fit(rows, y)
    assert np.flatnonzero(model.coef_).tolist() == [4]
    # The means and two gradients. What the column adds to the margins is worked out on
    # every rank that has all rows, its square on one.
    each = n_ranks if layout == "columns" else 1
    expected = 3 * stored.sum() + (each + 1) * stored[4]
    assert [r["n_touched"] for r in model.history_] == [expected]
    wide = SchMPLasso(alpha / 1e3, **params).fit(rows, y)
    assert min(r["n_touched"] for r in wide.history_) > 0.1 * stored.sum()


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_warm_start(wide, layout):
    X, y = wide["X"], wide["number"]
    params = {"tol": 1e-6, "n_ranks": 2, "layout": layout}
    model = SchMPLasso(0.003, **params).fit(X, y)
    first = model.n_iter_
    before = clone(model).fit(X, y)
    model.set_params(warm_start=True).fit(X, y)
    assert model.n_iter_ == 1 < first
    assert_same_model(model, before, 1e-12)
    # A little less of a penalty takes fewer rounds from there than from zeros.
    cold = SchMPLasso(0.0029, **params).fit(X, y)
    model.set_params(alpha=0.0029).fit(X, y)
    assert model.n_iter_ < cold.n_iter_
    assert model.dual_gap_ <= 1e-6 * ((y - y.mean()) ** 2).mean() / 2
    # Other rows.
    model.fit(X[::2], y[::2])
    again = SchMPLasso(0.0029, **params).fit(X[::2], y[::2])
    np.testing.assert_allclose(model.coef_, again.coef_, atol=0.05)


def test_warm_start_with_a_sparse_model(wide):
    X, y = wide["X"], wide["number"]
    model = SchMPLasso(0.003, warm_start=True).fit(X, y).sparsify()
    assert model.fit(X, y).n_iter_ == 1


def test_warm_start_with_other_features(wide):
    X, y = wide["X"], wide["number"]
    model = SchMPLasso(ALPHA, warm_start=True).fit(X, y)
    with pytest.raises(ValueError, match="set warm_start=False"):
        model.fit(X[:, :3], y)
    assert model.coef_.shape == (90,)


def test_warm_start_takes_the_sign_it_must_have(wide, l1_objective):
    """A model with negative coefficients is no start where they must not be so."""
    X, y = wide["X"], wide["number"]
    model = SchMPLasso(**PARAMS, warm_start=True).fit(X, y)
    assert model.coef_.min() < 0
    model.set_params(positive=True).fit(X, y)
    expected = reference(X, y, positive=True)
    assert model.coef_.min() >= 0
    assert_same_model(model, expected, 2e-6)


# -- Input and output ----------------------------------------------------------------


def blocks(X):
    return da.from_array(X, chunks=(17, *X.shape[1:]))


def unknown(X):
    keys = blocks(X).to_delayed().ravel()
    return da.concatenate(
        [da.from_delayed(key, (np.nan, *X.shape[1:]), X.dtype) for key in keys],
        allow_unknown_chunksizes=True,
    )


INPUTS = {
    "frame": (lambda X: pd.DataFrame(X).add_prefix("x"), pd.Series),
    "blocks": (blocks, blocks),
    "unknown": (unknown, unknown),
    "sparse blocks": (lambda X: blocks(X).map_blocks(sparse.csr_array), blocks),
    "dask frame": (
        lambda X: dd.from_pandas(pd.DataFrame(X).add_prefix("x"), npartitions=3),
        lambda y: dd.from_pandas(pd.Series(y), npartitions=3),
    ),
}


@pytest.mark.each
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_inputs(wide, cluster, kind, layout):
    X, y = wide["X"], wide["number"]
    make_X, make_y = INPUTS[kind]
    expected = reference(X, y)
    model = SchMPLasso(**PARAMS, layout=layout).fit(make_X(X), make_y(y))
    assert_same_model(model, expected, 2e-6)
    predicted = model.predict(make_X(X))
    if kind != "frame":
        lazy = dd.Series if kind == "dask frame" else da.Array
        assert isinstance(predicted, lazy)
        predicted = predicted.compute()
    np.testing.assert_allclose(predicted, expected.predict(X), atol=1e-4)
    score = model.score(make_X(X), make_y(y))
    assert score == pytest.approx(expected.score(X, y), abs=1e-6)
    if "frame" in kind:
        assert model.feature_names_in_.tolist() == [f"x{i}" for i in range(90)]


@pytest.mark.parametrize("dtype", [np.int64, bool, np.float32])
def test_types_of_targets(wide, dtype):
    X, y = wide["X"], wide["number"]
    y = y > 5 if dtype is bool else y.astype(dtype)
    model = SchMPLasso(**PARAMS, n_ranks=2).fit(X, y)
    assert_same_model(model, reference(X, y.astype(np.float64)), 2e-6)


def test_attributes_and_twins(wide):
    X, y = wide["X"], wide["number"]
    for l1_ratio, cls in ((1.0, Lasso), (0.5, ElasticNet)):
        model = SchMPLasso(**PARAMS, l1_ratio=l1_ratio).fit(X, y)
        assert sparse.isspmatrix_csr(model.sparse_coef_)
        np.testing.assert_array_equal(model.sparse_coef_.toarray()[0], model.coef_)
        twin = model.to_sklearn()
        assert type(twin) is cls
        assert (twin.alpha, twin.n_iter_, twin.dual_gap_) == (
            ALPHA,
            model.n_iter_,
            model.dual_gap_,
        )
        for other in (twin, pickle.loads(pickle.dumps(model)), clone(model).fit(X, y)):
            np.testing.assert_array_equal(other.predict(X), model.predict(X))
        model.sparsify()
        np.testing.assert_array_equal(model.predict(X), twin.predict(X))
        np.testing.assert_array_equal(model.to_sklearn().coef_, twin.coef_)
        np.testing.assert_array_equal(model.densify().coef_, twin.coef_)


def test_predictions_of_no_rows(wide, cluster):
    X, y = wide["X"], wide["number"]
    model = SchMPLasso(**PARAMS).fit(X, y)
    lazy = da.from_array(X, chunks=(30, -1))[:0]
    assert model.predict(lazy).compute().shape == (0,)
    parts = da.from_array(X, chunks=((0, 60), -1))
    np.testing.assert_array_equal(model.predict(parts).compute(), model.predict(X))


def test_grid_search(wide):
    X, y = wide["X"], wide["number"]
    grid = {"alpha": [10.0, 0.1]}
    search = GridSearchCV(SchMPLasso(tol=1e-8), grid, cv=3).fit(X, y)
    expected = GridSearchCV(Lasso(tol=1e-12), grid, cv=3).fit(X, y)
    assert search.best_params_ == expected.best_params_ == {"alpha": 0.1}
    ours, theirs = (s.cv_results_["mean_test_score"] for s in (search, expected))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


# -- Clusters ------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_threads_and_clusters_agree_to_the_bit(
    wide, inproc_client, process_client, layout
):
    X, y = wide["X"], wide["number"]

    def fit():
        model = SchMPLasso(0.003, tol=1e-9, n_ranks=4, layout=layout).fit(X, y)
        gaps = [record["dual_gap"] for record in model.history_]
        return model.coef_.tobytes(), model.intercept_, gaps

    here = fit()
    assert fit() == here
    for client in (inproc_client, process_client):
        with client.as_current():
            assert fit() == here


def test_rows_stay_where_they_are(processes):
    """With rows shared out, what travels depends on columns and not on rows."""

    def sent(n_rows, layout):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(n_rows, 30))
        lazy = da.from_array(X, chunks=(n_rows // 4, -1)).persist()
        model = SchMPLasso(0.1, layout=layout).fit(lazy, X[:, 0] + X[:, 1])
        bytes_sent = sum(record["bytes_sent"] for record in model.history_)
        return bytes_sent / model.n_iter_, X.nbytes

    few, _ = sent(400, "rows")
    many, size = sent(20_000, "rows")
    assert 0 < many < 1.5 * few < size / 50
    moved, _ = sent(20_000, "columns")
    assert moved > size / 2


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("stop", [1, 2])
def test_a_resumed_fit_is_an_uninterrupted_one(
    wide, tmp_path, monkeypatch, n_ranks, layout, stop
):
    monkeypatch.setattr(_working_set, "_FIRST_SIZE", 10)  # there are more rounds
    X, y = wide["X"], wide["number"]
    params = {"alpha": 1e-3, "tol": 1e-10, "n_ranks": n_ranks, "layout": layout}
    params["random_state"] = 0  # without one, equal fits are meant to differ
    whole = SchMPLasso(**params).fit(X, y)
    assert whole.n_iter_ > stop
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with pytest.warns(ConvergenceWarning):
            SchMPLasso(**params, max_iter=stop).fit(X, y)
        resumed = SchMPLasso(**params).fit(X, y)
        assert_same_model(resumed, whole, 1e-9)
        rounds = [record["round"] for record in resumed.history_]
        assert rounds == list(range(1, resumed.n_iter_ + 1))
        again = SchMPLasso(**params).fit(X, y)
    assert again.n_iter_ == resumed.n_iter_
    np.testing.assert_array_equal(again.coef_, resumed.coef_)
    assert again.dual_gap_ <= 1e-10 * ((y - y.mean()) ** 2).mean() / 2


def test_a_fit_goes_on_with_other_ranks(wide, tmp_path, monkeypatch):
    monkeypatch.setattr(_working_set, "_FIRST_SIZE", 10)  # there are more rounds
    X, y = wide["X"], wide["number"]
    params = {"alpha": 1e-3, "tol": 1e-10}
    whole = SchMPLasso(**params).fit(X, y)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with pytest.warns(ConvergenceWarning):
            SchMPLasso(**params, n_ranks=3, max_iter=2).fit(X, y)
        with pytest.warns(UserWarning, match="written by 3 ranks and goes on with 2"):
            resumed = SchMPLasso(**params, n_ranks=2).fit(X, y)
    assert_same_model(resumed, whole, 1e-8)


# -- Path ----------------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize(
    ("n_ranks", "layout"), [(1, "rows"), (3, "rows"), (2, "columns")]
)
@pytest.mark.parametrize("l1_ratio", [1.0, 0.5])
def test_path(wide, n_ranks, layout, l1_ratio, fit_intercept):
    from sklearn.linear_model import enet_path

    X, y = wide["X"], wide["number"]
    alphas, coefs, gaps, rounds, intercepts = SchMPLasso.path(
        X,
        y,
        l1_ratio=l1_ratio,
        alphas=8,
        eps=0.01,
        fit_intercept=fit_intercept,
        tol=1e-10,
        n_ranks=n_ranks,
        layout=layout,
        return_n_iter=True,
        return_intercept=True,
    )
    means, offset = np.zeros(90), 0.0
    if fit_intercept:
        means, offset = X.mean(axis=0), y.mean()
    expected, theirs, _ = enet_path(
        X - means,
        y - offset,
        l1_ratio=l1_ratio,
        eps=0.01,
        alphas=8,
        tol=1e-12,
        max_iter=10**6,
    )
    np.testing.assert_allclose(alphas, expected, rtol=1e-10)
    np.testing.assert_allclose(coefs, theirs, atol=1e-5)
    assert not coefs[:, 0].any()
    np.testing.assert_allclose(intercepts, offset - means @ coefs, atol=1e-9)
    null = ((y - offset) ** 2).mean() / 2
    assert gaps.shape == (8,) and gaps.max() <= 1e-10 * null
    assert len(rounds) == 8 and min(rounds) >= 1


def test_path_of_given_alphas(wide):
    X, y = wide["X"], wide["number"]
    found = SchMPLasso.path(
        X, y, alphas=[0.1, 1.0], sample_weight=wide["weight"], tol=1e-10, positive=True
    )
    assert len(found) == 3
    assert found[0].tolist() == [1.0, 0.1]
    for alpha, coef in zip(found[0], found[1].T, strict=True):
        expected = reference(X, y, wide["weight"], alpha, positive=True)
        np.testing.assert_allclose(coef, expected.coef_, atol=2e-6)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"alphas": 0}, "alphas must be at least 1 as a number, got 0"),
        ({"alphas": [0.1, 0]}, "numbers above 0"),
        ({"alphas": []}, "numbers above 0"),
        ({"eps": 0}, "eps must be above 0 and at most 1, got 0"),
        ({"eps": 2}, "eps must be above 0 and at most 1, got 2"),
        ({"l1_ratio": 0}, "alphas cannot be chosen for l1_ratio=0"),
        ({"l1_ratio": 2}, "The 'l1_ratio' parameter of SchMPLasso"),
    ],
)
def test_paths_that_cannot_be(wide, params, message):
    with pytest.raises(ValueError, match=message):
        SchMPLasso.path(wide["X"], wide["number"], **params)


def test_a_path_that_does_not_converge_says_so(wide):
    X, y = wide["X"], wide["number"]
    asked = {"alphas": 5, "eps": 1e-3, "tol": 1e-8}
    with pytest.warns(ConvergenceWarning) as caught:
        _, _, gaps = SchMPLasso.path(X, y, **asked, max_iter=1)
    null = y.var() / 2
    n_slow = np.count_nonzero(gaps > 1e-8 * null)
    assert 0 < n_slow < 5
    message = str(caught[0].message)
    assert message.startswith(f"{n_slow} of 5 models of the path had not converged")
    assert f"up to {gaps.max() / null:.1e} of" in message
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SchMPLasso.path(X, y, **asked)


ACTING = {
    "l1_ratio": 0.5,
    "fit_intercept": False,
    "positive": True,
    "max_iter": 1,
    "tol": 0.3,
    "feature_weights": np.linspace(0.5, 2, 90),
    "sample_weight": np.linspace(0.5, 2, 60),
    "eps": 0.1,
    "alphas": 4,
}


@pytest.mark.filterwarnings("ignore", category=ConvergenceWarning)
def test_a_path_takes_what_acts_on_it(wide):
    """And nothing else, such as the parameters of other schedules."""
    X, y = wide["X"], wide["number"]
    taken = set(inspect.signature(SchMPLasso.path).parameters) - {"X", "y"}
    others = {"layout", "n_ranks", "return_n_iter", "return_intercept"}
    assert taken == set(ACTING) | others
    plain = {"alphas": 5, "eps": 1e-3, "tol": 1e-8}
    _, expected, _ = SchMPLasso.path(X, y, **plain)
    for name, value in ACTING.items():
        _, found, _ = SchMPLasso.path(X, y, **{**plain, name: value})
        assert not np.array_equal(found, expected), name
    with pytest.raises(TypeError, match="schedule"):
        SchMPLasso.path(X, y, schedule="random")


@pytest.mark.each
@pytest.mark.filterwarnings("ignore", category=ConvergenceWarning)
@pytest.mark.parametrize("schedule", ["working_set", "dynamic", "cyclic"])
@pytest.mark.parametrize("n_blocks", [1, 6])
def test_sparse_rows_are_laid_out_once(schedule, n_blocks):
    """Memory besides X: one copy by columns, and little for the way there."""
    rng = np.random.default_rng(0)
    X = sparse.random_array((6000, 3000), density=0.02, rng=rng, format="csr")
    y = X[:, :5].sum(axis=1) + 0.1 * rng.normal(size=6000)
    n_bytes = X.data.nbytes + X.indices.nbytes
    model = SchMPLasso(0.05, schedule=schedule, max_iter=1, random_state=0)
    model.fit(X[:50], y[:50])  # modules are loaded
    lazy = X
    if n_blocks > 1:
        blocks = [X[a : a + 1000] for a in range(0, 6000, 1000)]
        parts = [da.from_array(b, chunks=b.shape, asarray=False) for b in blocks]
        lazy = da.concatenate(parts)
    with traced() as memory:
        model.set_params(n_ranks=1).fit(lazy, y)
    # Dask's own copy of the blocks counts as well.
    assert memory.peak < (1.8 if n_blocks == 1 else 2.9) * n_bytes
