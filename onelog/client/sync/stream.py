"""``onelog/client/stream.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from collections.abc import Iterable, Mapping

from onelog.client.blocking import Facade, Items
from onelog.client.sync.group import Group
from onelog.client.sync.tail import Tail
from onelog.client.tables import Rows
from onelog.client.times import Time
from onelog.client.values import (
    Appended,
    NewRecord,
    Producer,
    Read,
    Record,
    RecordFilter,
    Retention,
    StreamInfo,
    TrimmedPartition,
    Value,
)


class Stream(Facade):
    """One stream, by its name. ``create`` it before other calls."""

    @property
    def name(self) -> str:
        """The name of the stream."""
        found: str = self._core.name
        return found

    def create(
        self, *, partitions: int = 1, retention: Retention | None = None, exist_ok: bool = False
    ) -> int:
        """Create the stream and return its id; AlreadyExists if there is one.

        With ``exist_ok`` return the id of an existing one, and leave its settings as they are.
        """
        found: int = self._thread.run(
            self._core.create(partitions=partitions, retention=retention, exist_ok=exist_ok)
        )
        return found

    def configure(self, retention: Retention) -> None:
        """Replace the retention of the stream."""
        self._thread.run(self._core.configure(retention))

    def delete(self) -> None:
        """Delete the stream with its records and groups."""
        self._thread.run(self._core.delete())

    def info(self, *, read: Read | None = None) -> StreamInfo:
        """Return the stream's settings and state."""
        found: StreamInfo = self._thread.run(self._core.info(read=read))
        return found

    def append(
        self,
        value: Value,
        *,
        key: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        tag: str = "",
        partition: int | None = None,
        producer: Producer | None = None,
    ) -> Appended:
        """Append a record and return its offset and partition; see ``NewRecord`` for the arguments.

        The client's own retries are always exact. ``producer`` makes appends exact also across
        restarts of a program that counts what it sends.
        """
        found: Appended = self._thread.run(
            self._core.append(
                value, key=key, headers=headers, tag=tag, partition=partition, producer=producer
            )
        )
        return found

    def append_many(
        self, records: Iterable[NewRecord | Value], *, producer: Producer | None = None
    ) -> Rows[Appended]:
        """Append many records in order, each by itself.

        All are tried; if some fail, the first error is raised, with a note of how many failed.
        With a ``producer`` the records have its sequence and those after it.
        """
        found: Rows[Appended] = self._thread.run(self._core.append_many(records, producer=producer))
        return found

    def trim(
        self,
        *,
        below_offset: int | None = None,
        age_s: float | None = None,
        keep_size: int | None = None,
        keep_count: int | None = None,
        partition: int | None = None,
        past_groups: bool = False,
    ) -> tuple[TrimmedPartition, ...]:
        """Delete records from the start up to one bound, by default not past any consumer group.

        Returns what is left of each partition, and which group ended the trim early, if one did.
        """
        found: tuple[TrimmedPartition, ...] = self._thread.run(
            self._core.trim(
                below_offset=below_offset,
                age_s=age_s,
                keep_size=keep_size,
                keep_count=keep_count,
                partition=partition,
                past_groups=past_groups,
            )
        )
        return found

    def read(
        self,
        *,
        from_offset: int = 0,
        from_ns: Time = 0,
        to_offset: int | None = None,
        limit: int = 0,
        partition: int = 0,
        only: RecordFilter | None = None,
        read: Read | None = None,
    ) -> Items[Record]:
        """Yield the records of a partition that exist now, page by page.

        From an offset or a time, up to and including ``to_offset``, at most ``limit`` (0: all). A
        record with a ``gap`` stands for records that were deleted.
        """
        return self._thread.iterate(
            self._core.read(
                from_offset=from_offset,
                from_ns=from_ns,
                to_offset=to_offset,
                limit=limit,
                partition=partition,
                only=only,
                read=read,
            )
        )

    def tail(
        self,
        *,
        from_offset: int | None = None,
        from_ns: Time = 0,
        partition: int | None = None,
        only: RecordFilter | None = None,
        cursor: bytes | None = None,
    ) -> "Tail":
        """Return an endless iterator: records from an offset or a time on, then new ones.

        With neither it has only new records. With ``cursor`` it continues an earlier tail.
        """
        return Tail(
            self._core.tail(
                from_offset=from_offset,
                from_ns=from_ns,
                partition=partition,
                only=only,
                cursor=cursor,
            ),
            self._thread,
        )

    def group(self, name: str) -> "Group":
        """Return the consumer group with this name; makes no call to the server."""
        return Group(self._core.group(name), self._thread)
