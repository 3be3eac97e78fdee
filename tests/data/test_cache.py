"""Rows in files of the local disk: what is written is what is read."""

import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from dask_ma import MASGDClassifier, MPCAClassifier
from dask_ma.data import _mapped, ask_for, hand_back, read_ahead
from dask_ma.data._cache import files_of, remove_rows, store_rows, store_source
from dask_ma.data._mapped import CachedRows

FLOATS = (np.float64, np.float32)


@pytest.fixture
def store(tmp_path):
    """``store(X, dtypes)`` writes a block."""

    def write(X, dtypes=FLOATS):
        return store_rows(X, "run", str(tmp_path), dtypes)

    return write


def dense():
    return np.random.default_rng(0).normal(size=(7, 4))


def csr():
    return sparse.random(9, 5, 0.4, format="csr", random_state=0)


@pytest.mark.parametrize(
    "X",
    [
        dense(),
        dense().astype(np.float32),
        np.asfortranarray(dense()),
        np.empty((0, 4)),
        pd.DataFrame(dense(), columns=list("abcd")),
        csr(),
        sparse.csr_array(csr()).astype(np.float32),
        csr().tocsc(),
        sparse.csr_array((3, 4)),
    ],
    ids=lambda X: f"{type(X).__name__}-{X.shape}-{getattr(X, 'dtype', '')}",
)
def test_what_is_written_is_read(store, X):
    rows = store(X)
    assert isinstance(rows, CachedRows)
    found = rows.open()
    assert (rows.shape, rows.ndim) == (X.shape, 2)
    if sparse.issparse(X):
        assert (found.format, found.dtype) == ("csr", X.dtype)
        np.testing.assert_array_equal(found.toarray(), X.toarray())
        parts = found.data, found.indices, found.indptr
    else:
        np.testing.assert_array_equal(found, np.asarray(X))
        parts = (found,)
    assert rows.nbytes == sum(part.nbytes for part in parts)
    for part in parts:
        assert part.flags.aligned
        assert not (part.flags.writeable and part.size)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int64, np.float16])
def test_other_types_become_the_first(store, dtype):
    X = (dense() > 0).astype(dtype)
    assert store(X).open().dtype == np.float64
    assert store(X, (np.float32,)).open().dtype == np.float32
    if dtype is not np.float16:  # SciPy has no such matrices
        np.testing.assert_array_equal(store(sparse.csr_array(X)).open().toarray(), X)


def test_elements_that_come_twice_are_added_up(store):
    X = sparse.csr_array(
        (np.array([1.0, 2, 3]), np.array([4, 4, 0]), np.array([0, 2, 3])), shape=(2, 5)
    )
    rows = store(X)
    assert rows.open().nnz == 2
    np.testing.assert_array_equal(rows.open().toarray(), X.toarray())


@pytest.mark.parametrize(
    "X",
    [
        np.array([["a", "b"]]),
        np.zeros(3),
        np.ma.masked_less(dense(), 0),
        pd.DataFrame({"a": ["x"]}),
        pd.Series([1.0, 2.0]),
    ],
    ids=lambda X: type(X).__name__,
)
def test_what_cannot_be_used_is_left_to_its_rank(store, tmp_path, X):
    assert store(X) is X
    assert not list(tmp_path.iterdir())


def test_indices_outside_are_left_to_the_rank(store):
    X = csr()
    X.indices = X.indices + 9
    assert store(X) is X


def test_y_and_weights_stay_beside(tmp_path):
    y = np.arange(7)
    X, same, none = store_source((dense(), y, None), "run", str(tmp_path), FLOATS)
    assert isinstance(X, CachedRows)
    assert same is y and none is None


def test_files_that_have_gone_or_changed_are_noticed(store):
    rows = store(csr())
    path = Path(rows.folder, "data.npy")
    content = path.read_bytes()
    path.write_bytes(content[:-3] + b"\0\0\1")
    with pytest.raises(OSError, match="not those that were written"):
        rows.open()
    path.write_bytes(content[:90])
    with pytest.raises(OSError, match=r"data.npy cannot be read.*data.cache"):
        rows.open()
    path.unlink()
    with pytest.raises(OSError, match=r"data.npy cannot be read.*No such file"):
        rows.open()


def test_a_disk_that_takes_nothing_is_named(tmp_path):
    base = tmp_path / "file"
    base.write_text("")
    with pytest.raises(OSError, match=r"224 bytes of rows cannot be written"):
        store_rows(dense(), "run", str(base), FLOATS)


def test_only_the_files_of_a_fit_are_removed(tmp_path):
    base = str(tmp_path)
    rows = [store_rows(dense(), run, base, FLOATS) for run in ("one", "other")]
    array = rows[0].open()
    remove_rows("one", base)
    assert [path.name for path in tmp_path.iterdir()] == ["dask_ma-rows-other"]
    np.testing.assert_array_equal(array, dense())  # who has it open keeps it
    remove_rows("one", base)  # nothing is there any more


def test_without_a_worker_files_are_temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert files_of("run", None) == tmp_path / "dask_ma-rows-run"


needs_proc = pytest.mark.skipif(
    _mapped._mapped_bytes() is None, reason="this system does not tell what is mapped"
)


@needs_proc
def test_memory_is_handed_back(store, configured):
    """By itself, once there is much of it."""
    X = np.ones((2**21, 2))  # 32 MiB
    with configured({"dask-ma.data.mapped-limit": "8 MiB"}):
        rows = store(X).open()
        before = _mapped._mapped_bytes()
        for _ in range(5):
            assert rows.sum() == X.size
            deadline = time.monotonic() + 10
            while _mapped._mapped_bytes() > before + 2**23:
                assert time.monotonic() < deadline
                time.sleep(0.01)


@needs_proc
def test_a_thread_that_begins_late_hands_memory_back(store, configured, monkeypatch):
    """What has been looked at before is none of what a process has besides."""
    is_read = threading.Event()

    class Late(_mapped._Residency):
        def _watch(self, *args):
            assert is_read.wait(60)
            super()._watch(*args)

    monkeypatch.setattr(_mapped, "residency", Late())
    X = np.ones((2**21, 2))
    with configured({"dask-ma.data.mapped-limit": "8 MiB"}):
        rows = store(X).open()
        before = _mapped._mapped_bytes()
        assert rows.sum() == X.size
        is_read.set()
        deadline = time.monotonic() + 10
        while _mapped._mapped_bytes() > before + 2**23:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_rows_are_asked_for_in_parts_that_systems_read(store):
    """Of what is asked for at once Linux reads no more than it is set to."""
    rows = store(np.ones((1000, 101))).open()[10:]  # does not begin with a page
    [(_, pages)] = _mapped._owned(rows)
    asked = []

    class Noted(_mapped.Pages):
        def madvise(self, option, start, length):
            super().madvise(option, start, length)
            asked.append((start, length))

    noted = Noted(-1, len(pages))
    begin = rows.ctypes.data - np.frombuffer(pages, np.uint8).ctypes.data
    view = np.frombuffer(noted, np.float64, rows.size, begin).reshape(rows.shape)
    assert ask_for(view) == rows.nbytes
    assert asked[0][0] <= begin < asked[0][0] + asked[0][1]
    assert all(0 < length <= 128 * 2**10 for _, length in asked)
    ends = [start + length for start, length in asked]
    assert ends[:-1] == [start for start, _ in asked[1:]]
    assert ends[-1] == begin + rows.nbytes


@needs_proc
def test_rows_of_a_disk_can_be_handed_back(store):
    X = sparse.random(2000, 2000, 0.5, format="csr", random_state=0)  # 24 MB
    rows = store(X).open()
    hand_back(rows)
    before = _mapped._mapped_bytes()
    assert rows.sum() == pytest.approx(X.sum())
    assert _mapped._mapped_bytes() > before + 2**23
    hand_back(rows[5:])  # a copy in memory: nothing happens
    hand_back(rows)
    assert _mapped._mapped_bytes() < before + 2**22
    np.testing.assert_array_equal(rows[7:8].toarray(), X[7:8].toarray())


def test_blocks_are_asked_for_ahead(store, monkeypatch):
    """As many bytes, or one; those in memory come as they are made."""
    X = np.ones((300, 7))
    on_disk = [store(X + i).open() for i in range(5)]
    size = ask_for(on_disk[0])
    assert size == X.nbytes and not ask_for(X)
    assert ask_for(on_disk[0][3:5]) == X[3:5].nbytes
    asked = []

    def noted(rows):
        asked.append(rows[0, 0])
        return size

    monkeypatch.setattr(_mapped, "ask_for", noted)
    for limit, n_ahead in ((0, 1), (2 * size, 2)):
        monkeypatch.setattr(_mapped, "_AHEAD", limit)
        asked.clear()
        for number, rows in enumerate(read_ahead(on_disk)):
            assert rows is on_disk[number]
            assert len(asked) == min(5, number + 1 + n_ahead)
    asked.clear()
    next(read_ahead(on_disk, n_together=size))  # as much as the last limit, and so much
    assert len(asked) == 4
    monkeypatch.setattr(_mapped, "ask_for", lambda rows: 0)
    made = []

    def make():
        for number in range(3):
            made.append(number)
            yield number

    assert all(each == made[-1] for each in read_ahead(make()))
    assert len(made) == 3


def test_no_header_is_parsed(store, monkeypatch):
    """Threads that parse at a time fail now and then with CPython 3.11."""
    monkeypatch.setattr("ast.literal_eval", None)
    for X in (dense(), np.empty((0, 3))):
        np.testing.assert_array_equal(store(X).open(), X)
    found = store(sparse.csr_array(dense())).open()
    np.testing.assert_array_equal(found.toarray(), dense())


@needs_proc
def test_nobody_looks_once_nothing_is_mapped(store):
    rows = store(dense()).open()
    assert _mapped.residency._thread is not None
    del rows
    deadline = time.monotonic() + 10
    while _mapped.residency._thread is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_the_user_has_mapped_and_changed_stays(tmp_path):
    """A map of the user's own may hold what no file has."""
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((500, 20)))
    X = np.load(path, mmap_mode="c")
    X[:] = 1
    hand_back(X)
    hand_back(X[5:50])
    assert X.sum() == X.size
    y = np.arange(500) % 2
    MASGDClassifier(max_iter=2, tol=None, refine=None).fit(X, y)
    MPCAClassifier((2,), max_iter=1, tol=None).fit(X, y)
    assert (X == 1).all()


@needs_proc
def test_rows_that_are_mapped_when_watching_begins_count_like_others(monkeypatch):
    """Those of another thread of old, which are handed back soon."""
    mapped, dropped = iter([50, 10, 45, 10, 10]), []
    watch = _mapped._Residency()
    watch._limit = 30
    monkeypatch.setattr(_mapped, "_mapped_bytes", lambda: next(mapped))
    monkeypatch.setattr(_mapped, "_LOOK", 0.0)
    rounds = iter([True] * 5 + [False])
    monkeypatch.setattr(watch, "_is_needed", lambda: next(rounds))
    monkeypatch.setattr(watch, "_drop_all", lambda: dropped.append(len(dropped)))
    watch._watch(50)
    assert len(dropped) == 1
