"""State of the process from which processes of clusters are forked, after its imports.

Nothing there is garbage, and a collection in a process would copy all pages that it
looks through; libraries of BLAS are where they are in each of them, too. They run on
any processor, other than the process of the tests. Workers without a nanny, which
would tell them how the tests are configured, are calm as well.
"""

import gc
import os

import dask
from calm import CALM

from dask_ma.engine import _process

dask.config.set(CALM)
_process._controller()
gc.freeze()
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
