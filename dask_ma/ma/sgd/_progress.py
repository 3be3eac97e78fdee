"""Progress of a fit by model averaging, and its state."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dask_ma.engine import RankContext, State
from dask_ma.exceptions import CheckpointError
from dask_ma.linear import Evaluator, LinearModel
from dask_ma.ma.sgd._mean import RunningMean
from dask_ma.ma.sgd._paradigms import Due, Paradigm
from dask_ma.ma.sgd._steps import Steps
from dask_ma.ma.sgd._trial import Shrinking
from dask_ma.supervised import Problem, StopRule


@dataclass
class Progress:
    """What changes from round to round; all of it is needed to go on.

    Parameters
    ----------
    model : LinearModel
        The merged model.
    mean : RunningMean
        The mean of the merged models.
    paradigm : Paradigm
        What a round does.
    rule : StopRule
        When the fit has converged.
    evaluator : Evaluator
        What evaluates the rounds.
    steps : Steps
        Steps of SGD.
    shrinking : Shrinking
        When those found by trial are to become smaller.
    n_iter : int
        Rounds made.
    stop : bool
        Whether the rounds have come to their end.
    n_refined : int
        Rounds of the refinement among those made; `model` is the best one of them.
    converged : bool
        Whether the refinement has converged, or somebody has ended the fit.
    """

    model: LinearModel
    mean: RunningMean
    paradigm: Paradigm
    rule: StopRule
    evaluator: Evaluator
    steps: Steps
    shrinking: Shrinking
    n_iter: int = 0
    stop: bool = False
    n_refined: int = 0
    converged: bool = False

    def keep(self, context: RankContext, problem: Problem, *, done: bool) -> None:
        """Keep all of it in case the fit has to go on; a collective call."""
        mean = self.mean.state_dict()
        shared = {
            "coef": self.model.coef,
            "intercept": self.model.intercept,
            "mean_coef": mean["coef"],
            "mean_intercept": mean["intercept"],
            "mean": mean["counts"],
            "classes": problem.classes,
            "rule": np.array(self.rule.state_dict()),
            "epochs": self.evaluator.epochs,
            "n_worse": self.evaluator.n_worse,
            "steps": np.array([self.steps.scale, self.steps.shift, self.steps.power]),
            "shrinking": np.array(self.shrinking.state_dict()),
            "stop": self.stop,
            "n_refined": self.n_refined,
            "converged": self.converged,
            "t": self.paradigm.t,
            "due": np.array(self.paradigm.due),
        }
        context.save_state(
            self.n_iter,
            shared,
            self.paradigm.state_dict(),
            # In between, rounds wait for their records.
            settled=self.evaluator.epochs == 0.0,
            done=done,
        )

    def load_state_dict(self, state: State) -> None:
        """Take over what was kept.

        Parameters
        ----------
        state : State
            What was kept.
        """
        shared = state.shared
        if shared["coef"].shape != self.model.coef.shape:
            raise CheckpointError(
                f"the model to go on from has coefficients of shape "
                f"{shared['coef'].shape}, expected {self.model.coef.shape} for these "
                "data"
            )
        self.model = LinearModel(shared["coef"], shared["intercept"])
        self.mean.load_state_dict(
            shared["mean_coef"], shared["mean_intercept"], shared["mean"]
        )
        self.rule.load_state_dict(shared["rule"])
        self.evaluator.epochs = shared["epochs"]
        self.evaluator.n_worse = shared["n_worse"]
        self.n_iter, self.stop = state.round, shared["stop"]
        self.n_refined, self.converged = shared["n_refined"], shared["converged"]
        scale, shift, power = map(float, shared["steps"])
        steps = replace(self.steps, scale=scale, shift=shift, power=power)
        if steps != self.steps:
            self.set_steps(steps)
        self.shrinking.load_state_dict(shared["shrinking"])
        self.paradigm.due = Due(*map(float, shared["due"]))
        # The state of a rank may have been lost, or it has other rows now.
        own = state.own or self.paradigm.state_after(self.n_iter, shared["t"])
        self.paradigm.load_state_dict(own)

    def set_steps(self, steps: Steps) -> None:
        """Make these steps from now on."""
        self.steps = steps
        self.paradigm.set_steps(steps)
