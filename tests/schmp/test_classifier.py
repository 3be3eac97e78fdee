"""SchMPLogisticRegression against scikit-learn, on ranks here and on clusters."""

import pickle

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from dask_ma import SchMPLogisticRegression
from dask_ma.kernels import MultinomialLogLoss
from dask_ma.schmp.l1._losses import WeightedLoss

ALPHA = 0.02
PARAMS = {"alpha": ALPHA, "tol": 1e-10}
LAYOUTS = [(1, "rows"), (3, "rows"), (4, "columns")]
SETTINGS = [{}, {"fit_intercept": False}, {"l1_ratio": 0.4}]
TARGETS = ["two", "three"]
every_target = pytest.mark.parametrize("target", TARGETS)
every_layout = pytest.mark.parametrize("layout", ["rows", "columns"])


def distances(model, other, X):
    """Largest differences of coefficients, and of margins but for a common shift."""
    margins = [m.decision_function(X) for m in (model, other)]
    if margins[0].ndim == 2:
        margins = [m - m.mean(axis=1, keepdims=True) for m in margins]
    return (
        np.abs(model.coef_ - other.coef_).max(),
        np.abs(margins[0] - margins[1]).max(),
    )


@pytest.mark.each
@pytest.mark.parametrize("kind", ["dense", "csr_array"])
@pytest.mark.parametrize("params", SETTINGS, ids=str)
@every_target
def test_scikit_learn(wide, l1_objective, logistic, target, params, kind):
    """Objective and predictions; the same model however the data are shared out."""
    weighted = kind == "dense"
    X = wide["X"] if kind == "dense" else sparse.csr_array(wide["X"])
    y, weight = wide[target], wide["weight"] if weighted else None
    others = {k: v for k, v in params.items() if k != "l1_ratio"}
    ratio = params.get("l1_ratio", 1.0)
    expected = logistic(X, y, ALPHA, ratio, weight, tol=1e-6, **others)
    best = l1_objective(expected, X, y, weight, alpha=ALPHA, l1_ratio=ratio)
    models = []
    for n_ranks, layout in LAYOUTS:
        model = SchMPLogisticRegression(
            **PARAMS, **params, n_ranks=n_ranks, layout=layout
        ).fit(X, y, sample_weight=weight)
        found = l1_objective(model, X, y, weight)
        assert -1e-6 < found - best < 1e-9
        assert model.history_[-1]["objective"] == pytest.approx(found, rel=1e-12)
        assert max(distances(model, expected, X)) < 1e-2
        assert model.coef_.shape == expected.coef_.shape
        assert model.intercept_.shape == expected.intercept_.shape
        np.testing.assert_allclose(
            model.predict_proba(X), expected.predict_proba(X), atol=2e-3
        )
        assert model.n_iter_ < 20
        models.append(model)
    for model in models[1:]:
        assert max(distances(model, models[0], X)) < 1e-6


@pytest.mark.parametrize("solver", ["liblinear"])
@pytest.mark.parametrize("alpha", [0.1, 0.03])
def test_liblinear_without_intercept(wide, alpha, solver):
    X, y = wide["X"], wide["two"]
    expected = LogisticRegression(
        C=1 / (alpha * 60),
        l1_ratio=1.0,
        solver=solver,
        fit_intercept=False,
        tol=1e-9,
        max_iter=10**5,
        random_state=0,  # it shuffles
    )
    if expected.get_params()["penalty"] == "l2":
        expected.set_params(penalty="l1", l1_ratio=None)
    expected.fit(X, y)
    model = SchMPLogisticRegression(
        alpha, tol=1e-12, fit_intercept=False, n_ranks=2
    ).fit(X, y)
    np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-5)
    np.testing.assert_array_equal(model.coef_ != 0, np.abs(expected.coef_) > 1e-6)


@every_target
def test_optimality(wide, target):
    """The conditions of an optimum, from scikit-learn's probabilities alone."""
    X, y, weight = wide["X"], wide[target], wide["weight"] / wide["weight"].sum()
    factors = np.random.default_rng(1).uniform(0.3, 3, 90)
    factors[[3, 50]] = 0
    for n_ranks, layout in LAYOUTS[1:]:
        model = SchMPLogisticRegression(
            ALPHA, tol=1e-13, feature_weights=factors, n_ranks=n_ranks, layout=layout
        ).fit(X, y, sample_weight=wide["weight"])
        truth = y[:, np.newaxis] == np.arange(len(model.classes_))
        residual = truth - model.to_sklearn().predict_proba(X)
        residual = residual[:, 1:] if target == "two" else residual
        slope = X.T @ (weight[:, np.newaxis] * residual)
        bound = ALPHA * factors[:, np.newaxis]
        coef = model.coef_.T
        assert np.abs(weight @ residual).max() < 1e-9
        zero = coef == 0
        assert (np.abs(slope) <= bound + 1e-9)[zero].all()
        np.testing.assert_allclose(
            slope[~zero], (bound * np.sign(coef))[~zero], atol=1e-6
        )
        assert coef[[3, 50]].all() and zero.mean() > 0.5


@pytest.mark.each
@every_layout
@every_target
def test_weights_of_rows(wide, layout, target):
    """2 is the row twice, and 0 no row."""
    X, y = wide["X"], wide[target]
    weight = np.arange(60) % 3
    twice = np.repeat(np.arange(60), weight)
    params = {**PARAMS, "n_ranks": 3, "layout": layout}
    expected = SchMPLogisticRegression(**params).fit(X[twice], y[twice])
    model = SchMPLogisticRegression(**params).fit(X, y, sample_weight=weight)
    assert max(distances(model, expected, X)) < 1e-5


@every_target
def test_class_weight(wide, target):
    X, y = wide["X"], wide[target]
    y = np.where(np.arange(60) % 4 == 0, 0, y)
    weights = {0: 0.5, 1: 2.0, 2: 1.5}
    known = {k: v for k, v in weights.items() if k <= y.max()}
    counts = np.bincount(y)
    plain = SchMPLogisticRegression(**PARAMS).fit(X, y, wide["weight"])
    for class_weight, factors in [
        (known, np.array(list(known.values()))),
        ("balanced", len(y) / (len(counts) * counts)),
    ]:
        model = SchMPLogisticRegression(**PARAMS, class_weight=class_weight, n_ranks=2)
        model.fit(X, y, sample_weight=wide["weight"])
        if class_weight == "balanced":
            # Frequencies are counted with the weights of rows.
            sums = np.bincount(y, wide["weight"])
            factors = sums.sum() / (len(sums) * sums)
        expected = SchMPLogisticRegression(**PARAMS, n_ranks=2)
        expected.fit(X, y, sample_weight=wide["weight"] * factors[y])
        assert max(distances(model, expected, X)) < 1e-5
        assert max(distances(model, plain, X)) > 1e-2


@pytest.mark.parametrize("kind", ["str", "bool", "object", "float"])
def test_labels(wide, kind):
    X, y = wide["X"], wide["two"]
    labels = {
        "str": np.array(["no", "yes"])[y],
        "bool": y == 1,
        "object": np.array(["no", "yes"], dtype=object)[y],
        "float": y + 1.0,
    }[kind]
    model = SchMPLogisticRegression(**PARAMS, n_ranks=2).fit(X, labels)
    expected = SchMPLogisticRegression(**PARAMS, n_ranks=2).fit(X, y)
    np.testing.assert_array_equal(model.classes_, np.unique(labels))
    np.testing.assert_array_equal(model.coef_, expected.coef_)
    predicted = model.predict(X)
    np.testing.assert_array_equal(predicted, model.classes_[expected.predict(X)])
    assert (predicted == labels).mean() > 0.9


@pytest.mark.parametrize("max_iter", [1, 2])
@every_target
def test_the_gap_is_a_bound_after_few_rounds(wide, l1_objective, target, max_iter):
    X, y = wide["X"], wide[target]
    best = SchMPLogisticRegression(1e-3, tol=1e-13).fit(X, y)
    model = SchMPLogisticRegression(1e-3, tol=0, max_iter=max_iter, n_ranks=2)
    with pytest.warns(ConvergenceWarning, match="asked was 0.000e") as caught:
        model.fit(X, y)
    assert f"gap of {model.dual_gap_:.3e}" in str(caught[0].message)
    distance = l1_objective(model, X, y) - l1_objective(best, X, y)
    assert -1e-12 <= distance <= model.dual_gap_ + 1e-12
    if max_iter == 1:
        assert distance > 1e-9


@pytest.mark.each
@every_layout
@every_target
def test_warm_start(wide, target, layout):
    X, y = wide["X"], wide[target]
    params = {"tol": 1e-6, "n_ranks": 2, "layout": layout}
    model = SchMPLogisticRegression(1e-3, **params).fit(X, y)
    before = clone(model).fit(X, y)
    model.set_params(warm_start=True).fit(X, y)
    assert model.n_iter_ == 1 < before.n_iter_
    assert max(distances(model, before, X)) < 1e-9
    model.sparsify().fit(X, y)
    assert model.n_iter_ == 1


@every_target
def test_warm_start_for_fewer_rows(wide, target):
    """Ranks of one process do not all move the intercepts that it begins with."""
    X, y = wide["X"], wide[target]
    params = {"alpha": 1e-2, "tol": 1e-9, "n_ranks": 3}
    model = SchMPLogisticRegression(**params, warm_start=True).fit(X[:20], y[:20])
    before = model.intercept_
    kept = before.copy()
    expected = SchMPLogisticRegression(**params).fit(X[10:], y[10:])
    model.fit(X[10:], y[10:])
    np.testing.assert_allclose(model.intercept_, expected.intercept_, atol=1e-4)
    np.testing.assert_array_equal(before, kept)


def test_warm_start_with_other_classes(wide):
    model = SchMPLogisticRegression(ALPHA, warm_start=True).fit(wide["X"], wide["two"])
    with pytest.raises(ValueError, match="same classes as in the previous call"):
        model.fit(wide["X"], wide["three"])
    assert model.classes_.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("target", "kind"), [("two", "csr_matrix"), ("three", "dense")]
)
def test_inputs(wide, cluster, target, kind):
    X, y = wide["X"], wide[target]
    model = SchMPLogisticRegression(**PARAMS, n_ranks=4).fit(X, y)
    lazy, labels = (da.from_array(a, chunks=(15, *a.shape[1:])) for a in (X, y))
    rows = lazy if kind == "dense" else lazy.map_blocks(sparse.csr_matrix)
    other = SchMPLogisticRegression(**PARAMS, n_ranks=4).fit(rows, labels)
    assert max(distances(other, model, X)) < 1e-6
    for name in ("predict", "predict_proba", "decision_function"):
        found = getattr(other, name)(rows)
        assert isinstance(found, da.Array)
        expected = getattr(model, name)(X)
        assert found.shape == expected.shape and found.dtype == expected.dtype
        np.testing.assert_allclose(found.compute(), expected, atol=1e-6)
    assert other.score(rows, labels) == pytest.approx(model.score(X, y))
    none = model.predict_proba(lazy[:0]).compute()
    assert none.shape == (0, len(model.classes_))


@every_target
def test_float32(wide, target):
    X, y = wide["X"].astype(np.float32), wide[target]
    model = SchMPLogisticRegression(**PARAMS, n_ranks=2).fit(X, y)
    assert model.coef_.dtype == model.intercept_.dtype == np.float32
    other = SchMPLogisticRegression(**PARAMS, n_ranks=2).fit(X.astype(np.float64), y)
    assert max(distances(model, other, X)) < 1e-4


@pytest.mark.parametrize(("n_ranks", "layout"), LAYOUTS[1:])
def test_many_classes_are_not_gone_over_in_pairs(n_ranks, layout):
    """A Newton step reads the rows once, not once for each pair of classes."""
    rng = np.random.default_rng(0)
    K, n = 24, 480
    y = np.arange(n) % K
    words = [rng.choice([k, K + k, *range(2 * K, 2 * K + 20)], 4) for k in y]
    X = sparse.csr_matrix(
        (np.ones(4 * n), (np.repeat(np.arange(n), 4), np.concatenate(words)))
    )
    model = SchMPLogisticRegression(1e-3, n_ranks=n_ranks, layout=layout).fit(X, y)
    assert model.score(X, y) > 0.3
    touched = [record["n_touched"] for record in model.history_]
    assert max(touched) < 100 * X.nnz  # there are 300 pairs


def test_curvatures_of_certain_classes():
    """Intercepts have curvature as long as a probability is not quite one."""
    loss = WeightedLoss(MultinomialLogLoss(3), np.array([0]), np.ones(1))
    sums = loss.summed_curvatures(np.array([[40.0, 0.0, 0.0]]))
    assert sums[0, 0] == pytest.approx(2 * np.exp(-40), rel=1e-10)
    np.testing.assert_allclose(sums.sum(axis=0), 0, atol=1e-25)


@every_target
def test_twins(wide, target):
    X, y = wide["X"], wide[target]
    model = SchMPLogisticRegression(**PARAMS, l1_ratio=0.5).fit(X, y)
    twin = model.to_sklearn()
    assert type(twin) is LogisticRegression and twin.solver == "saga"
    for other in (twin, pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.predict(X), model.predict(X))
        np.testing.assert_array_equal(other.predict_proba(X), model.predict_proba(X))
    assert twin.n_iter_.tolist() == [model.n_iter_]
    assert model.sparse_coef_.shape == model.coef_.shape
    np.testing.assert_array_equal(model.sparse_coef_.toarray(), model.coef_)
    # The twin is the same problem: fitted again it stays where it is.
    assert model.predict_proba(X).sum(axis=1) == pytest.approx(np.ones(60))


@pytest.mark.each
@every_layout
@every_target
def test_threads_and_clusters_agree_to_the_bit(wide, inproc_client, target, layout):
    def fit():
        model = SchMPLogisticRegression(1e-3, tol=1e-8, n_ranks=4, layout=layout)
        model.fit(wide["X"], wide[target])
        gaps = [record["dual_gap"] for record in model.history_]
        return model.coef_.tobytes(), model.intercept_.tobytes(), gaps

    here = fit()
    with inproc_client.as_current():
        assert fit() == here


@pytest.mark.each
@every_layout
@every_target
def test_a_resumed_fit_is_an_uninterrupted_one(wide, tmp_path, target, layout):
    X, y = wide["X"], wide[target]
    params = {"alpha": 1e-3, "tol": 1e-11, "n_ranks": 2, "layout": layout}
    whole = SchMPLogisticRegression(**params).fit(X, y)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with pytest.warns(ConvergenceWarning):
            SchMPLogisticRegression(**params, max_iter=2).fit(X, y)
        resumed = SchMPLogisticRegression(**params).fit(X, y)
    rounds = [record["round"] for record in resumed.history_]
    assert rounds == list(range(1, resumed.n_iter_ + 1)) and len(rounds) > 2
    last, expected = (m.history_[-1]["objective"] for m in (resumed, whole))
    assert last == pytest.approx(expected, abs=1e-10)
    assert max(distances(resumed, whole, X)) < 1e-4
