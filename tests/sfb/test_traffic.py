"""Bytes that the groups count, against the formulas of the cost model."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.sfb import run
from dask_ma.sfb.exchange._cost import Update, full_matrix_bytes, iteration_bytes

N_ITERATIONS = 4
HEADER = 5 * 8  # bytes for each packet
J, D, K = 3, 7, 2


def make_equal_shards(make_shards, X):
    """Ranks whose batches all have K rows."""
    shards = make_shards(5, X, np.zeros(X.shape[0], dtype=int))
    blocks = [block for shard in shards for block in shard.blocks]
    for number, shard in enumerate(shards):
        rows = X[4 * number : 4 * number + 4]
        shard.blocks = [blocks[0]._replace(X=rows, y=np.zeros(4, dtype=int))]
    return shards


def measure(run_engines, make_model, shards, **settings):
    """Bytes and messages of all ranks in a pass of two iterations, times two."""

    counts = []
    for n_passes in (0, N_ITERATIONS // 2):
        engines = run_engines(
            make_model(), shards, n_passes, per_node=1, batch_size=K, **settings
        )
        counters = [engine._context.group.counters for engine in engines]
        counts.append(
            np.array([[c.bytes_sent, c.messages_sent] for c in counters]).sum(axis=0)
        )
    return counts[1] - counts[0]


@pytest.mark.pairs
@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("wire_dtype", [None, "float32"])
@pytest.mark.parametrize(
    ("settings", "cost"),
    [
        ({}, {}),
        ({"staleness": 2}, {}),
        ({"broadcast": 2, "relay": False}, {"n_peers": 2}),
        ({"broadcast": 2}, {"n_peers": 2, "relayed": True}),
        ({"broadcast": 1}, {"n_peers": 1, "relayed": True}),
    ],
    ids=str,
)
def test_factors(
    run_engines, make_model, make_shards, configured, kind, wire_dtype, settings, cost
):
    # Each row has two elements, so that all messages have the same size.
    X = np.zeros((20, D))
    X[np.arange(20)[:, np.newaxis], [[i % D, (i + 2) % D] for i in range(20)]] = 1.5
    X = sparse.csr_array(X) if kind == "csr" else X
    shards = make_equal_shards(make_shards, X)
    with configured({"dask-ma.comm.message-overhead": 0}):
        n_bytes, n_messages = measure(
            run_engines, make_model, shards, wire_dtype=wire_dtype, **settings
        )
    update = Update(
        n_pairs=K,
        n_outputs=J,
        n_features=D,
        entries_per_row=2 if kind == "csr" else D,
        is_sparse=kind == "csr",
        itemsize=4 if wire_dtype else 8,
    )
    expected = iteration_bytes(update.message_bytes, 5, **cost)
    headers = iteration_bytes(HEADER, 5, **cost)
    # Unless all ranks do the same, they take means at the end of the two passes.
    means = 2 * 2 * 4 if settings else 0
    assert n_bytes == N_ITERATIONS * (expected + headers) + means * J * D * 8
    # One for each link and iteration; relays need some more after a pass.
    links = 5 * cost.get("n_peers", 4)
    hops = {1: 3, 2: 1}[cost["n_peers"]] if "relayed" in cost else 0
    assert n_messages == links * (N_ITERATIONS + 2 * hops) + 5 * means


@pytest.mark.parametrize("content", ["full_matrix", "server"])
@pytest.mark.parametrize("wire_dtype", [None, "float32"])
def test_whole_matrices(
    run_engines, make_model, make_shards, rows, configured, content, wire_dtype
):
    shards = make_equal_shards(make_shards, rows.X[:20])
    with configured({"dask-ma.comm.message-overhead": 0}):
        n_bytes, _ = measure(
            run_engines,
            make_model,
            shards,
            content=content,
            wire_dtype=wire_dtype,
        )
    # The intercepts have a row of their own.
    expected = full_matrix_bytes(5, J, D + 1, 4 if wire_dtype else 8)
    assert n_bytes == N_ITERATIONS * expected


def test_the_history_counts_the_same(rows, make_model):
    options = {"n_passes": 3, "batch_size": 2, "communication": "factors", "n_ranks": 4}
    options |= {"random_state": 0, "dtype": "float64"}
    result = run(make_model(), rows.X[:20], rows.y[:20], **options)
    # Ranks have 5 rows for 3 iterations, which makes 5 pairs of each in a pass.
    pairs = Update(n_pairs=5, n_outputs=J, n_features=D, entries_per_row=D)
    expected = iteration_bytes(pairs.message_bytes + 3 * HEADER, 4)
    for record in result.history:
        assert record["bytes_sent"] == 0
        # What is left are the reports.
        assert expected <= record["bytes_shared"] <= expected + 2000
