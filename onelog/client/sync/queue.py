"""``onelog/client/queue.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from onelog.client.blocking import Facade, Items
from onelog.client.leased import LeasedMessage
from onelog.client.sync.worker import Worker
from onelog.client.tables import Rows
from onelog.client.times import Time
from onelog.client.values import (
    NOTHING,
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
)


class Queue(Facade):
    """One queue, by its name. ``create`` it before other calls."""

    @property
    def name(self) -> str:
        """The name of the queue."""
        found: str = self._core.name
        return found

    def create(self, config: QueueConfig | None = None, *, exist_ok: bool = False) -> int:
        """Create the queue and return its id; AlreadyExists if there is one.

        With ``exist_ok`` return the id of an existing one, and leave its settings as they are.
        """
        found: int = self._thread.run(self._core.create(config, exist_ok=exist_ok))
        return found

    def configure(self, config: QueueConfig) -> None:
        """Replace the settings."""
        self._thread.run(self._core.configure(config))

    def delete(self) -> None:
        """Delete the queue with all of its messages."""
        self._thread.run(self._core.delete())

    def info(self, *, read: Read | None = None) -> QueueInfo:
        """Return the queue's settings and state."""
        found: QueueInfo = self._thread.run(self._core.info(read=read))
        return found

    def pause(self) -> None:
        """Deliver no more messages until ``resume``."""
        self._thread.run(self._core.pause())

    def resume(self) -> None:
        """Deliver messages again after ``pause``."""
        self._thread.run(self._core.resume())

    def enqueue(
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
        found: Enqueued = self._thread.run(
            self._core.enqueue(
                body,
                priority=priority,
                delay_s=delay_s,
                at_ns=at_ns,
                ttl_s=ttl_s,
                dedup_id=dedup_id,
                group=group,
                tenant=tenant,
                headers=headers,
            )
        )
        return found

    def enqueue_many(self, messages: Iterable[NewMessage | Value]) -> Rows[Enqueued]:
        """Put many messages into the queue, in order, each by itself.

        All are tried; if some fail, the first error is raised, with a note of how many failed.
        """
        found: Rows[Enqueued] = self._thread.run(self._core.enqueue_many(messages))
        return found

    def lease(
        self, count: int = 1, *, visibility_s: float | None = None, wait_s: float = 0.0
    ) -> Rows[LeasedMessage]:
        """Lease up to ``count`` messages; wait up to ``wait_s`` for the first. May return none.

        The messages are invisible to others for ``visibility_s`` (None: the queue's setting); then
        they are delivered again unless they were settled. If the call is cancelled, messages that
        were leased for it are released, in the background if that takes long.
        """
        found: Rows[LeasedMessage] = self._thread.run(
            self._core.lease(count, visibility_s=visibility_s, wait_s=wait_s)
        )
        return found

    def consume(
        self, *, credit: int = 100, visibility_s: float | None = None
    ) -> Items[LeasedMessage]:
        """Yield messages as they arrive, with at most ``credit`` unsettled ones.

        They are read in the background: up to ``credit`` messages wait in memory. Messages that are
        still leased when the iteration ends are released. When the leader changes or dies it
        continues: messages that have arrived stay leased, and those that were lost on the way are
        delivered as if they had never been sent. If the connection breaks and the leader lives,
        messages that are not settled are delivered again.
        """
        return self._thread.iterate(self._core.consume(credit=credit, visibility_s=visibility_s))

    def worker(
        self,
        handler: Callable[[Message], Awaitable[Any] | Any],
        *,
        concurrency: int = 8,
        visibility_s: float = 30.0,
        stop_timeout_s: float = 30.0,
        limit: int = 0,
    ) -> "Worker":
        """Return a worker that calls ``handler`` for each message, several at a time.

        With ``limit`` it leases no more messages than that; ``run`` returns when they are settled.
        """
        return Worker(
            self._core.worker(
                handler,
                concurrency=concurrency,
                visibility_s=visibility_s,
                stop_timeout_s=stop_timeout_s,
                limit=limit,
            ),
            self._thread,
        )

    def ack(self, message: Message) -> None:
        """Acknowledge a message: it is done. LeaseLost if the lease has ended."""
        self._thread.run(self._core.ack(message))

    def ack_many(self, messages: Sequence[Message], *, strict: bool = False) -> Rows[Settled]:
        """Acknowledge messages; return the outcome of each. ``strict``: all of them, or none."""
        found: Rows[Settled] = self._thread.run(self._core.ack_many(messages, strict=strict))
        return found

    def nack(self, message: Message, *, delay_s: float | None = None, reason: str = "") -> Settled:
        """Record a failed delivery: retry after ``delay_s`` (None: the queue's backoff).

        After ``max_deliveries`` failures the message goes to the dead-letter queue.
        """
        found: Settled = self._thread.run(self._core.nack(message, delay_s=delay_s, reason=reason))
        return found

    def nack_many(
        self,
        messages: Sequence[Message],
        *,
        delay_s: float | None = None,
        reason: str = "",
        strict: bool = False,
    ) -> Rows[Settled]:
        """Record failed deliveries, as ``nack`` does; return the outcome of each."""
        found: Rows[Settled] = self._thread.run(
            self._core.nack_many(messages, delay_s=delay_s, reason=reason, strict=strict)
        )
        return found

    def extend(self, message: Message, visibility_s: float | None = None) -> None:
        """Extend a lease to ``visibility_s`` from now (None: the queue's setting)."""
        self._thread.run(self._core.extend(message, visibility_s))

    def extend_many(
        self, messages: Sequence[Message], visibility_s: float | None = None
    ) -> Rows[Settled]:
        """Extend leases, as ``extend`` does; return the outcome of each."""
        found: Rows[Settled] = self._thread.run(self._core.extend_many(messages, visibility_s))
        return found

    def release(self, message: Message) -> None:
        """Release a message: it is ready again as if it had not been leased."""
        self._thread.run(self._core.release(message))

    def release_many(self, messages: Sequence[Message]) -> Rows[Settled]:
        """Release messages, as ``release`` does; return the outcome of each."""
        found: Rows[Settled] = self._thread.run(self._core.release_many(messages))
        return found

    def cancel(self, message_ids: Sequence[int]) -> Rows[Settled]:
        """Delete messages that are not leased; return the outcome of each."""
        found: Rows[Settled] = self._thread.run(self._core.cancel(message_ids))
        return found

    def prioritise(self, message_ids: Sequence[int], priority: int) -> Rows[Settled]:
        """Change the priority of messages that are not leased; return the outcome of each."""
        found: Rows[Settled] = self._thread.run(self._core.prioritise(message_ids, priority))
        return found

    def peek(
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
        found: Rows[Message] = self._thread.run(
            self._core.peek(
                limit,
                from_id=from_id,
                from_ns=from_ns,
                failure_contains=failure_contains,
                read=read,
            )
        )
        return found

    def purge(self, *, below_id: int = 0, before_ns: Time = 0, leased_too: bool = False) -> int:
        """Delete many messages at once; return how many."""
        found: int = self._thread.run(
            self._core.purge(below_id=below_id, before_ns=before_ns, leased_too=leased_too)
        )
        return found

    def redrive(
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
        found: int = self._thread.run(
            self._core.redrive(
                target=target,
                first_id=first_id,
                last_id=last_id,
                failed_from_ns=failed_from_ns,
                failed_until_ns=failed_until_ns,
                failure_contains=failure_contains,
                limit=limit,
                rate_per_s=rate_per_s,
            )
        )
        return found

    def cancel_redrive(self, redrive_id: int) -> None:
        """Stop a redrive; messages that it moved stay where they are."""
        self._thread.run(self._core.cancel_redrive(redrive_id))

    def redrives(self, *, read: Read | None = None) -> Rows[Redrive]:
        """Return the running redrives of dead letters from this queue, with their progress."""
        found: Rows[Redrive] = self._thread.run(self._core.redrives(read=read))
        return found

    def schedule(self, cron: str, message: NewMessage | Value) -> int:
        """Enqueue the message whenever the cron expression (UTC) says so; return the id."""
        found: int = self._thread.run(self._core.schedule(cron, message))
        return found

    def unschedule(self, schedule_id: int) -> None:
        """Delete a schedule; messages that it enqueued stay."""
        self._thread.run(self._core.unschedule(schedule_id))

    def schedules(self, *, read: Read | None = None) -> Rows[Schedule]:
        """Return the schedules of the queue."""
        found: Rows[Schedule] = self._thread.run(self._core.schedules(read=read))
        return found
