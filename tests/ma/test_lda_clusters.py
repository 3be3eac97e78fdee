"""A seed, the blocks and the number of ranks decide the topics, bit for bit."""

import dask
import dask.array as da
import numpy as np
import pytest
from lda_parameters import acting
from scipy import sparse

from dask_ma import MALDA
from dask_ma.comm import LocalGroup
from dask_ma.ma import Gradients, Models

# Most corpora here are small, and nothing depends on their size.
pytestmark = pytest.mark.filterwarnings("ignore:partial_fit has taken")

N, V, K = 40, 10, 3
PARAMS = {
    "n_components": K,
    "max_iter": 2,
    "batch_size": 20,
    "local_batch_size": 5,
    "max_doc_update_iter": 5,  # most of the time is theirs
    "evaluate_every": 1,
    "perp_tol": 0.0,
    "random_state": 7,
}
CASES = [
    {"n_ranks": 3, "doc_topic_prior": "auto", "dtype": "float64"},
    {"n_ranks": 4, "paradigm": "gradient", "doc_topic_prior": "auto"},
    {"n_ranks": 4, "learning_method": "batch"},
    {"n_ranks": 4, "mixing": "butterfly"},
    {"n_ranks": 5, "mixing": "butterfly", "doc_topic_prior": "auto"},
]
AGGREGATIONS = ["allreduce", "tree", "driver"]


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return rng.poisson(rng.gamma(0.5, 2.0, (N, V))).astype(float)


def digest(model):
    """All that must be the same."""
    records = [
        (r["round"], r["n_iter"], r["n_samples"], repr(r["perplexity"]))
        for r in model.history_
    ]
    prior = np.asarray(model.doc_topic_prior_).tobytes()
    return model.components_.tobytes(), prior, model.bound_, records


def fit_all(X, cases):
    return [digest(MALDA(**acting(**PARAMS, **case)).fit(X)) for case in cases]


def test_threads_and_clusters_agree(inproc_client, process_client, wide_client, X):
    """Threads here, 4 workers here, 4 processes, and 2 processes of several ranks."""
    here = fit_all(X, CASES)
    # Ways between ranks are all there on the last, and each case is on one more.
    for client, some in (
        (inproc_client, slice(0, None, 2)),
        (process_client, slice(1, None, 2)),
        (wide_client, slice(None)),
    ):
        with client.as_current():
            assert fit_all(X, CASES[some]) == here[some]


@pytest.mark.each
@pytest.mark.parametrize("paradigm", [Models, Gradients])
@pytest.mark.parametrize("n_ranks", [1, 2, 5])
def test_aggregations_agree_bit_for_bit(X, paradigm, n_ranks):
    params = {"n_ranks": n_ranks, "doc_topic_prior": "auto"}
    cases = [{"paradigm": paradigm(aggregation=a), **params} for a in AGGREGATIONS]
    one, *others = fit_all(X, cases)
    assert others == [one, one]


def test_aggregations_agree_on_a_cluster(X, wide_client):
    cases = [{"paradigm": Models(a), "n_ranks": 5} for a in AGGREGATIONS]
    here = fit_all(X, cases)
    with wide_client.as_current():
        assert fit_all(X, cases) == here


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_dask_input_agrees_with_memory(X, convert, inproc_client):
    lazy = da.from_array(X, chunks=(10, V)).map_blocks(convert)
    case = [{"n_ranks": 4}]  # one for each block
    here = fit_all(X, case)
    assert fit_all(lazy, case) == here
    with inproc_client.as_current():
        assert fit_all(lazy, case) == here


@pytest.mark.parametrize("mixing", ["allreduce", "butterfly"])
def test_partial_fit_agrees(X, mixing, process_client):
    def stream():
        model = MALDA(**PARAMS, n_ranks=4, mixing=mixing, doc_topic_prior="auto")
        for part in (X[:15], X[15:]):
            model.partial_fit(part)
        return digest(model)

    here = stream()
    with process_client.as_current():
        assert stream() == here


def test_seeds_matter(X):
    params = {**PARAMS, "n_ranks": 2}
    fits = [
        digest(MALDA(**{**params, "random_state": seed}).fit(X))
        for seed in (0, 0, 1, None, None)
    ]
    assert fits[0] == fits[1]
    assert len({components for components, *_ in fits}) == 4


def test_the_seed_orders_the_documents(X):
    """With given topics it is all that is left of it; of batches it is nothing."""
    params = {**PARAMS, "components_init": np.ones((K, V)) + np.eye(K, V)}

    def components(seed, **more):
        model = MALDA(**acting(**{**params, "random_state": seed, **more})).fit(X)
        return model.components_.tolist()

    assert components(0) != components(1)
    batch = {"learning_method": "batch", "dtype": "float64"}
    np.testing.assert_allclose(components(0, **batch), components(1, **batch), 1e-12)


def test_ranks_and_passes_have_orders_of_their_own(X):
    """Ranks that have the same documents go different ways, as passes do."""
    params = {**PARAMS, "max_iter": 1, "dtype": "float64", "batch_size": 2 * N}
    start = {"components_init": np.ones((K, V)) + np.eye(K, V)}
    one = MALDA(**params, **start).fit(X)
    two = MALDA(**params, **start, n_ranks=2).fit(np.tile(X, (2, 1)))
    rescaled = (two.components_ - 1 / K) / (one.components_ - 1 / K)
    assert rescaled.std() > 1e-3
    state = np.random.RandomState(0)
    again = MALDA(**{**params, "random_state": state}, **start)
    assert again.fit(X).components_.tolist() != again.fit(X).components_.tolist()


# What is sent -------------------------------------------------------------------------


# Topics to begin with, so that no documents are sent for them.
GIVEN = {"components_init": np.random.default_rng(1).gamma(100, 0.01, (K, 4000))}


@pytest.fixture
def apart(monkeypatch):
    """Ranks on threads send bytes to each other, as those of processes do."""
    create = LocalGroup.create
    monkeypatch.setattr(LocalGroup, "create", lambda n_ranks: create(n_ranks, 1))


def wide_rows(density):
    """24 documents, 4000 words."""
    rng = np.random.default_rng(0)
    return sparse.random_array((24, 4000), density=density, format="csr", rng=rng)


@pytest.mark.parametrize(
    ("params", "models"),
    [
        # Each of 4 ranks sends 3/4 of the topics twice.
        ({}, 6),
        ({"dtype": "float64"}, 6),
        ({"paradigm": "gradient"}, 6),
        ({"learning_method": "batch"}, 6),
        ({"paradigm": Models("tree")}, 6),
        ({"paradigm": Models("driver")}, 6),
        # Each of 4 ranks sends all of them once; in the last round all are averaged.
        ({"mixing": "butterfly"}, 4),
    ],
    ids=str,
)
def test_bytes_of_a_round(params, models, request, configured):
    """Of which most words are part; ranks apart in one process count as others do."""
    client = None
    if params:
        request.getfixturevalue("apart")
    else:
        client = request.getfixturevalue("processes")
    averages = "mixing" not in params and params.get("paradigm") != "gradient"
    averages = averages and "learning_method" not in params
    params = {"max_iter": 2, "batch_size": 8, "n_ranks": 4, **GIVEN, **params}
    params["max_doc_update_iter"] = 5
    with configured({"dask-ma.comm.message-overhead": 0}, client):
        model = MALDA(K, **acting(**params)).fit(wide_rows(0.5))
    itemsize = model.components_.itemsize
    size = K * 4000 * itemsize
    # Which words the ranks have updated is told by a byte for each.
    flags = 6 / K / itemsize if averages else 0
    sent = [record["bytes_sent"] / size for record in model.history_]
    n_rounds = 1 if "learning_method" in params else 3
    assert len(sent) == 2 * n_rounds
    for i, value in enumerate(sent):
        is_last = i % n_rounds == n_rounds - 1
        expected = flags + (6 if is_last else models)
        assert value == pytest.approx(expected, rel=0.03)
    assert all(record["messages_sent"] > 0 for record in model.history_)


@pytest.mark.parametrize("aggregation", ["allreduce", "tree", "driver"])
def test_words_of_a_round_are_all_that_is_sent(aggregation, apart, configured):
    params = {"max_iter": 2, "batch_size": 8, **GIVEN, "paradigm": Models(aggregation)}
    params["n_ranks"] = 4
    with configured({"dask-ma.comm.message-overhead": 0}):
        model = MALDA(K, **acting(**params)).fit(wide_rows(0.01))
    most = 8 * 40 * K * model.components_.itemsize  # 40 words in a document
    for record in model.history_:
        assert 6 * 4000 < record["bytes_sent"] < 6 * (4000 + most) + 10_000


def test_fewer_rounds_send_less(apart):
    sent = {}
    for batch_size in (6, 24):
        model = MALDA(K, max_iter=1, batch_size=batch_size, n_ranks=4, **GIVEN)
        model.fit(wide_rows(0.5))
        sent[batch_size] = sum(record["bytes_sent"] for record in model.history_)
    assert sent[6] == pytest.approx(4 * sent[24], rel=0.03)


def test_topics_come_to_the_client_once(cluster, monkeypatch):
    """And the documents do not come at all."""
    import distributed
    from dask.sizeof import sizeof

    sizes = []
    original = distributed.Client._gather

    async def gather(self, futures, *args, **kwargs):
        result = await original(self, futures, *args, **kwargs)
        sizes.append(sizeof(result))
        return result

    monkeypatch.setattr(distributed.Client, "_gather", gather)
    lazy = da.ones((40, 10_000), chunks=(10, -1))
    # Each round adds to the history and to the timeline, which come, too.
    MALDA(K, max_iter=2, batch_size=20).fit(lazy)
    assert K * 10_000 * 4 < sum(sizes) < 2 * K * 10_000 * 4


def test_no_large_graph_for_a_large_model(cluster):
    """The warning, an error here, comes from 1 MB on; this one has 1.2 MB."""
    n_features = 50_000
    X = sparse.random(4, n_features, 1e-5, "csr", random_state=0)
    model = MALDA(K, max_iter=1, n_ranks=1, dtype="float64").fit(X)
    lazy = da.ones((4, 1), chunks=(2, 1)).map_blocks(
        lambda block: sparse.csr_array((len(block), n_features)),
        chunks=((2, 2), (n_features,)),
        meta=sparse.csr_array((0, 0)),
    )
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1MB"}):
        shares = model.transform(lazy).compute()
    np.testing.assert_allclose(shares, 1 / K, rtol=1e-6)
