"""Errors about runs whose steps are too long."""

from __future__ import annotations

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.sfb._start import is_finite
from dask_ma.sfb.model._matrix import ParameterMatrix

_N_SHOWN = 5
_MUCH = 100.0  # times the least objective so far
_N_RISES = 3


class DivergenceCheck:
    """Refuses objectives that are not finite, or that keep growing.

    Parameters
    ----------
    advice : str
        What the user can do about it.
    """

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._seen: list[float] = []

    def check(self, objective: float, n_passes: int) -> None:
        """Look at the objective after a pass.

        Parameters
        ----------
        objective : float
            NaN if the model has none.
        n_passes : int
            Passes made, for the message.

        Raises
        ------
        ValueError
            If the objective is infinite, or has risen three times in a row to much more
            than it was.
        """
        self._seen.append(objective)
        last = self._seen[-_N_RISES - 1 :]
        rises = len(last) > _N_RISES and bool(np.all(np.diff(last) > 0))
        least = min(self._seen)
        grows = rises and least > 0 and objective > _MUCH * least
        if np.isinf(objective) or grows:
            shown = ", ".join(f"{value:.6g}" for value in self._seen[-_N_SHOWN:])
            raise ValueError(
                f"the objective grows without bound: after {n_passes} passes its last "
                f"values are {shown}; {self._advice}"
            )


def check_matrix(
    group: Group, matrix: ParameterMatrix, n_passes: int, advice: str
) -> None:
    """Refuse a matrix that is not finite on some rank; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    matrix : ParameterMatrix
        That of the rank, or its share.
    n_passes : int
        Passes made, for the message.
    advice : str
        What the user can do about it.

    Raises
    ------
    ValueError
        If elements or intercepts of any rank are NaN or infinite.
    """
    intercept = matrix.intercept
    is_bad = intercept is not None and not np.isfinite(intercept).all()
    is_bad = is_bad or not all(is_finite(part.T) for part in matrix.chunks())
    if allreduce(group, np.array(int(is_bad))):
        raise ValueError(
            f"the matrix is not finite after {n_passes} passes: it has grown without "
            f"bound; {advice}"
        )
