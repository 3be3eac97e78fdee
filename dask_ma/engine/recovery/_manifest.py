"""A checkpoint as two files' contents: arrays as npz, the rest as JSON, never a pickle.

The manifest holds the checksum of the arrays, and one of all that it says itself.
Whatever is read is checked: a file that was damaged or edited is refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dask_ma.exceptions import CheckpointError

_FORMAT = "dask_ma checkpoint"
_VERSION = 3  # since states say how many rows they are of
_ARRAY, _OBJECTS, _FLOAT = "array", "objects", "float"  # what JSON cannot hold
_NAMED = "named"  # a dict of the state's own, which is none of these
_SCALARS = (bool, int, float, str, type(None))
_CURE = (
    "remove {} to go on from an older one, or set dask-ma.checkpoint.resume to False "
    "to start anew"
)
# A checkpoint is there as long as its manifest is, whichever of its files is damaged.
_ARRAYS_OF = re.compile(r"(round-\d{8})[^/]*\.npz$")


class SavedState(dict[str, Any]):
    """State out of a checkpoint; says so where something is missing."""

    source: str = ""

    def __missing__(self, key: str) -> Any:
        raise damaged(self.source, f"{key!r} is missing from the state of the fit")


class Saved(NamedTuple):
    """A checkpoint.

    Attributes
    ----------
    name : str
        Name of the estimator.
    parameters : dict
        Its parameters as text.
    options : dict
        Parameters that may change before the fit goes on.
    data : dict
        What tells the data from others.
    fit_id : str
        The fit that has written it.
    writer : dict
        The process that has started this fit.
    seed : int
        Seed of the ranks' random numbers.
    done : bool
        Whether this was the last round.
    round : int
        Number of the last round.
    elapsed : float
        Seconds that the fit had taken.
    shared : dict
        State that all ranks have.
    own : list of dict
        State of each rank.
    shares : list of list
        Ranges of rows that each rank had.
    history : list of dict
        One record per round.
    """

    name: str
    parameters: dict[str, str]
    options: dict[str, Any]
    data: dict[str, Any]
    fit_id: str
    writer: dict[str, Any]
    seed: int
    done: bool
    round: int
    elapsed: float
    shared: dict[str, Any]
    own: list[dict[str, Any]]
    shares: list[list[list[int]]]
    history: list[dict[str, Any]]


def damaged(path: str, reason: str) -> CheckpointError:
    """The error of a file that cannot be used."""
    manifest, n_found = _ARRAYS_OF.subn(r"\1.json", path)
    cure = _CURE.format(manifest if n_found else "it")
    return CheckpointError(f"the checkpoint {path} is damaged ({reason}); {cure}")


def encode(saved: Saved) -> tuple[bytes, bytes]:
    """The manifest and the arrays of a checkpoint.

    Raises
    ------
    TypeError
        If something in it is neither an array nor known to JSON.
    """
    arrays: dict[str, np.ndarray] = {}
    content = saved._asdict()
    content["shared"] = _flatten(saved.shared, arrays)
    content["own"] = [_flatten(state, arrays) for state in saved.own]
    content["history"] = [_flatten(record, {}) for record in saved.history]
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    data = buffer.getvalue()
    manifest = {
        "format": _FORMAT,
        "version": _VERSION,
        "sha256": hashlib.sha256(data).hexdigest(),
        **content,
    }
    # As it will be read: NumPy's numbers have become Python's.
    manifest = json.loads(json.dumps(manifest, allow_nan=False, default=_plain))
    manifest["checksum"] = _checksum(manifest)
    return json.dumps(manifest, indent=1).encode(), data


def decode_manifest(text: bytes, path: str) -> dict[str, Any]:
    """Contents of a manifest, checked.

    Parameters
    ----------
    text : bytes
        The file.
    path : str
        Where it lies, for messages.

    Raises
    ------
    CheckpointError
        If it is damaged, or was written by something else.
    """
    try:
        manifest = json.loads(text)
        if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
            raise CheckpointError(
                f"{path} is no checkpoint of dask_ma; remove it, or choose another "
                "dask-ma.checkpoint.path"
            )
        if manifest.get("version") != _VERSION:
            raise old_format(path, manifest.get("version"))
        found = manifest.pop("checksum", None)
        if found != _checksum(manifest):
            raise damaged(path, "its own checksum differs")
        _check_types(manifest)
    except CheckpointError:
        raise
    except Exception as error:  # whatever a parser may raise, a deep recursion too
        raise damaged(path, f"{type(error).__name__}: {str(error)[:200]}") from error
    return manifest


def old_format(path: str, version: Any) -> CheckpointError:
    """The error of a checkpoint that another version has written."""
    return CheckpointError(
        f"{path} has the version {str(version)[:20]}, expected {_VERSION}: it was "
        "written by another version of dask_ma, and does not say what this one needs "
        "to know; remove it, choose another dask-ma.checkpoint.path, or set "
        "dask-ma.checkpoint.resume to False"
    )


def decode(manifest: dict[str, Any], data: bytes, path: str) -> Saved:
    """A checkpoint from its manifest, which has been checked, and its arrays.

    Parameters
    ----------
    manifest : dict
        From :func:`decode_manifest`.
    data : bytes
        The file of the arrays.
    path : str
        Where it lies, for messages.

    Raises
    ------
    CheckpointError
        If they do not belong together, or are damaged.
    """
    if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
        raise damaged(path, "its checksum differs from the manifest's")
    content = {name: manifest[name] for name in Saved._fields}
    try:
        arrays = _read_arrays(data)
        content["shared"] = _unflatten(content["shared"], arrays, path)
        content["own"] = [_unflatten(own, arrays, path) for own in content["own"]]
        history = [_unflatten(record, {}, path) for record in content["history"]]
        content["history"] = [dict(record) for record in history]
    except Exception as error:  # whatever zip files and headers may lead to
        raise damaged(path, f"{type(error).__name__}: {str(error)[:200]}") from error
    return Saved(**content)


def encode_part(name: str, own: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """What a rank has of its own, as a file of its own.

    Parameters
    ----------
    name : str
        Name of the file.
    own : dict
        Arrays, and values that JSON knows.

    Returns
    -------
    entry : dict
        What the manifest says of it: "file", "sha256" and "content".
    data : bytes
        The file.
    """
    arrays: dict[str, np.ndarray] = {}
    content = _flatten(own, arrays)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    data = buffer.getvalue()
    entry = {"file": name, "sha256": hashlib.sha256(data).hexdigest()}
    return {**entry, "content": json.dumps(content, default=_plain)}, data


def decode_part(entry: dict[str, Any], data: bytes, path: str) -> dict[str, Any]:
    """Undo :func:`encode_part`.

    Parameters
    ----------
    entry : dict
        What the manifest says of the file.
    data : bytes
        The file.
    path : str
        Where it lies, for messages.

    Raises
    ------
    CheckpointError
        If it is not the one that was written.
    """
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise damaged(path, "its checksum differs from the manifest's")
    return _unflatten(json.loads(entry["content"]), _read_arrays(data), path)


def _read_arrays(data: bytes) -> dict[str, np.ndarray]:
    """Arrays of an npz file, none of which needs more memory than the file."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
                raise ValueError(f"{member.filename} is compressed or encrypted")
            if member.file_size > len(data):
                raise ValueError(f"{member.filename} is larger than the file")
    return dict(np.load(io.BytesIO(data), allow_pickle=False))


# -- Checks --------------------------------------------------------------------------


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _is_list_of_tables(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_table, value))


def _is_list_of_shares(value: Any) -> bool:
    def is_share(share: Any) -> bool:
        return isinstance(share, list) and all(
            isinstance(rows, list) and len(rows) == 2 and all(map(_is_count, rows))
            for rows in share
        )

    return isinstance(value, list) and all(map(is_share, value))


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (_is_text, "a text"),
    "parameters": (
        lambda value: _is_table(value) and all(map(_is_text, value.values())),
        "a table of texts",
    ),
    "options": (_is_table, "a table"),
    "data": (_is_table, "a table"),
    "fit_id": (_is_text, "a text"),
    "writer": (_is_table, "a table"),
    "seed": (_is_count, "a number from 0 on"),
    "done": (lambda value: isinstance(value, bool), "true or false"),
    "round": (lambda value: _is_count(value) and value >= 1, "a number from 1 on"),
    "elapsed": (_is_time, "a number from 0 on"),
    "shared": (_is_table, "a table"),
    "own": (
        lambda value: _is_list_of_tables(value) and len(value) > 0,
        "a list of tables, one for each rank",
    ),
    "shares": (_is_list_of_shares, "ranges of rows, for each rank"),
    "history": (_is_list_of_tables, "a list of tables"),
    "sha256": (_is_text, "a text"),
}


def _check_types(manifest: dict[str, Any]) -> None:
    """Refuse a manifest in which something is missing or is of another kind."""
    for key, (is_right, expected) in _CHECKS.items():
        if key not in manifest:
            raise ValueError(f"{key} is missing")
        if not is_right(manifest[key]):
            raise ValueError(f"{key} is {str(manifest[key])[:50]}, expected {expected}")


def _checksum(manifest: dict[str, Any]) -> str:
    """Checksum of what a manifest says, however it is laid out."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# -- States --------------------------------------------------------------------------


def _flatten(state: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """A state as JSON, its arrays put into `arrays`."""

    def convert(value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return {_FLOAT: str(value)}
        if isinstance(value, dict):
            return {_NAMED: {key: convert(item) for key, item in value.items()}}
        if not isinstance(value, np.ndarray):
            return value
        if value.dtype.hasobject:
            return {_OBJECTS: value.tolist()}
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {_ARRAY: name}

    return {key: convert(value) for key, value in state.items()}


def _unflatten(
    state: dict[str, Any], arrays: dict[str, np.ndarray], path: str
) -> SavedState:
    """Undo :func:`_flatten`."""

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if _FLOAT in value:
            return float(value[_FLOAT])
        if _NAMED in value:
            return {key: convert(item) for key, item in value[_NAMED].items()}
        if _OBJECTS in value:
            objects = value[_OBJECTS]
            if not all(isinstance(item, _SCALARS) for item in objects):
                raise ValueError("labels are neither texts nor numbers")
            return np.array(objects, dtype=object)
        return arrays[value[_ARRAY]]

    found = SavedState({key: convert(value) for key, value in state.items()})
    found.source = path
    return found


def _plain(value: Any) -> Any:
    """A NumPy number as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be saved in a checkpoint")
