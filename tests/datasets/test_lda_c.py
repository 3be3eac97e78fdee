"""Corpora in the format of LDA-C, against matrices that the tests write themselves."""

from __future__ import annotations

import gzip
import re

import dask
import fsspec
import numpy as np
import pytest
from scipy import sparse

from dask_ma.datasets import _lines, read_lda_c
from dask_ma.datasets._lines import TextFile


@pytest.fixture(autouse=True)
def _synchronous():
    """One thread, so that blocks are read in the order in which they are asked for."""
    with dask.config.set(scheduler="synchronous"):
        yield


def random_counts(n_documents=30, n_words=20, density=0.3, seed=0):
    """Counts with documents without words at the start, in the middle, at the end."""
    rng = np.random.default_rng(seed)
    counts = rng.geometric(0.3, (n_documents, n_words))
    counts *= rng.random(counts.shape) < density
    counts[[0, 1, 7, n_documents - 1]] = 0
    counts[:, 3] = 0
    counts[2, -1] = 12
    return counts


def as_text(counts):
    """The format, written in the simplest way."""
    lines = []
    for row in counts:
        pairs = [f"{word}:{count}" for word, count in enumerate(row) if count]
        lines.append(" ".join([str(len(pairs)), *pairs]))
    return "".join(f"{line}\n" for line in lines).encode()


def write(path, text):
    """Write a file, compressed if its name says so."""
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def check_blocks(X, counts):
    """The blocks are canonical CSR and make up the counts, in their order."""
    first = 0
    for delayed, n_rows in zip(X.to_delayed().ravel(), X.chunks[0], strict=True):
        block = delayed.compute()
        assert isinstance(block, sparse.csr_matrix)
        assert block.has_canonical_format
        assert block.dtype == X.dtype
        assert block.indices.dtype == np.int32
        assert np.isnan(n_rows) or n_rows == block.shape[0]
        last = first + block.shape[0]
        np.testing.assert_array_equal(block.toarray(), counts[first:last])
        first = last
    assert first == len(counts)


@pytest.mark.each
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("blocksize", [4, 30, 100, "1 kB", None])
def test_same_counts(tmp_path, suffix, blocksize):
    counts = random_counts()
    path = write(tmp_path / f"corpus.dat{suffix}", as_text(counts))
    given = read_lda_c(path, n_features=25, blocksize=blocksize)
    assert given.vocabulary is None
    assert given.X.dtype == np.int32
    assert given.X.shape[1] == 25
    assert isinstance(given.X._meta, sparse.csr_matrix)
    found = read_lda_c(path, blocksize=blocksize).X
    assert found.shape == (30, 20)
    assert (found.numblocks[0] > 1) == (blocksize not in ("1 kB", None))
    check_blocks(given.X, np.pad(counts, ((0, 0), (0, 5))))
    check_blocks(found, counts)
    np.testing.assert_array_equal(found.compute().toarray(), counts)


def test_chunk_sizes(tmp_path):
    """Known after a pass over the file, which a compressed one always needs."""
    counts = random_counts()
    path = write(tmp_path / "corpus.dat", as_text(counts))
    X = read_lda_c(path, n_features=20, blocksize=100).X
    assert np.isnan(X.chunks[0]).all()
    X.compute_chunk_sizes()
    assert X.shape == (30, 20)
    assert read_lda_c(path, blocksize=100).X.chunks == X.chunks
    path = write(tmp_path / "corpus.dat.gz", as_text(counts))
    assert sum(read_lda_c(path, n_features=20, blocksize=100).X.chunks[0]) == 30


def test_vocabulary(tmp_path):
    counts = random_counts()
    path = write(tmp_path / "corpus.dat", as_text(counts))
    words = [f"word{i}" for i in range(22)]
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(words))
    for given in (words, vocabulary):
        corpus = read_lda_c(path, given, blocksize=100)
        assert corpus.vocabulary.tolist() == words
        check_blocks(corpus.X, np.pad(counts, ((0, 0), (0, 2))))
    assert read_lda_c(path, words, n_features=22).X.shape[1] == 22
    with pytest.raises(ValueError, match="22 words, but n_features is 21"):
        read_lda_c(path, words, n_features=21)


def test_memory_file_system():
    counts = random_counts()
    for suffix in ("", ".gz"):
        path = f"memory://lda_c/corpus.dat{suffix}"
        with fsspec.open(path, "wb", compression="infer") as file:
            file.write(as_text(counts))
        check_blocks(read_lda_c(path, blocksize=50).X, counts)


@pytest.mark.each
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("blocksize", [None, 40_000, 3_000])
def test_more_than_one_piece(tmp_path, monkeypatch, suffix, blocksize):
    """Also with lines that are longer than a block."""
    monkeypatch.setattr(_lines, "PIECE", 2**13)
    counts = random_counts(16, 4_000, seed=1)
    text = as_text(counts)
    assert len(text) > 8 * 2**13
    path = write(tmp_path / f"corpus.dat{suffix}", text)
    check_blocks(read_lda_c(path, n_features=4_000, blocksize=blocksize).X, counts)


def test_unsorted_words_and_blanks(tmp_path):
    path = tmp_path / "corpus.dat"
    for end in ("", "\n", "\r\n", " \n\n \n\n", "\n" * 100):
        path.write_text(f"3 2:1\t0:4  1:7\r\n0 \n 1 1:5{end}", newline="")
        for blocksize in (1, 9, None):
            for n_features in (3, None):
                X = read_lda_c(path, n_features=n_features, blocksize=blocksize).X
                check_blocks(X, np.array([[4, 7, 1], [0, 0, 0], [0, 5, 0]]))


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float32])
def test_dtype(tmp_path, dtype):
    counts = random_counts()
    path = write(tmp_path / "corpus.dat", as_text(counts))
    X = read_lda_c(path, blocksize=100, dtype=dtype).X
    assert X.dtype == X._meta.dtype == dtype
    check_blocks(X, counts)
    path.write_text("1 0:16777217\n")
    if dtype == np.int64:
        assert read_lda_c(path, dtype=dtype).X.compute()[0, 0] == 16777217
    else:
        with pytest.raises(ValueError, match="line 1: expected a count from 1 to"):
            read_lda_c(path, n_features=1, dtype=dtype).X.compute()


def test_documents_without_words(tmp_path):
    path = tmp_path / "corpus.dat"
    path.write_text("0\n0\n0\n")
    for blocksize in (1, None):
        X = read_lda_c(path, blocksize=blocksize).X
        assert X.shape == (3, 1)
        check_blocks(X, np.zeros((3, 1), int))


GOOD = ["2 0:1 3:2", "1 1:1", "0", "3 0:1 1:1 2:1", "1 2:9"]
BAD = [
    ("", "expected 'n word:count"),
    ("x", "expected 'n word:count"),
    ("2 0:1 1", "expected 'n word:count"),
    ("2 0:1 1:2:3", "expected 'n word:count"),
    ("1 0 1", "expected 'n word:count"),
    ("1 0: 1", "expected 'n word:count"),
    ("0:1", "expected 'n word:count"),
    ("0 1:", "expected 'n word:count"),
    ("1 1:0.5", "expected 'n word:count"),
    ("1 1:nan", "expected 'n word:count"),
    ("1 1:-2", "expected 'n word:count"),
    ("1 -1:2", "expected 'n word:count"),
    ("1 1:1234567890123456789", "expected 'n word:count"),
    ("1 1:0", "expected a count from 1"),
    ("1 1:123456789012345678", "expected a count from 1 to 2147483647"),
    ("2 0:1", "says that 2 words follow, got 1"),
    ("1 0:1 1:1", "says that 1 words follow, got 2"),
    ("3 2:1 1:1 2:4", "each word once, got word 2 again"),
    ("1 4:1", "expected a word from 0 to 3, got 4"),
]


@pytest.mark.each
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(("line", "problem"), BAD)
def test_bad_line(tmp_path, suffix, line, problem):
    text = "\n".join([*GOOD[:3], line, *GOOD[3:], ""]).encode()
    path = write(tmp_path / f"corpus.dat{suffix}", text)
    match = rf"^{re.escape(str(path))}, line 4: .*{problem}"
    for blocksize in (1, 12, None):
        X = read_lda_c(path, n_features=4, blocksize=blocksize).X
        with pytest.raises(ValueError, match=match):
            X.compute()
        if not problem.startswith("expected a word"):
            with pytest.raises(ValueError, match=match):
                read_lda_c(path, blocksize=blocksize)


@pytest.mark.parametrize("position", [0, 5])
def test_bad_line_at_the_ends(tmp_path, position):
    lines = [*GOOD[:position], "what?", *GOOD[position:]]
    path = write(tmp_path / "corpus.dat", "\n".join(lines).encode())
    for blocksize in (1, 12, None):
        X = read_lda_c(path, n_features=4, blocksize=blocksize).X
        with pytest.raises(ValueError, match=rf"line {position + 1}: .*'what\?'"):
            X.compute()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_bad_line_far_into_the_file(tmp_path, suffix):
    text = b"3 1:5 17:2 4:1\n" * 60_000 + b"2 1:5\n" + b"0\n" * 1000
    path = write(tmp_path / f"corpus.dat{suffix}", text)
    X = read_lda_c(path, n_features=20, blocksize=200_000).X
    assert X.blocks[0].compute()[0].sum() == 8
    with pytest.raises(ValueError, match="line 60001: says that 2 words follow, got 1"):
        X.compute()


def test_empty_file(tmp_path):
    for suffix, text in (("", b""), (".gz", b""), (".gz", b"\n\n")):
        path = write(tmp_path / f"corpus.dat{suffix}", text)
        with pytest.raises(ValueError, match="is empty"):
            read_lda_c(path, n_features=3)
    with pytest.raises(ValueError, match="is empty"):
        read_lda_c(write(tmp_path / "corpus.dat", b"\n \n"))


def test_missing_file_and_wrong_parameters(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.dat"):
        read_lda_c(tmp_path / "none.dat")
    path = write(tmp_path / "corpus.dat", b"0\n")
    with pytest.raises(ValueError, match="n_features must be at least 1, got 0"):
        read_lda_c(path, n_features=0)
    with pytest.raises(ValueError, match="blocksize must be at least 1"):
        read_lda_c(path, blocksize=-1)
    with pytest.raises(ValueError, match="dtype must be"):
        read_lda_c(path, dtype=np.float16)


def count_openings(monkeypatch):
    """A list that grows with each file that is opened."""
    opened = []
    original = TextFile.open

    def spy(self):
        opened.append(self.path)
        return original(self)

    monkeypatch.setattr(TextFile, "open", spy)
    return opened


def test_how_often_the_file_is_read(tmp_path, monkeypatch):
    text = as_text(random_counts())
    plain = write(tmp_path / "corpus.dat", text)
    compressed = write(tmp_path / "corpus.dat.gz", text)
    opened = count_openings(monkeypatch)
    lazy = read_lda_c(plain, n_features=20, blocksize=100).X
    assert not opened
    lazy.compute()
    assert len(opened) == lazy.numblocks[0] > 5
    opened.clear()
    X = read_lda_c(compressed, n_features=20, blocksize=100).X
    assert len(opened) == 1
    X.compute()
    assert len(opened) == 2


def test_names_follow_the_file(tmp_path):
    path = write(tmp_path / "corpus.dat", as_text(random_counts()))
    X = read_lda_c(path, n_features=20, blocksize=100).X
    assert read_lda_c(path, n_features=20, blocksize=100).X.name == X.name
    assert read_lda_c(path, n_features=21, blocksize=100).X.name != X.name
    assert read_lda_c(path, n_features=20, blocksize=99).X.name != X.name
    write(path, as_text(random_counts(seed=2, density=0.5)))
    assert read_lda_c(path, n_features=20, blocksize=100).X.name != X.name


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_on_a_cluster(tmp_path, cluster, suffix):
    counts = random_counts()
    path = write(tmp_path / f"corpus.dat{suffix}", as_text(counts))
    with dask.config.set(scheduler=None):
        X = cluster.persist(read_lda_c(path, blocksize=100).X)
        np.testing.assert_array_equal(X.compute().toarray(), counts)
