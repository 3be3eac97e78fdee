"""The ``dask-ma`` section of Dask's configuration."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import dask_ma
from dask_ma import _config

DEFAULTS = yaml.safe_load(Path(dask_ma.__file__).with_name("dask_ma.yaml").read_text())[
    "dask-ma"
]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("500 ms", 0.5), ("30 minutes", 1800), ("5s", 5), (2, 2), (0.25, 0.25), ("3", 3)],
)
def test_times(configured, value, seconds):
    with configured({"dask-ma.comm.timeout": value}):
        got = _config.get_timeout("comm.timeout")
    assert isinstance(got, float)
    assert got == seconds


@pytest.mark.parametrize(
    ("value", "nbytes"), [("16 KiB", 16384), ("2 kB", 2000), (7, 7), ("1 MiB", 2**20)]
)
def test_bytes(configured, value, nbytes):
    with configured({"dask-ma.comm.push-buffer": value}):
        got = _config.get_bytes("comm.push-buffer")
    assert isinstance(got, int)
    assert got == nbytes


@pytest.mark.parametrize(
    ("read", "keys"),
    [
        (
            _config.get_timeout,
            ["comm.timeout"]
            + [f"launch.{k}" for k in DEFAULTS["launch"] if k != "min-workers"],
        ),
        (
            _config.get_bytes,
            [
                "comm.message-overhead",
                "comm.held-bytes",
                "comm.push-buffer",
                "data.embed-limit",
            ],
        ),
    ],
    ids=["times", "bytes"],
)
def test_every_default_can_be_read(read, keys):
    for key in keys:
        assert read(key) > 0


def test_an_unknown_key():
    with pytest.raises(KeyError, match="no-such-key"):
        _config.get("comm.no-such-key")


def test_the_users_values_win_over_the_defaults(tmp_path):
    (tmp_path / "user.yaml").write_text("dask-ma: {launch: {poll-interval: 70 ms}}")
    environment = os.environ | {
        "DASK_CONFIG": str(tmp_path),
        "DASK_DASK_MA__COMM__TIMEOUT": "11 s",
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
    }
    program = (
        "import dask, json; dask.config.set({'dask-ma.data.imbalance': 0.5})\n"
        "from dask_ma import _config as c\n"
        "print(json.dumps([c.get_timeout('comm.timeout'), c.get('data.imbalance'),"
        "c.get_timeout('launch.poll-interval'), c.get('data.placement')]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(result.stdout) == [11, 0.5, 0.07, DEFAULTS["data"]["placement"]]
