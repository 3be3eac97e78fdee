"""A seed, the blocks and their places decide the result, bit for bit."""

import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

from dask_ma import MASGDClassifier, MASGDRegressor

PARAMS = {"max_iter": 3, "tol": None, "random_state": 7, "n_ranks": 4}
CASES = [
    (MASGDClassifier, {"loss": "log_loss"}, "binary"),
    (MASGDClassifier, {"early_stopping": True, "average": True}, "multi"),
    (MASGDRegressor, {"penalty": "elasticnet"}, "regression"),
]


def digest(model):
    """All that must be the same."""
    values = [
        (record["objective"], record.get("validation_score"), record["n_samples"])
        for record in model.history_
    ]
    return model.coef_.tobytes(), model.intercept_.tobytes(), model.t_, values


def fit_all(cases, request):
    models = []
    for cls, params, name in cases:
        X, y = request.getfixturevalue(name)
        models.append(digest(cls(**PARAMS, **params).fit(X, y)))
    return models


def test_threads_and_clusters_agree(
    inproc_client, process_client, wide_client, request
):
    """4 threads here, 4 workers here, 4 processes, and 2 processes of 2 ranks each."""
    here = fit_all(CASES, request)
    # Ways between ranks are all there on the last, and each case is on one more.
    for client, some in (
        (inproc_client, slice(2, 3)),
        (process_client, slice(0, 2)),
        (wide_client, slice(None)),
    ):
        with client.as_current():
            assert fit_all(CASES[some], request) == here[some]


def persisted(client: Client, X, y, workers):
    """Blocks of 30 rows, block i on worker i."""
    blocks = [
        client.scatter([X[a : a + 30], y[a : a + 30]], workers=[worker], hash=False)
        for a, worker in zip(range(0, 120, 30), workers, strict=True)
    ]
    wait([future for pair in blocks for future in pair])
    columns = [
        da.concatenate(
            [
                da.from_delayed(block[i], shape=(30, *like.shape[1:]), dtype=like.dtype)
                for block in blocks
            ]
        )
        for i, like in enumerate((X, y))
    ]
    return client.persist(columns)


def blocks_of(X, y, n_rows):
    """The rows in blocks that are not computed yet."""
    return da.from_array(X, chunks=(n_rows, -1)), da.from_array(y, chunks=n_rows)


def test_blocks_on_workers_agree_with_lazy_ones(cluster, binary):
    X, y = binary
    workers = sorted(cluster.nthreads())
    dX, dy = persisted(cluster, X, y, workers)
    there = digest(MASGDClassifier(**PARAMS).fit(dX, dy))
    # Blocks that are not yet computed go to the ranks in order.
    here = digest(MASGDClassifier(**PARAMS).fit(*blocks_of(X, y, 30)))
    assert there == here


@pytest.mark.parametrize("cls", [MASGDClassifier, MASGDRegressor])
def test_seeds_matter(cls, binary):
    params = {"max_iter": 2, "tol": None, "n_ranks": 2}
    fits = [
        digest(cls(random_state=seed, **params).fit(*binary))
        for seed in (0, 0, 1, None, None)
    ]
    assert fits[0] == fits[1]
    assert len(set(coef for coef, *_ in fits)) == 4


def test_random_state_instance_is_used_up(binary):
    rng = np.random.RandomState(0)
    params = {"max_iter": 2, "tol": None, "n_ranks": 2}
    fits = [
        MASGDClassifier(random_state=rng, **params).fit(*binary).coef_.tolist()
        for _ in range(2)
    ]
    assert fits[0] != fits[1]
    again = np.random.RandomState(0)
    first = MASGDClassifier(random_state=again, **params).fit(*binary)
    assert first.coef_.tolist() == fits[0]


def test_ranks_have_streams_of_their_own():
    """The same rows on two ranks are not shuffled alike."""
    rng = np.random.default_rng(0)
    X = np.tile(rng.normal(size=(50, 3)), (2, 1))
    y = (X[:, 0] > 0).astype(int)
    params = {"max_iter": 1, "tol": None, "random_state": 0}
    # A block for each rank, for rows in memory are dealt out.
    two = MASGDClassifier(n_ranks=2, **params).fit(*blocks_of(X, y, 50))
    one = MASGDClassifier(n_ranks=1, **params).fit(X[:50], y[:50])
    assert not np.allclose(two.coef_, one.coef_)
