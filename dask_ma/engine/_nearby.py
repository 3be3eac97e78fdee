"""Workers on the machine of the client, and what comes straight from them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from distributed import Client
from distributed.comm import get_address_host, get_local_address_for
from distributed.utils_comm import gather_from_workers

logger = logging.getLogger("dask_ma.engine")

_PATIENCE = 0.5  # seconds in which a process of the same machine answers

# Whether the workers that a client has asked for it answer. Used in its event loop.
_answers: WeakKeyDictionary[Client, dict[str, bool]] = WeakKeyDictionary()


async def are_near(client: Client, addresses: Iterable[str]) -> bool:
    """Whether workers are all on the machine of the client, which can talk to them.

    Others may be behind a firewall; then the scheduler is asked for what they have,
    unless the client was made with ``direct_to_workers=True``. All are asked at the
    same time, and none twice.
    """
    addresses = set(addresses)
    known = _answers.setdefault(client, {})
    if not all(_is_here(address) and known.get(address, True) for address in addresses):
        return False
    unknown = [address for address in addresses if address not in known]
    answers = await asyncio.gather(*(_answers_soon(client, each) for each in unknown))
    known.update(zip(unknown, answers, strict=True))
    return all(answers)


async def fetch_near(
    client: Client, places: Mapping[str, str]
) -> dict[str, Any] | None:
    """Results of tasks from the workers that have them; None if any is not there.

    A ``client.gather(direct=True)`` would have others that start at the same moment
    connect to workers, too.

    Parameters
    ----------
    client : Client
    places : dict of str to str
        The address for each key.
    """
    who_has = {key: [address] for key, address in places.items()}
    try:
        found: dict[str, Any] = (await gather_from_workers(who_has, client.rpc))[0]
    except Exception as error:  # then by way of the scheduler
        logger.info("could not fetch from %s: %s", sorted({*places.values()}), error)
        return None
    return found if found.keys() == places.keys() else None


def _is_here(address: str) -> bool:
    """Whether an address is one of this machine."""
    try:
        own = get_local_address_for(address)
        return bool(own.endswith(f"://{get_address_host(address)}"))
    except Exception:  # of a kind that is not known, or nowhere
        return False


async def _answers_soon(client: Client, address: str) -> bool:
    """Whether there is a worker: the ends of tunnels have such addresses, too."""
    try:
        await asyncio.wait_for(client.rpc(address).identity(), _PATIENCE)
    except Exception:  # whatever a connection that cannot be made may raise
        return False
    return True
