"""Waiting for what other threads do."""

import time


def until(condition):
    """Wait for a condition, half a minute at most; whether it came."""
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()
