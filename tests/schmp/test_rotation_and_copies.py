"""Steps that are safe for one rank are safe in rotation, and not for copies."""

import runpy
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "plot_rotation_program.py"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_the_same_step_for_rotation_and_for_copies():
    """As in figure 6 of the paper; the program is that of the gallery."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    found = runpy.run_path(str(EXAMPLE))
    curves, before = found["curves"], np.mean(found["ratings"] ** 2) / 0.4
    assert len(curves) == 3
    assert found["figure"].axes
    assert curves["rotation, 1 rank"][-1] < 0.01 * before
    assert curves["rotation, 8 ranks"][-1] < 0.01 * before
    assert not curves["copies, 8 ranks"][-1] < 100 * before
