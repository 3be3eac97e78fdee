"""Second derivatives of the loss by the coefficients of a working set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import gather, reduce, reduce_and_gather
from dask_ma.engine import RoundLog
from dask_ma.kernels import row_slice, softmax, softmax_hessian
from dask_ma.layouts._design import is_among
from dask_ma.schmp.l1._gram import ColumnGram, Gram, WholeGram, block_of
from dask_ma.schmp.l1._problem import Objective

# Of all ranks: up to so many, rank 0 gets the columns of a quadratic loss themselves.
# They are less than their products then, which are as many as there are coefficients.
_FEW_ROWS = 1000
# New columns that are so many bytes come in two parts: the first, so much of them, is
# solved for while the second is under way.
_MANY_BYTES = 2 * 2**20
_FIRST_PART = 1 / 3


class System(NamedTuple):
    """What rank 0 has of all ranks to solve for some coefficients.

    Attributes
    ----------
    hessian : Gram
        Second derivatives of the loss over the rows of all ranks, of shape (n, n); with
        the intercepts in its last rows and columns unless the loss is quadratic.
    order : ndarray of int64
        Which of the coefficients asked for the rows of the Hessian belong to.
    sums : list of ndarray
        Sums of what else each rank has given.
    payloads : list of object
        What the ranks tell, in their order; empty where they tell nothing.
    n_late : int
        How many coefficients, the last of `order`, the Hessian lacks as yet.
    rest : callable or None
        Waits for these, and completes it. To be called once, before any other
        collective call; None where nothing is lacking.
    """

    hessian: Gram
    order: np.ndarray
    sums: list[np.ndarray]
    payloads: list[Any]
    n_late: int = 0
    rest: Callable[[], None] | None = None


class HessianCache:
    """Second derivatives of the loss, added up over ranks for rank 0.

    Those of a quadratic loss stay as they are, and are kept: as a matrix, or as the
    columns that it is made of where there are few rows.

    Parameters
    ----------
    objective : Objective
        Loss and data.
    log : RoundLog
        Where computing is timed.

    Attributes
    ----------
    has_few_rows : bool
        Whether rank 0 gets columns, and not their products.
    """

    def __init__(self, objective: Objective, log: RoundLog) -> None:
        self._log = log
        self._objective = objective
        self._order = np.zeros(0, dtype=np.int64)  # in which coefficients have come
        self._room = np.zeros((0, 0))  # for the Hessian in that order
        self._columns = ColumnGram()  # in its place where rows are few
        is_quadratic = objective.loss.is_quadratic
        self.has_few_rows = is_quadratic and objective.n_rows <= _FEW_ROWS

    def may_be_late(self, new: np.ndarray) -> np.ndarray | None:
        """Which of some new coefficients, the worst first, :meth:`update` may delay.

        Parameters
        ----------
        new : ndarray of int64
            Coefficients that are zero.

        Returns
        -------
        later : ndarray of int64 or None
            Sorted; the same on all ranks, wherever they are. None where columns do not
            travel, or are few.
        """
        design = self._objective.design
        nbytes = 8 * self._objective.n_rows * len(new)
        travels = self.has_few_rows and not design.has_all_rows
        if not travels or design.group.size == 1 or nbytes < _MANY_BYTES:
            return None
        return np.sort(new[int(_FIRST_PART * len(new)) :])

    def update(
        self,
        coordinates: np.ndarray,
        riders: Sequence[np.ndarray] = (),
        payload: Any = None,
        later: np.ndarray | None = None,
    ) -> System | None:
        """Hessian of some coefficients on rank 0; a collective call.

        Parameters
        ----------
        coordinates : ndarray of int64
            Which coefficients, sorted.
        riders : sequence of ndarray
            What is to be added up over ranks besides, in the same messages if may be.
        payload : object, default=None
            What this rank tells rank 0; the ranks have to agree whether it is None.
        later : ndarray of int64, default=None
            Sorted coefficients whose columns may come to rank 0 behind those of the
            others, where it gets columns; there must be no riders then.

        Returns
        -------
        system : System or None
            None but on rank 0.
        """
        if not self._objective.loss.is_quadratic:
            return self._whole(coordinates, riders, payload)
        group = self._objective.design.group
        kept = is_among(self._order, coordinates)
        new = coordinates[~is_among(coordinates, np.sort(self._order))]
        late = new[:0]
        if later is not None:
            is_late = is_among(new, later)
            new, late = new[~is_late], new[is_late]
        order = np.concatenate([self._order[kept], new, late])
        found, payloads = self._ask(order, new, payload)
        sums = reduce(group, list(riders)) if riders else []
        self._order = order
        if group.rank != 0:
            if len(late):
                self._ask(order, late, None)
            return None
        rows = np.searchsorted(coordinates, order)
        gram = self._take_in(kept, found)
        rest = partial(self._append, order, late) if len(late) else None
        return System(gram, rows, sums or [], payloads, len(late), rest)

    def _append(self, order: np.ndarray, late: np.ndarray) -> None:
        """Columns of the coefficients that have come later, on rank 0."""
        found, _ = self._ask(order, late, None)
        self._columns.exchange(np.ones(len(order) - len(late), dtype=bool), found)

    def _ask(
        self, order: np.ndarray, new: np.ndarray, payload: Any
    ) -> tuple[np.ndarray | None, list[Any]]:
        """What is new, and what the ranks tell, on rank 0; a collective call."""
        objective, design = self._objective, self._objective.design
        if not len(new):
            payloads = None if payload is None else gather(design.group, payload)
            return None, payloads or []
        means = objective.means if objective.centers else None
        weight = objective.loss.weight
        with self._log.computing():
            if self.has_few_rows:
                found = design.columns_on_root(new, weight, means, payload)
            else:
                found = design.cross_on_root(order, new, weight, means, payload)
        result, told = found or (None, [])
        return result, [] if payload is None else told

    def _take_in(self, kept: np.ndarray, found: np.ndarray | None) -> Gram:
        """The Hessian with what is new."""
        if self.has_few_rows:
            self._columns.exchange(kept, found)
            return self._columns
        n_kept = int(np.count_nonzero(kept))
        n = n_kept if found is None else len(found)
        self._make_room(kept, n)
        if found is not None:
            self._room[:n, n_kept:n] = found
            self._room[n_kept:n, :n] = found.T
        return WholeGram(self._room[:n, :n])

    def _make_room(self, kept: np.ndarray, n: int) -> None:
        """Close the gaps that coefficients have left, and have room for `n`."""
        if not kept.all():
            known = self._room[: len(kept), : len(kept)]
            self._room = block_of(known, np.flatnonzero(kept))
        size = int(np.count_nonzero(kept))
        if len(self._room) < n:
            room = np.empty((2 * n, 2 * n))
            room[:size, :size] = self._room[:size, :size]
            self._room = room

    def _whole(
        self, coordinates: np.ndarray, riders: Sequence[np.ndarray], payload: Any
    ) -> System | None:
        """Hessian at the present margins, with the intercepts in its last rows."""
        with self._log.computing():
            hessian = self._own(coordinates)
        group = self._objective.design.group
        found = reduce_and_gather(group, [hessian, *riders], payload)
        if found is None:
            return None
        [hessian, *sums], payloads = found
        n = len(coordinates)
        size = len(hessian) if self._objective.fit_intercept else n
        rows, gram = np.arange(n), WholeGram(hessian[:size, :size])
        return System(gram, rows, sums, payloads if payload is not None else [])

    def _own(self, coordinates: np.ndarray) -> np.ndarray:
        """This rank's part of the Hessian at the present margins."""
        objective, design = self._objective, self._objective.design
        K, loss, margins = objective.n_outputs, objective.loss, objective.margins
        if K > 1:
            return self._own_of_classes(*np.divmod(coordinates, K))
        n = len(coordinates)
        hessian = np.zeros((n + 1, n + 1))
        curvature = loss.curvatures(margins)(0)
        hessian[:n, :n] = design.cross(coordinates, coordinates, curvature[:, 0])
        if design.is_counted():
            border = design.transposed_dot(coordinates, curvature)
            hessian[:n, n:] = border
            hessian[n:, :n] = border.T
            hessian[n, n] = curvature.sum()
        return hessian

    def _own_of_classes(self, features: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """The same of several classes, whose blocks are one product of all columns."""
        objective, design = self._objective, self._objective.design
        weight, K = objective.loss.weight, objective.n_outputs
        distinct, places = np.unique(features, return_inverse=True)
        places = np.concatenate([places, np.full(K, len(distinct))])
        outputs = np.concatenate([outputs, np.arange(K)])
        probabilities = softmax(objective.margins)
        # Of columns that are shared out each rank has all rows, and does some of them.
        share = design.own_share(design.n_rows)
        hessian = np.zeros((len(places), len(places)))
        for rows, columns in self._rows_of(distinct):
            own = slice(max(rows.start, share.start), min(rows.stop, share.stop))
            if own.start >= own.stop:
                continue
            X = columns.tocsr() if sparse.issparse(columns) else columns
            X = row_slice(X, own.start - rows.start, own.stop - rows.start)
            p = probabilities[own]
            hessian += softmax_hessian(X, p, weight[own], places, outputs)
        return hessian

    def _rows_of(self, features: np.ndarray) -> Iterable[tuple[slice, Any]]:
        """Columns of some rows at a time, also where there are no columns."""
        design = self._objective.design
        if len(features):
            return design.chunks(features)
        return [(slice(0, design.n_rows), np.empty((design.n_rows, 0)))]
