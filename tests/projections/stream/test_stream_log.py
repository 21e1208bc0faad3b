"""Streams over a real log: ring, open files, sealed files, compacted files, all read alike."""

from random import Random

import numpy as np
import pytest

from onelog.projections.limits import U64_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Refused
from onelog.projections.shard_state import Projections, build_projections
from onelog.projections.stream.commands import (
    Append,
    Cause,
    Create,
    Deliver,
    GroupConfig,
    GroupCreate,
    GroupJoin,
    Nack,
    Retention,
    Trim,
    encode_command,
)
from onelog.projections.stream.reads import Gap, Page, Record
from onelog.ual.entry import Draft
from onelog.ual.log import Log
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.sealing import compact_segment
from tests.projections.stream.stream_pages import read_page, read_streams
from tests.projections.world import NAMESPACE, SECOND
from tests.simulation.disk import SimDisk
from tests.ual.shards import drop_before, make_shard, open_shard, seal_closed, settle_to


class Shard:
    """Projections over a log on a simulated disk."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.log: Log = open_shard(self.disk, make_shard(self.disk))[0]
        self.state: Projections = build_projections(self.log.notes)

    def write(self, *commands: Append | Create | Trim) -> int:
        self.propose([encode_command(command, NAMESPACE) for command in commands])
        return self.log.last_index

    def propose(self, drafts: list[Draft]) -> None:
        first = self.log.last_index + 1
        self.log.append(drafts, term=1, timestamp_ns=self.log.last_timestamp_ns + SECOND)
        self.log.sync()
        self.log.mark_committed(self.log.last_index)
        for entry in self.log.scan(first):
            result = self.state.router.apply(entry)
            assert isinstance(result, Applied), result
        settle_to(self.log, self.log.last_index)

    def page(self, name: str = "s", partition: int = 0, offset: int | None = None) -> Page:
        return read_page(self.state.stream, self.log, name, partition, offset)

    def values(self, name: str = "s", partition: int = 0) -> list[bytes]:
        items = self.page(name, partition).items
        return [item.value for item in items if isinstance(item, Record)]

    def compact(self) -> int:
        """Do what retention does: keep what streams need, drop the rest; return how many."""
        kept_from = self.state.stream.kept_streams()
        dropped = 0
        for segment in self.log.segments.segments:
            if not isinstance(segment, SealedSegment):
                continue
            keep = set(self.state.stream.pinned(segment.first_index, segment.last_index))
            for stream_id in segment.stream_ids():
                records = segment.stream_records(int(stream_id))
                first = kept_from.get(int(stream_id), U64_MAX)
                keep.update(int(index) for index in records[records >= np.uint64(first)])
            indexes = np.array(sorted(keep), np.uint64)
            dropped += segment.entry_count - len(indexes)
            compact_segment(self.disk, segment.path, indexes)
            segment.unmap()
        return dropped


@pytest.fixture
def shard() -> Shard:
    return Shard()


def test_records_are_found_in_every_kind_of_file(shard: Shard) -> None:
    shard.write(Create("s", 3), Create("t"))
    draw = Random(2)
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for number in range(300):
        partition = draw.randrange(3)
        value = b"%d" % number
        expected[partition].append(value)
        shard.write(Append("s", value, partition=partition), Append("t", b"other"))
        if number % 60 == 0:
            seal_closed(shard.log)
    kinds = {type(segment) for segment in shard.log.segments.segments}
    assert len(kinds) == 2

    for partition in range(3):
        assert shard.values("s", partition) == expected[partition]
    everything = read_streams(shard.state.stream, shard.log, ["s"], 0)
    found = [item.value for item in everything.items if isinstance(item, Record)]
    assert found == [b"%d" % number for number in range(300)]


def test_a_reader_does_not_pass_what_the_log_was_told(shard: Shard) -> None:
    """Between applying and saying so a tail must not skip what it cannot see yet."""
    shard.write(Create("s"))
    offset = shard.write(Append("s", b"seen"))
    shard.log.append(
        [encode_command(Append("s", b"new"), NAMESPACE)], term=1, timestamp_ns=SECOND * 9
    )
    shard.log.sync()
    shard.log.mark_committed(offset + 1)
    shard.state.router.apply(shard.log.read(offset + 1))
    page = shard.page()
    assert [item.offset for item in page.items if isinstance(item, Record)] == [offset]
    assert page.next_offset == offset + 1
    shard.log.mark_applied(offset + 1)

    (record,) = shard.page(offset=page.next_offset).items
    assert isinstance(record, Record)
    assert record.value == b"new"


def test_a_time_leads_to_the_first_record_that_is_as_new(shard: Shard) -> None:
    shard.write(Create("s"))
    offsets = [shard.write(Append("s", b"%d" % number)) for number in range(100)]
    seal_closed(shard.log)
    moment_ns = shard.log.read(offsets[40]).timestamp_ns

    at = shard.state.stream.offset_at_time(shard.log, NAMESPACE, "s", moment_ns)
    assert at == offsets[40]
    beyond = shard.log.last_timestamp_ns + 1
    assert shard.state.stream.offset_at_time(shard.log, NAMESPACE, "s", beyond) == (
        shard.log.last_index + 1
    )
    assert shard.state.stream.offset_at_time(shard.log, NAMESPACE, "x", 0) == Refused(
        Reason.STREAM_UNKNOWN
    )


def test_what_retention_lets_go_can_be_compacted_and_the_rest_is_read_as_before(
    shard: Shard,
) -> None:
    shard.write(Create("s", 1, Retention(count_max=20)), Create("dead"), Create("noise"))
    group = GroupCreate("s", "g", 0, GroupConfig(shared=True, max_deliveries=1, dead_letter="dead"))
    poison = shard.write(Append("s", b"poison"))
    shard.propose([encode_command(group, NAMESPACE)])
    shard.propose([encode_command(GroupJoin("s", "g", 86_000 * SECOND), NAMESPACE)])
    member = shard.log.last_index
    found = shard.state.stream.describe_group(NAMESPACE, "s", "g")
    assert not isinstance(found, Refused)
    deliver = Deliver("s", "g", member, 1, 0, found.delivered[0], poison + 1, (poison,))
    nack = Nack("s", "g", member, ((0, poison),), 0, b"bad")
    shard.propose([encode_command(each, NAMESPACE) for each in (deliver, nack)])
    for number in range(200):
        shard.write(Append("s", b"%d" % number), Append("noise", b"noise" * 20))
    shard.write(Trim("noise", Cause.REQUEST, shard.log.last_index + 1))
    end = shard.log.last_index + 1
    shard.write(Trim("s", Cause.REQUEST, end - 40, past_groups=True))
    while drafts := shard.state.router.due(shard.log.last_timestamp_ns, 100):
        shard.propose(drafts)
    seal_closed(shard.log)
    before = shard.page(), shard.page("dead")
    assert shard.compact() > 300

    assert (shard.page(), shard.page("dead")) == before
    assert shard.values("dead") == [b"poison"]
    (gap, *_) = shard.page("s", 0, poison).items
    assert isinstance(gap, Gap)
    assert (gap.first_offset, gap.last_offset) == (poison, end - 41)


def test_a_log_that_begins_later_is_read_from_there(shard: Shard) -> None:
    shard.write(Create("s"), Create("quiet"))
    for number in range(200):
        shard.write(Append("s", b"%d" % number))
    seal_closed(shard.log)
    kept = shard.log.last_index - 20
    shard.write(Trim("s", Cause.REQUEST, kept))
    assert drop_before(shard.log, kept) > 0

    assert shard.values()[0] == b"%d" % (kept - 3)
    assert shard.values("quiet") == []
    shard.write(Append("quiet", b"first"))
    assert shard.values("quiet") == [b"first"]
    assert isinstance(shard.page(offset=1).items[0], Gap)
