"""Sources of rows for a module: arrays, dicts, data sets, bags."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from dask_ma.data import current_client, is_dask_collection, refuse_unfinished
from dask_ma.mpca.inputs._fields import Fields, pack_rows
from dask_ma.mpca.inputs._rows import flat_rows, has_target, input_of


class Source(NamedTuple):
    """Rows to train on or to predict.

    Attributes
    ----------
    rows : array-like or Dask collection of shape (n_samples, n_features)
        Numbers of the items, of int64, where there is a data set.
    y : array-like, Dask collection or None
    shape : tuple of int or None
        Shape of a row; None where it has one dimension.
    fields : Fields or None
        What is packed in a row.
    dataset : Dataset or None
    """

    rows: Any
    y: Any
    shape: tuple[int, ...] | None = None
    fields: Fields | None = None
    dataset: Any = None


class Items:
    """Rows of an array as a data set, where a fit has had one."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> Any:
        return self._rows[number]


def as_source(X: Any, y: Any, *, needs_target: bool = True) -> Source:
    """Rows of one dimension from whatever a module may get.

    Parameters
    ----------
    X : array-like, Dask collection, mapping, Dataset, IterableDataset or Bag
        Of a shape of (n_samples, ...); a mapping of names to such arrays; a data set of
        PyTorch, or a bag of Dask, of items or of pairs of an item and its target.
    y : array-like, Dask collection or None
        Targets; None takes those of the items.
    needs_target : bool, default=True
        Whether targets are wanted.

    Returns
    -------
    source : Source

    Raises
    ------
    TypeError
        For a stream where rows are needed again.
    ValueError
        For items without a target.
    """
    refuse_unfinished(X, "X")
    _refuse_loader(X)
    if isinstance(X, Mapping):
        rows, fields = pack_rows(X)
        return Source(rows, y, fields=fields)
    if is_dataset(X):
        return _of_dataset(X, y, needs_target)
    if _is_bag(X):
        return _of_bag(X, y, needs_target)
    rows, shape = flat_rows(X)
    return Source(rows, y, shape)


def is_dataset(X: Any) -> bool:
    """Whether `X` is a data set of PyTorch, or stands for one."""
    # Whoever holds one has loaded the module.
    module = sys.modules.get("torch.utils.data")
    return isinstance(X, Items) or (
        module is not None and isinstance(X, module.Dataset)
    )


def targets_of(X: Any) -> Any:
    """Targets that the items of a data set or a bag have with them.

    Raises
    ------
    ValueError
        If `X` is neither.
    """
    if not has_items(X):
        raise ValueError(
            "y is None, which only a Dataset or a Bag of pairs makes up for, "
            f"got {type(X).__name__} as X; give y"
        )
    return as_source(X, None).y


def has_items(X: Any) -> bool:
    """Whether rows of `X` may have their targets with them."""
    return is_dataset(X) or _is_bag(X)


def _refuse_loader(X: Any) -> None:
    """Refuse what makes batches by itself."""
    module = sys.modules.get("torch.utils.data")
    if module is not None and isinstance(X, module.DataLoader):
        raise TypeError(
            "X is a DataLoader, expected what it reads: give its `dataset`, and "
            "batch_size and shuffle to the estimator"
        )


def is_stream(dataset: Any) -> bool:
    """Whether items of a data set come in an order of its own."""
    module = sys.modules.get("torch.utils.data")
    return module is not None and isinstance(dataset, module.IterableDataset)


def refuse_weights(X: Any, sample_weight: Any) -> None:
    """Refuse weights that nobody could tell to which items they belong.

    Parameters
    ----------
    X : object
        What a fit is given.
    sample_weight : array-like, Dask collection, float or None

    Raises
    ------
    ValueError
        For those of the items of an IterableDataset, unless all are alike.
    """
    if is_stream(X) and sample_weight is not None and np.ndim(sample_weight):
        raise ValueError(
            "sample_weight cannot be shared out with an IterableDataset, whose items "
            "come in an order of their own; give a Dataset with __getitem__, or "
            "class_weight, which goes by the items' own labels"
        )


def rows_as_items(X: Any) -> Any:
    """A data set for rows in memory; one stays what it is.

    Raises
    ------
    TypeError
        For Dask collections.
    """
    if is_dataset(X):
        return X
    if isinstance(X, Mapping):
        raise TypeError("the module was trained on a Dataset: give one, not a dict")
    if is_dask_collection(X):
        raise TypeError(
            "the module was trained on a Dataset: predict one, or rows in memory, and "
            "take to_module() to the blocks of a Dask collection"
        )
    return Items(X if hasattr(X, "shape") else np.asarray(X))


def validation_rows(X: Any, y: Any, *, as_items: bool) -> tuple[Any, Any]:
    """Rows in memory, or a data set that is read by number, to score models on.

    Parameters
    ----------
    X : array-like, Dask collection, mapping, Dataset, IterableDataset or Bag
        As :func:`as_source` takes it. Dask collections are computed.
    y : array-like, Dask collection or None
        Targets; None takes those of the items.
    as_items : bool
        Whether a data set is wanted, as the model is trained on one.

    Returns
    -------
    X : array-like, mapping or Dataset
    y : array-like or None
    """
    if is_dask_collection(X) or is_dask_collection(y):
        import dask

        is_bag = _is_bag(X)
        X, y = dask.compute(X, y)
        if is_bag:
            X, y = _columns_of(X, y)
    if is_dataset(X) and (is_stream(X) or not as_items):
        items = list(X) if is_stream(X) else [X[i] for i in range(len(X))]
        X, y = _columns_of(items, y)
    return (rows_as_items(X) if as_items else X), y


def _columns_of(items: list[Any], y: Any) -> tuple[Any, Any]:
    """Arrays of the inputs of items, and of their targets where none are given."""
    if y is None:
        y = np.stack(list(_targets(iter(items))))
    inputs = [input_of(item) for item in items]
    if isinstance(inputs[0], list):
        raise ValueError(
            "several inputs of an item have no names, by which arrays of them could be "
            "told apart: give a Dataset with __getitem__, or items with a dict"
        )
    if isinstance(inputs[0], Mapping):
        return {n: np.stack([np.asarray(i[n]) for i in inputs]) for n in inputs[0]}, y
    return np.stack([np.asarray(each) for each in inputs]), y


def _of_dataset(dataset: Any, y: Any, needs_target: bool) -> Source:
    """Numbers of the items of a data set, and their targets."""
    if is_stream(dataset):
        if not needs_target:
            raise TypeError(
                "an IterableDataset has no order to give predictions in; predict rows, "
                "or a Dataset with __getitem__"
            )
        if y is not None:
            raise ValueError(
                "y must be None for an IterableDataset, whose items come in an order "
                "of their own: have it give pairs of an input and its target, or give "
                "a Dataset with __getitem__ and y"
            )
        y = _on_a_worker(_targets_of_stream, dataset)
    elif y is None and needs_target:
        y = _targets_of_items(dataset)
    n_items = len(dataset) if y is None else len(y)
    return Source(np.arange(n_items, dtype=np.int64)[:, None], y, dataset=dataset)


def _targets_of_items(dataset: Any) -> np.ndarray:
    """Targets that a data set knows, or that its items have."""
    known = None if _changes_targets(dataset) else getattr(dataset, "targets", None)
    if known is None and len(getattr(dataset, "tensors", ())) > 1:
        known = dataset.tensors[-1]
    if known is not None:
        return np.asarray(known)
    return _on_a_worker(_targets_by_number, dataset)


def _on_a_worker(function: Callable[[Any], np.ndarray], dataset: Any) -> np.ndarray:
    """What a function finds in a data set, whose files only workers may see."""
    client = current_client()
    if client is None or not client.nthreads():
        return function(dataset)
    key = f"dask_ma-items-{uuid.uuid4().hex}"
    future = client.submit(function, dataset, key=key, pure=False)
    found: np.ndarray = future.result()
    return found


def _targets_by_number(dataset: Any) -> np.ndarray:
    """Targets of all items of a data set that has a length."""
    return np.stack(list(_targets(dataset[i] for i in range(len(dataset)))))


def _changes_targets(dataset: Any) -> bool:
    """Whether items have other targets than a data set, as those of torchvision may."""
    if getattr(dataset, "target_transform", None) is not None:
        return True
    both = getattr(dataset, "transforms", None)
    # Where inputs alone are transformed, torchvision has an object that says so.
    return both is not None and getattr(both, "target_transform", both) is not None


def _targets_of_stream(dataset: Any) -> np.ndarray:
    """Targets of all items, which are gone over once."""
    targets = list(_targets(iter(dataset)))
    if not targets:
        raise ValueError("the IterableDataset has no items")
    y = np.stack(targets)
    codes = np.unique(y) if y.dtype.kind in "iu" and y.ndim == 1 else None
    if codes is not None and not np.array_equal(codes, np.arange(len(codes))):
        raise ValueError(
            "classes of an IterableDataset must be numbered from 0 without gaps, found "
            f"{codes[:10].tolist()}"
        )
    return y


def _targets(items: Iterator[Any]) -> Iterator[np.ndarray]:
    """Targets of items."""
    for item in items:
        if not has_target(item):
            raise ValueError(
                "y is None, so each item must be a pair of an input and its target, or "
                f"a tuple of several inputs and it, got {type(item).__name__}; give y, "
                "or a data set of pairs"
            )
        yield np.asarray(item[-1])


def _is_bag(X: Any) -> bool:
    """Whether `X` is a bag of Dask."""
    module = sys.modules.get("dask.bag")
    return module is not None and isinstance(X, module.Bag)


def _of_bag(bag: Any, y: Any, needs_target: bool) -> Source:
    """Arrays of the items of a bag, partition by partition."""
    import dask.array as da

    parts = bag.to_delayed()
    first = _first_item(parts)
    is_pair = isinstance(first, tuple | list) and len(first) == 2
    if y is None and needs_target and not is_pair:
        raise ValueError(
            "y is None, so each item of the bag must be a pair of an input and its "
            f"target, got {type(first).__name__}; several inputs are entries of a dict"
        )
    first_input = first[0] if is_pair else first
    fields = shape = None
    if isinstance(first_input, Mapping):
        stand_in, fields = pack_rows({k: [v] for k, v in first_input.items()})
    else:
        stand_in = np.asarray([first_input])
        shape = stand_in.shape[1:] if stand_in.ndim > 2 else None
        stand_in = stand_in.reshape(1, -1)
    rows = [
        _delayed(_stack_inputs, part, stand_in[:0], is_pair, fields) for part in parts
    ]
    if y is None and needs_target:
        none = np.asarray([first[1]])[:0]
        y = da.concatenate([_delayed(_stack_targets, part, none) for part in parts])
    return Source(da.concatenate(rows), y, shape, fields)


def _first_item(parts: list[Any]) -> Any:
    """The first item of a bag, whose first partitions may be empty."""
    import dask

    for part in parts:
        (found,) = dask.compute(dask.delayed(_head)(part))
        if found:
            return found[0]
    raise ValueError("the bag has no items")


def _head(items: Any) -> list[Any]:
    """The first item of a partition, if there is any."""
    return list(islice(items, 1))


def _delayed(function: Any, part: Any, none: np.ndarray, *options: Any) -> Any:
    """A dask.array of what a function makes of a partition; `none` is that of none."""
    import dask
    import dask.array as da

    made = dask.delayed(function)(part, none, *options)
    return da.from_delayed(made, shape=(np.nan, *none.shape[1:]), dtype=none.dtype)


def _stack_inputs(
    items: Any, none: np.ndarray, is_pair: bool, fields: Fields | None
) -> np.ndarray:
    """Inputs of a partition, a row for each."""
    inputs = [item[0] if is_pair else item for item in items]
    if not inputs:
        return none
    if fields is None:
        return np.asarray(inputs).reshape(len(inputs), -1)
    arrays = {
        name: np.asarray([each[name] for each in inputs]).astype(dtype)
        for name, dtype, _ in fields
    }
    packed, found = pack_rows(arrays)
    if found != fields:
        raise ValueError(f"items of the bag differ: {found} and {fields}")
    return packed


def _stack_targets(items: Any, none: np.ndarray) -> np.ndarray:
    """Targets of a partition."""
    targets = [item[1] for item in items]
    return np.asarray(targets) if targets else none
