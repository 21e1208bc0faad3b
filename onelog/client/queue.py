"""Queues: ``client.queue("jobs")``.

Delivery is at least once. A leased message belongs to the holder of its token until the lease ends;
settling it later fails with LeaseLost. ``worker`` is the convenient way to consume. If the caller
of ``lease`` is cancelled, messages that were leased for it are released at once.
"""

import logging
from asyncio import Future
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from onelog.client.batch import ACK, ENQUEUE, SINGLE, VALUE_SIZE_MAX, Single, gather_results
from onelog.client.connection import Connection
from onelog.client.lanes import WriteLane
from onelog.client.leased import AsyncLeasedMessage, LeasedMessage
from onelog.client.options import Scope
from onelog.client.push import Pushed
from onelog.client.tables import Rows
from onelog.client.times import Time, to_nanoseconds
from onelog.client.validation import (
    UNSENDABLE,
    check_arguments,
    checks_itself,
    explain_element,
    refuse,
    refuse_unsendable,
    refuse_zero,
)
from onelog.client.values import (
    ASYNC,
    ITEM_SIZE,
    MESSAGES_MAX,
    NOTHING,
    REASONS_OF_ONE,
    Enqueued,
    Message,
    NewMessage,
    QueueConfig,
    QueueInfo,
    Read,
    Redrive,
    Schedule,
    Settled,
    Value,
    milliseconds,
    positive_ms,
    settled_in,
    to_bytes,
    to_enqueued,
    to_message,
    to_queue_info,
    to_redrive,
    to_settle_error,
    to_settled,
)
from onelog.client.worker import AsyncWorker
from onelog.errors import AlreadyExists, OnelogError
from onelog.v1 import pipeline_pb2, queue_pb2

_log = logging.getLogger("onelog.queue")


@refuse_unsendable
class AsyncQueue:
    """One queue, by its name. ``create`` it before other calls."""

    def __init__(self, connection: Connection, scope: Scope, name: str) -> None:
        self._connection = connection
        self._scope = scope
        self._name = name
        self._route = name.encode()
        self._timeout_s = scope.timeout_s
        self._is_early = scope.is_early
        self._target = scope.namespace, name, self._is_early
        # What messages become: a blocking client has another class of them.
        self._leased = AsyncLeasedMessage if connection.thread is None else LeasedMessage
        # Set when the client is connected; acks are never early.
        self._lane: WriteLane | None = None
        self._ack_lane: WriteLane | None = None

    def __repr__(self) -> str:
        return f"AsyncQueue({self._name!r})"

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._name

    # The queue itself

    async def create(self, config: QueueConfig | None = None, *, exist_ok: bool = False) -> int:
        """Create the queue and return its id; AlreadyExists if there is one.

        With ``exist_ok`` return the id of an existing one, and leave its settings as they are.
        """
        request = self._named(queue_pb2.CreateQueueRequest())
        (config or QueueConfig()).fill(request.config)
        try:
            queue_id: int = (await self._change("Queue/CreateQueue", request)).queue_id
        except AlreadyExists:
            if not exist_ok:
                raise
            queue_id = (await self.info()).queue_id
        return queue_id

    async def configure(self, config: QueueConfig) -> None:
        """Replace the settings."""
        request = self._named(queue_pb2.ConfigureQueueRequest())
        config.fill(request.config)
        await self._change("Queue/ConfigureQueue", request)

    async def delete(self) -> None:
        """Delete the queue with all of its messages."""
        await self._change("Queue/DeleteQueue", self._named(queue_pb2.DeleteQueueRequest()))

    async def info(self, *, read: Read | None = None) -> QueueInfo:
        """Return the queue's settings and state."""
        answer = await self._look("Queue/GetQueue", queue_pb2.GetQueueRequest(), read)
        return to_queue_info(answer.queue)

    async def pause(self) -> None:
        """Deliver no more messages until ``resume``."""
        request = self._named(queue_pb2.PauseQueueRequest(paused=True))
        await self._change("Queue/PauseQueue", request)

    async def resume(self) -> None:
        """Deliver messages again after ``pause``."""
        request = self._named(queue_pb2.PauseQueueRequest(paused=False))
        await self._change("Queue/PauseQueue", request)

    # Producing

    @checks_itself
    async def enqueue(
        self,
        body: Value,
        *,
        priority: int = 8,
        delay_s: float = 0.0,
        at_ns: Time = 0,
        ttl_s: float = 0.0,
        dedup_id: Value = NOTHING,
        group: Value = NOTHING,
        tenant: Value = NOTHING,
        headers: Mapping[str, Value] | None = None,
    ) -> Enqueued:
        """Put a message into the queue; see ``NewMessage`` for the arguments."""
        message: NewMessage | None = None
        if not self._connection.is_clear:
            await self._connection.ready(self._timeout_s)
        try:
            if (
                priority != 8
                or delay_s != 0
                or at_ns != 0
                or ttl_s != 0
                or dedup_id is not NOTHING
                or group is not NOTHING
                or tenant is not NOTHING
                or headers
            ):
                message = NewMessage(
                    body, priority, delay_s, at_ns, ttl_s, dedup_id, group, tenant, headers or {}
                )
            enqueued: Enqueued = await self._enqueue(body, message)
        except UNSENDABLE as error:
            refuse(error, AsyncQueue.enqueue, locals())
            raise
        return enqueued

    async def enqueue_many(self, messages: Iterable[NewMessage | Value]) -> Rows[Enqueued]:
        """Put many messages into the queue, in order, each by itself.

        All are tried; if some fail, the first error is raised, with a note of how many failed.
        """
        answers: list[Future[Any]] = []
        for each in messages:
            if not self._connection.is_clear:
                await self._connection.ready(self._timeout_s)
            try:
                if isinstance(each, NewMessage):
                    answers.append(self._enqueue(each.body, each))
                else:
                    answers.append(self._enqueue(each))
            except UNSENDABLE as error:
                wrong = explain_element(
                    error, AsyncQueue.enqueue_many, "messages", len(answers), each
                )
                answers.append(self._connection.make_failed(wrong))
        return await gather_results(answers, "messages")

    # Consuming

    async def lease(
        self, count: int = 1, *, visibility_s: float | None = None, wait_s: float = 0.0
    ) -> Rows[AsyncLeasedMessage]:
        """Lease up to ``count`` messages; wait up to ``wait_s`` for the first. May return none.

        The messages are invisible to others for ``visibility_s`` (None: the queue's setting); then
        they are delivered again unless they were settled. If the call is cancelled, messages that
        were leased for it are released, in the background if that takes long.
        """
        refuse_zero("count", count)
        request = self._named(queue_pb2.LeaseRequest(count=count))
        request.visibility_ms = positive_ms(visibility_s)
        if wait_s:
            # A long poll is a unary call: in a pipeline message others would wait for it.
            request.wait_ms = milliseconds(wait_s)
            answer = await self._connection.call_write(
                "Queue/Lease",
                request,
                self._timeout_s,
                name=self._route,
                poll_s=wait_s,
                unwanted=self._give_back,
            )
        else:
            answer = await self._connection.write(
                self._route,
                len(self._route),
                self._timeout_s,
                lambda operation: operation.lease.CopyFrom(request),
                lambda found: found.lease,
                unwanted=self._give_back,
            )
        return Rows(map(self._to_leased, answer.messages))

    @checks_itself
    async def consume(
        self, *, credit: int = 100, visibility_s: float | None = None
    ) -> AsyncIterator[AsyncLeasedMessage]:
        """Yield messages as they arrive, with at most ``credit`` unsettled ones.

        They are read in the background: up to ``credit`` messages wait in memory. Messages that are
        still leased when the iteration ends are released. When the leader changes or dies it
        continues: messages that have arrived stay leased, and those that were lost on the way are
        delivered as if they had never been sent. If the connection breaks and the leader lives,
        messages that are not settled are delivered again.
        """
        check_arguments(AsyncQueue.consume, locals())
        refuse_zero("credit", credit)
        try:
            request = self._named(
                queue_pb2.ConsumeRequest(credit=credit, visibility_ms=positive_ms(visibility_s))
            )
        except UNSENDABLE as error:
            refuse(error, AsyncQueue.consume, locals())
            raise
        shard = await self._connection.find_shard(self._route, self._timeout_s)
        connection = self._connection
        async with Pushed(
            connection.calls, connection.topology, shard, request, self._timeout_s
        ) as pushed:
            async for message in pushed:
                yield self._to_leased(message)

    def worker(
        self,
        handler: Callable[[Message], Awaitable[Any] | Any],
        *,
        concurrency: int = 8,
        visibility_s: float = 30.0,
        stop_timeout_s: float = 30.0,
        limit: int = 0,
    ) -> AsyncWorker:
        """Return a worker that calls ``handler`` for each message, several at a time.

        With ``limit`` it leases no more messages than that; ``run`` returns when they are settled.
        """
        return AsyncWorker(
            self,
            handler,
            concurrency=concurrency,
            visibility_s=visibility_s,
            stop_timeout_s=stop_timeout_s,
            limit=limit,
        )

    @checks_itself
    async def ack(self, message: Message) -> None:
        """Acknowledge a message: it is done. LeaseLost if the lease has ended."""
        if not self._connection.is_clear:
            await self._connection.ready(self._timeout_s)
        lane = self._ack_lane
        if lane is None:
            lane = self._ack_lane = self._connection.write_lane(self._route)
            assert lane is not None
        try:
            await lane.call(ACK, self._target, message, ITEM_SIZE, self._timeout_s)
        except UNSENDABLE as error:
            refuse(error, AsyncQueue.ack, locals())
            raise

    async def ack_many(self, messages: Sequence[Message], *, strict: bool = False) -> Rows[Settled]:
        """Acknowledge messages; return the outcome of each. ``strict``: all of them, or none."""
        return await self._settle("ack", queue_pb2.AckRequest(strict=strict), messages)

    async def nack(
        self, message: Message, *, delay_s: float | None = None, reason: str = ""
    ) -> Settled:
        """Record a failed delivery: retry after ``delay_s`` (None: the queue's backoff).

        After ``max_deliveries`` failures the message goes to the dead-letter queue.
        """
        return _check(await self.nack_many([message], delay_s=delay_s, reason=reason))

    async def nack_many(
        self,
        messages: Sequence[Message],
        *,
        delay_s: float | None = None,
        reason: str = "",
        strict: bool = False,
    ) -> Rows[Settled]:
        """Record failed deliveries, as ``nack`` does; return the outcome of each."""
        request = queue_pb2.NackRequest(reason=reason, strict=strict)
        if delay_s is not None:
            request.delay_ms = milliseconds(delay_s)
        return await self._settle("nack", request, messages)

    async def extend(self, message: Message, visibility_s: float | None = None) -> None:
        """Extend a lease to ``visibility_s`` from now (None: the queue's setting)."""
        _check(await self.extend_many([message], visibility_s))

    async def extend_many(
        self, messages: Sequence[Message], visibility_s: float | None = None
    ) -> Rows[Settled]:
        """Extend leases, as ``extend`` does; return the outcome of each."""
        request = queue_pb2.ExtendRequest(visibility_ms=positive_ms(visibility_s))
        return await self._settle("extend", request, messages)

    async def release(self, message: Message) -> None:
        """Release a message: it is ready again as if it had not been leased."""
        _check(await self.release_many([message]))

    async def release_many(self, messages: Sequence[Message]) -> Rows[Settled]:
        """Release messages, as ``release`` does; return the outcome of each."""
        return await self._settle("release", queue_pb2.ReleaseRequest(), messages)

    # Maintenance

    async def cancel(self, message_ids: Sequence[int]) -> Rows[Settled]:
        """Delete messages that are not leased; return the outcome of each."""
        request = self._named(queue_pb2.CancelRequest())
        return await self._change_each("Queue/Cancel", request, message_ids)

    async def prioritise(self, message_ids: Sequence[int], priority: int) -> Rows[Settled]:
        """Change the priority of messages that are not leased; return the outcome of each."""
        request = self._named(queue_pb2.PrioritiseRequest(priority=priority))
        return await self._change_each("Queue/Prioritise", request, message_ids)

    async def _change_each(
        self, path: str, request: Any, message_ids: Sequence[int]
    ) -> Rows[Settled]:
        settled: Rows[Settled] = Rows()
        for first in range(0, len(message_ids), MESSAGES_MAX):
            request.message_ids[:] = message_ids[first : first + MESSAGES_MAX]
            try:
                answer = await self._change(path, request)
            except OnelogError as error:
                if error.reason not in REASONS_OF_ONE:
                    raise
                settled.append(Settled(request.message_ids[0], error.reason))
            else:
                settled += [to_settled(each) for each in answer.results]
        return settled

    async def peek(
        self,
        limit: int = 10,
        *,
        from_id: int = 0,
        from_ns: Time = 0,
        failure_contains: str = "",
        read: Read | None = None,
    ) -> Rows[Message]:
        """Return messages in the order of their ids, without leasing them.

        With ``failure_contains`` only dead letters whose failure reason contains this text.
        """
        refuse_zero("limit", limit)
        request = queue_pb2.PeekRequest(
            limit=limit,
            from_id=from_id,
            from_ns=to_nanoseconds(from_ns, "from_ns"),
            failure_contains=failure_contains,
        )
        found: Rows[Message] = Rows()
        while True:
            answer = await self._look("Queue/Peek", request, read)
            found += Rows(to_message(each, Message) for each in answer.messages)
            if not answer.next_id or len(found) >= limit:
                return found
            # One answer visits and holds a limited number of messages.
            request.from_id, request.limit = answer.next_id, limit - len(found)

    async def purge(
        self, *, below_id: int = 0, before_ns: Time = 0, leased_too: bool = False
    ) -> int:
        """Delete many messages at once; return how many."""
        request = self._named(
            queue_pb2.PurgeRequest(
                below_id=below_id,
                before_ns=to_nanoseconds(before_ns, "before_ns"),
                leased_too=leased_too,
            )
        )
        count: int = (await self._change("Queue/Purge", request)).purged_count
        return count

    async def redrive(
        self,
        *,
        target: str = "",
        first_id: int = 0,
        last_id: int = 0,
        failed_from_ns: Time = 0,
        failed_until_ns: Time = 0,
        failure_contains: str = "",
        limit: int = 0,
        rate_per_s: int = 0,
    ) -> int:
        """Move dead letters back to the queues they came from, or to ``target``; return an id.

        The server continues in the background; ``cancel_redrive`` stops it.
        """
        request = self._named(
            queue_pb2.RedriveRequest(
                target_queue=target,
                first_id=first_id,
                last_id=last_id,
                failed_from_ns=to_nanoseconds(failed_from_ns, "failed_from_ns"),
                failed_until_ns=to_nanoseconds(failed_until_ns, "failed_until_ns"),
                failure_contains=failure_contains,
                limit=limit,
                rate_per_s=rate_per_s,
            )
        )
        redrive_id: int = (await self._change("Queue/Redrive", request)).redrive_id
        return redrive_id

    async def cancel_redrive(self, redrive_id: int) -> None:
        """Stop a redrive; messages that it moved stay where they are."""
        request = self._named(queue_pb2.CancelRedriveRequest(redrive_id=redrive_id))
        await self._change("Queue/CancelRedrive", request)

    async def redrives(self, *, read: Read | None = None) -> Rows[Redrive]:
        """Return the running redrives of dead letters from this queue, with their progress."""
        answer = await self._look("Queue/ListRedrives", queue_pb2.ListRedrivesRequest(), read)
        return Rows(map(to_redrive, answer.redrives))

    async def schedule(self, cron: str, message: NewMessage | Value) -> int:
        """Enqueue the message whenever the cron expression (UTC) says so; return the id."""
        request = self._named(queue_pb2.CreateScheduleRequest(cron=cron))
        new = message if isinstance(message, NewMessage) else NewMessage(message)
        new.fill(request.message)
        schedule_id: int = (await self._change("Queue/CreateSchedule", request)).schedule_id
        return schedule_id

    async def unschedule(self, schedule_id: int) -> None:
        """Delete a schedule; messages that it enqueued stay."""
        request = self._named(queue_pb2.DeleteScheduleRequest(schedule_id=schedule_id))
        await self._change("Queue/DeleteSchedule", request)

    async def schedules(self, *, read: Read | None = None) -> Rows[Schedule]:
        """Return the schedules of the queue."""
        answer = await self._look("Queue/ListSchedules", queue_pb2.ListSchedulesRequest(), read)
        return Rows(
            Schedule(each.schedule_id, each.cron, each.next_ns) for each in answer.schedules
        )

    # Parts

    def _to_leased(self, found: queue_pb2.Message) -> Any:
        message = to_message(found, self._leased)
        message._queue = self
        return message

    def _named(self, request: Any) -> Any:
        request.namespace = self._scope.namespace
        request.queue = self._name
        return request

    async def _change(self, path: str, request: Any) -> Any:
        return await self._connection.call_write(path, request, self._timeout_s, name=self._route)

    async def _look(self, path: str, request: Any, read: Read | None) -> Any:
        self._named(request)
        if read is not None:
            read.fill(request.options)
        is_stale = read is not None and read.stale
        return await self._connection.call_read(
            path, request, self._timeout_s, name=self._route, is_stale=is_stale
        )

    async def _give_back(self, leasing: Awaitable[queue_pb2.LeaseResponse]) -> None:
        """Release messages that were leased for a cancelled caller; if that fails they expire."""
        try:
            messages = (await leasing).messages
            if messages:
                await self.release_many([to_message(each, Message) for each in messages])
        except OnelogError as error:
            _log.warning("messages of a cancelled lease may still be leased: %s", error)

    def _enqueue(self, body: Value, message: NewMessage | None = None) -> Future[Any]:
        """Send one message; ``message`` is given if it has more than a body."""
        lane = self._lane
        if lane is None:
            connection = self._connection
            find = connection.early_lane if self._is_early else connection.write_lane
            lane = self._lane = find(self._route)
            assert lane is not None
        if message is None:
            data = to_bytes(body)
            size = len(data) + len(self._route)
            if len(data) <= VALUE_SIZE_MAX:
                return lane.call(ENQUEUE, self._target, data, size, self._timeout_s)
            message = NewMessage(data)
        request = self._named(queue_pb2.EnqueueRequest())
        message.fill(request.messages.add())
        if self._is_early and request.messages[0].dedup_id:
            self._scope.need_result("a message with a dedup id")
            lane = self._connection.write_lane(self._route)
            assert lane is not None
        elif self._is_early:
            request.options.durability = ASYNC
        single = Single(lambda operation: operation.enqueue.CopyFrom(request), _read_enqueued)
        return lane.call(SINGLE, None, single, len(body) + len(self._route), self._timeout_s)

    async def _settle(self, kind: str, request: Any, messages: Sequence[Message]) -> Rows[Settled]:
        self._named(request)
        settled: Rows[Settled] = Rows()
        for first in range(0, len(messages), MESSAGES_MAX):
            del request.messages[:]
            for message in messages[first : first + MESSAGES_MAX]:
                request.messages.add(message_id=message.message_id, token=message.token)

            def build(operation: pipeline_pb2.Operation) -> None:
                getattr(operation, kind).CopyFrom(request)

            try:
                results = await self._connection.write(
                    self._route,
                    ITEM_SIZE * len(request.messages),
                    self._timeout_s,
                    build,
                    settled_in,
                )
            except OnelogError as error:
                # A request with one message fails as a whole if that message is refused.
                if error.reason not in REASONS_OF_ONE or request.strict:
                    raise
                (one,) = request.messages
                settled.append(Settled(one.message_id, error.reason))
            else:
                settled += map(to_settled, results)
        return settled


def _check(settled: list[Settled]) -> Settled:
    (one,) = settled
    if one.reason:
        raise to_settle_error(one)
    return one


def _read_enqueued(result: pipeline_pb2.OperationResult) -> Enqueued:
    return to_enqueued(result.enqueue.results[0])
