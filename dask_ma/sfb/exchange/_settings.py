"""Settings of a run, for users of the estimator and of `run`."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from dask_ma.sfb.exchange._staleness import Staleness
from dask_ma.sfb.topology import Topology

COMMUNICATIONS = ("auto", "factors", "full_matrix", "server")
_WHOLE = ("full_matrix", "server")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the ranks train and exchange; the names are those of `run`.

    Parameters
    ----------
    batch_size, staleness : int
    broadcast : int, Topology, ndarray or None
    relay, shuffle : bool
    communication : str
    compression : float or None
    wire_dtype : str or None
    """

    batch_size: int = 100
    staleness: int = 0
    broadcast: Any = None
    relay: bool = True
    communication: str = "auto"
    compression: float | None = None
    wire_dtype: str | None = None
    shuffle: bool = True

    def check(self) -> None:
        """Refuse what cannot be, before anything is started.

        Raises
        ------
        ValueError
            With the name of the parameter.
        """
        staleness = Staleness.checked(self.staleness)
        if self.communication not in COMMUNICATIONS:
            raise ValueError(
                f"communication must be one of {', '.join(COMMUNICATIONS)}, got "
                f"{self.communication!r}"
            )
        if self.communication in _WHOLE:
            partly = self.broadcast is not None
            for name, is_set in (
                ("staleness", not staleness.is_synchronous),
                ("broadcast", partly),
                ("compression", self.compression is not None),
            ):
                if is_set:
                    raise ValueError(
                        f"{name} concerns factors, but communication is "
                        f"{self.communication!r}, which sends none; set "
                        "communication='factors'"
                    )
        self._check_numbers()

    def _check_numbers(self) -> None:
        """Refuse numbers out of their ranges."""
        if self.wire_dtype not in (None, "float32", "float64"):
            raise ValueError(
                "wire_dtype must be 'float32', 'float64' or None, got "
                f"{self.wire_dtype!r}"
            )
        if self.compression is not None and not 0 <= self.compression < 1:
            raise ValueError(
                f"compression must be from 0 to below 1, or None, got "
                f"{self.compression!r}"
            )
        if isinstance(self.broadcast, Integral) and self.broadcast < 1:
            raise ValueError(
                f"broadcast must be at least 1 as a number, got {self.broadcast}"
            )

    @property
    def wants_factors(self) -> bool:
        """Whether a setting makes sense with factors only."""
        return (
            self.staleness > 0
            or self.broadcast is not None
            or self.compression is not None
        )

    def topology(self, n_ranks: int) -> Topology:
        """Who sends to whom among so many ranks.

        Raises
        ------
        ValueError
            If a topology was given for another number of ranks.
        """
        broadcast = self.broadcast
        if broadcast is None:
            return Topology.complete(n_ranks)
        if isinstance(broadcast, Integral):
            return Topology.optimal(n_ranks, min(int(broadcast), n_ranks - 1))
        if not isinstance(broadcast, Topology):
            broadcast = Topology.from_matrix(np.asarray(broadcast))
        if broadcast.n_ranks != n_ranks:
            raise ValueError(
                f"broadcast is a topology of {broadcast.n_ranks} ranks, but there are "
                f"{n_ranks}; give one for {n_ranks}, or a number of peers"
            )
        return broadcast
