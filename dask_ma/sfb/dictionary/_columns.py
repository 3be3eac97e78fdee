"""Columns of atoms shared out over the ranks, which send each other pieces of rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather, allreduce, alltoall
from dask_ma.engine import Model, RankContext, Snapshot, State
from dask_ma.exceptions import CheckpointError
from dask_ma.sfb._start import arrays_of
from dask_ma.sfb.dictionary._atoms import within_ball
from dask_ma.sfb.dictionary._block import row_squares
from dask_ma.sfb.dictionary._codes import ROUGH, codes_from_products
from dask_ma.sfb.dictionary._fit import DictionaryFit, Found
from dask_ma.sfb.dictionary._params import DictionaryParams
from dask_ma.sfb.dictionary._rows import Rows, dense, weighted, with_unit_length
from dask_ma.sfb.dictionary._sums import BatchSums
from dask_ma.sfb.exchange._outputs import OutputShares, packed, unpacked
from dask_ma.sfb.model._model import Batch
from dask_ma.sfb.model._source import joined

_KEPT_ROUNDS = 16  # from one state that a lost rank leaves to the next


class Dealt(NamedTuple):
    """Rows of a batch of all ranks, with the columns that this rank has.

    Attributes
    ----------
    X : ndarray or CSR of shape (n_rows, n_columns)
        Those of a rank after those of the one before.
    weight : ndarray of shape (n_rows,), or None
    ends : ndarray of int of shape (n_ranks + 1,)
        Where the rows of each rank begin, and where the last ones end.
    """

    X: Any
    weight: np.ndarray | None
    ends: np.ndarray


class Columns:
    """Which columns a rank has, and what goes from rank to rank.

    Parameters
    ----------
    group : Group
        This rank.
    n_features : int
        Columns of all ranks.
    """

    def __init__(self, group: Group, n_features: int) -> None:
        if n_features < group.size:
            raise ValueError(
                f"communication='outputs' shares out columns of X, of which there are "
                f"{n_features} for {group.size} ranks; set n_ranks={n_features}, or "
                "communication='statistics'"
            )
        self.group, self.shares = group, OutputShares(group, n_features)
        n_ranks = group.size
        ends = [n_features * r // n_ranks for r in range(n_ranks + 1)]
        self.of_ranks = [slice(*ends[r : r + 2]) for r in range(n_ranks)]

    def deal(self, X: Any, weight: np.ndarray | None) -> Dealt:
        """Give each rank its columns of this rank's rows; a collective call."""
        rows = np.arange(X.shape[0])
        pieces = [
            packed([Batch(X[:, columns], None, weight, rows)])
            for columns in self.of_ranks
        ]
        found = [unpacked(each)[0] for each in alltoall(self.group, pieces)]
        ends = np.cumsum([0, *(part.n_rows for part in found)])
        batch = joined([part for part in found if part.n_rows] or found[:1])
        return Dealt(batch.X, batch.sample_weight, ends)

    def add_up(self, array: np.ndarray) -> np.ndarray:
        """Sums over ranks, the same bits on each; a collective call."""
        return np.asarray(allreduce(self.group, array))

    def rows_of(self, sums: list[np.ndarray], ends: np.ndarray) -> list[np.ndarray]:
        """Sums over ranks of arrays of all rows, for this rank's rows; collective."""
        parts = [
            [each[ends[r] : ends[r + 1]] for each in sums]
            for r in range(self.group.size)
        ]
        found = alltoall(self.group, parts)
        return [sum(each[1:], each[0]) for each in zip(*found, strict=True)]

    def all_codes(
        self, codes: np.ndarray, objectives: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Codes and objectives of the rows of all ranks; a collective call."""
        own = sparse.csr_array(codes)
        sent = [own.data, own.indices, own.indptr, objectives]
        found = allgather(self.group, sent)
        width = codes.shape[1]
        whole = [
            sparse.csr_array(tuple(part[:3]), shape=(len(part[3]), width)).toarray()
            for part in found
        ]
        return np.concatenate(whole), np.concatenate([part[3] for part in found])


class ColumnsFit(DictionaryFit):
    """The fit of a rank that has some columns of all atoms.

    A rank gets its columns of the rows of a batch, and finds its part of their products
    with atoms, and of those of atoms with each other. Summed over ranks they are all
    that codes depend on. Each rank finds codes of its rows; with those of all it makes
    the step of its columns, of which only the lengths of atoms depend on the others.
    """

    def __init__(
        self, context: RankContext, rows: Rows, params: DictionaryParams
    ) -> None:
        self._table = Columns(context.group, rows.n_features)
        super().__init__(context, rows, params)
        self._solver.add_up = self._table.add_up

    @property
    def _columns(self) -> slice:
        return self._table.of_ranks[self._table.group.rank]

    def begin(self) -> None:
        params, table = self._params, self._table
        positive = params.positive_dict
        if params.atoms is None:
            self._atoms = self._first_atoms()
            return
        atoms = params.atoms[:, self._columns].astype(self._rows.dtype)
        self._atoms = within_ball(atoms, positive=positive, add_up=table.add_up)

    def load_state_dict(self, state: State) -> None:
        arrays = arrays_of(state, self._table.group)
        atoms = np.array(arrays["values"])
        n_features = arrays["n_outputs"]
        if (len(atoms), n_features) != (len(self._atoms), self._rows.n_features):
            raise CheckpointError(
                f"the atoms to go on from have the shape {(len(atoms), n_features)}, "
                f"expected {(len(self._atoms), self._rows.n_features)} for these data"
            )
        self._atoms = atoms
        self._take_up(state.shared, np.zeros_like(atoms))

    def state_dict(self) -> Snapshot:
        whole = super().state_dict()
        assert whole is not None  # nothing is under way between batches
        shared = whole.shared
        atoms = shared.pop("atoms")
        shared.pop("rows")  # zeros
        part = {"values": atoms, "n_outputs": self._rows.n_features}
        # A copy goes to the next rank, and would be most of what a batch sends.
        is_kept = self.n_rounds % _KEPT_ROUNDS == 0
        return Snapshot(shared, part, whole=True, in_memory=is_kept, rest=dict)

    def model(self) -> Model:
        model = super().model()
        atoms = self._table.shares.collect(self._atoms, "atoms")
        statistics = self._solver.statistics[0], np.zeros_like(atoms)
        return {**model, "components": atoms, "statistics": statistics}

    def _first_atoms(self) -> np.ndarray:
        """Rows at random, as atoms of length 1; a collective call."""
        group, rows = self._table.group, self._rows
        rng = np.random.default_rng(np.random.SeedSequence(self.context.seed.entropy))
        n_taken = min(len(self._atoms), rows.n_total)
        numbers = rng.choice(rows.n_total, n_taken, replace=False)
        atoms = np.empty_like(self._atoms)
        for atom in atoms:  # one at a time: those of other ranks are drawn, too
            atom[...] = rng.standard_normal(rows.n_features)[self._columns]
        taken = rows.take(group, numbers, self._table.of_ranks)
        if self._params.positive_dict:
            np.abs(atoms, out=atoms)
            np.maximum(taken, 0, out=taken)
        is_filled = self._table.add_up(row_squares(taken)) > 0
        atoms[:n_taken][is_filled] = taken[is_filled]
        return with_unit_length(atoms, group)

    def _go_over_one(self) -> Found:
        """Update the atoms by a batch of all ranks; a collective call."""
        X, weight = self._next_batch()
        dealt = self._table.deal(X, weight)
        codes, objectives = self._codes_of(dealt, weight)
        n_rows = len(codes)
        # The same bits on all ranks: so are the numbers that are added up.
        objective = float(objectives.sum(dtype=np.float64))
        if n_rows and np.isfinite(objective):
            rows, codes = weighted(dealt.X, codes, dealt.weight)
            with self.log.computing():
                sums = BatchSums(codes.T @ codes, codes.T @ rows, n_rows, objective)
            self._atoms = self._solver.step(self._atoms, sums, self._done())
        self._end_round()
        totals = np.array([[n_rows, objective]])
        return Found(dealt.X, objectives, totals, X.shape[0])

    def _codes_of(
        self, dealt: Dealt, weight: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Codes of all rows, and objectives times weights; a collective call."""
        params, table = self._params, self._table
        with self.log.computing():
            sums = [np.asarray(dealt.X @ self._atoms.T), row_squares(dealt.X)]
            gram = self._atoms @ self._atoms.T
        products, squares = table.rows_of(sums, dealt.ends)
        gram = table.add_up(gram)
        with self.log.computing():
            found = codes_from_products(
                products,
                squares,
                gram,
                params.alpha,
                ROUGH,
                n_features=self._rows.n_features,
                positive=params.positive_code,
                algorithm=params.fit_algorithm,
            )
            objectives = found.objectives
            if weight is not None:
                objectives = objectives * weight
        return table.all_codes(found.values, objectives)

    def _worst_rows(self, X: Any, objectives: np.ndarray, n_wanted: int) -> np.ndarray:
        order = np.argsort(-objectives, kind="stable")[:n_wanted]
        return dense(X[order[objectives[order] > 0]])

    def _with_unit_length(self, atoms: np.ndarray) -> np.ndarray:
        return with_unit_length(atoms, self._table.group)

    def _change(self, before: np.ndarray) -> float:
        square = np.array(np.sum((self._atoms - before) ** 2, dtype=np.float64))
        return float(np.sqrt(self._table.add_up(square))) / len(before)
