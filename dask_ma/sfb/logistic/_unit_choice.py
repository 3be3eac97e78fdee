"""Choice between uncorrelated features and second derivatives of all pairs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import numpy as np

from dask_ma.sfb.logistic._coupled_units import CoupledUnits
from dask_ma.sfb.logistic._objective import Objective
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.logistic._step_cost import (
    hessian_seconds,
    product_seconds,
    rows_of_hessian,
)
from dask_ma.sfb.logistic._totals import Totals
from dask_ma.sfb.logistic._units import UncorrelatedUnits, Units

# Features of dense rows that may be made uncorrelated, at most, and for each output:
# second moments are to take no more than some gradients.
_MOST_FEATURES, _FEATURES_PER_OUTPUT = 2048, 200
# The same of coefficients, for sparse rows, whose products take less.
_MOST_COEFFICIENTS = 1200
# Coefficients with second derivatives of all pairs, at most, where features may be made
# uncorrelated: the few products that steps then take are soon less.
_FEW_VARIABLES = 300
# By how many times spreads of features differ, for dual points to be mostly rounding:
# all second derivatives then bound the minimum.
_FAR = 1e9
# Steps with second derivatives of all pairs that conjugate gradients may take as long
# as, in all.
_MOST_STEPS = 8


def can_mix(shape: tuple[int, int], penalty: Penalty, is_sparse: bool) -> bool:
    """Whether features may be made uncorrelated.

    Parameters
    ----------
    shape : tuple of int
        Outputs and features.
    penalty : Penalty
    is_sparse : bool
        Whether rows are.

    Returns
    -------
    can_mix : bool
    """
    n_outputs, n_features = shape
    if is_sparse:
        return not penalty.l1 and n_outputs * n_features <= _MOST_COEFFICIENTS
    most = min(_MOST_FEATURES, _FEATURES_PER_OUTPUT * n_outputs)
    return not penalty.l1 and n_features <= most


def most_pairs(
    shape: tuple[int, int],
    penalty: Penalty,
    most: int,
    scales: np.ndarray,
    is_sparse: bool,
) -> int:
    """How many coefficients have second derivatives of all pairs at most.

    Parameters
    ----------
    shape, penalty, is_sparse
        As in :func:`can_mix`.
    most : int
        How many may have them in any case.
    scales : ndarray of shape (n_features,)
        Spreads of the features.

    Returns
    -------
    n_variables : int
    """
    is_far = scales.max() > _FAR * scales.min()
    mixes = penalty.l2 > 0 and not is_far and can_mix(shape, penalty, is_sparse)
    return min(_FEW_VARIABLES, most) if mixes else most


class UnitChoice:
    """Units of steps, and how many variables have second derivatives of all pairs.

    Where few coefficients have conjugate gradients, these may still take long, as among
    classes that are next to separable. Once they have taken as long as some steps with
    second derivatives of all pairs, there are such steps.

    Parameters
    ----------
    objective : Objective
    shape : tuple of int
        Outputs and features.
    penalty : Penalty
    totals : Totals
        Sums over all ranks.
    most : int
        How many variables may have second derivatives of all pairs in any case.
    has_intercept : bool
    kept : dict
        What :meth:`state_dict` has given, if anything.

    Attributes
    ----------
    most : int
        How many variables have second derivatives of all pairs at most.
    """

    def __init__(
        self,
        objective: Objective,
        shape: tuple[int, int],
        penalty: Penalty,
        totals: Totals,
        most: int,
        *,
        has_intercept: bool,
        kept: dict[str, Any],
    ) -> None:
        self._objective, self._shape, self._penalty = objective, shape, penalty
        self._totals, self._has_intercept = totals, has_intercept
        self._n_variables = shape[0] * (shape[1] + has_intercept)
        few = most_pairs(shape, penalty, most, totals.feature_scales, totals.is_sparse)
        self._may_turn = few < self._n_variables <= most
        self._any = most
        self._n_products = int(kept.get("n_products", 0))
        self.most = few
        self.turn(0)

    def make(self) -> Units:
        """Units in which steps are made; a collective call."""
        n_outputs, penalty = self._shape[0], self._penalty
        # The second derivative of a loss by a margin is about a fourth at most.
        place = self._totals.feature_scales / 2, n_outputs, penalty.l2
        is_large = self._n_variables > self.most
        if not is_large or not can_mix(self._shape, penalty, self._totals.is_sparse):
            return Units(*place, has_intercept=self._has_intercept)
        moments = self._objective.second_moments()
        kind: Callable[..., Units] = UncorrelatedUnits
        if n_outputs > 1:
            kind = partial(CoupledUnits, n_rows=self._objective.n_rows)
        return kind(*place, has_intercept=self._has_intercept, moments=moments)

    def turn(self, n_products: int) -> bool:
        """Take note of products; return whether there are all pairs from here on.

        Parameters
        ----------
        n_products : int
            What a step has taken, the same on all ranks.

        Returns
        -------
        turns : bool
        """
        self._n_products += n_products
        if not self._may_turn or self._n_products <= self._most_products():
            return False
        self._may_turn, self.most = False, self._any
        return True

    def state_dict(self) -> dict[str, np.ndarray]:
        """What it has taken note of."""
        return {"n_products": np.array(self._n_products)}

    def _most_products(self) -> float:
        """How many take as long as some steps with second derivatives of all pairs."""
        objective, n_entries = self._objective, self._objective.n_entries
        is_sparse = self._totals.is_sparse
        rows = objective.n_rows, n_entries
        each = product_seconds(*rows, self._shape[0], is_sparse=is_sparse)
        rows = rows_of_hessian(self._n_variables, objective.n_rows), n_entries
        whole = hessian_seconds(*rows, self._shape, is_sparse=is_sparse)
        # Rows without an element have nothing to be multiplied with.
        return _MOST_STEPS * whole / each if each > 0 else inf
