"""L-BFGS whose vectors are shared out, against the one that one rank holds."""

from contextlib import contextmanager

import dask
import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize

from dask_ma import ButterflySGDClassifier, MASGDClassifier
from dask_ma.linear.refine import _rules, _run
from dask_ma.linear.refine._coordinates import Found, choose_active
from dask_ma.linear.refine._lbfgs import LBFGS, SharedLBFGS
from dask_ma.linear.refine._share import Share, Slice
from dask_ma.ma import Models

PARAMS = {
    "loss": "log_loss",
    "alpha": 0.01,
    "refine": "lbfgs",
    "max_iter": 0,
    "refine_tol": 1e-9,
    "random_state": 0,
    "n_ranks": 3,
}


@pytest.fixture
def shared(monkeypatch):
    """What few columns there are is shared out, too."""
    monkeypatch.setattr(_run, "_LEAST_SHARED", 1)


def few_rows(n_columns):
    """Rows with eight values each, half of them in the first columns.

    The first has zeros in all others: a column that no row has would be left out.
    """
    rng = np.random.default_rng(0)
    columns = np.column_stack(
        [rng.integers(0, 40, (60, 4)), rng.integers(40, n_columns, (60, 4))]
    )
    rows = np.repeat(np.arange(60), 8)
    values = rng.normal(size=columns.size)
    values, columns = np.append(values, np.zeros(n_columns)), columns.ravel()
    rows, columns = (
        np.append(rows, [0] * n_columns),
        np.append(columns, range(n_columns)),
    )
    X = sparse.csr_array((values, (rows, columns)), shape=(60, n_columns))
    return X, (X[:, [0]].toarray().ravel() + rng.normal(size=60) > 0).astype(int)


@pytest.fixture(scope="module")
def some_columns():
    """So many that their sums travel in parts."""
    return few_rows(2**16)


# Directions ---------------------------------------------------------------------------


def walk(rule, share, part, l1):
    """Directions along a path over a quadratic function that forgets at times."""
    rng = np.random.default_rng(1)
    n_weights = len(l1)
    curvature = np.logspace(-2, 2, n_weights)
    found = []
    for step in range(30):
        point = rng.normal(size=n_weights)
        point[rng.random(n_weights) < 0.3] = 0.0
        gradient = curvature * point
        if step == 11:  # a change that says nothing
            gradient = -gradient
        if step == 17:
            rule.restart()
            assert not rule.has_memory
        if step == 23:  # the function is a sharper one
            rule.sharpen()
            assert rule.has_memory
        slopes = gradient + rng.normal(size=n_weights)
        one = Found(1.0, 1.0, 0.0, gradient[part], None, None)
        (along,) = share.sums(rule.direction(point[part], one, slopes[part]))
        left = rule.left(along)
        moved = rule.move(point[part], 0.5)
        found.append((share.gather(np.array([rule.step, moved])), left))
    return found


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("l1", [0.0, 0.5], ids=["l2", "l1"])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_directions_are_those_of_the_recursion(run_ranks, n_ranks, l1, fit_intercept):
    n_features = 41
    weights = np.append(np.full(n_features, l1), [0.0] * fit_intercept)
    whole = Share(n_features)
    expected = walk(LBFGS(weights, whole), whole, slice(None), weights)

    def program(group):
        share = Slice(group, n_features, None, fit_intercept=fit_intercept)
        rule = SharedLBFGS(weights[share.weights], share)
        return walk(rule, share, share.weights, weights), rule.n_stored

    results = run_ranks(program, n_ranks, 1)
    stored = [n_stored for _, n_stored in results]
    # Ten steps and ten changes, each number on one rank.
    assert sum(stored) == 2 * 10 * len(weights)
    assert max(stored) <= 2 * 10 * (-(-n_features // n_ranks) + 1)
    for found, _ in results:
        for (ours, our_left), (theirs, their_left) in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-9)
            assert our_left == pytest.approx(their_left, rel=1e-7)


@pytest.mark.parametrize("size", [3, 7, 20])
def test_active_columns_of_all_slices(run_ranks, size):
    rng = np.random.default_rng(2)
    gradient, l1 = rng.permutation(21).astype(float), np.append(np.ones(20), 0.0)
    point = np.where(np.arange(21) % 9 == 4, 1.0, 0.0)
    whole = choose_active(point, gradient, l1, 20, size, Share(20))

    def program(group):
        share = Slice(group, 20, None, fit_intercept=True)
        own = share.weights
        n_own = share.features.stop - share.features.start
        return choose_active(point[own], gradient[own], l1[own], n_own, size, share)

    for found in run_ranks(program, 3):
        assert found.tolist() == whole.tolist()


# Fits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_the_optimum_is_that_of_scipy(shared, binary, n_ranks):
    X, y = binary
    signs = np.where(y == 1, 1.0, -1.0)

    def value(point):
        margins = signs * (X @ point[:-1] + point[-1])
        pulls = -signs / (1 + np.exp(margins)) / len(y)
        gradient = np.append(X.T @ pulls + 0.01 * point[:-1], pulls.sum())
        penalty = 0.005 * point[:-1] @ point[:-1]
        return np.logaddexp(0, -margins).mean() + penalty, gradient

    theirs = minimize(value, np.zeros(X.shape[1] + 1), jac=True, method="L-BFGS-B")
    ours = MASGDClassifier(**{**PARAMS, "n_ranks": n_ranks}).fit(X, y)
    assert ours.history_[-1]["objective"] <= theirs.fun * (1 + 1e-8)
    found, _ = value(np.append(ours.coef_[0], ours.intercept_))
    assert ours.history_[-1]["objective"] == pytest.approx(found, rel=1e-9)
    np.testing.assert_allclose(ours.coef_[0], theirs.x[:-1], rtol=0.02, atol=1e-3)


@pytest.mark.parametrize(
    "params",
    [
        {"penalty": "l1"},
        {"penalty": "elasticnet", "fit_intercept": False},
        {"loss": "hinge", "refine_tol": 1e-3},
        {"loss": "hinge", "penalty": "l1", "refine_tol": 1e-3},
    ],
    ids=str,
)
def test_all_penalties_come_to_what_one_rank_finds(multi, monkeypatch, params):
    params = {**PARAMS, "refine_tol": 1e-6, "alpha": 0.02, **params}
    alone = MASGDClassifier(**params).fit(*multi)
    monkeypatch.setattr(_run, "_LEAST_SHARED", 1)
    ours = MASGDClassifier(**params).fit(*multi)
    # Sums in another order make another path to the same end.
    tol = 2 * params["refine_tol"]
    expected = alone.history_[-1]["objective"]
    assert ours.history_[-1]["objective"] == pytest.approx(expected, rel=tol)
    for ours_then, theirs in zip(ours.history_[:8], alone.history_[:8], strict=True):
        assert ours_then["objective"] == pytest.approx(theirs["objective"], rel=1e-9)


def test_newtons_method_takes_over(shared, multi, monkeypatch):
    """On the active columns, whose second derivatives all ranks add up."""
    params = {**PARAMS, "penalty": "l1", "refine": "auto", "refine_tol": 1e-7}
    params["max_iter"] = 1
    X, y = multi
    X = np.column_stack([X, np.random.default_rng(0).normal(size=(len(X), 20))])
    best = MASGDClassifier(**{**params, "refine": "newton"}).fit(X, y)
    monkeypatch.setattr(_rules, "_MOST_WEIGHTS", 20)
    monkeypatch.setattr(_rules, "_PATIENCE", 3)
    monkeypatch.setattr(_rules, "_ROOM", 1.0)
    widths = []
    original = _rules.Rules.columns

    def columns(self, tracks):
        found = original(self, tracks)
        widths.append(found.shape[1])
        return found

    monkeypatch.setattr(_rules.Rules, "columns", columns)
    ours = MASGDClassifier(**params).fit(X, y)
    assert widths[0] == 0 < max(widths) < X.shape[1]
    expected = best.history_[-1]["objective"]
    assert ours.history_[-1]["objective"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("n_ranks", [2, 1])
def test_an_interrupted_one_goes_on(shared, binary, tmp_path, interrupted, n_ranks):
    whole = MASGDClassifier(**{**PARAMS, "refine_tol": 1e-7}).fit(*binary)
    params = {**PARAMS, "refine_tol": 1e-7}
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(3):
            MASGDClassifier(**params).fit(*binary)
        with pytest.warns(UserWarning, match="was written by 3 ranks"):
            resumed = MASGDClassifier(**{**params, "n_ranks": n_ranks}).fit(*binary)
    values = [record["objective"] for record in resumed.history_]
    assert values[:3] == [record["objective"] for record in whole.history_[:3]]
    # Two ranks add up the same point in another order than three.
    assert (np.diff(values) <= 1e-12).all()
    assert values[-1] == pytest.approx(whole.history_[-1]["objective"], rel=2e-7)


def test_butterfly_mixing_shares_it_out_too(shared, binary):
    params = {k: v for k, v in PARAMS.items() if k != "max_iter"}
    ours = ButterflySGDClassifier(**params, max_iter=1).fit(*binary)
    alone = MASGDClassifier(**{**PARAMS, "n_ranks": 1}).fit(*binary)
    expected = alone.history_[-1]["objective"]
    assert ours.history_[-1]["objective"] == pytest.approx(expected, rel=1e-8)


# Many columns -------------------------------------------------------------------------


def fit_many(data, **params):
    params = {**PARAMS, "refine_max_iter": 7, "refine_tol": 0, **params}
    with pytest.warns(UserWarning, match="refinement ended"):
        model = MASGDClassifier(**params).fit(*data)
    objectives = [record["objective"] for record in model.history_]
    return model.coef_.tobytes(), model.intercept_.tobytes(), objectives


def test_many_columns_are_shared_out_and_few_are_not(monkeypatch):
    monkeypatch.setattr(_run, "_LEAST_SHARED", 3000)
    made = []

    def begin(self, model):
        made.append(type(self).__name__)
        return original(self, model)

    original = _run.SharedRefinement._begin
    monkeypatch.setattr(_run.SharedRefinement, "_begin", begin)
    X, y = few_rows(3000)
    fit_many((X, y), n_ranks=2, refine_max_iter=2)
    assert made == ["SharedRefinement"] * 2
    fit_many((X, y), n_ranks=1, refine_max_iter=2)
    fit_many((X[:, :2999], y), n_ranks=2, refine_max_iter=2)
    assert len(made) == 2


@contextmanager
def shared_on_workers(client):
    """On other processes, too, what few columns there are is shared out."""

    def set_least(least):
        from dask_ma.linear.refine import _run

        before, _run._LEAST_SHARED = _run._LEAST_SHARED, least
        return before

    before = client.run(set_least, 1)
    try:
        yield
    finally:
        for address, least in before.items():
            client.run(set_least, least, workers=[address])


@pytest.mark.parametrize("penalty", ["l2", "l1"])
def test_clusters_and_aggregations_agree_bit_for_bit(
    shared, inproc_client, process_client, wide_client, some_columns, penalty
):
    params = {"penalty": penalty, "alpha": 1e-3}
    here = fit_many(some_columns, **params)
    assert fit_many(some_columns, **params, paradigm=Models("tree")) == here
    clients = [wide_client]
    if penalty == "l2":
        clients.append(process_client)
        with inproc_client.as_current():
            assert fit_many(some_columns, **params) == here
    for client in clients:
        with shared_on_workers(client), client.as_current():
            assert fit_many(some_columns, **params) == here
