"""Wrong input raises an error that says what and where, here and on a cluster."""

from contextlib import nullcontext

import dask
import dask.array as da
import dask.bag
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse as sp

from dask_ma import MASGDClassifier, MASGDRegressor

PARAMS = {"max_iter": 2, "tol": None, "random_state": 0}
N = 40


def good():
    """40 rows in blocks of 10."""
    X = np.random.default_rng(0).normal(size=(N, 3))
    return X, (X[:, 0] > 0).astype(int)


def blocks(values, chunks=10):
    return da.from_array(values, chunks=(chunks, *values.shape[1:]))


def with_value(value, row=25, *, convert=None):
    X, y = good()
    X[row, 1] = value
    lazy = blocks(X)
    return (lazy if convert is None else lazy.map_blocks(convert)), blocks(y)


def block_pairs(make):
    """A collection whose metadata say (40, 3), with blocks from `make(index)`."""
    parts = [
        da.from_delayed(dask.delayed(make)(index), (10, 3), meta=np.empty((0, 3)))
        for index in range(4)
    ]
    return da.concatenate(parts), good()[1]


def narrow_block(index):
    return np.ones((10, 2 if index == 2 else 3))


def sparse_block(index):
    block = np.random.default_rng(index).normal(size=(10, 3))
    return sp.csr_array(block) if index == 2 else block


def object_block(index):
    block = np.ones((10, 3))
    return block.astype(str).astype(object) if index == 1 else block


def short_block(index):
    return np.ones((9 if index == 3 else 10, 3))


def unknown(values, chunks=10):
    keys = blocks(values, chunks).to_delayed().ravel()
    shape = (np.nan, *values.shape[1:])
    parts = [da.from_delayed(key, shape, values.dtype) for key in keys]
    return da.concatenate(parts, allow_unknown_chunksizes=True)


def weights(change):
    weight = np.ones(N)
    weight[change[0]] = change[1]
    return weight


# Name: (X, y, sample_weight), error, words in the message
CASES = {
    "nan": (
        lambda: with_value(np.nan),
        ValueError,
        "Input X contains NaN in block 2, row 25 of the whole input",
    ),
    "infinity": (
        lambda: with_value(-np.inf),
        ValueError,
        "Input X contains infinity in block 2, row 25",
    ),
    "nan in sparse": (
        lambda: with_value(np.nan, convert=sp.csr_matrix),
        ValueError,
        "Input X contains NaN in block 2, row 25",
    ),
    "nan in a frame": (
        lambda: (
            dd.from_pandas(
                pd.DataFrame({"a": [1.0, np.nan] * 20, "b": 1.0}), npartitions=4
            ),
            good()[1],
        ),
        ValueError,
        "Input X contains NaN in block 0",
    ),
    "nan in memory": (
        lambda: (with_value(np.nan)[0].compute(), good()[1]),
        ValueError,
        "Input X contains NaN",
    ),
    "columns disagree": (
        lambda: block_pairs(narrow_block),
        ValueError,
        "Block 2 of X has 2 columns, expected 3",
    ),
    "kinds disagree": (
        lambda: block_pairs(sparse_block),
        TypeError,
        "sparse.*convert one of them|mixes kinds of blocks",
    ),
    "block of objects": (
        lambda: block_pairs(object_block),
        ValueError,
        "Block 1 of X has dtype object, expected real numbers",
    ),
    "metadata lie": (
        lambda: block_pairs(short_block),
        ValueError,
        "Block 3 of X has 9 rows where the metadata of X say 10|X has 39 rows and y",
    ),
    "object array": (
        lambda: (blocks(good()[0].astype(object)), good()[1]),
        ValueError,
        "dtype object, expected real numbers",
    ),
    "words": (
        lambda: (
            dd.from_pandas(
                pd.DataFrame({"a": np.ones(N), "b": ["x"] * N}), npartitions=2
            ),
            good()[1],
        ),
        ValueError,
        "columns that hold no numbers: 'b'",
    ),
    "one dimension": (
        lambda: (blocks(good()[0][:, 0]), good()[1]),
        ValueError,
        "Expected 2D array, got 1D array",
    ),
    "bag": (
        lambda: (dask.bag.from_sequence([1, 2]), good()[1]),
        TypeError,
        "Dask object of type Bag, expected a dask.array",
    ),
    "unknown columns": (
        lambda: (
            blocks(good()[0]).map_blocks(lambda b: b, chunks=((10,) * 4, (np.nan,))),
            good()[1],
        ),
        ValueError,
        "number of columns",
    ),
    "no rows": (
        lambda: (da.zeros((0, 3), chunks=(1, 3)), np.zeros(0)),
        ValueError,
        r"0 sample\(s\)",
    ),
    "no rows after all": (
        lambda: (blocks(good()[0])[blocks(good()[0][:, 0]) > 99], np.zeros(0)),
        ValueError,
        r"0 sample\(s\)",
    ),
    "no columns": (
        lambda: (da.zeros((N, 0), chunks=(10, 1)), good()[1]),
        ValueError,
        "expected at least 1 feature",
    ),
    "no y": (lambda: (blocks(good()[0]), None), ValueError, "requires y to be passed"),
    "y too short": (
        lambda: (blocks(good()[0]), good()[1][:-1]),
        ValueError,
        "X has 40 rows and y has 39",
    ),
    "lazy y too short": (
        lambda: (blocks(good()[0]), blocks(good()[1][:-1])),
        ValueError,
        "X has 40 rows and y has 39",
    ),
    "y too long for unknown rows": (
        lambda: (unknown(good()[0]), np.zeros(41)),
        ValueError,
        "X has 40 rows and y has 41",
    ),
    "y in other blocks of unknown rows": (
        lambda: (unknown(good()[0]), unknown(good()[1][:39], 20)),
        ValueError,
        "X has 40 rows and y has 39; give one y value per row",
    ),
    "y of other unknown lengths": (
        lambda: (
            unknown(good()[0]),
            da.concatenate(
                [
                    da.from_delayed(dask.delayed(np.zeros)(n), (np.nan,), float)
                    for n in (10, 11, 9, 9)
                ],
                allow_unknown_chunksizes=True,
            ),
        ),
        ValueError,
        "X has 40 rows and y has 39.*differ first in block 1, with 10 and 11 rows",
    ),
    "y of two columns": (
        lambda: (blocks(good()[0]), da.zeros((N, 2), chunks=(10, 2))),
        ValueError,
        "y should be a 1d array",
    ),
    "lazy weights beside X in memory": (
        lambda: (*good(), blocks(np.ones(N))),
        TypeError,
        "sample_weight is a Dask object while X is in memory",
    ),
    "weights too short": (
        lambda: (blocks(good()[0]), good()[1], np.ones(39)),
        ValueError,
        "X has 40 rows and sample_weight has 39",
    ),
    "weights in other blocks of unknown rows": (
        lambda: (unknown(good()[0]), good()[1], unknown(np.ones(39), 20)),
        ValueError,
        "X has 40 rows and sample_weight has 39",
    ),
    "weights of two columns": (
        lambda: (blocks(good()[0]), good()[1], np.ones((N, 1))),
        ValueError,
        "one weight per row",
    ),
    "negative weight": (
        lambda: (blocks(good()[0]), good()[1], weights((13, -1.0))),
        ValueError,
        "Negative values in sample_weight, in block 1, row 13 of the whole input",
    ),
    "weight nan": (
        lambda: (blocks(good()[0]), good()[1], weights((13, np.nan))),
        ValueError,
        "Input sample_weight contains NaN in block 1, row 13",
    ),
    "no weight": (
        lambda: (blocks(good()[0]), good()[1], np.zeros(N)),
        ValueError,
        "weight zero for all",
    ),
    "one class": (
        lambda: (blocks(good()[0]), np.ones(N)),
        ValueError,
        "number of classes has to be greater than one; got 1 class",
    ),
    "one class with weight": (
        lambda: (blocks(good()[0]), good()[1], good()[1].astype(float)),
        ValueError,
        "number of classes has to be greater than one",
    ),
    "labels with fractions": (
        lambda: (blocks(good()[0]), blocks(good()[0][:, 0])),
        ValueError,
        "Unknown label type: continuous",
    ),
    "label nan": (
        lambda: (blocks(good()[0]), blocks(np.where(np.arange(N) == 31, np.nan, 1.0))),
        ValueError,
        "Input y contains NaN.*block 3",
    ),
    "mixed labels": (
        lambda: (
            blocks(good()[0]),
            blocks(np.array([0, 1] * 15 + ["a", "b"] * 5, dtype=object)),
        ),
        (TypeError, ValueError),
        "mixes|Unknown label type",
    ),
    "mixed labels in a block": (
        lambda: (blocks(good()[0]), blocks(np.array([0, "a"] * 20, dtype=object))),
        TypeError,
        "y mixes labels of several types in block 0: int, str",
    ),
    "a label is missing": (
        lambda: (blocks(good()[0]), blocks(np.array(["a", None] * 20, dtype=object))),
        ValueError,
        "a label is missing in block 0",
    ),
}


PLACES = ["one rank", "three ranks", "cluster"]
# Each in one of them, and everywhere what is looked at where the blocks are.
REFUSED = [
    (name, place)
    for number, name in enumerate(sorted(CASES))
    for place in PLACES
    if "unknown" in name or "kinds" in name or place == PLACES[number % 3]
]


@pytest.mark.parametrize(("name", "place"), REFUSED)
def test_refused(name, place, inproc_client, monkeypatch):
    """Never trained on, whether there is a cluster or not."""

    def refuse(*args, **kwargs):
        raise AssertionError("training has begun")

    monkeypatch.setattr("dask_ma.ma.sgd._agent.LocalSGD", refuse)
    make, error, words = CASES[name]
    X, y, *weight = make()
    arguments = {"sample_weight": weight[0]} if weight else {}
    n_ranks = {"one rank": 1, "three ranks": 3, "cluster": None}[place]
    model = MASGDClassifier(n_ranks=n_ranks, **PARAMS)
    with (
        inproc_client.as_current() if place == "cluster" else nullcontext(),
        pytest.raises(error, match=words),
    ):
        model.fit(X, y, **arguments)
    assert not [name for name in vars(model) if name.endswith("_")]


def test_lowest_block_is_named(cluster):
    X, y = good()
    X[[8, 15, 38], 0] = np.nan
    with pytest.raises(ValueError, match="NaN in block 0, row 8 of the whole input"):
        MASGDClassifier(**PARAMS).fit(blocks(X), y)


def test_regressor_names_the_bad_target(cluster):
    X, _ = good()
    y = X[:, 0].copy()
    y[33] = np.inf
    with pytest.raises(ValueError, match="y contains infinity in block 3, row 33"):
        MASGDRegressor(**PARAMS).fit(blocks(X), blocks(y))
    words = np.array(["a"] * N)
    with pytest.raises(ValueError, match="y must hold numbers.*block 0"):
        MASGDRegressor(**PARAMS).fit(blocks(X), blocks(words))


def test_error_comes_from_a_worker_process(processes):
    X, y = with_value(np.nan)
    with pytest.raises(ValueError, match="Input X contains NaN in block 2, row 25"):
        MASGDClassifier(**PARAMS).fit(X, y)


def test_error_of_the_users_own_graph(cluster):
    X, y = good()

    def fail(block):
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        MASGDClassifier(**PARAMS).fit(blocks(X).map_blocks(fail, meta=X[:0]), y)
