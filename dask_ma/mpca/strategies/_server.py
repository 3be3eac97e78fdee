"""Strategies with servers: elastic averaging, and steps made where the model lies.

Each rank looks after a part of the model, in a second thread that answers at once while
the rank computes. The server on rank 0 also keeps the progress, and tells all ranks.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from dask_ma.comm import Group, allgather
from dask_ma.exceptions import GroupClosedError
from dask_ma.kernels import Optimizer
from dask_ma.mpca.strategies._base import Batch, Strategy, Trainee
from dask_ma.mpca.strategies._joint import Cut
from dask_ma.mpca.strategies._progress import Decision

_REQUEST = ("mpca", "request")
_REPLY = ("mpca", "reply")
_UPDATE = ("mpca", "update")
_PULL, _ADD, _DESCEND, _COUNTS, _END = "pull", "add", "descend", "counts", "end"


class Server:
    """Looks after a part of the model, in a thread of its own.

    Parameters
    ----------
    group : Group
        The rank's group for its thread, by :meth:`Group.for_thread`.
    values : ndarray of shape (n_values,)
        The part at the start; copied.
    optimizer : Optimizer or None
        What makes steps with the gradients of the ranks.
    n_trained : int
        How many of the values, from the first on, are parameters. The others, such as
        running means, follow those of the ranks.
    add_counts : callable
        Takes the counts of a rank and returns an update for all; called on rank 0.
    """

    def __init__(
        self,
        group: Group,
        values: np.ndarray,
        optimizer: Optimizer | None,
        n_trained: int,
        add_counts: Callable[[np.ndarray], Decision],
    ) -> None:
        self.values = values.copy()
        self._group = group
        self._optimizer = optimizer
        self._n_trained = n_trained
        self._add_counts = add_counts
        self._n_open = group.size
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._serve, name=f"dask_ma-server-{group.rank}", daemon=True
        )
        self._thread.start()

    def raise_error(self) -> None:
        """Raise the error that ended the thread, if there is one."""
        if self._error is not None:
            raise self._error

    def join(self, timeout: float | None = None) -> None:
        """Wait until all ranks have said that they are done."""
        self._thread.join(timeout)
        self.raise_error()

    def _serve(self) -> None:
        ranks = range(self._group.size)
        wanted = [(rank, _REQUEST) for rank in ranks]
        try:
            while self._n_open:
                self._group.wait_any(wanted)
                for rank in ranks:
                    arrived, message = self._group.poll(rank, _REQUEST)
                    if arrived:
                        # As in the thread of the rank, which finds what overflows.
                        with np.errstate(over="ignore", invalid="ignore"):
                            self._answer(rank, *message)
            self._group.flush()
        except GroupClosedError:
            pass  # the thread of the rank raises it, too
        except BaseException as error:  # noqa: B902 - raised again by the rank's thread
            self._error = error
            self._group.fail(error)  # the rank may be waiting for a reply

    def _answer(self, rank: int, kind: str, payload: Any) -> None:
        """Do what a rank has asked for."""
        if kind == _PULL:
            self._reply(rank)
        elif kind == _ADD:
            difference, others, share = payload
            self.values[: self._n_trained] += difference
            self._blend(others, share)
        elif kind == _DESCEND:
            gradient, learning_rate, others = payload
            if self._optimizer is not None and self._n_trained:
                trained = self.values[: self._n_trained]
                self._optimizer.step(trained, gradient, learning_rate)
            self._blend(others, 1 / self._group.size)
            self._reply(rank)
        elif kind == _COUNTS:
            update = self._add_counts(payload)
            for other in range(self._group.size if update.has_news else 0):
                self._group.push(update, other, _UPDATE)
        else:
            self._n_open -= 1

    def _blend(self, others: np.ndarray, share: float) -> None:
        """Draw values that are no parameters towards those of a rank."""
        untrained = self.values[self._n_trained :]
        # Between the two, whatever has come from other ranks meanwhile: a running
        # variance does not become negative.
        untrained += share * (others - untrained)

    def _reply(self, rank: int) -> None:
        self._group.push(self.values, rank, _REPLY)


class ServerStrategy(Strategy):
    """Base of the strategies whose joint model lies on servers.

    Parameters
    ----------
    trainee : Trainee
        The rank.
    second : Group
        The rank for the server's thread.
    optimizes : bool
        Whether the servers make steps.
    """

    def __init__(self, trainee: Trainee, second: Group, *, optimizes: bool) -> None:
        super().__init__(trainee)
        network, rank = self._network, self._group.rank
        self._cut = Cut(network.n_values, 1, self._group.size)
        start, stop = self._cut.part(0, rank)
        trained, _ = self._part(rank)
        n_trained = trained.stop - trained.start
        optimizer = network.slice_optimizer(n_trained) if optimizes else None
        self._known = network.read(0, network.n_values)
        values = self._known[start:stop]
        self._server = Server(second, values, optimizer, n_trained, self._add)
        self._has_ended = self._has_told = self._has_collected = False

    def exchange(self, *, ends_pass: bool, idle: bool) -> list[Decision]:
        """Exchange with the servers when it is time, and look for updates."""
        self._server.raise_error()
        if not idle:
            self._share()
        elif self._counters.has_diverged and not self._has_told:
            self._has_told = True
            self._send_counts(0.0)
        updates: list[Decision] = []
        while not updates or not updates[-1].stop:
            arrived, update = self._group.poll(0, _UPDATE)
            if not arrived and idle and not updates:
                arrived, update = True, self._group.recv(0, _UPDATE)
            if not arrived:
                break
            updates.append(update)
        return updates

    def joint(self) -> np.ndarray:
        """What this rank has last got from the servers."""
        return self._known

    def collect(self) -> np.ndarray:
        """What the servers have after all ranks are done; from then on, `joint` too."""
        self.leave()
        if not self._has_collected:
            self._has_collected = True
            parts = allgather(self._group, self._server.values)
            self._known = np.concatenate(parts)
        return self._known

    def leave(self) -> None:
        """Wait until the server of this rank has answered all ranks."""
        self._end()
        self._server.join()

    @abstractmethod
    def _share(self) -> None:
        """Exchange with the servers if it is time."""

    def _end(self) -> None:
        """Tell the servers that nothing more comes from this rank."""
        if not self._has_ended:
            self._has_ended = True
            for rank in range(self._group.size):
                self._ask(rank, _END)

    def _ask(self, rank: int, kind: str, payload: Any = None) -> None:
        self._group.push((kind, payload), rank, _REQUEST, copy=False)

    def _pull(self) -> None:
        """Get the joint model, which the ranks wait for."""
        for rank in range(self._group.size):
            start, stop = self._cut.part(0, rank)
            self._known[start:stop] = self._group.recv(rank, _REPLY)

    def _part(self, rank: int) -> tuple[slice, slice]:
        """Parameters that the server of a rank looks after, and its other values."""
        start, stop = self._cut.part(0, rank)
        middle = min(max(start, self._network.n_parameters), stop)
        return slice(start, middle), slice(middle, stop)

    def _send_counts(self, tau: float) -> None:
        self._ask(0, _COUNTS, self._counters.take(tau))


class Elastic(ServerStrategy):
    """Elastic averaging SGD (section 3.2, equations 2 and 3).

    Parameters
    ----------
    trainee : Trainee
        The rank.
    second : Group
        The rank for the server's thread.
    period : int
        Steps of a rank from one exchange to the next, at least 1.
    elasticity : float
        `alpha` of the equations, above 0 and at most 1.
    """

    def __init__(
        self, trainee: Trainee, second: Group, period: int, elasticity: float
    ) -> None:
        super().__init__(trainee, second, optimizes=False)
        self._period = period
        self._elasticity = elasticity
        self._n_done = 0

    def _share(self) -> None:
        """Draw this model and the joint model towards each other."""
        self._n_done += 1
        if self._counters.has_diverged or self._n_done < self._period:
            return
        self._n_done = 0
        for rank in range(self._group.size):
            self._ask(rank, _PULL)
        self._pull()
        model = self._network.read(0, self._network.n_values)
        difference = self._elasticity * (model - self._known)
        self._network.write(0, model - difference)
        for rank in range(self._group.size):
            trained, others = self._part(rank)
            payload = (difference[trained], model[others], self._elasticity)
            self._ask(rank, _ADD, payload)
        self._send_counts(self._period)


class Central(ServerStrategy):
    """Asynchronous steps on servers with the gradients of all ranks (section 2).

    Values that no gradient is for, such as running means, stay with each rank; those of
    the joint model follow them, by 1 part in as many as there are ranks in each step.

    Parameters
    ----------
    trainee : Trainee
        The rank.
    second : Group
        The rank for the server's thread.
    """

    def __init__(self, trainee: Trainee, second: Group) -> None:
        super().__init__(trainee, second, optimizes=True)
        self._gradient = np.empty(0)
        self._rate = 0.0

    def step(self, batch: Batch, learning_rate: float) -> float:
        """Work out the gradient of a batch; the servers make the step."""
        loss, gradient = self._network.gradient(batch.X, batch.y, batch.sample_weight)
        self._gradient, self._rate = gradient, learning_rate
        return loss

    def _share(self) -> None:
        """Send the gradient and wait for the model after the step."""
        if self._counters.has_diverged:
            return
        network = self._network
        n_parameters = network.n_parameters
        # Servers in this process would read the array while the next one is made.
        gradient = self._gradient.copy()
        values = network.read(n_parameters, network.n_values)
        for rank in range(self._group.size):
            trained, others = self._part(rank)
            own = values[others.start - n_parameters : others.stop - n_parameters]
            self._ask(rank, _DESCEND, (gradient[trained], self._rate, own))
        self._send_counts(1.0)
        self._pull()
        self._network.write(0, self._known[:n_parameters])
