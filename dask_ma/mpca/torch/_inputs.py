"""Rows of a batch as a module takes them: shapes, types, transforms, data sets."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch.utils.data import IterableDataset, Subset, default_collate

from dask_ma.mpca.inputs._fields import Fields, unpack_rows
from dask_ma.mpca.inputs._rank_info import RankInfo, asked_for_rank
from dask_ma.mpca.inputs._rows import input_of

#: What a module is called with: one tensor, or several, by name or in order.
Value = Any


class Loaded(NamedTuple):
    """A batch that is ready for the module, but for the device.

    Attributes
    ----------
    value : Tensor, dict or list of Tensor
    target : ndarray or None
        What the rows of a stream have with them; None where `y` tells it.
    n_rows : int
    """

    value: Value
    target: np.ndarray | None
    n_rows: int

    def part(self, rows: slice) -> Loaded:
        """Some of the rows."""
        target = None if self.target is None else self.target[rows]
        start, stop, _ = rows.indices(self.n_rows)
        return Loaded(_map(lambda t: t[rows], self.value), target, stop - start)

    def on(self, device: torch.device) -> Value:
        """The tensors on a device; copies from pinned memory go on beside the steps."""
        return _map(lambda t: t.to(device, non_blocking=True), self.value)

    def pinned(self) -> Loaded:
        """The same in memory from which a GPU copies by itself."""
        return self._replace(value=_map(torch.Tensor.pin_memory, self.value))


@dataclass(frozen=True, eq=False)
class Inputs:
    """How rows of the fit become what a module is called with.

    Parameters
    ----------
    shape : tuple of int or None, default=None
        Shape of one row; None leaves it as it is.
    fields : Fields or None, default=None
        Names, types and shapes of what lies packed in a row.
    dataset : Dataset or None, default=None
        What the rows are numbers of the items of.
    held_out : Dataset or None, default=None
        The same of rows that no step is made with, where it is another one.
    train_transform, eval_transform : callable or None, default=None
        What is done to batches in steps, and in predictions.
    transform_scope : {"batch", "sample"}, default="batch"
        Whether these get a batch, or each of its rows.
    row_dtype : dtype or None, default=None
        Of the rows that the module was trained on: unless these were integers, others
        become float32, but for bytes where there were bytes. None leaves integers.
    """

    shape: tuple[int, ...] | None = None
    fields: Fields | None = None
    dataset: Any = None
    held_out: Any = None
    train_transform: Callable[[Any], Any] | None = None
    eval_transform: Callable[[Any], Any] | None = None
    transform_scope: str = "batch"
    row_dtype: Any = None

    def for_rank(self, rank: int, n_ranks: int) -> Inputs:
        """The same on a rank, which has a share of a stream."""
        if not isinstance(self.dataset, IterableDataset):
            return self
        return replace(self, dataset=Stream(self.dataset, RankInfo(rank, n_ranks)))

    def load(self, X: Any, *, training: bool) -> Loaded:
        """Make a batch ready.

        Parameters
        ----------
        X : ndarray or CSR of shape (n_rows, n_features)
            Rows of the fit.
        training : bool
            Whether a step is to be made with it.

        Returns
        -------
        loaded : Loaded
            Floating-point numbers, and uint8 after the transform, as float32; other
            integers as int64.
        """
        is_apart = self.held_out is not None and not training
        value, target = self._value(X, self.held_out if is_apart else self.dataset)
        transform = self.train_transform if training else self.eval_transform
        if transform is not None and self.transform_scope == "sample":
            rows = (_row_of(value, number) for number in range(X.shape[0]))
            value = default_collate([transform(row) for row in rows])
        elif transform is not None:
            value = transform(value)
        return Loaded(_map(_for_module, value), target, X.shape[0])

    def _value(self, X: Any, dataset: Any) -> tuple[Value, np.ndarray | None]:
        """The batch as it lies in the rows, and what belongs to it in a stream."""
        if isinstance(dataset, Stream):
            items = dataset.take(X.shape[0])
            targets = np.stack([np.asarray(item[-1]) for item in items])
            return default_collate([input_of(item) for item in items]), targets
        if dataset is not None:
            items = [input_of(dataset[int(i)]) for i in X[:, 0]]
            return default_collate(items), None
        if self.fields is not None:
            parts = unpack_rows(X, self.fields).items()
            return {name: torch.from_numpy(part) for name, part in parts}, None
        dense = X.toarray() if sparse.issparse(X) else X
        kind = None if self._keeps(dense.dtype) else np.float32
        rows = np.array(dense, dtype=kind, order="C")
        if self.shape is not None:
            rows = rows.reshape(len(rows), *self.shape)
        return torch.from_numpy(rows), None

    def as_given(self, X: np.ndarray) -> Any:
        """Rows of the fit in the form in which users give them.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_features)

        Returns
        -------
        X : ndarray of shape (n_rows, ...), dict of such, or Subset
            Items of a data set are read as they are asked for.
        """
        dataset = self.dataset if self.held_out is None else self.held_out
        if dataset is not None:
            return Subset(dataset, X[:, 0].tolist())
        if self.fields is not None:
            return unpack_rows(X, self.fields)
        return X if self.shape is None else X.reshape(len(X), *self.shape)

    def _keeps(self, dtype: np.dtype) -> bool:
        """Whether rows of a type stay what they are."""
        if dtype.kind not in "iu":
            return False
        known = dtype if self.row_dtype is None else np.dtype(self.row_dtype)
        return known == dtype or (known.kind in "iu" and known != np.uint8)


class Stream:
    """The items of a rank from a data set that only goes from front to end.

    Of P ranks each takes every P-th item, unless the data set asks
    :func:`~dask_ma.mpca.get_rank_info` who it is for; then it takes all that come.

    Parameters
    ----------
    dataset : IterableDataset
        It begins again where it ends.
    info : RankInfo
    """

    def __init__(self, dataset: Any, info: RankInfo) -> None:
        self._dataset, self._info = dataset, info
        self._items: Iterator[Any] = iter(())
        self._lock = threading.Lock()

    def take(self, n_items: int) -> list[Any]:
        """The next items, on into the next pass.

        Raises
        ------
        ValueError
            If there is none for this rank.
        """
        taken: list[Any] = []
        with self._lock:
            while len(taken) < n_items:
                try:
                    taken.append(next(self._items))
                except StopIteration:
                    self._items = self._pass()
                    taken.append(self._first())
        return taken

    def _first(self) -> Any:
        """The first item of a pass."""
        for item in self._items:
            return item
        raise ValueError(
            f"the IterableDataset has no item for rank {self._info.rank} of "
            f"{self._info.n_ranks}; take fewer ranks, or have it share out its items"
        )

    def _pass(self) -> Iterator[Any]:
        """This rank's items of one pass."""
        with asked_for_rank(self._info) as asked:
            items = iter(self._dataset)
            first = list(_some(items, 1))
        step = 1 if asked() else self._info.n_ranks
        offset = 0 if asked() else self._info.rank
        for number, item in enumerate(_chained(first, items, self._info)):
            if number % step == offset:
                yield item


def _some(items: Iterator[Any], n_items: int) -> Iterator[Any]:
    """As many of the next items as there are up to a number."""
    for _, item in zip(range(n_items), items, strict=False):
        yield item


def _chained(
    first: Sequence[Any], rest: Iterator[Any], info: RankInfo
) -> Iterator[Any]:
    """All items; the data set may ask for the rank at any time."""
    yield from first
    while True:
        with asked_for_rank(info):
            following = list(_some(rest, 1))
        if not following:
            return
        yield following[0]


# Each operation has words of its own: "Long", 'Long', long int. That of an embedding
# says that it has none: "Expected tensor for argument #1 'indices' ...".
_WANTS_FLOATS = re.compile(r"^(?!Expected tensor).*\b(Long|long int|int64)\b", re.S)


def call(module: Any, value: Value) -> Any:
    """What a module returns: entries of a dict are arguments by name.

    Parameters
    ----------
    module : nn.Module
    value : Tensor, mapping, or list of Tensor

    Returns
    -------
    output : object

    Raises
    ------
    ValueError
        If the module cannot work with integers, and there are some.
    """
    try:
        if isinstance(value, Mapping):
            return module(**value)
        return module(*value) if isinstance(value, list | tuple) else module(value)
    except RuntimeError as error:
        if not _has_integers(value) or not _WANTS_FLOATS.search(str(error)):
            raise
        raise ValueError(
            "the module gets integers, which one of its layers does not take: integers "
            "of X stay integers, as nn.Embedding needs them; give "
            f"X.astype('float32') for a module of floating-point numbers ({error})"
        ) from error


def _has_integers(value: Value) -> bool:
    """Whether some tensor of a batch is of integers."""
    if isinstance(value, Mapping):
        return any(map(_has_integers, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_integers, value))
    return torch.is_tensor(value) and value.dtype == torch.int64


def _row_of(value: Value, number: int) -> Value:
    """One row of a batch."""
    return _map(lambda tensor: tensor[number], value)


def _for_module(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in a type that modules take."""
    if tensor.dtype == torch.uint8 or tensor.is_floating_point():
        return tensor.to(torch.float32)
    return tensor if tensor.dtype == torch.bool else tensor.to(torch.int64)


def _map(function: Callable[[torch.Tensor], Any], value: Value) -> Value:
    """A function of all tensors of a batch."""
    if isinstance(value, Mapping):
        return {name: _map(function, each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_map(function, each) for each in value]
    return function(value)
