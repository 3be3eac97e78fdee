"""Solvers of the matrix factorization, stopping early, and reasons of scores."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from dask_ma import SchMPMatrixFactorization
from dask_ma.schmp.factorization._alternating import AlternatingFactorization
from dask_ma.schmp.factorization._held_out import has_stopped_improving
from dask_ma.schmp.factorization._params import FactorizationParams

pytestmark = pytest.mark.filterwarnings(
    f"ignore::{ConvergenceWarning.__module__}.ConvergenceWarning"
)

RNG = np.random.default_rng(0)
N_USERS, N_ITEMS, K = 40, 25, 3
TRUTH = RNG.gamma(1.0, 1.0, (N_USERS, K)) @ RNG.gamma(1.0, 1.0, (K, N_ITEMS))
USERS, ITEMS = np.nonzero(RNG.random(TRUTH.shape) < 0.5)
RATINGS = TRUTH[USERS, ITEMS] + 0.3 * RNG.normal(size=len(USERS))
PAIRS = np.column_stack([USERS, ITEMS])
EXACT = {"n_components": K, "dtype": "float64", "random_state": 0}


def fit(X=PAIRS, y=RATINGS, **params):
    return SchMPMatrixFactorization(**{**EXACT, "tol": 0, **params}).fit(X, y)


def products(model):
    return model.user_factors_ @ model.item_factors_.T


@pytest.fixture(params=["collected", "passing by"])
def other_side(request, monkeypatch):
    """Whether the side that is not solved for is small, or a block of it at a time."""
    if request.param == "passing by":
        monkeypatch.setattr("dask_ma.schmp.factorization._params._MOST_COLLECTED", 0)


# Conjugate gradients ----------------------------------------------------------------


@pytest.mark.pairs
@pytest.mark.parametrize("feedback", ["explicit", "implicit"])
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.usefixtures("other_side")
def test_enough_steps_are_exact(feedback, n_ranks):
    """As many as there are unknowns: the factors are those of normal equations."""
    options = {"feedback": feedback, "max_iter": 2, "n_ranks": n_ranks}
    exact = fit(**options, als_solver="cholesky")
    steps = fit(**options, als_solver="cg", cg_steps=2 * K + 2)
    np.testing.assert_allclose(steps.user_factors_, exact.user_factors_, atol=1e-6)
    np.testing.assert_allclose(steps.item_factors_, exact.item_factors_, atol=1e-6)
    np.testing.assert_allclose(steps.item_bias_, exact.item_bias_, atol=1e-6)
    ends = [m.history_[-1]["objective"] for m in (steps, exact)]
    assert ends[0] == pytest.approx(ends[1])


@pytest.mark.each
@pytest.mark.parametrize("feedback", ["explicit", "implicit"])
@pytest.mark.usefixtures("other_side")
def test_few_steps_do_not_depend_on_ranks(feedback):
    """One rank takes all steps of a user at once, several perhaps one a rotation."""
    options = {"feedback": feedback, "als_solver": "cg", "max_iter": 4}
    alone, three = (fit(**options, cg_steps=2, n_ranks=n) for n in (1, 3))
    np.testing.assert_allclose(three.user_factors_, alone.user_factors_, atol=1e-7)
    np.testing.assert_allclose(three.item_factors_, alone.item_factors_, atol=1e-7)
    pairs = zip(three.history_, alone.history_, strict=True)
    assert all(a["objective"] == pytest.approx(b["objective"]) for a, b in pairs)
    more = fit(**options, cg_steps=1)
    assert np.abs(more.user_factors_ - alone.user_factors_).max() > 1e-3


@pytest.mark.parametrize("als_solver", ["cholesky", "cg"])
@pytest.mark.parametrize("feedback", ["explicit", "implicit"])
def test_a_side_may_be_collected(monkeypatch, als_solver, feedback):
    """It changes the order of sums only, and with it the number of messages."""
    options = {"als_solver": als_solver, "feedback": feedback}
    options |= {"max_iter": 3, "n_ranks": 3}
    collected = fit(**options)
    # The items are few enough, the users are not.
    limit = (N_ITEMS + N_USERS) // 2 * (K + 2) * 8
    monkeypatch.setattr("dask_ma.schmp.factorization._params._MOST_COLLECTED", limit)
    passing = fit(**options)
    np.testing.assert_allclose(passing.user_factors_, collected.user_factors_)
    np.testing.assert_allclose(passing.item_factors_, collected.item_factors_)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_round_of_collected_sides_is_two_rotations(monkeypatch, n_ranks):
    rotations = []
    end = AlternatingFactorization.end_rotation

    def noting(self, local, shared, turn):
        rotations.append(turn.rotation)
        assert (local.collected is None) == (most == 0 and n_ranks > 1)
        return end(self, local, shared, turn)

    monkeypatch.setattr(AlternatingFactorization, "end_rotation", noting)
    for most, per_round in ((2**20, 2), (0, 8)):
        if most == 0 and n_ranks == 1:
            continue
        monkeypatch.setattr("dask_ma.schmp.factorization._params._MOST_COLLECTED", most)
        rotations.clear()
        fit(als_solver="cg", cg_steps=3, max_iter=2, n_ranks=n_ranks)
        assert set(rotations) == set(range(2 * per_round))


def test_few_steps_come_to_the_same_end():
    exact = fit(als_solver="cholesky", max_iter=60)
    steps = fit(als_solver="cg", max_iter=60)
    ends = [m.history_[-1]["objective"] for m in (steps, exact)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-2)
    objectives = np.array([record["objective"] for record in steps.history_])
    assert (np.diff(objectives) <= 1e-9 * objectives[:-1]).all()


@pytest.mark.parametrize(
    ("n_ratings", "n_components", "positive", "method"),
    [
        (100_000, 32, False, "cg"),
        (100_000, 32, True, "cholesky"),
        (10_000_000, 8, False, "cholesky"),
        (10_000_000, 128, False, "cg"),
    ],
)
def test_what_auto_takes(n_ratings, n_components, positive, method):
    model = SchMPMatrixFactorization(n_components, positive=positive)
    params = model.get_params()
    names = set(FactorizationParams.__dataclass_fields__) & set(params)
    chosen = {name: params[name] for name in names}
    sizes = {"n_users": 6000, "n_items": 4000, "n_ratings": n_ratings, "seed": 0}
    assert FactorizationParams(**{**chosen, **sizes}).method == method


# Factors that are not negative --------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("feedback", ["explicit", "implicit"])
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_positive_factors_are_at_the_optimum(feedback, n_ranks):
    """No user can do better alone: where a factor is 0, the loss rises with it."""
    params = {"feedback": feedback, "positive": True, "max_iter": 30, "alpha": 0.02}
    if feedback == "explicit":
        params["standardize"] = False
    model = fit(**params, n_ranks=n_ranks, weighted_alpha=False)
    P, Q = model.user_factors_, model.item_factors_
    assert min(P.min(), Q.min()) == 0
    if feedback == "explicit":
        assert min(model.user_bias_.min(), model.item_bias_.min()) < 0
        fitted = products(model) + model.user_bias_[:, None] + model.item_bias_
        errors = np.zeros(TRUTH.shape)
        errors[USERS, ITEMS] = RATINGS - (fitted + model.mean_)[USERS, ITEMS]
    else:
        C, wanted = np.ones(TRUTH.shape), np.zeros(TRUTH.shape)
        C[USERS, ITEMS] += np.abs(RATINGS)
        wanted[USERS, ITEMS] = RATINGS > 0
        errors = C * (wanted - products(model))
    slopes = errors.T @ P - 0.02 * Q  # of items, which were solved for last
    assert np.abs(slopes[Q > 0]).max() < 1e-3
    assert slopes[Q == 0].max() < 1e-3


def test_positive_factors_by_steps():
    model = fit(solver="sgd", positive=True, max_iter=40, batch_size=64, n_ranks=2)
    assert min(model.user_factors_.min(), model.item_factors_.min()) == 0
    assert model.user_bias_.min() < 0
    free = fit(solver="sgd", max_iter=40, batch_size=64, n_ranks=2)
    assert free.user_factors_.min() < 0
    errors = model.predict(PAIRS) - RATINGS
    assert np.sqrt(np.mean(errors**2)) < 0.6 * RATINGS.std()


def test_new_users_have_positive_factors():
    model = fit(positive=True, max_iter=50)
    X = sparse.csr_array((RATINGS[::-1], (USERS, ITEMS)), shape=TRUTH.shape)
    assert model.transform(X).min() == 0
    model.partial_fit([(999, i) for i in range(N_ITEMS)], TRUTH[0])
    assert model.user_factors_[-1].min() >= 0


# Stopping early -----------------------------------------------------------------------


def overfit(**params):
    """More components than there is to learn, and no penalty."""
    base = {"n_components": 12, "alpha": 1e-4, "early_stopping": True, "tol": 1e-4}
    return fit(**{**base, "validation_fraction": 0.2, "max_iter": 60, **params})


@pytest.mark.each
@pytest.mark.parametrize(
    "solver",
    [
        {"solver": "sgd", "eta0": 1.0, "batch_size": 16},
        {"als_solver": "cg", "cg_steps": 12},
        {"als_solver": "cholesky"},
    ],
    ids=["sgd", "cg", "cholesky"],
)
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_the_best_round_is_kept(solver, n_ranks):
    model = overfit(**solver, n_ranks=n_ranks)
    errors = np.array([record["validation_rmse"] for record in model.history_])
    best = int(np.argmin(errors))
    assert best + 1 < model.n_iter_ < 60
    assert has_stopped_improving(model.history_, 1e-4, 3)
    assert not has_stopped_improving(model.history_[:-1], 1e-4, 3)
    again = model.set_params(max_iter=best + 1, n_iter_no_change=50)
    user_factors = model.user_factors_
    again.fit(PAIRS, RATINGS)
    np.testing.assert_array_equal(again.user_factors_, user_factors)


def test_held_out_ratings_are_those_of_pairs():
    """Of any number of ranks the same, and about as many as asked for."""
    one, two = (
        overfit(als_solver="cholesky", max_iter=3, n_ranks=n, n_iter_no_change=9)
        for n in (1, 2)
    )
    errors = [[r["validation_rmse"] for r in m.history_] for m in (one, two)]
    np.testing.assert_allclose(*errors, rtol=1e-6)
    weights = np.ones(len(RATINGS))
    weights[::2] = 3
    weighted = SchMPMatrixFactorization(**one.get_params()).fit(PAIRS, RATINGS, weights)
    assert weighted.history_[0]["validation_rmse"] != errors[0][0]
    less = overfit(max_iter=3, n_iter_no_change=9, validation_fraction=0.4)
    assert less.history_[0]["validation_rmse"] != errors[0][0]


def test_an_error_by_hand():
    """Of a fit of one round: that of the factors on those that were left out."""
    model = overfit(als_solver="cholesky", max_iter=1, clip=False, alpha=1e-9)
    errors = model.predict(PAIRS) - RATINGS
    found = model.history_[0]["validation_rmse"]
    trained = model.history_[0]["objective"]
    # Both sums make up all squared errors, but for the small penalty.
    n_out = (np.sum(errors**2) - trained) / found**2
    assert 0.12 < n_out / len(RATINGS) < 0.28
    assert abs(n_out - round(n_out)) < 0.2


def test_when_to_stop():
    records = [{"validation_rmse": v} for v in (3, 2, 2.5, 1.9999, 2.1)]
    assert not has_stopped_improving(records, 0.01, 4)
    assert has_stopped_improving(records, 0.01, 3)
    assert not has_stopped_improving(records, 0, 2)


def test_no_stop_before_anything_is_learned():
    records = [{"validation_rmse": v, "validation_r2": 1 - v**2} for v in (1, 1.1, 1.2)]
    assert not has_stopped_improving(records, 0, 2)
    found = {"validation_rmse": 0.9, "validation_r2": 0.19}
    assert has_stopped_improving([found, *records], 0, 2)


def planted():
    """Pairs and ratings of three factors and a mean, without noise."""
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(100, 3)), rng.normal(size=(80, 3))
    cells = rng.permutation(8000)[:3000]
    users, items = cells // 80, cells % 80
    return np.c_[users, items], 3 + np.einsum("nf,nf->n", left[users], right[items])


def test_errors_that_rise_before_they_fall():
    """Factors near 0 grow late; the first rounds only fit biases to noise."""
    pairs, ratings = planted()
    model = SchMPMatrixFactorization(
        3, solver="sgd", early_stopping=True, max_iter=40, random_state=0
    )
    with pytest.warns(ConvergenceWarning, match="still fell by more than tol"):
        model.fit(pairs, ratings)
    first = [record["validation_rmse"] for record in model.history_[:4]]
    assert np.diff(first).min() > 0
    assert model.score(pairs, ratings) > 0.8


def test_held_out_ratings_that_are_not_learned():
    pairs, ratings = planted()
    model = SchMPMatrixFactorization(
        3, solver="sgd", early_stopping=True, eta0=100.0, random_state=0
    )
    with pytest.warns(ConvergenceWarning, match="than a constant does .* smaller eta0"):
        model.fit(pairs, ratings)
    noise = np.random.default_rng(1).permutation(ratings)
    with pytest.warns(ConvergenceWarning, match="than a constant .* another alpha, or"):
        model.set_params(solver="als", eta0=0.1).fit(pairs, noise)
    found = [record["validation_r2"] for record in model.history_]
    assert max(found) < 0.02


@pytest.mark.parametrize("y", [["a", "b"], [object()] * 2], ids=["text", "object"])
def test_ratings_that_are_no_numbers(y):
    with pytest.raises((TypeError, ValueError), match="y has ratings that are no num"):
        fit([(0, 0), (1, 1)], y)


def test_nothing_to_hold_out():
    with pytest.raises(ValueError, match="early_stopping holds out .* of 2 ratings"):
        fit([(0, 0), (1, 1)], [1.0, 2], early_stopping=True, validation_fraction=0.001)


# Reasons ------------------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("feedback", ["explicit", "implicit"])
def test_contributions_make_up_a_score(feedback, weighted, positive):
    model = fit(
        feedback=feedback, weighted_alpha=weighted, positive=positive, max_iter=30
    )
    X = sparse.csr_array((RATINGS, (USERS, ITEMS)), shape=TRUTH.shape)
    user, item = 7, 11
    found = model.explain(user, item, n=N_ITEMS)
    assert set(found.items) == set(ITEMS[USERS == user])
    assert found.score == pytest.approx(found.baseline + found.contributions.sum())
    if feedback == "implicit":
        expected = model.transform(X)[user] @ model.item_factors_[item]
        assert found.baseline == 0
        assert found.score == pytest.approx(expected, abs=1e-4)
    else:
        assert found.baseline == pytest.approx(model.mean_ + model.item_bias_[item])
        model.clip = False
        assert found.score == pytest.approx(model.predict([(user, item)])[0], abs=0.02)
    sizes = np.abs(found.contributions)
    np.testing.assert_array_equal(sizes, np.sort(sizes)[::-1])
    few = model.explain(user, item, n=2)
    np.testing.assert_array_equal(few.items, found.items[:2])
    assert few.score == found.score


def test_what_a_rating_less_would_do():
    """Contributions are those of the ratings: twice as far from the mean, twice."""
    model = fit(fit_bias=False, max_iter=30)
    before = model.explain(3, 5, n=N_ITEMS)
    row = slice(*model.seen_.indptr[3:5])
    model.seen_.data[row] *= 2
    after = model.explain(3, 5, n=N_ITEMS)
    np.testing.assert_allclose(after.contributions, 2 * before.contributions)


def test_who_cannot_be_explained():
    model = fit(max_iter=2)
    with pytest.raises(ValueError, match="users has 999, which the fit has not seen"):
        model.explain(999, 3)
    with pytest.raises(ValueError, match="items has 999, which the fit has not seen"):
        model.explain(3, 999)


def test_ratings_that_are_kept():
    """Zeros among them; means of what is rated twice, and the last ones that came."""
    pairs, ratings = [(0, 0), (0, 1), (0, 1), (1, 0)], [0.0, 2, 4, 5]
    model = fit(pairs, ratings, n_components=1, max_iter=2)
    np.testing.assert_array_equal(model.seen_.toarray(), [[0, 3], [5, 0]])
    assert model.seen_.nnz == 3
    model.partial_fit([(1, 0), (2, 1), (1, 1)], [0.0, 1, 7])
    np.testing.assert_array_equal(model.seen_.toarray(), [[0, 3], [0, 7], [0, 1]])
    assert model.seen_.nnz == 5
    counts = fit(pairs, ratings, n_components=1, max_iter=2, feedback="implicit")
    np.testing.assert_array_equal(counts.seen_.toarray(), [[0, 6], [5, 0]])


def test_many_new_users_are_folded_in_some_at_a_time(monkeypatch):
    model = fit(max_iter=20)
    X = sparse.csr_array((RATINGS, (USERS, ITEMS)), shape=TRUTH.shape)
    whole = model.transform(X)
    monkeypatch.setattr("dask_ma.schmp.factorization._folding._MATRICES", 2000)
    np.testing.assert_allclose(model.transform(X), whole, atol=1e-12)
