"""What keeps idle processes of clusters from looking at themselves all the time."""

#: Configuration of Dask. Workers take a profile 100 times a second and look at the
#: system twice: 3 % of a processor each. A dozen of them, kept for all tests, would
#: take as much of it as a test.
CALM = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "60s",
}
