"""SGD for many classes at once: its steps by hand, and what fits make of it."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import SGDClassifier

from dask_ma import MASGDClassifier
from dask_ma.data import Block, Shard
from dask_ma.kernels import make_loss
from dask_ma.linear import LinearModel
from dask_ma.ma import Models
from dask_ma.ma.sgd._joint_sgd import JointSGD, goes_jointly
from dask_ma.ma.sgd._solver import LocalSGD
from dask_ma.ma.sgd._steps import Steps

N_CLASSES, N_FEATURES = 40, 25


def make_params(**changes):
    known = {
        "is_classifier": True,
        "loss": "log_loss",
        "epsilon": 0.1,
        "penalty": "l2",
        "alpha": 0.02,
        "l1_ratio": 0.15,
        "fit_intercept": True,
        "shuffle": False,
        "learning_rate": "auto",
        "eta0": 0.5,
        "power_t": 0.5,
        "paradigm": Models(),
        "t": 1.0,
        "join_limit": 0,
    }
    return SimpleNamespace(**{**known, **changes})


def make_rows(n_rows, seed=0, dtype=np.float64, container=sparse.csr_array):
    """Sparse rows, one of them empty, codes of classes, and weights."""
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(n_rows, N_FEATURES)) * (rng.random((n_rows, 1)) < 0.9)
    dense *= rng.random(dense.shape) < 0.2
    y = rng.integers(0, N_CLASSES, n_rows)
    weight = rng.integers(1, 4, n_rows).astype(dtype)
    return container(dense.astype(dtype)), y, weight


def by_hand(X, y, weight, order, params, steps, t, model, positive_weight):
    """Steps of 16 rows with dense weights."""
    w, b = model.coef.T.copy(), model.intercept.copy()
    loss, X = make_loss(params.loss, params.epsilon), X.toarray()
    signs = np.where(y[:, None] == np.arange(N_CLASSES), 1.0, -1.0)
    for start in range(0, len(y), 16):
        rows = order[start : start + 16]
        eta = steps.at(t + start + (len(rows) - 1) / 2)
        slopes = loss.slope(signs[rows], X[rows] @ w + b) * weight[rows][:, None]
        slopes *= np.where(signs[rows] > 0, positive_weight, 1.0)
        w = w / (1 + eta * params.alpha * len(rows)) - eta * X[rows].T @ slopes
        if params.fit_intercept:
            b -= 0.1 * eta * slopes.sum(axis=0)
    return w.T, b


@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("container", [sparse.csr_matrix, sparse.csr_array])
@pytest.mark.parametrize("alpha", [0.02, 3.0])  # the latter shrinks weights to nothing
@pytest.mark.pairs
def test_steps_of_some_rows(loss, fit_intercept, shuffle, container, alpha):
    X, y, weight = make_rows(1100, container=container)
    params = make_params(
        loss=loss, fit_intercept=fit_intercept, shuffle=shuffle, alpha=alpha
    )
    rng = np.random.default_rng(1)
    positive_weight = rng.random(N_CLASSES) + 0.5
    start = LinearModel(
        rng.normal(size=(N_CLASSES, N_FEATURES)), rng.normal(size=N_CLASSES)
    )
    before = LinearModel(*(array.copy() for array in start))
    steps, t = Steps(0.5, 10.0, 0.5), 7.0
    sgd = JointSGD(N_FEATURES, N_CLASSES, params, positive_weight, X.dtype)
    sgd.load(start)
    sgd.go_over(Block(X, y, weight, 0, 0), steps, t, np.random.RandomState(3))
    found = sgd.copy()
    order = np.arange(len(y))
    if shuffle:
        order = np.random.RandomState(3).permutation(len(y))
    coef, intercept = by_hand(
        X, y, weight, order, params, steps, t, start, positive_weight
    )
    np.testing.assert_allclose(found.coef, coef, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.intercept, intercept, rtol=1e-9, atol=1e-12)
    for array, old in zip(start, before, strict=True):
        np.testing.assert_array_equal(array, old)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_runs_go_over_each_row_in_its_type(dtype):
    """Halves of a pass, over blocks that are joined for them."""
    X, y, weight = make_rows(90, dtype=dtype)
    blocks = [Block(X[a:b], y[a:b], weight[a:b], a, 0) for a, b in ((0, 37), (37, 90))]
    shard = Shard(blocks, N_FEATURES, X.dtype)
    solver = LocalSGD(shard, N_CLASSES, make_params(), np.random.SeedSequence(0), 1)
    solver.set_steps(Steps(0.5))
    model = LinearModel(
        np.zeros((N_CLASSES, N_FEATURES), dtype), np.zeros(N_CLASSES, dtype)
    )
    for _ in range(2):
        model, n_rows, pending = solver.run(model, 0.5)
        assert (n_rows, pending) == (45, 0)
        assert {array.dtype for array in model} == {X.dtype}
    assert solver.t == 91
    slow = LinearModel(np.zeros((N_CLASSES, N_FEATURES)), np.zeros(N_CLASSES))
    for low, high in ((0, 45), (45, 90)):
        some = slice(low, high)
        slow = LinearModel(
            *by_hand(
                X[some].astype(float),
                y[some],
                weight[some],
                np.arange(high - low),
                make_params(),
                Steps(0.5),
                1.0,
                slow,
                np.ones(N_CLASSES),
            )
        )
    rtol = 1e-3 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(model.coef, slow.coef, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(model.intercept, slow.intercept, rtol=rtol, atol=rtol)


def test_which_rows_go_jointly():
    X = make_rows(20)[0]

    def shard_of(X):
        return Shard([Block(X, np.zeros(20), None, 0, 0)], N_FEATURES, X.dtype)

    many, sparse_rows = N_CLASSES, shard_of(X)
    assert goes_jointly(sparse_rows, many, make_params())
    assert not goes_jointly(sparse_rows, 20, make_params())
    assert not goes_jointly(shard_of(X.toarray()), many, make_params())
    for rate in ("constant", "optimal", "pa1"):
        assert not goes_jointly(sparse_rows, many, make_params(learning_rate=rate))


def test_steps_that_are_too_long_are_told():
    X, y, weight = make_rows(64)
    params = make_params(loss="squared_hinge")
    sgd = JointSGD(N_FEATURES, N_CLASSES, params, None, X.dtype)
    sgd.load(LinearModel(np.zeros((N_CLASSES, N_FEATURES)), np.zeros(N_CLASSES)))
    with pytest.raises(ValueError, match="scale the features, or set learning_rate"):
        sgd.go_over(
            Block(X, y, weight, 0, 0), Steps(1e200), 1.0, np.random.RandomState(0)
        )


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("loss", ["hinge", "log_loss", "modified_huber"])
def test_passes_bring_as_much_as_those_of_scikit_learn(loss, n_ranks):
    """The objective after as many passes, over rows that look like short texts."""
    rng = np.random.default_rng(0)
    n_rows, n_words = 3000, 400
    y = rng.integers(0, N_CLASSES, n_rows)
    words = np.where(
        rng.random((n_rows, 8)) < 0.5,
        (y[:, None] * 10 + rng.integers(0, 10, (n_rows, 8))) % n_words,
        rng.integers(0, n_words, (n_rows, 8)),
    )
    places = np.arange(n_rows).repeat(8), words.ravel()
    X = sparse.csr_matrix((np.full(8 * n_rows, 8**-0.5), places), (n_rows, n_words))
    X.sum_duplicates()
    shared = {"loss": loss, "alpha": 1e-4, "max_iter": 4, "tol": None}
    ours = MASGDClassifier(**shared, n_ranks=n_ranks, random_state=0).fit(X, y)
    theirs = SGDClassifier(**shared, random_state=0).fit(X, y)
    signs = np.where(y[:, None] == np.arange(N_CLASSES), 1.0, -1.0)

    def objective(model):
        losses = make_loss(loss, 0.1).value(signs, model.decision_function(X))
        return losses.mean() + 0.5e-4 * (model.coef_**2).sum() / N_CLASSES

    assert ours.history_[-1]["objective"] == pytest.approx(objective(ours), rel=1e-9)
    assert objective(ours) <= objective(theirs) * (1 if n_ranks == 1 else 1.1)
