"""Choice of the checkpoint that a fit goes on from, and of the place it saves to.

Each fit has a series of its own, named by its estimator and by checksums of parameters,
data, and options (which may change before it goes on). So several fits of a program,
a cross-validation or a search over parameters never meet.

A fit without checkpoints of its own goes on from another series with the same
parameters and data if that fit has gone the same way, only less far, or was left
unfinished by a process that has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import Any, NamedTuple, TypeVar

from dask_ma.engine.recovery._checkpoint import Store
from dask_ma.engine.recovery._identity import (
    CheckpointSettings,
    Identity,
    Session,
    differences,
    parts_of,
)
from dask_ma.engine.recovery._manifest import Saved
from dask_ma.exceptions import CheckpointError

_MOST_READ = 16  # manifests of other fits
_MOST_TRIES = 8  # to read the newest round of a series whose writer is at work

T = TypeVar("T")


class Series(NamedTuple):
    """Where a fit is saved.

    Attributes
    ----------
    name : str
        Name of the folder.
    data : dict
        What tells the data from others.
    """

    name: str
    data: dict[str, Any]


class Choice(NamedTuple):
    """What a fit begins with.

    Attributes
    ----------
    series : Series
        Where it is saved.
    saved : Saved or None
        What it goes on from.
    path : str or None
        Where that lies.
    note : str or None
        What the user is to be told.
    """

    series: Series
    saved: Saved | None = None
    path: str | None = None
    note: str | None = None


def choose(
    settings: CheckpointSettings,
    identity: Identity,
    data: dict[str, Any],
    session: Session,
    fit_id: str,
    attempt: int = 0,
) -> Choice:
    """Find the checkpoint that a fit goes on from.

    Parameters
    ----------
    settings : CheckpointSettings
        Where to look.
    identity : Identity
        The fit.
    data : dict
        What tells its data from others.
    session : Session
        What its process knows of other fits.
    fit_id : str
        The fit. Its series is its own until it ends.
    attempt : int, default=0
        How often it has been launched before: then it finds its series again, and may
        go on from what it has saved itself, whatever the settings say.

    Raises
    ------
    CheckpointError
        If the checkpoint of the fit itself is damaged, or if one belongs to something
        else and the settings ask for an error.
    """
    return _Choosing(settings, identity, data, session, fit_id).choose(attempt)


class _Choosing:
    """The way to a choice."""

    def __init__(
        self,
        settings: CheckpointSettings,
        identity: Identity,
        data: dict[str, Any],
        session: Session,
        fit_id: str,
    ) -> None:
        self._settings, self._identity = settings, identity
        self._data, self._session, self._fit_id = data, session, fit_id
        self._store = Store(settings.path)
        self._unread: list[str] = []  # what is wrong with the checkpoints of others

    def choose(self, attempt: int) -> Choice:
        name = self._name_from_before() if attempt else None
        series = Series(name or self._take_a_name(), self._data)
        if not self._settings.resume and not attempt:
            return Choice(series)
        found = self._store.series()
        if series.name in found:
            saved = self._newest(series.name, found[series.name][-1], self._load_own)
            if not self._settings.resume and saved.fit_id != self._fit_id:
                return Choice(series)
            path = self._store.describe(series.name, saved.round)
            return Choice(series, saved, path)
        is_first = series.name == self._identity.series(self._data)
        if not self._settings.resume or (self._identity.is_random and not is_first):
            return Choice(series)  # fits that are meant to differ share no rounds
        return self._resume_from_other(series, found)

    def _resume_from_other(self, series: Series, found: dict[str, list[int]]) -> Choice:
        """Choose the fit to go on from, or none."""
        while (other := self._find_other(found)) is not None:
            try:
                saved = self._newest(*other, self._store.load)
            except CheckpointError as error:
                self._leave_out(error)
                found = {k: v for k, v in found.items() if k != other[0]}
                continue
            path = self._store.describe(other[0], saved.round)
            return Choice(series, saved, path, self._complaint())
        notes = filter(None, (self._mismatch(found), self._complaint()))
        return Choice(series, note="; ".join(notes) or None)

    def _newest(self, name: str, number: int, read: Callable[[str, int], T]) -> T:
        """Read the newest round of a series."""
        for _ in range(_MOST_TRIES - 1):
            try:
                return read(name, number)
            except CheckpointError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
            # The fit may be under way: then a newer round has taken its place.
            number = next(reversed(self._store.rounds(name)), number)
        return read(name, number)

    def _leave_out(self, error: CheckpointError) -> None:
        """Note that a checkpoint of another fit cannot be read."""
        if not isinstance(error.__cause__, FileNotFoundError):
            self._unread.append(str(error))

    def _complaint(self) -> str | None:
        """Words on checkpoints of the same data and parameters that cannot be read."""
        if not self._unread:
            return None
        several = "; ".join(dict.fromkeys(self._unread))
        return f"the fit of {self._identity.name} leaves out checkpoints: {several}"

    # Whose series it is ------------------------------------------------------------

    def _names(self) -> Iterator[str]:
        """Names that the series of this fit may have."""
        first = self._identity.series(self._data)
        yield first
        yield from (f"{first}-{number}" for number in count(2))

    def _name_from_before(self) -> str | None:
        """Name that an earlier launch of this fit has taken."""
        for name in self._names():
            owner, manifest = self._store.owner(name), self._newest_manifest(name)
            known = [entry for entry in (owner, manifest) if entry is not None]
            if any(entry["fit_id"] == self._fit_id for entry in known):
                return name
            if not known and self._place(name) not in self._session.ended:
                return None
        return None

    def _take_a_name(self) -> str:
        """The first name that no other fit saves under, from now on this one's."""
        # Fits that are meant to differ share no name that one of them has ended under.
        return next(name for name in self._names() if self._take(name))

    def _take(self, name: str) -> bool:
        """Take a series; False if it is that of another fit."""
        has_ended = self._place(name) in self._session.ended
        if self._identity.is_random and has_ended:
            return False
        return self._claim(name) and self._is_free(name)

    def _claim(self, name: str) -> bool:
        """Take a series unless another fit has taken it and is under way."""
        owner = {"fit_id": self._fit_id, "writer": self._session.writer}
        if self._store.claim(name, owner):
            return True
        if self._is_claimed(name):
            return False
        return self._store.replace_claim(name, owner)

    def _is_claimed(self, name: str) -> bool:
        """Whether another fit, which is under way, has taken a series."""
        owner = self._store.owner(name)
        if owner is None or owner["fit_id"] == self._fit_id:
            return False
        return self._session.is_under_way(owner["writer"], owner["fit_id"])

    def _is_free(self, name: str) -> bool:
        """Whether a series that has been taken may be used; else it is given back."""
        manifest = self._newest_manifest(name)
        if manifest is None or manifest["fit_id"] == self._fit_id:
            return True
        # The result of a fit that is done is for all that are to have the same.
        if manifest["done"] and not self._identity.is_random:
            if self._settings.resume:
                self._store.release(name)  # it will not be saved again
            return True
        if self._session.is_under_way(manifest["writer"], manifest["fit_id"]):
            self._store.release(name)
            return False
        return True

    def _newest_manifest(self, name: str) -> dict[str, Any] | None:
        """What the newest manifest of a series says, None without any."""
        rounds = self._store.rounds(name)
        if not rounds:
            return None
        try:
            return self._newest(name, rounds[-1], self._store.manifest)
        except CheckpointError:
            if self._settings.resume:
                raise
            return None  # it will be replaced

    def _place(self, name: str) -> str:
        return place_of(self._settings, name)

    def _load_own(self, name: str, number: int) -> Saved:
        """The newest checkpoint of this fit."""
        saved = self._store.load(name, number)
        self._check_identity(name, saved._asdict())
        if saved.options != self._identity.options:
            raise self._foreign(
                name, number, differences(self._identity.options, saved.options)
            )
        return saved

    def _check_identity(self, name: str, manifest: dict[str, Any]) -> None:
        """Refuse a checkpoint of something else than its folder is named after."""
        identity = self._identity
        different = differences(
            {"estimator": identity.name, **identity.parameters, **self._data},
            {
                "estimator": manifest["name"],
                **manifest["parameters"],
                **manifest["data"],
            },
        )
        if different:
            raise self._foreign(name, manifest["round"], different)

    def _foreign(self, name: str, number: int, different: list[str]) -> CheckpointError:
        return CheckpointError(
            f"the checkpoint {self._store.describe(name, number)} is not of the fit "
            f"that its folder is named after: {'; '.join(different)}; remove it, or "
            "set dask-ma.checkpoint.resume to False"
        )

    def _find_other(self, found: dict[str, list[int]]) -> tuple[str, int] | None:
        """Series and round of the fit to go on from that has come furthest."""
        newest: tuple[int, str] | None = None
        wanted = parts_of(self._identity.series(self._data))
        names = [name for name in sorted(found) if parts_of(name) == wanted]
        for name in names:
            number = found[name][-1]
            if newest is not None and number <= newest[0]:
                continue
            try:
                manifest = self._newest(name, number, self._store.manifest)
            except CheckpointError as error:
                self._leave_out(error)
                continue
            self._check_identity(name, manifest)
            number = manifest["round"]
            is_shorter = self._identity.allows_more(manifest["options"])
            if is_shorter or self._is_left(name, manifest):
                newest = number, name
        return None if newest is None else (newest[1], newest[0])

    def _is_left(self, name: str, manifest: dict[str, Any]) -> bool:
        """Whether a fit was left unfinished."""
        if manifest["done"] or self._place(name) in self._session.ended:
            return False
        if self._session.is_under_way(manifest["writer"], manifest["fit_id"]):
            return False
        return not self._is_claimed(name)

    def _mismatch(self, found: dict[str, list[int]]) -> str | None:
        """Words on a fit left unfinished that differs in its data, or parameters."""
        for name, manifest in islice(self._neighbours(found), _MOST_READ):
            if manifest is None or not self._is_left(name, manifest):
                continue
            identity = self._identity
            different = differences(
                {**identity.parameters, **self._data},
                {**manifest["parameters"], **manifest["data"]},
            )
            path = self._store.describe(name, manifest["round"])
            text = (
                f"the fit of {identity.name} starts anew: {path} was left unfinished "
                f"by a fit that is not the same: {'; '.join(different)}"
            )
            if self._settings.on_mismatch == "raise":
                raise CheckpointError(
                    f"{text}; remove {path.rpartition('/')[0]} if it is not wanted any "
                    "more, choose another dask-ma.checkpoint.path, or set "
                    "dask-ma.checkpoint.on-mismatch to restart"
                )
            return text
        return None

    def _neighbours(
        self, found: dict[str, list[int]]
    ) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """Newest manifests of fits with other data, or with other parameters."""
        wanted = parts_of(self._identity.series(self._data))
        for name in sorted(found):
            parts = parts_of(name)
            if parts is None or wanted is None or parts[0] != wanted[0]:
                continue
            is_near = (parts[1] == wanted[1]) != (parts[2] == wanted[2])
            if not is_near or self._place(name) in self._session.ended:
                continue
            try:
                yield name, self._newest(name, found[name][-1], self._store.manifest)
            except CheckpointError:  # none of this fit's business
                yield name, None


def place_of(settings: CheckpointSettings, name: str) -> str:
    """Where a series lies."""
    return f"{settings.path}/{name}"
