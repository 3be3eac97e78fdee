"""Objective and derivatives over the rows of all ranks."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dask_ma.engine import Adder, RoundLog, Work
from dask_ma.kernels import (
    DescentSums,
    descent_sums,
    moment_sums,
    moment_sums_about,
)
from dask_ma.linear._model import LinearModel, RefineParams
from dask_ma.linear._start import reach_of
from dask_ma.linear.refine._constant import constant_objective
from dask_ma.linear.refine._coordinates import (
    ROUNDING,
    Coordinates,
    Found,
    Penalty,
)
from dask_ma.linear.refine._far_columns import (
    Regained,
    lost_columns,
    regained_moments,
)
from dask_ma.supervised._problem import Problem

_SPREAD = 0x9E3779B97F4A7C15  # the golden section of 2**64


class Request(NamedTuple):
    """Where the objective is wanted.

    Attributes
    ----------
    problems : ndarray of int, shape (n_asked,)
        Numbers of the problems.
    points : ndarray of shape (n_asked, n_weights)
        A point for each of them.
    widths : ndarray of shape (n_asked,)
        Widths of their smooth losses.
    caution : ndarray of shape (n_asked,)
        How much steeper than it is the loss is taken to become, from 0 to 1.
    columns : ndarray of int, shape (n_asked, n_columns)
        Features by whose weights second derivatives are wanted, in rising order. With
        any, those by the intercepts come, too.
    """

    problems: np.ndarray
    points: np.ndarray
    widths: np.ndarray
    caution: np.ndarray
    columns: np.ndarray

    def mark(self) -> tuple[int, int, int]:
        """What tells requests apart, bit for bit: a number, and the shape of the sums.

        Returns
        -------
        number : int
            Others have another one, as good as certainly.
        n_asked, n_columns : int
            Numbers of the problems, and of columns of second derivatives.
        """
        number = 0
        for array in self:
            number = (number * _SPREAD + _number_of(array)) % 2**64
        return number, len(self.problems), self.columns.shape[1]


def _number_of(array: np.ndarray) -> int:
    """Number of an array, from the bits of all elements and their places."""
    bits = np.array(array, np.float64).ravel().view(np.uint64)
    # A product alone tells nothing of what differs in high bits, such as signs.
    bits ^= bits >> np.uint64(32)
    bits *= np.uint64(_SPREAD)
    bits ^= bits >> np.uint64(29)
    return int((bits * _factors(len(bits))).sum())


@lru_cache(maxsize=4)
def _factors(number: int) -> np.ndarray:
    """Odd numbers of 64 bits, as if drawn by lot."""
    factors = np.arange(1, number + 1, dtype=np.uint64)
    factors *= np.uint64(_SPREAD)
    factors ^= factors >> np.uint64(32)
    factors *= np.uint64(_SPREAD)
    factors |= np.uint64(1)
    return factors


class Rows:
    """The rows of all ranks, as a function of the model; its methods are collective.

    Parameters
    ----------
    problem : Problem
        The rows to train on.
    params : RefineParams
        Parameters of the fit.
    log : RoundLog
        Where computing is timed.
    add_up : callable
        Sums arrays over ranks.

    Attributes
    ----------
    penalty : Penalty
        Weights of the penalty.
    """

    def __init__(
        self,
        problem: Problem,
        params: RefineParams,
        log: RoundLog,
        add_up: Adder,
    ) -> None:
        self.penalty = Penalty.of(params.penalty, params.alpha, params.l1_ratio)
        self._problem = problem
        self._params = params
        self._log = log
        self._add_up = add_up
        self._n_passes = 0

    def coordinates(self, model: LinearModel) -> Coordinates:
        """Coordinates for these rows; takes a pass over them."""
        sums, targets = np.zeros((2, self._problem.shard.n_features)), np.zeros(2)
        with self._log.computing():
            for block in self._problem.shard.read():
                sums += moment_sums(block.X, block.sample_weight)
                if not self._params.is_classifier:
                    y = block.y[:, np.newaxis]
                    targets += moment_sums(y, block.sample_weight)[:, 0]
        self._n_passes += 1
        constant = constant_objective(self._params, self._problem)
        if has_constant := math.isfinite(constant):
            # Processors round it in their own ways, and have the same sum of parts.
            targets[0] = constant * self._problem.weight / self._problem.total_weight
        sums, targets = self._add_up([sums, targets])
        mean, mean_square = sums / self._problem.total_weight
        regained = self._regain(mean, mean_square)
        level, spread, reach, has_spread = 0.0, 1.0, None, False
        if not self._params.is_classifier:
            level, second = (targets / self._problem.total_weight).tolist()
            # What rounding hides may be there: no spread would be no unit of widths.
            variance = max(second - level**2, ROUNDING * second)
            has_spread = variance > ROUNDING * second
            spread = math.sqrt(variance) or 1.0
            reach = self._reach(spread)
        coordinates = Coordinates(
            mean if regained is None else regained.mean,
            mean_square,
            self.penalty,
            model.intercept,
            fit_intercept=self._params.fit_intercept,
            level=level if self._params.fit_intercept else 0.0,
            spread=spread,
            has_spread=has_spread,
            reach=reach,
            variance=None if regained is None else regained.variance,
        )
        coordinates.note = None if regained is None else regained.note
        if has_constant:
            coordinates.constant = float(targets[0])
        return coordinates

    def _regain(self, mean: np.ndarray, mean_square: np.ndarray) -> Regained | None:
        """Moments with those that rounding hides, if it does; a collective call."""
        if not self._params.fit_intercept:
            return None
        n_rows, l2 = self._problem.total_rows, self.penalty.l2
        lost = lost_columns(mean, mean_square, n_rows, l2)
        if not len(lost):
            return None
        own = np.zeros((2, len(lost)))
        with self._log.computing():
            for block in self._problem.shard.read():
                weight = block.sample_weight
                own += moment_sums_about(block.X, weight, lost, mean[lost])
        self._n_passes += 1
        (own,) = self._add_up([own])
        return regained_moments(
            mean, mean_square, lost, own / self._problem.total_weight
        )

    def _reach(self, spread: float) -> float | None:
        """How far from the mean of the targets the best one value may be, if known."""
        # That of a steep quantile, a loss of the user's own, is many deviations away.
        is_known = isinstance(self._params.loss, str)
        return reach_of(self._params, spread) if is_known else None

    def measure(self, request: Request, coordinates: Coordinates) -> DescentSums:
        """This rank's parts of an evaluation, in one pass over its rows.

        Parameters
        ----------
        request : Request
            Problems and points, the same on all ranks.
        coordinates : Coordinates
            What the points are.

        Returns
        -------
        parts : DescentSums
            To be summed over ranks.
        """
        with self._log.computing():
            parts = self._sums(request, coordinates)
        self._n_passes += 1
        return parts

    def work(self) -> Work:
        """Passes since the last round, which are a round of their own."""
        epochs, self._n_passes = self._n_passes, 0
        nan = float("nan")
        values = {"objective": nan, "local_epochs": float(epochs), "refined": True}
        return Work(self._problem.shard.n_rows * epochs, values)

    def no_sums(self, n_asked: int, n_columns: int) -> DescentSums:
        """Zeros in the shapes of what :meth:`measure` gives.

        Parameters
        ----------
        n_asked, n_columns : int
            Numbers of problems, and of columns of second derivatives.

        Returns
        -------
        parts : DescentSums
        """
        n_second, n_weights = n_asked if n_columns else 0, n_columns + 1
        return DescentSums(
            losses=np.zeros(n_asked),
            smooth=np.zeros(n_asked),
            gaps=np.zeros(n_asked),
            coef=np.zeros((n_asked, self._problem.shard.n_features)),
            intercept=np.zeros(n_asked),
            hessian=np.zeros((n_second, n_weights, n_weights)),
        )

    def _sums(self, request: Request, coordinates: Coordinates) -> DescentSums:
        """Sums over this rank's rows."""
        params, shard = self._params, self._problem.shard
        model = coordinates.to_model(request.points, request.problems)
        n_asked, n_features = model.coef.shape
        n_columns = request.columns.shape[1]
        is_whole = n_columns == n_features
        total = self.no_sums(n_asked, n_columns)
        for block in shard.read():
            sums = descent_sums(
                block.X,
                block.y,
                block.sample_weight,
                *model,
                loss=params.loss,
                epsilon=params.epsilon,
                widths=request.widths,
                caution=request.caution,
                problems=request.problems if params.is_classifier else None,
                n_problems=self._problem.n_problems,
                positive_weight=self._problem.positive_weight,
                standardization=coordinates.standardization if n_columns else None,
                columns=None if is_whole else request.columns,
            )
            for array, part in zip(total, sums, strict=True):
                array += part
        return total

    def gradients(
        self, sums: DescentSums, points: np.ndarray, coordinates: Coordinates
    ) -> np.ndarray:
        """Derivatives of means over the rows of all ranks, with L2.

        Parameters
        ----------
        sums : DescentSums
            Sums over ranks; of derivatives by those coefficients that the coordinates
            are of.
        points : ndarray of shape (n_asked, n_weights)
            Where they were measured.
        coordinates : Coordinates
            What the points are.

        Returns
        -------
        gradients : ndarray of shape (n_asked, n_weights)
        """
        total = self._problem.total_weight
        gradients = coordinates.to_gradient(sums.coef / total, sums.intercept / total)
        gradients += coordinates.l2 * points
        return gradients

    def to_found(
        self,
        sums: DescentSums,
        request: Request,
        coordinates: Coordinates,
        gradients: np.ndarray | None = None,
        penalties: np.ndarray | None = None,
    ) -> list[Found]:
        """Means over the rows of all ranks, with the penalty.

        Parameters
        ----------
        sums : DescentSums
            Sums over ranks of what :meth:`measure` gives.
        request : Request
            Where they were measured.
        coordinates : Coordinates
            What the points are.
        gradients : ndarray of shape (n_asked, n_weights), default=None
            What :meth:`gradients` gives, or a rank's part of it; None works it out.
        penalties : ndarray of shape (n_asked,), default=None
            Penalty at each point; None works it out.

        Returns
        -------
        found : list of Found
            For each of the problems, the same on all ranks but for gradients in parts.
        """
        total, points = self._problem.total_weight, request.points
        if penalties is None:
            penalties = coordinates.penalties(points)
        if gradients is None:
            gradients = self.gradients(sums, points, coordinates)
        found = []
        for k in range(len(points)):
            columns = hessian = None
            if request.columns.size:
                columns = coordinates.to_weights(request.columns[k])
                hessian = coordinates.to_hessian(sums.hessian[k] / total)
                hessian = hessian + np.diag(coordinates.l2[columns])
            one = Found(
                objective=float(sums.losses[k] / total + penalties[k]),
                value=float(sums.smooth[k] / total + penalties[k]),
                gap=float(sums.gaps[k] / total),
                gradient=gradients[k],
                hessian=hessian,
                columns=columns,
            )
            found.append(one)
        return found
