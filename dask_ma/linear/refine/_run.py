"""The refinement as each rank carries it out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from dask_ma.comm import broadcast
from dask_ma.engine import Adder, State, fit_rounds
from dask_ma.kernels import DescentSums
from dask_ma.linear._model import LinearModel
from dask_ma.linear.refine._at_once import FewRowsRefinement, plan_of
from dask_ma.linear.refine._best import Best, BestModel
from dask_ma.linear.refine._choice import choose_method
from dask_ma.linear.refine._coordinates import Coordinates, Found
from dask_ma.linear.refine._evaluation import Request
from dask_ma.linear.refine._few_rows import few_rows_round
from dask_ma.linear.refine._reachable import notes_on_units
from dask_ma.linear.refine._refinement import Refinable, Refinement, sum_over_ranks
from dask_ma.linear.refine._search import Verdict
from dask_ma.linear.refine._share import Slice

# Fewest columns whose weights are shared out. Rounds of two worker processes of one
# thread took 81 ms and not 105 with as many, and with half of them 57 and not 54: the
# work that is saved grows with the columns, but not the two small messages it takes.
_LEAST_SHARED = 2**20
# Most weights of all problems with which every rank makes the search. It keeps twenty
# vectors of them then: 40 MiB at most.
_MOST_MIRRORED = 2**18


def refine(
    rounds: Refinable, state: State | None, t: float, add_up: Adder | None = None
) -> bool:
    """Go on from where rounds have ended to the optimum; a collective call.

    Rank 0 decides at which points it needs objective and derivatives, and sends them
    out; all ranks evaluate them in one pass over their rows. Were each rank to decide
    for itself, ranks on processors of different kinds could round differently, and one
    would end while the others wait for it.

    Where there are many columns and L-BFGS is the method, what it remembers and works
    out is shared out over the ranks, which decide by sums of what they find. Where
    there are few, and ranks of processes of their own, all of them make the search, and
    need not wait for what rank 0 asks, which they compare with what they expect.

    Parameters
    ----------
    rounds : Refinable
        The rounds; afterwards their `current` is the best model evaluated, in the dtype
        of the first.
    state : State or None
        What they have gone on from.
    t : float
        Place in the schedule of the learning rate, which stays as it is.
    add_up : callable, default=None
        Sums arrays over ranks; None is :func:`~dask_ma.comm.allreduce`.

    Returns
    -------
    converged : bool
        Whether the objective is as near to its optimum as asked for, or somebody who
        follows the fit wants it to end.
    """
    method = choose_method(rounds.params, rounds.problem)
    plan = plan_of(rounds)
    make: Callable[..., Refinement] = Refinement
    has_few_rows = few_rows_round(rounds.params, rounds.problem) is not None
    if has_few_rows or plan is not None:
        make = partial(FewRowsRefinement, plan=plan)
    elif _is_shared(rounds, method):
        make = SharedRefinement
    elif _is_mirrored(rounds, add_up):
        make = MirroredRefinement
    refinement = make(rounds, t, add_up, method)
    before = state if rounds.n_refined else None
    ended = fit_rounds(rounds.context, refinement, before, add_up=add_up)
    if (coordinates := refinement.coordinates) is not None:
        group, shard = rounds.context.group, rounds.problem.shard
        for note in notes_on_units(group, shard, rounds.params, coordinates):
            rounds.context.note(note)
    return rounds.has_converged or ended.wanted


def _is_shared(rounds: Refinable, method: str) -> bool:
    """Whether the work of the search is worth the messages that sharing it takes."""
    is_large = rounds.problem.shard.n_features >= _LEAST_SHARED
    return method == "lbfgs" and rounds.context.group.size > 1 and is_large


def _is_mirrored(rounds: Refinable, add_up: Adder | None) -> bool:
    """Whether the search is small beside the messages that spread what it asks for."""
    problem, layout = rounds.problem, rounds.context.group.layout
    # Ranks of one process read what rank 0 asks for where it is.
    are_apart = layout.n_nodes == layout.size > 1
    n_weights = problem.n_problems * problem.shard.n_features
    return are_apart and add_up is None and n_weights <= _MOST_MIRRORED


class MirroredRefinement(Refinement):
    """Steps whose search every rank makes, which goes on with what it asks at once.

    Rank 0 sends a mark of what it asks, which comes while the others evaluate what they
    expect. One that has expected something else, since its processor rounds in another
    way, leaves its part out and says so in the sums; from then on rank 0 alone makes
    the search.
    """

    _ahead: DescentSums | None = None  # parts of what is asked next
    _is_apart = False  # whether rank 0 asks something else
    _is_led = False  # whether rank 0 makes the search alone

    @property
    def _makes_search(self) -> bool:
        return True

    def _evaluate(self) -> DescentSums:
        sums, self._ahead = self._ahead, None
        return super()._evaluate() if sums is None else sums

    def _agree(self, verdict: Verdict) -> Verdict:
        if self._is_led:
            return super()._agree(verdict)
        assert self._search is not None and self._best is not None
        ask = None if verdict.is_done else self._search.ask()
        own = None if ask is None else ask.mark()
        ahead = None
        if ask is not None and self.context.group.rank and not self._is_last:
            ahead = self._rows.measure(ask, self._best.coordinates)
        told = broadcast(self.context.group, (tuple(verdict), own))
        verdict, mark = Verdict(*told[0]), told[1]
        self._is_apart = mark is not None and mark != own
        if self._is_apart:
            ask, ahead = self._request, self._rows.no_sums(*mark[1:])
        self._next, self._ahead = ask, ahead
        return verdict

    def _prepare(self, sums: DescentSums) -> list[np.ndarray]:
        return [*sums, np.array([float(self._is_apart)])]

    def _find(self, sums: list[np.ndarray]) -> list[Found]:
        *sums, n_apart = sums
        if n_apart[0]:
            sums = self._begin_led()
        return super()._find(sums)

    def _begin_led(self) -> list[np.ndarray]:
        """Have rank 0 make the search alone; sums over ranks of what it has asked."""
        group = self.context.group
        self._is_led, self._is_apart = True, False
        if group.rank:
            self._search = None
        self._request = Request(*broadcast(group, tuple(self._request)))
        return sum_over_ranks(group, self._evaluate())


class SharedRefinement(Refinement):
    """Steps of L-BFGS whose vectors are shared out, each rank with a slice of all."""

    _share: Slice
    _own: Coordinates
    _slopes: np.ndarray

    def _begin(self, model: LinearModel) -> Best:
        coordinates = self._coordinates(model)
        model = self._nearer(model, coordinates)
        self._share = Slice(
            self.context.group,
            coordinates.n_features,
            self._add_up,
            fit_intercept=self._before.params.fit_intercept,
        )
        self._own = coordinates.part(self._share)
        points = coordinates.to_points(model)[:, self._share.weights]
        self._search = self._search_from(points, self._own, self._share)
        return BestModel(model, coordinates)

    def _ask(self) -> Request:
        assert self._search is not None
        self._asked = self._search.ask()
        points = self._share.gather(self._asked.points)
        return self._asked._replace(points=points)

    def _agree(self, verdict: Verdict) -> Verdict:
        return verdict  # the same on all ranks

    def _prepare(self, sums: DescentSums) -> list[np.ndarray]:
        self._slopes = self._share.scatter(sums.coef)
        penalties = self._own.penalties(self._asked.points)
        return [*sums._replace(coef=np.zeros((len(sums.coef), 0))), penalties]

    def _find(self, sums: list[np.ndarray]) -> list[Found]:
        assert self._best is not None
        *rest, penalties = sums
        total = DescentSums(*rest)._replace(coef=self._slopes)
        own = self._rows.gradients(total, self._asked.points, self._own)
        return self._rows.to_found(
            total, self._request, self._best.coordinates, own, penalties
        )
