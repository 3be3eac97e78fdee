"""Ranks that are threads of one process."""

from __future__ import annotations

from collections.abc import Hashable
from math import isfinite
from typing import Any

import numpy as np

from dask_ma.comm._group import Group, map_arrays
from dask_ma.comm._mailbox import Mailbox
from dask_ma.comm._topology import Layout


class LocalGroup(Group):
    """Ranks of one process, which exchange through memory.

    Use :meth:`create` to make the groups of all ranks.
    """

    def __init__(
        self,
        rank: int,
        layout: Layout,
        mailboxes: list[Mailbox],
        delay: float = 0.0,
    ) -> None:
        super().__init__(rank, layout, mailboxes[rank])
        self._mailboxes = mailboxes
        self._delay = delay

    @classmethod
    def create(
        cls,
        n_ranks: int,
        ranks_per_node: int | None = None,
        *,
        delay: float = 0.0,
    ) -> list[LocalGroup]:
        """Make the groups of `n_ranks` ranks.

        Parameters
        ----------
        n_ranks : int
            Number of ranks.
        ranks_per_node : int, default=None
            How many consecutive ranks count as one process; all of them if None.
            A smaller number makes the collectives take, and count, the same messages
            as on a cluster whose workers carry that many ranks each.

        Returns
        -------
        groups : list of LocalGroup
            One group per rank, in rank order.

        Examples
        --------
        >>> from dask_ma.comm import LocalGroup
        >>> first, second = LocalGroup.create(2)
        >>> first.send("hello", dest=1)
        >>> second.recv(source=0)
        'hello'
        """
        if n_ranks < 1:
            raise ValueError(f"n_ranks must be at least 1, got {n_ranks}")
        per_node = n_ranks if ranks_per_node is None else ranks_per_node
        if per_node < 1:
            raise ValueError(f"ranks_per_node must be at least 1, got {per_node}")
        if not (isfinite(delay) and delay >= 0):
            raise ValueError(f"delay must be finite and not negative, got {delay}")
        layout = Layout.from_nodes([rank // per_node for rank in range(n_ranks)])
        mailboxes = [Mailbox(rank) for rank in range(n_ranks)]
        return [cls(rank, layout, mailboxes, delay) for rank in range(n_ranks)]

    def flush(self) -> None:
        """Return at once: a message is in its mailbox as soon as it is sent."""
        # With a delay it lies there, but cannot be received yet.
        self.raise_if_closed()

    def abort(self, error: BaseException) -> None:
        """Make every rank's present and later calls raise `error`."""
        for mailbox in self._mailboxes:
            mailbox.close(error)

    def _deliver(
        self,
        payload: Any,
        dest: int,
        tag: Hashable,
        nbytes: int,
        copy: bool,
        is_awaited: bool,
    ) -> None:
        # Copied, as on its way to another process: the sender may change it afterwards.
        self._deliver_local(map_arrays(payload, np.copy), dest, tag)

    def _deliver_local(self, payload: Any, dest: int, tag: Hashable) -> None:
        delay = self._delay if dest != self.rank else 0.0
        self._mailboxes[dest].put(self.rank, tag, payload, delay=delay)
