"""Fits with a hinge whose few rows near their margins decide.

Of short texts in many classes, 500 passes with first derivatives were not enough.
"""

import warnings
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC, LinearSVC

from dask_ma import ButterflySGDClassifier, MASGDClassifier
from dask_ma.comm import LocalGroup
from dask_ma.kernels import FewRowsOptimum
from dask_ma.linear.refine import _at_once, _choice, _near_rows, _row_sets
from dask_ma.linear.refine._centred import CentredRows
from dask_ma.linear.refine._dual_ascent import DualAscent
from dask_ma.linear.refine._row_sets import RowSets

CLASSIFIERS = [MASGDClassifier, ButterflySGDClassifier]
TIGHT = {"refine_tol": 1e-7, "random_state": 0}
most_rounds = _near_rows._most_rounds


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Rows that are looked at though rounds of steps take less on so few."""
    monkeypatch.setattr(_near_rows, "_most_rounds", lambda *args: 100_000)


def texts(n_rows=700, n_classes=15, n_words=900, seed=0):
    """Rows of nine words, some of which tell the class, and their classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n_rows)
    own = 12 * y[:, np.newaxis] + rng.integers(0, 12, (n_rows, 4))
    common = rng.integers(0, n_words, (n_rows, 5))
    rows = np.repeat(np.arange(n_rows), 9)
    words = np.concatenate([own, common], axis=1).ravel()
    X = sparse.csr_array((np.ones(len(words)), (rows, words)), (n_rows, n_words))
    X.sum_duplicates()
    X.data /= 3.0
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    return X, y


def fit(model, X, y, **params):
    """Fit it, which must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        return model.fit(X, y, **params)


def refined(model):
    """Records of the refinement."""
    return [record for record in model.history_ if record.get("refined")]


def objectives(coef, intercept, X, y, alpha=1e-4):
    """Objectives of all classes against the rest."""
    targets = np.where(y[:, np.newaxis] == np.unique(y), 1.0, -1.0)
    losses = np.maximum(1 - targets * (X @ coef.T + intercept), 0.0)
    return losses.mean(axis=0) + alpha / 2 * (coef**2).sum(axis=1)


def peers(X, y, alpha=1e-4):
    """The same at the optima, as scikit-learn has them."""
    coef, intercept = [], []
    for label in np.unique(y):
        one = SVC(kernel="linear", C=1 / (alpha * X.shape[0]), tol=1e-7)
        one.fit(X, (y == label).astype(int))
        own = one.coef_
        coef.append(own.toarray()[0] if sparse.issparse(own) else own[0])
        intercept.append(one.intercept_[0])
    return objectives(np.array(coef), np.array(intercept), X, y, alpha)


@pytest.mark.parametrize("container", [sparse.csr_array, np.asarray])
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_one_round_is_enough(kind, container):
    X, y = texts()
    given = X.toarray() if container is np.asarray else X
    model = fit(kind("hinge", random_state=0), given, y)
    (record,) = refined(model)
    assert record["excess"] <= model.refine_tol
    own = objectives(model.coef_, model.intercept_, X, y)
    assert own.mean() == pytest.approx(record["objective"], rel=1e-6)
    best = peers(X, y).mean()
    assert best * (1 - 1e-6) <= own.mean() <= best * (1 + 1e-3)


def test_many_classes_are_looked_at(monkeypatch):
    """Rounds of steps take more there."""
    monkeypatch.setattr(_near_rows, "_most_rounds", most_rounds)
    X, y = texts(1500, 60, 1500)
    model = fit(MASGDClassifier(random_state=0), X, y)
    assert len(refined(model)) == 1


@pytest.mark.parametrize("alpha", [1e-6, 1e-3])
def test_every_class_is_at_its_optimum(alpha):
    X, y = texts()
    model = fit(MASGDClassifier(alpha=alpha, **TIGHT), X, y)
    assert len(refined(model)) == 1
    own = objectives(model.coef_, model.intercept_, X, y, alpha)
    best = peers(X, y, alpha)  # to 1e-3 at most with a weak penalty
    assert (own <= best * (1 + 1e-5)).all()
    assert (own >= best * (1 - 1e-3)).all()


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_ranks_and_weights(kind, n_ranks):
    """Whichever rank has a row, and whatever the weights of rows and classes."""
    X, y = texts()
    weights = np.random.default_rng(1).uniform(0.1, 2, len(y))
    weights[::7] = 0.0
    params = {**TIGHT, "loss": "hinge", "class_weight": "balanced", "alpha": 1e-3}
    one = fit(kind(**params, n_ranks=1), X, y, sample_weight=weights)
    many = fit(kind(**params, n_ranks=n_ranks), X, y, sample_weight=weights)
    size = np.abs(one.coef_).max()
    np.testing.assert_allclose(many.coef_, one.coef_, atol=1e-3 * size)
    assert len(refined(one)) == len(refined(many)) == 1
    objective = one.history_[-1]["objective"]
    assert many.history_[-1]["objective"] == pytest.approx(objective, rel=1e-6)


def test_any_blocks():
    """Rows sorted by class, in blocks of several sizes."""
    X, y = texts()
    order = np.argsort(y, kind="stable")
    blocks = (1, 299, 400)
    rows = da.from_array(X.toarray()[order], chunks=(blocks, -1))
    labels = da.from_array(y[order], chunks=(blocks,))
    with pytest.warns(UserWarning, match="rows of different classes"):
        model = MASGDClassifier(**TIGHT, n_ranks=2).fit(rows, labels)
    assert len(refined(model)) == 1
    own = objectives(model.coef_, model.intercept_, X, y)
    np.testing.assert_allclose(own, peers(X, y), rtol=1e-5)


def test_an_intercept_that_stays():
    X, y = texts()
    model = MASGDClassifier(fit_intercept=False, alpha=1e-3, **TIGHT)
    fit(model, X, y)
    assert len(refined(model)) == 1
    assert not model.intercept_.any()
    peer = LinearSVC(
        loss="hinge",
        C=1 / (1e-3 * len(y)),
        fit_intercept=False,
        tol=1e-8,
        max_iter=100_000,
    ).fit(X, y)
    best = objectives(peer.coef_, 0.0, X, y, 1e-3)
    own = objectives(model.coef_, 0.0, X, y, 1e-3)
    np.testing.assert_allclose(own, best, rtol=1e-4)


def test_a_class_of_no_weight():
    """All rows that count are on one side then."""
    X, y = texts()
    model = MASGDClassifier(class_weight={0: 0.0}, random_state=0)
    fit(model, X, y)
    assert len(refined(model)) == 1
    assert not model.coef_[0].any()
    assert model.intercept_[0] == -1.0


def test_float32_stays_float32():
    X, y = texts()
    model = fit(MASGDClassifier(random_state=0), X.astype(np.float32), y)
    assert model.coef_.dtype == np.float32
    assert len(refined(model)) == 1


def test_a_column_far_from_zero():
    """Products of what is not centred lose all others to rounding."""
    X, y = texts()
    times = 1.7e9 + np.random.default_rng(1).uniform(0, 10, (len(y), 1))
    far = sparse.hstack([X, sparse.csr_array(times)], format="csr")
    model = fit(MASGDClassifier(random_state=0), far, y)
    assert len(refined(model)) == 1
    assert model.score(far, y) > 0.95


def test_two_classes():
    X, y = texts(2600, 2, 6000)
    model = fit(MASGDClassifier(**TIGHT), X, y)
    assert len(refined(model)) == 1
    coef, intercept = model.coef_[[0, 0]] * [[-1], [1]], model.intercept_ * [-1, 1]
    own = objectives(coef, intercept, X, y)
    np.testing.assert_allclose(own, peers(X, y), rtol=1e-5)


def test_a_fit_that_is_done_goes_on_from_its_checkpoint(tmp_path):
    X, y = texts()
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        first, again = (
            fit(MASGDClassifier(random_state=0, n_ranks=2), X, y) for _ in range(2)
        )
    np.testing.assert_array_equal(again.coef_, first.coef_)
    assert again.history_ == first.history_


def test_what_is_asked_for_is_heeded():
    """A method, a penalty or a loss that needs other steps."""
    X, y = texts()
    others = (
        {"refine": "lbfgs"},
        {"penalty": "elasticnet"},
        {"loss": "squared_hinge"},
    )
    for params in others:
        model = MASGDClassifier(random_state=0, max_iter=2, **params)
        model.set_params(refine_max_iter=3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X, y)
        assert len(refined(model)) > 1


# Fits that go on with steps ----------------------------------------------------------


def by_steps(X, y, **params):
    """A fit that makes nothing but steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_at_once, "plan_near_rows", lambda *args: None)
        return MASGDClassifier(random_state=0, **params).fit(X, y)


WAYS = {
    # Dense rows have no other way than sets.
    "sets": (np.asarray, "_set_cost", _row_sets, "few_rows_optimum"),
    "ascent": (sparse.csr_array, "_ascent_cost", DualAscent, "_ascend"),
}


@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_steps_go_on_where_optima_take_too_long(way, n_ranks, monkeypatch):
    """From those of the problems that were solved."""
    container, cost_name, owner, work = WAYS[way]
    X, y = texts(800, 8, 500)
    y = np.where(np.random.default_rng(2).random(len(y)) < 0.1, 0, y)
    X = X if container is sparse.csr_array else X.toarray()
    solved = []
    solve, cost = getattr(owner, work), getattr(_near_rows, cost_name)

    def counted(*args, **kwargs):
        solved.append(1)
        return solve(*args, **kwargs)

    monkeypatch.setattr(owner, work, counted)
    if way == "ascent":
        monkeypatch.setattr(_near_rows, "_set_cost", lambda *args: 1e18)
    params = {"alpha": 1e-3, "n_ranks": n_ranks}
    whole = fit(MASGDClassifier("hinge", random_state=0, **params), X, y)
    n_sets = len(solved)
    assert len(refined(whole)) == 1

    def more(problem, n_rows):
        """As many as half of them take more than there is."""
        return 1e18 if len(solved) > n_sets + n_sets // 2 else cost(problem, n_rows)

    monkeypatch.setattr(_near_rows, cost_name, more)
    model = fit(MASGDClassifier(random_state=0, **params), X, y)
    first, *others = refined(model)
    assert n_sets < len(solved) < 2 * n_sets
    assert first["excess"] == np.inf
    assert others
    assert first["objective"] > whole.history_[-1]["objective"]
    assert others[-1]["excess"] <= model.refine_tol
    best = whole.history_[-1]["objective"]
    assert others[-1]["objective"] == pytest.approx(best, rel=2e-3)


def test_steps_go_on_where_nothing_is_found(monkeypatch):
    def nothing(products, targets, *args, **kwargs):
        return FewRowsOptimum(np.zeros(len(targets)), 0.0, np.inf, np.inf, -np.inf)

    monkeypatch.setattr(_row_sets, "few_rows_optimum", nothing)
    monkeypatch.setattr(DualAscent, "solve", lambda *args: iter(()))
    X, y = texts(800, 8, 500)
    model = fit(MASGDClassifier(random_state=0, alpha=0.01), X, y)
    first, *others = refined(model)
    assert first["excess"] == np.inf
    assert others[-1]["excess"] <= model.refine_tol
    assert others[-1]["objective"] <= first["objective"]


def test_rows_within_their_margins_that_are_many_are_left_to_steps(monkeypatch):
    """A set of them would take longer than all of the steps."""
    monkeypatch.setattr(_near_rows, "_most_rounds", most_rounds)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 20))
    y = (X[:, 0] + 3 * rng.normal(size=3000) > 0).astype(int)
    model = fit(MASGDClassifier(random_state=0), X, y)
    alone = by_steps(X, y)
    np.testing.assert_array_equal(model.coef_, alone.coef_)
    assert len(refined(model)) == len(refined(alone)) > 1


# Parts -------------------------------------------------------------------------------


def sets_of(X, y, weights=None, alpha=1e-3, tol=1e-6):
    """Sets of rows of one problem, and the values that they begin from."""
    X = np.asarray(X, dtype=np.float64)
    weights = np.full(len(X), 1 / len(X)) if weights is None else weights
    rows = CentredRows(X, X.mean(axis=0))
    return RowSets(rows, y, weights, alpha, intercept=None, tol=tol)


def margin_problem(n_rows=900, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 8))
    return X, np.where(X[:, 0] + 0.3 * rng.normal(size=n_rows) > 0, 1.0, -1.0)


def test_sets_are_of_few_rows():
    X, y = margin_problem()
    sets = sets_of(X, y)
    sizes = list(sets.solve(np.zeros(len(X)) + 2 * X[:, 0]))
    assert max(sizes) < 0.7 * len(X)
    assert sets.best.gap <= 0.5e-6 * sets.best.objective
    peer = SVC(kernel="linear", C=1 / (1e-3 * len(X)), tol=1e-7).fit(X, y)
    np.testing.assert_allclose(sets.best.coef, peer.coef_[0], atol=1e-3)
    at_centre = peer.intercept_[0] + peer.coef_[0] @ X.mean(axis=0)
    assert sets.best.intercept == pytest.approx(at_centre, abs=1e-3)


@pytest.mark.parametrize("scale", [0.0, -1.0, 100.0])
def test_sets_begin_with_any_model(scale):
    """One that says nothing, or is wrong, only takes more of them."""
    X, y = margin_problem()
    sets = sets_of(X, y)
    assert list(sets.solve(scale * X[:, 0]))
    assert sets.best.gap <= 0.5e-6 * sets.best.objective


def test_what_no_model_is_below_holds_for_all_rows():
    """After each set, whatever rows it had."""
    X, y = margin_problem()
    sets, best = sets_of(X, y), sets_of(X, y, tol=1e-8)
    for _ in best.solve(X[:, 0]):
        pass
    lowest = best.best.objective
    n_sets = 0
    for _ in sets.solve(np.zeros(len(X))):
        if sets.best is not None:
            penalty = 0.5e-3 * sets.best.coef @ sets.best.coef
            assert sets.best.base - penalty <= lowest * (1 + 1e-7)
            assert sets.best.objective >= lowest * (1 - 1e-7)
            n_sets += 1
    assert n_sets


def test_rows_without_weight_are_in_no_set(monkeypatch):
    X, y = margin_problem()
    weights = np.where(np.arange(len(X)) % 3, 1 / 600, 0.0)
    solve = _row_sets.few_rows_optimum
    least = []

    def watched(products, targets, own, *args, **kwargs):
        least.append(own.min())
        return solve(products, targets, own, *args, **kwargs)

    monkeypatch.setattr(_row_sets, "few_rows_optimum", watched)
    sets = sets_of(X, y, weights)
    list(sets.solve(np.zeros(len(X))))
    assert min(least) > 0
    assert sets.best.gap <= 0.5e-6 * sets.best.objective


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_products_of_centred_rows(container):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 12)) * (rng.random((30, 12)) < 0.2)
    X[:, 3] = 1e6 + rng.normal(size=30)
    X[:, 5] = rng.normal(size=30)
    centre = X.mean(axis=0)
    rows, centred = CentredRows(container(X), centre), X - centre
    some = np.array([3, 4, 17, 29])
    exact = centred @ centred.T
    np.testing.assert_allclose(rows.products(), exact, atol=1e-8)
    np.testing.assert_allclose(rows.products(some), exact[some][:, some], atol=1e-8)
    shares, coef = rng.normal(size=4), rng.normal(size=12)
    np.testing.assert_allclose(
        rows.sum(shares, some), shares @ centred[some], rtol=1e-6
    )
    np.testing.assert_allclose(rows.values(coef), centred @ coef, atol=1e-6)


def test_images_of_many_classes_are_looked_at(monkeypatch):
    """Dense columns that depend on each other, more than Newton's method can have."""
    monkeypatch.setattr(_near_rows, "_most_rounds", most_rounds)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 2000)
    parts = rng.normal(size=(10, 40))[y] + 0.7 * rng.normal(size=(2000, 40))
    X = parts @ rng.normal(size=(40, 400)) / 20 + 0.05 * rng.normal(size=(2000, 400))
    model = fit(MASGDClassifier(random_state=0), X, y)
    assert len(refined(model)) == 1


@pytest.mark.parametrize(
    ("n_problems", "n_features", "density", "expected"),
    [
        (1, 1000, 1.0, 30),
        (3, 1000, 1.0, 110),
        (100, 1000, 1.0, 400),
        (1, 1000, 0.1, 30),
        (3, 1000, 0.1, 40),
        (100, 1000, 0.1, 100),
        (100, 50, 1.0, 30),  # Newton's method gets over kinks
    ],
)
def test_rounds_that_may_take_less(n_problems, n_features, density, expected):
    params = SimpleNamespace(
        refine="auto", loss="hinge", penalty="l2", alpha=1e-4, l1_ratio=0.0
    )
    problem = SimpleNamespace(
        n_problems=n_problems,
        total_rows=1000,
        total_stored=int(1000 * density * n_features),
        shard=SimpleNamespace(n_features=n_features),
    )
    assert most_rounds(problem, params) == expected


@pytest.mark.parametrize(
    ("changes", "stored", "expected"),
    [
        ({}, 10_000, True),
        ({"loss": "log_loss"}, 10_000, False),
        ({"loss": "squared_hinge"}, 10_000, False),
        ({"refine": "lbfgs"}, 10_000, False),
        ({"penalty": "l1"}, 10_000, False),
        ({"penalty": "elasticnet", "l1_ratio": 0.5}, 10_000, False),
        ({"alpha": 0.0}, 10_000, False),
        ({}, 2**23 + 1, False),
    ],
)
def test_which_fits_may_have_sets(changes, stored, expected):
    params = {
        "refine": "auto",
        "loss": "hinge",
        "penalty": "l2",
        "alpha": 1e-4,
        "l1_ratio": 0.0,
    }
    problem = SimpleNamespace(
        n_problems=100,
        total_rows=1000,
        total_stored=stored,
        shard=SimpleNamespace(n_features=1000),
    )
    params = SimpleNamespace(**{**params, **changes})
    assert _choice.may_have_near_rows(params, problem) is expected


def test_sets_do_not_go_round():
    """A share counts beside those of its sign, of which one row may have a half."""
    n_rows = 1500
    rows = CentredRows(sparse.eye_array(n_rows, format="csr"), np.zeros(n_rows))
    targets = np.where(np.arange(n_rows) == 0, 1.0, -1.0)
    weights = np.full(n_rows, 1 / n_rows)
    sets = RowSets(rows, targets, weights, 1e-3, intercept=None, tol=1e-3)
    sizes = list(sets.solve(-np.ones(n_rows)))
    assert len(sizes) < _row_sets._MOST_SETS
    assert sets.best.gap <= 1e-3 * sets.best.objective


def test_sets_that_are_too_large_are_not_solved(monkeypatch):
    X, y = texts()
    rows = CentredRows(X, np.zeros(X.shape[1]))
    targets, weights = np.where(y == 0, 1.0, -1.0), np.full(len(y), 1 / len(y))
    monkeypatch.setattr(_row_sets, "_MOST_ROWS", 50)
    sets = RowSets(rows, targets, weights, 1e-4, intercept=None, tol=1e-3)
    assert list(sets.solve(np.zeros(len(y)))) == []
    assert sets.best is None


def test_a_class_that_takes_too_long_comes_last(monkeypatch):
    """Others have had their part by then."""
    X, y = texts()

    def plan(group, problem, params, model):
        found = plan_near_rows(group, problem, params, model)
        first = np.arange(len(found.n_within)) == 0
        return found._replace(n_within=np.where(first, 1e6, 1.0))

    plan_near_rows = _at_once.plan_near_rows
    monkeypatch.setattr(_at_once, "plan_near_rows", plan)
    solved, targets_of = [], _near_rows.class_tasks

    def task(problem, y, weights, numbers=slice(None)):
        if not isinstance(numbers, slice):
            solved.extend(numbers)
        return targets_of(problem, y, weights, numbers)

    monkeypatch.setattr(_near_rows, "class_tasks", task)
    MASGDClassifier(**TIGHT, n_ranks=1).fit(X, y)
    assert solved == [*range(1, 15), 0]


def test_a_run_that_has_ended_is_noticed_between_sets(monkeypatch):
    X, y = texts()

    class Ended(Exception):
        pass

    def ended():
        raise Ended

    plain = _near_rows._solve_all

    def solve_all(*args, check, **params):
        assert check.__func__ is LocalGroup.raise_if_closed
        return plain(*args, check=ended, **params)

    monkeypatch.setattr(_near_rows, "_solve_all", solve_all)
    with pytest.raises(Ended):
        MASGDClassifier(**TIGHT, n_ranks=1).fit(X, y)


# Ascent ------------------------------------------------------------------------------


def ascent_of(X, y, weights=None, alpha=1e-3, tol=1e-6, intercept=None):
    """Ascent in the dual of one problem, with rows about a centre."""
    X = sparse.csr_array(X, dtype=np.float64)
    n_rows = X.shape[0]
    weights = np.full(n_rows, 1 / n_rows) if weights is None else weights
    centre = np.zeros(X.shape[1])
    if intercept is None:
        centre = np.asarray(X.mean(axis=0))
    rows = CentredRows(X, centre)
    return DualAscent(rows, y, weights, alpha, intercept=intercept, tol=tol)


def word_problem(n_rows=900, seed=0):
    """Rows of few words, of which none tells much, and -1 or 1."""
    rng = np.random.default_rng(seed)
    X = sparse.random_array((n_rows, 300), density=0.03, rng=rng, format="csr")
    values = X @ rng.normal(size=300)
    noise = 0.3 * rng.normal(size=n_rows)
    return X, np.where(values + noise > 0.3, 1.0, -1.0)


def hinge_objective(X, y, weights, alpha, coef, level):
    losses = np.maximum(1 - y * (X @ coef + level), 0.0)
    return float(weights @ losses + 0.5 * alpha * coef @ coef)


@pytest.mark.parametrize("alpha", [1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize("begin", ["nothing", "noise"])
def test_ascent_comes_to_the_optimum(alpha, begin):
    X, y = word_problem()
    ascent = ascent_of(X, y, alpha=alpha, tol=1e-5)
    values = np.zeros(len(y))
    if begin == "noise":
        values = 3 * np.random.default_rng(1).normal(size=len(y))
    assert list(ascent.solve(values))
    best = ascent.best
    assert best.gap <= 0.5e-5 * best.objective
    level = best.intercept - np.asarray(X.mean(axis=0)) @ best.coef
    weights = np.full(len(y), 1 / len(y))
    own = hinge_objective(X, y, weights, alpha, best.coef, level)
    assert own == pytest.approx(best.objective, rel=1e-9)
    peer = SVC(kernel="linear", C=1 / (alpha * len(y)), tol=1e-8).fit(X, y)
    coef, level = peer.coef_.toarray()[0], peer.intercept_[0]
    peer_objective = hinge_objective(X, y, weights, alpha, coef, level)
    assert own == pytest.approx(peer_objective, rel=2e-5)


@pytest.mark.parametrize("intercept", [None, 0.0, -0.3])
def test_no_model_is_below_the_dual(intercept):
    """After each set, for weights of rows that differ, and any intercept."""
    X, y = word_problem()
    weights = np.random.default_rng(2).exponential(size=len(y)) ** 2
    weights[::5] = 0.0
    weights /= weights.sum()
    ascent, exact = (
        ascent_of(X, y, weights, tol=tol, intercept=intercept) for tol in (1e-4, 1e-6)
    )
    list(exact.solve(np.zeros(len(y))))
    lowest = exact.best.objective
    assert exact.best.gap <= 1e-6 * lowest
    n_bounds = 0
    for _ in ascent.solve(np.zeros(len(y))):
        if ascent.best is not None and np.isfinite(ascent.best.bound):
            penalty = 0.5e-3 * ascent.best.coef @ ascent.best.coef
            assert ascent.best.bound <= lowest * (1 + 1e-9)
            assert ascent.best.base - penalty <= lowest * (1 + 1e-9)
            assert ascent.best.objective >= lowest * (1 - 1e-9)
            n_bounds += 1
    assert n_bounds
    assert ascent.best.gap <= 1e-4 * ascent.best.objective


def test_rows_without_weight_are_not_moved(monkeypatch):
    X, y = word_problem()
    weights = np.where(np.arange(len(y)) % 3, 1 / 600, 0.0)
    ascend, chosen_rows = DualAscent._ascend, []

    def watched(self, u, chosen, *args):
        chosen_rows.extend(chosen)
        ascend(self, u, chosen, *args)

    monkeypatch.setattr(DualAscent, "_ascend", watched)
    ascent = ascent_of(X, y, weights)
    list(ascent.solve(np.zeros(len(y))))
    assert weights[chosen_rows].min() > 0
    some = weights > 0
    alone = ascent_of(X[np.flatnonzero(some)], y[some])
    list(alone.solve(np.zeros(some.sum())))
    assert ascent.best.objective == pytest.approx(alone.best.objective, rel=2e-6)


def test_ascent_leaves_a_model_of_zeros():
    """From one that has all rows of one sign beyond their margins."""
    rng = np.random.default_rng(0)
    y = np.where(rng.random(400) < 0.1, 1.0, -1.0)
    X = sparse.random(400, 300, 0.05, format="csr", random_state=0)
    ascent = ascent_of(X, y, alpha=1e-4, tol=1e-3)
    assert list(ascent.solve(3 * y))
    assert ascent.best.gap <= 0.5e-3 * ascent.best.objective


def test_the_level_of_the_least_loss():
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=200), rng.uniform(0, 1, 200)
    targets = np.where(rng.random(200) < 0.2, 1.0, -1.0)

    def loss(level):
        return weights @ np.maximum(1 - targets * (values + level), 0.0)

    found = _row_sets.best_level(targets, weights, values)
    others = np.linspace(-4, 4, 2001)
    assert loss(found) <= min(map(loss, others)) + 1e-12
    signs = np.ones(200)
    assert _row_sets.best_level(signs, weights, values) >= (1 - values).max() - 1e-12


def test_classes_are_shared_out(monkeypatch):
    """Each rank solves some, and all have the same in the end."""
    X, y = texts(1200, 7, 900)
    y = np.where(np.random.default_rng(2).random(len(y)) < 0.1, 0, y)
    solve_all, numbers_of = _near_rows._solve_all, []

    def watched(rows, block, numbers, **params):
        numbers_of.append(numbers)
        return solve_all(rows, block, numbers, **params)

    monkeypatch.setattr(_near_rows, "_solve_all", watched)
    monkeypatch.setattr(_near_rows, "_set_cost", lambda *args: 1e18)
    for n_ranks, n_each in ((1, [7]), (3, [2, 2, 3]), (9, [1] * 7)):
        numbers_of.clear()
        model = MASGDClassifier(random_state=0, refine_tol=1e-5, n_ranks=n_ranks)
        fit(model, X, y)
        assert len(refined(model)) == 1
        assert sorted(map(len, numbers_of)) == n_each
        assert sorted(sum(numbers_of, [])) == list(range(7))
        own = objectives(model.coef_, model.intercept_, X, y)
        np.testing.assert_allclose(own, peers(X, y), rtol=1e-4)


def test_ascent_goes_on_where_sets_have_no_budget_left(monkeypatch):
    """For all classes, and not for the first one alone."""
    X, y = texts(800, 8, 500)
    monkeypatch.setattr(_near_rows, "_sets_cost", lambda *args: 0.0)
    monkeypatch.setattr(_near_rows, "_set_cost", lambda *args: 1e18)
    solving = _near_rows._Solving
    monkeypatch.setattr(solving, "_most_for_sets", lambda *args: np.inf)
    model = fit(MASGDClassifier(random_state=0, n_ranks=1), X, y)
    assert len(refined(model)) == 1


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_classes_with_many_rows_at_their_margins(kind, monkeypatch):
    """500 rounds of steps left the objective of such words 1 % from its optimum."""
    monkeypatch.setattr(_near_rows, "_most_rounds", most_rounds)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 3000)
    X = sparse.random_array((3000, 2000), density=0.01, rng=rng, format="csr")
    topics = rng.random((4, 2000)) < 0.3
    X = sparse.csr_array(X.multiply(0.3 + 0.7 * topics[y]))
    model = fit(kind("hinge", alpha=1e-5, random_state=0), X, y)
    assert len(refined(model)) == 1
    own = objectives(model.coef_, model.intercept_, X, y, 1e-5)
    peer = LinearSVC(loss="hinge", C=1 / (1e-5 * len(y)), max_iter=300, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        peer.fit(X, y)
    best = objectives(peer.coef_, peer.intercept_, X, y, 1e-5)
    assert own.mean() <= best.mean() * (1 + 1e-3)
    again = fit(kind("hinge", alpha=1e-5, random_state=1, warm_start=True), X, y)
    again.fit(X, y)
    assert again.history_[-1]["excess"] <= again.refine_tol


def test_sparse_rows_are_handed_over_early():
    """Passes of SGD take more where the optima of classes are found at once."""
    params = {"loss": "hinge", "penalty": "l2", "alpha": 1e-4, "l1_ratio": 0.0}
    params |= {"refine": "auto", "epsilon": 0.1}

    def is_quick(n_problems=20, n_stored=100_000, **changes):
        problem = SimpleNamespace(
            n_problems=n_problems,
            total_rows=2000,
            total_stored=n_stored,
            shard=SimpleNamespace(n_features=5000),
        )
        return _choice.is_quick(SimpleNamespace(**{**params, **changes}), problem)

    assert is_quick()
    assert not is_quick(n_stored=5_000_000)
    assert not is_quick(penalty="elasticnet", l1_ratio=0.5)
    assert not is_quick(refine="lbfgs")
