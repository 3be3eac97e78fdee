"""Factors of one rank and iteration, as they travel."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.sfb.exchange._compression import Compressed
from dask_ma.sfb.model._factors import Factors

_DENSE, _SPARSE, _COMPRESSED = 0, 1, 2
_N_FIELDS = 5  # of the header of a packet


class Packet(NamedTuple):
    """Factors with their origin.

    Attributes
    ----------
    origin : int
        Rank that has found them.
    iteration : int
        In which of its iterations, from 0.
    factors : Factors or Compressed
    gain : float
        What the rank expects of the step that it has found alone; see
        :class:`~dask_ma.sfb.model._common.CommonStep`.
    """

    origin: int
    iteration: int
    factors: Factors | Compressed
    gain: float = 0.0

    def opened(self) -> Factors:
        """The pairs of factors."""
        factors = self.factors
        return factors.expand() if isinstance(factors, Compressed) else factors


def pack(packets: list[Packet]) -> list[np.ndarray]:
    """One message: a header, and the arrays of all packets.

    Parameters
    ----------
    packets : list of Packet

    Returns
    -------
    message : list of ndarray
        First the header, 5 integers for each packet.
    """
    header = np.zeros((len(packets), _N_FIELDS), dtype=np.int64)
    message = [header]
    for fields, packet in zip(header, packets, strict=True):
        kind, n_features, arrays = _parts(packet.factors)
        gain = np.float64(packet.gain).view(np.int64)  # its bits
        fields[:] = packet.origin, packet.iteration, kind, n_features, gain
        message += arrays
    return message


def unpack(message: list[np.ndarray]) -> list[Packet]:
    """The packets of a message.

    Parameters
    ----------
    message : list of ndarray
        What :func:`pack` has given.

    Returns
    -------
    packets : list of Packet
    """
    arrays = iter(message)
    packets = []
    for origin, iteration, kind, n_features, gain in next(arrays).tolist():
        u = next(arrays)
        v: Any = next(arrays)
        factors: Factors | Compressed
        if kind == _COMPRESSED:
            factors = Compressed(u, v, next(arrays), n_features)
        else:
            if kind == _SPARSE:
                parts = v, next(arrays), next(arrays)
                v = sparse.csr_array(parts, shape=(len(u), n_features))
            factors = Factors(u, v)
        expected = float(np.int64(gain).view(np.float64))
        packets.append(Packet(origin, iteration, factors, expected))
    return packets


def _parts(factors: Factors | Compressed) -> tuple[int, int, list[np.ndarray]]:
    """Kind of some factors, their number of features, and their arrays."""
    if isinstance(factors, Compressed):
        u, block, columns, n_features = factors
        return _COMPRESSED, n_features, [u, block, columns]
    u, v = factors
    if not factors.is_sparse:
        return _DENSE, v.shape[1], [u, v]
    return _SPARSE, v.shape[1], [u, v.data, v.indices, v.indptr]


class Shown:
    """Something that ranks of a process look at: none of its bytes is sent.

    Parameters
    ----------
    values : object
    """

    def __init__(self, values: Any) -> None:
        self.values = values
