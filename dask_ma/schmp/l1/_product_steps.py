"""Newton's steps by products of the Hessian, as the ranks make them together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import allreduce, broadcast, reduce, reduce_and_gather
from dask_ma.engine import RoundLog
from dask_ma.kernels import row_slice
from dask_ma.layouts._design import is_among
from dask_ma.schmp.l1._blocks import Blocks
from dask_ma.schmp.l1._curvature import Curvature, make_curvature
from dask_ma.schmp.l1._problem import Objective
from dask_ma.schmp.l1._search import Directions, Model, Search

_FEWEST = 500  # coefficients, below which a matrix of all of them costs little
# Stored elements of their columns, once for each class: of those of a rank, and at
# least.
_MOST_STORED, _FEW_STORED = 2, 2**22
# Of the null objective: after a step that gains no more, second derivatives are about
# what they were; and the new coefficients, of all, that may come in without theirs.
_NEAR, _MOST_NEW = 0.01, 0.1
# Of the null objective: a step that gains no more, where the gap is too large yet. What
# is left of it then are gradients that conjugate gradients do not make small enough,
# unless what the largest one has beyond its bound has become so small a part.
_SPENT, _LEADS_ON = 1e-10, 0.75
# Share of the labels in the probabilities that second derivatives are of: after a step
# that a line search has shortened; by what it grows with each further one, and falls
# with each that is whole; the most, and the least above 0.
_FIRST_SHARE, _CHANGE_OF_SHARE = 0.05, 4
_MOST_SHARE, _LEAST_SHARE = 0.5, 1e-3


class Step(NamedTuple):
    """A step for some coefficients, on rank 0.

    Attributes
    ----------
    change : ndarray of shape (m,)
    shift : ndarray of shape (n_outputs,)
    expected : float
        By how much the objective is to fall.
    payloads : list of object
        What the ranks tell, in their order; empty where they tell nothing.
    """

    change: np.ndarray
    shift: np.ndarray
    expected: float
    payloads: list[Any]


class ProductSteps:
    """Steps for many coefficients of sparse columns, by other losses than squares.

    Parameters
    ----------
    objective : Objective
        What to minimise.
    log : RoundLog
        Where computing is timed.
    """

    def __init__(self, objective: Objective, log: RoundLog) -> None:
        self._objective, self._log = objective, log
        self._most = max(_FEW_STORED, _MOST_STORED * objective.design.n_stored)
        self._coordinates = np.zeros(0, dtype=np.int64)
        self._order = np.zeros(0, dtype=np.int64)  # output by output
        self._curvature: Curvature | None = None
        self._known = self._coordinates  # what the blocks are of
        self._blocks: Blocks | None = None  # on rank 0
        self._is_near = False  # since they were found
        self._spent: np.ndarray | None = None  # for which products lead no further
        self._excess, self._is_in_doubt = 0.0, False  # whether they do
        self._share = 0.0

    def take_length(self, length: float) -> None:
        """Take in which part of a step was of use."""
        # A model without second derivatives where rows are wrong by far ends very far
        # off; only a small part of the way is of use then, again and again.
        if length < 1:
            share = max(_FIRST_SHARE, _CHANGE_OF_SHARE * self._share)
            self._share = min(share, _MOST_SHARE)
        else:
            self._share /= _CHANGE_OF_SHARE
            if self._share < _LEAST_SHARE:
                self._share = 0.0

    def serve(self, coordinates: np.ndarray, reach: float) -> bool:
        """Whether steps for some coefficients are made here; a collective call.

        Parameters
        ----------
        coordinates : ndarray of int64 of shape (m,)
            Which coefficients, sorted.
        reach : float
            The largest gradient over its bound at the last check.
        """
        objective = self._objective
        if self._is_in_doubt and reach - 1 <= _LEADS_ON * self._excess:
            self._spent = None
        self._excess, self._is_in_doubt = reach - 1, False
        is_small = len(coordinates) < _FEWEST
        is_small = is_small or self._is_spent(coordinates)
        if is_small or objective.loss.is_quadratic or not objective.penalty.l1.all():
            self._is_near = False  # other steps come between
            return False
        if not np.array_equal(coordinates, self._coordinates):
            self._coordinates = coordinates.copy()
            with self._log.computing():
                self._curvature, refuses = self._prepare(coordinates)
            if allreduce(objective.design.group, np.array(int(refuses)), "max"):
                self._curvature = None
        return self._curvature is not None

    def step(self, coef: np.ndarray, payload: Any = None) -> Step | None:
        """A step for the coefficients that are served; a collective call.

        Parameters
        ----------
        coef : ndarray of shape (m,)
            Their values.
        payload : object, default=None
            What this rank tells rank 0; the ranks have to agree whether it is None.

        Returns
        -------
        step : Step or None
            None but on rank 0.
        """
        objective, curvature = self._objective, self._curvature
        assert curvature is not None
        is_kept = self._keeps_blocks()
        with self._log.computing():
            curvature.move_to(objective.loss, objective.margins, self._share)
            own = [curvature.diagonal()] if is_kept else curvature.blocks()
            sums = [curvature.gradient(), *own]
        group = objective.design.group
        found = reduce_and_gather(group, sums, payload)
        search: Search | None = None
        asking: Directions | None = None
        asked: np.ndarray | float = 0.0
        if found is not None:
            with self._log.computing():
                gradient, *parts = found[0]
                search = Search(self._model(gradient, self._found(parts), coef))
                asking = search.turns()
                asked = next(asking)
        # A number is what has been gained in the end.
        while not isinstance(asked := broadcast(group, asked), float):
            with self._log.computing():
                product = reduce(group, curvature.product(asked))
            if asking is not None and product is not None:
                with self._log.computing():
                    asked = _sent(asking, product)
        is_small = asked <= _NEAR * objective.null
        self._is_near = is_small and (self._is_near or not is_kept)
        if asked <= _SPENT * objective.null:
            self._spent, self._is_in_doubt = self._coordinates, True
        if search is None or found is None:
            return None
        change = np.zeros(len(coef))
        change[self._order] = search.coef - coef[self._order]
        payloads = [] if payload is None else found[1]
        return Step(change, search.shift, search.gain, payloads)

    def _is_spent(self, coordinates: np.ndarray) -> bool:
        """Whether products led no further for about these."""
        if self._spent is None:
            return False
        n_new = np.count_nonzero(~is_among(coordinates, self._spent))
        return bool(n_new <= _MOST_NEW * len(coordinates))

    def _keeps_blocks(self) -> bool:
        """Whether blocks of a step before will do; the same on all ranks."""
        coordinates = self._coordinates
        # Of several outputs they are small beside the products that steps take.
        if self._is_near and self._objective.n_outputs == 1:
            n_new = np.count_nonzero(~is_among(coordinates, self._known))
            if n_new <= _MOST_NEW * len(coordinates):
                return True
        self._known = coordinates
        return False

    def _found(self, parts: list[np.ndarray]) -> Blocks:
        """The blocks of rank 0, from what the ranks have added up."""
        coordinates, K = self._coordinates, self._objective.n_outputs
        if len(parts) == 1:
            places = np.searchsorted(self._known, coordinates)
            places[~is_among(coordinates, self._known)] = -1
            assert self._blocks is not None
            return self._blocks.with_others(places, parts[0])
        outputs = coordinates[self._order] % K
        self._blocks = Blocks(
            parts[0], parts[1], parts[2], outputs, self._objective.fit_intercept
        )
        return self._blocks

    def _model(self, gradient: np.ndarray, blocks: Blocks, coef: np.ndarray) -> Model:
        """The model of rank 0."""
        penalty, order = self._objective.penalty, self._order
        features = self._coordinates[order] // self._objective.n_outputs
        return Model(
            blocks,
            -gradient,
            coef[order],
            features,
            penalty.l1[features],
            penalty.l2[features],
            penalty.positive,
            self._objective.null,
        )

    def _prepare(self, coordinates: np.ndarray) -> tuple[Curvature | None, bool]:
        """What finds products, and whether this rank cannot do so."""
        design, K = self._objective.design, self._objective.n_outputs
        if design.n_rows and not design.is_sparse:
            return None, True
        features, outputs = np.divmod(coordinates, K)
        self._order = np.argsort(outputs, kind="stable")
        distinct, places = np.unique(features, return_inverse=True)
        own = design.own_share(design.n_rows)
        columns: Any = sparse.csc_array((design.n_rows, len(distinct)))
        if design.n_rows:
            [(_, columns)] = design.chunks(distinct)
        if own != slice(0, design.n_rows):
            columns = row_slice(columns.tocsr(), own.start, own.stop).tocsc()
        if np.diff(columns.indptr)[places].sum() > self._most:
            return None, True
        places, outputs = places[self._order], outputs[self._order]
        return make_curvature(columns, places, outputs, own, K), False


def _sent(asking: Directions, product: np.ndarray) -> np.ndarray | float:
    """The next direction, or what has been gained at the end."""
    try:
        return asking.send(product)
    except StopIteration as end:
        return float(end.value)
