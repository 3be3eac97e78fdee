"""Parameters of a network's fit, as sent to every rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dask_ma._settings import Settings
from dask_ma.mpca.networks._network import NetworkSpec, Scaling
from dask_ma.mpca.training._validation import ValidationRows
from dask_ma.supervised import ValidationParams

#: Of the variance of the targets, explained on the training rows.
LITTLE_EXPLAINED = 0.05


@dataclass(frozen=True, kw_only=True)
class MPCAParams(ValidationParams):
    """Parameters of a fit; the names are those of the estimators.

    Parameters
    ----------
    spec : NetworkSpec
        How to build the network.
    random_state : RandomState
        Where the first values, and the shuffles of the rank of the first shard, come
        from.
    join_limit : int
        Bytes up to which a rank joins its blocks into one.
    vector : ndarray of shape (n_values,) or None
        Values to start from; None for random ones.
    known : ndarray of bool, shape (n_features,), or None
        Columns that `vector` has weights of, where a `fit` starts from it.
    optimizer_state : dict or None
        What the optimiser is to remember; None for nothing.
    validation : ValidationRows or None
        Rows to score models on; None holds some of the others out where the score is
        asked for.
    keep_optimizer : bool
        Whether what the optimisers remember is wanted after the fit.
    scaling : Scaling or None
        What the network has scaled rows and outputs by so far, if it goes on.
    """

    spec: NetworkSpec
    random_state: np.random.RandomState
    strategy: Settings | str
    batch_size: int | str
    learning_rate: str
    learning_rate_init: float
    power_t: float
    max_iter: int
    tol: float | None
    shuffle: bool | str
    n_iter_no_change: int
    join_limit: int
    vector: np.ndarray | None = field(default=None, repr=False)
    known: np.ndarray | None = field(default=None, repr=False)
    optimizer_state: dict[str, Any] | None = field(default=None, repr=False)
    validation: ValidationRows | None = field(default=None, repr=False)
    keep_optimizer: bool = False
    scaling: Scaling | None = field(default=None, repr=False)

    @property
    def is_suited(self) -> bool:
        """Whether the network is suited to what the features and targets are like."""
        # The parts that `partial_fit` gets tell too little about them.
        return self.spec.has_scaling and not self.keep_optimizer


class Baseline(NamedTuple):
    """Training losses of models that look at no features; 0 where not known.

    Attributes
    ----------
    constant : float
        Of the best one: the mean of the targets, or the frequencies of the classes.
    unlearned : float
        Of what a network is before it has learned: the same, or classes that are all
        equally likely.
    """

    constant: float = 0.0
    unlearned: float = 0.0


class MPCAResult(NamedTuple):
    """What rank 0 returns to the client.

    Attributes
    ----------
    fitted : dict
        `vector` of the joint model; `classes`, sorted labels or None; `n_iter`, epochs
        made; `loss_curve` and `scores` of the epochs; `n_samples`, rows seen;
        `strategy`, how the ranks have worked together.
    optimizer_state : dict or None
        What the optimisers remember, the mean over ranks, if it is wanted.
    converged : bool
        Whether the fit ended by its own rules and not by `max_iter`.
    history : list of dict
        Records.
        `restarts` counts how often the ranks have had to start again until then.
    timeline : ndarray or None
        What all ranks have done when.
    notes : tuple of str
        What the user is to know of the rows.
    baseline : Baseline
        What the losses are to be compared with.
    scaling : Scaling or None
        What the network has scaled rows and outputs by.
    """

    fitted: dict[str, Any]
    optimizer_state: dict[str, Any] | None
    converged: bool
    history: list[dict[str, Any]]
    timeline: np.ndarray | None
    notes: tuple[str, ...] = ()
    baseline: Baseline = Baseline()
    scaling: Scaling | None = None
