"""Curves of fits: objective, gap and data read, against rounds, time, data or bytes.

Objective against data, data against time and objective against time are OvD, DvT and
the convergence time of the paper on scheduled model parallelism (section 5); objective
against rounds and time are Fig. 4 of the paper on model averaging.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dask_ma.plotting._axes import (
    BLACK,
    BLUE,
    GREEN,
    MARKERS,
    ORANGE,
    PINK,
    SKY,
    VERMILION,
    load,
    new_axes,
)

_COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PINK, SKY, BLACK)
_MOST_MARKERS = 20  # of a curve


class _Axis(NamedTuple):
    """What an axis shows: a field of the records, and its label."""

    field: str
    label: str
    unit: str | None = None  # of large numbers, None for plain ones
    adds_up: bool = False  # records of single rounds


_PROGRESS = {
    "bytes": _Axis("bytes_sent", "bytes sent between processes", "B", adds_up=True),
    "samples": _Axis("n_samples", "rows gone over by all ranks", "", adds_up=True),
    "n_touched": _Axis(
        "n_touched", "elements of the data read by all ranks", "", adds_up=True
    ),
}
_X = {"round": _Axis("round", "round"), "time": _Axis("time", "time (s)"), **_PROGRESS}
_Y = {
    "objective": _Axis("objective", "objective"),
    "dual_gap": _Axis("dual_gap", "duality gap"),
    **_PROGRESS,
}
_SCALES = ("linear", "log")


class ConvergenceDisplay:
    """Curves of how one fit or several come on.

    It is recommended to use :meth:`from_estimators` to create one.

    Parameters
    ----------
    curves : dict of str to tuple of ndarray
        Horizontal and vertical values of each curve, of shape (n_points,), by its
        label.
    x : {"round", "time", "bytes", "samples", "n_touched"}, default="round"
        What the horizontal values are.
    y : {"objective", "dual_gap", "bytes", "samples", "n_touched"}, default="objective"
        What the vertical values are.
    best : float, default=None
        Lowest objective that there can be. It is taken off, and the vertical axis is
        logarithmic. None shows the objective as it is.
    xscale, yscale : {"linear", "log"}, default=None
        Scales of the axes. None means logarithmic for the duality gap and for what is
        above `best`, and otherwise leaves the scale of the axes, which is linear for
        new ones. On a logarithmic axis a point that is not above 0 is not drawn.

    Attributes
    ----------
    curves : dict of str to tuple of ndarray
        As given.
    ax_ : matplotlib.axes.Axes
        Where it is drawn.
    figure_ : matplotlib.figure.Figure
        Figure of the axes.
    lines_ : dict of str to matplotlib.lines.Line2D
        The curves drawn, by label.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_ma import MASGDClassifier
    >>> from dask_ma.plotting import ConvergenceDisplay
    >>> X = np.random.default_rng(0).normal(size=(200, 5))
    >>> models = {
    ...     n: MASGDClassifier(n_ranks=n, random_state=0).fit(X, X[:, 0] > 0)
    ...     for n in (1, 2)
    ... }
    >>> display = ConvergenceDisplay.from_estimators(models)  # doctest: +SKIP
    """

    def __init__(
        self,
        curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
        *,
        x: str = "round",
        y: str = "objective",
        best: float | None = None,
        xscale: str | None = None,
        yscale: str | None = None,
    ) -> None:
        _check_choice("x", x, _X)
        _check_choice("y", y, _Y)
        if xscale is not None:
            _check_choice("xscale", xscale, _SCALES)
        if yscale is not None:
            _check_choice("yscale", yscale, _SCALES)
        if best is not None and y != "objective":
            raise ValueError(
                f"best is an objective; with y={y!r} it must be None, got {best}"
            )
        self.curves = dict(curves)
        self.x = x
        self.y = y
        self.best = best
        self.xscale = xscale
        self.yscale = yscale

    @classmethod
    def from_estimators(
        cls,
        estimators: Any,
        x: str = "round",
        y: str = "objective",
        *,
        best: float | None = None,
        xscale: str | None = None,
        yscale: str | None = None,
        ax: Any = None,
        labels: Sequence[str] | None = None,
    ) -> Self:
        """Draw how the last fits of estimators have come on.

        Parameters
        ----------
        estimators : estimator, list of estimator or dict of str to estimator
            Fitted estimators of this package. The keys of a dict are the labels.
        x : {"round", "time", "bytes", "samples", "n_touched"}, default="round"
            Horizontal axis: rounds; seconds since the start of the fit; bytes sent
            between processes so far; rows that have been gone over; or stored elements
            of the data that have been read. The last three are those of all ranks
            together. Ranks of one process send no bytes.
        y : {"objective", "dual_gap", "bytes", "samples", "n_touched"}, \
                default="objective"
            Vertical axis: the objective, its duality gap, or as above.
        best : float, default=None
            Lowest objective that there can be; see :class:`ConvergenceDisplay`.
        xscale, yscale : {"linear", "log"}, default=None
            Scales of the axes; see :class:`ConvergenceDisplay`.
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.
        labels : sequence of str, default=None
            Labels of a list, which are its classes and numbers otherwise.

        Returns
        -------
        display : ConvergenceDisplay
            Rounds for which `y` is not known, such as the objective where it has not
            been evaluated, have no point.

        Raises
        ------
        NotFittedError
            If an estimator has not been fitted.
        ValueError
            If there are not as many labels as estimators, if `x`, `y` or a scale is not
            known, if there is a `best` without the objective, or if the history of an
            estimator does not tell what is asked for.

        Notes
        -----
        Three pictures tell how a method and its implementation share the credit: the
        objective against the data read (``x="n_touched"``), the data read against time
        (``x="time", y="n_touched"``), and the objective against time.
        """
        found = _labelled(estimators, labels)
        for estimator in found.values():
            check_is_fitted(estimator, "history_")
        display = cls({}, x=x, y=y, best=best, xscale=xscale, yscale=yscale)
        for label, estimator in found.items():
            name = type(estimator).__name__
            display.curves[label] = _curve(estimator.history_, _X[x], _Y[y], name)
        return display.plot(ax)

    def plot(self, ax: Any = None) -> Self:
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.

        Returns
        -------
        self : ConvergenceDisplay
        """
        self.ax_ = new_axes(ax, (6, 4))
        self.figure_ = self.ax_.figure
        self.lines_: dict[str, Any] = {}
        for number, label in enumerate(self.curves):
            horizontal, vertical = self._shown(label)
            (self.lines_[label],) = self.ax_.plot(
                horizontal,
                vertical,
                color=_COLOURS[number % len(_COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                markersize=4,
                markevery=max(1, len(horizontal) // _MOST_MARKERS),
                label=label,
            )
        self._label_axes()
        if self.curves:
            self.ax_.legend(frameon=False)
        return self

    def _scales(self) -> tuple[str | None, str | None]:
        """Scales of the two axes; None leaves that of the axes given."""
        is_distance = self.best is not None or self.y == "dual_gap"
        return self.xscale, self.yscale or ("log" if is_distance else None)

    def _shown(self, label: str) -> tuple[np.ndarray, np.ndarray]:
        """Values of a curve as they are drawn."""
        horizontal, vertical = self.curves[label]
        if self.best is not None:
            vertical = vertical - self.best
        xscale, yscale = self._scales()
        if xscale == "log":
            horizontal = np.where(horizontal > 0, horizontal, np.nan)
        if yscale == "log":
            vertical = np.where(vertical > 0, vertical, np.nan)
        return horizontal, vertical

    def _label_axes(self) -> None:
        """Scales, units and labels."""
        xscale, yscale = self._scales()
        # Before the formatters, which a new scale would take away.
        if xscale is not None:
            self.ax_.set_xscale(xscale)
        if yscale is not None:
            self.ax_.set_yscale(yscale)
        ticker = load("ticker")
        for side, axis in ((self.ax_.xaxis, _X[self.x]), (self.ax_.yaxis, _Y[self.y])):
            side.set_label_text(axis.label)
            if axis.unit is not None:
                side.set_major_formatter(ticker.EngFormatter(unit=axis.unit))
        if self.x == "round" and self.ax_.get_xscale() == "linear":
            self.ax_.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        if self.best is not None:
            self.ax_.set_ylabel("objective above the best")


def _check_choice(name: str, value: str, known: Iterable[str]) -> None:
    """Refuse a value that is not known."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")


def _labelled(estimators: Any, labels: Sequence[str] | None) -> dict[str, Any]:
    """The estimators by label."""
    if isinstance(estimators, Mapping):
        if labels is not None:
            raise ValueError(
                "labels should be None with a dict of estimators, whose keys are the "
                f"labels, got {list(labels)}"
            )
        return {str(key): estimator for key, estimator in estimators.items()}
    if not isinstance(estimators, list | tuple):
        estimators = [estimators]
    if labels is None:
        names = [type(estimator).__name__ for estimator in estimators]
        if len(names) > 1:
            names = [f"{name} {number}" for number, name in enumerate(names)]
        labels = names
    if len(set(labels)) != len(estimators):
        raise ValueError(
            f"labels must be {len(estimators)} different ones, one for each estimator, "
            f"got {list(labels)}"
        )
    return dict(zip(labels, estimators, strict=True))


def _curve(
    history: Sequence[dict[str, Any]], x: _Axis, y: _Axis, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Points of a history: those of the rounds whose vertical value is known."""
    horizontal, vertical = _values(history, x, name), _values(history, y, name)
    known = ~np.isnan(vertical)
    return horizontal[known], vertical[known]


def _values(history: Sequence[dict[str, Any]], axis: _Axis, name: str) -> np.ndarray:
    """One value for each record of a history."""
    for record in history:
        if axis.field not in record:
            raise ValueError(
                f"the history of {name} does not tell {axis.field!r}; it has "
                f"{', '.join(sorted(record))}"
            )
    values = np.array([record[axis.field] for record in history], dtype=float)
    return np.cumsum(values) if axis.adds_up else values
