"""Settings of an exchange: what ranks send, to whom and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

from dask_ma import _config
from dask_ma._ranges import Interval, StrOptions
from dask_ma._settings import Named, Settings, is_set
from dask_ma.sfb.topology import Topology

CONTENTS = ("auto", "factors", "full_matrix", "server", "outputs")
_WITHOUT_FACTORS = ("full_matrix", "server", "outputs")


class Exchange(Settings):
    """What ranks send each other in an iteration, to whom, and how late it may come.

    For the parameter `communication` of :class:`~dask_ma.SFBLogisticRegression` and of
    :func:`~dask_ma.sfb.run`.

    Parameters
    ----------
    content : {"auto", "factors", "full_matrix", "server", "outputs"}, default="auto"
        What is sent: pairs of factors; the sums of whole update matrices, each rank
        adding up a part; the same by way of rank 0; or, with outputs shared out over
        the ranks, the rows of batches, ahead of time, and small sums of outputs, for
        models that can and penalties of single elements: work and memory of an
        iteration are divided by the ranks, and no factor is sent. "auto" takes one of
        those but for "server", by the time that an iteration of each should take. All
        give the same but for rounding. The other parameters, but for `wire_dtype`, are
        about factors.
    staleness : int, default=0
        How many iterations a rank may be ahead of one whose factors it gets, at least
        0. With 0 (bulk synchronous) all ranks apply the same updates in the same order,
        and the result depends on seed and ranks alone. With more, a rank waits less for
        slow ones, applies updates as they arrive, and the matrices of the ranks are
        averaged at the end of each pass.
    broadcast : int, Topology, array-like of shape (n_ranks, n_ranks) or None, \
            default=None
        To whom a rank sends its factors. None: to all others. A number, at least 1: to
        so many, by the topology that brings them to all others soonest. See
        :mod:`~dask_ma.sfb.topology` for one of your own; in an array, element (p, q)
        says if `p` sends to `q`.
    relay : bool, default=True
        Whether ranks pass on what they get until all have it. As many bytes are sent as
        without `broadcast`, over fewer connections. False sends only a rank's own
        factors: fewer bytes, but ranks learn of others through the mean at the end of a
        pass alone, and updates count for those that do not arrive. Used with
        `broadcast`.
    averaging : bool, default=True
        Whether the ranks take the mean of their matrices at the end of a pass. False
        never sends a whole matrix, as in the paper. The matrices then differ, by
        rounding where all updates reach all ranks and there is no penalty, and the
        model is that of rank 0, which goes to the others only to be scored, after each
        pass with ``early_stopping``, and at the end of a metric learner's fit to pairs,
        for its threshold. Used with `staleness` or `broadcast`.
    compression : float or None, default=None
        Relative error, in the Frobenius norm, that may be made by sending fewer pairs
        of factors than there are rows; from 0 to below 1. None sends all.
    wire_dtype : {"float32", "float64"} or None, default=None
        Type in which factors, or matrices, are sent; None sends them as they are.

    See Also
    --------
    dask_ma.SFBLogisticRegression : Fits with ``solver="sdca"`` need exact factors on
        all ranks: no `compression`, `wire_dtype` or ``relay=False``.

    Examples
    --------
    >>> from dask_ma import SFBLogisticRegression
    >>> from dask_ma.sfb import Exchange
    >>> classifier = SFBLogisticRegression(communication=Exchange(staleness=2))
    >>> classifier.set_params(communication__staleness=4).communication
    Exchange(staleness=4)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "content": [StrOptions(CONTENTS)],
        "staleness": [Interval(Integral, 0, None, closed="left")],
        "broadcast": [
            Interval(Integral, 1, None, closed="left"),
            Topology,
            "array-like",
            None,
        ],
        "relay": ["boolean"],
        "averaging": ["boolean"],
        "compression": [Interval(Real, 0, 1, closed="left"), None],
        "wire_dtype": [StrOptions({"float32", "float64"}), None],
    }

    def __init__(
        self,
        content: str = "auto",
        *,
        staleness: int = 0,
        broadcast: Any = None,
        relay: bool = True,
        averaging: bool = True,
        compression: float | None = None,
        wire_dtype: str | None = None,
    ) -> None:
        self.content = content
        self.staleness = staleness
        self.broadcast = broadcast
        self.relay = relay
        self.averaging = averaging
        self.compression = compression
        self.wire_dtype = wire_dtype

    def check(self) -> None:
        """Refuse what cannot be, before anything is started."""
        super().check()
        if self.content not in _WITHOUT_FACTORS:
            return
        for name, is_given in (
            ("staleness", self.staleness > 0),
            ("broadcast", self.broadcast is not None),
            ("compression", self.compression is not None),
        ):
            if is_given:
                raise ValueError(
                    f"{name} concerns factors, but content is {self.content!r}, which "
                    "sends none; set content='factors'"
                )

    @property
    def _wants_factors(self) -> bool:
        """Whether a parameter makes sense with factors only."""
        return (
            self.staleness > 0
            or self.broadcast is not None
            or self.compression is not None
        )

    @property
    def _is_in_step(self) -> bool:
        """Whether all ranks get all updates of an iteration before the next one."""
        return self.staleness == 0 and self.broadcast is None

    @property
    def _goes_apart(self) -> bool:
        """Whether ranks may end a pass with other matrices."""
        return not (self.averaging or self._is_in_step)

    def _topology(self, n_ranks: int) -> Topology:
        """Who sends to whom among so many ranks; an error for one of other ranks."""
        broadcast = self.broadcast
        if broadcast is None:
            return Topology.complete(n_ranks)
        if isinstance(broadcast, Integral):
            return Topology.optimal(n_ranks, min(int(broadcast), n_ranks - 1))
        if not isinstance(broadcast, Topology):
            broadcast = Topology.from_matrix(np.asarray(broadcast))
        if broadcast.n_ranks != n_ranks:
            raise ValueError(
                f"broadcast is a topology of {broadcast.n_ranks} ranks, but there are "
                f"{n_ranks}; give one for {n_ranks}, or a number of peers"
            )
        return broadcast


#: What the parameter `communication` can be.
COMMUNICATION: Named[Exchange] = Named(
    "communication",
    {content: partial(Exchange, content) for content in CONTENTS},
    "dask_ma.sfb",
)


def check_exact(exchange: Exchange, name: str, instead: str = "") -> None:
    """Refuse exchanges by which ranks do not get all updates just as they are.

    Parameters
    ----------
    exchange : Exchange
    name : str
        What needs them, for errors.
    instead : str, default=""
        What there is to use with such exchanges.

    Raises
    ------
    ValueError
        It names the parameter and its value.
    """
    cure = f", or use {instead}" if instead else ""
    if exchange.content == "outputs":
        raise ValueError(
            f"{name} needs factors on all ranks, but communication has "
            f"content='outputs'; use another content{cure}"
        )
    for parameter in ("relay", "compression", "wire_dtype"):
        if is_set(exchange, parameter):
            raise ValueError(
                f"{name} needs exact factors on all ranks, but {parameter} is "
                f"{getattr(exchange, parameter)!r}; leave it at its default{cure}"
            )


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How the ranks train and exchange.

    Parameters
    ----------
    exchange : Exchange
    batch_size : int
    shuffle : bool
    is_alone : bool
        Whether rank 0 has all rows, and makes all steps.
    n_apart : int
        Batches that a rank goes over by itself from one exchange to the next, where
        steps have a common length.
    dtype : str or None
        Type of the matrix; None takes that of the model's initial matrix.
    has_dtype : bool
        Whether the type is a parameter of the user's.
    link_bandwidth : float
        Bytes a second between two processes.
    """

    exchange: Exchange
    batch_size: int = 100
    shuffle: bool = True
    is_alone: bool = False
    n_apart: int = 1
    dtype: str | None = None
    has_dtype: bool = False
    link_bandwidth: float = field(
        default_factory=partial(_config.get_bytes, "comm.link-bandwidth")
    )

    def cure(self, dtype: np.dtype) -> str:
        """The end of an error about numbers not finite in a matrix of a type."""
        if not self.has_dtype or dtype != np.float32:
            return ""
        return '; values beyond the range of float32, 3.4e38, need dtype="float64"'
