"""Dirichlet distributions: their part of a bound, and the prior that fits them best."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import special

_LOWEST_PARAMETER = 1e-5  # a prior nearer to 0 would make all topics but one impossible
_HIGHEST_SUM = 1e8  # where observations that are all alike would lead beyond
_MOST_STEPS = 100
_HALVINGS = 20
_CLOSE_ENOUGH = 1e-6
_ELEMENTS_AT_ONCE = 2**17


def dirichlet_bound(parameters: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """``E_q[log p(x) - log q(x)]``: minus the divergence of q from the prior p.

    Parameters
    ----------
    parameters : ndarray of float64, shape (n, n_categories)
        Each row is one distribution q.
    prior : ndarray, broadcast to the shape of `parameters`
        Their priors p.

    Returns
    -------
    bounds : ndarray of float64, shape (n,)
        Not above 0.
    """
    prior = np.broadcast_to(prior, parameters.shape)
    totals = parameters.sum(axis=1)
    logs = special.psi(parameters) - special.psi(totals)[:, np.newaxis]
    bounds = ((prior - parameters) * logs).sum(axis=1)
    bounds += (special.gammaln(parameters) - special.gammaln(prior)).sum(axis=1)
    return np.asarray(
        bounds + special.gammaln(prior.sum(axis=1)) - special.gammaln(totals)
    )


def fit_dirichlet(mean_logs: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Parameters of the Dirichlet distribution with the highest likelihood.

    Steps of Newton's method, whose matrix is diagonal plus constant and so is inverted
    in linear time, alternate with steps of a fixed-point iteration, which always lead
    upwards, also far from the optimum.

    Parameters
    ----------
    mean_logs : ndarray of float64, shape (n_categories,)
        Mean over the observations of the logarithms of the proportions, or of their
        expectations.
    start : ndarray of float64, shape (n_categories,)
        Where to begin, positive.

    Returns
    -------
    parameters : ndarray of float64, shape (n_categories,)
        Not below 1e-5. With one category, where all are equally likely, the start.

    References
    ----------
    T. P. Minka, Estimating a Dirichlet distribution, 2000, sections 1.1 and 1.2. Blei,
    Ng and Jordan, Latent Dirichlet allocation, 2003, appendix A.4.2.
    """
    parameters = np.array(start, dtype=np.float64)
    if len(parameters) == 1:  # all are equally likely
        return parameters
    for _ in range(_MOST_STEPS):
        last = parameters
        parameters = _fixed_point(parameters, mean_logs)
        parameters = _newton(parameters, mean_logs)
        parameters = np.maximum(parameters, _LOWEST_PARAMETER)
        settled = np.abs(np.log(parameters / last)).max() < _CLOSE_ENOUGH
        if settled or parameters.sum() > _HIGHEST_SUM:
            break
    return parameters


def _log_likelihood(parameters: np.ndarray, mean_logs: np.ndarray) -> float:
    """Mean logarithm of the density, but for a term without parameters."""
    value = special.gammaln(parameters.sum()) - special.gammaln(parameters).sum()
    return float(value + parameters @ mean_logs)


def _fixed_point(parameters: np.ndarray, mean_logs: np.ndarray) -> np.ndarray:
    """Solve ``digamma(new) = digamma(sum) + mean_logs``."""
    wanted = special.psi(parameters.sum()) + mean_logs
    far = wanted < -2.22
    new = np.exp(np.minimum(wanted, 700.0)) + 0.5
    new[far] = -1 / (wanted[far] - special.psi(1))
    for _ in range(5):  # Newton's method from there gives all digits
        new -= (special.psi(new) - wanted) / special.polygamma(1, new)
    return np.asarray(new)


def _newton(parameters: np.ndarray, mean_logs: np.ndarray) -> np.ndarray:
    """A step of Newton's method, shortened until it leads upwards."""
    total = parameters.sum()
    slopes = special.psi(total) - special.psi(parameters) + mean_logs
    # The matrix is diag(curvatures) + constant.
    curvatures = -special.polygamma(1, parameters)
    constant = special.polygamma(1, total)
    mean = (slopes / curvatures).sum() / (1 / constant + (1 / curvatures).sum())
    step = (slopes - mean) / curvatures
    # No parameter may shrink to less than a tenth.
    scale = min(1.0, 0.9 / max(0.9, (step / parameters).max()))
    before = _log_likelihood(parameters, mean_logs)
    for _ in range(_HALVINGS):
        trial = parameters - scale * step
        if _log_likelihood(trial, mean_logs) >= before:
            return np.asarray(trial)
        scale /= 2
    return parameters


def fit_symmetric_dirichlet(mean_log: float, n_categories: int, start: float) -> float:
    """Parameter of the symmetric Dirichlet distribution with the highest likelihood.

    The slope of the likelihood, ``digamma(n x) - digamma(x) + mean_log``, falls with
    the parameter `x`, so it has one root.

    Parameters
    ----------
    mean_log : float
        Mean over observations and categories of the logarithms of the proportions, or
        of their expectations; below ``-log(n_categories)``.
    n_categories : int
        Number of categories. With one, where all are equally likely, the start is
        returned.
    start : float
        Where to begin, positive.

    Returns
    -------
    parameter : float
        From 1e-5 to 1e8, divided by the number of categories if that is larger.

    References
    ----------
    H. Wallach, D. Mimno, A. McCallum, Rethinking LDA: why priors matter, 2009.
    """
    if n_categories == 1:
        return start

    def slope(log: float) -> float:
        x = np.exp(log)
        return float(special.psi(n_categories * x) - special.psi(x) + mean_log)

    lowest = np.log(_LOWEST_PARAMETER)
    highest = max(lowest, np.log(_HIGHEST_SUM / n_categories))
    if slope(lowest) <= 0:
        return float(np.exp(lowest))
    if slope(highest) >= 0:
        return float(np.exp(highest))
    from scipy import optimize  # few fits need it, and it takes a while to load

    return float(np.exp(optimize.brentq(slope, lowest, highest, xtol=1e-12)))


def sum_of_expected_logs(parameters: np.ndarray, totals: np.ndarray) -> float:
    """Sum over some words and all topics of ``E_q[log beta]``.

    Parameters
    ----------
    parameters : ndarray of shape (n_words, n_topics)
        Parameters of q of these words.
    totals : ndarray of float64, shape (n_topics,)
        Sums of the parameters over all words of the vocabulary.

    Returns
    -------
    value : float
        Worked out in double precision, some words at a time.
    """
    psi_totals = special.psi(totals)
    value = 0.0
    for rows in _some_rows(parameters):
        value += float((special.psi(parameters[rows].astype(float)) - psi_totals).sum())
    return value


def topics_bound(
    parameters: np.ndarray, prior: np.ndarray, totals: np.ndarray
) -> float:
    """Part of some words in the bound of the topics' Dirichlet distributions.

    With :func:`topics_bound_of_totals`, the parts of all words add up to
    ``sum_k E_q[log p(beta_k) - log q(beta_k)]``.

    Parameters
    ----------
    parameters : ndarray of shape (n_words, n_topics)
        Parameters of q of these words.
    prior : ndarray of shape (n_words or 1, n_topics or 1)
        Parameters of the prior of these words.
    totals : ndarray of float64, shape (n_topics,)
        Sums of the parameters over all words of the vocabulary.

    Returns
    -------
    bound : float
        Worked out in double precision, some words at a time.
    """
    psi_totals = special.psi(totals)
    bound = 0.0
    for rows in _some_rows(parameters):
        own = parameters[rows].astype(np.float64)
        prior_of = (prior if len(prior) == 1 else prior[rows]).astype(np.float64)
        bound += ((prior_of - own) * (special.psi(own) - psi_totals)).sum()
        bound += special.gammaln(own).sum()
        bound -= special.gammaln(prior_of).sum() * (own.size / prior_of.size)
    return float(bound)


def _some_rows(parameters: np.ndarray) -> Iterator[slice]:
    """Slices of the rows, with few elements each."""
    n_rows, n_columns = parameters.shape
    step = max(1, _ELEMENTS_AT_ONCE // n_columns)
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def topics_bound_of_totals(prior_sums: np.ndarray, totals: np.ndarray) -> float:
    """Part of the bound of the topics that belongs to no word.

    Parameters
    ----------
    prior_sums : ndarray of float64, shape (n_topics,) or (1,)
        Sums of the prior's parameters over all words.
    totals : ndarray of float64, shape (n_topics,)
        Sums of the parameters of q over all words.

    Returns
    -------
    bound : float
    """
    prior_sums = np.broadcast_to(prior_sums, totals.shape)
    return float((special.gammaln(prior_sums) - special.gammaln(totals)).sum())


def sums_of_prior(prior: np.ndarray, n_words: int) -> np.ndarray:
    """Sums of the prior's parameters over all words.

    Parameters
    ----------
    prior : ndarray of shape (n_words or 1, n_topics or 1)
        Parameters of the prior.
    n_words : int
        Size of the vocabulary.

    Returns
    -------
    sums : ndarray of float64, shape (n_topics,) or (1,)
    """
    return np.asarray(prior.sum(axis=0, dtype=np.float64) * (n_words / len(prior)))
