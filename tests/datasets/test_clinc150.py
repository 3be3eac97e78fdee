"""The shipped text."""

from importlib import resources

import numpy as np
import pytest

from dask_ma.datasets import load_clinc150


@pytest.mark.parametrize(
    "subset, n, n_out",
    [("train", 15000, 100), ("validation", 3000, 100), ("test", 4500, 1000)],
)
def test_sizes(subset, n, n_out):
    texts, labels = load_clinc150(subset)
    assert len(texts) == len(labels) == n
    names, counts = np.unique(labels, return_counts=True)
    assert len(names) == 150
    assert set(counts) == {n // 150}
    assert "oos" not in names
    more_texts, more_labels = load_clinc150(subset, out_of_scope=True)
    assert more_texts[:n] == texts
    assert len(more_texts) == len(more_labels) == n + n_out
    assert set(more_labels[n:]) == {"oos"}


def test_types():
    texts, labels = load_clinc150("validation")
    assert all(type(text) is str and text for text in texts)
    assert isinstance(labels, np.ndarray)
    assert labels.dtype.kind == "U"


def test_subsets_differ():
    assert load_clinc150("train")[0][:150] != load_clinc150("test")[0][:150]


def test_unknown_subset():
    with pytest.raises(ValueError, match="subset must be one of .*got 'val'"):
        load_clinc150("val")


def test_credits_are_shipped():
    folder = resources.files("dask_ma.datasets") / "data"
    text = (folder / "CREDITS.md").read_text()
    assert "CC BY 3.0" in text
    assert "Larson" in text
