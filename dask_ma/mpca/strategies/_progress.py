"""Counters of each rank, their sums over ranks, and decisions that follow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import Group
from dask_ma.mpca.strategies._schedules import LearningRate
from dask_ma.supervised import StopRule, score

_COUNTS = (
    "n_samples",
    "n_steps",
    "bytes_sent",
    "bytes_shared",
    "messages_sent",
)
_TIMES = ("seconds_computing", "seconds_exchanging", "seconds_waiting")
_N_SCORE = 4
_FIELDS = (*_COUNTS, *_TIMES, "loss", "tau", "n_reports", "n_diverged", "n_scored")
N_FIELDS = len(_FIELDS) + _N_SCORE
_AT = {name: position for position, name in enumerate(_FIELDS)}
_RECORD_PART = 0.02  # of an epoch, before the next record
_GOOD = 2.0  # times the least loss so far


class RankCounters:
    """What one rank has done since it was last asked.

    Parameters
    ----------
    group : Group
        The rank.
    second : Group or None
        The same rank for another thread, whose messages count, too.

    Attributes
    ----------
    n_steps : int
        Steps made.
    seconds_computing : float
        Time spent on them, and on scores.
    seconds_exchanging : float
        Time that the thread of the rank has spent on exchanges between steps, its waits
        in them counted.
    """

    def __init__(self, group: Group, second: Group | None = None) -> None:
        self._groups = [group] if second is None else [group, second]
        self._trace = group.trace
        self._sums = np.zeros(N_FIELDS)
        self._taken = np.zeros(N_FIELDS)
        self._has_diverged = False
        self.n_steps = 0
        self.seconds_computing = self.seconds_exchanging = 0.0

    @property
    def has_diverged(self) -> bool:
        """Whether the loss of this rank has become infinite or NaN."""
        return self._has_diverged

    @contextmanager
    def computing(self, kind: str = "compute") -> Iterator[None]:
        """Count the time inside as time of computing, and note it in the timeline."""
        start = perf_counter()
        try:
            with self._trace.span(kind):
                yield
        finally:
            self.seconds_computing += perf_counter() - start

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Count the time inside as time of exchanging."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds_exchanging += perf_counter() - start

    def note_step(self, n_rows: int, loss: float) -> None:
        """Count a step on a batch with a given mean loss."""
        self.n_steps += 1
        sums = self._sums
        sums[_AT["n_steps"]] += 1
        sums[_AT["n_samples"]] += n_rows
        if np.isfinite(loss):
            sums[_AT["loss"]] += n_rows * loss
        elif not self._has_diverged:
            self._has_diverged = True
            sums[_AT["n_diverged"]] += 1

    def replace_loss(self, mean: float) -> None:
        """Count this mean loss in place of those of the batches since the last call."""
        n_samples, loss = _AT["n_samples"], _AT["loss"]
        n_rows = self._sums[n_samples] - self._taken[n_samples]
        self._sums[loss] = self._taken[loss] + n_rows * mean

    def note_score(self, sums: np.ndarray) -> None:
        """Add this rank's part of the score on the validation rows."""
        self._sums[_AT["n_scored"]] += 1
        self._sums[len(_FIELDS) :] += sums

    def take(self, tau: float, n_exchanges: int = 1) -> np.ndarray:
        """Counts since the last call.

        Parameters
        ----------
        tau : float
            Steps since the last exchange of the same values.
        n_exchanges : int, default=1
            Exchanges since the last call, each of which had `tau` steps.

        Returns
        -------
        counts : ndarray of float64 of shape (N_FIELDS,)
        """
        now = self._sums.copy()
        now[_AT["seconds_computing"]] = self.seconds_computing
        now[_AT["seconds_exchanging"]] = self.seconds_exchanging
        for name in ("bytes_sent", "bytes_shared", "messages_sent"):
            now[_AT[name]] = sum(getattr(g.counters, name) for g in self._groups)
        # A second thread waits all the time, beside the computation.
        now[_AT["seconds_waiting"]] = self._groups[0].counters.seconds_waiting
        counts = now - self._taken
        counts[_AT["tau"]] = n_exchanges * tau
        counts[_AT["n_reports"]] = n_exchanges
        self._taken = now
        return counts


class Decision(NamedTuple):
    """What has become known of the fit on all ranks.

    Attributes
    ----------
    record : dict or None
        A record for the history, if one is due.
    epoch : int
        Epochs that all ranks together have completed.
    epoch_ended : bool
        Whether one of them ended with this update.
    is_good : bool
        Whether the joint model now is worth going back to.
    to_score : bool
        Whether each rank is to score the joint model as it is now.
    scored : bool
        Whether the last such score is known now.
    is_best : bool
        Whether no score before was higher.
    learning_rate : float
        Step size from here on.
    stop : bool
        Whether the fit ends here.
    converged : bool
        Whether it ends by its own rules.
    diverged : bool
        Whether it ends because a loss was no longer finite.
    state : dict or None
        State of the progress at the end of an epoch, with a score, and at the end.
    """

    record: dict[str, Any] | None
    epoch: int
    epoch_ended: bool
    is_good: bool
    to_score: bool
    scored: bool
    is_best: bool
    learning_rate: float
    stop: bool
    converged: bool
    diverged: bool
    state: dict[str, Any] | None

    @property
    def has_news(self) -> bool:
        """Whether there is anything that a rank must act on."""
        return self.record is not None or self.to_score or self.scored or self.stop


class FitProgress:
    """Sums over all ranks, and what follows from them.

    Every rank that adds the same counts in the same order comes to the same decisions.
    Of scores, `best_score` is the highest that is of the rows that there are now.

    Parameters
    ----------
    total_rows : int
        Rows of all ranks to train on.
    n_ranks : int
        Number of ranks.
    rule : StopRule
        When the fit has done enough.
    rate : LearningRate
        The step size.
    max_iter : int
        Most epochs.
    by_score : bool
        Whether the rule looks at scores on validation rows, and not at the loss.
    is_mean : bool
        Whether the score is a mean over rows, as an accuracy is, and not a coefficient
        of determination.
    n_smoothed : int, default=1
        Epochs whose mean loss the rule looks at. Where ranks go their own ways, an
        epoch may by chance hold more steps of those that do well.
    untrained : float, default=inf
        Mean loss from which on nothing has been learned yet. The rule does not end a
        fit there: what its loss falls by is less than it differs by chance.
    """

    def __init__(
        self,
        total_rows: int,
        n_ranks: int,
        rule: StopRule,
        rate: LearningRate,
        *,
        max_iter: int,
        by_score: bool,
        is_mean: bool,
        n_smoothed: int = 1,
        untrained: float = np.inf,
    ) -> None:
        self.epoch = 0
        self.loss_curve: list[float] = []
        self.scores: list[float] = []
        self.best_score = -np.inf
        self.n_samples = 0.0
        self._total_rows = total_rows
        self._n_ranks = n_ranks
        self._rule = rule
        self._rate = rate
        self._max_iter = max_iter
        self._by_score = by_score
        self._is_mean = is_mean
        self._n_smoothed = n_smoothed
        self._untrained = untrained
        self._since_record = np.zeros(N_FIELDS)
        self._n_records = 0
        self._since_epoch = np.zeros(2)  # loss and rows
        self._score = np.zeros(1 + _N_SCORE)
        self._least = np.inf
        self._is_unscored = False  # whether an epoch has ended since the last score
        self._is_waiting = False  # for a score

    def add(self, sums: np.ndarray, elapsed: float) -> Decision:
        """Add counts of all ranks.

        Parameters
        ----------
        sums : ndarray of float64 of shape (N_FIELDS,)
            Sums over ranks of what :meth:`RankCounters.take` gave.
        elapsed : float
            Seconds since the fit began, for the record.

        Returns
        -------
        update : Decision
        """
        self._since_record += sums
        self.n_samples += sums[_AT["n_samples"]]
        self._since_epoch += sums[_AT["loss"]], sums[_AT["n_samples"]]
        diverged = bool(sums[_AT["n_diverged"]] > 0)
        scored, is_best, done = self._add_score(sums)
        epoch = min(int(self.n_samples // self._total_rows), self._max_iter)
        epoch_ended = epoch > self.epoch and not diverged
        if epoch_ended:
            n_ended = epoch - self.epoch
            self.epoch = epoch
            self._is_unscored = self._by_score
            done = self._end_epochs(n_ended) or done
        to_score = self._is_unscored and not self._is_waiting
        if to_score:
            self._is_unscored, self._is_waiting = False, True
        record, is_good = None, False
        due = self._since_record[_AT["n_samples"]] >= _RECORD_PART * self._total_rows
        if due or epoch_ended or diverged:
            record, is_good = self._make_record(elapsed)
        at_end = self.epoch >= self._max_iter and not self._is_waiting
        stop = diverged or done or at_end
        return Decision(
            record=record,
            epoch=self.epoch,
            epoch_ended=epoch_ended,
            is_good=is_good and not diverged,
            to_score=to_score,
            scored=scored,
            is_best=is_best,
            learning_rate=self._rate.value,
            stop=stop,
            converged=done and not diverged,
            diverged=diverged,
            state=self.state_dict() if epoch_ended or scored or stop else None,
        )

    @property
    def learning_rate(self) -> float:
        """Step size now."""
        return self._rate.value

    def last(self, *, converged: bool) -> Decision:
        """An update that ends a fit which goes on from where another has ended."""
        return Decision(
            record=None,
            epoch=self.epoch,
            epoch_ended=False,
            is_good=False,
            to_score=False,
            scored=False,
            is_best=False,
            learning_rate=self._rate.value,
            stop=True,
            converged=converged,
            diverged=False,
            state=self.state_dict(),
        )

    def state_dict(self) -> dict[str, Any]:
        """What another progress needs to go on from the end of an epoch."""
        return {
            "epoch": self.epoch,
            "n_samples": self.n_samples,
            "loss_curve": np.array(self.loss_curve),
            "scores": np.array(self.scores),
            "best_score": np.array(self.best_score),
            "rule": np.array(self._rule.state_dict()),
            "rate": self._rate.value,
            "n_records": self._n_records,
        }

    def load_state_dict(self, state: dict[str, Any], *, is_whole: bool = True) -> None:
        """Take over the state of another progress.

        Parameters
        ----------
        state : dict
            As :meth:`state_dict` has given it.
        is_whole : bool, default=True
            Whether the rows that decide on the end are the same. What others were worth
            says nothing of those that are left.
        """
        self.epoch = int(state["epoch"])
        # Rows of the epoch that was under way when the fit was cut off come again.
        self.n_samples = float(self.epoch * self._total_rows)
        self.loss_curve = np.asarray(state["loss_curve"]).tolist()
        self.scores = np.asarray(state["scores"]).tolist()
        if is_whole:
            self._rule.load_state_dict(state["rule"])
            self.best_score = float(state["best_score"])
        self._rate.value = float(state["rate"])
        self._n_records = int(state["n_records"])

    def _add_score(self, sums: np.ndarray) -> tuple[bool, bool, bool]:
        """Add scores; whether one is complete, is the best, and ends the fit."""
        self._score[0] += sums[_AT["n_scored"]]
        self._score[1:] += sums[len(_FIELDS) :]
        if self._score[0] < self._n_ranks:
            return False, False, False
        value = score(self._score[1:], is_classifier=self._is_mean)
        self._score[:] = 0
        self._is_waiting = False
        is_best = value > self.best_score
        self.best_score = value if is_best else self.best_score
        self.scores.append(value)
        return True, is_best, self._is_enough(value)

    def _end_epochs(self, n_ended: int) -> bool:
        """Note the loss of an epoch, or of several at once; whether it ends the fit."""
        loss, n_rows = self._since_epoch
        self._since_epoch[:] = 0
        self.loss_curve += [float(loss / max(1.0, n_rows))] * n_ended
        part_done = self.epoch / self._max_iter
        recent = float(np.mean(self.loss_curve[-self._n_smoothed :]))
        done = not self._by_score and self._is_enough(recent)
        if done and recent > self._untrained:
            self._rule.restart()
            done = False
        self._rate.end_epoch(self.n_samples, part_done)
        return done

    def _is_enough(self, value: float) -> bool:
        """Whether the rule ends the fit, and no smaller step size can help."""
        if not self._rule.update(value):
            return False
        if self._rate.goes_on():
            self._rule.restart()
            return False
        return True

    def _make_record(self, elapsed: float) -> tuple[dict[str, Any], bool]:
        """Record of all since the last one, and whether the model is a good one."""
        sums = self._since_record
        self._n_records += 1
        n_samples = sums[_AT["n_samples"]]
        loss = float(sums[_AT["loss"]] / n_samples) if n_samples else np.nan
        record: dict[str, Any] = {
            "round": self._n_records,
            "time": elapsed,
            "epoch": float(self.n_samples / self._total_rows),
            "loss": np.nan if sums[_AT["n_diverged"]] else loss,
            "n_exchanges": round(sums[_AT["n_reports"]] / self._n_ranks),
            "tau": float(sums[_AT["tau"]] / sums[_AT["n_reports"]]),
        }
        if self.scores:
            record["validation_score"] = self.scores[-1]
        record |= {name: int(sums[_AT[name]]) for name in _COUNTS}
        record |= {name: float(sums[_AT[name]]) / self._n_ranks for name in _TIMES}
        self._since_record = np.zeros(N_FIELDS)
        self._least = min(self._least, loss)
        is_good = loss <= self._least + (_GOOD - 1) * abs(self._least)
        return record, is_good
