"""Rows on a disk are read by a thread, where the system reads far ahead of files."""

import errno
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from dask_ma.data import _ahead, _mapped, ask_for, read_ahead
from dask_ma.data._cache import store_rows

needs_sendfile = pytest.mark.skipif(
    sys.platform != "linux", reason="sends bytes of files nowhere"
)


@pytest.fixture
def store(tmp_path):
    """``store(X)`` writes a block."""

    def write(X):
        return store_rows(X, "run", str(tmp_path), [np.float64])

    return write


@pytest.fixture
def far(monkeypatch):
    monkeypatch.setattr(_mapped, "reads_far", lambda path: True)
    monkeypatch.setattr(_mapped, "_ASKED", 1)  # bytes that are worth a thread


@pytest.fixture
def parts(monkeypatch):
    """What was read, and by which threads."""
    found = []

    def noted(path, start, stop):
        found.append((path, start, stop, threading.get_ident()))
        return True

    _ahead.reader.wait()  # for what others have asked for
    monkeypatch.setattr(_ahead, "read_part", noted)
    return found


@pytest.mark.usefixtures("far")
def test_a_thread_reads_what_is_asked_for(store, parts, monkeypatch):
    monkeypatch.delattr(_mapped, "_advise")  # who asks leaves it to the thread
    X = sparse.random(500, 300, 0.2, format="csr", random_state=0)
    rows = store(X).open()
    assert ask_for(rows) == X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    _ahead.reader.wait()
    assert [path.name for path, *_ in parts] == [
        f"{name}.npy" for name in ("data", "indices", "indptr")
    ]
    for (path, start, stop, thread), array in zip(
        parts, (X.data, X.indices, X.indptr), strict=True
    ):
        assert path.read_bytes()[start:stop] == array.tobytes()
        assert thread != threading.get_ident()


@pytest.mark.usefixtures("far")
def test_of_some_rows_no_others_are_read(store, parts):
    X = np.arange(3000.0).reshape(1000, 3)
    rows = store(X).open()
    ask_for(rows[10:70])
    _ahead.reader.wait()
    [(path, start, stop, _)] = parts
    assert path.read_bytes()[start:stop] == X[10:70].tobytes()


def test_where_little_is_read_ahead_nothing_is_left_to_a_thread(
    store, parts, monkeypatch
):
    monkeypatch.setattr(_mapped, "reads_far", lambda path: False)
    advised = []
    monkeypatch.setattr(_mapped, "_advise", lambda *part: advised.append(part))
    rows = store(np.ones((100, 3))).open()
    ask_for(rows)
    _ahead.reader.wait()
    assert len(advised) == 1
    assert not parts


@pytest.mark.usefixtures("far")
def test_blocks_are_read_in_the_order_in_which_they_come(store, parts):
    blocks = [store(np.full((50, 2), i)).open() for i in range(6)]
    for rows, number in zip(read_ahead(blocks), range(6), strict=True):
        assert (rows == number).all()
    _ahead.reader.wait()
    firsts = [np.frombuffer(p.read_bytes()[a:b])[0] for p, a, b, _ in parts]
    assert firsts == list(range(6))


@needs_sendfile
@pytest.mark.parametrize("size, most", [(10, 4), (12, 4), (3, 4)])
def test_bytes_are_sent_nowhere(tmp_path, monkeypatch, size, most):
    """All of them, at most so many at a time."""
    path = tmp_path / "rows"
    path.write_bytes(bytes(5 + size + 7))
    sent, send = [], os.sendfile

    def noted(to, of, start, count):
        assert os.path.samestat(os.fstat(to), Path(os.devnull).stat())
        few = max(1, count // 2)  # a system may send fewer than it is asked for
        sent.append((start, send(to, of, start, few)))
        return sent[-1][1]

    monkeypatch.setattr(_ahead, "_AT_ONCE", most)
    monkeypatch.setattr(os, "sendfile", noted)
    assert _ahead.read_part(path, 5, 5 + size)
    starts, counts = zip(*sent, strict=True)
    assert sum(counts) == size
    assert max(counts) <= most
    assert list(starts) == [5 + sum(counts[:i]) for i in range(len(counts))]
    sent.clear()
    _ahead.read_part(path, 5 + size, 99 + size)  # which has no more than seven
    assert sum(count for _, count in sent) == 7


@needs_sendfile
def test_files_that_have_gone_are_no_error(tmp_path):
    assert _ahead.read_part(tmp_path / "gone", 0, 10)
    assert not _ahead.reads_far(tmp_path / "gone")


@needs_sendfile
@pytest.mark.usefixtures("far")
def test_a_system_that_refuses_is_asked_otherwise(store, tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EINVAL, "no such file may be sent")

    monkeypatch.setattr(os, "sendfile", refuse)
    monkeypatch.setattr(_ahead.reader, "is_refused", False)
    advised = []
    monkeypatch.setattr(_mapped, "_advise", lambda *part: advised.append(part))
    rows = store(np.ones((100, 3))).open()
    for n_advised in (0, 1):
        ask_for(rows)
        _ahead.reader.wait()
        assert len(advised) == n_advised


@pytest.mark.parametrize(("n_rows", "is_small"), [(100, True), (20_000, False)])
def test_small_parts_are_not_worth_a_thread(
    store, parts, monkeypatch, n_rows, is_small
):
    monkeypatch.setattr(_mapped, "reads_far", lambda path: True)
    advised = []
    monkeypatch.setattr(_mapped, "_advise", lambda *part: advised.append(part))
    ask_for(store(np.ones((n_rows, 3))).open())
    _ahead.reader.wait()
    assert (len(advised), len(parts)) == ((1, 0) if is_small else (0, 1))


@needs_sendfile
def test_how_far_is_read_ahead_is_a_setting_of_the_device(tmp_path, monkeypatch):
    monkeypatch.setattr(_ahead.sys, "platform", "linux")
    asked = []

    def of_device(device):
        asked.append(device)
        return sizes.pop()

    sizes = [2**20, 2**20 - 1024]
    monkeypatch.setattr(_ahead, "_bytes_ahead", of_device)
    assert not _ahead.reads_far(tmp_path)
    assert _ahead.reads_far(tmp_path)
    assert set(asked) == {tmp_path.stat().st_dev}
    monkeypatch.setattr(_ahead.sys, "platform", "darwin")
    assert not _ahead.reads_far(tmp_path)


def test_an_unknown_device_reads_nothing_ahead():
    assert _ahead._bytes_ahead(os.makedev(4095, 77)) == 0


def test_a_reader_whose_thread_has_gone_gets_another(parts):
    """As in a process that was forked from one that was reading."""
    reader = _ahead.Reader()
    gone = threading.Thread(target=lambda: None)
    gone.start()
    gone.join()
    reader._thread = gone
    reader.ask(Path("one"), 0, 1)
    reader.wait()
    reader.ask(Path("two"), 0, 1)
    reader.wait()
    assert [path.name for path, *_ in parts] == ["one", "two"]


def test_where_there_are_no_more_threads_nothing_is_asked_for(parts, monkeypatch):
    reader = _ahead.Reader()

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        reader.ask(Path("first"), 0, 1)
    reader.wait()
    reader.ask(Path("second"), 0, 1)
    reader.wait()
    assert [path.name for path, *_ in parts] == ["second"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be split here")
def test_a_child_reads_by_a_thread_of_its_own():
    """Also where the lock was taken as its parent was split."""
    reader = _ahead.reader
    with reader._lock:
        child = os.fork()
        if not child:
            is_free = reader._lock.acquire(blocking=False)
            os._exit(0 if is_free and reader._thread is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
