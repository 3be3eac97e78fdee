"""State of the process from which processes of clusters are forked, after its imports.

Nothing there is garbage, and a collection in a process would copy all pages that it
looks through; libraries of BLAS are where they are in each of them, too. They run on
any processor, other than the process of the tests.
"""

import gc
import os

from dask_ma.engine import _process

_process._controller()
gc.freeze()
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
