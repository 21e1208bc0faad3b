"""Operations on their way together: one message of a pipeline and who waits for which result.

Invariants: a batch has as many operations as futures, decoders, deadlines and shards; the i-th of
each belong together. ``earliest_s`` is not above any deadline of an unanswered operation.
"""

from asyncio import Future
from collections.abc import Callable
from typing import Any

from onelog.client.retrying import Backoff
from onelog.client.sessions import Session
from onelog.errors import OnelogError
from onelog.v1 import pipeline_pb2

Decode = Callable[[pipeline_pb2.OperationResult], Any]

# What an operation takes besides its keys, names and values, about.
OPERATION_SIZE = 32


class Batch:
    """One message under construction, then under way."""

    __slots__ = (
        "backoff", "count", "deadlines", "decoders", "earliest_s", "endpoint", "error",
        "futures", "is_uncertain", "is_written", "request", "sent_s", "sequence", "session",
        "shards", "size",
    )  # fmt: skip

    def __init__(self) -> None:
        self.request = pipeline_pb2.ExecuteRequest()
        self.futures: list[Future[Any]] = []
        self.decoders: list[Decode] = []
        self.deadlines: list[float] = []
        self.shards: list[int] = []  # of reads only: writes of a batch share one
        self.size = 0
        self.count = 0  # of all operations that it ever had
        self.earliest_s = float("inf")
        self.session: Session | None = None
        self.sequence = 0
        # Of the current attempt, and what is known of those before.
        self.endpoint = ""
        self.sent_s = float("inf")
        self.is_written = False
        self.is_uncertain = False
        self.backoff: Backoff | None = None
        self.error: OnelogError | None = None

    @property
    def is_answered(self) -> bool:
        """Whether nobody waits for anything of it any more."""
        return all(future.done() for future in self.futures)

    def fail(self, error: OnelogError) -> None:
        """Give everyone who still waits this error."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error)

    def expire(self, now_s: float, late: Callable[[], OnelogError]) -> None:
        """Give those whose time is over the error that ``late`` makes."""
        earliest_s = float("inf")
        for future, deadline_s in zip(self.futures, self.deadlines, strict=True):
            if future.done():
                continue
            if deadline_s <= now_s:
                future.set_exception(late())
            elif deadline_s < earliest_s:
                earliest_s = deadline_s
        self.earliest_s = earliest_s

    def keep_unanswered(self) -> None:
        """Leave out what is answered, so that it is not done twice."""
        left = [at for at, future in enumerate(self.futures) if not future.done()]
        if len(left) == len(self.futures):
            return
        operations = self.request.operations
        request = pipeline_pb2.ExecuteRequest()
        request.operations.extend(operations[at] for at in left)
        self.request = request
        self.futures = [self.futures[at] for at in left]
        self.decoders = [self.decoders[at] for at in left]
        self.deadlines = [self.deadlines[at] for at in left]
        if self.shards:
            self.shards = [self.shards[at] for at in left]
