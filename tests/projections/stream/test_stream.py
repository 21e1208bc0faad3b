"""Streams by example: create, append, read, trim, delete, and what the log is told."""

import pytest
from crc32c import crc32c

from onelog.projections.limits import U64_MAX
from onelog.projections.namespaces import Limits
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Refused
from onelog.projections.stream.commands import (
    Append,
    Cause,
    Configure,
    Create,
    Delete,
    GroupCommit,
    GroupCreate,
    ProducerRef,
    Retain,
    Retention,
    Trim,
    describe_stream_command,
    encode_command,
)
from onelog.projections.stream.filters import EVERYTHING, RecordFilter
from onelog.projections.stream.limits import STREAMS_MAX, partition_id
from onelog.projections.stream.operations import DUPLICATE
from onelog.projections.stream.reads import Gap, Record
from onelog.projections.system.commands import NamespaceConfigure, NamespaceCreate, NamespaceDelete
from onelog.ual.entry import FLAG_ZSTD
from tests.projections.stream.stream_pages import read_page, read_streams
from tests.projections.stream.stream_world import MemoryLog, StreamWorld, replay
from tests.projections.world import NAMESPACE, SECOND


@pytest.fixture
def world() -> StreamWorld:
    return StreamWorld()


def test_records_are_read_back_at_their_offsets(world: StreamWorld) -> None:
    stream_id = world.create("orders")
    first = world.append("orders", b"one", key=b"k")
    world.put(b"between", b"1")
    second = world.append("orders", b"two", headers=(("a", b"b"),), tag="red")

    assert world.read("orders") == [
        Record(stream_id, 0, first, world.now_ns, b"one", b"k"),
        Record(stream_id, 0, second, world.now_ns, b"two", None, (("a", b"b"),), "red"),
    ]
    assert world.values("orders", offset=first + 1) == [b"two"]
    assert world.records.records == {stream_id: [first, second]}


def test_a_stream_is_created_once_and_a_new_one_after_its_deletion(world: StreamWorld) -> None:
    first = world.create("s")
    assert world.run(Create("s")) == Refused(Reason.STREAM_EXISTS, first)
    world.append("s", b"old")
    assert world.run(Delete("s")) == Applied(first)
    assert world.run(Append("s", b"x")) == Refused(Reason.STREAM_UNKNOWN)
    second = world.create("s")

    assert second != first
    assert world.values("s") == []
    assert set(world.stream.kept_streams()) == {second}


def test_a_key_always_goes_to_the_same_partition(world: StreamWorld) -> None:
    stream_id = world.create("s", 4)
    for number in range(20):
        key = b"key-%d" % (number % 5)
        offset = world.append("s", b"v", key=key)
        expected = crc32c(key) % 4
        assert world.records.records[partition_id(stream_id, expected)][-1] == offset

    offset = world.append("s", b"v", key=b"key-0", partition=3)
    assert world.records.records[partition_id(stream_id, 3)][-1] == offset
    offset = world.append("s", b"v")
    assert world.records.records[partition_id(stream_id, offset % 4)][-1] == offset
    assert world.run(Append("s", b"v", partition=4)) == Refused(Reason.PARTITION_UNKNOWN, 4)


def test_partitions_of_different_streams_never_share_an_id(world: StreamWorld) -> None:
    first, second = world.create("a", 256), world.create("b", 256)

    ids = set(world.stream.kept_streams())
    assert len(ids) == 512
    assert {each & (2**56 - 1) for each in ids} == {first, second}
    assert max(ids) <= U64_MAX


def test_a_repeated_record_of_a_producer_has_its_first_offset_and_is_void(
    world: StreamWorld,
) -> None:
    world.create("s")
    offsets = [world.append("s", b"%d" % n, producer=ProducerRef(7, 0, n)) for n in range(10)]
    voids = len(world.notes.voids)

    again = world.run(Append("s", b"9", producer=ProducerRef(7, 0, 9)))
    assert again == Applied(offsets[9], DUPLICATE)
    again = world.run(Append("s", b"2", producer=ProducerRef(7, 0, 2)))
    assert again == Applied(offsets[2], DUPLICATE)
    assert len(world.notes.voids) == voids + 2
    assert len(world.values("s")) == 10
    assert world.run(Append("s", b"1", producer=ProducerRef(7, 0, 1))) == Refused(
        Reason.PRODUCER_SEQUENCE_FORGOTTEN, 2
    )
    assert world.run(Append("s", b"x", producer=ProducerRef(7, 0, 11))) == Refused(
        Reason.PRODUCER_SEQUENCE_GAP, 10
    )
    world.state.router.check()


def test_a_new_epoch_fences_the_old_one(world: StreamWorld) -> None:
    world.create("s")
    world.append("s", b"a", producer=ProducerRef(7, 0, 0))
    assert world.run(Append("s", b"x", producer=ProducerRef(8, 0, 1))) == Refused(
        Reason.PRODUCER_UNKNOWN
    )
    assert world.run(Append("s", b"x", producer=ProducerRef(7, 1, 3))) == Refused(
        Reason.PRODUCER_SEQUENCE_GAP
    )
    assert world.run(Append("s", b"b", producer=ProducerRef(7, 1, 0))) == APPLIED
    assert world.run(Append("s", b"c", producer=ProducerRef(7, 0, 1))) == Refused(
        Reason.PRODUCER_FENCED, 1
    )
    assert world.values("s") == [b"a", b"b"]


def test_too_many_producers_push_out_those_that_wrote_longest_ago(
    world: StreamWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.projections.stream.state.PRODUCERS_MAX", 4)
    monkeypatch.setattr("onelog.projections.stream.state.PRODUCERS_FORGOTTEN", 2)
    world.create("s")
    for producer in (1, 2, 3, 4):
        world.append("s", producer=ProducerRef(producer, 0, 0))
    world.append("s", producer=ProducerRef(1, 0, 1))
    world.append("s", producer=ProducerRef(5, 0, 0))

    forgotten = Refused(Reason.PRODUCER_UNKNOWN)
    assert world.run(Append("s", b"", producer=ProducerRef(2, 0, 1))) == forgotten
    assert world.run(Append("s", b"", producer=ProducerRef(3, 0, 1))) == forgotten
    assert world.run(Append("s", b"", producer=ProducerRef(4, 0, 1))) == APPLIED
    assert world.run(Append("s", b"", producer=ProducerRef(1, 0, 2))) == APPLIED
    world.state.router.check()


def test_who_comes_from_a_trimmed_offset_is_told_what_is_missing(world: StreamWorld) -> None:
    stream_id = world.create("s")
    offsets = [world.append("s", b"%d" % number) for number in range(10)]
    trimmed_ns = world.now_ns
    assert world.run(Trim("s", Cause.REQUEST, offsets[4])) == Applied(1)

    gap = Gap(stream_id, 0, offsets[1], offsets[4] - 1, Cause.REQUEST, trimmed_ns)
    assert world.read("s", 0, offsets[1])[0] == gap
    assert world.values("s", 0, offsets[1]) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    assert world.read("s", 0, 0)[0] == Gap(
        stream_id, 0, stream_id + 1, offsets[4] - 1, Cause.REQUEST, trimmed_ns
    )
    assert all(isinstance(item, Record) for item in world.read("s"))
    assert all(isinstance(item, Record) for item in world.read("s", 0, offsets[4]))
    assert world.stream.kept_streams() == {stream_id: offsets[4]}


def test_each_gap_has_its_own_range_and_cause(world: StreamWorld) -> None:
    stream_id = world.create("s", retention=Retention(count_max=4))
    offsets = [world.append("s", b"%d" % number) for number in range(10)]
    world.run(Trim("s", Cause.REQUEST, offsets[2]))
    world.pass_time(SECOND)

    first, second = (item for item in world.read("s", 0, offsets[0]) if isinstance(item, Gap))
    assert (first.first_offset, first.last_offset) == (offsets[0], offsets[2] - 1)
    assert first.cause is Cause.REQUEST
    assert second.first_offset == offsets[2]
    assert second.cause is Cause.COUNT
    assert second.last_offset + 1 == world.stream.kept_streams()[stream_id]


def test_a_trim_beyond_the_end_empties_the_stream_and_no_more(world: StreamWorld) -> None:
    stream_id = world.create("s")
    last = world.append("s")
    world.run(Trim("s", Cause.REQUEST, U64_MAX))
    assert world.stream.kept_streams() == {stream_id: last + 1}
    world.append("s", b"next")

    assert world.values("s") == [b"next"]
    world.state.router.check()


def test_a_trim_stops_at_the_slowest_group_unless_told_otherwise(world: StreamWorld) -> None:
    world.create("s")
    offsets = [world.append("s") for _ in range(5)]
    world.run(GroupCreate("s", "g", offsets[2]))

    assert world.run(Trim("s", Cause.REQUEST, offsets[3])) == Refused(
        Reason.TRIM_BLOCKED, offsets[2]
    )
    assert world.run(Trim("s", Cause.REQUEST, offsets[2])) == Applied(1)
    assert world.run(Trim("s", Cause.REQUEST, offsets[3], past_groups=True)) == Applied(1)
    assert isinstance(world.read("s", 0, offsets[2])[0], Gap)


@pytest.mark.parametrize(
    ("retention", "cause"),
    [
        (Retention(count_max=320), Cause.COUNT),
        (Retention(size_max=320 * 7), Cause.SIZE),  # the body of an empty record of "s"
        (Retention(age_ns=320 * SECOND), Cause.AGE),
    ],
)
def test_retention_keeps_what_it_says_and_little_more(
    world: StreamWorld, retention: Retention, cause: Cause
) -> None:
    """The guarantee: never less than the policy, at most two runs of a thirty-second more."""
    stream_id = world.create("s", retention=retention)
    offsets = []
    for _ in range(1_000):
        offsets.append(world.append("s", b"1234"))
        world.pass_time(SECOND)

        kept_from = world.stream.kept_streams()[stream_id]
        kept = sum(offset >= kept_from for offset in offsets)
        assert kept + (cause is Cause.AGE) >= min(len(offsets), 320)
        assert kept <= 320 + 2 * 10 + 1
    assert {gap.cause for gap in world.read("s", 0, 0) if isinstance(gap, Gap)} == {cause}
    world.state.router.check()


def test_retention_by_age_empties_a_stream_that_nobody_writes_to(world: StreamWorld) -> None:
    world.create("s", retention=Retention(age_ns=32 * SECOND))
    world.append("s", b"first of the run")
    world.now_ns += SECOND // 2
    world.append("s")
    assert world.state.router.next_deadline() == world.now_ns + 32 * SECOND
    world.pass_time(32 * SECOND - 1)
    assert world.values("s") == [b"first of the run", b"v"]
    world.pass_time(1)

    assert world.values("s") == []
    assert world.state.router.next_deadline() is None


def test_retention_waits_for_the_slowest_group(world: StreamWorld) -> None:
    world.create("s", retention=Retention(count_max=1))
    offsets = [world.append("s", b"%d" % number) for number in range(6)]
    world.run(GroupCreate("s", "g", offsets[2]))
    world.pass_time(SECOND)
    assert world.values("s") == [b"2", b"3", b"4", b"5"]
    assert world.state.router.next_deadline() is None

    world.run(GroupCommit("s", "g", 0, 0, ((0, offsets[3]),)))
    assert world.state.router.next_deadline() == 0
    world.pass_time(SECOND)
    assert world.values("s") == [b"3", b"4", b"5"]
    world.run(Configure("s", Retention(count_max=1, past_groups=True)))
    world.pass_time(SECOND)
    assert world.values("s") == [b"4", b"5"]


def test_a_trim_that_the_policy_does_not_ask_for_is_refused(world: StreamWorld) -> None:
    stream_id = world.create("s", retention=Retention(count_max=2))
    offsets = [world.append("s") for _ in range(8)]
    kept_from = offsets[-3]

    too_far = Retain(stream_id, ((0, Cause.COUNT, kept_from + 1),))
    assert world.run(too_far) == Refused(Reason.TRIM_NOT_DUE, kept_from)
    other = Retain(stream_id, ((0, Cause.AGE, kept_from),))
    assert world.run(other) == Refused(Reason.TRIM_NOT_DUE, stream_id + 1)
    right = Retain(stream_id, ((0, Cause.COUNT, kept_from),))
    assert world.run(right) == Applied(1)
    assert world.run(right) == Applied(0)
    assert world.run(Retain(stream_id + 1, right.cuts)) == Refused(Reason.STREAM_UNKNOWN)


def test_what_is_trimmed_now_by_count_size_or_age_goes_in_whole_runs(world: StreamWorld) -> None:
    world.create("s")
    for number in range(3_000):
        world.now_ns += SECOND // 100
        world.append("s", b"%d" % number)

    assert world.run(Trim("s", Cause.COUNT, 1_500)) == Applied(0)
    assert world.run(Trim("s", Cause.COUNT, 1_000)) == Applied(1)
    assert world.values("s")[0] == b"1024"
    assert world.run(Trim("s", Cause.AGE, 5 * SECOND)) == Applied(1)
    assert world.values("s")[0] == b"2048"
    world.now_ns += 5 * SECOND
    assert world.run(Trim("s", Cause.AGE, 5 * SECOND)) == Applied(1)
    assert world.values("s") == []
    assert world.run(Trim("s", Cause.SIZE, 0)) == Refused(Reason.LIMIT_INVALID, 0)


def test_a_record_that_is_too_young_by_a_moment_stays(world: StreamWorld) -> None:
    world.create("s")
    for _ in range(3):
        world.append("s")
        world.now_ns += 60 * SECOND  # each record is a run
    youngest_ns = world.now_ns - 60 * SECOND
    assert world.run(Trim("s", Cause.AGE, world.now_ns - youngest_ns + 1)) == Applied(1)
    assert len(world.values("s")) == 2  # the second one's run is over when the third begins
    assert world.run(Trim("s", Cause.AGE, 60 * SECOND)) == Applied(1)
    assert world.values("s") == []


def test_a_reader_filters_by_key_tag_and_header(world: StreamWorld) -> None:
    world.create("s")
    world.append("s", b"1", key=b"user:1", tag="a", headers=(("h", b"x"),))
    world.append("s", b"2", key=b"user:2", tag="b", headers=(("h", b"y"), ("i", b"")))
    world.append("s", b"3")

    def values(wanted: RecordFilter) -> list[bytes]:
        page = read_page(world.stream, world.memory_log, "s", wanted=wanted)
        assert page.next_offset == world.index + 1
        return [item.value for item in page.items if isinstance(item, Record)]

    assert values(EVERYTHING) == [b"1", b"2", b"3"]
    assert values(RecordFilter(keys=frozenset({b"user:2"}))) == [b"2"]
    assert values(RecordFilter(key_prefix=b"user:")) == [b"1", b"2"]
    assert values(RecordFilter(tags=frozenset({"a", "c"}))) == [b"1"]
    assert values(RecordFilter(headers=(("h", None),))) == [b"1", b"2"]
    assert values(RecordFilter(headers=(("h", b"y"), ("i", None)))) == [b"2"]


def test_one_number_resumes_a_tail_over_many_streams(world: StreamWorld) -> None:
    world.create("a", 3)
    world.create("b")
    expected = []
    for number in range(20):
        name = "a" if number % 3 else "b"
        world.append(name, b"%d" % number, key=b"%d" % number)
        world.put(b"other", b"")
        expected.append(b"%d" % number)

    found: list[bytes] = []
    offset = 0
    while offset <= world.index:
        log: MemoryLog = world.memory_log
        page = read_streams(world.stream, log, ["a", "b"], offset, limit=3)
        found += [item.value for item in page.items if isinstance(item, Record)]
        offset = page.next_offset
    assert found == expected


def test_a_time_is_an_offset_for_all_partitions(world: StreamWorld) -> None:
    world.create("s", 2)
    early = world.append("s", b"early", partition=0)
    world.now_ns += SECOND
    late = world.append("s", b"late", partition=1)
    log = world.memory_log

    at = world.stream.offset_at_time(log, NAMESPACE, "s", world.now_ns)
    assert at == late
    assert world.stream.offset_at_time(log, NAMESPACE, "s", 0) == early
    assert world.stream.offset_at_time(log, NAMESPACE, "s", world.now_ns + 1) == late + 1


def test_a_compressed_append_counts_like_a_plain_one(world: StreamWorld) -> None:
    """Large records arrive compressed, by another path than small ones."""
    world.create("s")
    world.append("s", b"onelog " * 300, key=b"k")
    assert world.entries[-1].flags & FLAG_ZSTD
    plain = StreamWorld()
    for entry in world.entries:
        plain.state.router.apply(entry._replace(flags=0, payload=entry.plain_payload()))

    assert plain.state.router.state_hash() == world.state.router.state_hash()
    assert world.values("s") == [b"onelog " * 300]


def test_a_namespace_takes_its_streams_with_it(world: StreamWorld) -> None:
    world.system(NamespaceCreate(Limits(value_size_max=10)), "n")
    assert isinstance(world.run(Create("s", 2), "n"), Applied)
    assert world.run(GroupCreate("s", "g", 0), "n") == Applied(world.index)
    assert world.run(Append("s", b"x" * 11), "n") == Refused(Reason.VALUE_TOO_LARGE, 11)
    world.system(NamespaceConfigure(Limits(value_size_max=11)), "n")
    assert world.run(Append("s", b"x" * 11), "n") == APPLIED
    world.system(NamespaceDelete(), "n")

    assert world.run(Append("s", b""), "n") == Refused(Reason.NAMESPACE_UNKNOWN)
    assert world.stream.kept_streams() == {}
    assert world.stream.state_hash() == StreamWorld().stream.state_hash()
    world.state.router.check()


def test_streams_are_listed_and_limited(
    world: StreamWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert STREAMS_MAX == 10_000
    monkeypatch.setattr("onelog.projections.stream.operations.STREAMS_MAX", 3)
    for name in ("b", "a", "ab"):
        world.create(name)
    assert world.run(Create("c")) == Refused(Reason.STREAMS_FULL, 3)
    assert world.stream.list_streams(NAMESPACE) == ("a", "ab", "b")
    assert world.stream.list_streams(NAMESPACE, prefix="a", after="a") == ("ab",)
    assert world.stream.list_streams("x") == Refused(Reason.NAMESPACE_UNKNOWN)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (Create(""), Reason.STREAM_NAME_INVALID),
        (Create("a:b"), Reason.STREAM_NAME_INVALID),
        (Create("x" * 129), Reason.STREAM_NAME_INVALID),
        (Create("s", 0), Reason.STREAM_LIMIT_INVALID),
        (Create("s", 257), Reason.STREAM_LIMIT_INVALID),
        (Create("s", 1, Retention(age_ns=2**63)), Reason.STREAM_LIMIT_INVALID),
        (Create("s", 1, Retention(count_max=2**63)), Reason.STREAM_LIMIT_INVALID),
        (Append("s", b"", key=b""), Reason.KEY_SIZE_INVALID),
        (Append("s", b"", headers=(("h", b""),) * 65), Reason.PAYLOAD_COUNT_TOO_LARGE),
        (GroupCreate("s", "", 0), Reason.GROUP_NAME_INVALID),
    ],
)
def test_each_limit_has_its_reason(
    world: StreamWorld, command: Create | Append | GroupCreate, reason: Reason
) -> None:
    result = world.run(command)

    assert isinstance(result, Refused)
    assert result.reason is reason
    assert result.message


def test_a_command_is_described_in_one_line(world: StreamWorld) -> None:
    world.create("s")
    world.append("s", b"value", key=b"k")
    lines = [describe_stream_command(entry) for entry in world.entries]

    assert lines[1] == "append to default/s: key b'k', 5 bytes"
    assert "Create" in lines[0]
    bad = world.entries[1]._replace(payload=b"\x01")
    assert describe_stream_command(bad).startswith("not a stream command")


def test_a_replay_notes_the_same_records(world: StreamWorld) -> None:
    world.create("s", 3)
    for number in range(30):
        world.append("s", b"v", key=b"%d" % number)
    other = replay(world.entries)

    assert other.records.records == world.records.records
    assert other.state.router.state_hash() == world.state.router.state_hash()
    assert encode_command(Delete("s"), NAMESPACE).entry_type == 0x0404
