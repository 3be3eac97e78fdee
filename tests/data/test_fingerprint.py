"""Checksums of data: the same for the same rows, whoever has them."""

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from dask_ma.data import (
    build_shard,
    combine_digests,
    digest_shard,
    partition,
)
from dask_ma.data._spec import pack_pieces, pieces_in

N, D = 5000, 7


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.6)
    return X, rng.integers(0, 3, N), rng.random(N).round(1)


def fingerprint(X, y=None, sample_weight=None, *, n_ranks=1):
    shards = partition(
        X,
        y,
        sample_weight,
        n_ranks=n_ranks,
        addresses=None,
        allow_unlabelled=True,
    ).shards
    return combine_digests([digest_shard(shard.arguments) for shard in shards])


CONTAINERS = {
    "list of rows": lambda X: X.tolist(),
    "csr": sparse.csr_matrix,
    "csc": sparse.csc_array,
    "frame": pd.DataFrame,
    "dask": lambda X: da.from_array(X, chunks=(701, -1)),
    "dask csr": lambda X: da.from_array(X, chunks=(900, -1)).map_blocks(
        sparse.csr_matrix
    ),
}


@pytest.mark.parametrize("n_ranks", [1, 2, 7])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_ranks_and_containers_do_not_matter(rows, kind, n_ranks):
    X, y, weight = rows
    expected = fingerprint(X, y, weight)
    assert (expected["rows"], expected["columns"]) == (N, D)
    assert expected["classes"] == [0, 1, 2]
    found = fingerprint(CONTAINERS[kind](X), y, weight, n_ranks=n_ranks)
    assert found == expected


def test_lazy_columns_and_unknown_lengths(rows):
    X, y, weight = rows
    frame = pd.DataFrame(X, columns=list("abcdefg")).assign(y=y, w=weight)
    dd = pytest.importorskip("dask.dataframe", reason="not installed")
    lazy = dd.from_pandas(frame, npartitions=4)
    found = fingerprint(lazy[list("abcdefg")], lazy["y"], lazy["w"], n_ranks=3)
    assert found == fingerprint(X, y, weight)


def test_on_a_cluster(inproc_client, rows):
    """Ranks compute the digests where the rows are."""
    X, y, weight = rows
    addresses = list(inproc_client.nthreads())[:3]
    shards = partition(
        da.from_array(X, chunks=(600, -1)),
        y,
        weight,
        n_ranks=3,
        addresses=addresses,
        client=inproc_client,
    )
    tasks = [
        inproc_client.submit(digest_shard, shard.arguments, pure=False)
        for shard in shards.shards
    ]
    assert combine_digests(inproc_client.gather(tasks)) == fingerprint(X, y, weight)
    shards.release()


LABELS = {
    "int8": lambda y: y.astype(np.int8),
    "float": lambda y: y.astype(np.float32),
    "objects": lambda y: y.astype(object),
}


@pytest.mark.parametrize("kind", LABELS)
def test_types_of_numbers(rows, kind):
    X, y, _ = rows
    expected, found = fingerprint(X, y), fingerprint(X, LABELS[kind](y))
    if kind == "objects":
        expected = fingerprint(X, y.astype(str))  # whatever they are, by their text
    assert found == expected


def test_texts(rows):
    X, y, _ = rows
    labels = np.array(["no", "yes", "perhaps"])[y]
    expected = fingerprint(X, labels)
    assert expected["classes"] == ["no", "perhaps", "yes"]
    for same in (labels.astype("U30"), labels.astype(object), labels.astype("S")):
        assert fingerprint(X, same, n_ranks=2) == expected
    assert fingerprint(X, labels[::-1])["y"] != expected["y"]


@pytest.mark.parametrize("row", [0, 1, 31, 100, 2500, N - 1])
def test_each_label_and_weight_counts(rows, row):
    X, y, weight = rows
    before = fingerprint(X, y, weight)
    y, weight = y.copy(), weight.copy()
    y[row] = (y[row] + 1) % 3
    weight[row] += 1e-9
    after = fingerprint(X, y, weight)
    assert {k for k in before if before[k] != after[k]} == {"y", "sample_weight"}


def test_order_counts(rows):
    X, y, weight = rows
    before = fingerprint(X, y, weight)
    other = np.arange(N)
    other[[10, 11, 12]] = [12, 10, 11]
    after = fingerprint(X[other], y[other], weight[other])
    assert after["X"] != before["X"]
    assert after["sample_weight"] != before["sample_weight"]
    assert after["rows"] == before["rows"]


def test_rows_of_weight_zero_count(rows):
    X, y, weight = rows
    weight = np.where(np.arange(N) % 3, weight, 0.0)
    kept = weight > 0
    whole = fingerprint(X, y, weight, n_ranks=3)
    assert whole == fingerprint(X, y, weight)
    assert whole["rows"] == N
    assert fingerprint(X[kept], y[kept], weight[kept]) != whole


def test_zeros_and_duplicates_of_a_sparse_matrix(rows):
    X, y, _ = rows
    plain = sparse.csr_matrix(X)
    halves = sparse.csr_matrix(
        (np.repeat(plain.data / 2, 2), np.repeat(plain.indices, 2), plain.indptr * 2),
        plain.shape,
    )
    stored = plain.copy()
    stored.data[stored.data < 0] = 0
    assert fingerprint(halves, y) == fingerprint(plain, y)
    assert fingerprint(stored, y) == fingerprint(np.maximum(X, 0), y)
    assert halves.nnz == 2 * plain.nnz  # the user's matrix is as it was


def test_what_differs_is_named(rows):
    X, y, weight = rows
    before = fingerprint(X, y, weight)
    assert fingerprint(X, y)["sample_weight"] is None
    assert fingerprint(X)["y"] is None
    assert fingerprint(X[:, :6], y)["columns"] == 6
    assert fingerprint(X[:4000], y[:4000])["rows"] == 4000
    assert fingerprint(X.astype(np.float32), y)["dtype"] == "float32"
    assert fingerprint(X, y + 10)["classes"] == [10, 11, 12]
    assert fingerprint(X, X[:, 0] + 0.5)["classes"] is None
    assert fingerprint(X, np.arange(N))["classes"] is None
    assert fingerprint(X + 1e-12, y, weight)["X"] != before["X"]


def test_large_integers_are_told_apart():
    X, y = np.eye(4), np.array([2**60, 2**60 + 1, 5, 5])
    assert fingerprint(X, y)["y"] != fingerprint(X, y[[1, 0, 2, 3]])["y"]


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (np.int8, -128, 127),
        (np.int16, -5000, 5000),
        (np.uint8, 0, 255),
        (np.int64, -(2**63), -(2**63) + 9),
        (np.uint64, 2**64 - 9, 2**64 - 1),
        (np.float64, -3.0, 3.0),
    ],
)
def test_the_range_of_a_type(dtype, low, high):
    y = np.array([low, high, low, high], dtype=dtype)
    assert fingerprint(np.eye(4), y)["classes"] == [low, high]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_numbers_that_are_no_integers(value):
    assert fingerprint(np.eye(4), np.array([1, 2, value, 1]))["classes"] is None


@pytest.mark.parametrize("dtype", ["S", object])
@pytest.mark.parametrize("code", ["utf-8", "latin-1"])
def test_bytes(dtype, code):
    labels = ["é".encode(code), b"a", b"b", b"a"]
    found = fingerprint(np.eye(4), np.array(labels, dtype=dtype))
    expected = "é" if code == "utf-8" else r"\xe9"
    assert found["classes"] == sorted(["a", "b", expected])


@pytest.mark.parametrize("n_features", [1, 2**14, 2**15])
def test_the_sample_does_not_grow_with_the_columns(n_features):
    from dask_ma.data._fingerprint import _sampled_rows

    sample = _sampled_rows(n_features)
    assert (np.diff(sample) > 0).all() and sample[0] == 0
    in_million = int((sample < 10**6).sum())
    assert in_million * n_features <= 2**19 or in_million <= 21
    assert in_million >= 20


def test_rows_that_cannot_be_used(rows):
    """The ranks say so later, in better words."""
    X, y, _ = rows
    [shard] = partition(X, y, n_ranks=1, addresses=None).shards
    source, start, stop, n_rows, index, first = pieces_in(shard.arguments)[0]
    wrong = {
        **shard.arguments,
        **pack_pieces([(source, start, stop, n_rows + 1, index, first)]),
    }
    assert digest_shard(wrong) is None
    assert combine_digests([digest_shard(shard.arguments), None]) is None
    with pytest.raises(ValueError, match="metadata of X say"):
        build_shard(wrong)


def test_a_rank_without_rows(rows):
    X, y, weight = rows
    empty = {**pack_pieces([]), "aligned": None, "n_features": D, "dtype": np.float64}
    [shard] = partition(X, y, weight, n_ranks=1, addresses=None).shards
    digests = [digest_shard(arguments) for arguments in (empty, shard.arguments)]
    assert combine_digests(digests) == fingerprint(X, y, weight)
    assert combine_digests(digests[:1]) is None


def test_nothing_is_computed_twice(rows):
    """A lazy input is computed when it is shared out, and not for its checksum."""
    X, y, _ = rows
    n_calls = []

    def block(part):
        n_calls.append(1)
        return part

    lazy = da.from_array(X, chunks=(1000, -1)).map_blocks(block, meta=X[:0])
    with dask.config.set(scheduler="synchronous"):
        fingerprint(lazy, y, n_ranks=2)
    assert len(n_calls) == 5
