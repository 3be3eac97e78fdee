"""Columns that no row has take no part, and the result is the same without them."""

from dataclasses import replace
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from dask_ma import MASGDClassifier, MASGDRegressor
from dask_ma.engine import State
from dask_ma.exceptions import CheckpointError
from dask_ma.linear import UsedColumns
from dask_ma.ma.sgd import _agent, _columns

PARAMS = {"max_iter": 3, "tol": None, "random_state": 0, "n_ranks": 2, "alpha": 0.01}
PARAMS["learning_rate"] = "optimal"  # without trials, which take as long as the rounds
WIDTH = 6_000


@pytest.fixture(scope="module")
def rows():
    """400 rows with few of the columns, and the columns that they have."""
    rng = np.random.default_rng(3)
    columns = rng.choice(WIDTH, 300, replace=False)
    places = rng.choice(columns, (400, 4))
    values, ends = rng.normal(size=1600), np.arange(0, 1601, 4)
    X = sparse.csr_matrix((values, places.ravel(), ends), shape=(400, WIDTH))
    X.sum_duplicates()
    return X, np.unique(X.indices)


@pytest.fixture(scope="module")
def y():
    return np.random.default_rng(4).integers(0, 3, 400)


@pytest.fixture
def taken(monkeypatch):
    """Numbers of the columns that each rank has gone over, the newest last."""
    widths = []
    use_columns = _agent.use_columns

    def noted(*args):
        result = use_columns(*args)
        widths.append(result[0].shard.n_features)
        return result

    monkeypatch.setattr(_agent, "use_columns", noted)
    return widths


def without(monkeypatch, fit):
    """What a fit gives that goes over all columns."""
    with monkeypatch.context() as patch:
        patch.setattr(_columns, "_FEWEST", np.inf)
        return fit()


def check_close(model, other):
    assert model.coef_.shape == other.coef_.shape
    np.testing.assert_allclose(model.coef_, other.coef_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(model.intercept_, other.intercept_, rtol=1e-7, atol=1e-9)


@pytest.mark.each
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"n_ranks": 1, "loss": "log_loss"},
        {"penalty": "l1", "average": True},
        {"early_stopping": True, "tol": 1e-3},
        {"paradigm": "gradient"},
        {"refine": "auto", "loss": "log_loss"},
        {"refine": "lbfgs", "n_ranks": 3, "max_iter": 1},
        {"learning_rate": "auto"},
    ],
    ids=str,
)
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.filterwarnings("ignore:the (refinement|maximum)")
def test_the_result_is_that_of_all_columns(
    monkeypatch, rows, y, taken, params, n_classes
):
    X, used = rows
    params = {**PARAMS, **params}

    def fit():
        return MASGDClassifier(**params).fit(X, y % n_classes)

    model = fit()
    assert set(taken) == {len(used)}
    assert model.n_features_in_ == WIDTH
    assert not np.delete(model.coef_, used, axis=1).any()
    check_close(model, without(monkeypatch, fit))


def test_regression_on_numbers_of_32_bits(monkeypatch, rows, taken):
    X, used = rows
    X = sparse.csr_array(X.astype(np.float32))
    y = np.random.default_rng(0).normal(size=400)

    def fit():
        return MASGDRegressor(**PARAMS).fit(X, y)

    model, every = fit(), without(monkeypatch, fit)
    assert taken == [len(used)] * 2 + [WIDTH] * 2
    assert model.coef_.dtype == np.float32
    np.testing.assert_allclose(model.coef_, every.coef_, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("average", [False, True])
def test_partial_fit_keeps_the_columns_of_all_calls(
    monkeypatch, rows, y, taken, average
):
    X, _ = rows

    def fit():
        model = MASGDClassifier(random_state=0, n_ranks=2, average=average)
        for part in np.split(np.arange(200), 4):
            model.partial_fit(X[part], y[part], classes=[0, 1, 2])
        return model

    model = fit()
    n_known = [len(np.unique(X[: 50 * (i + 1)].indices)) for i in range(4)]
    assert taken[::2] == n_known
    check_close(model, without(monkeypatch, fit))


@pytest.mark.filterwarnings("ignore:the (refinement|maximum)")
def test_warm_starts_go_on(monkeypatch, rows, y):
    X, _ = rows

    def fit():
        model = MASGDClassifier(**PARAMS, refine=None, warm_start=True)
        return model.fit(X[:200], y[:200]).fit(X[200:], y[200:])

    check_close(fit(), without(monkeypatch, fit))


def test_columns_of_the_start_stay(rows, y, taken):
    X, used = rows
    start = np.zeros((1, WIDTH))
    others = np.setdiff1d(np.arange(WIDTH), used)[:7]
    start[0, others] = 1.0
    params = {**PARAMS, "refine": None, "alpha": 1e-5}
    model = MASGDClassifier(**params).fit(X, y % 2, coef_init=start)
    assert set(taken) == {len(used) + 7}
    assert (model.coef_[0, others] > 0.5).all()


@pytest.mark.parametrize(
    ("at_first", "average"),
    [(_columns._FEWEST, True), (np.inf, False), (np.inf, True)],
)
def test_a_resumed_fit_is_an_uninterrupted_one(
    monkeypatch, tmp_path, rows, y, taken, average, at_first
):
    """Also where the rows lie on a disk the first time, and all columns count."""
    X, used = rows
    params = {**PARAMS, "refine": None, "average": average}
    whole = MASGDClassifier(**params).fit(X, y)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with monkeypatch.context() as patch:
            patch.setattr(_columns, "_FEWEST", at_first)
            MASGDClassifier(**{**params, "max_iter": 2}).fit(X, y)
        resumed = MASGDClassifier(**params).fit(X, y)
    assert len(resumed.history_) == 3
    assert set(taken) == {len(used), WIDTH if at_first == np.inf else len(used)}
    check_close(resumed, whole)
    if at_first != np.inf:
        np.testing.assert_array_equal(resumed.coef_, whole.coef_)


@pytest.mark.parametrize(
    ("at_first", "average"),
    [(_columns._FEWEST, True), (np.inf, False), (np.inf, True)],
)
def test_columns_of_rows_that_were_lost_stay(
    monkeypatch, tmp_path, rows, y, taken, average, at_first
):
    """As where a worker has gone with its rows, which nobody has a copy of."""
    X, used = rows
    agree_on_problem = _agent.agree_on_problem

    def agree_on_fewer(*args, **others):
        problem = agree_on_problem(*args, **others)
        shard = replace(problem.shard, blocks=problem.shard.blocks[:10])
        return replace(problem, shard=shard)

    params = {**PARAMS, "refine": None, "average": average}

    def resume(path, first):
        with dask.config.set({"dask-ma.checkpoint.path": str(path)}):
            with monkeypatch.context() as patch:
                patch.setattr(_columns, "_FEWEST", first)
                MASGDClassifier(**{**params, "max_iter": 2}).fit(X, y)
            with monkeypatch.context() as patch:
                patch.setattr(_agent, "agree_on_problem", agree_on_fewer)
                return MASGDClassifier(**params).fit(X, y)

    every = without(monkeypatch, lambda: resume(tmp_path / "every", np.inf))
    model = resume(tmp_path / "used", at_first)
    assert taken[-1] == len(used)
    check_close(model, every)


@pytest.mark.parametrize("width", ["used", "others"])
def test_models_of_another_width_are_refused(rows, width):
    """Also where all of its columns are as many as those used now."""
    used = rows[1]
    n_columns = len(used) if width == "used" else WIDTH - 1
    shared = {"coef": np.ones((3, n_columns)), "mean_coef": None}
    state = State(1, shared, None)
    columns = UsedColumns(used, WIDTH)
    with pytest.raises(CheckpointError, match=f"{WIDTH} for these data"):
        _columns._restored(columns, state)


def test_columns_of_a_mean_take_part():
    """Where L1 has set the weight to 0 in the last model alone."""
    mean = np.zeros((1, 5))
    mean[0, 2] = 1.0
    is_used = np.zeros(5, bool)
    params = SimpleNamespace(coef=None, mean=(mean, np.zeros(1), 1.0, 1.0))
    _columns._mark_models(is_used, None, params, None)
    assert is_used.tolist() == [False, False, True, False, False]


def test_who_follows_a_fit_sees_all_columns(rows, y):
    """In the models of rounds, and in those of the refinement."""
    callback = pytest.importorskip(
        "sklearn.callback", reason="scikit-learn has callbacks from version 1.9 on"
    )
    assert callback
    X, _ = rows
    shapes = []

    class Follower:
        def setup(self, estimator, context): ...

        def on_fit_task_begin(self, estimator, context, **kwargs): ...

        def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
            if fitted_estimator is not None:
                shapes.append(fitted_estimator.coef_.shape)

        def teardown(self, estimator, context): ...

    params = {**PARAMS, "refine": "lbfgs", "refine_max_iter": 3}
    with pytest.warns(ConvergenceWarning):
        MASGDClassifier(**params).set_callbacks(Follower()).fit(X, y)
    assert shapes == [(3, WIDTH)] * 6


@pytest.mark.parametrize("kind", ["full", "dense", "disk"])
def test_all_columns_count_where_leaving_some_out_would_not_pay(
    monkeypatch, rows, y, taken, kind
):
    X, _ = rows
    if kind == "full":
        X = sparse.random(400, WIDTH, 0.01, "csr", random_state=0)
    elif kind == "dense":
        X, y = X[:4].toarray(), np.array([0, 1, 2, 0])
    else:
        monkeypatch.setattr(_columns, "is_on_disk", lambda X: True)
    MASGDClassifier(**{**PARAMS, "refine": None}).fit(X, y)
    assert set(taken) == {WIDTH}
