"""Transparent batching: calls made at the same time travel in one message.

A call joins the open batch of its lane. A batch is sent at the end of the event loop's iteration,
so calls of one iteration go together. While a message is under way the open batch waits and grows.
A full batch need not wait if it does not matter which of the two is carried out first: the client
builds the next message while the server works on the last one. onelog/client/batch.py says which
calls of a message share an operation.

Writes have a lane for each shard, because the session of a message belongs to one; batches are sent
in the order of the calls. Reads have a lane for each endpoint. A batch is under way from its first
attempt until everything in it is answered, retries included. So a cluster in trouble is not
flooded, and writes take effect in the order of the calls wherever that order is observable.

In a session a batch is resent unchanged, with the same sequences: operations that were carried out
are answered again, the others are carried out now. Without a session, and for reads, it is rebuilt
from the unanswered calls.
"""

from asyncio import Future
from collections import deque
from collections.abc import Collection, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from onelog.client.batch import KEYS_MAX, SINGLE, Batch, Call, Kind, Single, fail
from onelog.client.calls import Backoff, Verdict, is_refusal, judge
from onelog.client.observing import COLLECTING, PARENT, add_parents
from onelog.client.pipeline_stream import ANSWER_TOO_LARGE
from onelog.errors import (
    DeadlineExceeded,
    Internal,
    OnelogError,
    OutcomeUnknown,
    TooLarge,
    Unavailable,
)
from onelog.status import error_of_result
from onelog.v1 import pipeline_pb2

if TYPE_CHECKING:
    from onelog.client.connection import Connection

# Bytes of overhead for a message, and for each call besides its keys, names and values.
MESSAGE_RESERVE = 64 << 10
CALL_SIZE = 32

# How slowly a lane of reads forgets that answers were large.
ANSWER_DECAY = 0.9


class Lane:
    """What lanes for reads and for writes have in common."""

    __slots__ = (
        "_connection", "_is_scheduled", "_loop", "_open", "_operations_max", "_queued", "_size_max",
        "_under_way",
    )  # fmt: skip

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._loop = connection.loop
        self._operations_max = connection.options.batch_operations_max
        self._size_max = connection.options.batch_bytes_max
        self._open: Batch | None = None
        self._queued: deque[Batch] = deque()
        self._under_way: list[Batch] = []
        self._is_scheduled = False

    def call(
        self, kind: Kind, target: Any, payload: Any, size: int, timeout_s: float, weight: int = 1
    ) -> Future[Any]:
        """Add a call to the open batch and return the future of its answer.

        ``size`` is about the bytes of its keys and values, ``weight`` the number of operations it
        counts as.
        """
        batch = self._open
        if (
            batch is None
            or batch.size + size > self._size_max
            or batch.count + weight > self._operations_max
        ):
            batch = self._next_batch(size)
        deadline_s = monotonic() + timeout_s
        if deadline_s < batch.earliest_s:
            batch.earliest_s = deadline_s
        batch.size += size + CALL_SIZE
        batch.count += weight
        if COLLECTING.get() is not None or PARENT.get() is not None:
            kind = batch.observe(kind)
        future: Future[Any] = Future(loop=self._loop)
        batch.calls.append(Call(kind, target, payload, future, deadline_s))
        return future

    def adopt(self, call: Call, origin: Batch) -> None:
        """Take over a call of another lane, with its future."""
        size = origin.size // len(origin.calls)
        batch = self._open
        if (
            batch is None
            or batch.size + size > self._size_max
            or batch.count >= self._operations_max
        ):
            batch = self._next_batch(size)
        batch.calls.append(call)
        batch.size += size
        batch.count += 1
        batch.earliest_s = min(batch.earliest_s, call.deadline_s)
        batch.request.with_cost |= origin.request.with_cost
        add_parents(batch.request, origin.request.traceparent)
        batch.backoff, batch.error = origin.backoff, origin.error

    def close(self, error: OnelogError) -> None:
        """Fail calls that were not sent; the pipe fails those under way."""
        for batch in (*self._queued, self._open):
            if batch is not None:
                fail(batch.calls, error)
        self._queued.clear()
        self._open = None

    def _next_batch(self, size: int) -> Batch:
        """Open a batch; queue the open one if it has no room."""
        limit = self._connection.options.message_bytes_max - MESSAGE_RESERVE
        if size > limit:
            raise TooLarge(f"{size} bytes in one operation, limit {limit}")
        if self._open is not None:
            self._count(self._open)
            self._queued.append(self._open)
        batch = self._open = Batch()
        self._connection.began(batch, self)
        self._schedule()
        return batch

    def _count(self, batch: Batch) -> None:
        """Count the operations of a batch that is complete."""
        if not batch.is_counted:
            batch.is_counted = True
            self._connection.entered(batch.count, batch.size)

    def flush(self) -> None:
        """Send the batches that may be sent now."""
        self._is_scheduled = False
        if self._open is not None and self._open.count >= self._operations_max:
            self._count(self._open)
            self._queued.append(self._open)
            self._open = None
        while True:
            batch = self._queued[0] if self._queued else self._open
            if batch is None or (self._under_way and not self._may_join(batch)):
                return
            # If all calls were cancelled or expired before sending, no session is needed.
            if not batch.is_answered and not self._is_ready():
                return
            if self._queued:
                self._queued.popleft()
            else:
                self._open = None
            self._count(batch)
            batch.build()
            if batch.operations:
                self._under_way.append(batch)
                self._send_first(batch)
            else:
                self._forget(batch)

    def _may_join(self, batch: Batch) -> bool:
        """Return whether a batch may be sent although others are under way."""
        return (
            batch is not self._open
            and len(self._under_way) < self._connection.options.messages_in_flight_max
        )

    def _is_ready(self) -> bool:
        """Return whether batches can be sent; if not, arrange for a later flush."""
        return True

    def _send_first(self, batch: Batch) -> None:
        raise NotImplementedError

    def _post(self, batch: Batch, endpoint: str) -> None:
        batch.endpoint = endpoint
        batch.sent_s = monotonic()
        self._connection.post(batch, self)

    def answered(self, batch: Batch, response: pipeline_pb2.ExecuteResponse) -> None:
        """Give every caller its result; retry operations that may succeed later."""
        if response.forwarded:
            self._connection.topology.refresh_soon()
        results = response.results
        if len(results) != len(batch.operations):
            count = len(batch.operations)
            fail(batch.calls, Internal(f"{len(results)} results for {count} operations"))
            self._finish(batch)
            return
        again: OnelogError | None = None
        batch.is_refused = True  # unless an outcome that is worth another attempt is not known
        for result, calls in zip(results, batch.operations, strict=True):
            if result.HasField("error"):
                error = self._refuse(batch, calls, error_of_result(result.error))
                if error is not None:
                    again = error
                    batch.is_refused = batch.is_refused and is_refusal(error)
            else:
                calls[0].kind.answer(result, calls)
        self._end_attempt(batch, again)

    def failed(self, batch: Batch, error: OnelogError) -> None:
        """Handle an attempt that failed as a whole."""
        batch.is_refused = False
        if not batch.is_written and judge(error) is Verdict.UNKNOWN:
            error = Unavailable(error.message, reason="NOT_SENT", retry_after_s=0)
        self._end_attempt(batch, self._refuse(batch, batch.calls, error))

    def _refuse(
        self, batch: Batch, calls: Sequence[Call], error: OnelogError
    ) -> OnelogError | None:
        """Fail the calls, or return the error if they are worth another attempt."""
        final = self._decide(batch, error)
        if final is not None:
            if calls and calls[0].kind.refused is not None:
                calls[0].kind.refused(final)
            fail(calls, final)
            return None
        return None if all(call.future.done() for call in calls) else error

    def _decide(self, batch: Batch, error: OnelogError) -> OnelogError | None:
        """Return the error for the callers, or None to retry."""
        raise NotImplementedError

    def _end_attempt(self, batch: Batch, error: OnelogError | None) -> None:
        """Finish a batch, or retry it after a backoff."""
        if error is None:
            self._finish(batch)
            return
        batch.error = error
        batch.sent_s = float("inf")
        if error.reason == "CLIENT_CLOSED":
            fail(batch.calls, error)
            self._finish(batch)
            return
        options = self._connection.options
        if batch.backoff is None:
            batch.backoff = Backoff(options.backoff_first_s, options.backoff_max_s)
        self._connection.calls.failed(self._find_shard(batch), batch.endpoint, error)
        self._loop.call_later(batch.backoff.next_s(error), self._resend, batch)

    def _find_shard(self, batch: Batch) -> int | None:
        """Return the shard of a batch, or None if it has several."""
        raise NotImplementedError

    def _resend(self, batch: Batch) -> None:
        raise NotImplementedError

    def sweep(self, batch: Batch, now_s: float) -> None:
        """Check the deadlines of a batch that is not answered."""
        if batch.earliest_s <= now_s:
            batch.expire(now_s, lambda: self._make_late_error(batch))
        if batch.sent_s > now_s:
            return
        if batch.is_answered:
            self._connection.withdraw(batch)
            self._finish(batch)
        elif now_s - batch.sent_s >= self._connection.options.attempt_timeout_s:
            self._overdue(batch)

    def _overdue(self, batch: Batch) -> None:
        """Handle a slow answer: find out who leads now, and ask there if it is another node."""
        raise NotImplementedError

    def _make_late_error(self, batch: Batch) -> OnelogError:
        """Return the error of a call whose deadline has passed."""
        raise NotImplementedError

    def _finish(self, batch: Batch) -> None:
        self._under_way.remove(batch)
        batch.sent_s = float("inf")
        self._forget(batch)
        # Later in this iteration: callers that were just answered may add to the next batch.
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._connection.flush_soon(self)

    def _forget(self, batch: Batch) -> None:
        self._connection.ended(batch)


class WriteLane(Lane):
    """The writes of one shard, with or without a session."""

    __slots__ = ("_has_session", "_is_opening", "shard")

    def __init__(self, connection: "Connection", shard: int, *, has_session: bool) -> None:
        super().__init__(connection)
        self._operations_max = min(self._operations_max, KEYS_MAX)
        self.shard = shard
        self._has_session = has_session
        self._is_opening = False

    def transact(
        self,
        request: pipeline_pb2.TransactRequest,
        timeout_s: float,
        keys: Collection[bytes] | None,
    ) -> Future[Any]:
        """Carry out a transaction and return the future of its answer.

        ``keys`` is given if it only puts these, unconditionally. The request must not be changed
        before it is answered.
        """
        single = Single(
            lambda operation: operation.transact.CopyFrom(request),
            lambda result: result.transact,
            keys,
        )
        weight, size = max(len(request.operations), 1), request.ByteSize()
        return self.call(SINGLE, request.namespace, single, size, timeout_s, weight)

    def answered(self, batch: Batch, response: pipeline_pb2.ExecuteResponse) -> None:
        """Handle answers; calls that were refused together are resent first, each by itself."""
        if batch.is_shared and not batch.is_uncertain:
            for result in response.results:
                if result.HasField("error") and _is_final(error_of_result(result.error)):
                    self._settle(batch)
                    batch.is_split = True
                    batch.sent_s = float("inf")
                    self._under_way.remove(batch)
                    self._queued.appendleft(batch)
                    self._schedule()
                    return
        super().answered(batch, response)

    def _may_join(self, batch: Batch) -> bool:
        return (
            (batch is not self._open or batch.is_urgent)
            and len(self._under_way) < self._connection.options.messages_in_flight_max
            and all(map(batch.commutes_with, self._under_way))
        )

    def _is_ready(self) -> bool:
        if not self._has_session or self._connection.sessions.get(self.shard) is not None:
            return True
        if not self._is_opening:
            self._is_opening = True
            self._connection.open_session(self.shard, self._opened)
        return False

    def _opened(self, error: OnelogError | None) -> None:
        self._is_opening = False
        if error is not None:
            # No session within a whole timeout: calls that expire meanwhile get this as the cause.
            for batch in (*self._queued, self._open):
                if batch is not None:
                    batch.error = error
                    if _is_final(error):
                        fail(batch.calls, error)
        self.flush()

    def _send_first(self, batch: Batch) -> None:
        if self._has_session:
            batch.session = self._connection.sessions.get(self.shard)
            assert batch.session is not None, self.shard
            batch.sequence = batch.session.take(batch.sequences, monotonic())
        self._send(batch)

    def _send(self, batch: Batch) -> None:
        if batch.session is not None:
            batch.session.fill(batch.request.session, batch.sequence)
        self._post(batch, self._connection.topology.find_endpoint(self.shard))

    def _decide(self, batch: Batch, error: OnelogError) -> OnelogError | None:
        match judge(error):
            case Verdict.AGAIN:
                return None
            case Verdict.UNKNOWN if batch.session is not None:
                batch.is_uncertain = True
                return None
            case Verdict.REOPEN if not batch.is_uncertain:
                return None
            case Verdict.UNKNOWN if not isinstance(error, OutcomeUnknown):
                return OutcomeUnknown(f"it may or may not have been done: {error}")
        return error

    def _end_attempt(self, batch: Batch, error: OnelogError | None) -> None:
        if error is not None and batch.session is not None:
            if judge(error) is Verdict.REOPEN:
                # It did nothing in the lost session, so the next session can take it as new.
                self._connection.sessions.lost(batch.session)
                self._settle(batch)
            elif batch.is_refused:
                # The session keeps the refusals: what is left is sent as new operations.
                batch.is_uncertain = False
                self._settle(batch)
        super()._end_attempt(batch, error)

    def _find_shard(self, _batch: Batch) -> int | None:
        return self.shard

    def _resend(self, batch: Batch) -> None:
        if batch.is_answered:
            self._finish(batch)
        elif batch.session is not None:
            self._send(batch)
        else:
            self._under_way.remove(batch)
            self._queued.appendleft(batch)
            self.flush()

    def _overdue(self, batch: Batch) -> None:
        connection, endpoint = self._connection, batch.endpoint
        error = OutcomeUnknown(f"{endpoint} has not answered for a while")
        if batch.session is None and batch.is_written:
            connection.calls.failed(None, endpoint, error)
        elif connection.topology.find_endpoint(self.shard) == endpoint:
            connection.calls.failed(self.shard, endpoint, error)
        else:
            connection.withdraw(batch)
            batch.is_uncertain = batch.is_uncertain or batch.is_written
            self._send(batch)

    def _make_late_error(self, batch: Batch) -> OnelogError:
        last = f"; the last attempt: {batch.error}" if batch.error is not None else ""
        if batch.is_uncertain or (batch.is_written and batch.sent_s < float("inf")):
            return OutcomeUnknown("no answer in time" + last)
        return DeadlineExceeded("not done in time" + last, reason="EXPIRED")

    def _settle(self, batch: Batch) -> None:
        if batch.session is not None:
            batch.session.done(batch.sequence)
            batch.session = None

    def _forget(self, batch: Batch) -> None:
        self._settle(batch)
        super()._forget(batch)


def _is_final(error: OnelogError) -> bool:
    return judge(error) is Verdict.FINAL


class ReadLane(Lane):
    """The reads of one endpoint.

    The size of an answer is known only when it arrives. So the sizes of earlier answers limit how
    many reads a batch has; if an answer is too large for a message, the batch is split.
    """

    __slots__ = ("_answer_size", "endpoint")

    def __init__(self, connection: "Connection", endpoint: str) -> None:
        super().__init__(connection)
        self.endpoint = endpoint
        self._answer_size = 1.0  # estimated bytes for an operation

    def answered(self, batch: Batch, response: pipeline_pb2.ExecuteResponse) -> None:
        """Give every caller its result, and learn how large answers are."""
        size = response.ByteSize() / len(batch.calls)
        self._expect(max(size, self._answer_size * ANSWER_DECAY))
        super().answered(batch, response)

    def failed(self, batch: Batch, error: OnelogError) -> None:
        """Retry with smaller batches if the answer was too large."""
        if ANSWER_TOO_LARGE in getattr(error, "__notes__", ()):
            if len(batch.calls) == 1:
                error = TooLarge(f"the answer is above {self._message_max} bytes")
            self._expect(2 * self._message_max / len(batch.calls))
        super().failed(batch, error)

    @property
    def _message_max(self) -> int:
        return self._connection.options.message_bytes_max

    def _expect(self, answer_size: float) -> None:
        self._answer_size = max(1.0, answer_size)
        fitting = int(self._message_max / 2 / self._answer_size)
        self._operations_max = max(1, min(self._connection.options.batch_operations_max, fitting))

    def _send_first(self, batch: Batch) -> None:
        self._post(batch, self.endpoint)

    def _decide(self, _batch: Batch, error: OnelogError) -> OnelogError | None:
        return None if judge(error) in (Verdict.AGAIN, Verdict.UNKNOWN) else error

    def _find_shard(self, batch: Batch) -> int | None:
        shards = {call.target for call in batch.calls}
        return shards.pop() if len(shards) == 1 else None

    def _resend(self, batch: Batch) -> None:
        # Leaders may have changed: each read goes to the node that leads its shard now.
        connection, find = self._connection, self._connection.topology.find_endpoint
        for call in batch.calls:
            if not call.future.done():
                connection.read_lane(find(call.target)).adopt(call, batch)
        self._finish(batch)

    def _overdue(self, batch: Batch) -> None:
        connection, endpoint = self._connection, batch.endpoint
        error = DeadlineExceeded(f"{endpoint} has not answered for a while")
        connection.calls.failed(None, endpoint, error)
        find = connection.topology.find_endpoint
        if any(find(call.target) != endpoint for call in batch.calls):
            connection.withdraw(batch)
            batch.sent_s = float("inf")
            self._resend(batch)

    def _make_late_error(self, batch: Batch) -> OnelogError:
        last = f"; the last attempt: {batch.error}" if batch.error is not None else ""
        return DeadlineExceeded("no answer in time" + last)
