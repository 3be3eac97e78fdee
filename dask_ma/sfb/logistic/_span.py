"""Coordinates in what few long rows span, for which a fit has few coefficients.

An L2 penalty leaves nothing of a coefficient that no row sees: the optimum is a sum of
rows. Where there are fewer of them than features, coordinates in what they span are
enough, in which lengths, and so rows, steps and objective, stay what they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, broadcast
from dask_ma.data import Block, Shard
from dask_ma.engine import State
from dask_ma.exceptions import CheckpointError
from dask_ma.kernels import orthonormal_basis
from dask_ma.sfb.logistic._params import SFBParams
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.logistic._refine import MOST_VARIABLES
from dask_ma.supervised import Problem, gathered

# Rows for which a basis takes no longer than some passes, and numbers in it, at most.
_MOST_ROWS, _MOST_NUMBERS = 512, 2**23
_WIDER = 2  # times the elements of rows in coordinates, that these have at least
_LOST = 1e-6  # of the squared lengths of rows, at most
_AT_ONCE = 2**18  # coefficients that are made at a time


class Span:
    """Coordinates in what rows span.

    Parameters
    ----------
    basis : ndarray of shape (n_columns, n_basis)
        Orthonormal.
    columns : ndarray of int of shape (n_columns,) or None
        The features that it has, where the others are zero in all rows; None for all.
    n_features : int
        Of the rows.
    dtype : dtype
        Of coefficients.
    """

    def __init__(
        self, basis: np.ndarray, columns: np.ndarray | None, n_features: int, dtype: Any
    ) -> None:
        self._basis = basis
        self._columns = columns
        self._n_features = n_features
        self._dtype = np.dtype(dtype)

    def rows_of(self, X: Any) -> np.ndarray:
        """Coordinates of rows.

        Parameters
        ----------
        X : ndarray or CSR of shape (n_rows, n_features)

        Returns
        -------
        rows : ndarray of shape (n_rows, n_basis)
        """
        X = X if self._columns is None else X[:, self._columns]
        return np.asarray(X @ self._basis)

    def coef_of(self, values: np.ndarray) -> np.ndarray:
        """Coefficients from those for rows in coordinates.

        Parameters
        ----------
        values : ndarray of shape (n_basis, n_outputs)

        Returns
        -------
        coef : ndarray of shape (n_outputs, n_features)
        """
        coef = np.zeros((values.shape[1], self._n_features), dtype=self._dtype)
        size = max(1, _AT_ONCE // values.shape[1])
        for start in range(0, len(self._basis), size):
            part = slice(start, start + size)
            features = part if self._columns is None else self._columns[part]
            coef[:, features] = values.T @ self._basis[part].T
        return coef

    def problem_of(self, problem: Problem) -> Problem:
        """The problem of rows in coordinates.

        Parameters
        ----------
        problem : Problem
            Of the rows as they are.

        Returns
        -------
        problem : Problem
        """
        blocks = [self._block_of(block) for block in problem.shard.read()]
        n_basis, dtype = self._basis.shape[1], self._basis.dtype
        shard = replace(problem.shard, blocks=blocks, n_features=n_basis, dtype=dtype)
        n_stored = problem.total_rows * n_basis
        return replace(problem, shard=shard, total_stored=n_stored, dtype=dtype)

    def state_dict(self) -> dict[str, Any]:
        """What :func:`find_span` finds the same coordinates from."""
        return {"basis": self._basis, "basis_columns": self._columns}

    def check(self, shard: Shard) -> None:
        """Refuse rows that it does not span.

        Parameters
        ----------
        shard : Shard

        Raises
        ------
        CheckpointError
            If they have other lengths in coordinates.
        """
        for block in shard.read():
            found, expected = (
                float(np.vdot(values, values))
                for values in (self.rows_of(block.X), _elements(block.X))
            )
            if abs(found - expected) > _LOST * expected:
                raise CheckpointError(
                    "the state to go on from is of other rows than these: a part of "
                    "them does not lie in what those of the state span; fit from the "
                    "beginning, with another checkpoint path"
                )

    def _block_of(self, block: Block) -> Block:
        """A block of rows in coordinates."""
        weight = block.sample_weight
        weight = None if weight is None else weight.astype(self._basis.dtype)
        return block._replace(X=self.rows_of(block.X), sample_weight=weight)


def find_span(
    group: Group, problem: Problem, params: SFBParams, state: State | None
) -> Span | None:
    """Coordinates for the rows of all ranks, if they pay; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    problem : Problem
        Rows and classes.
    params : SFBParams
        Parameters of the fit.
    state : State or None
        What the fit goes on from, in the coordinates that it has had.

    Returns
    -------
    span : Span or None
        None for a fit of the features themselves.
    """
    n_features = problem.shard.n_features
    if state is not None:
        basis, columns = (state.shared.get(k) for k in ("basis", "basis_columns"))
        if basis is None:
            return None
        if columns is None and len(basis) != n_features:
            raise CheckpointError(
                f"the model to go on from has {len(basis)} features, but these data "
                f"have {n_features}"
            )
        span = Span(basis, columns, n_features, problem.dtype)
        span.check(problem.shard)
        return span
    if not _pays(problem, params):
        return None
    whole, found = [gathered(problem.shard, group)], None
    if group.rank == 0:
        found = _basis_of(whole.pop())  # who has it last, lets it go
    # Nobody changes it, so that ranks of a process need one.
    basis, columns = broadcast(group, found, copy=False)
    return Span(basis, columns, n_features, problem.dtype)


def _pays(problem: Problem, params: SFBParams) -> bool:
    """Whether rows in coordinates have far fewer elements, and are quickly found."""
    exchange, penalty = (
        params.settings.exchange,
        Penalty.of(params.penalty, params.alpha, params.l1_ratio),
    )
    # Who says what is sent gets that, as do those who take steps of their own.
    is_free = exchange.content == "auto" and not exchange._wants_factors
    if params.solver != "sdca" or penalty.l1 or not is_free:
        return False
    n_rows, n_features = problem.total_rows, problem.shard.n_features
    if n_features * problem.n_problems <= MOST_VARIABLES or n_rows > _MOST_ROWS:
        return False
    n_numbers = n_rows * n_features
    has_room = n_numbers <= _MOST_NUMBERS and 8 * n_numbers <= params.most_moved
    return has_room and _WIDER * n_rows**2 <= problem.total_stored


def _basis_of(shard: Shard) -> tuple[np.ndarray, np.ndarray | None]:
    """The basis of all rows, and the features that it is of."""
    is_sparse, rows = shard.is_sparse, [block.X for block in shard.read()]
    # The rows of other ranks are as large as the basis, which is made in two steps:
    # they end with the first one, so that there are two of these matrices, not three.
    del shard
    if not is_sparse:
        return orthonormal_basis(_taken(rows)), None
    X = sparse.vstack(rows).tocsr()
    columns = np.unique(X.indices)
    found = [X[:, columns].toarray()]
    return orthonormal_basis(_taken(found)), columns


def _taken(rows: list[np.ndarray]) -> np.ndarray:
    """Dense rows as columns in float64; no copy of one block, which the list loses."""
    whole = rows.pop() if len(rows) == 1 else np.vstack(rows)
    return whole.T.astype(np.float64, copy=False)


def _elements(X: Any) -> np.ndarray:
    """Those that are not zero, in float64."""
    elements = X.data if sparse.issparse(X) else X
    return np.asarray(elements, dtype=np.float64)
