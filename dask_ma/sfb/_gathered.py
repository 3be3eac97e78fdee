"""All rows on one rank, for steps that are too short to be shared."""

from __future__ import annotations

from dataclasses import replace

from dask_ma import _config
from dask_ma.comm import Group, gather
from dask_ma.data import (
    InputInfo,
    Shard,
    join_shard,
    pack_block,
    part_of_workers,
    unpack_block,
)

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


def gathered(shard: Shard, group: Group) -> Shard:
    """The rows of all ranks as a shard of rank 0; a collective call.

    Parameters
    ----------
    shard : Shard
        The rank's rows.
    group : Group
        This rank.

    Returns
    -------
    gathered : Shard
        One block, in the order of ranks; without rows on other ranks.
    """
    empty = replace(shard, blocks=[])
    own = join_shard(shard, shard.nbytes) if group.rank else empty
    parts = gather(group, [pack_block(block) for block in own.blocks])
    if parts is None:
        return empty
    others = [unpack_block(each, shard.n_features) for part in parts for each in part]
    whole = replace(shard, blocks=[*shard.blocks, *others])
    return join_shard(whole, whole.nbytes)
