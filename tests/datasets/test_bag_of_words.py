"""Corpora in the UCI format, against matrices that the tests write themselves."""

from __future__ import annotations

import bz2
import gc
import gzip
import lzma
import pickle
import re

import dask
import fsspec
import numpy as np
import pytest
from scipy import sparse

from dask_ma.datasets import Corpus, _lines, read_bag_of_words
from dask_ma.datasets._lines import LineReader, Position, TextFile

BLOCKSIZES = [1, 16, 300, "1 kB", None]
COMPRESS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.fixture(autouse=True)
def _synchronous():
    """One thread, so that blocks are read in the order in which they are asked for."""
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(params=[None, 8, 50])
def piece(request, monkeypatch):
    """Bytes that are read at a time: as they are, or few, for small files."""
    if request.param is not None:
        monkeypatch.setattr(_lines, "PIECE", request.param)


def random_counts(n_documents=30, n_words=20, density=0.3, seed=0):
    """Counts with documents without words at the start, in the middle, at the end."""
    rng = np.random.default_rng(seed)
    counts = rng.geometric(0.3, (n_documents, n_words))
    counts *= rng.random(counts.shape) < density
    counts[[0, 1, 7, n_documents - 1]] = 0
    counts[:, 3] = 0
    return counts


def as_text(counts):
    """The format, written in the simplest way."""
    entries = [
        f"{document + 1} {word + 1} {counts[document, word]}\n"
        for document, word in zip(*np.nonzero(counts), strict=True)
    ]
    return "".join(
        [*(f"{n}\n" for n in (*counts.shape, len(entries))), *entries]
    ).encode()


def write(path, text):
    """Write a file in the compression that its name tells."""
    suffix = path.suffix if path.suffix in COMPRESS else ""
    path.write_bytes(COMPRESS[suffix](text))
    return path


def check_blocks(X, counts):
    """Every block has the rows that its chunk size says, in canonical CSR."""
    assert sum(X.chunks[0]) == X.shape[0] == len(counts)
    first = 0
    for delayed, n_rows in zip(X.to_delayed().ravel(), X.chunks[0], strict=True):
        assert n_rows > 0
        block = delayed.compute()
        assert isinstance(block, sparse.csr_matrix)
        assert block.has_canonical_format
        assert block.dtype == X.dtype
        assert block.indices.dtype == np.int32
        np.testing.assert_array_equal(block.toarray(), counts[first : first + n_rows])
        first += n_rows


@pytest.mark.pairs
@pytest.mark.usefixtures("piece")
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("blocksize", BLOCKSIZES)
def test_same_counts(tmp_path, suffix, blocksize):
    counts = random_counts()
    path = write(tmp_path / f"docword.txt{suffix}", as_text(counts))
    corpus = read_bag_of_words(path, blocksize=blocksize)
    assert isinstance(corpus, Corpus)
    assert corpus.vocabulary is None
    assert corpus.X.dtype == np.int32
    assert isinstance(corpus.X._meta, sparse.csr_matrix)
    assert (corpus.X.numblocks[0] > 1) == (blocksize is not None)
    check_blocks(corpus.X, counts)
    np.testing.assert_array_equal(corpus.X.compute().toarray(), counts)


@pytest.mark.parametrize("suffix", [".bz2", ".xz"])
def test_other_compressions(tmp_path, suffix):
    counts = random_counts()
    path = write(tmp_path / f"docword.txt{suffix}", as_text(counts))
    X = read_bag_of_words(path, blocksize=100).X
    assert X.numblocks[0] > 2
    check_blocks(X, counts)


def test_compression_that_the_name_does_not_tell(tmp_path):
    counts = random_counts()
    path = tmp_path / "docword"
    path.write_bytes(gzip.compress(as_text(counts)))
    X = read_bag_of_words(path, compression="gzip", blocksize=100).X
    check_blocks(X, counts)
    plain = tmp_path / "docword.gz"
    plain.write_bytes(as_text(counts))
    check_blocks(read_bag_of_words(plain, compression=None).X, counts)
    with pytest.raises(ValueError, match="not supported"):
        read_bag_of_words(path, compression="rot13")


def test_memory_file_system():
    counts = random_counts()
    for suffix, blocksize in (("", 50), (".gz", 50), ("", None)):
        path = f"memory://bag_of_words/docword.txt{suffix}"
        with fsspec.open(path, "wb", compression="infer") as file:
            file.write(as_text(counts))
        check_blocks(read_bag_of_words(path, blocksize=blocksize).X, counts)


def test_storage_options(tmp_path):
    """They reach the file system, here one that keeps a copy of the file."""
    counts = random_counts()
    write(tmp_path / "docword.txt", as_text(counts))
    cache = tmp_path / "cache"
    X = read_bag_of_words(
        f"simplecache::file://{tmp_path}/docword.txt",
        blocksize=100,
        storage_options={"simplecache": {"cache_storage": str(cache)}},
    ).X
    check_blocks(X, counts)
    assert list(cache.iterdir())


@pytest.mark.usefixtures("piece")
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_few_long_documents(tmp_path, suffix):
    """A document may be longer than many blocks."""
    for rows in ([1], [0], [2], [0, 2], []):
        counts = np.zeros((3, 60), int)
        counts[rows] = np.arange(1, 61)
        path = write(tmp_path / f"docword.txt{suffix}", as_text(counts))
        for blocksize in (9, 60, 2000):
            check_blocks(read_bag_of_words(path, blocksize=blocksize).X, counts)


@pytest.fixture(scope="module")
def large_text():
    """A corpus, and the text of its file."""
    counts = random_counts(200, 150, density=0.35, seed=1)
    return counts, as_text(counts)


@pytest.fixture
def large(large_text, monkeypatch):
    """The same, which takes some pieces to parse."""
    monkeypatch.setattr(_lines, "PIECE", 2**13)
    assert len(large_text[1]) > 8 * 2**13
    return large_text


@pytest.mark.each
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("blocksize", [None, 70_000, 12_000])
def test_more_than_one_piece(tmp_path, large, suffix, blocksize):
    counts, text = large
    path = write(tmp_path / f"docword.txt{suffix}", text)
    check_blocks(read_bag_of_words(path, blocksize=blocksize).X, counts)


def test_unsorted_words_and_blanks(tmp_path):
    """Words in any order; tabs, carriage returns, blank lines at the end."""
    path = tmp_path / "docword.txt"
    ends = ["", "\n", "\r\n", "\n\n \n\n", "\n" * 100]
    for end in ends:
        text = f"2\r\n 3 \n4\r\n1 3 1\r\n1\t1  4\n 1 2 7\n2 2 5 {end}"
        path.write_text(text, newline="")
        for blocksize in (1, 9, None):
            X = read_bag_of_words(path, blocksize=blocksize).X
            np.testing.assert_array_equal(X.compute().toarray(), [[4, 7, 1], [0, 5, 0]])
            check_blocks(X, X.compute().toarray())


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.float32, float])
def test_dtype(tmp_path, dtype):
    counts = random_counts()
    path = write(tmp_path / "docword.txt", as_text(counts))
    X = read_bag_of_words(path, blocksize=100, dtype=dtype).X
    assert X.dtype == X._meta.dtype == dtype
    check_blocks(X, counts)


@pytest.mark.parametrize(
    ("dtype", "largest"),
    [(np.int8, 127), (np.int32, 2**31 - 1), (np.float32, 2**24), (np.uint64, None)],
)
def test_largest_count(tmp_path, dtype, largest):
    path = tmp_path / "docword.txt"
    path.write_text(f"1\n1\n1\n1 1 {largest or 10**18 - 1}\n")
    X = read_bag_of_words(path, dtype=dtype).X.compute()
    assert int(X[0, 0]) == (largest or 10**18 - 1)
    if largest:
        path.write_text(f"1\n1\n1\n1 1 {largest + 1}\n")
        with pytest.raises(ValueError, match=f"line 4: expected a count.*{largest}"):
            read_bag_of_words(path, dtype=dtype).X.compute()


def test_vocabulary(tmp_path):
    counts = random_counts(n_words=20)
    path = write(tmp_path / "docword.txt", as_text(counts))
    words = [f"wörd {i}" for i in range(20)]
    text = "\n".join(words).encode()
    for vocabulary in (
        words,
        np.array(words),
        write(tmp_path / "vocab.txt", text),
        str(write(tmp_path / "vocab.txt.gz", text + b"\n\n")),
        write(tmp_path / "vocab_crlf.txt", text.replace(b"\n", b"\r\n")),
    ):
        found = read_bag_of_words(path, vocabulary).vocabulary
        assert isinstance(found, np.ndarray)
        assert found.dtype == object
        assert found.tolist() == words


def test_wrong_vocabulary(tmp_path):
    path = write(tmp_path / "docword.txt", as_text(random_counts(n_words=20)))
    with pytest.raises(ValueError, match=r"19 words, but .*docword.txt, line 2, .*20"):
        read_bag_of_words(path, ["word"] * 19)
    with pytest.raises(TypeError, match=r"vocabulary\[1\] is a int, expected a str"):
        read_bag_of_words(path, ["word", 3])
    with pytest.raises(FileNotFoundError, match="no_vocab.txt"):
        read_bag_of_words(path, tmp_path / "no_vocab.txt")
    for text, problem in (
        (b"one\n\ntwo", "line 2: expected a word, got a blank line"),
        (b"one\ntwo\n\xff", "line 3: expected UTF-8"),
    ):
        with pytest.raises(ValueError, match=f"vocab.txt, {problem}"):
            read_bag_of_words(path, write(tmp_path / "vocab.txt", text))


GOOD = ["1 1 1", "1 2 1", "2 1 5", "3 1 1", "3 2 2", "3 4 1", "5 4 6", "6 2 1"]
BAD = [
    ("1 2", "expected three integers .*, got '1 2'"),
    ("1 2 3 4", "expected three integers"),
    ("", "expected three integers .*, got ''"),
    ("3 2 x", "expected three integers"),
    ("3 2 2.0", "expected three integers"),
    ("3 2 nan", "expected three integers"),
    ("3 2 inf", "expected three integers"),
    ("3 2 -2", "expected three integers"),
    ("3 -2 2", "expected three integers"),
    ("3,2,2", "expected three integers"),
    ("3 2 2\f", "expected three integers"),
    ("3 2 1234567890123456789", "expected three integers"),
    ("3 2 18446744073709551618", "expected three integers"),
    ("3 2 123456789012345678", "count from 1 to 2147483647, got 123456789012345678"),
    ("3 2 0", "expected a count from 1"),
    ("3 0 2", "expected a word from 1 to 4, got 0"),
    ("3 5 2", "expected a word from 1 to 4, got 5"),
    ("0 2 2", "expected a document from 1 to 6, got 0"),
    ("7 2 2", "expected a document from 1 to 6, got 7"),
    ("2 2 2", "sorted, got 2 after 3"),
    ("1 2 2", "sorted, got 1 after 3"),
    ("6 2 2", "sorted"),  # found with the line after it
    ("3 1 2", "each word once, got word 1 again"),
]


@pytest.mark.each
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(("line", "problem"), BAD)
def test_bad_line(tmp_path, suffix, line, problem):
    """Line 8 of the file is the fifth entry."""
    text = "\n".join(["6", "4", "8", *GOOD[:4], line, *GOOD[5:], ""]).encode()
    path = write(tmp_path / f"docword.txt{suffix}", text)
    number = 9 if line == "6 2 2" else 8
    match = rf"^{re.escape(str(path))}, line {number}: .*{problem}"
    for blocksize in (1, 12, None):
        X = read_bag_of_words(path, blocksize=blocksize).X
        with pytest.raises(ValueError, match=match):
            for block in X.to_delayed().ravel():
                block.compute()


@pytest.mark.usefixtures("piece")
def test_bad_line_anywhere(tmp_path):
    """Whatever block it falls into, also the first line and the last."""
    path = tmp_path / "docword.txt"
    for position in range(8):
        lines = [*GOOD[:position], "3 x 1", *GOOD[position + 1 :]]
        path.write_text("\n".join(["6", "4", "8", *lines]))
        for blocksize in (1, 12, None):
            X = read_bag_of_words(path, blocksize=blocksize).X
            with pytest.raises(ValueError, match=f"line {position + 4}: .*'3 x 1'"):
                X.compute()


@pytest.mark.parametrize("lines", [["3 1 1 3", "2 2"], ["3 1", "1 3 2 2"]])
def test_number_on_the_wrong_line(tmp_path, lines):
    path = tmp_path / "docword.txt"
    path.write_text("\n".join(["6", "4", "8", *GOOD[:3], *lines, *GOOD[5:], ""]))
    with pytest.raises(ValueError, match="line 7: expected three integers"):
        read_bag_of_words(path).X.compute()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_bad_line_far_into_the_file(tmp_path, large, suffix):
    _, text = large
    lines = text.split(b"\n")
    lines[-1000] = b"what?"
    path = write(tmp_path / f"docword.txt{suffix}", b"\n".join(lines))
    X = read_bag_of_words(path, blocksize=12_000).X
    number = len(lines) - 999
    with pytest.raises(ValueError, match=rf"line {number}: .*'what\?'"):
        X.compute()


@pytest.mark.usefixtures("piece")
@pytest.mark.parametrize("documents", ["213", "132", "321", "121", "1213", "3123"])
def test_unsorted_documents(tmp_path, documents):
    """Also where each block is sorted in itself."""
    path = tmp_path / "docword.txt"
    lines = [f"{document} {i + 1} 1" for i, document in enumerate(documents)]
    path.write_text("\n".join(["3", "4", str(len(lines)), *lines, ""]))
    for blocksize in (3, 6, 8, 12, 18, None):
        X = read_bag_of_words(path, blocksize=blocksize).X
        with pytest.raises(ValueError, match=r"line [567]: expected .* sorted"):
            X.compute()


@pytest.mark.parametrize(
    ("header", "number", "what"),
    [
        ("", 1, "documents"),
        ("x\n4\n8\n", 1, "documents"),
        ("0\n4\n8\n", 1, "documents"),
        ("-6\n4\n8\n", 1, "documents"),
        ("6 4 8\n", 1, "documents"),
        ("6\n", 2, "words"),
        ("6\n0\n8\n", 2, "words"),
        ("6\n4.5\n8\n", 2, "words"),
        ("6\n4\n", 3, "entries"),
        ("6\n4\n1 1 1\n", 3, "entries"),
        ("6\n4\n-1\n", 3, "entries"),
    ],
)
def test_bad_header(tmp_path, header, number, what):
    path = tmp_path / "docword.txt"
    path.write_text(header)
    with pytest.raises(ValueError, match=f"docword.txt, line {number}: .*of {what}"):
        read_bag_of_words(path)


@pytest.mark.parametrize("announced", [7, 9])
@pytest.mark.parametrize(("suffix", "blocksize"), [("", None), (".gz", 20)])
def test_wrong_number_of_entries(tmp_path, suffix, blocksize, announced):
    text = "\n".join(["6", "4", str(announced), *GOOD, ""]).encode()
    path = write(tmp_path / f"docword.txt{suffix}", text)
    X = read_bag_of_words(path, blocksize=blocksize).X
    match = f"line 3: says that there are {announced} entries, but 8 follow"
    with pytest.raises(ValueError, match=match):
        X.compute()


def test_damaged_compressed_file(tmp_path):
    path = tmp_path / "docword.txt.gz"
    path.write_bytes(gzip.compress(as_text(random_counts()))[:-20])
    with pytest.raises(ValueError, match="docword.txt.gz: cannot be decompressed"):
        read_bag_of_words(path, blocksize=100).X.compute()
    path.write_bytes(as_text(random_counts()))
    with pytest.raises(ValueError, match="cannot be decompressed as gzip"):
        read_bag_of_words(path)


def test_missing_file(tmp_path):
    for path in (tmp_path / "none.txt", "memory://none.txt", "memory://none.txt.gz"):
        with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
            read_bag_of_words(path)


def test_wrong_parameters(tmp_path):
    path = write(tmp_path / "docword.txt", as_text(random_counts()))
    with pytest.raises(ValueError, match="blocksize must be at least 1"):
        read_bag_of_words(path, blocksize=0)
    with pytest.raises(ValueError, match="dtype must be"):
        read_bag_of_words(path, dtype=str)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_blocks_are_lazy(tmp_path, large, suffix):
    """An error in a block shows when that block is computed, and not before."""
    counts, text = large
    path = write(tmp_path / f"docword.txt{suffix}", text[:-2] + b"x\n")
    X = read_bag_of_words(path, blocksize=20_000).X
    np.testing.assert_array_equal(X[:100].compute().toarray(), counts[:100])
    with pytest.raises(ValueError, match="expected three integers"):
        X[-1:].compute()


def count_openings(monkeypatch):
    """A list that grows with each file that is opened."""
    opened = []
    original = TextFile.open

    def spy(self):
        opened.append(self.path)
        return original(self)

    monkeypatch.setattr(TextFile, "open", spy)
    return opened


def test_compressed_file_is_read_in_one_pass(tmp_path, monkeypatch):
    counts = random_counts()
    path = write(tmp_path / "docword.txt.gz", as_text(counts))
    X = read_bag_of_words(path, blocksize=100).X
    opened = count_openings(monkeypatch)
    assert X.numblocks[0] > 5
    for times in (1, 2):
        np.testing.assert_array_equal(X.compute().toarray(), counts)
        assert len(opened) == times


def test_caller_reads_only_the_header(tmp_path, monkeypatch):
    path = write(tmp_path / "docword.txt", as_text(random_counts()))
    opened = count_openings(monkeypatch)
    X = read_bag_of_words(path, blocksize=100).X
    assert len(opened) == 1
    X.compute()
    assert len(opened) == 1 + X.numblocks[0]


def test_position_without_its_reader(tmp_path):
    """In another process, or for the second time, the file is opened anew."""
    for suffix in ("", ".gz"):
        path = write(tmp_path / f"lines.txt{suffix}", b"one\ntwo\nthree\n")
        file = TextFile(str(path), "gzip" if suffix else None, {})
        with LineReader(file) as reader:
            assert [*reader.pieces()] == [(0, b"one\ntwo\nthree\n")]
            reader.put_back(b"two\nthree\n")
            position = Position(file, reader.offset, 1, reader)
            copy = pickle.loads(pickle.dumps(position))
            assert (copy.offset, copy.n_read) == (4, 1)
            with position.reading() as again:
                assert again is reader
            for place in (position, copy):
                with place.reading() as again, again:
                    assert again is not reader
                    assert [*again.pieces()] == [(4, b"two\nthree\n")]


def test_error_closes_the_file(tmp_path):
    file = TextFile(str(write(tmp_path / "lines.txt", b"one\n")), None, {})
    position = Position(file)
    with pytest.raises(ZeroDivisionError), position.reading() as reader:
        1 / 0
    assert reader._handle.closed


def test_dropped_position_closes_its_file(tmp_path):
    file = TextFile(str(write(tmp_path / "lines.txt", b"one\n")), None, {})
    position = Position(file, reader=LineReader(file))
    handle = position._readers[0]._handle
    assert not handle.closed
    del position
    gc.collect()
    assert handle.closed


def test_names_follow_the_file(tmp_path):
    path = write(tmp_path / "docword.txt", as_text(random_counts()))
    X = read_bag_of_words(path, blocksize=100).X
    assert read_bag_of_words(path, blocksize=100).X.name == X.name
    assert read_bag_of_words(path, blocksize=101).X.name != X.name
    assert read_bag_of_words(path, blocksize=100, dtype=float).X.name != X.name
    write(path, as_text(random_counts(seed=2, density=0.5)))
    assert read_bag_of_words(path, blocksize=100).X.name != X.name


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_on_worker_processes(tmp_path, processes, suffix):
    counts = random_counts()
    path = write(tmp_path / f"docword.txt{suffix}", as_text(counts))
    X = read_bag_of_words(path, blocksize=100).X
    with dask.config.set(scheduler=None):
        persisted = processes.persist(X)
        np.testing.assert_array_equal(persisted.compute().toarray(), counts)
