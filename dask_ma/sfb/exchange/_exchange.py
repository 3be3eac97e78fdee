"""Exchange of factors between ranks: full and partial broadcast, BSP and SSP."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group
from dask_ma.sfb.exchange._compression import Compressed, compress
from dask_ma.sfb.exchange._packets import Packet, pack, unpack
from dask_ma.sfb.exchange._settings import Exchange
from dask_ma.sfb.exchange._staleness import Staleness
from dask_ma.sfb.model._factors import Factors
from dask_ma.sfb.topology import Topology

_INDEX = np.int32  # halves the indices of sparse factors


class FactorExchange:
    """Sends the factors of a rank to others, and gathers theirs.

    Parameters
    ----------
    group : Group
        This rank.
    topology : Topology
        Who sends to whom.
    staleness : Staleness
        Who waits for whom.
    relays : bool
        Whether factors are passed on until they have reached all ranks.
    wire_dtype : dtype or None
        Type that factors are sent in; None sends them as they are.
    tolerance : float or None
        Relative error that low-rank compression may make; None does not compress.
    """

    def __init__(
        self,
        group: Group,
        topology: Topology,
        staleness: Staleness,
        *,
        relays: bool,
        wire_dtype: Any,
        tolerance: float | None,
    ) -> None:
        self._group = group
        self._peers = topology.peers[group.rank]
        self._sources = topology.sources(group.rank)
        self._staleness = staleness
        self._wire_dtype = wire_dtype
        self._tolerance = tolerance
        self._made = 0
        self._received = dict.fromkeys(self._sources, 0)
        self._routes: Any = None
        self._n_hops = 0
        if relays and topology.diameter > 1:
            self._routes = topology.routes(group.rank)
            self._n_hops = topology.diameter - 1
        self._to_relay: list[Packet] = []
        reached = group.size if relays else len(self._sources) + 1
        #: What updates are multiplied by where a rank does not hear of all ranks.
        self.gain = group.size / reached

    def exchange(
        self, factors: Factors, iteration: int, gain: float = 0.0
    ) -> list[Packet]:
        """Send this rank's factors of an iteration, and take what there is.

        Parameters
        ----------
        factors : Factors
            This rank's.
        iteration : int
            Number of the iteration, from 0.
        gain : float, default=0.0
            What the packet is to say of them.

        Returns
        -------
        packets : list of Packet
            To be applied now, this rank's among them. In a synchronous run they are
            the same in every run, in the order of their ranks; else they come in the
            order of arrival.
        """
        own = self.post(factors, iteration, gain)
        if self._staleness.is_synchronous:
            packets = [own, *self._take_all()]
            return sorted(packets, key=lambda packet: (packet.origin, packet.iteration))
        return [own, *self._take_some()]

    def post(self, factors: Factors, iteration: int, gain: float = 0.0) -> Packet:
        """Send this rank's factors of an iteration, and wait for nothing.

        Parameters
        ----------
        factors, iteration, gain
            As in :meth:`exchange`.

        Returns
        -------
        packet : Packet
            What the others get.
        """
        own = Packet(self._group.rank, iteration, self._as_sent(factors), gain)
        self._send(own)
        self._made += 1
        return own

    def take_next(self, own: Packet) -> list[Packet]:
        """Wait for the oldest packet of each source that was not taken yet.

        Parameters
        ----------
        own : Packet
            This rank's of the same iteration.

        Returns
        -------
        packets : list of Packet
            In the order of ranks, this one's among them.
        """
        packets = [own]
        for source in self._sources:
            packets += self._take(source)
        return sorted(packets, key=lambda packet: packet.origin)

    def finish(self) -> list[Packet]:
        """Take all that is under way; a collective call after the last iteration.

        Returns
        -------
        packets : list of Packet
            In the order of ranks and iterations.
        """
        packets = list(self._take_all())
        for _ in range(self._n_hops):
            self._send(None)
            for source in self._sources:
                packets += self._take(source, "relay")
        return sorted(packets, key=lambda packet: (packet.origin, packet.iteration))

    def _as_sent(self, factors: Factors) -> Factors | Compressed:
        """Factors as the others will see them; this rank uses the same."""
        dtype = self._wire_dtype
        if dtype is not None:
            factors = factors.astype(dtype)
        factors = with_short_indices(contiguous(factors))
        if self._tolerance is None:
            return factors
        smaller = compress(factors, self._tolerance)
        return smaller if isinstance(smaller, Compressed) else contiguous(smaller)

    def _send(self, own: Packet | None) -> None:
        """Send a packet, and those to be passed on, as one message to each peer."""
        relayed, self._to_relay = self._to_relay, []
        tag = "sfb" if own is not None else "sfb-relay"
        for peer in self._peers:
            packets = [] if own is None else [own]
            packets += [p for p in relayed if peer in self._routes[p.origin]]
            # Factors never change once they are made.
            self._group.push(pack(packets), peer, tag, copy=False)

    def _take_all(self) -> Iterable[Packet]:
        """Wait until no source is behind."""
        packets = []
        for source in self._sources:
            while self._received[source] < self._made:
                packets += self._take(source)
        return packets

    def _take_some(self) -> Iterable[Packet]:
        """Take what has arrived, and wait for sources that are too far behind."""
        packets = []
        rule, made = self._staleness, self._made
        for source in self._sources:
            while rule.may_apply(made, self._received[source]):
                arrived, message = self._group.poll(source, "sfb")
                if not arrived:
                    break
                packets += self._open(message, source)
        for source in self._sources:
            while rule.must_wait(made, self._received[source]):
                packets += self._take(source)
        return packets

    def _take(self, source: int, kind: str = "") -> list[Packet]:
        """Wait for a message and open it."""
        tag = "sfb-relay" if kind else "sfb"
        message = self._group.recv(source, tag)
        return self._open(message, None if kind else source)

    def _open(self, message: Any, source: int | None) -> list[Packet]:
        """Packets of a message; those that others wait for are kept, too."""
        if source is not None:
            self._received[source] += 1
        packets = unpack(message)
        if self._routes is not None:
            self._to_relay += [p for p in packets if self._routes[p.origin]]
        return packets


def factor_exchange(
    group: Group, settings: Exchange, staleness: Staleness
) -> FactorExchange:
    """What sends the factors of a rank, and gets those of others, by the settings."""
    return FactorExchange(
        group,
        settings._topology(group.size),
        staleness,
        relays=settings.relay,
        wire_dtype=settings.wire_dtype,
        tolerance=settings.compression,
    )


def contiguous(factors: Factors) -> Factors:
    """The same factors, with dense ones in C order as other processes get them.

    Products of the same numbers in another order of memory can have other bits.
    """
    u = np.ascontiguousarray(factors.u)
    v = factors.v if factors.is_sparse else np.ascontiguousarray(factors.v)
    return Factors(u, v)


def with_short_indices(factors: Factors) -> Factors:
    """The same factors, with indices of half the size where they fit."""
    if not factors.is_sparse or factors.v.indices.dtype == _INDEX:
        return factors
    v = factors.v
    if max(v.shape[1], v.nnz) > np.iinfo(_INDEX).max:
        return factors
    parts = v.data, v.indices.astype(_INDEX), v.indptr.astype(_INDEX)
    return Factors(factors.u, sparse.csr_array(parts, shape=v.shape))


def scaled(
    packets: list[Packet], scale: Callable[[int], float]
) -> tuple[list[Factors], float]:
    """Factors of packets with the step sizes of their iterations.

    Parameters
    ----------
    packets : list of Packet
    scale : callable
        Gives the scale of an iteration.

    Returns
    -------
    factors : list of Factors
    scale : float
        What is left to multiply them by.
    """
    scales = [scale(packet.iteration) for packet in packets]
    opened = [packet.opened() for packet in packets]
    if len(set(scales)) == 1:
        return opened, scales[0]
    return [
        Factors(factors.u * factors.u.dtype.type(s), factors.v)
        for factors, s in zip(opened, scales, strict=True)
    ], 1.0
