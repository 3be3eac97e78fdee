"""Packets: what is packed comes out again."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.sfb.exchange._compression import Compressed, compress
from dask_ma.sfb.exchange._packets import Packet, pack, unpack
from dask_ma.sfb.model._factors import Factors


def make_factors(kind, n_pairs=4, dtype=np.float64):
    rng = np.random.default_rng(n_pairs)
    u = rng.normal(size=(n_pairs, 2)).astype(dtype)
    v = rng.normal(size=(n_pairs, 9)) * (rng.random((n_pairs, 9)) < 0.4)
    v = v.astype(dtype)
    if kind == "dense":
        return Factors(u, v)
    factors = Factors(u, sparse.csr_array(v))
    if kind == "csr":
        return factors
    smaller = compress(factors, 0.0)
    assert isinstance(smaller, Compressed)
    return smaller


every_kind = pytest.mark.parametrize("kind", ["dense", "csr", "compressed"])


def check_equal(packet, expected):
    assert packet[:2] == expected[:2] and packet.gain == expected.gain
    got, wanted = packet.opened(), expected.opened()
    assert got.is_sparse == wanted.is_sparse
    assert got.u.dtype == wanted.u.dtype and got.v.dtype == wanted.v.dtype
    np.testing.assert_array_equal(got.u, wanted.u)
    assert got.v.shape == wanted.v.shape
    assert abs(got.v - wanted.v).sum() == 0


@every_kind
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_there_and_back(kind, dtype):
    packet = Packet(3, 12, make_factors(kind, dtype=dtype), -1.2e-300)
    message = pack([packet])
    assert all(isinstance(array, np.ndarray) for array in message)
    [again] = unpack(message)
    assert type(again.factors) is type(packet.factors)
    check_equal(again, packet)


def test_many_at_once():
    packets = [
        Packet(2, 0, make_factors("csr")),
        Packet(0, 7, make_factors("dense", 0)),
        Packet(1, 6, make_factors("compressed", 5), 2.5),
        Packet(2, 1, make_factors("csr", 1)),
        Packet(0, 8, make_factors("dense", 2)),
    ]
    for got, expected in zip(unpack(pack(packets)), packets, strict=True):
        check_equal(got, expected)
    assert unpack(pack([])) == []


@every_kind
def test_the_header_is_small(kind):
    packet = Packet(3, 12, make_factors(kind))
    factors = packet.factors
    arrays = [a for a in factors if isinstance(a, np.ndarray)]
    if kind == "csr":
        arrays += [factors.v.data, factors.v.indices, factors.v.indptr]
    content = sum(array.nbytes for array in arrays)
    message = pack([packet, packet])
    assert sum(array.nbytes for array in message) == 2 * (content + 40)
