"""Early stopping: rows held out on every rank, and the score on them."""

from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from dask_ma import (
    MASGDClassifier,
    MASGDRegressor,
    MPCAClassifier,
    SFBLogisticRegression,
)
from dask_ma.data import Block, Shard
from dask_ma.linear._model import LinearModel, score_sums
from dask_ma.supervised._scores import score
from dask_ma.supervised._stopping import _keep_classes, choose_rows, cut_rows

PARAMS = {"random_state": 0, "early_stopping": True, "tol": None, "max_iter": 4}


def make_shard(sizes, labels=None, *, convert=np.asarray, weighted=False):
    """Blocks whose first column numbers the rows."""
    n_rows = sum(sizes)
    X = np.column_stack([np.arange(1.0, n_rows + 1), np.ones(n_rows)])
    y = np.arange(n_rows) % 2 if labels is None else np.asarray(labels)
    weights = np.linspace(1, 2, n_rows) if weighted else None
    blocks, start = [], 0
    for index, size in enumerate(sizes):
        rows = slice(start, start + size)
        weight = None if weights is None else weights[rows]
        blocks.append(Block(convert(X[rows]), y[rows], weight, index, start))
        start += size
    return Shard(blocks, 2, X.dtype)


def split_rows(shard, fraction, seed, *, stratify):
    return cut_rows(shard, choose_rows(shard, fraction, seed, stratify=stratify))


def row_numbers(shard):
    return [
        int(row[0]) - 1
        for block in shard.blocks
        for row in (block.X.toarray() if sparse.issparse(block.X) else block.X)
    ]


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize(
    ("sizes", "fraction", "n_held_out"),
    [([10, 3, 7], 0.1, 2), ([20], 0.5, 10), ([2], 0.01, 1), ([3, 1], 0.99, 3)],
)
def test_split_is_a_partition_of_the_rows(convert, sizes, fraction, n_held_out):
    shard = make_shard(sizes, convert=convert, weighted=True)
    seed = np.random.SeedSequence(0)
    train, held_out = split_rows(shard, fraction, seed, stratify=True)
    assert (train.n_rows, held_out.n_rows) == (sum(sizes) - n_held_out, n_held_out)
    assert sorted(row_numbers(train) + row_numbers(held_out)) == list(range(sum(sizes)))
    for part in (train, held_out):
        rows = row_numbers(part)
        assert np.concatenate([b.y for b in part.blocks]).tolist() == [
            r % 2 for r in rows
        ]
        np.testing.assert_allclose(
            np.concatenate([b.sample_weight for b in part.blocks]),
            np.linspace(1, 2, sum(sizes))[rows],
        )


def test_split_keeps_the_proportions_of_the_labels():
    shard = make_shard([40, 60], np.arange(100) % 10 == 0)
    for entropy in range(5):
        seed = np.random.SeedSequence(entropy)
        _, held_out = split_rows(shard, 0.2, seed, stratify=True)
        assert sum(block.y.sum() for block in held_out.blocks) == 2


def test_split_depends_on_the_seed():
    shard = make_shard([50])
    chosen = [
        row_numbers(
            split_rows(shard, 0.2, np.random.SeedSequence(n), stratify=False)[1]
        )
        for n in (0, 0, 1)
    ]
    assert chosen[0] == chosen[1] != chosen[2]


@pytest.mark.parametrize("labels", [[0, 1, 1, 1, 1], [0] * 5, [0, 1, 2, 3, 4]])
def test_split_where_proportions_are_impossible(labels):
    shard = make_shard([5], labels)
    train, held_out = split_rows(shard, 0.2, np.random.SeedSequence(0), stratify=True)
    assert (train.n_rows, held_out.n_rows) == (4, 1)


@pytest.mark.parametrize("sizes", [[1], []])
def test_a_rank_without_rows_to_spare_keeps_them(sizes):
    shard = make_shard(sizes)
    train, held_out = split_rows(shard, 0.5, np.random.SeedSequence(0), stratify=True)
    assert (train.n_rows, held_out.n_rows) == (sum(sizes), 0)


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (MASGDClassifier, "binary"),
        (MASGDClassifier, "multi"),
        (MASGDRegressor, "regression"),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_score_from_sums_is_the_score(cls, name, weighted, request, weights):
    X, y = request.getfixturevalue(name)
    model = cls(max_iter=2, tol=None, random_state=0).fit(X, y)
    weight = weights if weighted else None
    is_classifier = cls is MASGDClassifier
    linear = LinearModel(np.atleast_2d(model.coef_), model.intercept_)
    sums = np.zeros(4)
    for rows in (slice(0, 50), slice(50, 120)):
        part = None if weight is None else weight[rows]
        block = Block(X[rows], y[rows], part, 0, 0)
        shard = Shard([block], 6, X.dtype)
        sums += score_sums(shard, linear, is_classifier=is_classifier)
    expected = model.score(X, y, weight)
    assert score(sums, is_classifier=is_classifier) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_held_out_rows_are_not_trained_on(binary, n_ranks):
    X, y = binary
    model = MASGDClassifier(
        n_ranks=n_ranks, validation_fraction=0.25, local_epochs=1, **PARAMS
    ).fit(X, y)
    n_train = 120 - sum(int(0.25 * 120 / n_ranks) for _ in range(n_ranks))
    assert [record["n_samples"] for record in model.history_] == [n_train] * 4
    assert all(0 <= record["validation_score"] <= 1 for record in model.history_)


def test_score_decides_when_to_stop(binary):
    X, y = binary
    params = {**PARAMS, "tol": 1e-3, "max_iter": 500, "n_iter_no_change": 4}
    model = MASGDClassifier(n_ranks=2, **params).fit(X, y)
    scores = [record["validation_score"] for record in model.history_]
    assert model.n_iter_ < 500
    best = np.maximum.accumulate(scores)
    assert max(scores[-4:]) < best[-5] + 1e-3
    regressor = MASGDRegressor(n_ranks=2, **params).fit(X, X @ np.ones(6))
    assert regressor.n_iter_ < 500
    assert regressor.history_[-1]["validation_score"] > 0.9


def test_no_row_to_hold_out():
    X, y = np.eye(4), np.array([0, 1, 1, 0])
    with pytest.raises(
        ValueError, match="early_stopping holds out validation_fraction"
    ):
        MASGDClassifier(n_ranks=4, **PARAMS).fit(X, y)


CLASSIFIERS = [
    MASGDClassifier(loss="log_loss"),
    MPCAClassifier((4,), strategy="synchronous"),
    SFBLogisticRegression(communication="factors"),
]


def labels_with(n_rare):
    """60 rows, of which the last ones are of a class of their own."""
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = (X[:, 0] > 0).astype(int)
    y[60 - n_rare :] = 7
    return X, y


@pytest.mark.pairs
@pytest.mark.parametrize("lazy", [False, True], ids=["memory", "lazy"])
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
@pytest.mark.parametrize("model", CLASSIFIERS, ids=lambda model: type(model).__name__)
def test_a_class_of_one_row_is_refused(model, n_ranks, lazy):
    """It cannot be trained on and validated with; scikit-learn refuses it, too."""
    X, y = labels_with(1)
    if lazy:
        X, y = da.from_array(X, chunks=(15, 3)), da.from_array(y, chunks=15)
    model = clone(model).set_params(n_ranks=n_ranks, **PARAMS)
    with pytest.raises(ValueError, match="class in y has only 1 member.*: 7; the mini"):
        model.fit(X, y)
    model.set_params(early_stopping=False).fit(X, y)
    assert model.classes_.tolist() == [0, 1, 7]


@pytest.mark.parametrize("fraction", [0.5, 0.95])
@pytest.mark.parametrize("rows_of", [[30, 30], [59, 1], [58, 1, 1], [60]], ids=str)
def test_each_class_keeps_a_row_to_train_on(rows_of, fraction, run_ranks):
    """Also where a rank would hold out all the rows of a class that there are."""
    _, y = labels_with(2)
    bounds = np.cumsum([0, *rows_of])

    def program(group, entropy):
        rows = slice(bounds[group.rank], bounds[group.rank + 1])
        codes = np.unique(y, return_inverse=True)[1][rows]
        shard = make_shard([len(codes)], codes)
        seed = np.random.SeedSequence((entropy, group.rank))
        context = SimpleNamespace(group=group, seed=seed)
        held_out = choose_rows(shard, fraction, seed, stratify=True)
        _keep_classes(context, shard, np.unique(y), held_out, may_be_small=False)
        return codes[~held_out]

    for entropy in range(8):
        parts = run_ranks(lambda group: program(group, entropy), len(rows_of))
        assert set(np.concatenate(parts)) == {0, 1, 2}


def test_a_part_of_a_shard_knows_its_size():
    shard = make_shard([30, 10])
    train, held_out = split_rows(shard, 0.25, np.random.SeedSequence(0), stratify=False)
    assert (train.n_rows, held_out.n_rows) == (30, 10)
    assert (train.nbytes, held_out.nbytes) == (
        pytest.approx(0.75 * shard.nbytes),
        pytest.approx(0.25 * shard.nbytes),
    )
