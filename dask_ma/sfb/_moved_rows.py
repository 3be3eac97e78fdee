"""Bytes of rows that may move to one rank, for steps too short to be shared."""

from __future__ import annotations

from dask_ma import _config
from dask_ma.data import InputInfo, part_of_workers

# Of the memory of a worker, what rows may take that come to it: once as they arrive,
# and once as a block.
_MOST = 0.15


def most_moved(info: InputInfo) -> int:
    """Bytes of rows that may move to one rank, or to those of their groups.

    Parameters
    ----------
    info : InputInfo
        Of the rows.
    """
    return part_of_workers(_config.get_bytes("sfb.moved-rows"), _MOST, info)
