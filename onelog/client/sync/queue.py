"""``onelog/client/queue.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from onelog.client.blocking import Facade
from onelog.client.sync.worker import Worker
from onelog.client.values import (
    Enqueued,
    Message,
    NewMessage,
    QueueConfig,
    QueueInfo,
    Read,
    Schedule,
    Settled,
    Value,
)


class Queue(Facade):
    """One queue, by its name. It must have been created."""

    @property
    def name(self) -> str:
        """The name of the queue."""
        found: str = self._core.name
        return found

    def create(self, config: QueueConfig | None = None) -> int:
        """Create the queue and return its id; AlreadyExists if it is there."""
        found: int = self._thread.run(self._core.create(config))
        return found

    def configure(self, config: QueueConfig) -> None:
        """Replace the settings."""
        self._thread.run(self._core.configure(config))

    def delete(self) -> None:
        """Delete the queue and all that is in it."""
        self._thread.run(self._core.delete())

    def info(self, *, read: Read | None = None) -> QueueInfo:
        """Return settings and state."""
        found: QueueInfo = self._thread.run(self._core.info(read=read))
        return found

    def pause(self) -> None:
        """Give out no more messages until ``resume``."""
        self._thread.run(self._core.pause())

    def resume(self) -> None:
        """Give out messages again."""
        self._thread.run(self._core.resume())

    def enqueue(
        self,
        body: Value,
        *,
        priority: int = 8,
        delay_s: float = 0.0,
        at_ns: int = 0,
        ttl_s: float = 0.0,
        dedup_id: Value = b"",
        group: Value = b"",
        tenant: Value = b"",
        headers: Mapping[str, Value] | None = None,
    ) -> Enqueued:
        """Put a message into the queue; see ``NewMessage`` for what the arguments mean."""
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

    def enqueue_many(self, messages: Iterable[NewMessage | Value]) -> list[Enqueued]:
        """Put many messages into the queue, in order, each by itself.

        All of them are tried; if some fail the first error is raised, with a note of how many.
        """
        found: list[Enqueued] = self._thread.run(self._core.enqueue_many(messages))
        return found

    def lease(
        self, count: int = 1, *, visibility_s: float | None = None, wait_s: float = 0.0
    ) -> list[Message]:
        """Take up to ``count`` messages; waits ``wait_s`` for the first, and may return none.

        Cancelled, it releases what it got meanwhile before it ends, unless that takes too long:
        then in the background.
        """
        found: list[Message] = self._thread.run(
            self._core.lease(count, visibility_s=visibility_s, wait_s=wait_s)
        )
        return found

    def consume(self, *, credit: int = 100, visibility_s: float | None = None) -> Iterator[Message]:
        """Yield messages as they come, never more unsettled ones than ``credit``.

        What is still leased when the iteration ends is released. After a broken connection it goes
        on, and messages that were not settled come again.
        """
        return self._thread.iterate(self._core.consume(credit=credit, visibility_s=visibility_s), 1)

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

        With ``limit`` it takes no more messages than that; ``run`` returns when they are settled.
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
        """A message is done; LeaseLost if somebody else has it by now."""
        self._thread.run(self._core.ack(message))

    def ack_many(self, messages: Sequence[Message], *, strict: bool = False) -> list[Settled]:
        """Messages are done; returns what became of each. ``strict``: all of them, or none."""
        found: list[Settled] = self._thread.run(self._core.ack_many(messages, strict=strict))
        return found

    def nack(self, message: Message, *, delay_s: float | None = None, reason: str = "") -> Settled:
        """A message failed: it comes again after ``delay_s`` (None: the queue's), or is dead."""
        found: Settled = self._thread.run(self._core.nack(message, delay_s=delay_s, reason=reason))
        return found

    def nack_many(
        self,
        messages: Sequence[Message],
        *,
        delay_s: float | None = None,
        reason: str = "",
        strict: bool = False,
    ) -> list[Settled]:
        """Messages failed."""
        found: list[Settled] = self._thread.run(
            self._core.nack_many(messages, delay_s=delay_s, reason=reason, strict=strict)
        )
        return found

    def extend(self, message: Message, visibility_s: float | None = None) -> None:
        """The lease is to last so long from now on."""
        self._thread.run(self._core.extend(message, visibility_s))

    def extend_many(
        self, messages: Sequence[Message], visibility_s: float | None = None
    ) -> list[Settled]:
        """Leases are to last longer."""
        found: list[Settled] = self._thread.run(self._core.extend_many(messages, visibility_s))
        return found

    def release(self, message: Message) -> None:
        """Give a message back as if it had not been taken."""
        self._thread.run(self._core.release(message))

    def release_many(self, messages: Sequence[Message]) -> list[Settled]:
        """Give messages back."""
        found: list[Settled] = self._thread.run(self._core.release_many(messages))
        return found

    def cancel(self, message_ids: Sequence[int]) -> list[Settled]:
        """Remove messages that are not leased."""
        found: list[Settled] = self._thread.run(self._core.cancel(message_ids))
        return found

    def prioritise(self, message_ids: Sequence[int], priority: int) -> list[Settled]:
        """Give messages that are not leased another priority."""
        found: list[Settled] = self._thread.run(self._core.prioritise(message_ids, priority))
        return found

    def peek(
        self, limit: int = 10, *, from_id: int = 0, from_ns: int = 0, read: Read | None = None
    ) -> list[Message]:
        """Return messages without taking them, by id."""
        found: list[Message] = self._thread.run(
            self._core.peek(limit, from_id=from_id, from_ns=from_ns, read=read)
        )
        return found

    def purge(self, *, below_id: int = 0, before_ns: int = 0, leased_too: bool = False) -> int:
        """Remove many messages at once; return how many there were."""
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
        failed_from_ns: int = 0,
        failed_until_ns: int = 0,
        failure_contains: str = "",
        limit: int = 0,
        rate_per_s: int = 0,
    ) -> int:
        """Move dead letters back to where they came from, or to ``target``; return an id.

        It goes on by itself; ``cancel_redrive`` stops it.
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
        """Stop a redrive where it is."""
        self._thread.run(self._core.cancel_redrive(redrive_id))

    def schedule(self, cron: str, message: NewMessage | Value) -> int:
        """Send the message whenever the cron expression (UTC) says so; return the schedule's id."""
        found: int = self._thread.run(self._core.schedule(cron, message))
        return found

    def unschedule(self, schedule_id: int) -> None:
        """Stop a schedule; messages that it made stay."""
        self._thread.run(self._core.unschedule(schedule_id))

    def schedules(self, *, read: Read | None = None) -> list[Schedule]:
        """Return the schedules of the queue."""
        found: list[Schedule] = self._thread.run(self._core.schedules(read=read))
        return found
