"""Drawing of a partial broadcast (Fig. 2 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np

from dask_ma.plotting._axes import BLUE, load, new_axes


class Network(Protocol):
    """What is drawn of a :class:`~dask_ma.sfb.topology.Topology`."""

    @property
    def n_ranks(self) -> int:
        """Number of ranks."""

    @property
    def total_distance(self) -> int:
        """Sum of the distances between all pairs of ranks."""

    @property
    def diameter(self) -> int:
        """Largest distance."""

    @property
    def peers(self) -> Sequence[Sequence[int]]:
        """Ranks that each rank sends to."""


class NetworkDisplay:
    """Links of a topology: ranks on a circle, an arrow to each rank that one sends to.

    It is recommended to use :meth:`from_topology` to create one.

    Parameters
    ----------
    topology : Topology
        Who sends to whom, of :mod:`dask_ma.sfb.topology`.

    Attributes
    ----------
    topology : Topology
        As given.
    ax_ : matplotlib.axes.Axes
        Where it is drawn.
    figure_ : matplotlib.figure.Figure
        Figure of the axes.
    arrows_ : matplotlib.quiver.Quiver
        The links, from rank 0's on.

    Examples
    --------
    >>> from dask_ma.plotting import NetworkDisplay
    >>> from dask_ma.sfb.topology import Topology
    >>> display = NetworkDisplay.from_topology(
    ...     Topology.optimal(n_ranks=12, n_peers=4)
    ... )  # doctest: +SKIP
    """

    def __init__(self, topology: Network) -> None:
        self.topology = topology

    @classmethod
    def from_topology(cls, topology: Network, *, ax: Any = None) -> Self:
        """Draw who sends to whom.

        Parameters
        ----------
        topology : Topology
            Who sends to whom, of :mod:`dask_ma.sfb.topology`.
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.

        Returns
        -------
        display : NetworkDisplay
        """
        return cls(topology).plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw the links.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.

        Returns
        -------
        self : NetworkDisplay
            Two ranks that send to each other have one line with two heads. Below stand
            the mean and the largest number of steps from one rank to another.
        """
        load("quiver")
        self.ax_ = new_axes(ax, (4.6, 4.9))
        self.figure_ = self.ax_.figure
        places = self._places()
        starts, stops = self._ends(places)
        self.arrows_ = self.ax_.quiver(
            *starts.T,
            *(stops - starts).T,
            angles="xy",
            scale_units="xy",
            scale=1,
            width=0.004,
            headwidth=5,
            headlength=6,
            color=BLUE,
            alpha=0.8,
            zorder=2,
        )
        self.ax_.plot(*places.T, linestyle="", marker="o", color="black", zorder=3)
        self._label(places)
        return self

    def _places(self) -> np.ndarray:
        """Points of the ranks, shape (P, 2): rank 0 on top, then clockwise."""
        angles = 2 * np.pi * np.arange(self.topology.n_ranks) / self.topology.n_ranks
        return np.column_stack([np.sin(angles), np.cos(angles)])

    def _ends(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start and stop of each arrow, just beside the points; shape (n_links, 2)."""
        links = [
            (rank, peer)
            for rank in range(self.topology.n_ranks)
            for peer in self.topology.peers[rank]
        ]
        pairs = np.array(links, dtype=np.int64).reshape(-1, 2)
        starts, stops = places[pairs[:, 0]], places[pairs[:, 1]]
        lengths = np.linalg.norm(stops - starts, axis=1, keepdims=True)
        # Among many ranks two neighbours are nearer than two such margins.
        shift = (stops - starts) * np.minimum(_MARGIN / lengths, 0.2)
        return starts + shift, stops - shift

    def _label(self, places: np.ndarray) -> None:
        """Numbers of the ranks, of many only some, and what the links amount to."""
        n_ranks = self.topology.n_ranks
        for rank in range(0, n_ranks, -(-n_ranks // _MOST_LABELS)):
            x, y = 1.12 * places[rank]
            self.ax_.text(x, y, str(rank), ha="center", va="center")
        self.ax_.set_xlim(-1.25, 1.25)
        self.ax_.set_ylim(-1.25, 1.25)
        self.ax_.set_aspect("equal")
        self.ax_.set_xticks([])
        self.ax_.set_yticks([])
        self.ax_.spines[:].set_visible(False)
        mean = self.topology.total_distance / max(n_ranks * (n_ranks - 1), 1)
        self.ax_.set_xlabel(
            f"{n_ranks} ranks, {self._n_peers()} peers each: {mean:.2f} steps to "
            f"another rank,\nat most {self.topology.diameter}"
        )

    def _n_peers(self) -> str:
        """Number of peers of a rank, or the range of these numbers."""
        counts = {len(peers) for peers in self.topology.peers}
        return " to ".join(str(count) for count in sorted({min(counts), max(counts)}))


_MARGIN = 0.06
_MOST_LABELS = 32
