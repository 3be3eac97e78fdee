"""Rounds in which a rank learns a dictionary with the others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from dask_ma.engine import (
    Method,
    Model,
    RankContext,
    Record,
    Snapshot,
    State,
    Work,
)
from dask_ma.exceptions import CheckpointError
from dask_ma.sfb.dictionary._atoms import Statistics, unused, within_ball
from dask_ma.sfb.dictionary._codes import ROUGH, lasso_codes
from dask_ma.sfb.dictionary._merging import Merged, batches_apart, merge
from dask_ma.sfb.dictionary._params import DictionaryParams
from dask_ma.sfb.dictionary._progress import Progress, atom_change
from dask_ma.sfb.dictionary._rows import (
    Rows,
    weighted,
    with_unit_length,
    worst_rows,
)
from dask_ma.sfb.dictionary._solvers import SOLVERS
from dask_ma.sfb.dictionary._start import start_of
from dask_ma.sfb.dictionary._sums import (
    BatchSums,
    FactorsSender,
    Sender,
    StatisticsSender,
    own_sums,
)


class Found(NamedTuple):
    """Rows of a round.

    Attributes
    ----------
    X : ndarray or CSR of shape (n_rows, n_features)
        The last of this rank.
    objectives : ndarray of shape (n_rows,)
        Of these.
    totals : ndarray of shape (n_batches, 2)
        Rows of the batches of all ranks, and sums of their objectives.
    n_own : int
        Rows of this rank.
    """

    X: Any
    objectives: np.ndarray
    totals: np.ndarray
    n_own: int


class DictionaryFit(Method):
    """Rounds over the rows of all ranks; several make a pass.

    In each the ranks share a batch, or each goes over some by itself.

    Parameters
    ----------
    context : RankContext
        This rank.
    rows : Rows
        What the dictionary is learned from.
    params : DictionaryParams
        Parameters of the fit.

    Attributes
    ----------
    n_iter : int
        Passes made.
    """

    def __init__(
        self, context: RankContext, rows: Rows, params: DictionaryParams
    ) -> None:
        super().__init__(context)
        self.n_iter = 0
        self._rows, self._params = rows, params
        n_ranks, batch_size = context.group.size, params.batch_of(rows.n_total)
        self._n_apart = 1
        if params.communication == "statistics":
            self._n_apart = batches_apart(
                params.merge_every,
                n_rows=rows.n_total,
                batch_size=batch_size,
                n_ranks=n_ranks,
            )
        # Batches of a round, on all ranks together.
        self._n_batches = self._n_apart * n_ranks if self._n_apart > 1 else 1
        self._round_size = self._n_batches * batch_size
        self._n_steps = -(-rows.n_total // self._round_size)
        self._next = 0  # round of the pass
        self._batches: Iterator[tuple[Any, np.ndarray | None]] | None = None
        self._progress = Progress()
        self._sender = self._make_sender()
        n_columns = len(range(*self._columns.indices(rows.n_features)))
        shape = params.n_components, n_columns
        self._atoms = np.zeros(shape, dtype=rows.dtype)
        known = params.statistics
        if known is None:
            empty = Statistics.empty(*shape, rows.dtype)
            codes, sums = empty.codes, empty.rows
        else:
            codes, sums = (each.astype(rows.dtype, copy=False) for each in known)
            sums = sums[:, self._columns]
        self._solver = SOLVERS[params.solver](params, (codes, sums), params.n_seen)

    @property
    def _columns(self) -> slice:
        """Columns of atoms that this rank has."""
        return slice(None)

    @property
    def is_complete(self) -> bool:
        return self.n_iter >= self._params.max_iter

    def begin(self) -> None:
        params, positive = self._params, self._params.positive_dict
        if params.atoms is None:
            self._atoms = start_of(self.context, self._rows, params)
        else:
            atoms = params.atoms.astype(self._rows.dtype)
            self._atoms = within_ball(atoms, positive=positive)

    def load_state_dict(self, state: State) -> None:
        shared = state.shared
        if shared["atoms"].shape != self._atoms.shape:
            raise CheckpointError(
                f"the atoms to go on from have the shape {shared['atoms'].shape}, "
                f"expected {self._atoms.shape} for these data"
            )
        self._atoms = shared["atoms"]
        self._take_up(shared, shared["rows"])

    def _take_up(self, shared: dict[str, Any], rows: np.ndarray) -> None:
        """Go on with what batches have shown, as far as their rows are still there."""
        self.n_iter, self._solver.n_seen = shared["n_iter"], shared["n_seen"]
        self._solver.statistics = shared["codes"], rows
        # Where rows were lost there may be fewer batches.
        self._next = min(shared["next"], self._n_steps - 1)
        if shared["n_rows"] == self._rows.n_total:
            self._progress = Progress(*shared["progress"])
        else:  # count as a pass over those that are left, which another one outweighs
            self._solver.n_seen = min(shared["n_seen"], self._rows.n_total)

    def state_dict(self) -> Snapshot | None:
        if self._sender.n_under_way:
            return None  # of these nothing would be known
        codes, rows = self._solver.statistics
        shared = {
            "atoms": self._atoms,
            "codes": codes,
            "rows": rows,
            "n_seen": self._solver.n_seen,
            "n_iter": self.n_iter,
            "next": self._next,
            "progress": list(self._progress),
            "n_rows": self._rows.n_total,
        }
        return Snapshot(shared)

    def round(self) -> Work:
        params, before = self._params, self._atoms
        go_over = self._go_over_one if self._n_apart == 1 else self._go_over_some
        found = go_over()
        n_rows, objective = found.totals.sum(axis=0).tolist()
        self._check(objective)
        values = {"n_iter": self.n_iter, "objective": float("nan"), "n_replaced": 0}
        if not n_rows:  # all are under way, or ranks have fewer than batches
            return Work(found.n_own, values)
        if params.resample_unused:
            values["n_replaced"] = self._replace_unused(found.X, found.objectives)
        values["objective"] = objective / n_rows
        self._look_at(found.totals, self._change(before) / self._n_batches)
        return Work(found.n_own, values)

    def _look_at(self, totals: np.ndarray, change: float) -> None:
        """Note how batches have done, until they say that the fit may end."""
        params, n_apart = self._params, self._n_apart
        for n_rows, objective in totals.tolist():
            if n_rows and not self._progress.is_settled:
                self._progress = self._progress.after(
                    objective / n_rows,
                    change,
                    share=self._round_size / n_apart / self._rows.n_total,
                    tol=params.tol,
                    patience=params.max_no_improvement,
                    n_ranks=self._n_batches // n_apart,
                )

    def _go_over_one(self) -> Found:
        """Update the atoms by a batch of all ranks; a collective call."""
        X, weight = self._next_batch()
        with self.log.computing():
            codes, objectives = self._codes(X, weight)
            pair = weighted(X, codes, weight)
        total = float(objectives.sum(dtype=np.float64))
        sums = self._sender.add_up(*pair, total)
        n_rows, objective = 0, 0.0
        if sums is not None:
            n_rows, objective = sums.n_rows, sums.objective
            self._step(sums)
        is_last = self._next + 1 == self._n_steps
        while is_last and self._sender.n_under_way:
            sums = self._sender.take_next()
            n_rows, objective = n_rows + sums.n_rows, objective + sums.objective
            self._step(sums)
        self._end_round()
        return Found(X, objectives, np.array([[n_rows, objective]]), X.shape[0])

    def _step(self, sums: BatchSums) -> None:
        """Update the atoms by the sums of a batch."""
        if sums.n_rows and np.isfinite(sums.objective):
            with self.log.computing():
                self._atoms = self._solver.step(self._atoms, sums, self._done())

    def _go_over_some(self) -> Found:
        """Update the atoms by batches of this rank, then agree; a collective call."""
        solver, n_total = self._solver, self._rows.n_total
        n_seen, n_counted = solver.n_seen, 0
        first, n_batches = self._next * self._n_apart, self._n_steps * self._n_apart
        totals = np.zeros((self._n_apart, 2))
        for number, total in enumerate(totals, start=first):
            X, weight = self._next_batch()
            # Each rank's rows stand for those of all.
            n_all = n_total * (number + 1) // n_batches - n_total * number // n_batches
            n_counted += n_all
            with self.log.computing():
                codes, objectives = self._codes(X, weight)
                objective = float(objectives.sum(dtype=np.float64))
                if X.shape[0] and np.isfinite(objective):
                    sums = own_sums(*weighted(X, codes, weight), objective)
                    solver.n_seen = n_seen + n_counted - n_all
                    done = self._done()
                    self._atoms = solver.step(self._atoms, sums, done, n_all)
            total[:] = X.shape[0], objective
        merged = merge(self.context.group, self._atoms, solver.statistics, totals)
        self._take(merged, n_seen + n_counted)
        self._end_round()
        return Found(X, objectives, merged.totals, int(totals[:, 0].sum()))

    def _take(self, merged: Merged, n_seen: int) -> None:
        """Go on from what the ranks have agreed on."""
        n_rows, objective = merged.totals.sum(axis=0).tolist()
        if not n_rows or not np.isfinite(objective):
            return
        solver = self._solver
        solver.statistics, solver.n_seen = (merged.codes, merged.rows), n_seen
        with self.log.computing():
            self._atoms = solver.settle(merged.atoms)

    def _done(self) -> float:
        """Part of the fit that lies behind with the round."""
        done = (self.n_iter * self._n_steps + self._next + 1) / self._n_rounds
        return min(done, 1.0)

    def record(self, record: Record, sums: list[np.ndarray]) -> None:
        """All ranks know the objective already."""

    def is_done(self, record: Record) -> bool:
        return self._progress.is_settled

    def model(self) -> Model:
        return {
            "components": self._atoms,
            "statistics": self._solver.statistics,
            "n_seen": self._solver.n_seen,
            "n_iter": self.n_iter,
            "n_steps": self._params.n_steps + self.n_rounds * self._n_apart,
            "n_unused": self._n_unused,
        }

    def notes(self) -> list[str]:
        """What the user is to be told: if no row has a code."""
        if not self.n_rounds or self._solver.usage.any():
            return []
        return [
            f"all codes are 0, so nothing was learned: alpha={self._params.alpha} is "
            "as large as the product of any row with any atom; lower alpha, or scale "
            "the rows"
        ]

    @property
    def _n_rounds(self) -> int:
        """Most rounds of the fit."""
        return self._n_steps * self._params.max_iter

    @property
    def _n_unused(self) -> int:
        """Atoms that hardly any row uses."""
        usage = self._solver.usage
        return len(unused(usage)) if usage.any() else len(usage)

    def _make_sender(self) -> Sender:
        """What the ranks send."""
        group = self.context.group
        if self._params.communication == "factors":
            staleness = self._params.staleness if group.size > 1 else 0
            is_sparse = self._rows.is_sparse
            return FactorsSender(group, is_sparse=is_sparse, staleness=staleness)
        return StatisticsSender(group)

    def _next_batch(self) -> tuple[Any, np.ndarray | None]:
        """Rows of this rank, and their weights."""
        if self._batches is None:
            n_batches, shuffle = self._n_steps * self._n_apart, self._params.shuffle
            batches = self._rows.batches(
                self.context, n_batches, self.n_iter, shuffle=shuffle
            )
            # A fit may go on within a pass.
            self._batches = islice(batches, self._next * self._n_apart, None)
        return next(self._batches)

    def _end_round(self) -> None:
        """Count a round."""
        self._next += 1
        if self._next == self._n_steps:
            self._next, self._batches = 0, None
            self.n_iter += 1

    def _codes(
        self, X: Any, weight: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Codes of a batch, and the objectives of its rows times their weights."""
        params = self._params
        found = lasso_codes(
            X,
            self._atoms,
            params.alpha,
            ROUGH,
            positive=params.positive_code,
            algorithm=params.fit_algorithm,
        )
        if weight is None:
            return found.values, found.objectives
        return found.values, found.objectives * weight

    def _check(self, objective: float) -> None:
        """Refuse to go on with numbers that are none."""
        if not np.isfinite(objective):
            raise ValueError(
                f"the objective is not finite in round {self.n_rounds}; are the "
                "elements of X extremely large?"
            )

    def _replace_unused(self, X: Any, objectives: np.ndarray) -> int:
        """Put the worst rows in the place of atoms without a use; a collective call."""
        atoms = unused(self._solver.usage)
        if not len(atoms):
            return 0
        found = self._worst_rows(X, objectives, len(atoms))
        if self._params.positive_dict:
            found = np.maximum(found, 0)
        atoms = atoms[: len(found)]
        self._atoms[atoms] = self._with_unit_length(found)
        self._solver.forget(atoms)
        return len(atoms)

    def _worst_rows(self, X: Any, objectives: np.ndarray, n_wanted: int) -> np.ndarray:
        """Rows that atoms say least of; a collective call."""
        return worst_rows(self.context.group, X, objectives, n_wanted)

    def _with_unit_length(self, atoms: np.ndarray) -> np.ndarray:
        """Atoms of length 1."""
        return with_unit_length(atoms)

    def _change(self, before: np.ndarray) -> float:
        """How far atoms have moved from where they were."""
        return atom_change(before, self._atoms)
