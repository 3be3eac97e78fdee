"""Workers that leave a run in order, whose ranks end with a round and are not lost."""

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
    """

    def __init__(self, run: Run, client: Client) -> None:
        self._run = run
        self._client = client
        self._deadlines: dict[str, float] = {}

    def __contains__(self, address: str) -> bool:
        """Whether a worker of the run has left in order."""
        return address in self._deadlines

    def note(self, gone: Iterable[str]) -> None:
        """Find out which of the workers that have gone were retired.

        Their ranks end with their round, together with all others, if these look for
        workers that want to go. It does not matter whether they have ended by now.

        Parameters
        ----------
        gone : iterable of str
            Addresses that the scheduler does not know any more.
        """
        new = {*gone} - self._deadlines.keys()
        retired = [address for address in new if has_retired(self._client, address)]
        others = sorted({*self._run.addresses} - new - self._deadlines.keys())
        if not retired or not others:
            return
        answers = run_on(self._client, others, has_heeded, self._run.run_id)
        if any(answers.values()):
            patience = _config.get_timeout("launch.leave-timeout")
            self._deadlines |= dict.fromkeys(retired, monotonic() + patience)

    def overdue(self) -> set[str]:
        """Workers that were waited for in vain."""
        now = monotonic()
        return {a for a, deadline in self._deadlines.items() if now >= deadline}
