"""Weights of features: gradients, ranks, sparse rows, methods, what is refused."""

import dask.array as da
import numpy as np
import pytest
from scipy import optimize, sparse
from sklearn.datasets import load_iris

from dask_ma import SFBMetricLearner
from dask_ma.kernels import feature_slopes, neighbour_hits, squared_distances
from dask_ma.sfb import Exchange

X, y = load_iris(return_X_y=True)
RNG = np.random.default_rng(0)
START = RNG.uniform(0.3, 1.0, size=4)
PAIRS = RNG.integers(0, 75, size=(120, 2)) * 2 + [0, 1]
PAIR_LABELS = np.where(y[PAIRS[:, 0]] == y[PAIRS[:, 1]], 1, -1)
TRIPLETS = np.stack([np.arange(50) + 40, np.arange(50) + 41, np.arange(50) % 40], 1)
OF_PAIRS = {"pairs": PAIRS, "pair_labels": PAIR_LABELS}
ROWS = {"dense": np.asarray, "sparse": sparse.csr_array}
OUT_OF_STEP = [{"staleness": 2}, {"broadcast": 1}]


def fit(*, X=X, y=y, **params):
    """A learner of weights, fitted to labels or to pairs."""
    data = {name: params.pop(name) for name in OF_PAIRS if name in params}
    params = {"metric_form": "diagonal", "random_state": 0, **params}
    return SFBMetricLearner(**params).fit(X, None if data else y, **data)


def loss_of_labels(roots, name, X=X, y=y):
    """Mean loss of rows among all others, one by one."""
    values = []
    for i in range(len(X)):
        d = ((X - X[i]) ** 2) @ roots**2
        same, other = y == y[i], y != y[i]
        same[i] = False
        near, far = d[same], d[other]
        if name == "nca":
            weights = np.exp(-d)
            weights[i] = 0
            values.append(-np.log(weights[same].sum() / weights.sum()))
        elif name == "hinge":
            values.append(near.mean() + 5 * np.maximum(0, 1 - far).mean())
        elif name == "logistic":
            excess = 3 * (near - 1), 3 * (1 - far)
            values.append(sum(np.log1p(np.exp(e)).mean() for e in excess) / 3)
        else:
            values.append(np.maximum(0, 1 + near[:, None] - far).mean())
    return float(np.mean(values))


def loss_of_pairs(roots, name):
    """Mean loss of pairs or triplets."""
    weights = roots**2
    if name == "triplet":
        a, b, c = X[TRIPLETS.T]
        return np.maximum(0, 1 + ((a - b) ** 2 - (a - c) ** 2) @ weights).mean()
    d = ((X[PAIRS[:, 0]] - X[PAIRS[:, 1]]) ** 2) @ weights
    if name == "hinge":
        return np.where(PAIR_LABELS > 0, d, 5 * np.maximum(0, 1 - d)).mean()
    return (np.logaddexp(0, 3 * PAIR_LABELS * (d - 1)) / 3).mean()


def slopes_of(function, at):
    """Derivatives by finite differences."""
    steps = 1e-5 * np.eye(len(at))
    return np.array([(function(at + s) - function(at - s)) / 2e-5 for s in steps])


# Kernels ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ROWS)
def test_slopes_of_features(kind):
    """Against a loop over pairs."""
    weights, A, B = RNG.normal(size=(3, 5)), RNG.normal(size=(3, 4)), X[:5]
    A[:, 1] = 0
    expected = sum(
        weights[i, j] * (A[i] - B[j]) ** 2 for i in range(3) for j in range(5)
    )
    found = feature_slopes(weights, ROWS[kind](A), ROWS[kind](B))
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    none = feature_slopes(weights[:0], ROWS[kind](A[:0]), ROWS[kind](B))
    np.testing.assert_array_equal(none, 0)


def test_kernels_take_sparse_rows():
    rows, numbers = sparse.csr_array(X), np.arange(0, 150, 7)
    expected = squared_distances(X[numbers], X)
    found = squared_distances(rows[numbers], rows)
    np.testing.assert_allclose(found, expected, atol=1e-10)
    arguments = y[numbers], y, numbers
    found = neighbour_hits(rows[numbers], arguments[0], rows, *arguments[1:])
    assert found == neighbour_hits(X[numbers], arguments[0], X, *arguments[1:])


# The objective ------------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("loss", ["nca", "hinge", "logistic", "triplet"])
def test_steps_on_labels(loss, kind):
    """One step of plain descent against finite differences."""
    params = {"init": START, "max_iter": 1, "batch_size": 150, "optimizer": "sgd"}
    learner = fit(X=ROWS[kind](X), loss=loss, eta0=0.05, n_ranks=3, **params)
    expected = START - 0.05 * slopes_of(lambda s: loss_of_labels(s, loss), START)
    np.testing.assert_allclose(learner.components_, np.abs(expected), atol=2e-5)
    objective = learner.history_[0]["objective"]
    assert objective == pytest.approx(loss_of_labels(START, loss), rel=1e-5)


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("loss", ["hinge", "logistic", "triplet"])
def test_steps_on_pairs(loss, kind):
    params = {"init": START, "max_iter": 1, "batch_size": 150, "optimizer": "sgd"}
    data = {"pairs": TRIPLETS} if loss == "triplet" else OF_PAIRS
    learner = fit(X=ROWS[kind](X), loss=loss, eta0=0.05, n_ranks=3, **params, **data)
    expected = START - 0.05 * slopes_of(lambda s: loss_of_pairs(s, loss), START)
    np.testing.assert_allclose(learner.components_, np.abs(expected), atol=2e-5)
    objective = learner.history_[0]["objective"]
    assert objective == pytest.approx(loss_of_pairs(START, loss), rel=1e-5)


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_the_optimum_of_pairs(loss):
    """Losses are convex in the weights, so that there is one to be found."""
    learner = fit(loss=loss, batch_size=200, max_iter=300, tol=None, **OF_PAIRS)
    best = optimize.minimize(
        lambda weights: loss_of_pairs(np.sqrt(weights), loss),
        START**2,
        method="Powell",
        bounds=[(0, 20)] * 4,
        options={"xtol": 1e-8, "ftol": 1e-12},
    )
    found = loss_of_pairs(learner.components_.astype(np.float64), loss)
    assert found == pytest.approx(best.fun, rel=2e-3)


def test_weighted_rows():
    weight = RNG.uniform(0.5, 2.0, size=150)
    params = {"init": START, "max_iter": 1, "batch_size": 150}
    params |= {"metric_form": "diagonal", "random_state": 0}
    found = [
        SFBMetricLearner(**params, n_ranks=n).fit(X, y, weight).history_[0]["objective"]
        for n in (1, 3)
    ]
    losses = []
    for i in range(150):
        e = np.exp(-(((X - X[i]) ** 2) @ START**2))
        e[i] = 0
        losses.append(-np.log(e[y == y[i]].sum() / e.sum()))
    expected = np.average(losses, weights=weight)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_constant_feature_is_left_alone():
    """Adam would make long steps along the rounding of its gradient."""
    rows = np.column_stack([X, np.full(150, 3.3)])
    for kind in ROWS.values():
        learner = fit(X=kind(rows), max_iter=3, eta0=0.01, batch_size=50)
        first = fit(X=kind(rows), max_iter=1, eta0=1e-12).components_
        assert learner.components_[4] == pytest.approx(first[4], rel=1e-4)


def test_penalties():
    params = {"optimizer": "sgd", "max_iter": 60, "batch_size": 50, "loss": "logistic"}
    plain = fit(**params)
    sparser = fit(penalty="l1", alpha=0.05, **params)
    assert (plain.components_ > 0).all()
    assert (sparser.components_ == 0).any()
    np.testing.assert_array_equal(
        sparser.components_, fit(penalty="trace", alpha=0.05, **params).components_
    )
    shorter = fit(alpha=0.5, **params)
    assert np.linalg.norm(shorter.components_) < np.linalg.norm(plain.components_)


# Ranks --------------------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("content", ["factors", "full_matrix", "server", "auto"])
@pytest.mark.parametrize("how", ["labels", "pairs", "triplets"])
def test_any_number_of_ranks(how, content, kind):
    """The batches are the same, and so are the weights but for rounding."""
    params = {"max_iter": 4, "batch_size": 32, "tol": None, "X": ROWS[kind](X)}
    if how == "pairs":
        params |= {"loss": "logistic", **OF_PAIRS}
    elif how == "triplets":
        params |= {"loss": "triplet", "pairs": TRIPLETS}
    one = fit(n_ranks=1, **params)
    for n_ranks in (2, 4):
        other = fit(n_ranks=n_ranks, communication=content, **params)
        np.testing.assert_allclose(one.components_, other.components_, atol=1e-5)
        if how == "pairs":
            assert one.threshold_ == pytest.approx(other.threshold_, rel=1e-4)


@pytest.mark.each
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("exchange", OUT_OF_STEP, ids=["staleness", "broadcast"])
def test_ranks_that_are_not_in_step(exchange, kind):
    """Each learns from the pairs of its own rows, and gets the updates of all."""
    order = np.random.default_rng(3).permutation(150)
    learner = fit(
        X=ROWS[kind](X[order]),
        y=y[order],
        optimizer="sgd",
        communication=Exchange(**exchange),
        n_ranks=3,
        max_iter=40,
        batch_size=30,
    )
    start = fit(max_iter=1, eta0=1e-12).components_
    found = loss_of_labels(learner.components_, "nca")
    assert found < 0.8 * loss_of_labels(start, "nca")


@pytest.mark.filterwarnings("ignore:the objective has not fallen")
def test_bytes_do_not_grow_with_a_matrix():
    """22,000 sparse features: rows of batches, and one number for each used feature."""
    n, d, b, nnz = 64, 22_000, 32, 20
    rng = np.random.default_rng(0)
    rows = sparse.random_array((n, d), density=nnz / d, format="csr", rng=rng)
    labels = np.arange(n) % 4
    params = {"X": rows, "y": labels, "max_iter": 2, "batch_size": b, "tol": None}
    learner = fit(n_ranks=2, communication="factors", **params)
    record = learner.history_[1]  # without what the start takes
    n_steps = n // b
    # Data and indices of the rows, and of their sum, from each rank to the other.
    expected = n_steps * 2 * b * nnz * 8
    found = record["bytes_shared"] + record["bytes_sent"]
    assert expected / 2 < found < 2 * expected + 20_000
    assert learner.components_.shape == (d,)
    np.testing.assert_allclose(
        learner.components_, fit(**params).components_, atol=1e-4
    )


@pytest.mark.each
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("how", ["labels", "pairs"])
def test_early_stopping(how, kind):
    params = {"early_stopping": True, "validation_fraction": 0.3, "max_iter": 15}
    if how == "pairs":
        params |= {"loss": "logistic", **OF_PAIRS}
    one, other = (fit(X=ROWS[kind](X), n_ranks=n, **params) for n in (1, 3))
    scores = [record["validation_score"] for record in one.history_]
    assert max(scores) > 0.8
    assert scores == pytest.approx(
        [record["validation_score"] for record in other.history_], abs=0.05
    )
    np.testing.assert_allclose(one.components_, other.components_, atol=1e-4)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_partial_fits_do_not_depend_on_the_ranks(optimizer):
    found = []
    for n_ranks in (1, 3):
        learner = SFBMetricLearner(
            metric_form="diagonal", optimizer=optimizer, batch_size=20,
            random_state=0, n_ranks=n_ranks, loss="hinge",
        )  # fmt: skip
        for part in range(6):
            learner.partial_fit(X[part % 3 :: 3], y[part % 3 :: 3])
        found.append(learner.components_)
    np.testing.assert_allclose(*found, atol=1e-5)
    assert (found[0] >= 0).all()


def test_partial_fits_go_on_where_signs_have_changed():
    """Nothing depends on the signs of the roots, and neither do steps."""
    learners = []
    for signs in (1, np.array([1, -1, -1, 1])):
        learner = SFBMetricLearner(
            metric_form="diagonal", init=START * signs, batch_size=30, random_state=0
        )
        for part in range(4):
            learner.partial_fit(X[part % 3 :: 3], y[part % 3 :: 3])
        learners.append(learner.components_)
    np.testing.assert_allclose(*learners, rtol=1e-5)


# What users get -----------------------------------------------------------------------


def test_methods():
    learner = fit(n_ranks=2)
    w = learner.components_
    assert w.shape == (4,)
    assert w.dtype == np.float32
    M = learner.get_mahalanobis_matrix()
    np.testing.assert_array_equal(M, np.diag(w**2))
    Z = learner.transform(X)
    np.testing.assert_allclose(Z, X * w)
    assert learner.get_feature_names_out().shape == (4,)
    expected = [np.sqrt((X[i] - X[j]) @ M @ (X[i] - X[j])) for i, j in PAIRS]
    metric = learner.get_metric()
    found = [metric(X[i], X[j]) for i, j in PAIRS]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert metric(X[0], X[1], squared=True) == pytest.approx(metric(X[0], X[1]) ** 2)
    for pairs in ((PAIRS, X), (X[PAIRS],), (PAIRS, sparse.csr_array(X))):
        np.testing.assert_allclose(learner.pair_distance(*pairs), expected, rtol=1e-4)
    learner.calibrate_threshold(PAIRS, PAIR_LABELS, X)
    assert (learner.predict(PAIRS, X) == PAIR_LABELS).mean() > 0.9
    assert learner.score(PAIRS, PAIR_LABELS, X) > 0.95


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sparse_rows_stay_sparse(dtype):
    learner, rows = fit(), sparse.csr_array(X.astype(dtype))
    Z = learner.transform(rows)
    assert sparse.issparse(Z)
    assert Z.dtype == dtype
    np.testing.assert_allclose(Z.toarray(), X * learner.components_, rtol=1e-6)


@pytest.mark.parametrize("meta", [None, sparse.csr_array((0, 4))], ids=["no", "csr"])
def test_lazy_rows(meta):
    learner = fit()
    lazy = da.from_array(X, chunks=(40, 4))
    Z = learner.transform(lazy)
    assert isinstance(Z, da.Array)
    np.testing.assert_allclose(Z.compute(), X * learner.components_)
    blocks = learner.transform(lazy.map_blocks(sparse.csr_array, meta=meta))
    assert isinstance(blocks, da.Array)
    found = blocks.compute()
    assert sparse.issparse(found)
    np.testing.assert_allclose(found.toarray(), X * learner.components_)
    other = fit(X=lazy, y=da.from_array(y, chunks=40), n_ranks=2)
    np.testing.assert_allclose(other.components_, learner.components_, atol=1e-5)


def test_an_empty_sparse_block_stays_sparse():
    learner = fit()
    rows = da.from_array(X, chunks=((40, 110), (4,))).map_blocks(sparse.csr_array)
    empty = da.concatenate([rows[:0], rows]) if rows.ndim else rows
    assert sparse.issparse(learner.transform(empty).compute())


def test_starts():
    first = {
        init: fit(init=init, max_iter=1, eta0=1e-12).components_
        for init in ("auto", "identity", "random")
    }
    np.testing.assert_array_equal(first["auto"], first["identity"])
    assert len(set(first["auto"].tolist())) == 1
    for roots in first.values():
        assert 2 * (X * roots).var(axis=0).sum() == pytest.approx(8.0, rel=1e-3)
        assert (roots > 0).all()


def test_a_fit_that_goes_on():
    learner = SFBMetricLearner(
        metric_form="diagonal", warm_start=True, max_iter=5, random_state=0
    )
    first = learner.fit(X, y).history_[0]["objective"]
    assert learner.fit(X, y).history_[0]["objective"] < first
    with pytest.raises(ValueError, match="set n_components back, and metric_form"):
        learner.set_params(metric_form="low_rank").fit(X, y)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_components": 2}, "n_components=2 has no effect with metric_form='diag"),
        ({"init": "pca"}, "init='pca' mixes features, which metric_form='diagonal'"),
        ({"init": "lda"}, "init='lda' mixes features"),
        ({"init": np.ones((1, 4))}, r"init has the shape \(1, 4\), .*\(n_features,\)"),
        ({"communication": "outputs"}, "communication='outputs' shares out components"),
        ({"metric_form": "full"}, "'metric_form' parameter"),
        ({"X": np.ones((150, 4))}, "all rows of X are alike"),
        ({"alpha": 1e6}, "grows without bound.*lower alpha or eta0"),
        ({"alpha": 50.0}, "shrunk to zero.*lower alpha"),
    ],
)
def test_what_is_refused(params, message):
    with pytest.raises(ValueError, match=message):
        fit(**params)
