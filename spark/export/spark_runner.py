"""Runs the tasks of an export on Spark: one task for each split.

Spark places tasks, retries them, and may run one twice at the same time; a task that runs twice
writes the same files. A task returns what it did in an accumulator. The driver sees it as soon as
the task ends, and counts it once, so the journal grows while the job runs.

An error of a task reaches the driver as text from Java. The task puts reason and message into that
text, and this module extracts them.
"""

import json
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import AccumulatorParam

from onelog.errors import Internal, OnelogError, make_error
from onelog.spark.export.job import Numbered, Task
from onelog.spark.export.journal import SplitFacts
from onelog.spark.export.target import target_error
from onelog.ual.errors import UalError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

# How often the driver checks whether tasks have ended.
POLL_S = 0.1
_MARK = "onelog-task-error"
_MARKED = re.compile(rf"{_MARK}:(\{{.*?\}}):{_MARK}", re.DOTALL)


class TaskFailed(Exception):
    """An error of a task, as text that can be found again on the driver."""


class SparkRunner:
    """See ``onelog.spark.export.job.Runner``."""

    def __init__(self, session: "SparkSession") -> None:
        self._session = session

    def __call__(
        self,
        work: Sequence[Numbered],
        task: Task,
        on_done: Callable[[Sequence[SplitFacts]], None],
    ) -> None:
        """Run the task for each split; returns when all are done."""
        job = _Job(self._session.sparkContext, work, task)
        job.start()
        try:
            while not job.wait(POLL_S):
                on_done(job.take())
        except BaseException:
            # The journal cannot be written, or somebody pressed Ctrl-C.
            job.cancel()
            raise
        on_done(job.take())
        job.raise_error()


class _Facts(AccumulatorParam[list[SplitFacts]]):
    """Adds up lists."""

    def zero(self, value: list[SplitFacts]) -> list[SplitFacts]:  # noqa: ARG002 - Spark's names
        return []

    def addInPlace(  # noqa: N802
        self, value1: list[SplitFacts], value2: list[SplitFacts]
    ) -> list[SplitFacts]:
        return value1 + value2


class _Job:
    """One Spark job, in a thread of its own."""

    def __init__(self, context: "SparkContext", work: Sequence[Numbered], task: Task) -> None:
        self._context = context
        self._work = work
        self._task = task
        self._group = f"onelog-export-{id(self)}"
        self._done = context.accumulator([], _Facts())
        self._taken = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Start the job."""
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the job; return whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def take(self) -> list[SplitFacts]:
        """Return what was done since the last call."""
        found = self._done.value[self._taken :]
        self._taken += len(found)
        return found

    def cancel(self) -> None:
        """Cancel the job; none of its tasks runs when this returns."""
        self._context.cancelJobGroup(self._group)
        self._thread.join()

    def raise_error(self) -> None:
        """Raise what ended the job, if something did."""
        if self._error is not None:
            raise find_error(str(self._error)) or Internal(
                f"Spark could not run the export: {_first_line(self._error)}",
                reason="SPARK_FAILED",
            ) from self._error

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, "onelog export", interruptOnCancel=True)
            splits = self._context.parallelize(self._work, len(self._work))
            splits.foreachPartition(_Body(self._task, self._done))
        except BaseException as error:  # noqa: BLE001 - raised by raise_error
            self._error = error


class _Body:
    """What Spark runs for a split."""

    def __init__(self, task: Task, done: Any) -> None:
        self._task = task
        self._done = done

    def __call__(self, work: Iterable[Numbered]) -> None:
        for number, split in work:
            try:
                facts = self._task(number, split)
            except (OnelogError, UalError, OSError) as error:
                raise TaskFailed(encode_error(error)) from error
            self._done += [facts]


def encode_error(error: Exception) -> str:
    """Return an error as text that ``find_error`` can find inside other text."""
    found = to_api_error(error)
    fields = {"code": found.code, "message": found.message, "reason": found.reason}
    return f"{_MARK}:{json.dumps(fields)}:{_MARK}"


def find_error(text: str) -> OnelogError | None:
    """Return the error of a task from Spark's text about a failed job; None if it has none."""
    found = _MARKED.search(text)
    if found is None:
        return None
    fields = json.loads(found[1])
    return make_error(fields["code"], fields["message"], fields["reason"])


def to_api_error(error: Exception) -> OnelogError:
    """Return the error to show; errors of the log are already errors of the API."""
    if isinstance(error, OnelogError):
        return error
    if isinstance(error, UalError):
        return Internal(str(error), reason=error.reason)
    assert isinstance(error, OSError)
    return target_error(error)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:500] or type(error).__name__
