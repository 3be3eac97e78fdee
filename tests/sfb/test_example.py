"""The model of the example; the whole of it runs with the gallery."""

from pathlib import Path

import numpy as np

from dask_ma.sfb import run

PATH = Path(__file__).parents[2] / "examples" / "plot_factor_model.py"


def read():
    """The example's parts; the second one defines the model."""
    return PATH.read_text().split("# %%")


def test_it_is_short():
    lines = "\n".join(read()[1:]).splitlines()
    code = [line for line in lines if line.strip() and not line.startswith("#")]
    model = read()[1].split("class LowRankRegression")[1].splitlines()
    assert len([line for line in model if line.strip()]) < 20
    # Without the figures.
    assert len(code) - len(read()[-1].splitlines()) < 50


def test_the_model_finds_a_matrix_of_low_rank():
    names = {}
    exec(compile("".join(read()[:2]), str(PATH), "exec"), names)
    rng = np.random.default_rng(0)
    truth = np.outer([1, -2, 3, 1], [2, 0, 1, 1, -1])
    inputs = rng.normal(size=(300, 5))
    targets = inputs @ truth.T + rng.normal(size=(300, 4))
    X = np.hstack([targets, inputs])
    model = names["LowRankRegression"](4, alpha=0.3, learning_rate=0.5)
    options = {"batch_size": 300, "communication": "factors", "random_state": 0}
    result = run(model, X, n_passes=40, n_ranks=2, dtype="float64", **options)
    matrix = result.matrix[:, 4:]
    assert np.linalg.matrix_rank(matrix, tol=1e-8) == 1
    assert not result.matrix[:, :4].any()
    # The direction is right; the penalty takes off some of the length.
    np.testing.assert_allclose(matrix, truth, atol=0.4)
    objective = result.history[-1]["objective"]
    residual = inputs @ matrix.T - targets
    trace = np.linalg.norm(matrix, "nuc")
    assert np.isclose(objective, (residual**2).sum() / 600 + 0.3 * trace)
    # Nowhere near does the objective get smaller.
    for _ in range(20):
        near = matrix + 1e-3 * rng.normal(size=matrix.shape)
        residual = inputs @ near.T - targets
        loss = (residual**2).sum() / 600
        assert loss + 0.3 * np.linalg.norm(near, "nuc") > objective
