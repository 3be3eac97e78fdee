"""Wrong counts, priors and topics raise an error that says what and where."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse as sp
from sklearn.base import clone

from dask_ma import MALDA

# Most corpora here are small, and nothing depends on their size.
pytestmark = pytest.mark.filterwarnings("ignore:partial_fit has taken")

N, V, K = 40, 6, 3
PARAMS = {"n_components": K, "max_iter": 2, "random_state": 0, "n_ranks": 2}


def good():
    """40 documents of some of 6 words."""
    return np.random.default_rng(0).poisson(1.5, (N, V)).astype(float)


def blocks(X, convert=np.asarray):
    return da.from_array(X, chunks=(10, -1)).map_blocks(convert)


def with_value(value, row=25):
    X = good()
    X[row, 3] = value
    return X


CASES = {
    "negative": (
        lambda: with_value(-2),
        "Negative values in data passed to .*MALDA",
    ),
    "negative, sparse": (
        lambda: sp.csr_matrix(with_value(-2)),
        "Negative values in data passed to .*MALDA",
    ),
    "negative in a frame": (
        lambda: pd.DataFrame(with_value(-2)),
        "Negative values in data passed to .*MALDA",
    ),
    "negative on Dask": (
        lambda: blocks(with_value(-2)),
        "row 5 of block 2 has -2 in column 3",
    ),
    "negative on sparse Dask": (
        lambda: blocks(with_value(-0.5), sp.csr_array),
        "row 5 of block 2 has -0.5 in column 3",
    ),
    "negative in the first row": (
        lambda: blocks(with_value(-1, row=0), sp.csr_matrix),
        "row 0 of block 0 has -1 in column 3",
    ),
    "negative in the last row": (
        lambda: blocks(with_value(-1, row=39)),
        "row 9 of block 3 has -1 in column 3",
    ),
    "negative in a lazy frame": (
        lambda: dd.from_pandas(pd.DataFrame(with_value(-1)), npartitions=4),
        "row 5 of block 2 has -1 in column 3",
    ),
    "nan": (lambda: with_value(np.nan), "Input X contains NaN"),
    "nan on Dask": (
        lambda: blocks(with_value(np.nan)),
        "Input X contains NaN in block 2, row 25 of the whole input",
    ),
    "infinity": (lambda: with_value(np.inf), "Input X contains infinity"),
    "infinity on Dask": (
        lambda: blocks(with_value(np.inf), sp.csr_array),
        "Input X contains infinity in block 2, row 25 of the whole input",
    ),
    "no documents": (lambda: good()[:0], "Found array with 0 sample"),
    "no documents on Dask": (lambda: blocks(good())[:0], "Found array with 0 sample"),
    "no rows that are known": (
        lambda: blocks(good())[da.from_array(np.zeros(N, bool), chunks=10)],
        "X has no (documents|rows)|0 sample|no rows",
    ),
    "no words": (lambda: 0 * good(), "X has no words: all counts are 0"),
    "no words on Dask": (
        lambda: blocks(0 * good(), sp.csr_array),
        "X has no words: all counts are 0",
    ),
    "texts": (lambda: np.array([["a"] * V] * N, dtype=object), "could not convert"),
    "one dimension": (lambda: good()[0], "Expected 2D array, got 1D array"),
    "one dimension on Dask": (
        lambda: da.from_array(good()[0], chunks=2),
        "Expected 2D array, got 1D array",
    ),
}
every_case = pytest.mark.parametrize("case", sorted(CASES))


@pytest.mark.each
@every_case
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_wrong_counts(case, method):
    make, message = CASES[case]
    model = MALDA(**PARAMS)
    with pytest.raises(ValueError, match=message):
        getattr(model, method)(make())
    assert not [name for name in vars(model) if name.endswith("_")]


@pytest.fixture(scope="module")
def fitted():
    """A model of good counts, and these."""
    frame = pd.DataFrame(good(), columns=list("abcdef"))
    return MALDA(**PARAMS, doc_topic_prior="auto").fit(frame), frame


# Others do not come to the cluster.
@pytest.mark.parametrize("case", sorted(c for c in CASES if "Dask" in c or "lazy" in c))
@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_a_failed_fit_on_a_cluster_keeps_the_earlier_one(case, fitted, cluster):
    make, message = CASES[case]
    model, frame = fitted
    before = dict(vars(model))
    for method in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match=f"{message}|feature names"):
            method(make())
        assert vars(model).keys() == before.keys()
        assert all(vars(model)[name] is value for name, value in before.items())
    model.transform(frame)


PARAMETERS = [
    ("doc_topic_prior", [1.0, 2.0], "have 3 elements, one per topic; .*shape \\(2,\\)"),
    ("doc_topic_prior", [[1.0] * K], "have 3 elements, one per topic"),
    ("doc_topic_prior", [1.0, 0.0, 1.0], "above 0, but element 1 is 0.0"),
    ("doc_topic_prior", [1.0, 1.0, -1.0], "above 0, but element 2 is -1.0"),
    ("doc_topic_prior", [np.nan, 1.0, 1.0], "finite and above 0, but element 0 is nan"),
    ("doc_topic_prior", [1.0, np.inf, 1.0], "finite and above 0, but element 1 is inf"),
    ("doc_topic_prior", ["a", "b", "c"], ""),
    ("topic_word_prior", [1.0] * K, "have 6 elements, one per feature"),
    (
        "topic_word_prior",
        np.ones((V, K)),
        r"have 6 elements, one per feature, or have the shape \(3, 6\), .*\(6, 3\)",
    ),
    ("topic_word_prior", np.eye(K, V), r"above 0, but element \(0, 1\) is 0.0"),
    (
        "topic_word_prior",
        np.where(np.eye(K, V), np.inf, 1.0),
        r"finite and above 0, but element \(0, 0\) is inf",
    ),
    ("topic_word_prior", np.eye(V)[0], "above 0, but element 1 is 0.0"),
    ("topic_word_prior", ["a"] * V, ""),
    ("components_init", np.ones((K, V + 1)), r"shape \(3, 6\), .*; got \(3, 7\)"),
    ("components_init", np.ones((V, K)), r"shape \(3, 6\), .*; got \(6, 3\)"),
    ("components_init", np.ones(V), r"shape \(3, 6\), .*; got \(6,\)"),
    ("components_init", np.eye(K, V), "above 0, but row 0 has 0.0 in column 1"),
    (
        "components_init",
        np.where(np.eye(K, V) * np.arange(V) == 2, -3.0, 1.0),
        "above 0, but row 2 has -3.0 in column 2",
    ),
    ("components_init", np.full((K, V), np.nan), "row 0 has nan in column 0"),
    ("components_init", [["a"] * V] * K, ""),
]


@pytest.mark.each
@pytest.mark.parametrize(("name", "value", "message"), PARAMETERS)
@pytest.mark.parametrize("lazy", [False, True])
def test_parameters_that_do_not_fit_the_counts(name, value, message, lazy):
    X = blocks(good()) if lazy else good()
    model = MALDA(**{**PARAMS, name: value})
    for method in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match=f"{name}.*{message}"):
            method(X)
        assert not [name for name in vars(model) if name.endswith("_")]


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize(
    "params", [{"paradigm": "gradient"}, {"learning_method": "batch"}], ids=str
)
def test_parameters_that_do_not_go_together(params, method):
    model = MALDA(**PARAMS, **params).fit(good())
    before = dict(vars(model), mixing="butterfly")
    model.set_params(mixing="butterfly")
    name, value = next(iter(params.items()))
    with pytest.raises(ValueError, match=f"mixing='butterfly'.*{name}='{value}'"):
        getattr(model, method)(good())
    assert vars(model) == before


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.each
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("params", [{}, {"paradigm": "gradient"}], ids=str)
def test_counts_that_are_too_large(method, params):
    """Sums that overflow are told, not averaged."""
    model = MALDA(**PARAMS, **params)
    with pytest.raises(ValueError, match="the model is not finite after round"):
        getattr(model, method)(good() * 1e38)
    assert not hasattr(model, "components_")


def test_counts_that_are_large():
    fitted = MALDA(**PARAMS, dtype="float64").fit(good() * 1e38)
    assert np.isfinite(fitted.bound_)


# At transform -------------------------------------------------------------------------

METHODS = ["transform", "score", "perplexity", "log_likelihood"]


@pytest.fixture(scope="module")
def model():
    return MALDA(**PARAMS).fit(good())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lazy", [False, True])
def test_other_columns(model, method, lazy):
    X = good()[:, :4]
    with pytest.raises(ValueError, match="X has 4 features, but MALDA is expecting 6"):
        getattr(model, method)(blocks(X) if lazy else X)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array])
def test_negative_counts_of_new_documents(model, method, convert):
    X = with_value(-2)
    for counts in (convert(X), blocks(X, convert)):
        with pytest.raises(ValueError, match="Negative values in data passed to a"):
            np.asarray(getattr(model, method)(counts))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_new_documents_that_are_not_finite(model, method, value):
    with pytest.raises(ValueError, match="Input X contains"):
        getattr(model, method)(with_value(value))


@pytest.mark.parametrize("method", ["bound", "completion"])
def test_no_words_to_predict(model, method):
    X, message = 0 * good(), "X has no words: the perplexity of"
    if method == "completion":
        X[0, 0] = 1  # it is known, and nothing is left
        message = "no words to predict: .* every second word"
    else:
        assert np.isfinite(model.score(X))
    for counts in (X, blocks(X)):
        with pytest.raises(ValueError, match=message):
            model.perplexity(counts, method=method)


@pytest.mark.parametrize("normalize", ["l1", 1, None])
def test_normalize_is_a_choice_of_two(model, normalize):
    new = clone(model)
    for method in (model.transform, new.fit_transform):
        with pytest.raises(ValueError, match="normalize should be True or False, got"):
            method(good(), normalize=normalize)
    assert not hasattr(new, "components_")


def test_unknown_method(model):
    with pytest.raises(ValueError, match="method should be 'bound' or 'completion'"):
        model.perplexity(good(), method="left-to-right")


def test_lazy_counts_that_are_not_finite():
    """Found when they are computed."""
    model = MALDA(**PARAMS).fit(good())
    counts = good().astype(float)
    counts[1, 2] = np.nan
    lazy = da.from_array(counts, chunks=(5, -1))
    with pytest.raises(ValueError, match="Input X contains NaN in block 0, row 1"):
        model.transform(lazy).compute()
