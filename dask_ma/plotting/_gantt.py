"""The Gantt chart of a fit: what each rank has done when (Fig. 2 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dask_ma.comm import KINDS
from dask_ma.plotting._axes import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    VERMILION,
    load,
    new_axes,
    rank_ticks,
)

_COLOURS = {
    "compute": BLUE,
    "evaluate": SKY,
    "aggregate": GREEN,
    "send": ORANGE,
    "wait": GREY,
    "exchange": VERMILION,
}
_HEIGHT = 0.8  # of a bar, in rows
_BESIDE = 0.25  # part of it that exchanges in the background take, at the lower end
_ROUND_GAP = 0.004  # least distance of two lines, as a part of the time shown


class GanttDisplay:
    """Gantt chart of a fit: one row per rank, one bar per span of time.

    Exchanges in the background lie over the lower edge of what goes on meanwhile.

    It is recommended to use :meth:`from_estimator` or :meth:`from_timeline` to create
    one.

    Parameters
    ----------
    timeline : ndarray of shape (n_spans,)
        Spans with the fields `rank`, `kind`, `start` and `stop`, as in the attribute
        `timeline_` of the estimators.
    ranks : sequence of int, default=None
        Ranks to show, from top to bottom; None shows all in the timeline.
    time_range : tuple of float, default=None
        Seconds from which, and up to which, to show; None shows all.
    round_ends : sequence of float, default=()
        Seconds at which the rounds ended.
    driver : bool, default=False
        Whether rank 0 stands for a driver, and is to be called so.

    Attributes
    ----------
    timeline : ndarray of shape (n_shown,)
        The spans of the ranks shown, within the time shown.
    ranks : list of int
        The ranks shown.
    ax_ : matplotlib.axes.Axes
        Where it is drawn.
    figure_ : matplotlib.figure.Figure
        Figure of the axes.
    bars_ : dict of str to matplotlib.collections.PolyCollection
        The bars of each kind that there is.
    legend_ : matplotlib.legend.Legend or None
        The legend.

    See Also
    --------
    dask_ma.comm.gather_timeline : The timeline of your own program.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_ma import MASGDClassifier
    >>> from dask_ma.plotting import GanttDisplay
    >>> X = np.random.default_rng(0).normal(size=(200, 5))
    >>> model = MASGDClassifier(n_ranks=2, random_state=0).fit(X, X[:, 0] > 0)
    >>> display = GanttDisplay.from_estimator(model)  # doctest: +SKIP
    """

    def __init__(
        self,
        timeline: np.ndarray,
        *,
        ranks: Sequence[int] | None = None,
        time_range: tuple[float, float] | None = None,
        round_ends: Sequence[float] = (),
        driver: bool = False,
    ) -> None:
        known = np.unique(timeline["rank"]).tolist()
        self.ranks = known if ranks is None else [int(rank) for rank in ranks]
        unknown = sorted(set(self.ranks) - set(known))
        if unknown:
            raise ValueError(
                f"ranks must be ranks of the timeline, which has {len(known)}, got "
                f"{unknown}"
            )
        chosen = np.isin(timeline["rank"], self.ranks)
        if time_range is not None:
            low, high = time_range
            if not low < high:
                raise ValueError(
                    f"time_range must be two increasing times, got {time_range}"
                )
            chosen &= (timeline["stop"] > low) & (timeline["start"] < high)
        self.timeline = timeline[chosen]
        self.time_range = time_range
        self.round_ends = np.asarray(round_ends, dtype=float)
        self.driver = driver

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        ax: Any = None,
        ranks: Sequence[int] | None = None,
        time_range: tuple[float, float] | None = None,
        rounds: bool = True,
        legend: bool = True,
    ) -> Self:
        """Draw the Gantt chart of the last fit of an estimator.

        Parameters
        ----------
        estimator : estimator
            A fitted estimator of this package. Rank 0 is called the driver if its
            `paradigm` has the aggregation "driver" or "tree".
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.
        ranks : sequence of int, default=None
            Ranks to show, from top to bottom; None shows all.
        time_range : tuple of float, default=None
            Seconds from which, and up to which, to show; None shows all.
        rounds : bool, default=True
            Whether a dotted line shows where a round of `history_` ends. There is none
            if they would lie too close together.
        legend : bool, default=True
            Whether there is a legend.

        Returns
        -------
        display : GanttDisplay

        Raises
        ------
        NotFittedError
            If the estimator has not been fitted.
        ValueError
            If there is no span to show, as with ``dask-ma.trace.max-spans`` 0.
        """
        check_is_fitted(estimator, "timeline_")
        paradigm = getattr(estimator, "paradigm", None)
        aggregation = getattr(paradigm, "aggregation", None)
        display = cls(
            estimator.timeline_,
            ranks=ranks,
            time_range=time_range,
            round_ends=[r["time"] for r in estimator.history_] if rounds else (),
            driver=aggregation in ("driver", "tree"),
        )
        return display.plot(ax, legend=legend)

    @classmethod
    def from_timeline(
        cls,
        timeline: np.ndarray,
        *,
        ax: Any = None,
        ranks: Sequence[int] | None = None,
        time_range: tuple[float, float] | None = None,
        legend: bool = True,
    ) -> Self:
        """Draw the Gantt chart of a timeline.

        Parameters
        ----------
        timeline : ndarray of shape (n_spans,)
            What :func:`~dask_ma.comm.gather_timeline` has given to rank 0.
        ax, ranks, time_range, legend
            As in :meth:`from_estimator`.

        Returns
        -------
        display : GanttDisplay
        """
        display = cls(timeline, ranks=ranks, time_range=time_range)
        return display.plot(ax, legend=legend)

    def plot(self, ax: Any = None, *, legend: bool = True) -> Self:
        """Draw the chart.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.
        legend : bool, default=True
            Whether there is a legend.

        Returns
        -------
        self : GanttDisplay
        """
        if not len(self.timeline):
            raise ValueError(
                "there is no span to show; dask-ma.trace.max-spans must be above 0 "
                "during the fit, dask-ma.trace.timeline true for more than 64 ranks, "
                "and time_range must meet it"
            )
        collections = load("collections")
        self.ax_ = new_axes(ax, (8, 1.6 + 0.35 * min(len(self.ranks), 20)))
        self.figure_ = self.ax_.figure
        self.bars_: dict[str, Any] = {}
        for kind in KINDS:
            spans = self.timeline[self.timeline["kind"] == kind]
            corners = self._corners(spans, beside=kind == "exchange")
            if len(corners):
                bars = collections.PolyCollection(
                    corners,
                    facecolors=_COLOURS[kind],
                    linewidths=0,
                    antialiaseds=False,  # bars that touch would show a seam
                    label=kind,
                )
                self.bars_[kind] = self.ax_.add_collection(bars, autolim=False)
        low, high = self._limits()
        self._draw_rounds(low, high)
        self.ax_.set(xlim=(low, high), xlabel="time since the start of the fit (s)")
        rank_ticks(self.ax_, self.ranks, driver=self.driver)
        self.legend_ = self._add_legend() if legend else None
        return self

    def _corners(self, spans: np.ndarray, *, beside: bool) -> np.ndarray:
        """Rectangles of spans, of shape (n_spans, 4, 2)."""
        row_of = {rank: row for row, rank in enumerate(self.ranks)}
        rows = np.array([row_of[rank] for rank in spans["rank"].tolist()], dtype=float)
        corners = np.empty((len(spans), 4, 2))
        corners[:, [0, 1], 0] = spans["start"][:, np.newaxis]
        corners[:, [2, 3], 0] = spans["stop"][:, np.newaxis]
        # Rows are numbered from top to bottom.
        top = _HEIGHT * (0.5 - _BESIDE) if beside else -_HEIGHT / 2
        corners[:, [0, 3], 1] = rows[:, np.newaxis] + top
        corners[:, [1, 2], 1] = rows[:, np.newaxis] + _HEIGHT / 2
        return corners

    def _limits(self) -> tuple[float, float]:
        """First and last second to show."""
        if self.time_range is not None:
            return self.time_range
        return min(0.0, self.timeline["start"].min()), self.timeline["stop"].max()

    def _draw_rounds(self, low: float, high: float) -> None:
        """Draw the ends of the rounds, unless they would cover the chart."""
        ends = self.round_ends[(self.round_ends > low) & (self.round_ends < high)]
        if len(ends) > 1 and np.diff(ends).min() < _ROUND_GAP * (high - low):
            return
        for end in ends:
            self.ax_.axvline(end, color="black", linewidth=0.7, linestyle=":")

    def _add_legend(self) -> Any:
        """A legend above the chart, where it covers nothing."""
        handles = list(self.bars_.values())
        if any(line.get_linestyle() == ":" for line in self.ax_.lines):
            lines = load("lines")
            handles.append(
                lines.Line2D(
                    [], [], color="black", lw=0.7, ls=":", label="end of round"
                )
            )
        return self.ax_.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=len(handles),
            frameon=False,
            handlelength=1.2,
            columnspacing=1.2,
        )
