"""Labels of every type, and those that are refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dask_ma.data import Block, Shard, encode_labels, merge_labels, unique_labels_of
from dask_ma.data._labels import _is_narrow


def shard_of(*labels):
    """A shard whose blocks have these labels."""
    blocks = [Block(np.zeros((len(y), 1)), y, None, i, 0) for i, y in enumerate(labels)]
    return Shard(blocks, 1, np.dtype(float))


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, 1, 3, 2]),
        np.array([3, 1, 3, 2], dtype=np.uint8),
        np.array([True, False, True]),
        np.array([1.0, 0.0, 1.0]),
        np.array(["spam", "ham", "spam"]),
        np.array(["spam", "ham", "spam"], dtype=object),
        pd.Series(["spam", "ham", "spam"]).to_numpy(),
    ],
    ids=lambda y: str(y.dtype),
)
def test_round_trip(labels):
    classes = unique_labels_of(shard_of(labels[:1], labels[1:]))
    np.testing.assert_array_equal(classes, np.unique(labels))
    assert classes.dtype == labels.dtype
    codes = encode_labels(labels, classes)
    assert codes.dtype == np.intp
    np.testing.assert_array_equal(classes[codes], labels)


def test_empty_shard_has_no_labels():
    assert len(unique_labels_of(shard_of())) == 0
    assert len(encode_labels(np.array([]), np.array([0, 1]))) == 0


def test_merge_ignores_empty_sets():
    merged = merge_labels([np.empty(0, int), np.array(["b"]), np.array(["a", "b"])])
    assert merged.tolist() == ["a", "b"]


def test_merge_of_integers_and_floats():
    assert merge_labels([np.array([1, 2]), np.array([2.0, 3.0])]).tolist() == [1, 2, 3]


def test_merge_of_objects_and_strings():
    merged = merge_labels([np.array(["b"], dtype=object), np.array(["a"])])
    assert merged.tolist() == ["a", "b"]


def test_merge_refuses_strings_with_numbers():
    with pytest.raises(TypeError, match="strings such as 'a' and numbers such as 1"):
        merge_labels([np.array([1]), np.array(["a"])])


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (np.array([0.5, 1.0]), ValueError, "Unknown label type: continuous.*block 1"),
        (np.array([np.nan, 1.0]), ValueError, "contains NaN.*block 1"),
        (np.array(["a", None], dtype=object), ValueError, "missing in block 1"),
        (np.array(["a", np.nan], dtype=object), ValueError, "missing in block 1"),
        (np.array(["a", 1], dtype=object), TypeError, "block 1: int, str"),
        (np.array([1, 2], dtype=object), ValueError, "Unknown label type: unknown"),
        (np.array([1j]), ValueError, "Unknown label type: complex"),
    ],
)
def test_refused_labels(labels, error, message):
    fine = np.array(["a"], dtype=object) if labels.dtype == object else np.array([1.0])
    with pytest.raises(error, match=message):
        unique_labels_of(shard_of(fine, labels))


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.array([0, 5, 7]), np.array([0, 1])),
        (np.array(["0", "5", "7"]), np.array(["0", "1"])),
        (np.array(["0", "5", "7"], dtype=object), np.array(["0", "1"])),
    ],
)
def test_unseen_labels_are_named(labels, classes):
    with pytest.raises(ValueError, match=r"not in classes: \['?5'?, '?7'?\]"):
        encode_labels(labels, classes)


def test_labels_of_another_type_are_unseen():
    with pytest.raises(ValueError, match="not in classes"):
        encode_labels(np.array([0, 1]), np.array(["0", "1"]))


def test_many_unseen_labels_are_counted():
    with pytest.raises(ValueError, match="and 15 more"):
        encode_labels(np.arange(20) + 1, np.array([0]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
@pytest.mark.parametrize("classes", [[0, 1], [3, 4, 9], [5, 100, 126]])
def test_many_integers(dtype, classes):
    """Larger blocks of them take a way of their own."""
    classes = np.array(classes, dtype) - np.dtype(dtype).type(dtype[0] == "i")
    codes = np.random.default_rng(0).integers(0, len(classes), 3000)
    y = classes[codes]
    assert _is_narrow(y)
    found = unique_labels_of(shard_of(y))
    assert found.dtype == y.dtype
    np.testing.assert_array_equal(found, classes)
    encoded = encode_labels(y, classes)
    assert encoded.dtype == np.intp
    np.testing.assert_array_equal(encoded, codes)
    with pytest.raises(ValueError, match=rf"not in classes: \[{classes[0]}\]"):
        encode_labels(y, classes[1:])


def test_many_integers_far_apart():
    y = np.array([-(2**63), 0, 2**63 - 1])[np.arange(3000) % 3]
    assert not _is_narrow(y)
    np.testing.assert_array_equal(unique_labels_of(shard_of(y)), y[:3])
    np.testing.assert_array_equal(encode_labels(y, y[:3]), np.arange(3000) % 3)
    near = np.arange(3000) % 2
    np.testing.assert_array_equal(
        encode_labels(near, np.array([-(2**63), 0, 1, 2**63 - 1])), near + 1
    )
