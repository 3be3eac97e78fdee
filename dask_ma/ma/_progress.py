"""Where a fit by model averaging stands, and how it is kept for later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_ma.engine import RankContext, State
from dask_ma.exceptions import CheckpointError
from dask_ma.linear import Evaluator, LinearModel, Problem, StopRule
from dask_ma.ma._mean import RunningMean
from dask_ma.ma._solver import LocalSGD


@dataclass
class Progress:
    """What changes from round to round; all of it is needed to go on.

    Parameters
    ----------
    model : LinearModel
        The merged model.
    mean : RunningMean
        The mean of the merged models.
    solver : LocalSGD
        The rank's solver.
    rule : StopRule
        When the fit has converged.
    evaluator : Evaluator
        What evaluates the rounds.
    eta : float
        Step size of an adaptive learning rate.
    n_iter : int
        Rounds made.
    stop : bool
        Whether the fit has come to its end.
    """

    model: LinearModel
    mean: RunningMean
    solver: LocalSGD
    rule: StopRule
    evaluator: Evaluator
    eta: float
    n_iter: int = 0
    stop: bool = False

    def keep(self, context: RankContext, problem: Problem, max_iter: int) -> None:
        """Keep all of it in case the fit has to go on; a collective call."""
        mean = self.mean.state()
        shared = {
            "coef": self.model.coef,
            "intercept": self.model.intercept,
            "mean_coef": mean["coef"],
            "mean_intercept": mean["intercept"],
            "mean": mean["counts"],
            "classes": problem.classes,
            "rule": np.array(self.rule.state()),
            "epochs": self.evaluator.epochs,
            "eta": self.eta,
            "stop": self.stop,
            "t": self.solver.t,
        }
        context.keep(
            self.n_iter,
            shared,
            self.solver.state(),
            # In between, rounds wait for their records.
            settled=self.evaluator.epochs == 0.0,
            done=self.stop or self.n_iter == max_iter,
        )

    def go_on(self, state: State, epochs: float) -> None:
        """Take over what was kept.

        Parameters
        ----------
        state : State
            What was kept.
        epochs : float
            Local epochs of a round.
        """
        shared = state.shared
        if shared["coef"].shape != self.model.coef.shape:
            raise CheckpointError(
                f"the model to go on from has coefficients of shape "
                f"{shared['coef'].shape}, expected {self.model.coef.shape} for these "
                "data; choose another dask-ma.checkpoint.path, or set "
                "dask-ma.checkpoint.resume to False"
            )
        self.model = LinearModel(shared["coef"], shared["intercept"])
        self.mean.go_on(shared["mean_coef"], shared["mean_intercept"], shared["mean"])
        self.rule.go_on(shared["rule"])
        self.evaluator.epochs = shared["epochs"]
        self.n_iter, self.stop = state.round, shared["stop"]
        if shared["eta"] != self.eta:
            self.set_step_size(shared["eta"])
        self.solver.go_on(state.own or self._own_anew(shared["t"], epochs))

    def set_step_size(self, eta: float) -> None:
        """Have the solver make steps of size `eta` from now on."""
        self.eta = eta
        self.solver.set_step_size(eta)

    def _own_anew(self, t: float, epochs: float) -> dict[str, Any]:
        """State of a solver whose own was lost, or that has other rows now."""
        n_rows = self.n_iter * self.solver.rows_of_run(epochs)
        return {"t": t, "n_runs": self.n_iter, "n_rows": n_rows}
