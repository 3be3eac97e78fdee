"""What transformers make of Dask collections, as `set_output` says."""

import pickle

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import sparse
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from dask_ma import MALDA, SchMPLDA, SFBDictionaryLearning, SFBMetricLearner

INDEX = np.arange(24)[::-1] * 10


@pytest.fixture
def rows():
    counts = np.random.default_rng(0).integers(0, 4, size=(24, 5))
    return pd.DataFrame(counts.astype(float), columns=list("abcde"), index=INDEX)


@pytest.fixture(
    params=[
        MALDA(2, max_iter=1, random_state=0),
        SchMPLDA(2, max_iter=1, random_state=0),
        SFBDictionaryLearning(2, max_iter=2, random_state=0),
        SFBMetricLearner(2, max_iter=1, random_state=0, tol=None),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def model(request, rows):
    return clone(request.param).fit(rows, np.arange(24) % 2)


def frame_of(rows):
    return dd.from_pandas(rows, npartitions=3, sort=False)


def test_a_frame_has_the_index_of_its_rows(model, rows):
    names = model.get_feature_names_out()
    expected = model.transform(rows)
    found = model.set_output(transform="pandas").transform(frame_of(rows))
    assert isinstance(found, dd.DataFrame)
    assert list(found.columns) == list(names)
    assert found.npartitions == 3
    computed = found.compute()
    pd.testing.assert_frame_equal(computed, pd.DataFrame(expected, INDEX, names))
    assert (found.dtypes == computed.dtypes).all()
    # So it can be put beside them.
    assert (
        frame_of(rows)
        .assign(new=found[names[0]])
        .compute()["new"]
        .equals(computed[names[0]].rename("new"))
    )


def test_a_partition_without_rows(model, rows):
    frame = frame_of(rows)
    found = model.set_output(transform="pandas").transform(frame[frame["a"] > 5])
    assert found.compute().shape == (0, len(model.get_feature_names_out()))


def test_an_array(model, rows):
    expected = model.transform(rows)
    X = da.from_array(rows.to_numpy(), chunks=(8, -1))
    frame = rows.rename(columns=str)  # names are not asked of an array
    model.fit(frame.to_numpy(), np.arange(24) % 2).set_output(transform="pandas")
    found = model.transform(X)
    assert isinstance(found, dd.DataFrame)
    names = model.get_feature_names_out()
    np.testing.assert_allclose(found[names].compute().to_numpy(), expected)


@pytest.mark.parametrize("output", ["default", "polars"])
def test_other_output_is_lazy_all_the_same(model, rows, output):
    model.set_output(transform="default")
    expected = model.transform(rows)
    found = model.set_output(transform=output).transform(frame_of(rows))
    assert isinstance(found, da.Array)
    np.testing.assert_allclose(found.compute(), expected)


def test_fit_transform(model, rows):
    model.set_output(transform="pandas")
    labels = np.arange(24) % 2
    found = model.fit_transform(frame_of(rows), labels)
    assert isinstance(found, dd.DataFrame)


@pytest.mark.parametrize("copy", [clone, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_keep_the_choice(model, rows, copy):
    model.set_output(transform="pandas").set_output(transform=None)
    again = copy(model).fit(rows, np.arange(24) % 2)
    assert isinstance(again.transform(frame_of(rows)), dd.DataFrame)
    assert isinstance(again.transform(rows), pd.DataFrame)


def test_the_choice_of_scikit_learn_as_a_whole(model, rows):
    with sklearn.config_context(transform_output="pandas"):
        assert isinstance(model.transform(frame_of(rows)), dd.DataFrame)
        model.set_output(transform="default")
        assert isinstance(model.transform(frame_of(rows)), da.Array)
    pipeline = make_pipeline(model).set_output(transform="pandas")
    assert isinstance(pipeline.transform(frame_of(rows)), dd.DataFrame)


def test_a_container_that_does_not_exist(model, rows):
    """It was refused for rows in memory alone, once they were transformed."""
    with pytest.raises(ValueError, match="transform should be one of .* got 'nope'"):
        model.set_output(transform="nope")
    assert isinstance(model.transform(frame_of(rows)), da.Array)


def test_sparse_blocks_are_refused(rows):
    X = sparse.csr_array(rows.to_numpy())
    model = SFBMetricLearner(
        metric_form="diagonal", max_iter=1, random_state=0, tol=None
    )
    model.fit(X, np.arange(24) % 2).set_output(transform="pandas")
    blocks = da.from_array(rows.to_numpy(), chunks=(8, -1)).map_blocks(sparse.csr_array)
    with pytest.raises(ValueError, match="pandas output does not hold sparse"):
        model.transform(blocks)


def test_another_frame(model, rows):
    model.set_output(transform="pandas")
    with pytest.raises(ValueError, match="feature names"):
        model.transform(frame_of(rows[list("edcba")]))
