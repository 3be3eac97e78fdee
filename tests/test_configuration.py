"""Values of the configuration that cannot be read."""

from __future__ import annotations

import pytest

from dask_ma import MASGDClassifier, _config


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("comm.link-bandwidth", "125 MB/s", _config.get_bytes),
        ("comm.link-bandwidth", ["1 MB"], _config.get_bytes),
        ("comm.timeout", "5 parsecs", _config.get_timeout),
        ("comm.timeout", "soon", _config.get_timeout),
        ("comm.timeout", "-3 s", _config.get_timeout),
        ("comm.push-buffer", -1, _config.get_bytes),
        ("launch.min-workers", "many", _config.get_count),
        ("launch.min-workers", None, _config.get_count),
        ("data.imbalance", "much", _config.get_fraction),
        ("elastic", "sometimes", _config.is_set),
        ("elastic", None, _config.is_set),
        ("elastic", [], _config.is_set),
    ],
)
def test_the_error_names_the_key_and_the_value(configured, key, value, read):
    values = {f"dask-ma.{key}": value}
    with configured(values), pytest.raises(ValueError) as info:
        read(key)
    for part in (f"dask-ma.{key}", repr(value), "should be"):
        assert part in str(info.value)


def test_values_with_units(configured):
    values = {
        "dask-ma.comm.link-bandwidth": "2 kB",
        "dask-ma.comm.timeout": "2 minutes",
    }
    with configured(values):
        assert _config.get_bytes("comm.link-bandwidth") == 2000
        assert _config.get_timeout("comm.timeout") == 120


@pytest.mark.parametrize(
    ("value", "expected"),
    [(True, True), ("on", True), ("no", False), ("false", False), (0, False)],
)
def test_words_that_are_booleans(configured, value, expected):
    """In environment variables, "no" comes as a text."""
    with configured({"dask-ma.elastic": value}):
        assert _config.is_set("elastic") is expected


def test_a_fit_says_which_setting_is_wrong(configured):
    X, y = [[0.0], [1.0], [2.0]], [0, 1, 1]
    with (
        configured({"dask-ma.launch.min-workers": "many"}),
        pytest.raises(ValueError, match="dask-ma.launch.min-workers should be a whole"),
    ):
        MASGDClassifier().fit(X, y)
