"""Records that a group gives up on: where they go, and what they keep from going."""

import pytest

from onelog.projections.limits import U64_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Refused
from onelog.projections.stream.commands import (
    TYPE_DEAD_LETTER,
    Ack,
    Cause,
    DeadLetter,
    Delete,
    Deliver,
    GroupCommit,
    GroupConfig,
    GroupConfigure,
    GroupCreate,
    GroupJoin,
    GroupSeek,
    Nack,
    Trim,
)
from onelog.projections.stream.operations import Claimed, decode_dead_count
from onelog.projections.stream.reads import (
    HEADER_OFFSET,
    HEADER_REASON,
    HEADER_RETRIES,
    GroupDescription,
    Record,
)
from tests.projections.stream.stream_group_world import SHARED, GroupWorld
from tests.projections.stream.stream_pages import read_pending, read_undelivered
from tests.projections.world import NAMESPACE, SECOND


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


def test_a_record_that_keeps_failing_becomes_a_record_of_the_dead_letter_stream(
    world: GroupWorld,
) -> None:
    world.open(1, GroupConfig(shared=True, max_deliveries=2, dead_letter="dead"))
    offset = world.append("s", b"poison", key=b"k", headers=(("h", b"1"),), tag="t")
    behind = world.append("s", b"fine")
    member = world.join(60)
    world.deliver(member)
    for dead_count in range(2):
        given_back = world.run(Nack("s", "g", member, ((0, offset),), 0, b"no"))
        assert isinstance(given_back, Applied)
        assert given_back.number == 1
        assert decode_dead_count(given_back.value) == dead_count
        world.claim(member)
    failed_ns = world.now_ns
    assert world.described().dead_count == 1
    assert world.state.router.next_deadline() == 0
    world.pass_time(0)

    (record,) = world.read("dead")
    assert isinstance(record, Record)
    assert (record.value, record.key, record.tag) == (b"poison", b"k", "t")
    assert record.offset == world.index
    assert world.entries[record.offset - 1].entry_type == TYPE_DEAD_LETTER
    headers = dict(record.headers)
    assert headers["h"] == b"1"
    assert headers[HEADER_OFFSET] == b"%d" % offset
    assert headers[HEADER_RETRIES] == b"2"
    assert headers[HEADER_REASON] == b"no"
    assert record.dead_letter is not None
    assert record.dead_letter.failed_ns == failed_ns
    assert world.described().committed == (behind,)
    assert world.state.router.next_deadline() == world.now_ns + 60 * SECOND


def test_the_original_of_a_dead_letter_is_kept_when_its_stream_is_gone(
    world: GroupWorld,
) -> None:
    world.open(1, GroupConfig(shared=True, max_deliveries=1, dead_letter="dead"))
    offset = world.append("s", b"poison")
    member = world.join(60)
    world.deliver(member)
    world.run(Nack("s", "g", member, ((0, offset),)))
    world.pass_time(0)
    letter = world.index
    world.run(Delete("s"))

    assert world.stream.pinned(1, world.index) == [offset]
    assert world.values("dead") == [b"poison"]
    world.run(Trim("dead", Cause.REQUEST, letter + 1))
    assert world.stream.pinned(1, world.index) == []
    world.state.router.check()


def test_a_pending_record_is_kept_although_it_was_trimmed(world: GroupWorld) -> None:
    world.open()
    offset = world.append("s", b"held")
    member = world.join(60)
    world.deliver(member)
    assert world.stream.pinned(1, world.index) == []
    world.run(Trim("s", Cause.REQUEST, offset + 1, past_groups=True))

    assert world.stream.pinned(1, world.index) == [offset]
    assert read_pending(world.stream, world.memory_log, "s", 0, offset).value == b"held"
    assert world.run(Ack("s", "g", member, ((0, offset),))) == Applied(1)
    assert world.stream.pinned(1, world.index) == []


def test_a_dead_letter_of_a_dead_letter_leads_to_the_first_record(world: GroupWorld) -> None:
    once = GroupConfig(shared=True, max_deliveries=1, dead_letter="dead")
    world.open(1, once)
    world.create("deader")
    offset = world.append("s", b"poison")
    world.run(
        GroupCreate(
            "dead", "g", 0, GroupConfig(max_deliveries=1, dead_letter="deader", shared=True)
        )
    )
    for name in ("s", "dead"):
        joined = world.run(GroupJoin(name, "g", 60 * SECOND))
        assert isinstance(joined, Applied)
        found = world.stream.describe_group(NAMESPACE, name, "g")
        assert isinstance(found, GroupDescription)
        page = read_undelivered(world.stream, world.memory_log, name, "g", 0, limit=9)
        (item,) = page.items
        assert isinstance(item, Record)
        at = (found.delivered[0], page.next_offset, (item.offset,))
        assert world.run(Deliver(name, "g", joined.number, 1, 0, *at)) == Applied(1)
        world.run(Nack(name, "g", joined.number, ((0, item.offset),)))
        world.pass_time(0)

    assert world.values("deader") == [b"poison"]
    assert set(world.stream.pinned(1, world.index)) == {offset}


def _dead_record(world: GroupWorld) -> tuple[int, int, int]:
    """Fail a record until it is dead; return its offset, the next record's and the member."""
    world.open(1, GroupConfig(shared=True, max_deliveries=1, dead_letter="dead"))
    offset, behind = world.append("s", b"poison"), world.append("s", b"fine")
    member = world.join(60)
    world.deliver(member)
    given_back = world.run(Nack("s", "g", member, ((0, offset),), 0, b"no"))
    assert isinstance(given_back, Applied)
    assert decode_dead_count(given_back.value) == 1
    return offset, behind, member


def test_a_commit_past_a_dead_record_leaves_it_to_be_moved(world: GroupWorld) -> None:
    """The nack was answered: it is dead, and will be found among the dead letters."""
    offset, behind, member = _dead_record(world)
    places = ((0, behind + 1),)
    commit = GroupCommit("s", "g", member, world.described().generation, places)
    assert world.run(commit) == APPLIED
    assert world.described().committed == (offset,)
    world.state.router.check()
    world.pass_time(0)

    assert world.values("dead") == [b"poison"]
    assert world.described().committed == (behind + 1,)
    assert world.described().pending_count == 0


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_a_seek_leaves_dead_records_unless_it_makes_them_come_again(
    world: GroupWorld, *, is_trimmed: bool
) -> None:
    offset, behind, _ = _dead_record(world)
    if is_trimmed:
        world.run(Trim("s", Cause.REQUEST, behind, past_groups=True))
    seek = GroupSeek("s", "g", 0, offset)
    assert isinstance(world.run(seek), Applied)
    world.state.router.check()
    assert world.described().delivered == (offset,)
    world.pass_time(0)
    assert world.values("dead") == ([b"poison"] if is_trimmed else [])
    assert isinstance(world.run(GroupSeek("s", "g", 0, U64_MAX)), Applied)
    world.pass_time(0)

    assert world.described().pending_count == 0
    assert world.values("dead") == ([b"poison"] if is_trimmed else [])


def test_a_seek_past_a_dead_record_leaves_it_to_be_moved(world: GroupWorld) -> None:
    _, behind, _ = _dead_record(world)
    assert isinstance(world.run(GroupSeek("s", "g", 0, U64_MAX)), Applied)
    world.state.router.check()
    assert world.described().pending_count == 1
    world.pass_time(0)

    assert world.values("dead") == [b"poison"]
    assert world.described().committed[0] > behind


def test_what_was_trimmed_since_it_was_read_is_not_delivered(world: GroupWorld) -> None:
    """A dead letter that was trimmed leads nowhere: its original may be gone from the log."""
    offset, _, _ = _dead_record(world)
    world.pass_time(0)
    (letter,) = world.read("dead")
    assert isinstance(letter, Record)
    world.create("deader")
    deader = GroupConfig(shared=True, max_deliveries=1, dead_letter="deader")
    assert isinstance(world.run(GroupCreate("dead", "g", 0, deader)), Applied)
    joined = world.run(GroupJoin("dead", "g", 60 * SECOND))
    assert isinstance(joined, Applied)
    start = letter.stream_id + 1
    places = (start, letter.offset + 1, (letter.offset,))
    deliver = Deliver("dead", "g", joined.number, 1, 0, *places)
    world.run(Trim("dead", Cause.REQUEST, letter.offset + 1, past_groups=True))

    assert world.run(deliver) == Refused(Reason.DELIVERY_STALE, start)
    skip = Deliver("dead", "g", joined.number, 1, 0, start, letter.offset + 1, ())
    assert world.run(skip) == Applied(0)
    assert offset not in world.stream.pinned(1, world.index)


def test_a_move_that_was_not_asked_for_is_refused(world: GroupWorld) -> None:
    world.open(1, GroupConfig(shared=True, max_deliveries=1, dead_letter="dead"))
    offset = world.append("s")
    member = world.join(60)
    world.deliver(member)
    source = world.stream.describe(NAMESPACE, "s")
    assert not isinstance(source, Refused)
    letter = DeadLetter("dead", source.stream_id, "g", 0, offset, offset, 1, world.now_ns, b"")
    stale = Refused(Reason.DEAD_LETTER_STALE, offset)
    assert world.run(letter) == stale
    world.run(Nack("s", "g", member, ((0, offset),)))
    wrong = DeadLetter("dead", source.stream_id, "g", 0, offset, 1, 1, world.now_ns, b"")
    assert world.run(wrong) == stale
    assert world.run(letter) == APPLIED
    assert world.run(letter) == stale


def test_dead_letters_wait_while_their_stream_is_full_or_gone(
    world: GroupWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("projection", "operations"):
        monkeypatch.setattr(f"onelog.projections.stream.{module}.DEAD_LETTERS_MAX", 1)
    world.open(1, GroupConfig(shared=True, max_deliveries=1, dead_letter="dead"))
    offsets = [world.append("s", b"%d" % number) for number in range(3)]
    member = world.join(60)
    world.deliver(member)
    world.run(Nack("s", "g", member, tuple((0, offset) for offset in offsets)))
    failed_ns = world.now_ns
    world.pass_time(0)
    assert world.values("dead") == [b"0"]
    assert world.state.router.next_deadline() != 0
    source = world.stream.describe(NAMESPACE, "s")
    assert not isinstance(source, Refused)
    move = DeadLetter("dead", source.stream_id, "g", 0, offsets[1], offsets[1], 1, failed_ns, b"")
    assert world.run(move) == Refused(Reason.DEAD_LETTERS_FULL, 1)
    world.run(Trim("dead", Cause.REQUEST, U64_MAX))
    world.pass_time(0)
    assert world.values("dead") == [b"1"]
    world.run(Delete("dead"))
    assert world.state.router.next_deadline() != 0
    world.create("dead")
    world.pass_time(0)
    assert world.values("dead") == [b"2"]


def test_a_group_that_stops_giving_up_tries_again(world: GroupWorld) -> None:
    world.open(1, GroupConfig(shared=True, max_deliveries=1, dead_letter="dead"))
    offset = world.append("s")
    member = world.join(60)
    world.deliver(member)
    world.run(Nack("s", "g", member, ((0, offset),)))
    assert world.run(GroupConfigure("s", "g", SHARED)) == Applied(world.described().group_id)

    assert world.state.router.next_deadline() != 0
    assert world.claim(member) == [Claimed(0, offset, 2)]
    unknown = GroupConfig(shared=True, max_deliveries=1, dead_letter="nowhere")
    refused = Refused(Reason.DEAD_LETTER_STREAM_UNKNOWN)
    assert world.run(GroupConfigure("s", "g", unknown)) == refused
    itself = GroupConfig(shared=True, max_deliveries=1, dead_letter="s")
    assert world.run(GroupCreate("s", "h", 0, itself)) == refused
