"""Blocks of svmlight files against scikit-learn's reader of whole files."""

import gzip

import dask
import fsspec
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from dask_ma import MASGDClassifier
from dask_ma.datasets import read_svmlight

N, D = 24, 30


@pytest.fixture
def path(tmp_path):
    """A file of rows of many lengths, one of them empty."""
    rng = np.random.default_rng(0)
    X = sparse.random(N, D, density=0.3, format="csr", random_state=rng)
    X = sparse.csr_matrix(X.toarray() * (np.arange(N) != 7)[:, np.newaxis])
    y = np.where(rng.random(N) < 0.5, -1, 1)
    dump_svmlight_file(X, y, str(tmp_path / "a.svm"), zero_based=False)
    return tmp_path / "a.svm"


def whole(path, **params):
    X, y = load_svmlight_file(str(path), n_features=D, zero_based=False, **params)
    return X.toarray(), y


@pytest.mark.parametrize("blocksize", [20, 64, 500, 1500, None, "1 kB"])
def test_each_line_is_in_one_block(path, blocksize):
    X, y = read_svmlight(path, D, blocksize=blocksize)
    size = path.stat().st_size
    bytes_per_block = {None: size, "1 kB": 1000}.get(blocksize, blocksize)
    assert X.numblocks == (-(-size // bytes_per_block), 1)
    rows, targets = dask.compute(X, y)
    expected = whole(path)
    np.testing.assert_array_equal(rows.toarray(), expected[0])
    np.testing.assert_array_equal(targets, expected[1])
    assert isinstance(rows, sparse.csr_matrix)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b" # a remark\n"])
def test_ends_of_lines(path, end):
    """Ranges may end right before, within and right after an end of a line."""
    lines = path.read_bytes().rstrip(b"\n").split(b"\n")[:2]
    path.write_bytes((end if end.endswith(b"\n") else b"\n").join(lines) + end)
    expected = whole(path)
    first, size = len(lines[0]), path.stat().st_size
    for blocksize in (40, first // 2, *range(first - 1, first + 4), size - 1, size + 1):
        X, y = dask.compute(*read_svmlight(path, D, blocksize=blocksize))
        np.testing.assert_array_equal(X.toarray(), expected[0])
        np.testing.assert_array_equal(y, expected[1])


def test_a_block_is_read_once_for_rows_and_targets(path, monkeypatch):
    calls = []

    def counted(*args, **kwargs):
        calls.append(args[0].getvalue())
        return load_svmlight_file(*args, **kwargs)

    monkeypatch.setattr("dask_ma.datasets._svmlight.load_svmlight_file", counted)
    X, y = read_svmlight(path, D, blocksize=1000)
    assert not calls
    dask.compute(X, y, scheduler="sync")
    assert len(calls) == len(set(calls)) == X.numblocks[0]


def test_a_pattern_a_list_and_compressed_files(path):
    second = path.with_name("b.svm.gz")
    second.write_bytes(gzip.compress(path.read_bytes()))
    expected = whole(path)
    for paths in ([path, str(second)], str(path.with_name("*.svm*"))):
        X, y = read_svmlight(paths, D, blocksize=1000)
        n_blocks = -(-path.stat().st_size // 1000) + 1  # the compressed one is whole
        assert X.numblocks[0] == n_blocks
        rows, targets = dask.compute(X, y)
        np.testing.assert_array_equal(rows.toarray(), np.vstack([expected[0]] * 2))
        np.testing.assert_array_equal(targets, np.tile(expected[1], 2))


def test_columns_are_counted(path):
    X, _ = read_svmlight(path, blocksize=500)
    rows = whole(path)[0]
    assert X.shape[1] == np.flatnonzero(rows.any(axis=0))[-1] + 1
    assert read_svmlight(path, zero_based=True)[0].shape[1] == X.shape[1] + 1


@pytest.mark.parametrize("dtype", [np.float32, "float64"])
def test_types(path, dtype):
    X, y = read_svmlight(path, D, dtype=dtype, blocksize=1000)
    assert X.dtype == X.compute().dtype == np.dtype(dtype)
    assert y.dtype == y.compute().dtype == np.float64


def test_a_file_that_changes_has_other_keys(path):
    before = read_svmlight(path, D)[0].name
    assert read_svmlight(path, D)[0].name == before
    path.write_bytes(path.read_bytes() + b"1 2:5\n")
    assert read_svmlight(path, D)[0].name != before


def test_any_file_system():
    with fsspec.open("memory://rows-of-two.svm", "w") as file:
        file.write("1 1:0.5 3:2\n-1 2:1\n")
    X, y = read_svmlight("memory://rows-of-two.svm", 3, blocksize=6)
    assert X.compute().toarray().tolist() == [[0.5, 0, 2], [0, 1, 0]]
    assert y.compute().tolist() == [1, -1]


@pytest.mark.parametrize(
    ("text", "params", "match"),
    [
        ("1 0:3\n", {}, r"rows\.svm: .*\n?.*zero_based=False"),
        ("1 9:3\n", {}, r"rows\.svm: n_features was set to 3.*9 features"),
        ("1 2:three\n", {}, r"rows\.svm: .*three"),
        ("1 1:1\n" * 9 + "x 1:1\n", {"blocksize": 30}, r"rows\.svm, bytes 30 to 60: "),
    ],
)
def test_bad_lines(tmp_path, text, params, match):
    (tmp_path / "rows.svm").write_text(text)
    X, _ = read_svmlight(tmp_path / "rows.svm", 3, **params)
    with pytest.raises(ValueError, match=match):
        X.compute()


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"paths": "none.svm"}, FileNotFoundError, r"none\.svm"),
        ({"paths": "none*.svm"}, FileNotFoundError, r"no file has a name like 'none"),
        ({"paths": []}, ValueError, "at least one file, got none"),
        ({"n_features": 0}, ValueError, "n_features must be from 1 to 2147483647"),
        ({"dtype": int}, ValueError, "dtype must be float32 or float64, got int64"),
        ({"blocksize": 0}, ValueError, "blocksize must be at least 1 byte"),
    ],
)
def test_bad_parameters(path, change, error, match):
    with pytest.raises(error, match=match):
        read_svmlight(**{"paths": path, "n_features": D, **change})


def test_no_column_at_all(tmp_path):
    (tmp_path / "rows.svm").write_text("1\n-1\n")
    with pytest.raises(ValueError, match="no row has a value; set n_features"):
        read_svmlight(tmp_path / "rows.svm")
    X, y = dask.compute(*read_svmlight(tmp_path / "rows.svm", 2))
    assert X.shape == (2, 2)
    assert y.tolist() == [1, -1]


def test_a_fit(path, process_client):
    """Rows go from the file to the ranks, and the order of both is the same."""
    X, y = read_svmlight(path, D, blocksize=1000)
    params = {"max_iter": 100, "alpha": 1e-4, "random_state": 0, "n_ranks": 2}
    model = MASGDClassifier("log_loss", tol=None, **params).fit(X, y)
    expected = whole(path)
    same = clone(model).set_params(n_ranks=1).fit(*expected)
    for fitted in (model, same):
        assert (fitted.predict(expected[0]) == expected[1]).mean() > 0.9
