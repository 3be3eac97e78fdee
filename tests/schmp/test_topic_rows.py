"""Sparse rows of counts, as the sampler of topics changes them."""

import copy
import tracemalloc

import numpy as np
import pytest
from scipy import sparse

from dask_ma import SchMPLDA
from dask_ma.kernels import FilledCells, KeptArrays, polya_slopes, polya_sum
from dask_ma.schmp import RotationEngine
from dask_ma.schmp.topics._agent import join_results
from dask_ma.schmp.topics._rows import OpenRows, filled


def table(rng, shape=(30, 12)):
    counts = rng.integers(1, 9, shape) * (rng.random(shape) < 0.2)
    return counts.astype(np.int32)


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [range(30)],
        [range(3, 4), range(4, 11), range(20, 30)],
        [[0, 3], [5, 17, 18], [29]],
    ],
)
@pytest.mark.parametrize(
    ("coming", "dtype"), [(200, "u1"), (300, "u2"), (70_000, "u4")]
)
def test_rows_are_changed_where_they_were_taken(runs, coming, dtype):
    rng = np.random.default_rng(0)
    before, after = table(rng), table(rng)
    after[3, 2] += coming
    rows = sparse.csr_array(before)
    expected, opened = before.copy(), OpenRows(rows, KeptArrays(), coming)
    for run in map(np.array, runs):
        taken = opened.take(run)
        assert taken.dtype == dtype
        np.testing.assert_array_equal(taken, before[run])
        taken[:] = expected[run] = after[run]
        opened.put(FilledCells.of(taken))
    opened.close()
    np.testing.assert_array_equal(rows.toarray(), expected)
    rows.check_format()
    assert rows.has_canonical_format
    assert rows.dtype == np.int32
    assert (rows.data != 0).all()


@pytest.mark.parametrize("shape", [(30,), (30, 12)])
def test_likelihood_and_slopes_of_sparse_rows(shape):
    rng = np.random.default_rng(1)
    counts, prior = table(rng), rng.uniform(0.1, 1, shape)
    dense, rows = filled(counts, prior), filled(sparse.csr_array(counts), prior)
    assert polya_sum(*rows) == pytest.approx(polya_sum(*dense))
    found, expected = (
        polya_slopes(np.atleast_2d(own), of_them).sum()
        for own, of_them in (rows, dense)
    )
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("sampler", ["exact", "metropolis"])
def test_ranks_have_no_dense_table_of_many_topics(sampler, monkeypatch):
    """Of 200 words and 1,000 topics at most as many elements as there are tokens."""
    original, seen = RotationEngine.measure, []

    def measure(engine):
        for block in engine._at_home():
            counts = block.values["counts"]
            assert sparse.issparse(counts)
            seen.append((engine.iteration, counts.nnz, int(counts.sum())))
        return original(engine)

    monkeypatch.setattr(RotationEngine, "measure", measure)
    X = np.random.default_rng(2).poisson(0.2, (50, 200)).astype(float)
    model = SchMPLDA(1000, sampler=sampler, max_iter=3, n_ranks=2, random_state=0)
    model.fit(X)
    for rotation in range(1, 5):
        own = [(nnz, total) for number, nnz, total in seen if number == rotation]
        assert sum(total for _, total in own) == X.sum()
        assert all(nnz <= total for nnz, total in own)
    np.testing.assert_allclose(model.components_.sum(), X.sum() + 200, rtol=1e-5)


@pytest.mark.each
@pytest.mark.parametrize("init", ["progressive", "random"])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_exact_draws_are_the_same_on_sparse_rows(init, n_ranks, monkeypatch, few_tiles):
    X = np.random.default_rng(3).poisson(0.5, (200, 60)).astype(float)
    model = SchMPLDA(
        4, sampler="exact", init=init, max_iter=4, n_ranks=n_ranks, random_state=0
    )
    dense = model.set_params(learn_every=2, topic_word_prior="auto").fit(X)
    expected = dense.components_, dense.topic_word_prior_, dense.log_likelihood_
    monkeypatch.setattr("dask_ma.schmp.topics._exact._SPARSE_FROM", 4)
    found = model.fit(X)
    np.testing.assert_array_equal(found.components_, expected[0])
    assert found.topic_word_prior_ == pytest.approx(expected[1], rel=1e-9)
    assert found.log_likelihood_ == pytest.approx(expected[2], rel=1e-9)


@pytest.mark.each
@pytest.mark.parametrize("n_samples", [1, 3])
@pytest.mark.parametrize("prior", [0.1, "auto", "words", "table"])
def test_the_table_of_topics_is_the_only_one(monkeypatch, prior, n_samples):
    rng = np.random.default_rng(3)
    n_topics, n_words = 50, 4000
    if prior == "words":
        prior = rng.uniform(0.1, 1, n_words)
    elif prior == "table":
        prior = rng.uniform(0.1, 1, (n_topics, n_words))
    joined = []

    def join(results, params):
        dense = copy.deepcopy(results)
        for values in (one for each in dense for one in each.fitted["part"].values):
            for name, rows in values.items():
                values[name] = rows.toarray()
        tracemalloc.start()
        found = join_results(results, params)
        joined.append((tracemalloc.get_traced_memory()[1], join_results(dense, params)))
        tracemalloc.stop()
        return found

    monkeypatch.setattr(SchMPLDA, "_join", staticmethod(join))
    model = SchMPLDA(
        n_topics,
        topic_word_prior=prior,
        sampler="metropolis",
        max_iter=4,
        n_ranks=2,
        random_state=0,
        **({"n_samples": 3, "thin": 1} if n_samples > 1 else {}),
    ).fit(sparse.random_array((20, n_words), density=0.01, rng=rng).ceil())
    [(peak, of_dense)] = joined
    np.testing.assert_array_equal(model.components_, of_dense.fitted["components"])
    assert peak < 1.5 * model.components_.nbytes
