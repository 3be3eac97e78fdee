"""Updates that come late: partial broadcasts and bounded staleness."""

import operator
import threading
import time

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from dask_ma import SFBLogisticRegression
from dask_ma.comm import LocalGroup
from dask_ma.sfb import Exchange
from dask_ma.sfb.prox import L1, L2, ColumnNormBall, NoPenalty, TraceNorm
from dask_ma.sfb.topology import Topology

PENALTIES = [NoPenalty(), L1(0.1), L2(0.3), ColumnNormBall(0.4), TraceNorm(0.2)]
every_penalty = pytest.mark.parametrize("prox", PENALTIES, ids=repr)
ring = Topology.optimal(4, 1)


def check_same_bits(engines, others=None):
    for engine, other in zip(
        engines, others or engines[:1] * len(engines), strict=True
    ):
        np.testing.assert_array_equal(engine.matrix, other.matrix)
        np.testing.assert_array_equal(engine.matrix.intercept, other.matrix.intercept)


# Partial broadcast --------------------------------------------------------------------


@every_penalty
def test_relayed_updates_all_arrive(run_engines, make_model, make_shards, rows, prox):
    """Ranks agree after a pass, near to where a full broadcast leads."""
    model = make_model(prox=prox, fit_intercept=True, learning_rate=0.02)
    shards = make_shards(4, rows.X, rows.y)
    engines = run_engines(model, shards, broadcast=1)
    full = run_engines(model, shards)
    for engine in engines:
        np.testing.assert_allclose(engine.matrix, full[0].matrix, atol=0.02)
        assert engine.matrix.penalty() < np.inf
    check_same_bits(engines)
    check_same_bits(engines, run_engines(model, shards, broadcast=1, per_node=1))


def constant(self, matrix, batch):
    """Updates that do not depend on the matrix."""
    return 1.0 + np.outer(batch.y, [1, 2, 3]), batch.X


@pytest.mark.parametrize(
    "settings",
    [
        {"broadcast": 1},
        {"broadcast": 2},
        {"broadcast": [[0, 1, 0, 0], [0, 0, 1, 0], [0, 1, 0, 1], [1, 0, 0, 0]]},
        {"broadcast": ring, "staleness": 2},
        {"staleness": 1},
        {"staleness": 5, "broadcast": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("delay", [0.0, 0.002])
def test_no_update_is_lost(
    run_engines, make_model, make_shards, rows, monkeypatch, settings, delay
):
    """The sum of all updates is in the matrix after a pass, whenever they came."""
    plain = LocalGroup.create
    monkeypatch.setattr(
        LocalGroup, "create", lambda n, per_node: plain(n, per_node, delay=delay)
    )
    model = make_model(factors=constant, fit_intercept=True, averages=False)
    model.step_size = lambda iteration: 1.0  # all updates count the same
    shards = make_shards(4, rows.X, rows.y)
    u = 1.0 + np.outer(rows.y, [1, 2, 3])
    start = model.initial_matrix(7)
    for engine in run_engines(model, shards, 2, **settings):
        np.testing.assert_allclose(engine.matrix, start - 2 * u.T @ rows.X, rtol=1e-12)
        np.testing.assert_allclose(engine.matrix.intercept, -2 * u.sum(axis=0))


@pytest.mark.parametrize("settings", [{"broadcast": 1}, {"staleness": 3}], ids=str)
def test_late_updates_keep_their_step(
    run_engines, make_model, make_shards, rows, settings
):
    model = make_model(factors=constant, averages=False)
    model.step_size = lambda iteration: 2.0**-iteration
    shards = make_shards(4, rows.X, rows.y)
    kept = {"batch_size": 3, "shuffle": False}
    [full, *_] = run_engines(model, shards, 1, **kept)
    for engine in run_engines(model, shards, 1, **kept, **settings):
        np.testing.assert_allclose(engine.matrix, full.matrix, rtol=1e-12)


def test_without_relay(run_engines, make_model, make_shards, rows):
    """Each rank scales up what it hears; the mean is what all have found."""
    model = make_model(factors=constant, averages=False, learning_rate=1.0)
    shards = make_shards(4, rows.X, rows.y)
    start, u = model.initial_matrix(7), 1.0 + np.outer(rows.y, [1, 2, 3])
    engines = run_engines(model, shards, 3, broadcast=2, relay=False)
    check_same_bits(engines)
    # In a topology with as many sources everywhere, each update counts P / P times.
    np.testing.assert_allclose(
        engines[0].matrix, start - 3 * u.T @ rows.X, rtol=1e-10, atol=1e-12
    )
    model = make_model(learning_rate=0.05)

    def objective(n_passes, **settings):
        engines = run_engines(model, shards, n_passes, **settings)
        return engines[0].objective(sum(engine.measure() for engine in engines))

    start, end = objective(0), objective(20)
    assert end < 0.8 * start
    assert objective(20, broadcast=1, relay=False) == pytest.approx(end, rel=0.05)


def test_a_topology_for_other_ranks(run_engines, make_model, make_shards, rows):
    shards = make_shards(3, rows.X, rows.y)
    with pytest.raises(ValueError, match="of 4 ranks, but there are 3"):
        run_engines(make_model(), shards, broadcast=ring)


# Stale synchronous --------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [1, 4])
def test_never_further_ahead_than_the_bound(
    run_engines, make_model, make_shards, rows, staleness
):
    """The others run ahead of a rank that stands still, but not too far."""
    done, ahead, lock = [0, 0, 0, 0], [], threading.Lock()
    names = {}

    def prepare(self, shard, group):
        names[threading.get_ident()] = group.rank

    def step_size(self, iteration):
        """Called for the factors of all iterations up to the present one."""
        rank = names[threading.get_ident()]
        with lock:
            done[rank] = max(done[rank], iteration)
            ahead.append(done[rank] - min(done))
        time.sleep(0.003 if rank == 2 else 0.0)
        return 0.1

    model = make_model(prepare=prepare, step_size=step_size, prox=L1(0.01))
    shards = make_shards(4, rows.X, rows.y)
    engines = run_engines(model, shards, 3, batch_size=1, staleness=staleness)
    # A rank whose last factors have come may not have noted that iteration itself yet.
    assert staleness <= max(ahead) <= staleness + 1
    assert {engine.iteration for engine in engines} == {21}
    check_same_bits(engines)


@pytest.mark.each
@pytest.mark.parametrize("prox", PENALTIES[::2], ids=repr)
@pytest.mark.parametrize("broadcast", [None, 1])
def test_stale_runs_come_to_the_same_objective(
    run_engines, make_model, make_shards, rows, prox, broadcast
):
    late, names, now = [0], {}, {}

    def prepare(self, shard, group):
        names[threading.get_ident()] = group.rank
        now[group.rank] = -1

    def factors(self, matrix, batch):
        rank = names[threading.get_ident()]
        now[rank] += 1
        if rank == 2:
            time.sleep(0.001)  # the others have to go on without it
        return plain(self, matrix, batch)

    def step_size(self, iteration):
        """Called with the iterations of the factors that are applied."""
        late[0] += iteration < now[names[threading.get_ident()]]
        return 0.2

    model = make_model(prox=prox, fit_intercept=True)
    plain = type(model).factors
    for function in (prepare, factors, step_size):
        setattr(type(model), function.__name__, function)
    shards = make_shards(4, rows.X, rows.y)

    def objective(**settings):
        engines = run_engines(model, shards, 15, batch_size=2, **settings)
        total = sum(engine.measure() for engine in engines)
        return engines[0].objective(total)

    best = objective()
    late[0] = 0
    assert objective(staleness=2, broadcast=broadcast) == pytest.approx(best, rel=0.03)
    assert late[0] > 0  # else nothing was stale


def test_zeros_where_ranks_differ(run_engines, make_model, make_shards, rows):
    """As where they agree, but for coefficients that are small."""
    model = make_model(prox=L1(0.5), learning_rate=0.1)
    shards = make_shards(4, rows.X, rows.y)
    ways = {}, {"staleness": 1}, {"broadcast": 1}, {"broadcast": 2, "relay": False}
    expected, *matrices = (
        np.array(run_engines(model, shards, 25, **way)[0].matrix) for way in ways
    )
    n_zeros = (expected == 0).sum()
    assert 3 <= n_zeros < expected.size
    for matrix in matrices:
        assert (matrix == 0).sum() >= 0.6 * n_zeros
        assert abs(matrix - expected).max() < 0.2


@pytest.mark.parametrize("settings", [{"staleness": 1}, {"broadcast": 1}], ids=str)
def test_a_pass_has_as_many_penalties_as_steps(
    run_engines, make_model, make_shards, rows, settings
):
    """Without factors, the penalty alone moves the matrix."""

    def nothing(self, matrix, batch):
        return np.zeros((batch.n_rows, 3)), batch.X

    model = make_model(prox=L2(0.5), learning_rate=0.1, factors=nothing)
    shards = make_shards(4, rows.X, rows.y)
    for engine in run_engines(model, shards, 2, **settings):
        shorter = (1 + 0.1 * 0.5) ** (2 * engine.n_steps)
        start = model.initial_matrix(7)
        np.testing.assert_allclose(engine.matrix, start / shorter, rtol=1e-12)


def test_no_matrix_is_sent(run_engines, make_model, make_shards, rows):
    """Ranks that take no mean at the end of a pass have what it would be of."""
    model = make_model(factors=constant, averages=False, fit_intercept=True)
    shards = make_shards(4, rows.X, rows.y)
    params = {"broadcast": 1, "relay": False}
    together, apart = (
        run_engines(model, shards, 1, averaging=averaging, **params)
        for averaging in (True, False)
    )
    for name in ("matrix", "matrix.intercept"):
        take = operator.attrgetter(name)
        own = [np.asarray(take(engine)) for engine in apart]
        np.testing.assert_allclose(np.mean(own, axis=0), take(together[0]))
        assert not np.allclose(own[0], own[1])


def test_fits_that_take_no_mean():
    """All updates arrive, so that ranks differ by rounding; nobody asks for a gap."""
    X, y = load_digits(return_X_y=True)
    params = {"solver": "sgd", "random_state": 0, "n_ranks": 3, "max_iter": 6}
    params |= {"penalty": None, "tol": None, "batch_size": 32}
    found = [
        SFBLogisticRegression(
            communication=Exchange("factors", broadcast=1, averaging=averaging),
            **params,
        ).fit(X[:300] / 16, y[:300])
        for averaging in (True, False)
    ]
    np.testing.assert_allclose(found[0].coef_, found[1].coef_, atol=1e-9)
    sent = [sum(r["bytes_shared"] for r in model.history_) for model in found]
    assert sent[1] < sent[0] - 6 * 2 * 64 * 10 * 8
    model = SFBLogisticRegression(
        communication=Exchange("factors", broadcast=1, averaging=False), refine=True
    )
    with pytest.raises(ValueError, match="refine=True needs ranks with the same"):
        model.set_params(solver="sgd", n_ranks=3).fit(X, y)
    model.set_params(refine="auto", max_iter=3)
    with pytest.warns(ConvergenceWarning):
        assert "dual_gap" not in model.fit(X[:300] / 16, y[:300]).history_[-1]
