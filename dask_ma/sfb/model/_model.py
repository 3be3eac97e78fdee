"""The interface of a user's model: its factors, loss, penalty and state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import Group
from dask_ma.data import Shard
from dask_ma.kernels.prox import NoPenalty, Prox
from dask_ma.sfb.model._common import CommonStep
from dask_ma.sfb.model._dual import DualView
from dask_ma.sfb.model._factors import Factors, checked
from dask_ma.sfb.model._matrix import ParameterMatrix


class Batch(NamedTuple):
    """Rows of a rank that a function for factors looks at.

    Attributes
    ----------
    X : ndarray or CSR of shape (n_rows, n_features)
    y : ndarray of shape (n_rows,) or (n_rows, n_targets), or None
        Targets, if the run has any.
    sample_weight : ndarray of shape (n_rows,), or None
        Weights of the rows, if the run has any.
    rows : ndarray of int64 of shape (n_rows,)
        Which rows of the rank's shard these are; in a run on pairs, which of the
        rank's pairs.
    others : tuple of ndarray or CSR of shape (n_rows, n_features)
        In a run on pairs, the second rows of the pairs, and of triplets the third rows;
        `X` has the first, and `y` the labels of the pairs.
    """

    X: Any
    y: Any
    sample_weight: np.ndarray | None
    rows: np.ndarray
    others: tuple[Any, ...] = ()

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.rows)


class FactorModel(ABC):
    """A matrix that is learnt by updates of low rank.

    The model minimises the mean over rows, or pairs of rows, of a loss, plus a penalty
    on the matrix. A subclass says how the pairs of factors of some rows are computed,
    and names the penalty; the rest is done by :func:`dask_ma.sfb.run`. An iteration
    takes a batch from every rank and sets ::

        matrix = prox(matrix - step_size * sum(u.T @ v) / n_rows)

    where the sum goes over the batches of all ranks, and `n_rows` counts their rows.
    The matrix often has a column for each column of X, as in a loss of ``matrix @ x``,
    but may have any shape, as long as `v` has a column for each of its columns: those
    of a dictionary of atoms belong to the codes.

    A model that defines :meth:`dual_operator` is learnt by stochastic dual coordinate
    ascent instead (section 2.1 of the paper): each row has a dual variable, the ranks
    keep the sums `Z` of dual variables times rows, and an iteration sets ::

        Z = Z - sum(u.T @ v) / n
        matrix = dual_operator(Z)

    where `n` counts the rows of all ranks, and `u` are changes of dual variables.

    Attributes
    ----------
    prox : Prox
        Prox operator of the penalty; no penalty by default. With
        :meth:`dual_operator`, its value alone is used.
    learning_rate : float
        Length of the steps, 0.1 by default; see :meth:`step_size`.
    fit_intercept : bool
        Whether each output has an intercept, which is not penalised; False by default.
        Its update needs no factor of its own.

    See Also
    --------
    dask_ma.sfb.run : Runs a model.
    """

    prox: Prox = NoPenalty()
    learning_rate: float = 0.1
    fit_intercept: bool = False
    #: Whether the sum over a batch is divided by the rows of all batches.
    averages: bool = True
    #: What the intercept's steps are multiplied by.
    intercept_scale: float = 1.0
    #: Whether outputs can be shared out over ranks, by `share_slopes` and its like.
    shares_outputs: bool = False
    #: Whether `share_sums` may be asked for other rows before `share_slopes` for those.
    shares_ahead: bool = False
    #: Whether `dual_operator` treats columns one by one: it then gets those in use.
    dual_is_columnwise: bool = False
    #: How often ranks exchange rows of `u` to find factors of a batch.
    n_exchanges: int = 0
    #: Pairs of factors of a batch, where they are not as many as rows.
    n_pairs: int | None = None
    #: Whether `factors` is a collective call, made for batches without rows, too.
    is_collective: bool = False
    #: Gives the steps of an iteration a common length; None leaves them as they are.
    common_step: CommonStep | None = None

    def prepare(self, shard: Shard, group: Group) -> None:
        """Look at the rows of a rank before the first iteration; a collective call.

        Parameters
        ----------
        shard : Shard
            The rank's rows.
        group : Group
            The rank among the others.
        """
        return

    @abstractmethod
    def initial_matrix(self, n_features: int) -> np.ndarray:
        """The matrix to start from, the same on all ranks.

        Parameters
        ----------
        n_features : int
            Columns of X.

        Returns
        -------
        matrix : ndarray of float of shape (n_outputs, n_columns)
            `n_columns` is `n_features` in most models. It becomes the `dtype` of the
            run, mostly float32. Factors, and the rows that the matrix
            is multiplied with, are rounded to that; the rows of batches keep theirs.
        """

    @abstractmethod
    def factors(self, matrix: ParameterMatrix, batch: Batch) -> tuple[np.ndarray, Any]:
        """Pairs of factors of a batch.

        Parameters
        ----------
        matrix : ParameterMatrix
            Not to be changed: ranks of a process may have it together.
            ``matrix.product(X)`` is ``X @ matrix.T``, plus the intercepts;
            ``np.asarray(matrix)`` is the whole matrix, which costs more.
        batch : Batch
            Rows of this rank, at least one.

        Returns
        -------
        u : ndarray of shape (n_pairs, n_outputs)
        v : ndarray or CSR of shape (n_pairs, n_columns)
            The gradient of the sum of the losses is ``u.T @ v``. Neither may be
            changed later.
        """

    def dual_operator(self, sums: np.ndarray) -> np.ndarray:
        """The matrix that belongs to dual sums, for dual coordinate ascent.

        It is the gradient of the conjugate of the penalty `h`, which must be strongly
        convex::

            argmax over W of  <W, Z> - h(W)

        Where `h` is `g` plus ``l2 / 2`` times the squared norm, that is the proximal
        operator of `g` at ``Z / l2`` with the step ``1 / l2``. A model that defines it
        has :meth:`initial_matrix` return the dual sums to start from, zeros where all
        dual variables are; its :meth:`factors` return by how much dual variables of
        the batch are lowered, and rows. The dual variables are the model's to keep, by
        :meth:`prepare`, :meth:`state_dict` and :meth:`rebuild`.

        Parameters
        ----------
        sums : ndarray of shape (n_outputs, n_columns)
            `Z`, read-only; where `dual_is_columnwise`, some columns of it.

        Returns
        -------
        matrix : ndarray of float of shape (n_outputs, n_columns)
        """
        raise NotImplementedError(f"{type(self).__name__} has no dual variables")

    def dual_loss(self, batch: Batch) -> float:
        """Part of some rows in the dual objective, for the duality gap.

        With the conjugates `f_i*` of the losses, the dual objective is the mean over
        rows of ``-f_i*(-u_i)``, less the conjugate of the penalty at the dual sums; the
        latter is found from :meth:`dual_operator` and :meth:`penalty`. No objective is
        below it.

        Parameters
        ----------
        batch : Batch
            Rows of this rank.

        Returns
        -------
        value : float
            Sum of ``-f_i*(-u_i)``, as ``u_i y_i - u_i^2 / 2`` for ``(w x_i - y_i)^2 /
            2``. NaN, by default, leaves the gap out of the history.
        """
        return float("nan")

    def rebuild(self, matrix: ParameterMatrix | None, batch: Batch) -> Any:
        """Factors of all that some rows have added to the dual sums.

        Asked for where dual variables of a rank were lost with a worker, or belong to
        rows that are elsewhere now. Ranks then make the dual sums anew, of those
        variables that there are: ``initial_matrix + sum(u.T @ v) / n``.

        Parameters
        ----------
        matrix : ParameterMatrix or None
            On a rank that has lost its dual variables, the last matrix: those of the
            batch are to be set to what it says, as to minus the slopes of the losses.
            None where there is nothing to set.
        batch : Batch
            Rows of this rank.

        Returns
        -------
        u : ndarray of shape (n_pairs, n_outputs)
            The dual variables.
        v : ndarray or CSR of shape (n_pairs, n_columns)
        """
        raise NotImplementedError(
            f"{type(self).__name__}.rebuild is not defined: dual variables that were "
            "lost cannot be found again; define it to go on after the loss of a worker"
        )

    def share_rows(self, batch: Batch) -> Any:
        """Second factors of a batch, where outputs are shared out.

        Parameters
        ----------
        batch : Batch
            Rows of this rank, perhaps none.

        Returns
        -------
        v : ndarray or CSR of shape (n_pairs, n_columns)
            They are sent to all ranks, which get them as `X` of batches of rows of all
            ranks. `X` of the batch, by default.
        """
        return batch.X

    def share_sums(self, values: np.ndarray) -> np.ndarray:
        """What slopes of other outputs depend on.

        Parameters
        ----------
        values : ndarray of shape (n_pairs, n_shared)
            ``v @ matrix.T`` of the rank's share of the outputs, plus intercepts.

        Returns
        -------
        sums : ndarray of shape (n_pairs, n_sums)
            None by default, as in a squared loss.
        """
        return np.zeros((len(values), 0), dtype=values.dtype)

    def share_slopes(
        self, values: np.ndarray, sums: list[np.ndarray], batch: Batch, outputs: slice
    ) -> np.ndarray:
        """First factors of a batch, for a share of the outputs.

        Parameters
        ----------
        values : ndarray of shape (n_pairs, n_shared)
            As in :meth:`share_sums`.
        sums : list of ndarray of shape (n_pairs, n_sums)
            Those of all ranks.
        batch : Batch
            Rows of all ranks, the same on each of them; `X` is `v`, and `others` empty.
        outputs : slice
            Which outputs these are.

        Returns
        -------
        u : ndarray of shape (n_pairs, n_shared)
        """
        raise NotImplementedError(f"{type(self).__name__} cannot share outputs")

    def share_loss(
        self, values: np.ndarray, sums: list[np.ndarray], batch: Batch, outputs: slice
    ) -> float:
        """This rank's part of the losses of some rows, where outputs are shared out.

        Without it, the whole matrix is put together on each rank for the history.

        Parameters
        ----------
        values, sums, batch, outputs
            As in :meth:`share_slopes`.

        Returns
        -------
        loss : float
            Over ranks these add up to the sum of the losses.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot share outputs")

    def updated(
        self, matrix: ParameterMatrix, factors: Factors | None, scale: float
    ) -> None:
        """Let what has been worked out from the matrix follow a change of it.

        Called after the updates of an iteration, and before the penalty is applied,
        which may act on columns later; nothing is done by default. A Gram matrix of
        rows, for one, changes by products of the factors, which are fewer than all.

        Parameters
        ----------
        matrix : ParameterMatrix
            This rank's copy, changed.
        factors : Factors or None
            ``matrix -= scale * factors.u.T @ factors.v``, or the dual sums behind it;
            the factors of all ranks that have come. None where whole matrices are
            exchanged, or where the matrix is the mean over ranks at the end of a pass:
            anything may have changed.
        scale : float
        """
        return

    def begin_pass(self, matrix: ParameterMatrix) -> None:
        """Get ready for a pass over the rows; nothing is done by default.

        Parameters
        ----------
        matrix : ParameterMatrix
            This rank's copy.
        """
        return

    def state_dict(self) -> dict[str, Any] | None:
        """What this rank's model has learnt besides the matrix.

        It is asked for after each pass, and kept: a run that goes on after the loss of
        a worker, or from a checkpoint, gives it back to
        :meth:`load_state_dict`. A model whose factors depend on more than matrix and
        batch, as on a code or a dual variable for each row, must define both.

        Returns
        -------
        state : dict or None
            Arrays, and values that JSON knows, by name. They must not be changed
            afterwards: copy what the next pass changes. None, by default, for nothing.
        """
        return None

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Take over what :meth:`state_dict` gave; after :meth:`prepare`.

        Parameters
        ----------
        state : dict or None
            That of this rank and its rows. None if it was lost with its worker, or if
            there was none: the matrix has been restored all the same.
        """
        return

    def step_size(self, iteration: int) -> float:
        """Length of a step.

        Parameters
        ----------
        iteration : int
            Number of the iteration, from 0.

        Returns
        -------
        step_size : float
            Not negative; `learning_rate` unless overridden.
        """
        return self.learning_rate

    def penalty(self, matrix: ParameterMatrix) -> float:
        """Value of the penalty, for the history.

        Parameters
        ----------
        matrix : ParameterMatrix
            This rank's copy, or its share of the outputs.

        Returns
        -------
        penalty : float
            That of `prox` unless overridden, as where the factors include a penalty.
            Shares add up to the penalty.
        """
        return matrix.penalty()

    def loss(self, matrix: ParameterMatrix, batch: Batch) -> float:
        """Sum of the losses of some rows, for the history.

        Parameters
        ----------
        matrix : ParameterMatrix
            This rank's copy.
        batch : Batch
            Rows of this rank.

        Returns
        -------
        loss : float
            NaN, by default, leaves the objective out of the history.
        """
        return float("nan")


def follows(model: FactorModel) -> bool:
    """Whether a model looks at updates when they have been made."""
    return type(model).updated is not FactorModel.updated


def view_of(model: FactorModel) -> DualView | None:
    """The matrix of a model as a function of dual sums, if it has such.

    Parameters
    ----------
    model : FactorModel

    Returns
    -------
    view : DualView or None
    """
    if type(model).dual_operator is FactorModel.dual_operator:
        return None
    name = f"{type(model).__name__}.dual_operator"
    is_columnwise = model.dual_is_columnwise
    return DualView(model.dual_operator, name, is_columnwise=is_columnwise)


def factors_of(
    model: FactorModel,
    matrix: ParameterMatrix,
    batch: Batch,
    place: str,
    cure: str = "",
) -> Factors:
    """Factors of a batch, checked.

    Parameters
    ----------
    model : FactorModel
    matrix : ParameterMatrix
    batch : Batch
        It may be empty.
    place : str
        Where this happens, for errors.
    cure : str, default=""
        What else may help where factors are not finite.

    Returns
    -------
    factors : Factors
    """
    n_outputs, n_features = matrix.shape
    if not (batch.n_rows or model.is_collective):
        empty = np.zeros((0, n_outputs), dtype=matrix.dtype)
        return Factors(empty, np.zeros((0, n_features), dtype=matrix.dtype))
    where = f"{type(model).__name__}.factors, {place}"
    found = model.factors(matrix, batch)
    parts = found, batch.n_rows, matrix.shape, where
    return checked(*parts, dtype=matrix.dtype, cure=cure)
