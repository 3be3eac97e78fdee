"""The messages of the dynamic engine."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from dask_ma.comm import Group
from dask_ma.schmp.runtime._schedulers import Jobs, Schedulers
from dask_ma.schmp.runtime._services import Commit, job_of, scheduled


class PipelineMessages:
    """Messages of some iterations: jobs, results and commits.

    Parameters
    ----------
    group : Group
        This rank.
    schedulers : Schedulers
        Who schedules what.
    depth : int
        Pipeline depth.
    number : int
        Number of this run of the engine; part of the tags.
    first, stop : int
        The iterations.
    """

    def __init__(
        self,
        group: Group,
        schedulers: Schedulers,
        depth: int,
        number: int,
        first: int,
        stop: int,
    ) -> None:
        self._group = group
        self._rank_of = schedulers.rank_of
        self._depth = depth
        self._number = number
        self._first = first
        self._stop = stop
        self._others = [r for r in range(group.size) if r != group.rank]
        self._jobs: dict[int, np.ndarray] = {}
        self._results: dict[int, Any] = {}
        self._commits: dict[int, Commit] = {}
        self._announced: dict[int, Any] = {}

    def push_jobs(self, iteration: int, jobs: Jobs) -> None:
        """Send each executor its job."""
        self._jobs[iteration] = job_of(jobs, self._group.rank)
        for rank in self._others:
            self._push(job_of(jobs, rank), rank, iteration, "job")

    def job(self, iteration: int) -> np.ndarray:
        """Job of this rank."""
        if iteration in self._jobs:
            return self._jobs.pop(iteration)
        job: np.ndarray = self._recv(self._rank_of(iteration), iteration, "job")
        return job

    def push_result(self, iteration: int, result: Any) -> None:
        """Send the result of this rank to the one that adds up."""
        # Copied: the program may return an array that it goes on using.
        tag = self._tag(iteration, "result")
        self._group.push(result, self._rank_of(iteration), tag)

    def results(self, iteration: int, jobs: Jobs) -> list[Any]:
        """Results of all ranks, in rank order; None for an empty job."""
        return [
            self._recv(rank, iteration, "result") if len(job_of(jobs, rank)) else None
            for rank in range(self._group.size)
        ]

    def push_commit(self, iteration: int, commit: Commit) -> None:
        """Send a change to all ranks."""
        self._commits[iteration] = commit
        for rank in self._others:
            self._push(tuple(commit), rank, iteration, "commit")

    def commit(self, iteration: int) -> Commit:
        """Change of an iteration."""
        if iteration in self._commits:
            return self._commits.pop(iteration)
        return Commit(*self._recv(self._rank_of(iteration), iteration, "commit"))

    def _push(self, payload: Any, rank: int, iteration: int, kind: str) -> None:
        """Send what never changes afterwards."""
        self._group.push(payload, rank, self._tag(iteration, kind), copy=False)

    def _recv(self, rank: int, iteration: int, kind: str) -> Any:
        return self._group.recv(rank, self._tag(iteration, kind))

    def _tag(self, iteration: int, kind: str) -> Hashable:
        return ("schmp", self._number, iteration, kind)


class OwnerMessages(PipelineMessages):
    """Messages where ranks work alone on what they schedule: changes only.

    And, where a program wants it, announcements of the jobs under way: each to the
    ranks that schedule before its change is in the model.
    """

    def push_announcement(self, iteration: int, announcement: Any) -> None:
        """Tell those who schedule next what this rank is going to work on."""
        last = min(iteration + self._depth, self._stop)
        nexts = {self._rank_of(later) for later in range(iteration + 1, last)}
        for rank in sorted(nexts - {self._group.rank}):
            self._push(announcement, rank, iteration, "announcement")

    def announced(self, iteration: int) -> tuple[Any, ...]:
        """What others are working on when an iteration is scheduled, oldest first."""
        first = max(self._first, iteration - self._depth + 1)
        numbers = [
            number
            for number in range(first, iteration)
            if self._rank_of(number) != self._group.rank
        ]
        known = self._announced
        for number in numbers:
            if number not in known:
                rank = self._rank_of(number)
                known[number] = self._recv(rank, number, "announcement")
        self._announced = {number: known[number] for number in numbers}
        return tuple(self._announced.values())

    def push_jobs(self, iteration: int, jobs: Jobs) -> None:
        """Keep the job of this rank."""
        self._jobs[iteration] = scheduled(jobs)

    def job(self, iteration: int) -> np.ndarray:
        """Job of this rank; empty where another has the iteration."""
        return self._jobs.pop(iteration, np.empty(0, dtype=np.int64))

    def push_result(self, iteration: int, result: Any) -> None:
        """Keep the result, which is added up before anything else is done."""
        self._results[iteration] = result

    def results(self, iteration: int, jobs: Jobs) -> list[Any]:
        """Result of this rank, if the job was not empty."""
        return [self._results.pop(iteration)] if len(scheduled(jobs)) else []


class JointMessages(PipelineMessages):
    """Messages with one scheduler: a change travels with the job that waits for it."""

    #: The change that this rank, if it schedules, has made last.
    _due: Commit | None = None

    def push_commit(self, iteration: int, commit: Commit) -> None:
        """Keep a change for the job that needs it; send it if there is no such job."""
        if iteration + self._depth >= self._stop:
            super().push_commit(iteration, commit)
        else:
            self._commits[iteration] = commit

    def push_jobs(self, iteration: int, jobs: Jobs) -> None:
        """Send each executor its job and the change that is due before it."""
        self._jobs[iteration] = job_of(jobs, self._group.rank)
        due = None if self._due is None else tuple(self._due)
        for rank in self._others:
            self._push((job_of(jobs, rank), due), rank, iteration, "job")

    def job(self, iteration: int) -> np.ndarray:
        """Job of this rank."""
        self._open(iteration)
        return self._jobs.pop(iteration)

    def commit(self, iteration: int) -> Commit:
        """Change of an iteration."""
        if iteration + self._depth < self._stop:
            self._open(iteration + self._depth)
            self._due = self._commits[iteration]
        return super().commit(iteration)

    def _open(self, iteration: int) -> None:
        """Receive a job and a change, unless they are there."""
        is_mine = self._rank_of(iteration) == self._group.rank
        if is_mine or iteration in self._jobs:
            return
        job, due = self._recv(self._rank_of(iteration), iteration, "job")
        self._jobs[iteration] = job
        if due is not None:
            self._commits[iteration - self._depth] = Commit(*due)
