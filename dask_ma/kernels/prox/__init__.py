"""Penalties and constraints of a parameter matrix, by their proximal operators.

After each update of the matrix `W` with a step `s`, the proximal operator of a function
`h` is applied to it::

    prox(W, s) = argmin over Z of  s * h(Z) + ||Z - W||_F^2 / 2

`W` has shape ``(n_outputs, n_features)``, in the literature `J` x `D`. Most functions
add up over its columns. An iteration with sparse rows changes few columns, and the
others need not be looked at: what has to be done to them adds up and is done when they
are used next. Such functions derive from :class:`ColumnwiseProx`; any other derives
from :class:`Prox` and is applied to the whole matrix in every iteration.

Your own functions derive from one of the two in the same way.
"""

from dask_ma.kernels.prox._base import ColumnwiseProx, Prox
from dask_ma.kernels.prox._operators import (
    L1,
    L2,
    ColumnNormBall,
    ElasticNet,
    NoPenalty,
    TraceNorm,
)

__all__ = [
    "ColumnNormBall",
    "ColumnwiseProx",
    "ElasticNet",
    "L1",
    "L2",
    "NoPenalty",
    "Prox",
    "TraceNorm",
]
