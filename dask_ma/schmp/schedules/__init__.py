"""Ways to schedule updates: at random, in turns, by priority, dynamic, in a ring.

Each is an object that a program keeps as an attribute and calls in its `schedule`::

    class MyProgram(Program):
        def __init__(self):
            self._schedule = schedules.Dynamic(n_candidates=64, priority="change")

        def schedule(self, model, request):
            return self._schedule(model, request)

All but the last give one job for all executors, and leave out parameters that are
pending. The estimators take such an object as their `schedule`, too. `Rotation` is the
one of a `RotationProgram`, whose parameters travel.
"""

from dask_ma.schmp.runtime._program import Schedule
from dask_ma.schmp.runtime._rotation_schedule import Rotation, RotationRequest
from dask_ma.schmp.schedules._dynamic import Dynamic
from dask_ma.schmp.schedules._schedules import Cyclic, Priority, Random

__all__ = [
    "Cyclic",
    "Dynamic",
    "Priority",
    "Random",
    "Rotation",
    "RotationRequest",
    "Schedule",
]
