"""The strategy of a fit, and what the user is to know of it."""

from __future__ import annotations

from dask_ma._settings import Settings
from dask_ma.mpca.networks._network import Network
from dask_ma.mpca.strategies._parameters import (
    MPCA,
    Gradients,
    Local,
    ParameterServer,
)

#: Steps of an epoch, up to which "auto" takes gradients. Ranks that go their own ways
#: would hardly meet in so few, and what they come to depends on the clock. Each step is
#: an exchange: with many of them, the messages would take most of the time.
FEW_STEPS = 16

_UNEVEN_ADVICE = (
    "; networks trained on them alone drift apart, and the joint one may be far worse "
    "than that of one rank. shuffle='ranks' deals the rows out, for which nearly all "
    "of them move to another worker once; strategy='gradients' makes each step with "
    "rows of all ranks"
)


def choose_strategy(
    given: Settings | str,
    n_ranks: int,
    n_steps: int,
    network: Network,
    uneven: str | None,
) -> Settings:
    """What is asked for, or for "auto" what suits the rows; the same on all ranks.

    Parameters
    ----------
    given : Settings or str
        An object of :mod:`dask_ma.mpca.strategies`, or "auto".
    n_ranks : int
        Number of ranks; with one all strategies are alike.
    n_steps : int
        Of an epoch, where all ranks make them together.
    network : Network
        What is trained.
    uneven : str or None
        How classes or targets differ between ranks, if they do.

    Returns
    -------
    chosen : Settings
        For "auto" gradients where an epoch has few steps or the ranks have different
        rows, and "mpca" otherwise.
    """
    if n_ranks == 1:
        return Local()
    if not isinstance(given, str):
        return given
    is_short = n_steps <= FEW_STEPS
    if network.adds_gradients and (is_short or uneven is not None):
        return Gradients()
    return MPCA()


def uneven_note(chosen: Settings, uneven: str | None) -> tuple[str, ...]:
    """What the user is to know of the rows of the ranks.

    Parameters
    ----------
    chosen : Settings
        The strategy.
    uneven : str or None
        How classes or targets differ between ranks, if they do.

    Returns
    -------
    notes : tuple of str
    """
    # Where each step is made for all ranks they have one model, not several.
    if uneven is None or isinstance(chosen, Gradients | ParameterServer):
        return ()
    return (uneven + _UNEVEN_ADVICE,)
