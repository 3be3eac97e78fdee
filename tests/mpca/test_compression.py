"""Models in fewer bits: codes, rests, agreement of ranks, bytes, accuracy."""

import dask
import numpy as np
import pytest

from dask_ma import MPCAClassifier, MPCARegressor
from dask_ma.comm import LocalGroup
from dask_ma.mpca import strategies
from dask_ma.mpca.strategies._compression import (
    BLOCK,
    CODECS,
    CompressedMean,
    Difference,
    DifferenceCoder,
)

every_codec = pytest.mark.parametrize("name", sorted(CODECS))
KINDS = {"mpca": strategies.MPCA, "synchronous": strategies.Synchronous}


def rounded(name, values):
    codec = CODECS[name]
    return codec.decode(codec.encode(values), values.dtype)


# Codes --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_values", [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 7])
def test_eight_bits_round_to_parts_of_the_largest(dtype, n_values):
    rng = np.random.default_rng(0)
    # Blocks of sizes of their own: one scale for all would round most of them to 0.
    size = 10.0 ** (-3 * (np.arange(n_values) // BLOCK))
    values = (rng.normal(size=n_values) * size).astype(dtype)
    found = rounded("int8", values)
    assert found.dtype == dtype
    for start in range(0, n_values, BLOCK):
        block = slice(start, start + BLOCK)
        step = abs(values[block]).max() / 127
        assert abs(found[block] - values[block]).max() <= 0.5001 * step
        places = found[block] / step
        np.testing.assert_allclose(places, np.rint(places), atol=1e-3)


def test_sixteen_bits_are_those_of_torch():
    torch = pytest.importorskip("torch", reason="its bfloat16 is to compare with")
    rng = np.random.default_rng(0)
    values = np.ldexp(rng.normal(size=2000), rng.integers(-30, 30, 2000))
    values = np.concatenate([values, [0, -0.0, 1, 1 + 2**-8, 1 + 3 * 2**-8]])
    values = values.astype(np.float32)
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(rounded("bf16", values), expected)
    np.testing.assert_array_equal(
        rounded("bf16", values.astype(float)), expected.astype(float)
    )


@every_codec
def test_nothing_stays_nothing(name):
    values = np.zeros(2 * BLOCK + 3, np.float32)
    values[BLOCK] = 1e-44  # the scale of which is 0 in float32
    np.testing.assert_allclose(rounded(name, values), 0, atol=1e-43)


@every_codec
def test_what_rounding_leaves_comes_later(name):
    """A change below half a step is lost each time, but comes in the sum."""
    coder = DifferenceCoder(name, 2, 2, np.dtype(float))
    forgetful = DifferenceCoder(name, 2, 2, np.dtype(float), feedback=False)
    change, known = np.array([1.0, 0.0030001]), np.zeros(2)
    sums = np.zeros((2, 2))
    for n_sent in range(1, 200):
        for total, each in zip(sums, (coder, forgetful), strict=True):
            total += each.decode(0, each.encode(0, change, known), known)
        assert abs(sums[0] - n_sent * change).max() <= 1 / 127
    assert abs(sums[1] - n_sent * change).max() > 1e-4


@every_codec
def test_values_that_are_no_parameters_are_sent_as_they_are(name):
    coder = DifferenceCoder(name, 30, 20, np.dtype(np.float32))
    rng = np.random.default_rng(0)
    values, known = rng.normal(size=(2, 30)).astype(np.float32)
    for start, stop, n_same in ((0, 12, 0), (12, 24, 4), (24, 30, 6)):
        part = slice(start, stop)
        sent = coder.encode(start, values[part], known[part])
        assert len(sent.codes[0]) == stop - start - n_same
        got = coder.decode(start, Difference(*sent), known[part])
        assert got.dtype == np.float32
        exact = slice(stop - start - n_same, None)
        np.testing.assert_array_equal(got[exact], values[part][exact])
        np.testing.assert_allclose(got, values[part], atol=0.03)


# The mean of all ranks ----------------------------------------------------------------


@every_codec
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_all_ranks_have_the_same_mean(name, n_ranks, run_ranks):
    start = np.linspace(-1, 1, 40).astype(np.float32)

    def work(group):
        mean = CompressedMean(group, name, 33, start)
        rng = np.random.default_rng(group.rank)
        joint, exact, joints = start, [], []
        for number in range(6):
            model = joint + rng.normal(size=40).astype(np.float32)
            weight = float(number != 3) * (1 + group.rank * (number != 4))
            exact.append((model, weight))
            joint = mean.update(model, weight, joint)
            joints.append(joint)
        return exact, joints

    results = run_ranks(work, n_ranks)
    for number in range(6):
        joints = [joints[number] for _, joints in results]
        for joint in joints:
            np.testing.assert_array_equal(joint, joints[0])
        models, weights = zip(*(exact[number] for exact, _ in results), strict=True)
        if sum(weights) == 0:
            # But for what rounding had left before.
            before = results[0][1][number - 1]
            np.testing.assert_allclose(joints[0], before, atol=0.05)
            continue
        expected = np.average(models, axis=0, weights=weights)
        np.testing.assert_allclose(joints[0][33:], expected[33:], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(joints[0][:33], expected[:33], atol=0.06)


# Fits ---------------------------------------------------------------------------------


def score_of(digits, chosen, **params):
    model = MPCAClassifier(
        (32,), strategy=chosen, n_ranks=2, max_iter=15, batch_size=32, tol=None,
        learning_rate_init=0.003, random_state=0, **params,
    )  # fmt: skip
    return model.fit(*digits.train).score(*digits.test)


@pytest.fixture(scope="module")
def exact_score(digits):
    return score_of(digits, strategies.Synchronous())


@every_codec
def test_means_are_as_accurate(digits, exact_score, name):
    """Within 0.3 points, which are less than three of the images."""
    assert exact_score > 0.88
    score = score_of(digits, strategies.Synchronous(compression=name))
    assert score == pytest.approx(exact_score, abs=0.003)


@pytest.mark.parametrize(("n_phases", "name"), [(1, "int8"), (2, "bf16"), (3, "int8")])
def test_ranks_that_do_not_wait_learn(digits, n_phases, name):
    """What they learn depends on the clock, too, by some points."""
    chosen = strategies.MPCA(n_phases=n_phases, compression=name)
    assert score_of(digits, chosen, learning_rate="cosine") > 0.84


def regression_score(compression):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 8))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
    model = MPCARegressor(
        (40,), strategy=strategies.Synchronous(compression=compression), n_ranks=3,
        max_iter=20, batch_size=20, learning_rate_init=0.005, tol=None, random_state=0,
    ).fit(X[:900], y[:900])  # fmt: skip
    return model.score(X[900:], y[900:])


@pytest.fixture(scope="module")
def exact_regression():
    return regression_score(None)


@every_codec
def test_regressions_are_as_good(exact_regression, name):
    assert exact_regression > 0.9
    assert regression_score(name) == pytest.approx(exact_regression, abs=0.003)


@pytest.mark.parametrize("name", [None, "bf16", "int8"])
def test_means_take_the_bytes_of_the_formula(monkeypatch, name):
    """2 (K - 1) / K of the model from each rank, in so many bits."""
    create = LocalGroup.create
    monkeypatch.setattr(LocalGroup, "create", lambda n_ranks: create(n_ranks, 1))
    X = np.random.default_rng(0).normal(size=(64, 200)).astype(np.float32)
    chosen = strategies.Synchronous(period=1, compression=name)
    with dask.config.set({"dask-ma.comm.message-overhead": 0}):
        model = MPCAClassifier(
            (500,), strategy=chosen, n_ranks=4, max_iter=6, tol=None, batch_size=8,
            random_state=0,
        ).fit(X, np.arange(64) % 2)  # fmt: skip
    n_bytes = {None: 4.0, "bf16": 2.0, "int8": 1 + 4 / BLOCK}[name]
    n_values = model._vector().size
    # The first record holds what ranks have sent before the first step.
    later = model.history_[1:]
    n_exchanges = sum(record["n_exchanges"] for record in later)
    assert n_exchanges >= 10
    sent = sum(record["bytes_sent"] for record in later)
    assert sent / (n_exchanges * 6) == pytest.approx(n_bytes * n_values, rel=0.01)


def test_strategies_without_it_say_so():
    for kind in (strategies.ElasticAveraging, strategies.ParameterServer):
        with pytest.raises(TypeError, match="keyword argument 'compress|no arguments"):
            kind(compression="int8")
    with pytest.raises(ValueError, match="'compression'.*must be a str among.*'bf16'"):
        strategies.MPCA(compression="int4").check()
