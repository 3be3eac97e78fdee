"""Devices of ranks: a GPU for each one, of those that its process sees."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

_MIG = "MIG-"  # how names of parts of a GPU begin


class Sight(NamedTuple):
    """What the process of a rank sees.

    Attributes
    ----------
    host : str
        For messages.
    gpus : tuple of str
        Names of the GPUs, the same in all processes, in the order of their numbers
        here.
    """

    host: str
    gpus: tuple[str, ...]


def find_device(device: Any) -> torch.device:
    """The device that a parameter names, if this process can use it.

    Parameters
    ----------
    device : str or torch.device
        "auto" is a GPU where there is one.

    Returns
    -------
    device : torch.device

    Raises
    ------
    ValueError
        If torch does not know it, or cannot use it here.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (AssertionError, NotImplementedError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"device={device!r} is unknown to torch, or cannot be used by the process "
            f"that trains: {error}; device='auto' takes a GPU where there is one"
        ) from error
    return found


def is_shared_out(device: Any) -> bool:
    """Whether each rank is given a GPU: one is wanted, but none is named."""
    return device == "auto" or str(device) == "cuda"


def look_around() -> Sight:
    """What this process sees."""
    host = socket.gethostname()
    if not torch.cuda.is_available():
        return Sight(host, ())
    found = range(torch.cuda.device_count())
    uuids = [getattr(torch.cuda.get_device_properties(i), "uuid", i) for i in found]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return Sight(host, name_gpus(host, [str(uuid) for uuid in uuids], visible))


def name_gpus(host: str, uuids: Sequence[str], visible: str | None) -> tuple[str, ...]:
    """Names of GPUs that are the same in all processes of all hosts.

    Parameters
    ----------
    host : str
    uuids : sequence of str
        What torch calls the GPUs; their numbers where it has no names.
    visible : str or None
        Value of ``CUDA_VISIBLE_DEVICES``. Parts of a GPU have its uuid, and their own
        names there; numbers there tell GPUs without names apart.

    Returns
    -------
    names : tuple of str
    """
    wanted = [each.strip() for each in (visible or "").split(",") if each.strip()]
    names = []
    for number, uuid in enumerate(uuids):
        own = wanted[number] if number < len(wanted) else str(number)
        if own.startswith(_MIG):
            names.append(own)
        else:
            names.append(f"{host}/{own}" if uuid == str(number) else uuid)
    return tuple(names)


def share_out(
    sights: Sequence[Sight], ranks_per_gpu: int = 1, *, needs_gpu: bool = False
) -> list[int | None]:
    """A GPU for each rank.

    Parameters
    ----------
    sights : sequence of Sight
        What the process of each rank sees.
    ranks_per_gpu : int, default=1
        Most ranks that share a GPU; they do only if there are not enough.
    needs_gpu : bool, default=False
        Whether a rank that sees no GPU is refused.

    Returns
    -------
    numbers : list of int or None
        Number of the GPU in the process of each rank, the first that it sees if others
        leave it; None for ranks that see none.

    Raises
    ------
    ValueError
        If there are not enough GPUs.
    """
    blind = [rank for rank, sight in enumerate(sights) if not sight.gpus]
    if blind and needs_gpu:
        host = sights[blind[0]].host
        raise ValueError(
            f"device='cuda' needs a GPU for each rank, and rank {blind[0]} of "
            f"{len(sights)} sees none on {host}; start its worker where there is one, "
            "as dask-cuda does, or take device='auto' or 'cpu'"
        )
    seeing = [rank for rank, sight in enumerate(sights) if sight.gpus]
    if not seeing:
        return [None] * len(sights)
    names = sorted({name for sight in sights for name in sight.gpus})
    if len(seeing) > ranks_per_gpu * len(names):
        raise _too_many(sights, len(names), ranks_per_gpu)
    places = {name: place for place, name in enumerate(names)}
    # What a rank minds: first a GPU with others, then one that it does not see first.
    most = 1 + max((len(sight.gpus) for sight in sights), default=0) * len(sights)
    minds = np.full((len(seeing), ranks_per_gpu, len(names)), np.inf)
    for row, rank in enumerate(seeing):
        for number, name in enumerate(sights[rank].gpus):
            minds[row, :, places[name]] = number + most * np.arange(ranks_per_gpu)
    numbers: list[int | None] = [None] * len(sights)
    try:
        _, chosen = linear_sum_assignment(minds.reshape(len(seeing), -1))
    except ValueError:  # some see too few
        raise _too_many(sights, len(names), ranks_per_gpu) from None
    for rank, column in zip(seeing, chosen, strict=True):
        numbers[rank] = sights[rank].gpus.index(names[column % len(names)])
    return numbers


def _too_many(sights: Sequence[Sight], n_gpus: int, ranks_per_gpu: int) -> ValueError:
    """What to tell of more ranks than GPUs."""
    hosts = sorted({sight.host for sight in sights if sight.gpus})
    n_ranks = sum(1 for sight in sights if sight.gpus)
    fewer = min(n_gpus * ranks_per_gpu, n_ranks - 1)
    more = max(ranks_per_gpu + 1, -(-n_ranks // n_gpus))
    return ValueError(
        f"{n_ranks} ranks see {n_gpus} GPUs on {', '.join(hosts)}, and "
        f"ranks_per_gpu={ranks_per_gpu}: expected a GPU for each rank; take n_ranks="
        f"{fewer}, workers that see GPUs of their own, or "
        f"Torch(ranks_per_gpu={more}) or Torch(device='cpu')"
    )
