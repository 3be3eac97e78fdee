"""The loop of the ranks against a slow loop of one process."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma import run_spmd
from dask_ma.comm import LocalGroup
from dask_ma.engine import RankContext, RoundLog
from dask_ma.engine.recovery._identity import FitInfo
from dask_ma.exceptions import GroupClosedError
from dask_ma.sfb._engine import BroadcastEngine, Start
from dask_ma.sfb.exchange._settings import Exchange, RunSettings
from dask_ma.sfb.prox import L1, L2, ColumnNormBall, NoPenalty, TraceNorm

PENALTIES = [NoPenalty(), L1(0.1), L2(0.3), ColumnNormBall(0.4), TraceNorm(0.2)]
CONTENTS = ["factors", "full_matrix", "server"]
every_penalty = pytest.mark.parametrize("prox", PENALTIES, ids=repr)
every_way = pytest.mark.parametrize("content", CONTENTS)
every_kind = pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])


def check(engines, expected, rtol=1e-10):
    """All ranks have the expected matrix."""
    for engine in engines:
        np.testing.assert_allclose(engine.matrix, expected.W, rtol, rtol)
        if engine.matrix.intercept is not None:
            np.testing.assert_allclose(engine.matrix.intercept, expected.b, rtol, rtol)


def check_same_bits(engines, others=None):
    for engine, other in zip(
        engines, others or engines[:1] * len(engines), strict=True
    ):
        np.testing.assert_array_equal(engine.matrix, other.matrix)
        np.testing.assert_array_equal(engine.matrix.intercept, other.matrix.intercept)


# Bulk synchronous, full broadcast -----------------------------------------------------


@pytest.mark.pairs
@every_penalty
@every_way
@every_kind
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5])
def test_against_the_slow_loop(
    run_engines,
    slow_loop,
    make_model,
    make_shards,
    rows,
    prox,
    content,
    kind,
    n_ranks,
):
    model = make_model(prox=prox, fit_intercept=True, intercept_scale=0.5)
    model.step_size = lambda iteration: 0.4 / (1 + iteration / 4)
    shards = make_shards(n_ranks, kind(rows.X), rows.y)
    engines = run_engines(model, shards, content=content)
    check(engines, slow_loop(model, shards))
    check_same_bits(engines)
    n_steps = -(-max(shard.n_rows for shard in shards) // 3)
    for engine in engines:
        assert (engine.n_passes, engine.n_steps) == (2, n_steps)
        assert engine.iteration == 2 * n_steps
        assert engine.communication == content


@pytest.mark.parametrize(
    ("change", "settings"),
    [
        ({"averages": False, "learning_rate": 0.02}, {}),
        ({"fit_intercept": True}, {}),
        ({}, {"shuffle": False}),
        ({}, {"batch_size": 1}),
        ({}, {"batch_size": 100}),
    ],
    ids=str,
)
def test_choices_against_the_slow_loop(
    run_engines, slow_loop, make_model, make_shards, rows, change, settings
):
    model = make_model(**change)
    shards = make_shards(3, rows.X, rows.y, rows.weight)
    engines = run_engines(model, shards, **settings)
    check(engines, slow_loop(model, shards, **settings))
    assert (engines[0].matrix.intercept is None) == ("fit_intercept" not in change)


def test_every_choice_matters(run_engines, make_model, make_shards, rows):
    """No setting of the tests above is the same as another one."""
    changes = [
        ({}, {}),
        ({"averages": False}, {}),
        ({"fit_intercept": True}, {}),
        ({"fit_intercept": True, "intercept_scale": 0.1}, {}),
        ({"prox": L1(0.1)}, {}),
        ({"learning_rate": 0.2}, {}),
        ({}, {"shuffle": False}),
        ({}, {"batch_size": 2}),
        ({}, {"seed": 1}),
    ]
    found = []
    for change, settings in changes:
        model, shards = make_model(**change), make_shards(3, rows.X, rows.y)
        [matrix, *_] = [e.matrix for e in run_engines(model, shards, **settings)]
        found.append(np.asarray(matrix).tobytes())
    assert len(set(found)) == len(changes)


@every_penalty
def test_all_in_float32(run_engines, slow_loop, make_model, make_shards, rows, prox):
    model = make_model(prox=prox, fit_intercept=True)
    double = slow_loop(model, make_shards(3, rows.X, rows.y))
    start = type(model).initial_matrix
    type(model).initial_matrix = lambda self, n: start(self, n).astype(np.float32)
    shards = make_shards(3, rows.X.astype(np.float32), rows.y)
    engines = run_engines(model, shards)
    assert engines[1].matrix.dtype == engines[1].matrix.intercept.dtype == np.float32
    check(engines, double, 1e-4)
    check_same_bits(engines)


@pytest.mark.each
@every_way
@every_kind
def test_float32_on_the_wire(
    run_engines, slow_loop, make_model, make_shards, rows, content, kind
):
    model = make_model(prox=L1(0.1), fit_intercept=True)
    shards = make_shards(5, kind(rows.X), rows.y)
    options = {"content": content, "per_node": 2}
    engines = run_engines(model, shards, wire_dtype="float32", **options)
    assert engines[0].matrix.dtype == np.float64
    check(engines, slow_loop(model, shards), 1e-5)
    check_same_bits(engines)
    exact = run_engines(model, shards, **options)
    assert (np.asarray(exact[0].matrix) != engines[0].matrix).any()


@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_compression(run_engines, slow_loop, make_model, make_shards, rows, tolerance):
    model, shards = make_model(), make_shards(2, rows.X, rows.y)
    exact = slow_loop(model, shards, batch_size=6)
    engines = run_engines(model, shards, batch_size=6, compression=tolerance)
    check_same_bits(engines)
    error = np.linalg.norm(engines[0].matrix - exact.W) / np.linalg.norm(exact.W)
    assert error < max(2 * tolerance, 1e-12)
    assert not tolerance or error > 1e-6


@pytest.mark.each
@every_way
@pytest.mark.parametrize("prox", [L1(0.1), TraceNorm(0.2)], ids=repr)
def test_processes_do_not_change_a_bit(
    run_engines, make_model, make_shards, rows, content, prox
):
    model = make_model(prox=prox, fit_intercept=True)
    shards = make_shards(4, sparse.csr_array(rows.X), rows.y)
    results = [
        run_engines(model, shards, per_node=per_node, content=content)
        for per_node in (4, 2, 1)
    ]
    check_same_bits(results[0], results[1])
    check_same_bits(results[0], results[2])


def make_program(model, shards, content="auto", batch_size=100):
    """A rank on a worker; it gives back its matrix as bytes."""

    def program(group):
        from dask_ma.engine import RankContext, RoundLog
        from dask_ma.sfb._engine import BroadcastEngine
        from dask_ma.sfb.exchange._settings import Exchange, RunSettings

        chosen = RunSettings(exchange=Exchange(content), batch_size=batch_size)
        context = RankContext(group, 0)
        shard, log = shards[group.rank], RoundLog(context)
        engine = BroadcastEngine(context, model, shard, chosen, log)
        engine.run_pass()
        engine.run_pass()
        return engine.matrix.whole().tobytes() + engine.matrix.intercept.tobytes()

    return program


def check_cluster(client, run_engines, make_model, shards, content):
    model = make_model(prox=L1(0.1), fit_intercept=True)
    options = {"batch_size": 3, "content": content}
    [engine, *_] = run_engines(model, shards, **options)
    expected = engine.matrix.whole().tobytes() + engine.matrix.intercept.tobytes()
    program = make_program(model, shards, **options)
    results = run_spmd(program, client=client, n_ranks=len(shards))
    assert [values == expected for values in results] == [True] * len(shards)


@every_way
def test_the_same_bits_on_a_cluster(
    inproc_client, run_engines, make_model, make_shards, rows, content
):
    shards = make_shards(4, rows.X, rows.y)
    check_cluster(inproc_client, run_engines, make_model, shards, content)


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("cluster", ["process", "wide"])
def test_the_same_bits_in_processes(
    request, run_engines, make_model, make_shards, rows, cluster, kind
):
    client = request.getfixturevalue(f"{cluster}_client")
    shards = make_shards(4, kind(rows.X), rows.y)
    check_cluster(client, run_engines, make_model, shards, "factors")


def test_factors_in_any_order_of_memory(
    inproc_client, run_engines, make_model, make_shards, rows
):
    """Each rank computes with its own factors as the others get them."""

    def factors(self, matrix, batch):
        u = np.asfortranarray(np.repeat(matrix.product(batch.X), 2, axis=1))[:, ::2]
        return u - 1, np.asfortranarray(batch.X)

    model = make_model(factors=factors, fit_intercept=True)
    shards = make_shards(4, rows.X, rows.y)
    check_same_bits(run_engines(model, shards, per_node=1))
    results = run_spmd(make_program(model, shards), client=inproc_client, n_ranks=4)
    assert len(set(results)) == 1


# Starts, states and objectives --------------------------------------------------------


def test_objective(run_engines, make_model, make_shards, rows):
    model = make_model(prox=L1(0.1), fit_intercept=True)
    engines = run_engines(model, make_shards(3, rows.X, rows.y), 1)
    total = sum(engine.measure() for engine in engines)
    matrix = engines[0].matrix
    table = np.array([[1.0, -1.0, 0.0], [0.0, 2.0, 1.0], [-1.0, 0.5, 3.0]])
    residual = rows.X @ np.asarray(matrix).T + matrix.intercept - table[rows.y]
    expected = (residual**2).sum() / 2 / 23 + 0.1 * np.abs(matrix).sum()
    assert engines[0].objective(total) == pytest.approx(expected)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_a_state_stays_as_it_was(
    run_engines, make_model, make_shards, rows, fit_intercept
):
    """And a run that starts from it goes on to the same bits."""
    model = make_model(prox=L2(0.3), fit_intercept=fit_intercept)
    [group] = LocalGroup.create(1)
    context = RankContext(group, 0, fit_info=FitInfo("", "", keeps=True))
    settings = RunSettings(exchange=Exchange(), batch_size=3)
    whole = make_shards(1, rows.X, rows.y)[0]
    engine = BroadcastEngine(context, model, whole, settings, RoundLog(context))
    engine.run_pass()
    state = engine.snapshot({}).shared
    copies = {name: np.copy(value) for name, value in state.items()}
    engine.run_pass()
    for name, value in copies.items():
        np.testing.assert_array_equal(state[name], value)
    start = Start(state["values"], state["intercept"], state["iteration"], 1)
    other = BroadcastEngine(context, model, whole, settings, RoundLog(context), start)
    other.run_pass()
    assert (other.iteration, other.n_passes) == (engine.iteration, 2)
    check_same_bits([engine], [other])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros(7), r"returned shape \(7,\), expected two dimensions"),
        (np.full((3, 7), np.nan), "returned elements not finite"),
    ],
)
def test_starts_that_cannot_be(
    run_engines, make_model, make_shards, rows, given, message
):
    model = make_model(initial_matrix=lambda self, n_features: given)
    with pytest.raises(ValueError, match=f"LeastSquares.initial_matrix {message}"):
        run_engines(model, make_shards(2, rows.X, rows.y))


def test_a_start_of_whole_numbers(run_engines, make_model, make_shards, rows):
    model = make_model(initial_matrix=lambda self, n: np.zeros((3, n), dtype=int))
    [engine] = run_engines(model, make_shards(1, rows.X, rows.y))
    assert engine.matrix.dtype == np.float64


# Errors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given", [{"content": way} for way in CONTENTS] + [{"staleness": 2}]
)
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda u, v: u, TypeError, "must return a pair"),
        (lambda u, v: (u[:, :2], v), ValueError, "returned u of shape"),
        (lambda u, v: (u, v[:, :2]), ValueError, "returned v of shape"),
        (lambda u, v: (u * np.nan, v), ValueError, "u with NaN"),
        (lambda u, v: 1 / 0, ZeroDivisionError, ""),
    ],
)
def test_an_error_of_one_rank_ends_all(
    run_ranks,
    make_model,
    make_shards,
    rows,
    given,
    wrong,
    error,
    message,
):
    """At once, with the name of the rank and the iteration."""
    shards, ended = make_shards(3, rows.X, rows.y), []
    exchange = Exchange(**{"content": "factors", **given})
    settings = RunSettings(exchange=exchange, batch_size=3)

    def agent(group):
        model = make_model()
        right = type(model).factors
        n_calls = iter(range(100))

        def factors(self, matrix, batch):
            pair = right(self, matrix, batch)
            is_bad = group.rank == 1 and next(n_calls) == 2
            return wrong(*pair) if is_bad else pair

        type(model).factors = factors
        context = RankContext(group, 0)
        try:
            engine = BroadcastEngine(
                context, model, shards[group.rank], settings, RoundLog(context)
            )
            for _ in range(1000):
                engine.run_pass()
        except GroupClosedError:
            ended.append(group.rank)
            raise

    where = "LeastSquares.factors, on rank 1 in iteration 2 " if message else "zero"
    with pytest.raises(error, match=f"{where}.*{message}"):
        run_ranks(agent, 3)
    assert sorted(ended) == [0, 2]


@pytest.mark.parametrize(("per_node", "n_copies"), [(4, 1), (2, 2), (1, 4)])
def test_ranks_of_a_process_have_one_copy(
    run_ranks, make_model, make_shards, rows, per_node, n_copies
):
    """Which stays as it was."""
    model = make_model(prox=L2(0.3), fit_intercept=True)
    shards = make_shards(4, rows.X, rows.y)
    settings = RunSettings(exchange=Exchange("factors"), batch_size=3)

    def program(group):
        context = RankContext(group, 0)
        shard, log = shards[group.rank], RoundLog(context)
        engine = BroadcastEngine(context, model, shard, settings, log)
        engine.run_pass()
        before = np.array(engine.matrix).T
        values, intercept = engine.freeze()
        engine.run_pass()
        np.testing.assert_array_equal(values, before)
        assert not np.array_equal(intercept, engine.matrix.intercept)
        return values

    copies = run_ranks(program, 4, per_node)
    places = {values.__array_interface__["data"][0] for values in copies}
    assert len(places) == n_copies
