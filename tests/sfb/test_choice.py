"""The choice between factors and matrices: what is timed, and who decides."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.comm import LocalGroup
from dask_ma.data import Block, Shard
from dask_ma.sfb import FactorModel
from dask_ma.sfb.exchange import _choice
from dask_ma.sfb.exchange._choice import choose_communication, iterations
from dask_ma.sfb.exchange._settings import Exchange, RunSettings
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.prox import NoPenalty

SETTINGS = RunSettings(exchange=Exchange(), batch_size=5)


def make_shard(X):
    block = Block(X, np.zeros(X.shape[0], dtype=int), None, 0, 0)
    return Shard([block], X.shape[1], X.dtype)


def make_matrix(n_features):
    start = np.random.default_rng(0).normal(size=(3, n_features))
    return ParameterMatrix(start, np.ones(3), NoPenalty())


def choose(group, shard, matrix):
    model = Zeros()
    return choose_communication(group, shard, matrix, SETTINGS, model, can_share=False)


class Zeros(FactorModel):
    """What is not asked for factors."""

    def initial_matrix(self, n_features):
        raise NotImplementedError

    def factors(self, matrix, batch):
        raise NotImplementedError


@pytest.mark.parametrize("n_exchanges", [0, 2])
@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_probes_send_what_iterations_send_and_change_nothing(
    run_ranks, kind, n_exchanges
):
    X = np.random.default_rng(1).normal(size=(20, 40))
    X = sparse.csr_array(X * (abs(X) > 1)) if kind == "csr" else X

    def program(group):
        matrix = make_matrix(40)
        before = np.array(matrix)
        sent = {}
        shard = make_shard(X)
        ways = iterations(group, shard, matrix, SETTINGS, n_exchanges)
        for name, way in ways.items():
            start = group.counters.bytes_sent
            way()
            sent[name] = group.counters.bytes_sent - start
        np.testing.assert_array_equal(matrix, before)
        np.testing.assert_array_equal(matrix.intercept, np.ones(3))
        return sent

    v = X[:5]
    n_bytes = 5 * 3 * 8 + (v.size * 8 if kind == "dense" else v.nnz * 12 + 6 * 4)
    for sent in run_ranks(program, 3, 1):
        among = n_exchanges * 2 * 5 * 3 * 8
        if not n_exchanges:
            assert sent["factors"] == 2 * (n_bytes + 5 * 8)
        assert sent["factors"] >= 2 * (n_bytes + 5 * 8) + among
        assert sent["full_matrix"] >= 2 * 2 / 3 * 3 * 41 * 8 + among


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        # Of each rank, for factors and for matrices: the slowest rank counts.
        ([(1, 2), (1, 2), (1, 2)], "factors"),
        ([(1, 2), (9, 2), (1, 2)], "full_matrix"),
        ([(1, 3), (2, 9), (1, 3)], "factors"),
        ([(2, 2), (2, 2), (2, 2)], "factors"),
    ],
)
def test_all_ranks_take_what_is_faster_for_the_slowest(
    run_ranks, monkeypatch, seconds, expected
):
    own = {}

    def fake(group, way):
        way()
        return float(seconds[group.rank][own.setdefault(group.rank, [0, 1]).pop(0)])

    monkeypatch.setattr(_choice, "fastest", fake)

    def program(group):
        shard = make_shard(np.ones((4, 6)))
        return choose(group, shard, make_matrix(6))

    assert run_ranks(program, 3) == [expected] * 3


def test_the_first_call_does_not_count_and_the_fastest_does(monkeypatch):
    [group] = LocalGroup.create(1)
    left, now = [9.0, 0.5, 0.2, 0.4], [0.0]
    monkeypatch.setattr(_choice, "perf_counter", lambda: now[0])

    def way():
        now[0] += left.pop(0)

    assert _choice.fastest(group, way) == pytest.approx(0.2)
    assert not left


def test_a_rank_without_rows(run_ranks):
    def program(group):
        X = np.ones((30, 400)) if group.rank else np.ones((0, 400))
        return choose(group, make_shard(X), make_matrix(400))

    assert len(set(run_ranks(program, 3))) == 1


@pytest.mark.parametrize(
    ("n_features", "kind", "expected"),
    [
        (3000, sparse.csr_array, True),
        (3000, np.asarray, False),
        (40, sparse.csr_array, False),
    ],
)
@pytest.mark.parametrize("n_ranks", [2, 3])
def test_matrices_that_are_far_too_large_are_not_sent(
    run_ranks, n_features, kind, expected, n_ranks
):
    """To rows of few elements, not even to see how long it takes."""
    X = np.zeros((20, n_features))
    X[:, :4] = 1

    def program(group):
        own = kind(X[: 20 * (group.rank > 0)])  # one may have no rows
        before = group.counters.bytes_sent
        found = choose(group, make_shard(own), make_matrix(n_features))
        return found, group.counters.bytes_sent - before

    for found, sent in run_ranks(program, n_ranks, 1):
        # A probe sends most of a matrix from each rank.
        assert (sent < 3 * n_features * 8) == expected
        assert found == "factors" or not expected
