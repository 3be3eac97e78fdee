"""What users can choose, and what they cannot."""

import numpy as np
import pytest

from dask_ma.sfb.exchange._settings import COMMUNICATION, Exchange
from dask_ma.sfb.topology import Topology


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"content": "server", "wire_dtype": "float32"},
        {"content": "full_matrix", "relay": False},
        {"compression": 0},
        {"staleness": np.int64(3), "broadcast": 2, "wire_dtype": "float64"},
    ],
)
def test_what_can_be(given):
    Exchange(**given).check()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"content": "peers"}, "'content' parameter of Exchange must be .*'peers'"),
        ({"content": None}, "'content' parameter"),
        ({"staleness": -1}, "'staleness' parameter of Exchange must be an int"),
        ({"staleness": 0.5}, "'staleness' parameter"),
        ({"relay": 2}, "'relay' parameter"),
        ({"averaging": None}, "'averaging' parameter"),
        ({"wire_dtype": "int8"}, "'wire_dtype' parameter .* Got 'int8'"),
        ({"compression": 1}, "'compression' parameter .* Got 1"),
        ({"compression": -0.1}, "'compression' parameter"),
        ({"compression": np.nan}, "'compression' parameter"),
        ({"broadcast": 0}, "'broadcast' parameter .* Got 0"),
        (
            {"content": "server", "staleness": 1},
            "staleness concerns factors, .* 'server', which sends none",
        ),
        ({"content": "full_matrix", "broadcast": 1}, "broadcast concerns"),
        ({"content": "full_matrix", "compression": 0.1}, "compression concerns"),
    ],
)
def test_what_cannot_be(given, message):
    with pytest.raises(ValueError, match=message):
        Exchange(**given).check()


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
def test_exchanges_that_ask_for_factors(given, wants):
    assert Exchange(**given)._wants_factors == wants


@pytest.mark.parametrize("n_ranks", [1, 2, 5])
def test_topologies(n_ranks):
    complete = Topology.complete(n_ranks)
    assert Exchange()._topology(n_ranks) == complete
    assert Exchange(broadcast=9)._topology(n_ranks) == complete
    ring = Exchange(broadcast=1)._topology(n_ranks)
    assert ring == Topology.optimal(n_ranks, min(1, n_ranks - 1))
    links = 1 - np.eye(n_ranks)
    for own in (complete, links, (links > 0).tolist()):
        assert Exchange(broadcast=own)._topology(n_ranks) == complete


def test_topologies_that_cannot_be():
    with pytest.raises(ValueError, match="of 4 ranks, but there are 3; give one for 3"):
        Exchange(broadcast=np.roll(np.eye(4), 1, axis=1))._topology(3)
    with pytest.raises(ValueError, match="rank 2 cannot be reached from rank 0"):
        Exchange(broadcast=[[0, 1, 0], [1, 0, 0], [1, 0, 0]])._topology(3)
    with pytest.raises(ValueError, match="must be square"):
        Exchange(broadcast="ring")._topology(3)


def test_a_name_is_an_exchange():
    own = Exchange("server")
    assert COMMUNICATION.as_object(own) is own
    for content in ("auto", "factors", "full_matrix", "server"):
        assert COMMUNICATION.as_object(content).content == content
    for wrong in ("mail", None, Exchange):
        with pytest.raises(ValueError, match="communication must be a str among"):
            COMMUNICATION.as_object(wrong)
