"""Parts of files that a thread has the system read before they are looked at.

To ask for them by ``madvise`` takes the processor of who asks: the system makes and
lists each page of 4 KiB by itself, and maps few at a time later on. Where it is set to
read far ahead of files, it takes a tenth of that to read them in their order, which
sending them nowhere does, without a copy.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections import deque
from functools import cache
from pathlib import Path

__all__ = ["reader", "reads_far"]

# Bytes that a system has to read ahead of files: with less, requests that wait for
# each other take longer than those that `madvise` makes at a time.
_FAR = 2**20
_AT_ONCE = 2**20  # bytes that are sent at a time
_MOST_WAITING = 1024  # parts: where reading is stuck, those asked for first are dropped
# What a system says that sends no bytes of such files.
_REFUSALS = {errno.EINVAL, errno.ENOSYS, errno.ENOTSOCK, errno.EOPNOTSUPP}
Part = tuple[Path, int, int]


class Reader:
    """Reads parts of files in the order in which they are asked for, in a thread.

    Attributes
    ----------
    is_refused : bool
        Whether the system has refused to read in this way.
    """

    is_refused = False

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin without a thread, and with nothing asked for, as after a fork."""
        self._lock = threading.Lock()
        self._parts: deque[Part] = deque(maxlen=_MOST_WAITING)
        self._thread: threading.Thread | None = None

    def ask(self, path: Path, start: int, stop: int) -> None:
        """Have bytes of a file read, without waiting for it.

        Parameters
        ----------
        path : Path
            Nothing happens if it is not there any more.
        start, stop : int
        """
        with self._lock:
            self._parts.append((path, start, stop))
            if self._thread is None or not self._thread.is_alive():
                self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="dask_ma-reading", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads: who looks at the bytes reads them
            self._parts.clear()
        else:
            self._thread = thread

    def wait(self) -> None:
        """Wait until all has been read that was asked for."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while (part := self._next()) is not None:
            self.is_refused |= not read_part(*part)

    def _next(self) -> Part | None:
        """What comes next; None for nothing, when the thread ends."""
        with self._lock:
            if self._parts:
                return self._parts.popleft()
            self._thread = None
            return None


reader = Reader()
if hasattr(os, "register_at_fork"):
    # A child has no other threads, one of which may have had the lock.
    os.register_at_fork(after_in_child=reader.begin)


def reads_far(path: Path) -> bool:
    """Whether the system reads far ahead of a file that is read in its order."""
    if sys.platform != "linux" or not hasattr(os, "sendfile"):
        return False
    try:
        return _bytes_ahead(path.stat().st_dev) >= _FAR
    except OSError:
        return False


@cache
def _bytes_ahead(device: int) -> int:
    """Bytes that the system is set to read ahead of files of a device; 0 if unknown."""
    name = f"{os.major(device)}:{os.minor(device)}"
    disk = Path("/sys/dev/block", name).resolve().parent  # of a partition
    for place in Path("/sys/class/bdi", name), disk / "queue":
        try:
            return 1024 * int((place / "read_ahead_kb").read_text())
        except (OSError, ValueError):
            continue
    return 0


def read_part(path: Path, start: int, stop: int) -> bool:
    """Have the system read bytes of a file, of which this process gets none.

    Returns
    -------
    can : bool
        Whether the system reads in this way.
    """
    try:
        with path.open("rb", 0) as file, Path(os.devnull).open("wb", 0) as nowhere:
            to, of = nowhere.fileno(), file.fileno()
            while start < stop:
                sent = os.sendfile(to, of, start, min(_AT_ONCE, stop - start))
                if not sent:
                    break
                start += sent
    except OSError as error:  # who looks at the bytes finds out
        return error.errno not in _REFUSALS
    return True
