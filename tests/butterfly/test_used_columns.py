"""Columns that no row has take no part, and the result is the same without them."""

from dataclasses import replace

import dask
import numpy as np
import pytest
from scipy import sparse

from dask_ma import ButterflySGDClassifier, ButterflySGDRegressor
from dask_ma.butterfly import _agent, _plan, _used
from dask_ma.comm import LocalGroup
from dask_ma.engine import State

PARAMS = {
    "max_iter": 3,
    "tol": None,
    "random_state": 0,
    "batch_size": 20,
    "refine": None,
    "n_ranks": 2,
}
WIDTH = 20_000


@pytest.fixture(autouse=True)
def leave_out(monkeypatch):
    monkeypatch.setattr(_used, "_FEWEST", 1000)


@pytest.fixture(scope="module")
def rows():
    """240 rows with few of the columns, and the columns that they have."""
    rng = np.random.default_rng(3)
    columns = rng.choice(WIDTH, 420, replace=False)
    places = rng.choice(columns, (240, 4))
    values, ends = rng.normal(size=960), np.arange(0, 961, 4)
    X = sparse.csr_matrix((values, places.ravel(), ends), shape=(240, WIDTH))
    X.sum_duplicates()
    return X, np.unique(X.indices)


@pytest.fixture(scope="module")
def y():
    return np.random.default_rng(4).integers(0, 3, 240)


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


@pytest.fixture
def in_rising_order(monkeypatch):
    """Columns that are gone over as those of X without the others are."""
    monkeypatch.setattr(_used, "_in_order", lambda group, owners, used, own: used)


@pytest.fixture
def orders(monkeypatch):
    """The columns of each rank by their numbers in the fit, and its blocks of X."""
    found = {}
    use_columns = _agent.use_columns

    def noted(group, *args):
        problem, _, columns = result = use_columns(group, *args)
        found[group.rank] = columns.numbers, [b.X for b in problem.shard.blocks]
        return result

    monkeypatch.setattr(_agent, "use_columns", noted)
    return found


def without(monkeypatch, function):
    """What a function gives where all columns take part."""
    with monkeypatch.context() as patch:
        patch.setattr(_used, "_FEWEST", np.inf)
        return function()


def check_same(wide, narrow, used):
    """Check that a fit is that to the columns used, to the bit."""
    assert wide.coef_.shape[-1] == WIDTH
    np.testing.assert_array_equal(wide.coef_[..., used], narrow.coef_)
    assert np.count_nonzero(wide.coef_) == np.count_nonzero(narrow.coef_)
    np.testing.assert_array_equal(wide.intercept_, narrow.intercept_)
    values = [[r["objective"] for r in fit.history_] for fit in (wide, narrow)]
    assert values[0] == values[1]
    if wide.moments_ is not None:
        np.testing.assert_array_equal(wide.moments_.sums[:, used], narrow.moments_.sums)
        assert wide.moments_.sums.shape == (2, WIDTH)
        assert wide.moments_.sums.sum() == pytest.approx(narrow.moments_.sums.sum())


@pytest.mark.each
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"n_ranks": 1},
        {"n_ranks": 5},
        {"batch_size": "auto"},
        {"mixing": "allreduce", "average": True},
        {"mixing": "none", "preconditioner": None},
        {"loss": "hinge", "alpha": 3.0},
        {"early_stopping": True, "tol": 1e-3},
        {"refine": "auto", "tol": 1e-3},
        {"refine": "lbfgs"},
        {"refine": "newton", "alpha": 0.01, "refine_max_iter": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.usefixtures("in_rising_order")
@pytest.mark.filterwarnings("ignore:the (refinement|maximum)")
def test_the_result_is_that_of_the_columns_used(rows, y, taken, params, n_classes):
    X, used = rows
    y = y % n_classes
    params = {**PARAMS, **params}
    wide = ButterflySGDClassifier(**params).fit(X, y)
    assert taken == [len(used)] * params["n_ranks"]
    check_same(wide, ButterflySGDClassifier(**params).fit(X[:, used], y), used)


@pytest.mark.usefixtures("in_rising_order")
def test_regression_on_numbers_of_32_bits(rows, taken):
    X, used = rows
    X = sparse.csr_array(X.astype(np.float32))
    y = np.random.default_rng(0).normal(size=240)
    wide = ButterflySGDRegressor(**PARAMS).fit(X, y)
    assert taken == [len(used)] * 2
    check_same(wide, ButterflySGDRegressor(**PARAMS).fit(X[:, used], y), used)
    assert wide.coef_.dtype == np.float32


@pytest.mark.parametrize(
    "params",
    [
        {"n_ranks": 5, "average": True},
        {"loss": "hinge", "alpha": 3.0},
        {"refine": "newton", "alpha": 0.01, "refine_max_iter": 3},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:the (refinement|maximum)")
def test_the_order_makes_no_difference_but_rounding(rows, y, params):
    X, used = rows
    params = {**PARAMS, **params}
    wide = ButterflySGDClassifier(**params).fit(X, y)
    narrow = ButterflySGDClassifier(**params).fit(X[:, used], y)
    np.testing.assert_allclose(wide.coef_[:, used], narrow.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(wide.intercept_, narrow.intercept_, rtol=1e-9)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_columns_are_in_the_order_of_the_rows(y, orders, n_ranks):
    """What a row needs is near each other, and near what its rank's rows need."""
    columns = np.random.default_rng(5).permutation(WIDTH)[:960]
    parts = np.ones(960), np.sort(columns.reshape(240, 4)).ravel(), range(0, 961, 4)
    X = sparse.csr_matrix(parts, shape=(240, WIDTH))
    start = np.zeros((1, WIDTH))
    others = np.setdiff1d(np.arange(WIDTH), columns)[:7]
    start[0, others] = 1
    params = {**PARAMS, "n_ranks": n_ranks}
    ButterflySGDClassifier(**params).fit(X, y % 2, coef_init=start)
    numbers = orders[0][0]
    assert len(orders) == n_ranks
    for rank in range(n_ranks):
        np.testing.assert_array_equal(orders[rank][0], numbers)
    # No column comes twice: on each rank, and from rank to rank, they only rise.
    X_of_ranks = [X for rank in range(n_ranks) for X in orders[rank][1]]
    indices = np.concatenate([X.indices for X in X_of_ranks])
    np.testing.assert_array_equal(indices, np.arange(960))
    np.testing.assert_array_equal(numbers[960:], others)


def test_a_column_of_several_ranks_belongs_to_the_first(y, orders):
    """Within a rank it is where the last row has it."""
    shared = np.tile([17, 5], 240)
    own = np.arange(1000, 5800, 20)
    indices = np.column_stack([shared.reshape(240, 2), own]).ravel()
    X = sparse.csr_matrix(
        (np.ones(720), indices, np.arange(0, 721, 3)), shape=(240, WIDTH)
    )
    X.sort_indices()
    ButterflySGDClassifier(**PARAMS).fit(X, y)
    first = np.concatenate([own[:119], [5, 17], own[119:120]])
    np.testing.assert_array_equal(orders[0][0], [*first, *own[120:]])


def test_rows_stay_as_they_are(rows, y):
    X, _ = rows
    before = X.copy()
    X.indices.flags.writeable = False
    try:
        ButterflySGDClassifier(**PARAMS, shuffle=False).fit(X, y)
    finally:
        X.indices.flags.writeable = True
    assert (X != before).nnz == 0
    assert X.shape == before.shape


def test_weights_to_start_from_take_part(monkeypatch, rows, y, taken):
    """Those of columns that no row has are shrunk, too."""
    X, used = rows
    start = np.zeros((3, WIDTH))
    others = np.setdiff1d(np.arange(WIDTH), used)[::50]
    start[1, others] = 2.0
    start[:, used[:9]] = 1.0

    def fit():
        model = ButterflySGDClassifier(**{**PARAMS, "n_ranks": 3, "alpha": 0.1})
        return model.fit(X, y, coef_init=start)

    model = fit()
    assert taken == [len(used) + len(others)] * 3
    every = without(monkeypatch, fit)
    np.testing.assert_allclose(model.coef_, every.coef_, rtol=1e-9, atol=1e-12)
    assert (np.abs(model.coef_[1, others]) < 2).all()
    assert (model.coef_[1, others] != 0).all()


def test_a_start_of_another_shape_is_refused(rows, y):
    with pytest.raises(ValueError, match="coef_init must have shape"):
        ButterflySGDClassifier(**PARAMS).fit(*(rows[0], y), coef_init=np.ones((3, 7)))


@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
def test_partial_fit_remembers_the_columns_of_all_calls(
    monkeypatch, rows, y, taken, loss
):
    X, _ = rows
    # Moments alone, whose weights are still 0: rows of no loss.
    params = {"random_state": 0, "batch_size": 20, "loss": loss, "n_ranks": 2}

    def fit():
        model = ButterflySGDClassifier(**params)
        for part in np.split(np.arange(200), 4):
            model.partial_fit(X[part], y[part], classes=[0, 1, 2])
        return model

    model = fit()
    n_known = [len(np.unique(X[: 50 * (i + 1)].indices)) for i in range(4)]
    assert taken[::2] == n_known
    every = without(monkeypatch, fit)
    np.testing.assert_allclose(model.coef_, every.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.moments_.sums, every.moments_.sums)


def test_warm_start_goes_on(monkeypatch, rows, y):
    X, _ = rows

    def fit():
        model = ButterflySGDClassifier(**PARAMS, warm_start=True)
        return model.fit(X[:200], y[:200]).fit(X[200:], y[200:])

    every = without(monkeypatch, fit)
    np.testing.assert_allclose(fit().coef_, every.coef_, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "params", [{}, {"average": True}, {"early_stopping": True}], ids=str
)
def test_a_resumed_fit_is_an_uninterrupted_one(tmp_path, rows, y, taken, params):
    X, used = rows
    params = {**PARAMS, "n_ranks": 4, **params}
    whole = ButterflySGDClassifier(**params).fit(X, y)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        ButterflySGDClassifier(**{**params, "max_iter": 2}).fit(X, y)
        resumed = ButterflySGDClassifier(**params).fit(X, y)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
    np.testing.assert_array_equal(resumed.moments_.sums, whole.moments_.sums)
    assert len(resumed.history_) == 3
    assert set(taken) == {len(used)}


def test_a_resumed_fit_keeps_the_order(monkeypatch, tmp_path, rows, y, orders):
    """Sums over the columns are to have the same bits."""
    X, _ = rows
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        ButterflySGDClassifier(**{**PARAMS, "max_iter": 2}).fit(X, y)
        numbers = orders[0][0]
        monkeypatch.setattr(_used, "_in_order", lambda group, owners, used, own: used)
        ButterflySGDClassifier(**PARAMS).fit(X, y)
    np.testing.assert_array_equal(orders[0][0], numbers)
    assert (np.diff(numbers) < 0).any()


@pytest.mark.each
@pytest.mark.parametrize("params", [{}, {"average": True}], ids=str)
@pytest.mark.parametrize("at_first", [1000, np.inf])
def test_a_fit_goes_on_with_other_columns(
    monkeypatch, tmp_path, rows, y, taken, params, at_first
):
    """As where the rows lie on a disk the second time, or in memory."""
    X, used = rows
    params = {**PARAMS, "n_ranks": 4, **params}
    whole = ButterflySGDClassifier(**params).fit(X, y)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        monkeypatch.setattr(_used, "_FEWEST", at_first)
        ButterflySGDClassifier(**{**params, "max_iter": 2}).fit(X, y)
        monkeypatch.setattr(_used, "_FEWEST", 1000 if at_first > 1000 else np.inf)
        resumed = ButterflySGDClassifier(**params).fit(X, y)
    assert set(taken) == {len(used), WIDTH}
    np.testing.assert_allclose(resumed.coef_, whole.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(resumed.moments_.sums, whole.moments_.sums)


@pytest.mark.each
@pytest.mark.parametrize(
    "params",
    [{}, {"average": True}, {"preconditioner": None}, {"is_zero": True}],
    ids=str,
)
@pytest.mark.parametrize("at_first", [1000, np.inf])
def test_columns_of_rows_that_were_lost_stay(
    monkeypatch, tmp_path, rows, y, taken, params, at_first
):
    """As where a worker has gone with its rows, which nobody has a copy of."""
    X, used = rows
    agree_on_problem = _agent.agree_on_problem

    def agree_on_fewer(*args, **others):
        problem = agree_on_problem(*args, **others)
        blocks = [
            block._replace(X=block.X[:20], y=block.y[:20])
            for block in problem.shard.blocks
        ]
        return replace(problem, shard=replace(problem.shard, blocks=blocks))

    params = {**PARAMS, "n_ranks": 4, "learning_rate": "invscaling", **params}
    kind, is_zero = ButterflySGDClassifier, params.pop("is_zero", False)
    if is_zero:  # so are the weights, and only the moments know the columns
        kind, y = ButterflySGDRegressor, np.zeros(240)

    def resume(path):
        with dask.config.set({"dask-ma.checkpoint.path": str(path)}):
            kind(**{**params, "max_iter": 2}).fit(X, y)
            with monkeypatch.context() as patch:
                if at_first > 1000:
                    patch.setattr(_used, "_FEWEST", 1000)
                patch.setattr(_agent, "agree_on_problem", agree_on_fewer)
                return kind(**params).fit(X, y)

    every = without(monkeypatch, lambda: resume(tmp_path / "every"))
    monkeypatch.setattr(_used, "_FEWEST", at_first)
    model = resume(tmp_path / "used")
    assert taken[-1] == len(used)
    np.testing.assert_allclose(model.coef_, every.coef_, rtol=1e-9, atol=1e-12)
    if params.get("preconditioner", "") is not None:
        np.testing.assert_array_equal(model.moments_.sums, every.moments_.sums)
    assert (np.atleast_2d(model.coef_)[:, used] != 0).any(axis=0).all() != is_zero


def test_bytes_follow_the_columns_used(monkeypatch, rows, y):
    """No exchange of a fit sends anything for the other columns."""
    create = LocalGroup.create
    monkeypatch.setattr(LocalGroup, "create", lambda n_ranks: create(n_ranks, 1))
    X, used = rows

    def sent(X):
        model = ButterflySGDClassifier(**PARAMS).fit(X, y)
        return [record["bytes_sent"] for record in model.history_]

    wide, narrow = sent(X), sent(X[:, used])
    assert wide[1:] == narrow[1:]
    # Which columns these are is told once, a byte for each; and, of those used, where
    # they are in the order, in four.
    assert 0 < wide[0] - narrow[0] < 2 * (1.1 * WIDTH + 1.1 * 4 * len(used))
    # Moments of all columns are sixteen.
    assert without(monkeypatch, lambda: sent(X))[0] > 4 * wide[0]


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_no_array_of_a_pass_has_all_columns(monkeypatch, rows, y, n_ranks):
    X, used = rows
    sizes = []
    make_steps = _agent.make_steps

    def noted(context, problem, params, state, *args):
        state = make_steps(context, problem, params, state, *args)
        sizes.extend(a.shape[0] for a in state if isinstance(a, np.ndarray))
        sizes.extend(block.X.shape[1] for block in problem.shard.blocks)
        return state

    monkeypatch.setattr(_agent, "make_steps", noted)
    params = {**PARAMS, "n_ranks": n_ranks, "average": True}
    ButterflySGDClassifier(**params).fit(X, y)
    assert sizes
    assert set(sizes) <= {len(used), len(used) + 1}


def test_dense_rows_and_narrow_ones_keep_all_columns(rows, y, taken):
    X, _ = rows
    ButterflySGDClassifier(**PARAMS).fit(X[:, :2000].toarray(), y)
    ButterflySGDClassifier(**PARAMS).fit(X[:, :999], y)
    assert taken == [2000, 2000, 999, 999]


@pytest.mark.parametrize("density", [0.02, 0.005])
def test_rows_with_most_columns_keep_all(taken, density):
    """The numbers of their columns would be a copy that nothing makes up for."""
    X = sparse.random(400, 2000, density, "csr", rng=np.random.default_rng(0))
    assert len(np.unique(X.indices)) < 2000
    ButterflySGDClassifier(**PARAMS).fit(X, np.arange(400) % 3)
    assert taken == [2000, 2000]


def test_rows_on_a_disk_keep_all_columns(monkeypatch, rows, y, taken):
    """Nor are they read for that."""
    monkeypatch.setattr(_used, "is_on_disk", lambda X: True)
    monkeypatch.delattr(_used, "_mark")
    ButterflySGDClassifier(**PARAMS).fit(rows[0], y)
    assert taken == [WIDTH] * 2


@pytest.mark.parametrize("params", [{}, {"n_ranks": 1, "class_weight": "balanced"}])
def test_rows_on_a_disk_are_fitted_in_the_same_steps(monkeypatch, params):
    """As many rows are a batch as with the columns alone that some row has."""
    monkeypatch.setattr(_used, "_FEWEST", 2**16)
    rng = np.random.default_rng(0)
    width, n_rows = 66_000, 4000
    columns = rng.choice(width, 2000, replace=False)
    places = rng.choice(columns, (n_rows, 20)).ravel()
    values, ends = rng.normal(size=20 * n_rows), np.arange(0, 20 * n_rows + 1, 20)
    X = sparse.csr_matrix((values, places, ends), shape=(n_rows, width))
    X.sum_duplicates()
    y = rng.integers(0, 10, n_rows)
    params = {**PARAMS, "max_iter": 1, "batch_size": "auto", **params}
    there = ButterflySGDClassifier(**params).fit(X, y)
    monkeypatch.setattr(_used, "is_on_disk", lambda X: True)
    mapped = ButterflySGDClassifier(**params).fit(X, y)
    sizes = [record["batch_size"] for record in there.history_ + mapped.history_]
    assert len(set(sizes)) == 1
    scale = 1e-9 * np.abs(there.coef_).max()
    np.testing.assert_allclose(mapped.coef_, there.coef_, rtol=1e-9, atol=scale)


@pytest.mark.parametrize("params", [{}, {"early_stopping": True}])
def test_columns_of_rows_on_a_disk_are_counted_as_others(monkeypatch, params):
    """Some have a stored zero alone, or values in rows alone that are held out."""
    counts = []

    def noted(*arguments):
        counts.append(_used.count_columns(*arguments))
        return counts[-1]

    monkeypatch.setattr(_plan, "count_columns", noted)
    rng = np.random.default_rng(0)
    X = sparse.random(400, WIDTH, 4 / WIDTH, "csr", rng=rng)
    X.data[::10] = 0.0
    y = rng.integers(0, 2, 400)
    params = {**PARAMS, "n_ranks": 1, "batch_size": "auto", **params}
    for is_on_disk in (False, True):
        monkeypatch.setattr(_used, "is_on_disk", lambda X, found=is_on_disk: found)
        ButterflySGDClassifier(**params).fit(X, y)
    there, mapped = counts
    assert there == mapped < len(np.unique(X.indices))


def test_a_state_that_does_not_name_columns_has_all():
    state = State(1, {"weights": np.zeros((6, 2))}, None)
    assert _used.columns_of(state) == (None, 5)


def test_rows_without_any_value(y, taken):
    X = sparse.csr_matrix((240, WIDTH))
    model = ButterflySGDClassifier(**PARAMS).fit(X, y)
    assert taken == [WIDTH] * 2
    assert not model.coef_.any()


def test_who_follows_a_fit_gets_all_columns(rows, y):
    pytest.importorskip(
        "sklearn.callback", reason="scikit-learn has callbacks from version 1.9 on"
    )
    shapes = []

    class Follower:
        def setup(self, estimator, context):
            pass

        def on_fit_task_begin(self, estimator, context, **others):
            pass

        def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
            if fitted_estimator is not None:
                shapes.append(fitted_estimator.coef_.shape)
            return False

        def teardown(self, estimator, context):
            pass

    params = {**PARAMS, "refine": "lbfgs", "refine_max_iter": 2}
    model = ButterflySGDClassifier(**params).set_callbacks(Follower())
    with pytest.warns(UserWarning, match="refinement ended"):
        model.fit(rows[0], y)
    assert shapes == [(3, WIDTH)] * 5
