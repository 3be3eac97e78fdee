"""Rows in a message, and where their arrays lie when they have arrived."""

import dask
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from distributed import Client, LocalCluster
from distributed.comm.tcp import TCP
from distributed.protocol import deserialize, serialize
from distributed.protocol.pickle import dumps, loads

from dask_ma.data._aligned import _AT_ONCE, from_frames, in_one_place, to_frames
from dask_ma.data._checks import RawBlock

RNG = np.random.default_rng(0)
DENSE = RNG.random((30, 4))
CSR = sp.random_array((30, 7), density=0.3, format="csr", rng=0)
LABELS = np.array(["eel", "fox", "gnu"])[RNG.integers(0, 3, 30)]


def received(frames, offset, *, writable=True):
    """The frames of a message that begins `offset` bytes behind an even address."""
    lengths = [memoryview(frame).nbytes for frame in frames]
    buffer = bytearray(sum(lengths) + 16)
    even = -np.frombuffer(buffer, np.uint8).ctypes.data % 8
    at = even + offset
    buffer[at : at + sum(lengths)] = b"".join(bytes(frame) for frame in frames)
    whole = memoryview(buffer if writable else bytes(buffer))
    ends = at + np.cumsum(lengths)
    return [whole[end - n : end] for end, n in zip(ends, lengths, strict=True)]


def arrays_of(block):
    for part in block:
        if sp.issparse(part):
            yield from (part.data, part.indices, part.indptr)
        elif part is not None:
            yield part


def assert_same(found, expected):
    assert type(found) is RawBlock
    for a, b in zip(found, expected, strict=True):
        assert type(a) is type(b)
        if a is not None:
            assert a.dtype == b.dtype and a.shape == b.shape
            dense = [m.toarray() if sp.issparse(m) else m for m in (a, b)]
            np.testing.assert_array_equal(*dense)


BLOCKS = {
    "dense": RawBlock(DENSE, LABELS, None),
    "CSR": RawBlock(CSR, np.arange(30), np.ones(30)),
    "matrix": RawBlock(sp.csr_matrix(CSR), None, None),
    "int8": RawBlock(
        np.arange(90, dtype=np.int8).reshape(30, 3), np.arange(30), np.ones(30)
    ),
    "flags": RawBlock(CSR.astype(bool), np.arange(30) > 3, None),
    "no elements": RawBlock(sp.csr_array((30, 7)), np.arange(30), None),
    "no rows": RawBlock(DENSE[:0], np.arange(0), None),
}


@pytest.mark.parametrize("offset", [0, 3, 7])
@pytest.mark.parametrize("name", BLOCKS)
def test_arrays_come_to_even_addresses_within_the_message(name, offset):
    header, frames = to_frames(BLOCKS[name])
    frames = received(frames, offset)
    for _ in range(2):  # to look at them once more changes nothing
        block = from_frames(header, frames)
        assert_same(block, BLOCKS[name])
    message = np.frombuffer(frames[0].obj, np.uint8)
    for array in arrays_of(block):
        assert array.flags.aligned and array.flags.writeable
        assert not array.size or np.shares_memory(array, message)


def test_scipy_does_not_copy_them():
    """It does when it finds a small part of a large array, such as a message."""
    header, frames = to_frames(BLOCKS["CSR"])
    X = from_frames(header, received(frames, 3)).X
    for made in (X.T, sp.csr_array((X.data, X.indices, X.indptr), shape=X.shape)):
        assert np.shares_memory(made.data, X.data)
        assert np.shares_memory(made.indices, X.indices)


def test_more_than_is_moved_at_a_time():
    X = np.arange(3 * _AT_ONCE // 8 + 5.0).reshape(-1, 1)
    header, frames = to_frames(RawBlock(X, None, None))
    np.testing.assert_array_equal(from_frames(header, received(frames, 5)).X, X)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_message_that_cannot_be_changed(name):
    """As what comes back from a disk; and parts that were compressed on the way."""
    header, frames = to_frames(BLOCKS[name])
    apart = [memoryview(bytes(frame)) for frame in frames]
    for found in (received(frames, 3, writable=False), apart):
        block = from_frames(header, found)
        assert_same(block, BLOCKS[name])
        assert all(a.flags.aligned and a.flags.writeable for a in arrays_of(block))


@pytest.mark.parametrize(
    "X",
    [
        pd.DataFrame(DENSE, columns=list("abcd")),
        np.asfortranarray(DENSE),
        np.array([["a", None]] * 30, dtype=object),
        np.ma.masked_array(DENSE, DENSE > 0.5),
        sp.csc_array(CSR),
    ],
    ids=["frame", "Fortran", "objects", "masked", "CSC"],
)
def test_other_rows_are_pickled(X):
    with pytest.raises(NotImplementedError):
        to_frames(RawBlock(X, None, None))
    found = deserialize(*serialize(RawBlock(X, LABELS, None)))
    assert type(found) is RawBlock and type(found.X) is type(X)
    assert dumps(found.X) == dumps(loads(dumps(X)))


def test_dask_sends_rows_like_this():
    header, frames = serialize(BLOCKS["CSR"])
    assert header["serializer"] == "dask"
    assert_same(deserialize(header, frames), BLOCKS["CSR"])


# -- Large arrays -------------------------------------------------------------------

SHARD = 1 << 16  # bytes of an array from which Dask cuts it here
LARGE = sp.random_array((2000, 600), density=0.1, format="csr", rng=1)


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(TCP, "max_shard_size", SHARD)
    with dask.config.set({"distributed.comm.shard": SHARD}):
        yield


def buffers_of(block):
    """How many pieces of memory the arrays of a block lie in."""
    owners = set()
    for array in arrays_of(block):
        while isinstance(array.base, np.ndarray):
            array = array.base
        owners.add(id(array if array.base is None else memoryview(array.base).obj))
    return len(owners)


def test_large_arrays_are_laid_into_one_place(small_shards):
    block = RawBlock(LARGE, np.arange(2000), np.ones(2000))
    found = in_one_place(block)
    assert_same(found, block)
    assert buffers_of(block) == 5 and buffers_of(found) == 1
    for array, given in zip(arrays_of(found), arrays_of(block), strict=True):
        assert array.flags.aligned and not np.shares_memory(array, given)
    owners = {id(f.obj) for f in to_frames(found)[1] if isinstance(f, memoryview)}
    assert len(owners) == 1


@pytest.mark.parametrize(
    "block",
    [
        RawBlock(CSR, np.arange(30), None),
        RawBlock(np.zeros((2000, 9)), np.arange(2000), None),
        RawBlock(sp.csc_array(LARGE), None, None),
    ],
    ids=["small", "first", "CSC"],
)
def test_other_blocks_are_not_copied(small_shards, block):
    assert in_one_place(block) is block


@pytest.mark.parametrize(
    "X",
    [
        np.asfortranarray(DENSE)[5:25],
        np.asfortranarray(DENSE),
        np.repeat(DENSE, 2, axis=0)[::2],
        np.asfortranarray(DENSE > 0.5)[:9],
    ],
    ids=["part", "columns", "every second", "flags"],
)
def test_rows_apart_are_copied_once(X):
    """So that they are sent as they are, and not pickled."""
    block = RawBlock(X, np.arange(len(X)), None)
    found = in_one_place(block)
    assert_same(found, block)
    assert found.X.flags.c_contiguous and buffers_of(found) == 1
    assert serialize(found)[0]["serializer"] == "dask"
    assert_same(deserialize(*serialize(found)), block)


def test_objects_stay_as_they_are(small_shards):
    labels = np.array(["eel", None] * 9000, dtype=object)
    for X in np.zeros((18_000, 1)), np.asfortranarray(np.zeros((18_000, 2))):
        block = RawBlock(X, labels, None)
        assert in_one_place(block) is block


def test_dask_does_not_copy_them_as_they_arrive(small_shards):
    """All arrays lie in the buffer that the message was read into."""
    sent = RawBlock(LARGE, np.arange(2000), None)
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        futures = [
            client.scatter([block], hash=False)[0]
            for block in (sent, in_one_place(sent))
        ]
        apart, together = client.gather(client.map(buffers_of, futures))
    assert together == 1 < apart
