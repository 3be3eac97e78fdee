"""The opening of a fit: passes over batches, or steps on the whole objective.

A pass goes over the rows by batches, each of which takes its time however short its
rows are; a step takes some products with all rows at once. Nothing is timed.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce
from dask_ma.sfb.logistic._cost import Passes, passes_of
from dask_ma.sfb.logistic._params import SFBParams
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.logistic._refine import MOST_VARIABLES
from dask_ma.sfb.logistic._step_cost import (
    hessian_seconds,
    product_seconds,
    rows_of_hessian,
)
from dask_ma.sfb.logistic._unit_choice import can_mix, most_pairs
from dask_ma.sfb.model._rows import row_batches
from dask_ma.supervised import Problem

# Seconds of a batch of dual ascent, whatever its rows, for sparse and dense ones.
_SPARSE_BATCH, _DENSE_BATCH = 2e-3, 1.5e-3
_SPARSE_PAIR = 1e-7  # for an element of sparse rows: products of all pairs of a batch
_ENTRY, _OUTPUT = 7e-9, 5e-8  # for an element, and a row, and an output
# Products of a step by conjugate gradients, with those of its objectives: of sparse
# rows, of uncorrelated features, and of other dense ones. Seconds for a row and an
# output, and for a coefficient, of which rank 0 has all.
_SPARSE_PRODUCTS, _MIXED_PRODUCTS, _DENSE_PRODUCTS = 4.5, 9.0, 30.0
_ROW, _COEFFICIENT, _STEP = 3.5e-7, 5e-8, 8e-3
_OF_MOMENTS = 4  # steps for each time that second moments of sparse rows are found
# The same of a step with second derivatives; operations a second, of products of
# matrices.
_FEW_PRODUCTS, _FEW_ROW, _FEW_STEP = 1.2, 2e-7, 2.5e-3
_FLOPS = 2e10
# Collective operations of a step, and of an exchange of a pass, and seconds of one
# within a process and between several.
_OF_STEP, _OF_EXCHANGE = 25, 2
_NEAR, _FAR = 5e-5, 2.5e-3
# Steps for each pass that they take the place of; with an L1 part they look at few
# coefficients to begin with, and fewer of them are needed. Passes of gradient descent
# take less than those of dual ascent.
_STEPS, _STEPS_WITH_L1, _STEPS_OF_L1 = 1.4, 0.5, 0.75
# The same where the weight of the penalty is such a part of the mean squared length of
# rows: one or two steps are all then, and passes are, too, but for intercepts.
_STEPS_IF_STRONG, _STRONG = 1.0, 1e-3


def opens_with_steps(group: Group, problem: Problem, params: SFBParams) -> bool:
    """Whether steps on the whole objective take less than passes; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    problem : Problem
        Rows and classes.
    params : SFBParams
        Parameters of the fit.

    Returns
    -------
    opens : bool
        The same on all ranks.
    """
    if not params.may_open_with_steps:
        return False
    passes = passes_of(group, problem, params.settings.batch_size)
    # Rows on disks are read for each product of a step.
    if not np.isfinite(passes.nbytes):
        return False
    penalty = Penalty.of(params.penalty, params.alpha, params.l1_ratio)
    # With an L1 part passes find out which coefficients count, if these are many.
    if penalty.l1 and passes.shape[0] * passes.shape[1] > MOST_VARIABLES:
        return False
    kinds = {
        "is_far": group.layout.n_nodes > 1,
        "is_dual": params.solver == "sdca",
        "is_strong": penalty.l2 >= _STRONG * _mean_square(group, problem),
    }
    return takes_steps(passes, penalty, **kinds)


def takes_steps(
    passes: Passes,
    penalty: Penalty,
    *,
    is_far: bool = False,
    is_dual: bool = True,
    is_strong: bool = False,
) -> bool:
    """Whether steps on the whole objective take less than passes, by counts.

    Parameters
    ----------
    passes, penalty, is_far
        As in :func:`step_seconds`.
    is_dual : bool, default=True
        Whether passes are those of dual ascent.
    is_strong : bool, default=False
        Whether the penalty is, beside the rows.

    Returns
    -------
    takes_steps : bool
    """
    n_steps = _STEPS_IF_STRONG if is_strong else _STEPS
    if penalty.l1:
        n_steps = _STEPS_WITH_L1 if is_dual else _STEPS_OF_L1
    of_step = step_seconds(passes, penalty, is_far=is_far)
    return n_steps * of_step <= pass_seconds(passes, is_far=is_far)


def pass_seconds(passes: Passes, *, is_far: bool = False) -> float:
    """Seconds of a pass of dual ascent, of each rank.

    Parameters
    ----------
    passes : Passes
        Sizes of the fit.
    is_far : bool, default=False
        Whether ranks are in several processes.

    Returns
    -------
    seconds : float
    """
    n_outputs = passes.shape[0]
    n_rows = passes.n_rows / (passes.n_ranks * passes.n_steps)
    n_entries = n_rows * passes.n_entries
    if passes.is_sparse:
        batch = _SPARSE_BATCH + n_entries * (_SPARSE_PAIR + _ENTRY * n_outputs)
    else:
        n_flops = 2 * n_entries * (n_rows + 2 * n_outputs)
        batch = _DENSE_BATCH + n_flops / _FLOPS
    batch += _OUTPUT * n_rows * n_outputs
    n_exchanges = passes.n_steps / passes.count_apart() if passes.n_ranks > 1 else 0
    each = _OF_EXCHANGE * _latency(passes, is_far=is_far)
    return passes.n_steps * batch + n_exchanges * each


def step_seconds(passes: Passes, penalty: Penalty, *, is_far: bool = False) -> float:
    """Seconds of a step on the whole objective, of each rank, at most.

    Parameters
    ----------
    passes, is_far
        As in :func:`pass_seconds`.
    penalty : Penalty
        With an L2 part, or of few coefficients.

    Returns
    -------
    seconds : float
    """
    n_outputs, n_features = passes.shape
    n_rows, n_variables = passes.most_rows, n_outputs * n_features
    rows, is_sparse = (passes.n_entries, n_outputs), passes.is_sparse
    product = product_seconds(n_rows, *rows, is_sparse=is_sparse)
    seconds = _OF_STEP * _latency(passes, is_far=is_far)
    kinds = passes.shape, penalty, MOST_VARIABLES
    if n_variables <= most_pairs(*kinds, np.ones(1), passes.is_sparse):
        seconds += _FEW_STEP + _FEW_PRODUCTS * product + _FEW_ROW * n_rows * n_outputs
        n_seen = rows_of_hessian(n_variables, passes.n_rows) / passes.n_ranks
        place = n_seen, passes.n_entries, passes.shape
        return seconds + hessian_seconds(*place, is_sparse=is_sparse)
    n_products = _SPARSE_PRODUCTS if passes.is_sparse else _DENSE_PRODUCTS
    if can_mix(*kinds[:2], passes.is_sparse):
        n_products = _MIXED_PRODUCTS
        if is_sparse:  # second moments, in some steps
            place = n_rows, passes.n_entries, (1, n_features)
            seconds += hessian_seconds(*place, is_sparse=True) / _OF_MOMENTS
    seconds += _STEP + n_products * product + _ROW * n_rows * n_outputs
    return seconds + _COEFFICIENT * n_variables


def _mean_square(group: Group, problem: Problem) -> float:
    """Mean squared length of the rows of all ranks, as they are; a collective call."""
    square = 0.0
    for _, batch in row_batches(problem.shard, problem.n_problems):
        elements = batch.X.data if sparse.issparse(batch.X) else batch.X
        square += float(np.vdot(elements, elements))
    return float(allreduce(group, np.array(square))) / problem.total_rows


def _latency(passes: Passes, *, is_far: bool) -> float:
    """Seconds of a collective operation, besides its bytes."""
    return (_FAR if is_far else _NEAR) * (passes.n_ranks - 1).bit_length()
