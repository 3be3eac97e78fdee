"""Frames read from files: which rows go together, and in which blocks."""

from __future__ import annotations

import threading
from decimal import Decimal

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_ma._config import partitions_kept
from dask_ma.data import build_shard, partition
from dask_ma.data._frames import as_arrays
from dask_ma.data._memory import checked_rows

pytestmark = [
    # Dask uses what the newest pandas advises against.
    pytest.mark.filterwarnings("ignore:The inplace keyword"),
    pytest.mark.filterwarnings("ignore:Dask currently has limited support"),
]

N = 240
COLUMNS = ["id", "a", "b", "gap"]
TUNED = "optimization.tune.active"


def table():
    """Rows whose labels, targets and weights all follow from the first column."""
    rng = np.random.default_rng(0)
    number = np.arange(N)
    frame = pd.DataFrame(rng.normal(size=(N, 6)), columns=list("abcdef"))
    frame.insert(0, "id", number.astype(float))
    frame["gap"] = frame["a"].where(number % 5 != 0)
    frame["word"] = np.array(["red", "green", "blue"])[number % 3]
    frame["label"] = np.array(["no", "yes", "perhaps"])[number % 7 % 3]
    frame["weight"] = number + 1.0
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of the table: Parquet with two row groups a file, and CSV."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "parquet").mkdir()
    for number, start in enumerate(range(0, N, 60)):
        part = table().iloc[start : start + 60]
        path = folder / "parquet" / f"part-{number}.parquet"
        part.to_parquet(path, row_group_size=30, index=False)
        part.to_csv(folder / f"part-{number}.csv", index=False)
    return folder


@pytest.fixture(params=["parquet", "row groups", "arrow", "csv"])
def files(request, folder):
    """A DataFrame read from files."""
    if request.param == "csv":
        return dd.read_csv(str(folder / "part-*.csv"))
    options = {
        "parquet": {},
        "row groups": {"split_row_groups": True},
        "arrow": {"filesystem": "arrow"},
    }[request.param]
    return dd.read_parquet(f"file://{folder}/parquet", **options)


@pytest.fixture
def parquet(folder):
    """The DataFrame read from Parquet."""
    return dd.read_parquet(folder / "parquet")


def persisted(d):
    with dask.config.set({TUNED: False}):
        return d.persist()


def plain(d):
    return d[["id", "a", "b"]]


def chosen(d):
    return d[(d.b > -1) & (d.word != "blue")]


def shuffled(d):
    return d.shuffle("word", npartitions=3)


def split(d):
    return d.random_split([0.7, 0.3], random_state=0)[0]


CASES = {
    "columns": lambda d: (plain(d), d["label"], d["weight"]),
    "all numbers": lambda d: (d.drop(columns=["word", "label", "gap"]), d["label"]),
    "filter": lambda d: (plain(chosen(d)), chosen(d)["label"], chosen(d)["weight"]),
    "filter first": lambda d: (plain(d)[d.b > 0], d["label"][d.b > 0]),
    "fillna": lambda d: (d[COLUMNS].fillna(0), d["label"], d["weight"]),
    "dropna": lambda d: (d.dropna()[COLUMNS], d.dropna()["label"]),
    "arithmetic": lambda d: (plain(d) * 1.0, d["label"], d["weight"] + 0),
    "assign": lambda d: (plain(d).assign(z=d.a + d.b), d["label"]),
    "dummies": lambda d: (
        dd.get_dummies(d[["id", "a", "word"]].categorize()),
        d["label"],
    ),
    "category": lambda d: (plain(d), d["label"].astype("category")),
    "array labels": lambda d: (plain(d), d["label"].to_dask_array(), d["weight"]),
    "array weights": lambda d: (plain(d), d["label"], d["weight"].to_dask_array()),
    "arrays": lambda d: (plain(d).to_dask_array(), d["label"].to_dask_array()),
    "array rows": lambda d: (plain(d).to_dask_array(), d["label"], d["weight"]),
    "split": lambda d: (plain(split(d)), split(d)["label"], split(d)["weight"]),
    "repartition": lambda d: (
        plain(d.repartition(npartitions=3)),
        d.repartition(npartitions=3)["label"],
    ),
    "repartition of rows": lambda d: (
        plain(d).repartition(npartitions=3),
        d["label"],
        d["weight"],
    ),
    "set_index": lambda d: (
        plain(d.set_index("c")),
        d.set_index("c")["label"],
        d.set_index("c")["weight"],
    ),
    "shuffle": lambda d: (
        plain(shuffled(d)),
        shuffled(d)["label"],
        shuffled(d)["weight"],
    ),
    "partitions": lambda d: (plain(d.partitions[1:]), d.partitions[1:]["label"]),
    "concat": lambda d: (plain(dd.concat([d, d])), dd.concat([d, d])["label"]),
    "persisted": lambda d: (
        plain(persisted(d)),
        d["label"],
        persisted(d["weight"]),
    ),
}


def check_rows(shards, with_weights):
    """Assert that labels and weights are those of the rows; return how many."""
    frame = table()
    blocks = [block for shard in shards for block in shard.blocks]
    for block in blocks:
        number = block.X[:, 0].astype(int)
        assert block.y.tolist() == frame["label"][number].tolist()
        if with_weights:
            np.testing.assert_array_equal(block.sample_weight, number + 1)
    return sum(len(block.X) for block in blocks)


@pytest.mark.each
@pytest.mark.parametrize("case", sorted(CASES))
def test_rows_belong_together(files, case):
    data = CASES[case](files)
    result = partition(*data, n_ranks=3, addresses=None)
    shards = [build_shard(spec.arguments) for spec in result.shards]
    with dask.config.set({TUNED: False}):
        expected = len(data[0].compute())
    assert check_rows(shards, len(data) == 3) == result.n_rows == expected > 0


# Which frames are lowered as one does not depend on where they are computed.
@pytest.mark.parametrize(
    "case",
    [
        "array rows",
        "array weights",
        "arrays",
        "columns",
        "filter",
        "persisted",
        "repartition of rows",
        "shuffle",
    ],
)
def test_rows_belong_together_on_workers(client, workers, clean, build, parquet, case):
    data = CASES[case](parquet)
    result = partition(*data, n_ranks=4, addresses=workers, client=client)
    shards = build(result, workers)
    assert check_rows(shards, len(data) == 3) == result.n_rows > 0
    assert all(shard.n_rows for shard in shards)
    del data, result, shards


def test_files_and_shuffles_are_read_once(parquet):
    data = shuffled(parquet)
    X, y, weight = as_arrays([plain(data), data["label"], data["weight"]])
    keys = {key for array in (X, y, weight) for key in array.__dask_graph__()}
    reads = [key for key in keys if "parquet" in str(key).replace("_", "")]
    assert len(reads) == parquet.npartitions
    assert X.numblocks == (3, 1)
    assert y.numblocks == weight.numblocks == (3,)


def test_blocks_are_where_the_plan_wants_them(client, workers, clean, parquet):
    X, y = plain(parquet), parquet["label"]
    result = partition(X, y, n_ranks=4, addresses=workers, client=client)
    assert result.bytes_moved == result.bytes_followed == 0
    assert [spec.n_rows for spec in result.shards] == [60] * 4
    del result


def test_partitions_are_kept_for_a_while_only(parquet):
    changed = plain(parquet) + 1
    with partitions_kept():
        with partitions_kept():
            assert changed.optimize().npartitions == 4
        assert changed.optimize().npartitions == 4
    assert changed.optimize().npartitions < 4
    with dask.config.set({TUNED: False}):
        with partitions_kept():
            pass
        assert dask.config.get(TUNED) is False


def test_partitions_are_kept_by_threads_side_by_side():
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with partitions_kept():
            inside.set()
            leave.wait(30)

    with partitions_kept():
        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait(30)
    assert dask.config.get(TUNED) is False
    leave.set()
    thread.join(30)
    assert dask.config.get(TUNED) is True


# -- What cannot be matched ----------------------------------------------------------


@pytest.mark.parametrize("on_workers", [False, True])
def test_labels_of_other_rows(client, workers, clean, parquet, on_workers):
    X, y = plain(parquet)[parquet.b > 0], parquet["label"]
    where = {"addresses": workers, "client": client} if on_workers else {}
    message = r"X has \d+ rows and y has 240.*differ first in block 0, with \d+ and 60"
    with pytest.raises(ValueError, match=message):
        partition(X, y, n_ranks=4, **{"addresses": None, **where})


@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize("on_workers", [False, True])
def test_partitions_lost_by_persist(client, workers, parquet, derived, on_workers):
    """Dask joins the partitions, and then looks for as many as there were."""
    if on_workers:
        X = client.persist(plain(parquet))
    else:
        X = plain(parquet).persist(scheduler="threads")
    X = X[["id", "a"]] if derived else X
    where = {"addresses": workers, "client": client} if on_workers else {}
    with pytest.raises(ValueError, match="partitions that are not there") as caught:
        partition(X, np.zeros(N), n_ranks=4, **{"addresses": None, **where})
    assert "dask.config.set({'optimization.tune.active': False})" in str(caught.value)
    del X


def test_advice_for_lost_partitions(parquet):
    with dask.config.set({TUNED: False}):
        X, y = dask.persist(plain(parquet), parquet["label"], scheduler="threads")
    result = partition(X, y, n_ranks=3, addresses=None)
    shards = [build_shard(spec.arguments) for spec in result.shards]
    assert check_rows(shards, False) == N


# -- Kinds of columns ----------------------------------------------------------------

NUMBERS = {
    "bool": lambda: pd.Series([True, False, True, False]),
    "Int64": lambda: pd.Series([1, 2, 3, 4], dtype="Int64"),
    "boolean": lambda: pd.Series([True, False, True, True], dtype="boolean"),
    "Float64": lambda: pd.Series([1.5, 2, 3, 4], dtype="Float64"),
    "double[pyarrow]": lambda: pd.Series([1.5, 2, 3, 4], dtype="double[pyarrow]"),
    "int8[pyarrow]": lambda: pd.Series([1, 2, 3, 4], dtype="int8[pyarrow]"),
    "bool[pyarrow]": lambda: pd.Series([True, False] * 2, dtype="bool[pyarrow]"),
    "category of ints": lambda: pd.Series([3, 5, 5, 3], dtype="category"),
    "category of floats": lambda: pd.Series([0.5, 2, 2, 0.5], dtype="category"),
    "Sparse": lambda: pd.Series([0.0, 1, 0, 2], dtype="Sparse[float64]"),
}
WITH_GAPS = ["Int64", "boolean", "Float64", "double[pyarrow]", "category of ints"]


def rows_of(X, n_rows=4):
    """Rows of the only rank."""
    result = partition(X, np.zeros(n_rows), n_ranks=1, addresses=None)
    shard = build_shard(result.shards[0].arguments)
    return np.concatenate([block.X for block in shard.blocks])


@pytest.mark.parametrize("kind", sorted(NUMBERS))
@pytest.mark.parametrize("beside", [[], ["real"], ["real", "whole", "flag"]])
def test_columns_of_numbers(kind, beside):
    frame = pd.DataFrame({"column": NUMBERS[kind]()})
    more = {"real": [0.5, 1.5, 2.5, 3.5], "whole": [1, 2, 3, 4], "flag": [True] * 4}
    frame = frame.assign(**{name: more[name] for name in beside})
    expected = np.column_stack(
        [np.asarray(frame[name].tolist(), dtype=float) for name in frame]
    )
    np.testing.assert_array_equal(rows_of(frame), expected)
    np.testing.assert_array_equal(rows_of(dd.from_pandas(frame, 2)), expected)


def test_categories_that_only_the_blocks_know():
    frame = pd.DataFrame({"column": NUMBERS["category of ints"](), "real": 1.5})
    lazy = dd.from_pandas(frame, 2).assign(
        column=lambda d: d["column"].cat.as_unknown()
    )
    assert rows_of(lazy)[:, 0].tolist() == [3, 5, 5, 3]
    words = dd.from_pandas(pd.DataFrame({"column": ["a", "b"] * 2}), 2)
    words["column"] = words["column"].astype("category").cat.as_unknown()
    with pytest.raises(
        ValueError, match=r"Block \d of X .* hold no numbers: 'column' \("
    ):
        rows_of(words)


@pytest.mark.parametrize("kind", WITH_GAPS)
def test_missing_values_are_named(kind):
    series = NUMBERS[kind]()
    series[3] = None
    frame = pd.DataFrame({"column": series, "real": 1.0})
    for X, block in ((frame, 0), (dd.from_pandas(frame, 2), 1)):
        with pytest.raises(ValueError, match=f"X contains NaN in block {block}, row 3"):
            rows_of(X)


WORDS = {"O": r"dask\.dataframe\.get_dummies.*X\['column'\]\.astype\(float\)"}
TIMES = {
    "M": r"X\['column'\]\.dt\.day_of_week, or with X\['column'\]\.astype\('int64'\)",
    "m": r"X\['column'\]\.dt\.total_seconds\(\)",
}


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [
        ("string[pyarrow]", WORDS["O"]),
        ("category", WORDS["O"]),
        ("datetime64[ns]", TIMES["M"]),
        ("datetime64[ns, UTC]", TIMES["M"]),
        ("period[D]", TIMES["M"]),
        ("timedelta64[ns]", TIMES["m"]),
    ],
)
def test_columns_without_numbers(dtype, advice):
    text = "1h" if dtype.startswith("timedelta") else "2020-01-01"
    column = pd.Series([text] * 4).astype(dtype)
    frame = dd.from_pandas(pd.DataFrame({"column": column, "real": 1.0}), 2)
    with pytest.raises(ValueError, match=f"hold no numbers: 'column'.*{advice}") as e:
        rows_of(frame)
    assert ("get_dummies" in str(e.value)) == (advice == WORDS["O"])


@pytest.mark.parametrize("is_lazy", [False, True])
def test_advice_for_times_and_texts_of_numbers(is_lazy):
    frame = pd.DataFrame(
        {
            "when": pd.date_range("2020-01-01", periods=4, unit="s"),
            "zone": pd.date_range("2020-01-01", periods=4, tz="UTC"),
            "span": pd.to_timedelta([0, 1, 2, 3], "h"),
            "day": pd.period_range("2020-01-01", periods=4, freq="D"),
        }
    )
    X = dd.from_pandas(frame, 2) if is_lazy else frame
    with pytest.raises(ValueError, match=r"times with X\['when'\]\.dt\.year .*span"):
        rows_of(as_checked(X))
    numbers = X.assign(
        when=X["when"].astype("int64"),
        zone=X["zone"].dt.day_of_week,
        span=X["span"].dt.total_seconds(),
        day=X["day"].dt.year,
    )
    start = 1577836800
    expected = [[start + 86400 * n, (2 + n) % 7, 3600 * n, 2020] for n in range(4)]
    assert rows_of(as_checked(numbers)).tolist() == expected


def as_checked(X):
    """X after the checks of an estimator."""
    return X if isinstance(X, dd.DataFrame) else checked_rows(X)


def test_advice_for_texts_of_numbers():
    frame = pd.DataFrame({"text": ["1", "2.5", "3", "4"], "real": [0.5, 1, 2, 3]})
    X = dd.from_pandas(frame, 2)
    with pytest.raises(ValueError, match=r"with X\['text'\]\.astype\(float\)"):
        rows_of(X)
    assert rows_of(X.assign(text=X["text"].astype(float)))[:, 0].tolist() == [
        1,
        2.5,
        3,
        4,
    ]
    assert rows_of(checked_rows(frame.astype({"text": float})))[1, 0] == 2.5


@pytest.mark.parametrize("in_blocks", [False, True])
def test_advice_for_words(in_blocks):
    frame = pd.DataFrame({"word": ["a", "b", "a", "c"], "real": [0.5, 1, 2, 3]})
    X = dd.from_pandas(frame, 2)
    if in_blocks:  # which alone know that the categories are words
        X["word"] = X["word"].astype("category").cat.as_unknown()
    with pytest.raises(ValueError, match="hold no numbers: 'word'") as caught:
        rows_of(X)
    assert "dask.dataframe.get_dummies(X.categorize())" in str(caught.value)
    assert sorted(rows_of(dd.get_dummies(X.categorize())).tolist()) == [
        [0.5, 1, 0, 0],
        [1, 0, 1, 0],
        [2, 1, 0, 0],
        [3, 0, 0, 1],
    ]


# -- Partitions without rows ---------------------------------------------------------


def with_nothing(frame, meta=None):
    """The frame in four partitions, with one as pandas makes it of nothing."""

    def load(number):
        if number == 2:
            return pd.DataFrame(columns=frame.columns)
        return frame.iloc[[0, 1, 0, 2][number] * 2 :][:2]

    return dd.from_map(load, range(4), meta=frame.iloc[:0] if meta is None else meta)


@pytest.fixture(params=[False, True])
def converted(request):
    """Whether Dask makes strings of objects."""
    with dask.config.set({"dataframe.convert-string": request.param}):
        yield request.param


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
def test_partitions_without_rows_have_nothing_to_convert(converted, dtype):
    frame = pd.DataFrame(np.arange(24).reshape(6, 4), columns=list("abyw"), dtype=dtype)
    data = with_nothing(frame)
    X, y, weights = data[["a", "b"]], data["y"], data["w"]
    arrays = [array.compute() for array in as_arrays([X, y, weights])]
    assert [array.dtype for array in arrays] == [dtype] * 3
    result = partition(X, y, weights, n_ranks=2, addresses=None)
    shards = [build_shard(spec.arguments) for spec in result.shards]
    blocks = [block for shard in shards for block in shard.blocks]
    for place, columns in enumerate((["a", "b"], "y", "w")):
        rows = np.concatenate([block[place] for block in blocks])
        np.testing.assert_array_equal(rows, frame[columns])
    assert {shard.dtype for shard in shards} == {
        np.dtype(np.float32 if dtype == np.float32 else np.float64)
    }


def test_a_file_of_decimals_without_rows(tmp_path):
    texts = ["1.5", "2.25", "-3"]
    frame = pd.DataFrame({"price": list(map(Decimal, texts)), "real": 0.5})
    frame.to_parquet(tmp_path / "0.parquet")
    frame.iloc[:0].to_parquet(tmp_path / "1.parquet")
    X = dd.read_parquet(tmp_path)
    assert rows_of(X, 3).tolist() == [[float(text), 0.5] for text in texts]


LABELS = {
    "string[pyarrow]": ["a", "b", "c", "a"],
    "category": ["a", "b", "c", "a"],
    "Int64": [3, 1, 2, 3],
    "int8[pyarrow]": [3, 1, 2, 3],
    "boolean": [True, False, False, True],
    "bool": [True, False, False, True],
    "bool[pyarrow]": [True, False, False, True],
}


@pytest.mark.parametrize("dtype", sorted(LABELS))
def test_kinds_of_labels(dtype):
    y = pd.Series(LABELS[dtype]).astype(dtype)
    X = pd.DataFrame({"real": [0.5, 1, 2, 3]})
    lazy = dd.from_pandas(y, 2)
    result = partition(dd.from_pandas(X, 2), lazy, n_ranks=1, addresses=None)
    shard = build_shard(result.shards[0].arguments)
    labels = np.concatenate([block.y for block in shard.blocks])
    assert labels.tolist() == LABELS[dtype]
    assert (labels.dtype == object) == (dtype in ("string[pyarrow]", "category"))


def test_arrays_stay_as_they_are():
    X = da.ones((4, 2), chunks=2)
    assert as_arrays([X])[0] is X
