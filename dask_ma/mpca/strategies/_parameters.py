"""Strategies as users choose them: a name, or an object with parameters of its own."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

from dask_ma._ranges import Interval, StrOptions
from dask_ma._settings import Named, Settings

COMPRESSION = StrOptions({"bf16", "int8"})
PERIOD = Interval(Integral, 1, None, closed="left")


class MPCA(Settings):
    """Models are exchanged in the background while the ranks compute.

    What the parameters do is in the :ref:`User Guide <mpca_sgd>`.

    Parameters
    ----------
    n_phases : {1, 2, 3}, default=1
        Shards that the model is cut into, which are exchanged in turn.
    extrapolation : float or "auto", default="auto"
        How many cycles ahead the joint model is projected before it is sent, at least
        0; reached over 5 cycles. "auto" is 3.5, and 2.5 with a penalty that is given or
        a part of the loss.
    smoothing : float, default=0.8
        How much of its past the trajectory of the joint model keeps, from 0 to below 1.
    penalty : float or "auto", default="auto"
        How strongly each step draws a rank towards the joint model, from 0 to 1. A
        number begins with 0, jumps to 0.5, and decays to this value. "auto" is by as
        much as draws a rank 0.2 of the way in all steps of a cycle, however many these
        are, or in the first of them alone where a batch has fewer elements than the
        network has inputs; with ``penalty_form="loss"`` it is 0.05.
    penalty_form : {"shift", "loss"}, default="shift"
        Whether the penalty moves the model before the gradient is computed, or is a
        part of the loss.
    blending : float, default=0.9
        Part of the joint model that an exchange replaces, above 0 and at most 1; it
        begins with 1 and reaches this value over 5 cycles.
    weighting : {"steps", "uniform"}, default="steps"
        Whether a rank counts in an exchange by the steps that it has made since the
        last one, or as much as any other.
    compression : {"bf16", "int8"} or None, default=None
        What models are sent in: None for their own type; else how far they are from the
        joint model, in half or a quarter of the bytes of float32. "int8" has a scale
        for each 4,096 values. What rounding leaves is added to the next difference.

    Examples
    --------
    >>> from dask_ma import MPCAClassifier
    >>> from dask_ma.mpca import strategies
    >>> classifier = MPCAClassifier(strategy=strategies.MPCA(n_phases=2))
    >>> classifier.set_params(strategy__extrapolation=1.5)
    MPCAClassifier(strategy=MPCA(extrapolation=1.5, n_phases=2))
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_phases": [Interval(Integral, 1, 3, closed="both")],
        "extrapolation": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
        "smoothing": [Interval(Real, 0, 1, closed="left")],
        "penalty": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="both")],
        "penalty_form": [StrOptions({"shift", "loss"})],
        "blending": [Interval(Real, 0, 1, closed="right")],
        "weighting": [StrOptions({"steps", "uniform"})],
        "compression": [COMPRESSION, None],
    }

    def __init__(
        self,
        *,
        n_phases: int = 1,
        extrapolation: float | str = "auto",
        smoothing: float = 0.8,
        penalty: float | str = "auto",
        penalty_form: str = "shift",
        blending: float = 0.9,
        weighting: str = "steps",
        compression: str | None = None,
    ) -> None:
        self.n_phases = n_phases
        self.extrapolation = extrapolation
        self.smoothing = smoothing
        self.penalty = penalty
        self.penalty_form = penalty_form
        self.blending = blending
        self.weighting = weighting
        self.compression = compression


class Synchronous(Settings):
    """All ranks stop every `period` steps and go on from their mean.

    The same seed, blocks and ranks give the same result.

    Parameters
    ----------
    period : int or None, default=None
        Steps from one mean to the next, at least 1. Not more than an epoch has are
        made, of which a warning tells. None is 10, or as many as an epoch has.
    compression : {"bf16", "int8"} or None, default=None
        What models are sent in, as for :class:`MPCA`; the difference is that to the
        last mean.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "period": [PERIOD, None],
        "compression": [COMPRESSION, None],
    }

    def __init__(
        self, period: int | None = None, compression: str | None = None
    ) -> None:
        self.period = period
        self.compression = compression


class ElasticAveraging(Settings):
    """Each rank and the joint model are drawn towards each other now and then.

    A rank stops every `period` of its steps. Parts of the joint model lie on all ranks.

    Parameters
    ----------
    period : int or None, default=None
        Steps of a rank from one exchange to the next, as for :class:`Synchronous`.
    elasticity : float or None, default=None
        Part of their distance by which the two models move, above 0 and at most 1.
        None is 0.9 by the number of ranks.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "period": [PERIOD, None],
        "elasticity": [Interval(Real, 0, 1, closed="right"), None],
    }

    def __init__(
        self, period: int | None = None, elasticity: float | None = None
    ) -> None:
        self.period = period
        self.elasticity = elasticity


class ParameterServer(Settings):
    """Ranks send gradients, and get the model after a step made where it lies.

    Parts of the model lie on all ranks. There are no parameters: each step is an
    exchange.
    """


class Gradients(Settings):
    """All ranks make each step together, with the sum of their gradients.

    The batches of the ranks are one batch, and their models are the same at any time:
    so it does not matter which rows lie on which rank, and the same seed, blocks and
    ranks give the same result. Each step waits for an exchange of gradients. There are
    no parameters.
    """


class Local(Settings):
    """Each rank trains alone, and the model is the mean after each pass.

    No rank goes on from the mean. The same seed, blocks and ranks give the same result.
    There are no parameters.
    """


#: What the parameter `strategy` can be.
STRATEGY: Named[Settings | None] = Named(
    "strategy",
    {
        "auto": lambda: None,
        "mpca": MPCA,
        "gradients": Gradients,
        "synchronous": Synchronous,
        "easgd": ElasticAveraging,
        "parameter_server": ParameterServer,
        "local": Local,
    },
    "dask_ma.mpca.strategies",
)
