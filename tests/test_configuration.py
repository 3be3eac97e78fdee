"""Values of the configuration that cannot be read."""

from __future__ import annotations

import pytest

from dask_ma import _config


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("comm.link-bandwidth", "125 MB/s", _config.get_bytes),
        ("comm.link-bandwidth", ["1 MB"], _config.get_bytes),
        ("comm.timeout", "5 parsecs", _config.get_timeout),
        ("comm.timeout", "soon", _config.get_timeout),
    ],
)
def test_the_error_names_the_key_and_the_value(configured, key, value, read):
    values = {f"dask-ma.{key}": value}
    with configured(values), pytest.raises(ValueError) as info:
        read(key)
    for part in (f"dask-ma.{key}", repr(value), "such as"):
        assert part in str(info.value)


def test_values_with_units(configured):
    values = {
        "dask-ma.comm.link-bandwidth": "2 kB",
        "dask-ma.comm.timeout": "2 minutes",
    }
    with configured(values):
        assert _config.get_bytes("comm.link-bandwidth") == 2000
        assert _config.get_timeout("comm.timeout") == 120
