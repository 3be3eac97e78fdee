"""Blocks of a rank as flat dictionaries of arrays, and models put together of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce
from dask_ma.engine import State
from dask_ma.schmp.runtime._encoding import PARTS, ROWS, decode, encode
from dask_ma.schmp.runtime._ring import ParameterBlock

# Names in a state: parameters of a block; its arrays, as they are or as they travel.
_PARAMETERS, _VALUES, _DENSE = "parameters", "values", "dense"


def flat_state(blocks: Iterable[ParameterBlock]) -> dict[str, np.ndarray]:
    """Copies of blocks under names of their own.

    Parameters
    ----------
    blocks : iterable of ParameterBlock
        Blocks of a rank.

    Returns
    -------
    state : dict of str to ndarray
    """
    state = {}
    for block in blocks:
        state[f"{block.number}/{_PARAMETERS}"] = block.parameters
        for name, item in encode(block.values).items():
            place = f"{block.number}/{_VALUES}/{name}"
            if isinstance(item, np.ndarray):
                state[f"{place}/{_DENSE}"] = item.copy()
            else:
                kind, *parts = item
                own = True if kind == ROWS else None  # which are those of the block
                for part, array in zip(PARTS[kind], parts, strict=True):
                    state[f"{place}/{part}"] = np.array(array, copy=own)
    return state


def placed_values(
    group: Group, state: State, wanted: Sequence[np.ndarray]
) -> list[dict[str, np.ndarray]]:
    """Values of some parameters, from what the ranks have saved; a collective call.

    The state may be that of other blocks on another number of ranks.

    Parameters
    ----------
    group : Group
        This rank.
    state : State
        What was saved; its `pieces` are gone through.
    wanted : sequence of ndarray of int64
        For each block of this rank its parameters, in increasing order.

    Returns
    -------
    values : list of dict of str to ndarray
        For each of these blocks.

    Raises
    ------
    ValueError
        If the state lacks some of the parameters.
    """
    found: list[dict[str, np.ndarray]] = [{} for _ in wanted]
    missing = [np.ones(len(parameters), dtype=bool) for parameters in wanted]
    for piece in _sources(group, state, wanted):
        for parameters, values in _blocks_in(piece):
            for own, into, left in zip(wanted, found, missing, strict=True):
                _copy_common(parameters, values, own, into, left)
    n_missing = sum(int(left.sum()) for left in missing)
    if n_missing:
        raise ValueError(
            f"the state that was saved lacks {n_missing} of the parameters; it is that "
            "of another program"
        )
    return found


class ModelPart(NamedTuple):
    """What a rank has of a model.

    Attributes
    ----------
    parameters : list of ndarray of int64
        Parameters of each of its blocks.
    values : list of dict of str to ndarray
        Values of each of them.
    shared : dict
        What is shared, on rank 0; empty on the others.
    """

    parameters: list[np.ndarray]
    values: list[dict[str, np.ndarray]]
    shared: dict[str, Any]


def join_parts(parts: Sequence[ModelPart]) -> dict[str, Any]:
    """The model of the parts of all ranks, which are emptied.

    Parameters
    ----------
    parts : sequence of ModelPart
        In the order of the ranks.

    Returns
    -------
    model : dict of str to ndarray of shape (n_parameters, ...)
        Values of all parameters, and what is shared.
    """
    n_parameters = sum(len(one) for part in parts for one in part.parameters)
    model: dict[str, np.ndarray] = {}
    for part in parts:
        for parameters in part.parameters:
            values = part.values.pop(0)
            for name, array in values.items():
                if name not in model:
                    shape = (n_parameters, *array.shape[1:])
                    model[name] = np.zeros(shape, dtype=array.dtype)
                model[name][parameters] = _dense(array)
    return {**model, **parts[0].shared}


def gather_model(
    group: Group,
    blocks: Iterable[ParameterBlock],
    parameters: Sequence[np.ndarray],
    home: Sequence[Sequence[int]],
) -> dict[str, np.ndarray] | None:
    """Values of all parameters, on rank 0; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    blocks : iterable of ParameterBlock
        Its blocks.
    parameters : sequence of ndarray of int64
        Parameters of each block.
    home : sequence of sequence of int
        Blocks of each rank.

    Returns
    -------
    model : dict of str to ndarray of shape (n_parameters, ...), or None
        None but on rank 0.
    """
    own = {block.number: block.values for block in blocks}
    if group.rank != 0:
        for number, values in own.items():
            group.send(encode(values), 0, ("model", number))
        return None
    n_parameters = sum(len(one) for one in parameters)
    model: dict[str, np.ndarray] = {}
    for rank, numbers in enumerate(home):
        for number in sorted(numbers):
            if rank == 0:
                values = own[number]
            else:
                values = decode(group.recv(rank, ("model", number)))
            for name, array in values.items():
                if name not in model:
                    shape = (n_parameters, *array.shape[1:])
                    model[name] = np.zeros(shape, dtype=array.dtype)
                model[name][parameters[number]] = _dense(array)
    return model


def _sources(
    group: Group, state: State, wanted: Sequence[np.ndarray]
) -> Iterable[dict[str, Any]]:
    """What this rank had, if that is enough for every rank, else what all had."""
    had = [] if state.own is None else [one for one, _ in _blocks_in(state.own)]
    known = np.concatenate([np.empty(0, dtype=np.int64), *had])
    enough = state.own is not None and all(np.isin(one, known).all() for one in wanted)
    if allreduce(group, np.array(enough, dtype=np.int8), "min"):
        return [state.own or {}]
    return state.pieces(group)


def _blocks_in(
    piece: dict[str, Any],
) -> Iterable[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Parameters and values of each block in what one rank has saved."""
    for key, parameters in piece.items():
        number, _, rest = key.partition("/")
        if rest == _PARAMETERS:
            yield parameters, _values_in(piece, f"{number}/{_VALUES}/")


def _values_in(piece: dict[str, Any], begins: str) -> dict[str, np.ndarray]:
    """Values of a block, from the arrays whose names begin with `begins`."""
    message: dict[str, Any] = {}
    for key, array in piece.items():
        name, _, part = key.removeprefix(begins).rpartition("/")
        if not key.startswith(begins):
            continue
        if part == _DENSE:
            message[name] = array
        for kind, parts in PARTS.items():
            if part == parts[0]:
                found = (piece[f"{begins}{name}/{other}"] for other in parts)
                message[name] = kind, *found
    return decode(message)


def _copy_common(
    parameters: np.ndarray,
    values: dict[str, np.ndarray],
    own: np.ndarray,
    into: dict[str, np.ndarray],
    left: np.ndarray,
) -> None:
    """Copy the values of those parameters that are in both blocks."""
    places = np.searchsorted(own, parameters)
    places[places == len(own)] = 0
    common = own[places] == parameters if len(own) else np.zeros(len(parameters), bool)
    places = places[common]
    left[places] = False
    for name, array in values.items():
        if sparse.issparse(array):
            rows = array[common].tocoo()
            shape = len(own), array.shape[1]
            place = places[rows.row], rows.col
            part = sparse.csr_array((rows.data, place), shape=shape, dtype=array.dtype)
            into[name] = into[name] + part if name in into else part
            continue
        if name not in into:
            into[name] = np.zeros((len(own), *array.shape[1:]), dtype=array.dtype)
        into[name][places] = array[common]


def _dense(array: Any) -> np.ndarray:
    """Values of parameters, of which some programs have sparse rows."""
    return array.toarray() if sparse.issparse(array) else array
