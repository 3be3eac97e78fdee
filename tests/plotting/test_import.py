"""matplotlib, which is optional, where it is not there."""

import sys

import pytest

from dask_ma.plotting import TopologyDisplay


def test_without_matplotlib(monkeypatch):
    for name in [
        name for name in sys.modules if name.partition(".")[0] == "matplotlib"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[plot\]"'):
        TopologyDisplay.from_group_size(4)
