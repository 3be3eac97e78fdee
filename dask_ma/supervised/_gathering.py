"""All rows on one rank, for work that is not worth being shared."""

from __future__ import annotations

from dataclasses import replace

from dask_ma.comm import Group, gather
from dask_ma.data import Shard, join_shard, pack_block, unpack_block


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
