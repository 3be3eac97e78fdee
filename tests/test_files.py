"""Every estimator on files: Parquet, CSV, svmlight, zarr and text."""

from __future__ import annotations

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import is_classifier, is_regressor
from sklearn.datasets import dump_svmlight_file, load_svmlight_file
from sklearn.feature_extraction.text import CountVectorizer

from dask_ma import (
    MALDA,
    ButterflySGDRegressor,
    MASGDClassifier,
    MPCAClassifier,
    MPCARegressor,
    SchMPLasso,
    SchMPLogisticRegression,
    SFBLogisticRegression,
)
from dask_ma.datasets import vectorize_text

pytestmark = [
    # Dask uses what the newest pandas advises against.
    pytest.mark.filterwarnings("ignore:The inplace keyword"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

N = 120
ROUNDS = {"max_iter": 4, "tol": None, "random_state": 0}
ESTIMATORS = {
    "MASGDClassifier": MASGDClassifier("log_loss", **ROUNDS),
    "ButterflySGDRegressor": ButterflySGDRegressor(**ROUNDS),
    "SFBLogisticRegression": SFBLogisticRegression(**ROUNDS),
    "MPCAClassifier": MPCAClassifier((4,), **ROUNDS),
    "MPCARegressor": MPCARegressor((4,), **ROUNDS),
    "SchMPLasso": SchMPLasso(alpha=0.01, max_iter=20),
    "SchMPLogisticRegression": SchMPLogisticRegression(max_iter=20),
    "MALDA": MALDA(2, max_iter=2, random_state=0),
}
COLUMNS = ["a", "b", "c"]


def table():
    """Three columns that are not negative, words, numbers, weights."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.poisson(3, size=(N, 6)), columns=list("abcdef"))
    frame = frame.astype(float)
    frame["value"] = frame["a"] - frame["b"] + 0.1 * rng.normal(size=N)
    frame["label"] = np.where(frame["value"] > 0, "buy", "leave")
    frame["weight"] = rng.uniform(0.5, 2, size=N)
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Parquet and CSV files of the table."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "parquet").mkdir()
    for number, start in enumerate(range(0, N, 30)):
        part = table().iloc[start : start + 30]
        path = folder / "parquet" / f"part-{number}.parquet"
        part.to_parquet(path, row_group_size=15, index=False)
        part.to_csv(folder / f"part-{number}.csv", index=False)
    return folder


def read(folder, kind):
    """The DataFrame, lazily."""
    if kind == "csv":
        return dd.read_csv(str(folder / "part-*.csv"))
    return dd.read_parquet(folder / "parquet")


def check(estimator, frame):
    """Fit, score, predict, and put predictions beside the rows."""
    X = frame[COLUMNS]
    target = None
    if not isinstance(estimator, MALDA):
        target = frame["label" if is_classifier(estimator) else "value"]
    model = type(estimator)(**estimator.get_params(deep=False))
    model.fit(X, target)
    if hasattr(model, "partial_fit"):
        options = {"classes": ["buy", "leave"]} if is_classifier(model) else {}
        fresh = type(model)(**estimator.get_params(deep=False))
        fresh.partial_fit(X, target, **options)
    rows = table()
    if target is None:
        assert np.isfinite(model.score(X))
        topics = model.transform(X)
        # In single precision, and by blocks of other documents.
        found, expected = topics.compute(), model.transform(rows[COLUMNS])
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        result = frame.assign(topic=topics.argmax(axis=1)).compute()
        expected = model.transform(rows[COLUMNS]).argmax(axis=1)
        np.testing.assert_array_equal(result["topic"], expected)
        return
    expected = model.predict(rows[COLUMNS])
    assert model.score(X, target) == pytest.approx(
        model.score(rows[COLUMNS], rows[target.name])
    )
    result = frame.assign(pred=model.predict(X)).compute()
    assert result["value"].tolist() == pytest.approx(rows["value"].tolist())
    if is_regressor(model):
        np.testing.assert_allclose(result["pred"], expected)
    else:
        assert result["pred"].tolist() == expected.tolist()


@pytest.mark.each
@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@pytest.mark.parametrize("on_cluster", [False, True])
def test_parquet(name, on_cluster, folder, request):
    if on_cluster:
        request.getfixturevalue("cluster")
    check(ESTIMATORS[name], read(folder, "parquet"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The inplace keyword")  # Dask, with pandas 3.1
def test_processes(folder, processes):
    frame = read(folder, "parquet")
    check(MASGDClassifier(**ROUNDS), frame)
    kept = frame.persist()
    check(MASGDClassifier(**ROUNDS), kept)
    del frame, kept


@pytest.mark.parametrize("on_cluster", [False, True])
def test_csv(folder, on_cluster, request):
    if on_cluster:
        request.getfixturevalue("cluster")
    check(MASGDClassifier(**ROUNDS), read(folder, "csv"))


CHOICES = {
    "filter": lambda d: d[d["c"] > 2],
    "fillna": lambda d: d.fillna(0),
    "dropna": lambda d: d.dropna(),
    "columns": lambda d: d[[*COLUMNS, "label", "weight"]],
    "repartition": lambda d: d.repartition(npartitions=3),
    "set_index": lambda d: d.set_index("value"),
    "assign": lambda d: d.assign(a=d["a"] + 1),
    "persisted": lambda d: d.persist(),
}


@pytest.mark.parametrize("choice", sorted(CHOICES))
def test_predictions_beside_any_rows(choice, folder):
    frame = CHOICES[choice](read(folder, "parquet"))
    model = MASGDClassifier("log_loss", **ROUNDS)
    model.fit(frame[COLUMNS], frame["label"], sample_weight=frame["weight"])
    result = frame.assign(
        pred=model.predict(frame[COLUMNS]),
        value=model.decision_function(frame[COLUMNS]),
    ).compute()
    rows = result[COLUMNS]
    assert result["pred"].tolist() == model.predict(rows).tolist()
    np.testing.assert_allclose(result["value"], model.decision_function(rows))
    score = model.score(frame[COLUMNS], frame["label"], frame["weight"])
    assert score == pytest.approx(model.score(rows, result["label"], result["weight"]))


def test_probabilities_beside_rows(folder):
    frame = read(folder, "parquet")
    model = MASGDClassifier("log_loss", **ROUNDS).fit(frame[COLUMNS], frame["label"])
    result = frame.assign(p=model.predict_proba(frame[COLUMNS])[:, 1]).compute()
    expected = model.predict_proba(result[COLUMNS])[:, 1]
    np.testing.assert_allclose(result["p"], expected)


def test_svmlight(tmp_path, cluster):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 5)) * (rng.random((N, 5)) < 0.5)
    y = (X[:, 0] > 0).astype(int)
    for part in range(3):
        rows = slice(40 * part, 40 * part + 40)
        dump_svmlight_file(X[rows], y[rows], str(tmp_path / f"part-{part}.txt"))
    load = dask.delayed(load_svmlight_file, nout=2)
    parts = [load(str(path), n_features=5) for path in sorted(tmp_path.glob("*.txt"))]
    rows = da.concatenate(
        [da.from_delayed(p[0], (np.nan, 5), np.float64) for p in parts],
        allow_unknown_chunksizes=True,
    )
    labels = da.concatenate(
        [da.from_delayed(p[1], (np.nan,), np.float64) for p in parts],
        allow_unknown_chunksizes=True,
    )
    model = MASGDClassifier(**ROUNDS).fit(rows, labels)
    assert model.score(rows, labels) == pytest.approx(model.score(X, y))
    assert model.score(X, y) > 0.8


def test_zarr(tmp_path, cluster):
    pytest.importorskip("zarr", reason="reads zarr")
    X = np.random.default_rng(0).normal(size=(N, 4))
    da.from_array(X, chunks=(30, 4)).to_zarr(str(tmp_path / "X.zarr"))
    rows = da.from_zarr(str(tmp_path / "X.zarr"))
    y = (X[:, 0] > 0).astype(int)
    model = MASGDClassifier(**ROUNDS).fit(rows, y)
    assert model.predict(rows).compute().tolist() == model.predict(X).tolist()


@pytest.mark.parametrize("on_cluster", [False, True])
def test_text_of_a_parquet_column(tmp_path, on_cluster, request):
    if on_cluster:
        request.getfixturevalue("cluster")
    words = np.array(["apple pear plum", "car bus train", "pear plum", "bus car"])
    texts = pd.DataFrame({"text": words[np.arange(40) % 4], "other": range(40)})
    for part in range(4):
        path = tmp_path / f"part-{part}.parquet"
        texts.iloc[10 * part : 10 * part + 10].to_parquet(path, index=False)
    frame = dd.read_parquet(tmp_path)
    counter = CountVectorizer()
    X, names = vectorize_text(frame["text"], counter)
    assert X.numblocks[0] == 4
    model = MALDA(2, max_iter=5, random_state=0).fit(X)
    result = frame.assign(topic=model.transform(X).argmax(axis=1)).compute()
    assert result["other"].tolist() == list(range(40))
    counts = CountVectorizer(vocabulary=names).transform(texts["text"])
    expected = model.transform(counts).argmax(axis=1)
    np.testing.assert_array_equal(result["topic"], expected)
