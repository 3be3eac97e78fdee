"""The objective of fits against rounds, time, bytes or rows (Fig. 4 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """What the horizontal axis shows: a field of the records, and its label."""

    field: str
    label: str
    unit: str | None  # of large numbers, None for plain ones
    adds_up: bool


_AXES = {
    "round": _Axis("round", "round", None, adds_up=False),
    "time": _Axis("time", "time (s)", None, adds_up=False),
    "bytes": _Axis("bytes_sent", "bytes sent between processes", "B", adds_up=True),
    "samples": _Axis("n_samples", "rows gone over by all ranks", "", adds_up=True),
}


class ConvergenceDisplay:
    """Curves of the objective of one fit or several.

    It is recommended to use :meth:`from_estimators` to create one.

    Parameters
    ----------
    curves : dict of str to tuple of ndarray
        Horizontal and vertical values of each curve, of shape (n_points,), by its
        label.
    x : {"round", "time", "bytes", "samples"}, default="round"
        What the horizontal values are.
    best : float, default=None
        Lowest objective that there can be. It is taken off, and the vertical axis is
        logarithmic; a point that is not above it is not drawn. None shows the objective
        as it is.

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
        best: float | None = None,
    ) -> None:
        if x not in _AXES:
            raise ValueError(f"x must be one of {', '.join(_AXES)}, got {x!r}")
        self.curves = dict(curves)
        self.x = x
        self.best = best

    @classmethod
    def from_estimators(
        cls,
        estimators: Any,
        x: str = "round",
        *,
        best: float | None = None,
        ax: Any = None,
        labels: Sequence[str] | None = None,
    ) -> Self:
        """Draw the objective over the last fits of estimators.

        Parameters
        ----------
        estimators : estimator, list of estimator or dict of str to estimator
            Fitted estimators of this package. The keys of a dict are the labels.
        x : {"round", "time", "bytes", "samples"}, default="round"
            Horizontal axis: rounds; seconds since the start of the fit; bytes sent
            between processes so far, by all ranks; or rows that all ranks together have
            gone over. Ranks of one process send no bytes.
        best : float, default=None
            Lowest objective that there can be; see :class:`ConvergenceDisplay`.
        ax : matplotlib.axes.Axes, default=None
            Axes to draw on; None makes a new figure.
        labels : sequence of str, default=None
            Labels of a list, which are its classes and numbers otherwise.

        Returns
        -------
        display : ConvergenceDisplay
            Rounds whose objective has not been evaluated have no point.

        Raises
        ------
        NotFittedError
            If an estimator has not been fitted.
        ValueError
            If there are not as many labels as estimators, or `x` is not known.
        """
        found = _labelled(estimators, labels)
        for estimator in found.values():
            check_is_fitted(estimator, "history_")
        display = cls({}, x=x, best=best)
        axis = _AXES[x]
        for label, estimator in found.items():
            display.curves[label] = _curve(estimator.history_, axis)
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
        for number, (label, (values, objective)) in enumerate(self.curves.items()):
            shown = objective
            if self.best is not None:
                gap = objective - self.best
                shown = np.where(gap > 0, gap, np.nan)
            (self.lines_[label],) = self.ax_.plot(
                values,
                shown,
                color=_COLOURS[number % len(_COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                markersize=4,
                markevery=max(1, len(values) // _MOST_MARKERS),
                label=label,
            )
        self._label_axes()
        if self.curves:
            self.ax_.legend(frameon=False)
        return self

    def _label_axes(self) -> None:
        """Scales, units and labels."""
        ticker, axis = load("ticker"), _AXES[self.x]
        self.ax_.set_xlabel(axis.label)
        if axis.unit is not None:
            self.ax_.xaxis.set_major_formatter(ticker.EngFormatter(unit=axis.unit))
        elif self.x == "round":
            self.ax_.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
        if self.best is None:
            self.ax_.set_ylabel("objective")
        else:
            self.ax_.set_yscale("log")
            self.ax_.set_ylabel("objective above the best")


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
    history: Sequence[dict[str, Any]], axis: _Axis
) -> tuple[np.ndarray, np.ndarray]:
    """Points of a history: those of the rounds that have been evaluated."""
    values = np.array([record[axis.field] for record in history], dtype=float)
    if axis.adds_up:
        values = np.cumsum(values)
    objective = np.array([record["objective"] for record in history], dtype=float)
    known = ~np.isnan(objective)
    return values[known], objective[known]
