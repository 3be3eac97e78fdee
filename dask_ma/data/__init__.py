"""Data: any accepted input to one shard per rank, and models applied lazily.

On the client `partition` decides which rows go where; on a worker `build_shard` makes
them ready for the kernels. X never passes through the client.
"""

from __future__ import annotations

from dask_ma.data import _aligned as _aligned  # tells Dask how rows are sent
from dask_ma.data._allocator import allocator, give_back_freed, memory_taken
from dask_ma.data._blocks import is_foreign_sparse, is_sparse, n_bytes, to_csr
from dask_ma.data._checks import check_size, refuse_masked, target_numbers
from dask_ma.data._collections import current_client
from dask_ma.data._demand import Foresight, Kept, Share
from dask_ma.data._fingerprint import (
    ShardDigest,
    combine_digests,
    digest_shard,
)
from dask_ma.data._frames import as_arrays, row_blocks
from dask_ma.data._input_size import InputSize, Narrow, count_classes, size_of_input
from dask_ma.data._inputs import (
    InputInfo,
    describe,
    is_dask_collection,
    is_dask_frame,
    rows_like,
)
from dask_ma.data._labels import (
    check_memory_labels,
    encode_labels,
    merge_labels,
    unique_labels_of,
)
from dask_ma.data._lazy import apply_blockwise
from dask_ma.data._mapped import ask_for, hand_back, is_on_disk, read_ahead
from dask_ma.data._memory import (
    CAST_LATER,
    checked_rows,
    checked_vector,
    refuse_unfinished,
    weight_per_row,
)
from dask_ma.data._packing import pack_block, unpack_block
from dask_ma.data._partition import Deal, partition
from dask_ma.data._placement import plan_dealt
from dask_ma.data._recovery import can_be_had_again, drop_shards, recover_shards
from dask_ma.data._room import Room, RoomSettings, Shelf
from dask_ma.data._shard import Block, Shard, build_shard, join_groups, join_shard
from dask_ma.data._spec import Partition, Piece, ShardSpec, rows_of
from dask_ma.data._stream import (
    join_limit,
    may_spare,
    part_of_workers,
    refuse_beyond_memory,
)
from dask_ma.data._usage import memory_here, part_of_memory, spare_memory
from dask_ma.data._workers import scheduler_workers

__all__ = [
    "Block",
    "CAST_LATER",
    "Deal",
    "Foresight",
    "InputInfo",
    "InputSize",
    "Kept",
    "Narrow",
    "Partition",
    "Piece",
    "Room",
    "RoomSettings",
    "Shard",
    "ShardDigest",
    "ShardSpec",
    "Share",
    "Shelf",
    "allocator",
    "apply_blockwise",
    "as_arrays",
    "ask_for",
    "build_shard",
    "can_be_had_again",
    "check_memory_labels",
    "check_size",
    "checked_rows",
    "checked_vector",
    "combine_digests",
    "count_classes",
    "current_client",
    "describe",
    "digest_shard",
    "drop_shards",
    "encode_labels",
    "give_back_freed",
    "hand_back",
    "is_dask_collection",
    "is_dask_frame",
    "is_foreign_sparse",
    "is_on_disk",
    "is_sparse",
    "join_groups",
    "join_limit",
    "join_shard",
    "may_spare",
    "memory_here",
    "memory_taken",
    "merge_labels",
    "n_bytes",
    "pack_block",
    "part_of_memory",
    "part_of_workers",
    "partition",
    "plan_dealt",
    "read_ahead",
    "recover_shards",
    "refuse_beyond_memory",
    "refuse_masked",
    "refuse_unfinished",
    "row_blocks",
    "rows_like",
    "rows_of",
    "scheduler_workers",
    "size_of_input",
    "spare_memory",
    "target_numbers",
    "to_csr",
    "unique_labels_of",
    "unpack_block",
    "weight_per_row",
]
