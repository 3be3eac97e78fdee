"""Workers of a cluster, as its scheduler sees them.

``Client.scheduler`` is asked for its ``identity``: the public ``scheduler_info`` may
lose the workers again by a periodic update.
"""

from __future__ import annotations

import asyncio
from typing import Any

from distributed import Client

from dask_ma import _config
from dask_ma.exceptions import FitFailedError

__all__ = ["scheduler_workers"]


def scheduler_workers(client: Client) -> dict[str, dict[str, Any]]:
    """What the scheduler says of each of its workers.

    Raises
    ------
    FitFailedError
        If the scheduler does not answer.
    """
    timeout = _config.get_timeout("launch.worker-timeout")

    async def ask() -> Any:
        return await asyncio.wait_for(client.scheduler.identity(n_workers=-1), timeout)

    try:
        identity = client.sync(ask)
    except Exception as error:  # whatever a connection that has gone may raise
        raise FitFailedError(
            f"the scheduler at {address_of(client)} cannot be reached: "
            f"{type(error).__name__}: {error}"
        ) from error
    workers: dict[str, dict[str, Any]] = identity["workers"]
    return workers


def workers_of(client: Client) -> dict[str, dict[str, Any]]:
    """What the scheduler says of each worker; nothing to a client that cannot wait."""
    # A fit refuses that later, with what is to be done.
    return {} if client.asynchronous else scheduler_workers(client)


def address_of(client: Client) -> str:
    """Address of the scheduler of a client, for messages."""
    scheduler = getattr(client, "scheduler", None)
    return str(getattr(scheduler, "address", "an address that is not known any more"))
