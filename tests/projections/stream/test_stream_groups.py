"""Consumer groups by example: cursors, members, pending records, dead letters."""

import pytest

from onelog.projections.limits import U64_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Refused
from onelog.projections.stream.commands import (
    Ack,
    Cause,
    Claim,
    Delete,
    Deliver,
    GroupCommand,
    GroupCommit,
    GroupConfig,
    GroupCreate,
    GroupDelete,
    GroupHeartbeat,
    GroupJoin,
    GroupLeave,
    GroupSeek,
    Nack,
    Trim,
)
from onelog.projections.stream.groups import assign
from onelog.projections.stream.limits import PARTITION_ANY
from onelog.projections.stream.operations import Claimed, claimable_from, decode_assignment
from onelog.projections.stream.reads import Gap, GroupDescription
from onelog.projections.system.commands import Expire
from tests.projections.stream.stream_group_world import GroupWorld
from tests.projections.stream.stream_pages import find_group, list_pending, read_undelivered
from tests.projections.world import NAMESPACE, SECOND


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


def test_a_cursor_is_a_key_that_everybody_can_read(world: GroupWorld) -> None:
    world.open(2)
    start = world.described().committed
    assert world.cursors("s", "g") == b"[%d,%d]" % start
    offset = world.append("s", partition=1)
    before = world.index
    assert world.run(GroupCommit("s", "g", 0, 0, ((1, offset + 1),))) == APPLIED

    assert world.cursors("s", "g") == b"[%d,%d]" % (start[0], offset + 1)
    assert world.value(b"cg:s:g", as_of=before) == b"[%d,%d]" % start
    world.run(GroupDelete("s", "g"))
    assert world.cursors("s", "g") is None


def test_deleting_a_stream_takes_its_cursors_along(world: GroupWorld) -> None:
    world.open()
    world.join()
    world.run(Delete("s"))

    assert world.cursors("s", "g") is None
    assert world.state.router.next_deadline() is None
    world.state.router.check()


def test_a_cursor_moves_forward_and_not_beyond_the_end(world: GroupWorld) -> None:
    world.open()
    offset = world.append("s")

    def commit(to: int) -> object:
        return world.run(GroupCommit("s", "g", 0, 0, ((0, to),)))

    assert commit(offset + 2) == Refused(Reason.OFFSET_IN_FUTURE, offset + 1)
    assert commit(offset + 1) == APPLIED
    assert commit(offset + 1) == APPLIED
    assert commit(offset) == Refused(Reason.CURSOR_BEHIND, offset + 1)


def test_where_a_group_starts(world: GroupWorld) -> None:
    stream_id = world.create("s")
    offsets = [world.append("s") for _ in range(4)]
    world.run(Trim("s", Cause.REQUEST, offsets[1]))
    for name, start, expected in [
        ("first", 0, offsets[1]),
        ("next", U64_MAX, offsets[3] + 1),
        ("there", offsets[2], offsets[2]),
        ("trimmed", offsets[0], offsets[0]),
        ("before", 1, stream_id + 1),
    ]:
        world.run(GroupCreate("s", name, start))
        found = world.stream.describe_group(NAMESPACE, "s", name)
        assert isinstance(found, GroupDescription)
        assert found.committed == (expected,)


def test_partitions_are_shared_out_evenly_and_stay_where_they_are() -> None:
    assert assign((0, 0, 0), []) == (0, 0, 0)
    alone = assign((0,) * 6, [10])
    assert alone == (10,) * 6
    two = assign(alone, [10, 20])
    assert two == (10, 10, 10, 20, 20, 20)
    three = assign(two, [10, 20, 30])
    assert three == (10, 10, 30, 20, 20, 30)
    assert assign(three, [10, 30]) == (10, 10, 30, 10, 30, 30)
    assert assign((0, 0), [1, 2, 3]) == (1, 2)


def test_a_member_learns_its_partitions_and_an_old_generation_cannot_commit(
    world: GroupWorld,
) -> None:
    world.open(4, GroupConfig())
    offset = world.append("s", partition=3)
    first = world.join()
    result = world.run(GroupHeartbeat("s", "g", first))
    assert isinstance(result, Applied)
    assert decode_assignment(result.value or b"") == (1, (0, 1, 2, 3))
    second = world.join()
    result = world.run(GroupHeartbeat("s", "g", second))
    assert isinstance(result, Applied)
    assert decode_assignment(result.value or b"") == (2, (2, 3))

    places = ((3, offset + 1),)
    assert world.run(GroupCommit("s", "g", first, 1, places)) == Refused(Reason.GENERATION_STALE, 2)
    assert world.run(GroupCommit("s", "g", first, 2, places)) == Refused(
        Reason.PARTITION_NOT_OWNED, 3
    )
    assert world.run(GroupCommit("s", "g", 0, 2, places)) == Refused(Reason.MEMBER_UNKNOWN, 0)
    assert world.run(GroupCommit("s", "g", second, 2, places)) == APPLIED


def test_a_member_without_heartbeats_is_gone(world: GroupWorld) -> None:
    world.open(2, GroupConfig())
    silent, alive = world.join(2), world.join(3)
    assert world.described().owners == (silent, alive)
    assert world.state.router.next_deadline() == world.now_ns + 2 * SECOND
    world.pass_time(SECOND)
    world.run(GroupHeartbeat("s", "g", alive))
    world.pass_time(SECOND)

    assert world.described().owners == (alive, alive)
    assert world.described().generation == 3
    assert world.run(GroupHeartbeat("s", "g", silent)) == Refused(Reason.MEMBER_UNKNOWN, silent)
    assert world.run(GroupLeave("s", "g", alive)) == APPLIED
    assert world.described().owners == (0, 0)


def test_an_expiry_that_comes_too_early_is_skipped(world: GroupWorld) -> None:
    world.open()
    member = world.join(10)
    (due,) = world.stream.due(world.now_ns + 10 * SECOND, 9)
    world.now_ns += 5 * SECOND
    world.run(GroupHeartbeat("s", "g", member))
    world.now_ns += 5 * SECOND
    assert world.system(Expire(((due.owner, due.item),))) == Applied(0)

    assert [each for each, _ in world.described().members] == [member]
    world.now_ns += 5 * SECOND
    assert world.system(Expire(((due.owner, due.item),))) == Applied(1)


def test_the_cursor_stands_at_the_first_record_that_is_not_done(world: GroupWorld) -> None:
    world.open()
    offsets = [world.append("s") for _ in range(4)]
    member = world.join()
    assert world.deliver(member, 3) == offsets[:3]
    assert world.described().committed == (offsets[0],)

    world.run(Ack("s", "g", member, ((0, offsets[1]),)))
    assert world.described().committed == (offsets[0],)
    world.run(Ack("s", "g", member, ((0, offsets[0]),)))
    assert world.described().committed == (offsets[2],)
    assert world.cursors("s", "g") == b"[%d]" % offsets[2]
    world.run(Ack("s", "g", member, ((0, offsets[2]),)))
    assert world.described().committed == (offsets[3],)
    assert world.deliver(member) == [offsets[3]]
    world.run(GroupCommit("s", "g", member, world.described().generation, ((0, offsets[3] + 1),)))
    assert world.described().pending_count == 0
    assert world.described().lags == (0,)


def test_a_delivery_from_elsewhere_is_refused(world: GroupWorld) -> None:
    world.open()
    offsets = [world.append("s") for _ in range(4)]
    member = world.join()
    start = world.described().delivered[0]

    def deliver(from_offset: int, next_offset: int, *wanted: int) -> object:
        command = Deliver("s", "g", member, 1, 0, from_offset, next_offset, wanted)
        return world.run(command)

    assert deliver(start, offsets[1] + 1, offsets[0]) == Applied(1)  # skips one: a filter
    assert deliver(start, offsets[1] + 1, offsets[0]) == Refused(
        Reason.DELIVERY_STALE, offsets[1] + 1
    )
    at = offsets[1] + 1
    assert deliver(offsets[3], offsets[3] + 1, offsets[3]) == Refused(Reason.DELIVERY_STALE, at)
    assert deliver(at, offsets[3] + 2, offsets[2]) == Refused(
        Reason.OFFSET_IN_FUTURE, offsets[3] + 1
    )
    assert deliver(at, offsets[3], offsets[3]) == Refused(Reason.OFFSETS_INVALID, offsets[3])
    assert deliver(at, offsets[3] + 1, offsets[3], offsets[2]) == Refused(
        Reason.OFFSETS_INVALID, offsets[2]
    )
    assert deliver(at, at) == Applied(0)


def test_a_list_of_acknowledgements_is_taken_whole_or_not(world: GroupWorld) -> None:
    world.open()
    offsets = [world.append("s") for _ in range(2)]
    one, other = world.join(), world.join()
    world.deliver(one)
    places = tuple((0, offset) for offset in offsets)
    world.now_ns += SECOND
    assert world.claim(other, SECOND) == [Claimed(0, offset, 2) for offset in offsets]
    assert world.claim(other, SECOND) == []
    assert world.run(Ack("s", "g", one, places)) == Refused(Reason.RECORD_NOT_PENDING, offsets[0])
    assert world.run(Ack("s", "g", other, (*places, (0, offsets[1] + 9)))) == Refused(
        Reason.RECORD_NOT_PENDING, offsets[1] + 9
    )
    assert world.run(Ack("s", "g", other, ((0, offsets[0] + 2**56),))) == Refused(
        Reason.RECORD_NOT_PENDING, offsets[0] + 2**56
    )
    assert world.described().pending_count == 2
    assert world.run(Ack("s", "g", other, places)) == Applied(2)
    assert world.run(Ack("s", "g", other, places[::-1])) == Refused(
        Reason.OFFSETS_INVALID, offsets[0]
    )


def test_what_a_lost_member_held_is_free_at_once(world: GroupWorld) -> None:
    world.open()
    offset = world.append("s")
    lost, other = world.join(1), world.join(60)
    world.deliver(lost)
    assert world.claim(other) == []
    world.pass_time(SECOND)

    assert world.run(Ack("s", "g", lost, ((0, offset),))) == Refused(Reason.MEMBER_UNKNOWN, lost)
    assert world.claim(other) == [Claimed(0, offset, 2)]


def test_what_was_given_back_waits_for_its_delay(world: GroupWorld) -> None:
    world.open()
    offset = world.append("s")
    member = world.join(60)
    world.deliver(member)
    world.run(Nack("s", "g", member, ((0, offset),), 5 * SECOND, b"busy"))

    assert world.run(Ack("s", "g", member, ((0, offset),))) == Refused(
        Reason.RECORD_NOT_PENDING, offset
    )
    ready_ns = world.now_ns + 5 * SECOND
    assert claimable_from(find_group(world.stream, "s", "g"), 0) == ready_ns
    world.now_ns = ready_ns - 1
    assert world.claim(member, 0) == []
    world.now_ns = ready_ns
    assert world.claim(member) == [Claimed(0, offset, 2)]
    listed = list_pending(world.stream, "s", "g")
    assert [(each.offset, each.member, each.reason) for each in listed] == [
        (offset, member, b"busy")
    ]


def test_a_seek_forgets_what_is_pending_and_fences_who_consumes(world: GroupWorld) -> None:
    world.open(2)
    offsets = [world.append("s", b"%d" % number, partition=0) for number in range(3)]
    member = world.join(60)
    world.deliver(member)
    generation = world.described().generation
    assert world.run(GroupSeek("s", "g", PARTITION_ANY, offsets[1])) == Applied(generation + 1)

    assert world.described().pending_count == 0
    assert world.described().committed[0] == offsets[1]
    stale = GroupCommit("s", "g", member, generation, ((0, offsets[2] + 1),))
    assert world.run(stale) == Refused(Reason.GENERATION_STALE, generation + 1)
    assert world.deliver(member) == offsets[1:]
    assert world.run(GroupSeek("s", "g", 2, 0)) == Refused(Reason.PARTITION_UNKNOWN, 2)


def test_a_group_behind_a_trim_sees_the_gap(world: GroupWorld) -> None:
    world.open()
    offsets = [world.append("s") for _ in range(3)]
    world.run(Trim("s", Cause.REQUEST, offsets[2], past_groups=True))
    member = world.join()

    page = read_undelivered(world.stream, world.memory_log, "s", "g", 0, limit=9)
    assert isinstance(page.items[0], Gap)
    assert world.deliver(member) == [offsets[2]]


def test_a_group_is_not_given_more_than_it_can_hold(
    world: GroupWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.projections.stream.operations.PENDING_MAX", 3)
    monkeypatch.setattr("onelog.projections.stream.operations.MEMBERS_MAX", 1)
    monkeypatch.setattr("onelog.projections.stream.operations.GROUPS_MAX", 1)
    world.open()
    for _ in range(5):
        world.append("s")
    member = world.join()
    assert world.run(GroupJoin("s", "g", SECOND)) == Refused(Reason.MEMBERS_FULL, 1)
    assert world.run(GroupCreate("s", "h", 0)) == Refused(Reason.STREAM_GROUPS_FULL, 1)
    offsets = world.deliver(member, 2)
    at = offsets[1] + 1
    more = Deliver("s", "g", member, 1, 0, at, at + 2, (at, at + 1))
    assert world.run(more) == Refused(Reason.PENDING_FULL, 2)


@pytest.mark.parametrize(
    ("command", "refused"),
    [
        (GroupJoin("s", "x", SECOND), Refused(Reason.GROUP_UNKNOWN)),
        (GroupJoin("x", "g", SECOND), Refused(Reason.STREAM_UNKNOWN)),
        (GroupJoin("s", "g", SECOND - 1), Refused(Reason.MEMBER_SESSION_INVALID, SECOND - 1)),
        (GroupCreate("s", "g", 0), Refused(Reason.GROUP_EXISTS, 3)),
        (GroupLeave("s", "g", 9), Refused(Reason.MEMBER_UNKNOWN, 9)),
        (Claim("s", "g", 9, 0, 0, 1), Refused(Reason.MEMBER_UNKNOWN, 9)),
        (Claim("s", "g", 9, 0, 0, 0), Refused(Reason.LIMIT_INVALID, 0)),
        (Ack("s", "g", 9, ()), Refused(Reason.LIMIT_INVALID, 0)),
        (GroupCommit("s", "g", 0, 0, ((1, 5),)), Refused(Reason.PARTITION_UNKNOWN, 1)),
        (GroupSeek("s", "g", 300, 5), Refused(Reason.PARTITION_UNKNOWN, 300)),
        (
            GroupCreate("s", "h", 0, GroupConfig(max_deliveries=1)),
            Refused(Reason.STREAM_LIMIT_INVALID, 1),
        ),
        (
            Nack("s", "g", 9, ((0, 1),), 0, b"x" * 129),
            Refused(Reason.PAYLOAD_FIELD_INVALID, 129),
        ),
        (Nack("s", "g", 9, ((0, 1),), 2**63), Refused(Reason.TTL_INVALID, 2**63)),
        (
            GroupCommit("s", "g", 0, 0, ((0, 5), (0, 6))),
            Refused(Reason.OFFSETS_INVALID, 6),
        ),
    ],
)
def test_each_refusal_has_its_reason(
    world: GroupWorld, command: GroupCommand, refused: Refused
) -> None:
    world.open()

    assert world.run(command) == refused
    world.state.router.check()
