"""``onelog/client/stream.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from collections.abc import Iterable, Iterator, Mapping

from onelog.client.blocking import Facade
from onelog.client.sync.group import Group
from onelog.client.sync.tail import Tail
from onelog.client.values import (
    Appended,
    NewRecord,
    Producer,
    Read,
    Record,
    RecordFilter,
    Retention,
    StreamInfo,
    Value,
)


class Stream(Facade):
    """One stream, by its name. It must have been created."""

    @property
    def name(self) -> str:
        """The name of the stream."""
        found: str = self._core.name
        return found

    def create(self, *, partitions: int = 1, retention: Retention | None = None) -> int:
        """Create the stream and return its id; AlreadyExists if it is there."""
        found: int = self._thread.run(self._core.create(partitions=partitions, retention=retention))
        return found

    def configure(self, retention: Retention) -> None:
        """Replace what is kept."""
        self._thread.run(self._core.configure(retention))

    def delete(self) -> None:
        """Delete the stream with its records and groups."""
        self._thread.run(self._core.delete())

    def info(self, *, read: Read | None = None) -> StreamInfo:
        """Return settings and state."""
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
        """Append a record and return where it stands.

        A client's own retries are exact anyway; ``producer`` makes appends exact across restarts of
        a program that counts what it sends.
        """
        found: Appended = self._thread.run(
            self._core.append(
                value, key=key, headers=headers, tag=tag, partition=partition, producer=producer
            )
        )
        return found

    def append_many(self, records: Iterable[NewRecord | Value]) -> list[Appended]:
        """Append many records in order, each by itself.

        All of them are tried; if some fail the first error is raised, with a note of how many.
        """
        found: list[Appended] = self._thread.run(self._core.append_many(records))
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
    ) -> None:
        """Remove records from the start, by one bound; unless asked not past any group."""
        self._thread.run(
            self._core.trim(
                below_offset=below_offset,
                age_s=age_s,
                keep_size=keep_size,
                keep_count=keep_count,
                partition=partition,
                past_groups=past_groups,
            )
        )

    def read(
        self,
        *,
        from_offset: int = 0,
        from_ns: int = 0,
        to_offset: int | None = None,
        partition: int = 0,
        only: RecordFilter | None = None,
        read: Read | None = None,
    ) -> Iterator[Record]:
        """Yield the records of a partition that are there now, page by page.

        From an offset or a time, up to and including ``to_offset``. A record with a ``gap`` stands
        for records that are gone.
        """
        return self._thread.iterate(
            self._core.read(
                from_offset=from_offset,
                from_ns=from_ns,
                to_offset=to_offset,
                partition=partition,
                only=only,
                read=read,
            )
        )

    def tail(
        self,
        *,
        from_offset: int | None = None,
        from_ns: int = 0,
        partition: int | None = None,
        only: RecordFilter | None = None,
        cursor: bytes | None = None,
    ) -> "Tail":
        """Return an iterator over records from an offset or a time on, and over new ones for ever.

        With neither it is new ones only. ``cursor`` is that of an earlier tail: it goes on there.
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
        """Return a consumer group of the stream."""
        return Group(self._core.group(name), self._thread)
