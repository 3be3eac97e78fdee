"""Comparisons with other libraries, in one run on the same data."""

import dask

# A rank for each process that a comparison starts, however few the rows are.
dask.config.set({"dask-ma.data.moved-rows": 0})
