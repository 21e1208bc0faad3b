"""Writes that travel together (onelog/client/lanes.py)."""

from asyncio import Future
from collections.abc import Iterable
from time import monotonic
from typing import Any

from onelog.client.batch import OPERATION_SIZE, Batch, Waiting
from onelog.client.costs import COLLECTING
from onelog.client.lanes import Dispatch, Lane
from onelog.client.many import Part
from onelog.client.queue_values import ITEM_SIZE, settled_in
from onelog.client.retrying import Verdict, judge
from onelog.client.runs import (
    KEYS_MAX,
    AckRun,
    AppendRun,
    EnqueueRun,
    Joinable,
    batch_put_version,
    messages_enqueued,
    put_version,
    records_appended,
)
from onelog.client.tracing import PARENT
from onelog.client.values import ASYNC, Message
from onelog.errors import DeadlineExceeded, OnelogError, OutcomeUnknown
from onelog.v1 import pipeline_pb2


class WriteLane(Lane):
    """The writes of one shard, in its session or without one."""

    __slots__ = ("_has_session", "_is_opening", "_run_max", "shard")

    def __init__(self, dispatch: Dispatch, shard: int, *, has_session: bool) -> None:
        super().__init__(dispatch)
        self.shard = shard
        self._run_max = min(self._operations_max, KEYS_MAX)
        self._has_session = has_session
        self._is_opening = False

    def put(self, namespace: str, key: bytes, value: bytes, timeout_s: float) -> Future[Any]:
        """Write a key that depends on nothing, and return its future version.

        As long as nothing else is called, keys that differ travel as one operation.
        """
        size = len(key) + len(value)
        batch = self._open
        if (
            batch is None
            or batch.size + size > self._size_max
            or batch.count >= (self._operations_max if batch.run is None else self._run_max)
        ):
            batch = self._next_batch(size)
        run = batch.run
        if run is None and not batch.count:
            run = batch.begin_run(namespace)
        if run is None or _is_watched() or not run.takes(namespace, key, value):
            return self._put_apart(namespace, key, value, timeout_s)
        deadline_s = monotonic() + timeout_s
        if deadline_s < batch.earliest_s:
            batch.earliest_s = deadline_s
        batch.size += size + OPERATION_SIZE
        batch.count += 1
        future: Future[Any] = Future(loop=self._loop)
        run.pairs[key] = value
        run.members.append((future, deadline_s))
        return future

    def _put_apart(self, namespace: str, key: bytes, value: bytes, timeout_s: float) -> Future[Any]:
        operation, answer = self.begin(len(key) + len(value), put_version, timeout_s)
        try:
            put = operation.put
            put.namespace, put.key, put.value = namespace, key, value
        except BaseException:
            self.undo()
            raise
        return answer

    def put_many(
        self, namespace: str, part: Part, ttl_ms: int, timeout_s: float, *, is_early: bool
    ) -> Future[Any]:
        """Write many keys at once, and return their future version.

        As long as nothing else is called, those of several calls travel as one operation.
        """
        if not ttl_ms and not is_early and not _is_watched():
            joined = self._join_puts(namespace, part, timeout_s)
            if joined is not None:
                return joined
        weight = len(part.keys)
        operation, answer = self.begin(part.size, batch_put_version, timeout_s, weight=weight)
        try:
            put = operation.batch_put
            put.namespace, put.ttl_ms = namespace, ttl_ms
            put.keys.extend(part.keys)
            put.values.extend(part.values)
            if is_early:
                put.options.durability = ASYNC
        except BaseException:
            self.undo(weight)
            raise
        batch = self._open
        assert batch is not None
        batch.note_keys(namespace, part.keys)
        part.forget()
        return answer

    def _join_puts(self, namespace: str, part: Part, timeout_s: float) -> Future[Any] | None:
        """Let many puts join a run, if that is possible."""
        batch, count = self._open, len(part.keys)
        if batch is not None and batch.run is None and batch.count:
            return None
        if (
            batch is None
            or batch.size + part.size > self._size_max
            or batch.count + count > self._run_max
        ):
            batch = self._next_batch(part.size)
        run = batch.run or batch.begin_run(namespace)
        deadline_s = monotonic() + timeout_s
        future: Future[Any] = Future(loop=self._loop)
        if not run.add_many(namespace, part.keys, part.values, future, deadline_s):
            return None
        batch.earliest_s = min(batch.earliest_s, deadline_s)
        batch.size += part.size + OPERATION_SIZE
        batch.count += count
        part.forget()
        return future

    def transact(
        self,
        request: pipeline_pb2.TransactRequest,
        timeout_s: float,
        keys: Iterable[bytes] | None,
    ) -> Future[Any]:
        """Carry out a batch, and return its future answer; ``keys``: it only puts these."""
        weight = max(len(request.operations), 1)
        operation, answer = self.begin(
            request.ByteSize(), transact_response, timeout_s, weight=weight
        )
        operation.transact.CopyFrom(request)
        if keys is not None:
            batch = self._open
            assert batch is not None
            batch.note_keys(request.namespace, keys)
        return answer

    def ack(self, namespace: str, queue: str, message: Message, timeout_s: float) -> Future[Any]:
        """Settle a message; acks that follow each other travel as one operation."""
        batch = self._open
        run = None if batch is None else batch.joinable
        if (
            batch is None
            or not isinstance(run, AckRun)
            or not run.takes(namespace, queue)
            or batch.count >= self._operations_max
            or _is_watched()
        ):
            return self._begin_acks(namespace, queue, message, timeout_s)
        deadline_s = monotonic() + timeout_s
        future: Future[Any] = Future(loop=self._loop)
        run.add(message, future, deadline_s)
        batch.earliest_s = min(batch.earliest_s, deadline_s)
        batch.size += ITEM_SIZE
        batch.count += 1
        return future

    def _begin_acks(
        self, namespace: str, queue: str, message: Message, timeout_s: float
    ) -> Future[Any]:
        operation, answer = self.begin(ITEM_SIZE, settled_in, timeout_s)
        try:
            run = AckRun(operation.ack)
            run.request.namespace, run.request.queue = namespace, queue
            batch, deadline_s = self._last()
            run.add(message, answer, deadline_s)
        except BaseException:
            self.undo()
            raise
        self._let_join(batch, run)
        batch.free += 1
        return answer

    def append(
        self, namespace: str, stream: str, value: bytes, timeout_s: float, *, is_early: bool
    ) -> Future[Any]:
        """Append a value; appends that follow each other travel as one operation."""
        joined = self._join(AppendRun, namespace, stream, value, timeout_s)
        if joined is not None:
            return joined
        operation, answer = self.begin(len(stream) + len(value), records_appended, timeout_s)
        try:
            request = operation.append_records
            request.namespace, request.stream = namespace, stream
            self._begin_run(AppendRun(request), value, answer, is_early=is_early)
        except BaseException:
            self.undo()
            raise
        return answer

    def enqueue(
        self, namespace: str, queue: str, body: bytes, timeout_s: float, *, is_early: bool
    ) -> Future[Any]:
        """Enqueue a body; enqueues that follow each other travel as one operation."""
        joined = self._join(EnqueueRun, namespace, queue, body, timeout_s)
        if joined is not None:
            return joined
        operation, answer = self.begin(len(queue) + len(body), messages_enqueued, timeout_s)
        try:
            request = operation.enqueue
            request.namespace, request.queue = namespace, queue
            self._begin_run(EnqueueRun(request), body, answer, is_early=is_early)
        except BaseException:
            self.undo()
            raise
        return answer

    def _join(
        self,
        kind: type[AppendRun] | type[EnqueueRun],
        namespace: str,
        name: str,
        data: bytes,
        timeout_s: float,
    ) -> Future[Any] | None:
        """Let a record or a message be one more of the last operation, if that is possible."""
        batch = self._open
        run = None if batch is None else batch.joinable
        size = len(data)
        if (
            batch is None
            or not isinstance(run, kind)
            or not run.takes(namespace, name)
            or batch.count >= self._operations_max
            or batch.size + size > self._size_max
            or _is_watched()
        ):
            return None
        deadline_s = monotonic() + timeout_s
        future: Future[Any] = Future(loop=self._loop)
        run.add(data, future, deadline_s)
        batch.earliest_s = min(batch.earliest_s, deadline_s)
        batch.size += size + OPERATION_SIZE
        batch.count += 1
        batch.sequences += 1
        return future

    def _begin_run(
        self, run: AppendRun | EnqueueRun, data: bytes, answer: Future[Any], *, is_early: bool
    ) -> None:
        """Let the operation that was just begun be that of a run."""
        if is_early:
            run.request.options.durability = ASYNC
        batch, deadline_s = self._last()
        run.add(data, answer, deadline_s)
        self._let_join(batch, run)

    def _last(self) -> tuple[Batch, float]:
        """Return the open batch, and until when its last operation has time."""
        batch = self._open
        assert batch is not None
        return batch, batch.waiters[-1][2]

    def _let_join(self, batch: Batch, run: Joinable) -> None:
        """Let the last operation be that of a run, which calls of its kind may join."""
        _, decode, _, shard = batch.waiters[-1]
        batch.waiters[-1] = (run, decode, float("inf"), shard)
        if not _is_watched():
            batch.joinable = run

    def _run_refused(self, batch: Batch, error: OnelogError) -> None:
        """Let each have its own answer, before anything that was called later."""
        if judge(error) is not Verdict.FINAL or batch.is_uncertain:
            self.failed(batch, error)
            return
        self._settle(batch)
        batch.take_run_apart()
        batch.sent_s = float("inf")
        self._under_way.remove(batch)
        self._queued.appendleft(batch)
        self._schedule()

    def _is_full(self, batch: Batch) -> bool:
        return batch.count >= (self._operations_max if batch.run is None else self._run_max)

    def _may_join(self, batch: Batch) -> bool:
        # Acks do not wait until they are many: somebody may wait for the messages after them.
        is_of_acks = batch.is_free and not batch.keys and batch.run is None
        return (
            (batch is not self._open or is_of_acks)
            and len(self._under_way) < self._dispatch.options.messages_in_flight_max
            and all(map(batch.commutes_with, self._under_way))
        )

    def _send_first(self, batch: Batch) -> bool:
        dispatch = self._dispatch
        if self._has_session:
            session = dispatch.session_of(self.shard)
            if session is None:
                if not self._is_opening:
                    self._is_opening = True
                    dispatch.open_session(self.shard, self._opened)
                return False
            batch.session = session
            count = len(batch.waiters) + batch.sequences
            batch.sequence = session.take(count, monotonic())
        self._under_way.append(batch)
        self._send(batch)
        return True

    def _opened(self, error: OnelogError | None) -> None:
        self._is_opening = False
        if error is not None:
            # Nobody could open one within a whole timeout: those who wait so long learn why.
            for batch in (*self._queued, self._open):
                if batch is not None:
                    batch.error = error
                    if judge(error) is Verdict.FINAL:
                        batch.fail(error)
        self.flush()

    def _send(self, batch: Batch) -> None:
        if batch.session is not None:
            batch.session.put(batch.request.session, batch.sequence)
        self._post(batch, self._dispatch.endpoint_of(self.shard))

    def _refused(self, batch: Batch, waiting: Waiting, error: OnelogError) -> OnelogError | None:
        verdict = judge(error)
        match verdict:
            case Verdict.AGAIN:
                return error
            case Verdict.UNKNOWN if batch.session is not None:
                batch.is_uncertain = True
                return error
            case Verdict.REOPEN if not batch.is_uncertain:
                return error
            case Verdict.UNKNOWN if not isinstance(error, OutcomeUnknown):
                error = OutcomeUnknown(f"it may or may not have been done: {error}")
        waiting.set_exception(error)
        return None

    def _again(self, batch: Batch, error: OnelogError) -> None:
        if judge(error) is Verdict.REOPEN and batch.session is not None:
            # It did nothing in the lost session, so it is as good as new in the next one.
            self._dispatch.session_lost(batch.session)
            self._settle(batch)
            batch.keep_unanswered()
        elif batch.session is None:
            batch.keep_unanswered()
        super()._again(batch, error)

    def _shard(self, _batch: Batch) -> int | None:
        return self.shard

    def _resend(self, batch: Batch) -> None:
        if batch.is_answered:
            self._finish(batch)
        elif batch.session is None and self._has_session:
            self._under_way.remove(batch)
            self._queued.appendleft(batch)
            self.flush()
        else:
            self._send(batch)

    def _overdue(self, batch: Batch) -> None:
        dispatch = self._dispatch
        error = OutcomeUnknown(f"{batch.endpoint} has not answered for a while")
        if batch.session is None and batch.is_written:
            dispatch.attempt_failed(None, batch.endpoint, error)
        elif dispatch.endpoint_of(self.shard) == batch.endpoint:
            dispatch.attempt_failed(self.shard, batch.endpoint, error)
        else:
            dispatch.take_back(batch)
            batch.is_uncertain = batch.is_uncertain or batch.is_written
            self._send(batch)

    def _late(self, batch: Batch) -> OnelogError:
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


def _is_watched() -> bool:
    """Whether somebody wants to know what the call costs, or traces it: then it goes by itself."""
    return COLLECTING.get() is not None or PARENT.get() is not None


def transact_response(result: pipeline_pb2.OperationResult) -> Any:
    """Return the answer to a batch."""
    return result.transact
