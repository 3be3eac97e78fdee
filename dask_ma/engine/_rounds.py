"""Records of the rounds of a fit: what all ranks have done, and how long it took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from dask_ma.engine._context import RankContext, Record

_COUNTERS = (
    "n_samples",
    "bytes_sent",
    "bytes_shared",
    "messages_sent",
    "seconds_computing",
    "seconds_waiting",
)


class RoundLog:
    """Records of rounds, kept until the counters of all ranks have been added up.

    Parameters
    ----------
    context : RankContext
        This rank.

    Attributes
    ----------
    counters : list of ndarray of float64
        For each record that is kept, what this rank has counted in its round; to be
        summed over ranks.
    """

    def __init__(self, context: RankContext) -> None:
        self.counters: list[np.ndarray] = []
        self._context = context
        self._computing = 0.0
        self._counted = np.zeros(len(_COUNTERS))
        self._n_samples = 0
        self._records: list[Record] = []

    @contextmanager
    def computing(self, kind: str = "compute") -> Iterator[None]:
        """Count the time spent inside as time of computing.

        Parameters
        ----------
        kind : {"compute", "evaluate"}, default="compute"
            What the timeline calls it.
        """
        start = perf_counter()
        try:
            with self._context.span(kind):
                yield
        finally:
            self._computing += perf_counter() - start

    def note(self, n_round: int, n_rows: int, **values: Any) -> None:
        """Keep what this rank has done since the last round.

        Parameters
        ----------
        n_round : int
            Number of the round, from 1.
        n_rows : int
            Rows that this rank has gone over in it.
        **values
            What else the record holds.
        """
        counters = self._context.group.counters
        self._n_samples += n_rows
        now = np.array(
            [
                self._n_samples,
                counters.bytes_sent,
                counters.bytes_shared,
                counters.messages_sent,
                self._computing,
                counters.seconds_waiting,
            ]
        )
        self.counters.append(now - self._counted)
        self._counted = now
        record = {"round": n_round, "time": self._context.elapsed(), **values}
        self._records.append(record)

    def finish(self, sums: Sequence[np.ndarray]) -> list[Record]:
        """Hand out the records kept so far.

        Parameters
        ----------
        sums : sequence of ndarray
            Sums of `counters` over all ranks.

        Returns
        -------
        records : list of dict
            In the order of the rounds.
        """
        records = self._records
        for record, values in zip(records, sums, strict=True):
            for name, value in zip(_COUNTERS, values, strict=True):
                # Times are means over ranks, which run side by side; the rest are sums.
                is_time = name.startswith("seconds")
                mean = float(value) / self._context.group.size
                record[name] = mean if is_time else int(value)
        self._records, self.counters = [], []
        return records
