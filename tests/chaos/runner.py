"""Fits that are struck by random faults, and what has become of them."""

from __future__ import annotations

import logging
import random
import threading
import time
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import dask
import numpy as np

from chaos.cases import CASES, Case
from chaos.cluster import Cluster, stacks_here
from chaos.faults import FAULTS, Fault
from chaos.inputs import KINDS, make_input
from dask_ma.exceptions import RowsLostWarning

_HANG = 60.0  # seconds beyond some times the undisturbed fit
_SLOWER = 5.0  # times that a struck fit may take
_LOOSE = 0.5  # tolerance where rows are lost that nobody has any more
# Times that are met in a test.
_SETTINGS = {
    "dask-ma.recovery.data-timeout": "30 s",
    "dask-ma.recovery.wait-for-any": "20 s",
}


@dataclass(frozen=True)
class Plan:
    """What happens to one fit; all of it follows from the seed."""

    seed: int
    case: str
    kind: str
    fault: str
    moment: float  # as a part of the undisturbed fit

    @classmethod
    def draw(
        cls,
        seed: int,
        cases: Sequence[str],
        kinds: Sequence[str],
        faults: Sequence[str],
    ) -> Plan:
        """Draw a fit; successive seeds go through all cases in turn."""
        rng = random.Random(seed)
        weights = [FAULTS[name].weight for name in faults]
        [fault] = rng.choices(faults, weights)
        # Now and then at the very end, and in the placement before the first round.
        last = rng.random() < 0.1
        moment = rng.uniform(0.9, 1.0) if last else rng.uniform(0.0, 0.95)
        if FAULTS[fault].early:
            moment /= 4
        case = cases[seed % len(cases)]
        kinds = [kind for kind in kinds if kind not in CASES[case].not_kinds]
        return cls(seed, case, rng.choice(kinds), fault, moment)

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.case}, {self.kind}, {self.fault}"


@dataclass
class Result:
    """What has become of a fit."""

    seconds: float = 0.0
    objective: float = float("nan")
    error: BaseException | None = None
    n_lost: int = 0  # warnings that rows were lost
    n_starts: int = 0  # how often its ranks started again
    n_joins: int = 0  # how often they did so in order, as for new workers
    struck: bool = False
    struck_at: float = 0.0
    hung: bool = False
    wrongs: list[str] = field(default_factory=list)
    details: str = ""

    @property
    def verdict(self) -> str:
        """One word for the tables."""
        if self.hung:
            return "hung"
        if self.wrongs:
            return "wrong"
        return "right" if self.error is None else "clear error"


class _Starts(logging.Handler):
    """Counts what the engine says of lost workers and new ones."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.n_losses = self.n_joins = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count a message."""
        text = record.getMessage()
        self.n_losses += ": lost " in text
        self.n_joins += "starts again on other workers" in text


class Runner:
    """Strikes fits until enough of them were struck.

    Parameters
    ----------
    seed : int
        Seed of the first fit; the others have the next ones.
    cases, kinds, faults : sequence of str
        What to draw from.
    say : callable, default=print
        Gets each line of the report.
    """

    def __init__(
        self,
        seed: int,
        cases: Sequence[str],
        kinds: Sequence[str],
        faults: Sequence[str],
        say: Callable[[str], None] = print,
    ) -> None:
        self._seed = seed
        self._drawn_from = list(cases), list(kinds), list(faults)
        self._options = "".join(
            f" --{name} '{','.join(chosen)}'"
            for (name, every), chosen in zip(
                choices().items(), self._drawn_from, strict=True
            )
            if len(chosen) < len(every)
        )
        self._say = say
        self._cluster = Cluster()
        self._undisturbed: dict[tuple[str, str], tuple[float, float]] = {}
        self._is_warm: set[str] = set()
        self.results: list[tuple[Plan, Result]] = []

    def close(self) -> None:
        """End the cluster."""
        self._cluster.close()

    def run(self, n_fits: int) -> int:
        """Strike fits; return how many were not as they should be."""
        seed, missed = self._seed, 0
        while len(self.results) < n_fits and missed <= 10 + n_fits:
            plan = Plan.draw(seed, *self._drawn_from)
            result = self._strike_if_possible(plan)
            seed += 1
            self._tell(plan, result)
            if result.struck or result.wrongs or result.hung:
                self.results.append((plan, result))
            else:
                missed += 1
        self._summarize(missed)
        wrong = sum(r.verdict in ("wrong", "hung") for _, r in self.results)
        return wrong + max(0, n_fits - len(self.results))

    # One fit -----------------------------------------------------------------------

    def _strike_if_possible(self, plan: Plan) -> Result:
        """Strike a fit; what goes wrong beside it does not end the others."""
        try:
            return self._strike(plan)
        except Exception as error:
            result = Result(wrongs=[f"{type(error).__name__}: {error}"])
            result.details = "".join(traceback.format_exception(error))
            self._replace_cluster()
            return result

    def _strike(self, plan: Plan) -> Result:
        """Make a fit, strike it, and look at what has become of it."""
        case, fault = CASES[plan.case], FAULTS[plan.fault]
        seconds, wanted = self._reference(plan.case, plan.kind)
        self._cluster.heal()
        rng = random.Random(plan.seed)
        limit = _SLOWER * seconds + _HANG + fault.seconds
        striker = _Striker(self._cluster, fault, plan.moment * seconds, rng)
        with dask.config.set({**_SETTINGS, **fault.settings}):
            result = self._fit(case.make(), plan.case, plan.kind, limit, striker)
        striker.join(30 + fault.seconds)
        if striker.error is not None:
            raise RuntimeError(f"{plan}: the fault failed") from striker.error
        if result.hung:
            self._replace_cluster()
            return result
        result.seconds -= seconds
        self._judge(case, fault, plan, result, wanted)
        self._look_after(plan.case, result)
        return result

    def _reference(self, name: str, kind: str) -> tuple[float, float]:
        """Seconds and objective of an undisturbed fit on the same kind of input."""
        if (name, kind) not in self._undisturbed:
            case = CASES[name]
            self._cluster.heal()
            limit = 10 * _HANG
            results = [self._fit(case.make(), name, kind, limit)]
            if name not in self._is_warm:  # the first one has loaded modules
                self._is_warm.add(name)
                results.append(self._fit(case.make(), name, kind, limit))
            for result in results:
                if result.hung or result.error is not None:
                    raise RuntimeError(
                        f"an undisturbed fit of {name} on {kind} input has failed: "
                        f"{result.details}"
                    ) from result.error
            seconds = min(result.seconds for result in results)
            self._undisturbed[name, kind] = seconds, results[-1].objective
        return self._undisturbed[name, kind]

    def _fit(
        self,
        model: Any,
        name: str,
        kind: str,
        limit: float,
        striker: _Striker | None = None,
    ) -> Result:
        """Make a fit in a thread that can be given up."""
        result, starts = Result(), _Starts()
        X, y = CASES[name].rows()
        client = self._cluster.client
        given = make_input(kind, client, X, y)

        def fit() -> None:
            try:
                with client.as_current():
                    model.fit(*given)
            except BaseException as error:
                if not result.hung:  # else it has been given up
                    result.error = error
                    result.details = "".join(traceback.format_exception(error))

        logger = logging.getLogger("dask_ma.engine")
        logger.addHandler(starts)
        thread = threading.Thread(target=fit, name="fit", daemon=True)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                start = time.monotonic()
                thread.start()
                if striker is not None:
                    striker.begin()
                thread.join(limit)
                result.seconds = time.monotonic() - start
                if striker is not None:
                    striker.over.set()
                    struck_at = striker.struck_at
                    result.struck = struck_at is not None
                    result.struck_at = (struck_at or start) - start
        finally:
            logger.removeHandler(starts)
        result.n_starts, result.n_joins = starts.n_losses, starts.n_joins
        result.n_lost = sum(issubclass(w.category, RowsLostWarning) for w in caught)
        if thread.is_alive():
            result.hung = True
            stacks = [*stacks_here(), *self._cluster.stacks(), self._cluster.tasks()]
            result.details = f"no end after {limit:.0f} s\n" + "\n".join(stacks)
        elif result.error is None:
            result.objective = CASES[name].objective(model, X, y)
        return result

    def _judge(
        self, case: Case, fault: Fault, plan: Plan, result: Result, wanted: float
    ) -> None:
        """Compare a struck fit with an undisturbed one."""
        if result.error is not None:
            if not isinstance(result.error, fault.allowed_errors(plan.kind)):
                result.wrongs.append(
                    f"{type(result.error).__name__}: {str(result.error)[:300]}"
                )
            # The frames of the traceback hold futures of the fit.
            result.error = result.error.with_traceback(None)
            result.error.__context__ = result.error.__cause__ = None
            return
        if fault.errors and result.struck:
            # A fit that was about to end needs its workers no more.
            if plan.moment < 0.8:
                names = ", ".join(error.__name__ for error in fault.errors)
                result.wrongs.append(f"ended without one of {names}")
        rtol = case.rtol
        if result.n_lost:
            rtol = _LOOSE
            if not fault.may_lose_rows(plan.kind):
                result.wrongs.append(f"rows were lost ({result.n_lost} warnings)")
        if not np.isclose(result.objective, wanted, rtol=rtol, atol=0):
            result.wrongs.append(
                f"objective {result.objective:.6g}, {wanted:.6g} undisturbed"
            )

    def _look_after(self, name: str, result: Result) -> None:
        """See that nothing is left and the next fit works."""
        self._cluster.heal()
        left = self._cluster.leftovers()
        if left:
            result.wrongs.append(f"left behind: {left}")
        changes = {"max_iter": 2} if "max_iter" in CASES[name].params else {}
        after = self._fit(CASES[name].make(**changes), name, "numpy", 2 * _HANG)
        if after.hung or after.error is not None:
            result.wrongs.append(f"the next fit failed: {after.details[-2000:]}")
        if after.hung:
            self._replace_cluster()

    def _replace_cluster(self) -> None:
        """Leave a cluster on which a fit hangs."""
        self._cluster.close()
        self._cluster = Cluster()

    # The report --------------------------------------------------------------------

    def _tell(self, plan: Plan, result: Result) -> None:
        """One line for a fit, and all there is to know of one that went wrong."""
        what = result.verdict if result.struck or result.wrongs else "missed"
        self._say(
            f"{plan} at {result.struck_at:.2f} s: {what}, {result.seconds:+.1f} s, "
            f"{result.n_starts} losses noticed, {result.n_joins} regroupings"
        )
        for wrong in result.wrongs:
            self._say(f"    {wrong}")
        if result.verdict in ("wrong", "hung"):
            for line in result.details.splitlines():
                self._say(f"    | {line}")

    def _summarize(self, missed: int) -> None:
        """Tables of all fits that were struck."""
        self._table("fault", lambda plan: plan.fault)
        self._table("estimator", lambda plan: plan.case)
        self._table("input", lambda plan: plan.kind)
        wrong = [p for p, r in self.results if r.verdict in ("wrong", "hung")]
        self._say(
            f"{len(self.results)} struck fits, {len(wrong)} of them not as they should "
            f"be; {missed} fits ended before they were struck"
        )
        for plan in wrong:
            options = f' CHAOS_ARGS="{self._options.strip()}"' if self._options else ""
            self._say(f"    make chaos N=1 SEED={plan.seed}{options}   # {plan}")

    def _table(self, name: str, group_of: Callable[[Plan], str]) -> None:
        """What has become of the fits of each group."""
        groups: dict[str, list[Result]] = defaultdict(list)
        for plan, result in self.results:
            groups[group_of(plan)].append(result)
        verdicts = "right", "clear error", "wrong", "hung"
        columns = "".join(f"{verdict:>13}" for verdict in verdicts)
        self._say(f"\n{name:<34}{'struck':>8}{columns}   seconds lost, median, most")
        for group, results in sorted(groups.items()):
            counts = [sum(r.verdict == v for r in results) for v in verdicts]
            lost = [r.seconds for r in results if r.verdict == "right"]
            times = f"{median(lost):10.1f} {max(lost):10.1f}" if lost else ""
            row = "".join(f"{count:>13}" for count in counts)
            self._say(f"{group:<34}{len(results):>8}{row}   {times}")


class _Striker:
    """Strikes a fit after a while, unless it is over by then."""

    def __init__(
        self, cluster: Cluster, fault: Fault, delay: float, rng: random.Random
    ) -> None:
        self.over = threading.Event()
        self.struck_at: float | None = None
        self.error: BaseException | None = None
        self._cluster, self._fault, self._rng = cluster, fault, rng
        self._delay = delay
        self._pids = cluster.pids()
        self._thread = threading.Thread(target=self._run, name="fault", daemon=True)

    def begin(self) -> None:
        """The fit has begun."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait until the fault has run its course."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            self.error = TimeoutError(f"not over after {timeout:g} s")

    def _run(self) -> None:
        if self.over.wait(self._delay):
            return
        self.struck_at = time.monotonic()
        try:
            self._fault.strike(self._cluster, self._pids, self._rng)
        except BaseException as error:
            self.error = error


def choose(names: Sequence[str], wanted: str | None) -> list[str]:
    """Names that are, or else hold, one of some words, separated by commas."""
    words = (wanted or "").split(",")
    chosen = [name for name in names if name in words]
    chosen = chosen or [n for n in names if any(word in n for word in words)]
    if not chosen:
        raise SystemExit(f"none of {', '.join(names)} holds {wanted!r}")
    return chosen


def choices() -> dict[str, list[str]]:
    """All cases, kinds of input and faults."""
    return {"cases": list(CASES), "kinds": list(KINDS), "faults": list(FAULTS)}
