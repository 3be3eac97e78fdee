"""Coordinate descent with columns shared out, against rows and scikit-learn."""

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Lasso

from dask_ma import SchMPLasso, losses
from dask_ma.data import Block, Shard
from dask_ma.engine import RankContext
from dask_ma.layouts._columns import to_columns
from dask_ma.schmp import (
    ColumnDescent,
    CoordinateDescent,
    DynamicEngine,
    Schedulers,
    schedules,
)
from dask_ma.schmp.schedules._dependencies import gather_sample, sample_columns

N_ROWS, N_COLUMNS, ALPHA = 40, 60, 0.3
MAKE = {"dense": np.asarray, "sparse": sparse.csr_array}
SCHEDULES = {
    "random": lambda: schedules.Random(4),
    "cyclic": lambda: schedules.Cyclic(4),
    "priority": lambda: schedules.Priority(4),
    "dynamic": lambda: schedules.Dynamic(5, 0.7),
}
# Ranks, pipeline depth, kind of rows.
LAYOUTS = [(1, 3, "dense"), (2, 1, "sparse"), (3, 3, "dense")]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_COLUMNS)) + (np.arange(N_COLUMNS) % 3 == 0)
    X[rng.random(X.shape) < 0.4] = 0
    X[:, 7], X[:, 8] = 0, 3
    number = X[:, :4] @ [1, -2, 3, 1] + rng.normal(size=N_ROWS) + 2
    return {
        "X": X,
        "weight": rng.uniform(0.2, 3, N_ROWS),
        "number": number,
        "two": (number > 3).astype(int),
        "three": np.digitize(number, [0, 4]),
    }


def penalties(n=N_COLUMNS):
    return np.full(n, 0.5 * ALPHA), np.full(n, 0.5 * ALPHA)


def make_shard(X, y, weight, rank, n_ranks):
    """Rows of a rank, in two blocks; the last of five ranks has none."""
    n_full = n_ranks - (n_ranks == 5)
    bounds = [len(y) * i // (2 * n_full) for i in range(2 * n_full + 1)]
    bounds += [len(y)] * 2
    blocks = [
        Block(X[a:b], y[a:b], None if weight is None else weight[a:b], 0, a)
        for a, b in zip(bounds[2 * rank :][:2], bounds[2 * rank + 1 :][:2], strict=True)
        if b > a
    ]
    return Shard(blocks, X.shape[1], X.dtype)


def run_engines(
    run_ranks, program, X, y, weight, n_ranks, depth, n_iterations, exchange=True
):
    """Engines of all ranks, after a run in two parts."""

    def agent(group):
        data = make_shard(X, y, weight, group.rank, n_ranks)
        if exchange:
            data = to_columns(group, data)
        engine = DynamicEngine(
            RankContext(group, 0), program, data, pipeline_depth=depth
        )
        for share in (n_iterations // 2, n_iterations - n_iterations // 2):
            engine.counts = engine.run(share)
        engine.sums = engine.measure()
        return engine

    return run_ranks(agent, n_ranks)


def check_agreement(engines):
    """All ranks have the same, to the last bit."""
    for engine in engines[1:]:
        np.testing.assert_array_equal(engine.model, engines[0].model)
        np.testing.assert_array_equal(engine.local.values, engines[0].local.values)
        assert engine.local.offset == engines[0].local.offset
        assert engine.program.total_weight == engines[0].program.total_weight
        assert engine.sums == [0]


@pytest.fixture(scope="module")
def elastic_net(data):
    def fit(weight, **params):
        model = ElasticNet(
            alpha=ALPHA, l1_ratio=0.5, tol=1e-14, max_iter=10**6, **params
        )
        return model.fit(data["X"], data["number"], sample_weight=weight)

    return fit


@pytest.mark.parametrize(
    ("name", "n_ranks", "depth", "kind"),
    [
        *(("dynamic", *layout) for layout in LAYOUTS),
        ("random", *LAYOUTS[0]),
        ("cyclic", *LAYOUTS[1]),
        ("priority", *LAYOUTS[2]),
    ],
)
def test_least_squares(run_ranks, data, elastic_net, name, n_ranks, depth, kind):
    schedule = SCHEDULES[name]
    X, y = MAKE[kind](data["X"]), data["number"]
    weight = data["weight"] if n_ranks == 3 else None
    program = ColumnDescent(losses.SquaredError(), schedule(), *penalties())
    n_iterations = 300 if name == "dynamic" else 650
    args = X, y, weight, n_ranks, depth, n_iterations
    engines = run_engines(run_ranks, program, *args)
    check_agreement(engines)
    engine, ours = engines[0], elastic_net(weight)
    np.testing.assert_allclose(engine.model, ours.coef_, atol=1e-6)
    intercept = engine.program.intercept(engine.model)
    assert intercept == pytest.approx(ours.intercept_, abs=1e-6)
    residuals = y - ours.predict(data["X"])
    predictions = engines[-1].program.predictions(engines[-1].local)
    np.testing.assert_allclose(y - predictions, residuals, atol=1e-5)
    report = engine.report(engine.sums)
    objective = np.average(residuals**2, weights=weight) / 2
    objective += 0.5 * ALPHA * np.abs(ours.coef_).sum()
    objective += 0.25 * ALPHA * (ours.coef_**2).sum()
    assert report["objective"] == pytest.approx(objective, rel=1e-9)
    assert report["n_nonzero"] == np.count_nonzero(ours.coef_)


@pytest.fixture(scope="module")
def copies():
    """400 rows of 240 columns: on each of four ranks near copies of the same 60."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(400, 60))
    X = np.hstack([base + 0.1 * rng.normal(size=base.shape) for _ in range(4)])
    y = base[:, :20] @ rng.normal(size=20) + 0.5 * rng.normal(size=400)
    alpha = np.abs(X.T @ (y - y.mean())).max() / 400 / 50
    return X, y, alpha, Lasso(alpha, tol=1e-10, max_iter=10**6).fit(X, y)


@pytest.mark.each
@pytest.mark.parametrize("kind", ["squares", "logistic"])
@pytest.mark.parametrize("depth", [1, 4, 16])
def test_columns_of_other_ranks_that_depend_on_these(run_ranks, copies, kind, depth):
    """What is under way at a time depends on nothing else that is, on any rank."""
    X, y, alpha, _ = copies
    if kind == "logistic":
        y = (y > np.median(y)).astype(np.int64)
    loss = {"squares": losses.SquaredError, "logistic": losses.LogLoss}[kind]()
    jobs, loose = {}, set()

    class Noting(schedules.Dynamic):
        def __call__(self, model, request):
            job = super().__call__(model, request)
            jobs[request.iteration] = job
            if self._is_loose:
                loose.add(request.iteration)
            return job

    program = ColumnDescent(loss, Noting(32, 0.4), np.full(240, alpha), np.zeros(240))
    run_engines(run_ranks, program, X, y, None, 4, depth, 160)
    alike = np.abs(np.corrcoef(X.T)) > 0.4 + 1e-3
    n_pairs = 0
    for t in range(160):
        first = max(0 if t < 80 else 80, t - depth + 1)
        under_way = range(first, t + 1)
        assert sum(u in loose for u in under_way) <= 1
        for u in under_way:
            if u in loose or (t in loose and u != t):
                continue
            pairs = alike[np.ix_(jobs[u], jobs[t])]
            assert not (np.triu(pairs, 1) if u == t else pairs).any()
            n_pairs += pairs.size
    assert n_pairs > 10_000
    assert 160 / (3 * depth + 4) < len(loose) < 80


def test_copies_on_other_ranks(run_ranks, copies):
    """Updated at a time they would all take what one of them should."""
    X, y, alpha, lasso = copies
    program = ColumnDescent(
        losses.SquaredError(),
        schedules.Dynamic(32, 0.2),
        np.full(240, alpha),
        np.zeros(240),
    )
    engine, *_ = run_engines(run_ranks, program, X, y, None, 4, 3, 600)
    residuals = y - lasso.predict(X)
    best = residuals @ residuals / 800 + alpha * np.abs(lasso.coef_).sum()
    found = engine.report(engine.sums)["objective"]
    assert best * (1 - 1e-9) <= found < 1.03 * best < 0.1 * y.var() / 2


@pytest.mark.parametrize("priority", ["due", "change"])
def test_the_default_schedule_by_columns_does_not_diverge(copies, priority):
    """Each rank alone would find that its columns do not depend on each other."""
    X, y, alpha, _ = copies
    lasso = SchMPLasso(
        alpha,
        schedule=schedules.Dynamic(priority=priority),
        layout="columns",
        polish=False,
        max_iter=10,
        random_state=0,
        n_ranks=4,
    )
    with pytest.warns(ConvergenceWarning):
        lasso.fit(X, y)
    objectives = [record["objective"] for record in lasso.history_]
    assert max(objectives) < y.var() / 2
    assert objectives[-1] < 0.3 * y.var() / 2


@pytest.mark.parametrize(
    ("layout", "n_ranks"), [("columns", 1), ("columns", 3), ("rows", 2)]
)
def test_the_default_schedule_on_few_rows_does_not_diverge(layout, n_ranks, tmp_path):
    """No two columns depend on each other, but many small correlations add up."""
    rng = np.random.default_rng(0)
    common = rng.normal(size=(70, 20)) @ rng.normal(size=(20, 600)) / 20**0.5
    X = common + 0.5 * rng.normal(size=(70, 600))
    y = X[:, :10] @ rng.normal(size=10) + 0.1 * rng.normal(size=70)
    alpha = np.abs((X - X.mean(axis=0)).T @ (y - y.mean())).max() / 70 / 20
    lasso = SchMPLasso(
        alpha,
        schedule=schedules.Dynamic(pipeline_depth=1 if layout == "rows" else "auto"),
        layout=layout,
        polish=False,
        max_iter=6,
        random_state=0,
        n_ranks=n_ranks,
    )
    with pytest.warns(ConvergenceWarning):
        lasso.fit(X, y)
    objectives = [y.var() / 2, *(record["objective"] for record in lasso.history_)]
    assert np.diff(objectives).max() < 0
    assert objectives[-1] < 0.75 * objectives[0]
    lasso.set_params(max_iter=3)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with pytest.warns(ConvergenceWarning):
            lasso.fit(X, y)
        with pytest.warns(ConvergenceWarning):
            lasso.set_params(max_iter=6).fit(X, y)
    resumed = [record["objective"] for record in lasso.history_]
    assert resumed == objectives[1:]


@pytest.mark.parametrize("n_ranks", [1, 4])
def test_one_update_at_a_time_where_weights_leave_few_rows(n_ranks):
    """The schedule compares columns on all rows, the loss on those that count."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 400))
    weight = np.where(np.arange(200) < 12, 1.0, 1e-6)
    y = X[:, :3] @ [1.0, -1, 2] + 0.1 * rng.normal(size=200)
    lasso = SchMPLasso(
        0.05,
        schedule=schedules.Dynamic(),
        layout="columns",
        polish=False,
        max_iter=6,
        random_state=0,
        n_ranks=n_ranks,
    )
    with pytest.warns(ConvergenceWarning):
        lasso.fit(X, y, weight)
    objectives = [record["objective"] for record in lasso.history_]
    assert np.diff(objectives).max() < 0


@pytest.mark.each
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_options(run_ranks, data, elastic_net, positive, fit_intercept):
    program = ColumnDescent(
        losses.SquaredError(),
        schedules.Cyclic(4),
        *penalties(),
        positive=positive,
        fit_intercept=fit_intercept,
    )
    args = data["X"], data["number"], data["weight"]
    engines = run_engines(run_ranks, program, *args, 2, 2, 1000)
    ours = elastic_net(data["weight"], positive=positive, fit_intercept=fit_intercept)
    np.testing.assert_allclose(engines[0].model, ours.coef_, atol=1e-6)


@pytest.fixture(scope="module")
def references(data, logistic):
    """Plain coefficients as rows of parameters, with the intercept last."""
    found = {}
    for classes in ("two", "three"):
        model = logistic(data["X"], data[classes], ALPHA, 0.5, data["weight"])
        found[classes] = np.vstack([model.coef_.T, model.intercept_])
    found["two"] = found["two"][:, 0]
    return found


def with_plain_intercept(engine):
    model = engine.model.copy()
    model[-1] = engine.program.intercept(model)
    if model.ndim == 2:  # the same number added to all classes changes nothing
        model[-1] -= model[-1].mean()
    return model


@pytest.mark.each
@pytest.mark.parametrize(("n_ranks", "depth", "kind"), LAYOUTS)
@pytest.mark.parametrize(
    ("classes", "schedule"), [("two", "dynamic"), ("three", "cyclic")]
)
def test_logistic(run_ranks, data, references, classes, schedule, n_ranks, depth, kind):
    loss = losses.LogLoss() if classes == "two" else losses.MultinomialLogLoss(3)
    program = ColumnDescent(loss, SCHEDULES[schedule](), *penalties())
    X = MAKE[kind](data["X"])
    args = X, data[classes], data["weight"], n_ranks, depth
    n_iterations = 350 if classes == "two" else 500
    engines = run_engines(run_ranks, program, *args, n_iterations)
    check_agreement(engines)
    wanted = references[classes]
    np.testing.assert_allclose(with_plain_intercept(engines[0]), wanted, atol=2e-5)
    margins = engines[0].local.values
    plain = data["X"] @ wanted[:-1] + wanted[-1]
    if margins.ndim == 2:
        margins = margins - margins.mean(axis=1, keepdims=True)
        plain -= plain.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(margins, plain, atol=1e-4)


@pytest.mark.parametrize("name", ["squares", "logistic"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_one_rank_does_what_it_does_with_rows(run_ranks, data, name, fit_intercept):
    """Step for step, for any schedule of one scheduler."""
    loss, y = {
        "squares": (losses.SquaredError(), data["number"]),
        "logistic": (losses.LogLoss(), data["two"]),
    }[name]
    start = np.linspace(-0.1, 0.1, N_COLUMNS + (name == "logistic"))
    models = []
    for kind in (CoordinateDescent, ColumnDescent):
        program = kind(
            loss,
            schedules.Dynamic(8, 0.3),
            *penalties(),
            fit_intercept=fit_intercept,
            start=start,
        )
        args = data["X"], y, data["weight"], 1, 3, 30
        is_rows = kind is CoordinateDescent
        [engine] = run_engines(run_ranks, program, *args, exchange=not is_rows)
        models.append(engine.model)
        assert not np.allclose(engine.model, start, atol=1e-2)
    np.testing.assert_allclose(models[1], models[0], rtol=1e-9, atol=1e-12)


def test_ranks_without_columns(run_ranks, data):
    X, y = data["X"][:, :3], data["two"]
    for loss, targets, n in (
        (losses.SquaredError(), data["number"], 3),
        (losses.LogLoss(), y, 4),
    ):
        program = ColumnDescent(loss, schedules.Dynamic(2, 0.9), *penalties(3))
        engines = run_engines(run_ranks, program, X, targets, None, 5, 3, 100)
        check_agreement(engines)
        schedulers = engines[0].schedulers
        assert schedulers.alone
        assert schedulers.ranks == (1, 3, 4)
        assert schedulers.partitions == (range(0, 1), range(1, 2), range(2, n))
        program = CoordinateDescent(loss, schedules.Cyclic(1), *penalties(3))
        [engine] = run_engines(
            run_ranks, program, X, targets, None, 1, 1, 250, exchange=False
        )
        np.testing.assert_allclose(engines[0].model, engine.model, atol=1e-7)


def test_rows_are_exchanged_if_they_come(run_ranks, data):
    program = ColumnDescent(losses.SquaredError(), schedules.Cyclic(4), *penalties())
    args = data["X"], data["number"], data["weight"], 2, 3, 50
    engines = [
        run_engines(run_ranks, program, *args, exchange=exchange)[0]
        for exchange in (False, True)
    ]
    np.testing.assert_array_equal(engines[0].model, engines[1].model)
    # An iteration reads 4 whole columns on one rank, and those that move once more; at
    # the end of the run those other than zero are read.
    least = 12 * 4 + np.count_nonzero(engines[0].model[:30])
    for engine in engines:
        columns, rest = divmod(engine.counts.n_touched, N_ROWS)
        assert rest == 0 and least < columns <= 12 * 8 + 30
    assert [e.counts.n_rows for e in engines] == [12 * 20, 12 * 40]


def test_few_rows_travel_as_few(run_ranks):
    """What sparse columns do to some of the rows is not sent for all of them."""
    X = sparse.csr_array(sparse.identity(2000, format="csr")[:, :40])
    y, n_bytes = np.ones(2000), {}
    for kind in ("sparse", "dense"):
        given = X if kind == "sparse" else X.toarray() + 1e-9

        def agent(group, given=given):
            shard = make_shard(given, y, None, group.rank, 2)
            program = ColumnDescent(
                losses.SquaredError(),
                schedules.Cyclic(4),
                np.zeros(40),
                np.ones(40),
                fit_intercept=False,
            )
            engine = DynamicEngine(RankContext(group, 0), program, shard)
            before = group.counters.bytes_sent
            engine.run(2)
            return group.counters.bytes_sent - before, engine.model.copy()

        results = run_ranks(agent, 2, ranks_per_node=1)
        n_bytes[kind] = results[0][0]
        np.testing.assert_allclose(results[0][1][:4], 1 / 2001, rtol=1e-3)
    # At the end of the run the rows travel once more, whatever they are.
    assert n_bytes["dense"] - n_bytes["sparse"] > 15 * 1000


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("n_rows", [11, 512])
def test_the_sample_is_that_of_the_rows(run_ranks, data, kind, n_rows):
    X = MAKE[kind](data["X"])

    def agent(group):
        shard = make_shard(X, data["number"], None, group.rank, 2)
        columns = to_columns(group, shard)
        mine = range(columns.start, columns.stop)
        schedulers = Schedulers((0, 1), (range(0, 30), range(30, 60)), 5)
        of_rows = gather_sample(shard, group, schedulers, n_rows)
        return mine, of_rows, sample_columns(columns, 5, n_rows)

    for mine, of_rows, of_columns in run_ranks(agent, 2):
        assert of_columns.columns == of_rows.columns == mine
        assert of_columns.n_rows == of_rows.n_rows == min(n_rows, N_ROWS)
        index = np.array(mine)
        np.testing.assert_array_equal(of_columns.take(index), of_rows.take(index))


def test_no_targets(run_ranks, data):
    X = data["X"]
    shard = Shard([Block(X, None, None, 0, 0)], N_COLUMNS, X.dtype)
    program = ColumnDescent(losses.SquaredError(), schedules.Cyclic(4), *penalties())
    with pytest.raises(ValueError, match="needs targets y"):
        run_ranks(lambda g: DynamicEngine(RankContext(g, 0), program, shard), 1)
