"""What a group offers to other threads of its rank."""

import time

import numpy as np
import pytest

from dask_ma import run_spmd
from dask_ma.comm import LocalGroup


def test_an_error_of_one_thread_is_raised_in_the_others():
    group, other = LocalGroup.create(2)
    duplicate = group.for_thread()
    duplicate.fail(ZeroDivisionError("in the service"))
    for one in (group, duplicate):
        with pytest.raises(ZeroDivisionError, match="in the service"):
            one.recv(1)
        with pytest.raises(ZeroDivisionError, match="in the service"):
            one.push(1, dest=1)
    other.raise_if_closed()  # the other rank goes on


def test_threads_need_nobody_to_carry_messages():
    [group] = LocalGroup.create(1)
    assert group.carrier_time() == 0


@pytest.mark.skipif(
    not hasattr(time, "pthread_getcpuclockid"), reason="the system does not tell"
)
def test_messages_take_time_of_the_event_loop(processes):
    def program(group):
        before = group.carrier_time()
        for _ in range(20):
            group.send(np.zeros(10**5), dest=1 - group.rank)
            group.recv(1 - group.rank)
        return before, group.carrier_time()

    for before, after in run_spmd(program, n_ranks=2):
        assert 0 < before < after
