"""State of the process from which processes of clusters are forked, after its imports.

Nothing there is garbage, and a collection in a process would copy all pages that it
looks through; libraries of BLAS are where they are in each of them, too.
"""

import gc

from dask_ma.engine import _process

_process._controller()
gc.freeze()
