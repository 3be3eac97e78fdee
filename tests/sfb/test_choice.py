"""The choice between factors, matrices and outputs by a cost model."""

import dask
import numpy as np
import pytest
from scipy import sparse

from dask_ma.data import Block, Shard
from dask_ma.sfb import FactorModel
from dask_ma.sfb.exchange._choice import Iteration, choose_communication
from dask_ma.sfb.exchange._settings import Exchange, RunSettings
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.prox import NoPenalty

WAYS = ("factors", "full_matrix", "outputs")


class Shared(FactorModel):
    """What has two sums for each pair, and is not asked for factors."""

    def initial_matrix(self, n_features):
        raise NotImplementedError

    def factors(self, matrix, batch):
        raise NotImplementedError

    def share_sums(self, values):
        return values[:, :2]


def make_iteration(n_outputs, n_features, n_pairs, n_entries=None, **others):
    sizes = {"itemsize": 4, "n_ranks": 2, "n_nodes": 1, "n_exchanges": 0}
    return Iteration(
        n_pairs=n_pairs,
        n_entries=n_entries or n_features,
        is_sparse=n_entries is not None,
        shape=(n_outputs, n_features),
        **{**sizes, "link_bandwidth": 640e6, **others},
    )


def quickest(iteration):
    seconds = (
        iteration.seconds_of_factors(),
        iteration.seconds_of_matrices(),
        iteration.seconds_of_outputs(2),
    )
    return WAYS[seconds.index(min(seconds))]


@pytest.mark.parametrize(
    ("sizes", "n_nodes", "expected"),
    [
        # Against the clock, on two ranks: milliseconds of the three ways.
        ((10, 50, 2000), 1, "full_matrix"),  # 0.6, 0.2, 0.4
        ((10, 784, 1000), 2, "full_matrix"),  # 6.6, 1.5, 6.6
        ((10, 784, 64), 2, "full_matrix"),  # 2.6, 0.5, 2.8
        ((20, 30_000, 64, 80), 2, "factors"),  # 1.1, 16, 2.5
        ((2, 37_000, 64, 130), 2, "factors"),  # 1.5, 2.8, 2.6
        ((150, 5000, 1000, 8), 1, "outputs"),  # 1.8, 5.2, 0.8
        ((1000, 50_000, 64, 40), 1, "outputs"),  # 5.9, 191, 2.6
        ((1000, 50_000, 512, 40), 2, "outputs"),  # 86, 760, 25
    ],
)
def test_what_the_clock_has_said(sizes, n_nodes, expected):
    assert quickest(make_iteration(*sizes, n_nodes=n_nodes)) == expected


def test_slower_links_are_for_what_sends_less():
    """They do not matter within a process."""
    slow = make_iteration(300, 2000, 20, n_nodes=2, link_bandwidth=1e6)
    assert slow.seconds_of_factors() < slow.seconds_of_matrices() / 5
    slow = make_iteration(10, 784, 1000, n_nodes=2, link_bandwidth=1e6)
    assert slow.seconds_of_matrices() < slow.seconds_of_factors() / 5
    near = slow._replace(n_nodes=1)
    faster = near._replace(link_bandwidth=1e9)
    assert near.seconds_of_factors() == faster.seconds_of_factors()
    assert near.seconds_of_matrices() == faster.seconds_of_matrices()
    assert near.seconds_of_outputs(2) == faster.seconds_of_outputs(2)


def test_more_of_anything_takes_longer():
    plain = make_iteration(30, 2000, 100, 20, n_nodes=2)
    for name, larger in [
        ("n_pairs", 200),
        ("n_entries", 40),
        ("shape", (60, 2000)),
        ("itemsize", 8),
        ("n_ranks", 3),
        ("link_bandwidth", 1e8),
    ]:
        other = plain._replace(**{name: larger})
        assert other.seconds_of_factors() > plain.seconds_of_factors()
        assert other.seconds_of_matrices() > plain.seconds_of_matrices()
        assert other.seconds_of_outputs(2) > plain.seconds_of_outputs(2)
    found_together = plain._replace(n_exchanges=2)
    assert found_together.seconds_of_factors() > plain.seconds_of_factors()
    assert found_together.seconds_of_matrices() > plain.seconds_of_matrices()
    assert found_together.seconds_of_outputs(2) == plain.seconds_of_outputs(2)
    assert plain.seconds_of_outputs(30) > plain.seconds_of_outputs(2)


def make_shard(X):
    block = Block(X, np.zeros(X.shape[0], dtype=int), None, 0, 0)
    return Shard([block] if X.shape[0] else [], X.shape[1], X.dtype)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_ranks_agree_though_their_rows_do_not(run_ranks, kind):
    """By the mean of all rows; one rank has none, and one dense rank is enough."""
    rng = np.random.default_rng(0)
    wide = rng.random((30, 3000)) * (rng.random((30, 3000)) < 0.01)

    def program(group):
        X = sparse.csr_array(wide) if group.rank == 1 else kind(wide)
        X = X[: 30 * (group.rank > 0)]
        matrix = ParameterMatrix(np.zeros((90, 3000)), np.ones(90), NoPenalty())
        place = group, make_shard(X), matrix, 300, Shared(), 640e6
        before = group.counters.messages_sent
        found = [choose_communication(*place, can_share=can) for can in (True, False)]
        # Two numbers twice: no way is gone.
        assert group.counters.messages_sent - before <= 2 * 2 * 2 * 2
        return found

    are_dense = kind is np.asarray
    expected = ["full_matrix"] * 2 if are_dense else ["outputs", "factors"]
    assert run_ranks(program, 3, 1) == [expected] * 3


def test_an_iteration_is_that_of_the_run(run_ranks, monkeypatch):
    """A matrix with columns of its own does not tell what factors will be."""
    seen = []
    monkeypatch.setattr(
        Iteration, "seconds_of_factors", lambda self: seen.append(self) or 0.0
    )

    class Asking(Shared):
        n_exchanges = 3

    def program(group):
        matrix = ParameterMatrix(np.zeros((7, 9)), np.ones(7), NoPenalty())
        shard = make_shard(sparse.csr_array(np.eye(6)))
        place = group, shard, matrix, 5, Asking(), 2e6
        return choose_communication(*place, can_share=False)

    assert run_ranks(program, 4, 2) == ["factors"] * 4
    sizes = {"itemsize": 8, "n_ranks": 4, "n_nodes": 2, "n_exchanges": 3}
    expected = make_iteration(7, 9, 5, **sizes, link_bandwidth=2e6)
    assert seen == [expected] * 4


def test_sums_of_pairs_of_rows(run_ranks):
    """Such a model is asked for as many rows as a batch has."""

    class Paired(Shared):
        def share_sums(self, values):
            return np.repeat(values.reshape(-1, 2, values.shape[1])[:, 0], 2, axis=0)

    def program(group):
        matrix = ParameterMatrix(np.zeros((90, 30)), np.ones(90), NoPenalty())
        place = group, make_shard(np.ones((20, 30))), matrix, 10, Paired(), 640e6
        return choose_communication(*place, can_share=True)

    assert run_ranks(program, 2) == ["factors"] * 2


def test_bandwidth_is_that_of_the_configuration():
    with dask.config.set({"dask-ma.comm.link-bandwidth": "3 MB"}):
        assert RunSettings(exchange=Exchange()).link_bandwidth == 3e6
