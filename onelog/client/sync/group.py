"""``onelog/client/group.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from collections.abc import Iterable
from typing import Self

from onelog.client.blocking import Facade
from onelog.client.leased import FetchedRecord
from onelog.client.tables import Rows
from onelog.client.times import Time
from onelog.client.values import GroupConfig, GroupInfo, Read, Record


class Group(Facade):
    """One consumer group of a stream, by its name."""

    def create(
        self,
        *,
        from_offset: int | None = None,
        from_ns: Time = 0,
        config: GroupConfig | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create the group; it begins at an offset or a time, else with new records.

        With ``exist_ok`` an existing one stays as it is.
        """
        self._thread.run(
            self._core.create(
                from_offset=from_offset, from_ns=from_ns, config=config, exist_ok=exist_ok
            )
        )

    def configure(self, config: GroupConfig) -> None:
        """Replace the settings."""
        self._thread.run(self._core.configure(config))

    def delete(self) -> None:
        """Delete the group."""
        self._thread.run(self._core.delete())

    def info(self, *, read: Read | None = None) -> GroupInfo:
        """Return the group's settings, members, offsets and pending records."""
        found: GroupInfo = self._thread.run(self._core.info(read=read))
        return found

    def seek(
        self,
        *,
        offset: int | None = None,
        time_ns: Time | None = None,
        partition: int | None = None,
    ) -> None:
        """Move the group's offset, back or forward, to an offset or a time."""
        self._thread.run(self._core.seek(offset=offset, time_ns=time_ns, partition=partition))

    def join(self, *, session_s: float = 30.0, limit: int = 100) -> "Consumer":
        """Join the group and return a consumer, which fetches ``limit`` records at a time.

        A member that sends no heartbeat for ``session_s`` is removed, and its partitions move.
        """
        return Consumer(
            self._thread.run(self._core.join(session_s=session_s, limit=limit)), self._thread
        )

    def rejoin(self, member_id: int, *, session_s: float = 30.0, limit: int = 100) -> "Consumer":
        """Continue as a member that joined before, also in another process; NotFound if it is gone.

        ``session_s`` must be what the member joined with.
        """
        return Consumer(
            self._thread.run(self._core.rejoin(member_id, session_s=session_s, limit=limit)),
            self._thread,
        )

    def commit(self, records: Record | Iterable[Record]) -> None:
        """Set the group's offsets to after these records, in a group without members."""
        self._thread.run(self._core.commit(records))


class Consumer(Facade):
    """A member of a consumer group: an iterator over its records. ``close`` leaves the group."""

    @property
    def member_id(self) -> int:
        """The member's id in the group; another one after its session ran out."""
        found: int = self._core.member_id
        return found

    @property
    def generation(self) -> int:
        """The generation of the group that the member knows; it rises when partitions move."""
        found: int = self._core.generation
        return found

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that belong to the member now."""
        found: tuple[int, ...] = self._core.partitions
        return found

    def fetch(self, *, wait_s: float = 0.0, limit: int | None = None) -> Rows[FetchedRecord]:
        """Return the next records; wait up to ``wait_s`` for the first. May return none.

        Records whose delivery failed, or whose member is gone, come first. A fetch counts as a
        heartbeat. If the session of the member ran out, it joins again.
        """
        found: Rows[FetchedRecord] = self._thread.run(self._core.fetch(wait_s=wait_s, limit=limit))
        return found

    def ack(self, records: Record | Iterable[Record]) -> int:
        """Acknowledge records and return how many; up to 1,000 at a time, all of them or none.

        FailedPrecondition (RECORD_NOT_PENDING) if one is not pending with this member, as when its
        session ran out meanwhile: then others get it.
        """
        found: int = self._thread.run(self._core.ack(records))
        return found

    def nack(
        self, records: Record | Iterable[Record], *, delay_s: float = 0.0, reason: str = ""
    ) -> int:
        """Record failed deliveries: retry after a delay, or move to the dead-letter stream."""
        found: int = self._thread.run(self._core.nack(records, delay_s=delay_s, reason=reason))
        return found

    def claim(self, idle_s: float, *, limit: int = 100) -> Rows[FetchedRecord]:
        """Take over records that have been pending with another member for ``idle_s``."""
        found: Rows[FetchedRecord] = self._thread.run(self._core.claim(idle_s, limit=limit))
        return found

    def commit(self, records: Record | Iterable[Record]) -> None:
        """Set the group's offsets to after these records, for groups without a pending list.

        ConditionFailed (GENERATION_STALE) if partitions have moved since one of them was fetched,
        or the session ran out. A copy of a record counts as fetched now.
        """
        self._thread.run(self._core.commit(records))

    def close(self) -> None:
        """Leave the group; other members may claim its pending records."""
        self._thread.run(self._core.close())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FetchedRecord:
        found: FetchedRecord = self._take_next()
        return found

    def __enter__(self) -> Self:
        self._thread.run(self._core.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.run(self._core.__aexit__(*error))
