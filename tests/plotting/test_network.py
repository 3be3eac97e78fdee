"""Topologies of partial broadcasting: the arrows against the links."""

import numpy as np
import pytest

from dask_ma.plotting import NetworkDisplay
from dask_ma.sfb.topology import Topology


def drawn_links(display):
    """The ranks nearest to the ends of each arrow."""
    n_ranks = display.topology.n_ranks
    angles = 2 * np.pi * np.arange(n_ranks) / n_ranks
    places = np.column_stack([np.sin(angles), np.cos(angles)])
    arrows = display.arrows_
    starts = np.column_stack([arrows.X, arrows.Y])
    stops = starts + np.column_stack([arrows.U, arrows.V])
    nearest = [
        np.linalg.norm(points[:, None] - places, axis=2).argmin(axis=1)
        for points in (starts, stops)
    ]
    return list(zip(*(ranks.tolist() for ranks in nearest), strict=True))


@pytest.mark.parametrize(("n_ranks", "n_peers"), [(2, 1), (12, 4), (40, 6)])
def test_arrows_are_the_links(n_ranks, n_peers):
    topology = Topology.optimal(n_ranks, n_peers)
    display = NetworkDisplay.from_topology(topology)
    display.figure_.canvas.draw()
    links = [(rank, peer) for rank in range(n_ranks) for peer in topology.peers[rank]]
    assert drawn_links(display) == links


def test_labels():
    display = NetworkDisplay.from_topology(Topology.optimal(12, 4))
    assert [text.get_text() for text in display.ax_.texts] == list(map(str, range(12)))
    assert display.ax_.get_xlabel() == (
        "12 ranks, 4 peers each: 1.64 steps to another rank,\nat most 2"
    )
    points = display.ax_.lines[0].get_xydata()
    np.testing.assert_allclose(points[:4:3], [[0, 1], [1, 0]], atol=1e-12)


def test_labels_of_unequal_and_of_many_ranks():
    star = NetworkDisplay.from_topology(Topology([[1, 2], [0], [0]]))
    assert star.ax_.get_xlabel().startswith("3 ranks, 1 to 2 peers each: 1.33 steps")
    many = NetworkDisplay.from_topology(Topology.optimal(80, 1))
    assert [text.get_text() for text in many.ax_.texts] == [
        str(rank) for rank in range(0, 80, 3)
    ]


def test_one_rank():
    display = NetworkDisplay.from_topology(Topology.complete(1))
    display.figure_.canvas.draw()
    assert drawn_links(display) == []
    assert "0.00 steps" in display.ax_.get_xlabel()


def test_on_given_axes(pyplot):
    figure, ax = pyplot.subplots()
    display = NetworkDisplay.from_topology(Topology.complete(4), ax=ax)
    assert display.ax_ is ax
    assert display.figure_ is figure
    assert display.plot(ax) is display
