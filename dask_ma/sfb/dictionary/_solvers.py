"""Solvers for atoms: from all batches so far, or by steps along the newest."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from dask_ma.sfb.dictionary._atoms import (
    AddUp,
    Statistics,
    descend_on_atoms,
    mean_usage,
    step_along_gradient,
)
from dask_ma.sfb.dictionary._params import DictionaryParams
from dask_ma.sfb.dictionary._sums import BatchSums

Arrays = tuple[np.ndarray, np.ndarray]


class Solver(ABC):
    """Atoms from batches; the same on all ranks.

    Parameters
    ----------
    params : DictionaryParams
    statistics : tuple of ndarray
        What :attr:`statistics` has been at the point to go on from.
    n_seen : int
        Rows seen until then.

    Attributes
    ----------
    statistics : tuple of ndarray
        None of the arrays is changed afterwards. Of shapes (n_components,
        n_components) and (n_components, n_features).
    n_seen : int
    add_up : callable or None
        Adds up squared lengths of atoms where ranks have columns of them.
    """

    def __init__(
        self, params: DictionaryParams, statistics: Arrays, n_seen: int
    ) -> None:
        self.params, self.statistics, self.n_seen = params, statistics, n_seen
        self.add_up: AddUp | None = None

    @property
    def usage(self) -> np.ndarray:
        """Mean squared code of each atom."""
        return self.statistics[0].diagonal()

    @abstractmethod
    def step(
        self,
        atoms: np.ndarray,
        sums: BatchSums,
        done: float,
        n_counted: int | None = None,
    ) -> np.ndarray:
        """Atoms after a batch.

        Parameters
        ----------
        atoms : ndarray of shape (n_components, n_features)
        sums : BatchSums
            It has rows.
        done : float
            Part of the fit that lies behind, from 0 to 1.
        n_counted : int, default=None
            Rows that those of the batch stand for, of all ranks; None is their number.

        Returns
        -------
        atoms : ndarray of shape (n_components, n_features)
            Others than those given.
        """

    def settle(self, atoms: np.ndarray) -> np.ndarray:
        """Atoms that go with the statistics, from means over ranks."""
        return atoms

    @abstractmethod
    def forget(self, atoms: np.ndarray) -> None:
        """Know nothing of some atoms, which others have taken the place of.

        Parameters
        ----------
        atoms : ndarray of int
        """


class Online(Solver):
    """Mairal's: each atom takes its best value for the codes of all batches so far."""

    def step(
        self,
        atoms: np.ndarray,
        sums: BatchSums,
        done: float,
        n_counted: int | None = None,
    ) -> np.ndarray:
        known = Statistics(*self.statistics, self.n_seen)
        known = known.added(sums, n_counted)
        self.statistics, self.n_seen = (known.codes, known.rows), known.n_seen
        return self.settle(atoms)

    def settle(self, atoms: np.ndarray) -> np.ndarray:
        known = Statistics(*self.statistics, self.n_seen)
        return descend_on_atoms(atoms, known, positive=self.params.positive_dict)

    def forget(self, atoms: np.ndarray) -> None:
        known = Statistics(*self.statistics, self.n_seen).without(atoms)
        self.statistics = known.codes, known.rows


class Gradient(Solver):
    """The paper's: proximal steps along the gradient of the newest batch.

    Of its statistics, the first has mean squared codes on its diagonal, and nothing
    else; the second stays 0.
    """

    def step(
        self,
        atoms: np.ndarray,
        sums: BatchSums,
        done: float,
        n_counted: int | None = None,
    ) -> np.ndarray:
        n_counted = sums.n_rows if n_counted is None else n_counted
        usage = mean_usage(self.usage, sums, self.n_seen, n_counted)
        self.statistics = np.diag(usage), self.statistics[1]
        self.n_seen += n_counted
        step_size = self.params.eta0
        if self.params.decays:
            step_size *= 0.5 * (1 + np.cos(np.pi * done))
        return step_along_gradient(
            atoms,
            sums,
            usage,
            step_size,
            positive=self.params.positive_dict,
            add_up=self.add_up,
        )

    def forget(self, atoms: np.ndarray) -> None:
        # A step is divided by the usage: a small one would make the first too long.
        usage = self.usage.copy()
        usage[atoms] = usage.mean()
        self.statistics = np.diag(usage), self.statistics[1]


#: By their names.
SOLVERS: dict[str, type[Solver]] = {"online": Online, "sgd": Gradient}
