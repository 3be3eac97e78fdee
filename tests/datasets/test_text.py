"""Counts of words, against scikit-learn on all the texts at once."""

from __future__ import annotations

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfVectorizer,
)

from dask_ma.datasets import Corpus, load_clinc150, vectorize_text


@pytest.fixture(scope="module")
def texts():
    """500 queries of 25 intents, of which some hold no word."""
    texts = load_clinc150("validation")[0][:500]
    texts[0] = texts[250] = texts[499] = ""
    texts[100] = "a ! a"
    return texts


@pytest.fixture
def bag(texts):
    """The texts in five partitions."""
    return as_bag(texts, 5)


def as_bag(texts, npartitions):
    import dask.bag

    return dask.bag.from_sequence(texts, npartitions=npartitions)


@pytest.fixture
def calls(monkeypatch):
    """Texts that any CountVectorizer has analysed in this process."""
    analysed = []
    original = CountVectorizer.build_analyzer

    def build_analyzer(self):
        analyze = original(self)

        def spy(text):
            analysed.append(text)
            return analyze(text)

        return spy

    monkeypatch.setattr(CountVectorizer, "build_analyzer", build_analyzer)
    return analysed


def check_same(corpus, vectorizer, texts):
    """Counts, words and dtype are those of ``fit_transform``; return the counts."""
    vectorizer = clone(vectorizer)
    expected = sparse.csr_matrix(vectorizer.fit_transform(texts))
    for delayed, n_rows in zip(
        corpus.X.to_delayed().ravel(), corpus.X.chunks[0], strict=True
    ):
        block = delayed.compute(scheduler="synchronous")
        assert isinstance(block, sparse.csr_matrix)
        assert block.has_sorted_indices
        assert np.isnan(n_rows) or block.shape[0] == n_rows
    counts = corpus.X.compute(scheduler="synchronous")
    assert counts.dtype == corpus.X.dtype == corpus.X._meta.dtype == expected.dtype
    assert counts.shape == expected.shape
    assert corpus.X.shape[1] == expected.shape[1]
    assert (counts != expected).nnz == 0
    if not isinstance(vectorizer, HashingVectorizer):
        assert corpus.vocabulary.dtype == object
        np.testing.assert_array_equal(
            corpus.vocabulary, vectorizer.get_feature_names_out()
        )
    return counts


PARAMETERS = [
    {},
    {"min_df": 5},
    {"min_df": 0.01},
    {"max_df": 30},
    {"max_df": 0.1},
    {"min_df": 0.004, "max_df": 0.2, "max_features": 50},
    {"max_features": 1},
    {"max_features": 20},
    {"max_features": 217},
    {"max_features": 217, "dtype": np.float32},
    {"max_features": 217, "binary": True},
    {"max_features": 10**6},
    {"stop_words": "english"},
    {"stop_words": ["what", "is"], "binary": True},
    {"ngram_range": (1, 3), "min_df": 3},
    {"ngram_range": (2, 2), "max_features": 100},
    {"analyzer": "char_wb", "ngram_range": (2, 3), "max_features": 300},
    {"lowercase": False, "token_pattern": r"\w+", "dtype": np.uint8},
    {"strip_accents": "unicode", "preprocessor": None},
    {"analyzer": str.split},
]


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_same_as_count_vectorizer(texts, bag, parameters):
    vectorizer = CountVectorizer(**parameters)
    corpus = vectorize_text(bag, vectorizer)
    assert isinstance(corpus, Corpus)
    assert not hasattr(vectorizer, "vocabulary_")
    assert sum(corpus.X.chunks[0]) == 500
    assert corpus.X.numblocks == (5, 1)
    check_same(corpus, vectorizer, texts)


@pytest.mark.parametrize(
    "parameters",
    [
        {"n_features": 64, "alternate_sign": False, "norm": None},
        {"n_features": 1000},
        {"n_features": 64, "alternate_sign": False, "norm": None, "dtype": np.float32},
        {"n_features": 64, "ngram_range": (1, 2), "binary": True, "norm": "l1"},
    ],
    ids=str,
)
def test_same_as_hashing_vectorizer(texts, bag, parameters):
    vectorizer = HashingVectorizer(**parameters)
    corpus = vectorize_text(bag, vectorizer)
    assert corpus.vocabulary is None
    counts = check_same(corpus, vectorizer, texts)
    is_count = not parameters.get("alternate_sign", True)
    assert ((counts.data >= 1).all() and not (counts.data % 1).any()) == is_count


def test_default_is_count_vectorizer(texts, bag):
    check_same(vectorize_text(bag), CountVectorizer(), texts)


def test_many_partitions(texts):
    """More than one task adds up, and some partitions hold no word or no text."""
    vectorizer = CountVectorizer(max_features=40, min_df=2)
    bag = as_bag(texts, 100)
    corpus = vectorize_text(bag, vectorizer)
    assert corpus.X.numblocks[0] > 64
    check_same(corpus, vectorizer, texts)
    without = bag.filter(lambda text: "bank" in text)
    left = [text for text in texts if "bank" in text]
    corpus = vectorize_text(without, vectorizer)
    assert 0 in corpus.X.chunks[0]
    check_same(corpus, vectorizer, left)
    corpus = vectorize_text(without, HashingVectorizer(n_features=32))
    check_same(corpus, HashingVectorizer(n_features=32), left)


def test_kinds_of_texts(texts):
    pandas = pytest.importorskip("pandas", reason="dask.dataframe needs pandas")
    frame = pytest.importorskip("dask.dataframe", reason="not installed")
    import dask.array

    vectorizer = CountVectorizer(min_df=2)
    series = pandas.Series(texts)
    for kind, n_blocks in (
        (texts, 4),
        (iter(texts), 4),
        (np.array(texts), 4),
        (series, 4),
        ([text.encode() for text in texts], 4),
        (frame.from_pandas(series, npartitions=3), 3),
        (frame.from_pandas(series.astype("string"), npartitions=3), 3),
        (frame.from_pandas(series.to_frame("text"), npartitions=3)["text"], 3),
        (dask.array.from_array(np.array(texts, dtype=object), chunks=200), 3),
    ):
        corpus = vectorize_text(kind, vectorizer, chunk_rows=150)
        assert corpus.X.numblocks[0] == n_blocks
        check_same(corpus, vectorizer, texts)


def test_names_of_files(tmp_path, texts):
    for index, text in enumerate(texts[:20]):
        (tmp_path / f"{index}.txt").write_text(text)
    paths = [str(tmp_path / f"{index}.txt") for index in range(20)]
    vectorizer = CountVectorizer(input="filename")
    check_same(vectorize_text(paths, vectorizer, chunk_rows=6), vectorizer, paths)
    with pytest.raises(FileNotFoundError, match="none.txt"):
        vectorize_text([*paths, str(tmp_path / "none.txt")], vectorizer)


def test_given_vocabulary(texts, bag, calls):
    """Nothing is computed in the call; the words are as given, in their order."""
    words = ["what", "bank", "is", "zebra"]
    columns = {"is": 2, "zebra": 3, "bank": 1, "what": 0}
    for vocabulary in (words, columns, np.array(words, dtype=object)):
        vectorizer = CountVectorizer(vocabulary=vocabulary)
        corpus = vectorize_text(bag, vectorizer)
        assert not calls
        assert not hasattr(vectorizer, "vocabulary_")
        assert np.isnan(corpus.X.chunks[0]).all()
        assert corpus.vocabulary.tolist() == words
        assert check_same(corpus, vectorizer, texts).sum() > 100
        calls.clear()


def test_fitted_vectorizer_keeps_its_words(texts, bag, calls):
    vectorizer = CountVectorizer(min_df=3).fit(texts[:200])
    calls.clear()
    corpus = vectorize_text(bag, vectorizer)
    assert not calls
    np.testing.assert_array_equal(corpus.vocabulary, vectorizer.get_feature_names_out())
    assert (corpus.X.compute() != vectorizer.transform(texts)).nnz == 0


def test_same_columns_for_other_texts(texts):
    vectorizer = CountVectorizer(min_df=2, stop_words="english")
    train = vectorize_text(texts[:300], vectorizer)
    fixed = clone(vectorizer).set_params(vocabulary=train.vocabulary)
    test = vectorize_text(texts[300:], fixed, chunk_rows=60)
    expected = vectorizer.fit(texts[:300]).transform(texts[300:])
    assert (test.X.compute() != expected).nnz == 0


def test_one_pass_in_the_call_and_one_later(texts, bag, calls):
    corpus = vectorize_text(bag, CountVectorizer(max_features=10))
    assert sorted(calls) == sorted(texts)
    calls.clear()
    corpus.X[:100].compute()
    assert 0 < len(calls) < len(texts)
    calls.clear()
    corpus.X.compute()
    assert sorted(calls) == sorted(texts)


def test_hashing_computes_nothing_in_the_call(texts):
    seen = []
    bag = as_bag(texts, 3).map(lambda text: seen.append(text) or text)
    X = vectorize_text(bag, HashingVectorizer(n_features=8)).X
    assert not seen
    X.compute(scheduler="threads")
    assert len(seen) == len(texts)


def test_no_word_is_left(bag):
    for vectorizer, problem in (
        (CountVectorizer(min_df=400), "no terms remain"),
        (CountVectorizer(min_df=0.9, max_df=2), "max_df corresponds to < documents"),
        (CountVectorizer(token_pattern="zebra"), "empty vocabulary"),
    ):
        with pytest.raises(ValueError, match=problem):
            vectorize_text(bag, vectorizer)
    with pytest.raises(ValueError, match="empty vocabulary"):
        vectorize_text([])


@pytest.mark.parametrize(
    "vectorizer",
    [
        CountVectorizer(min_df=-1),
        CountVectorizer(max_features=0),
        CountVectorizer(ngram_range=(2, 1)),
        CountVectorizer(vocabulary=[]),
        CountVectorizer(vocabulary=["a", "a"]),
        CountVectorizer(vocabulary=["word"], max_df="all"),
        HashingVectorizer(n_features=0),
        HashingVectorizer(norm="l3"),
    ],
    ids=str,
)
def test_wrong_parameters_of_the_vectorizer(bag, calls, vectorizer):
    """As scikit-learn finds them, before any text is read."""
    with pytest.raises(ValueError):
        vectorize_text(bag, vectorizer)
    assert not calls


def test_wrong_arguments(texts, bag):
    with pytest.raises(TypeError, match="TfidfVectorizer, expected a CountVectorizer"):
        vectorize_text(bag, TfidfVectorizer())
    with pytest.raises(TypeError, match="is a type, expected a CountVectorizer"):
        vectorize_text(bag, CountVectorizer)
    with pytest.raises(ValueError, match="open files cannot be sent"):
        vectorize_text(bag, CountVectorizer(input="file"))
    with pytest.raises(ValueError, match="chunk_rows must be at least 1, got 0"):
        vectorize_text(texts, chunk_rows=0)
    for wrong in ("a text", b"a text", 3, np.array([["a"]]), dask.delayed(texts)):
        with pytest.raises(TypeError, match="^texts is a "):
            vectorize_text(wrong)


@pytest.mark.parametrize("missing", [None, np.nan, 3])
def test_document_that_is_no_text(missing):
    texts = ["a text", "another one", "third", missing, "last"]
    problem = f"document 1 of block 1 is a {type(missing).__name__}"
    with pytest.raises(TypeError, match=problem):
        vectorize_text(texts, chunk_rows=2)
    X = vectorize_text(texts, CountVectorizer(vocabulary=["text"]), chunk_rows=2).X
    with pytest.raises(TypeError, match=problem):
        X.compute()
    assert X.blocks[0].compute().sum() == 1


def test_missing_text_in_a_series():
    pandas = pytest.importorskip("pandas", reason="dask.dataframe needs pandas")
    frame = pytest.importorskip("dask.dataframe", reason="not installed")
    series = frame.from_pandas(pandas.Series(["a text", None, "b"]), npartitions=1)
    with pytest.raises(TypeError, match="document 1 of block 0 .* remove or fill"):
        vectorize_text(series)


def test_vectorizer_that_makes_other_arrays(texts, bag):
    """As scikit-learn's do where it is configured so."""

    class Vectorizer(CountVectorizer):
        def transform(self, raw_documents):
            return sparse.csr_array(super().transform(raw_documents))

    check_same(vectorize_text(bag, Vectorizer()), CountVectorizer(), texts)


def test_documents_of_any_kind_for_a_callable():
    """What a user's own analyzer can read is not looked at."""
    documents = [["one", "two"], ["two"], []]
    vectorizer = CountVectorizer(analyzer=list)
    check_same(vectorize_text(documents, vectorizer), vectorizer, documents)


def test_on_a_cluster(texts, cluster):
    vectorizer = CountVectorizer(max_features=30)
    with dask.config.set(scheduler=None):
        X, vocabulary = vectorize_text(as_bag(texts, 5), vectorizer)
        counts = cluster.compute(X).result()
    assert (counts != vectorizer.fit_transform(texts)).nnz == 0
    assert vocabulary.tolist() == vectorizer.get_feature_names_out().tolist()


def test_large_vocabulary_is_not_in_the_graph(cluster):
    """Nor is it sent with every block; otherwise Distributed would warn."""
    words = [f"word{i:0100}" for i in range(90_000)]
    vectorizer = CountVectorizer(vocabulary=words)
    with dask.config.set(scheduler=None):
        X = vectorize_text(as_bag(words[:8], 4), vectorizer).X
        assert X.compute().indices.tolist() == list(range(8))


def test_documents_that_are_words_already():
    """The message says which vectorizer takes them."""
    documents = [["red", "rose"], ["red", "sky"]]
    with pytest.raises(TypeError, match="document 0 .* is a list .*analyzer=lambda"):
        vectorize_text(documents)
    vectorizer = CountVectorizer(analyzer=lambda document: document)
    X, words = vectorize_text(documents, vectorizer)
    assert words.tolist() == ["red", "rose", "sky"]
    assert X.compute().toarray().tolist() == [[1, 1, 0], [1, 0, 1]]
