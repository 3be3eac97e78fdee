"""matplotlib is optional, and loaded late."""

import subprocess
import sys

import pytest

from dask_ma.plotting import TopologyDisplay


def test_import_does_not_load_matplotlib():
    code = "import sys, dask_ma.plotting; print('matplotlib' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


def test_without_matplotlib(monkeypatch):
    for name in [
        name for name in sys.modules if name.partition(".")[0] == "matplotlib"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[plot\]"'):
        TopologyDisplay.from_group_size(4)
