"""Dirichlet distributions and bounds of likelihoods against quadrature and sampling.

The fit is checked against known parameters and scipy.optimize.
"""

import numpy as np
import pytest
from scipy import integrate, optimize, sparse, special, stats

from dask_ma.kernels import (
    InferenceSettings,
    dirichlet_bound,
    document_bounds,
    fit_dirichlet,
    fit_symmetric_dirichlet,
    infer_documents,
    sum_of_expected_logs,
    sums_of_prior,
    word_weights,
)

# Two categories each: a posterior and a prior.
PAIRS = [
    ([2.0, 3.0], [1.0, 1.0]),
    ([0.7, 0.5], [1.5, 0.3]),
    ([0.05, 4.0], [0.1, 0.1]),
    ([30.0, 2.0], [0.5, 5.0]),
    ([1.0, 1.0], [0.02, 3.0]),
]


def bound_by_quadrature(q, p):
    """Over the logit of the first category, where nothing is singular."""

    def integrand(u):
        logs = special.log_expit(u), special.log_expit(-u)
        log_q, log_p = (
            (a - 1) * logs[0] + (b - 1) * logs[1] - special.betaln(a, b)
            for a, b in (q, p)
        )
        return np.exp(log_q + sum(logs)) * (log_p - log_q)

    edges = [-600.0, -30.0, -5.0, 0.0, 5.0, 30.0, 600.0]
    pieces = zip(edges, edges[1:], strict=False)
    return sum(integrate.quad(integrand, *piece, limit=200)[0] for piece in pieces)


def mean_logs_of(parameters):
    """Expectations of the logarithms, for which the fit is exact."""
    return special.psi(parameters) - special.psi(np.sum(parameters))


def log_likelihood(parameters, mean_logs):
    value = special.gammaln(np.sum(parameters)) - special.gammaln(parameters).sum()
    return value + (parameters - 1) @ mean_logs


def drawn(n_categories, scale, seed=0):
    """Random parameters of about a scale."""
    return scale * np.random.default_rng(seed).uniform(0.5, 2, n_categories)


# Bound ------------------------------------------------------------------------------


@pytest.mark.parametrize("q, p", PAIRS)
def test_bound_by_quadrature(q, p):
    got = dirichlet_bound(np.array([q]), np.array(p))
    assert got.shape == (1,)
    assert got.dtype == np.float64
    assert got[0] == pytest.approx(bound_by_quadrature(q, p), rel=1e-7)


def test_bound_by_sampling():
    q, p = np.array([0.4, 1.0, 3.0, 7.0]), np.array([1.0, 0.5, 0.5, 2.0])
    x = np.random.default_rng(0).dirichlet(q, 100_000).T
    logs = stats.dirichlet.logpdf(x, p) - stats.dirichlet.logpdf(x, q)
    error = logs.std() / np.sqrt(len(logs))
    assert error < 0.02
    assert abs(dirichlet_bound(q[np.newaxis], p)[0] - logs.mean()) < 5 * error


@pytest.mark.each(2)
@pytest.mark.parametrize("n_categories", [1, 2, 9])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 10.0, 1e4])
def test_bound_of_the_prior_itself(scale, n_categories):
    prior = drawn(n_categories, scale)
    got = dirichlet_bound(np.tile(prior, (3, 1)), prior)
    np.testing.assert_allclose(got, 0, atol=1e-13 * max(1, prior.sum() ** 1.5))


def test_bound_is_below_0_elsewhere():
    rng = np.random.default_rng(1)
    q, p = 10 ** rng.uniform(-3, 2, (2, 300, 6))
    assert (dirichlet_bound(q, p) < 0).all()
    # It falls on the way from the prior.
    steps = np.geomspace(1, 50, 9)[:, np.newaxis]
    assert (np.diff(dirichlet_bound(p[0] * steps, p[0])) < 0).all()


def test_bound_by_rows():
    rng = np.random.default_rng(2)
    q, p = rng.gamma(1.0, size=(2, 7, 4)) + 0.01
    before = q.copy(), p.copy()
    single = [dirichlet_bound(a[np.newaxis], b)[0] for a, b in zip(q, p, strict=True)]
    np.testing.assert_allclose(dirichlet_bound(q, p), single, rtol=1e-12)
    same = dirichlet_bound(q, np.full((7, 4), 0.3))
    for prior in (np.full(4, 0.3), np.full((1, 4), 0.3), np.full((7, 1), 0.3)):
        np.testing.assert_allclose(dirichlet_bound(q, prior), same, rtol=1e-12)
    assert dirichlet_bound(q[:0], p[0]).shape == (0,)
    np.testing.assert_array_equal((q, p), before)


# Bound of a document's likelihood -----------------------------------------------------


def log_likelihood_of_counts(counts, topics, prior):
    """Exact logarithm of a document's likelihood under two known topics."""

    def integrand(u):
        logs = special.log_expit(u), special.log_expit(-u)
        shares = np.exp(logs)
        words = counts @ np.log(shares @ topics)
        return np.exp(prior @ logs - special.betaln(*prior) + words)

    edges = [-400.0, -20.0, -5.0, 0.0, 5.0, 20.0, 400.0]
    pieces = zip(edges, edges[1:], strict=False)
    options = {"limit": 200, "epsabs": 0.0, "epsrel": 1e-8}
    return np.log(sum(integrate.quad(integrand, *p, **options)[0] for p in pieces))


@pytest.mark.parametrize("prior", [[0.5, 0.5], [1.0, 1.0], [3.0, 0.2], [0.1, 0.1]])
def test_bound_is_below_the_exact_likelihood(prior):
    topics = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    prior = np.array(prior)
    X = np.array([[1, 0, 0], [2, 1, 0], [0, 0, 3], [4, 4, 4], [1, 0, 1.5]])
    # So many words were seen that the topics are as good as known.
    parameters = 1e9 * topics.T
    weights = word_weights(parameters, parameters.sum(axis=0), None)
    settings = InferenceSettings(max_iter=2000, tol=1e-10, threshold=None)
    rows = sparse.csr_array(X)
    found = infer_documents(rows, weights.weights, prior, settings)
    bounds = document_bounds(rows, found, weights, prior)
    exact = np.array([log_likelihood_of_counts(x, topics, prior) for x in X])
    assert (bounds < exact).all()
    assert (bounds > exact - 1.3).all()
    # Fewer iterations leave a wider gap.
    early = infer_documents(rows, weights.weights, prior, settings._replace(max_iter=1))
    gaps = exact - document_bounds(rows, early, weights, prior)
    assert (gaps > exact - bounds - 1e-9).all()
    assert gaps.max() > 1.01 * (exact - bounds).max()


# Fit --------------------------------------------------------------------------------


@pytest.mark.each(2)
@pytest.mark.parametrize("n_categories", [2, 3, 30])
@pytest.mark.parametrize("scale", [1e-4, 1e-2, 0.1, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("start", [0.1, 1.0, 3.0])
def test_fit_recovers_parameters(start, scale, n_categories):
    true = drawn(n_categories, scale)
    got = fit_dirichlet(mean_logs_of(true), np.full(n_categories, start * scale))
    np.testing.assert_allclose(got, true, rtol=1e-6)
    assert got.dtype == np.float64


@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("start", [1e-5, 1e-3, 1.0, 100.0, 1e4])
def test_fit_from_far_away(start, scale):
    true = drawn(5, scale)
    got = fit_dirichlet(mean_logs_of(true), np.full(5, start))
    np.testing.assert_allclose(got, true, rtol=1e-5)


def test_fit_of_unequal_parameters():
    """Over five orders of magnitude, from below, above and either side."""
    rng = np.random.default_rng(3)
    for _ in range(40):
        true = 10 ** rng.uniform(-3.5, 1.5, rng.integers(2, 40))
        mean_logs = mean_logs_of(true)
        factors = 10 ** rng.uniform(-1.5, 1.5, len(true))
        for start in (true * factors, np.full(len(true), 1.0), true / 30, true * 30):
            got = fit_dirichlet(mean_logs, start)
            np.testing.assert_allclose(got, true, rtol=1e-5)


@pytest.mark.parametrize("true", [[0.3, 0.3], [2.0, 0.5, 7.0], [0.05] * 8])
def test_fit_equals_that_of_an_optimizer(true):
    x = np.random.default_rng(4).dirichlet(true, 60)
    mean_logs = np.log(np.maximum(x, 1e-200)).mean(axis=0)

    def loss(logs):
        a = np.exp(logs)
        slopes = special.psi(a.sum()) - special.psi(a) + mean_logs
        return -log_likelihood(a, mean_logs), -slopes * a

    found = optimize.minimize(
        loss, np.zeros(len(true)), jac=True, method="BFGS", options={"gtol": 1e-7}
    )
    got = fit_dirichlet(mean_logs, np.ones(len(true)))
    np.testing.assert_allclose(got, np.exp(found.x), rtol=1e-5)
    # This is not the truth, which is known only from a sample.
    assert np.abs(got / true - 1).max() > 1e-3
    best = log_likelihood(got, mean_logs)
    for i in range(len(true)):
        for factor in (0.99, 1.01):
            other = np.where(np.arange(len(true)) == i, got * factor, got)
            assert log_likelihood(other, mean_logs) < best


@pytest.mark.parametrize("start", [0.01, 1.0, 50.0])
def test_fit_never_leads_downwards(start):
    for seed in range(20):
        mean_logs = mean_logs_of(drawn(4, 10.0 ** (seed % 5 - 2), seed))
        begin = np.full(4, start)
        end = fit_dirichlet(mean_logs, begin)
        assert log_likelihood(end, mean_logs) >= log_likelihood(begin, mean_logs)


def test_tiny_parameters_end_at_the_lowest():
    true = np.array([1e-8, 0.5, 1.0, 1e-9])
    got = fit_dirichlet(mean_logs_of(true), np.ones(4))
    np.testing.assert_array_equal(got[[0, 3]], 1e-5)
    np.testing.assert_allclose(got[1:3], true[1:3], rtol=1e-3)
    np.testing.assert_array_equal(
        fit_dirichlet(mean_logs_of(np.full(3, 1e-8)), np.ones(3)), 1e-5
    )


def test_observations_that_are_all_the_same():
    """The likelihood has no maximum; the parameters grow, in the right proportion."""
    shares = np.array([0.2, 0.3, 0.5])
    got = fit_dirichlet(np.log(shares), np.ones(3))
    assert np.isfinite(got).all()
    assert got.sum() > 1e3
    np.testing.assert_allclose(got / got.sum(), shares, rtol=1e-3)


def test_a_single_category():
    """Its share is always 1, so that every parameter is as good: it stays."""
    np.testing.assert_allclose(fit_dirichlet(np.zeros(1), np.array([2.0])), 2.0)


def test_order_of_categories():
    true = drawn(6, 0.2)
    mean_logs, start = mean_logs_of(true), np.linspace(0.1, 1, 6)
    order = np.random.default_rng(5).permutation(6)
    straight = fit_dirichlet(mean_logs, start)
    shuffled = fit_dirichlet(mean_logs[order], start[order])
    np.testing.assert_allclose(shuffled, straight[order], rtol=1e-9)


def test_arguments_are_not_changed():
    mean_logs, start = mean_logs_of(drawn(4, 0.3)), np.full(4, 1.0)
    before = mean_logs.copy(), start.copy()
    got = fit_dirichlet(mean_logs, start)
    np.testing.assert_array_equal((mean_logs, start), before)
    assert not np.shares_memory(got, start)
    np.testing.assert_array_equal(got, fit_dirichlet(mean_logs, [1, 1, 1, 1]))


# One parameter for all categories -----------------------------------------------------


@pytest.mark.each(2)
@pytest.mark.parametrize("true", [1e-3, 0.02, 0.5, 1.0, 30.0])
@pytest.mark.parametrize("n_categories", [2, 7, 5000])
def test_symmetric_fit_recovers_the_parameter(true, n_categories):
    """From the expectation of the logarithms, whatever the start."""
    mean_log = special.psi(true) - special.psi(n_categories * true)
    for start in (1e-4, 1.0, 1e3):
        found = fit_symmetric_dirichlet(mean_log, n_categories, start)
        assert found == pytest.approx(true, rel=1e-6)


def test_symmetric_fit_has_the_highest_likelihood():
    """Of observations that no symmetric distribution has made."""
    n = 12
    logs = np.log(np.random.default_rng(0).dirichlet(np.geomspace(0.1, 5, n), 50))

    def likelihood(parameter):
        return stats.dirichlet(np.full(n, parameter)).logpdf(np.exp(logs.T)).sum()

    found = fit_symmetric_dirichlet(logs.mean(), n, 1.0)
    for factor in (0.98, 1.02):
        assert likelihood(found) > likelihood(factor * found)


def test_symmetric_fit_ends_at_its_limits():
    n = 10
    even = -np.log(n) * (1 + 1e-15)
    assert fit_symmetric_dirichlet(even, n, 1.0) == pytest.approx(1e7)
    assert fit_symmetric_dirichlet(-1e9, n, 1.0) == pytest.approx(1e-5)
    assert fit_symmetric_dirichlet(0.0, 1, 0.3) == 0.3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(0, 3), (5, 3), (50_000, 7)])
def test_sum_of_expected_logs(dtype, shape):
    """Also where it takes several blocks of words."""
    parameters = np.random.default_rng(1).gamma(0.5, 2.0, shape).astype(dtype) + 1
    totals = parameters.sum(axis=0, dtype=np.float64) + 3.0
    expected = sum(
        (special.psi(own.astype(np.float64)) - special.psi(total)).sum()
        for own, total in zip(parameters.T, totals, strict=True)
    )
    value = sum_of_expected_logs(parameters, totals)
    assert value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", [(1, 1), (6, 1), (1, 3), (6, 3)])
def test_sums_of_a_prior_in_any_shape(shape):
    prior = np.random.default_rng(2).gamma(1.0, 1.0, shape).astype(np.float32)
    expected = np.broadcast_to(prior, (6, 3)).sum(axis=0, dtype=np.float64)
    sums = np.broadcast_to(sums_of_prior(prior, 6), 3)
    np.testing.assert_allclose(sums, expected, rtol=1e-12)
