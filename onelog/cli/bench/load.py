"""Callers that repeat a step, and what they saw: how many, how long, what failed.

Whatever the length of a run, what is remembered of it has a fixed size: durations are counted in
cells that grow by GROWTH, so a percentile is that much off at most. A call that failed with an
answer of the database is counted by its reason, and its caller goes on after a pause; anything
else ends the run.
"""

import asyncio
import itertools
import math
import time
from array import array
from collections import Counter
from collections.abc import Iterator

import numpy as np

from onelog.cli.bench.workloads import Step
from onelog.errors import OnelogError

GROWTH = 1.01
# From a microsecond to an hour.
_FIRST_S, _LAST_S = 1e-6, 3600.0
_PER_E = 1 / math.log(GROWTH)
_CELLS = int(math.log(_LAST_S / _FIRST_S) * _PER_E) + 2
_AFTER_ERROR_S = 0.05
_NEW_MAX = 4096


class Durations:
    """Many durations in little space."""

    def __init__(self) -> None:
        self._cells = np.zeros(_CELLS, np.int64)
        self._new = array("d")  # not in their cells yet: many at a time cost less

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._cells.sum()) + len(self._new)

    def add(self, duration_s: float) -> None:
        """Count one."""
        self._new.append(duration_s)
        if len(self._new) >= _NEW_MAX:
            self._count_new()

    def _count_new(self) -> None:
        durations_s = np.maximum(np.frombuffer(self._new), _FIRST_S)
        cells = (np.log(durations_s / _FIRST_S) * _PER_E).astype(np.int64)
        self._cells += np.bincount(np.minimum(cells, _CELLS - 1), minlength=_CELLS)
        self._new = array("d")

    def percentile_s(self, part: float) -> float:
        """Return the duration that this part of all does not exceed; 0 if there is none."""
        if self._new:
            self._count_new()
        wanted = max(1, math.ceil(part * self.count))
        for at, count in enumerate(self._cells.tolist()):
            wanted -= count
            if count and wanted <= 0:
                return _FIRST_S * math.exp((at + 0.5) / _PER_E)
        return 0.0


class Run:
    """A run under way, or its result."""

    def __init__(self) -> None:
        self.done = 0
        self.durations = Durations()
        self.errors: Counter[str] = Counter()
        self.took_s = 0.0
        self._started_s = time.perf_counter()

    @property
    def per_s(self) -> float:
        """Operations in a second, so far or in all."""
        took_s = self.took_s or time.perf_counter() - self._started_s
        return self.done / took_s if took_s else 0.0

    async def repeat(
        self, step: Step, callers: int, *, seconds: float, calls: int | None = None
    ) -> None:
        """Let callers repeat a step for so long, and not more than so many times; at least once.

        Calls that are under way in the end are waited for.
        """
        self._started_s = time.perf_counter()
        turns = self._turns(calls, self._started_s + seconds)
        async with asyncio.TaskGroup() as group:
            for caller in range(callers):
                group.create_task(self._call(step, caller, turns))
        self.took_s = time.perf_counter() - self._started_s

    def _turns(self, calls: int | None, until_s: float) -> Iterator[None]:
        for number in itertools.count():
            if number == calls or (number and time.perf_counter() >= until_s):
                return
            yield

    async def _call(self, step: Step, caller: int, turns: Iterator[None]) -> None:
        now_s = time.perf_counter
        for _ in turns:
            begun_s = now_s()
            try:
                done = await step(caller)
            except OnelogError as error:
                self.errors[error.reason] += 1
                await asyncio.sleep(_AFTER_ERROR_S)
                continue
            self.durations.add(now_s() - begun_s)
            self.done += done
