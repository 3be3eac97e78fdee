"""Models of users, on threads and on clusters."""

import pickle
import re

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from dask_ma.exceptions import CheckpointError
from dask_ma.sfb import Exchange, FactorModel, ModelResult, run
from dask_ma.sfb._divergence import DivergenceCheck
from dask_ma.sfb.prox import L1, L2, ColumnNormBall, NoPenalty, TraceNorm
from dask_ma.sfb.topology import Topology

WAYS = [
    {},
    {"communication": "full_matrix"},
    {"communication": "server"},
    {"communication": Exchange("factors", broadcast=1)},
    {"communication": Exchange("factors", broadcast=2, relay=False)},
    {"communication": Exchange("factors", compression=0.01, wire_dtype="float32")},
]
every_way = pytest.mark.parametrize("settings", WAYS, ids=str)


def fit(model, rows, **options):
    given = {"n_passes": 3, "batch_size": 3, "communication": "factors"}
    given |= {"random_state": 0, "n_ranks": 4, "dtype": None}
    weight = rows.weight if len(rows) == 3 else None
    return run(model, rows[0], rows[1], weight, **{**given, **options})


def check_same(a, b):
    """Bits of the results, and of the objectives."""
    np.testing.assert_array_equal(a.matrix, b.matrix)
    np.testing.assert_array_equal(a.intercept, b.intercept)
    for x, y in zip(a.history, b.history, strict=True):
        assert x["objective"] == y["objective"]


def test_against_exact_least_squares(make_model, rows):
    table = np.array([[1.0, -1.0, 0.0], [0.0, 2.0, 1.0], [-1.0, 0.5, 3.0]])
    design = np.hstack([rows.X, np.ones((23, 1))])
    exact, *_ = np.linalg.lstsq(design, table[rows.y])
    model = make_model(fit_intercept=True, learning_rate=0.5)
    result = fit(model, rows[:2], n_passes=250, batch_size=100, n_ranks=2)
    np.testing.assert_allclose(result.matrix, exact[:-1].T, atol=1e-4)
    np.testing.assert_allclose(result.intercept, exact[-1], atol=1e-4)
    least = ((design @ exact - table[rows.y]) ** 2).sum() / 2 / 23
    assert result.history[-1]["objective"] == pytest.approx(least)
    assert not result.converged and result.communication == "factors"


@pytest.mark.parametrize("n_ranks", [None, 3])
def test_history(make_model, rows, n_ranks):
    result = fit(make_model(), rows, n_ranks=n_ranks)
    assert isinstance(result, ModelResult) and result.intercept is None
    assert [r["round"] for r in result.history] == [1, 2, 3]
    n_steps = 8 if n_ranks is None else 3
    assert [r["iteration"] for r in result.history] == [
        n_steps,
        2 * n_steps,
        3 * n_steps,
    ]
    for record in result.history:
        assert record["n_samples"] == 23
        assert record["seconds_computing"] > 0
        assert record["bytes_sent"] == 0  # threads share what they have
        assert (record["bytes_shared"] > 0) == (n_ranks == 3)
    assert set(result.timeline["kind"]) >= {"compute", "evaluate"}
    assert set(result.timeline["rank"]) == set(range(n_ranks or 1))
    again = pickle.loads(pickle.dumps(result))
    check_same(again, result)


@every_way
def test_the_cluster_does_not_change_a_bit(inproc_client, make_model, rows, settings):
    model = make_model(prox=TraceNorm(0.05), fit_intercept=True)
    here = fit(model, rows, **settings)
    with inproc_client.as_current():
        there = fit(model, rows, **settings)
    check_same(here, there)


@pytest.mark.each
@pytest.mark.slow
@every_way
@pytest.mark.parametrize("cluster", ["process", "wide"])
def test_processes_do_not_change_a_bit(request, make_model, rows, settings, cluster):
    client = request.getfixturevalue(f"{cluster}_client")
    model, data = make_model(prox=L1(0.02)), (sparse.csr_array(rows.X), rows.y)
    here = fit(model, data, **settings)
    with client.as_current():
        there = fit(model, data, **settings)
    check_same(here, there)


def test_dask_arrays(cluster, make_model, rows):
    X, y = da.from_array(rows.X, chunks=(6, 7)), da.from_array(rows.y, chunks=6)
    model = make_model(learning_rate=0.5)
    options = {"n_passes": 20, "batch_size": 100}  # all rows at once, in any order
    lazy = fit(model, (X, y), n_ranks=None, **options)
    whole = fit(model, rows[:2], **options)
    np.testing.assert_allclose(lazy.matrix, whole.matrix, rtol=1e-10)


def test_stale_runs_on_a_cluster(cluster, make_model, rows):
    model = make_model(prox=L2(0.1), learning_rate=0.2)
    ways = "factors", *(Exchange("factors", staleness=n) for n in (1, 3))
    plain, *stale = (
        fit(model, rows, n_passes=25, communication=way).history[-1]["objective"]
        for way in ways
    )
    assert stale == pytest.approx([plain] * 2, rel=0.02)


def test_without_targets(rows):
    from dask_ma.sfb import FactorModel

    class Means(FactorModel):
        learning_rate = 1.0

        def initial_matrix(self, n_features):
            return np.zeros((1, n_features))

        def factors(self, matrix, batch):
            assert batch.y is None and batch.sample_weight is None
            ones = np.ones((batch.n_rows, 1))
            return ones, np.asarray(matrix) - batch.X

    options = {"n_passes": 1, "batch_size": 100, "dtype": None}
    result = run(Means(), rows.X, n_ranks=3, **options)
    np.testing.assert_allclose(result.matrix[0], rows.X.mean(axis=0))
    assert np.isnan(result.history[0]["objective"])


def test_rows_of_a_batch(make_model, rows):
    """Each row comes once in a pass, with its target, its weight and its number."""
    seen = []

    def factors(self, matrix, batch):
        assert batch.n_rows == len(batch.X) == len(batch.y) > 0
        seen.append(batch)
        return np.zeros((0, 3)), np.zeros((0, 7))

    def prepare(self, shard, group):
        self.shard = shard.blocks

    def loss(self, matrix, batch):
        seen.append(batch)
        return 0.0

    model = make_model(factors=factors, prepare=prepare, loss=loss)
    model.seen = None
    import dask_ma.sfb._run as module

    # What is pickled would note elsewhere.
    original = module.cloudpickle.loads
    try:
        module.cloudpickle.loads = lambda data: model
        fit(model, rows, n_passes=1, n_ranks=1, batch_size=4)
    finally:
        module.cloudpickle.loads = original
    for batches in (seen[:-1], seen[-1:]):
        order = np.concatenate([batch.rows for batch in batches])
        assert sorted(order) == list(range(23))
        for name, values in zip(("X", "y", "sample_weight"), rows, strict=True):
            found = np.concatenate([getattr(batch, name) for batch in batches])
            np.testing.assert_array_equal(found, values[order])
    sizes = [batch.n_rows for batch in seen[:-1]]
    assert max(sizes) - min(sizes) <= 1 and max(sizes) == 4


def test_the_same_seed_gives_the_same_run(make_model, rows):
    first = fit(make_model(), rows, random_state=1)
    check_same(first, fit(make_model(), rows, random_state=1))
    assert (first.matrix != fit(make_model(), rows, random_state=2).matrix).any()


def test_a_run_ends_by_tol(make_model, rows):
    model = make_model(learning_rate=0.5)
    result = fit(model, rows[:2], n_passes=500, batch_size=100, tol=1e-4)
    losses = np.array([record["objective"] for record in result.history])
    assert result.converged and 2 < len(losses) < 500
    gains = -np.diff(losses)
    assert (gains[-2:] < 1e-4).all() and (gains[:-2] >= 1e-4).all()


def test_the_faster_way_is_taken(make_model, rows):
    """Few pairs for a large matrix take less time, and many for a small one do not."""
    wide = sparse.random(40, 100_000, 0.0002, "csr", rng=np.random.default_rng(0))
    y = np.arange(40) % 3
    few = fit(make_model(), (wide, y), n_passes=1, batch_size=1, communication="auto")
    assert few.communication == "factors"
    tall = np.random.default_rng(0).normal(size=(60_000, 20))
    y = np.arange(60_000) % 3
    options = {"n_passes": 1, "communication": "auto", "batch_size": 10**5}
    many = fit(make_model(learning_rate=0.01), (tall, y), **options)
    assert many.communication == "full_matrix"
    options["communication"] = Exchange(broadcast=3)
    asked = fit(make_model(learning_rate=0.01), (tall, y), **options)
    assert asked.communication == "factors"


@pytest.mark.each
@every_way
@pytest.mark.parametrize("n_rows", [1, 2, 5])
def test_fewer_rows_than_ranks(cluster, make_model, rows, settings, n_rows):
    given = rows.X[:n_rows], rows.y[:n_rows]
    result = fit(make_model(), given, n_passes=2, n_ranks=None, **settings)
    assert np.isfinite(result.matrix).all()
    assert result.history[-1]["n_samples"] == n_rows


# Checkpoints --------------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("prox", [NoPenalty(), L1(0.02), L2(0.1)], ids=repr)
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("settings", [{}, WAYS[3]], ids=str)
def test_a_run_that_goes_on_equals_an_uninterrupted_one(
    tmp_path, configured, make_model, rows, n_ranks, prox, fit_intercept, settings
):
    model = make_model(prox=prox, fit_intercept=fit_intercept)
    options = {"n_ranks": n_ranks, **settings}
    data = sparse.csr_array(rows.X), rows.y
    whole = fit(model, data, n_passes=5, **options)
    with configured({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit(model, data, n_passes=2, **options)
        rest = fit(model, data, n_passes=5, **options)
    check_same(rest, whole)
    assert rest.history[-1]["iteration"] == whole.history[-1]["iteration"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"prox": L1(0.03)}, "prox.alpha"),
        ({"prox": L2(0.02)}, "prox is dask_ma.kernels.prox._operators.L1"),
        ({"learning_rate": 0.1}, "learning_rate"),
        ({"fit_intercept": True}, "fit_intercept"),
        ({"batch_size": 4}, "batch_size"),
        ({"dtype": "float32"}, "matrix_dtype is None"),
        ({"communication": Exchange("factors", broadcast=2)}, "broadcast=2"),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_run(
    tmp_path, configured, interrupted, make_model, rows, change, name
):
    names = "batch_size", "communication", "dtype"
    settings = {k: v for k, v in change.items() if k in names}
    other = {k: v for k, v in change.items() if k not in names}
    other = {"prox": L1(0.02), **other}
    plain = fit(make_model(**other), rows, **settings)
    values = {"dask-ma.checkpoint.path": str(tmp_path)}
    with configured({**values, "dask-ma.checkpoint.on-mismatch": "raise"}):
        with interrupted(1):
            fit(make_model(prox=L1(0.02)), rows, n_passes=3)
        with pytest.raises(CheckpointError, match=re.escape(name)):
            fit(make_model(**other), rows, **settings)
    with configured(values):
        with pytest.warns(UserWarning, match=re.escape(name)):
            anew = fit(make_model(**other), rows, **settings)
    check_same(anew, plain)


def test_a_finished_run_is_not_run_again(tmp_path, configured, make_model, rows):
    """Unless its model does something else now, under the same name."""

    def factors(self, matrix, batch):
        raise AssertionError("an edited method")

    options = {"n_passes": 500, "batch_size": 100, "tol": 1e-3}
    with configured({"dask-ma.checkpoint.path": str(tmp_path)}):
        first = fit(make_model(learning_rate=0.5), rows, **options)
        again = fit(make_model(learning_rate=0.5), rows, **options)
        with pytest.raises(AssertionError, match="an edited method"):
            fit(make_model(learning_rate=0.5, factors=factors), rows, **options)
    assert first.converged and again.converged
    assert again.history == first.history  # with all times
    check_same(first, again)


# What cannot be -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": "nothing"}, TypeError, "model must be an object of a subclass"),
        ({"model": ColumnNormBall}, TypeError, "model must be an object"),
        ({"n_passes": 0}, ValueError, "n_passes must be at least 1, got 0"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be an integer, got 2.0"),
        ({"n_ranks": 0}, ValueError, "n_ranks must be at least 1"),
        ({"communication": "mail"}, ValueError, "communication must be a str among"),
        ({"communication": None}, ValueError, "'dask_ma.sfb.Exchange', got None"),
        (
            {"communication": Exchange(staleness=-1)},
            ValueError,
            "The 'staleness' parameter of Exchange must be",
        ),
        ({"tol": -1.0}, ValueError, "tol must be finite and at least 0, got -1.0"),
        ({"tol": np.nan}, ValueError, "tol must be finite"),
        ({"tol": "low"}, TypeError, "tol must be a number or None, got 'low'"),
        (
            {"communication": Exchange(broadcast=Topology.optimal(5, 2))},
            ValueError,
            "of 5 ranks, but there are 3",
        ),
        (
            {"communication": Exchange("full_matrix", staleness=1)},
            ValueError,
            "staleness concerns factors",
        ),
        ({"X": [1.0]}, ValueError, "Expected 2D array"),
        ({"X": np.full((23, 7), np.nan)}, ValueError, "X contains NaN"),
        ({"y": np.zeros(22, dtype=int)}, ValueError, "inconsistent numbers of samples"),
        ({"random_state": "seed"}, ValueError, "seed"),
        ({"dtype": "float16"}, ValueError, "dtype must be 'auto', .* 'float16'"),
        ({"dtype": "wide"}, ValueError, "dtype must be 'auto', .* got 'wide'"),
        ({"dtype": int}, ValueError, "dtype must be 'auto', 'float32'"),
    ],
)
def test_arguments_that_cannot_be(make_model, rows, change, error, message):
    known = {
        "model": make_model(),
        "X": rows.X,
        "y": rows.y,
        "n_passes": 1,
        "n_ranks": 3,
    }
    with pytest.raises(error, match=message):
        run(**{**known, **change})


@pytest.mark.parametrize("where", ["threads", "cluster"])
def test_wrong_factors_name_rank_and_iteration(request, make_model, rows, where):
    def prepare(self, shard, group):
        self.rank = group.rank

    def factors(self, matrix, batch):
        if self.rank == 2 and matrix.product(np.eye(7)).sum() != self.before:
            return np.zeros((1, 2)), np.zeros((1, 7))
        return np.ones((1, 3)), np.ones((1, 7))

    if where == "cluster":
        request.getfixturevalue("cluster")
    model = make_model(prepare=prepare, factors=factors)
    model.before = model.initial_matrix(7).T.sum()
    model.before = (np.eye(7) @ np.array(model.initial_matrix(7).T, order="C")).sum()
    message = (
        r"LeastSquares.factors, on rank 2 in iteration 1 returned u of shape \(1, 2\)"
    )
    with pytest.raises(ValueError, match=message):
        fit(model, rows)


@pytest.mark.pairs
@pytest.mark.parametrize("communication", ["factors", "full_matrix"])
@pytest.mark.parametrize("prox", [NoPenalty(), L2(0.1)], ids=repr)
@pytest.mark.parametrize("rate", [8.0, 1e200])
def test_steps_that_are_too_long(make_model, rows, communication, prox, rate):
    model = make_model(learning_rate=rate, prox=prox)
    message = (
        "grows without bound: .*last values are .*, .*; lower the step size of the"
    )
    if rate > 10:
        message = "lower the step size"
    with pytest.raises(ValueError, match=message):
        fit(model, rows, n_passes=400, communication=communication)


def test_watch():
    watch = DivergenceCheck("take care")
    for number, value in enumerate([5.0, 4.0, 6.0, 5.0, 60.0, 399.0, np.nan, 1.0]):
        watch.check(value, number)
    for number, value in enumerate([2.0, 3.0]):
        watch.check(value, number)
    with pytest.raises(ValueError, match="after 9 .* 2, 3, 101; take care$"):
        watch.check(101.0, 9)
    with pytest.raises(ValueError, match="after 1 passes .* inf; take care"):
        DivergenceCheck("take care").check(np.inf, 1)


def test_tol_without_a_loss(make_model, rows):
    model = make_model(loss=lambda self, matrix, batch: float("nan"))
    with pytest.raises(
        ValueError, match="tol=0.1 needs objectives, but LeastSquares.loss"
    ):
        fit(model, rows, tol=0.1)
    assert np.isnan(fit(model, rows).history[-1]["objective"])


def test_results_stay_inside_of_a_constraint(make_model, rows):
    model = make_model(prox=ColumnNormBall(0.2))
    for settings in WAYS[3:5]:
        result = fit(model, rows, **settings)
        norms = np.linalg.norm(result.matrix, axis=0)
        assert 0.19 < norms.max() < 0.2 * (1 + 1e-12)
        assert np.isfinite(result.history[-1]["objective"])


# State of a model ---------------------------------------------------------------------


class Counting(FactorModel):
    """Least squares whose steps depend on how often a row has been seen."""

    learning_rate = 0.2
    passes = 0

    def initial_matrix(self, n_features):
        return np.zeros((3, n_features))

    def prepare(self, shard, group):
        self.seen = np.zeros(shard.n_rows)

    def begin_pass(self, matrix):
        self.passes += 1

    def factors(self, matrix, batch):
        self.seen[batch.rows] += 1
        u = matrix.product(batch.X) - np.eye(3)[batch.y]
        return u / self.seen[batch.rows, np.newaxis] / self.passes, batch.X

    def state_dict(self):
        return {"seen": self.seen.copy(), "passes": self.passes}

    def load_state_dict(self, state):
        assert state is not None
        self.seen, self.passes = state["seen"].copy(), int(state["passes"])


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_state_of_a_model_comes_back(tmp_path, configured, rows, n_ranks):
    data, options = (rows.X, rows.y), {"n_ranks": n_ranks}
    whole = fit(Counting(), data, n_passes=5, **options)
    with configured({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit(Counting(), data, n_passes=2, **options)
        rest = fit(Counting(), data, n_passes=5, **options)
    np.testing.assert_array_equal(rest.matrix, whole.matrix)

    class Forgetful(Counting):
        def load_state_dict(self, state):
            self.passes = 1

    with configured({"dask-ma.checkpoint.path": str(tmp_path / "other")}):
        fit(Forgetful(), data, n_passes=2, **options)
        other = fit(Forgetful(), data, n_passes=5, **options)
    assert abs(other.matrix - whole.matrix).max() > 1e-3
