"""Progress of a fit by butterfly mixing, and its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dask_ma.butterfly._control import StepControl
from dask_ma.butterfly._params import ButterflyParams, Moments
from dask_ma.butterfly._state import RankState, stack, unstack
from dask_ma.butterfly._steps import (
    StepRule,
    make_preconditioner,
    make_rule,
    rows_of_largest_rank,
)
from dask_ma.comm import sibling
from dask_ma.engine import RankContext, State
from dask_ma.exceptions import CheckpointError
from dask_ma.linear import Evaluator, LinearModel, describe
from dask_ma.supervised import Problem, StopRule


class Plan(NamedTuple):
    """What stays the same from pass to pass.

    Attributes
    ----------
    n_steps : int
        Steps of a pass, the same on all ranks.
    rule : StepRule
        What this rank does in a step.
    described : dict
        What the records of the history tell of it.
    moments : Moments or None
        What the preconditioner has been made from.
    """

    n_steps: int
    rule: StepRule
    described: dict[str, Any]
    moments: Moments | None


@dataclass
class Progress:
    """What changes from pass to pass; all of it is needed to go on.

    Parameters
    ----------
    model : LinearModel
        The best model so far, or the last one if no pass is taken back.
    state : RankState
        Where this rank stands.
    plan : Plan
        What it does.
    rule : StopRule
        When the fit has converged.
    control : StepControl
        How long the steps are.
    evaluator : Evaluator
        What evaluates the passes.
    is_worse : bool
        Whether the model is worse than the one the fit has started from.
    n_refined : int
        Rounds of the refinement.
    stop : bool
        Whether the passes have come to their end.
    converged : bool
        Whether the refinement has converged, or somebody has ended the fit.
    """

    model: LinearModel
    state: RankState
    plan: Plan
    rule: StopRule
    control: StepControl
    evaluator: Evaluator
    is_worse: bool = False
    n_refined: int = 0
    stop: bool = False
    converged: bool = False

    @property
    def n_iter(self) -> int:
        """Rounds so far: passes, and those of the refinement."""
        return self.state.n_passes + self.n_refined

    def keep(self, context: RankContext, problem: Problem, *, done: bool) -> None:
        """Keep all of it in case the fit has to go on; a collective call."""
        state, moments = self.state, self.plan.moments
        described = self.plan.described
        shared = {
            "weights": stack(self.model),
            "t": state.t,
            "eta": state.eta,
            "n_passes": state.n_passes,
            "n_averaged": state.n_averaged,
            "batch_size": state.batch_size,
            "moments": None if moments is None else moments.sums,
            "moments_total": 0.0 if moments is None else moments.total,
            "described": list(described),
            "values": np.array(list(described.values()), dtype=np.float64),
            "classes": problem.classes,
            "rule": np.array(self.rule.state_dict()),
            "control": np.array(self.control.state_dict()),
            "is_worse": self.is_worse,
            "n_worse": self.evaluator.n_worse,
            "n_rows": problem.total_rows,
            "n_refined": self.n_refined,
            "stop": self.stop,
            "converged": self.converged,
            "n_ranks": context.group.size,
        }
        # The next steps change the weights in place.
        own = {"weights": state.weights.copy()}
        context.save_state(self.n_iter, shared, own, done=done)

    def load_state_dict(self, kept: State, problem: Problem) -> None:
        """Take over what was kept, but for state and plan."""
        shared = kept.shared
        self.model = unstack(shared["weights"])
        self.rule.load_state_dict(shared["rule"])
        self.control.load_state_dict(shared["control"])
        if shared["n_rows"] != problem.total_rows:
            self.control.forget()
        self.evaluator.n_worse = shared["n_worse"]
        self.is_worse, self.stop = shared["is_worse"], shared["stop"]
        self.n_refined, self.converged = shared["n_refined"], shared["converged"]

    def describe(self, problem: Problem) -> dict[str, Any]:
        """The model, with what else a fitted estimator has."""
        fitted = describe(self.model, problem, float(self.state.t), self.n_iter)
        return {**fitted, "eta": self.state.eta, "moments": self.plan.moments}


def resume(
    context: RankContext, problem: Problem, params: ButterflyParams, kept: State
) -> tuple[RankState, Plan]:
    """State and plan that were kept after a pass; a collective call."""
    shared, group = kept.shared, context.group
    shape = problem.shard.n_features + 1, problem.n_problems
    if shared["weights"].shape != shape:
        raise CheckpointError(
            f"the model to go on from has weights of shape {shared['weights'].shape}, "
            f"expected {shape} for these data"
        )
    # A rank that has lost its own weights, without a sibling, begins with the mean.
    weights = shared["weights"] if kept.own is None else kept.own["weights"]
    moments, batch_size = None, shared["batch_size"]
    if shared["moments"] is not None:
        moments = Moments(shared["moments"], shared["moments_total"])
    state = RankState(
        weights=weights.copy(),  # steps change them in place
        t=shared["t"],
        eta=shared["eta"],
        n_passes=shared["n_passes"],
        batch_size=batch_size,
        preconditioner=make_preconditioner(moments, params, problem, batch_size),
        # After a pass the mean is the model, on all ranks.
        mean=shared["weights"].copy() if shared["n_averaged"] else None,
        n_averaged=shared["n_averaged"],
    )
    n_steps = -(-rows_of_largest_rank(group, problem) // state.batch_size)
    described = dict(zip(shared["described"], shared["values"].tolist(), strict=True))
    described |= {"batch_size": state.batch_size, "n_steps": n_steps}
    rule = make_rule(params, problem, group.size, n_steps)
    return state, Plan(n_steps, rule, described, moments)


def replica_of(rank: int, shared: dict[str, Any]) -> int:
    """Rank that held the same average as `rank` after the last step."""
    last_step = shared["t"] - 2  # `t` is the next step and counts from 1
    other = sibling(rank, last_step, shared["n_ranks"])
    return rank if other is None else other
