"""Every accepted kind of counts, lazy results, and documents without words."""

import pickle
from contextlib import nullcontext

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sparse
from lda_parameters import acting
from scipy import sparse as sp

from dask_ma import MALDA

N, V, K = 48, 10, 3
PARAMS = {
    "n_components": K,
    "max_iter": 2,
    "batch_size": 24,
    "local_batch_size": 3,
    "max_doc_update_iter": 5,  # most of the time is theirs
    "random_state": 0,
    "n_ranks": 4,
}
WORDS = [f"word{i}" for i in range(V)]


@pytest.fixture(scope="module")
def X():
    """48 documents of some of 10 words, three of them empty."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(0.4, 2.0, (N, V))).astype(float)
    counts[[0, 13, 47]] = 0
    return counts


@pytest.fixture(scope="module")
def model(X):
    return MALDA(**PARAMS).fit(X)


def blocks(X, chunks=12):
    return da.from_array(X, chunks=(chunks, -1))


def unknown(X):
    """Blocks of lengths that only a computation can tell."""
    keys = blocks(X).to_delayed().ravel()
    parts = [da.from_delayed(key, (np.nan, V), X.dtype) for key in keys]
    return da.concatenate(parts, allow_unknown_chunksizes=True)


def frame(X):
    return pd.DataFrame(X, columns=WORDS)


IN_MEMORY = {
    "list": np.ndarray.tolist,
    "fortran": np.asfortranarray,
    "frame": frame,
    "csr_matrix": sp.csr_matrix,
    "csc_matrix": sp.csc_matrix,
    "coo_array": sp.coo_array,
}
ON_DASK = {
    "numpy": blocks,
    "unknown": unknown,
    "csr_matrix": lambda X: blocks(X).map_blocks(sp.csr_matrix),
    "csr_array": lambda X: blocks(X).map_blocks(sp.csr_array),
    "csc_matrix": lambda X: blocks(X).map_blocks(sp.csc_matrix),
    "COO": lambda X: blocks(X).map_blocks(sparse.COO),
    "frame": lambda X: dd.from_pandas(frame(X), npartitions=4),
}


def assert_same(one, other):
    np.testing.assert_array_equal(one.components_, other.components_)
    assert one.bound_ == other.bound_


@pytest.mark.parametrize("kind", sorted(IN_MEMORY))
def test_memory(X, model, kind):
    counts = IN_MEMORY[kind](X)
    fitted = MALDA(**PARAMS).fit(counts)
    assert_same(fitted, model)
    np.testing.assert_array_equal(fitted.transform(counts), model.transform(X))
    assert fitted.score(counts) == model.score(X)


@pytest.mark.each
@pytest.mark.parametrize("place", ["here", "cluster"])
@pytest.mark.parametrize("kind", sorted(ON_DASK))
def test_dask(X, model, kind, place, inproc_client):
    lazy = ON_DASK[kind](X)
    with nullcontext() if place == "here" else inproc_client.as_current():
        fitted = MALDA(**PARAMS).fit(lazy)
    assert_same(fitted, model)
    assert fitted.n_features_in_ == V


@pytest.mark.each
@pytest.mark.parametrize("kind", ["memory", "numpy", "csr_array"])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, bool])
def test_types_of_counts(X, model, dtype, kind):
    counts = X.astype(dtype)
    values = counts if kind == "memory" else ON_DASK[kind](counts)
    X = counts.astype(float)
    expected = MALDA(**PARAMS).fit(X) if dtype is bool else model
    assert_same(MALDA(**PARAMS).fit(values), expected)
    assert expected.transform(values).dtype == np.float32
    np.testing.assert_allclose(
        np.asarray(expected.transform(values)), expected.transform(X), rtol=1e-4
    )


def test_names_of_words(X):
    for counts in (frame(X), dd.from_pandas(frame(X), npartitions=3)):
        fitted = MALDA(**PARAMS).fit(counts)
        assert fitted.feature_names_in_.tolist() == WORDS
        with pytest.raises(ValueError, match="feature names should match"):
            fitted.transform(counts.rename(columns={"word3": "other"}))


# Shapes of the blocks -----------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize(
    "chunks",
    [(48,), (12, 0, 24, 12), (0, 0, 48), tuple([1] * 48)],
    ids=lambda chunks: f"{len(chunks)} blocks",
)
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_blocks_of_any_length(X, model, chunks, convert, cluster):
    """The plan gives each rank the same documents whatever the blocks are."""
    lazy = da.from_array(X, chunks=(chunks, -1)).map_blocks(convert)
    fitted = MALDA(**PARAMS).fit(lazy)
    np.testing.assert_allclose(fitted.components_, model.components_, rtol=1e-4)
    np.testing.assert_allclose(
        np.asarray(fitted.transform(lazy)), model.transform(X), rtol=1e-3, atol=1e-5
    )


@pytest.mark.each
@pytest.mark.parametrize("n_documents", [1, 2, 3])
@pytest.mark.parametrize(
    "params",
    [{}, {"mixing": "butterfly"}, {"paradigm": "gradient", "doc_topic_prior": "auto"}],
    ids=["model", "butterfly", "gradient"],
)
def test_ranks_without_documents(X, n_documents, params, cluster):
    few = X[1 : 1 + n_documents]
    for counts in (few, blocks(few, 1), unknown(few)):
        fitted = MALDA(**acting(**{**PARAMS, **params})).fit(counts)
        assert np.isfinite(fitted.bound_)
        assert [record["n_samples"] for record in fitted.history_] == [n_documents] * 2
    assert np.isfinite(fitted.components_).all()
    assert (fitted.components_ > 0).all()


def test_ranks_whose_documents_are_all_empty(X):
    counts = np.vstack([np.zeros((12, V)), X[12:]])
    fitted = MALDA(**PARAMS).fit(counts)
    assert np.isfinite(fitted.bound_)
    assert fitted.history_[-1]["n_samples"] == 24


EMPTY = {
    "rows of a CSR": sp.csr_array,
    "rows of zeros that are stored": lambda X: _stored_zeros(X),
    "blocks": lambda X: blocks(X).map_blocks(sp.csr_array),
    "blocks of unknown length": unknown,
}


def _stored_zeros(X):
    counts = sp.csr_array(X + 1)
    counts.data -= 1
    return counts


@pytest.mark.each
@pytest.mark.parametrize("kind", sorted(EMPTY))
@pytest.mark.parametrize("params", [{}, {"learning_method": "batch"}], ids=str)
def test_documents_without_words_change_nothing(X, kind, params):
    """But the number of documents: a quarter of the rows, one whole block of them."""
    counts = X.copy()
    counts[12:24] = 0
    params = {**PARAMS, **params, "n_ranks": 1, "batch_size": N, "local_batch_size": N}
    params["learning_decay"] = 0.0  # the topics are those of the last step
    # Which documents the first topics have depends on how many there are.
    params["components_init"] = np.random.default_rng(1).gamma(100, 0.01, (K, V))
    params = acting(**params)
    fitted = MALDA(**params).fit(EMPTY[kind](counts))
    kept = counts[counts.sum(axis=1) > 0]
    expected = MALDA(**params).fit(kept)
    assert len(kept) < 36
    np.testing.assert_allclose(fitted.components_, expected.components_, rtol=1e-3)
    for method in ("bound", "completion"):
        value = fitted.perplexity(EMPTY[kind](counts), method=method)
        assert value == pytest.approx(fitted.perplexity(kept, method=method), rel=1e-5)
    assert fitted.bound_ == pytest.approx(fitted.perplexity(kept), rel=1e-5)
    rows = fitted.transform(EMPTY[kind](counts))
    np.testing.assert_allclose(np.asarray(rows)[12:24], 1 / K, rtol=1e-6)


@pytest.mark.parametrize("prior", [None, 0.3, np.array([0.2, 1.0, 2.0])], ids=str)
def test_documents_without_words_get_the_prior(X, prior):
    fitted = MALDA(**{**PARAMS, "doc_topic_prior": prior}).fit(X)
    shares = np.broadcast_to(fitted.doc_topic_prior_, K)
    empty = fitted.transform(np.zeros((2, V)))
    np.testing.assert_allclose(empty, [shares / shares.sum()] * 2, rtol=1e-6)
    np.testing.assert_allclose(fitted.transform(X)[[0, 13]], empty, rtol=1e-6)
    np.testing.assert_allclose(fitted.transform(X).sum(axis=1), 1, rtol=1e-6)
    rows = fitted.transform(X, normalize=False)
    np.testing.assert_allclose(rows[[0, 13]], [shares] * 2, rtol=1e-6)


def test_a_document_does_not_depend_on_its_neighbours(X, model):
    whole = model.transform(X)
    for i in (0, 1, 30):
        np.testing.assert_allclose(model.transform(X[[i]])[0], whole[i], rtol=1e-5)
    np.testing.assert_allclose(model.transform(X[::-1]), whole[::-1], rtol=1e-5)


# Lazy results -------------------------------------------------------------------------

CHUNKS = (20, 0, 23, 5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("normalize", [True, False])
def test_lazy_transform(X, dtype, normalize, monkeypatch):
    fitted = MALDA(**{**PARAMS, "dtype": dtype}).fit(X)

    def refuse(*args, **kwargs):
        raise AssertionError("something was computed")

    with monkeypatch.context() as patch:
        patch.setattr(dask, "compute", refuse)
        patch.setattr(dask.base.DaskMethodsMixin, "compute", refuse)
        result = fitted.transform(blocks(X, CHUNKS), normalize=normalize)
        with pytest.raises(AssertionError, match="something was computed"):
            result.compute()
    assert isinstance(result, da.Array)
    assert result.shape == (N, K)
    assert result.chunks == (CHUNKS, (K,))
    assert result.dtype == dtype
    assert isinstance(result._meta, np.ndarray)
    expected = fitted.transform(X, normalize=normalize)
    assert expected.dtype == dtype
    da.utils.assert_eq(result, expected, rtol=1e-4)


def test_transform_of_unknown_length(X, model):
    result = model.transform(unknown(X))
    assert np.isnan(result.shape[0])
    assert result.shape[1] == K
    np.testing.assert_allclose(result.compute(), model.transform(X), rtol=1e-4)


@pytest.mark.parametrize("kind", ["numpy", "unknown", "csr_array", "frame"])
def test_lazy_evaluations(X, kind, inproc_client):
    lazy = ON_DASK[kind](X)
    X = frame(X) if kind == "frame" else X
    fitted = MALDA(**{**PARAMS, "total_samples": 90, "n_ranks": 1}).fit(X)
    methods = [
        fitted.score,
        fitted.perplexity,
        lambda X: fitted.perplexity(X, sub_sampling=True),
        lambda X: fitted.perplexity(X, method="completion"),
        fitted.log_likelihood,
    ]
    for method in methods:
        value = method(lazy)
        assert isinstance(value, float)
        assert value == pytest.approx(method(X), rel=1e-5)
        if kind == "numpy" or method == fitted.score:
            with inproc_client.as_current():
                assert method(lazy) == pytest.approx(value, rel=1e-6)


def test_completion_does_not_depend_on_the_blocks(X, model):
    """Also where some documents have whole counts, and others have not."""
    counts = X.copy()
    counts[:12] *= 0.7
    expected = model.perplexity(counts, method="completion")
    for chunks in (12, 5):
        value = model.perplexity(blocks(counts, chunks), method="completion")
        assert value == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("n_rows", [0, 1])
def test_results_of_hardly_any_rows(model, n_rows):
    counts = np.ones((n_rows, V))
    assert model.transform(blocks(counts, 1)).compute().shape == (n_rows, K)
    if n_rows:
        value = model.perplexity(blocks(counts, 1))
        assert value == pytest.approx(model.perplexity(counts), rel=1e-5)
    else:
        with pytest.raises(ValueError, match="X has no words: the perplexity of"):
            model.perplexity(blocks(counts, 1))


def test_a_pickled_model_needs_no_cluster(X, inproc_client):
    with inproc_client.as_current():
        fitted = MALDA(**PARAMS).fit(blocks(X))
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(X), fitted.transform(X))
    assert again.perplexity(blocks(X)) > 0
    np.testing.assert_equal(vars(again), vars(fitted))
    arrays = [v for v in vars(again).values() if hasattr(v, "shape")]
    assert all(isinstance(value, np.ndarray) for value in arrays)
