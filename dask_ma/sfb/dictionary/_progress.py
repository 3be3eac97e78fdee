"""Progress of batches: a smoothed objective, and its best value."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

# Batches whose rows are alike by chance change little, where others follow.
_STILL = 10
_WARM_UP = 100  # batches, or a pass, that say little of where a fit will end


class Progress(NamedTuple):
    """What the objectives of batches have shown.

    Attributes
    ----------
    n_batches : int
        Batches made.
    smoothed : float or None
        Mean objective, the latest weighing most; None before there is one.
    best : float or None
        Least of those.
    n_worse : int
        Batches since then.
    is_settled : bool
        Whether the fit may end.
    n_still : int
        Batches in a row that have changed the atoms by no more than `tol`.
    """

    n_batches: int = 0
    smoothed: float | None = None
    best: float | None = None
    n_worse: int = 0
    is_settled: bool = False
    n_still: int = 0

    def after(
        self,
        objective: float,
        change: float,
        *,
        share: float,
        tol: float,
        patience: int | None,
        n_ranks: int = 1,
    ) -> Progress:
        """What there is to say after one more batch, or one of each of some ranks.

        Parameters
        ----------
        objective : float
            Mean over the rows.
        change : float
            Of the atoms: the Frobenius norm, divided by their number.
        share : float
            Part of all rows that this is.
        tol : float
            Changes no larger than this end the fit, of 10 batches in a row; 0 looks at
            none.
        patience : int or None
            So many batches without a lower mean end it; None does not count them.
        n_ranks : int, default=1
            Batches that this is.

        Returns
        -------
        progress : Progress
        """
        n_batches = self.n_batches + n_ranks
        if n_batches <= min(_WARM_UP, n_ranks / share):
            return Progress(n_batches)
        smoothed = objective
        if self.smoothed is not None:
            weight = min(share, 1.0)
            smoothed = (1 - weight) * self.smoothed + weight * objective
        is_better = self.best is None or smoothed < self.best
        n_worse = 0 if is_better else self.n_worse + n_ranks
        ends = patience is not None and n_worse >= patience
        n_still = self.n_still + n_ranks if 0 < tol and change <= tol else 0
        return Progress(
            n_batches,
            smoothed,
            smoothed if is_better else self.best,
            n_worse,
            ends or n_still >= _STILL,
            n_still,
        )


def atom_change(before: np.ndarray, after: np.ndarray) -> float:
    """How far atoms have moved: the Frobenius norm, divided by their number.

    Parameters
    ----------
    before, after : ndarray of shape (n_components, n_features)

    Returns
    -------
    change : float
    """
    return float(np.linalg.norm(after - before)) / len(after)


def last_fall(history: list[dict[str, Any]]) -> float:
    """By what part the mean objective of the last pass is below that of the one before.

    Parameters
    ----------
    history : list of dict
        Records of a fit, each with `n_iter` and `objective`.

    Returns
    -------
    fall : float
        Negative where it has risen; 0 where there are not three whole passes, as the
        first says little.
    """
    passes = np.array([0] + [record["n_iter"] for record in history])
    ends = np.flatnonzero(np.diff(passes) > 0) + 1
    if len(ends) < 3:
        return 0.0
    objectives = np.array([record["objective"] for record in history])
    last, before = objectives[ends[-2] : ends[-1]], objectives[ends[-3] : ends[-2]]
    means = [each[np.isfinite(each)].mean() for each in (last, before)]
    return float(1 - means[0] / means[1]) if means[1] > 0 else 0.0
