"""Rows that go to local disks: when, where they are read, and what is left of them."""

import time
import uuid
import warnings
from itertools import cycle
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, wait
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from dask_ma import (
    MALDA,
    ButterflySGDClassifier,
    MASGDClassifier,
    MPCAClassifier,
    SchMPLasso,
    SchMPLassoCV,
    SchMPLDA,
    SchMPLogisticRegression,
    SchMPMatrixFactorization,
    SFBDictionaryLearning,
    SFBLogisticRegression,
    SFBMetricLearner,
)
from dask_ma.data import _demand, _stream, partition
from dask_ma.data._cache import remove_rows, store_rows
from dask_ma.exceptions import InsufficientMemoryError
from dask_ma.layouts import _read_columns, _row_design

N_ROWS, N_COLUMNS, N_BLOCKS = 240, 6, 4


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.poisson(0.7, size=(N_ROWS, N_COLUMNS)).astype(float)
    return X, (X[:, 0] > X[:, 1]).astype(int)


@pytest.fixture
def on_disks(configured, tmp_path):
    """All rows of Dask collections go to one folder."""
    values = {"dask-ma.data.persist": False, "dask-ma.data.cache": str(tmp_path)}
    with configured(values):
        yield tmp_path


@pytest.fixture
def written(monkeypatch):
    """Numbers of the fits' blocks that have been written, as paths."""
    seen = []
    save = np.save

    def noted(path, array, **options):
        seen.append(Path(path).name)
        save(path, array, **options)

    monkeypatch.setattr("dask_ma.data._cache.np.save", noted)
    return seen


def lazy(X, y, kind="array", size=N_ROWS // N_BLOCKS):
    """The rows as a collection that is not computed, or is."""
    if kind == "frame":
        names = [f"x{i}" for i in range(X.shape[1])]
        frame = dd.from_pandas(
            pd.DataFrame(X, columns=names).assign(y=y), npartitions=5
        )
        return frame[names], frame["y"]
    given = da.from_array(X, chunks=(size, X.shape[1])), da.from_array(y, chunks=size)
    if kind == "csr":
        X = given[0].map_blocks(sparse.csr_array, meta=sparse.csr_array((0, 0)))
        given = X, given[1]
    if kind == "persisted":
        given = dask.persist(*given)
    return given


# Ranks have two blocks each. One of them is refined to the optimum, which takes ten
# times as long as the rounds.
ESTIMATORS = [
    lambda: MASGDClassifier(max_iter=4, refine=None, random_state=0),
    lambda: ButterflySGDClassifier(max_iter=4, random_state=0, batch_size=8),
    lambda: SFBLogisticRegression(
        max_iter=5, refine=False, random_state=0, communication="factors"
    ),
    lambda: MPCAClassifier((4,), random_state=0, strategy="synchronous", max_iter=3),
    lambda: SchMPLasso(alpha=0.01),
    lambda: MALDA(2, max_iter=2, random_state=0),
    lambda: SchMPLDA(2, max_iter=2, random_state=0),
    lambda: SFBMetricLearner(
        2, max_iter=2, batch_size=20, random_state=0, communication="factors"
    ),
    lambda: SFBDictionaryLearning(3, max_iter=2, batch_size=20, random_state=0),
]
UNLABELLED = MALDA, SchMPLDA, SFBDictionaryLearning


@pytest.fixture
def fitted():
    """``fitted(make, X, y)``: parameters of the fitted model."""

    def fit(make, X, y):
        model = make().set_params(n_ranks=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a few passes
            model.fit(X) if isinstance(model, UNLABELLED) else model.fit(X, y)
        if hasattr(model, "components_"):
            return model.components_
        return model.coefs_[0] if hasattr(model, "coefs_") else model.coef_

    return fit


@pytest.mark.each
@pytest.mark.parametrize("make", ESTIMATORS, ids=lambda make: type(make()).__name__)
@pytest.mark.parametrize("kind", ["array", "csr"])
def test_bits_are_those_of_rows_in_memory(rows, cluster, on_disks, fitted, make, kind):
    X, y = lazy(*rows, kind)
    with dask.config.set({"dask-ma.data.persist": True}):
        expected = fitted(make, X, y)
    assert not list(on_disks.iterdir())
    np.testing.assert_array_equal(fitted(make, X, y), expected)
    assert not list(on_disks.iterdir())


@pytest.fixture
def files(rows, tmp_path_factory):
    """``files(kind)``: the rows, which are read from a folder."""
    folder = tmp_path_factory.mktemp("files")

    def read(kind):
        X, y = rows
        if kind == "parquet":
            names = [f"x{i}" for i in range(N_COLUMNS)]
            table = pd.DataFrame(X, columns=names).assign(y=y)
            for start in range(0, N_ROWS, N_ROWS // N_BLOCKS):
                part = table.iloc[start : start + N_ROWS // N_BLOCKS]
                part.to_parquet(folder / f"{start:03}.parquet")
            table = dd.read_parquet(folder)
            return table[names], table["y"]
        parts = []
        for number, part in enumerate(np.array_split(X, N_BLOCKS)):
            sparse.save_npz(path := folder / f"{number}.npz", sparse.csr_array(part))
            made = dask.delayed(sparse.load_npz)(path)
            empty = sparse.csr_array((0, N_COLUMNS))
            parts.append(da.from_delayed(made, part.shape, meta=empty))
        return da.concatenate(parts), da.from_array(y, chunks=N_ROWS // N_BLOCKS)

    return read


# How files are read has nothing to do with who is fitted: they take turns.
@pytest.mark.parametrize(
    ("make", "kind"),
    [*zip(ESTIMATORS, cycle(["parquet", "npz"]))],
    ids=lambda value: value if isinstance(value, str) else type(value()).__name__,
)
def test_bits_of_files_are_those_of_rows_in_memory(
    files, cluster, on_disks, written, fitted, make, kind
):
    X, y = files(kind)
    found = fitted(make, X, y)
    assert written and not list(on_disks.iterdir())
    with dask.config.set({"dask-ma.data.persist": True}):
        np.testing.assert_array_equal(fitted(make, X, y), found)


@pytest.mark.each
@pytest.mark.parametrize("kind", ["array", "csr"])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: SchMPLasso(alpha=0.02, tol=1e-10),
        lambda: SchMPLasso(alpha=0.02, l1_ratio=0.5, positive=True, tol=1e-10),
        lambda: SchMPLogisticRegression(alpha=0.02, tol=1e-10),
    ],
    ids=["lasso", "positive", "logistic"],
)
def test_columns_that_are_too_many_for_memory_are_read(
    cluster, on_disks, monkeypatch, make, wide, kind
):
    """In place of a copy by columns: screening goes over the blocks."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 90 if wide else 30)) * (rng.random((60, 1)) < 0.7)
    y = (X[:, 0] - X[:, 4] + 0.3 * rng.normal(size=60) > 0).astype(int)
    X, y = lazy(X, y, kind)
    expected = make().fit(X, y)
    made = []
    monkeypatch.setattr(_read_columns, "memory_here", lambda: 1)
    for name in ("joined_columns", "RowColumns"):
        monkeypatch.setattr(_row_design, name, made.append)
    found = make().fit(X, y)
    assert not made and np.count_nonzero(found.coef_) > 1
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.intercept_, expected.intercept_, atol=1e-7)
    assert not list(on_disks.iterdir())


def ratings_of(kind, folder):
    """Pairs and ratings in blocks, made or read from files."""
    rng = np.random.default_rng(0)
    pairs, values = rng.integers(0, 20, (200, 2)), rng.normal(size=200)
    if kind == "array":
        return lazy(pairs, values, size=50)
    parts = []
    for number in range(4):
        own = slice(50 * number, 50 * number + 50)
        if kind == "parquet":
            table = pd.DataFrame(pairs[own], columns=["user", "item"])
            table.assign(r=values[own]).to_parquet(folder / f"{number}.parquet")
            continue
        np.savez(path := folder / f"{number}.npz", pairs=pairs[own])
        read = dask.delayed(lambda path: np.load(path)["pairs"])(path)
        parts.append(da.from_delayed(read, (50, 2), dtype=pairs.dtype))
    if kind == "npz":
        return da.concatenate(parts), da.from_array(values, chunks=50)
    table = dd.read_parquet(folder)
    return table[["user", "item"]], table["r"]


@pytest.mark.each
@pytest.mark.parametrize("solver", ["als", "sgd"])
@pytest.mark.parametrize("kind", ["array", "npz", "parquet"])
def test_ratings_of_disks(cluster, on_disks, written, solver, kind, tmp_path_factory):
    X, y = ratings_of(kind, tmp_path_factory.mktemp("ratings"))
    model = SchMPMatrixFactorization(
        2, solver=solver, max_iter=2, tol=0, n_ranks=2, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = model.fit(X, y).user_factors_
        assert written and not list(on_disks.iterdir())
        with dask.config.set({"dask-ma.data.persist": True}):
            np.testing.assert_array_equal(found, model.fit(X, y).user_factors_)


@pytest.mark.each
@pytest.mark.parametrize("kind", ["array", "csr", "frame", "persisted"])
@pytest.mark.parametrize("where", ["here", "cluster", "processes"])
def test_any_collection_anywhere(request, rows, on_disks, written, fitted, kind, where):
    if where != "here":
        request.getfixturevalue(where)
    X, y = lazy(*rows, kind)
    found = fitted(ESTIMATORS[0], X, y)
    if where != "processes" and kind != "frame":  # whose partitions are cut for ranks
        assert sorted(set(written)) == (
            ["data.npy", "indices.npy", "indptr.npy"] if kind == "csr" else ["rows.npy"]
        )
        assert len(written) == N_BLOCKS * (3 if kind == "csr" else 1)
    assert not list(on_disks.iterdir())
    with dask.config.set({"dask-ma.data.persist": True}):
        np.testing.assert_array_equal(found, fitted(ESTIMATORS[0], X, y))


@pytest.mark.parametrize("kind", ["array", "frame", "files"])
def test_a_key_is_one_task(rows, cluster, on_disks, fitted, kind, tmp_path, caplog):
    """Dask warns where a key is sent again with another task, and may get stuck."""
    X, y = lazy(*rows, "array" if kind == "array" else "frame")
    if kind == "files":
        pd.concat([X.compute(), y.compute()], axis=1).to_parquet(
            tmp_path.parent / "rows.parquet", row_group_size=10
        )
        frame = dd.read_parquet(tmp_path.parent / "rows.parquet", split_row_groups=True)
        X, y = frame[[f"x{i}" for i in range(N_COLUMNS)]], frame["y"]
    with caplog.at_level("WARNING", "distributed.scheduler"):
        fitted(ESTIMATORS[0], X, y)
    assert "run_spec" not in caplog.text


@pytest.mark.parametrize("persist", [False, "auto"])
def test_each_block_is_computed_once(
    rows, cluster, small_workers, configured, fitted, written, tmp_path, persist
):
    """Also those that the fit has begun to keep in memory."""
    counts = tmp_path / "counts"

    def block(X, number):
        with counts.open("a") as file:
            file.write(f"{number} ")
        return X

    X, y = rows
    parts = [
        da.from_delayed(
            dask.delayed(block, pure=False)(part, number), part.shape, float
        )
        for number, part in enumerate(np.split(X, 12))
    ]
    values = {"dask-ma.data.persist": persist, "dask-ma.data.memory-fraction": 1e-9}
    with configured(values):
        fitted(ESTIMATORS[0], da.concatenate(parts), da.from_array(y, chunks=20))
    assert len(written) == 12
    assert sorted(map(int, counts.read_text().split())) == list(range(12))


@pytest.mark.parametrize("deal", ["never", "always"])
def test_rows_are_on_the_disk_of_their_rank(rows, cluster, on_disks, deal):
    """What moves is written again where it is to be, cut to what is wanted."""
    rows = [part[:80] for part in rows]
    X, y = lazy(*rows, "persisted", size=30)
    addresses = sorted(cluster.nthreads())
    shared = partition(X, y, n_ranks=4, addresses=addresses, client=cluster, deal=deal)
    try:
        assert shared.bytes_moved > 0
        everything = []
        for spec, address in zip(shared.shards, addresses, strict=True):
            for piece in spec.pieces:
                source = piece.source
                main = source[0] if isinstance(source, tuple) else source
                wait([main])
                assert address in cluster.who_has([main])[main.key]
                found = main.result()
                found = found[0] if isinstance(found, tuple) else found
                part = found.open()[piece.start : piece.stop]
                assert found.shape[0] == piece.rows
                everything.append((piece.first, part))
        everything.sort(key=lambda pair: pair[0])
        np.testing.assert_array_equal(
            np.concatenate([part for _, part in everything]), rows[0]
        )
        del everything, found, part, main, source
    finally:
        shared.release()
    assert not list(on_disks.iterdir())


def test_rows_follow_a_rank_that_moves(rows, cluster, on_disks):
    """As after a loss: its files are on the disk of another worker."""
    X, y = lazy(*rows)
    addresses = sorted(cluster.nthreads())
    shared = partition(X, y, n_ranks=4, addresses=addresses, client=cluster)
    try:
        before = {path.name for path in next(on_disks.iterdir()).iterdir()}
        shared.settle(shared, addresses)  # nothing is elsewhere
        assert {path.name for path in next(on_disks.iterdir()).iterdir()} == before
        shared.settle(shared, addresses[::-1])
        for rank, address in enumerate(addresses[::-1]):
            [piece] = shared.shards[rank].pieces
            wait([piece.source])
            assert cluster.who_has([piece.source])[piece.source.key] == [address]
            found, labels, _ = piece.source.result()
            start = 60 * rank
            np.testing.assert_array_equal(found.open(), rows[0][start : start + 60])
            np.testing.assert_array_equal(labels, rows[1][start : start + 60])
            assert (piece.start, piece.stop, piece.rows) == (0, 60, 60)
        del found
    finally:
        shared.release()
    assert not list(on_disks.iterdir())


# When --------------------------------------------------------------------------------


@pytest.fixture
def small_workers(configured, monkeypatch, tmp_path):
    """Whatever takes a byte for each MiB that workers have goes to disks."""
    monkeypatch.setattr(_stream, "_LITTLE", 0)
    with configured({"dask-ma.data.cache": str(tmp_path)}):
        yield


def test_much_goes_to_disks_by_itself(
    rows, cluster, small_workers, configured, written, fitted, caplog
):
    X, y = lazy(*rows)
    with caplog.at_level("INFO", "dask_ma.data"):
        fitted(ESTIMATORS[0], X, y)
        assert not written and "disks" not in caplog.text
        with configured({"dask-ma.data.memory-fraction": 1e-9}):
            fitted(ESTIMATORS[0], X, y)
    assert len(written) == N_BLOCKS
    assert "of rows, which take" in caplog.text
    assert "they go to local disks" in caplog.text


def test_little_is_not_looked_at(rows, cluster, configured, written, fitted):
    with configured({"dask-ma.data.memory-fraction": 1e-9}):
        fitted(ESTIMATORS[0], *lazy(*rows))
    assert not written


def test_copies_of_an_estimator_count(rows, cluster, small_workers, monkeypatch):
    """Columns are kept in memory: what they take is asked for first."""
    X, y = lazy(*rows)
    monkeypatch.setattr(_demand, "_MOST", 1e-9)
    MASGDClassifier(max_iter=2, tol=None, refine=None).fit(X, y)
    found = r"X has about .* 1.5 times as much in memory \({}\): .* larger workers.*{}"
    of_schedule = found.format("its columns", "set schedule=None")
    with pytest.raises(InsufficientMemoryError, match=of_schedule):
        SchMPLasso(alpha=0.1, schedule="cyclic").fit(X, y)
    of_folds = found.format("columns of each fold", "fit SchMPLasso, ")
    with pytest.raises(InsufficientMemoryError, match=of_folds):
        SchMPLassoCV(cv=2).fit(X, y)
    SchMPLasso(alpha=0.1).fit(X, y)
    found = r"keeps 1 times as much.* or set {}"
    of_split = found.format("early_stopping=False")
    with pytest.raises(InsufficientMemoryError, match=of_split):
        MASGDClassifier(early_stopping=True).fit(X, y)
    of_documents = found.format("validation_fraction=None")
    with pytest.raises(InsufficientMemoryError, match=of_documents):
        MALDA(2, validation_fraction=0.5).fit(X)
    MALDA(2, max_iter=1).fit(X)


def test_what_must_be_held_is_refused(rows, cluster, small_workers, monkeypatch):
    """Ratings, before there is a rank; tokens could be on disks."""
    X, y = lazy(*rows)
    monkeypatch.setattr(_demand, "_MOST", 1e-9)
    wanted = (
        r"X has about .* keeps 3 times as much.*\(ratings as columns.*workers have .* "
        r"\d+%; take more or larger workers \(these 4 would .* each\), or .*partial_fit"
    )
    with pytest.raises(InsufficientMemoryError, match=wanted):
        SchMPMatrixFactorization(2).fit(X[:, :2].astype(int), y)
    for model in (SFBMetricLearner(2), SFBDictionaryLearning(3), SchMPLDA(2)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.set_params(max_iter=1).fit(X, y)


def test_what_must_be_held_is_refused_where_rows_are_to_be_on_disks(
    rows, cluster, small_workers, configured, written, monkeypatch
):
    """It would be in memory all the same; nothing is written before."""
    X, y = lazy(*rows)
    monkeypatch.setattr(_demand, "_MOST", 1e-9)
    text = "keeps 1.5 times as much"
    with configured({"dask-ma.data.persist": False}):
        with pytest.raises(InsufficientMemoryError, match=text):
            SchMPLasso(alpha=0.1, schedule="cyclic").fit(X, y)
        assert not written
        SchMPLasso(alpha=0.1).fit(X, y)
        assert written


@pytest.mark.parametrize("persist", [False, "auto"])
def test_ratings_are_refused_before_they_are_made(
    cluster, small_workers, configured, monkeypatch, tmp_path, persist
):
    """As many as metadata say: neither ids nor values are looked at."""
    made = tmp_path / "made"

    def make():
        made.touch()
        return np.zeros((50, 2))

    blocks = [
        da.from_delayed(dask.delayed(make)(), (50, 2), dtype=float) for _ in range(4)
    ]
    monkeypatch.setattr(_demand, "_MOST", 1e-9)
    y, text = da.ones(200, chunks=50), "X has about 2.34 kiB"
    with configured({"dask-ma.data.persist": persist}):
        with pytest.raises(InsufficientMemoryError, match=text):
            SchMPMatrixFactorization(2).fit(da.concatenate(blocks), y)
    assert not made.exists()


def test_workers_without_a_limit_take_all(rows, small_workers, configured, written):
    X, y = lazy(*rows)
    with (
        LocalCluster(
            n_workers=1, processes=False, memory_limit=0, dashboard_address=":0"
        ) as unlimited,
        Client(unlimited),
        configured({"dask-ma.data.memory-fraction": 1e-9}),
    ):
        MASGDClassifier(max_iter=2, tol=None, refine=None).fit(X, y)
    assert not written


def test_other_values_are_refused(rows, cluster):
    with dask.config.set({"dask-ma.data.persist": "sometimes"}):
        with pytest.raises(ValueError, match="data.persist is 'sometimes', expected"):
            MASGDClassifier().fit(*lazy(*rows))


# What goes wrong ---------------------------------------------------------------------


@pytest.mark.parametrize("where", ["here", "cluster"])
def test_wrong_blocks_are_named_and_files_removed(request, rows, on_disks, where):
    if where != "here":
        request.getfixturevalue(where)
    X, y = rows[0].copy(), rows[1]
    X[150, 3] = np.nan
    with pytest.raises(ValueError, match=r"NaN in block 2, row 150 of the whole input"):
        MASGDClassifier().fit(*lazy(X, y))
    assert not list(on_disks.iterdir())


@pytest.mark.parametrize("where", ["here", "cluster"])
def test_an_error_of_a_block_leaves_no_files(request, rows, on_disks, where):
    if where != "here":
        request.getfixturevalue(where)

    def fail(block, block_info=None):
        if block_info and block_info[0]["chunk-location"][0] == 3:
            raise ZeroDivisionError("no such file")
        return block

    X, y = lazy(*rows)
    with pytest.raises(ZeroDivisionError, match="no such file"):
        MASGDClassifier().fit(X.map_blocks(fail, dtype=X.dtype), y)
    # Threads that were writing a block then remove it themselves.
    deadline = time.monotonic() + 30
    while list(on_disks.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not list(on_disks.iterdir())


def test_rows_that_are_written_after_the_end_leave_no_files(tmp_path):
    """As those of blocks that are under way while another one fails."""
    X = np.ones((3, 2))
    arguments = uuid.uuid4().hex, str(tmp_path), [np.float64]
    assert store_rows(X, *arguments).nbytes == X.nbytes
    assert len(list(tmp_path.iterdir())) == 1
    remove_rows(*arguments[:2])
    assert store_rows(X, *arguments) is X
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_named(rows, cluster, configured, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    values = {"dask-ma.data.persist": False, "dask-ma.data.cache": str(file)}
    with configured(values), pytest.raises(OSError, match="cannot be written"):
        MASGDClassifier().fit(*lazy(*rows))
