"""Transparent batching: operations called at the same time travel in one message.

An operation joins the open batch of its lane. Batches leave at the end of the loop's iteration:
whatever was called in one iteration goes together, and nothing waits longer than that unless
a message is under way; then the open batch grows meanwhile. One that is full need not wait for the
last one, if it does not matter which of the two is carried out first: the client makes the next
message while a server works on the last one.

Writes have a lane for each shard, because a message in a session belongs to one; batches leave in
the order of the calls. Reads have a lane for each endpoint. A batch counts as under way from its
first attempt until everything in it is answered, retries included, so a cluster in trouble is not
flooded, and the order of writes is exact wherever it can be told.

In a session a batch is sent again as it was, with the same sequences: what was done is answered
again, what was not is done now. Without a session, and for reads, only what is unanswered is.
"""

from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Protocol

from onelog.client.batch import OPERATION_SIZE, Batch, Waiting
from onelog.client.costs import COLLECTING, Decode, taking
from onelog.client.options import ClientOptions
from onelog.client.retrying import Backoff, Verdict, judge
from onelog.client.sessions import Session
from onelog.client.tracing import PARENT, note, traced
from onelog.errors import (
    Internal,
    OnelogError,
    TooLarge,
    Unavailable,
)
from onelog.status import error_of_result
from onelog.v1 import pipeline_pb2

# What a message takes besides its operations, and each of them besides what callers count.
MESSAGE_RESERVE = 64 << 10


class Dispatch(Protocol):
    """What lanes need of the connection."""

    loop: AbstractEventLoop
    options: ClientOptions

    def flush_soon(self, lane: "Lane") -> None:
        """Call ``flush`` of a lane at the end of this iteration of the loop."""

    def post(self, batch: Batch, lane: "Lane") -> None:
        """Send a batch to its endpoint, with all others of this iteration."""

    def take_back(self, batch: Batch) -> None:
        """Forget a batch that was posted: its answer, if one comes, is for nobody."""

    def endpoint_of(self, shard: int) -> str:
        """Return where the leader of a shard is asked."""

    def session_of(self, shard: int) -> Session | None:
        """Return the session of a shard, if it is open."""

    def open_session(self, shard: int, opened: Callable[[OnelogError | None], None]) -> None:
        """Open a session, then call ``opened``."""

    def session_lost(self, session: Session) -> None:
        """Forget a session."""

    def attempt_failed(self, shard: int | None, endpoint: str, error: OnelogError) -> None:
        """Learn from an attempt that failed."""

    def forwarded(self) -> None:
        """Learn that somebody else leads than the client thinks."""

    def read_again(self, batch: Batch) -> None:
        """Hand the reads of a batch to the lanes where they belong now."""

    def began(self, batch: Batch, lane: "Lane") -> None:
        """Look after a batch from now on."""

    def entered(self, count: int, size: int) -> None:
        """Count operations in."""

    def ended(self, batch: Batch) -> None:
        """Forget a batch, and count its operations out."""


class Lane:
    """What lanes of reads and of writes have in common."""

    __slots__ = (
        "_dispatch", "_is_scheduled", "_loop", "_open", "_operations_max", "_queued", "_size_max",
        "_under_way",
    )  # fmt: skip

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._loop = dispatch.loop
        self._operations_max = dispatch.options.batch_operations_max
        self._size_max = dispatch.options.batch_bytes_max
        self._open: Batch | None = None
        self._queued: deque[Batch] = deque()
        self._under_way: list[Batch] = []
        self._is_scheduled = False

    def begin(
        self, size: int, decode: Decode, timeout_s: float, shard: int = 0, weight: int = 1
    ) -> tuple[pipeline_pb2.Operation, Future[Any]]:
        """Return the next operation, to be filled in at once, and its future result.

        ``size`` is about the bytes of its keys and values, ``weight`` how many operations it stands
        for. If filling it in fails, ``undo`` it.
        """
        batch = self._open
        if (
            batch is None
            or batch.size + size > self._size_max
            or batch.count >= self._operations_max
        ):
            batch = self._next_batch(size)
        if batch.run is not None:
            batch.take_run_apart()
        batch.joinable = None
        deadline_s = monotonic() + timeout_s
        if deadline_s < batch.earliest_s:
            batch.earliest_s = deadline_s
        batch.size += size + OPERATION_SIZE
        batch.count += weight
        spent = COLLECTING.get()
        if spent is not None:
            batch.request.with_cost = True
            decode = taking(spent, decode)
        parent = PARENT.get()
        if parent is not None:
            note(batch.request, (parent,))
        future: Future[Any] = Future(loop=self._loop)
        batch.waiters.append((future, decode, deadline_s, shard))
        return batch.add(), future

    def undo(self, weight: int = 1) -> None:
        """Take the operation back that was just begun."""
        batch = self._open
        assert batch is not None
        batch.count -= weight
        batch.waiters.pop()
        del batch.request.operations[-1]

    def close(self, error: OnelogError) -> None:
        """Fail what has not been sent; what is under way fails with its pipe."""
        for batch in (*self._queued, self._open):
            if batch is not None:
                batch.fail(error)
        self._queued.clear()
        self._open = None

    def adopt(self, batch: Batch, at: int) -> None:
        """Take over an operation of another lane, with whoever waits for it."""
        theirs = batch.request.operations[at]
        future, decode, deadline_s, shard = batch.waiters[at]
        with traced(None):  # whoever is here now is not who called
            operation, mine = self.begin(theirs.ByteSize(), decode, 0.0, shard)
        operation.CopyFrom(theirs)
        mine.cancel()
        joined = self._open
        assert joined is not None
        joined.request.with_cost |= batch.request.with_cost
        note(joined.request, batch.request.traceparent)
        joined.waiters[-1] = (future, decode, deadline_s, shard)
        joined.earliest_s = min(deadline_s, *(waiter[2] for waiter in joined.waiters))
        joined.backoff, joined.error = batch.backoff, batch.error

    def _next_batch(self, size: int) -> Batch:
        """Open a batch; if there is one that has no room, let it wait for its turn."""
        limit = self._dispatch.options.message_bytes_max - MESSAGE_RESERVE
        if size > limit:
            raise TooLarge(f"{size} bytes in one operation, limit {limit}")
        batch = self._open
        if batch is not None:
            if not batch.count:
                return batch
            self._count(batch)
            self._queued.append(batch)
        batch = self._open = Batch()
        self._dispatch.began(batch, self)
        self._schedule()
        return batch

    def _count(self, batch: Batch) -> None:
        """Count a batch that nothing is added to any more."""
        if not batch.is_counted:
            batch.is_counted = True
            batch.complete_run()
            self._dispatch.entered(batch.count, batch.size)

    def flush(self) -> None:
        """Send what may be sent now."""
        self._is_scheduled = False
        if self._open is not None and self._is_full(self._open):
            self._count(self._open)
            self._queued.append(self._open)
            self._open = None
        while True:
            batch = self._queued[0] if self._queued else self._open
            if batch is None or (self._under_way and not self._may_join(batch)):
                return
            if self._queued:
                self._queued.popleft()
            else:
                self._open = None
            self._count(batch)
            if batch.is_answered:  # cancelled or late before it was ever sent, or empty
                self._forget(batch)
            elif not self._send_first(batch):
                self._queued.appendleft(batch)
                return

    def _is_full(self, batch: Batch) -> bool:
        return batch.count >= self._operations_max

    def _may_join(self, batch: Batch) -> bool:
        """Tell whether a batch may leave although others are under way."""
        return (
            batch is not self._open
            and len(self._under_way) < self._dispatch.options.messages_in_flight_max
        )

    def _send_first(self, batch: Batch) -> bool:
        raise NotImplementedError

    def _post(self, batch: Batch, endpoint: str) -> None:
        batch.endpoint = endpoint
        batch.sent_s = monotonic()
        self._dispatch.post(batch, self)

    def answered(self, batch: Batch, response: pipeline_pb2.ExecuteResponse) -> None:
        """Give every waiter its result; what is worth another attempt has one."""
        if response.forwarded:
            self._dispatch.forwarded()
        results = response.results
        if batch.run is not None and results and results[0].HasField("error"):
            self._run_refused(batch, error_of_result(results[0].error))
            return
        if len(results) != len(batch.waiters):
            count = len(batch.waiters)
            batch.fail(Internal(f"{len(results)} results for {count} operations"))
            self._finish(batch)
            return
        again: OnelogError | None = None
        for result, (future, decode, _, _) in zip(results, batch.waiters, strict=True):
            if future.done():
                continue
            if result.HasField("error"):
                again = self._refused(batch, future, error_of_result(result.error)) or again
                continue
            try:
                future.set_result(decode(result))
            except OnelogError as error:  # of the one message or record that it holds
                future.set_exception(error)
        if again is None:
            self._finish(batch)
        else:
            self._again(batch, again)

    def _run_refused(self, batch: Batch, error: OnelogError) -> None:
        """Keys that went together were refused together."""
        raise NotImplementedError

    def failed(self, batch: Batch, error: OnelogError) -> None:
        """The whole attempt failed."""
        if not batch.is_written and judge(error) is Verdict.UNKNOWN:
            error = Unavailable(error.message, reason="NOT_SENT", retry_after_s=0)
        again: OnelogError | None = None
        for future, _, _, _ in batch.waiters:
            if not future.done():
                again = self._refused(batch, future, error) or again
        if again is None:
            self._finish(batch)
        else:
            self._again(batch, again)

    def _refused(self, batch: Batch, waiting: Waiting, error: OnelogError) -> OnelogError | None:
        """Fail the operation, or return the error if it is to be tried again."""
        raise NotImplementedError

    def _again(self, batch: Batch, error: OnelogError) -> None:
        """Try again after a while."""
        batch.error = error
        batch.sent_s = float("inf")
        if error.reason == "CLIENT_CLOSED":
            batch.fail(error)
            self._finish(batch)
            return
        if batch.backoff is None:
            options = self._dispatch.options
            batch.backoff = Backoff(options.backoff_first_s, options.backoff_max_s)
        self._dispatch.attempt_failed(self._shard(batch), batch.endpoint, error)
        self._loop.call_later(batch.backoff.next_s(error), self._resend, batch)

    def _shard(self, batch: Batch) -> int | None:
        """Return the shard that all of a batch is in, if it is one."""
        raise NotImplementedError

    def _resend(self, batch: Batch) -> None:
        raise NotImplementedError

    def sweep(self, batch: Batch, now_s: float) -> None:
        """Look after a batch that is not answered yet."""
        if batch.earliest_s <= now_s:
            batch.expire(now_s, lambda: self._late(batch))
        if batch.sent_s > now_s:
            return
        if batch.is_answered:
            self._dispatch.take_back(batch)
            self._finish(batch)
        elif now_s - batch.sent_s >= self._dispatch.options.attempt_timeout_s:
            self._overdue(batch)

    def _overdue(self, batch: Batch) -> None:
        """An answer takes long: see whether somebody else leads, and ask there."""
        raise NotImplementedError

    def _late(self, batch: Batch) -> OnelogError:
        raise NotImplementedError

    def _finish(self, batch: Batch) -> None:
        self._under_way.remove(batch)
        batch.sent_s = float("inf")
        self._forget(batch)
        # Not at once: those who were just answered run first, and what they call goes along.
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._dispatch.flush_soon(self)

    def _forget(self, batch: Batch) -> None:
        self._dispatch.ended(batch)
