"""What users can choose, and what they cannot."""

import numpy as np
import pytest

from dask_ma.sfb.exchange._settings import Settings
from dask_ma.sfb.topology import Topology


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"communication": "server", "wire_dtype": "float32"},
        {"communication": "full_matrix", "relay": False},
        {"compression": 0},
        {"staleness": np.int64(3), "broadcast": 2, "wire_dtype": "float64"},
    ],
)
def test_what_can_be(given):
    Settings(**given).check()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"communication": "peers"}, "communication must be one of auto, .*'peers'"),
        ({"staleness": -1}, "staleness must be an integer from 0 on"),
        ({"wire_dtype": "int8"}, "wire_dtype must be .* got 'int8'"),
        ({"compression": 1}, "compression must be from 0 to below 1, or None, got 1"),
        ({"compression": -0.1}, "compression must be"),
        ({"compression": np.nan}, "compression must be"),
        ({"broadcast": 0}, "broadcast must be at least 1 as a number, got 0"),
        (
            {"communication": "server", "staleness": 1},
            "staleness concerns factors, .* 'server', which sends none",
        ),
        ({"communication": "full_matrix", "broadcast": 1}, "broadcast concerns"),
        ({"communication": "full_matrix", "compression": 0.1}, "compression concerns"),
    ],
)
def test_what_cannot_be(given, message):
    with pytest.raises(ValueError, match=message):
        Settings(**given).check()


@pytest.mark.parametrize(
    ("given", "wants"),
    [
        ({}, False),
        ({"relay": False, "wire_dtype": "float32"}, False),
        ({"staleness": 1}, True),
        ({"broadcast": 1}, True),
        ({"compression": 0.0}, True),
    ],
)
def test_settings_that_ask_for_factors(given, wants):
    assert Settings(**given).wants_factors == wants


@pytest.mark.parametrize("n_ranks", [1, 2, 5])
def test_topologies(n_ranks):
    complete = Topology.complete(n_ranks)
    assert Settings().topology(n_ranks) == complete
    assert Settings(broadcast=9).topology(n_ranks) == complete
    ring = Settings(broadcast=1).topology(n_ranks)
    assert ring == Topology.optimal(n_ranks, min(1, n_ranks - 1))
    links = 1 - np.eye(n_ranks)
    for own in (complete, links, (links > 0).tolist()):
        assert Settings(broadcast=own).topology(n_ranks) == complete


def test_topologies_that_cannot_be():
    with pytest.raises(ValueError, match="of 4 ranks, but there are 3; give one for 3"):
        Settings(broadcast=np.roll(np.eye(4), 1, axis=1)).topology(3)
    with pytest.raises(ValueError, match="rank 2 cannot be reached from rank 0"):
        Settings(broadcast=[[0, 1, 0], [1, 0, 0], [1, 0, 0]]).topology(3)
    with pytest.raises(ValueError, match="must be square"):
        Settings(broadcast="ring").topology(3)
