"""States of a fit in files: arrays as npz, the rest as JSON, never a pickle.

A checkpoint is two files. The arrays are written first and the manifest, which holds
their checksum, last; each appears as a whole under its name or not at all. A checkpoint
without its manifest does not exist.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
import zipfile
from dataclasses import dataclass
from typing import Any, NamedTuple

import fsspec
import numpy as np

from dask_ma import _config
from dask_ma.exceptions import CheckpointError

_FORMAT = "dask_ma checkpoint"
_VERSION = 1
_MANIFEST = re.compile(r"round-(\d{8})\.json")
_ARRAY, _OBJECTS = "array", "objects"  # tags of what JSON cannot hold


@dataclass(frozen=True)
class CheckpointSettings:
    """Where and how often a fit is saved.

    Parameters
    ----------
    path : str
        Directory, as fsspec names it.
    every : int
        Rounds from one checkpoint to the next.
    keep : int
        How many of them stay.
    resume : bool
        Whether a fit goes on from the newest one in the directory.
    """

    path: str
    every: int
    keep: int
    resume: bool

    @classmethod
    def from_config(cls) -> CheckpointSettings | None:
        """The settings in Dask's configuration, None without a path.

        Raises
        ------
        ValueError
            For a value out of range; the message names the key.
        """
        path = _config.get("checkpoint.path")
        if path is None:
            return None
        numbers = {}
        for key in ("every", "keep"):
            value = _config.get(f"checkpoint.{key}")
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"the configuration dask-ma.checkpoint.{key} is {value!r}, "
                    "expected an int of at least 1"
                )
            numbers[key] = value
        return cls(str(path), resume=bool(_config.get("checkpoint.resume")), **numbers)


class Saved(NamedTuple):
    """A checkpoint.

    Attributes
    ----------
    name : str
        Name of the estimator.
    parameters : dict
        Its parameters as text.
    round : int
        Number of the last round.
    elapsed : float
        Seconds that the fit had taken.
    shared : dict
        State that all ranks have.
    own : list of dict
        State of each rank.
    history : list of dict
        One record per round.
    """

    name: str
    parameters: dict[str, str]
    round: int
    elapsed: float
    shared: dict[str, Any]
    own: list[dict[str, Any]]
    history: list[dict[str, Any]]


def save(settings: CheckpointSettings, saved: Saved) -> None:
    """Write a checkpoint and remove those that are too old.

    Parameters
    ----------
    settings : CheckpointSettings
        Where to.
    saved : Saved
        What.

    Raises
    ------
    CheckpointError
        If the directory cannot be written.
    """
    arrays: dict[str, np.ndarray] = {}
    content = saved._asdict()
    content["shared"] = _flatten(saved.shared, arrays)
    content["own"] = [_flatten(state, arrays) for state in saved.own]
    content["history"] = [_without_nan(record) for record in saved.history]
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    data = buffer.getvalue()
    manifest = {
        "format": _FORMAT,
        "version": _VERSION,
        "sha256": hashlib.sha256(data).hexdigest(),
        **content,
    }
    text = json.dumps(manifest, indent=1, allow_nan=False, default=_plain)
    try:
        fs, root = _open(settings.path)
        fs.makedirs(root, exist_ok=True)
        stem = f"{root}/round-{saved.round:08d}"
        _write(fs, f"{stem}.npz", data)
        _write(fs, f"{stem}.json", text.encode())
        for number in sorted(_rounds(fs, root))[: -settings.keep]:
            # The manifest first: from then on the checkpoint does not exist.
            for suffix in ("json", "npz"):
                fs.rm_file(f"{root}/round-{number:08d}.{suffix}")
    except OSError as error:
        raise CheckpointError(
            f"cannot write a checkpoint to {settings.path}: "
            f"{type(error).__name__}: {error}"
        ) from error


def load(settings: CheckpointSettings) -> Saved | None:
    """Read the newest checkpoint in a directory; None where there is none.

    Raises
    ------
    CheckpointError
        If it is damaged, or was written by something else.
    """
    fs, root = _open(settings.path)
    fs.invalidate_cache()
    rounds = _rounds(fs, root)
    if not rounds:
        return None
    stem = f"{root}/round-{max(rounds):08d}"
    try:
        manifest = json.loads(fs.cat_file(f"{stem}.json"))
        if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
            raise CheckpointError(
                f"{stem}.json is no checkpoint of dask_ma; choose another directory"
            )
        if manifest["version"] != _VERSION:
            raise CheckpointError(
                f"{stem}.json has the version {manifest['version']}, expected "
                f"{_VERSION}; it was written by another version of dask_ma"
            )
        data = fs.cat_file(f"{stem}.npz")
        if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
            raise _damaged(f"{stem}.npz", "its checksum differs from the manifest's")
        arrays = dict(np.load(io.BytesIO(data), allow_pickle=False))
        content = {name: manifest[name] for name in Saved._fields}
        content["shared"] = _unflatten(content["shared"], arrays)
        content["own"] = [_unflatten(state, arrays) for state in content["own"]]
        content["history"] = [_with_nan(record) for record in content["history"]]
    except (ValueError, KeyError, TypeError, OSError, zipfile.BadZipFile) as error:
        if isinstance(error, CheckpointError):
            raise
        raise _damaged(f"{stem}.json", f"{type(error).__name__}: {error}") from error
    return Saved(**content)


def check_identity(saved: Saved, name: str, parameters: dict[str, str]) -> None:
    """Refuse a checkpoint of another estimator, or of one with other parameters."""
    if saved.name != name:
        raise CheckpointError(
            f"the checkpoint is of a {saved.name}, expected one of a {name}; choose "
            "another dask-ma.checkpoint.path, or set dask-ma.checkpoint.resume to False"
        )
    different = [
        f"{key} is {saved.parameters.get(key)} in the checkpoint and "
        f"{parameters.get(key)} here"
        for key in sorted({*saved.parameters, *parameters})
        if saved.parameters.get(key) != parameters.get(key)
    ]
    if different:
        raise CheckpointError(
            f"the checkpoint is of a {name} with other parameters: "
            f"{'; '.join(different)}; choose another dask-ma.checkpoint.path, or set "
            "dask-ma.checkpoint.resume to False"
        )


def _open(path: str) -> tuple[Any, str]:
    """File system of a path, of its own for the sake of its transactions."""
    fs, root = fsspec.core.url_to_fs(path, skip_instance_cache=True)
    return fs, root.rstrip("/")


def _write(fs: Any, path: str, data: bytes) -> None:
    """Write a file that appears under its name only when it is complete."""
    with fs.transaction, fs.open(path, "wb") as file:
        file.write(data)


def _rounds(fs: Any, root: str) -> list[int]:
    """Numbers of the checkpoints in a directory."""
    if not fs.exists(root):
        return []
    names = [str(name).rpartition("/")[2] for name in fs.ls(root, detail=False)]
    return [int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name))]


def _flatten(state: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """A state as JSON, its arrays put into `arrays`."""

    def convert(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        if value.dtype.hasobject:
            return {_OBJECTS: value.tolist()}
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {_ARRAY: name}

    return {key: convert(value) for key, value in state.items()}


def _unflatten(state: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Undo :func:`_flatten`."""

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if _OBJECTS in value:
            return np.array(value[_OBJECTS], dtype=object)
        return arrays[value[_ARRAY]]

    return {key: convert(value) for key, value in state.items()}


def _without_nan(record: dict[str, Any]) -> dict[str, Any]:
    """A record in which null, which JSON has, stands for NaN."""
    return {
        key: None if isinstance(value, float) and math.isnan(value) else value
        for key, value in record.items()
    }


def _with_nan(record: dict[str, Any]) -> dict[str, Any]:
    """Undo :func:`_without_nan`."""
    return {k: math.nan if v is None else v for k, v in record.items()}


def _plain(value: Any) -> Any:
    """A NumPy number as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be saved in a checkpoint")


def _damaged(path: str, reason: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {path} is damaged ({reason}); remove it to go on from an "
        "older one, or set dask-ma.checkpoint.resume to False to start anew"
    )
