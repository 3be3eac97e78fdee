"""Workers that leave a run in order and are not lost.

Their ranks end with a round, or, where they have come to none, all ranks begin anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

from distributed import Client

from dask_ma import _config
from dask_ma.comm import has_heeded
from dask_ma.engine._liveness import has_retired, run_on
from dask_ma.engine._run import Run


class Departures:
    """Retired workers of a run, and how long their ranks are waited for.

    Parameters
    ----------
    run : Run
        The run.
    client : Client
        Client that follows it.

    Attributes
    ----------
    early : set of str
        Retired workers that left before the ranks had come to a round.
    """

    def __init__(self, run: Run, client: Client) -> None:
        self._run = run
        self._client = client
        self._deadlines: dict[str, float] = {}
        self.early: set[str] = set()

    def __contains__(self, address: str) -> bool:
        """Whether a worker of the run has left in order."""
        return address in self._deadlines or address in self.early

    def note(self, gone: Iterable[str]) -> None:
        """Find out which of the workers that have gone were retired.

        Their ranks end with their round, together with all others, if these look for
        workers that want to go. It does not matter whether they have ended by now.

        Parameters
        ----------
        gone : iterable of str
            Addresses that the scheduler does not know any more.
        """
        new = {*gone} - self._deadlines.keys() - self.early
        retired = [address for address in new if has_retired(self._client, address)]
        others = sorted(a for a in {*self._run.addresses} - new if a not in self)
        if not retired or not others:
            return
        answers = run_on(self._client, others, has_heeded, self._run.run_id)
        if any(answers.values()):
            patience = _config.get_timeout("launch.leave-timeout")
            self._deadlines |= dict.fromkeys(retired, monotonic() + patience)
        elif self._can_begin_anew and {*answers.values()} == {None}:
            self.early.update(retired)

    @property
    def _can_begin_anew(self) -> bool:
        """Whether anybody starts the ranks again; for others a retirement is a loss."""
        return self._run.fit_info is not None and self._run.fit_info.keeps

    def overdue(self) -> set[str]:
        """Workers that were waited for in vain."""
        now = monotonic()
        return {a for a, deadline in self._deadlines.items() if now >= deadline}
