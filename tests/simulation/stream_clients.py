"""Clients of streams: producers, and a consumer in a group; and what must be true in the end.

* Producers: every record that was answered is there, once, until it is trimmed, and those of one
  producer are in order, also where it sends one again. Several write to one stream.
* Consumer: what it acknowledged is never handed out again; what was handed out is pending, was
  acknowledged, or is a dead letter. What is pending can be read although it was trimmed.
* Reader: a page has every record of its range that was answered, or says which it lacks, or is
  refused, also where a segment is damaged and nobody has noticed yet.
"""

from collections.abc import Callable
from contextlib import suppress

from onelog.node.replica.shard import Shard
from onelog.projections.codec import SessionRef
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Refused
from onelog.projections.stream.commands import (
    Ack,
    Append,
    Claim,
    Command,
    Create,
    Deliver,
    GroupConfig,
    GroupCreate,
    GroupHeartbeat,
    GroupJoin,
    Nack,
    PartitionOffset,
    ProducerRef,
    Retention,
    encode_command,
)
from onelog.projections.stream.operations import DUPLICATE, decode_claimed
from onelog.projections.stream.reads import GroupDescription, Page, Record
from onelog.ual.entry import Draft
from onelog.ual.errors import UalError
from tests.projections.stream.stream_pages import (
    list_pending,
    read_page,
    read_pending,
    read_streams,
    read_undelivered,
)
from tests.simulation.caller import NAMESPACE
from tests.simulation.model_clients import SECOND_NS, Finish, ModelClient

STREAM = "events"
DEAD = "lost"
GROUP = "readers"
PARTITIONS = 2
RECORDS_KEPT = 30
SESSION_NS = 8 * SECOND_NS
IDLE_NS = 3 * SECOND_NS
# What happens to a consumer that was away, or asked a replica that is behind.
LATE = {
    Reason.DELIVERY_STALE,
    Reason.GENERATION_STALE,
    Reason.MEMBER_UNKNOWN,
    Reason.RECORD_NOT_PENDING,
}


class StreamClient(ModelClient):
    """Makes streams; sends commands on them."""

    _missing: tuple[str, ...] = (STREAM, DEAD)

    def _create(self) -> None:
        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied) or result.reason is Reason.STREAM_EXISTS, result
            self._missing = self._missing[1:]
            self._next()

        # Past groups: who holds a record has it although it was trimmed.
        kept = Retention(count_max=RECORDS_KEPT if self._lets_go else 0, past_groups=self._lets_go)
        self._send(Create(self._missing[0], PARTITIONS, kept), finish)

    def _send(self, command: Command, finish: Finish) -> None:
        def encode(session: SessionRef | None) -> Draft:
            return encode_command(command, NAMESPACE, session)

        self._write(encode, finish)


class ProducerClient(StreamClient):
    """Appends numbered records, some of them again."""

    def _set_up(self) -> None:
        self._appended: list[bytes] = []  # answered

    def _operate(self) -> None:
        if self._missing:
            self._create()
            return
        again = bool(self._appended) and self._rng.random() < 0.1
        number = len(self._appended) - again
        value = b"%d-%d" % (self.number, number)

        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied), result
            assert (result.value == DUPLICATE) == again, f"{value!r} again: {again}, {result}"
            if not again:
                self._appended.append(value)
                self._answered.appended[self._answer_index] = value
            self._next()

        producer = ProducerRef(self.number, 0, number)
        self._send(Append(STREAM, value, key=b"%d" % self.number, producer=producer), finish)

    def wrong_on(self, shard: Shard) -> str | None:
        """See the module's text."""
        if self._missing:
            return None
        records = [
            record
            for partition in range(PARTITIONS)
            for record in records_of(shard, STREAM, partition)
            if record.value.startswith(b"%d-" % self.number)
        ]
        found = [record.value for record in records]
        numbers = [int(value.split(b"-")[1]) for value in found]
        if numbers != sorted(set(numbers)):
            return f"records of producer {self.number} are out of order: {numbers}"
        missing = set(self._appended) - set(found)
        if self._lets_go and numbers:
            missing = {value for value in missing if int(value.split(b"-")[1]) > numbers[0]}
        elif self._lets_go:
            missing = set()
        return f"records {missing} are missing" if missing else None


class ConsumerClient(StreamClient):
    """Takes records in a group, acknowledges most, gives some back, forgets others."""

    _member = 0
    _has_group = False

    def _set_up(self) -> None:
        self._acked: set[int] = set()
        self._acking: set[int] = set()  # sent, perhaps not answered

    def _operate(self) -> None:
        chance = self._rng.random()
        if self._missing:
            self._create()
        elif not self._has_group:
            self._create_group()
        elif not self._member:
            self._join()
        elif chance < 0.15:
            self._group_send(GroupHeartbeat(STREAM, GROUP, self._member), lambda _: self._next())
        elif chance < 0.4:
            self._claim()
        else:
            self._deliver()

    def _create_group(self) -> None:
        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied) or result.reason is Reason.GROUP_EXISTS, result
            self._has_group = True
            self._next()

        config = GroupConfig(shared=True, max_deliveries=2, dead_letter=DEAD)
        self._send(GroupCreate(STREAM, GROUP, 0, config), finish)

    def _join(self) -> None:
        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied), result
            self._member = result.number
            self._next()

        self._send(GroupJoin(STREAM, GROUP, SESSION_NS), finish)

    def _deliver(self) -> None:
        """Look at the state of whoever is asked, which may be down or behind."""
        shard = self._replicas[self._target].shard
        partition = self._rng.randrange(PARTITIONS)
        command: Deliver | None = None
        if shard is not None:
            stream = shard.projections.stream
            group = stream.describe_group(NAMESPACE, STREAM, GROUP)
            limit = self._rng.randint(1, 4)
            # A replica may not have the group yet, and a record may be rotten.
            with suppress(UalError):
                if isinstance(group, GroupDescription):
                    page = read_undelivered(stream, shard.log, STREAM, GROUP, partition, limit)
                    offsets = tuple(each.offset for each in page.items if isinstance(each, Record))
                    command = Deliver(
                        STREAM, GROUP, self._member, group.generation, partition,
                        group.delivered[partition], page.next_offset, offsets,
                    )  # fmt: skip
        if command is None:
            self._look_elsewhere(None)
            self._next()
            return
        places = tuple((partition, offset) for offset in command.offsets)
        self._group_send(command, lambda _: self._settle(places))

    def _claim(self) -> None:
        def finish(result: Applied) -> None:
            assert result.value is not None
            claimed = decode_claimed(result.value)
            self._settle(tuple((each.partition, each.offset) for each in claimed))

        self._group_send(Claim(STREAM, GROUP, self._member, 0, IDLE_NS, 3), finish)

    def _settle(self, places: tuple[PartitionOffset, ...]) -> None:
        again = self._acked.intersection(offset for _, offset in places)
        assert not again, f"records {again} were acknowledged and are handed out again"
        chance = self._rng.random()
        if not places or chance < 0.1:
            self._next()
            return
        self._sequence += 1
        if chance < 0.4:
            nack = Nack(STREAM, GROUP, self._member, places, 0, b"no luck")
            self._group_send(nack, lambda _: self._next())
            return
        offsets = {offset for _, offset in places}
        self._acking |= offsets

        def finish(_: Applied) -> None:
            self._acked.update(offsets)
            self._next()

        self._group_send(Ack(STREAM, GROUP, self._member, places), finish)

    def _group_send(self, command: Command, done: Callable[[Applied], None]) -> None:
        def finish(result: Applied | Refused) -> None:
            if isinstance(result, Applied):
                done(result)
                return
            assert result.reason in LATE, result
            if result.reason is Reason.MEMBER_UNKNOWN:
                self._member = 0
            self._next()

        self._send(command, finish)

    def wrong_on(self, shard: Shard) -> str | None:
        """See the module's text."""
        if not self._has_group:
            return None
        stream = shard.projections.stream
        group = stream.describe_group(NAMESPACE, STREAM, GROUP)
        pending = list_pending(stream, STREAM, GROUP)
        assert isinstance(group, GroupDescription), group
        held = {each.offset for each in pending}
        for each in pending:
            read_pending(stream, shard.log, STREAM, each.partition, each.offset)
        letters = {
            record.dead_letter.origin
            for partition in range(PARTITIONS)
            for record in records_of(shard, DEAD, partition)
            if record.dead_letter is not None
        }
        if again := self._acked & (held | letters):
            return f"records {again} were acknowledged and are not done"
        if self._lets_go:
            return None  # dead letters may be gone as well
        for partition in range(PARTITIONS):
            done = {
                record.offset
                for record in records_of(shard, STREAM, partition)
                if record.offset < group.delivered[partition]
            }
            if lost := done - held - letters - self._acking:
                return f"records {lost} were handed out, and nobody has dealt with them"
        return None


class ReaderClient(StreamClient):
    """Reads from any replica, from anywhere in the stream, and misses nothing silently."""

    def _operate(self) -> None:
        shard = self._rng.choice(self._replicas).shard
        offsets = list(self._answered.appended)
        if shard is not None and offsets:
            start, limit = self._rng.choice(offsets), self._rng.choice((3, 30))
            with suppress(UalError):  # it says that it cannot read that
                streams = shard.projections.stream
                if not isinstance(streams.find(NAMESPACE, STREAM), Refused):
                    self._compare(read_streams(streams, shard.log, [STREAM], start, limit), start)
        self._next()

    def _compare(self, page: Page, start: int) -> None:
        found: dict[int, bytes] = {}
        named: list[range] = []
        for item in page.items:
            if isinstance(item, Record):
                found[item.offset] = item.value
            else:
                named.append(range(item.first_offset, item.last_offset + 1))
        for offset, value in self._answered.appended.items():
            if start <= offset < page.next_offset and found.get(offset) != value:
                is_named = any(offset in each for each in named)
                assert is_named, f"a read from {start} skips the record {offset}"

    def wrong_on(self, shard: Shard) -> str | None:
        """Everything that it saw was judged at once."""
        return None


def records_of(shard: Shard, name: str, partition: int) -> list[Record]:
    """Return all records of a partition that are kept."""
    found: list[Record] = []
    offset: int | None = None
    while True:
        page = read_page(shard.projections.stream, shard.log, name, partition, offset)
        if not page.items:
            return found
        for item in page.items:
            assert isinstance(item, Record), f"stream: {item}"
            found.append(item)
        offset = page.next_offset
