"""Coordinate descent against scikit-learn."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression

from dask_ma import losses
from dask_ma.comm import LocalGroup
from dask_ma.data import Block, Shard, build_shard, partition
from dask_ma.engine import RankContext
from dask_ma.schmp import CoordinateDescent, DynamicEngine, run, schedules

N_ROWS, N_COLUMNS, ALPHA = 90, 10, 0.05
MAKE = {"dense": np.asarray, "sparse": sparse.csr_array}
SCHEDULES = {
    "random": lambda: schedules.Random(3),
    "cyclic": lambda: schedules.Cyclic(3),
    "priority": lambda: schedules.Priority(3),
    "dynamic": lambda: schedules.Dynamic(8, 0.3),
}
# Ranks, pipeline depth, schedulers.
LAYOUTS = [(1, 3, 1), (2, 1, 1), (5, 3, 2)]
KINDS = ["dense", "sparse", "dense"]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_COLUMNS)) + 0.5
    X[rng.random(X.shape) < 0.3] = 0
    X[:, 7], X[:, 8] = 0, 3
    margins = X[:, :4] @ [1, -2, 3, 0] + 1
    return {
        "X": X,
        "weight": rng.uniform(0.2, 3, N_ROWS),
        "number": margins + 0.2 * rng.normal(size=N_ROWS),
        "two": (margins + rng.logistic(size=N_ROWS) > 0).astype(int),
        "three": np.clip(np.round(margins / 2) + 1, 0, 2).astype(int),
    }


def ones(alpha, n=N_COLUMNS):
    return np.full(n, float(alpha))


def least_squares(*arguments, **params):
    return CoordinateDescent(losses.SquaredError(), *arguments, **params)


def logistic(*arguments, n_classes=2, **params):
    loss = losses.LogLoss()
    if n_classes > 2:
        loss = losses.MultinomialLogLoss(n_classes)
    return CoordinateDescent(loss, *arguments, **params)


def run_program(program, X, y, weight=None, layout=(1, 1, 1), n_iterations=125):
    n_ranks, depth, n_schedulers = layout
    return run(
        program,
        X,
        y,
        weight,
        n_iterations=n_iterations,
        pipeline_depth=depth,
        n_schedulers=n_schedulers,
        report_every=250,
        random_state=0,
        n_ranks=n_ranks,
    )


@pytest.mark.each
@pytest.mark.parametrize(
    ("layout", "kind"), [*zip(LAYOUTS, KINDS, strict=True)], ids=str
)
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_lasso(data, schedule, layout, kind):
    make = MAKE[kind]
    program = least_squares(schedule(), ones(ALPHA), ones(0))
    result = run_program(program, make(data["X"]), data["number"], None, layout)
    ours = Lasso(alpha=ALPHA, tol=1e-14, max_iter=10**5)
    ours.fit(data["X"], data["number"])
    np.testing.assert_allclose(result.model, ours.coef_, atol=1e-6)
    residuals = data["number"] - ours.predict(data["X"])
    objective = (residuals**2).mean() / 2 + ALPHA * np.abs(ours.coef_).sum()
    assert result.history[-1]["objective"] == pytest.approx(objective, rel=1e-9)
    assert result.history[-1]["n_nonzero"] == np.count_nonzero(ours.coef_)


@pytest.mark.each
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("positive", [False, True])
def test_elastic_net(data, positive, fit_intercept, make):
    X, y, weight = data["X"], data["number"], data["weight"]
    program = least_squares(
        schedules.Cyclic(1),
        ones(ALPHA / 4),
        ones(ALPHA * 3 / 4),
        positive=positive,
        fit_intercept=fit_intercept,
    )
    result = run_program(program, make(X), y, weight, (2, 3, 1), 400)
    ours = ElasticNet(
        alpha=ALPHA,
        l1_ratio=0.25,
        positive=positive,
        fit_intercept=fit_intercept,
        tol=1e-14,
        max_iter=10**5,
    ).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(result.model, ours.coef_, atol=1e-8)


def test_weights_of_features_are_scales_of_columns(data):
    X, y = data["X"], data["number"]
    factors = np.linspace(0.5, 4, N_COLUMNS)
    result = run_program(
        least_squares(schedules.Cyclic(2), ALPHA * factors, ones(0)), X, y
    )
    ours = Lasso(alpha=ALPHA, tol=1e-14, max_iter=10**5).fit(X / factors, y)
    np.testing.assert_allclose(result.model, ours.coef_ / factors, atol=1e-9)


def for_plain_columns(model, data):
    """A model with the intercept for columns whose means are not taken out."""
    means = np.average(data["X"], axis=0, weights=data["weight"])
    model = model.copy()
    model[-1] -= means @ model[:-1]
    if model.ndim == 2:  # a number added to all classes changes nothing
        model[-1] -= model[-1].mean()
    return model


def logistic_reference(data, classes, fit_intercept):
    """Coefficients as rows of parameters, with the intercept last."""
    weight = data["weight"]
    model = LogisticRegression(
        C=1 / (ALPHA * weight.sum()),
        l1_ratio=1.0,
        solver="saga",
        fit_intercept=fit_intercept,
        tol=1e-9,
        max_iter=10**5,
        random_state=0,
    )
    # Versions before 1.8 take the kind of penalty apart from the ratio.
    if model.get_params()["penalty"] == "l2":
        model.set_params(penalty="l1", l1_ratio=None)
    model.fit(data["X"], data[classes], sample_weight=weight)
    stacked = np.vstack(
        [model.coef_.T, np.broadcast_to(model.intercept_, len(model.coef_))]
    )
    return stacked[:, 0] if classes == "two" else stacked


@pytest.fixture(scope="module")
def references(data):
    return {
        case: logistic_reference(data, *case)
        for case in (("two", False), ("two", True), ("three", True))
    }


@pytest.mark.each
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
@pytest.mark.parametrize(
    ("schedule", "layout"),
    [
        ("random", (1, 1, 1)),
        ("cyclic", (2, 3, 2)),
        ("priority", (1, 3, 1)),
        ("dynamic", (2, 2, 1)),
    ],
)
@pytest.mark.parametrize("classes", ["two", "three"])
def test_logistic(data, references, classes, schedule, layout, make):
    program = logistic(
        SCHEDULES[schedule](),
        ones(ALPHA),
        ones(0),
        n_classes={"two": 2, "three": 3}[classes],
    )
    X, y, weight = make(data["X"]), data[classes], data["weight"]
    # With two schedulers the intercept has its turn in every fourth iteration.
    n_iterations = 180 if layout == (1, 1, 1) else 450
    n_iterations *= 2 if classes == "three" else 1
    result = run_program(program, X, y, weight, layout, n_iterations)
    found = for_plain_columns(result.model, data)
    np.testing.assert_allclose(found, references[classes, True], atol=1e-5)


def test_logistic_without_intercept(data, references):
    program = logistic(schedules.Cyclic(3), ones(ALPHA), ones(0), fit_intercept=False)
    result = run_program(
        program, data["X"], data["two"], data["weight"], n_iterations=500
    )
    np.testing.assert_allclose(result.model, references["two", False], atol=1e-5)
    assert result.model[-1] == 0


def test_logistic_objective(data, references):
    reference = references["three", True]
    program = logistic(
        schedules.Cyclic(1), ones(ALPHA), ones(0), n_classes=3, start=reference
    )
    X, y, weight = data["X"], data["three"], data["weight"]
    result = run_program(program, X, y, weight, (2, 1, 1), n_iterations=1)
    margins = X @ reference[:-1] + reference[-1]
    losses = np.log(np.exp(margins).sum(axis=1)) - margins[np.arange(N_ROWS), y]
    objective = (
        np.average(losses, weights=weight) + ALPHA * np.abs(reference[:-1]).sum()
    )
    assert result.history[0]["objective"] == pytest.approx(objective, rel=1e-9)
    found = for_plain_columns(result.model, data)
    np.testing.assert_allclose(found, reference, atol=1e-5)


def test_few_entries_in_many_rows():
    """Slopes are then worked out for the rows of the columns alone."""
    rng = np.random.default_rng(0)
    X = sparse.random_array((400, 30), density=0.01, rng=rng, format="csr")
    y, weight = rng.integers(2, size=400), rng.uniform(0.5, 2, 400)
    results = [
        run_program(
            logistic(
                schedules.Cyclic(4), ones(1e-4, 30), ones(0, 30), fit_intercept=False
            ),
            make(X),
            y,
            weight,
            n_iterations=40,
        )
        for make in (lambda X: X.toarray(), sparse.csr_matrix)
    ]
    np.testing.assert_allclose(results[0].model, results[1].model, atol=1e-10)
    assert np.count_nonzero(results[0].model) > 10


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_data_touched_are_stored_elements(data, kind, n_ranks):
    """Of columns for their gradient, of those that moved, and at the end of a round."""
    X, y = data["X"], data["number"]
    stored = (X != 0).sum(axis=0) if kind == "sparse" else np.full(N_COLUMNS, N_ROWS)

    class Noting(CoordinateDescent):
        steps = 0

        def commit(self, local, index, change, model, extra=None):
            self.steps += stored[index[change != 0]].sum()
            super().commit(local, index, change, model, extra)

        def report(self, sums, model):
            return {**super().report(sums, model), "steps": self.steps}

    result = run(
        Noting(losses.SquaredError(), schedules.Cyclic(3), ones(0.5), ones(0)),
        MAKE[kind](X),
        y,
        n_iterations=7,
        report_every=7,
        pipeline_depth=1,
        n_ranks=n_ranks,
    )
    gradients = sum(stored[(3 * t + np.arange(3)) % N_COLUMNS].sum() for t in range(7))
    steps = result.history[0]["steps"]
    anew = stored[result.model != 0].sum()
    assert 0 < steps < gradients and 0 < anew
    assert result.history[0]["n_touched"] == gradients + steps + anew


def test_the_intercept_and_the_residuals(data):
    X, y = data["X"], data["number"]
    shards = partition(X, y, n_ranks=1, addresses=None)
    shard = build_shard(shards.shards[0].arguments)
    [group] = LocalGroup.create(1)
    program = least_squares(schedules.Cyclic(3), ones(ALPHA), ones(0))
    engine = DynamicEngine(RankContext(group, 0), program, shard)
    engine.run(400)
    ours = Lasso(alpha=ALPHA, tol=1e-14).fit(X, y)
    intercept = engine.program.intercept(engine.model)
    assert intercept == pytest.approx(ours.intercept_, abs=1e-9)
    for origin in (0.0, 2.5):
        found = engine.program.predictions(engine.local, origin)
        np.testing.assert_allclose(found, ours.predict(X) - origin, atol=1e-9)


def test_a_start_is_where_it_begins(data):
    start = np.arange(10.0)
    program = least_squares(schedules.Cyclic(1), ones(0), ones(0), start=start)
    result = run_program(program, data["X"], data["number"], n_iterations=1)
    assert result.model[1:].tolist() == start[1:].tolist()
    assert result.model[0] != 0


@pytest.mark.parametrize("l1", [0.0, ALPHA])
def test_columns_that_say_nothing(data, l1):
    start = np.full(N_COLUMNS, 0.5)
    program = least_squares(schedules.Cyclic(5), ones(l1), ones(0), start=start)
    result = run_program(program, data["X"], data["number"], n_iterations=4)
    assert result.model[[7, 8]].tolist() == [0.0 if l1 else 0.5] * 2


def test_arrays_that_do_not_fit(data):
    X, y = data["X"], data["number"]
    for l1, l2, name in [(ones(0, 3), ones(0), "l1"), (ones(0), ones(0, 3), "l2")]:
        program = least_squares(schedules.Cyclic(1), l1, l2)
        with pytest.raises(ValueError, match=rf"{name} has the shape \(3,\), expected"):
            run_program(program, X, y)
    program = least_squares(schedules.Cyclic(1), ones(0), ones(0), start=np.zeros(3))
    with pytest.raises(ValueError, match=r"start has the shape \(3,\), expected \(10,"):
        run_program(program, X, y)


@pytest.mark.parametrize("positive", [False, True])
def test_how_soon_to_look_again(positive):
    """Delays are the slack of the conditions, felt by chance: 1 / sqrt(4 rows)."""
    X = np.array([[3.0, 0, 1, 0], [0, 2, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    y = np.array([4.0, -1.0, 0, 0])
    program = least_squares(
        schedules.Cyclic(4),
        np.array([1.0, 0.8, 1.1, 1.0]),
        np.zeros(4),
        positive=positive,
        fit_intercept=False,
    )
    shard = Shard([Block(X, y, None, 0, 0)], 4, X.dtype)
    [group] = LocalGroup.create(1, 1)
    local = program.prepare(shard, group)
    model = program.initial_model(local, group)
    program.refresh(local, model)
    job = np.arange(4)
    found = program.aggregate([program.update(job, local, model)], job, model)
    curvatures, slopes = (X**2).mean(axis=0), X.T @ y / 4
    size = np.array([2.0 / curvatures[0], 0, 0, 0]) * np.sqrt(curvatures)
    np.testing.assert_allclose(found.size, size)
    beyond = slopes if positive else np.abs(slopes)
    slack = np.array([0.0, 0.8 - beyond[1], 0.1, 0.0])
    way = slack[:3] / (0.5 * np.sqrt(curvatures[:3]))
    np.testing.assert_allclose(found.delay[:3], way**2)
    assert np.isinf(found.delay[3])
