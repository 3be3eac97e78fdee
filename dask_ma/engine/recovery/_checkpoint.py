"""Checkpoints in a directory: a series for each fit, a pair of files for each round.

Where the parts of all ranks make up one model, each is a file of its own, named in the
manifest. The arrays are written first and the manifest last; each appears as a whole
under its name or not at all. A checkpoint without its manifest does not exist.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import sleep
from types import TracebackType
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from dask_ma.engine.recovery._manifest import (
    Saved,
    damaged,
    decode,
    decode_manifest,
    decode_part,
    encode,
    encode_part,
    old_format,
)
from dask_ma.exceptions import CheckpointError, FitFailedError

_MANIFEST = re.compile(r"round-(\d{8})\.json")
_RANK_FILE = re.compile(r"round-(\d{8})-([0-9a-f]+)-\d+\.npz")
_CLAIM = "claim"
_PART = ".part"  # ends the name of a file that is being written
_MOST_LOOKS, _PAUSE = 10, 0.05  # seconds, at a claim that is being written


class Store:
    """The checkpoints in a directory.

    Parameters
    ----------
    path : str
        Directory, as fsspec names it. It need not be there.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        # A file system of its own for the sake of its transactions.
        self._fs, root = fsspec.core.url_to_fs(path, skip_instance_cache=True)
        self._root = root.rstrip("/")

    def series(self) -> dict[str, list[int]]:
        """Rounds of each series, sorted.

        Raises
        ------
        CheckpointError
            If the directory cannot be read, or holds checkpoints of an old format.
        """
        try:
            self._fs.invalidate_cache()
            files = self._fs.find(self._root, maxdepth=2)
        except OSError as error:
            raise self._unreadable(error) from error
        found: dict[str, list[int]] = {}
        for file in map(str, files):
            folder, _, name = file.removeprefix(f"{self._root}/").rpartition("/")
            match = _MANIFEST.fullmatch(name)
            if match is None:
                continue
            if not folder:
                raise old_format(file, 1)
            found.setdefault(folder, []).append(int(match[1]))
        return {folder: sorted(rounds) for folder, rounds in found.items()}

    def rounds(self, series: str) -> list[int]:
        """Rounds of one series, sorted; none if it is not there.

        Raises
        ------
        CheckpointError
            If its folder cannot be read.
        """
        try:
            return _rounds_of(self._names(f"{self._root}/{series}"))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._unreadable(error) from error

    def manifest(self, series: str, number: int) -> dict[str, Any]:
        """What the manifest of a round says, checked.

        Raises
        ------
        CheckpointError
            If it is damaged, or is not of this round.
        """
        path = f"{self._stem(series, number)}.json"
        try:
            text = self._fs.cat_file(path)
        except OSError as error:
            raise damaged(path, f"{type(error).__name__}: {error}") from error
        manifest = decode_manifest(text, path)
        if manifest["round"] != number:
            raise damaged(path, f"it is that of round {manifest['round']}")
        return manifest

    def load(self, series: str, number: int) -> Saved:
        """The checkpoint of a round.

        Raises
        ------
        CheckpointError
            If it is damaged, or is not of this round.
        """
        manifest = self.manifest(series, number)
        path = f"{self._stem(series, number)}.npz"
        try:
            data = self._fs.cat_file(path)
        except OSError as error:
            raise damaged(path, f"{type(error).__name__}: {error}") from error
        return decode(manifest, data, path)

    def part_name(self, series: str, number: int, writer: str, rank: int) -> str:
        """Name of the file of a rank, which no other fit or launch gives to one."""
        return f"{series}/round-{number:08d}-{writer}-{rank}.npz"

    def save_part(self, name: str, own: dict[str, Any]) -> dict[str, Any]:
        """Write what a rank has of its own.

        Parameters
        ----------
        name : str
            Name of the file, from :meth:`part_name`.
        own : dict
            Arrays, and values that JSON knows.

        Returns
        -------
        entry : dict
            What the manifest has to say of the rank.

        Raises
        ------
        CheckpointError
            If the directory cannot be written.
        """
        entry, data = encode_part(name, own)
        path = f"{self._root}/{name}"
        try:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._write(path, data)
        except OSError as error:
            raise self._unwritable(error) from error
        return entry

    def load_part(self, entry: dict[str, Any]) -> dict[str, Any]:
        """What a rank had of its own.

        Parameters
        ----------
        entry : dict
            What the manifest says of the rank.

        Raises
        ------
        CheckpointError
            If it is missing or damaged.
        """
        path = f"{self._root}/{entry['file']}"
        try:
            data = self._fs.cat_file(path)
        except OSError as error:
            raise damaged(path, f"{type(error).__name__}: {error}") from error
        return decode_part(entry, data, path)

    def claim(self, series: str, owner: dict[str, Any]) -> bool:
        """Take a series for a fit until its first checkpoint is saved.

        Parameters
        ----------
        series : str
            Which.
        owner : dict
            `fit_id` and `writer` of the fit.

        Returns
        -------
        is_taken : bool
            False if another fit has taken it. True where nothing can be written: what
            is wrong comes out when the fit is saved.
        """
        path, text = self._claim_path(series), json.dumps(owner).encode()
        try:
            self._fs.makedirs(f"{self._root}/{series}", exist_ok=True)
        except OSError:
            return True
        try:
            with self._fs.open(path, "xb") as file:
                file.write(text)
        except FileExistsError:
            return False
        except OSError:
            return True
        except (ValueError, NotImplementedError):  # no such mode on this file system
            if self.owner(series) is not None:
                return False
            self.replace_claim(series, owner)
        return True

    def replace_claim(self, series: str, owner: dict[str, Any]) -> bool:
        """Take a series from a fit that has ended; whether no other did so since."""
        try:
            self._write(self._claim_path(series), json.dumps(owner).encode())
        except OSError:
            return True
        found = self.owner(series)
        return found is None or found["fit_id"] == owner["fit_id"]

    def owner(self, series: str) -> dict[str, Any] | None:
        """`fit_id` and `writer` of the fit that has taken a series, None without one.

        None, too, if what is there has been damaged.
        """
        for _ in range(_MOST_LOOKS):
            try:
                found = json.loads(self._fs.cat_file(self._claim_path(series)))
                if isinstance(found["fit_id"], str) and isinstance(
                    found["writer"], dict
                ):
                    return {key: found[key] for key in ("fit_id", "writer")}
            except OSError:
                return None
            except (ValueError, TypeError, KeyError, RecursionError):
                pass
            sleep(_PAUSE)
        return None

    def release(self, series: str) -> None:
        """Give a series back."""
        try:
            self._fs.rm_file(self._claim_path(series))
        except OSError:  # another process may have removed it
            pass

    def save(self, series: str, saved: Saved, keep: int) -> None:
        """Write a checkpoint and remove those that are too old.

        Rounds from this one on, which a fit that was not resumed has left, go first:
        the newest checkpoint of a series is the one with the highest number.

        Parameters
        ----------
        series : str
            Which series it belongs to.
        saved : Saved
            What to write.
        keep : int
            How many checkpoints of the series stay.

        Raises
        ------
        CheckpointError
            If the directory cannot be written.
        """
        manifest, data = encode(saved)
        folder, stem = f"{self._root}/{series}", self._stem(series, saved.round)
        try:
            self._fs.makedirs(folder, exist_ok=True)
            names = self._names(folder)
            rounds = _rounds_of(names)
            writers = _writers_of(saved)
            for name in filter(_is_orphan, names):
                # A rank may be at its file of the next checkpoint.
                if not any(f"-{writer}-" in name for writer in writers):
                    self._fs.rm_file(f"{folder}/{name}")
            self._remove(series, [n for n in rounds if n >= saved.round])
            self._write(f"{stem}.npz", data)
            self._write(f"{stem}.json", manifest)
            older = [n for n in rounds if n < saved.round]
            dropped = older[: max(0, len(older) + 1 - keep)]
            self._remove(series, dropped)
            left = [n for n in older if n not in dropped]
            self._remove_parts(folder, names, left, saved)
            if _CLAIM in names:
                self.release(series)  # from now on the manifest says whose it is
        except OSError as error:
            raise self._unwritable(error) from error

    def describe(self, series: str, number: int) -> str:
        """Where the checkpoint of a round lies, for messages."""
        return f"{self._stem(series, number)}.json"

    def _claim_path(self, series: str) -> str:
        return f"{self._root}/{series}/{_CLAIM}"

    def _stem(self, series: str, number: int) -> str:
        return f"{self._root}/{series}/round-{number:08d}"

    def _names(self, folder: str) -> list[str]:
        """Names of the files in a folder."""
        self._fs.invalidate_cache()
        return [str(n).rpartition("/")[2] for n in self._fs.ls(folder, detail=False)]

    def _remove(self, series: str, numbers: list[int]) -> None:
        """Remove checkpoints, which another process may do at the same time."""
        for number in numbers:
            # The manifest first: from then on the checkpoint does not exist.
            for suffix in ("json", "npz"):
                try:
                    self._fs.rm_file(f"{self._stem(series, number)}.{suffix}")
                except FileNotFoundError:
                    pass

    def _remove_parts(
        self, folder: str, names: list[str], rounds: list[int], saved: Saved
    ) -> None:
        """Remove files of ranks that belong to no checkpoint that stays."""
        own, writers = _rank_files(saved), _writers_of(saved)
        for name in names:
            match = _RANK_FILE.fullmatch(name)
            if match is None or name in own or int(match[1]) in rounds:
                continue
            # A rank may have begun with its file of the next one.
            if int(match[1]) > saved.round and match[2] in writers:
                continue
            with suppress(FileNotFoundError):
                self._fs.rm_file(f"{folder}/{name}")

    def _write(self, path: str, data: bytes) -> None:
        """Write a file that appears under its name only when it is complete."""
        if isinstance(self._fs, LocalFileSystem):
            _write_beside(path, data)
            return
        with self._fs.transaction, self._fs.open(path, "wb") as file:
            file.write(data)

    def _unwritable(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"cannot write a checkpoint to {self._path}: "
            f"{type(error).__name__}: {error}"
        )

    def _unreadable(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"cannot read the checkpoints in {self._path}: "
            f"{type(error).__name__}: {error}"
        )


def _rank_files(saved: Saved) -> set[str]:
    """Names of the files of ranks in a checkpoint."""
    files = [str(entry.get("file", "")) for entry in saved.own]
    return {file.rpartition("/")[2] for file in files}


def _writers_of(saved: Saved) -> set[str]:
    """Who has written these files, as their names say."""
    return {m[2] for m in map(_RANK_FILE.fullmatch, _rank_files(saved)) if m}


def _rounds_of(names: list[str]) -> list[int]:
    """Numbers of the checkpoints among some files, sorted."""
    found = [_MANIFEST.fullmatch(name) for name in names]
    return sorted(int(match[1]) for match in found if match)


def _write_beside(path: str, data: bytes) -> None:
    """Write a local file under another name in its folder, and rename it."""
    # A transaction of fsspec writes it in the folder for temporary files. Moving it
    # from another file system means copying, and who is killed then leaves half of it.
    folder, name = os.path.split(path)
    beside = f"{folder}/.{name}-{uuid.uuid4().hex}{_PART}"
    try:
        with open(beside, "xb") as file:
            file.write(data)
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def _is_orphan(name: str) -> bool:
    """Whether a file is part of a checkpoint, left by a writer that was killed."""
    return name.startswith(".round-") and name.endswith(_PART)


# -- Errors that come of a checkpoint --------------------------------------------------

# Where rows are read and checked: what goes wrong there has to do with them.
_OF_ROWS = ("dask_ma.data._shard", "dask_ma.data._checks", "dask_ma.data._blocks")
_OF_ALL_ROWS = {"dask_ma.supervised._problem", "dask_ma.topics._corpus"}
_LIBRARIES = {"dask_ma", "numpy", "scipy", "sklearn", "torch"}


@contextmanager
def blaming(source: Callable[[], str | None]) -> Iterator[None]:
    """Turn an error into one that names the checkpoint that a fit goes on from.

    Parameters
    ----------
    source : callable
        Gives the checkpoint as long as it may be at fault, then None.

    Raises
    ------
    CheckpointError
        For errors of this package, or of a library that it uses, that have nothing to
        do with the rows.
    """
    try:
        yield
    except FitFailedError:
        raise
    except Exception as error:
        path, text = source(), str(error)[:300]
        if path is None or not _may_come_of_state(error.__traceback__):
            raise
        if isinstance(error, CheckpointError):
            if path.rpartition(".")[0] in str(error):
                raise
        else:
            text = f"{type(error).__name__}: {text}"
        raise CheckpointError(
            f"the fit cannot go on from the checkpoint {path}: {text}; if data and "
            "parameters are right, remove it to go on from an older one, or set "
            "dask-ma.checkpoint.resume to False to start anew"
        ) from error


def _may_come_of_state(traceback: TracebackType | None) -> bool:
    """Whether an error was raised where a state was used."""
    modules = []
    while traceback is not None:
        modules.append(str(traceback.tb_frame.f_globals.get("__name__")))
        traceback = traceback.tb_next
    if any(module.startswith(_OF_ROWS) for module in modules):
        return False
    if not modules or modules[-1] in _OF_ALL_ROWS:
        return False
    return modules[-1].partition(".")[0] in _LIBRARIES
