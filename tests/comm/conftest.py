"""The sending side of a group, without a cluster."""

import asyncio
import threading
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import pytest
from distributed.comm import CommClosedError, connect, listen

from dask_ma.comm import DaskGroup, _lines
from dask_ma.comm._arrivals import Door
from dask_ma.comm._plugin import registry


class Sender:
    """Stands in for a worker and for the one at the far end of its connections.

    There, ``deliver(payload)`` takes the messages, at once or as a coroutine, after
    `n_deaf` times that the worker did not know how to.
    """

    address = "tcp://here:1"

    def __init__(self, deliver, n_deaf, protocol):
        self._deliver = deliver
        self._protocol = protocol
        self.n_deaf = n_deaf
        self.connection_args = {}
        self.withdrawn, self.comms = [], []
        self.door = Door(self._take, self._withdraw)
        self.n_connections = self.n_answers = 0
        self.loop = SimpleNamespace(asyncio_loop=asyncio.new_event_loop())
        self._thread = threading.Thread(target=self.loop.asyncio_loop.run_forever)
        self._thread.start()
        self._listener = self.call(self._listen())

    def call(self, coroutine):
        """Result of a coroutine on the event loop."""
        loop = self.loop.asyncio_loop
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    async def connect(self, address):
        assert address == "tcp://there:2"
        self.n_connections += 1
        comm = await connect(self._listener.contact_address)
        read = comm.read

        async def count():
            answer = await read()
            self.n_answers += 1
            return answer

        comm.read = count
        return comm

    async def _listen(self):
        return await listen(self._protocol, self._serve)

    async def _serve(self, comm):
        self.comms.append(comm)
        with suppress(CommClosedError):
            while await comm.read() and self.n_deaf > 0:
                self.n_deaf -= 1
                await comm.write(None)
            await self.door.receive(comm)

    def _take(self, comm, header, payload):
        return self._deliver(payload)

    def _withdraw(self, run_id, source):
        self.withdrawn.append((run_id, source))

    def stop(self):
        self.call(self._end())
        self.loop.asyncio_loop.call_soon_threadsafe(self.loop.asyncio_loop.stop)
        self._thread.join()
        self.loop.asyncio_loop.close()

    async def _end(self):
        _lines.end_lines(self)
        self._listener.stop()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.01)


@pytest.fixture
def sending_group(monkeypatch):
    """``sending_group(deliver)`` is rank 0 of 2 on a worker of its own.

    ``sending_group.another(group)`` is one of another run on the worker of that one.
    """
    with ExitStack() as stack:

        def make(deliver, n_deaf=0, protocol="inproc://"):
            sender = Sender(deliver, n_deaf, protocol)
            monkeypatch.setattr(_lines, "connect", sender.connect)
            stack.callback(sender.stop)
            return add(sender, "test-sending")

        def add(sender, run_id):
            addresses = [sender.address, "tcp://there:2"]
            group = DaskGroup(run_id, 0, addresses, sender)
            stack.callback(registry._closed.pop, (run_id, 0))
            return stack.enter_context(group)

        make.another = lambda group: add(group._worker, "test-another")
        yield make
