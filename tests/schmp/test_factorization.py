"""Matrix factorization against formulas, and what its users may do with it."""

import pickle
import re
import warnings
from functools import partial

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score

from dask_ma.kernels import hashed_uniform
from dask_ma.schmp import SchMPMatrixFactorization

pytestmark = pytest.mark.filterwarnings(
    f"ignore::{ConvergenceWarning.__module__}.ConvergenceWarning"
)

RNG = np.random.default_rng(0)
N_USERS, N_ITEMS, K = 30, 20, 3
TRUTH = RNG.normal(size=(N_USERS, K)) @ RNG.normal(size=(K, N_ITEMS))
SKEW = np.linspace(0.1, 0.9, N_ITEMS) * np.linspace(0.3, 1, N_USERS)[:, None]
USERS, ITEMS = np.nonzero(RNG.random(TRUTH.shape) < SKEW)
RATINGS = np.clip(np.round(2 * TRUTH[USERS, ITEMS]) / 2 + 3, 0, 6)
WEIGHTS = RNG.uniform(0.5, 2, len(RATINGS))
PAIRS = np.column_stack([USERS, ITEMS])
EXACT = {"n_components": K, "dtype": "float64", "random_state": 0, "tol": 0}
HAND = {**EXACT, "als_solver": "cholesky"}
SEED = int(np.random.RandomState(0).randint(2**31 - 1))


def start():
    """Vectors of the items to begin with."""
    rows = np.arange(N_USERS, N_USERS + N_ITEMS)
    return hashed_uniform(SEED, rows, K) * 0.1 * np.sqrt(3 / K)


def by_hand(n_rounds, alpha, *, weighted=True, weights=None, bias=True):
    """Alternating least squares, one user and one item at a time."""
    w = np.ones(len(RATINGS)) if weights is None else weights
    mean = w @ RATINGS / w.sum() if bias else 0.0
    Q, bi = start(), np.zeros(N_ITEMS)
    P, bu = np.zeros((N_USERS, K)), np.zeros(N_USERS)

    def solve(own, near, offsets):
        near = np.column_stack([np.ones(len(near)), near]) if bias else near
        ridge = alpha * (w[own].sum() if weighted else 1.0)
        A = near.T @ (w[own][:, None] * near) + ridge * np.eye(near.shape[1])
        x = np.linalg.solve(A, near.T @ (w[own] * (RATINGS[own] - mean - offsets)))
        return (x[0], x[1:]) if bias else (0.0, x)

    for _ in range(n_rounds):
        for u in np.unique(USERS):
            own = USERS == u
            bu[u], P[u] = solve(own, Q[ITEMS[own]], bi[ITEMS[own]])
        for i in np.unique(ITEMS):
            own = ITEMS == i
            bi[i], Q[i] = solve(own, P[USERS[own]], bu[USERS[own]])
    errors = RATINGS - mean - bu[USERS] - bi[ITEMS] - (P[USERS] * Q[ITEMS]).sum(axis=1)
    scale_u = np.bincount(USERS, w, N_USERS) if weighted else 1
    scale_i = np.bincount(ITEMS, w, N_ITEMS) if weighted else 1
    penalty = (scale_u * ((P**2).sum(axis=1) + bu**2)).sum()
    penalty += (scale_i * ((Q**2).sum(axis=1) + bi**2)).sum()
    return mean, bu, P, bi, Q, w @ errors**2 + alpha * penalty


@pytest.mark.parametrize(
    "options",
    [{}, {"weighted": False}, {"bias": False}, {"weights": WEIGHTS}],
    ids=lambda options: "-".join(options) or "plain",
)
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_least_squares_by_hand(options, n_ranks):
    mean, bu, P, bi, Q, objective = by_hand(3, 0.2, **options)
    model = SchMPMatrixFactorization(
        **HAND,
        alpha=0.2,
        standardize=False,
        max_iter=3,
        n_ranks=n_ranks,
        weighted_alpha=options.get("weighted", True),
        fit_bias=options.get("bias", True),
    ).fit(PAIRS, RATINGS, options.get("weights"))
    assert model.mean_ == pytest.approx(mean)
    np.testing.assert_allclose(model.user_factors_, P, atol=1e-9)
    np.testing.assert_allclose(model.item_factors_, Q, atol=1e-9)
    np.testing.assert_allclose(model.user_bias_, bu, atol=1e-9)
    np.testing.assert_allclose(model.item_bias_, bi, atol=1e-9)
    assert model.history_[-1]["objective"] == pytest.approx(objective)
    objectives = [record["objective"] for record in model.history_]
    assert objectives == sorted(objectives, reverse=True)
    assert model.n_iter_ == 3


SOLVERS = pytest.mark.parametrize(
    "options",
    [
        {"als_solver": "cholesky"},
        {"als_solver": "cg"},
        {"solver": "sgd", "batch_size": 64},
        {"als_solver": "cg", "early_stopping": True},
        {"als_solver": "cholesky", "positive": True},
        {"als_solver": "cholesky", "fit_bias": False},
    ],
    ids=["cholesky", "cg", "sgd", "early", "positive", "no-bias"],
)


@pytest.mark.each
@SOLVERS
@pytest.mark.parametrize("unit", [1.0, 1000.0, 1e-3])
def test_units_of_ratings_do_not_matter(options, unit):
    """It is as if ratings had been divided by their deviation before."""
    make = partial(SchMPMatrixFactorization, **EXACT, **options, max_iter=3, n_ranks=2)
    model = make().fit(PAIRS, unit * RATINGS)
    if "early_stopping" not in options:  # else that of the ratings not held out
        center = RATINGS.mean() if options.get("fit_bias", True) else 0.0
        deviation = np.sqrt(np.mean((RATINGS - center) ** 2))
        assert model.scale_ == pytest.approx(unit * deviation)
    scale = model.scale_
    by_hand = make(standardize=False).fit(PAIRS, unit / scale * RATINGS)
    everyone = np.argwhere(np.ones((N_USERS, N_ITEMS)))
    expected = scale * by_hand.predict(everyone)
    np.testing.assert_allclose(model.predict(everyone), expected, rtol=1e-6)
    np.testing.assert_allclose(
        model.item_bias_, scale * by_hand.item_bias_, atol=1e-7 * scale
    )
    for name, power in {"objective": 2, "validation_rmse": 1}.items():
        if name in model.history_[-1]:
            expected = scale**power * by_hand.history_[-1][name]
            assert model.history_[-1][name] == pytest.approx(expected)


@pytest.mark.parametrize("weighted", [True, False])
def test_units_of_ratings_of_new_users(weighted):
    new = np.column_stack([np.full(5, N_USERS), np.arange(5)])
    values = np.array([1.0, 5.0, 3.0, 2.0, 6.0])
    found = {}
    for unit in (1.0, 1000.0):
        model = SchMPMatrixFactorization(**HAND, weighted_alpha=weighted, max_iter=3)
        model.fit(PAIRS, unit * RATINGS)
        reason = model.explain(3, 7)
        parts = [reason.score, reason.baseline, *reason.contributions]
        assert reason.score == pytest.approx(model.predict([(3, 7)])[0], abs=unit)
        model.partial_fit(new, unit * values)
        everything = [(N_USERS, item) for item in range(N_ITEMS)]
        found[unit] = np.r_[parts, model.predict(everything)] / unit
    np.testing.assert_allclose(found[1000.0], found[1.0], rtol=1e-6, atol=1e-9)


def test_equal_ratings_have_no_deviation():
    model = SchMPMatrixFactorization(2, max_iter=2).fit(PAIRS, np.full(len(PAIRS), 4.0))
    assert model.scale_ == 1
    np.testing.assert_allclose(model.predict(PAIRS), 4.0, atol=1e-6)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_implicit_feedback_by_hand(n_ranks):
    """All pairs count, with weights; negative values are dislikes."""
    values = np.where(RNG.random(len(USERS)) < 0.2, -1.0, np.round(RATINGS) + 1)
    C, wanted = np.ones((2, N_USERS, N_ITEMS))
    wanted[:] = 0
    C[USERS, ITEMS] = 1 + 0.7 * np.abs(values)
    wanted[USERS, ITEMS] = values > 0
    Q, P = start(), np.zeros((N_USERS, K))
    for _ in range(3):
        for own, other, c, p in ((P, Q, C, wanted), (Q, P, C.T, wanted.T)):
            for row in range(len(own)):
                A = other.T @ (c[row][:, None] * other) + 0.3 * np.eye(K)
                own[row] = np.linalg.solve(A, other.T @ (c[row] * p[row]))
    objective = (C * (wanted - P @ Q.T) ** 2).sum() + 0.3 * (
        (P**2).sum() + (Q**2).sum()
    )
    model = SchMPMatrixFactorization(
        **HAND,
        feedback="implicit",
        confidence=0.7,
        alpha=0.3,
        weighted_alpha=False,
        max_iter=3,
        n_ranks=n_ranks,
    ).fit(PAIRS, values)
    np.testing.assert_allclose(model.user_factors_, P, atol=1e-8)
    np.testing.assert_allclose(model.item_factors_, Q, atol=1e-8)
    assert model.history_[-1]["objective"] == pytest.approx(objective)


@pytest.mark.filterwarnings("ignore:OpenBLAS is configured to use:RuntimeWarning")
@pytest.mark.parametrize("als_solver", ["cholesky", "cg"])
def test_implicit_feedback_next_to_another_library(als_solver):
    implicit = pytest.importorskip("implicit", reason="the peer is not installed")
    counts = np.round(RATINGS) + 1
    peer = implicit.als.AlternatingLeastSquares(
        K,
        regularization=0.3,
        alpha=1.0,
        iterations=3,
        use_cg=als_solver == "cg",
        use_gpu=False,
        num_threads=1,
        dtype=np.float64,
    )
    # Its conjugate gradients make three steps from where they are, in float32.
    peer.user_factors, peer.item_factors = np.zeros((N_USERS, K)), start()
    shape = N_USERS, N_ITEMS
    confidence = sparse.csr_matrix((1 + 0.7 * counts, (USERS, ITEMS)), shape=shape)
    peer.fit(confidence, show_progress=False)
    model = SchMPMatrixFactorization(
        **EXACT,
        als_solver=als_solver,
        feedback="implicit",
        confidence=0.7,
        alpha=0.3,
        weighted_alpha=False,
        max_iter=3,
        n_ranks=2,
    ).fit(PAIRS, counts)
    np.testing.assert_allclose(
        model.user_factors_, peer.user_factors, rtol=1e-6, atol=1e-7
    )
    np.testing.assert_allclose(
        model.item_factors_, peer.item_factors, rtol=1e-6, atol=1e-7
    )


def test_a_full_matrix_without_penalty_is_a_truncated_svd():
    full = sparse.csr_array(TRUTH + 0.1 * RNG.normal(size=TRUTH.shape))
    model = SchMPMatrixFactorization(
        **HAND, alpha=0.0, fit_bias=False, clip=False, max_iter=200, n_ranks=2
    ).fit(full)
    U, s, V = np.linalg.svd(full.toarray())
    best = U[:, :K] * s[:K] @ V[:K]
    found = model.user_factors_ @ model.item_factors_.T
    np.testing.assert_allclose(found, best, atol=1e-6)
    assert model.history_[-1]["objective"] == pytest.approx((s[K:] ** 2).sum())


@pytest.mark.pairs
@pytest.mark.parametrize("solver", ["als", "sgd"])
@pytest.mark.parametrize("feedback", ["explicit", "implicit"])
@pytest.mark.parametrize("most_collected", [0, 2**26])
def test_several_rotations_for_one_side_change_nothing(
    monkeypatch, solver, feedback, most_collected
):
    """Where not all equations fit into memory."""
    name = "dask_ma.schmp.factorization._params._MOST_COLLECTED"
    monkeypatch.setattr(name, most_collected)
    if (solver, feedback) == ("sgd", "implicit"):
        return
    options = {**EXACT, "solver": solver, "feedback": feedback, "max_iter": 3}
    if solver == "als":
        options["als_solver"] = "cholesky"
    whole = SchMPMatrixFactorization(**options, n_ranks=2).fit(PAIRS, RATINGS)
    monkeypatch.setattr("dask_ma.schmp.factorization._params._MOST_SUMS", 1500)
    parts = SchMPMatrixFactorization(**options, n_ranks=2).fit(PAIRS, RATINGS)
    np.testing.assert_allclose(parts.user_factors_, whole.user_factors_, atol=1e-9)
    pairs = zip(parts.history_, whole.history_, strict=True)
    assert all(a["objective"] == pytest.approx(b["objective"]) for a, b in pairs)


@pytest.mark.each
@pytest.mark.parametrize("solver", ["cholesky", "cg", "sgd"])
def test_the_cluster_does_not_change_a_bit(any_client, solver):
    options = {"solver": "sgd"} if solver == "sgd" else {"als_solver": solver}
    model = SchMPMatrixFactorization(
        K, **options, max_iter=3, n_ranks=3, random_state=0, early_stopping=True
    )
    here = clone(model).fit(PAIRS, RATINGS)
    with any_client.as_current():
        there = clone(model).fit(PAIRS, RATINGS)
    np.testing.assert_array_equal(there.item_factors_, here.item_factors_)
    np.testing.assert_array_equal(there.user_bias_, here.user_bias_)


NEARLY = {**EXACT, "alpha": 0.05}


@pytest.fixture(scope="module")
def best():
    return SchMPMatrixFactorization(**NEARLY, max_iter=50).fit(PAIRS, RATINGS)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_stochastic_gradients_come_near(best, n_ranks):
    model = SchMPMatrixFactorization(
        **NEARLY, solver="sgd", eta0=0.3, batch_size=64, max_iter=40, n_ranks=n_ranks
    ).fit(PAIRS, RATINGS)
    rmse = [np.sqrt(np.mean((m.predict(PAIRS) - RATINGS) ** 2)) for m in (best, model)]
    assert rmse[1] < rmse[0] + 0.1  # the ratings' deviation is 1.6
    assert model.history_[-1]["objective"] < model.history_[0]["objective"] / 3


@pytest.mark.parametrize(
    "changed",
    [{"eta0": 0.2}, {"batch_size": 32}, {"n_components": 2}, {"alpha": 1.0}],
    ids=lambda changed: next(iter(changed)),
)
def test_parameters_act(changed):
    options = {**EXACT, "solver": "sgd", "batch_size": 64, "max_iter": 3}
    before = SchMPMatrixFactorization(**options).fit(PAIRS, RATINGS)
    after = SchMPMatrixFactorization(**{**options, **changed}).fit(PAIRS, RATINGS)
    assert np.abs(before.predict(PAIRS) - after.predict(PAIRS)).max() > 1e-4


@pytest.mark.parametrize("eta0", [1e20, 50.0])
def test_steps_that_are_too_long(eta0):
    """Factors that are infinite, or finite and worse than the mean."""
    model = SchMPMatrixFactorization(
        3, solver="sgd", eta0=eta0, max_iter=50, random_state=0
    )
    with pytest.raises(ValueError, match="smaller eta0"):
        model.fit(PAIRS, RATINGS)


# Input ------------------------------------------------------------------------------


def forms():
    names = np.array([f"user {u:02d}" for u in range(N_USERS)])
    dates = np.arange("2020-01-01", "2020-01-21", dtype="datetime64[D]")
    matrix = sparse.csr_array((RATINGS, (USERS, ITEMS)), shape=(N_USERS, N_ITEMS))
    big = 2**70
    frame = pd.DataFrame({"user": names[USERS], "item": dates[ITEMS]})
    return {
        "list": (PAIRS.tolist(), RATINGS.tolist()),
        "frame": (frame, pd.Series(RATINGS)),
        "big": ([(big + int(u), -big + int(i)) for u, i in PAIRS], RATINGS),
        "csr": (matrix, None),
        "coo": (sparse.coo_matrix(matrix), None),
        "array": (da.from_array(PAIRS, (50, 2)), da.from_array(RATINGS, 50)),
        "blocks": (
            da.from_array(matrix.toarray(), (7, 20)).map_blocks(
                _sparse_block, matrix, dtype=float, meta=sparse.csr_array((0, 0))
            ),
            None,
        ),
    }


def _sparse_block(block, matrix, block_info=None):
    (start, stop), _ = block_info[0]["array-location"]
    return matrix[start:stop]


@pytest.mark.parametrize(
    "form", ["list", "frame", "big", "csr", "coo", "array", "blocks"]
)
def test_forms_of_input(form):
    model = SchMPMatrixFactorization(**EXACT, max_iter=3)
    expected = clone(model).fit(PAIRS, RATINGS)
    X, y = forms()[form]
    found = clone(model).fit(X, y)
    np.testing.assert_allclose(found.user_factors_, expected.user_factors_, atol=1e-10)
    np.testing.assert_allclose(found.item_bias_, expected.item_bias_, atol=1e-10)
    np.testing.assert_array_equal(found.seen_.toarray(), expected.seen_.toarray())
    if form in ("list", "frame", "big", "array"):
        np.testing.assert_allclose(found.predict(X), expected.predict(PAIRS))
    best = found.recommend(found.user_ids_[:2], 3).items
    numbers = expected.recommend(expected.user_ids_[:2], 3).items
    np.testing.assert_array_equal(best, found.item_ids_[numbers])


@pytest.mark.parametrize("kind", ["datetime64[s]", "timedelta64[s]"])
def test_ids_that_are_times(kind):
    """What a user has rated is not recommended: fewer items than asked for are left."""
    frame = pd.DataFrame({"user": USERS, "item": ITEMS.astype(kind)})
    model = SchMPMatrixFactorization(**EXACT, max_iter=1).fit(frame, RATINGS)
    items = model.recommend([0], N_ITEMS).items[0]
    n_rated = len(np.unique(ITEMS[USERS == 0]))
    assert items.dtype == model.item_ids_.dtype == kind
    assert np.isnat(items).tolist() == [False] * (N_ITEMS - n_rated) + [True] * n_rated


def test_dask_frames(cluster):
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame(
        {"user": [f"u{u:02d}" for u in USERS], "item": ITEMS, "r": RATINGS}
    )
    lazy = dd.from_pandas(frame, npartitions=3)
    model = SchMPMatrixFactorization(**EXACT, max_iter=3, n_ranks=2)
    expected = clone(model).fit(PAIRS, RATINGS)
    found = clone(model).fit(lazy[["user", "item"]], lazy["r"])
    np.testing.assert_allclose(found.user_factors_, expected.user_factors_, atol=1e-10)
    predicted = found.predict(lazy[["user", "item"]])
    np.testing.assert_allclose(predicted.compute(), expected.predict(PAIRS))
    assert found.score(lazy[["user", "item"]], lazy["r"]) == pytest.approx(
        expected.score(PAIRS, RATINGS)
    )


def items_of_a_block(start):
    return np.column_stack([np.arange(5000) % 7, start + np.arange(5000)])


def test_ids_do_not_go_through_the_scheduler(processes):
    starts = range(0, 20_000, 5000)
    pairs = da.concatenate(
        [
            da.from_delayed(dask.delayed(items_of_a_block)(start), (5000, 2), int)
            for start in starts
        ]
    )
    model = SchMPMatrixFactorization(4, max_iter=1, tol=0, n_ranks=2, random_state=0)
    # Of 20,000 ids there are 160 kB; a warning of a large graph is an error here.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "40kB"}):
        model.fit(pairs, pairs[:, 0])
    assert len(model.item_ids_) == 20_000


def test_columns_of_another_order():
    frame = pd.DataFrame({"user": USERS, "item": ITEMS})
    model = SchMPMatrixFactorization(**EXACT, max_iter=2).fit(frame, RATINGS)
    assert model.feature_names_in_.tolist() == ["user", "item"]
    model.predict(PAIRS)
    for swapped in (frame[["item", "user"]], frame.rename(columns={"user": "u"})):
        for ask in (model.predict, model.partial_fit, model.score):
            with pytest.raises(ValueError, match="but those of the fit were"):
                ask(swapped) if ask == model.predict else ask(swapped, RATINGS)
    model.fit(PAIRS, RATINGS)
    assert not hasattr(model, "feature_names_in_")


@pytest.mark.parametrize("is_lazy", [False, True])
def test_a_frame_of_users_items_and_ratings(is_lazy):
    frame = pd.DataFrame({"user": USERS, "item": ITEMS, "stars": RATINGS})
    model = SchMPMatrixFactorization(**EXACT, max_iter=3)
    expected = clone(model).fit(frame[["user", "item"]], frame["stars"])
    X = frame
    if is_lazy:
        dd = pytest.importorskip("dask.dataframe")
        X = dd.from_pandas(frame, npartitions=3)
    found = clone(model).fit(X)
    np.testing.assert_allclose(found.user_factors_, expected.user_factors_, atol=1e-8)
    assert found.feature_names_in_.tolist() == ["user", "item"]
    assert found.score(X) == pytest.approx(expected.score(PAIRS, RATINGS))
    new = pd.DataFrame({"user": [99], "item": [1], "stars": [2.0]})
    assert 99 in found.partial_fit(new).user_ids_


def of_a_file(is_lazy):
    """Ratings as a file has them, with a column more than a fit takes."""
    frame = pd.DataFrame(
        {"timestamp": 1, "userId": USERS, "movieId": ITEMS, "rating": RATINGS}
    )
    if not is_lazy:
        return frame
    return pytest.importorskip("dask.dataframe").from_pandas(frame, npartitions=3)


@pytest.mark.parametrize("is_lazy", [False, True])
def test_a_file_with_more_columns(is_lazy):
    X = of_a_file(is_lazy)
    model = SchMPMatrixFactorization(**EXACT, max_iter=1)
    match = (
        "got 4: 'timestamp', 'userId', 'movieId', 'rating'. Take the three of user, "
        "item and rating without y, for example X[['userId', 'movieId', 'rating']], or "
        "the two of user and item, X[['userId', 'movieId']]"
    )
    for y in (None, X["rating"]):
        with pytest.raises(ValueError, match=re.escape(match)):
            model.fit(X, y)
    found = model.fit(X[["userId", "movieId", "rating"]])
    assert len(found.user_ids_) == len(np.unique(USERS))
    with pytest.raises(ValueError, match=re.escape(match)):
        found.score(X)


def test_other_columns_of_a_frame():
    model = SchMPMatrixFactorization(**EXACT, max_iter=1)
    with pytest.raises(ValueError, match="got 1: 'u'; a matrix of users x items"):
        model.fit(pd.DataFrame({"u": USERS}), RATINGS)
    X = pd.DataFrame(TRUTH)
    with pytest.raises(ValueError, match="got 20: 0, .*, 5 and 14 more; a mat"):
        model.fit(X)
    with pytest.raises(ValueError, match=r"got 4: 0, .* example X\[\[0, 1, 2"):
        model.fit(X.iloc[:, :4])
    with pytest.raises(ValueError, match=r"got 3; pass X\[:, :2\], with the ratings"):
        model.fit(np.column_stack([PAIRS, RATINGS]), RATINGS)


@pytest.mark.parametrize(
    ("names", "cure"),
    [
        (["user", "item", "rating"], None),
        (["rating", "user", "item"], "here X[['user', 'item', 'rating']]"),
        (["movieId", "userId", "rating"], "here X[['userId', 'movieId', 'rating']]"),
        (["user_ids", "Rating", "isbn"], "rename them"),
        (["a", "b", "c"], None),
        (["item", "user"], "here X[['user', 'item']]"),
        (["user", "user_id"], None),
        (["User-ID", "stars"], "rename them"),
        (["movie", "film", 3], None),
    ],
)
def test_names_that_mean_another_order(names, cure):
    columns = [USERS, ITEMS, RATINGS][: len(names)]
    X = pd.DataFrame(dict(zip(names, columns, strict=True)))
    model = SchMPMatrixFactorization(**EXACT, max_iter=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, RATINGS if len(names) == 2 else None)
    found = [str(each.message) for each in caught if each.category is UserWarning]
    assert len(found) == (cure is not None)
    if cure is not None:
        assert cure in found[0]
        assert f"{names[0]!r} for users, {names[1]!r} for items" in found[0]


@pytest.mark.parametrize("is_lazy", [False, True])
def test_matrices_of_another_package(is_lazy):
    foreign = pytest.importorskip("sparse")

    def block(stop):
        own = USERS < stop
        return foreign.COO(PAIRS[own].T, RATINGS[own], (stop, N_ITEMS))

    model = SchMPMatrixFactorization(**EXACT, max_iter=3)
    expected = clone(model).fit(PAIRS, RATINGS)
    X = block(N_USERS)
    if is_lazy:
        shape, meta = (N_USERS, N_ITEMS), block(0)
        X = da.from_delayed(dask.delayed(block)(N_USERS), shape, meta=meta)
    found = clone(model).fit(X)
    np.testing.assert_allclose(found.user_factors_, expected.user_factors_, atol=1e-8)


def test_zeros_that_are_stored_are_ratings():
    X = sparse.csr_array(([0.0, 4, 2], ([0, 0, 1], [0, 1, 1])), shape=(2, 2))
    model = SchMPMatrixFactorization(1, random_state=0).fit(X)
    assert model.mean_ == 2
    assert model.seen_.nnz == 3


def test_users_and_items_without_ratings():
    X = sparse.csr_array(([1.0, 4, 2], ([0, 0, 2], [0, 1, 1])), shape=(4, 3))
    for solver in ("als", "sgd"):
        model = SchMPMatrixFactorization(
            2, solver=solver, random_state=0, n_ranks=2
        ).fit(X)
        assert not model.user_factors_[[1, 3]].any()
        assert not model.user_bias_[[1, 3]].any()
        assert not model.item_factors_[2].any()
        assert model.predict([(1, 2)])[0] == pytest.approx(model.mean_)


def test_pairs_that_are_rated_twice():
    """Two ratings are their mean with the weight 2; interactions are added up."""
    twice = np.r_[np.arange(len(PAIRS)), 0]
    ratings = np.r_[RATINGS, RATINGS[0] + 1]
    model = SchMPMatrixFactorization(**EXACT, max_iter=3, standardize=False)
    a = clone(model).fit(PAIRS[twice], ratings)
    means, weights = RATINGS.copy(), np.ones(len(RATINGS))
    means[0], weights[0] = RATINGS[0] + 0.5, 2
    b = clone(model).fit(PAIRS, means, weights)
    np.testing.assert_allclose(a.user_factors_, b.user_factors_, atol=1e-10)
    model.set_params(feedback="implicit", weighted_alpha=False, standardize=True)
    a = clone(model).fit(PAIRS[twice], ratings, np.ones(len(ratings)))
    means[0] = 2 * RATINGS[0] + 1
    b = clone(model).fit(PAIRS, means)
    ends = a.user_factors_ @ a.item_factors_.T, b.user_factors_ @ b.item_factors_.T
    np.testing.assert_allclose(*ends, atol=1e-9)


@pytest.mark.parametrize(
    ("X", "y", "match"),
    [
        (
            PAIRS,
            np.where(np.arange(len(RATINGS)) == 5, np.nan, RATINGS),
            "rating 5 is nan",
        ),
        (PAIRS, RATINGS[:-1], "one rating for each"),
        (PAIRS[:, :1], RATINGS, "must have two columns, user and item, got 1"),
        (TRUTH, None, "X must have two columns, user and item, got 20"),
        (PAIRS, None, "explicit feedback requires y"),
        (sparse.csr_array(TRUTH), RATINGS, "y must be None where X is a users x items"),
        ([("a", 1.0), (None, 2.0)], [1, 2], "users has no id in row 1"),
        ([(1, np.nan)], [1], "items has no id in row 0"),
        (sparse.csr_array((3, 4)), None, "no ratings in X"),
    ],
)
def test_what_are_no_ratings(X, y, match):
    with pytest.raises(ValueError, match=match):
        SchMPMatrixFactorization(2).fit(X, y)


def test_masked_ratings_are_no_ratings():
    masked = np.ma.masked_array(RATINGS, np.arange(len(RATINGS)) == 3)
    with pytest.raises(TypeError, match="y is a masked array"):
        SchMPMatrixFactorization(2).fit(PAIRS, masked)


def test_ids_that_cannot_be_compared():
    with pytest.raises(TypeError, match="users mixes ids that cannot be compared"):
        X = pd.DataFrame({"user": ["a", 1], "item": [1, 2]})
        SchMPMatrixFactorization(2).fit(X, [1, 2])
    model = SchMPMatrixFactorization(2).fit(PAIRS, RATINGS)
    with pytest.raises(TypeError, match="users holds 'a' of type str, but the ids of"):
        model.predict(
            pd.DataFrame({"user": np.array(["a"]).astype("<U1"), "item": [1]}).to_numpy(
                "<U1"
            )
        )


ID_TYPES = [(int, str, "'1' of type str", "int"), (str, int, "1 of type int", "str")]


@pytest.mark.parametrize("make", [np.asarray, pd.DataFrame])
@pytest.mark.parametrize(("fitted", "asked", "found", "cure"), ID_TYPES)
def test_ids_of_another_type_than_those_of_the_fit(make, fitted, asked, found, cure):
    X = pd.DataFrame({"user": [1, 2, 1], "item": [1, 1, 2]})
    model = SchMPMatrixFactorization(2, max_iter=2).fit(X.astype(fitted), [1, 2, 3])
    match = rf"s holds {found}, but .*fit are of type {cure}.*astype\({cure}\)"
    other = make(X.astype(asked))
    if make is pd.DataFrame:
        other.columns = X.columns
    with pytest.raises(TypeError, match=match):
        model.predict(other)
    with pytest.raises(TypeError, match=match):
        model.partial_fit(other, [1, 2, 3])
    with pytest.raises(TypeError, match=match):
        model.recommend(X["user"].astype(asked), 1)
    converted = model.predict(other.astype(fitted))
    np.testing.assert_array_equal(converted, model.predict(X.astype(fitted)))


def test_the_id_that_cannot_be_compared_is_named():
    model = SchMPMatrixFactorization(2, max_iter=2).fit(PAIRS, RATINGS)
    with pytest.raises(TypeError, match="users holds 'ann' of type str, but the ids"):
        model.recommend([0, 1, "ann", "bob"], 1)


def test_a_single_id_is_no_column():
    model = SchMPMatrixFactorization(2, max_iter=2).fit(PAIRS, RATINGS)
    for method in (model.recommend, model.similar_users):
        with pytest.raises(ValueError, match=r"got the single id 1; pass \[1\]"):
            method(1, 3)
    with pytest.raises(ValueError, match=r"users must be one column, .* \['ann'\]"):
        model.recommend("ann")


def test_a_matrix_has_no_weights():
    with pytest.raises(ValueError, match="cannot be used with a users x items matrix"):
        SchMPMatrixFactorization(2).fit(sparse.csr_array(TRUTH), None, np.ones(3))


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"eta0": 0.3}, "eta0.*solver='als'|solver"),
        ({"batch_size": 3}, "batch_size"),
        ({"confidence": 3.0}, "confidence"),
        ({"feedback": "implicit", "clip": False}, "clip"),
        ({"feedback": "implicit", "fit_bias": False}, "fit_bias"),
        ({"feedback": "implicit", "solver": "sgd"}, "cannot be used with"),
        ({"feedback": "implicit", "early_stopping": True}, "early_stopping cannot"),
        ({"positive": True, "als_solver": "cg"}, "conjugate gradients know no bounds"),
        ({"n_components": 0}, "n_components"),
        ({"alpha": -1}, "alpha"),
    ],
)
def test_parameters_that_cannot_act_or_be(params, match):
    with pytest.raises(ValueError, match=match):
        SchMPMatrixFactorization(**params).fit(PAIRS, RATINGS)


# What a model can be asked ----------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    return SchMPMatrixFactorization(
        **{**EXACT, "tol": 1e-4}, alpha=0.02, max_iter=60
    ).fit(PAIRS, RATINGS)


def scores_of(model):
    scores = model.user_factors_ @ model.item_factors_.T + model.mean_
    return scores + model.user_bias_[:, None] + model.item_bias_


def test_predictions(fitted):
    scores = scores_of(fitted)
    every = np.array([(u, i) for u in range(N_USERS) for i in range(N_ITEMS)])
    clipped = np.clip(scores, RATINGS.min(), RATINGS.max())
    np.testing.assert_allclose(fitted.predict(every), clipped.ravel())
    free = clone(fitted).set_params(clip=False).fit(PAIRS, RATINGS)
    np.testing.assert_allclose(free.predict(every), scores.ravel(), atol=1e-6)
    assert (clipped != scores).any()
    lazy = fitted.predict(da.from_array(every, (100, 2)))
    np.testing.assert_allclose(lazy.compute(), clipped.ravel())


def test_lazy_recommendations(fitted):
    users = np.array([3, 999, 5, 1, 2])
    expected = fitted.recommend(users, 4, items=range(15))
    dd = pytest.importorskip("dask.dataframe")
    frame = dd.from_pandas(pd.Series(users), npartitions=2)
    for lazy in (da.from_array(users, 2), frame):
        found = fitted.recommend(lazy, 4, items=range(15))
        assert isinstance(found.items, da.Array) and isinstance(found.scores, da.Array)
        assert found.items.dtype == expected.items.dtype
        np.testing.assert_array_equal(found.items.compute(), expected.items)
        np.testing.assert_allclose(found.scores.compute(), expected.scores)
    assert fitted.recommend(da.from_array(users, 2), 4).items.shape == (5, 4)


def test_strangers(fitted):
    pairs = [(3, 999), (999, 3), (999, 999)]
    expected = [
        fitted.mean_ + fitted.user_bias_[3],
        fitted.mean_ + fitted.item_bias_[3],
        fitted.mean_,
    ]
    np.testing.assert_allclose(fitted.predict(pairs), expected)
    model = clone(fitted).set_params(cold_start="nan").fit(PAIRS, RATINGS)
    assert np.isnan(model.predict(pairs)).all()
    assert (model.recommend([999], 3).items == -1).all()
    model.set_params(cold_start="raise")
    with pytest.raises(ValueError, match="users has 999, which the fit has not seen"):
        model.predict(pairs)
    popular = np.argsort(-fitted.item_bias_, kind="stable")[:4]
    np.testing.assert_array_equal(fitted.recommend([999], 4).items[0], popular)


@pytest.mark.parametrize("exclude_seen", [True, False])
def test_recommendations(fitted, exclude_seen):
    found = fitted.recommend(n=N_ITEMS, exclude_seen=exclude_seen)
    scores = scores_of(fitted)
    seen = np.zeros((N_USERS, N_ITEMS), dtype=bool)
    seen[USERS, ITEMS] = True
    for user in range(N_USERS):
        order = np.argsort(-scores[user], kind="stable")
        if exclude_seen:
            order = order[~seen[user][order]]
        n = len(order)
        np.testing.assert_array_equal(found.items[user, :n], order)
        clipped = np.clip(scores[user, order], RATINGS.min(), RATINGS.max())
        np.testing.assert_allclose(found.scores[user, :n], clipped)
        assert (found.items[user, n:] == -1).all()
        assert (found.scores[user, n:] == -np.inf).all()
    assert found.items.shape == (N_USERS, N_ITEMS)
    more = fitted.recommend([0, 1], N_ITEMS + 5, exclude_seen=exclude_seen)
    assert more.items.shape == (2, N_ITEMS + 5)
    assert (more.items[:, N_ITEMS:] == -1).all()


def test_recommendations_of_some_items(fitted):
    found = fitted.recommend([2], 4, items=[7, 3, 11, 999], exclude_seen=False)
    order = np.array([3, 7, 11])[
        np.argsort(-scores_of(fitted)[2, [3, 7, 11]], kind="stable")
    ]
    np.testing.assert_array_equal(found.items[0], [*order, -1])


def test_recommendations_block_by_block(fitted, monkeypatch):
    whole = fitted.recommend(n=5)
    monkeypatch.setattr("dask_ma.schmp.factorization._model._SCORES", 3 * N_ITEMS)
    np.testing.assert_array_equal(fitted.recommend(n=5).items, whole.items)


@pytest.mark.parametrize("kind", ["items", "users"])
def test_neighbours(fitted, kind):
    vectors = fitted.item_factors_ if kind == "items" else fitted.user_factors_
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = getattr(fitted, f"similar_{kind}")([4, 2], 3)
    for row, own in enumerate((4, 2)):
        cosines = unit @ unit[own]
        cosines[own] = -np.inf
        np.testing.assert_array_equal(found.items[row], np.argsort(-cosines)[:3])
        np.testing.assert_allclose(found.scores[row], np.sort(cosines)[::-1][:3])
    with pytest.raises(ValueError, match=f"{kind} has 77, which the fit has not seen"):
        getattr(fitted, f"similar_{kind}")([77])


@pytest.mark.parametrize("feedback", ["explicit", "implicit"])
def test_a_user_of_the_fit_folded_in_is_itself(feedback):
    """At the optimum the vectors of users follow from those of the items."""
    model = SchMPMatrixFactorization(
        **{**EXACT, "tol": 1e-13}, feedback=feedback, alpha=0.1, max_iter=400
    ).fit(PAIRS, RATINGS)
    X = sparse.csr_array((RATINGS, (USERS, ITEMS)), shape=(N_USERS, N_ITEMS))
    np.testing.assert_allclose(model.transform(X), model.user_factors_, atol=1e-3)
    assert not model.transform(sparse.csr_array((1, N_ITEMS))).any()
    with pytest.raises(ValueError, match="a column for each of the 20 items"):
        model.transform(X[:, :3])


def test_new_users_and_items():
    """Those held out come back where they would have been, near enough to predict."""
    old = (USERS != 17) & (ITEMS != 12)
    options = {**EXACT, "alpha": 0.02, "max_iter": 60, "tol": 1e-5}
    model = SchMPMatrixFactorization(**options).fit(PAIRS[old], RATINGS[old])
    before = model.predict(PAIRS[old])
    n_seen = model.seen_.nnz
    model.partial_fit(PAIRS[~old], RATINGS[~old], WEIGHTS[~old])
    np.testing.assert_array_equal(model.user_ids_, np.unique(USERS))
    np.testing.assert_array_equal(model.item_ids_, np.unique(ITEMS))
    np.testing.assert_allclose(model.predict(PAIRS[old]), before)
    errors = model.predict(PAIRS[~old]) - RATINGS[~old]
    assert np.sqrt(np.mean(errors**2)) < 0.5 * RATINGS.std()
    assert model.seen_.nnz == n_seen + (~old).sum()
    row = np.flatnonzero(model.user_ids_ == 17)[0]
    assert np.diff(model.seen_.indptr)[row] == (USERS == 17).sum()
    assert not set(model.recommend([17], 5).items[0]) & set(ITEMS[USERS == 17])


def test_partial_fit_without_a_fit():
    model = SchMPMatrixFactorization(**EXACT, max_iter=2)
    a, b = clone(model).partial_fit(PAIRS, RATINGS), clone(model).fit(PAIRS, RATINGS)
    np.testing.assert_array_equal(a.user_factors_, b.user_factors_)


def test_ranking_metrics(fitted):
    held_out = np.array([(0, 1), (0, 5), (1, 2), (999, 3), (2, 999), (3, 4)])
    values = np.array([1.0, 1, 1, 1, 1, 0])
    k = 4
    found = fitted.ranking_metrics(held_out, values, k=k, exclude_seen=False)
    best = fitted.recommend([0, 1], k, exclude_seen=False).items
    precision, recall, ndcg = [], [], []
    for row, taken in enumerate(({1, 5}, {2})):
        hits = np.array([item in taken for item in best[row]])
        gains = 1 / np.log2(np.arange(2, k + 2))
        precision.append(hits.mean())
        recall.append(hits.sum() / len(taken))
        ndcg.append(hits @ gains / gains[: len(taken)].sum())
    expected = [np.mean(part) for part in (precision, recall, ndcg)]
    assert [found[n] for n in ("precision", "recall", "ndcg")] == pytest.approx(
        expected
    )
    everything = fitted.ranking_metrics(PAIRS, k=N_ITEMS, exclude_seen=False)
    assert everything["recall"] == 1
    assert np.isnan(fitted.ranking_metrics([(999, 1)])["ndcg"])


def test_scores_and_scikit_learn(fitted):
    predicted = fitted.predict(PAIRS)
    r2 = (
        1 - ((predicted - RATINGS) ** 2).sum() / ((RATINGS - RATINGS.mean()) ** 2).sum()
    )
    assert fitted.score(PAIRS, RATINGS) == pytest.approx(r2)
    model = SchMPMatrixFactorization(
        **{**EXACT, "n_components": 1}, alpha=0.1, max_iter=10
    )
    assert cross_val_score(model, PAIRS, RATINGS, cv=3).shape == (3,)
    implicit = SchMPMatrixFactorization(**EXACT, feedback="implicit", max_iter=5).fit(
        PAIRS
    )
    assert implicit.score(PAIRS) == implicit.ranking_metrics(PAIRS)["ndcg"]
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(PAIRS), predicted)


def test_a_seed_is_a_model():
    model = SchMPMatrixFactorization(3, max_iter=2)
    a, b, c = (
        clone(model).set_params(random_state=s).fit(PAIRS, RATINGS) for s in (0, 0, 1)
    )
    np.testing.assert_array_equal(a.user_factors_, b.user_factors_)
    assert np.abs(a.user_factors_ - c.user_factors_).max() > 1e-3
    assert a.user_factors_.dtype == np.float32


def test_the_end_of_a_fit():
    model = SchMPMatrixFactorization(**{**EXACT, "tol": 1e-3}, max_iter=200).fit(
        PAIRS, RATINGS
    )
    before, now = (record["objective"] for record in model.history_[-2:])
    assert 0 <= before - now <= 1e-3 * before
    assert 2 <= model.n_iter_ < 200


@pytest.mark.filterwarnings("default")
def test_a_fit_that_was_cut_short_says_so():
    with pytest.warns(ConvergenceWarning, match="the maximum of 2 rounds was reached"):
        SchMPMatrixFactorization(3, max_iter=2, tol=1e-9).fit(PAIRS, RATINGS)


@pytest.mark.parametrize("solver", ["cholesky", "cg", "sgd"])
def test_a_fit_that_goes_on_equals_an_uninterrupted_one(tmp_path, configured, solver):
    options = {"solver": "sgd"} if solver == "sgd" else {"als_solver": solver}

    def make(max_iter, n_ranks=3):
        return SchMPMatrixFactorization(
            **EXACT, **options, max_iter=max_iter, n_ranks=n_ranks
        )

    whole = make(6).fit(PAIRS, RATINGS)
    with configured({"dask-ma.checkpoint.path": str(tmp_path)}):
        make(3).fit(PAIRS, RATINGS)
        rest = make(6).fit(PAIRS, RATINGS)
        with pytest.warns(UserWarning, match="written by 3 ranks and goes on with 2"):
            other = make(8, n_ranks=2).fit(PAIRS, RATINGS)
    np.testing.assert_array_equal(rest.item_factors_, whole.item_factors_)
    np.testing.assert_array_equal(rest.user_bias_, whole.user_bias_)
    assert [r["objective"] for r in other.history_[:6]] == [
        r["objective"] for r in whole.history_
    ]
    assert other.history_[-1]["objective"] < whole.history_[-1]["objective"]


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"als_solver": "cholesky"},
        {"als_solver": "cholesky", "fit_bias": False, "standardize": False},
        {"als_solver": "cg", "alpha": 0.5},
    ],
    ids=["biases", "plain", "cg"],
)
def test_warm_start_goes_on(options, n_ranks):
    """As if the rounds of both fits were those of one."""
    params = {**EXACT, **options, "n_ranks": n_ranks}
    model = SchMPMatrixFactorization(**params, max_iter=3, warm_start=True)
    model.fit(PAIRS, RATINGS).fit(PAIRS, RATINGS)
    whole = SchMPMatrixFactorization(**params, max_iter=6).fit(PAIRS, RATINGS)
    # Conjugate gradients begin where the last ones ended, whoever made them.
    np.testing.assert_allclose(model.item_factors_, whole.item_factors_, rtol=1e-9)
    np.testing.assert_allclose(model.user_factors_, whole.user_factors_, rtol=1e-9)
    np.testing.assert_allclose(model.user_bias_, whole.user_bias_, atol=1e-9)


@pytest.mark.parametrize("solver", ["als", "sgd"])
def test_warm_start_finds_ids_again(solver):
    """Old users and items among new ones, in another order; and no other scale."""
    old = USERS < 20
    names = np.array([f"u{n:02d}" for n in range(N_USERS)])[::-1]
    frame = pd.DataFrame({"user": names[USERS], "item": ITEMS})
    model = SchMPMatrixFactorization(
        K, solver=solver, max_iter=40, warm_start=True, random_state=0
    ).fit(frame[old], RATINGS[old])
    model.set_params(max_iter=1).fit(frame, RATINGS)
    cold = clone(model).fit(frame, RATINGS)
    first = model.history_[0]["objective"]
    assert first < 0.8 * cold.history_[0]["objective"]
    assert len(model.user_ids_) == N_USERS


def test_warm_start_with_other_components_is_told():
    model = SchMPMatrixFactorization(K, warm_start=True).fit(PAIRS, RATINGS)
    model.set_params(n_components=K + 1)
    with pytest.raises(ValueError, match="n_components is 4, but .* have 3"):
        model.fit(PAIRS, RATINGS)


def test_warm_start_stays_within_bounds():
    model = SchMPMatrixFactorization(K, warm_start=True, random_state=0)
    model.fit(PAIRS, RATINGS)
    assert (model.item_factors_ < 0).any()
    model.set_params(positive=True, max_iter=1).fit(PAIRS, RATINGS)
    assert (model.item_factors_ >= 0).all()
    assert (model.user_factors_ >= 0).all()


@pytest.fixture
def stored(tmp_path):
    """Ratings in files, of which Dask reads several at once where columns are few."""
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame(
        {"user": [f"u{u:02d}" for u in USERS], "item": ITEMS, "r": RATINGS, "w": 1.0}
    )
    for number in range(6):
        frame[f"other{number}"] = np.arange(len(frame)) + float(number)
    for number, rows in enumerate(np.array_split(np.arange(len(frame)), 5)):
        frame.iloc[rows].to_parquet(tmp_path / f"{number}.parquet")
    return dd.read_parquet(tmp_path), frame


def test_files_of_ratings(stored, cluster):
    lazy, frame = stored
    X, y = lazy[["user", "item"]], lazy["r"]
    assert y.optimize().npartitions < X.npartitions
    model = SchMPMatrixFactorization(**EXACT, max_iter=2, n_ranks=2)
    expected = clone(model).fit(frame[["user", "item"]], RATINGS)
    for ratings, weight in ((y, lazy["w"]), (frame["r"], frame["w"])):
        found = clone(model).fit(X, ratings, sample_weight=weight)
        np.testing.assert_allclose(
            found.user_factors_, expected.user_factors_, atol=1e-8
        )
        assert found.score(X, ratings, sample_weight=weight) == pytest.approx(
            expected.score(frame[["user", "item"]], RATINGS)
        )
    best = expected.recommend(lazy["user"], 2).items.compute()
    np.testing.assert_array_equal(best, expected.recommend(frame["user"], 2).items)


@pytest.mark.parametrize(
    ("column", "bound", "weighted"), [("user", "u10", True), ("other0", 250, False)]
)
def test_files_without_some_of_their_rows(column, bound, weighted, stored, cluster):
    lazy, frame = stored
    few, some = (rows[rows[column] < bound] for rows in (lazy, frame))
    model = SchMPMatrixFactorization(**EXACT, max_iter=2, n_ranks=2)
    expected = clone(model).fit(some[["user", "item"]], some["r"])
    weight = few["w"] if weighted else None
    found = clone(model).fit(few[["user", "item"]], few["r"], weight)
    np.testing.assert_allclose(found.user_factors_, expected.user_factors_, atol=1e-8)


@pytest.mark.parametrize("form", ["frame", "array", "few"])
def test_ratings_in_other_partitions_than_pairs(form):
    """As many partitions with other divisions, too."""
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame({"user": USERS, "item": ITEMS, "r": RATINGS})
    X = dd.from_pandas(frame[["user", "item"]], npartitions=3)
    y = {
        "frame": dd.from_pandas(frame["r"], npartitions=2).repartition(
            divisions=(0, 5, 9, len(frame) - 1)
        ),
        "array": da.from_array(RATINGS, 40),
        "few": dd.from_pandas(frame["r"], npartitions=2),
    }[form]
    model = SchMPMatrixFactorization(**EXACT, max_iter=3)
    expected = clone(model).fit(PAIRS, RATINGS)
    found = clone(model).fit(X, y)
    np.testing.assert_allclose(found.user_factors_, expected.user_factors_, atol=1e-8)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        clone(model).fit(X, dd.from_pandas(frame["r"][1:], npartitions=2))


def test_ratings_in_other_chunks_than_pairs(cluster):
    model = SchMPMatrixFactorization(**EXACT, max_iter=2, n_ranks=2)
    expected = clone(model).fit(PAIRS, RATINGS)
    X, y = da.from_array(np.array(PAIRS), (50, 1)), da.from_array(RATINGS, 70)
    for ratings in (y, RATINGS):
        found = clone(model).fit(X, ratings)
        np.testing.assert_allclose(
            found.user_factors_, expected.user_factors_, atol=1e-8
        )
    unknown = y[y > -np.inf]
    found = clone(model).fit(X, unknown)
    np.testing.assert_allclose(found.user_factors_, expected.user_factors_, atol=1e-8)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, RATINGS[1:])
